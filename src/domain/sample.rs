//! Rows for tests of rules that only look at a few of their columns.

use std::collections::BTreeMap;

use super::{
    audit::AuditHead,
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    ids::{Account, InboxName, MintTime, OperationId, Target, Timestamp},
    intent::{IntentDigest, LockMode},
    operation::{
        Arguments, EffectCertainty, Operation, OperationKey, OperationState, ResultKind, Retained,
    },
};

/// An accepted operation on `notes/a`.
pub(crate) fn operation(id: &str) -> Operation {
    Operation {
        key: OperationKey {
            account: Account::from_stored("acme"),
            id: OperationId::parse(id).expect("valid"),
        },
        mint_time: MintTime::from_millis(1_700_000_000_000),
        digest: IntentDigest { version: 1, whole: [7; 32], parts: [0; 80] },
        action: "document.append".to_owned(),
        target: Target::from_stored("notes/a"),
        expected_revision: None,
        content_type: "application/json".to_owned(),
        arguments: Arguments::Inline(bytes::Bytes::new()),
        result_kind: ResultKind::Receipt,
        lock_mode: LockMode::UntilFinal,
        inbox: Some(InboxName::from_stored("default")),
        labels: BTreeMap::new(),
        accept_time: Timestamp(1_700_000_000_000_000),
        start_deadline: Timestamp(1_700_003_600_000_000),
        state: OperationState::Accepted,
        certainty: EffectCertainty::None,
        outcome_version: 0,
        outcome: None,
        result: None,
        end_time: None,
        due_time: None,
        wait_ticket: None,
        delivery_sequence: None,
        audit: AuditHead::default(),
        replay_count: 0,
        last_replay_time: None,
        retained: Retained::Whole,
    }
}

/// A pending delivery of the operation `id` in `default`.
pub(crate) fn delivery(id: &str, sequence: i64) -> Delivery {
    Delivery {
        key: DeliveryKey {
            inbox: InboxKey {
                account: Account::from_stored("acme"),
                inbox: InboxName::from_stored("default"),
            },
            sequence,
        },
        operation_id: OperationId::parse(id).expect("valid"),
        outcome_version: 1,
        state: DeliveryState::Pending,
        attempt: 0,
        attempts_before: 0,
        queue_time: Timestamp(1_700_000_000_000_000),
        available_time: None,
        ack_deadline: None,
        expire_time: Timestamp(1_700_000_900_000_000),
        due_time: None,
        end_time: None,
        last_failure_time: None,
        consumer: None,
        returns: 0,
        lock_target: None,
        ack: None,
    }
}
