//! The reads of [`crate::store::query`], each in one read transaction on a reader's connection.
//!
//! What must stay true: a read sees one state of the store, and ends before anything is sent to a
//! caller, so that it never keeps the log from being emptied. Deliberately not here: statements.

use bytes::Bytes;
use rusqlite::Connection;

use super::{CLOSED, SqliteStore, by_key, connection::Reader, due, dump, fault::Fault, query};
use crate::{
    domain::{
        audit::{AuditChain, AuditRow},
        delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
        document::Document,
        ids::{Account, Span, Target, Timestamp},
        inbox::{AccountRow, Inbox},
        lock::{Lock, TargetKey},
        operation::{Operation, OperationKey, PayloadKind},
    },
    store::{
        ReadError,
        query::{
            DeliveryPage, DocumentGlimpse, DocumentPage, DueKind, DuePage, DuePosition,
            InboxGlimpse, InboxPage, LookedUp, OperationGlimpse, OperationPosition,
        },
    },
};

impl SqliteStore {
    /// Runs `work` on a reader's connection, in one read transaction.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, ReadError> {
        self.healthy()?;
        let read = move |reader: &mut Reader| {
            // Dropped at the end or by a panic: a rollback, which is how a read ends.
            let transaction = reader.transaction()?;
            work(&transaction)
        };
        let answer = self.readers().run(read).await;
        Ok(answer.map_err(super::fault::Failure::from)??)
    }

    /// The store's clock: the process clock with the offset that tests give it.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] after a close or a fatal failure; so too all functions here.
    /// [`ReadError::Unreadable`] for rows that this release cannot read.
    pub async fn now(&self) -> Result<Timestamp, ReadError> {
        self.healthy()?;
        if self.readers().is_closed() {
            return Err(ReadError::Unavailable(CLOSED.to_owned()));
        }
        Ok(self.seams().now())
    }

    /// See [`crate::store::Store::look_up`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn look_up(&self, keys: &[OperationKey]) -> Result<Vec<LookedUp>, ReadError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            keys.iter().map(|key| query::look_up(connection, key)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::account`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn account(&self, account: &Account) -> Result<Option<AccountRow>, ReadError> {
        let account = account.clone();
        self.read(move |connection| by_key::account(connection, &account)).await
    }

    /// See [`crate::store::Store::account_and_now`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn account_and_now(
        &self,
        account: &Account,
    ) -> Result<(Option<AccountRow>, Timestamp), ReadError> {
        Ok((self.account(account).await?, self.now().await?))
    }

    /// See [`crate::store::Store::list_operations`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_operations(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        let (account, after) = (account.clone(), after.cloned());
        self.read(move |connection| {
            query::list_operations(connection, &account, after.as_ref(), limit)
        })
        .await
    }

    /// See [`crate::store::Store::list_unresolved`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_unresolved(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        let (account, after) = (account.clone(), after.cloned());
        self.read(move |connection| {
            query::list_unresolved(connection, &account, after.as_ref(), limit)
        })
        .await
    }

    /// See [`crate::store::Store::list_audit`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_audit(
        &self,
        chain: &AuditChain,
        after: i32,
        limit: i64,
    ) -> Result<Vec<AuditRow>, ReadError> {
        let chain = chain.clone();
        self.read(move |connection| query::list_audit(connection, &chain, after, limit)).await
    }

    /// See [`crate::store::Store::document`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn document(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        let key = key.clone();
        self.read(move |connection| by_key::document_with_content(connection, &key)).await
    }

    /// See [`crate::store::Store::document_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn document_facts(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        let key = key.clone();
        self.read(move |connection| by_key::document(connection, &key)).await
    }

    /// See [`crate::store::Store::list_documents`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_documents(
        &self,
        account: &Account,
        prefix: &str,
        after: Option<&Target>,
        limit: i64,
    ) -> Result<DocumentPage, ReadError> {
        let (account, prefix, after) = (account.clone(), prefix.to_owned(), after.cloned());
        self.read(move |connection| {
            query::list_documents(connection, &account, &prefix, after.as_ref(), limit)
        })
        .await
    }

    /// See [`crate::store::Store::inbox`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn inbox(&self, key: &InboxKey) -> Result<Option<Inbox>, ReadError> {
        let key = key.clone();
        self.read(move |connection| by_key::inbox(connection, &key)).await
    }

    /// See [`crate::store::Store::inbox_and_account`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn inbox_and_account(
        &self,
        key: &InboxKey,
    ) -> Result<(Option<Inbox>, Option<AccountRow>), ReadError> {
        let key = key.clone();
        self.read(move |connection| {
            Ok((by_key::inbox(connection, &key)?, by_key::account(connection, &key.account)?))
        })
        .await
    }

    /// See [`crate::store::Store::list_inboxes`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_inboxes(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<InboxPage, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| query::list_inboxes(connection, &account, &after, limit)).await
    }

    /// See [`crate::store::Store::oldest_open_of`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn oldest_open_of(
        &self,
        inboxes: &[InboxKey],
    ) -> Result<Vec<Option<Delivery>>, ReadError> {
        let inboxes = inboxes.to_vec();
        self.read(move |connection| {
            inboxes.iter().map(|key| query::oldest_open(connection, key)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::list_deliveries`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_deliveries(
        &self,
        key: &InboxKey,
        after: i64,
        states: &[DeliveryState],
        limit: i64,
    ) -> Result<DeliveryPage, ReadError> {
        let (key, states) = (key.clone(), states.to_vec());
        self.read(move |connection| query::list_deliveries(connection, &key, after, &states, limit))
            .await
    }

    /// See [`crate::store::Store::list_lost`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_lost(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, ReadError> {
        let key = key.clone();
        self.read(move |connection| query::list_lost(connection, &key, after, limit)).await
    }

    /// See [`crate::store::Store::count_acked`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn count_acked(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<i64, ReadError> {
        let key = key.clone();
        self.read(move |connection| query::count_acked(connection, &key, after, limit)).await
    }

    /// See [`crate::store::Store::deliveries`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn deliveries(&self, keys: &[DeliveryKey]) -> Result<Vec<Delivery>, ReadError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            keys.iter().filter_map(|key| by_key::delivery(connection, key).transpose()).collect()
        })
        .await
    }

    /// See [`crate::store::Store::operations`]. One statement run once per key: there is no round
    /// trip to spare.
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn operations(&self, keys: &[OperationKey]) -> Result<Vec<Operation>, ReadError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            keys.iter().filter_map(|key| by_key::operation(connection, key).transpose()).collect()
        })
        .await
    }

    /// See [`crate::store::Store::payloads`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn payloads(
        &self,
        keys: &[OperationKey],
        kind: PayloadKind,
    ) -> Result<Vec<Option<Bytes>>, ReadError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            keys.iter().map(|key| by_key::payload(connection, key, kind)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::read_payload`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn read_payload(
        &self,
        key: &OperationKey,
        kind: PayloadKind,
        offset: i64,
        length: i64,
    ) -> Result<Option<Bytes>, ReadError> {
        let key = key.clone();
        self.read(move |connection| by_key::slice(connection, &key, kind, offset, length)).await
    }

    /// See [`crate::store::Store::list_locks`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn list_locks(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Lock>, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| query::list_locks(connection, &account, &after, limit)).await
    }

    /// See [`crate::store::Store::due`]. A page has at least one row where one is due.
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn due(
        &self,
        kind: DueKind,
        after: Option<&DuePosition>,
        limit: i64,
    ) -> Result<DuePage, ReadError> {
        let (now, after) = (self.seams().now(), after.cloned());
        self.read(move |connection| due::page(connection, kind, now, after.as_ref(), limit)).await
    }

    /// See [`crate::store::Store::glimpse`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn glimpse(
        &self,
        operations: &[OperationKey],
        inboxes: &[InboxKey],
    ) -> Result<(Vec<Option<OperationGlimpse>>, Vec<Option<InboxGlimpse>>), ReadError> {
        let (operations, inboxes) = (operations.to_vec(), inboxes.to_vec());
        self.read(move |connection| {
            let operations = operations.iter().map(|key| query::glimpse_operation(connection, key));
            let operations = operations.collect::<Result<Vec<_>, Fault>>()?;
            let inboxes = inboxes.iter().map(|key| query::glimpse_inbox(connection, key));
            Ok((operations, inboxes.collect::<Result<Vec<_>, Fault>>()?))
        })
        .await
    }

    /// See [`crate::store::Store::glimpse_documents`].
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn glimpse_documents(
        &self,
        keys: &[TargetKey],
    ) -> Result<Vec<Option<DocumentGlimpse>>, ReadError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            keys.iter().map(|key| query::glimpse_document(connection, key)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::sweep_batches`]. The rows are found by a reader and deleted in
    /// one commit; a row found can not become its replica's newest any more.
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`]; then nothing was deleted.
    pub async fn sweep_batches(&self, age: Span, limit: i64) -> Result<u64, ReadError> {
        let before = self.seams().now() - age;
        let old = self
            .read(move |connection| query::old_batches(connection, before, limit.max(0)))
            .await?;
        if old.is_empty() {
            return Ok(0);
        }
        let delete = move |connection: &Connection| {
            let deleted = old.iter().map(|key| query::delete_batch(connection, key));
            deleted.sum::<Result<usize, Fault>>()
        };
        let deleted = self.write(delete).await?;
        Ok(u64::try_from(deleted).unwrap_or(u64::MAX))
    }

    /// All tables but the migrations and the store's facts, for tests that compare stores: each
    /// by name, with its rows in the order of the primary key. A row is `column=value` for each
    /// column in the order of the schema, with `|` between; NULL is `-`, a blob lower-case hex.
    ///
    /// # Errors
    /// [`ReadError`], as for [`SqliteStore::now`].
    pub async fn dump_tables(&self) -> Result<Vec<(String, Vec<String>)>, ReadError> {
        self.read(dump::tables).await
    }
}
