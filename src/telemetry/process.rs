//! Where this process's logs and metrics go.
//!
//! What must stay true: logs go to standard error and hold identifiers only, never arguments,
//! results, tokens or account names. Deliberately not here yet: traces.

use std::{io::IsTerminal, sync::OnceLock};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::{BATCH_COMMANDS, describe};

/// A batch is one command when the service is idle, and 200 at most.
const COMMANDS_BUCKETS: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 150.0, 200.0];
/// From an embedded store without contention to the limit of a statement.
const SECONDS_BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Pretty,
}

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
            // Without buckets of their own, histograms would be shown as summaries.
            let seconds = Matcher::Suffix("_seconds".to_owned());
            let commands = Matcher::Full(BATCH_COMMANDS.to_owned());
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(seconds, &SECONDS_BUCKETS)
                .and_then(|builder| builder.set_buckets_for_metric(commands, &COMMANDS_BUCKETS))
                .expect("the buckets are not empty")
                .build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_ok() {
                describe();
            }
            handle
        })
        .clone()
}
