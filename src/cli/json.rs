//! Answers as JSON: the field names of the protocol's JSON form, whole numbers as numbers.
//!
//! What must stay true: names and enum words are those of the proto files; a field is always
//! there, and null where the message has none. Deliberately not here: anything for people.

use base64::{Engine, engine::general_purpose::STANDARD};
use prost_types::Timestamp;
use serde_json::{Value, json};

use crate::proto::{
    AckOutcome, AckResult, CancelOperationResponse, DeferOutcome, DeferResult, DeliveredResult,
    Delivery, Document, DocumentChange, EffectCertainty, Evidence, ExtendOutcome, ExtendResult,
    Gap, GapCause, GetOperationResponse, Inbox, ListedOperation, Lock, LockMode, Opened, Operation,
    Origin, Projection, Receipt, Recovery, RedriveOutcome, RedriveResult, Rejection,
    RejectionReason, Standing, SubmitOperationResponse, WatchOperationResponse, WithdrawnDelivery,
    delivery, document::Content, operation, watch_document_response,
};

/// A time in RFC 3339.
pub fn time(time: Option<&Timestamp>) -> Value {
    time.map_or(Value::Null, |time| Value::String(time.to_string()))
}

fn bytes(bytes: &[u8]) -> Value {
    Value::String(STANDARD.encode(bytes))
}

/// An enum's word, or its number when this program is older than the service.
macro_rules! word {
    ($kind:ty, $number:expr) => {
        <$kind>::try_from($number)
            .map_or_else(|_| json!($number), |known| json!(known.as_str_name()))
    };
}

/// An operation.
pub fn operation(operation: &Operation) -> Value {
    json!({
        "operationId": operation.operation_id,
        "state": word!(operation::State, operation.state),
        "effectCertainty": word!(EffectCertainty, operation.effect_certainty),
        "receipt": operation.receipt.as_ref().map(receipt),
        "inbox": operation.inbox,
        "labels": operation.labels,
        "startDeadline": time(operation.start_deadline.as_ref()),
        "replayCount": operation.replay_count,
        "lastReplayTime": time(operation.last_replay_time.as_ref()),
        "waitingFor": operation.waiting_for.as_ref().map(lock),
        "compacted": operation.compacted,
    })
}

fn receipt(receipt: &Receipt) -> Value {
    json!({
        "operationId": receipt.operation_id,
        "mintTime": time(receipt.mint_time.as_ref()),
        "intentDigest": bytes(&receipt.intent_digest),
        "digestVersion": receipt.digest_version,
        "action": receipt.action,
        "target": receipt.target,
        "expectedRevision": receipt.expected_revision,
        "lockMode": word!(LockMode, receipt.lock_mode),
        "acceptTime": time(receipt.accept_time.as_ref()),
        "state": word!(operation::State, receipt.state),
        "effectCertainty": word!(EffectCertainty, receipt.effect_certainty),
        "outcomeVersion": receipt.outcome_version,
        "endTime": time(receipt.end_time.as_ref()),
        "rejection": receipt.rejection.as_ref().map(rejection),
        "document": receipt.document.as_ref().map(document_change),
        "cancelReason": receipt.cancel_reason,
        "sealed": receipt.sealed,
    })
}

fn rejection(rejection: &Rejection) -> Value {
    json!({
        "reason": word!(RejectionReason, rejection.reason),
        "text": rejection.text,
        "foundRevision": rejection.found_revision,
    })
}

fn document_change(change: &DocumentChange) -> Value {
    json!({
        "baseRevision": change.base_revision,
        "resultRevision": change.result_revision,
        "generation": change.generation,
        "sizeBefore": change.size_before,
        "sizeAfter": change.size_after,
        "contentHashBefore": bytes(&change.content_hash_before),
        "contentHashAfter": bytes(&change.content_hash_after),
        "edits": change.edits,
        "created": change.created,
        "deleted": change.deleted,
    })
}

fn lock(lock: &Lock) -> Value {
    json!({
        "target": lock.target,
        "operationId": lock.operation_id,
        "acquireTime": time(lock.acquire_time.as_ref()),
        "releaseTime": time(lock.release_time.as_ref()),
        "lockMode": word!(LockMode, lock.lock_mode),
        "waiting": lock.waiting,
    })
}

