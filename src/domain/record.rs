//! Stored encodings of values that no statement looks into: outcomes, consumers, policies of accounts,
//! audit events.
//!
//! Protobuf, because it stays readable by the release before and after (T23): fields are only
//! added. Deliberately not here: anything a `WHERE` clause needs; that is a column.

mod life;

use prost::Message;

pub use self::life::{pack_life, pack_replica, unpack_life, unpack_replica};

use super::{
    audit::{AuditEvent, AuditHead, AuditKind},
    document::DocumentChange,
    epoch::Skipped,
    ids::{ConsumerId, Timestamp},
    inbox::Consumer,
    operation::{Operation, Outcome, Rejection, RejectionReason, ResultInfo},
    settings::OwnSettings,
};

/// Bytes in a store that this release cannot read.
#[derive(Debug, thiserror::Error)]
#[error("a stored {what} cannot be read by this release")]
pub struct Unreadable {
    /// What they should have been.
    pub what: &'static str,
}

#[derive(Clone, PartialEq, Message)]
struct OutcomeRecord {
    #[prost(oneof = "outcome_record::Kind", tags = "1, 2, 3")]
    kind: Option<outcome_record::Kind>,
    #[prost(message, optional, tag = "4")]
    result: Option<ResultRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct ResultRecord {
    #[prost(int64, tag = "1")]
    size: i64,
    #[prost(bytes = "vec", tag = "2")]
    sha256: Vec<u8>,
    #[prost(string, tag = "3")]
    content_type: String,
    #[prost(bool, tag = "4")]
    kept: bool,
}

mod outcome_record {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Kind {
        #[prost(message, tag = "1")]
        Applied(super::ChangeRecord),
        #[prost(message, tag = "2")]
        Rejected(super::RejectionRecord),
        #[prost(message, tag = "3")]
        Cancelled(super::CancelRecord),
    }
}

#[derive(Clone, PartialEq, Message)]
struct ChangeRecord {
    #[prost(int64, tag = "1")]
    base_revision: i64,
    #[prost(int64, tag = "2")]
    result_revision: i64,
    #[prost(int64, tag = "3")]
    generation: i64,
    #[prost(int64, tag = "4")]
    size_before: i64,
    #[prost(int64, tag = "5")]
    size_after: i64,
    #[prost(bytes = "vec", tag = "6")]
    hash_before: Vec<u8>,
    #[prost(bytes = "vec", tag = "7")]
    hash_after: Vec<u8>,
    #[prost(int32, tag = "8")]
    edits: i32,
}

#[derive(Clone, PartialEq, Message)]
struct RejectionRecord {
    #[prost(int32, tag = "1")]
    reason: i32,
    #[prost(string, tag = "2")]
    text: String,
    #[prost(int64, optional, tag = "3")]
    found_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct CancelRecord {
    #[prost(string, tag = "1")]
    reason: String,
}

#[derive(Clone, PartialEq, Message)]
struct ConsumersRecord {
    #[prost(message, repeated, tag = "1")]
    consumers: Vec<ConsumerRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct ConsumerRecord {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int64, tag = "2")]
    epoch: i64,
    #[prost(int64, tag = "3")]
    window: i64,
    #[prost(int64, tag = "4")]
    in_flight: i64,
    #[prost(int64, tag = "5")]
    open_time: i64,
    #[prost(int64, tag = "6")]
    lease_time: i64,
}

#[derive(Clone, PartialEq, Message)]
struct EventsRecord {
    #[prost(message, repeated, tag = "1")]
    events: Vec<EventRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct EventRecord {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    text: String,
    #[prost(int64, tag = "3")]
    sequence: i64,
    #[prost(int32, tag = "4")]
    attempt: i32,
}

/// Packs the outcome of an operation with what is said of its body; none before it ended.
pub fn pack_outcome(operation: &Operation) -> Option<Vec<u8>> {
    let outcome = operation.outcome.as_ref()?;
    let kind = match outcome.clone() {
        Outcome::Applied(change) => outcome_record::Kind::Applied(ChangeRecord {
            base_revision: change.base_revision,
            result_revision: change.result_revision,
            generation: change.generation,
            size_before: change.size_before,
            size_after: change.size_after,
            hash_before: change.hash_before,
            hash_after: change.hash_after,
            edits: change.edits,
        }),
        Outcome::Rejected(rejection) => outcome_record::Kind::Rejected(RejectionRecord {
            reason: rejection.reason as i32,
            text: rejection.text,
            found_revision: rejection.found_revision,
        }),
        Outcome::Cancelled { reason } => outcome_record::Kind::Cancelled(CancelRecord { reason }),
    };
    let result = operation.result.as_ref().map(|result| ResultRecord {
        size: result.size,
        sha256: result.sha256.to_vec(),
        content_type: result.content_type.clone(),
        kept: result.kept,
    });
    Some(OutcomeRecord { kind: Some(kind), result }.encode_to_vec())
}

/// Unpacks an outcome, and what it says of its body: nothing, where an earlier release wrote it.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_outcome`] of this or an earlier release did not write.
pub fn unpack_outcome(bytes: &[u8]) -> Result<(Outcome, Option<ResultInfo>), Unreadable> {
    let unreadable = || Unreadable { what: "outcome" };
    let record = OutcomeRecord::decode(bytes).map_err(|_| unreadable())?;
    let result = record.result.map(|result| {
        Ok(ResultInfo {
            size: result.size,
            sha256: result.sha256.try_into().map_err(|_| unreadable())?,
            content_type: result.content_type,
            kept: result.kept,
        })
    });
    let outcome = match record.kind.ok_or_else(unreadable)? {
        outcome_record::Kind::Applied(change) => Outcome::Applied(DocumentChange {
            base_revision: change.base_revision,
            result_revision: change.result_revision,
            generation: change.generation,
            size_before: change.size_before,
            size_after: change.size_after,
            hash_before: change.hash_before,
            hash_after: change.hash_after,
            edits: change.edits,
        }),
        outcome_record::Kind::Rejected(rejection) => Outcome::Rejected(Rejection {
            reason: RejectionReason::ALL
                .into_iter()
                .find(|reason| *reason as i32 == rejection.reason)
                .ok_or_else(unreadable)?,
            text: rejection.text,
            found_revision: rejection.found_revision,
        }),
        outcome_record::Kind::Cancelled(cancel) => Outcome::Cancelled { reason: cancel.reason },
    };
    Ok((outcome, result.transpose()?))
}

/// Packs the consumers of an inbox.
pub fn pack_consumers(consumers: &[Consumer]) -> Vec<u8> {
    let consumers = consumers
        .iter()
        .map(|consumer| ConsumerRecord {
            id: consumer.id.as_str().to_owned(),
            epoch: consumer.epoch,
            window: consumer.window,
            in_flight: consumer.in_flight,
            open_time: consumer.open_time.0,
            lease_time: consumer.lease_time.0,
        })
        .collect();
    ConsumersRecord { consumers }.encode_to_vec()
}

/// Unpacks the consumers of an inbox.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_consumers`] did not write.
pub fn unpack_consumers(bytes: &[u8]) -> Result<Vec<Consumer>, Unreadable> {
    let record =
        ConsumersRecord::decode(bytes).map_err(|_| Unreadable { what: "list of consumers" })?;
    let consumers = record.consumers.into_iter().map(|consumer| Consumer {
        id: ConsumerId::from_stored(&consumer.id),
        epoch: consumer.epoch,
        window: consumer.window,
        in_flight: consumer.in_flight,
        open_time: Timestamp(consumer.open_time),
        lease_time: Timestamp(consumer.lease_time),
    });
    Ok(consumers.collect())
}

/// Packs the events of one audit row.
pub fn pack_events(events: &[AuditEvent]) -> Vec<u8> {
    let events = events
        .iter()
        .map(|event| EventRecord {
            kind: event.kind as i32,
            text: event.text.clone(),
            sequence: event.sequence,
            attempt: event.attempt,
        })
        .collect();
    EventsRecord { events }.encode_to_vec()
}

/// Unpacks the events of one audit row.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_events`] of this or an earlier release did not write.
pub fn unpack_events(bytes: &[u8]) -> Result<Vec<AuditEvent>, Unreadable> {
    let unreadable = || Unreadable { what: "audit row" };
    let record = EventsRecord::decode(bytes).map_err(|_| unreadable())?;
    let event = |event: EventRecord| {
        let kind = AuditKind::ALL.into_iter().find(|kind| *kind as i32 == event.kind);
        Ok(AuditEvent {
            kind: kind.ok_or_else(unreadable)?,
            text: event.text,
            sequence: event.sequence,
            attempt: event.attempt,
        })
    };
    record.events.into_iter().map(event).collect()
}

#[derive(Clone, PartialEq, Message)]
struct AccountPolicyRecord {
    #[prost(message, repeated, tag = "1")]
    own: Vec<SettingRecord>,
    #[prost(int32, tag = "2")]
    audit_length: i32,
    #[prost(bytes = "vec", tag = "3")]
    audit_hash: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct SettingRecord {
    #[prost(int32, tag = "1")]
    setting: i32,
    #[prost(int64, tag = "2")]
    value: i64,
}

/// Packs what an account has of its own among the settings, with the head of its audit chain;
/// nothing where its policy was never changed.
pub fn pack_account_policy(own: &OwnSettings, audit: AuditHead) -> Option<Vec<u8>> {
    if own.is_empty() && audit == AuditHead::default() {
        return None;
    }
    let own = own.to_stored().map(|(setting, value)| SettingRecord { setting, value });
    let record = AccountPolicyRecord {
        own: own.collect(),
        audit_length: audit.length,
        audit_hash: audit.hash.to_vec(),
    };
    Some(record.encode_to_vec())
}

/// Unpacks it.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_account_policy`] of this or an earlier release did not
/// write.
pub fn unpack_account_policy(bytes: Option<&[u8]>) -> Result<(OwnSettings, AuditHead), Unreadable> {
    let Some(bytes) = bytes else { return Ok((OwnSettings::default(), AuditHead::default())) };
    let unreadable = || Unreadable { what: "policy of an account" };
    let record = AccountPolicyRecord::decode(bytes).map_err(|_| unreadable())?;
    let pairs = record.own.into_iter().map(|own| (own.setting, own.value));
    let hash = <[u8; 32]>::try_from(record.audit_hash).map_err(|_| unreadable())?;
    Ok((OwnSettings::from_stored(pairs), AuditHead { length: record.audit_length, hash }))
}

#[derive(Clone, PartialEq, Message)]
struct SkippedRecord {
    #[prost(int64, repeated, tag = "1")]
    bounds: Vec<i64>,
}

/// Packs the ranges that marks skipped in an inbox; nothing where there are none.
pub fn pack_skipped(skipped: &[Skipped]) -> Option<Vec<u8>> {
    let bounds: Vec<i64> = skipped.iter().flat_map(|range| [range.first, range.last]).collect();
    (!bounds.is_empty()).then(|| SkippedRecord { bounds }.encode_to_vec())
}

/// Unpacks them.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_skipped`] did not write.
pub fn unpack_skipped(bytes: Option<&[u8]>) -> Result<Vec<Skipped>, Unreadable> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    let unreadable = || Unreadable { what: "list of skipped numbers" };
    let record = SkippedRecord::decode(bytes).map_err(|_| unreadable())?;
    let ranges = record.bounds.chunks(2).map(|range| match range {
        [first, last] => Ok(Skipped { first: *first, last: *last }),
        _ => Err(unreadable()),
    });
    ranges.collect()
}

/// Packs labels as a JSON object with sorted keys, readable by an operator.
pub fn pack_labels(labels: &std::collections::BTreeMap<String, String>) -> String {
    serde_json::to_string(labels).expect("a map of strings is JSON")
}

/// Unpacks labels.
///
/// # Errors
/// [`Unreadable`] for text that [`pack_labels`] did not write.
pub fn unpack_labels(text: &str) -> Result<std::collections::BTreeMap<String, String>, Unreadable> {
    serde_json::from_str(text).map_err(|_| Unreadable { what: "set of labels" })
}
