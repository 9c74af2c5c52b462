//! `receiptd migrate`: brings a store's schema up to date, then stops.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::{
    Failure,
    output::say,
    serve,
    server_args::{self, StoreArgs},
};
use crate::{engine::seams::Seams, server, telemetry};

/// Flags of `migrate`.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct MigrateArgs {
    /// Settings file, TOML [env: RECEIPTD_CONFIG]
    #[arg(long, value_name = "FILE", env = "RECEIPTD_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Which store.
    #[command(flatten)]
    #[serde(flatten)]
    pub store: StoreArgs,
}

/// Opens the store, which brings its schema up to date.
pub(super) async fn run(args: MigrateArgs) -> Result<ExitCode, Failure> {
    let config = server_args::load(&args, args.config.as_ref())?.config;
    telemetry::process::start_logs(config.log_format);
    let url = serve::store(&config)?;
    let opened = server::open_store(&url, &config, &Seams::system()).await;
    let opened = opened.map_err(Failure::plain)?;
    let created = if opened.is_new() { " (new)" } else { "" };
    opened.close().await;
    say(format!("store {url}{created}: the schema is up to date"))?;
    Ok(ExitCode::SUCCESS)
}
