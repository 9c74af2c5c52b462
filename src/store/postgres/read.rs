//! Reads by key, outside a transaction that decides.
//!
//! What must stay true: all statements of one read travel in one flight, in the order in which
//! their results may not overtake each other; each sees its own snapshot (READ COMMITTED), so
//! that a later one is never older. A read that fails is tried once more on another connection.

use bytes::Bytes;
use tokio_postgres::Row;

use super::{
    PostgresStore, errors,
    load::{self, delivery_keys, found, inbox_keys, operation_keys},
    load_statements::{CLOCK, DELIVERIES, OPERATIONS},
    pool::{Connections, Lease},
    rows::{
        self, Fields, account_columns, delivery_columns, document_columns, inbox_columns,
        lock_columns,
    },
    session::{Call, Parameter, value},
};
use crate::{
    domain::{
        delivery::{Delivery, DeliveryKey, InboxKey},
        document::Document,
        ids::{Account, Timestamp},
        inbox::{AccountRow, Inbox},
        lock::TargetKey,
        operation::{Operation, OperationKey, PayloadKind},
        record::Unreadable,
    },
    store::{
        ReadError,
        query::{DocumentGlimpse, InboxGlimpse, LookedUp, OperationGlimpse},
    },
};

const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY";
const BEGIN_WRITE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

impl PostgresStore {
    /// Runs calls in one flight and one transaction, which holds the settings and nothing else.
    pub(super) async fn read(&self, calls: Vec<Call<'_>>) -> Result<Vec<Vec<Row>>, ReadError> {
        self.query(&self.0.reads, BEGIN_READ, calls).await
    }

    /// As [`PostgresStore::read`], for the server's own upkeep, which never waits for callers.
    pub(super) async fn upkeep(&self, calls: Vec<Call<'_>>) -> Result<Vec<Vec<Row>>, ReadError> {
        self.query(&self.0.upkeep, BEGIN_READ, calls).await
    }

    /// As [`PostgresStore::upkeep`], for a statement that writes and may be repeated.
    pub(super) async fn upkeep_write(&self, call: Call<'_>) -> Result<Vec<Row>, ReadError> {
        let replies = self.query(&self.0.upkeep, BEGIN_WRITE, vec![call]).await;
        Ok(replies?.pop().unwrap_or_default())
    }

    pub(super) async fn query(
        &self,
        pool: &Connections,
        begin: &str,
        calls: Vec<Call<'_>>,
    ) -> Result<Vec<Vec<Row>>, ReadError> {
        let settings = self.settings(self.0.options.lock_timeout);
        let calls: Vec<Call<'_>> = std::iter::once(settings).chain(calls).collect();
        let mut tries = 0;
        loop {
            tries += 1;
            let lease = pool.borrow().await.map_err(ReadError::Unavailable)?;
            match self.read_on(lease, begin, &calls).await {
                Ok(mut replies) => {
                    let settings = replies.remove(0);
                    self.0.guard.look(&settings).map_err(ReadError::Unavailable)?;
                    return Ok(replies);
                }
                Err(Some(error)) if tries == 1 && errors::is_of_connection(&error) => {
                    pool.forget_idle();
                }
                Err(Some(error)) => return Err(ReadError::Unavailable(errors::words(&error))),
                Err(None) => {
                    let text = "PostgreSQL did not reply in time".into();
                    return Err(ReadError::Unavailable(text));
                }
            }
        }
    }

    async fn read_on(
        &self,
        lease: Lease,
        begin: &str,
        calls: &[Call<'_>],
    ) -> Result<Vec<Vec<Row>>, Option<tokio_postgres::Error>> {
        let all = async {
            lease.prepare(calls).await.map_err(Some)?;
            let flight = lease.flight(Some(begin), calls, Some("COMMIT")).await;
            flight.map_err(|broken| Some(broken.error))
        };
        let time = self.0.options.flight_timeout;
        let replies = tokio::time::timeout(time, all).await.unwrap_or(Err(None));
        if replies.is_ok() {
            lease.give_back();
        }
        replies
    }

    /// The store's clock: the server's, moved by the offset of tests.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn now(&self) -> Result<Timestamp, ReadError> {
        let replies = self.upkeep(vec![self.clock_call()]).await?;
        Ok(clock(replies.first())?)
    }

    fn clock_call(&self) -> Call<'static> {
        Call { sql: CLOCK, parameters: vec![value(self.0.seams.clock_parameter().0)] }
    }
}

fn clock(reply: Option<&Vec<Row>>) -> Result<Timestamp, Unreadable> {
    let row = reply.and_then(|rows| rows.first()).ok_or(Unreadable { what: "clock" })?;
    Ok(Timestamp(Fields::new(row, "clock").take()?))
}

