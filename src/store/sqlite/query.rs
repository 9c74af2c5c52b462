//! Searches outside a transaction that writes: one function per statement.
//!
//! What must stay true: each statement walks one index from where it starts, and stops at its
//! limit; texts and ids are compared byte for byte, as SQLite does by itself. Deliberately not
//! here: rows by key, which are in [`super::by_key`], and the sweeper's search, in
//! [`super::due`].

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    by_key::{self, many, one},
    fault::Fault,
    rows::{
        self, Columns, audit_columns, delivery_columns, document_columns, inbox_columns,
        lock_columns, operation_columns,
    },
};
use crate::{
    domain::{
        audit::{AuditChain, AuditRow},
        delivery::{Delivery, DeliveryState, InboxKey},
        ids::{Account, Target, Timestamp},
        lock::{Lock, TargetKey},
        operation::{Operation, OperationKey},
    },
    store::query::{
        DeliveryPage, DocumentGlimpse, DocumentPage, EXAMINED_MAX, InboxGlimpse, InboxPage,
        LookedUp, OperationGlimpse, OperationPosition, Walk, end_of_prefix,
    },
};

/// What there is under a key.
pub(super) fn look_up(connection: &Connection, key: &OperationKey) -> Result<LookedUp, Fault> {
    let Some(operation) = by_key::operation(connection, key)? else {
        return Ok(LookedUp::default());
    };
    let delivery = match operation.delivery_key() {
        Some(key) => by_key::delivery(connection, &key)?,
        None => None,
    };
    let target = operation.target_key();
    let document = by_key::document(connection, &target)?;
    let lock = match operation.wait_ticket {
        Some(_) => by_key::lock(connection, &target)?,
        None => None,
    };
    Ok(LookedUp {
        operation: Some(operation),
        deliveries: delivery.into_iter().collect(),
        document,
        lock,
    })
}

/// The start of a list that goes backwards in time: after everything.
fn start(after: Option<&OperationPosition>) -> (i64, Vec<u8>) {
    after.map_or((i64::MAX, Vec::new()), |after| (after.accept_time.0, after.id.to_stored()))
}

/// Index: operations_by_time, backwards.
pub(super) const LIST_OPERATIONS: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations INDEXED BY operations_by_time WHERE bucket = ?1 AND account = ?2 \
     AND (accept_time, operation_id) < (?3, ?4) \
     ORDER BY accept_time DESC, operation_id DESC LIMIT ?5"
);

/// Operations of an account, newest first.
pub(super) fn list_operations(
    connection: &Connection,
    account: &Account,
    after: Option<&OperationPosition>,
    limit: i64,
) -> Result<Vec<Operation>, Fault> {
    let (time, id) = start(after);
    let parameters = params![account.bucket(), account.as_str(), time, id, limit];
    many(connection, LIST_OPERATIONS, parameters, rows::operation)
}

/// Index: operations_unresolved, backwards.
pub(super) const LIST_UNRESOLVED: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations INDEXED BY operations_unresolved WHERE bucket = ?1 AND account = ?2 \
     AND (accept_time, operation_id) < (?3, ?4) AND end_time IS NULL \
     ORDER BY accept_time DESC, operation_id DESC LIMIT ?5"
);

/// Operations of an account that are not final, newest first.
pub(super) fn list_unresolved(
    connection: &Connection,
    account: &Account,
    after: Option<&OperationPosition>,
    limit: i64,
) -> Result<Vec<Operation>, Fault> {
    let (time, id) = start(after);
    let parameters = params![account.bucket(), account.as_str(), time, id, limit];
    many(connection, LIST_UNRESOLVED, parameters, rows::operation)
}

/// Index: the primary key.
pub(super) const LIST_AUDIT: &str = concat!(
    "SELECT ",
    audit_columns!(),
    " FROM audit WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 AND number > ?4 \
     ORDER BY number LIMIT ?5"
);

/// The audit rows of a chain after a number.
pub(super) fn list_audit(
    connection: &Connection,
    chain: &AuditChain,
    after: i32,
    limit: i64,
) -> Result<Vec<AuditRow>, Fault> {
    let account = chain.account();
    let parameters = params![account.bucket(), account.as_str(), chain.to_stored(), after, limit];
    many(connection, LIST_AUDIT, parameters, rows::audit_row)
}

