//! How a refusal is told over gRPC: the only file that builds a `Status`.
//!
//! What must stay true: each reason has the one code of contract section 9; every refusal says
//! `outcome` and `recovery`; nothing of a request's arguments or of another account is in a text.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::convert::times;
use crate::{
    domain::{
        ids::{Invalid, OperationId, Timestamp},
        refusal::{Asked, NotBegun, Refusal},
        spans::format_time,
    },
    proto,
    store::ReadError,
    telemetry,
};

/// The domain of every ErrorInfo.
pub const DOMAIN: &str = "receiptd";
/// When to come back after a failed read: about as long as a store's failover takes to show.
const READ_RETRY: crate::domain::ids::Span = crate::domain::ids::Span::seconds(1);

/// A refusal on its way to the caller, with the id it speaks of.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// About which id, where there is one.
    pub operation_id: Option<OperationId>,
}

impl Refused {
    /// A refusal about an id.
    pub fn about(id: &OperationId) -> impl Fn(Refusal) -> Refused + '_ {
        move |refusal| Refused { refusal, operation_id: Some(id.clone()) }
    }

    /// The refusal as a whole call's error.
    pub fn into_status(self, asked: Asked, now: Timestamp) -> Status {
        let recovery = self.refusal.recovery_for(self.operation_id.as_ref(), asked);
        let mut details = ErrorDetails::new();
        details.set_error_info(self.refusal.reason(), DOMAIN, self.metadata());
        details.set_localized_message("en", recovery.text);
        if let Some(retry) = self.refusal.retry(Some(now)) {
            details.set_retry_info(Some(retry.to_std()));
        }
        add_particulars(&mut details, &self.refusal);
        Status::with_error_details(code(&self.refusal), self.refusal.text(), details)
    }

    /// The refusal as the error of one item of a batch: what the single call would have failed
    /// with.
    pub fn into_submit_error(self, now: Timestamp) -> proto::SubmitError {
        let recovery = self.refusal.recovery_for(self.operation_id.as_ref(), Asked::Change);
        proto::SubmitError {
            code: code(&self.refusal) as i32,
            message: self.refusal.text(),
            reason: self.refusal.reason().to_owned(),
            metadata: self.metadata().into_iter().collect(),
            recovery: Some(super::convert::operations::recovery(recovery)),
            retry_delay: self.refusal.retry(Some(now)).map(times::duration),
        }
    }

    fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = HashMap::from([
            ("outcome".to_owned(), self.refusal.outcome().word().to_owned()),
            ("recovery".to_owned(), self.refusal.recovery().word().to_owned()),
        ]);
        if let Some(id) = &self.operation_id {
            metadata.insert("operation_id".to_owned(), id.to_string());
        }
        for (name, value) in particulars(&self.refusal) {
            metadata.insert(name.to_owned(), value);
        }
        metadata
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Refused { refusal, operation_id: None }
    }
}

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Self {
        Refusal::Invalid(invalid).into()
    }
}

impl From<ReadError> for Refused {
    fn from(error: ReadError) -> Self {
        read_failed(&error).into()
    }
}

/// What a failed read means for its caller; logs it, because nobody else will.
pub fn read_failed(error: &ReadError) -> Refusal {
    tracing::warn!(%error, "a read failed");
    match error {
        ReadError::Unavailable(_) => Refusal::StoreUnavailable { retry: READ_RETRY },
        ReadError::Unreadable(_) => Refusal::Internal,
    }
}

/// The trailers with which a stream that is not ours ends on shutdown or at its age.
pub fn draining_trailers() -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    let status = Status::new(Code::Unavailable, "the server ends this stream; open it again");
    // A status of ours has plain text only; a failure would leave the trailers empty.
    let _ = status.add_header(&mut trailers);
    trailers
}

