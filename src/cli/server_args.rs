//! The flags that `dev` and `serve` share: one for each setting of [`crate::config::Config`].
//!
//! What must stay true: a flag that was not given is left out, so that the environment, the file
//! and the defaults stay in force behind it.

use std::{net::SocketAddr, path::PathBuf};

use serde::Serialize;

use crate::{
    cli::{
        EXIT_USAGE, Failure,
        values::{address, whole},
    },
    config::{Config, Hints, Loaded, Pooler, WebOrigins, store_url::TypedStoreUrl},
    domain::{
        ids::Span,
        spans::{option_span_text, parse_span},
    },
    telemetry::process::LogFormat,
};

/// The end of the help of commands whose flags are settings.
pub const VARIABLES: &str = "\
Environment:
  Each flag has a variable, RECEIPTD_ and its name: RECEIPTD_ACK_WINDOW=1h for --ack-window 1h.
  A flag outranks it; the file of --config (RECEIPTD_CONFIG) comes after it, then the default.
  RUST_LOG chooses what is logged (default: info).";

/// Flags for every setting.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct ServerArgs {
    /// Settings file, TOML [env: RECEIPTD_CONFIG]
    #[arg(long, value_name = "FILE", env = "RECEIPTD_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Where gRPC is served; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where probes and metrics are served [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_listen: Option<SocketAddr>,
    /// Connections to the gRPC listener at once [default: 10000]
    #[arg(long, value_name = "COUNT", value_parser = whole::<usize>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<usize>,
    /// Certificate chain, PEM; needs --tls-key
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Web pages that may call, by origin, with commas, such as `https://app.example`; unless named, none
    #[arg(long, value_name = "ORIGINS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_origins: Option<WebOrigins>,
    /// How log lines look [default: auto]
    #[arg(long, value_name = "FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Lanes that commit in parallel [default: 2]
    #[arg(long, value_name = "COUNT", value_parser = whole::<usize>, help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<usize>,
    /// Connections to PostgreSQL for transactions; up to 6 more serve reads [default: 8]
    #[arg(long, value_name = "COUNT", value_parser = whole::<usize>, help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_size: Option<usize>,
    /// How often what is due is looked for [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub sweep_interval: Option<Span>,
    /// How long the end may take after a signal [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub drain_deadline: Option<Span>,
    /// How long replicas are waited for after a failover of PostgreSQL [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub failover_wait: Option<Span>,
    /// How often a silent stream shows a sign of life [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub heartbeat: Option<Span>,
    /// How long a frame may wait to be taken [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub write_stall: Option<Span>,
    /// How long a connection may be silent before its peer is asked [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub keepalive_interval: Option<Span>,
    /// How long that may stay unanswered before the connection ends [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub keepalive_timeout: Option<Span>,
    /// How old a stream or a connection becomes before it ends [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub stream_age: Option<Span>,
    /// Streams and watches of one account at once [default: 1000]
    #[arg(long, value_name = "COUNT", value_parser = whole::<usize>, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_streams_max: Option<usize>,
    /// The clocks and limits.
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// Flags for the policy.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(next_help_heading = "Clocks and limits")]
pub struct PolicyArgs {
    /// How old an id may be when it is first accepted [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub admission_window: Option<Span>,
    /// How long a record is kept after its end [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub record_retention: Option<Span>,
    /// How long a tombstone is kept after the end [default: 400d]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub tombstone_retention: Option<Span>,
    /// How long an audit trail is kept after the end, not beyond its tombstone [default: 400d]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub audit_retention: Option<Span>,
    /// How long a result may wait for its ack [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub ack_window: Option<Span>,
    /// How long one attempt may wait for its ack [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub ack_deadline: Option<Span>,
    /// How often a result is sent at most [default: 10]
    #[arg(long, value_name = "COUNT", value_parser = whole::<i32>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<i32>,
    /// The first pause between attempts [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub backoff_first: Option<Span>,
    /// The longest pause between attempts [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub backoff_limit: Option<Span>,
    /// The longest time a lock is held [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub lock_limit: Option<Span>,
    /// How long an operation may wait for its start [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub start_deadline: Option<Span>,
    /// How far ahead of the store an id's mint time may be [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub max_clock_skew: Option<Span>,
    /// How long an inbox that nobody uses stays [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub inbox_idle_retention: Option<Span>,
    /// Slots of an inbox [default: 1000]
    #[arg(long, value_name = "COUNT", value_parser = whole::<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbox_slots: Option<i64>,
    /// Inboxes of an account [default: 10000]
    #[arg(long, value_name = "COUNT", value_parser = whole::<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inboxes_max: Option<i64>,
    /// Results in flight per inbox [default: 256]
    #[arg(long, value_name = "COUNT", value_parser = whole::<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_max: Option<i64>,
    /// Arguments of one operation, in bytes [default: 262144]
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_bytes_max: Option<usize>,
    /// Content of one document, in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_bytes_max: Option<usize>,
    /// The body of one result, in bytes [default: 16777216]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_bytes_max: Option<usize>,
    /// The largest body that travels with its news, in bytes [default: 65536]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline_payload_bytes_max: Option<usize>,
    /// How long a silent consumer keeps its place [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub consumer_lease: Option<Span>,
}

/// Flags that say where the store and its credentials are, for the production form.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct StoreArgs {
    /// postgres://… or sqlite:PATH; RECEIPTD_STORE keeps a password out of the process list
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<TypedStoreUrl>,
    /// What stands before the PostgreSQL server [default: none]
    #[arg(long, value_name = "KIND")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooler: Option<Pooler>,
    /// The PostgreSQL server itself, if --store leads through a pooler; RECEIPTD_LISTEN_URL
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_url: Option<TypedStoreUrl>,
    /// What tells replicas at once of each other's changes [default: postgres]
    #[arg(long, value_name = "CARRIER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
    /// Where NATS is, for --hints nats; RECEIPTD_NATS_URL
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_url: Option<TypedStoreUrl>,
}

/// Reads the settings behind the flags of a command.
///
/// # Errors
/// [`Failure`] with the setting and its source.
pub fn load(flags: &impl Serialize, file: Option<&PathBuf>) -> Result<Loaded, Failure> {
    Config::load(flags, file.map(PathBuf::as_path)).map_err(|error| Failure::new(EXIT_USAGE, error))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::{
        cli::Cli,
        config::Config,
        domain::spans::{format_span, parse_span},
    };

    #[test]
    fn the_help_of_each_flag_says_the_default_in_force() {
        let defaults = serde_json::to_value(Config::default()).expect("settings are plain values");
        let cli = Cli::command();
        let mut compared = 0;
        for command in ["dev", "serve"] {
            let command = cli.find_subcommand(command).expect("a command");
            for flag in command.get_arguments() {
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                let Some((_, told)) = help.split_once("[default: ") else { continue };
                let told = told.trim_end_matches(']');
                let told = parse_span(told).map_or_else(|_| told.to_owned(), format_span);
                let key = flag.get_id().as_str();
                let value = defaults.get(key).or_else(|| defaults["policy"].get(key));
                let value = value.map(ToString::to_string).unwrap_or_default();
                assert_eq!(value.trim_matches('"'), told, "--{key}");
                compared += 1;
            }
        }
        assert!(compared > 40, "every flag with a default is compared: {compared}");
    }
}
