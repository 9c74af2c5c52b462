//! Opening the file: the lock against a second process, and what every connection is told.
//!
//! What must stay true: a commit is on the disk when it returns (WAL with `synchronous=FULL`), no
//! connection but the writer's can write, and none waits longer for another than the options say.
//! Deliberately not here: a check for network file systems, where locks and flushes may lie; the
//! documentation tells to use a local disk.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, OpenFlags};

use super::Options;
use crate::store::OpenError;

/// Statements kept prepared per connection: above the number of statements in this folder, so
/// that none is ever prepared twice.
const STATEMENTS_MAX: usize = 128;
/// Page cache per connection, in KiB: a full batch (8 MiB of bodies) stays in memory until its
/// commit instead of being spilled early.
const CACHE_KIB: i64 = 16 * 1024;

/// The path with something added to its last name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates the folder of the file, and the file itself, readable by its owner alone: it holds the
/// key of the tokens. SQLite gives the files beside it the same rights. Returns whether there was
/// no such file before.
///
/// # Errors
/// [`OpenError`] with what the operating system said.
pub(super) fn create(path: &Path) -> Result<bool, OpenError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| {
            OpenError(format!("the folder {} cannot be created: {error}", folder.display()))
        })?;
    }
    let mut options = OpenOptions::new();
    // A file that exists is not opened here: closing it would release every POSIX lock that
    // SQLite holds on it in this process.
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_created) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => {
            Err(OpenError(format!("the store {} cannot be created: {error}", path.display())))
        }
    }
}

/// The one path that all symbolic links to the file lead to: SQLite names its log after it too.
///
/// # Errors
/// [`OpenError`] with what the operating system said.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    std::fs::canonicalize(path).map_err(|error| {
        OpenError(format!("the store {} cannot be found: {error}", path.display()))
    })
}

/// What is locked: on Linux the database file itself, which is the same by every name. Its lock
/// (`flock`) and those of SQLite (`fcntl`) do not meet there; where they do, a file beside it.
#[cfg(target_os = "linux")]
fn open_to_lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_to_lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(beside(path, ".lock"))
}

/// Locks the store against a second process, before SQLite opens it. The lock ends with the
/// handle, also if the process is killed. The handle must outlive every connection: closing any
/// descriptor of the file releases all POSIX locks that SQLite holds on it in this process.
///
/// # Errors
/// [`OpenError`] if another process has it.
pub(super) fn lock_file(path: &Path) -> Result<File, OpenError> {
    let describe = |error: std::io::Error| {
        OpenError(format!("the store {} cannot be locked: {error}", path.display()))
    };
    let file = open_to_lock(path).map_err(describe)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            // The one that has it may be in this process: its locks would go with this handle,
            // so the handle stays open as long as the process.
            let _never_closed = std::mem::ManuallyDrop::new(file);
            Err(OpenError(format!(
                "another process uses this store (it has locked {}, perhaps by another name of \
                 the same file): an embedded store serves one process; stop the other one, or \
                 name another file",
                path.display()
            )))
        }
        Err(TryLockError::Error(error)) => Err(describe(error)),
    }
}

/// The connection that writes.
///
/// # Errors
/// [`OpenError`].
pub(super) fn open_writer(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = open(path, flags, options)?;
        let mode: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        // Checkpoints are made between batches, where nobody waits for an answer (wal.rs).
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        let limit = i64::try_from(options.wal_bytes_max).unwrap_or(i64::MAX);
        connection.pragma_update(None, "journal_size_limit", limit)?;
        Ok((connection, mode))
    };
    let (connection, mode) = open().map_err(|error| describe(path, &error))?;
    if mode != "wal" {
        return Err(OpenError(format!(
            "the store {} cannot keep a write-ahead log here (its journal is '{mode}'): use a \
             local disk",
            path.display()
        )));
    }
    Ok(connection)
}

/// A connection that only reads. It keeps the lock as well: a read may outlast the writer.
pub(super) struct Reader {
    connection: Connection,
    /// Given up after the connection.
    _lock: Option<Arc<File>>,
}

impl std::ops::Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl std::ops::DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// A connection that only reads, with its share of the lock.
///
/// # Errors
/// [`OpenError`].
pub(super) fn open_reader(
    path: &Path,
    options: &Options,
    lock: Option<&Arc<File>>,
) -> Result<Reader, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = open(path, flags, options)?;
        connection.pragma_update(None, "query_only", "ON")?;
        Ok(Reader { connection, _lock: lock.cloned() })
    };
    open().map_err(|error| describe(path, &error))
}

fn open(path: &Path, flags: OpenFlags, options: &Options) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(options.busy_timeout)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Tells why the file does not open.
pub(super) fn describe(path: &Path, error: &rusqlite::Error) -> OpenError {
    OpenError(format!("the store {} cannot be opened: {error}", path.display()))
}
