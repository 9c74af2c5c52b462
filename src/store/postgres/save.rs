//! Writes what a batch decided: per table one bulk insert and one bulk update, in lock order.
//!
//! What must stay true: these calls travel in one flight with the COMMIT, so whatever is wrong
//! must abort the transaction in the server: an insert is plain and meets the unique key; an
//! update or a delete states the row as it was loaded once more and divides by zero if it hits
//! fewer rows than it should. A row stands once in a statement, because an update applies one
//! match per row.
//!
//! Deliberately not here: deletes of accounts, documents and inboxes. None is deleted by a decision.

use std::collections::BTreeMap;

use super::{
    save_statements::{
        DELETE_DELIVERIES, DELETE_LOCKS, DELETE_OPERATIONS, DELETE_PAYLOADS, DELETE_TRAILS,
        EMPTY_OPERATIONS, INSERT_ACCOUNTS, INSERT_AUDIT, INSERT_BATCH, INSERT_DELIVERIES,
        INSERT_DOCUMENTS, INSERT_INBOXES, INSERT_LOCKS, INSERT_OPERATIONS, INSERT_PAYLOADS,
        UPDATE_ACCOUNTS, UPDATE_DELIVERIES, UPDATE_DOCUMENTS, UPDATE_INBOXES, UPDATE_LIFE,
        UPDATE_LOCKS, UPDATE_OPERATIONS,
    },
    session::{Call, Parameter, column, value},
};
use crate::{
    domain::{
        audit::AuditRow,
        delivery::{Delivery, DeliveryKey},
        document::Document,
        ids::Timestamp,
        inbox::{AccountRow, Inbox},
        lock::{Holder, Lock},
        operation::{Arguments, Operation, OperationKey},
        record::{
            pack_account_policy, pack_consumers, pack_labels, pack_life, pack_outcome, pack_skipped,
        },
        world::changes::{Changes, Payload, TableChanges, Update},
    },
    store::BatchName,
};

/// Turns rows into the arrays of an insert.
type Inserts<'a, V> = fn(&[&'a V]) -> Vec<Parameter<'a>>;
/// Turns rows before and after into the arrays of an update.
type Updates<'a, V> = fn(&'a [Update<V>]) -> Vec<Parameter<'a>>;

/// The call that gives a batch its name. It leads every save, so that whoever settles the commit
/// waits for this transaction and no other.
pub(super) fn batch(batch: &BatchName, now: Timestamp) -> Call<'_> {
    let parameters =
        vec![value(batch.bucket), value(&batch.id[..]), value(&batch.replica[..]), value(now.0)];
    Call { sql: INSERT_BATCH, parameters }
}

/// The calls that write `changes`, in the order in which they are to be sent.
///
/// # Errors
/// What was deleted that no statement deletes: a bug of ours, found before anything is sent.
pub(super) fn calls(changes: &Changes) -> Result<Vec<Call<'_>>, &'static str> {
    for (deleted, what) in [
        (changes.accounts.deletes.len(), "account"),
        (changes.documents.deletes.len(), "document"),
        (changes.inboxes.deletes.len(), "inbox"),
    ] {
        if deleted > 0 {
            return Err(what);
        }
    }
    let mut calls = Vec::new();
    let operation_texts = [INSERT_OPERATIONS, UPDATE_OPERATIONS];
    add(&mut calls, &changes.operations, operation_texts, operations, operation_updates);
    if !changes.operations.deletes.is_empty() {
        let parameters = operation_deletes(&changes.operations.deletes);
        calls.push(Call { sql: DELETE_OPERATIONS, parameters });
    }
    if !changes.emptied.is_empty() {
        let keys = || operation_keys(changes.emptied.iter());
        calls.push(Call { sql: DELETE_PAYLOADS, parameters: keys() });
        let mut parameters = keys();
        parameters.push(value(pack_labels(&BTreeMap::new())));
        parameters.push(expected(changes.emptied.len()));
        calls.push(Call { sql: EMPTY_OPERATIONS, parameters });
    }
    if !changes.payloads.is_empty() {
        calls.push(Call { sql: INSERT_PAYLOADS, parameters: payloads(&changes.payloads) });
    }
    let account_texts = [INSERT_ACCOUNTS, UPDATE_ACCOUNTS];
    add(&mut calls, &changes.accounts, account_texts, accounts, account_updates);
    let document_texts = [INSERT_DOCUMENTS, UPDATE_DOCUMENTS];
    add(&mut calls, &changes.documents, document_texts, documents, document_updates);
    add(&mut calls, &changes.locks, [INSERT_LOCKS, UPDATE_LOCKS], locks, lock_updates);
    if !changes.locks.deletes.is_empty() {
        let parameters = lock_deletes(&changes.locks.deletes);
        calls.push(Call { sql: DELETE_LOCKS, parameters });
    }
    add(&mut calls, &changes.inboxes, [INSERT_INBOXES, UPDATE_INBOXES], inboxes, inbox_updates);
    let delivery_texts = [INSERT_DELIVERIES, UPDATE_DELIVERIES];
    add(&mut calls, &changes.deliveries, delivery_texts, deliveries, delivery_updates);
    if !changes.deliveries.deletes.is_empty() {
        let parameters = delivery_deletes(&changes.deliveries.deletes);
        calls.push(Call { sql: DELETE_DELIVERIES, parameters });
    }
    if !changes.audit.is_empty() {
        calls.push(Call { sql: INSERT_AUDIT, parameters: audit(&changes.audit) });
    }
    if !changes.trails.is_empty() {
        let parameters = operation_keys(changes.trails.iter());
        calls.push(Call { sql: DELETE_TRAILS, parameters });
    }
    if let Some(life) = &changes.life {
        let parameters =
            vec![value(pack_life(&life.before)), value(pack_life(&life.after)), expected(1)];
        calls.push(Call { sql: UPDATE_LIFE, parameters });
    }
    Ok(calls)
}

