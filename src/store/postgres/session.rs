//! One connection to a server: its statements, its notices and its flights.
//!
//! What must stay true: the requests of one flight are sent in order and without waiting for each
//! other, so that a flight is one round trip; a notice that arrives before a reply is seen before
//! that reply. Deliberately not here: what a statement says, and what an error means.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Error, Row, Statement,
    error::{DbError, Severity, SqlState},
    types::{ToSql, Type},
};
use tokio_util::sync::CancellationToken;

use super::listen::Heard;
use crate::{domain::epoch::Server, engine::seams::Seams};

/// A value for one placeholder, and its type: a statement that is not prepared is sent with both.
pub(super) struct Parameter<'a> {
    value: Box<dyn ToSql + Sync + Send + 'a>,
    of: Type,
}

/// A value whose type the server is told, rather than asked for.
pub(super) trait Typed: ToSql + Sync + Send {
    /// Its type.
    const TYPE: Type;
    /// The type of an array of it.
    const ARRAY: Type;
}

macro_rules! typed {
    ($($of:ty: $type:ident, $array:ident;)+) => {
        $(impl Typed for $of {
            const TYPE: Type = Type::$type;
            const ARRAY: Type = Type::$array;
        })+
    };
}

typed! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    Vec<u8>: BYTEA, BYTEA_ARRAY;
}

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

/// How a connection's statements reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statements {
    /// Prepared once under a name: the connection is one server's for all its life.
    Named,
    /// Sent whole each time: a pooler lends another server for each transaction.
    Unnamed,
}

/// One statement to run with its values. The text is a constant, so that statements are prepared
/// once per connection and the cache of them stays bounded.
pub(super) struct Call<'a> {
    pub(super) sql: &'static str,
    pub(super) parameters: Vec<Parameter<'a>>,
}

/// One value.
pub(super) fn value<'a, V: Typed + 'a>(value: V) -> Parameter<'a> {
    Parameter { value: Box::new(value), of: V::TYPE }
}

/// One array, a value for each item: how a bulk statement gets a column.
pub(super) fn column<'a, I, V>(
    items: impl IntoIterator<Item = I>,
    value: impl Fn(I) -> V,
) -> Parameter<'a>
where
    V: Typed + 'a,
{
    let values: Vec<V> = items.into_iter().map(value).collect();
    Parameter { value: Box::new(values), of: V::ARRAY }
}

/// Where a flight broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At its first or one of its statements.
    Statement,
    /// At its end: the COMMIT.
    End,
}

/// The first error of a flight, in the order in which its requests were sent.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) place: Place,
    pub(super) error: Error,
}

/// How long a plan is kept. A plan that was made while a table held a few rows may read all of
/// it, and would be kept until the next ANALYZE, when the table has long grown. Making all plans
/// anew takes some milliseconds.
const PLANS_AGE_MAX: Duration = Duration::from_secs(10);