/// A delivery.
pub fn delivery(delivery: &Delivery) -> Value {
    json!({
        "inbox": delivery.inbox,
        "sequence": delivery.sequence,
        "operationId": delivery.operation_id,
        "outcomeVersion": delivery.outcome_version,
        "state": word!(delivery::State, delivery.state),
        "attempt": delivery.attempt,
        "queueTime": time(delivery.queue_time.as_ref()),
        "ackDeadline": time(delivery.ack_deadline.as_ref()),
        "expireTime": time(delivery.expire_time.as_ref()),
        "endTime": time(delivery.end_time.as_ref()),
        "lastFailureTime": time(delivery.last_failure_time.as_ref()),
        "availableTime": time(delivery.available_time.as_ref()),
    })
}

fn deliveries(all: &[Delivery]) -> Value {
    all.iter().map(delivery).collect()
}

fn recovery(recovery: &Recovery) -> Value {
    json!({
        "action": word!(crate::proto::RecoveryAction, recovery.action),
        "text": recovery.text,
    })
}

fn projection(projection: &Projection) -> Value {
    json!({
        "target": projection.target,
        "exists": projection.exists,
        "revision": projection.revision,
        "generation": projection.generation,
    })
}

/// What the account keeps; spans as protobuf's JSON has them.
fn evidence(evidence: &Evidence) -> Value {
    json!({
        "admissionWindow": evidence.admission_window.as_ref().map(ToString::to_string),
        "recordRetention": evidence.record_retention.as_ref().map(ToString::to_string),
        "tombstoneRetention": evidence.tombstone_retention.as_ref().map(ToString::to_string),
        "evidenceFloor": time(evidence.evidence_floor.as_ref()),
    })
}

/// The answer to a submit.
pub fn submitted(response: &SubmitOperationResponse) -> Value {
    json!({
        "operation": response.operation.as_ref().map(operation),
        "origin": word!(Origin, response.origin),
        "deliveries": deliveries(&response.deliveries),
        "recovery": response.recovery.as_ref().map(recovery),
        "projection": response.projection.as_ref().map(projection),
        "remarks": response.remarks,
        "validatedOnly": response.validated_only,
        "evidence": response.evidence.as_ref().map(evidence),
    })
}

/// The answer to a look-up.
pub fn looked_up(response: &GetOperationResponse) -> Value {
    json!({
        "operationId": response.operation_id,
        "standing": word!(Standing, response.standing),
        "operation": response.operation.as_ref().map(operation),
        "deliveries": deliveries(&response.deliveries),
        "recovery": response.recovery.as_ref().map(recovery),
        "projection": response.projection.as_ref().map(projection),
        "storeTime": time(response.store_time.as_ref()),
        "remarks": response.remarks,
        "evidence": response.evidence.as_ref().map(evidence),
    })
}

/// One operation of a list.
pub fn listed(listed: &ListedOperation) -> Value {
    json!({
        "operation": listed.operation.as_ref().map(operation),
        "deliveries": deliveries(&listed.deliveries),
    })
}

/// One look of a watch.
pub fn watched(response: &WatchOperationResponse) -> Value {
    json!({
        "operation": response.operation.as_ref().map(operation),
        "deliveries": deliveries(&response.deliveries),
        "recovery": response.recovery.as_ref().map(recovery),
        "snapshot": response.snapshot,
    })
}

/// A change of a watched document.
pub fn document_watched(change: &watch_document_response::Change) -> Value {
    json!({
        "document": change.document.as_ref().map(document),
        "exists": change.exists,
        "snapshot": change.snapshot,
        "unchanged": change.unchanged,
        "previousRevision": change.previous_revision,
    })
}

/// The answer to a cancel.
pub fn cancelled(response: &CancelOperationResponse) -> Value {
    json!({
        "outcome": word!(crate::proto::CancelOutcome, response.outcome),
        "operation": response.operation.as_ref().map(operation),
        "deliveries": deliveries(&response.deliveries),
        "recovery": response.recovery.as_ref().map(recovery),
    })
}

/// One result of a stream.
pub fn result(result: &DeliveredResult) -> Value {
    json!({
        "delivery": result.delivery.as_ref().map(delivery),
        "operation": result.operation.as_ref().map(operation),
        "redelivered": result.redelivered,
    })
}

