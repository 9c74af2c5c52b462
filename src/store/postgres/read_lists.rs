//! Reads of pages: by keyset, in key order, each along one index.
//!
//! What must stay true: a page starts after the row where the last one ended, never at an offset;
//! texts and ids are ordered by their bytes, as in the embedded store.

use tokio_postgres::Row;

use super::{
    PostgresStore,
    load::{found, inbox_keys},
    read::{of, of_inbox, one},
    rows::{
        self, Fields, audit_columns, delivery_columns, document_columns, inbox_columns,
        lock_columns, operation_columns,
    },
    session::{Call, Parameter, column, value},
};
use crate::{
    domain::{
        audit::{AuditChain, AuditRow},
        delivery::{Delivery, DeliveryState, InboxKey},
        ids::{Account, InboxName, Target},
        lock::{Lock, TargetKey},
        operation::{Operation, OperationKey},
        record::Unreadable,
    },
    store::{
        ReadError,
        query::{
            DeliveryPage, DocumentPage, EXAMINED_MAX, InboxPage, OperationPosition, Walk,
            end_of_prefix,
        },
    },
};

/// Index: operations_by_time.
pub(super) const LIST_OPERATIONS: &str = concat!(
    "SELECT o.operation_id, ",
    operation_columns!(),
    " FROM receiptd.operations o
      WHERE o.bucket = $1::smallint AND o.account = $2::text
        AND (o.accept_time, o.operation_id) < ($3::bigint, $4::bytea)
      ORDER BY o.accept_time DESC, o.operation_id DESC LIMIT $5::bigint"
);

/// Index: operations_unresolved.
pub(super) const LIST_UNRESOLVED: &str = concat!(
    "SELECT o.operation_id, ",
    operation_columns!(),
    " FROM receiptd.operations o
      WHERE o.bucket = $1::smallint AND o.account = $2::text AND o.end_time IS NULL
        AND (o.accept_time, o.operation_id) < ($3::bigint, $4::bytea)
      ORDER BY o.accept_time DESC, o.operation_id DESC LIMIT $5::bigint"
);

impl PostgresStore {
    /// Operations of an account, newest first, without filter: at most `limit`.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn list_operations(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        self.page_of_operations(LIST_OPERATIONS, account, after, limit).await
    }

    /// Operations of an account that are not final, newest first: at most `limit`.
    pub async fn list_unresolved(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        self.page_of_operations(LIST_UNRESOLVED, account, after, limit).await
    }

    async fn page_of_operations(
        &self,
        sql: &'static str,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        let time = after.map_or(i64::MAX, |position| position.accept_time.0);
        let id = after.map_or_else(Vec::new, |position| position.id.to_stored());
        let mut parameters = of(account);
        parameters.extend([value(time), value(id), value(limit)]);
        let rows = self.page(sql, parameters).await?;
        each(&rows, "operation", |fields| {
            let key = OperationKey { account: account.clone(), id: fields.operation_id()? };
            rows::operation(fields, key)
        })
    }

    async fn page(
        &self,
        sql: &'static str,
        parameters: Vec<Parameter<'_>>,
    ) -> Result<Vec<Row>, ReadError> {
        Ok(self.read(vec![Call { sql, parameters }]).await?.pop().unwrap_or_default())
    }
}

/// Index: audit_pkey.
const LIST_AUDIT: &str = concat!(
    "SELECT ",
    audit_columns!(),
    " FROM receiptd.audit e
      WHERE e.bucket = $1::smallint AND e.account = $2::text AND e.operation_id = $3::bytea
        AND e.number > $4::integer
      ORDER BY e.number LIMIT $5::bigint"
);

impl PostgresStore {
    /// The audit rows of a chain after a number, in order: at most `limit`.
    pub async fn list_audit(
        &self,
        chain: &AuditChain,
        after: i32,
        limit: i64,
    ) -> Result<Vec<AuditRow>, ReadError> {
        let mut parameters = of(chain.account());
        parameters.extend([value(chain.to_stored()), value(after), value(limit)]);
        let rows = self.page(LIST_AUDIT, parameters).await?;
        each(&rows, "audit row", |fields| rows::audit(fields, chain.clone()))
    }
}

/// Documents that exist, each with its number in the walk. The last row that may be examined comes
/// even if it is a marker of a deleted one, so that the reader knows where to go on. The content
/// stays out of the inner list too. Index: documents_pkey.
pub(super) const LIST_DOCUMENTS: &str = concat!(
    "SELECT d.examined, d.target, NULL::bytea, ",
    document_columns!(),
    " FROM (
        SELECT d.target, ",
    document_columns!(),
    ", row_number() OVER (ORDER BY d.target) AS examined
        FROM receiptd.documents d
        WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.target >= $3::text
            AND d.target > $4::text AND d.target < $5::text
        ORDER BY d.target LIMIT $7::bigint) d
      WHERE d.present = 1 OR d.examined = $7::bigint
      ORDER BY d.target LIMIT $6::bigint"
);

