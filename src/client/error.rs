//! What a failed call says, decoded from ErrorInfo and RetryInfo.
//!
//! What must stay true: only `outcome: NO_EFFECT` of the domain `receiptd` excludes an effect;
//! anything else, also what a proxy or the transport made up, leaves the outcome unknown.
//! Deliberately not here: what to do next (see [`super::retry`]).

use std::{collections::BTreeMap, error::Error, fmt, str::FromStr, time::Duration};

use prost_types::Timestamp;
use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt;

use crate::proto::RecoveryAction;

/// The domain of receiptd's ErrorInfo.
pub const ERROR_DOMAIN: &str = "receiptd";

/// Whether a failed call excludes an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureOutcome {
    /// The service says that this call left no record and had no effect.
    NoEffect,
    /// The call never left this process: no connection could be made.
    NeverSent,
    /// Not known: look up the same id.
    Unknown,
}

/// A call that was not answered with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The gRPC status code.
    pub code: Code,
    /// The stable reason, when the answer is receiptd's own.
    pub reason: Option<String>,
    /// What went wrong, for people.
    pub text: String,
    /// The metadata of ErrorInfo.
    pub metadata: BTreeMap<String, String>,
    /// The next step, when the service named one.
    pub recovery: Option<RecoveryAction>,
    /// What is known and the next step, in the service's sentence for people; empty without one.
    pub advice: String,
    /// When to come back, when the service said so.
    pub retry_delay: Option<Duration>,
    /// Whether this call excludes an effect.
    pub outcome: FailureOutcome,
}

impl Failure {
    /// Decodes a status.
    pub fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == ERROR_DOMAIN);
        let metadata: BTreeMap<String, String> =
            info.map(|info| info.metadata.clone().into_iter().collect()).unwrap_or_default();
        let outcome = match metadata.get("outcome").map(String::as_str) {
            Some("NO_EFFECT") => FailureOutcome::NoEffect,
            _ if info.is_none() && never_sent(status) => FailureOutcome::NeverSent,
            _ => FailureOutcome::Unknown,
        };
        Failure {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()),
            text: text_of(status),
            recovery: metadata.get("recovery").and_then(|word| recovery_action(word)),
            advice: details
                .localized_message()
                .filter(|_| info.is_some())
                .map_or_else(String::new, |told| told.message.clone()),
            retry_delay: details.retry_info().and_then(|retry| retry.retry_delay),
            metadata,
            outcome,
        }
    }

    /// A failure that this process found itself, before anything was sent.
    pub(crate) fn before_sending(code: Code, text: String) -> Self {
        Failure {
            code,
            reason: None,
            text,
            metadata: BTreeMap::new(),
            recovery: None,
            advice: String::new(),
            retry_delay: None,
            outcome: FailureOutcome::NeverSent,
        }
    }

    /// A call that was given up before its answer came.
    pub(crate) fn gave_up_waiting(after: Duration) -> Self {
        let text = format!("no answer within {} ms", after.as_millis());
        Failure {
            outcome: FailureOutcome::Unknown,
            ..Failure::before_sending(Code::DeadlineExceeded, text)
        }
    }

    /// An answer that leaves out what was asked.
    pub(crate) fn not_answered() -> Self {
        let text = "the answer says nothing about it".to_owned();
        Failure {
            outcome: FailureOutcome::Unknown,
            ..Failure::before_sending(Code::Internal, text)
        }
    }

    /// Whether the answer carries this reason of receiptd.
    pub fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }

    /// The store's clock, where the answer carries it (CLOCK_SKEW, ADMISSION_CLOSED).
    pub fn store_time(&self) -> Option<Timestamp> {
        Timestamp::from_str(self.metadata.get("store_time")?).ok()
    }

    /// The code's name as the gRPC documents spell it.
    pub fn code_name(&self) -> &'static str {
        match self.code {
            Code::Ok => "OK",
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.reason.as_deref().unwrap_or_else(|| self.code_name());
        write!(f, "{name}: {}", self.text)
    }
}

impl Error for Failure {}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::from_status(&status)
    }
}

/// The action behind a word, with or without the enum's prefix.
pub fn recovery_action(word: &str) -> Option<RecoveryAction> {
    RecoveryAction::from_str_name(word)
        .or_else(|| RecoveryAction::from_str_name(&format!("RECOVERY_ACTION_{word}")))
}

/// Whether the connection itself could not be made, so that no byte of the call left.
fn never_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The message, with the deepest cause of a transport error, which tonic hides behind
/// "transport error".
fn text_of(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        if error.source().is_none() && !text.contains(&error.to_string()) {
            text = if text.is_empty() { error.to_string() } else { format!("{text}: {error}") };
        }
        source = error.source();
    }
    if text.is_empty() { "no text was given".to_owned() } else { text }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    /// A status as the service makes it.
    pub(crate) fn refusal(code: Code, reason: &str, outcome: &str) -> Status {
        let metadata = HashMap::from([
            ("outcome".to_owned(), outcome.to_owned()),
            ("recovery".to_owned(), "SLOW_DOWN".to_owned()),
        ]);
        let mut details = ErrorDetails::new();
        details.set_error_info(reason, ERROR_DOMAIN, metadata);
        details.set_localized_message("en", "What is known. Do this.");
        details.set_retry_info(Some(Duration::from_millis(250)));
        Status::with_error_details(code, "text", details)
    }

    #[test]
    fn a_refusal_is_decoded_with_its_next_step() {
        let failure = Failure::from(refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT"));
        assert!(failure.is("INBOX_FULL"));
        assert_eq!(failure.outcome, FailureOutcome::NoEffect);
        assert_eq!(failure.recovery, Some(RecoveryAction::SlowDown));
        assert_eq!(failure.advice, "What is known. Do this.");
        assert_eq!(failure.retry_delay, Some(Duration::from_millis(250)));
        assert_eq!(failure.to_string(), "INBOX_FULL: text");
    }

    #[test]
    fn another_domain_proves_nothing() {
        let mut details = ErrorDetails::new();
        let metadata = HashMap::from([("outcome".to_owned(), "NO_EFFECT".to_owned())]);
        details.set_error_info("INBOX_FULL", "proxy.example", metadata);
        let failure = Failure::from(Status::with_error_details(Code::Unavailable, "text", details));
        assert_eq!((failure.reason, failure.outcome), (None, FailureOutcome::Unknown));
    }

    #[test]
    fn a_bare_status_leaves_the_outcome_unknown() {
        let failure = Failure::from(Status::unavailable("gone"));
        assert_eq!(failure.outcome, FailureOutcome::Unknown);
        assert_eq!(failure.to_string(), "UNAVAILABLE: gone");
    }

    #[test]
    fn both_spellings_of_a_recovery_are_read() {
        assert_eq!(recovery_action("WAIT"), Some(RecoveryAction::Wait));
        assert_eq!(recovery_action("RECOVERY_ACTION_WAIT"), Some(RecoveryAction::Wait));
        assert_eq!(recovery_action("ELSEWHERE"), None);
    }
}
