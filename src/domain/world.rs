//! The rows that were loaded and locked together, and what was decided about them.
//!
//! What must stay true: a rule sees only rows that were declared. Asking for any other row yields
//! [`Unloaded`], and the command leads the next batch with that row among its needs; so no row is
//! ever read outside the lock it relies on, and none is locked out of order. A row exists once:
//! two commands on one row fold in memory, and the save writes its last state.
//!
//! Deliberately not here: rules. The same type serves both stores and the tests.
//!
//! In reading order: [`needs`] is what commands ask for; `rows` holds one table; `searches` answers
//! from what was found; `edits` changes rows and takes changes back; [`changes`] is what is saved.

pub mod changes;
mod edits;
pub mod needs;
mod rows;
pub mod searches;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use self::{
    changes::{Changes, LifeChange, Payload},
    edits::Undo,
    needs::{Access, Body, Need, Unloaded, unloaded},
    rows::{Row, Rows},
    searches::Found,
};
use super::{
    audit::AuditRow,
    command::Command,
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::Document,
    epoch::{Life, Loss},
    ids::{Account, ConsumerId, Timestamp},
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Arguments, Operation, OperationKey, OperationState, PayloadKind},
    policy::Policy,
};

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
    /// The server's clocks and limits.
    pub policy: Policy,
    /// Randomness for backoff, drawn outside.
    pub jitter: u64,
    /// Streams of this replica, by inbox.
    pub attached: BTreeMap<InboxKey, Attached>,
    /// What the store may have lost, by its row.
    pub loss: Loss,
}

impl Surroundings {
    /// Those of work that is no caller's: nobody is attached, and nothing is random. The store sets
    /// the clock, and what it may have lost.
    pub fn of(policy: Policy) -> Self {
        let (now, attached) = (Timestamp::default(), BTreeMap::new());
        Surroundings { now, policy, jitter: 0, attached, loss: Loss::NONE }
    }
}

/// The rows of one batch. See the module's comment.
#[derive(Debug)]
pub struct World {
    surroundings: Surroundings,
    operations: Rows<OperationKey, Operation>,
    stored_arguments: BTreeMap<OperationKey, Bytes>,
    emptied: BTreeSet<OperationKey>,
    new_payloads: BTreeMap<(OperationKey, PayloadKind), Bytes>,
    accounts: Rows<Account, AccountRow>,
    documents: Rows<TargetKey, Document>,
    locks: Rows<TargetKey, Lock>,
    inboxes: Rows<InboxKey, Inbox>,
    deliveries: Rows<DeliveryKey, Delivery>,
    waiters: BTreeMap<TargetKey, Vec<OperationKey>>,
    fresh: BTreeMap<InboxKey, Found>,
    held: BTreeSet<(InboxKey, ConsumerId)>,
    oldest_open: BTreeMap<InboxKey, Found>,
    oldest_kept: BTreeMap<InboxKey, Found>,
    audit: Vec<AuditRow>,
    trails: BTreeSet<OperationKey>,
    life: Option<LifeChange>,
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
            emptied: BTreeSet::new(),
            new_payloads: BTreeMap::new(),
            accounts: Rows::new(),
            documents: Rows::new(),
            locks: Rows::new(),
            inboxes: Rows::new(),
            deliveries: Rows::new(),
            waiters: BTreeMap::new(),
            fresh: BTreeMap::new(),
            held: BTreeSet::new(),
            oldest_open: BTreeMap::new(),
            oldest_kept: BTreeMap::new(),
            audit: Vec::new(),
            trails: BTreeSet::new(),
            life: None,
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

    /// Sets the clock, which the store reads after the locks.
    pub fn set_now(&mut self, now: Timestamp) {
        self.surroundings.now = now;
    }

    /// Sets what the store may have lost, which the store reads with the rows.
    pub fn set_loss(&mut self, loss: Loss) {
        self.surroundings.loss = loss;
    }

    // ---- what rules see ----

    /// The store's clock.
    pub fn now(&self) -> Timestamp {
        self.surroundings.now
    }

    /// What the store may have lost, of accounts and inboxes without a row.
    pub fn loss(&self) -> Loss {
        self.surroundings.loss
    }

    /// What holds where an account has no setting of its own; and the lease of a consumer.
    pub fn defaults(&self) -> &Policy {
        &self.surroundings.policy
    }

