//! Locks and loads what a batch needs: one flight, table by table in the lock order.
//!
//! What must stay true: rows that may change are locked, sorted by key within a table, before
//! anything is searched under their lock; each search is a statement of its own, so that READ
//! COMMITTED gives it a snapshot newer than the lock; the clock is read last. Every key that was
//! asked for is loaded, found or not. Statements address rows by their full key.
//!
//! Deliberately not here: decisions about what was found.

use sha2::{Digest, Sha256};
use tokio_postgres::Row;

use super::{
    load_statements::{
        ACCOUNTS, ARGUMENTS, CLAIM, CLOCK, DELIVERIES, FRESH, HELD, LOCK_ACCOUNTS, LOCK_DOCUMENTS,
        LOCK_INBOXES, LOCK_LOCKS, LOCK_OPERATIONS, OLDEST_KEPT, OLDEST_OPEN, OPERATIONS, RETURNED,
        WAITERS,
    },
    rows::{self, Fields},
    session::{Call, Parameter, column, value},
};
use crate::{
    domain::{
        delivery::{DeliveryKey, InboxKey},
        ids::{Account, Span, Timestamp},
        lock::TargetKey,
        operation::OperationKey,
        record::Unreadable,
        world::{
            World,
            needs::{Access, Body, CLOSED_MAX, HELD_MAX, Needs, PURGED_MAX, WAITERS_MAX},
        },
    },
    store::HeldIds,
};

/// The number under which an id is claimed by a transaction-scoped advisory lock: the first
/// eight bytes, big endian, of SHA-256 over the account's length (eight bytes, big endian), the
/// account and the stored id. Two ids with one number only look held for a moment.
pub fn claim_hash(key: &OperationKey) -> i64 {
    let account = key.account.as_str().as_bytes();
    let mut hash = Sha256::new();
    hash.update(u64::try_from(account.len()).expect("a length fits 64 bits").to_be_bytes());
    hash.update(account);
    hash.update(key.id.to_stored());
    let hash: [u8; 32] = hash.finalize().into();
    i64::from_be_bytes(hash[..8].try_into().expect("eight bytes of 32"))
}

/// The calls of a load, and what to do with their replies.
pub(super) struct Load<'a> {
    parts: Vec<(Part<'a>, Call<'a>)>,
}

