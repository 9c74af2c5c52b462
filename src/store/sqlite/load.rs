//! The load of a batch: every key that it declared, then its bounded searches.
//!
//! What must stay true: each key that was asked for is answered, found or not; tables come in the
//! one order of locks, although the turn of the one writer already excludes everybody else.
//! Deliberately not here: decisions.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{
    by_key::{self, many},
    fault::Fault,
    rows::{self, Columns, delivery_columns},
};
use crate::domain::{
    delivery::{Delivery, InboxKey},
    document::Document,
    ids::{ConsumerId, Timestamp},
    inbox::Inbox,
    lock::{Lock, TargetKey},
    operation::{OperationKey, PayloadKind},
    world::{
        World,
        needs::{Body, CLOSED_MAX, HELD_MAX, Needs, PURGED_MAX, WAITERS_MAX},
    },
};

/// Fills `world` with what `needs` names. Returns the keys asked for and the rows that the
/// searches found. Runs inside the transaction that also saves.
///
/// # Errors
/// [`Fault`]; the caller rolls back.
pub(super) fn load(
    connection: &Connection,
    needs: &Needs,
    world: &mut World,
) -> Result<usize, Fault> {
    let mut touched = needs.operations.len() + needs.arguments.len() + needs.accounts.len();
    for (key, access) in &needs.operations {
        world.load_operation(key.clone(), *access, by_key::operation(connection, key)?);
    }
    for key in &needs.arguments {
        // Absent only beside an absent operation: nobody will look at them.
        if let Some(arguments) = by_key::payload(connection, key, PayloadKind::Arguments)? {
            world.load_arguments(key.clone(), arguments);
        }
    }
    for (account, access) in &needs.accounts {
        world.load_account(account.clone(), *access, by_key::account(connection, account)?);
    }
    for (key, body) in &needs.documents {
        let (document, lock, keys) = document_and_lock(connection, key, *body)?;
        touched += keys;
        world.load_document(key.clone(), document, lock);
    }
    let cursors = load_inboxes(connection, needs, world)?;
    touched += needs.inboxes.len() + needs.deliveries.len();
    for key in &needs.deliveries {
        world.load_delivery(key.clone(), by_key::delivery(connection, key)?);
    }
    Ok(touched + search(connection, needs, &cursors, world)?)
}

/// A document, its lock, and how many keys were asked for. The lock of a document whose flag says
/// that there is none is not looked for: an unlocked document costs one read.
fn document_and_lock(
    connection: &Connection,
    key: &TargetKey,
    body: Body,
) -> Result<(Option<Document>, Option<Lock>, usize), Fault> {
    let document = match body {
        Body::Omit => by_key::document(connection, key)?,
        Body::Load => by_key::document_with_content(connection, key)?,
    };
    if document.as_ref().is_some_and(|document| !document.locked) {
        return Ok((document, None, 1));
    }
    Ok((document, by_key::lock(connection, key)?, 2))
}

/// From where on an inbox's deliveries are searched.
struct Cursors {
    offered: i64,
    kept_from: i64,
    first_sequence: i64,
}

/// Loads the inboxes and returns the cursors of each one that exists.
fn load_inboxes(
    connection: &Connection,
    needs: &Needs,
    world: &mut World,
) -> Result<BTreeMap<InboxKey, Cursors>, Fault> {
    let mut cursors = BTreeMap::new();
    for key in &needs.inboxes {
        let inbox = by_key::inbox(connection, key)?;
        if let Some(Inbox { offered, kept_from, first_sequence, .. }) = inbox {
            cursors.insert(key.clone(), Cursors { offered, kept_from, first_sequence });
        }
        world.load_inbox(key.clone(), inbox);
    }
    Ok(cursors)
}

/// The searches; returns how many rows they found.
fn search(
    connection: &Connection,
    needs: &Needs,
    cursors: &BTreeMap<InboxKey, Cursors>,
    world: &mut World,
) -> Result<usize, Fault> {
    let mut found = 0;
    for key in &needs.waiters {
        let waiters = waiters(connection, key)?;
        found += waiters.len();
        world.load_waiters(key.clone(), waiters);
    }
    for (key, limit) in &needs.deliverable {
        let (fresh, returned) = match cursors.get(key) {
            Some(cursors) => (
                fresh(connection, key, cursors.offered, *limit)?,
                returned(connection, key, cursors.first_sequence, world.now(), *limit)?,
            ),
            None => (Vec::new(), Vec::new()),
        };
        found += fresh.len() + returned.len();
        world.load_deliverable(key.clone(), *limit, fresh, returned);
    }
    for (key, consumer) in &needs.held {
        let held = match cursors.get(key) {
            Some(cursors) => held(connection, key, cursors.first_sequence, consumer)?,
            None => Vec::new(),
        };
        found += held.len();
        world.load_held(key.clone(), consumer.clone(), held);
    }
    for key in &needs.oldest_open {
        let open = match cursors.contains_key(key) {
            true => oldest_open(connection, key)?,
            false => Vec::new(),
        };
        found += open.len();
        world.load_oldest_open(key.clone(), open);
    }
    for key in &needs.oldest_kept {
        let kept = match cursors.get(key) {
            Some(cursors) => oldest_kept(connection, key, cursors.kept_from)?,
            None => Vec::new(),
        };
        found += kept.len();
        world.load_oldest_kept(key.clone(), kept);
    }
    Ok(found)
}

