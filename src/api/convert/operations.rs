//! Operations, receipts, deliveries, locks and documents, for callers.
//!
//! What must stay true: [`receipt`] is a function of what never changes once an outcome version
//! exists, so that it is equal byte for byte on every answer (contract section 2).

use super::times::{duration, timestamp};
use crate::{
    domain::{
        audit::AuditKind,
        command::{CancelOutcome, Origin},
        delivery::{Delivery, DeliveryState},
        document::{self, Document, DocumentChange},
        ids::Timestamp,
        intent::LockMode,
        lock::Lock,
        operation::{
            EffectCertainty, Operation, OperationState, Outcome, Rejection, RejectionReason,
            ResultInfo,
        },
        recovery::Projected,
        refusal::{Recovery, RecoveryAction},
        standing::{Evidence, Standing},
    },
    proto,
};

/// What the account keeps, for callers.
pub fn evidence(evidence: &Evidence) -> proto::Evidence {
    proto::Evidence {
        admission_window: Some(duration(evidence.admission_window)),
        record_retention: Some(duration(evidence.record_retention)),
        tombstone_retention: Some(duration(evidence.tombstone_retention)),
        evidence_floor: evidence.floor.map(timestamp),
    }
}

/// A standing, for callers.
pub fn standing(standing: Standing) -> proto::Standing {
    match standing {
        Standing::Recorded => proto::Standing::Recorded,
        Standing::Compacted => proto::Standing::Compacted,
        Standing::EvidenceExpired => proto::Standing::EvidenceExpired,
        Standing::NotAcceptedYet => proto::Standing::NotAcceptedYet,
        Standing::NeverAccepted => proto::Standing::NeverAccepted,
    }
}

/// An operation, with who holds its target while it waits.
pub fn operation(operation: &Operation, waiting_for: Option<&Lock>) -> proto::Operation {
    let waits = operation.state == OperationState::Accepted;
    proto::Operation {
        operation_id: operation.key.id.to_string(),
        state: state(operation.state).into(),
        effect_certainty: certainty(operation.certainty).into(),
        receipt: Some(receipt(operation)),
        inbox: operation.inbox.as_ref().map_or_else(String::new, |name| name.as_str().to_owned()),
        labels: operation.labels.clone(),
        start_deadline: waits.then(|| timestamp(operation.start_deadline)),
        replay_count: operation.replay_count,
        last_replay_time: operation.last_replay_time.map(timestamp),
        waiting_for: waiting_for.filter(|_| waits).map(lock),
        compacted: operation.is_compacted(),
    }
}

/// What one operation was and how it ended.
pub fn receipt(operation: &Operation) -> proto::Receipt {
    let (mut rejection, mut document, mut cancel_reason) = (None, None, String::new());
    match &operation.outcome {
        Some(Outcome::Applied(change)) => document = Some(self::change(change)),
        Some(Outcome::Rejected(found)) => rejection = Some(self::rejection(found)),
        Some(Outcome::Cancelled { reason }) => cancel_reason.clone_from(reason),
        None => {}
    }
    proto::Receipt {
        operation_id: operation.key.id.to_string(),
        mint_time: Some(timestamp(operation.mint_time.to_timestamp())),
        intent_digest: match operation.is_sealed() {
            true => Vec::new(),
            false => operation.digest.whole.to_vec(),
        },
        digest_version: operation.digest.version.into(),
        action: operation.action.clone(),
        target: operation.target.as_str().to_owned(),
        expected_revision: operation.expected_revision,
        lock_mode: lock_mode(operation.lock_mode).into(),
        accept_time: Some(timestamp(operation.accept_time)),
        state: state(operation.state).into(),
        effect_certainty: certainty(operation.certainty).into(),
        outcome_version: operation.outcome_version,
        end_time: operation.end_time.map(timestamp),
        rejection,
        document,
        cancel_reason,
        result: operation.result.as_ref().map(result_info),
        sealed: operation.is_sealed(),
    }
}

/// The body of a result, for callers.
pub fn result_info(result: &ResultInfo) -> proto::ResultInfo {
    proto::ResultInfo {
        size_bytes: result.size,
        sha256: result.sha256.to_vec(),
        content_type: result.content_type.clone(),
        kept: result.kept,
    }
}

fn change(change: &DocumentChange) -> proto::DocumentChange {
    proto::DocumentChange {
        base_revision: change.base_revision,
        result_revision: change.result_revision,
        generation: change.generation,
        size_before: change.size_before,
        size_after: change.size_after,
        content_hash_before: change.hash_before.clone(),
        content_hash_after: change.hash_after.clone(),
        edits: change.edits,
        created: change.base_revision == 0,
        deleted: change.hash_after.is_empty(),
    }
}

