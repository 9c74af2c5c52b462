//! One transaction: load under locks, decide, save and commit in one flight.
//!
//! What must stay true: nothing counts as written unless every reply of the save was good, the
//! COMMIT's included, and no warning doubts it; nothing counts as not written unless the server
//! said so before the commit. Everything else is `Ambiguous`. No request to cancel is ever sent.
//! A transaction begins again by itself only as long as nothing was decided.
//!
//! Deliberately not here: running a conflict again, halving, and when to settle. That is the
//! engine's.

use std::time::Duration;

use tokio_postgres::Row;

use super::{
    PostgresStore, errors,
    errors::Trouble,
    guard::{Found, Place, timeline},
    load::{Load, Loaded},
    pool::Lease,
    save,
    save_statements::{CLAIM_BATCH, SETTLE_BATCH},
    session::{Broken, Call, Session, value},
};
use crate::{
    domain::world::{
        Surroundings, World,
        changes::Changes,
        needs::{Body, Needs},
    },
    store::{
        BatchName, Committed, Decide, HeldIds, Purpose, Settled, Touches, TransactError,
        Transaction,
    },
};

/// Pinned, because a database may have another default (T1); read-write, for the same reason.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Everything that is set for the one transaction: how long it may wait, and the shape of its
/// plans. Generic plans through the indexes are what the golden plans check; without this, a plan
/// that was made while a table was small would be kept when it has grown. A commit is never
/// acknowledged before it is flushed: the check at connecting does not see what a reload of the
/// server's settings, or another client behind one pooler, changes later. And what tells which
/// server this is and which life of the store it holds, for [`super::guard::Guard`].
pub(super) const SETTINGS: &str = concat!(
    "SELECT set_config('lock_timeout', $1, true),
    set_config('statement_timeout', $2, true),
    set_config('idle_in_transaction_session_timeout', $3, true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('join_collapse_limit', '1', true), set_config('jit', 'off', true),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true),
    (SELECT f.value FROM receiptd.store_facts f
        WHERE f.bucket = 0 AND f.account = '' AND f.name = 'life') AS life, ",
    timeline!(),
    " AS timeline"
);

/// A transaction with its rows locked and loaded.
struct Begun {
    lease: Lease,
    world: World,
    held: HeldIds,
    touches: Touches,
    /// Whether contents of documents are among the rows: to change them may take long.
    contents: bool,
    /// Which timeline it is on.
    timeline: i32,
}

/// Whether the batch's row is still to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// The save begins with it.
    ToWrite,
    /// Settling has written it.
    Written,
}

