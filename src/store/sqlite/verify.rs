//! The reads of [`crate::store::verify`], each in one read transaction on a reader's connection.
//!
//! What must stay true: each statement walks one index from where it starts, and stops at its limit.
//! Bodies are read row by row, so that a page of them stays bounded.

use rusqlite::{Connection, Row, params};

use super::{
    SqliteStore, by_key,
    by_key::{many, one},
    fault::Fault,
    query,
    rows::{
        self, Columns, delivery_columns, document_columns, inbox_columns, lock_columns,
        operation_columns,
    },
};
use crate::{
    domain::{
        audit::AuditChain,
        ids::{Account, ConsumerId, InboxName, Target},
        inbox::Inbox,
        lock::Lock,
        operation::{Operation, OperationKey, PayloadKind},
        record::Unreadable,
        verify::rows::{
            AccountFacts, DeliveryFacts, DocumentFacts, InboxFacts, LockFacts, OperationFacts,
            PayloadFacts,
        },
    },
    store::{
        ReadError,
        verify::{BYTES_MAX, CHAIN_MAX, ChainPage, EVENTS_EXAMINED_MAX},
    },
};

/// The account that follows in each table. Index: the primary keys.
pub(super) const NEXT_ACCOUNT: &str = "SELECT account FROM (\
    SELECT * FROM (SELECT bucket, account FROM accounts NOT INDEXED \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM operations NOT INDEXED \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM payloads \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM documents \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM locks NOT INDEXED \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM inboxes NOT INDEXED \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM deliveries NOT INDEXED \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1) \
    UNION ALL SELECT * FROM (SELECT bucket, account FROM audit \
        WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT 1)) \
    ORDER BY bucket, account LIMIT 1";

/// Index: the primary key.
pub(super) const COUNT_INBOXES: &str = "SELECT count(*) FROM inboxes NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND deleted = 0";

/// Whether any other table has a row of the account. Index: the primary keys.
pub(super) const IS_USED: &str = "SELECT \
    EXISTS (SELECT 1 FROM operations NOT INDEXED WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM payloads WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM documents WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM locks NOT INDEXED WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM inboxes NOT INDEXED WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM deliveries NOT INDEXED WHERE bucket = ?1 AND account = ?2) OR \
    EXISTS (SELECT 1 FROM audit WHERE bucket = ?1 AND account = ?2)";

/// Index: the primary key.
pub(super) const OPERATIONS_BY_ID: &str = concat!(
    "SELECT ",
    operation_columns!(),
    " FROM operations NOT INDEXED WHERE bucket = ?1 AND account = ?2 AND operation_id > ?3 \
     ORDER BY operation_id LIMIT ?4"
);

/// Index: the primary key.
pub(super) const KEPT_FROM: &str = "SELECT kept_from FROM inboxes NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3";

/// Index: the primary key.
pub(super) const PAYLOAD_KINDS: &str = "SELECT kind FROM payloads \
    WHERE bucket = ?1 AND account = ?2 AND operation_id = ?3 ORDER BY kind";

/// Index: the primary keys.
pub(super) const CHAINS: &str = "SELECT e.operation_id, max(EXISTS(\
        SELECT 1 FROM operations o NOT INDEXED WHERE o.bucket = ?1 AND o.account = ?2 \
        AND o.operation_id = e.operation_id)), count(*) \
    FROM (SELECT operation_id FROM audit WHERE bucket = ?1 AND account = ?2 \
        AND operation_id > ?3 ORDER BY operation_id LIMIT ?4) e \
    GROUP BY e.operation_id ORDER BY e.operation_id";

/// Index: the primary key.
pub(super) const DELIVERIES_BY_KEY: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries NOT INDEXED WHERE bucket = ?1 AND account = ?2 \
     AND (inbox, sequence) > (?3, ?4) ORDER BY inbox, sequence LIMIT ?5"
);

/// Index: the primary key.
pub(super) const INBOXES_BY_NAME: &str = concat!(
    "SELECT ",
    inbox_columns!(),
    " FROM inboxes NOT INDEXED WHERE bucket = ?1 AND account = ?2 AND inbox > ?3 \
     ORDER BY inbox LIMIT ?4"
);

