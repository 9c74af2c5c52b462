//! The embedded store: one SQLite file, one writer, a few readers.
//!
//! What must stay true: what a transaction returned as committed is on the disk; one process uses
//! the file at a time; one turn of the writer is one batch, so that rows need no locks of their
//! own. In reading order: `pool` runs what blocks; `connection`, `migrate` and `wal` care
//! for the file; `writer` takes turns, with `load` and `save`; `reads`, `query` and
//! `due` are everything outside a turn. Deliberately not here: rules, retries, and names of
//! batches, which the engine makes.

mod by_key;
mod connection;
mod due;
mod dump;
mod fault;
mod load;
mod marks;
mod migrate;
mod pool;
mod query;
mod reads;
mod rows;
mod save;
mod save_delivery;
mod usage;
mod verify;
mod wal;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::Connection;

use self::{
    connection::Reader,
    fault::{CLOSED, Failure, Fault, Health},
    pool::Pool,
    wal::Wal,
    writer::Writer,
};
pub use self::{due::due_from, migrate::migrate};
use super::{
    Committed, OpenError, Purpose, Settled, StoreFacts, TransactError, Transaction,
    refuse_half_marked,
};
use crate::engine::seams::{Blocking, FileLock, Seams};

/// How an embedded store uses its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long a statement waits for another process that has the file locked, before the
    /// transaction is answered with [`TransactError::Unavailable`]. Default: 5 s, the patience of
    /// a caller.
    pub busy_timeout: Duration,
    /// Connections that read, each on a thread of its own; at least one. Default: 2, since reads
    /// are short and the writer is the limit.
    pub readers: usize,
    /// The length of the write-ahead log, in bytes, at which the writer empties it between two
    /// batches. A transaction that reads for long, of another process, lets it grow on. Default:
    /// 64 MiB, measured: pauses stay rare and the tail of latencies short.
    pub wal_bytes_max: u64,
    /// What it is opened for. Default: to serve.
    pub purpose: Purpose,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            busy_timeout: Duration::from_secs(5),
            readers: 2,
            wal_bytes_max: 64 * 1024 * 1024,
            purpose: Purpose::Serve,
        }
    }
}

