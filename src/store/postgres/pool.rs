//! The connections: how one is made, checked, lent and given back.
//!
//! What must stay true: a connection goes back to the pool only by [`Lease::give_back`], after a
//! transaction that ended as expected; in every other case, also when the caller's future is
//! dropped half-way, it is closed. No connection is used whose server would lose acknowledged
//! commits. Nothing is set for a session, only for a transaction, so that a pooler may stand in
//! between.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use deadpool::{
    Runtime,
    managed::{self, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{
    Client, Config, Connection, NoTls,
    config::{SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    check, errors,
    guard::Met,
    session::{Session, Statements},
};
use crate::{
    engine::seams::Seams,
    store::{OpenError, Purpose},
};

/// What is done about a schema that is not current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Migrations {
    /// Opening applies what is missing.
    Apply,
    /// Opening fails if something is missing: migrations run as a step of their own.
    Demand,
}

/// What stands between the store and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or a pooler that lends a server for a whole session.
    None,
    /// A pooler that lends a server for one transaction, such as PgBouncer in transaction mode:
    /// statements have no names, so that none of them is looked for at another server (T18).
    Transaction,
}

/// How the store uses its server. All waits have an end.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Connections for transactions: a lane uses one at a time.
    pub write_connections: usize,
    /// Connections for what callers read and list, apart from transactions.
    pub read_connections: usize,
    /// Connections for the sweeper, the re-read of what is watched and the health check, apart
    /// from both, so that no load of callers stops them.
    pub upkeep_connections: usize,
    /// Longest wait for a free connection.
    pub wait_timeout: Duration,
    /// Longest time to make a connection.
    pub create_timeout: Duration,
    /// Longest time to check a connection that is used again.
    pub recycle_timeout: Duration,
    /// Longest wait for a row's lock.
    pub lock_timeout: Duration,
    /// Longest statement. Does not hold for COMMIT, which is never cancelled.
    pub statement_timeout: Duration,
    /// After how long the server ends a transaction whose replica went silent. Below the flight,
    /// so that its row locks are gone when the replica tries again on another connection.
    pub idle_in_transaction_timeout: Duration,
    /// How long the replies of one flight are awaited before the connection counts as lost.
    pub flight_timeout: Duration,
    /// How long one try of settling waits for a lost transaction to end. With the half that a
    /// statement is given on top it is below the flight: the server's answer comes before the
    /// connection is given up.
    pub settle_timeout: Duration,
    /// What stands between the store's URL and the server.
    pub pooler: Pooler,
    /// Where the server itself is reached, if the store's own URL leads to something in between:
    /// for LISTEN and for migrations.
    pub direct_url: Option<DirectUrl>,
    /// Certificates (PEM) that are trusted besides the public ones.
    pub tls_roots: Option<PathBuf>,
    /// What is done about a schema that is not current.
    pub migrations: Migrations,
    /// What it is opened for.
    pub purpose: Purpose,
}

impl PostgresOptions {
    /// The usual values: 8, 4 and 2 connections, 5 s for a connection, 2 s to check one, 250 ms
    /// for a lock, 4 s for a statement and for a silent transaction, 5 s for a flight, 3 s for one
    /// try of settling. A caller whose connection goes silent is so answered on another one within
    /// about 10 s.
    pub fn usual(migrations: Migrations) -> Self {
        PostgresOptions {
            write_connections: 8,
            read_connections: 4,
            upkeep_connections: 2,
            wait_timeout: Duration::from_secs(5),
            create_timeout: Duration::from_secs(5),
            recycle_timeout: Duration::from_secs(2),
            lock_timeout: Duration::from_millis(250),
            statement_timeout: Duration::from_secs(4),
            idle_in_transaction_timeout: Duration::from_secs(4),
            flight_timeout: Duration::from_secs(5),
            settle_timeout: Duration::from_secs(3),
            pooler: Pooler::None,
            direct_url: None,
            tls_roots: None,
            migrations,
            purpose: Purpose::Serve,
        }
    }
}

/// A connection string that may hold a password, and so is never shown.
#[derive(Clone)]
pub struct DirectUrl(pub String);

impl std::fmt::Debug for DirectUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectUrl(…)")
    }
}

/// How to reach a server.
pub(super) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    seams: Seams,
    patience: Duration,
    statements: Statements,
    met: Met,
}