/// What a statement's rows are, with the keys in the order in which they were asked for.
enum Part<'a> {
    Claims(Vec<&'a OperationKey>),
    Operations(Vec<&'a OperationKey>, Access),
    Arguments(Vec<&'a OperationKey>),
    Accounts(Vec<&'a Account>, Access),
    Documents(Vec<&'a TargetKey>),
    Locks(Vec<&'a TargetKey>),
    Inboxes(Vec<&'a InboxKey>),
    Deliveries(Vec<&'a DeliveryKey>),
    Waiters(Vec<&'a TargetKey>),
    Fresh(Vec<&'a InboxKey>),
    Returned(Vec<(&'a InboxKey, i64)>),
    Held(Vec<(&'a InboxKey, &'a crate::domain::ids::ConsumerId)>),
    OldestOpen(Vec<&'a InboxKey>),
    OldestKept(Vec<&'a InboxKey>),
    Clock,
}

impl Part<'_> {
    /// What it counts in the row budget: keys that were sent, or rows that a search found.
    fn touched(&self, found: usize) -> usize {
        match self {
            Part::Claims(_) | Part::Locks(_) | Part::Clock => 0,
            Part::Operations(keys, _) | Part::Arguments(keys) => keys.len(),
            Part::Accounts(keys, _) => keys.len(),
            Part::Documents(keys) => keys.len(),
            Part::Inboxes(keys) => keys.len(),
            Part::Deliveries(keys) => keys.len(),
            Part::Waiters(_)
            | Part::Fresh(_)
            | Part::Returned(_)
            | Part::Held(_)
            | Part::OldestOpen(_)
            | Part::OldestKept(_) => found,
        }
    }
}

/// What a load gave besides the rows in the world.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Ids that another transaction holds.
    pub(super) held: HeldIds,
    /// Keys sent, and rows that searches found.
    pub(super) touched: usize,
}

impl<'a> Load<'a> {
    /// The calls for `needs`, in the order in which they are to be sent; none that is empty.
    pub(super) fn new(needs: &'a Needs, clock: Span) -> Self {
        let mut load = Load { parts: Vec::new() };
        load.add_operations(needs);
        load.add_rows(needs);
        load.add_searches(needs, clock);
        let parameters = vec![value(clock.0)];
        load.parts.push((Part::Clock, Call { sql: CLOCK, parameters }));
        load
    }

    fn add_operations(&mut self, needs: &'a Needs) {
        let claims: Vec<&OperationKey> = needs.claims.iter().collect();
        let call = |sql, keys: &[&'a OperationKey]| Call { sql, parameters: operation_keys(keys) };
        if !claims.is_empty() {
            let hashes = column(claims.iter().copied(), claim_hash);
            let claim = Call { sql: CLAIM, parameters: vec![hashes] };
            self.parts.push((Part::Claims(claims), claim));
        }
        for (access, sql) in [(Access::Write, LOCK_OPERATIONS), (Access::Read, OPERATIONS)] {
            let keys = needs.operations.iter().filter(|(_, wanted)| **wanted == access);
            let keys: Vec<&OperationKey> = keys.map(|(key, _)| key).collect();
            if !keys.is_empty() {
                let call = call(sql, &keys);
                self.parts.push((Part::Operations(keys, access), call));
            }
        }
        let keys: Vec<&OperationKey> = needs.arguments.iter().collect();
        if !keys.is_empty() {
            let call = call(ARGUMENTS, &keys);
            self.parts.push((Part::Arguments(keys), call));
        }
    }

    fn add_rows(&mut self, needs: &'a Needs) {
        for (access, sql) in [(Access::Write, LOCK_ACCOUNTS), (Access::Read, ACCOUNTS)] {
            let keys = needs.accounts.iter().filter(|(_, wanted)| **wanted == access);
            let keys: Vec<&Account> = keys.map(|(key, _)| key).collect();
            if !keys.is_empty() {
                let parameters = account_keys(&keys);
                self.parts.push((Part::Accounts(keys, access), Call { sql, parameters }));
            }
        }
        let keys: Vec<&TargetKey> = needs.documents.keys().collect();
        if !keys.is_empty() {
            let mut parameters = target_keys(&keys);
            parameters.push(column(needs.documents.values(), |body| *body == Body::Load));
            let documents = Call { sql: LOCK_DOCUMENTS, parameters };
            let locks = Call { sql: LOCK_LOCKS, parameters: target_keys(&keys) };
            self.parts.push((Part::Documents(keys.clone()), documents));
            self.parts.push((Part::Locks(keys), locks));
        }
        let keys: Vec<&InboxKey> = needs.inboxes.iter().collect();
        if !keys.is_empty() {
            let parameters = inbox_keys(&keys);
            self.parts.push((Part::Inboxes(keys), Call { sql: LOCK_INBOXES, parameters }));
        }
        let keys: Vec<&DeliveryKey> = needs.deliveries.iter().collect();
        if !keys.is_empty() {
            let parameters = delivery_keys(&keys);
            self.parts.push((Part::Deliveries(keys), Call { sql: DELIVERIES, parameters }));
        }
    }

    fn add_searches(&mut self, needs: &'a Needs, clock: Span) {
        let keys: Vec<&TargetKey> = needs.waiters.iter().collect();
        if !keys.is_empty() {
            let mut parameters = target_keys(&keys);
            parameters.push(value(WAITERS_MAX));
            self.parts.push((Part::Waiters(keys), Call { sql: WAITERS, parameters }));
        }
        let keys: Vec<&InboxKey> = needs.deliverable.keys().collect();
        if !keys.is_empty() {
            let limited = || {
                let mut parameters = inbox_keys(&keys);
                parameters.push(column(needs.deliverable.values(), |limit| *limit));
                parameters
            };
            let fresh = Call { sql: FRESH, parameters: limited() };
            let mut parameters = limited();
            parameters.push(value(clock.0));
            let returned = Call { sql: RETURNED, parameters };
            let searches = needs.deliverable.iter().map(|(key, limit)| (key, *limit)).collect();
            self.parts.push((Part::Fresh(keys), fresh));
            self.parts.push((Part::Returned(searches), returned));
        }
        let searches: Vec<_> = needs.held.iter().map(|(key, consumer)| (key, consumer)).collect();
        if !searches.is_empty() {
            let keys: Vec<&InboxKey> = searches.iter().map(|(key, _)| *key).collect();
            let mut parameters = inbox_keys(&keys);
            parameters.push(column(searches.clone(), |(_, consumer)| consumer.as_str()));
            parameters.push(value(HELD_MAX));
            self.parts.push((Part::Held(searches), Call { sql: HELD, parameters }));
        }
        let keys: Vec<&InboxKey> = needs.oldest_open.iter().collect();
        if !keys.is_empty() {
            let mut parameters = inbox_keys(&keys);
            parameters.push(value(CLOSED_MAX));
            self.parts.push((Part::OldestOpen(keys), Call { sql: OLDEST_OPEN, parameters }));
        }
        let keys: Vec<&InboxKey> = needs.oldest_kept.iter().collect();
        if !keys.is_empty() {
            let mut parameters = inbox_keys(&keys);
            parameters.push(value(PURGED_MAX));
            self.parts.push((Part::OldestKept(keys), Call { sql: OLDEST_KEPT, parameters }));
        }
    }

    /// What to send, and how to read what comes back.
    pub(super) fn into_calls(self) -> (Vec<Call<'a>>, Reader<'a>) {
        let (parts, calls) = self.parts.into_iter().unzip();
        (calls, Reader(parts))
    }
}

/// Reads the replies of a load.
pub(super) struct Reader<'a>(Vec<Part<'a>>);

impl Reader<'_> {
    /// Fills the world. `replies` are those of the calls, in order.
    ///
    /// # Errors
    /// [`Unreadable`] for a row that this release cannot read.
    pub(super) fn fill(
        self,
        world: &mut World,
        replies: &[Vec<Row>],
    ) -> Result<Loaded, Unreadable> {
        let mut loaded = Loaded::default();
        let mut documents = Vec::new();
        let mut fresh = Vec::new();
        for (part, rows) in self.0.into_iter().zip(replies) {
            loaded.touched += part.touched(rows.len());
            match part {
                Part::Claims(keys) => {
                    for row in rows {
                        let key = keys[Fields::new(row, "claim").ordinal()?];
                        loaded.held.0.insert(key.clone());
                    }
                }
                Part::Documents(keys) => {
                    documents = found(&keys, rows, "document", |fields, key: &&TargetKey| {
                        rows::document(fields, (*key).clone())
                    })?;
                }
                Part::Locks(keys) => {
                    let locks = found(&keys, rows, "lock", |fields, key: &&TargetKey| {
                        rows::lock(fields, (*key).clone())
                    })?;
                    let documents = std::mem::take(&mut documents);
                    for ((key, document), lock) in keys.into_iter().zip(documents).zip(locks) {
                        world.load_document(key.clone(), document, lock);
                    }
                }
                Part::Fresh(keys) => fresh = lists(&keys, rows, |key| (*key).clone())?,
                Part::Returned(searches) => {
                    let returned = lists(&searches, rows, |(key, _)| (*key).clone())?;
                    let fresh = std::mem::take(&mut fresh);
                    for (((key, limit), fresh), mut returned) in
                        searches.into_iter().zip(fresh).zip(returned)
                    {
                        returned.sort_by_key(|delivery| delivery.key.sequence);
                        world.load_deliverable(key.clone(), limit, fresh, returned);
                    }
                }
                Part::Clock => {
                    let row = rows.first().ok_or(Unreadable { what: "clock" })?;
                    world.set_now(Timestamp(Fields::new(row, "clock").take()?));
                }
                part => fill_rows(world, part, rows)?,
            }
        }
        Ok(loaded)
    }
}

/// The parts that go into the world as they come.
fn fill_rows(world: &mut World, part: Part<'_>, rows: &[Row]) -> Result<(), Unreadable> {
    match part {
        Part::Operations(keys, access) => {
            let operations = found(&keys, rows, "operation", |fields, key: &&OperationKey| {
                rows::operation(fields, (*key).clone())
            })?;
            for (key, row) in keys.into_iter().zip(operations) {
                world.load_operation(key.clone(), access, row);
            }
        }
        Part::Arguments(keys) => {
            for row in rows {
                let mut fields = Fields::new(row, "payload");
                let key = keys[fields.ordinal()?];
                let body: &[u8] = fields.take()?;
                world.load_arguments(key.clone(), bytes::Bytes::copy_from_slice(body));
            }
        }
        Part::Accounts(keys, access) => {
            let accounts = found(&keys, rows, "account", |fields, key: &&Account| {
                rows::account(fields, (*key).clone())
            })?;
            for (key, row) in keys.into_iter().zip(accounts) {
                world.load_account(key.clone(), access, row);
            }
        }
        Part::Inboxes(keys) => {
            let inboxes = found(&keys, rows, "inbox", |fields, key: &&InboxKey| {
                rows::inbox(fields, (*key).clone())
            })?;
            for (key, row) in keys.into_iter().zip(inboxes) {
                world.load_inbox(key.clone(), row);
            }
        }
        Part::Deliveries(keys) => {
            let deliveries = found(&keys, rows, "delivery", |fields, key: &&DeliveryKey| {
                rows::delivery(fields, key.inbox.clone())
            })?;
            for (key, row) in keys.into_iter().zip(deliveries) {
                world.load_delivery(key.clone(), row);
            }
        }
        Part::Waiters(keys) => {
            let mut waiters = vec![Vec::new(); keys.len()];
            for row in rows {
                let mut fields = Fields::new(row, "operation");
                let number = fields.ordinal()?;
                let account = keys[number].account.clone();
                waiters[number].push(OperationKey { account, id: fields.operation_id()? });
            }
            for (key, waiters) in keys.into_iter().zip(waiters) {
                world.load_waiters(key.clone(), waiters);
            }
        }
        Part::Held(searches) => {
            let held = lists(&searches, rows, |(key, _)| (*key).clone())?;
            for ((key, consumer), held) in searches.into_iter().zip(held) {
                world.load_held(key.clone(), consumer.clone(), held);
            }
        }
        Part::OldestOpen(keys) => {
            let open = lists(&keys, rows, |key| (*key).clone())?;
            for (key, open) in keys.into_iter().zip(open) {
                world.load_oldest_open(key.clone(), open);
            }
        }
        Part::OldestKept(keys) => {
            let kept = lists(&keys, rows, |key| (*key).clone())?;
            for (key, kept) in keys.into_iter().zip(kept) {
                world.load_oldest_kept(key.clone(), kept);
            }
        }
        Part::Claims(_)
        | Part::Documents(_)
        | Part::Locks(_)
        | Part::Fresh(_)
        | Part::Returned(_)
        | Part::Clock => {}
    }
    Ok(())
}

/// One row or none for each key, by the number that leads each row.
pub(super) fn found<K, V>(
    keys: &[K],
    rows: &[Row],
    what: &'static str,
    read: impl Fn(&mut Fields<'_>, &K) -> Result<V, Unreadable>,
) -> Result<Vec<Option<V>>, Unreadable> {
    let mut values: Vec<Option<V>> = keys.iter().map(|_| None).collect();
    for row in rows {
        let mut fields = Fields::new(row, what);
        let number = fields.ordinal()?;
        let key = keys.get(number).ok_or(Unreadable { what })?;
        values[number] = Some(read(&mut fields, key)?);
    }
    Ok(values)
}

/// The deliveries of each search, in the order of the rows.
fn lists<K>(
    searches: &[K],
    rows: &[Row],
    inbox: impl Fn(&K) -> InboxKey,
) -> Result<Vec<Vec<crate::domain::delivery::Delivery>>, Unreadable> {
    let mut lists: Vec<Vec<_>> = searches.iter().map(|_| Vec::new()).collect();
    for row in rows {
        let mut fields = Fields::new(row, "delivery");
        let number = fields.ordinal()?;
        lists[number].push(rows::delivery(&mut fields, inbox(&searches[number]))?);
    }
    Ok(lists)
}

/// `bucket, account, operation_id` of each key.
pub(super) fn operation_keys<'a>(keys: &[&'a OperationKey]) -> Vec<Parameter<'a>> {
    vec![
        column(keys, |key| key.account.bucket()),
        column(keys.iter().copied(), |key| key.account.as_str()),
        column(keys, |key| key.id.to_stored()),
    ]
}

fn account_keys<'a>(keys: &[&'a Account]) -> Vec<Parameter<'a>> {
    vec![
        column(keys, |key| key.bucket()),
        column(keys.iter().copied(), |key: &'a Account| key.as_str()),
    ]
}

/// `bucket, account, target` of each key.
pub(super) fn target_keys<'a>(keys: &[&'a TargetKey]) -> Vec<Parameter<'a>> {
    vec![
        column(keys, |key| key.account.bucket()),
        column(keys.iter().copied(), |key: &'a TargetKey| key.account.as_str()),
        column(keys.iter().copied(), |key: &'a TargetKey| key.target.as_str()),
    ]
}

/// `bucket, account, inbox` of each key.
pub(super) fn inbox_keys<'a>(keys: &[&'a InboxKey]) -> Vec<Parameter<'a>> {
    vec![
        column(keys, |key| key.account.bucket()),
        column(keys.iter().copied(), |key: &'a InboxKey| key.account.as_str()),
        column(keys.iter().copied(), |key: &'a InboxKey| key.inbox.as_str()),
    ]
}

/// `bucket, account, inbox, sequence` of each key.
pub(super) fn delivery_keys<'a>(keys: &[&'a DeliveryKey]) -> Vec<Parameter<'a>> {
    let inboxes: Vec<&'a InboxKey> = keys.iter().map(|key| &key.inbox).collect();
    let mut parameters = inbox_keys(&inboxes);
    parameters.push(column(keys, |key| key.sequence));
    parameters
}
