//! The save of a batch: every change that was decided, row by row, in lock order.
//!
//! What must stay true: an insert is plain, so that a taken key fails; an update or a delete
//! repeats what the decision relied on, and touches exactly one row or fails the batch. What a
//! submit fixed for ever (an operation's intent, its labels, its acceptance) is never updated, but for
//! what a tombstone lets go of.
//! Deliberately not here: the statements of the tables around an operation, which are in
//! [`super::save_delivery`], and decisions.

use std::collections::BTreeMap;

use rusqlite::{Connection, Params, params};

use super::{fault::Fault, save_delivery};
use crate::{
    domain::{
        audit::AuditRow,
        document::Document,
        ids::Timestamp,
        inbox::AccountRow,
        lock::Lock,
        operation::{Arguments, Operation, OperationKey},
        record::{pack_account_policy, pack_labels, pack_life, pack_outcome},
        world::changes::{Changes, LifeChange, Payload, TableChanges, Update},
    },
    store::BatchName,
};

/// Writes the batch's row and all its changes. Nothing is durable before the commit.
///
/// # Errors
/// [`Fault`]; the caller rolls back.
pub(super) fn save(
    connection: &Connection,
    batch: &BatchName,
    now: Timestamp,
    changes: &Changes,
) -> Result<(), Fault> {
    insert_batch(connection, batch, now)?;
    let TableChanges { inserts, updates, deletes } = &changes.operations;
    each(inserts, |row| insert_operation(connection, row))?;
    each(updates, |row| update_operation(connection, row))?;
    each(deletes, |row| delete_operation(connection, row))?;
    each(&changes.emptied, |key| empty_operation(connection, key))?;
    each(&changes.payloads, |row| insert_payload(connection, row))?;
    let TableChanges { inserts, updates, deletes } = &changes.accounts;
    each(inserts, |row| insert_account(connection, row))?;
    each(updates, |row| update_account(connection, row))?;
    each(deletes, |row| delete_account(connection, row))?;
    let TableChanges { inserts, updates, deletes } = &changes.documents;
    each(inserts, |row| insert_document(connection, row))?;
    each(updates, |row| update_document(connection, row))?;
    each(deletes, |row| delete_document(connection, row))?;
    let TableChanges { inserts, updates, deletes } = &changes.locks;
    each(inserts, |row| insert_lock(connection, row))?;
    each(updates, |row| update_lock(connection, row))?;
    each(deletes, |row| delete_lock(connection, row))?;
    let TableChanges { inserts, updates, deletes } = &changes.inboxes;
    each(inserts, |row| save_delivery::insert_inbox(connection, row))?;
    each(updates, |row| save_delivery::update_inbox(connection, row))?;
    each(deletes, |row| save_delivery::delete_inbox(connection, row))?;
    let TableChanges { inserts, updates, deletes } = &changes.deliveries;
    each(inserts, |row| save_delivery::insert_delivery(connection, row))?;
    each(updates, |row| save_delivery::update_delivery(connection, row))?;
    each(deletes, |row| save_delivery::delete_delivery(connection, row))?;
    each(&changes.audit, |row| insert_audit(connection, row))?;
    each(&changes.trails, |key| delete_trail(connection, key))?;
    changes.life.as_ref().map_or(Ok(()), |life| update_life(connection, life))
}

fn each<T>(rows: &[T], mut write: impl FnMut(&T) -> Result<(), Fault>) -> Result<(), Fault> {
    rows.iter().try_for_each(&mut write)
}

/// Runs a statement that must touch exactly one row of `table`.
pub(super) fn exactly_one(
    connection: &Connection,
    statement: &'static str,
    table: &str,
    parameters: impl Params,
) -> Result<(), Fault> {
    match connection.prepare_cached(statement)?.execute(parameters)? {
        1 => Ok(()),
        count => Err(Fault::Short(format!(
            "a statement of a save touched {count} rows of {table} where 1 was promised"
        ))),
    }
}

const INSERT_BATCH: &str =
    "INSERT INTO batches (bucket, batch, replica, time, settled) VALUES (?1, ?2, ?3, ?4, 0)";

/// Names the batch.
fn insert_batch(connection: &Connection, batch: &BatchName, now: Timestamp) -> Result<(), Fault> {
    let parameters = params![batch.bucket, batch.id, batch.replica, now.0];
    exactly_one(connection, INSERT_BATCH, "batches", parameters)
}

