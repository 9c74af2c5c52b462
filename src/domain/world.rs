//! The rows that were loaded and locked together, and what was decided about them.
//!
//! What must stay true: a rule sees only rows that were declared. Asking for any other row yields
//! [`Unloaded`], and the command leads the next batch with that row among its needs; so no row is
//! ever read outside the lock it relies on, and none is locked out of order. A row exists once:
//! two commands on one row fold in memory, and the save writes its last state.
//!
//! Deliberately not here: rules. The same type serves both stores and the tests.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    audit::AuditRow,
    command::Command,
    delivery::{Delivery, DeliveryKey, InboxKey},
    document::Document,
    ids::{Account, ConsumerId, Timestamp},
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey},
    policy::Policy,
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
}

/// Waiters that one release starts at most; the rest follows in the next batch (contract 6).
pub const WAITERS_MAX: i64 = 16;
/// Deliveries returned by one close or takeover at most; more follow in the next command. Not
/// below the default of in flight per inbox, so that the usual takeover is one step.
pub const HELD_MAX: i64 = 256;

/// Rows that a rule asked for and that are not in the world. A rule that looks at many rows
/// collects all that are missing, so that one more batch brings them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unloaded(pub Vec<Need>);

/// One missing row.
fn unloaded(need: Need) -> Unloaded {
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
}

impl Needs {
    /// Adds one need; the stronger of two for the same row stays.
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
                raise(&mut self.deliverable, key, limit);
            }
            Need::Held(key, consumer) => {
                self.inboxes.insert(key.clone());
                self.held.insert((key, consumer));
            }
        }
    }
}

/// A consumer's stream on this replica that can take results right after a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Whose stream.
    pub consumer: ConsumerId,
    /// Which of its streams.
    pub epoch: i64,
    /// How many results its channel can still take.
    pub room: usize,
}

/// What the world is given besides rows.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The store's clock, read after the locks.
    pub now: Timestamp,
    /// The clocks and limits in force.
    pub policy: Policy,
    /// Randomness for backoff, drawn outside.
    pub jitter: u64,
    /// Streams of this replica, by inbox.
    pub attached: BTreeMap<InboxKey, Attached>,
}

/// A table's rows in this batch.
#[derive(Debug, Clone)]
struct Rows<K, V> {
    rows: BTreeMap<K, Row<V>>,
}

#[derive(Debug, Clone)]
struct Row<V> {
    access: Access,
    loaded: Option<V>,
    current: Option<V>,
    changed: bool,
}

impl<K: Ord + Clone, V: Clone> Rows<K, V> {
    fn new() -> Self {
        Rows { rows: BTreeMap::new() }
    }

    fn load(&mut self, key: K, access: Access, row: Option<V>) {
        self.rows.entry(key).or_insert(Row {
            access,
            current: row.clone(),
            loaded: row,
            changed: false,
        });
    }

    fn get(&self, key: &K) -> Option<Option<&V>> {
        self.rows.get(key).map(|row| row.current.as_ref())
    }

    /// Replaces a row; returns how it stood, for the undo log. `None`: it may not change. A row
    /// that was absent needs no lock: its plain insert is guarded by the unique key.
    fn set(&mut self, key: &K, value: Option<V>) -> Option<(Option<V>, bool)> {
        let changeable = |row: &&mut Row<V>| row.access == Access::Write || row.loaded.is_none();
        let row = self.rows.get_mut(key).filter(changeable)?;
        let before = (std::mem::replace(&mut row.current, value), row.changed);
        row.changed = true;
        Some(before)
    }

    fn restore(&mut self, key: &K, (value, changed): (Option<V>, bool)) {
        if let Some(row) = self.rows.get_mut(key) {
            row.current = value;
            row.changed = changed;
        }
    }

    fn into_changes(self) -> TableChanges<V> {
        let mut changes =
            TableChanges { inserts: Vec::new(), updates: Vec::new(), deletes: Vec::new() };
        for row in self.rows.into_values().filter(|row| row.changed) {
            match (row.loaded, row.current) {
                (None, Some(after)) => changes.inserts.push(after),
                (Some(before), Some(after)) => changes.updates.push(Update { before, after }),
                (Some(before), None) => changes.deletes.push(before),
                (None, None) => {}
            }
        }
        changes
    }
}