    /// The clocks and limits in force for an account: its own, over the server's.
    pub fn policy(&self, account: &Account) -> Result<Policy, Unloaded> {
        Ok(AccountRow::policy(self.account(account)?, self.defaults()))
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
            Arguments::Inline(bytes) => Ok(bytes.clone()),
            Arguments::Apart => self
                .new_payloads
                .get(&(operation.key.clone(), PayloadKind::Arguments))
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

    /// An account that is about to change: asks at once for what the change will need.
    pub fn account_to_change(&self, account: &Account) -> Result<Option<&AccountRow>, Unloaded> {
        let missing = || unloaded(Need::Account(account.clone(), Access::Write));
        let row = self.accounts.rows.get(account).ok_or_else(missing)?;
        if row.access < Access::Write && row.loaded.is_some() {
            return Err(missing());
        }
        Ok(row.current.as_ref())
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

    /// Changes the store's own row. Only a mark does, which is never taken back.
    pub fn change_life(&mut self, before: Life, after: Life) {
        self.life = Some(LifeChange { before, after });
    }

    // ---- what comes out ----

    /// The deliveries handed to attached streams, in order, with their operations.
    pub fn handed(&self) -> Vec<(Delivery, Operation)> {
        let pair = |key: &DeliveryKey| {
            let delivery = self.deliveries.get(key)??.clone();
            let operation = self.operations.get(&delivery.operation_key())??.clone();
            Some((delivery, operation))
        };
        self.handed.iter().filter_map(pair).collect()
    }

    /// The commands to run at once after this batch.
    pub fn take_follow_ups(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.follow_ups)
    }

    /// The inboxes in which a reader has something new to see: a delivery that waits or has ended,
    /// another stream that opened, or another limit of what may be in flight. What only went in flight, or only renewed a lease, does not
    /// count: a stream would otherwise wake itself with every offer.
    pub fn changed_inboxes(&self) -> BTreeSet<InboxKey> {
        let news = |row: &Row<Delivery>| {
            row.changed
                && row
                    .current
                    .as_ref()
                    .is_none_or(|delivery| delivery.state != DeliveryState::InFlight)
        };
        let deliveries = self.deliveries.rows.iter().filter(|(_, row)| news(row));
        let terms = |inbox: &Option<Inbox>| {
            inbox.as_ref().map(|inbox| (inbox.consumer_epoch, inbox.in_flight_limit))
        };
        let changed = self.inboxes.rows.iter().filter(|(_, row)| {
            row.changed && row.loaded.is_some() && terms(&row.loaded) != terms(&row.current)
        });
        let changed = changed.map(|(key, _)| key.clone());
        deliveries.map(|(key, _)| key.inbox.clone()).chain(changed).collect()
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

    /// How many operations became APPLIED.
    pub fn effects(&self) -> u64 {
        let applied = |row: &Option<Operation>| {
            row.as_ref().is_some_and(|row| row.state == OperationState::Applied)
        };
        let rows = self.operations.rows.values();
        let count = rows.filter(|row| applied(&row.current) && !applied(&row.loaded)).count();
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The documents that have another revision, or stopped or began to exist.
    pub fn changed_documents(&self) -> Vec<TargetKey> {
        let version = |row: &Option<Document>| {
            row.as_ref().map(|row| (row.revision, row.generation, row.exists))
        };
        let rows = self.documents.rows.iter();
        let changed =
            rows.filter(|(_, row)| row.changed && version(&row.loaded) != version(&row.current));
        changed.map(|(key, _)| key.clone()).collect()
    }

    /// Everything that changed, for the save.
    pub fn into_changes(self) -> Changes {
        Changes {
            operations: self.operations.into_changes(),
            emptied: self.emptied.into_iter().collect(),
            payloads: self
                .new_payloads
                .into_iter()
                .map(|((key, kind), body)| Payload { key, kind, body })
                .collect(),
            accounts: self.accounts.into_changes(),
            documents: self.documents.into_changes(),
            locks: self.locks.into_changes(),
            inboxes: self.inboxes.into_changes(),
            deliveries: self.deliveries.into_changes(),
            audit: self.audit,
            trails: self.trails.into_iter().collect(),
            life: self.life,
        }
    }
}
