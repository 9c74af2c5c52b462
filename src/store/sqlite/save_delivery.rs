//! The save of inboxes and deliveries: the statements that [`super::save`] runs for them.
//!
//! What must stay true: as there.

use rusqlite::{Connection, params};

use super::{fault::Fault, save::exactly_one};
use crate::domain::{
    delivery::Delivery,
    inbox::Inbox,
    record::{pack_consumers, pack_skipped},
    world::changes::Update,
};

const INSERT_INBOX: &str = "INSERT INTO inboxes (bucket, account, inbox, generation, \
    next_sequence, offered, reserved, pending, returned, in_flight, acked_total, expired_total, \
    dead_total, consumer_epoch, consumers, create_time, due_time, first_sequence, kept_from, \
    closing, deleted, slots_limit, in_flight_limit, active_time, upkeep_time, \
    skipped) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
    ?20, ?21, ?22, ?23, ?24, ?25, ?26)";

/// A new inbox.
pub(super) fn insert_inbox(connection: &Connection, row: &Inbox) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.inbox.as_str(),
        row.generation,
        row.next_sequence,
        row.offered,
        row.reserved,
        row.pending,
        row.returned,
        row.in_flight,
        row.acked_total,
        row.expired_total,
        row.dead_total,
        row.consumer_epoch,
        pack_consumers(&row.consumers),
        row.create_time.0,
        row.due_time.map(|time| time.0),
        row.first_sequence,
        row.kept_from,
        row.closing,
        row.deleted,
        row.slots_limit,
        row.in_flight_limit,
        row.active_time.0,
        row.upkeep_time.map(|time| time.0),
        pack_skipped(&row.skipped),
    ];
    exactly_one(connection, INSERT_INBOX, "inboxes", parameters)
}

/// Index: the primary key.
pub(super) const UPDATE_INBOX: &str = "UPDATE inboxes SET generation = ?6, next_sequence = ?7, offered = ?8, \
    reserved = ?9, pending = ?10, returned = ?11, in_flight = ?12, acked_total = ?13, \
    expired_total = ?14, dead_total = ?15, consumer_epoch = ?16, consumers = ?17, \
    create_time = ?18, due_time = ?19, first_sequence = ?20, kept_from = ?21, closing = ?22, \
    deleted = ?23, slots_limit = ?24, in_flight_limit = ?25, active_time = ?26, \
    upkeep_time = ?27, skipped = ?28 \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 \
    AND next_sequence = ?4 AND consumer_epoch = ?5";