/// Index: the primary key. The prefix is a range, so that nothing beside it is read; the `+`
/// keeps the walk from starting at the cursor where that comes before the prefix. Markers of
/// deleted documents come too, so that the walk can be bounded.
pub(super) const LIST_DOCUMENTS: &str = concat!(
    "SELECT ",
    document_columns!(),
    " FROM documents WHERE bucket = ?1 AND account = ?2 AND +target > ?3 \
     AND target >= max(?3, ?4) AND target < ?5 ORDER BY target LIMIT ?6"
);

/// Documents that exist, by target. Rows are read one by one, so that the walk ends with the page.
pub(super) fn list_documents(
    connection: &Connection,
    account: &Account,
    prefix: &str,
    after: Option<&Target>,
    limit: i64,
) -> Result<DocumentPage, Fault> {
    let after = after.map_or("", Target::as_str);
    let end = end_of_prefix(prefix);
    let parameters = params![account.bucket(), account.as_str(), after, prefix, end, EXAMINED_MAX];
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut page = DocumentPage { documents: Vec::new(), next: None };
    let mut statement = connection.prepare_cached(LIST_DOCUMENTS)?;
    let mut found = statement.query(parameters)?;
    let mut examined = 0;
    while page.documents.len() < limit {
        let Some(row) = found.next()? else { break };
        examined += 1;
        let document = rows::document(row)?;
        if examined == EXAMINED_MAX || (document.exists && page.documents.len() + 1 == limit) {
            page.next = Some(document.key.target.clone());
        }
        if document.exists {
            page.documents.push(document);
        }
    }
    Ok(page)
}

/// Index: the primary key. Markers of deleted inboxes come too, so that the walk can be bounded.
pub(super) const LIST_INBOXES: &str = concat!(
    "SELECT ",
    inbox_columns!(),
    " FROM inboxes NOT INDEXED WHERE bucket = ?1 AND account = ?2 AND inbox > ?3 \
     ORDER BY inbox LIMIT ?4"
);

/// Inboxes of an account that are not deleted, by name. Rows are read one by one, so that the walk
/// ends with the page.
pub(super) fn list_inboxes(
    connection: &Connection,
    account: &Account,
    after: &str,
    limit: i64,
) -> Result<InboxPage, Fault> {
    let parameters = params![account.bucket(), account.as_str(), after, EXAMINED_MAX];
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut page = InboxPage { inboxes: Vec::new(), next: None };
    let mut statement = connection.prepare_cached(LIST_INBOXES)?;
    let mut found = statement.query(parameters)?;
    let mut examined = 0;
    while page.inboxes.len() < limit {
        let Some(row) = found.next()? else { break };
        examined += 1;
        let inbox = rows::inbox(row)?;
        if examined == EXAMINED_MAX || (!inbox.deleted && page.inboxes.len() + 1 == limit) {
            page.next = Some(inbox.key.inbox.clone());
        }
        if !inbox.deleted {
            page.inboxes.push(inbox);
        }
    }
    Ok(page)
}

/// Index: deliveries_open, from the first number of the inbox's generation on.
pub(super) const OLDEST_OPEN: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_open \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL \
     AND sequence >= (SELECT first_sequence FROM inboxes \
         WHERE bucket = ?1 AND account = ?2 AND inbox = ?3) \
     AND state IN (1, 2) ORDER BY sequence LIMIT 1"
);

/// The oldest delivery of an inbox's generation that has not ended.
pub(super) fn oldest_open(
    connection: &Connection,
    key: &InboxKey,
) -> Result<Option<Delivery>, Fault> {
    let parameters = params![key.account.bucket(), key.account.as_str(), key.inbox.as_str()];
    one(connection, OLDEST_OPEN, parameters, rows::delivery)
}

/// Deliveries by number, each after its state.
macro_rules! walk {
    ($index:literal, $which:literal) => {
        concat!(
            "SELECT state, sequence, ",
            delivery_columns!(),
            " FROM deliveries ",
            $index,
            " WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence > ?4",
            $which,
            " ORDER BY sequence LIMIT ?5"
        )
    };
}

/// Index: the primary key.
pub(super) const LIST_DELIVERIES: &str = walk!("NOT INDEXED", "");
/// Index: deliveries_open.
pub(super) const LIST_OPEN_DELIVERIES: &str =
    walk!("INDEXED BY deliveries_open", " AND due_time IS NOT NULL");
