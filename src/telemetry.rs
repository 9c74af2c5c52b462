//! Logs and metrics of the process.
//!
//! What must stay true: logs go to standard error and hold identifiers only, never arguments,
//! results, tokens or account names. Deliberately not here yet: traces.

use std::{io::IsTerminal, sync::OnceLock};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging, once per process; `RUST_LOG` chooses what is told.
pub fn start_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let pretty = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    // Somebody who embeds the service may have chosen a subscriber; it stays.
    let _ = match pretty {
        true => builder.try_init(),
        false => builder.json().try_init(),
    };
}

/// The process's metrics. The recorder is installed at the first call; if whoever embeds the
/// service has another one, that one gets the values, and this one shows none.
pub fn metrics() -> PrometheusHandle {
    static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();
    METRICS
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            let _ = metrics::set_global_recorder(recorder);
            handle
        })
        .clone()
}