/// A changed inbox.
pub(super) fn update_inbox(connection: &Connection, row: &Update<Inbox>) -> Result<(), Fault> {
    let Update { before, after } = row;
    let parameters = params![
        before.key.account.bucket(),
        before.key.account.as_str(),
        before.key.inbox.as_str(),
        before.next_sequence,
        before.consumer_epoch,
        after.generation,
        after.next_sequence,
        after.offered,
        after.reserved,
        after.pending,
        after.returned,
        after.in_flight,
        after.acked_total,
        after.expired_total,
        after.dead_total,
        after.consumer_epoch,
        pack_consumers(&after.consumers),
        after.create_time.0,
        after.due_time.map(|time| time.0),
        after.first_sequence,
        after.kept_from,
        after.closing,
        after.deleted,
        after.slots_limit,
        after.in_flight_limit,
        after.active_time.0,
        after.upkeep_time.map(|time| time.0),
        pack_skipped(&after.skipped),
    ];
    exactly_one(connection, UPDATE_INBOX, "inboxes", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_INBOX: &str = "DELETE FROM inboxes WHERE bucket = ?1 AND account = ?2 \
    AND inbox = ?3 AND next_sequence = ?4 AND consumer_epoch = ?5";

/// An inbox that goes.
pub(super) fn delete_inbox(connection: &Connection, row: &Inbox) -> Result<(), Fault> {
    let parameters = params![
        row.key.account.bucket(),
        row.key.account.as_str(),
        row.key.inbox.as_str(),
        row.next_sequence,
        row.consumer_epoch,
    ];
    exactly_one(connection, DELETE_INBOX, "inboxes", parameters)
}

const INSERT_DELIVERY: &str = "INSERT INTO deliveries (bucket, account, inbox, sequence, \
    operation_id, outcome_version, state, attempt, queue_time, available_time, ack_deadline, \
    expire_time, due_time, end_time, last_failure_time, consumer, consumer_epoch, returns, \
    lock_target, ack_time, ack_attempt, ack_subject, ack_consumer, ack_hash, attempts_before) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
    ?20, ?21, ?22, ?23, ?24, ?25)";

/// A new delivery.
pub(super) fn insert_delivery(connection: &Connection, row: &Delivery) -> Result<(), Fault> {
    let ack = row.ack.as_ref();
    let parameters = params![
        row.key.inbox.account.bucket(),
        row.key.inbox.account.as_str(),
        row.key.inbox.inbox.as_str(),
        row.key.sequence,
        row.operation_id.to_stored(),
        row.outcome_version,
        row.state as i16,
        row.attempt,
        row.queue_time.0,
        row.available_time.map(|time| time.0),
        row.ack_deadline.map(|time| time.0),
        row.expire_time.0,
        row.due_time.map(|time| time.0),
        row.end_time.map(|time| time.0),
        row.last_failure_time.map(|time| time.0),
        row.consumer.as_ref().map(|(consumer, _)| consumer.as_str()),
        row.consumer.as_ref().map(|(_, epoch)| *epoch),
        row.returns,
        row.lock_target.as_ref().map(|target| target.as_str()),
        ack.map(|ack| ack.time.0),
        ack.map(|ack| ack.attempt),
        ack.map(|ack| ack.subject.as_str()),
        ack.map(|ack| ack.consumer.as_str()),
        ack.map(|ack| ack.hash),
        row.attempts_before,
    ];
    exactly_one(connection, INSERT_DELIVERY, "deliveries", parameters)
}

/// Index: the primary key. Which outcome it is the news of, and when it was queued, never change.
pub(super) const UPDATE_DELIVERY: &str = "UPDATE deliveries SET state = ?7, attempt = ?8, \
    available_time = ?9, ack_deadline = ?10, expire_time = ?11, due_time = ?12, end_time = ?13, \
    last_failure_time = ?14, consumer = ?15, consumer_epoch = ?16, returns = ?17, \
    lock_target = ?18, ack_time = ?19, ack_attempt = ?20, ack_subject = ?21, ack_consumer = ?22, \
    ack_hash = ?23, attempts_before = ?24 \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence = ?4 \
    AND state = ?5 AND attempt = ?6";

/// A changed delivery.
pub(super) fn update_delivery(
    connection: &Connection,
    row: &Update<Delivery>,
) -> Result<(), Fault> {
    let Update { before, after } = row;
    let ack = after.ack.as_ref();
    let parameters = params![
        before.key.inbox.account.bucket(),
        before.key.inbox.account.as_str(),
        before.key.inbox.inbox.as_str(),
        before.key.sequence,
        before.state as i16,
        before.attempt,
        after.state as i16,
        after.attempt,
        after.available_time.map(|time| time.0),
        after.ack_deadline.map(|time| time.0),
        after.expire_time.0,
        after.due_time.map(|time| time.0),
        after.end_time.map(|time| time.0),
        after.last_failure_time.map(|time| time.0),
        after.consumer.as_ref().map(|(consumer, _)| consumer.as_str()),
        after.consumer.as_ref().map(|(_, epoch)| *epoch),
        after.returns,
        after.lock_target.as_ref().map(|target| target.as_str()),
        ack.map(|ack| ack.time.0),
        ack.map(|ack| ack.attempt),
        ack.map(|ack| ack.subject.as_str()),
        ack.map(|ack| ack.consumer.as_str()),
        ack.map(|ack| ack.hash),
        after.attempts_before,
    ];
    exactly_one(connection, UPDATE_DELIVERY, "deliveries", parameters)
}

/// Index: the primary key.
pub(super) const DELETE_DELIVERY: &str = "DELETE FROM deliveries WHERE bucket = ?1 AND account = ?2 \
    AND inbox = ?3 AND sequence = ?4 AND state = ?5 AND attempt = ?6";

/// A delivery that goes.
pub(super) fn delete_delivery(connection: &Connection, row: &Delivery) -> Result<(), Fault> {
    let parameters = params![
        row.key.inbox.account.bucket(),
        row.key.inbox.account.as_str(),
        row.key.inbox.inbox.as_str(),
        row.key.sequence,
        row.state as i16,
        row.attempt,
    ];
    exactly_one(connection, DELETE_DELIVERY, "deliveries", parameters)
}