impl PostgresStore {
    /// Documents that exist, by target in byte order, without content: at most `limit`, of at
    /// most [`EXAMINED_MAX`] rows that are examined.
    pub async fn list_documents(
        &self,
        account: &Account,
        prefix: &str,
        after: Option<&Target>,
        limit: i64,
    ) -> Result<DocumentPage, ReadError> {
        let mut parameters = of(account);
        parameters.extend([value(prefix), value(after.map_or("", Target::as_str))]);
        parameters.extend([value(end_of_prefix(prefix)), value(limit), value(EXAMINED_MAX)]);
        let rows = self.page(LIST_DOCUMENTS, parameters).await?;
        let mut found = each(&rows, "document", |fields| {
            let examined = fields.take::<i64>()?;
            let target = Target::from_stored(fields.take()?);
            let key = TargetKey { account: account.clone(), target };
            Ok((examined, rows::document(fields, key)?))
        })?;
        let full = i64::try_from(found.len()).is_ok_and(|found| found >= limit);
        let last = found.last().filter(|(examined, _)| full || *examined == EXAMINED_MAX);
        let next = last.map(|(_, document)| document.key.target.clone());
        found.retain(|(_, document)| document.exists);
        let documents = found.into_iter().map(|(_, document)| document).collect();
        Ok(DocumentPage { documents, next })
    }
}

/// Inboxes that are not deleted, each with its number in the walk. The last row that may be
/// examined comes even if it is a marker, so that the reader knows where to go on. Index:
/// inboxes_pkey.
pub(super) const LIST_INBOXES: &str = concat!(
    "SELECT i.examined, i.inbox, ",
    inbox_columns!(),
    " FROM (
        SELECT i.*, row_number() OVER (ORDER BY i.inbox) AS examined
        FROM receiptd.inboxes i
        WHERE i.bucket = $1::smallint AND i.account = $2::text AND i.inbox > $3::text
        ORDER BY i.inbox LIMIT $5::bigint) i
      WHERE i.deleted = 0 OR i.examined = $5::bigint
      ORDER BY i.inbox LIMIT $4::bigint"
);

impl PostgresStore {
    /// Inboxes of an account that are not deleted, by name in byte order: at most `limit`, of at
    /// most [`EXAMINED_MAX`] rows that are examined.
    pub async fn list_inboxes(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<InboxPage, ReadError> {
        let mut parameters = of(account);
        parameters.extend([value(after), value(limit), value(EXAMINED_MAX)]);
        let rows = self.page(LIST_INBOXES, parameters).await?;
        let mut found = each(&rows, "inbox", |fields| {
            let examined = fields.take::<i64>()?;
            let inbox = InboxName::from_stored(fields.take()?);
            Ok((examined, rows::inbox(fields, InboxKey { account: account.clone(), inbox })?))
        })?;
        let full = i64::try_from(found.len()).is_ok_and(|found| found >= limit);
        let last = found.last().filter(|(examined, _)| full || *examined == EXAMINED_MAX);
        let next = last.map(|(_, inbox)| inbox.key.inbox.clone());
        found.retain(|(_, inbox)| !inbox.deleted);
        let inboxes = found.into_iter().map(|(_, inbox)| inbox).collect();
        Ok(InboxPage { inboxes, next })
    }
}

/// Index: locks_pkey.
const LIST_LOCKS: &str = concat!(
    "SELECT l.target, ",
    lock_columns!(),
    " FROM receiptd.locks l
      WHERE l.bucket = $1::smallint AND l.account = $2::text AND l.target > $3::text
      ORDER BY l.target LIMIT $4::bigint"
);

impl PostgresStore {
    /// Locks of an account, by target in byte order: at most `limit`.
    pub async fn list_locks(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Lock>, ReadError> {
        let mut parameters = of(account);
        parameters.extend([value(after), value(limit)]);
        let rows = self.page(LIST_LOCKS, parameters).await?;
        each(&rows, "lock", |fields| {
            let target = Target::from_stored(fields.take()?);
            rows::lock(fields, TargetKey { account: account.clone(), target })
        })
    }
}

/// One statement for all inboxes of a page, each from the first number of its generation on. Index:
/// inboxes_pkey, deliveries_open.
pub(super) const OLDEST_OPEN: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.due_time IS NOT NULL AND d.sequence >= i.first_sequence AND d.state IN (1, 2)
        ORDER BY d.sequence LIMIT 1) d"
);

impl PostgresStore {
    /// The oldest delivery of each inbox's generation that is PENDING or IN_FLIGHT, in the order
    /// asked.
    pub async fn oldest_open_of(
        &self,
        inboxes: &[InboxKey],
    ) -> Result<Vec<Option<Delivery>>, ReadError> {
        if inboxes.is_empty() {
            return Ok(Vec::new());
        }
        let parameters = inbox_keys(&inboxes.iter().collect::<Vec<_>>());
        let rows = self.page(OLDEST_OPEN, parameters).await?;
        let oldest =
            found(inboxes, &rows, "delivery", |fields, key| rows::delivery(fields, key.clone()))?;
        Ok(oldest)
    }
}

