//! The whole service on given listeners: `serve` and `dev` bind them, tests and simulations hand
//! them over.
//!
//! What must stay true: a shutdown first tells the probes, then ends the streams, then lets what
//! runs complete, and ends by its deadline whatever a peer does. Deliberately not here: signals.

mod connections;
mod tls;

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::server::TcpIncoming;

use self::connections::Places;
use crate::{
    api::{self, Api, auth::Access, health::Health, web::Origins},
    config::{self, Config, Hints, StoreUrl, store_url::StoreLocation},
    domain::ids::Span,
    engine::{Engine, EngineSettings, seams::Seams},
    epochs::replica::ReplicaTask,
    http,
    store::{
        OpenError, Purpose, ReadError, Store,
        postgres::{DirectUrl, Migrations, Pooler, PostgresOptions, PostgresStore},
        sqlite::{self, SqliteStore},
    },
    stream::StreamSettings,
    sweeper, telemetry,
    wake::{
        self,
        replicas::{Carrier, Replicas},
    },
};

/// How often readiness is looked at, and the metrics are tidied.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Every so many probes the store is asked what is not over: as often as metrics are usually read.
const PROBES_PER_LOOK: u32 = 15;
/// A store that takes longer for its clock is not ready.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Why a server does not start, or ends before it is told to.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The store does not open.
    #[error("{0}")]
    Store(#[from] OpenError),
    /// The certificate cannot be used.
    #[error("{0}")]
    Tls(#[from] tls::TlsError),
    /// What carries hints between replicas cannot be used.
    #[error("{0}")]
    Hints(String),
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; name another with --{} (setting {setting}), or end \
         what listens there",
        setting.replace('_', "-")
    )]
    Bind {
        /// The setting that names it.
        setting: &'static str,
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The listener failed.
    #[error("the listener failed: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The listener ended by itself.
    #[error("the listener ended")]
    ListenerEnded,
    /// The store must not be used any more.
    #[error("the store failed and must not be used any more; look at the log, then start again")]
    StoreFailed,
}

/// Both listeners.
#[derive(Debug)]
pub struct Listeners {
    /// For gRPC.
    pub grpc: TcpListener,
    /// For probes and metrics, if they are served.
    pub admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds the addresses of the settings. Do it before the store is opened: a second server
    /// that was started by mistake then leaves no trace. Callers that come before the server
    /// serves wait in the kernel's queue.
    ///
    /// # Errors
    /// [`ServerError::Bind`] with the address and its setting.
    pub async fn bind(config: &Config) -> Result<Self, ServerError> {
        if config.tls_cert.is_none() && !config.listen.ip().is_loopback() {
            tracing::warn!(
                "listening beyond this machine in plain text: tokens can be read on the way"
            );
        }
        Ok(Listeners {
            grpc: bind("listen", config.listen).await?,
            admin: Some(bind("admin_listen", config.admin_listen).await?),
        })
    }
}

/// A server that is ready to serve.
#[derive(Debug)]
pub struct Server {
    config: Config,
    access: Access,
    engine: Engine,
    carrier: Option<Carrier>,
    tls: Option<Arc<rustls::ServerConfig>>,
    tasks: TaskTracker,
}

impl Server {
    /// Opens the store and starts the engine. The settings were checked.
    ///
    /// # Errors
    /// [`ServerError`] for a store that does not open or a certificate that cannot be used.
    pub async fn open(
        config: Config,
        store: &StoreUrl,
        access: Access,
        seams: Seams,
    ) -> Result<Self, ServerError> {
        // One provider for every TLS connection of the process; a second install changes nothing.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let tls = tls::server_config(config.tls_cert.as_deref(), config.tls_key.as_deref())?;
        let store = open_store(store, &config, &seams).await?;
        let carrier = carrier(&config, &store)?;
        let settings = EngineSettings { lanes: config.lanes };
        let engine = Engine::start(store, config.policy.clone(), settings, seams);
        let server = Server { config, access, engine, carrier, tls, tasks: TaskTracker::new() };
        let entered = server.replica().enter().await;
        entered.map_err(|error| OpenError(error.to_string()))?;
        Ok(server)
    }

