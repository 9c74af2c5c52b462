//! What a command needs to see: rows by key, and bounded searches.
//!
//! What must stay true: needs of one batch fold, so that each row is locked once, at the stronger
//! of the accesses asked for; a search brings the row whose lock it relies on among the needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{
    delivery::{DeliveryKey, InboxKey},
    ids::{Account, ConsumerId},
    lock::TargetKey,
    operation::OperationKey,
};

/// Whether a command may change a row, or only looks at it. Only rows that may change are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Looks.
    Read,
    /// May change: the row is locked until the commit has ended.
    Write,
}

/// Whether a document's content is loaded with its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Body {
    /// No rule reads it.
    Omit,
    /// It is read.
    Load,
}

/// One row, or one bounded search, that a command needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// An operation by key.
    Operation(OperationKey, Access),
    /// The arguments of an operation that are kept apart from its row.
    Arguments(OperationKey),
    /// An account by name; created by the first command that needs it to change.
    Account(Account, Access),
    /// A document by key, locked, and its lock row where there is one.
    Document(TargetKey, Body),
    /// An inbox by key, locked. It covers all its deliveries.
    Inbox(InboxKey),
    /// A delivery by key, under the lock of its inbox, which is declared beside it.
    Delivery(DeliveryKey),
    /// The next operations that wait for a target, by ticket, at most [`WAITERS_MAX`].
    Waiters(TargetKey),
    /// What an inbox can send: deliveries after its cursor, and returned ones that are available,
    /// at most so many of each.
    Deliverable(InboxKey, i64),
    /// What a consumer holds unacked in an inbox, at most [`HELD_MAX`].
    Held(InboxKey, ConsumerId),
    /// The oldest deliveries of an inbox that have not ended, by number, at most [`CLOSED_MAX`].
    OldestOpen(InboxKey),
    /// The oldest deliveries of an inbox whose rows are kept, by number, at most [`PURGED_MAX`].
    OldestKept(InboxKey),
}

/// Waiters that one release starts at most; the rest follows in the next batch (contract 6).
pub const WAITERS_MAX: i64 = 16;
/// Deliveries returned by one close or takeover at most. No inbox may have more in flight, so that
/// a takeover is always one step; not more, because each brings its operation's row along.
pub const HELD_MAX: i64 = 1_000;

/// Deliverable rows of either kind that one batch finds in an inbox at most: no inbox may have more in
/// flight, so that no batch can send more.
pub const DELIVERABLE_MAX: i64 = HELD_MAX;

/// Deliveries of a deleted inbox that one step ends at most; the rest follows at once in the next.
/// Half of what a takeover returns: each may release a lock, and start who waits for it.
pub const CLOSED_MAX: i64 = 500;
/// Rows of ended deliveries that one step purges at most; the rest follows at once in the next. A
/// delete touches its row and nothing else, and callers of the account wait for the step.
pub const PURGED_MAX: i64 = 500;

/// Rows that a rule asked for and that are not in the world. A rule that looks at many rows
/// collects all that are missing, so that one more batch brings them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unloaded(pub Vec<Need>);

/// One missing row.
pub(super) fn unloaded(need: Need) -> Unloaded {
    Unloaded(vec![need])
}

/// Everything a batch needs, each row once: what `load` is told.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Ids to claim by a transaction-scoped lock before anything is read; tried, never awaited.
    pub claims: BTreeSet<OperationKey>,
    /// Operations; those with [`Access::Write`] are locked.
    pub operations: BTreeMap<OperationKey, Access>,
    /// Operations whose arguments are kept apart and needed.
    pub arguments: BTreeSet<OperationKey>,
    /// Accounts; those with [`Access::Write`] are locked.
    pub accounts: BTreeMap<Account, Access>,
    /// Documents, all locked, with their lock rows.
    pub documents: BTreeMap<TargetKey, Body>,
    /// Inboxes, all locked.
    pub inboxes: BTreeSet<InboxKey>,
    /// Deliveries by key, under their inbox's lock.
    pub deliveries: BTreeSet<DeliveryKey>,
    /// Searches for waiters, under the lock of the document.
    pub waiters: BTreeSet<TargetKey>,
    /// Searches for deliverable rows, under the inbox's lock, with the limit of each.
    pub deliverable: BTreeMap<InboxKey, i64>,
    /// Searches for what a consumer holds, under the inbox's lock.
    pub held: BTreeSet<(InboxKey, ConsumerId)>,
    /// Searches for the oldest open deliveries, under the inbox's lock.
    pub oldest_open: BTreeSet<InboxKey>,
    /// Searches for the oldest kept deliveries, under the inbox's lock.
    pub oldest_kept: BTreeSet<InboxKey>,
}

impl Needs {
    /// Adds one need; the stronger of two for the same row stays. Searches for deliverable rows add
    /// up instead: whoever takes a page after another finds one of his own.
    pub fn add(&mut self, need: Need) {
        fn raise<K: Ord, V: Ord + Copy>(map: &mut BTreeMap<K, V>, key: K, value: V) {
            map.entry(key).and_modify(|old| *old = (*old).max(value)).or_insert(value);
        }
        match need {
            Need::Operation(key, access) => raise(&mut self.operations, key, access),
            Need::Arguments(key) => drop(self.arguments.insert(key)),
            Need::Account(account, access) => raise(&mut self.accounts, account, access),
            Need::Document(key, body) => raise(&mut self.documents, key, body),
            Need::Inbox(key) => drop(self.inboxes.insert(key)),
            Need::Delivery(key) => {
                self.inboxes.insert(key.inbox.clone());
                self.deliveries.insert(key);
            }
            Need::Waiters(key) => {
                raise(&mut self.documents, key.clone(), Body::Omit);
                self.waiters.insert(key);
            }
            Need::Deliverable(key, limit) => {
                self.inboxes.insert(key.clone());
                let sum = self.deliverable.entry(key).or_insert(0);
                *sum = sum.saturating_add(limit).min(DELIVERABLE_MAX);
            }
            Need::Held(key, consumer) => {
                self.inboxes.insert(key.clone());
                self.held.insert((key, consumer));
            }
            Need::OldestOpen(key) => {
                self.inboxes.insert(key.clone());
                self.oldest_open.insert(key);
            }
            Need::OldestKept(key) => {
                self.inboxes.insert(key.clone());
                self.oldest_kept.insert(key);
            }
        }
    }
}