/// A message that is not decoded, because of how many fields it has.
pub fn too_many_fields(asked: Asked, limit: u32) -> Status {
    let problem = format!("has more than {limit} fields in one message; send less at once");
    // No time is told with it.
    Refused::from(Invalid::new("request", problem)).into_status(asked, Timestamp(0))
}

/// What an error of the framework means that it made before any handler of ours ran; none for
/// those of ours, and for what no caller hears (a connection that broke).
pub fn not_begun(status: &Status) -> Option<Refused> {
    if !status.details().is_empty() {
        return None;
    }
    let fault = match status.code() {
        Code::OutOfRange | Code::ResourceExhausted => NotBegun::TooLarge,
        Code::Internal => NotBegun::Undecodable,
        // It names the encodings that it takes.
        Code::Unimplemented if status.metadata().contains_key("grpc-accept-encoding") => {
            NotBegun::Encoding
        }
        Code::Unimplemented => NotBegun::NoSuchMethod,
        _ => return None,
    };
    let told = status.message().to_owned();
    Some(Refusal::NotBegun { fault, told }.into())
}

/// Gives an answer's headers the code, the ErrorInfo and the sentence of what the framework
/// refused; the answers of ours have theirs.
pub fn explain(headers: &mut http::HeaderMap) {
    let Some(refused) = Status::from_header_map(headers).as_ref().and_then(not_begun) else {
        return;
    };
    telemetry::refused(refused.refusal.reason());
    // No time is told. On failure the headers still hold the framework's own words.
    let _ = refused.into_status(Asked::Read, Timestamp(0)).add_header(headers);
}

/// The code of contract section 9.
pub fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::IntentMismatch { .. } => Code::AlreadyExists,
        Refusal::AdmissionClosed { .. }
        | Refusal::EvidenceExpired { .. }
        | Refusal::ResultNotKept { .. }
        | Refusal::ResultNotReady { .. }
        | Refusal::InboxNotEmpty { .. }
        | Refusal::PolicyContradiction { .. }
        | Refusal::InboxRecreated
        | Refusal::StoreEpochChanged => Code::FailedPrecondition,
        Refusal::TargetLocked { .. } | Refusal::StreamSuperseded => Code::Aborted,
        Refusal::InboxFull { .. }
        | Refusal::AccountQuota { .. }
        | Refusal::SlowConsumer
        | Refusal::RateLimited { .. }
        | Refusal::PayloadTooLarge { .. } => Code::ResourceExhausted,
        Refusal::StoreUnavailable { .. }
        | Refusal::Draining { .. }
        | Refusal::StreamAged { .. }
        | Refusal::IdentityHeld { .. } => Code::Unavailable,
        Refusal::NotBegun { fault, .. } => match fault {
            NotBegun::TooLarge => Code::ResourceExhausted,
            NotBegun::Undecodable => Code::InvalidArgument,
            NotBegun::NoSuchMethod | NotBegun::Encoding => Code::Unimplemented,
        },
        Refusal::NoAnswerYet { .. } => Code::DeadlineExceeded,
        Refusal::CommitUnknown => Code::Unknown,
        Refusal::Internal => Code::Internal,
        Refusal::Invalid(_)
        | Refusal::UnknownAction { .. }
        | Refusal::ResumeTokenInvalid(_)
        | Refusal::ClockSkew { .. } => Code::InvalidArgument,
        Refusal::NoSuchOperation { .. }
        | Refusal::NoSuchInbox
        | Refusal::NoSuchDocument
        | Refusal::NoSuchLock => Code::NotFound,
        Refusal::CredentialsMissing | Refusal::CredentialsInvalid => Code::Unauthenticated,
        Refusal::PermissionMissing { .. } => Code::PermissionDenied,
    }
}