/// Index: deliveries_lost.
pub(super) const LIST_LOST_DELIVERIES: &str =
    walk!("INDEXED BY deliveries_lost", " AND state IN (4, 5)");

/// Deliveries of an inbox after a number and in one of the states (all if empty). Rows are read
/// one by one, so that the walk ends with the page.
pub(super) fn list_deliveries(
    connection: &Connection,
    key: &InboxKey,
    after: i64,
    states: &[DeliveryState],
    limit: i64,
) -> Result<DeliveryPage, Fault> {
    let sql = match Walk::over(states) {
        Walk::All => LIST_DELIVERIES,
        Walk::Open => LIST_OPEN_DELIVERIES,
        Walk::Lost => LIST_LOST_DELIVERIES,
    };
    let states = if states.is_empty() { &DeliveryState::ALL } else { states };
    let InboxKey { account, inbox } = key;
    let parameters =
        params![account.bucket(), account.as_str(), inbox.as_str(), after, EXAMINED_MAX];
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut page = DeliveryPage { deliveries: Vec::new(), next: None };
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(parameters)?;
    let mut examined = 0;
    while page.deliveries.len() < limit {
        let Some(row) = found.next()? else { break };
        examined += 1;
        let mut columns = Columns::of(row);
        let (state, sequence): (i16, i64) = (columns.take()?, columns.take()?);
        if states.iter().any(|wanted| *wanted as i16 == state) {
            page.deliveries.push(rows::delivery_from(&mut columns)?);
        }
        if examined == EXAMINED_MAX || page.deliveries.len() == limit {
            page.next = Some(sequence);
        }
    }
    Ok(page)
}

/// Index: deliveries_lost.
pub(super) const LIST_LOST: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_lost \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence > ?4 AND state IN (4, 5) \
     ORDER BY sequence LIMIT ?5"
);

/// EXPIRED and DEAD deliveries after a number.
pub(super) fn list_lost(
    connection: &Connection,
    key: &InboxKey,
    after: i64,
    limit: i64,
) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let parameters = params![account.bucket(), account.as_str(), inbox.as_str(), after, limit];
    many(connection, LIST_LOST, parameters, rows::delivery)
}

/// Index: the primary key.
pub(super) const COUNT_ACKED: &str = "SELECT count(*) FROM (SELECT 1 FROM (\
    SELECT state FROM deliveries NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence > ?4 \
    ORDER BY sequence LIMIT ?6) WHERE state = 3 LIMIT ?5)";

/// How many of the next deliveries after a number are ACKED, up to a limit.
pub(super) fn count_acked(
    connection: &Connection,
    key: &InboxKey,
    after: i64,
    limit: i64,
) -> Result<i64, Fault> {
    let InboxKey { account, inbox } = key;
    let start = (account.bucket(), account.as_str(), inbox.as_str(), after);
    let parameters = params![start.0, start.1, start.2, start.3, limit, EXAMINED_MAX];
    let mut statement = connection.prepare_cached(COUNT_ACKED)?;
    Ok(statement.query_row(parameters, |row| row.get(0))?)
}

/// Index: the primary key.
pub(super) const LIST_LOCKS: &str = concat!(
    "SELECT ",
    lock_columns!(),
    " FROM locks NOT INDEXED WHERE bucket = ?1 AND account = ?2 AND target > ?3 \
     ORDER BY target LIMIT ?4"
);

/// Locks of an account, by target.
pub(super) fn list_locks(
    connection: &Connection,
    account: &Account,
    after: &str,
    limit: i64,
) -> Result<Vec<Lock>, Fault> {
    let parameters = params![account.bucket(), account.as_str(), after, limit];
    many(connection, LIST_LOCKS, parameters, rows::lock)
}

/// Index: the primary key.
pub(super) const GLIMPSE_OPERATION: &str = "SELECT state, outcome_version FROM operations NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3";

/// What somebody who waits for an operation compares.
pub(super) fn glimpse_operation(
    connection: &Connection,
    key: &OperationKey,
) -> Result<Option<OperationGlimpse>, Fault> {
    let parameters = params![key.account.bucket(), key.account.as_str(), key.id.to_stored()];
    let mut statement = connection.prepare_cached(GLIMPSE_OPERATION)?;
    let read = statement.query_row(parameters, |row| {
        Ok(OperationGlimpse { state: row.get(0)?, outcome_version: row.get(1)? })
    });
    Ok(read.optional()?)
}