/// Deliveries of operations: joined, so that one flight does. A row newer than the record is
/// left out by the reader. Index: operations_pkey, deliveries_pkey.
pub(super) const LOOK_UP_DELIVERIES: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
        WITH ORDINALITY AS k(bucket, account, operation_id, n)
      JOIN receiptd.operations o ON o.bucket = k.bucket AND o.account = k.account
        AND o.operation_id = k.operation_id
      JOIN receiptd.deliveries d ON d.bucket = o.bucket AND d.account = o.account
        AND d.inbox = o.inbox AND d.sequence = o.delivery_sequence"
);

/// Documents of operations, without content. Index: operations_pkey, documents_pkey.
pub(super) const LOOK_UP_DOCUMENTS: &str = concat!(
    "SELECT k.n, NULL::bytea, ",
    document_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
        WITH ORDINALITY AS k(bucket, account, operation_id, n)
      JOIN receiptd.operations o ON o.bucket = k.bucket AND o.account = k.account
        AND o.operation_id = k.operation_id
      JOIN receiptd.documents d ON d.bucket = o.bucket AND d.account = o.account
        AND d.target = o.target"
);

/// Locks that operations wait for. Index: operations_pkey, locks_pkey.
pub(super) const LOOK_UP_LOCKS: &str = concat!(
    "SELECT k.n, ",
    lock_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
        WITH ORDINALITY AS k(bucket, account, operation_id, n)
      JOIN receiptd.operations o ON o.bucket = k.bucket AND o.account = k.account
        AND o.operation_id = k.operation_id
      JOIN receiptd.locks l ON l.bucket = o.bucket AND l.account = o.account
        AND l.target = o.target
      WHERE o.wait_ticket + 0 IS NOT NULL"
);

impl PostgresStore {
    /// What there is under each key, in order: the record first, then its delivery, projection
    /// and, while it waits, the lock.
    pub async fn look_up(&self, keys: &[OperationKey]) -> Result<Vec<LookedUp>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<&OperationKey> = keys.iter().collect();
        let statements = [OPERATIONS, LOOK_UP_DELIVERIES, LOOK_UP_DOCUMENTS, LOOK_UP_LOCKS];
        let call = |sql| Call { sql, parameters: operation_keys(&wanted) };
        let replies = self.read(statements.map(call).into()).await?;
        let records = found(keys, &replies[0], "operation", |fields, key| {
            rows::operation(fields, key.clone())
        })?;
        let inbox = |record: &Option<Operation>| record.as_ref()?.inbox_key();
        let target = |record: &Option<Operation>| Some(record.as_ref()?.target_key());
        let deliveries = found(&records, &replies[1], "delivery", |fields, record| {
            inbox(record).map(|key| rows::delivery(fields, key)).transpose()
        })?;
        let documents = found(&records, &replies[2], "document", |fields, record| {
            target(record).map(|key| rows::document(fields, key)).transpose()
        })?;
        let locks = found(&records, &replies[3], "lock", |fields, record| {
            target(record).map(|key| rows::lock(fields, key)).transpose()
        })?;
        let parts = records.into_iter().zip(deliveries).zip(documents).zip(locks);
        let looked_up = parts.map(|(((operation, delivery), document), lock)| {
            let sequence = operation.as_ref().and_then(|record| record.delivery_sequence);
            let waits = operation.as_ref().is_some_and(|record| record.wait_ticket.is_some());
            let delivery = delivery.flatten();
            LookedUp {
                operation,
                deliveries: delivery
                    .into_iter()
                    .filter(|delivery| Some(delivery.key.sequence) == sequence)
                    .collect(),
                document: document.flatten(),
                lock: lock.flatten().filter(|_| waits),
            }
        });
        Ok(looked_up.collect())
    }
}

/// Index: accounts_pkey.
pub(super) const ACCOUNT: &str = concat!(
    "SELECT ",
    account_columns!(),
    " FROM receiptd.accounts a WHERE a.bucket = $1::smallint AND a.account = $2::text"
);

impl PostgresStore {
    /// An account's row.
    pub async fn account(&self, account: &Account) -> Result<Option<AccountRow>, ReadError> {
        Ok(self.account_and_now(account).await?.0)
    }

    /// An account's row, and the store's clock after it, in one flight.
    pub async fn account_and_now(
        &self,
        account: &Account,
    ) -> Result<(Option<AccountRow>, Timestamp), ReadError> {
        let calls = vec![Call { sql: ACCOUNT, parameters: of(account) }, self.clock_call()];
        let replies = self.read(calls).await?;
        let read = |row| rows::account(&mut Fields::new(row, "account"), account.clone());
        Ok((one(&replies).map(read).transpose()?, clock(replies.get(1))?))
    }
}

