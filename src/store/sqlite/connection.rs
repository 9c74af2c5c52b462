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
/// key of the tokens. SQLite gives the files beside it the same rights.
///
/// # Errors
/// [`OpenError`] with what the operating system said.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
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
        Ok(_created) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            Err(OpenError(format!("the store {} cannot be created: {error}", path.display())))
        }
    }
}

/// Locks the store against a second process. The lock ends with the handle, also if the process
/// is killed; the file stays.
///
/// # Errors
/// [`OpenError`] if another process has it.
pub(super) fn lock_file(path: &Path) -> Result<File, OpenError> {
    let path = beside(path, ".lock");
    let describe = |error: std::io::Error| {
        OpenError(format!("the lock file {} cannot be used: {error}", path.display()))
    };
    let file = OpenOptions::new().create(true).append(true).open(&path).map_err(describe)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError(format!(
            "another process uses this store (it has locked {}): an embedded store serves one \
             process; stop the other one, or name another file",
            path.display()
        ))),
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

/// A connection that only reads.
///
/// # Errors
/// [`OpenError`].
pub(super) fn open_reader(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = open(path, flags, options)?;
        connection.pragma_update(None, "query_only", "ON")?;
        Ok(connection)
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
