//! Rows for the tests of the pure parts.

use crate::domain::{
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    ids::{Account, InboxName, Timestamp},
    inbox::Inbox,
    operation::{EffectCertainty, Operation, OperationKey, OperationState},
    sample,
};

pub(super) fn inbox() -> Inbox {
    Inbox::new(inbox_key(), 0, Timestamp(0))
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
        state,
        attempt: 1,
        queue_time: Timestamp(0),
        expire_time: Timestamp(0),
        ..sample::delivery(&format!("op-{sequence}"), sequence)
    }
}

pub(super) fn operation(delivery: &Delivery) -> Operation {
    let account = delivery.key.inbox.account.clone();
    Operation {
        key: OperationKey { account, id: delivery.operation_id.clone() },
        inbox: Some(delivery.key.inbox.inbox.clone()),
        accept_time: Timestamp(0),
        state: OperationState::Applied,
        certainty: EffectCertainty::Complete,
        outcome_version: 1,
        end_time: Some(Timestamp(0)),
        delivery_sequence: Some(delivery.key.sequence),
        ..sample::operation(delivery.operation_id.as_str())
    }
}