/// The first frame of a stream, without the policy.
pub fn opened(opened: &Opened) -> Value {
    json!({
        "resumeToken": opened.resume_token,
        "storeEpoch": opened.store_epoch,
        "depth": opened.depth,
        "ackedElsewhere": opened.acked_elsewhere,
        "consumerId": opened.consumer_id,
        "inbox": opened.inbox,
        "generation": opened.generation,
        "window": opened.window,
    })
}

/// Numbers that will not come.
pub fn gap(gap: &Gap) -> Value {
    json!({
        "firstSequence": gap.first_sequence,
        "lastSequence": gap.last_sequence,
        "cause": word!(GapCause, gap.cause),
        "operationIds": gap.operation_ids,
    })
}

/// A result that ended elsewhere.
pub fn withdrawn(withdrawn: &WithdrawnDelivery) -> Value {
    json!({
        "sequence": withdrawn.sequence,
        "operationId": withdrawn.operation_id,
        "state": word!(delivery::State, withdrawn.state),
    })
}

/// The outcome of one ack.
pub fn acked(result: &AckResult) -> Value {
    json!({
        "inbox": result.inbox,
        "sequence": result.sequence,
        "outcome": word!(AckOutcome, result.outcome),
        "delivery": result.delivery.as_ref().map(delivery),
    })
}

/// The outcome of one extension.
pub fn extended(result: &ExtendResult) -> Value {
    json!({
        "inbox": result.inbox,
        "sequence": result.sequence,
        "outcome": word!(ExtendOutcome, result.outcome),
        "delivery": result.delivery.as_ref().map(delivery),
    })
}

/// The outcome of one deferral.
pub fn deferred(result: &DeferResult) -> Value {
    json!({
        "inbox": result.inbox,
        "sequence": result.sequence,
        "outcome": word!(DeferOutcome, result.outcome),
        "delivery": result.delivery.as_ref().map(delivery),
    })
}

/// The outcome of one redrive.
pub fn redriven(result: &RedriveResult) -> Value {
    json!({
        "inbox": result.inbox,
        "sequence": result.sequence,
        "outcome": word!(RedriveOutcome, result.outcome),
        "delivery": result.delivery.as_ref().map(delivery),
    })
}

/// An inbox.
pub fn inbox(inbox: &Inbox) -> Value {
    let consumers: Value = inbox
        .consumers
        .iter()
        .map(|consumer| {
            json!({
                "consumerId": consumer.consumer_id,
                "epoch": consumer.epoch,
                "window": consumer.window,
                "inFlight": consumer.in_flight,
                "openTime": time(consumer.open_time.as_ref()),
            })
        })
        .collect();
    json!({
        "inbox": inbox.inbox,
        "generation": inbox.generation,
        "slots": inbox.slots,
        "reserved": inbox.reserved,
        "pending": inbox.pending,
        "inFlight": inbox.in_flight,
        "inFlightLimit": inbox.in_flight_limit,
        "ackedTotal": inbox.acked_total,
        "expiredTotal": inbox.expired_total,
        "deadTotal": inbox.dead_total,
        "firstSequence": inbox.first_sequence,
        "keptFromSequence": inbox.kept_from_sequence,
        "lastSequence": inbox.last_sequence,
        "oldestSequence": inbox.oldest_sequence,
        "oldestQueueTime": time(inbox.oldest_queue_time.as_ref()),
        "consumers": consumers,
        "createTime": time(inbox.create_time.as_ref()),
    })
}

/// A document.
pub fn document(document: &Document) -> Value {
    let mut value = json!({
        "target": document.target,
        "revision": document.revision,
        "generation": document.generation,
        "contentType": document.content_type,
        "sizeBytes": document.size_bytes,
        "contentHash": bytes(&document.content_hash),
        "createTime": time(document.create_time.as_ref()),
        "updateTime": time(document.update_time.as_ref()),
    });
    match &document.content {
        Some(Content::Text(text)) => value["text"] = json!(text),
        Some(Content::Data(data)) => value["data"] = bytes(data),
        None => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numbers_and_enums_are_the_protocols_words() {
        let value = delivery(&Delivery { sequence: 7, state: 2, ..Delivery::default() });
        assert_eq!(value["sequence"], 7);
        assert_eq!(value["state"], "STATE_IN_FLIGHT");
        assert_eq!(value["ackDeadline"], Value::Null);
    }

    #[test]
    fn a_word_from_the_future_is_shown_as_its_number() {
        let value = operation(&Operation { state: 99, ..Operation::default() });
        assert_eq!(value["state"], 99);
    }
}