/// A connection.
pub(super) struct Session {
    client: Client,
    how: Statements,
    statements: Mutex<HashMap<&'static str, Statement>>,
    planned: Instant,
    server: OnceLock<Server>,
    told: Arc<Told>,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// What the server says unasked.
#[derive(Default)]
struct Told {
    warned: AtomicBool,
    heard: OnceLock<Heard>,
}

type Reply<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'a>>;

impl Session {
    /// Takes over a connection: a tracked task drives it until the session ends.
    pub(super) fn start<S, T>(
        client: Client,
        connection: Connection<S, T>,
        how: Statements,
        seams: &Seams,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let session = Session {
            client,
            how,
            statements: Mutex::new(HashMap::new()),
            planned: Instant::now(),
            server: OnceLock::new(),
            told: Arc::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let (told, stop) = (session.told.clone(), session.stop.clone());
        let ended = session.ended.clone().drop_guard();
        seams.spawn(async move {
            tokio::select! {
                () = drive(connection, &told) => {}
                () = stop.cancelled() => {}
            }
            drop(ended);
        });
        session
    }

    /// Says which server was found at its other end; only the first call counts.
    pub(super) fn leads_to(&self, server: Server) {
        self.server.set(server).ok();
    }

    /// Which server was found at its other end.
    pub(super) fn server(&self) -> Option<Server> {
        self.server.get().copied()
    }

    /// Ends when the connection has.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Has notifications handed to `heard` from now on; only the first call counts.
    pub(super) fn hear(&self, heard: Heard) {
        self.told.heard.set(heard).ok();
    }

    /// Whether the connection is known to be lost.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Lets the server forget plans that have grown old. Called between transactions.
    ///
    /// # Errors
    /// The connection is not good any more.
    pub(super) async fn renew_plans(&mut self) -> Result<(), Error> {
        // Statements without a name leave no plan behind.
        if self.how == Statements::Unnamed || self.planned.elapsed() < PLANS_AGE_MAX {
            return Ok(());
        }
        self.client.batch_execute("DISCARD PLANS").await?;
        self.planned = Instant::now();
        Ok(())
    }

    /// Ends the connection at once, whatever is under way. The server ends the transaction: a
    /// COMMIT that it has begun goes on, everything else is rolled back. Nothing is cancelled.
    pub(super) fn discard(self) {
        self.stop.cancel();
    }

    /// Forgets warnings: the next flight is watched for them.
    pub(super) fn watch(&self) {
        self.told.warned.store(false, Ordering::SeqCst);
    }

    /// Whether a warning came since [`Session::watch`] that puts a commit's durability in doubt.
    pub(super) fn warned(&self) -> bool {
        self.told.warned.load(Ordering::SeqCst)
    }

    /// Prepares those statements of `calls` that this connection has not seen yet, in one round
    /// trip; returns how many round trips that took. None where statements have no names.
    pub(super) async fn prepare(&self, calls: &[Call<'_>]) -> Result<usize, Error> {
        if self.how == Statements::Unnamed {
            return Ok(0);
        }
        let missing: Vec<&'static str> = {
            let known = self.known();
            let unknown = calls.iter().map(|call| call.sql).filter(|sql| !known.contains_key(sql));
            unknown.collect()
        };
        if missing.is_empty() {
            return Ok(0);
        }
        let prepared = join_all(missing.iter().map(|sql| self.client.prepare(sql))).await;
        for (sql, statement) in missing.into_iter().zip(prepared) {
            let statement = statement?;
            self.known().insert(sql, statement);
        }
        Ok(1)
    }

    /// Sends `first`, every call, and `last` at once, then reads all replies. Every statement was
    /// prepared before. The rows are those of the calls, in order.
    ///
    /// # Errors
    /// The first error. Later requests were sent all the same: a COMMIT after it ended the
    /// transaction without effect and reported no error.
    pub(super) async fn flight(
        &self,
        first: Option<&str>,
        calls: &[Call<'_>],
        last: Option<&str>,
    ) -> Result<Vec<Vec<Row>>, Broken> {
        let replies: Vec<Reply<'_>> = first
            .map(|sql| self.simple(sql))
            .into_iter()
            .chain(calls.iter().map(|call| self.reply(call)))
            .chain(last.map(|sql| self.simple(sql)))
            .collect();
        let sent = replies.len();
        let mut rows = Vec::with_capacity(sent);
        // The first poll of each future sends its request; join_all polls them in order.
        for (number, reply) in join_all(replies).await.into_iter().enumerate() {
            let place = match last {
                Some(_) if number + 1 == sent => Place::End,
                _ => Place::Statement,
            };
            rows.push(reply.map_err(|error| Broken { place, error })?);
        }
        if first.is_some() {
            rows.remove(0);
        }
        rows.truncate(calls.len());
        Ok(rows)
    }

    /// Runs text that may hold several statements.
    ///
    /// # Errors
    /// The first error.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Runs one statement without a name, in one round trip.
    ///
    /// # Errors
    /// Its error.
    pub(super) async fn query(&self, call: Call<'_>) -> Result<Vec<Row>, Error> {
        self.client.query_typed(call.sql, &typed(&call)).await
    }

    /// As [`Session::query`], for text that is made at run time; it is not kept.
    ///
    /// # Errors
    /// Its error.
    pub(super) async fn query_text(&self, sql: &str) -> Result<Vec<Row>, Error> {
        self.client.query_typed(sql, &[]).await
    }

    /// One request of a flight.
    fn reply<'a>(&'a self, call: &'a Call<'_>) -> Reply<'a> {
        match self.how {
            Statements::Named => {
                let statement = self.known().get(call.sql).cloned();
                let statement =
                    statement.expect("every statement of a flight is prepared before it");
                Box::pin(async move { self.client.query(&statement, &references(call)).await })
            }
            Statements::Unnamed => {
                Box::pin(async move { self.client.query_typed(call.sql, &typed(call)).await })
            }
        }
    }

    fn simple<'a>(&'a self, sql: &'a str) -> Reply<'a> {
        Box::pin(async move { self.client.batch_execute(sql).await.map(|()| Vec::new()) })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

fn references<'a>(call: &'a Call<'_>) -> Vec<&'a (dyn ToSql + Sync)> {
    call.parameters.iter().map(|parameter| parameter.value.as_ref() as _).collect()
}

fn typed<'a>(call: &'a Call<'_>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let of = |parameter: &'a Parameter<'_>| (parameter.value.as_ref() as _, parameter.of.clone());
    call.parameters.iter().map(of).collect()
}

/// Drives a connection to its end. Notices and notifications come here and nowhere else (T6).
async fn drive<S, T>(mut connection: Connection<S, T>, told: &Told)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                if doubts_durability(&notice) {
                    told.warned.store(true, Ordering::SeqCst);
                }
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Some(heard) = told.heard.get() {
                    heard(notification.payload());
                }
            }
            Some(Ok(_)) => {}
            // Whoever waits for a reply sees the loss; an idle connection is replaced silently.
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to the store ended");
                return;
            }
            None => return,
        }
    }
}

/// "canceling wait for synchronous replication" is a warning with code 01000, or 57P01 when the
/// server ends the connection with it: the transaction is committed here and maybe nowhere else.
fn doubts_durability(notice: &DbError) -> bool {
    let warning = match notice.parsed_severity() {
        Some(severity) => severity == Severity::Warning,
        None => notice.severity() == "WARNING",
    };
    warning && [SqlState::WARNING, SqlState::ADMIN_SHUTDOWN].contains(notice.code())
}
