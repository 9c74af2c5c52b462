//! Every setting, typed: flag > environment > file > default.
//!
//! What must stay true: an unknown key is an error that names where it came from; the settings are
//! checked as a whole before anything opens; a secret never reaches a text. Every limit says why
//! it has its value. Deliberately not here: the flags themselves (`cli/server_args.rs`).

mod replicas;
mod sources;
pub mod store_url;
mod told;
pub mod web_origins;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use self::{
    replicas::{Hints, Pooler},
    sources::{Loaded, ShownSetting},
    store_url::{NatsUrl, StoreUrl},
    told::ADDRESS_WANTED,
    web_origins::WebOrigins,
};
use crate::{
    domain::{ids::Span, policy::Policy, spans::span_text},
    telemetry::process::LogFormat,
};

/// Why the settings cannot be used. Names the setting and where it came from.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// The whole configuration of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where gRPC is served. Loopback by default: nobody is exposed by accident.
    pub listen: SocketAddr,
    /// Where probes and metrics are served: apart from gRPC, because probes speak plain text.
    pub admin_listen: SocketAddr,
    /// Where `dev` keeps its store.
    pub data_dir: PathBuf,
    /// The store of `serve`: `postgres://…` or `sqlite:PATH`.
    pub store: Option<StoreUrl>,
    /// What stands between the service and its PostgreSQL server. Checked at the start.
    pub pooler: Pooler,
    /// Where the PostgreSQL server itself is reached, if `store` leads to something in between: for
    /// LISTEN and for migrations. The same database as `store`.
    pub listen_url: Option<StoreUrl>,
    /// What tells replicas at once of each other's changes; without it they look once per
    /// `sweep_interval`. On the embedded store there is nobody to tell.
    pub hints: Hints,
    /// Where NATS is, for `hints = "nats"`: `nats://…` or `tls://…`.
    pub nats_url: Option<NatsUrl>,
    /// The file with the hashes of the tokens.
    pub access_file: Option<PathBuf>,
    /// The certificate chain, PEM. With it comes `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Which web pages may call over gRPC-Web, by exact origin; none by default.
    pub web_origins: WebOrigins,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Lanes that commit in parallel. Two keep a small machine busy; more only help when the
    /// store's flushes are slow.
    pub lanes: usize,
    /// Connections to PostgreSQL for transactions: a lane uses one at a time, the others stand by.
    /// Beside them a replica opens up to four for what callers read, and two for its own upkeep.
    pub pool_size: usize,
    /// Connections to the gRPC listener at once: each costs a file descriptor and tens of KiB, so
    /// that these fit into the memory of a small machine and into a usual limit of descriptors.
    /// Whatever comes on top waits in the kernel's queue.
    pub connections_max: usize,
    /// Streams and watches of one account at once, on this server: many times what the editors of
    /// a large team hold open, and few enough that one account can't take the memory of all.
    pub account_streams_max: usize,
    /// How often what is due is looked for, and what waits is re-read: a lost hint costs at most
    /// this long.
    #[serde(with = "span_text")]
    pub sweep_interval: Span,
    /// How often a silent stream shows a sign of life: a third of the 60 s after which proxies
    /// commonly cut an idle connection.
    #[serde(with = "span_text")]
    pub heartbeat: Span,
    /// How long a frame may wait to be taken before its stream ends, resumable: long enough for a
    /// laptop's hiccup, short enough that a frozen client holds nothing for ever.
    #[serde(with = "span_text")]
    pub write_stall: Span,
    /// How long a connection may be silent before its peer is asked for a sign of life: with the
    /// time below, a frozen client holds its results for 30 s in all.
    #[serde(with = "span_text")]
    pub keepalive_interval: Span,
    /// How long that may stay unanswered before the connection ends: a slow mobile network answers
    /// within a few seconds.
    #[serde(with = "span_text")]
    pub keepalive_timeout: Span,
    /// How old a stream becomes before it ends itself, and a connection before it is told to go
    /// away, with jitter: both move to new replicas within this time.
    #[serde(with = "span_text")]
    pub stream_age: Span,
    /// How long the end may take after the first signal, all phases together: below the 30 s
    /// after which orchestrators kill.
    #[serde(with = "span_text")]
    pub drain_deadline: Span,
    /// How long the replicas are waited for after a failover of PostgreSQL, to say whether what
    /// they acknowledged is there: long enough for one that reconnects slowly, and as long as
    /// writes may have to wait.
    #[serde(with = "span_text")]
    pub failover_wait: Span,
    /// The clocks and limits of contract sections 6 and 8.
    pub policy: Policy,
}

