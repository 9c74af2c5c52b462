//! The reads of [`crate::store::verify`]: the statements of a page travel in one flight, and see one
//! snapshot.
//!
//! What must stay true: nothing is decided from these reads and nothing is written, so that the
//! level of isolation which the rest of the store keeps to is no matter here; a snapshot that lasted
//! longer than a page would keep dead rows alive.

use std::collections::HashMap;

use bytes::Bytes;
use tokio_postgres::Row;

use super::{
    PostgresStore,
    read::of,
    read_lists::each,
    rows::{self, Fields},
    session::{Call, Parameter, value},
    verify_statements as sql,
};
use crate::{
    domain::{
        audit::AuditChain,
        delivery::{Delivery, DeliveryKey, InboxKey},
        ids::{Account, ConsumerId, InboxName, OperationId, Target},
        lock::TargetKey,
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

/// One snapshot for all statements of a page.
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The replies to a page's statements, in their order.
pub(super) struct Replies(std::vec::IntoIter<Vec<Row>>);

impl Replies {
    pub(super) fn into_rows(self) -> impl Iterator<Item = Vec<Row>> {
        self.0
    }

    fn next(&mut self) -> Vec<Row> {
        self.0.next().unwrap_or_default()
    }
}

impl PostgresStore {
    /// Runs statements with the same parameters over one snapshot.
    pub(super) async fn snapshot<'a>(&self, calls: Vec<Call<'a>>) -> Result<Replies, ReadError> {
        let replies = self.query(&self.0.reads, BEGIN_SNAPSHOT, calls).await?;
        Ok(Replies(replies.into_iter()))
    }

    /// See [`crate::store::Store::next_account`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn next_account(
        &self,
        after: Option<&Account>,
    ) -> Result<Option<Account>, ReadError> {
        let parameters = match after {
            Some(account) => of(account),
            None => vec![value(-1_i16), value("")],
        };
        let mut replies = self.snapshot(vec![call(sql::NEXT_ACCOUNT, parameters)]).await?;
        let rows = replies.next();
        let account = rows.first().map(|row| Fields::new(row, "account").take::<&str>());
        Ok(account.transpose()?.map(Account::from_stored))
    }

    /// See [`crate::store::Store::account_facts`].
    pub async fn account_facts(&self, account: &Account) -> Result<AccountFacts, ReadError> {
        let statements = [super::read::ACCOUNT, sql::COUNT_INBOXES, sql::IS_USED];
        let mut replies =
            self.snapshot(statements.map(|sql| call(sql, of(account))).into()).await?;
        let (row, inboxes, used) = (replies.next(), replies.next(), replies.next());
        let read = |row| rows::account(&mut Fields::new(row, "account"), account.clone());
        let row = row.first().map(read).transpose()?;
        let inboxes = inboxes.first().map(|row| Fields::new(row, "count").take());
        let inboxes = inboxes.transpose()?.unwrap_or(0);
        let used = used.first().map(|row| Fields::new(row, "account").take());
        let used = used.transpose()?.unwrap_or(false);
        Ok(AccountFacts { account: account.clone(), row, inboxes, used })
    }

    /// See [`crate::store::Store::operation_facts`].
    pub async fn operation_facts(
        &self,
        account: &Account,
        after: &[u8],
        limit: i64,
    ) -> Result<Vec<OperationFacts>, ReadError> {
        let page = || {
            let mut parameters = of(account);
            parameters.extend([value(after), value(limit)]);
            parameters
        };
        let mut chains = page();
        chains.push(value(CHAIN_MAX));
        let calls = vec![
            call(sql::OPERATIONS_BY_ID, page()),
            call(sql::CHAINS_OF_PAGE, chains),
            call(sql::DELIVERIES_OF_PAGE, page()),
            call(sql::INBOXES_OF_PAGE, page()),
            call(sql::DOCUMENTS_OF_PAGE, page()),
            call(sql::LOCKS_OF_PAGE, page()),
            call(sql::PAYLOADS_OF_PAGE, page()),
        ];
        let mut replies = self.snapshot(calls).await?;
        let operations = operations(account, &replies.next())?;
        let mut audit = by_operation(account, &replies.next(), |fields, key| {
            rows::audit(fields, AuditChain::Operation(key.clone()))
        })?;
        let mut deliveries =
            by_operation(account, &replies.next(), |fields, _| delivery(account, fields))?;
        let mut kept = by_operation(account, &replies.next(), |fields, _| fields.take::<i64>())?;
        let mut documents = by_operation(account, &replies.next(), |fields, _| {
            let key = target(account, fields)?;
            rows::document(fields, key)
        })?;
        let mut locks = by_operation(account, &replies.next(), |fields, _| {
            let key = target(account, fields)?;
            rows::lock(fields, key)
        })?;
        let mut payloads =
            by_operation(account, &replies.next(), |fields, _| payload_kind(fields))?;
        let facts = operations.into_iter().map(|operation| {
            let id = operation.key.id.clone();
            OperationFacts {
                operation,
                audit: audit.remove(&id).unwrap_or_default(),
                delivery: deliveries.remove(&id).and_then(|mut found| found.pop()),
                kept_from: kept.remove(&id).and_then(|mut found| found.pop()),
                document: documents.remove(&id).and_then(|mut found| found.pop()),
                lock: locks.remove(&id).and_then(|mut found| found.pop()),
                payloads: payloads.remove(&id).unwrap_or_default(),
            }
        });
        Ok(facts.collect())
    }

    /// See [`crate::store::Store::orphaned_chains`].
    pub async fn orphaned_chains(
        &self,
        account: &Account,
        after: &[u8],
    ) -> Result<ChainPage, ReadError> {
        let mut parameters = of(account);
        parameters.extend([value(after), value(EVENTS_EXAMINED_MAX)]);
        let mut replies = self.snapshot(vec![call(sql::CHAINS, parameters)]).await?;
        let found = each(&replies.next(), "audit chain", |fields| {
            Ok((fields.take::<Vec<u8>>()?, fields.take::<bool>()?, fields.take::<i64>()?))
        })?;
        let rows: i64 = found.iter().map(|chain| chain.2).sum();
        let last = found.last().filter(|_| rows == EVENTS_EXAMINED_MAX);
        let next = last.map(|chain| chain.0.clone());
        let examined = u64::try_from(found.len()).unwrap_or(u64::MAX);
        let orphans = found.into_iter().filter(|(_, owned, _)| !owned);
        let orphans = orphans.map(|(stored, ..)| {
            let chain = AuditChain::from_stored(account.clone(), &stored);
            chain.ok_or(Unreadable { what: "audit chain" })
        });
        Ok(ChainPage { orphans: orphans.collect::<Result<_, Unreadable>>()?, examined, next })
    }

    /// See [`crate::store::Store::delivery_facts`].
    pub async fn delivery_facts(
        &self,
        account: &Account,
        (inbox, sequence): (&str, i64),
        limit: i64,
    ) -> Result<Vec<DeliveryFacts>, ReadError> {
        let page = || {
            let mut parameters = of(account);
            parameters.extend([value(inbox), value(sequence), value(limit)]);
            parameters
        };
        let calls =
            vec![call(sql::DELIVERIES_BY_KEY, page()), call(sql::OPERATIONS_OF_DELIVERIES, page())];
        let mut replies = self.snapshot(calls).await?;
        let deliveries = each(&replies.next(), "delivery", |fields| delivery(account, fields))?;
        let operations = each(&replies.next(), "operation", |fields| {
            let inbox = inbox_key(account, fields)?;
            let key = DeliveryKey { inbox, sequence: fields.take()? };
            Ok((key, operation(account, fields)?))
        })?;
        let mut operations: HashMap<DeliveryKey, Operation> = operations.into_iter().collect();
        let facts = deliveries.into_iter().map(|delivery| {
            let operation = operations.remove(&delivery.key);
            DeliveryFacts { delivery, operation }
        });
        Ok(facts.collect())
    }

    /// See [`crate::store::Store::inbox_facts`].
    pub async fn inbox_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<InboxFacts>, ReadError> {
        let statements =
            [sql::INBOXES_BY_NAME, sql::COUNT_DELIVERIES, sql::COUNT_HELD, sql::COUNT_RESERVED];
        let calls = statements.map(|sql| call(sql, named_page(account, after, limit)));
        let mut replies = self.snapshot(calls.into()).await?;
        let inboxes = each(&replies.next(), "inbox", |fields| {
            let key = inbox_key(account, fields)?;
            rows::inbox(fields, key)
        })?;
        let counts = each(&replies.next(), "count", |fields| {
            let name = name(fields)?;
            let counts = [fields.take()?, fields.take()?, fields.take()?, fields.take()?];
            Ok((name, (counts, fields.take::<i64>()?)))
        })?;
        let counts: HashMap<InboxName, ([i64; 4], i64)> = counts.into_iter().collect();
        let held = each(&replies.next(), "count", |fields| {
            let name = name(fields)?;
            let consumer = ConsumerId::from_stored(fields.take()?);
            Ok((name, (consumer, fields.take::<i64>()?, fields.take::<i64>()?)))
        })?;
        let reserved =
            each(&replies.next(), "count", |fields| Ok((name(fields)?, fields.take::<i64>()?)))?;
        let reserved: HashMap<InboxName, i64> = reserved.into_iter().collect();
        let facts = inboxes.into_iter().map(|inbox| {
            let name = &inbox.key.inbox;
            let (counts, last) = counts.get(name).copied().unwrap_or_default();
            let [pending, returned, in_flight, closing] = counts;
            let reserved = reserved.get(name).copied().unwrap_or(0);
            let held = held.iter().filter(|(of, _)| of == name).map(|(_, held)| held.clone());
            let held = held.collect();
            InboxFacts { inbox, pending, returned, in_flight, closing, reserved, held, last }
        });
        Ok(facts.collect())
    }

    /// See [`crate::store::Store::lock_facts`].
    pub async fn lock_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<LockFacts>, ReadError> {
        let statements =
            [sql::LOCKS_BY_TARGET, sql::HOLDERS, sql::HOLDERS_DELIVERIES, sql::COUNT_WAITING];
        let calls = statements.map(|sql| call(sql, named_page(account, after, limit)));
        let mut replies = self.snapshot(calls.into()).await?;
        let locks = each(&replies.next(), "lock", |fields| {
            let key = target(account, fields)?;
            rows::lock(fields, key)
        })?;
        let holders = each(&replies.next(), "operation", |fields| {
            Ok((target(account, fields)?, operation(account, fields)?))
        })?;
        let mut holders: HashMap<TargetKey, Operation> = holders.into_iter().collect();
        let deliveries = each(&replies.next(), "delivery", |fields| {
            Ok((target(account, fields)?, delivery(account, fields)?))
        })?;
        let mut deliveries: HashMap<TargetKey, Delivery> = deliveries.into_iter().collect();
        let counts = each(&replies.next(), "count", |fields| {
            Ok((target(account, fields)?, (fields.take::<i64>()?, fields.take::<bool>()?)))
        })?;
        let counts: HashMap<TargetKey, (i64, bool)> = counts.into_iter().collect();
        let facts = locks.into_iter().map(|lock| {
            let (waiting, document) = counts.get(&lock.key).copied().unwrap_or_default();
            let (holder, delivery) = (holders.remove(&lock.key), deliveries.remove(&lock.key));
            LockFacts { lock, holder, delivery, waiting, document }
        });
        Ok(facts.collect())
    }

    /// See [`crate::store::Store::document_facts_of`].
    pub async fn document_facts_of(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<DocumentFacts>, ReadError> {
        let mut parameters = named_page(account, after, limit);
        parameters.push(value(BYTES_MAX));
        let mut replies = self.snapshot(vec![call(sql::DOCUMENTS_BY_TARGET, parameters)]).await?;
        each(&replies.next(), "document", |fields| {
            let key = target(account, fields)?;
            let has_lock = fields.take()?;
            Ok(DocumentFacts { document: rows::document(fields, key)?, has_lock })
        })
    }

    /// See [`crate::store::Store::payload_facts`].
    pub async fn payload_facts(
        &self,
        account: &Account,
        (id, kind): (&[u8], i16),
        limit: i64,
    ) -> Result<Vec<PayloadFacts>, ReadError> {
        let page = || {
            let mut parameters = of(account);
            parameters.extend([value(id), value(kind), value(limit)]);
            parameters
        };
        let mut bounded = page();
        bounded.push(value(BYTES_MAX));
        let calls =
            vec![call(sql::PAYLOADS_BY_KEY, bounded), call(sql::OPERATIONS_OF_PAYLOADS, page())];
        let mut replies = self.snapshot(calls).await?;
        let bodies = each(&replies.next(), "payload", |fields| {
            let key = OperationKey { account: account.clone(), id: fields.operation_id()? };
            let kind = payload_kind(fields)?;
            Ok((key, kind, Bytes::copy_from_slice(fields.take::<&[u8]>()?)))
        })?;
        let operations = operations(account, &replies.next())?;
        let operations: HashMap<OperationKey, Operation> =
            operations.into_iter().map(|row| (row.key.clone(), row)).collect();
        let facts = bodies.into_iter().map(|(key, kind, body)| {
            let operation = operations.get(&key).cloned();
            PayloadFacts { key, kind, body, operation }
        });
        Ok(facts.collect())
    }

    /// See [`crate::store::Store::revisions`].
    pub async fn revisions(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(Target, i64)>, ReadError> {
        let parameters = named_page(account, after, limit);
        let mut replies = self.snapshot(vec![call(sql::REVISIONS, parameters)]).await?;
        each(&replies.next(), "document", |fields| {
            Ok((Target::from_stored(fields.take()?), fields.take()?))
        })
    }
}

fn call<'a>(sql: &'static str, parameters: Vec<Parameter<'a>>) -> Call<'a> {
    Call { sql, parameters }
}

fn named_page<'a>(account: &'a Account, after: &'a str, limit: i64) -> Vec<Parameter<'a>> {
    let mut parameters = of(account);
    parameters.extend([value(after), value(limit)]);
    parameters
}

fn name(fields: &mut Fields<'_>) -> Result<InboxName, Unreadable> {
    fields.take::<&str>().map(InboxName::from_stored)
}

fn inbox_key(account: &Account, fields: &mut Fields<'_>) -> Result<InboxKey, Unreadable> {
    Ok(InboxKey { account: account.clone(), inbox: name(fields)? })
}

fn target(account: &Account, fields: &mut Fields<'_>) -> Result<TargetKey, Unreadable> {
    let target = Target::from_stored(fields.take()?);
    Ok(TargetKey { account: account.clone(), target })
}

fn delivery(account: &Account, fields: &mut Fields<'_>) -> Result<Delivery, Unreadable> {
    let inbox = inbox_key(account, fields)?;
    rows::delivery(fields, inbox)
}

fn operation(account: &Account, fields: &mut Fields<'_>) -> Result<Operation, Unreadable> {
    let key = OperationKey { account: account.clone(), id: fields.operation_id()? };
    rows::operation(fields, key)
}

fn operations(account: &Account, rows: &[Row]) -> Result<Vec<Operation>, ReadError> {
    each(rows, "operation", |fields| operation(account, fields))
}

fn payload_kind(fields: &mut Fields<'_>) -> Result<PayloadKind, Unreadable> {
    let kind = PayloadKind::from_stored(fields.take()?);
    kind.ok_or(Unreadable { what: "kind of a payload" })
}

/// What there is for each operation; the rows of one keep their order.
fn by_operation<T>(
    account: &Account,
    rows: &[Row],
    read: impl Fn(&mut Fields<'_>, &OperationKey) -> Result<T, Unreadable>,
) -> Result<HashMap<OperationId, Vec<T>>, ReadError> {
    let mut found: HashMap<OperationId, Vec<T>> = HashMap::new();
    let rows = each(rows, "row of an operation", |fields| {
        let key = OperationKey { account: account.clone(), id: fields.operation_id()? };
        Ok((read(fields, &key)?, key.id))
    })?;
    for (row, id) in rows {
        found.entry(id).or_default().push(row);
    }
    Ok(found)
}
