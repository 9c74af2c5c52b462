//! What an error of the driver means for a transaction.
//!
//! What must stay true: only an error that the server gave before the commit counts as "nothing
//! was written"; whatever else happens once the save was sent is not known.

use std::error::Error as _;

use tokio_postgres::{Error, error::SqlState};

use super::session::{Broken, Place};
use crate::store::TransactError;

/// A transaction that left nothing behind.
#[derive(Debug)]
pub(super) enum Trouble {
    Conflict(String),
    Failed(String),
    CountShort(String),
    Unavailable(String),
}

impl<R> From<Trouble> for TransactError<R> {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Conflict(text) => TransactError::Conflict(text),
            Trouble::Failed(text) => TransactError::Failed(text),
            Trouble::CountShort(text) => TransactError::CountShort(text),
            Trouble::Unavailable(text) => TransactError::Unavailable(text),
        }
    }
}

impl From<crate::domain::record::Unreadable> for Trouble {
    fn from(unreadable: crate::domain::record::Unreadable) -> Self {
        Trouble::Failed(unreadable.to_string())
    }
}

/// An error in words, without the server's detail line, which quotes keys.
pub(super) fn words(error: &Error) -> String {
    match error.as_db_error() {
        Some(answer) if is_of_pooler(answer.code()) => format!(
            "{} ({}): a pooler in transaction mode seems to stand before PostgreSQL; set pooler \
             and listen_url",
            answer.message(),
            answer.code().code()
        ),
        Some(answer) => format!("{} ({})", answer.message(), answer.code().code()),
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// Whether a statement's name met a server that did not know it, or knew another one by it.
fn is_of_pooler(code: &SqlState) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(code)
}

/// Whether the connection, and not a statement, is what failed.
pub(super) fn is_of_connection(error: &Error) -> bool {
    match error.code() {
        Some(code) => {
            let leaves = [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::IDLE_SESSION_TIMEOUT,
                SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            ];
            leaves.contains(code) || code.code().starts_with("08")
        }
        None => true,
    }
}

/// What an answer of the server to a statement before the commit means.
pub(super) fn of_statement(error: &Error) -> Trouble {
    let text = words(error);
    let conflicts = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::UNIQUE_VIOLATION,
    ];
    match error.code() {
        // The server waited too long for this very transaction: half of it takes less.
        Some(code) if *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            Trouble::Failed(text)
        }
        _ if is_of_connection(error) => Trouble::Unavailable(text),
        Some(code) if conflicts.contains(code) => Trouble::Conflict(text),
        Some(code) if *code == SqlState::DIVISION_BY_ZERO => Trouble::CountShort(
            "a row that was locked did not stand as it was loaded, or was missing".into(),
        ),
        _ => Trouble::Failed(text),
    }
}

/// What a broken save means: `None` if the commit's outcome is not known.
pub(super) fn of_save(broken: &Broken) -> Option<Trouble> {
    if is_of_connection(&broken.error) {
        return None;
    }
    match (broken.place, of_statement(&broken.error)) {
        // The server rolls back and says why.
        (_, trouble @ Trouble::Conflict(_)) | (Place::Statement, trouble) => Some(trouble),
        (Place::End, _) => None,
    }
}

/// Whether a connection can be used again after this error, once it was rolled back.
pub(super) fn leaves_connection_usable(error: &Error) -> bool {
    let usual = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::UNIQUE_VIOLATION,
        SqlState::DIVISION_BY_ZERO,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
    ];
    error.code().is_some_and(|code| usual.contains(code))
}
