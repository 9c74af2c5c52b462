//! Placeholder of the first step; replaced by the real store.
#![allow(unused_variables, missing_docs, clippy::unimplemented, clippy::allow_attributes)]
use super::{query::*, *};
use crate::domain::{
    audit::AuditRow,
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::Document,
    ids::{Account, OperationId, Target, Timestamp},
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey},
};

#[derive(Debug, Clone)]
pub struct SqliteStore;

impl SqliteStore {
    pub async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        unimplemented!()
    }
    pub async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        unimplemented!()
    }
    pub fn facts(&self) -> &StoreFacts {
        unimplemented!()
    }
    pub async fn close(&self) {
        unimplemented!()
    }
    pub async fn now(&self) -> Result<Timestamp, ReadError> {
        unimplemented!()
    }
    pub async fn look_up(&self, keys: &[OperationKey]) -> Result<Vec<LookedUp>, ReadError> {
        unimplemented!()
    }
    pub async fn account(&self, account: &Account) -> Result<Option<AccountRow>, ReadError> {
        unimplemented!()
    }
    pub async fn list_operations(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        unimplemented!()
    }
    pub async fn list_unresolved(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        unimplemented!()
    }
    pub async fn list_audit(
        &self,
        key: &OperationKey,
        after: i32,
        limit: i64,
    ) -> Result<Vec<AuditRow>, ReadError> {
        unimplemented!()
    }
    pub async fn document(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        unimplemented!()
    }
    pub async fn list_documents(
        &self,
        account: &Account,
        prefix: &str,
        after: Option<&Target>,
        limit: i64,
    ) -> Result<Vec<Document>, ReadError> {
        unimplemented!()
    }
    pub async fn inbox(&self, key: &InboxKey) -> Result<Option<Inbox>, ReadError> {
        unimplemented!()
    }
    pub async fn list_inboxes(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Inbox>, ReadError> {
        unimplemented!()
    }
    pub async fn oldest_open(&self, key: &InboxKey) -> Result<Option<Delivery>, ReadError> {
        unimplemented!()
    }
    pub async fn list_deliveries(
        &self,
        key: &InboxKey,
        after: i64,
        states: &[DeliveryState],
        limit: i64,
    ) -> Result<Vec<Delivery>, ReadError> {
        unimplemented!()
    }
    pub async fn list_lost(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, ReadError> {
        unimplemented!()
    }
    pub async fn count_acked(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<i64, ReadError> {
        unimplemented!()
    }
    pub async fn deliveries(&self, keys: &[DeliveryKey]) -> Result<Vec<Delivery>, ReadError> {
        unimplemented!()
    }
    pub async fn operations(&self, keys: &[OperationKey]) -> Result<Vec<Operation>, ReadError> {
        unimplemented!()
    }
    pub async fn list_locks(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Lock>, ReadError> {
        unimplemented!()
    }
    pub async fn due(
        &self,
        kind: DueKind,
        after: Option<&DuePosition>,
        limit: i64,
    ) -> Result<DuePage, ReadError> {
        unimplemented!()
    }
    pub async fn glimpse(
        &self,
        operations: &[OperationKey],
        inboxes: &[InboxKey],
    ) -> Result<(Vec<Option<OperationGlimpse>>, Vec<Option<InboxGlimpse>>), ReadError> {
        unimplemented!()
    }
    pub async fn sweep_batches(
        &self,
        age: crate::domain::ids::Span,
        limit: i64,
    ) -> Result<u64, ReadError> {
        unimplemented!()
    }
}
