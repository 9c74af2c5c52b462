//! Reading rows: which columns a row has, and what they mean.
//!
//! What must stay true: each list of columns stands beside the function that reads it, in the
//! same order; a value that this release does not know is refused, never guessed. Deliberately
//! not here: statements.

use bytes::Bytes;
use rusqlite::{Row, types::FromSql};

use super::fault::Fault;
use crate::domain::{
    audit::{AuditChain, AuditHead, AuditRow},
    delivery::{AckEvidence, Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::Document,
    ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Target, Timestamp},
    inbox::{AccountRow, Inbox},
    intent::{IntentDigest, LockMode},
    lock::{Holder, Lock, TargetKey},
    operation::{
        Arguments, EffectCertainty, Operation, OperationKey, OperationState, ResultKind, Retained,
    },
    record::{
        Unreadable, unpack_account_policy, unpack_consumers, unpack_labels, unpack_outcome,
        unpack_skipped,
    },
};

/// Reads a row's columns one after the other.
pub(super) struct Columns<'row, 'statement> {
    row: &'row Row<'statement>,
    next: usize,
}

impl<'row, 'statement> Columns<'row, 'statement> {
    /// From the first column on.
    pub(super) fn of(row: &'row Row<'statement>) -> Self {
        Columns { row, next: 0 }
    }

    /// The next column.
    pub(super) fn take<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        let value = self.row.get(self.next)?;
        self.next += 1;
        Ok(value)
    }

    /// The next column, a text, without a copy of it.
    fn text(&mut self) -> Result<&'row str, Fault> {
        let value = self.row.get_ref(self.next)?;
        self.next += 1;
        value.as_str().map_err(|_| Unreadable { what: "text" }.into())
    }

    /// The next column, an account.
    pub(super) fn account(&mut self) -> Result<Account, Fault> {
        Ok(Account::from_stored(self.text()?))
    }

    /// The next column, an operation's id.
    pub(super) fn operation_id(&mut self) -> Result<OperationId, Fault> {
        operation_id(&self.take::<Vec<u8>>()?)
    }

    /// The next two columns, an audit chain.
    fn chain(&mut self) -> Result<AuditChain, Fault> {
        let account = self.account()?;
        let chain = AuditChain::from_stored(account, &self.take::<Vec<u8>>()?);
        chain.ok_or_else(|| Unreadable { what: "audit chain" }.into())
    }

    /// The next column, a target.
    pub(super) fn target(&mut self) -> Result<Target, Fault> {
        Ok(Target::from_stored(self.text()?))
    }

    /// The next column, an inbox's name.
    pub(super) fn inbox(&mut self) -> Result<InboxName, Fault> {
        Ok(InboxName::from_stored(self.text()?))
    }

    /// The next column, a time.
    pub(super) fn time(&mut self) -> Result<Timestamp, Fault> {
        Ok(Timestamp(self.take()?))
    }

    /// The next column, a time that may be absent.
    fn optional_time(&mut self) -> Result<Option<Timestamp>, Fault> {
        Ok(self.take::<Option<i64>>()?.map(Timestamp))
    }
}

/// Reads a stored id.
pub(super) fn operation_id(stored: &[u8]) -> Result<OperationId, Fault> {
    let id = OperationId::from_stored(stored);
    id.ok_or_else(|| Unreadable { what: "operation id" }.into())
}

fn lock_mode(number: i16) -> Result<LockMode, Fault> {
    LockMode::from_stored(number).ok_or_else(|| Unreadable { what: "lock mode" }.into())
}

fn flag(number: i64, what: &'static str) -> Result<bool, Fault> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Unreadable { what }.into()),
    }
}

/// What [`operation`] reads.
macro_rules! operation_columns {
    () => {
        "outcome, account, operation_id, mint_time, digest_version, digest, part_digests, action, target, \
         expected_revision, content_type, arguments, lock_mode, result_kind, inbox, labels, \
         accept_time, start_deadline, state, certainty, outcome_version, end_time, \
         due_time, wait_ticket, delivery_sequence, audit_length, audit_hash, replay_count, \
         last_replay_time, retained"
    };
}
pub(super) use operation_columns;