/// Index: documents_pkey.
const DOCUMENT: &str = concat!(
    "SELECT d.content, ",
    document_columns!(),
    " FROM receiptd.documents d
      WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.target = $3::text"
);

impl PostgresStore {
    /// A document with its content.
    pub async fn document(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        let mut parameters = of(&key.account);
        parameters.push(value(key.target.as_str()));
        let replies = self.read(vec![Call { sql: DOCUMENT, parameters }]).await?;
        let read = |row| rows::document(&mut Fields::new(row, "document"), key.clone());
        Ok(one(&replies).map(read).transpose()?)
    }
}

/// Index: documents_pkey.
const DOCUMENT_FACTS: &str = concat!(
    "SELECT NULL::bytea, ",
    document_columns!(),
    " FROM receiptd.documents d
      WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.target = $3::text"
);

impl PostgresStore {
    /// A document without its content.
    pub async fn document_facts(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        let mut parameters = of(&key.account);
        parameters.push(value(key.target.as_str()));
        let replies = self.read(vec![Call { sql: DOCUMENT_FACTS, parameters }]).await?;
        let read = |row| rows::document(&mut Fields::new(row, "document"), key.clone());
        Ok(one(&replies).map(read).transpose()?)
    }
}

/// Index: inboxes_pkey.
const INBOX: &str = concat!(
    "SELECT ",
    inbox_columns!(),
    " FROM receiptd.inboxes i
      WHERE i.bucket = $1::smallint AND i.account = $2::text AND i.inbox = $3::text"
);

impl PostgresStore {
    /// An inbox.
    pub async fn inbox(&self, key: &InboxKey) -> Result<Option<Inbox>, ReadError> {
        let replies = self.read(vec![Call { sql: INBOX, parameters: of_inbox(key) }]).await?;
        let read = |row| rows::inbox(&mut Fields::new(row, "inbox"), key.clone());
        Ok(one(&replies).map(read).transpose()?)
    }

    /// An inbox, and the row of its account, in one flight.
    pub async fn inbox_and_account(
        &self,
        key: &InboxKey,
    ) -> Result<(Option<Inbox>, Option<AccountRow>), ReadError> {
        let calls = vec![
            Call { sql: INBOX, parameters: of_inbox(key) },
            Call { sql: ACCOUNT, parameters: of(&key.account) },
        ];
        let replies = self.read(calls).await?;
        let read = |row| rows::inbox(&mut Fields::new(row, "inbox"), key.clone());
        let inbox = one(&replies).map(read).transpose()?;
        let read = |row| rows::account(&mut Fields::new(row, "account"), key.account.clone());
        Ok((inbox, nth(&replies, 1).map(read).transpose()?))
    }

    /// Deliveries by key, those that exist, in the order asked.
    pub async fn deliveries(&self, keys: &[DeliveryKey]) -> Result<Vec<Delivery>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let parameters = delivery_keys(&keys.iter().collect::<Vec<_>>());
        let replies = self.read(vec![Call { sql: DELIVERIES, parameters }]).await?;
        let deliveries = found(keys, &replies[0], "delivery", |fields, key| {
            rows::delivery(fields, key.inbox.clone())
        })?;
        Ok(deliveries.into_iter().flatten().collect())
    }

    /// Operations by key, those that exist, in the order asked, in one statement.
    pub async fn operations(&self, keys: &[OperationKey]) -> Result<Vec<Operation>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let parameters = operation_keys(&keys.iter().collect::<Vec<_>>());
        let replies = self.read(vec![Call { sql: OPERATIONS, parameters }]).await?;
        let operations = found(keys, &replies[0], "operation", |fields, key| {
            rows::operation(fields, key.clone())
        })?;
        Ok(operations.into_iter().flatten().collect())
    }

    /// Payloads of one kind, each whole, in the order asked.
    pub async fn payloads(
        &self,
        keys: &[OperationKey],
        kind: PayloadKind,
    ) -> Result<Vec<Option<Bytes>>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut parameters = operation_keys(&keys.iter().collect::<Vec<_>>());
        parameters.push(value(kind as i16));
        let replies = self.read(vec![Call { sql: PAYLOADS, parameters }]).await?;
        Ok(found(keys, &replies[0], "payload", |fields, _| {
            Ok(Bytes::copy_from_slice(fields.take()?))
        })?)
    }

    /// A part of one payload.
    pub async fn read_payload(
        &self,
        key: &OperationKey,
        kind: PayloadKind,
        offset: i64,
        length: i64,
    ) -> Result<Option<Bytes>, ReadError> {
        let mut parameters = operation_keys(&[key]);
        parameters.extend([value(kind as i16), value(offset), value(length)]);
        let replies = self.read(vec![Call { sql: PAYLOAD_SLICE, parameters }]).await?;
        let slices = found(&[key], &replies[0], "payload", |fields, _| {
            Ok(Bytes::copy_from_slice(fields.take()?))
        })?;
        Ok(slices.into_iter().flatten().next())
    }
}

