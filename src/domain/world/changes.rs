//! What a batch decided: the rows that `save` writes, table by table in lock order.

use bytes::Bytes;

use crate::domain::{
    audit::AuditRow,
    delivery::Delivery,
    document::Document,
    epoch::Life,
    inbox::{AccountRow, Inbox},
    lock::Lock,
    operation::{Operation, OperationKey, PayloadKind},
};

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

/// Bytes that are kept apart from their operation's row.
#[derive(Debug, Clone)]
pub struct Payload {
    /// Whose.
    pub key: OperationKey,
    /// Which.
    pub kind: PayloadKind,
    /// The bytes.
    pub body: Bytes,
}

/// The store's own row before and after.
#[derive(Debug, Clone)]
pub struct LifeChange {
    /// As it has to stand.
    pub before: Life,
    /// As it is to be stored.
    pub after: Life,
}

/// Everything a batch decided, in lock order: what `save` writes.
#[derive(Debug, Clone)]
pub struct Changes {
    /// Operations.
    pub operations: TableChanges<Operation>,
    /// Operations of which only the tombstone stays: their inline arguments, their labels, and what
    /// is kept apart.
    pub emptied: Vec<OperationKey>,
    /// What is kept apart from the operations: inserts only.
    pub payloads: Vec<Payload>,
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
    /// Audit rows, each chain in order.
    pub audit: Vec<AuditRow>,
    /// Operations whose audit chain goes.
    pub trails: Vec<OperationKey>,
    /// The store's own row: of marks alone.
    pub life: Option<LifeChange>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.emptied.is_empty()
            && self.payloads.is_empty()
            && self.accounts.is_empty()
            && self.documents.is_empty()
            && self.locks.is_empty()
            && self.inboxes.is_empty()
            && self.deliveries.is_empty()
            && self.audit.is_empty()
            && self.trails.is_empty()
            && self.life.is_none()
    }

    /// How many rows are sent to the store (the row budget counts them).
    pub fn rows(&self) -> usize {
        self.operations.len()
            + self.emptied.len()
            + self.payloads.len()
            + self.accounts.len()
            + self.documents.len()
            + self.locks.len()
            + self.inboxes.len()
            + self.deliveries.len()
            + self.audit.len()
            + self.trails.len()
            + usize::from(self.life.is_some())
    }
}