/// Index: deliveries_open.
pub(super) const COUNT_OPEN: &str = "SELECT \
    count(*) FILTER (WHERE state = 1 AND sequence >= ?4), \
    count(*) FILTER (WHERE state = 1 AND sequence >= ?4 AND available_time IS NOT NULL), \
    count(*) FILTER (WHERE state = 2 AND sequence >= ?4), \
    count(*) FILTER (WHERE sequence < ?4) \
    FROM deliveries INDEXED BY deliveries_open \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL AND state IN (1, 2)";

/// Index: deliveries_open.
pub(super) const COUNT_HELD: &str = "SELECT consumer, consumer_epoch, count(*) \
    FROM deliveries INDEXED BY deliveries_open \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 AND due_time IS NOT NULL AND state = 2 \
        AND sequence >= ?4 AND consumer IS NOT NULL \
    GROUP BY consumer, consumer_epoch ORDER BY consumer, consumer_epoch";

/// Index: the primary key, backwards.
pub(super) const LAST_DELIVERY: &str = "SELECT sequence FROM deliveries NOT INDEXED \
    WHERE bucket = ?1 AND account = ?2 AND inbox = ?3 ORDER BY sequence DESC LIMIT 1";

/// Index: operations_unresolved.
pub(super) const COUNT_RESERVED: &str = "SELECT inbox, count(*) \
    FROM operations INDEXED BY operations_unresolved \
    WHERE bucket = ?1 AND account = ?2 AND end_time IS NULL AND inbox > ?3 AND inbox <= ?4 \
    GROUP BY inbox";

/// Index: operations_waiting.
pub(super) const COUNT_WAITING: &str = "SELECT count(*) \
    FROM operations INDEXED BY operations_waiting \
    WHERE bucket = ?1 AND account = ?2 AND target = ?3 AND wait_ticket IS NOT NULL";

/// Index: the primary key.
pub(super) const DOCUMENTS_BY_TARGET: &str = concat!(
    "SELECT ",
    document_columns!(),
    ", content FROM documents WHERE bucket = ?1 AND account = ?2 AND target > ?3 \
     ORDER BY target LIMIT ?4"
);

/// Index: the primary key.
pub(super) const PAYLOADS_BY_KEY: &str = "SELECT operation_id, kind, body FROM payloads \
    WHERE bucket = ?1 AND account = ?2 AND (operation_id, kind) > (?3, ?4) \
    ORDER BY operation_id, kind LIMIT ?5";

/// Index: the primary key.
pub(super) const REVISIONS: &str = "SELECT target, revision FROM documents \
    WHERE bucket = ?1 AND account = ?2 AND target > ?3 ORDER BY target LIMIT ?4";

/// Index: the primary key.
pub(super) const LOCKS_BY_TARGET: &str = concat!(
    "SELECT ",
    lock_columns!(),
    " FROM locks NOT INDEXED WHERE bucket = ?1 AND account = ?2 AND target > ?3 \
     ORDER BY target LIMIT ?4"
);

