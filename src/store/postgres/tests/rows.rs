//! One row of each table, with every optional field set or none.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::domain::{
    audit::{AuditChain, AuditEvent, AuditHead, AuditKind, AuditRow},
    delivery::{AckEvidence, Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::{Document, DocumentChange},
    epoch::Skipped,
    ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Target, Timestamp},
    inbox::{AccountRow, Consumer, Inbox},
    intent::{IntentDigest, LockMode},
    lock::{Holder, Lock, TargetKey},
    operation::{
        Arguments, EffectCertainty, Operation, OperationKey, OperationState, Outcome, ResultInfo,
        ResultKind, Retained,
    },
    record::pack_events,
    settings::OwnSettings,
};

/// Whether optional fields are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Optional {
    Set,
    Unset,
}

impl Optional {
    fn of<T>(self, value: T) -> Option<T> {
        (self == Optional::Set).then_some(value)
    }
}

pub(super) fn account(name: &str) -> Account {
    Account::parse(name).expect("a good name")
}

pub(super) fn operation_key(id: &str) -> OperationKey {
    OperationKey { account: account("alice"), id: OperationId::parse(id).expect("a good id") }
}

pub(super) fn target_key(target: &str) -> TargetKey {
    let target = Target::parse("target", target).expect("a good target");
    TargetKey { account: account("alice"), target }
}

pub(super) fn inbox_key(name: &str) -> InboxKey {
    InboxKey { account: account("alice"), inbox: InboxName::parse(name).expect("a good name") }
}

pub(super) fn delivery_key(inbox: &str, sequence: i64) -> DeliveryKey {
    DeliveryKey { inbox: inbox_key(inbox), sequence }
}

pub(super) fn consumer(name: &str) -> ConsumerId {
    ConsumerId::parse(name).expect("a good name")
}

pub(super) fn operation(id: &str, optional: Optional) -> Operation {
    let change = DocumentChange {
        base_revision: 1,
        result_revision: 2,
        generation: 1,
        size_before: 3,
        size_after: 4,
        hash_before: vec![1; 32],
        hash_after: vec![2; 32],
        edits: 1,
    };
    let state = match optional {
        Optional::Set => OperationState::Applied,
        Optional::Unset => OperationState::Accepted,
    };
    Operation {
        key: operation_key(id),
        mint_time: MintTime::from_millis(1_234),
        digest: IntentDigest { version: 1, whole: [3; 32], parts: [4; 80] },
        action: "document.put".into(),
        target: target_key("a/ä.txt").target,
        expected_revision: optional.of(7),
        content_type: "text/plain".into(),
        arguments: match optional {
            Optional::Set => Arguments::Inline(Bytes::from_static(b"\0\xff arguments")),
            Optional::Unset => Arguments::Apart,
        },
        lock_mode: match optional {
            Optional::Set => LockMode::UntilAcked,
            Optional::Unset => LockMode::UntilFinal,
        },
        result_kind: match optional {
            Optional::Set => ResultKind::Content,
            Optional::Unset => ResultKind::Receipt,
        },
        inbox: optional.of(inbox_key("main").inbox),
        labels: BTreeMap::from([("a \"b\"".into(), "ö|=".into())]),
        accept_time: Timestamp(10),
        start_deadline: Timestamp(20),
        state,
        certainty: EffectCertainty::Complete,
        outcome_version: 1,
        outcome: optional.of(Outcome::Applied(change)),
        result: optional.of(ResultInfo {
            size: 2,
            sha256: [2; 32],
            content_type: "text/plain".into(),
            kept: true,
        }),
        end_time: optional.of(Timestamp(30)),
        due_time: optional.of(Timestamp(40)),
        wait_ticket: optional.of(5),
        delivery_sequence: optional.of(6),
        audit: AuditHead { length: 1, hash: [5; 32] },
        replay_count: 8,
        last_replay_time: optional.of(Timestamp(50)),
        retained: Retained::Whole,
    }
}