/// A row before and after.
#[derive(Debug, Clone)]
pub struct Update<V> {
    /// As it was loaded: what the statement's precondition repeats.
    pub before: V,
    /// As it is to be stored.
    pub after: V,
}

/// What changed in one table, each list in key order.
#[derive(Debug, Clone)]
pub struct TableChanges<V> {
    /// New rows: plain inserts.
    pub inserts: Vec<V>,
    /// Changed rows.
    pub updates: Vec<Update<V>>,
    /// Rows that go.
    pub deletes: Vec<V>,
}

impl<V> TableChanges<V> {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty() && self.updates.is_empty() && self.deletes.is_empty()
    }

    /// How many rows are sent to the store.
    pub fn len(&self) -> usize {
        self.inserts.len() + self.updates.len() + self.deletes.len()
    }
}

/// Everything a batch decided, in lock order: what `save` writes.
#[derive(Debug, Clone)]
pub struct Changes {
    /// Operations.
    pub operations: TableChanges<Operation>,
    /// Arguments kept apart: inserts only.
    pub arguments: Vec<(OperationKey, Bytes)>,
    /// Accounts.
    pub accounts: TableChanges<AccountRow>,
    /// Documents.
    pub documents: TableChanges<Document>,
    /// Locks.
    pub locks: TableChanges<Lock>,
    /// Inboxes.
    pub inboxes: TableChanges<Inbox>,
    /// Deliveries.
    pub deliveries: TableChanges<Delivery>,
    /// Audit rows: inserts only, each chain in order.
    pub audit: Vec<AuditRow>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.arguments.is_empty()
            && self.accounts.is_empty()
            && self.documents.is_empty()
            && self.locks.is_empty()
            && self.inboxes.is_empty()
            && self.deliveries.is_empty()
            && self.audit.is_empty()
    }

    /// How many rows are sent to the store (the row budget counts them).
    pub fn rows(&self) -> usize {
        self.operations.len()
            + self.arguments.len()
            + self.accounts.len()
            + self.documents.len()
            + self.locks.len()
            + self.inboxes.len()
            + self.deliveries.len()
            + self.audit.len()
    }
}

/// How one row stood before a command touched it.
#[derive(Debug)]
enum Undo {
    Operation(OperationKey, (Option<Operation>, bool)),
    Account(Account, (Option<AccountRow>, bool)),
    Document(TargetKey, (Option<Document>, bool)),
    Lock(TargetKey, (Option<Lock>, bool)),
    Inbox(InboxKey, (Option<Inbox>, bool)),
    Delivery(DeliveryKey, Option<(Option<Delivery>, bool)>),
    Audit,
    Arguments(OperationKey),
    Handed(InboxKey),
    FollowUp,
}

/// What one search returned.
#[derive(Debug, Clone, Default)]
struct Found {
    /// The search returned everything there is.
    complete: bool,
    /// The highest number that it looked at.
    last: i64,
}

/// The rows of one batch. See the module's comment.
#[derive(Debug)]
pub struct World {
    surroundings: Surroundings,
    operations: Rows<OperationKey, Operation>,
    stored_arguments: BTreeMap<OperationKey, Bytes>,
    new_arguments: BTreeMap<OperationKey, Bytes>,
    accounts: Rows<Account, AccountRow>,
    documents: Rows<TargetKey, Document>,
    locks: Rows<TargetKey, Lock>,
    inboxes: Rows<InboxKey, Inbox>,
    deliveries: Rows<DeliveryKey, Delivery>,
    waiters: BTreeMap<TargetKey, Vec<OperationKey>>,
    fresh: BTreeMap<InboxKey, Found>,
    held: BTreeSet<(InboxKey, ConsumerId)>,
    audit: Vec<AuditRow>,
    handed: Vec<DeliveryKey>,
    follow_ups: Vec<Command>,
    undo: Vec<Undo>,
}

impl World {
    /// An empty world. The store fills it with the `load_…` functions.
    pub fn new(surroundings: Surroundings) -> Self {
        World {
            surroundings,
            operations: Rows::new(),
            stored_arguments: BTreeMap::new(),
            new_arguments: BTreeMap::new(),
            accounts: Rows::new(),
            documents: Rows::new(),
            locks: Rows::new(),
            inboxes: Rows::new(),
            deliveries: Rows::new(),
            waiters: BTreeMap::new(),
            fresh: BTreeMap::new(),
            held: BTreeSet::new(),
            audit: Vec::new(),
            handed: Vec::new(),
            follow_ups: Vec::new(),
            undo: Vec::new(),
        }
    }