/// Deliveries in one of some states, each with its number in the walk. The last row that may be
/// examined comes whatever its state, so that the reader knows where to go on.
macro_rules! walk {
    ($which:literal) => {
        concat!(
            "SELECT d.examined, ",
            delivery_columns!(),
            " FROM (
        SELECT d.*, row_number() OVER (ORDER BY d.sequence) AS examined
        FROM receiptd.deliveries d
        WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.inbox = $3::text
            AND d.sequence > $4::bigint",
            $which,
            "
        ORDER BY d.sequence LIMIT $7::bigint) d
      WHERE d.state = ANY($5::smallint[]) OR d.examined = $7::bigint
      ORDER BY d.sequence LIMIT $6::bigint"
        )
    };
}

/// Index: deliveries_pkey.
pub(super) const LIST_DELIVERIES: &str = walk!("");

/// Index: deliveries_open.
pub(super) const LIST_OPEN_DELIVERIES: &str = walk!(" AND d.due_time IS NOT NULL");

/// Index: deliveries_lost.
pub(super) const LIST_LOST_DELIVERIES: &str = walk!(" AND d.state IN (4, 5)");

/// Index: deliveries_lost.
pub(super) const LIST_LOST: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM receiptd.deliveries d
      WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.inbox = $3::text
        AND d.sequence > $4::bigint AND d.state IN (4, 5)
      ORDER BY d.sequence LIMIT $5::bigint"
);

impl PostgresStore {
    /// Deliveries of an inbox after a number and in one of the states (all if empty), in order:
    /// at most `limit`, of at most [`EXAMINED_MAX`] that are examined.
    pub async fn list_deliveries(
        &self,
        key: &InboxKey,
        after: i64,
        states: &[DeliveryState],
        limit: i64,
    ) -> Result<DeliveryPage, ReadError> {
        let sql = match Walk::over(states) {
            Walk::All => LIST_DELIVERIES,
            Walk::Open => LIST_OPEN_DELIVERIES,
            Walk::Lost => LIST_LOST_DELIVERIES,
        };
        let states = if states.is_empty() { &DeliveryState::ALL[..] } else { states };
        let numbers = column(states, |state| *state as i16);
        let mut parameters = of_inbox(key);
        parameters.extend([value(after), numbers, value(limit), value(EXAMINED_MAX)]);
        let rows = self.page(sql, parameters).await?;
        let mut deliveries = each(&rows, "delivery", |fields| {
            Ok((fields.take::<i64>()?, rows::delivery(fields, key.clone())?))
        })?;
        let full = i64::try_from(deliveries.len()).is_ok_and(|found| found >= limit);
        let last = deliveries.last().filter(|(examined, _)| full || *examined == EXAMINED_MAX);
        let next = last.map(|(_, delivery)| delivery.key.sequence);
        deliveries.retain(|(_, delivery)| states.contains(&delivery.state));
        let deliveries = deliveries.into_iter().map(|(_, delivery)| delivery).collect();
        Ok(DeliveryPage { deliveries, next })
    }

    /// EXPIRED and DEAD deliveries after a number, in order: at most `limit`.
    pub async fn list_lost(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, ReadError> {
        let mut parameters = of_inbox(key);
        parameters.extend([value(after), value(limit)]);
        let rows = self.page(LIST_LOST, parameters).await?;
        each(&rows, "delivery", |fields| rows::delivery(fields, key.clone()))
    }
}

/// Index: deliveries_pkey.
pub(super) const COUNT_ACKED: &str = "SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT d.state FROM receiptd.deliveries d
        WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.inbox = $3::text
            AND d.sequence > $4::bigint
        ORDER BY d.sequence LIMIT $6::bigint) d
    WHERE d.state = 3 LIMIT $5::bigint) counted";

impl PostgresStore {
    /// How many of the [`EXAMINED_MAX`] deliveries after `after` are ACKED; counts at most
    /// `limit`.
    pub async fn count_acked(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<i64, ReadError> {
        let mut parameters = of_inbox(key);
        parameters.extend([value(after), value(limit), value(EXAMINED_MAX)]);
        let replies = self.read(vec![Call { sql: COUNT_ACKED, parameters }]).await?;
        let row = one(&replies).ok_or(Unreadable { what: "count" })?;
        Ok(Fields::new(row, "count").take()?)
    }
}

/// Reads every row.
pub(super) fn each<T>(
    rows: &[Row],
    what: &'static str,
    read: impl Fn(&mut Fields<'_>) -> Result<T, Unreadable>,
) -> Result<Vec<T>, ReadError> {
    let read = |row| read(&mut Fields::new(row, what)).map_err(ReadError::from);
    rows.iter().map(read).collect()
}