/// Reads an operation.
pub(super) fn operation(row: &Row<'_>) -> Result<Operation, Fault> {
    let columns = &mut Columns::of(row);
    // Two fields of one column, which therefore comes first.
    let (outcome, result) = match columns.take::<Option<Vec<u8>>>()? {
        Some(bytes) => unpack_outcome(&bytes).map(|(outcome, result)| (Some(outcome), result))?,
        None => (None, None),
    };
    Ok(Operation {
        key: OperationKey { account: columns.account()?, id: columns.operation_id()? },
        mint_time: MintTime::from_millis(columns.take()?),
        digest: IntentDigest {
            version: columns.take()?,
            whole: columns.take()?,
            parts: columns.take()?,
        },
        action: columns.take()?,
        target: columns.target()?,
        expected_revision: columns.take()?,
        content_type: columns.take()?,
        arguments: match columns.take::<Option<Vec<u8>>>()? {
            Some(bytes) => Arguments::Inline(Bytes::from(bytes)),
            None => Arguments::Apart,
        },
        lock_mode: lock_mode(columns.take()?)?,
        result_kind: ResultKind::from_stored(columns.take()?)
            .ok_or(Unreadable { what: "result kind" })?,
        inbox: columns.take::<Option<String>>()?.map(|name| InboxName::from_stored(&name)),
        labels: unpack_labels(columns.text()?)?,
        accept_time: columns.time()?,
        start_deadline: columns.time()?,
        state: OperationState::from_stored(columns.take()?)
            .ok_or(Unreadable { what: "operation state" })?,
        certainty: EffectCertainty::from_stored(columns.take()?)
            .ok_or(Unreadable { what: "effect certainty" })?,
        outcome_version: columns.take()?,
        outcome,
        result,
        end_time: columns.optional_time()?,
        due_time: columns.optional_time()?,
        wait_ticket: columns.take()?,
        delivery_sequence: columns.take()?,
        audit: AuditHead { length: columns.take()?, hash: columns.take()? },
        replay_count: columns.take()?,
        last_replay_time: columns.optional_time()?,
        retained: Retained::from_stored(columns.take()?).ok_or(Unreadable { what: "retained" })?,
    })
}

/// What [`account`] reads.
macro_rules! account_columns {
    () => {
        "account, create_time, inboxes, closed_before, evidence_floor, due_time, policy"
    };
}
pub(super) use account_columns;

/// Reads an account.
pub(super) fn account(row: &Row<'_>) -> Result<AccountRow, Fault> {
    let columns = &mut Columns::of(row);
    let (account, create_time, inboxes) = (columns.account()?, columns.time()?, columns.take()?);
    let (closed_before, evidence_floor) = (columns.time()?, columns.time()?);
    let due_time = columns.time()?;
    let policy: Option<Vec<u8>> = columns.take()?;
    let (own, audit) = unpack_account_policy(policy.as_deref())?;
    Ok(AccountRow {
        account,
        create_time,
        inboxes,
        closed_before,
        evidence_floor,
        due_time,
        own,
        audit,
    })
}

/// What [`document`] reads. The content comes after these, where it is read at all.
macro_rules! document_columns {
    () => {
        "account, target, revision, generation, present, content_type, size, content_hash, \
         create_time, update_time, locked"
    };
}
pub(super) use document_columns;

/// Reads a document without its content.
pub(super) fn document(row: &Row<'_>) -> Result<Document, Fault> {
    read_document(&mut Columns::of(row))
}

/// Reads a document with its content.
pub(super) fn document_with_content(row: &Row<'_>) -> Result<Document, Fault> {
    let columns = &mut Columns::of(row);
    let document = read_document(columns)?;
    Ok(Document { content: Some(Bytes::from(columns.take::<Vec<u8>>()?)), ..document })
}

fn read_document(columns: &mut Columns<'_, '_>) -> Result<Document, Fault> {
    Ok(Document {
        key: TargetKey { account: columns.account()?, target: columns.target()? },
        revision: columns.take()?,
        generation: columns.take()?,
        exists: flag(columns.take()?, "presence of a document")?,
        content_type: columns.take()?,
        content: None,
        size: columns.take()?,
        content_hash: columns.take()?,
        create_time: columns.time()?,
        update_time: columns.time()?,
        locked: flag(columns.take()?, "flag of a lock")?,
    })
}

/// What [`lock`] reads.
macro_rules! lock_columns {
    () => {
        "account, target, holder, acquire_time, release_time, lock_mode, next_ticket, waiting, \
         due_time"
    };
}
pub(super) use lock_columns;

/// Reads a lock.
pub(super) fn lock(row: &Row<'_>) -> Result<Lock, Fault> {
    let columns = &mut Columns::of(row);
    let key = TargetKey { account: columns.account()?, target: columns.target()? };
    let id = columns.take::<Option<Vec<u8>>>()?;
    let acquire_time = columns.optional_time()?;
    let release_time = columns.optional_time()?;
    let mode = columns.take::<Option<i16>>()?;
    let holder = match (id, acquire_time, release_time, mode) {
        (None, None, None, None) => None,
        (Some(id), Some(acquire_time), Some(release_time), Some(mode)) => Some(Holder {
            operation_id: operation_id(&id)?,
            acquire_time,
            release_time,
            mode: lock_mode(mode)?,
        }),
        _ => return Err(Unreadable { what: "holder of a lock" }.into()),
    };
    Ok(Lock {
        key,
        holder,
        next_ticket: columns.take()?,
        waiting: columns.take()?,
        due_time: columns.time()?,
    })
}

