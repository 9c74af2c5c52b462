//! `receiptd dev`: everything on this machine, at once, without credentials.
//!
//! What must stay true: it listens on loopback only, because whoever reaches it may do everything.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    EXIT_USAGE, Failure,
    server_args::{self, ServerArgs},
    signals,
};
use crate::{
    api::auth::Access,
    config::{Config, StoreUrl},
    engine::seams::Seams,
    server::{Listeners, Server},
    telemetry,
};

/// The store's file in the data folder.
const STORE_FILE: &str = "receiptd.db";

/// Flags of `dev`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = "Example, with clocks of seconds:\n  \
    receiptd dev --data-dir /tmp/receipts --ack-window 6s --ack-deadline 2s")]
pub struct DevArgs {
    /// Where the store is kept [default: ./receiptd-data]
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// The other settings.
    #[command(flatten)]
    #[serde(flatten)]
    pub server: ServerArgs,
}

/// Runs the service until a signal.
pub(super) async fn run(args: DevArgs) -> Result<ExitCode, Failure> {
    let config = server_args::load(&args, args.server.config.as_ref())?.config;
    telemetry::process::start_logs(config.log_format);
    for (name, address) in [("listen", config.listen), ("admin_listen", config.admin_listen)] {
        if !address.ip().is_loopback() {
            return Err(Failure::new(
                EXIT_USAGE,
                format!(
                    "{name} is {address}: dev asks nobody for credentials, so it listens on \
                     loopback only; use `receiptd serve` for anything else"
                ),
            ));
        }
    }
    if let Some(origin) = config.web_origins.first_beyond_loopback() {
        return Err(Failure::new(
            EXIT_USAGE,
            format!(
                "web_origins names {origin}: dev asks nobody for credentials, so only pages of \
                 loopback may call it; use `receiptd serve` for anything else"
            ),
        ));
    }
    let store = StoreUrl::sqlite(config.data_dir.join(STORE_FILE));
    let data_dir = config.data_dir.clone();
    let server = open(config, &store, Access::Local).await?;
    let listeners = server.bind().await.map_err(Failure::plain)?;
    let address = announce(&server, &listeners)?;
    welcome(&server, address, &data_dir);
    let shutdown = CancellationToken::new();
    let serving = server.serve_on(listeners, shutdown.clone());
    signals::run_until_signalled(serving, shutdown).await
}

/// Opens a server on the real world.
pub(super) async fn open(
    config: Config,
    store: &StoreUrl,
    access: Access,
) -> Result<Server, Failure> {
    Server::open(config, store, access, Seams::system()).await.map_err(Failure::plain)
}

/// Prints both real addresses, each in one line that programs may read.
pub(super) fn announce(server: &Server, listeners: &Listeners) -> Result<SocketAddr, Failure> {
    let address = listeners.grpc.local_addr().map_err(Failure::plain)?;
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    println!("listening on {scheme}://{address}");
    if let Some(admin) = &listeners.admin {
        println!("admin on http://{}", admin.local_addr().map_err(Failure::plain)?);
    }
    Ok(address)
}

fn welcome(server: &Server, address: SocketAddr, data_dir: &Path) {
    let seams = server.engine().seams();
    let millis = u64::try_from(seams.now().0 / 1_000).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &seams.random_bytes()).into_uuid();
    let default = Config::default().listen;
    let prefix = match address == default {
        true => String::new(),
        false => format!("RECEIPTD_ENDPOINT=http://{address} "),
    };
    println!("data in {}", data_dir.display());
    println!("account local, no credentials, loopback only: not for production");
    println!();
    println!("try:");
    println!(
        "  {prefix}receiptd submit --action document.append --target notes/a \
         --args '{{\"line\":\"hello\"}}'"
    );
    println!(
        "  grpcurl -plaintext -d '{{\"operation_id\":\"{id}\",\"intent\":{{\"action\":\
         \"document.append\",\"target\":\"notes/a\",\"arguments\":\
         \"eyJsaW5lIjoiaGVsbG8ifQ==\"}}}}' {address} \
         receiptd.v1.OperationService/SubmitOperation"
    );
    println!("  {prefix}receiptd inbox stream");
}
