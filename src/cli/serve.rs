//! `receiptd serve`: the production form.
//!
//! What must stay true: it refuses to start without a store and without credentials.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    EXIT_USAGE, Failure, dev,
    server_args::{self, ServerArgs, StoreArgs},
    signals,
};
use crate::{
    api::auth::Access,
    config::{Config, StoreUrl},
    telemetry,
};

/// Flags of `serve`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = "Examples:\n  \
    receiptd serve --store sqlite:/var/lib/receiptd/receiptd.db --access-file tokens.toml\n  \
    RECEIPTD_STORE=postgres://app:secret@db/receipts receiptd serve --access-file tokens.toml \\\n\
    \x20   --listen 0.0.0.0:7070 --tls-cert chain.pem --tls-key key.pem")]
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
    let config = server_args::load(&args, args.server.config.as_ref())?.config;
    telemetry::process::start_logs(config.log_format);
    let store = store(&config)?;
    let access = access(&config)?;
    let server = dev::open(config, &store, access).await?;
    let listeners = server.bind().await.map_err(Failure::plain)?;
    dev::announce(&server, &listeners)?;
    let shutdown = CancellationToken::new();
    let serving = server.serve_on(listeners, shutdown.clone());
    signals::run_until_signalled(serving, shutdown).await
}

/// The store that the settings name.
pub(super) fn store(config: &Config) -> Result<StoreUrl, Failure> {
    config.store.clone().ok_or_else(|| {
        Failure::new(
            EXIT_USAGE,
            "no store: name one with --store or RECEIPTD_STORE, as postgres://… or sqlite:PATH",
        )
    })
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
