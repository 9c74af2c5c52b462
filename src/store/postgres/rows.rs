//! From the server's rows to ours.
//!
//! What must stay true: the columns are read in the order in which the macro beside the function
//! lists them. A key is not fetched where the caller knows it (a row then begins with the number
//! of the key that was asked for). Deliberately not here: which rows.

use bytes::Bytes;
use tokio_postgres::{Row, types::FromSql};

use crate::domain::{
    audit::{AuditChain, AuditHead, AuditRow},
    delivery::{AckEvidence, Delivery, DeliveryKey, DeliveryState},
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

/// Reads a row from left to right.
pub(super) struct Fields<'a> {
    row: &'a Row,
    next: usize,
    what: &'static str,
}

impl<'a> Fields<'a> {
    /// The fields of a row that should be a `what`.
    pub(super) fn new(row: &'a Row, what: &'static str) -> Self {
        Fields { row, next: 0, what }
    }

    /// The next field.
    ///
    /// # Errors
    /// [`Unreadable`] if it is of another type than expected.
    pub(super) fn take<T: FromSql<'a>>(&mut self) -> Result<T, Unreadable> {
        let value = self.row.try_get(self.next).map_err(|_| self.unreadable())?;
        self.next += 1;
        Ok(value)
    }

    /// The number of the key that was asked for, from 1 in SQL, as an index.
    pub(super) fn ordinal(&mut self) -> Result<usize, Unreadable> {
        let number: i64 = self.take()?;
        usize::try_from(number - 1).map_err(|_| self.unreadable())
    }

    /// An operation's id.
    pub(super) fn operation_id(&mut self) -> Result<OperationId, Unreadable> {
        OperationId::from_stored(self.take()?).ok_or_else(|| self.unreadable())
    }

    fn time(&mut self) -> Result<Timestamp, Unreadable> {
        self.take().map(Timestamp)
    }

    fn optional_time(&mut self) -> Result<Option<Timestamp>, Unreadable> {
        Ok(self.take::<Option<i64>>()?.map(Timestamp))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take::<&[u8]>()?.try_into().map_err(|_| self.unreadable())
    }

    fn known<N: FromSql<'a>, T>(
        &mut self,
        from_stored: impl Fn(N) -> Option<T>,
    ) -> Result<T, Unreadable> {
        from_stored(self.take()?).ok_or_else(|| self.unreadable())
    }

    /// What this row cannot be read as.
    pub(super) fn unreadable(&self) -> Unreadable {
        Unreadable { what: self.what }
    }
}

macro_rules! operation_columns {
    () => {
        "o.outcome, o.mint_time, o.digest_version, o.digest, o.part_digests, o.action, o.target,
         o.expected_revision, o.content_type, o.arguments, o.lock_mode, o.result_kind, o.inbox, o.labels,
         o.accept_time, o.start_deadline, o.state, o.certainty, o.outcome_version,
         o.end_time, o.due_time, o.wait_ticket, o.delivery_sequence, o.audit_length,
         o.audit_hash, o.replay_count, o.last_replay_time, o.retained"
    };
}

/// Reads `operation_columns`.
pub(super) fn operation(
    fields: &mut Fields<'_>,
    key: OperationKey,
) -> Result<Operation, Unreadable> {
    // Two fields of one column, which therefore comes first.
    let (outcome, result) = match fields.take::<Option<&[u8]>>()? {
        Some(bytes) => unpack_outcome(bytes).map(|(outcome, result)| (Some(outcome), result))?,
        None => (None, None),
    };
    Ok(Operation {
        key,
        mint_time: MintTime::from_millis(fields.take()?),
        digest: IntentDigest {
            version: fields.take()?,
            whole: fields.bytes()?,
            parts: fields.bytes()?,
        },
        action: fields.take()?,
        target: Target::from_stored(fields.take()?),
        expected_revision: fields.take()?,
        content_type: fields.take()?,
        arguments: match fields.take::<Option<&[u8]>>()? {
            Some(inline) => Arguments::Inline(Bytes::copy_from_slice(inline)),
            None => Arguments::Apart,
        },
        lock_mode: fields.known(LockMode::from_stored)?,
        result_kind: fields.known(ResultKind::from_stored)?,
        inbox: fields.take::<Option<&str>>()?.map(InboxName::from_stored),
        labels: unpack_labels(fields.take()?)?,
        accept_time: fields.time()?,
        start_deadline: fields.time()?,
        state: fields.known(OperationState::from_stored)?,
        certainty: fields.known(EffectCertainty::from_stored)?,
        outcome_version: fields.take()?,
        outcome,
        result,
        end_time: fields.optional_time()?,
        due_time: fields.optional_time()?,
        wait_ticket: fields.take()?,
        delivery_sequence: fields.take()?,
        audit: AuditHead { length: fields.take()?, hash: fields.bytes()? },
        replay_count: fields.take()?,
        last_replay_time: fields.optional_time()?,
        retained: fields.known(Retained::from_stored)?,
    })
}