    // ---- what the store loads: one call for each key that was asked for, found or not ----

    /// Loads an operation, or its absence.
    pub fn load_operation(&mut self, key: OperationKey, access: Access, row: Option<Operation>) {
        self.operations.load(key, access, row);
    }

    /// Loads arguments that are kept apart.
    pub fn load_arguments(&mut self, key: OperationKey, arguments: Bytes) {
        self.stored_arguments.insert(key, arguments);
    }

    /// Loads an account, or its absence.
    pub fn load_account(&mut self, account: Account, access: Access, row: Option<AccountRow>) {
        self.accounts.load(account, access, row);
    }

    /// Loads a document, or its absence, with the lock row of its target, or its absence.
    pub fn load_document(&mut self, key: TargetKey, row: Option<Document>, lock: Option<Lock>) {
        self.documents.load(key.clone(), Access::Write, row);
        self.locks.load(key, Access::Write, lock);
    }

    /// Loads an inbox, or its absence.
    pub fn load_inbox(&mut self, key: InboxKey, row: Option<Inbox>) {
        self.inboxes.load(key, Access::Write, row);
    }

    /// Loads a delivery by its key, or its absence.
    pub fn load_delivery(&mut self, key: DeliveryKey, row: Option<Delivery>) {
        self.deliveries.load(key, Access::Write, row);
    }

    /// Loads the keys of the next waiters of a target, by ticket.
    pub fn load_waiters(&mut self, key: TargetKey, waiters: Vec<OperationKey>) {
        self.waiters.insert(key, waiters);
    }