/// What ErrorInfo tells beside outcome and recovery.
fn particulars(refusal: &Refusal) -> Vec<(&'static str, String)> {
    match refusal {
        Refusal::Invalid(invalid) => vec![("field", invalid.field.clone())],
        Refusal::UnknownAction { known } => vec![("known_actions", known.join(","))],
        Refusal::PayloadTooLarge { field, size, limit } => vec![
            ("field", (*field).to_owned()),
            ("size", size.to_string()),
            ("limit", limit.to_string()),
        ],
        Refusal::IntentMismatch { differs } => {
            let words: Vec<&str> = differs.iter().map(|part| part.word()).collect();
            vec![("differs", words.join(","))]
        }
        Refusal::ClockSkew { store_time, limit } => {
            let mut told = store_time_told(*store_time);
            told.push(("limit_ms", (limit.0 / 1_000).to_string()));
            told
        }
        Refusal::AdmissionClosed { store_time, window, closed_before, standing } => {
            let mut told = store_time_told(*store_time);
            told.push(("limit_ms", (window.0 / 1_000).to_string()));
            told.extend(closed_before.map(|closed| ("closed_before", format_time(closed))));
            told.push(("standing", standing.word().to_owned()));
            told
        }
        Refusal::EvidenceExpired { floor } => {
            vec![
                ("evidence_floor", format_time(*floor)),
                ("standing", "EVIDENCE_EXPIRED".to_owned()),
            ]
        }
        Refusal::InboxFull { limit, in_use, earliest_release } => {
            let mut told = vec![("limit", limit.to_string()), ("in_use", in_use.to_string())];
            told.extend(earliest_release.map(|time| ("earliest_release", format_time(time))));
            told
        }
        Refusal::InboxNotEmpty { reserved, pending, in_flight } => vec![
            ("reserved", reserved.to_string()),
            ("pending", pending.to_string()),
            ("in_flight", in_flight.to_string()),
        ],
        Refusal::AccountQuota { what, limit } => {
            vec![("quota", (*what).to_owned()), ("limit", limit.to_string())]
        }
        Refusal::TargetLocked { lock } => match &lock.holder {
            Some(holder) => vec![
                ("holder", holder.operation_id.to_string()),
                ("release_time", format_time(holder.release_time)),
            ],
            None => Vec::new(),
        },
        Refusal::NoSuchOperation { standing, .. } => vec![("standing", standing.word().to_owned())],
        Refusal::ResultNotKept { state, size } => {
            let mut told = vec![("state", state.word().to_owned())];
            told.extend(size.map(|size| ("size", size.to_string())));
            told
        }
        Refusal::ResultNotReady { state } => vec![("state", state.word().to_owned())],
        Refusal::PolicyContradiction { setting, other, .. } => {
            vec![("settings", format!("{setting},{other}"))]
        }
        Refusal::ResumeTokenInvalid(fault) => vec![("cause", fault.word().to_owned())],
        Refusal::PermissionMissing { permission } => {
            vec![("permission", (*permission).to_owned())]
        }
        Refusal::NotBegun { .. }
        | Refusal::NoSuchInbox
        | Refusal::NoSuchDocument
        | Refusal::NoSuchLock
        | Refusal::StreamSuperseded
        | Refusal::SlowConsumer
        | Refusal::InboxRecreated
        | Refusal::StoreEpochChanged
        | Refusal::RateLimited { .. }
        | Refusal::StoreUnavailable { .. }
        | Refusal::Draining { .. }
        | Refusal::StreamAged { .. }
        | Refusal::IdentityHeld { .. }
        | Refusal::CommitUnknown
        | Refusal::NoAnswerYet { .. }
        | Refusal::Internal
        | Refusal::CredentialsMissing
        | Refusal::CredentialsInvalid => Vec::new(),
    }
}