pub(super) fn account_row(name: &str) -> AccountRow {
    AccountRow {
        account: account(name),
        create_time: Timestamp(1),
        inboxes: 2,
        closed_before: Timestamp(3),
        evidence_floor: Timestamp(4),
        due_time: Timestamp(5),
        own: OwnSettings::from_stored([(4, 5_000_000)]),
        audit: AuditHead { length: 1, hash: [6; 32] },
    }
}

pub(super) fn document(target: &str) -> Document {
    Document {
        key: target_key(target),
        revision: 1,
        generation: 2,
        exists: true,
        content_type: "text/plain".into(),
        content: Some(Bytes::from_static(b"the content")),
        size: 11,
        content_hash: [6; 32],
        create_time: Timestamp(3),
        update_time: Timestamp(4),
        locked: false,
    }
}

pub(super) fn lock(target: &str, optional: Optional) -> Lock {
    Lock {
        key: target_key(target),
        holder: optional.of(Holder {
            operation_id: operation_key("holder").id,
            acquire_time: Timestamp(1),
            release_time: Timestamp(2),
            mode: LockMode::UntilAcked,
        }),
        next_ticket: 3,
        waiting: 4,
        due_time: Timestamp(5),
    }
}

pub(super) fn inbox(name: &str, optional: Optional) -> Inbox {
    let consumers = optional.of(Consumer {
        id: consumer("laptop"),
        epoch: 1,
        window: 2,
        in_flight: 3,
        open_time: Timestamp(4),
        lease_time: Timestamp(5),
    });
    Inbox {
        generation: 1,
        next_sequence: 7,
        offered: 3,
        reserved: 4,
        pending: 5,
        returned: 6,
        in_flight: 7,
        acked_total: 8,
        expired_total: 9,
        dead_total: 10,
        consumer_epoch: 11,
        consumers: consumers.into_iter().collect(),
        due_time: optional.of(Timestamp(12)),
        first_sequence: 2,
        kept_from: 15,
        closing: 16,
        deleted: optional.of(()).is_some(),
        slots_limit: optional.of(17),
        in_flight_limit: optional.of(18),
        active_time: Timestamp(19),
        upkeep_time: optional.of(Timestamp(20)),
        skipped: optional.of(Skipped { first: 2, last: 7 }).into_iter().collect(),
        ..Inbox::new(inbox_key(name), 0, Timestamp(13))
    }
}

pub(super) fn delivery(inbox: &str, sequence: i64, optional: Optional) -> Delivery {
    Delivery {
        key: delivery_key(inbox, sequence),
        operation_id: operation_key("0190163d-8694-739b-aea5-966c26f8ad91").id,
        outcome_version: 1,
        state: DeliveryState::Pending,
        attempt: 0,
        attempts_before: 12,
        queue_time: Timestamp(1),
        available_time: optional.of(Timestamp(2)),
        ack_deadline: optional.of(Timestamp(3)),
        expire_time: Timestamp(4),
        due_time: optional.of(Timestamp(5)),
        end_time: optional.of(Timestamp(6)),
        last_failure_time: optional.of(Timestamp(7)),
        consumer: optional.of((consumer("laptop"), 8)),
        returns: 9,
        lock_target: optional.of(target_key("held").target),
        ack: optional.of(AckEvidence {
            time: Timestamp(10),
            attempt: 11,
            subject: "user:a".into(),
            consumer: String::new(),
            hash: [7; 32],
        }),
    }
}

pub(super) fn audit_row(id: &str, number: i32) -> AuditRow {
    AuditRow {
        chain: AuditChain::Operation(operation_key(id)),
        number,
        time: Timestamp(1),
        subject: "user:a".into(),
        events: pack_events(&[AuditEvent::plain(AuditKind::Accepted)]),
        hash: [8; 32],
    }
}