fn add<'a, V>(
    calls: &mut Vec<Call<'a>>,
    changes: &'a TableChanges<V>,
    [insert, update]: [&'static str; 2],
    inserts: Inserts<'a, V>,
    updates: Updates<'a, V>,
) {
    if !changes.inserts.is_empty() {
        let rows: Vec<&V> = changes.inserts.iter().collect();
        calls.push(Call { sql: insert, parameters: inserts(&rows) });
    }
    if !changes.updates.is_empty() {
        let mut parameters = updates(&changes.updates);
        parameters.push(expected(changes.updates.len()));
        calls.push(Call { sql: update, parameters });
    }
}

/// How many rows a guarded statement has to hit: all of them.
fn expected(rows: usize) -> Parameter<'static> {
    value(i64::try_from(rows).expect("a batch is small"))
}

fn operations<'a>(rows: &[&'a Operation]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    let mut parameters = operation_keys(each().map(|row| &row.key));
    parameters.extend([
        column(each(), |row| row.mint_time.millis()),
        column(each(), |row| row.digest.version),
        column(each(), |row: &'a Operation| &row.digest.whole[..]),
        column(each(), |row: &'a Operation| &row.digest.parts[..]),
        column(each(), |row: &'a Operation| row.action.as_str()),
        column(each(), |row: &'a Operation| row.target.as_str()),
        column(each(), |row| row.expected_revision),
        column(each(), |row: &'a Operation| row.content_type.as_str()),
        column(each(), |row: &'a Operation| match &row.arguments {
            Arguments::Inline(bytes) => Some(&bytes[..]),
            Arguments::Apart => None,
        }),
        column(each(), |row| row.lock_mode as i16),
        column(each(), |row| row.result_kind as i16),
        column(each(), |row: &'a Operation| row.inbox.as_ref().map(|inbox| inbox.as_str())),
        column(each(), |row| pack_labels(&row.labels)),
        column(each(), |row| row.accept_time.0),
    ]);
    parameters.extend(operation_state(rows));
    parameters
}

/// The columns of an operation that can change, from `start_deadline` on.
fn operation_state<'a>(rows: &[&'a Operation]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    vec![
        column(each(), |row| row.start_deadline.0),
        column(each(), |row| row.state as i16),
        column(each(), |row| row.certainty as i16),
        column(each(), |row| row.outcome_version),
        column(each(), pack_outcome),
        column(each(), |row| micros(row.end_time)),
        column(each(), |row| micros(row.due_time)),
        column(each(), |row| row.wait_ticket),
        column(each(), |row| row.delivery_sequence),
        column(each(), |row| row.audit.length),
        column(each(), |row: &'a Operation| &row.audit.hash[..]),
        column(each(), |row| row.replay_count),
        column(each(), |row| micros(row.last_replay_time)),
        column(each(), |row| row.retained as i16),
    ]
}

fn operation_updates(rows: &[Update<Operation>]) -> Vec<Parameter<'_>> {
    let after: Vec<&Operation> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = operation_keys(rows.iter().map(|row| &row.before.key));
    parameters.extend(operation_state(&after));
    parameters.extend([
        column(rows, |row| row.before.state as i16),
        column(rows, |row| row.before.outcome_version),
        column(rows, |row| row.before.audit.length),
    ]);
    parameters
}

fn operation_deletes(rows: &[Operation]) -> Vec<Parameter<'_>> {
    let mut parameters = operation_keys(rows.iter().map(|row| &row.key));
    parameters.extend([
        column(rows, |row| row.state as i16),
        column(rows, |row| row.outcome_version),
        column(rows, |row| row.audit.length),
        expected(rows.len()),
    ]);
    parameters
}

fn payloads(rows: &[Payload]) -> Vec<Parameter<'_>> {
    let mut parameters = operation_keys(rows.iter().map(|row| &row.key));
    parameters.extend([column(rows, |row| row.kind as i16), column(rows, |row| &row.body[..])]);
    parameters
}