    /// The engine, for tests that look behind the listener.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn replica(&self) -> ReplicaTask {
        let engine = &self.engine;
        let (store, seams) = (engine.store().clone(), engine.seams().clone());
        let policy = self.config.policy.clone();
        ReplicaTask::new(store, engine.replica(), policy, self.config.failover_wait, seams)
    }

    /// Whether gRPC is served over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Serves until `shutdown`, then drains. When this returns, every answer that was given is
    /// durable and the store is closed.
    ///
    /// # Errors
    /// [`ServerError`] if it ends before `shutdown`.
    pub async fn serve_on(
        self,
        listeners: Listeners,
        shutdown: CancellationToken,
    ) -> Result<(), ServerError> {
        let health = Health::starting().await;
        // Ends the streams and the accepting of connections.
        let drain = CancellationToken::new();
        // Ends what goes on in the background.
        let stop = CancellationToken::new();
        probe(&self.engine, &health).await;
        self.start_background(&health, listeners.admin, &stop);
        let api = self.api(drain.clone());
        let mut serving = pin!(self.serve_grpc(api, &health, listeners.grpc, drain.clone()));
        let failed = self.engine.failed();
        let ended = tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(()),
            () = failed.cancelled() => Err(ServerError::StoreFailed),
            served = &mut serving => Err(served.err().unwrap_or(ServerError::ListenerEnded)),
        };
        tracing::info!("draining");
        let deadline = Instant::now() + self.config.drain_deadline.to_std();
        health.set_draining().await;
        drain.cancel();
        if ended.is_ok() {
            // Connections end when their calls and streams have; a peer that never answers must
            // not cost the engine its share of the time.
            let half = Instant::now() + self.config.drain_deadline.to_std() / 2;
            if tokio::time::timeout_at(half, &mut serving).await.is_err() {
                tracing::warn!("some connections did not end in time");
            }
        }
        self.finish(&stop, deadline).await;
        ended
    }

    async fn finish(&self, stop: &CancellationToken, deadline: Instant) {
        let finished = tokio::time::timeout_at(deadline, async {
            self.engine.drain().await;
            stop.cancel();
            self.tasks.close();
            self.tasks.wait().await;
            self.engine.store().close().await;
        });
        match finished.await {
            Ok(()) => tracing::info!("drained"),
            Err(_) => tracing::warn!("the drain deadline passed"),
        }
        stop.cancel();
    }

    async fn serve_grpc(
        &self,
        api: Api,
        health: &Health,
        listener: TcpListener,
        drain: CancellationToken,
    ) -> Result<(), ServerError> {
        let access = self.access.clone();
        let origins = Origins::new(self.config.web_origins.list());
        let keeping = api::transport::Keeping {
            keepalive_interval: self.config.keepalive_interval.to_std(),
            keepalive_timeout: self.config.keepalive_timeout.to_std(),
            age: self.config.stream_age.to_std(),
        };
        // A peer that never spoke is as silent as one that fell silent.
        let places = Places::new(self.config.connections_max, keeping.keepalive_interval);
        match &self.tls {
            None => {
                let listener = TcpIncoming::from(listener).with_nodelay(Some(true));
                let incoming = pin!(connections::incoming(listener, places));
                api::transport::serve(api, access, origins, health, &keeping, incoming, drain)
                    .await?;
            }
            Some(tls) => {
                let seams = self.engine.seams();
                let incoming =
                    tls::incoming(listener, Arc::clone(tls), places, seams, drain.clone());
                api::transport::serve(api, access, origins, health, &keeping, incoming, drain)
                    .await?;
            }
        }
        Ok(())
    }

    fn api(&self, drain: CancellationToken) -> Api {
        let streams = StreamSettings {
            heartbeat: self.config.heartbeat,
            age_max: self.config.stream_age,
            write_stall_max: self.config.write_stall,
        };
        Api::new(self.engine.clone(), streams, self.config.account_streams_max, drain)
    }

    fn start_background(
        &self,
        health: &Health,
        admin: Option<TcpListener>,
        stop: &CancellationToken,
    ) {
        let period = self.config.sweep_interval.to_std();
        self.background(sweeper::run(self.engine.clone(), period, stop.clone()));
        let (store, wake) = (self.engine.store().clone(), self.engine.wake().clone());
        self.background(wake::reread(store, wake, period, stop.clone()));
        self.background(self.replica().run(stop.clone()));
        if let Some(carrier) = self.carrier.clone() {
            let (wake, seams) = (self.engine.wake().clone(), self.engine.seams().clone());
            let replicas = Replicas::new(wake, carrier, seams);
            self.background(replicas.clone().hear(stop.clone()));
            self.background(replicas.tell(stop.clone()));
        }
        let metrics = telemetry::process::metrics();
        self.background(probe_until(
            self.engine.clone(),
            health.clone(),
            metrics.clone(),
            stop.clone(),
        ));
        if let Some(listener) = admin {
            let health = health.clone();
            let served = http::serve(listener, move || health.is_ready(), metrics, stop.clone());
            self.background(async move {
                if let Err(error) = served.await {
                    tracing::error!(%error, "the admin listener failed");
                }
            });
        }
    }

    /// Starts a task that [`Server::finish`] waits for.
    fn background(&self, task: impl Future<Output = ()> + Send + 'static) {
        let tracked = self.tasks.token();
        self.engine.seams().spawn(async move {
            task.await;
            drop(tracked);
        });
    }
}

