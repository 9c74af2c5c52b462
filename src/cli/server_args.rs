//! The flags that `dev` and `serve` share: one for each setting of [`crate::config::Config`].
//!
//! What must stay true: a flag that was not given is left out, so that the environment, the file
//! and the defaults stay in force behind it.

use std::{net::SocketAddr, path::PathBuf};

use serde::Serialize;

use crate::{
    cli::{EXIT_USAGE, Failure},
    config::{Config, Loaded, WebOrigins, store_url::TypedStoreUrl},
    domain::{
        ids::Span,
        spans::{option_span_text, parse_span},
    },
    telemetry::process::LogFormat,
};

/// Flags for every setting.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct ServerArgs {
    /// Settings file, TOML [env: RECEIPTD_CONFIG]
    #[arg(long, value_name = "FILE", env = "RECEIPTD_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Where gRPC is served; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where probes and metrics are served [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_listen: Option<SocketAddr>,
    /// Connections to the gRPC listener at once [default: 10000]
    #[arg(long, value_name = "COUNT")]
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
    /// Web pages that may call, by origin, with commas: https://app.example [default: none]
    #[arg(long, value_name = "ORIGINS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_origins: Option<WebOrigins>,
    /// How log lines look [default: auto]
    #[arg(long, value_name = "FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Lanes that commit in parallel [default: 2]
    #[arg(long, value_name = "COUNT", help_heading = "Engine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<usize>,
    /// Connections to PostgreSQL for transactions; up to 6 more serve reads [default: 8]
    #[arg(long, value_name = "COUNT", help_heading = "Engine")]
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
    /// How often a silent stream shows a sign of life [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub heartbeat: Option<Span>,
    /// How long a frame may wait to be taken [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub write_stall: Option<Span>,
    /// How old a stream becomes before it ends itself [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Streams")]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub stream_age: Option<Span>,
    /// Streams and watches of one account at once [default: 1000]
    #[arg(long, value_name = "COUNT", help_heading = "Streams")]
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
    /// How long a result may wait for its ack [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub ack_window: Option<Span>,
    /// How long one attempt may wait for its ack [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    #[serde(skip_serializing_if = "Option::is_none", with = "option_span_text")]
    pub ack_deadline: Option<Span>,
    /// How often a result is sent at most [default: 10]
    #[arg(long, value_name = "COUNT")]
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
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbox_slots: Option<i64>,
    /// Inboxes of an account [default: 10000]
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inboxes_max: Option<i64>,
    /// Results in flight per inbox [default: 256]
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_max: Option<i64>,
    /// Arguments of one operation, in bytes [default: 262144]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_bytes_max: Option<usize>,
    /// Content of one document, in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES")]
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
}

/// Reads the settings behind the flags of a command.
///
/// # Errors
/// [`Failure`] with the setting and its source.
pub fn load(flags: &impl Serialize, file: Option<&PathBuf>) -> Result<Loaded, Failure> {
    Config::load(flags, file.map(PathBuf::as_path)).map_err(|error| Failure::new(EXIT_USAGE, error))
}
