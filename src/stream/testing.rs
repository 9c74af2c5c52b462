//! Rows for the tests of the pure parts.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::domain::{
    audit::AuditHead,
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    ids::{Account, InboxName, MintTime, OperationId, Target, Timestamp},
    inbox::Inbox,
    intent::{IntentDigest, LockMode},
    operation::{Arguments, EffectCertainty, Operation, OperationKey, OperationState},
};

pub(super) fn inbox() -> Inbox {
    Inbox::new(inbox_key(), Timestamp(0))
}

fn inbox_key() -> InboxKey {
    InboxKey {
        account: Account::parse("local").expect("valid"),
        inbox: InboxName::parse("").expect("valid"),
    }
}

pub(super) fn delivery(sequence: i64, state: DeliveryState) -> Delivery {
    Delivery {
        key: DeliveryKey { inbox: inbox_key(), sequence },
        operation_id: OperationId::parse(&format!("op-{sequence}")).expect("valid"),
        outcome_version: 1,
        state,
        attempt: 1,
        queue_time: Timestamp(0),
        available_time: None,
        ack_deadline: None,
        expire_time: Timestamp(0),
        due_time: None,
        end_time: None,
        last_failure_time: None,
        consumer: None,
        returns: 0,
        lock_target: None,
        ack: None,
    }
}

pub(super) fn operation(delivery: &Delivery) -> Operation {
    let account = delivery.key.inbox.account.clone();
    Operation {
        key: OperationKey { account, id: delivery.operation_id.clone() },
        mint_time: MintTime::from_millis(0),
        digest: IntentDigest { version: 1, whole: [0; 32], parts: [0; _] },
        action: "document.put".to_owned(),
        target: Target::from_stored("a.txt"),
        expected_revision: None,
        content_type: String::new(),
        arguments: Arguments::Inline(Bytes::new()),
        lock_mode: LockMode::UntilFinal,
        inbox: Some(delivery.key.inbox.inbox.clone()),
        labels: BTreeMap::new(),
        accept_time: Timestamp(0),
        start_deadline: Timestamp(0),
        state: OperationState::Applied,
        certainty: EffectCertainty::Complete,
        outcome_version: 1,
        outcome: None,
        end_time: Some(Timestamp(0)),
        due_time: None,
        wait_ticket: None,
        delivery_sequence: Some(delivery.key.sequence),
        audit: AuditHead::default(),
        replay_count: 0,
        last_replay_time: None,
    }
}