/// Index: the primary key.
pub(super) const SETTLE_BATCH: &str =
    "UPDATE batches SET settled = 1 WHERE bucket = ?1 AND batch = ?2";

/// Marks the batch as settled if it has a row: whether it had committed.
///
/// # Errors
/// [`Fault`]; the caller rolls back.
pub(super) fn settle_batch(connection: &Connection, batch: &BatchName) -> Result<bool, Fault> {
    let mut statement = connection.prepare_cached(SETTLE_BATCH)?;
    Ok(statement.execute(params![batch.bucket, batch.id])? == 1)
}

const INSERT_OPERATION: &str = "INSERT INTO operations (bucket, account, operation_id, mint_time, \
    digest_version, digest, part_digests, action, target, expected_revision, content_type, \
    arguments, lock_mode, result_kind, inbox, labels, accept_time, start_deadline, state, \
    certainty, outcome_version, outcome, end_time, due_time, wait_ticket, delivery_sequence, \
    audit_length, audit_hash, replay_count, last_replay_time, retained) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
    ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31)";

fn insert_operation(connection: &Connection, row: &Operation) -> Result<(), Fault> {
    let arguments = match &row.arguments {
        Arguments::Inline(bytes) => Some(bytes.as_ref()),
        Arguments::Apart => None,
    };
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.id.to_stored(),
        row.mint_time.millis(),
        row.digest.version,
        row.digest.whole,
        row.digest.parts,
        row.action,
        row.target.as_str(),
        row.expected_revision,
        row.content_type,
        arguments,
        row.lock_mode as i16,
        row.result_kind as i16,
        row.inbox.as_ref().map(|inbox| inbox.as_str()),
        pack_labels(&row.labels),
        row.accept_time.0,
        row.start_deadline.0,
        row.state as i16,
        row.certainty as i16,
        row.outcome_version,
        pack_outcome(row),
        row.end_time.map(|time| time.0),
        row.due_time.map(|time| time.0),
        row.wait_ticket,
        row.delivery_sequence,
        row.audit.length,
        row.audit.hash,
        row.replay_count,
        row.last_replay_time.map(|time| time.0),
        row.retained as i16,
    ];
    exactly_one(connection, INSERT_OPERATION, "operations", parameters)
}

/// Index: the primary key.
pub(super) const UPDATE_OPERATION: &str = "UPDATE operations SET start_deadline = ?7, state = ?8, \
    certainty = ?9, outcome_version = ?10, outcome = ?11, end_time = ?12, due_time = ?13, \
    wait_ticket = ?14, delivery_sequence = ?15, audit_length = ?16, audit_hash = ?17, \
    replay_count = ?18, last_replay_time = ?19, retained = ?20 \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 \
    AND state = ?4 AND outcome_version = ?5 AND audit_length = ?6";

fn update_operation(connection: &Connection, row: &Update<Operation>) -> Result<(), Fault> {
    let Update { before, after } = row;
    let parameters = params![
        before.key.account.bucket(),
        before.key.account.as_str(),
        before.key.id.to_stored(),
        before.state as i16,
        before.outcome_version,
        before.audit.length,
        after.start_deadline.0,
        after.state as i16,
        after.certainty as i16,
        after.outcome_version,
        pack_outcome(after),
        after.end_time.map(|time| time.0),
        after.due_time.map(|time| time.0),
        after.wait_ticket,
        after.delivery_sequence,
        after.audit.length,
        after.audit.hash,
        after.replay_count,
        after.last_replay_time.map(|time| time.0),
        after.retained as i16,
    ];
    exactly_one(connection, UPDATE_OPERATION, "operations", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_OPERATION: &str = "DELETE FROM operations \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 \
    AND state = ?4 AND outcome_version = ?5 AND audit_length = ?6";

fn delete_operation(connection: &Connection, row: &Operation) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.id.to_stored(),
        row.state as i16,
        row.outcome_version,
        row.audit.length,
    ];
    exactly_one(connection, DELETE_OPERATION, "operations", parameters)
}

/// Index: the primary key.
pub(super) const EMPTY_OPERATION: &str = "UPDATE operations SET arguments = x'', labels = ?4 \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3";
/// Index: the primary key.
pub(super) const DELETE_PAYLOADS: &str =
    "DELETE FROM payloads WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3";