/// What carries hints between the replicas; the embedded store has one process only.
fn carrier(config: &Config, store: &Store) -> Result<Option<Carrier>, ServerError> {
    let Store::Postgres(store) = store else { return Ok(None) };
    match config.hints {
        Hints::Postgres => Ok(Some(Carrier::Postgres(store.clone()))),
        Hints::Nats => nats(config, &store.facts().epoch),
        Hints::None => Ok(None),
    }
}

#[cfg(feature = "nats")]
fn nats(config: &Config, epoch: &str) -> Result<Option<Carrier>, ServerError> {
    let Some(url) = &config.nats_url else { return Ok(None) };
    let nats = wake::nats::Nats::new(url.whole(), epoch).map_err(ServerError::Hints)?;
    Ok(Some(Carrier::Nats(nats)))
}

/// The settings were checked: a build without NATS was refused.
#[cfg(not(feature = "nats"))]
fn nats(_: &Config, _: &str) -> Result<Option<Carrier>, ServerError> {
    Ok(None)
}

async fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, ServerError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServerError::Bind { setting, address, source })
}

/// Opens the store that a URL names, with its schema up to date.
///
/// # Errors
/// [`OpenError`], without the URL's password.
pub async fn open_store(
    store: &StoreUrl,
    config: &Config,
    seams: &Seams,
) -> Result<Store, OpenError> {
    open_store_for(store, config, seams, Purpose::Serve).await
}

/// As [`open_store`], for something else than to serve from it.
///
/// # Errors
/// As there.
pub async fn open_store_for(
    store: &StoreUrl,
    config: &Config,
    seams: &Seams,
    purpose: Purpose,
) -> Result<Store, OpenError> {
    match store.location() {
        StoreLocation::Sqlite(path) => {
            let options = sqlite::Options { purpose, ..sqlite::Options::default() };
            SqliteStore::open(path, seams, &options).map(Store::Sqlite)
        }
        StoreLocation::Postgres(url) => {
            let options =
                PostgresOptions { purpose, ..postgres_options(config, Migrations::Apply) };
            PostgresStore::open(url, seams, options).await.map(Store::Postgres)
        }
    }
}

/// Opens the store that a URL names, as it is, for reads alone: whatever writes to it goes on. An
/// embedded one is not locked, and none is created or migrated.
///
/// # Errors
/// [`OpenError`], without the URL's password; also where this release would have to migrate it.
pub async fn open_store_to_read(
    store: &StoreUrl,
    config: &Config,
    seams: &Seams,
) -> Result<Store, OpenError> {
    match store.location() {
        StoreLocation::Sqlite(path) => {
            SqliteStore::open_to_read(path, seams, &sqlite::Options::default()).map(Store::Sqlite)
        }
        StoreLocation::Postgres(url) => {
            let options = PostgresOptions {
                purpose: Purpose::Mark,
                ..postgres_options(config, Migrations::Demand)
            };
            PostgresStore::open(url, seams, options).await.map(Store::Postgres)
        }
    }
}

fn postgres_options(config: &Config, migrations: Migrations) -> PostgresOptions {
    let direct = config.listen_url.as_ref().map(StoreUrl::location);
    let direct_url = direct.and_then(|location| match location {
        StoreLocation::Postgres(url) => Some(DirectUrl(url.to_owned())),
        StoreLocation::Sqlite(_) => None,
    });
    PostgresOptions {
        write_connections: config.pool_size,
        pooler: match config.pooler {
            config::Pooler::None => Pooler::None,
            config::Pooler::Transaction => Pooler::Transaction,
        },
        direct_url,
        ..PostgresOptions::usual(migrations)
    }
}

async fn probe_until(
    engine: Engine,
    health: Health,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    stop: CancellationToken,
) {
    let mut probes = 0_u32;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.seams().sleep(PROBE_INTERVAL) => {}
        }
        metrics.run_upkeep();
        probe(&engine, &health).await;
        if probes.is_multiple_of(PROBES_PER_LOOK) {
            look_at_pressure(&engine).await;
        }
        probes = probes.wrapping_add(1);
    }
}

/// Sets the gauges of what is not over.
async fn look_at_pressure(engine: &Engine) {
    let store = engine.store();
    let look = async { Ok::<_, ReadError>((store.pressure().await?, store.now().await?)) };
    if let Ok(Ok((pressure, now))) = tokio::time::timeout(PROBE_PATIENCE, look).await {
        let age = pressure.oldest_unacked.map_or(Span(0), |queued| (now - queued).max(Span(0)));
        telemetry::unresolved(pressure.unresolved, age.to_std());
    }
}

async fn probe(engine: &Engine, health: &Health) {
    let answer = tokio::time::timeout(PROBE_PATIENCE, engine.store().now()).await;
    if !engine.stores() {
        // Without a submit nothing else would tell that the store takes writes again.
        let _ = tokio::time::timeout(PROBE_PATIENCE, engine.try_to_store()).await;
    }
    match answer {
        Ok(Ok(_)) if engine.stores() => health.set_ready().await,
        Ok(_) | Err(_) => health.set_not_ready().await,
    }
}
