//! What rules change, and how a command that was refused is taken back.
//!
//! What must stay true: every change pushes its way back before the next one, so that a refused
//! command leaves the world as it found it.

use bytes::Bytes;

use super::{
    World,
    needs::{Access, Body, Need, Unloaded, unloaded},
    rows::Row,
};
use crate::domain::{
    audit::AuditRow,
    command::Command,
    delivery::{Delivery, DeliveryKey, InboxKey},
    document::Document,
    ids::Account,
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey, PayloadKind},
};

/// How one row stood before a command touched it.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a handful lives for one command; boxes would cost an allocation for each operation"
)]
pub(super) enum Undo {
    Operation(OperationKey, (Option<Operation>, bool)),
    Account(Account, (Option<AccountRow>, bool)),
    Document(TargetKey, (Option<Document>, bool)),
    Lock(TargetKey, (Option<Lock>, bool)),
    Inbox(InboxKey, (Option<Inbox>, bool)),
    Delivery(DeliveryKey, Option<(Option<Delivery>, bool)>),
    Audit,
    Emptied(OperationKey),
    Trail(OperationKey),
    Payload(OperationKey, PayloadKind),
    Handed(InboxKey),
    FollowUp,
}

impl World {
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

    /// Leaves the tombstone of an operation, and lets go of everything that it no longer holds.
    pub fn empty_operation(&mut self, tombstone: Operation) -> Result<(), Unloaded> {
        let key = tombstone.key.clone();
        self.put_operation(tombstone)?;
        if self.emptied.insert(key.clone()) {
            self.undo.push(Undo::Emptied(key));
        }
        Ok(())
    }

    /// Deletes an operation that was declared with [`Access::Write`].
    pub fn delete_operation(&mut self, key: &OperationKey) -> Result<(), Unloaded> {
        let before = self
            .operations
            .set(key, None)
            .ok_or_else(|| unloaded(Need::Operation(key.clone(), Access::Write)))?;
        self.undo.push(Undo::Operation(key.clone(), before));
        Ok(())
    }

    /// Lets the rows of an operation's audit chain go.
    pub fn drop_trail(&mut self, key: OperationKey) {
        if self.trails.insert(key.clone()) {
            self.undo.push(Undo::Trail(key));
        }
    }

    /// Keeps bytes apart from their operation's row; each kind once for an operation.
    pub fn put_payload(&mut self, key: OperationKey, kind: PayloadKind, body: Bytes) {
        self.new_payloads.insert((key.clone(), kind), body);
        self.undo.push(Undo::Payload(key, kind));
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

    /// Deletes a delivery that is in the world.
    pub fn delete_delivery(&mut self, key: &DeliveryKey) -> Result<(), Unloaded> {
        let before =
            self.deliveries.set(key, None).ok_or_else(|| unloaded(Need::Delivery(key.clone())))?;
        self.undo.push(Undo::Delivery(key.clone(), Some(before)));
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
                Undo::Emptied(key) => drop(self.emptied.remove(&key)),
                Undo::Trail(key) => drop(self.trails.remove(&key)),
                Undo::FollowUp => drop(self.follow_ups.pop()),
                Undo::Payload(key, kind) => drop(self.new_payloads.remove(&(key, kind))),
                Undo::Handed(inbox) => {
                    self.handed.pop();
                    if let Some(attached) = self.surroundings.attached.get_mut(&inbox) {
                        attached.room += 1;
                    }
                }
            }
        }
    }
}
