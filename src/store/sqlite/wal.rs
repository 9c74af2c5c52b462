//! Checkpoints: the write-ahead log stays bounded without an answer waiting for it.
//!
//! What must stay true: while commits go on, a passive checkpoint never starts the log anew,
//! since there is always a newer frame (measured: gigabytes in seconds). So a thread of its own
//! copies pages in the background, and the writer itself empties the log between two batches once
//! it is too long: then little is left to copy. A checkpoint whose flush failed ends the use of
//! the store, for a second flush would report success for pages that never arrived.
//! Deliberately not here: automatic checkpoints, which make a commit wait.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;

use super::{
    Options,
    fault::{Health, is_broken, is_busy},
    pool::start_thread,
};

/// Pages that may wait for a background checkpoint, in bytes: enough to make its two flushes
/// worth it, small enough that emptying the log by the writer stays short.
pub(super) const PASSIVE_BYTES: u64 = 4 * 1024 * 1024;
/// How long the writer waits for readers when it empties the log. Reads are one page each, so
/// that only somebody else's transaction takes longer; then the log grows on for a while.
const EMPTY_WAIT: Duration = Duration::from_millis(100);

/// Watches the log after each commit.
pub(super) struct Wal {
    page_bytes: u64,
    passive_bytes: u64,
    bytes_max: u64,
    /// After a failed try, the length at which the next one is made.
    next_try_bytes: u64,
    busy_timeout: Duration,
    background: Option<Background>,
    health: Arc<Health>,
}

/// The thread that copies pages while commits go on.
struct Background {
    signal: SyncSender<()>,
    thread: JoinHandle<()>,
    /// Held during a checkpoint. SQLite refuses a second one at once instead of waiting, and a
    /// refusal would put off the emptying of the log for long.
    turn: Arc<Mutex<()>>,
}

/// The length of the log and the part of it that was copied, in pages.
struct Length {
    pages: u64,
    copied: u64,
}

impl Wal {
    /// Watches for the writer; `background` is the connection of the thread, absent where the
    /// writer is to do it all in place.
    ///
    /// # Errors
    /// The thread does not start, or the database does not answer.
    pub(super) fn start(
        writer: &Connection,
        background: Option<Connection>,
        options: &Options,
        health: &Arc<Health>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let page_bytes: i64 = writer.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        let background =
            background.map(|connection| Background::start(connection, health)).transpose()?;
        Ok(Wal {
            page_bytes: u64::try_from(page_bytes)?,
            passive_bytes: PASSIVE_BYTES.min(options.wal_bytes_max / 4),
            bytes_max: options.wal_bytes_max,
            next_try_bytes: 0,
            busy_timeout: options.busy_timeout,
            background,
            health: Arc::clone(health),
        })
    }

    /// Looks after a commit. What was committed stays so, whatever happens here.
    pub(super) fn after_commit(&mut self, writer: &Connection) {
        let Ok(length) = length(writer) else {
            // The commit was good, and the next one looks again.
            return;
        };
        let bytes = length.pages.saturating_mul(self.page_bytes);
        let waiting = length.pages.saturating_sub(length.copied).saturating_mul(self.page_bytes);
        if bytes > self.bytes_max.max(self.next_try_bytes) {
            self.next_try_bytes = match self.empty(writer) {
                true => 0,
                false => bytes.saturating_add(self.bytes_max / 4),
            };
        } else if waiting > self.passive_bytes {
            match &self.background {
                // A signal that waits already is as good as a second one.
                Some(background) => drop(background.signal.try_send(())),
                None => checkpoint_passive(writer, &self.health),
            }
        }
    }

    /// Copies everything, flushes it and cuts the log to nothing. Whether it could.
    fn empty(&self, writer: &Connection) -> bool {
        let _turn = self.background.as_ref().map(|background| take(&background.turn));
        let emptied = writer
            .busy_timeout(EMPTY_WAIT)
            .and_then(|()| writer.query_row(CHECKPOINT_TRUNCATE, [], |row| row.get::<_, i64>(0)));
        let restored = writer.busy_timeout(self.busy_timeout);
        judge(emptied.as_ref().err(), &self.health);
        judge(restored.err().as_ref(), &self.health);
        matches!(emptied, Ok(0))
    }

    /// Ends the thread and empties the log for the last time. The log is read again at the next
    /// opening if that fails.
    pub(super) fn close(mut self, writer: &Connection) {
        if let Some(Background { signal, thread, turn: _ }) = self.background.take() {
            drop(signal);
            if thread.join().is_err() {
                tracing::error!("the thread of the checkpoints has panicked");
            }
        }
        if self.health.check().is_ok() {
            self.empty(writer);
        }
    }
}

impl Background {
    fn start(connection: Connection, health: &Arc<Health>) -> std::io::Result<Self> {
        // One signal may wait: it covers everything committed before it is taken.
        let (signal, signals) = sync_channel(1);
        let turn = Arc::new(Mutex::new(()));
        let (mine, health) = (Arc::clone(&turn), Arc::clone(health));
        let thread = start_thread("receiptd-checkpoint", move || {
            while signals.recv().is_ok() && health.check().is_ok() {
                let _turn = take(&mine);
                checkpoint_passive(&connection, &health);
            }
        })?;
        Ok(Background { signal, thread, turn })
    }
}

/// Takes the turn; a panic in another one spoils nothing.
fn take(turn: &Mutex<()>) -> MutexGuard<'_, ()> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks without doing anything.
const CHECKPOINT_NOTHING: &str = "PRAGMA wal_checkpoint(NOOP)";

fn length(connection: &Connection) -> rusqlite::Result<Length> {
    connection.prepare_cached(CHECKPOINT_NOTHING)?.query_row([], |row| {
        let pages = row.get::<_, i64>(1)?;
        let copied = row.get::<_, i64>(2)?;
        // Negative where there is no log.
        Ok(Length {
            pages: u64::try_from(pages).unwrap_or(0),
            copied: u64::try_from(copied).unwrap_or(0),
        })
    })
}

/// Copies what no reader needs any more, without waiting for anybody.
const CHECKPOINT_PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";

fn checkpoint_passive(connection: &Connection, health: &Health) {
    let done = connection.query_row(CHECKPOINT_PASSIVE, [], |row| row.get::<_, i64>(0));
    judge(done.err().as_ref(), health);
}

/// Copies everything, waits for readers, and cuts the log to nothing.
const CHECKPOINT_TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// What a failed checkpoint means: nothing if somebody was in the way; that the log grows on if
/// the disk is full; the end if a flush or the file is broken.
fn judge(error: Option<&rusqlite::Error>, health: &Health) {
    match error {
        None => {}
        Some(error) if is_busy(error) => {}
        Some(error) if is_broken(error) => {
            tracing::error!(%error, "a checkpoint has failed; the store is not used any more");
            // The next transaction is told.
            let _failure = health.poison(format!("a checkpoint has failed: {error}"));
        }
        Some(error) => tracing::warn!(%error, "a checkpoint has failed; the log grows on"),
    }
}