/// Lets go of what a tombstone no longer holds; what is kept apart may be gone already.
fn empty_operation(connection: &Connection, key: &OperationKey) -> Result<(), Fault> {
    let (bucket, account, id) = (key.account.bucket(), key.account.as_str(), key.id.to_stored());
    let none = pack_labels(&BTreeMap::new());
    exactly_one(connection, EMPTY_OPERATION, "operations", params![bucket, account, id, none])?;
    connection.prepare_cached(DELETE_PAYLOADS)?.execute(params![bucket, account, id])?;
    Ok(())
}

/// Index: the primary key.
pub(super) const DELETE_TRAIL: &str =
    "DELETE FROM audit WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3";

/// Lets the rows of a chain go, as many as there are.
fn delete_trail(connection: &Connection, key: &OperationKey) -> Result<(), Fault> {
    let parameters = params![key.account.bucket(), key.account.as_str(), key.id.to_stored()];
    connection.prepare_cached(DELETE_TRAIL)?.execute(parameters)?;
    Ok(())
}

const UPDATE_LIFE: &str = "UPDATE store_facts SET value = ?2 \
    WHERE bucket = 0 AND account = '' AND name = 'life' AND value = ?1";

fn update_life(connection: &Connection, life: &LifeChange) -> Result<(), Fault> {
    let parameters = params![pack_life(&life.before), pack_life(&life.after)];
    exactly_one(connection, UPDATE_LIFE, "store_facts", parameters)
}

const INSERT_PAYLOAD: &str = "INSERT INTO payloads (bucket, account, operation_id, kind, body) \
    VALUES (?1, ?2, ?3, ?4, ?5)";

fn insert_payload(connection: &Connection, row: &Payload) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.id.to_stored(),
        row.kind as i16,
        row.body.as_ref(),
    ];
    exactly_one(connection, INSERT_PAYLOAD, "payloads", parameters)
}

const INSERT_ACCOUNT: &str = "INSERT INTO accounts (bucket, account, create_time, inboxes, \
    closed_before, evidence_floor, due_time, policy) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

fn insert_account(connection: &Connection, row: &AccountRow) -> Result<(), Fault> {
    let parameters = params![
        row.account.bucket(),
        row.account.as_str(),
        row.create_time.0,
        row.inboxes,
        row.closed_before.0,
        row.evidence_floor.0,
        row.due_time.0,
        pack_account_policy(&row.own, row.audit),
    ];
    exactly_one(connection, INSERT_ACCOUNT, "accounts", parameters)
}

/// Index: the primary key. The two times only rise.
pub(super) const UPDATE_ACCOUNT: &str = "UPDATE accounts SET create_time = ?4, inboxes = ?5, \
    closed_before = ?6, evidence_floor = ?7, due_time = ?8, policy = ?9 \
    WHERE bucket = ?1 AND account = ?2 AND inboxes = ?3 \
    AND closed_before <= ?6 AND evidence_floor <= ?7";

