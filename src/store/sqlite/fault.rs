//! What can go wrong below the seam, and how it is told above it.
//!
//! What must stay true: SQLite's codes are read here and nowhere else; every failure but a fatal
//! one left nothing behind. Deliberately not here: what to do about a failure.

use std::sync::OnceLock;

use rusqlite::{ErrorCode, ffi};

use super::pool::Refused;
use crate::{
    domain::record::Unreadable,
    store::{ReadError, TransactError},
};

/// Why a statement or the reading of a row failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite said so.
    Sql(rusqlite::Error),
    /// A row cannot be read by this release.
    Unreadable(Unreadable),
    /// A statement found another number of rows than was promised to it.
    Short(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sql(error)
    }
}

impl From<Unreadable> for Fault {
    fn from(error: Unreadable) -> Self {
        Fault::Unreadable(error)
    }
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => ReadError::Unavailable(error.to_string()),
            Fault::Unreadable(error) => ReadError::Unreadable(error),
            Fault::Short(text) => ReadError::Unavailable(text),
        }
    }
}

/// Why a transaction failed: [`TransactError`] without the value that no failure here carries.
#[derive(Debug)]
pub(super) enum Failure {
    /// See [`TransactError::Conflict`].
    Conflict(String),
    /// See [`TransactError::Failed`].
    Failed(String),
    /// See [`TransactError::CountShort`].
    CountShort(String),
    /// See [`TransactError::Unavailable`].
    Unavailable(String),
    /// See [`TransactError::Fatal`].
    Fatal(String),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) if is_busy(&error) || is_full(&error) => {
                Failure::Unavailable(error.to_string())
            }
            Fault::Sql(error) if is_duplicate(&error) => Failure::Conflict(error.to_string()),
            Fault::Sql(error) => Failure::Failed(error.to_string()),
            Fault::Unreadable(error) => Failure::Failed(error.to_string()),
            Fault::Short(text) => Failure::CountShort(text),
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => Failure::Unavailable(CLOSED.to_owned()),
            Refused::Panicked(text) => Failure::Failed(format!("a panic: {text}")),
        }
    }
}

impl<R> From<Failure> for TransactError<R> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict(text) => TransactError::Conflict(text),
            Failure::Failed(text) => TransactError::Failed(text),
            Failure::CountShort(text) => TransactError::CountShort(text),
            Failure::Unavailable(text) => TransactError::Unavailable(text),
            Failure::Fatal(text) => TransactError::Fatal(text),
        }
    }
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict(text)
            | Failure::Failed(text)
            | Failure::CountShort(text)
            | Failure::Unavailable(text)
            | Failure::Fatal(text) => ReadError::Unavailable(text),
        }
    }
}

/// What everything answers after a close.
pub(super) const CLOSED: &str = "the store is closed";

/// Whether the store may still be used. Once it may not, it never may again: after a failed flush
/// nobody can say what is on the disk, and a second flush would report success all the same.
#[derive(Debug, Default)]
pub(super) struct Health(OnceLock<String>);

impl Health {
    /// Ends the use of the store; the first reason stays.
    pub(super) fn poison(&self, reason: String) -> Failure {
        Failure::Fatal(self.0.get_or_init(|| reason).clone())
    }

    /// # Errors
    /// [`Failure::Fatal`] with the reason.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.0.get() {
            Some(reason) => Err(Failure::Fatal(reason.clone())),
            None => Ok(()),
        }
    }
}

/// Whether another connection is in the way.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether the disk is full. Half of a batch would not fit either.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Whether a flush or the file itself may be broken, as opposed to a full disk.
pub(super) fn is_broken(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Whether a key was taken.
fn is_duplicate(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(
            ffi::SQLITE_CONSTRAINT_UNIQUE
                | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                | ffi::SQLITE_CONSTRAINT_ROWID
        )
    )
}
