//! The one writer: a transaction is its turn.
//!
//! What must stay true: a turn begins with `BEGIN IMMEDIATE`, so that it waits for another
//! process before it reads and never fails in its middle for having read too early; it ends in a
//! commit or a rollback, also after a panic; after a commit that failed there is no next turn,
//! unless the disk was full and nothing of it counts.
//! The turn is the claim of every id in it, so no id is ever held by somebody else.
//! Deliberately not here: what is loaded and saved.

use std::{fs::File, sync::Arc, time::Duration};

use rusqlite::Connection;

use super::{
    fault::{Failure, Fault, Health, is_busy, is_full},
    load::load,
    pool::guarded,
    save::{save, settle_batch},
    wal::Wal,
};
use crate::{
    domain::{
        epoch::Loss,
        ids::Timestamp,
        world::{Surroundings, World},
    },
    engine::seams::Seams,
    store::{Committed, HeldIds, Settled, Touches, Transaction},
};

/// Between two tries of one commit. A reader that is in the way is gone in less.
const COMMIT_PAUSE: Duration = Duration::from_millis(10);

/// The connection that writes and what belongs to it, in the order in which it is given up.
pub(super) struct Writer {
    connection: Connection,
    wal: Wal,
    seams: Seams,
    health: Arc<Health>,
    busy_timeout: Duration,
    /// Held as long as anything here can write.
    lock: Option<Arc<File>>,
    loss: Loss,
}

/// How a turn wants to end.
enum Ending {
    /// It wrote.
    Commit,
    /// It found nothing to write: no flush is awaited.
    Rollback,
}

/// When a batch's row is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    /// If it names a change.
    WithChanges,
    /// In any case: settling promises that no other transaction of this name commits.
    Always,
}

impl Writer {
    /// Takes over the connection and the lock of the file.
    pub(super) fn new(
        connection: Connection,
        wal: Wal,
        seams: Seams,
        health: Arc<Health>,
        busy_timeout: Duration,
        lock: Option<Arc<File>>,
        loss: Loss,
    ) -> Self {
        Writer { connection, wal, seams, health, busy_timeout, lock, loss }
    }

    /// Runs one transaction; see [`crate::store::Store::transact`].
    pub(super) fn transact<R>(
        &mut self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, Failure> {
        let loss = self.loss;
        self.turn(|connection, now| batch(connection, now, loss, transaction, Row::WithChanges))
    }

    /// Settles a batch; see [`crate::store::Store::settle`].
    pub(super) fn settle<R>(&mut self, transaction: Transaction<R>) -> Result<Settled<R>, Failure> {
        let loss = self.loss;
        self.turn(|connection, now| {
            if settle_batch(connection, &transaction.batch)? {
                return Ok((Settled::Committed, Ending::Commit));
            }
            let (committed, ending) = batch(connection, now, loss, transaction, Row::Always)?;
            Ok((Settled::RunAgain(committed), ending))
        })
    }

    /// Runs `work`, which writes without deciding, and commits it.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Failure> {
        self.turn(|connection, _| Ok((work(connection)?, Ending::Commit)))
    }

    /// Ends: empties the log, closes the file, and releases its lock as the last.
    pub(super) fn end(self) {
        let Writer { connection, wal, lock, .. } = self;
        wal.close(&connection);
        if let Err((_, error)) = connection.close() {
            tracing::warn!(%error, "the store did not close; its log is read at the next opening");
        }
        drop(lock);
    }

    /// One turn: begins, runs `work` with the store's clock, and ends as it says. An error or a
    /// panic of `work` leaves nothing behind.
    fn turn<T>(
        &mut self,
        work: impl FnOnce(&Connection, Timestamp) -> Result<(T, Ending), Fault>,
    ) -> Result<T, Failure> {
        self.health.check()?;
        self.begin()?;
        let now = self.seams.now();
        match guarded(|| work(&self.connection, now)) {
            Ok(Ok((value, Ending::Commit))) => {
                self.commit()?;
                self.wal.after_commit(&self.connection);
                Ok(value)
            }
            Ok(Ok((value, Ending::Rollback))) => self.rollback().map(|()| value),
            Ok(Err(fault)) => self.rollback().and(Err(fault.into())),
            Err(panic) => self.rollback().and(Err(panic.into())),
        }
    }