fn update_account(connection: &Connection, row: &Update<AccountRow>) -> Result<(), Fault> {
    let Update { before, after } = row;
    let parameters = params![
        before.account.bucket(),
        before.account.as_str(),
        before.inboxes,
        after.create_time.0,
        after.inboxes,
        after.closed_before.0,
        after.evidence_floor.0,
        after.due_time.0,
        pack_account_policy(&after.own, after.audit),
    ];
    exactly_one(connection, UPDATE_ACCOUNT, "accounts", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_ACCOUNT: &str =
    "DELETE FROM accounts WHERE bucket = ?1 AND account = ?2 AND inboxes = ?3";

fn delete_account(connection: &Connection, row: &AccountRow) -> Result<(), Fault> {
    let parameters = params![row.account.bucket(), row.account.as_str(), row.inboxes];
    exactly_one(connection, DELETE_ACCOUNT, "accounts", parameters)
}

const INSERT_DOCUMENT: &str = "INSERT INTO documents (bucket, account, target, revision, \
    generation, present, content_type, size, content_hash, create_time, update_time, locked, \
    content) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

fn insert_document(connection: &Connection, row: &Document) -> Result<(), Fault> {
    let content = match &row.content {
        Some(content) => content.as_ref(),
        None if !row.exists => &[],
        None => return Err(Fault::Short("a new document came without its content".to_owned())),
    };
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.target.as_str(),
        row.revision,
        row.generation,
        row.exists,
        row.content_type,
        row.size,
        row.content_hash,
        row.create_time.0,
        row.update_time.0,
        row.locked,
        content,
    ];
    exactly_one(connection, INSERT_DOCUMENT, "documents", parameters)
}

/// Index: the primary key. No content given leaves it as it is.
pub(super) const UPDATE_DOCUMENT: &str = "UPDATE documents SET revision = ?5, generation = ?6, present = ?7, \
    content_type = ?8, size = ?9, content_hash = ?10, create_time = ?11, update_time = ?12, \
    locked = ?13, content = coalesce(?14, content) \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND revision = ?4";

fn update_document(connection: &Connection, row: &Update<Document>) -> Result<(), Fault> {
    let Update { before, after } = row;
    let content = match &after.content {
        _ if !after.exists => Some([].as_slice()),
        Some(content) => Some(content.as_ref()),
        None => None,
    };
    let parameters = params![
        before.key.account.bucket(),
        before.key.account.as_str(),
        before.key.target.as_str(),
        before.revision,
        after.revision,
        after.generation,
        after.exists,
        after.content_type,
        after.size,
        after.content_hash,
        after.create_time.0,
        after.update_time.0,
        after.locked,
        content,
    ];
    exactly_one(connection, UPDATE_DOCUMENT, "documents", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_DOCUMENT: &str = "DELETE FROM documents \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND revision = ?4";

fn delete_document(connection: &Connection, row: &Document) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.target.as_str(),
        row.revision,
    ];
    exactly_one(connection, DELETE_DOCUMENT, "documents", parameters)
}

const INSERT_LOCK: &str = "INSERT INTO locks (bucket, account, target, holder, acquire_time, \
    release_time, lock_mode, next_ticket, waiting, due_time) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

fn insert_lock(connection: &Connection, row: &Lock) -> Result<(), Fault> {
    let holder = row.holder.as_ref();
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.target.as_str(),
        holder.map(|holder| holder.operation_id.to_stored()),
        holder.map(|holder| holder.acquire_time.0),
        holder.map(|holder| holder.release_time.0),
        holder.map(|holder| holder.mode as i16),
        row.next_ticket,
        row.waiting,
        row.due_time.0,
    ];
    exactly_one(connection, INSERT_LOCK, "locks", parameters)
}

/// Index: the primary key.
pub(super) const UPDATE_LOCK: &str = "UPDATE locks SET holder = ?6, acquire_time = ?7, release_time = ?8, \
    lock_mode = ?9, next_ticket = ?10, waiting = ?11, due_time = ?12 \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND holder IS ?4 AND next_ticket = ?5";

fn update_lock(connection: &Connection, row: &Update<Lock>) -> Result<(), Fault> {
    let Update { before, after } = row;
    let holder = after.holder.as_ref();
    let parameters = params![
        before.key.account.bucket(),
        before.key.account.as_str(),
        before.key.target.as_str(),
        before.holder.as_ref().map(|holder| holder.operation_id.to_stored()),
        before.next_ticket,
        holder.map(|holder| holder.operation_id.to_stored()),
        holder.map(|holder| holder.acquire_time.0),
        holder.map(|holder| holder.release_time.0),
        holder.map(|holder| holder.mode as i16),
        after.next_ticket,
        after.waiting,
        after.due_time.0,
    ];
    exactly_one(connection, UPDATE_LOCK, "locks", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_LOCK: &str = "DELETE FROM locks \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND holder IS ?4 AND next_ticket = ?5";

fn delete_lock(connection: &Connection, row: &Lock) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.target.as_str(),
        row.holder.as_ref().map(|holder| holder.operation_id.to_stored()),
        row.next_ticket,
    ];
    exactly_one(connection, DELETE_LOCK, "locks", parameters)
}

const INSERT_AUDIT: &str = "INSERT INTO audit (bucket, account, operation_id, number, time, \
    subject, events, hash) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

fn insert_audit(connection: &Connection, row: &AuditRow) -> Result<(), Fault> {
    let parameters = params![
        row.chain.account().bucket(),
        row.chain.account().as_str(),
        row.chain.to_stored(),
        row.number,
        row.time.0,
        row.subject,
        row.events,
        row.hash,
    ];
    exactly_one(connection, INSERT_AUDIT, "audit", parameters)
}
