//! Contradictions, and how much was looked at.

use crate::{
    domain::verify::{Contradiction, ContradictionKind},
    proto,
    verify::Counts,
};

/// A contradiction as it is shown.
pub fn contradiction(told: &Contradiction) -> proto::Contradiction {
    proto::Contradiction {
        kind: kind(told.kind).into(),
        operation_id: told.operation_id.clone(),
        inbox: told.inbox.clone(),
        sequence: told.sequence,
        target: told.target.clone(),
        expected: told.expected.clone(),
        found: told.found.clone(),
        next_step: told.kind.next_step().to_owned(),
    }
}

/// How much was looked at, as it is shown.
pub fn rows(counts: &Counts) -> proto::VerifiedRows {
    let count = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
    proto::VerifiedRows {
        operations: count(counts.operations),
        audit_rows: count(counts.audit_rows),
        deliveries: count(counts.deliveries),
        inboxes: count(counts.inboxes),
        locks: count(counts.locks),
        documents: count(counts.documents),
        payloads: count(counts.payloads),
        receipts: count(counts.receipts),
    }
}

fn kind(kind: ContradictionKind) -> proto::contradiction::Kind {
    match kind {
        ContradictionKind::ChainRowChanged => proto::contradiction::Kind::ChainRowChanged,
        ContradictionKind::ChainCut => proto::contradiction::Kind::ChainCut,
        ContradictionKind::ChainEnd => proto::contradiction::Kind::ChainEnd,
        ContradictionKind::ChainWithoutOperation => {
            proto::contradiction::Kind::ChainWithoutOperation
        }
        ContradictionKind::ImpossibleHistory => proto::contradiction::Kind::ImpossibleHistory,
        ContradictionKind::OperationDiffers => proto::contradiction::Kind::OperationDiffers,
        ContradictionKind::IntentDiffers => proto::contradiction::Kind::IntentDiffers,
        ContradictionKind::DeliveryDiffers => proto::contradiction::Kind::DeliveryDiffers,
        ContradictionKind::DeliveryMissing => proto::contradiction::Kind::DeliveryMissing,
        ContradictionKind::DeliveryWithoutOperation => {
            proto::contradiction::Kind::DeliveryWithoutOperation
        }
        ContradictionKind::InboxCounter => proto::contradiction::Kind::InboxCounter,
        ContradictionKind::AccountDiffers => proto::contradiction::Kind::AccountDiffers,
        ContradictionKind::LockWithoutHolder => proto::contradiction::Kind::LockWithoutHolder,
        ContradictionKind::LockDiffers => proto::contradiction::Kind::LockDiffers,
        ContradictionKind::DocumentDiffers => proto::contradiction::Kind::DocumentDiffers,
        ContradictionKind::EffectWithoutReceipt => proto::contradiction::Kind::EffectWithoutReceipt,
        ContradictionKind::EffectTwice => proto::contradiction::Kind::EffectTwice,
        ContradictionKind::ReceiptWithoutEffect => proto::contradiction::Kind::ReceiptWithoutEffect,
        ContradictionKind::PayloadMissing => proto::contradiction::Kind::PayloadMissing,
        ContradictionKind::PayloadWithoutOperation => {
            proto::contradiction::Kind::PayloadWithoutOperation
        }
        ContradictionKind::PayloadDiffers => proto::contradiction::Kind::PayloadDiffers,
    }
}