/// The details of google.rpc that programs of others understand without knowing us.
fn add_particulars(details: &mut ErrorDetails, refusal: &Refusal) {
    match refusal {
        Refusal::Invalid(invalid) => {
            details.add_bad_request_violation(invalid.field.as_str(), invalid.problem.as_str());
        }
        Refusal::UnknownAction { .. } => {
            details.add_bad_request_violation("intent.action", refusal.text());
        }
        Refusal::PayloadTooLarge { field, .. } => {
            details.add_bad_request_violation(*field, refusal.text());
        }
        Refusal::ClockSkew { .. } => {
            details.add_bad_request_violation("mint_time", refusal.text());
        }
        Refusal::ResumeTokenInvalid(_) => {
            details.add_bad_request_violation("resume_token", refusal.text());
        }
        Refusal::InboxFull { .. }
        | Refusal::AccountQuota { .. }
        | Refusal::RateLimited { .. }
        | Refusal::SlowConsumer => {
            details.add_quota_failure_violation(refusal.reason(), refusal.text());
        }
        Refusal::AdmissionClosed { .. }
        | Refusal::EvidenceExpired { .. }
        | Refusal::ResultNotKept { .. }
        | Refusal::ResultNotReady { .. }
        | Refusal::InboxNotEmpty { .. }
        | Refusal::PolicyContradiction { .. }
        | Refusal::InboxRecreated
        | Refusal::StoreEpochChanged => {
            details.add_precondition_failure_violation(
                refusal.reason(),
                "receiptd",
                refusal.text(),
            );
        }
        Refusal::NotBegun { .. }
        | Refusal::IntentMismatch { .. }
        | Refusal::TargetLocked { .. }
        | Refusal::NoSuchOperation { .. }
        | Refusal::NoSuchInbox
        | Refusal::NoSuchDocument
        | Refusal::NoSuchLock
        | Refusal::StreamSuperseded
        | Refusal::StoreUnavailable { .. }
        | Refusal::Draining { .. }
        | Refusal::StreamAged { .. }
        | Refusal::IdentityHeld { .. }
        | Refusal::CommitUnknown
        | Refusal::NoAnswerYet { .. }
        | Refusal::Internal
        | Refusal::CredentialsMissing
        | Refusal::CredentialsInvalid
        | Refusal::PermissionMissing { .. } => {}
    }
}