macro_rules! account_columns {
    () => {
        "a.create_time, a.inboxes, a.closed_before, a.evidence_floor, a.due_time, a.policy"
    };
}

/// Reads `account_columns`.
pub(super) fn account(fields: &mut Fields<'_>, account: Account) -> Result<AccountRow, Unreadable> {
    let (create_time, inboxes) = (fields.time()?, fields.take()?);
    let (closed_before, evidence_floor) = (fields.time()?, fields.time()?);
    let due_time = fields.time()?;
    let (own, audit) = unpack_account_policy(fields.take()?)?;
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

/// Without the content, which stands before them.
macro_rules! document_columns {
    () => {
        "d.revision, d.generation, d.present, d.content_type, d.size, d.content_hash,
         d.create_time, d.update_time, d.locked"
    };
}

/// Reads the content, or NULL where it was not fetched, and `document_columns`.
pub(super) fn document(fields: &mut Fields<'_>, key: TargetKey) -> Result<Document, Unreadable> {
    Ok(Document {
        key,
        content: fields.take::<Option<&[u8]>>()?.map(Bytes::copy_from_slice),
        revision: fields.take()?,
        generation: fields.take()?,
        exists: fields.take::<i16>()? != 0,
        content_type: fields.take()?,
        size: fields.take()?,
        content_hash: fields.bytes()?,
        create_time: fields.time()?,
        update_time: fields.time()?,
        locked: fields.take::<i16>()? != 0,
    })
}

macro_rules! lock_columns {
    () => {
        "l.holder, l.acquire_time, l.release_time, l.lock_mode, l.next_ticket, l.waiting,
         l.due_time"
    };
}

/// Reads `lock_columns`.
pub(super) fn lock(fields: &mut Fields<'_>, key: TargetKey) -> Result<Lock, Unreadable> {
    let holder: Option<&[u8]> = fields.take()?;
    let acquire_time = fields.optional_time()?;
    let release_time = fields.optional_time()?;
    let mode: Option<i16> = fields.take()?;
    let holder = match (holder, acquire_time, release_time, mode) {
        (None, None, None, None) => None,
        (Some(id), Some(acquire_time), Some(release_time), Some(mode)) => Some(Holder {
            operation_id: OperationId::from_stored(id).ok_or_else(|| fields.unreadable())?,
            acquire_time,
            release_time,
            mode: LockMode::from_stored(mode).ok_or_else(|| fields.unreadable())?,
        }),
        _ => return Err(fields.unreadable()),
    };
    Ok(Lock {
        key,
        holder,
        next_ticket: fields.take()?,
        waiting: fields.take()?,
        due_time: fields.time()?,
    })
}

macro_rules! inbox_columns {
    () => {
        "i.generation, i.next_sequence, i.offered, i.reserved, i.pending, i.returned,
         i.in_flight, i.acked_total, i.expired_total, i.dead_total, i.consumer_epoch,
         i.consumers, i.create_time, i.due_time, i.first_sequence, i.kept_from, i.closing,
         i.deleted, i.slots_limit, i.in_flight_limit, i.active_time, i.upkeep_time,
         i.skipped"
    };
}

/// Reads `inbox_columns`.
pub(super) fn inbox(
    fields: &mut Fields<'_>,
    key: crate::domain::delivery::InboxKey,
) -> Result<Inbox, Unreadable> {
    Ok(Inbox {
        key,
        generation: fields.take()?,
        next_sequence: fields.take()?,
        offered: fields.take()?,
        reserved: fields.take()?,
        pending: fields.take()?,
        returned: fields.take()?,
        in_flight: fields.take()?,
        acked_total: fields.take()?,
        expired_total: fields.take()?,
        dead_total: fields.take()?,
        consumer_epoch: fields.take()?,
        consumers: unpack_consumers(fields.take()?)?,
        create_time: fields.time()?,
        due_time: fields.optional_time()?,
        first_sequence: fields.take()?,
        kept_from: fields.take()?,
        closing: fields.take()?,
        deleted: fields.take::<i16>()? != 0,
        slots_limit: fields.take()?,
        in_flight_limit: fields.take()?,
        active_time: fields.time()?,
        upkeep_time: fields.optional_time()?,
        skipped: unpack_skipped(fields.take()?)?,
    })
}

/// Begins with the number, which completes the key of its inbox.
macro_rules! delivery_columns {
    () => {
        "d.sequence, d.operation_id, d.outcome_version, d.state, d.attempt, d.queue_time,
         d.available_time, d.ack_deadline, d.expire_time, d.due_time, d.end_time,
         d.last_failure_time, d.consumer, d.consumer_epoch, d.returns, d.lock_target,
         d.ack_time, d.ack_attempt, d.ack_subject, d.ack_consumer, d.ack_hash,
         d.attempts_before"
    };
}

/// Reads `delivery_columns`.
pub(super) fn delivery(
    fields: &mut Fields<'_>,
    inbox: crate::domain::delivery::InboxKey,
) -> Result<Delivery, Unreadable> {
    Ok(Delivery {
        key: DeliveryKey { inbox, sequence: fields.take()? },
        operation_id: fields.operation_id()?,
        outcome_version: fields.take()?,
        state: fields.known(DeliveryState::from_stored)?,
        attempt: fields.take()?,
        queue_time: fields.time()?,
        available_time: fields.optional_time()?,
        ack_deadline: fields.optional_time()?,
        expire_time: fields.time()?,
        due_time: fields.optional_time()?,
        end_time: fields.optional_time()?,
        last_failure_time: fields.optional_time()?,
        consumer: consumer(fields)?,
        returns: fields.take()?,
        lock_target: fields.take::<Option<&str>>()?.map(Target::from_stored),
        ack: ack(fields)?,
        attempts_before: fields.take()?,
    })
}

fn consumer(fields: &mut Fields<'_>) -> Result<Option<(ConsumerId, i64)>, Unreadable> {
    match (fields.take::<Option<&str>>()?, fields.take()?) {
        (Some(id), Some(epoch)) => Ok(Some((ConsumerId::from_stored(id), epoch))),
        (None, None) => Ok(None),
        _ => Err(fields.unreadable()),
    }
}

fn ack(fields: &mut Fields<'_>) -> Result<Option<AckEvidence>, Unreadable> {
    let time = fields.optional_time()?;
    let attempt: Option<i32> = fields.take()?;
    let subject: Option<String> = fields.take()?;
    let consumer: Option<String> = fields.take()?;
    let hash: Option<&[u8]> = fields.take()?;
    match (time, attempt, subject, consumer, hash) {
        (None, None, None, None, None) => Ok(None),
        (Some(time), Some(attempt), Some(subject), Some(consumer), Some(hash)) => {
            let hash = hash.try_into().map_err(|_| fields.unreadable())?;
            Ok(Some(AckEvidence { time, attempt, subject, consumer, hash }))
        }
        _ => Err(fields.unreadable()),
    }
}

macro_rules! audit_columns {
    () => {
        "e.number, e.time, e.subject, e.events, e.hash"
    };
}

/// Reads `audit_columns`.
pub(super) fn audit(fields: &mut Fields<'_>, chain: AuditChain) -> Result<AuditRow, Unreadable> {
    Ok(AuditRow {
        chain,
        number: fields.take()?,
        time: fields.time()?,
        subject: fields.take()?,
        events: fields.take()?,
        hash: fields.bytes()?,
    })
}

/// The server's clock in microseconds, moved by the offset in `$parameter`; or, from 10^15 on, that
/// parameter itself (see [`crate::engine::seams::Seams::clock_parameter`]).
macro_rules! clock {
    ($parameter:literal) => {
        concat!(
            "CASE WHEN ",
            $parameter,
            "::bigint >= 1000000000000000 THEN ",
            $parameter,
            "::bigint
        ELSE (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + ",
            $parameter,
            "::bigint END"
        )
    };
}

pub(super) use {
    account_columns, audit_columns, clock, delivery_columns, document_columns, inbox_columns,
    lock_columns, operation_columns,
};