fn rejection(rejection: &Rejection) -> proto::Rejection {
    let reason = match rejection.reason {
        RejectionReason::RevisionMismatch => proto::RejectionReason::RevisionMismatch,
        RejectionReason::DocumentMissing => proto::RejectionReason::DocumentMissing,
        RejectionReason::EditOutOfRange => proto::RejectionReason::EditOutOfRange,
        RejectionReason::PatchFailed => proto::RejectionReason::PatchFailed,
        RejectionReason::DocumentTooLarge => proto::RejectionReason::DocumentTooLarge,
        RejectionReason::ContentKind => proto::RejectionReason::ContentKind,
        RejectionReason::StartDeadline => proto::RejectionReason::StartDeadline,
    };
    proto::Rejection {
        reason: reason.into(),
        text: rejection.text.clone(),
        found_revision: rejection.found_revision,
    }
}

/// A state, for callers.
pub fn state(state: OperationState) -> proto::operation::State {
    match state {
        OperationState::Accepted => proto::operation::State::Accepted,
        OperationState::Running => proto::operation::State::Running,
        OperationState::Applied => proto::operation::State::Applied,
        OperationState::Rejected => proto::operation::State::Rejected,
        OperationState::Failed => proto::operation::State::Failed,
        OperationState::Cancelled => proto::operation::State::Cancelled,
        OperationState::Unknown => proto::operation::State::Unknown,
    }
}

fn certainty(certainty: EffectCertainty) -> proto::EffectCertainty {
    match certainty {
        EffectCertainty::None => proto::EffectCertainty::None,
        EffectCertainty::Complete => proto::EffectCertainty::Complete,
        EffectCertainty::Partial => proto::EffectCertainty::Partial,
        EffectCertainty::Unknown => proto::EffectCertainty::Unknown,
    }
}

fn lock_mode(mode: LockMode) -> proto::LockMode {
    match mode {
        LockMode::UntilFinal => proto::LockMode::UntilFinal,
        LockMode::UntilAcked => proto::LockMode::UntilAcked,
    }
}

/// How a submit was answered.
pub fn origin(origin: Origin) -> proto::Origin {
    match origin {
        Origin::Executed => proto::Origin::Executed,
        Origin::Attached => proto::Origin::Attached,
        Origin::Replayed => proto::Origin::Replayed,
    }
}

/// What a cancel found.
pub fn cancel_outcome(outcome: CancelOutcome) -> proto::CancelOutcome {
    match outcome {
        CancelOutcome::Cancelled => proto::CancelOutcome::Cancelled,
        CancelOutcome::TooLate => proto::CancelOutcome::TooLate,
    }
}

/// The next step.
pub fn recovery(recovery: Recovery) -> proto::Recovery {
    let action = match recovery.action {
        RecoveryAction::ShowResult => proto::RecoveryAction::ShowResult,
        RecoveryAction::Wait => proto::RecoveryAction::Wait,
        RecoveryAction::ResubmitSameId => proto::RecoveryAction::ResubmitSameId,
        RecoveryAction::NewIdSafe => proto::RecoveryAction::NewIdSafe,
        RecoveryAction::ReadCurrentState => proto::RecoveryAction::ReadCurrentState,
        RecoveryAction::Reconcile => proto::RecoveryAction::Reconcile,
        RecoveryAction::AskHuman => proto::RecoveryAction::AskHuman,
        RecoveryAction::FixRequest => proto::RecoveryAction::FixRequest,
        RecoveryAction::RequestAccess => proto::RecoveryAction::RequestAccess,
        RecoveryAction::SlowDown => proto::RecoveryAction::SlowDown,
    };
    proto::Recovery { action: action.into(), text: recovery.text }
}

/// A delivery.
pub fn delivery(delivery: &Delivery) -> proto::Delivery {
    proto::Delivery {
        inbox: delivery.key.inbox.inbox.as_str().to_owned(),
        sequence: delivery.key.sequence,
        operation_id: delivery.operation_id.to_string(),
        outcome_version: delivery.outcome_version,
        state: delivery_state(delivery.state).into(),
        attempt: delivery.attempt,
        queue_time: Some(timestamp(delivery.queue_time)),
        ack_deadline: delivery.ack_deadline.map(timestamp),
        expire_time: Some(timestamp(delivery.expire_time)),
        end_time: delivery.end_time.map(timestamp),
        last_failure_time: delivery.last_failure_time.map(timestamp),
        available_time: delivery.available_time.map(timestamp),
    }
}

/// A delivery's state, for callers.
pub fn delivery_state(state: DeliveryState) -> proto::delivery::State {
    match state {
        DeliveryState::Pending => proto::delivery::State::Pending,
        DeliveryState::InFlight => proto::delivery::State::InFlight,
        DeliveryState::Acked => proto::delivery::State::Acked,
        DeliveryState::Expired => proto::delivery::State::Expired,
        DeliveryState::Dead => proto::delivery::State::Dead,
    }
}

/// A lock; without a holder while its waiters are being started.
pub fn lock(lock: &Lock) -> proto::Lock {
    let holder = lock.holder.as_ref();
    proto::Lock {
        target: lock.key.target.as_str().to_owned(),
        operation_id: holder.map_or_else(String::new, |holder| holder.operation_id.to_string()),
        acquire_time: holder.map(|holder| timestamp(holder.acquire_time)),
        release_time: holder.map(|holder| timestamp(holder.release_time)),
        lock_mode: holder
            .map_or(proto::LockMode::Unspecified, |holder| lock_mode(holder.mode))
            .into(),
        waiting: lock.waiting,
    }
}