impl SqliteStore {
    /// See [`crate::store::Store::next_account`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn next_account(
        &self,
        after: Option<&Account>,
    ) -> Result<Option<Account>, ReadError> {
        let (bucket, name) = after
            .map_or((-1, String::new()), |account| (account.bucket(), account.as_str().to_owned()));
        let read = |row: &Row<'_>| Columns::of(row).account();
        self.read(move |connection| one(connection, NEXT_ACCOUNT, params![bucket, name], read))
            .await
    }

    /// See [`crate::store::Store::account_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn account_facts(&self, account: &Account) -> Result<AccountFacts, ReadError> {
        let account = account.clone();
        self.read(move |connection| {
            let row = by_key::account(connection, &account)?;
            let parameters = params![account.bucket(), account.as_str()];
            let inboxes = number(connection, COUNT_INBOXES, parameters)?.unwrap_or(0);
            let parameters = params![account.bucket(), account.as_str()];
            let used = number(connection, IS_USED, parameters)? == Some(1);
            Ok(AccountFacts { account, row, inboxes, used })
        })
        .await
    }

    /// See [`crate::store::Store::operation_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn operation_facts(
        &self,
        account: &Account,
        after: &[u8],
        limit: i64,
    ) -> Result<Vec<OperationFacts>, ReadError> {
        let (account, after) = (account.clone(), after.to_vec());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let found = many(connection, OPERATIONS_BY_ID, parameters, rows::operation)?;
            found.into_iter().map(|operation| of_operation(connection, operation)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::orphaned_chains`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn orphaned_chains(
        &self,
        account: &Account,
        after: &[u8],
    ) -> Result<ChainPage, ReadError> {
        let (account, after) = (account.clone(), after.to_vec());
        self.read(move |connection| {
            let limit = EVENTS_EXAMINED_MAX;
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let found: Vec<(Vec<u8>, bool, i64)> = many(connection, CHAINS, parameters, read)?;
            let rows: i64 = found.iter().map(|chain| chain.2).sum();
            let next = found.last().filter(|_| rows == limit).map(|chain| chain.0.clone());
            let examined = u64::try_from(found.len()).unwrap_or(u64::MAX);
            let orphans = found.into_iter().filter(|(_, owned, _)| !owned);
            let chain = |stored: Vec<u8>| AuditChain::from_stored(account.clone(), &stored);
            let orphans = orphans.map(|(stored, ..)| {
                chain(stored).ok_or_else(|| Unreadable { what: "audit chain" }.into())
            });
            Ok(ChainPage { orphans: orphans.collect::<Result<_, Fault>>()?, examined, next })
        })
        .await
    }

    /// See [`crate::store::Store::delivery_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn delivery_facts(
        &self,
        account: &Account,
        (inbox, sequence): (&str, i64),
        limit: i64,
    ) -> Result<Vec<DeliveryFacts>, ReadError> {
        let (account, inbox) = (account.clone(), inbox.to_owned());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), inbox, sequence, limit];
            let found = many(connection, DELIVERIES_BY_KEY, parameters, rows::delivery)?;
            let facts = found.into_iter().map(|delivery| {
                let operation = by_key::operation(connection, &delivery.operation_key())?;
                Ok(DeliveryFacts { delivery, operation })
            });
            facts.collect()
        })
        .await
    }

    /// See [`crate::store::Store::inbox_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn inbox_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<InboxFacts>, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let found = many(connection, INBOXES_BY_NAME, parameters, rows::inbox)?;
            let last = found.last().map_or("", |inbox| inbox.key.inbox.as_str());
            let parameters = params![account.bucket(), account.as_str(), after, last];
            let read = |row: &Row<'_>| Ok((Columns::of(row).inbox()?, row.get(1)?));
            let reserved: Vec<(InboxName, i64)> =
                many(connection, COUNT_RESERVED, parameters, read)?;
            let facts = found.into_iter().map(|inbox| {
                let reserved = reserved.iter().find(|(name, _)| *name == inbox.key.inbox);
                let reserved = reserved.map_or(0, |(_, count)| *count);
                of_inbox(connection, inbox, reserved)
            });
            facts.collect()
        })
        .await
    }

    /// See [`crate::store::Store::lock_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn lock_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<LockFacts>, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let found = many(connection, LOCKS_BY_TARGET, parameters, rows::lock)?;
            found.into_iter().map(|lock| of_lock(connection, lock)).collect()
        })
        .await
    }

    /// See [`crate::store::Store::document_facts_of`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn document_facts_of(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<DocumentFacts>, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let mut statement = connection.prepare_cached(DOCUMENTS_BY_TARGET)?;
            let mut found = statement.query(parameters)?;
            let (mut facts, mut bytes) = (Vec::new(), 0);
            while bytes < BYTES_MAX {
                let Some(row) = found.next()? else { break };
                let document = rows::document_with_content(row)?;
                bytes += i64::try_from(document.content.as_ref().map_or(0, bytes::Bytes::len))
                    .unwrap_or(i64::MAX);
                let has_lock = by_key::lock(connection, &document.key)?.is_some();
                facts.push(DocumentFacts { document, has_lock });
            }
            Ok(facts)
        })
        .await
    }

    /// See [`crate::store::Store::payload_facts`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn payload_facts(
        &self,
        account: &Account,
        (id, kind): (&[u8], i16),
        limit: i64,
    ) -> Result<Vec<PayloadFacts>, ReadError> {
        let (account, id) = (account.clone(), id.to_vec());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), id, kind, limit];
            let mut statement = connection.prepare_cached(PAYLOADS_BY_KEY)?;
            let mut found = statement.query(parameters)?;
            let (mut facts, mut bytes) = (Vec::new(), 0);
            while bytes < BYTES_MAX {
                let Some(row) = found.next()? else { break };
                let id = Columns::of(row).operation_id()?;
                let key = OperationKey { account: account.clone(), id };
                let kind = payload_kind(row.get(1)?)?;
                let body: Vec<u8> = row.get(2)?;
                bytes += i64::try_from(body.len()).unwrap_or(i64::MAX);
                let operation = by_key::operation(connection, &key)?;
                facts.push(PayloadFacts { key, kind, body: body.into(), operation });
            }
            Ok(facts)
        })
        .await
    }

    /// See [`crate::store::Store::revisions`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn revisions(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(Target, i64)>, ReadError> {
        let (account, after) = (account.clone(), after.to_owned());
        self.read(move |connection| {
            let parameters = params![account.bucket(), account.as_str(), after, limit];
            let read = |row: &Row<'_>| Ok((Columns::of(row).target()?, row.get(1)?));
            many(connection, REVISIONS, parameters, read)
        })
        .await
    }
}