/// Index: operations_waiting.
pub(super) const WAITERS: &str = "SELECT account, operation_id FROM operations INDEXED BY operations_waiting \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND wait_ticket IS NOT NULL \
    ORDER BY wait_ticket LIMIT ?4";

/// The next operations that wait for a target, by ticket.
fn waiters(connection: &Connection, key: &TargetKey) -> Result<Vec<OperationKey>, Fault> {
    let TargetKey { account, target } = key;
    let parameters = (account.bucket(), account.as_str(), target.as_str(), WAITERS_MAX);
    many(connection, WAITERS, parameters, |row| {
        let columns = &mut Columns::of(row);
        Ok(OperationKey { account: columns.account()?, id: columns.operation_id()? })
    })
}

/// Index: deliveries_open, from the cursor on. What expired unsent lies there as well, and is not
/// walked through; if it was redriven, RETURNED finds it.
pub(super) const FRESH: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_open \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL \
     AND sequence > ?4 AND state = 1 AND attempt = 0 AND available_time IS NULL \
     ORDER BY sequence LIMIT ?5"
);

/// Deliveries after the cursor that were never sent, by number.
fn fresh(
    connection: &Connection,
    key: &InboxKey,
    offered: i64,
    limit: i64,
) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let parameters = (account.bucket(), account.as_str(), inbox.as_str(), offered, limit);
    many(connection, FRESH, parameters, rows::delivery)
}

/// Index: deliveries_returned, which has entries only for what came back. What deleted generations
/// left takes no place of the page.
pub(super) const RETURNED: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_returned \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 \
     AND available_time IS NOT NULL AND available_time <= ?4 AND sequence >= ?5 \
     ORDER BY available_time, sequence LIMIT ?6"
);

/// Returned deliveries that may be sent again: those available for longest.
fn returned(
    connection: &Connection,
    key: &InboxKey,
    first_sequence: i64,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let parameters =
        (account.bucket(), account.as_str(), inbox.as_str(), now.0, first_sequence, limit);
    let mut returned = many(connection, RETURNED, parameters, rows::delivery)?;
    returned.sort_by_key(|delivery| delivery.key.sequence);
    Ok(returned)
}

/// Index: deliveries_open. It lists what has not ended, so that the acked history of an inbox,
/// which only grows, is not walked through; everything in flight has a time when it is due.
pub(super) const HELD: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_open \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL \
     AND sequence >= ?4 AND state = 2 AND consumer = ?5 ORDER BY sequence LIMIT ?6"
);

/// What a consumer holds unacked, by number, from the first of this generation on.
fn held(
    connection: &Connection,
    key: &InboxKey,
    first_sequence: i64,
    consumer: &ConsumerId,
) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let (bucket, account) = (account.bucket(), account.as_str());
    let parameters = (bucket, account, inbox.as_str(), first_sequence, consumer.as_str(), HELD_MAX);
    many(connection, HELD, parameters, rows::delivery)
}

/// Index: deliveries_open.
pub(super) const OLDEST_OPEN: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_open \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL \
     ORDER BY sequence LIMIT ?4"
);

/// The oldest deliveries that have not ended, by number.
fn oldest_open(connection: &Connection, key: &InboxKey) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let parameters = (account.bucket(), account.as_str(), inbox.as_str(), CLOSED_MAX);
    many(connection, OLDEST_OPEN, parameters, rows::delivery)
}

/// Index: the primary key, from the lowest number that is kept on.
pub(super) const OLDEST_KEPT: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries NOT INDEXED \
     WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND sequence >= ?4 \
     ORDER BY sequence LIMIT ?5"
);

/// The oldest deliveries whose rows are kept, by number.
fn oldest_kept(
    connection: &Connection,
    key: &InboxKey,
    kept_from: i64,
) -> Result<Vec<Delivery>, Fault> {
    let InboxKey { account, inbox } = key;
    let parameters = (account.bucket(), account.as_str(), inbox.as_str(), kept_from, PURGED_MAX);
    many(connection, OLDEST_KEPT, parameters, rows::delivery)
}
