//! `receiptd serve`: the production form.
//!
//! What must stay true: it refuses to start without a store and without credentials.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    EXIT_USAGE, Failure, dev,
    server_args::{self, ServerArgs, StoreArgs, VARIABLES},
    signals::Signals,
};
use crate::{
    api::auth::Access,
    config::{Config, StoreUrl, store_url::StoreLocation},
    telemetry,
};

/// Flags of `serve`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    receiptd serve --store sqlite:/var/lib/receiptd/receiptd.db --access-file tokens.toml\n  \
    RECEIPTD_STORE=postgres://app:secret@db/receipts receiptd serve --access-file tokens.toml \\\n\
    \x20   --listen 0.0.0.0:7070 --tls-cert chain.pem --tls-key key.pem\n\n{VARIABLES}"))]
pub struct ServeArgs {
    /// Where the records are.
    #[command(flatten)]
    #[serde(flatten)]
    pub store: StoreArgs,
    /// Tokens, TOML: `[[token]]` with id, hash, account, subject, permissions
    ///
    /// The hash is the SHA-256 of the secret: printf %s SECRET | sha256sum
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_file: Option<PathBuf>,
    /// The other settings.
    #[command(flatten)]
    #[serde(flatten)]
    pub server: ServerArgs,
}

/// Runs the service until a signal.
pub(super) async fn run(args: ServeArgs) -> Result<ExitCode, Failure> {
    let loaded = server_args::load(&args, args.server.config.as_ref())?;
    telemetry::process::start_logs(loaded.config.log_format);
    dev::say_what_is_ignored(&loaded, "serve", &["data_dir"]);
    let config = loaded.config;
    let store = store(&config)?;
    let access = access(&config)?;
    let mut signals = Signals::listen();
    let (server, listeners) = signals.start(dev::open(config, &store, access)).await?;
    dev::announce(&server, &store, &listeners)?;
    let shutdown = CancellationToken::new();
    let serving = server.serve_on(listeners, shutdown.clone());
    signals.run(serving, shutdown).await
}

/// The store that the settings name. A mistyped path must not become an empty store somewhere
/// else, so its folder has to be there.
pub(super) fn store(config: &Config) -> Result<StoreUrl, Failure> {
    let Some(store) = config.store.clone() else {
        return Err(Failure::new(
            EXIT_USAGE,
            "no store: name one with --store or RECEIPTD_STORE, as postgres://… or sqlite:PATH",
        ));
    };
    if let StoreLocation::Sqlite(path) = store.location()
        && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !folder.is_dir()
    {
        return Err(Failure::new(
            EXIT_USAGE,
            format!(
                "the store is {store} (--store or RECEIPTD_STORE), and there is no folder {}: make \
                 it first, or correct the path",
                folder.display()
            ),
        ));
    }
    Ok(store)
}

fn access(config: &Config) -> Result<Access, Failure> {
    let Some(file) = &config.access_file else {
        return Err(Failure::new(
            EXIT_USAGE,
            "no credentials: name a file of tokens with --access-file; serve does not start \
             without (`receiptd dev` does, on loopback)",
        ));
    };
    Access::from_file(file).map_err(|error| Failure::new(EXIT_USAGE, error))
}