/// The store's clock, from which a client mints its next id.
fn store_time_told(time: Timestamp) -> Vec<(&'static str, String)> {
    vec![("store_time", format_time(time)), ("store_time_ms", (time.0 / 1_000).to_string())]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{
        ids::{Account, Span, Target},
        intent::{IntentPart, LockMode},
        lock::{Holder, Lock, TargetKey},
        operation::OperationState,
        refusal::{RefusalOutcome, TokenFault},
        standing::Standing,
    };

    fn lock() -> Lock {
        Lock {
            key: TargetKey {
                account: Account::from_stored("a"),
                target: Target::from_stored("notes/a"),
            },
            holder: Some(Holder {
                operation_id: OperationId::parse("holder").expect("valid"),
                acquire_time: Timestamp(0),
                release_time: Timestamp(5_000_000),
                mode: LockMode::UntilAcked,
            }),
            next_ticket: 1,
            waiting: 0,
            due_time: Timestamp(0),
        }
    }

    /// Every refusal with its code; the contract's table.
    fn table() -> Vec<(Refusal, Code)> {
        let retry = Span::seconds(1);
        let store_time = Timestamp(1_700_000_000_123_456);
        let not_begun = |fault| Refusal::NotBegun { fault, told: String::new() };
        vec![
            (not_begun(NotBegun::TooLarge), Code::ResourceExhausted),
            (not_begun(NotBegun::Undecodable), Code::InvalidArgument),
            (not_begun(NotBegun::NoSuchMethod), Code::Unimplemented),
            (not_begun(NotBegun::Encoding), Code::Unimplemented),
            (Refusal::Invalid(Invalid::new("f", "is wrong")), Code::InvalidArgument),
            (Refusal::UnknownAction { known: vec!["x".into()] }, Code::InvalidArgument),
            (
                Refusal::ResultNotKept { state: OperationState::Applied, size: None },
                Code::FailedPrecondition,
            ),
            (Refusal::ResultNotReady { state: OperationState::Accepted }, Code::FailedPrecondition),
            (
                Refusal::PayloadTooLarge { field: "intent.arguments", size: 2, limit: 1 },
                Code::ResourceExhausted,
            ),
            (
                Refusal::IntentMismatch {
                    differs: vec![IntentPart::Arguments, IntentPart::MintTime],
                },
                Code::AlreadyExists,
            ),
            (Refusal::ClockSkew { store_time, limit: retry }, Code::InvalidArgument),
            (
                Refusal::AdmissionClosed {
                    store_time,
                    window: retry,
                    closed_before: None,
                    standing: Standing::NeverAccepted,
                },
                Code::FailedPrecondition,
            ),
            (Refusal::EvidenceExpired { floor: store_time }, Code::FailedPrecondition),
            (
                Refusal::InboxFull { limit: 1, in_use: 1, earliest_release: Some(store_time) },
                Code::ResourceExhausted,
            ),
            (Refusal::AccountQuota { what: "inboxes", limit: 1 }, Code::ResourceExhausted),
            (Refusal::TargetLocked { lock: Box::new(lock()) }, Code::Aborted),
            (
                Refusal::NoSuchOperation { standing: Standing::NotAcceptedYet, closed: None },
                Code::NotFound,
            ),
            (Refusal::NoSuchInbox, Code::NotFound),
            (Refusal::NoSuchDocument, Code::NotFound),
            (Refusal::NoSuchLock, Code::NotFound),
            (Refusal::StreamSuperseded, Code::Aborted),
            (Refusal::SlowConsumer, Code::ResourceExhausted),
            (Refusal::ResumeTokenInvalid(TokenFault::OtherInbox), Code::InvalidArgument),
            (
                Refusal::InboxNotEmpty { reserved: 1, pending: 0, in_flight: 0 },
                Code::FailedPrecondition,
            ),
            (
                Refusal::PolicyContradiction {
                    setting: "ack_deadline",
                    other: "ack_window",
                    problem: "must not be longer than ack_window".to_owned(),
                },
                Code::FailedPrecondition,
            ),
            (Refusal::InboxRecreated, Code::FailedPrecondition),
            (Refusal::StoreEpochChanged, Code::FailedPrecondition),
            (Refusal::RateLimited { retry }, Code::ResourceExhausted),
            (Refusal::StoreUnavailable { retry }, Code::Unavailable),
            (Refusal::Draining { retry }, Code::Unavailable),
            (Refusal::StreamAged { retry }, Code::Unavailable),
            (Refusal::IdentityHeld { retry }, Code::Unavailable),
            (Refusal::CommitUnknown, Code::Unknown),
            (Refusal::NoAnswerYet { outcome: RefusalOutcome::Unknown }, Code::DeadlineExceeded),
            (Refusal::Internal, Code::Internal),
            (Refusal::CredentialsMissing, Code::Unauthenticated),
            (Refusal::CredentialsInvalid, Code::Unauthenticated),
            (Refusal::PermissionMissing { permission: "submit" }, Code::PermissionDenied),
        ]
    }

    fn told(refusal: Refusal) -> (Status, HashMap<String, String>) {
        let id = OperationId::parse("op-1").expect("valid");
        let refused = Refused { refusal, operation_id: Some(id) };
        let status = refused.into_status(Asked::Change, Timestamp(0));
        let info = status.get_details_error_info().expect("an ErrorInfo");
        assert_eq!(info.domain, DOMAIN);
        (status, info.metadata)
    }

    #[test]
    fn every_refusal_has_its_code_and_says_outcome_and_next_step() {
        for (refusal, code) in table() {
            let reason = refusal.reason();
            let outcome = refusal.outcome().word();
            let (status, metadata) = told(refusal.clone());
            assert_eq!(status.code(), code, "{reason}");
            let info = status.get_details_error_info().expect("an ErrorInfo");
            assert_eq!(info.reason, reason);
            assert_eq!(metadata.get("outcome").map(String::as_str), Some(outcome), "{reason}");
            assert!(metadata.contains_key("recovery"), "{reason}");
            assert_eq!(metadata.get("operation_id").map(String::as_str), Some("op-1"));
            let message = status.get_details_localized_message().expect("a sentence");
            assert!(message.message.contains("op-1"), "{reason}");
            let error = Refused { refusal, operation_id: None }.into_submit_error(Timestamp(0));
            assert_eq!((error.code, error.reason.as_str()), (code as i32, reason));
            assert_eq!(error.metadata.get("outcome").map(String::as_str), Some(outcome));
        }
    }

    #[test]
    fn the_readme_lists_every_reason_beside_its_code() {
        let readme = include_str!("../../README.md");
        let listed: Vec<(String, Vec<&str>)> = readme
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
            .map(|(code, reasons)| (code.replace('_', ""), reasons.split(", ").collect()))
            .collect();
        for (refusal, code) in table() {
            let (reason, code) = (refusal.reason(), format!("{code:?}").to_uppercase());
            let is_there = |(known, reasons): &(String, Vec<&str>)| {
                *known == code && reasons.contains(&reason)
            };
            assert!(listed.iter().any(is_there), "README, \"Errors\": {reason} beside {code}");
        }
    }

    #[test]
    fn whoever_only_asked_is_told_of_no_effect_and_no_submit() {
        for (refusal, _) in table() {
            let reason = refusal.reason();
            for asked in [Asked::Read, Asked::Stream] {
                for id in [None, Some(OperationId::parse("op-1").expect("valid"))] {
                    let text = refusal.recovery_for(id.as_ref(), asked).text;
                    assert_eq!(text.contains("op-1"), id.is_some(), "{text}");
                    assert!(!text.contains(" effect through") && !text.contains("no effect"));
                    let submits = text.contains("same submit");
                    assert_eq!(submits, reason == "NO_SUCH_OPERATION", "{reason}: {text}");
                }
            }
        }
    }

    #[test]
    fn particulars_are_told() {
        let find = |wanted: &str| {
            let (refusal, _) = table()
                .into_iter()
                .find(|(refusal, _)| refusal.reason() == wanted)
                .expect("in the table");
            told(refusal)
        };
        let (_, metadata) = find("OPERATION_INTENT_MISMATCH");
        assert_eq!(metadata["differs"], "arguments,mint_time");
        let (status, metadata) = find("CLOCK_SKEW");
        assert_eq!(metadata["store_time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(metadata["store_time_ms"], "1700000000123");
        assert!(status.get_details_bad_request().is_some());
        let (status, metadata) = find("TARGET_LOCKED");
        assert_eq!(metadata["holder"], "holder");
        let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(retry, Some(Duration::from_secs(5)));
        let (status, metadata) = find("INBOX_FULL");
        assert_eq!((metadata["limit"].as_str(), metadata["in_use"].as_str()), ("1", "1"));
        assert!(status.get_details_quota_failure().is_some());
        assert_eq!(find("RESUME_TOKEN_INVALID").1["cause"], "OTHER_INBOX");
        assert_eq!(find("NO_SUCH_OPERATION").1["standing"], "NOT_ACCEPTED_YET");
        let (status, metadata) = find("ADMISSION_CLOSED");
        assert!(status.get_details_precondition_failure().is_some());
        let told = (metadata["standing"].as_str(), metadata["recovery"].as_str());
        assert_eq!(told, ("NEVER_ACCEPTED", "NEW_ID_SAFE"));
    }

    #[test]
    fn a_foreign_stream_ends_as_unavailable() {
        let trailers = draining_trailers();
        assert_eq!(trailers.get("grpc-status").expect("present"), "14");
    }
}
