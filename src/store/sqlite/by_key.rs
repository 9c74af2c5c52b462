//! One row by its key: shared by the load of a batch and by reads.
//!
//! What must stay true: each statement is one search in the primary key. Deliberately not here:
//! searches that return more than one row.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::{
    fault::Fault,
    rows::{
        self, account_columns, delivery_columns, document_columns, inbox_columns, lock_columns,
        operation_columns,
    },
};
use crate::domain::{
    delivery::{Delivery, DeliveryKey, InboxKey},
    document::Document,
    ids::Account,
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey, PayloadKind},
};

/// Runs a statement that finds at most one row.
pub(super) fn one<T>(
    connection: &Connection,
    statement: &'static str,
    parameters: impl Params,
    read: fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    let mut statement = connection.prepare_cached(statement)?;
    let mut rows = statement.query(parameters)?;
    rows.next()?.map(read).transpose()
}

/// Runs a statement that finds any number of rows.
pub(super) fn many<T>(
    connection: &Connection,
    statement: &'static str,
    parameters: impl Params,
    read: fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut statement = connection.prepare_cached(statement)?;
    statement.query_and_then(parameters, read)?.collect()
}

/// Index: the primary key.
pub(super) const OPERATION: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3"
);

/// An operation.
pub(super) fn operation(
    connection: &Connection,
    key: &OperationKey,
) -> Result<Option<Operation>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.id.to_stored());
    one(connection, OPERATION, parameters, rows::operation)
}

/// Index: the primary key.
pub(super) const PAYLOAD: &str = "SELECT body FROM payloads \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 AND kind = ?4";

/// Bytes kept apart from their operation's row.
pub(super) fn payload(
    connection: &Connection,
    key: &OperationKey,
    kind: PayloadKind,
) -> Result<Option<Bytes>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.id.to_stored(), kind as i16);
    bytes(connection, PAYLOAD, parameters)
}

/// Index: the primary key.
pub(super) const SLICE: &str = "SELECT substr(body, ?5 + 1, ?6) FROM payloads \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 AND kind = ?4";

/// A part of bytes kept apart.
pub(super) fn slice(
    connection: &Connection,
    key: &OperationKey,
    kind: PayloadKind,
    offset: i64,
    length: i64,
) -> Result<Option<Bytes>, Fault> {
    let OperationKey { account, id } = key;
    let parameters =
        (account.bucket(), account.as_str(), id.to_stored(), kind as i16, offset, length);
    bytes(connection, SLICE, parameters)
}

fn bytes(
    connection: &Connection,
    statement: &'static str,
    parameters: impl Params,
) -> Result<Option<Bytes>, Fault> {
    let mut statement = connection.prepare_cached(statement)?;
    let body = statement.query_row(parameters, |row| row.get::<_, Vec<u8>>(0)).optional()?;
    Ok(body.map(Bytes::from))
}

/// Index: the primary key.
pub(super) const ACCOUNT: &str =
    concat!("SELECT ", account_columns!(), " FROM accounts WHERE bucket = ?1 AND account = ?2");

/// An account.
pub(super) fn account(
    connection: &Connection,
    account: &Account,
) -> Result<Option<AccountRow>, Fault> {
    one(connection, ACCOUNT, (account.bucket(), account.as_str()), rows::account)
}

/// Index: the primary key.
pub(super) const DOCUMENT: &str = concat!(
    "SELECT ",
    document_columns!(),
    " FROM documents WHERE bucket = ?1 AND account = ?2 AND target = ?3"
);

/// A document without its content.
pub(super) fn document(
    connection: &Connection,
    key: &TargetKey,
) -> Result<Option<Document>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.target.as_str());
    one(connection, DOCUMENT, parameters, rows::document)
}

/// Index: the primary key.
pub(super) const DOCUMENT_WITH_CONTENT: &str = concat!(
    "SELECT ",
    document_columns!(),
    ", content FROM documents WHERE bucket = ?1 AND account = ?2 AND target = ?3"
);

/// A document with its content.
pub(super) fn document_with_content(
    connection: &Connection,
    key: &TargetKey,
) -> Result<Option<Document>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.target.as_str());
    one(connection, DOCUMENT_WITH_CONTENT, parameters, rows::document_with_content)
}

/// Index: the primary key.
pub(super) const LOCK: &str = concat!(
    "SELECT ",
    lock_columns!(),
    " FROM locks WHERE bucket = ?1 AND account = ?2 AND target = ?3"
);

/// A lock.
pub(super) fn lock(connection: &Connection, key: &TargetKey) -> Result<Option<Lock>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.target.as_str());
    one(connection, LOCK, parameters, rows::lock)
}

/// Index: the primary key.
pub(super) const INBOX: &str = concat!(
    "SELECT ",
    inbox_columns!(),
    " FROM inboxes WHERE bucket = ?1 AND account = ?2 AND inbox = ?3"
);

/// An inbox.
pub(super) fn inbox(connection: &Connection, key: &InboxKey) -> Result<Option<Inbox>, Fault> {
    let parameters = (key.account.bucket(), key.account.as_str(), key.inbox.as_str());
    one(connection, INBOX, parameters, rows::inbox)
}

/// Index: the primary key.
pub(super) const DELIVERY: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence = ?4"
);

/// A delivery.
pub(super) fn delivery(
    connection: &Connection,
    key: &DeliveryKey,
) -> Result<Option<Delivery>, Fault> {
    let InboxKey { account, inbox } = &key.inbox;
    let parameters = (account.bucket(), account.as_str(), inbox.as_str(), key.sequence);
    one(connection, DELIVERY, parameters, rows::delivery)
}