/// The target as it is now.
pub fn projection(target: &str, projected: Projected) -> proto::Projection {
    proto::Projection {
        target: target.to_owned(),
        exists: projected.exists,
        revision: projected.revision,
        generation: projected.generation,
    }
}

/// What a document's row says about its target now; an absent row is a path never used.
pub fn projected(document: Option<&Document>) -> Projected {
    match document {
        Some(document) => Projected {
            exists: document.exists,
            revision: document.revision,
            generation: document.generation,
        },
        None => Projected { exists: false, revision: 0, generation: 0 },
    }
}

/// A document, with its content if that is loaded.
pub fn document(document: &Document) -> proto::Document {
    let content = document.content.as_ref().map(|content| {
        let text = document::is_text(&document.content_type, content);
        match (text, std::str::from_utf8(content)) {
            (true, Ok(text)) => proto::document::Content::Text(text.to_owned()),
            (true, Err(_)) | (false, _) => proto::document::Content::Data(content.to_vec()),
        }
    });
    proto::Document {
        target: document.key.target.as_str().to_owned(),
        revision: document.revision,
        generation: document.generation,
        content_type: document.content_type.clone(),
        content,
        size_bytes: document.size,
        content_hash: document.content_hash.to_vec(),
        create_time: Some(timestamp(document.create_time)),
        update_time: Some(timestamp(document.update_time)),
    }
}

/// One thing that happened, wherever its evidence stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoryEvent {
    /// Its row of the chain; 0 where the evidence stands in the delivery.
    pub number: i32,
    /// Its place in that row, from 1; 0 where there is no row.
    pub part: i32,
    /// When.
    pub time: Timestamp,
    /// Who.
    pub subject: String,
    /// What.
    pub event: crate::domain::audit::AuditEvent,
    /// The hash that vouches for it.
    pub hash: [u8; 32],
}

/// An event of the trail.
pub fn event(event: &StoryEvent) -> proto::OperationEvent {
    let kind = match event.event.kind {
        AuditKind::Accepted => proto::OperationEventKind::Accepted,
        AuditKind::Waiting => proto::OperationEventKind::Waiting,
        AuditKind::Applied => proto::OperationEventKind::Applied,
        AuditKind::Rejected => proto::OperationEventKind::Rejected,
        AuditKind::Cancelled => proto::OperationEventKind::Cancelled,
        AuditKind::LockHeld => proto::OperationEventKind::LockHeld,
        AuditKind::LockReleased => proto::OperationEventKind::LockReleased,
        AuditKind::Queued => proto::OperationEventKind::Queued,
        AuditKind::Acked => proto::OperationEventKind::Acked,
        AuditKind::Returned => proto::OperationEventKind::Returned,
        AuditKind::Expired => proto::OperationEventKind::Expired,
        AuditKind::Dead => proto::OperationEventKind::Dead,
        AuditKind::AckedLate => proto::OperationEventKind::AckedLate,
        AuditKind::Redriven => proto::OperationEventKind::Redriven,
        AuditKind::Sealed => proto::OperationEventKind::Sealed,
        AuditKind::Erased => proto::OperationEventKind::Erased,
        // Never in an operation's trail.
        AuditKind::PolicyChanged | AuditKind::EvidenceFloorRaised | AuditKind::StoreMarked => {
            proto::OperationEventKind::Unspecified
        }
    };
    proto::OperationEvent {
        number: event.number.into(),
        time: Some(timestamp(event.time)),
        kind: kind.into(),
        subject: event.subject.clone(),
        text: event.event.text.clone(),
        sequence: event.event.sequence,
        attempt: event.event.attempt,
        chain_hash: event.hash.to_vec(),
        part: event.part,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::domain::sample;

    #[test]
    fn a_receipt_is_the_same_whatever_happens_around_it() {
        let change = DocumentChange {
            base_revision: 0,
            result_revision: 1,
            generation: 1,
            size_before: 0,
            size_after: 2,
            hash_before: Vec::new(),
            hash_after: vec![1; 32],
            edits: 1,
        };
        let first = Operation {
            state: OperationState::Applied,
            certainty: EffectCertainty::Complete,
            outcome_version: 1,
            outcome: Some(Outcome::Applied(change)),
            end_time: Some(Timestamp(1_700_000_000_500_000)),
            ..sample::operation("op-1")
        };
        let later = Operation {
            replay_count: 9,
            last_replay_time: Some(Timestamp(1_800_000_000_000_000)),
            delivery_sequence: Some(4),
            due_time: None,
            ..first.clone()
        };
        assert_eq!(receipt(&first).encode_to_vec(), receipt(&later).encode_to_vec());
        let document = receipt(&first).document.expect("a change");
        assert!(document.created && !document.deleted);
        assert_ne!(operation(&first, None), operation(&later, None));
    }
}
