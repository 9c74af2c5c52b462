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
    output::{program, say},
    server_args::{self, ServerArgs, VARIABLES},
    signals::Signals,
};
use crate::{
    api::auth::Access,
    config::{Config, Loaded, ShownSetting, StoreUrl},
    engine::seams::Seams,
    server::{Listeners, Server},
    telemetry,
};

/// The store's file in the data folder.
const STORE_FILE: &str = "receiptd.db";

/// Flags of `dev`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = format!("Example, with clocks of seconds:\n  \
    receiptd dev --data-dir /tmp/receipts --ack-window 6s --ack-deadline 2s\n\n{VARIABLES}"))]
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
    let loaded = server_args::load(&args, args.server.config.as_ref())?;
    telemetry::process::start_logs(loaded.config.log_format);
    say_what_is_ignored(&loaded, "dev", &["store", "access_file"]);
    let config = loaded.config;
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
    let certificate = config.tls_cert.clone();
    let mut signals = Signals::listen();
    let opened = signals.start(open(config, &store, Access::Local)).await;
    let (server, listeners) = opened?;
    let address = announce(&server, &store, &listeners)?;
    welcome(&server, address, certificate.as_deref())?;
    let shutdown = CancellationToken::new();
    let serving = server.serve_on(listeners, shutdown.clone());
    signals.run(serving, shutdown).await
}

/// Binds the ports, then opens a server on the real world: what finds its port taken creates no
/// store.
pub(super) async fn open(
    config: Config,
    store: &StoreUrl,
    access: Access,
) -> Result<(Server, Listeners), Failure> {
    let listeners = Listeners::bind(&config).await.map_err(Failure::plain)?;
    let server = Server::open(config, store, access, Seams::system()).await;
    Ok((server.map_err(Failure::plain)?, listeners))
}

/// Says in the log which settings somebody chose for nothing.
pub(super) fn say_what_is_ignored(loaded: &Loaded, command: &str, keys: &[&str]) {
    for ShownSetting { key, source, .. } in loaded.shown() {
        if keys.contains(&key.as_str()) && source != "default" {
            tracing::warn!("{command} has no use for {key}, which comes from {source}: ignored");
        }
    }
}

/// Prints the store and both real addresses, each in one line that programs may read.
pub(super) fn announce(
    server: &Server,
    store: &StoreUrl,
    listeners: &Listeners,
) -> Result<SocketAddr, Failure> {
    let created = if server.engine().store().is_new() { " (new)" } else { "" };
    say(format!("store {store}{created}"))?;
    let address = listeners.grpc.local_addr().map_err(Failure::plain)?;
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    say(format!("listening on {scheme}://{address}"))?;
    if let Some(admin) = &listeners.admin {
        say(format!("admin on http://{}", admin.local_addr().map_err(Failure::plain)?))?;
    }
    Ok(address)
}

/// Commands that work as they stand: with this program as it was called, and with its certificate.
fn welcome(
    server: &Server,
    address: SocketAddr,
    certificate: Option<&Path>,
) -> Result<(), Failure> {
    let seams = server.engine().seams();
    let millis = u64::try_from(seams.now().0 / 1_000).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &seams.random_bytes()).into_uuid();
    let program = program();
    let (options, grpcurl) = try_options(address, certificate);
    say("account local, no credentials, loopback only: not for production")?;
    say("\ntry:")?;
    say(format!(
        "  {program} submit --action document.append --target notes/a \
         --args '{{\"line\":\"hello\"}}'{options}"
    ))?;
    say(format!(
        "  grpcurl {grpcurl} -d '{{\"operation_id\":\"{id}\",\"intent\":{{\"action\":\
         \"document.append\",\"target\":\"notes/a\",\"arguments\":\
         \"eyJsaW5lIjoiaGVsbG8ifQ==\"}}}}' {address} \
         receiptd.v1.OperationService/SubmitOperation"
    ))?;
    say(format!("  {program} inbox stream{options}"))
}

/// What the client and grpcurl need to reach this server. The certificate's own file is named as
/// its authority, which is right for a certificate that signed itself.
fn try_options(address: SocketAddr, certificate: Option<&Path>) -> (String, String) {
    match certificate {
        Some(file) => {
            let file = file.display();
            (format!(" --endpoint https://{address} --ca-file {file}"), format!("-cacert {file}"))
        }
        None if address == Config::default().listen => (String::new(), "-plaintext".to_owned()),
        None => (format!(" --endpoint http://{address}"), "-plaintext".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_fits_how_the_server_listens() {
        let other: SocketAddr = "127.0.0.1:7170".parse().expect("an address");
        let certificate = Path::new("tls/cert.pem");
        for (address, certificate, options, grpcurl) in [
            (Config::default().listen, None, "", "-plaintext"),
            (other, None, " --endpoint http://127.0.0.1:7170", "-plaintext"),
            (
                other,
                Some(certificate),
                " --endpoint https://127.0.0.1:7170 --ca-file tls/cert.pem",
                "-cacert tls/cert.pem",
            ),
        ] {
            let expected = (options.to_owned(), grpcurl.to_owned());
            assert_eq!(try_options(address, certificate), expected);
        }
    }
}