macro_rules! payloads_by_key {
    ($body:literal) => {
        concat!(
            "SELECT k.n, ",
            $body,
            " FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
                WITH ORDINALITY AS k(bucket, account, operation_id, n)
            JOIN receiptd.payloads p ON p.bucket = k.bucket AND p.account = k.account
                AND p.operation_id = k.operation_id AND p.kind = $4::smallint"
        )
    };
}

/// Index: payloads_pkey.
pub(super) const PAYLOADS: &str = payloads_by_key!("p.body");

/// The column is stored uncompressed, so that only the pages of the slice are read. Index:
/// payloads_pkey.
pub(super) const PAYLOAD_SLICE: &str =
    payloads_by_key!("substring(p.body FROM $5::bigint::integer + 1 FOR $6::bigint::integer)");

/// Index: operations_pkey.
pub(super) const GLIMPSE_OPERATIONS: &str = "SELECT k.n, o.state, o.outcome_version
    FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
        WITH ORDINALITY AS k(bucket, account, operation_id, n)
    JOIN receiptd.operations o ON o.bucket = k.bucket AND o.account = k.account
        AND o.operation_id = k.operation_id";

/// Index: inboxes_pkey.
pub(super) const GLIMPSE_INBOXES: &str = "SELECT k.n, i.next_sequence - 1, i.pending, i.returned,
        i.offered, i.in_flight, i.acked_total + i.expired_total + i.dead_total, i.consumer_epoch
    FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, n)
    JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox";

impl PostgresStore {
    /// What waiting readers compare, in one flight; absent rows give `None`.
    pub async fn glimpse(
        &self,
        operations: &[OperationKey],
        inboxes: &[InboxKey],
    ) -> Result<(Vec<Option<OperationGlimpse>>, Vec<Option<InboxGlimpse>>), ReadError> {
        if operations.is_empty() && inboxes.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let of_operations = load::operation_keys(&operations.iter().collect::<Vec<_>>());
        let of_inboxes = inbox_keys(&inboxes.iter().collect::<Vec<_>>());
        let replies = self
            .upkeep(vec![
                Call { sql: GLIMPSE_OPERATIONS, parameters: of_operations },
                Call { sql: GLIMPSE_INBOXES, parameters: of_inboxes },
            ])
            .await?;
        let operations = found(operations, &replies[0], "operation", |fields, _| {
            Ok(OperationGlimpse { state: fields.take()?, outcome_version: fields.take()? })
        })?;
        let inboxes = found(inboxes, &replies[1], "inbox", |fields, _| {
            Ok(InboxGlimpse {
                last_sequence: fields.take()?,
                pending: fields.take()?,
                returned: fields.take()?,
                offered: fields.take()?,
                in_flight: fields.take()?,
                ended: fields.take()?,
                consumer_epoch: fields.take()?,
            })
        })?;
        Ok((operations, inboxes))
    }
}

/// Index: documents_pkey.
pub(super) const GLIMPSE_DOCUMENTS: &str = "SELECT k.n, d.revision, d.generation, d.present
    FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, target, n)
    JOIN receiptd.documents d ON d.bucket = k.bucket AND d.account = k.account
        AND d.target = k.target";

impl PostgresStore {
    /// What those who watch documents compare, in one flight; absent rows give `None`.
    pub async fn glimpse_documents(
        &self,
        keys: &[TargetKey],
    ) -> Result<Vec<Option<DocumentGlimpse>>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let parameters = load::target_keys(&keys.iter().collect::<Vec<_>>());
        let replies = self.upkeep(vec![Call { sql: GLIMPSE_DOCUMENTS, parameters }]).await?;
        let glimpses = found(keys, &replies[0], "document", |fields, _| {
            Ok(DocumentGlimpse {
                revision: fields.take()?,
                generation: fields.take()?,
                exists: fields.take::<i16>()? != 0,
            })
        })?;
        Ok(glimpses)
    }
}

/// `bucket, account`.
pub(super) fn of(account: &Account) -> Vec<Parameter<'_>> {
    vec![value(account.bucket()), value(account.as_str())]
}

/// `bucket, account, inbox`.
pub(super) fn of_inbox(key: &InboxKey) -> Vec<Parameter<'_>> {
    let mut parameters = of(&key.account);
    parameters.push(value(key.inbox.as_str()));
    parameters
}

/// The first row of the first reply.
pub(super) fn one(replies: &[Vec<Row>]) -> Option<&Row> {
    nth(replies, 0)
}

fn nth(replies: &[Vec<Row>], place: usize) -> Option<&Row> {
    replies.get(place).and_then(|rows| rows.first())
}