impl PostgresStore {
    /// Runs one transaction. Durable on return; two round trips once a connection knows the
    /// statements. Where nothing changed, nothing is written.
    ///
    /// # Errors
    /// [`TransactError`]; only `Ambiguous` may have committed.
    pub async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        let Transaction { batch, needs, surroundings, purpose, decide } = transaction;
        let begun = self.begin_and_load(&needs, surroundings, purpose).await?;
        self.decide_and_save(begun, &batch, Name::ToWrite, decide).await
    }

    /// Settles a commit whose answer was lost, by the batch's row: waits for the lost transaction
    /// to end. If it committed, that is confirmed by a commit of its own; if not, `transaction`
    /// runs within the settling one, durable on return. The batch's row stays in either case.
    ///
    /// # Errors
    /// [`TransactError`]. `Ambiguous` speaks of the second run; an error before that leaves open
    /// what became of the first, and settling may be tried again.
    pub async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        let Transaction { batch, needs, surroundings, purpose, decide } = transaction;
        let (lease, taken, place) = self.claim_batch(&batch, purpose).await?;
        if taken {
            self.confirm(lease, &batch).await?;
            if !self.0.memory.acknowledge(&batch, place.timeline) {
                let text = "another server was promoted while a commit was settled";
                return Err(TransactError::Unavailable(text.into()));
            }
            return Ok(Settled::Committed);
        }
        let first = self.settings(self.0.options.lock_timeout);
        let begun = self.load(lease, None, first, &needs, surroundings, purpose).await;
        let begun = begun.map_err(|(trouble, _)| trouble)?;
        let committed = self.decide_and_save(begun, &batch, Name::Written, decide).await?;
        Ok(Settled::RunAgain(committed))
    }

    /// Begins on a connection of the pool, and once more if that one turned out to be dead:
    /// nothing was decided yet.
    async fn begin_and_load(
        &self,
        needs: &Needs,
        surroundings: Surroundings,
        purpose: Purpose,
    ) -> Result<Begun, Trouble> {
        let mut surroundings = Some(surroundings);
        let mut tries = 0;
        loop {
            tries += 1;
            let lease = self.0.writes.borrow().await.map_err(Trouble::Unavailable)?;
            let first = self.settings(self.0.options.lock_timeout);
            let given = surroundings.take().ok_or_else(lost_surroundings)?;
            match self.load(lease, Some(BEGIN), first, needs, given, purpose).await {
                Ok(begun) => return Ok(begun),
                Err((Trouble::Unavailable(_), back)) if tries == 1 => {
                    self.0.writes.forget_idle();
                    surroundings = Some(back);
                }
                Err((trouble, _)) => return Err(trouble),
            }
        }
    }

    /// Sends the load as one flight and fills a world. Gives the surroundings back on error.
    async fn load(
        &self,
        lease: Lease,
        begin: Option<&str>,
        settings: Call<'_>,
        needs: &Needs,
        surroundings: Surroundings,
        purpose: Purpose,
    ) -> Result<Begun, (Trouble, Surroundings)> {
        let (load, reader) = Load::new(needs, self.0.seams.clock_parameter()).into_calls();
        let calls: Vec<Call<'_>> = std::iter::once(settings).chain(load).collect();
        let mut touches = Touches { round_trips: 1, ..Touches::default() };
        let replies = match self.send(&lease, begin, &calls).await {
            Ok((replies, prepared)) => {
                touches.round_trips += prepared;
                replies
            }
            Err(error) => return Err((self.give_up(lease, &error).await, surroundings)),
        };
        let place = match self.admit(&replies[0], purpose) {
            Ok(place) => place,
            Err(trouble) => {
                self.roll_back(lease).await;
                return Err((trouble, surroundings));
            }
        };
        let mut world = World::new(surroundings.clone());
        world.set_loss(place.loss);
        match reader.fill(&mut world, &replies[1..]) {
            Ok(Loaded { held, touched }) => {
                touches.loaded = touched;
                let contents = needs.documents.values().any(|body| *body == Body::Load);
                Ok(Begun { lease, world, held, touches, contents, timeline: place.timeline })
            }
            Err(unreadable) => Err((unreadable.into(), surroundings)),
        }
    }

    /// A flight that does not commit, with its own preparation; says how many round trips more
    /// than one it took. `None`: no reply in time.
    async fn send(
        &self,
        session: &Session,
        first: Option<&str>,
        calls: &[Call<'_>],
    ) -> Result<(Vec<Vec<Row>>, usize), Option<tokio_postgres::Error>> {
        let all = async {
            let prepared = session.prepare(calls).await.map_err(Some)?;
            let flight = session.flight(first, calls, None).await;
            Ok((flight.map_err(|broken: Broken| Some(broken.error))?, prepared))
        };
        tokio::time::timeout(self.0.options.flight_timeout, all).await.unwrap_or(Err(None))
    }

    async fn decide_and_save<R>(
        &self,
        begun: Begun,
        batch: &BatchName,
        name: Name,
        decide: Decide<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        let Begun { lease, mut world, held, mut touches, contents, timeline } = begun;
        let watch = self.0.seams.stopwatch();
        let value = match contents {
            true => self.0.seams.compute(|| decide(&mut world, &held)),
            false => decide(&mut world, &held),
        };
        if watch.elapsed() >= self.0.options.idle_in_transaction_timeout {
            // The server has ended the transaction, or is about to; half of the batch takes less.
            let text = "the decision took longer than the server lets a transaction stand still";
            return Err(TransactError::Failed(text.into()));
        }
        let now = world.now();
        let changes = world.into_changes();
        if changes.is_empty() && name == Name::ToWrite {
            // Nothing to write, so the answer does not hang on how this ends.
            self.roll_back(lease).await;
            touches.round_trips += 1;
            return Ok(Committed { value, now, touches });
        }
        // A name that settling wrote is committed even if nothing else is: as long as its row is
        // not there for good, the lost transaction may still arrive and commit.
        touches.saved = changes.rows() + 1;
        let first = (name == Name::ToWrite).then(|| save::batch(batch, now));
        match self.save(lease, first, &changes).await {
            // Meanwhile another server was promoted, which may not hold this: settling finds out.
            Saved::Committed { .. } if !self.0.memory.acknowledge(batch, timeline) => {
                Err(TransactError::Ambiguous(value))
            }
            Saved::Committed { prepared } => {
                touches.round_trips += 1 + prepared;
                touches.commits = 1;
                Ok(Committed { value, now, touches })
            }
            Saved::Nothing(trouble) => Err(trouble.into()),
            Saved::Unknown => Err(TransactError::Ambiguous(value)),
        }
    }

    /// Writes `changes` and commits, in one flight.
    pub(super) async fn save(
        &self,
        lease: Lease,
        first: Option<Call<'_>>,
        changes: &Changes,
    ) -> Saved {
        let calls = match save::calls(changes) {
            Ok(calls) => first.into_iter().chain(calls).collect::<Vec<_>>(),
            Err(what) => {
                return Saved::Nothing(Trouble::Failed(format!("a store never deletes: {what}")));
            }
        };
        let prepared = match self.prepare(&lease, &calls).await {
            Ok(prepared) => prepared,
            Err(error) => return Saved::Nothing(self.give_up(lease, &error).await),
        };
        self.commit(lease, &calls, prepared).await
    }

    async fn prepare(
        &self,
        session: &Session,
        calls: &[Call<'_>],
    ) -> Result<usize, Option<tokio_postgres::Error>> {
        let time = self.0.options.flight_timeout;
        match tokio::time::timeout(time, session.prepare(calls)).await {
            Ok(prepared) => prepared.map_err(Some),
            Err(_) => Err(None),
        }
    }

    /// The flight that ends with COMMIT. A connection whose answer is in doubt is closed by the
    /// lease: the server may still be committing, and must not be asked to stop.
    async fn commit(&self, lease: Lease, calls: &[Call<'_>], prepared: usize) -> Saved {
        if lease.is_closed() {
            let lost = "the connection was lost before anything was written".into();
            return Saved::Nothing(Trouble::Unavailable(lost));
        }
        lease.watch();
        let flight = lease.flight(None, calls, Some("COMMIT"));
        match tokio::time::timeout(self.0.options.flight_timeout, flight).await {
            Ok(Ok(_)) if lease.warned() => Saved::Unknown,
            Ok(Ok(_)) => {
                lease.give_back();
                Saved::Committed { prepared }
            }
            Ok(Err(broken)) => match errors::of_save(&broken) {
                Some(trouble) => {
                    // The COMMIT behind the error has ended the transaction.
                    if errors::leaves_connection_usable(&broken.error) {
                        lease.give_back();
                    }
                    Saved::Nothing(trouble)
                }
                None => Saved::Unknown,
            },
            Err(_) => Saved::Unknown,
        }
    }

    /// Writes the batch's row in a new transaction, waiting for whoever is writing it. Returns
    /// whether it was there, and where this is.
    async fn claim_batch(
        &self,
        batch: &BatchName,
        purpose: Purpose,
    ) -> Result<(Lease, bool, Place), Trouble> {
        self.0.writes.forget_idle();
        let lease = self.0.writes.borrow().await.map_err(Trouble::Unavailable)?;
        let parameters = vec![
            value(batch.bucket),
            value(&batch.id[..]),
            value(&batch.replica[..]),
            value(self.0.seams.clock_parameter().0),
        ];
        let claim = Call { sql: CLAIM_BATCH, parameters };
        let calls = [self.settings(self.0.options.settle_timeout), claim];
        match self.send(&lease, Some(BEGIN), &calls).await {
            Ok((replies, _)) => {
                let place = match self.admit(&replies[0], purpose) {
                    Ok(place) => place,
                    Err(trouble) => {
                        self.roll_back(lease).await;
                        return Err(trouble);
                    }
                };
                let taken = replies.last().is_none_or(Vec::is_empty);
                Ok((lease, taken, place))
            }
            Err(error) => Err(self.give_up(lease, &error).await),
        }
    }

    /// Confirms a batch that committed: only a commit without a warning is an answer.
    async fn confirm(&self, lease: Lease, batch: &BatchName) -> Result<(), Trouble> {
        let parameters = vec![value(batch.bucket), value(&batch.id[..])];
        let mark = Call { sql: SETTLE_BATCH, parameters };
        let calls = [mark];
        if let Err(error) = self.prepare(&lease, &calls).await {
            return Err(self.give_up(lease, &error).await);
        }
        match self.commit(lease, &calls, 0).await {
            Saved::Committed { .. } => Ok(()),
            Saved::Nothing(trouble) => Err(trouble),
            // Not `Ambiguous`, which speaks of a second run: there was none.
            Saved::Unknown => Err(Trouble::Unavailable(
                "the batch committed, but its durability could not be confirmed".into(),
            )),
        }
    }

    /// Ends a transaction before its save; `None` as the error: no reply in time.
    pub(super) async fn give_up(
        &self,
        lease: Lease,
        error: &Option<tokio_postgres::Error>,
    ) -> Trouble {
        let Some(error) = error else {
            return Trouble::Unavailable("PostgreSQL did not reply in time".into());
        };
        if errors::leaves_connection_usable(error) {
            self.roll_back(lease).await;
        }
        errors::of_statement(error)
    }

    /// Rolls back and gives the connection back. One that does not answer in time is closed by
    /// the lease, and its transaction with it: a server that froze must not hold up its caller.
    async fn roll_back(&self, lease: Lease) {
        let time = self.0.options.flight_timeout;
        if let Ok(Ok(())) = tokio::time::timeout(time, lease.run("ROLLBACK")).await {
            lease.give_back();
        }
    }

    /// Whether a transaction may write where it is, by the reply to its settings; and where it is.
    fn admit(&self, settings: &[Row], purpose: Purpose) -> Result<Place, Trouble> {
        match (self.0.guard.look(settings), purpose) {
            (Ok(Found::Serves(place)), _) | (Ok(Found::Waits(place)), Purpose::Mark) => Ok(place),
            (Ok(Found::Waits(_)), Purpose::Serve) => Err(Trouble::Unavailable(
                "after a failover, or while it is marked, the store takes no writes yet".into(),
            )),
            (Err(text), _) => Err(Trouble::Unavailable(text)),
        }
    }

    /// The settings of one transaction, with this patience for locks.
    pub(super) fn settings(&self, lock_timeout: Duration) -> Call<'static> {
        let options = &self.0.options;
        // A wait for a lock ends by its own limit, with an error that says so.
        let statement = options.statement_timeout.max(lock_timeout + lock_timeout / 2);
        let millis = |time: Duration| value(format!("{}ms", time.as_millis()));
        let idle = millis(options.idle_in_transaction_timeout);
        Call { sql: SETTINGS, parameters: vec![millis(lock_timeout), millis(statement), idle] }
    }
}

/// How a save ended.
#[derive(Debug)]
pub(super) enum Saved {
    /// Durable; how many round trips its preparation took.
    Committed { prepared: usize },
    /// Nothing was written.
    Nothing(Trouble),
    /// Nobody knows.
    Unknown,
}

fn lost_surroundings() -> Trouble {
    Trouble::Failed("a transaction began twice with one set of surroundings".into())
}