/// Index: the primary key.
pub(super) const GLIMPSE_INBOX: &str = "SELECT next_sequence - 1, pending, returned, offered, in_flight, \
    acked_total + expired_total + dead_total, consumer_epoch FROM inboxes NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3";

/// What an open stream compares.
pub(super) fn glimpse_inbox(
    connection: &Connection,
    key: &InboxKey,
) -> Result<Option<InboxGlimpse>, Fault> {
    let parameters = params![key.account.bucket(), key.account.as_str(), key.inbox.as_str()];
    let mut statement = connection.prepare_cached(GLIMPSE_INBOX)?;
    let read = statement.query_row(parameters, |row| {
        Ok(InboxGlimpse {
            last_sequence: row.get(0)?,
            pending: row.get(1)?,
            returned: row.get(2)?,
            offered: row.get(3)?,
            in_flight: row.get(4)?,
            ended: row.get(5)?,
            consumer_epoch: row.get(6)?,
        })
    });
    Ok(read.optional()?)
}

/// Index: the primary key.
pub(super) const GLIMPSE_DOCUMENT: &str = "SELECT revision, generation, present FROM documents \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3";

/// What somebody who watches a document compares.
pub(super) fn glimpse_document(
    connection: &Connection,
    key: &TargetKey,
) -> Result<Option<DocumentGlimpse>, Fault> {
    let parameters = params![key.account.bucket(), key.account.as_str(), key.target.as_str()];
    let mut statement = connection.prepare_cached(GLIMPSE_DOCUMENT)?;
    let read = statement.query_row(parameters, |row| {
        Ok(DocumentGlimpse { revision: row.get(0)?, generation: row.get(1)?, exists: row.get(2)? })
    });
    Ok(read.optional()?)
}

/// The key of a batch's row.
pub(super) type BatchKey = (i16, Vec<u8>);

/// Index: batches_by_replica.
pub(super) const NEXT_REPLICA: &str = "SELECT replica FROM batches INDEXED BY batches_by_replica \
    WHERE replica > ?1 ORDER BY replica LIMIT 1";

/// Index: batches_by_replica, backwards.
pub(super) const NEWEST_BATCH: &str = "SELECT time FROM batches INDEXED BY batches_by_replica \
    WHERE replica = ?1 ORDER BY time DESC LIMIT 1";

/// Index: batches_by_replica.
pub(super) const OLD_BATCHES: &str = "SELECT bucket, batch FROM batches \
    INDEXED BY batches_by_replica WHERE replica = ?1 AND time < ?2 ORDER BY time LIMIT ?3";

/// Batches from before a time that are not their replica's newest: from replica to replica, the
/// oldest first.
pub(super) fn old_batches(
    connection: &Connection,
    before: Timestamp,
    limit: i64,
) -> Result<Vec<BatchKey>, Fault> {
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut old: Vec<BatchKey> = Vec::new();
    let mut replica: Vec<u8> = Vec::new();
    while old.len() < limit {
        let next = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        let mut statement = connection.prepare_cached(NEXT_REPLICA)?;
        let Some(found) = statement.query_row([&replica], next).optional()? else { break };
        replica = found;
        let mut statement = connection.prepare_cached(NEWEST_BATCH)?;
        let newest: i64 = statement.query_row([&replica], |row| row.get(0))?;
        let rest = i64::try_from(limit - old.len()).unwrap_or(i64::MAX);
        // One bound, so that the walk ends where nothing old is left.
        let parameters = params![replica, before.0.min(newest), rest];
        let key = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        old.extend(many(connection, OLD_BATCHES, parameters, key)?);
    }
    Ok(old)
}

/// Index: the primary key.
pub(super) const DELETE_BATCH: &str = "DELETE FROM batches WHERE bucket = ?1 AND batch = ?2";

/// Deletes a batch's row; returns how many went. None is no mistake: another process that sweeps
/// may have been first.
pub(super) fn delete_batch(
    connection: &Connection,
    (bucket, batch): &BatchKey,
) -> Result<usize, Fault> {
    Ok(connection.prepare_cached(DELETE_BATCH)?.execute(params![bucket, batch])?)
}