/// More lanes than this only fight over the store.
const LANES_LIMIT: usize = 64;
/// More connections than this need more than one process.
const CONNECTIONS_LIMIT: usize = 1_000_000;
/// PostgreSQL allows 100 connections by default, for all replicas together.
const POOL_LIMIT: usize = 100;

impl Default for Config {
    fn default() -> Self {
        let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Config {
            listen: local(7070),
            admin_listen: local(7071),
            data_dir: PathBuf::from("./receiptd-data"),
            store: None,
            pooler: Pooler::None,
            listen_url: None,
            hints: Hints::Postgres,
            nats_url: None,
            access_file: None,
            tls_cert: None,
            tls_key: None,
            web_origins: WebOrigins::default(),
            log_format: LogFormat::Auto,
            lanes: 2,
            pool_size: 8,
            connections_max: 10_000,
            account_streams_max: 1_000,
            sweep_interval: Span::seconds(1),
            heartbeat: Span::seconds(20),
            write_stall: Span::seconds(30),
            keepalive_interval: Span::seconds(20),
            keepalive_timeout: Span::seconds(10),
            stream_age: Span::minutes(30),
            drain_deadline: Span::seconds(10),
            failover_wait: Span::minutes(1),
            policy: Policy::default(),
        }
    }
}

impl Config {
    /// Reads the settings from the process's environment, from `file`, and from `flags`: a value
    /// whose absent members are left out when it is serialised.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown key, a value that cannot be read, or a contradiction.
    pub fn load(flags: &impl Serialize, file: Option<&Path>) -> Result<Loaded, ConfigError> {
        sources::load(flags, std::env::vars(), file)
    }

    /// Checks the settings as a whole.
    ///
    /// # Errors
    /// One sentence that names the setting and its limit, or the two that contradict each other.
    pub fn check(&self) -> Result<(), String> {
        self.policy.check().map_err(|fault| fault.to_string())?;
        let spans = [
            ("sweep_interval", self.sweep_interval),
            ("heartbeat", self.heartbeat),
            ("write_stall", self.write_stall),
            ("keepalive_interval", self.keepalive_interval),
            ("keepalive_timeout", self.keepalive_timeout),
            ("stream_age", self.stream_age),
            ("drain_deadline", self.drain_deadline),
            ("failover_wait", self.failover_wait),
        ];
        if let Some((name, _)) = spans.into_iter().find(|(_, span)| *span < Span::millis(10)) {
            return Err(format!("{name} must be at least 10ms"));
        }
        if self.policy.consumer_lease < self.heartbeat + self.heartbeat {
            return Err("consumer_lease must be at least twice the heartbeat: a stream that \
                        misses one would lose its place otherwise"
                .to_owned());
        }
        if self.policy.consumer_lease <= self.write_stall {
            return Err("consumer_lease must be longer than write_stall: a stream that waits for \
                        its client would lose its place otherwise"
                .to_owned());
        }
        if !(1..=LANES_LIMIT).contains(&self.lanes) {
            return Err(format!("lanes must be 1 to {LANES_LIMIT}"));
        }
        if !(self.lanes + 1..=POOL_LIMIT).contains(&self.pool_size) {
            return Err(format!(
                "pool_size must be more than lanes ({}), and at most {POOL_LIMIT}",
                self.lanes
            ));
        }
        replicas::check(self)?;
        if self.connections_max < 1 || self.account_streams_max < 1 {
            return Err("connections_max and account_streams_max must be at least 1".to_owned());
        }
        if self.connections_max > CONNECTIONS_LIMIT {
            return Err(format!("connections_max must be at most {CONNECTIONS_LIMIT}"));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("tls_cert and tls_key come together".to_owned());
        }
        Ok(())
    }
}