impl Connector {
    /// Reads a connection string.
    ///
    /// # Errors
    /// What is wrong with it; never quotes it, since it may hold a password.
    pub(super) fn new(
        url: &str,
        seams: &Seams,
        options: &PostgresOptions,
    ) -> Result<Self, OpenError> {
        let mut config: Config = url.parse().map_err(|error| {
            OpenError(format!(
                "the PostgreSQL connection string is not valid: {}",
                errors::words(&error)
            ))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("receiptd");
        }
        // A server that vanished is noticed within the time of a flight by a connection in use, and
        // by an idle one within half a minute.
        config
            .connect_timeout(options.create_timeout)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(options.flight_timeout);
        let statements = match options.pooler {
            Pooler::None => Statements::Named,
            Pooler::Transaction => Statements::Unnamed,
        };
        if options.pooler == Pooler::None {
            // Behind a pooler this would tell what its other clients left set.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = tls(options.tls_roots.as_deref())?;
        let patience = options.create_timeout;
        let met = Met::default();
        Ok(Connector { config, tls, seams: seams.clone(), patience, statements, met })
    }

    /// Makes a connection and refuses a server that would lose what it acknowledged, or is not the
    /// one of before.
    ///
    /// # Errors
    /// Why it cannot be made or must not be used.
    pub(super) async fn connect(&self) -> Result<Session, OpenError> {
        // The driver's own limit ends when the socket is open: a server may accept and be silent.
        let late = |_| OpenError("PostgreSQL did not answer a new connection in time".into());
        tokio::time::timeout(self.patience, self.connect_patiently()).await.map_err(late)?
    }

    async fn connect_patiently(&self) -> Result<Session, OpenError> {
        let session = self.start().await.map_err(|error| {
            OpenError(format!("cannot connect to PostgreSQL: {}", errors::words(&error)))
        })?;
        let server = check::settings(&session, self.statements).await;
        let noted = server.and_then(|server| {
            let noted = self.met.note(server);
            noted.map(|()| server).map_err(|mismatch| OpenError(mismatch.to_string()))
        });
        match noted {
            Ok(server) => {
                session.leads_to(server);
                Ok(session)
            }
            Err(error) => {
                session.discard();
                Err(error)
            }
        }
    }

    async fn start(&self) -> Result<Session, tokio_postgres::Error> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            return self.start_plain(&self.config).await;
        }
        match self.config.connect(self.tls.clone()).await {
            Ok((client, connection)) => Ok(self.session(client, connection)),
            // `prefer` means: without TLS rather than not at all, for example where the server
            // has a certificate that it signed itself. A server that answered said no.
            Err(error)
                if self.config.get_ssl_mode() == SslMode::Prefer
                    && error.as_db_error().is_none() =>
            {
                let mut plain = self.config.clone();
                plain.ssl_mode(SslMode::Disable);
                self.start_plain(&plain).await
            }
            Err(error) => Err(error),
        }
    }

    async fn start_plain(&self, config: &Config) -> Result<Session, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        Ok(self.session(client, connection))
    }

    fn session<S, T>(&self, client: Client, connection: Connection<S, T>) -> Session
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Session::start(client, connection, self.statements, &self.seams)
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

fn tls(roots_file: Option<&Path>) -> Result<MakeRustlsConnect, OpenError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = roots_file {
        let unreadable =
            |error: String| OpenError(format!("cannot read {}: {error}", path.display()));
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Makes and checks connections for a pool.
#[derive(Debug, Clone)]
pub(super) struct Manager(pub(super) Arc<Connector>);

impl managed::Manager for Manager {
    type Type = Session;
    type Error = OpenError;

    async fn create(&self) -> Result<Session, OpenError> {
        self.0.connect().await
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<OpenError> {
        // The server is not asked whether it is there: a connection that died unnoticed is found
        // out at BEGIN, and the transaction begins again on another one.
        if session.is_closed() {
            return Err(RecycleError::message("the connection was lost"));
        }
        let renewed = session.renew_plans().await;
        renewed.map_err(|error| RecycleError::message(errors::words(&error)))
    }
}

/// A number of connections.
#[derive(Debug, Clone)]
pub(super) struct Connections(Pool<Manager>);

impl Connections {
    /// A pool of at most `size` connections; none is made yet.
    pub(super) fn new(
        connector: &Arc<Connector>,
        size: usize,
        options: &PostgresOptions,
    ) -> Result<Self, OpenError> {
        Pool::builder(Manager(connector.clone()))
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(options.wait_timeout))
            .create_timeout(Some(options.create_timeout))
            .recycle_timeout(Some(options.recycle_timeout))
            .build()
            .map(Connections)
            .map_err(|error| OpenError(format!("the connection pool cannot be made: {error}")))
    }

    /// Borrows a connection.
    ///
    /// # Errors
    /// Why there is none, after at most the timeouts of the pool.
    pub(super) async fn borrow(&self) -> Result<Lease, String> {
        match self.0.get().await {
            Ok(object) => Ok(Lease(Some(object))),
            Err(PoolError::Backend(error)) => Err(error.0),
            Err(PoolError::Timeout(step)) => {
                Err(format!("no connection to PostgreSQL in time ({step:?})"))
            }
            Err(other) => Err(other.to_string()),
        }
    }

    /// Closes connections that nobody uses: one was found dead, so the others may be as well.
    pub(super) fn forget_idle(&self) {
        self.0.retain(|_, _| false);
    }

    /// Lends no more, and closes what is idle.
    pub(super) fn close(&self) {
        self.0.close();
    }

    /// How many connections there are, lent or idle.
    pub(super) fn count(&self) -> usize {
        self.0.status().size
    }
}

/// A borrowed connection. Dropped, it is closed; only [`Lease::give_back`] keeps it.
#[derive(Debug)]
pub(super) struct Lease(Option<Object<Manager>>);

impl Lease {
    /// Returns a connection without an open transaction to its pool.
    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl std::ops::Deref for Lease {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.0.as_ref().expect("a lease has its connection until it is given back")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            Object::take(object).discard();
        }
    }
}