fn accounts<'a>(rows: &[&'a AccountRow]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    vec![
        column(each(), |row| row.account.bucket()),
        column(each(), |row: &'a AccountRow| row.account.as_str()),
        column(each(), |row| row.create_time.0),
        column(each(), |row| row.inboxes),
        column(each(), |row| row.closed_before.0),
        column(each(), |row| row.evidence_floor.0),
        column(each(), |row| row.due_time.0),
        column(each(), |row| pack_account_policy(&row.own, row.audit)),
    ]
}

fn account_updates(rows: &[Update<AccountRow>]) -> Vec<Parameter<'_>> {
    let after: Vec<&AccountRow> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = accounts(&after);
    parameters.push(column(rows, |row| row.before.inboxes));
    parameters
}

fn documents<'a>(rows: &[&'a Document]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    vec![
        column(each(), |row| row.key.account.bucket()),
        column(each(), |row: &'a Document| row.key.account.as_str()),
        column(each(), |row: &'a Document| row.key.target.as_str()),
        column(each(), |row| row.revision),
        column(each(), |row| row.generation),
        column(each(), |row| i16::from(row.exists)),
        column(each(), |row: &'a Document| row.content_type.as_str()),
        // An insert without content breaks NOT NULL: there is nothing it could be left as.
        column(each(), |row: &'a Document| row.content.as_deref()),
        column(each(), |row| row.size),
        column(each(), |row: &'a Document| &row.content_hash[..]),
        column(each(), |row| row.create_time.0),
        column(each(), |row| row.update_time.0),
        column(each(), |row| i16::from(row.locked)),
    ]
}

fn document_updates(rows: &[Update<Document>]) -> Vec<Parameter<'_>> {
    let after: Vec<&Document> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = documents(&after);
    parameters.push(column(rows, |row| row.before.revision));
    parameters
}

fn locks<'a>(rows: &[&'a Lock]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    let holder = |row: &'a Lock| row.holder.as_ref();
    vec![
        column(each(), |row| row.key.account.bucket()),
        column(each(), |row: &'a Lock| row.key.account.as_str()),
        column(each(), |row: &'a Lock| row.key.target.as_str()),
        column(each().map(holder), |row| row.map(|holder| holder.operation_id.to_stored())),
        column(each().map(holder), |row| row.map(|holder: &Holder| holder.acquire_time.0)),
        column(each().map(holder), |row| row.map(|holder: &Holder| holder.release_time.0)),
        column(each().map(holder), |row| row.map(|holder| holder.mode as i16)),
        column(each(), |row| row.next_ticket),
        column(each(), |row| row.waiting),
        column(each(), |row| row.due_time.0),
    ]
}

fn lock_updates(rows: &[Update<Lock>]) -> Vec<Parameter<'_>> {
    let after: Vec<&Lock> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = locks(&after);
    parameters.push(column(rows, |row| row.before.next_ticket));
    parameters
}

fn lock_deletes(rows: &[Lock]) -> Vec<Parameter<'_>> {
    vec![
        column(rows, |row| row.key.account.bucket()),
        column(rows, |row| row.key.account.as_str()),
        column(rows, |row| row.key.target.as_str()),
        column(rows, |row| row.next_ticket),
        expected(rows.len()),
    ]
}

fn inboxes<'a>(rows: &[&'a Inbox]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    vec![
        column(each(), |row| row.key.account.bucket()),
        column(each(), |row: &'a Inbox| row.key.account.as_str()),
        column(each(), |row: &'a Inbox| row.key.inbox.as_str()),
        column(each(), |row| row.generation),
        column(each(), |row| row.next_sequence),
        column(each(), |row| row.offered),
        column(each(), |row| row.reserved),
        column(each(), |row| row.pending),
        column(each(), |row| row.returned),
        column(each(), |row| row.in_flight),
        column(each(), |row| row.acked_total),
        column(each(), |row| row.expired_total),
        column(each(), |row| row.dead_total),
        column(each(), |row| row.consumer_epoch),
        column(each(), |row| pack_consumers(&row.consumers)),
        column(each(), |row| row.create_time.0),
        column(each(), |row| micros(row.due_time)),
        column(each(), |row| row.first_sequence),
        column(each(), |row| row.kept_from),
        column(each(), |row| row.closing),
        column(each(), |row| i16::from(row.deleted)),
        column(each(), |row| row.slots_limit),
        column(each(), |row| row.in_flight_limit),
        column(each(), |row| row.active_time.0),
        column(each(), |row| micros(row.upkeep_time)),
        column(each(), |row| pack_skipped(&row.skipped)),
    ]
}

fn inbox_updates(rows: &[Update<Inbox>]) -> Vec<Parameter<'_>> {
    let after: Vec<&Inbox> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = inboxes(&after);
    parameters.push(column(rows, |row| row.before.next_sequence));
    parameters.push(column(rows, |row| row.before.consumer_epoch));
    parameters
}