fn payload_kind(number: i16) -> Result<PayloadKind, Fault> {
    let kind = PayloadKind::from_stored(number);
    kind.ok_or_else(|| Unreadable { what: "kind of a payload" }.into())
}

/// The first column of the first row.
fn number(
    connection: &Connection,
    statement: &'static str,
    parameters: impl rusqlite::Params,
) -> Result<Option<i64>, Fault> {
    one(connection, statement, parameters, |row| Ok(row.get(0)?))
}

fn of_operation(connection: &Connection, operation: Operation) -> Result<OperationFacts, Fault> {
    let key = &operation.key;
    let (bucket, account) = (key.account.bucket(), key.account.as_str());
    let chain = AuditChain::Operation(key.clone());
    let audit = query::list_audit(connection, &chain, 0, CHAIN_MAX)?;
    let delivery = match operation.delivery_key() {
        Some(key) => by_key::delivery(connection, &key)?,
        None => None,
    };
    let kept_from = match &operation.inbox {
        Some(inbox) => number(connection, KEPT_FROM, params![bucket, account, inbox.as_str()])?,
        None => None,
    };
    let target = operation.target_key();
    let document = by_key::document(connection, &target)?;
    let lock = by_key::lock(connection, &target)?;
    let parameters = params![bucket, account, key.id.to_stored()];
    let payloads = many(connection, PAYLOAD_KINDS, parameters, |row| payload_kind(row.get(0)?))?;
    Ok(OperationFacts { operation, audit, delivery, kept_from, document, lock, payloads })
}

fn of_inbox(connection: &Connection, inbox: Inbox, reserved: i64) -> Result<InboxFacts, Fault> {
    let key = &inbox.key;
    let (bucket, account, name) = (key.account.bucket(), key.account.as_str(), key.inbox.as_str());
    let first = inbox.first_sequence;
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let open = one(connection, COUNT_OPEN, params![bucket, account, name, first], read)?;
    let (pending, returned, in_flight, closing) = open.unwrap_or((0, 0, 0, 0));
    let read = |row: &Row<'_>| {
        let consumer: String = row.get(0)?;
        Ok((ConsumerId::from_stored(&consumer), row.get(1)?, row.get(2)?))
    };
    let held = many(connection, COUNT_HELD, params![bucket, account, name, first], read)?;
    let last = number(connection, LAST_DELIVERY, params![bucket, account, name])?.unwrap_or(0);
    Ok(InboxFacts { inbox, pending, returned, in_flight, closing, reserved, held, last })
}

fn of_lock(connection: &Connection, lock: Lock) -> Result<LockFacts, Fault> {
    let account = &lock.key.account;
    let holder = match &lock.holder {
        Some(holder) => {
            let id = holder.operation_id.clone();
            by_key::operation(connection, &OperationKey { account: account.clone(), id })?
        }
        None => None,
    };
    let delivery = match holder.as_ref().and_then(Operation::delivery_key) {
        Some(key) => by_key::delivery(connection, &key)?,
        None => None,
    };
    let parameters = params![account.bucket(), account.as_str(), lock.key.target.as_str()];
    let waiting = number(connection, COUNT_WAITING, parameters)?.unwrap_or(0);
    let document = by_key::document(connection, &lock.key)?.is_some();
    Ok(LockFacts { lock, holder, delivery, waiting, document })
}