/// One SQLite file, opened. Clones share it; it closes with [`SqliteStore::close`], or by itself
/// soon after the last clone is gone.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    is_new: bool,
    facts: Arc<StoreFacts>,
    seams: Seams,
    health: Arc<Health>,
    writer: Pool<Writer>,
    readers: Pool<Reader>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store at `path`, creating it and its folder where there is none, and brings its
    /// schema up to this release. What it changed is durable on return.
    ///
    /// # Errors
    /// [`OpenError`], as [`migrate`], or if a thread cannot be started.
    pub fn open(path: &Path, seams: &Seams, options: &Options) -> Result<Self, OpenError> {
        let is_new = connection::create(path)?;
        let path = &connection::resolve(path)?;
        let lock = match seams.store_file_lock() {
            FileLock::Exclusive => Some(Arc::new(connection::lock_file(path)?)),
            FileLock::Shared => None,
        };
        let mut connection = connection::open_writer(path, options)?;
        let (facts, life) = migrate::prepare(&mut connection, path, seams, &migrate::MIGRATIONS)?;
        if options.purpose == Purpose::Serve {
            refuse_half_marked(&life)?;
        }
        let facts = Arc::new(facts);
        let (readers, background) = match seams.blocking() {
            Blocking::Threads => (options.readers.max(1), Some(())),
            Blocking::Inline => (1, None),
        };
        // A checkpoint writes to the file, so its thread has a connection that may.
        let background = background.map(|()| connection::open_writer(path, options)).transpose()?;
        let readers = (0..readers).map(|_| connection::open_reader(path, options, lock.as_ref()));
        let readers = readers.collect::<Result<Vec<_>, OpenError>>()?;
        let failed = |error: &dyn std::fmt::Display| {
            OpenError(format!("the store {} cannot be opened: {error}", path.display()))
        };
        let health = Arc::new(Health::default());
        let wal = Wal::start(&connection, background, options, &health);
        let wal = wal.map_err(|error| failed(&error))?;
        let (seams, patience) = (seams.clone(), options.busy_timeout);
        let writer = Writer::new(
            connection,
            wal,
            seams.clone(),
            Arc::clone(&health),
            patience,
            lock,
            facts.loss,
        );
        let blocking = seams.blocking();
        let writer = Pool::start(blocking, "receiptd-writer", vec![writer], Writer::end);
        let writer = writer.map_err(|error| failed(&error))?;
        let readers = Pool::start(blocking, "receiptd-reader", readers, drop);
        let readers = readers.map_err(|error| failed(&error))?;
        let path = path.clone();
        let inner = Inner { path, is_new, facts, seams, health, writer, readers };
        Ok(SqliteStore { inner: Arc::new(inner) })
    }

    /// Opens the store at `path` as it is, for reads alone, also while another process uses it:
    /// nothing is created, locked, migrated or written. Whatever would write is answered with
    /// `Unavailable`.
    ///
    /// # Errors
    /// [`OpenError`] if there is no store, or if its schema is not this release's.
    pub fn open_to_read(path: &Path, seams: &Seams, options: &Options) -> Result<Self, OpenError> {
        let path = &connection::resolve(path)?;
        let reader = connection::open_reader(path, options, None)?;
        let facts = migrate::inspect(&reader, path)?;
        let failed = |error: std::io::Error| {
            OpenError(format!("the store {} cannot be opened: {error}", path.display()))
        };
        let blocking = seams.blocking();
        // Without a thread behind it, a pool takes nothing.
        let writer = Pool::start(blocking, "receiptd-writer", Vec::new(), Writer::end);
        let writer = writer.map_err(failed)?;
        let readers = Pool::start(blocking, "receiptd-reader", vec![reader], drop);
        let readers = readers.map_err(failed)?;
        let (path, health, seams) = (path.clone(), Arc::default(), seams.clone());
        let inner =
            Inner { path, is_new: false, facts: Arc::new(facts), seams, health, writer, readers };
        Ok(SqliteStore { inner: Arc::new(inner) })
    }

    /// Runs one transaction as one turn of the writer; see [`super::Store::transact`]. Durable on
    /// return, unless nothing changed. It runs to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// [`TransactError`], never `Ambiguous`: no answer is lost on the way from the same process.
    /// A full disk is `Unavailable`, and reads go on.
    /// After `Fatal` by a commit that failed otherwise, whether it reached the disk is known only when the
    /// file is opened again; everything later is `Fatal` too. Everything else left nothing behind.
    pub async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        let answer = self.inner.writer.run(move |writer| writer.transact(transaction)).await;
        Ok(answer.map_err(Failure::from)??)
    }

    /// Settles a batch by its row, in one turn of the writer; see [`super::Store::settle`]. What
    /// it did is durable on return.
    ///
    /// # Errors
    /// [`TransactError`], as [`SqliteStore::transact`].
    pub async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        let answer = self.inner.writer.run(move |writer| writer.settle(transaction)).await;
        Ok(answer.map_err(Failure::from)??)
    }

    /// What the store is; read once, when it was opened: nobody marks a file that is in use.
    pub fn facts(&self) -> Arc<StoreFacts> {
        Arc::clone(&self.inner.facts)
    }

    /// Whether this opening created the file.
    pub fn is_new(&self) -> bool {
        self.inner.is_new
    }

    /// The length of the write-ahead log, in bytes; 0 if there is none now.
    pub fn wal_bytes(&self) -> u64 {
        let wal = connection::beside(&self.inner.path, "-wal");
        std::fs::metadata(wal).map_or(0, |metadata| metadata.len())
    }

    /// Finishes what is queued, empties the log, closes the file and releases its lock. Everything
    /// after that is answered with `Unavailable`.
    pub async fn close(&self) {
        // Readers first: the log can only be emptied when nobody reads it.
        self.inner.readers.close().await;
        self.inner.writer.close().await;
    }

    /// Runs a write that decides nothing, as one turn of the writer. Durable on return.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Failure> {
        self.inner.writer.run(move |writer| writer.write(work)).await?
    }

    /// Whether the store may still be used.
    fn healthy(&self) -> Result<(), Failure> {
        self.inner.health.check()
    }

    fn readers(&self) -> &Pool<Reader> {
        &self.inner.readers
    }

    fn seams(&self) -> &Seams {
        &self.inner.seams
    }
}