fn deliveries<'a>(rows: &[&'a Delivery]) -> Vec<Parameter<'a>> {
    let each = || rows.iter().copied();
    let ack = |row: &'a Delivery| row.ack.as_ref();
    vec![
        column(each(), |row| row.key.inbox.account.bucket()),
        column(each(), |row: &'a Delivery| row.key.inbox.account.as_str()),
        column(each(), |row: &'a Delivery| row.key.inbox.inbox.as_str()),
        column(each(), |row| row.key.sequence),
        column(each(), |row| row.operation_id.to_stored()),
        column(each(), |row| row.outcome_version),
        column(each(), |row| row.state as i16),
        column(each(), |row| row.attempt),
        column(each(), |row| row.queue_time.0),
        column(each(), |row| micros(row.available_time)),
        column(each(), |row| micros(row.ack_deadline)),
        column(each(), |row| row.expire_time.0),
        column(each(), |row| micros(row.due_time)),
        column(each(), |row| micros(row.end_time)),
        column(each(), |row| micros(row.last_failure_time)),
        column(each(), |row: &'a Delivery| row.consumer.as_ref().map(|(id, _)| id.as_str())),
        column(each(), |row| row.consumer.as_ref().map(|(_, epoch)| *epoch)),
        column(each(), |row| row.returns),
        column(each(), |row: &'a Delivery| row.lock_target.as_ref().map(|t| t.as_str())),
        column(each().map(ack), |row| row.map(|ack| ack.time.0)),
        column(each().map(ack), |row| row.map(|ack| ack.attempt)),
        column(each().map(ack), |row| row.map(|ack| ack.subject.as_str())),
        column(each().map(ack), |row| row.map(|ack| ack.consumer.as_str())),
        column(each().map(ack), |row| row.map(|ack| &ack.hash[..])),
        column(each(), |row| row.attempts_before),
    ]
}

fn delivery_updates(rows: &[Update<Delivery>]) -> Vec<Parameter<'_>> {
    let after: Vec<&Delivery> = rows.iter().map(|row| &row.after).collect();
    let mut parameters = deliveries(&after);
    parameters.push(column(rows, |row| row.before.state as i16));
    parameters.push(column(rows, |row| row.before.attempt));
    parameters
}

fn delivery_deletes(rows: &[Delivery]) -> Vec<Parameter<'_>> {
    let keys: Vec<&DeliveryKey> = rows.iter().map(|row| &row.key).collect();
    let mut parameters = super::load::delivery_keys(&keys);
    parameters.extend([
        column(rows, |row| row.state as i16),
        column(rows, |row| row.attempt),
        expected(rows.len()),
    ]);
    parameters
}

fn audit(rows: &[AuditRow]) -> Vec<Parameter<'_>> {
    vec![
        column(rows, |row| row.chain.account().bucket()),
        column(rows, |row| row.chain.account().as_str()),
        column(rows, |row| row.chain.to_stored()),
        column(rows, |row| row.number),
        column(rows, |row| row.time.0),
        column(rows, |row| row.subject.as_str()),
        column(rows, |row| &row.events[..]),
        column(rows, |row| &row.hash[..]),
    ]
}

fn operation_keys<'a>(keys: impl Iterator<Item = &'a OperationKey>) -> Vec<Parameter<'a>> {
    super::load::operation_keys(&keys.collect::<Vec<_>>())
}

fn micros(time: Option<Timestamp>) -> Option<i64> {
    time.map(|time| time.0)
}