/// What [`inbox`] reads.
macro_rules! inbox_columns {
    () => {
        "account, inbox, generation, next_sequence, offered, reserved, pending, returned, \
         in_flight, acked_total, expired_total, dead_total, consumer_epoch, consumers, \
         create_time, due_time, first_sequence, kept_from, closing, deleted, slots_limit, \
         in_flight_limit, active_time, upkeep_time, skipped"
    };
}
pub(super) use inbox_columns;

/// Reads an inbox.
pub(super) fn inbox(row: &Row<'_>) -> Result<Inbox, Fault> {
    let columns = &mut Columns::of(row);
    Ok(Inbox {
        key: InboxKey { account: columns.account()?, inbox: columns.inbox()? },
        generation: columns.take()?,
        next_sequence: columns.take()?,
        offered: columns.take()?,
        reserved: columns.take()?,
        pending: columns.take()?,
        returned: columns.take()?,
        in_flight: columns.take()?,
        acked_total: columns.take()?,
        expired_total: columns.take()?,
        dead_total: columns.take()?,
        consumer_epoch: columns.take()?,
        consumers: unpack_consumers(&columns.take::<Vec<u8>>()?)?,
        create_time: columns.time()?,
        due_time: columns.optional_time()?,
        first_sequence: columns.take()?,
        kept_from: columns.take()?,
        closing: columns.take()?,
        deleted: flag(columns.take()?, "marker of an inbox")?,
        slots_limit: columns.take()?,
        in_flight_limit: columns.take()?,
        active_time: columns.time()?,
        upkeep_time: columns.optional_time()?,
        skipped: unpack_skipped(columns.take::<Option<Vec<u8>>>()?.as_deref())?,
    })
}

/// What [`delivery`] reads.
macro_rules! delivery_columns {
    () => {
        "account, inbox, sequence, operation_id, outcome_version, state, attempt, queue_time, \
         available_time, ack_deadline, expire_time, due_time, end_time, last_failure_time, \
         consumer, consumer_epoch, returns, lock_target, ack_time, ack_attempt, ack_subject, \
         ack_consumer, ack_hash, attempts_before"
    };
}
pub(super) use delivery_columns;

/// Reads a delivery.
pub(super) fn delivery(row: &Row<'_>) -> Result<Delivery, Fault> {
    delivery_from(&mut Columns::of(row))
}

/// Reads a delivery whose columns follow others.
pub(super) fn delivery_from(columns: &mut Columns<'_, '_>) -> Result<Delivery, Fault> {
    let inbox = InboxKey { account: columns.account()?, inbox: columns.inbox()? };
    Ok(Delivery {
        key: DeliveryKey { inbox, sequence: columns.take()? },
        operation_id: columns.operation_id()?,
        outcome_version: columns.take()?,
        state: DeliveryState::from_stored(columns.take()?)
            .ok_or(Unreadable { what: "delivery state" })?,
        attempt: columns.take()?,
        queue_time: columns.time()?,
        available_time: columns.optional_time()?,
        ack_deadline: columns.optional_time()?,
        expire_time: columns.time()?,
        due_time: columns.optional_time()?,
        end_time: columns.optional_time()?,
        last_failure_time: columns.optional_time()?,
        consumer: match (columns.take::<Option<String>>()?, columns.take::<Option<i64>>()?) {
            (Some(consumer), Some(epoch)) => Some((ConsumerId::from_stored(&consumer), epoch)),
            (None, None) => None,
            _ => return Err(Unreadable { what: "consumer of a delivery" }.into()),
        },
        returns: columns.take()?,
        lock_target: columns.take::<Option<String>>()?.map(|target| Target::from_stored(&target)),
        ack: ack(columns)?,
        attempts_before: columns.take()?,
    })
}

fn ack(columns: &mut Columns<'_, '_>) -> Result<Option<AckEvidence>, Fault> {
    let time = columns.optional_time()?;
    let attempt = columns.take::<Option<i32>>()?;
    let subject = columns.take::<Option<String>>()?;
    let consumer = columns.take::<Option<String>>()?;
    let hash = columns.take::<Option<[u8; 32]>>()?;
    match (time, attempt, subject, consumer, hash) {
        (None, None, None, None, None) => Ok(None),
        (Some(time), Some(attempt), Some(subject), Some(consumer), Some(hash)) => {
            Ok(Some(AckEvidence { time, attempt, subject, consumer, hash }))
        }
        _ => Err(Unreadable { what: "evidence of an ack" }.into()),
    }
}

/// What [`audit_row`] reads.
macro_rules! audit_columns {
    () => {
        "account, operation_id, number, time, subject, events, hash"
    };
}
pub(super) use audit_columns;

/// Reads an audit row.
pub(super) fn audit_row(row: &Row<'_>) -> Result<AuditRow, Fault> {
    let columns = &mut Columns::of(row);
    Ok(AuditRow {
        chain: columns.chain()?,
        number: columns.take()?,
        time: columns.time()?,
        subject: columns.take()?,
        events: columns.take()?,
        hash: columns.take()?,
    })
}