    fn begin(&self) -> Result<(), Failure> {
        self.execute("BEGIN IMMEDIATE").map_err(|error| Fault::Sql(error).into())
    }

    /// Commits.
    fn commit(&self) -> Result<(), Failure> {
        let Err(error) = self.commit_patiently() else {
            return Ok(());
        };
        if is_busy(&error) {
            return self.rollback().and(Err(Fault::Sql(error).into()));
        }
        if is_refused(&error, self.connection.is_autocommit()) {
            return Err(Fault::Sql(error).into());
        }
        // Whether this reached the disk is not known before the log is read again, so there is no
        // next turn: the first reason stays, whatever the rollback says.
        let failure = self.health.poison(format!("a commit has failed: {error}"));
        let _best_effort = self.rollback();
        Err(failure)
    }

    /// Commits; one that somebody was in the way of is tried again as it is, for the time that
    /// any statement would have waited. Its transaction stays whole meanwhile.
    fn commit_patiently(&self) -> rusqlite::Result<()> {
        let mut committed = self.execute("COMMIT");
        let tries = self.busy_timeout.as_millis() / COMMIT_PAUSE.as_millis();
        for _ in 0..tries {
            match &committed {
                Err(error) if is_busy(error) => {}
                Ok(()) | Err(_) => break,
            }
            std::thread::sleep(COMMIT_PAUSE);
            // The pauses are the patience: SQLite's own would multiply with them.
            self.connection.busy_timeout(Duration::ZERO)?;
            committed = self.execute("COMMIT");
            self.connection.busy_timeout(self.busy_timeout)?;
        }
        committed
    }

    /// Rolls back, unless SQLite has done so itself.
    fn rollback(&self) -> Result<(), Failure> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.execute("ROLLBACK")
            .map_err(|error| self.health.poison(format!("a rollback has failed: {error}")))
    }

    fn execute(&self, statement: &'static str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }
}

/// Whether a commit that failed is known to have left nothing behind: the disk was full, so that
/// the record which makes a transaction count was not written, and SQLite has rolled back.
fn is_refused(error: &rusqlite::Error, rolled_back: bool) -> bool {
    is_full(error) && rolled_back
}

/// Loads, decides and saves. Nothing but the batch's row is written where nothing changed.
fn batch<R>(
    connection: &Connection,
    now: Timestamp,
    loss: Loss,
    transaction: Transaction<R>,
    row: Row,
) -> Result<(Committed<R>, Ending), Fault> {
    let Transaction { batch, needs, surroundings, decide, .. } = transaction;
    let mut world = World::new(Surroundings { now, loss, ..surroundings });
    let loaded = load(connection, &needs, &mut world)?;
    let value = decide(&mut world, &HeldIds::default());
    let changes = world.into_changes();
    if changes.is_empty() && row == Row::WithChanges {
        let touches = Touches { loaded, ..Touches::default() };
        return Ok((Committed { value, now, touches }, Ending::Rollback));
    }
    save(connection, &batch, now, &changes)?;
    let touches = Touches { loaded, saved: changes.rows() + 1, round_trips: 0, commits: 1 };
    Ok((Committed { value, now, touches }, Ending::Commit))
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn only_a_full_disk_after_a_rollback_leaves_a_store_that_goes_on() {
        for (code, rolled_back, refused) in [
            (ffi::SQLITE_FULL, true, true),
            (ffi::SQLITE_FULL, false, false),
            (ffi::SQLITE_IOERR, true, false),
            (ffi::SQLITE_IOERR_FSYNC, true, false),
            (ffi::SQLITE_IOERR_WRITE, true, false),
            (ffi::SQLITE_CORRUPT, true, false),
            (ffi::SQLITE_ERROR, true, false),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(is_refused(&error, rolled_back), refused, "{code} {rolled_back}");
        }
    }
}