    /// Loads what an inbox can send: PENDING rows after its cursor by number (`fresh`), and
    /// returned ones that are available, by number. `limit` is the limit of the search.
    pub fn load_deliverable(
        &mut self,
        key: InboxKey,
        limit: i64,
        fresh: Vec<Delivery>,
        returned: Vec<Delivery>,
    ) {
        let complete = i64::try_from(fresh.len()).unwrap_or(i64::MAX) < limit;
        let last = fresh.last().map_or(0, |delivery| delivery.key.sequence);
        self.fresh.insert(key, Found { complete, last });
        for delivery in fresh.into_iter().chain(returned) {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Loads what a consumer holds, by number.
    pub fn load_held(&mut self, key: InboxKey, consumer: ConsumerId, held: Vec<Delivery>) {
        self.held.insert((key, consumer));
        for delivery in held {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Sets the clock, which the store reads after the locks.
    pub fn set_now(&mut self, now: Timestamp) {
        self.surroundings.now = now;
    }

    // ---- what rules see ----

    /// The store's clock.
    pub fn now(&self) -> Timestamp {
        self.surroundings.now
    }

    /// The clocks and limits in force.
    pub fn policy(&self) -> &Policy {
        &self.surroundings.policy
    }

    /// Randomness that differs from batch to batch.
    pub fn jitter(&self) -> u64 {
        self.surroundings.jitter
    }

    /// The stream of this replica that reads an inbox, if there is exactly one.
    pub fn attached(&self, key: &InboxKey) -> Option<&Attached> {
        self.surroundings.attached.get(key)
    }

    /// An operation.
    pub fn operation(
        &self,
        key: &OperationKey,
        access: Access,
    ) -> Result<Option<&Operation>, Unloaded> {
        let missing = || unloaded(Need::Operation(key.clone(), access));
        let row = self.operations.rows.get(key).ok_or_else(missing)?;
        if row.access < access && row.loaded.is_some() {
            return Err(missing());
        }
        Ok(row.current.as_ref())
    }

    /// The arguments of an operation.
    pub fn arguments(&self, operation: &Operation) -> Result<Bytes, Unloaded> {
        match &operation.arguments {
            super::operation::Arguments::Inline(bytes) => Ok(bytes.clone()),
            super::operation::Arguments::Apart => self
                .new_arguments
                .get(&operation.key)
                .or_else(|| self.stored_arguments.get(&operation.key))
                .cloned()
                .ok_or_else(|| unloaded(Need::Arguments(operation.key.clone()))),
        }
    }

    /// An account.
    pub fn account(&self, account: &Account) -> Result<Option<&AccountRow>, Unloaded> {
        let missing = || unloaded(Need::Account(account.clone(), Access::Read));
        self.accounts.get(account).ok_or_else(missing)
    }

    /// A document's row; its content is there only if the need said so.
    pub fn document(&self, key: &TargetKey, body: Body) -> Result<Option<&Document>, Unloaded> {
        let missing = || unloaded(Need::Document(key.clone(), body));
        let row = self.documents.get(key).ok_or_else(missing)?;
        match row {
            Some(document)
                if body == Body::Load && document.exists && document.content.is_none() =>
            {
                Err(missing())
            }
            row => Ok(row),
        }
    }

    /// The lock of a target.
    pub fn lock(&self, key: &TargetKey) -> Result<Option<&Lock>, Unloaded> {
        self.locks.get(key).ok_or_else(|| unloaded(Need::Document(key.clone(), Body::Omit)))
    }

    /// An inbox.
    pub fn inbox(&self, key: &InboxKey) -> Result<Option<&Inbox>, Unloaded> {
        self.inboxes.get(key).ok_or_else(|| unloaded(Need::Inbox(key.clone())))
    }

    /// A delivery.
    pub fn delivery(&self, key: &DeliveryKey) -> Result<Option<&Delivery>, Unloaded> {
        self.deliveries.get(key).ok_or_else(|| unloaded(Need::Delivery(key.clone())))
    }

    /// The operations that wait for a target, by ticket: those that the search found and those
    /// that this batch added. Their rows may not be loaded yet.
    pub fn waiters(&self, key: &TargetKey) -> Result<Vec<OperationKey>, Unloaded> {
        let found = self.waiters.get(key).ok_or_else(|| unloaded(Need::Waiters(key.clone())))?;
        let mut waiters: Vec<OperationKey> = found
            .iter()
            .filter(|waiter| match self.operations.get(waiter) {
                Some(Some(operation)) => operation.wait_ticket.is_some(),
                // Not loaded: the search, made under the lock, is the truth.
                _ => true,
            })
            .cloned()
            .collect();
        let mut added: Vec<&Operation> = self
            .operations
            .rows
            .values()
            .filter(|row| row.loaded.is_none())
            .filter_map(|row| row.current.as_ref())
            .filter(|operation| {
                operation.wait_ticket.is_some()
                    && operation.target == key.target
                    && operation.key.account == key.account
            })
            .collect();
        added.sort_by_key(|operation| operation.wait_ticket);
        // A search that hit its limit may have left out waiters older than those of this batch.
        if i64::try_from(found.len()).unwrap_or(i64::MAX) < WAITERS_MAX {
            waiters.extend(added.into_iter().map(|operation| operation.key.clone()));
        }
        Ok(waiters)
    }

    /// What an inbox can send now: returned deliveries that are available, then fresh ones, each
    /// by number; and the highest number up to which nothing fresh remains.
    pub fn deliverable(&self, key: &InboxKey) -> Result<(Vec<DeliveryKey>, i64), Unloaded> {
        let search = self.fresh.get(key);
        let missing = || unloaded(Need::Deliverable(key.clone(), 1));
        let search = search.ok_or_else(missing)?;
        let inbox = self.inbox(key)?;
        let offered = inbox.map_or(0, |inbox| inbox.offered);
        let end = match search {
            Found { complete: true, .. } => inbox.map_or(0, Inbox::last_sequence),
            Found { complete: false, last } => *last,
        };
        let now = self.now();
        let pending: Vec<&Delivery> = self
            .deliveries_of(key)
            .filter(|delivery| delivery.state == super::delivery::DeliveryState::Pending)
            .collect();
        let returned = pending
            .iter()
            .filter(|delivery| delivery.available_time.is_some_and(|available| available <= now));
        let fresh = pending.iter().filter(|delivery| {
            let sequence = delivery.key.sequence;
            delivery.attempt == 0 && sequence > offered && sequence <= end
        });
        let keys = returned.chain(fresh).map(|delivery| delivery.key.clone()).collect();
        Ok((keys, end))
    }

    /// What a consumer holds in an inbox, whatever stream of it, by number.
    pub fn held(
        &self,
        key: &InboxKey,
        consumer: &ConsumerId,
    ) -> Result<Vec<DeliveryKey>, Unloaded> {
        if !self.held.contains(&(key.clone(), consumer.clone())) {
            return Err(unloaded(Need::Held(key.clone(), consumer.clone())));
        }
        let held = self.deliveries_of(key).filter(|delivery| {
            delivery.consumer.as_ref().is_some_and(|(holder, _)| holder == consumer)
        });
        Ok(held.map(|delivery| delivery.key.clone()).collect())
    }

    fn deliveries_of<'a>(&'a self, key: &'a InboxKey) -> impl Iterator<Item = &'a Delivery> {
        let first = DeliveryKey { inbox: key.clone(), sequence: 0 };
        self.deliveries
            .rows
            .range(first..)
            .take_while(move |(delivery, _)| delivery.inbox == *key)
            .filter_map(|(_, row)| row.current.as_ref())
    }

    // ---- what rules change ----

    /// Stores an operation: a new one under a key that was declared, or a changed one that was
    /// declared with [`Access::Write`].
    pub fn put_operation(&mut self, operation: Operation) -> Result<(), Unloaded> {
        let key = operation.key.clone();
        let before = self
            .operations
            .set(&key, Some(operation))
            .ok_or_else(|| unloaded(Need::Operation(key.clone(), Access::Write)))?;
        self.undo.push(Undo::Operation(key, before));
        Ok(())
    }

    /// Keeps arguments apart from their operation's row.
    pub fn put_arguments(&mut self, key: OperationKey, arguments: Bytes) {
        self.new_arguments.insert(key.clone(), arguments);
        self.undo.push(Undo::Arguments(key));
    }

    /// Stores an account that was declared with [`Access::Write`].
    pub fn put_account(&mut self, row: AccountRow) -> Result<(), Unloaded> {
        let key = row.account.clone();
        let before = self
            .accounts
            .set(&key, Some(row))
            .ok_or_else(|| unloaded(Need::Account(key.clone(), Access::Write)))?;
        self.undo.push(Undo::Account(key, before));
        Ok(())
    }

    /// Stores a document.
    pub fn put_document(&mut self, document: Document) -> Result<(), Unloaded> {
        let key = document.key.clone();
        let before = self
            .documents
            .set(&key, Some(document))
            .ok_or_else(|| unloaded(Need::Document(key.clone(), Body::Omit)))?;
        self.undo.push(Undo::Document(key, before));
        Ok(())
    }

    /// Stores or removes a lock, and keeps the document's flag in step.
    pub fn put_lock(&mut self, key: &TargetKey, lock: Option<Lock>) -> Result<(), Unloaded> {
        let locked = lock.is_some();
        let before = self
            .locks
            .set(key, lock)
            .ok_or_else(|| unloaded(Need::Document(key.clone(), Body::Omit)))?;
        self.undo.push(Undo::Lock(key.clone(), before));
        match self.document(key, Body::Omit)? {
            Some(document) if document.locked != locked => {
                let document = Document { locked, ..document.clone() };
                self.put_document(document)
            }
            _ => Ok(()),
        }
    }

    /// Stores an inbox.
    pub fn put_inbox(&mut self, inbox: Inbox) -> Result<(), Unloaded> {
        let key = inbox.key.clone();
        let before = self
            .inboxes
            .set(&key, Some(inbox))
            .ok_or_else(|| unloaded(Need::Inbox(key.clone())))?;
        self.undo.push(Undo::Inbox(key, before));
        Ok(())
    }

    /// Adds a delivery with a number taken from its inbox: it cannot exist yet.
    pub fn add_delivery(&mut self, delivery: Delivery) {
        let key = delivery.key.clone();
        let row =
            Row { access: Access::Write, loaded: None, current: Some(delivery), changed: true };
        self.deliveries.rows.insert(key.clone(), row);
        self.undo.push(Undo::Delivery(key, None));
    }

    /// Changes a delivery that is in the world.
    pub fn put_delivery(&mut self, delivery: Delivery) -> Result<(), Unloaded> {
        let key = delivery.key.clone();
        let before = self
            .deliveries
            .set(&key, Some(delivery))
            .ok_or_else(|| unloaded(Need::Delivery(key.clone())))?;
        self.undo.push(Undo::Delivery(key, Some(before)));
        Ok(())
    }

    /// Adds a row to the trail.
    pub fn add_audit(&mut self, row: AuditRow) {
        self.audit.push(row);
        self.undo.push(Undo::Audit);
    }

    /// Hands a delivery to the attached stream of its inbox, after the commit.
    pub fn hand_over(&mut self, key: DeliveryKey) {
        if let Some(attached) = self.surroundings.attached.get_mut(&key.inbox) {
            attached.room = attached.room.saturating_sub(1);
        }
        self.undo.push(Undo::Handed(key.inbox.clone()));
        self.handed.push(key);
    }

    /// Asks for a command to run at once after this batch: work that one command may not do at a
    /// time. Losing it costs a sweep interval, never more.
    pub fn follow_up(&mut self, command: Command) {
        self.follow_ups.push(command);
        self.undo.push(Undo::FollowUp);
    }

    /// Starts a command: what follows can be taken back as a whole.
    pub fn begin(&mut self) {
        self.undo.clear();
    }

    /// Takes back everything since [`World::begin`].
    pub fn undo(&mut self) {
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Operation(key, before) => self.operations.restore(&key, before),
                Undo::Account(key, before) => self.accounts.restore(&key, before),
                Undo::Document(key, before) => self.documents.restore(&key, before),
                Undo::Lock(key, before) => self.locks.restore(&key, before),
                Undo::Inbox(key, before) => self.inboxes.restore(&key, before),
                Undo::Delivery(key, None) => drop(self.deliveries.rows.remove(&key)),
                Undo::Delivery(key, Some(before)) => self.deliveries.restore(&key, before),
                Undo::Audit => drop(self.audit.pop()),
                Undo::FollowUp => drop(self.follow_ups.pop()),
                Undo::Arguments(key) => drop(self.new_arguments.remove(&key)),
                Undo::Handed(inbox) => {
                    self.handed.pop();
                    if let Some(attached) = self.surroundings.attached.get_mut(&inbox) {
                        attached.room += 1;
                    }
                }
            }
        }
    }

    // ---- what comes out ----

    /// The deliveries handed to attached streams, in order, with their operations.
    pub fn handed(&self) -> Vec<(Delivery, Operation)> {
        let pair = |key: &DeliveryKey| {
            let delivery = self.deliveries.get(key)??.clone();
            let operation = OperationKey {
                account: key.inbox.account.clone(),
                id: delivery.operation_id.clone(),
            };
            Some((delivery, self.operations.get(&operation)??.clone()))
        };
        self.handed.iter().filter_map(pair).collect()
    }

    /// The commands to run at once after this batch.
    pub fn take_follow_ups(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.follow_ups)
    }

    /// The inboxes in which a reader has something new to see: a delivery that waits or has ended,
    /// or another stream that opened. What only went in flight, or only renewed a lease, does not
    /// count: a stream would otherwise wake itself with every offer.
    pub fn changed_inboxes(&self) -> BTreeSet<InboxKey> {
        let news = |row: &Row<Delivery>| {
            row.changed
                && row.current.as_ref().is_none_or(|delivery| {
                    delivery.state != super::delivery::DeliveryState::InFlight
                })
        };
        let deliveries = self.deliveries.rows.iter().filter(|(_, row)| news(row));
        let epoch = |inbox: &Option<Inbox>| inbox.as_ref().map(|inbox| inbox.consumer_epoch);
        let opened = self.inboxes.rows.iter().filter(|(_, row)| {
            row.changed && row.loaded.is_some() && epoch(&row.loaded) != epoch(&row.current)
        });
        let opened = opened.map(|(key, _)| key.clone());
        deliveries.map(|(key, _)| key.inbox.clone()).chain(opened).collect()
    }

    /// The operations to which something happened; a count of replays does not count.
    pub fn changed_operations(&self) -> Vec<OperationKey> {
        let state = |row: &Option<Operation>| {
            row.as_ref().map(|row| (row.state, row.outcome_version, row.audit))
        };
        let rows = self.operations.rows.iter();
        let changed =
            rows.filter(|(_, row)| row.changed && state(&row.loaded) != state(&row.current));
        changed.map(|(key, _)| key.clone()).collect()
    }

    /// Everything that changed, for the save.
    pub fn into_changes(self) -> Changes {
        Changes {
            operations: self.operations.into_changes(),
            arguments: self.new_arguments.into_iter().collect(),
            accounts: self.accounts.into_changes(),
            documents: self.documents.into_changes(),
            locks: self.locks.into_changes(),
            inboxes: self.inboxes.into_changes(),
            deliveries: self.deliveries.into_changes(),
            audit: self.audit,
        }
    }
}
