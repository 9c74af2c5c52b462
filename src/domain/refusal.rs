//! "No" is an answer with a name: every refusal, its reason, what it means for the effect, and
//! the one safe next step (contract section 9).
//!
//! What must stay true: a refusal leaves no record. A text never holds an argument, a stored value
//! or anything of another account.

mod next_step;
mod not_begun;

pub use next_step::{Asked, Recovery, RecoveryAction};
pub use not_begun::NotBegun;

use super::{
    ids::{Invalid, Span, Timestamp},
    intent::IntentPart,
    lock::Lock,
    operation::OperationState,
    spans::format_time,
    standing::Standing,
};

/// Why a resume token is not valid here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFault {
    /// Not a token of this service, or not of this account.
    Unreadable,
    /// A token of another inbox of the account.
    OtherInbox,
    /// A position that the inbox has not reached.
    FuturePosition,
}

impl TokenFault {
    /// The word in `cause`.
    pub fn word(self) -> &'static str {
        match self {
            TokenFault::Unreadable => "UNREADABLE",
            TokenFault::OtherInbox => "OTHER_INBOX",
            TokenFault::FuturePosition => "FUTURE_POSITION",
        }
    }
}

/// A refusal, before any effect unless [`Refusal::outcome`] says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The transport refused the request before any call began.
    NotBegun {
        /// What is wrong.
        fault: NotBegun,
        /// In the transport's words; may be empty.
        told: String,
    },
    /// A field is wrong.
    Invalid(Invalid),
    /// Nobody declared the action.
    UnknownAction {
        /// The declared ones.
        known: Vec<String>,
    },
    /// A payload is above its limit.
    PayloadTooLarge {
        /// Which.
        field: &'static str,
        /// Bytes sent.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The id is bound to another intent.
    IntentMismatch {
        /// The parts that differ; never stored values.
        differs: Vec<IntentPart>,
    },
    /// The mint time is too far in the store's future.
    ClockSkew {
        /// The store's clock.
        store_time: Timestamp,
        /// The skew allowed.
        limit: Span,
    },
    /// The mint time is too old for a first acceptance.
    AdmissionClosed {
        /// The store's clock.
        store_time: Timestamp,
        /// The window.
        window: Span,
        /// Up to when ids were closed before the window was widened, where that alone closes this one.
        closed_before: Option<Timestamp>,
        /// What is known of the id: NOT_ACCEPTED_YET, or NEVER_ACCEPTED where that is proven.
        standing: Standing,
    },
    /// The evidence about ids of that time is gone.
    EvidenceExpired {
        /// The account's floor.
        floor: Timestamp,
    },
    /// The inbox has no free slot.
    InboxFull {
        /// Its slots.
        limit: i64,
        /// Slots taken.
        in_use: i64,
        /// The earliest time at which one is released for certain, where that is known.
        earliest_release: Option<Timestamp>,
    },
    /// The inbox that is to be deleted has something in it.
    InboxNotEmpty {
        /// Slots of operations without an outcome.
        reserved: i64,
        /// Deliveries that wait.
        pending: i64,
        /// Deliveries sent and not acked.
        in_flight: i64,
    },
    /// The account has all it may have of something.
    AccountQuota {
        /// Of what.
        what: &'static str,
        /// How much.
        limit: i64,
    },
    /// The target is locked, and the caller chose not to wait.
    TargetLocked {
        /// By whom, until when.
        lock: Box<Lock>,
    },
    /// There is no record under the id.
    NoSuchOperation {
        /// What can be said about the id.
        standing: Standing,
        /// Why it cannot be accepted now, if so.
        closed: Option<Box<Refusal>>,
    },
    /// There is no body to read: the operation ended without one, or it was above the limit.
    ResultNotKept {
        /// The operation's state.
        state: OperationState,
        /// How large the body was that was not kept; absent if there was none.
        size: Option<i64>,
    },
    /// The operation has not ended.
    ResultNotReady {
        /// Its state.
        state: OperationState,
    },
    /// Settings of an account contradict each other.
    PolicyContradiction {
        /// The first.
        setting: &'static str,
        /// The second.
        other: &'static str,
        /// What the first must be with regard to the second, and why.
        problem: String,
    },
    /// There is no such inbox.
    NoSuchInbox,
    /// There is no document.
    NoSuchDocument,
    /// Nobody, or another operation, holds the target.
    NoSuchLock,
    /// A newer stream of the same consumer took over.
    StreamSuperseded,
    /// The consumer did not read what was sent.
    SlowConsumer,
    /// The token is not valid here.
    ResumeTokenInvalid(TokenFault),
    /// The token is of the inbox's earlier generation.
    InboxRecreated,
    /// The token is of the store's earlier life.
    StoreEpochChanged,
    /// Too much at once.
    RateLimited {
        /// When to come back.
        retry: Span,
    },
    /// The store cannot be reached; it was not asked to commit.
    StoreUnavailable {
        /// When to come back.
        retry: Span,
    },
    /// The server is shutting down; the store was not asked to commit.
    Draining {
        /// When to come back.
        retry: Span,
    },
    /// The stream reached its maximum age; told as DRAINING, since callers do the same.
    StreamAged {
        /// When to come back.
        retry: Span,
    },
    /// Another transaction holds the id now.
    IdentityHeld {
        /// When to come back.
        retry: Span,
    },
    /// The answer to a commit was lost and could not be settled.
    CommitUnknown,
    /// The caller's time is up before there was an answer; what it asked for goes on.
    NoAnswerYet {
        /// Whether it could have had an effect.
        outcome: RefusalOutcome,
    },
    /// A fault of ours, found before any effect.
    Internal,
    /// No credentials.
    CredentialsMissing,
    /// Credentials that are not valid.
    CredentialsInvalid,
    /// A permission is missing; never depends on what exists.
    PermissionMissing {
        /// Which.
        permission: &'static str,
    },
}

/// Whether an effect is excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalOutcome {
    /// No record, no effect.
    NoEffect,
    /// Not known: look up the same id.
    Unknown,
}

impl RefusalOutcome {
    /// The word in metadata.
    pub fn word(self) -> &'static str {
        match self {
            RefusalOutcome::NoEffect => "NO_EFFECT",
            RefusalOutcome::Unknown => "UNKNOWN",
        }
    }
}

impl Refusal {
    /// The stable reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::NotBegun { fault, .. } => fault.reason(),
            Refusal::Invalid(_) => "INVALID_FIELD",
            Refusal::UnknownAction { .. } => "UNKNOWN_ACTION",
            Refusal::PayloadTooLarge { .. } => "PAYLOAD_TOO_LARGE",
            Refusal::IntentMismatch { .. } => "OPERATION_INTENT_MISMATCH",
            Refusal::ClockSkew { .. } => "CLOCK_SKEW",
            Refusal::AdmissionClosed { .. } => "ADMISSION_CLOSED",
            Refusal::EvidenceExpired { .. } => "EVIDENCE_EXPIRED",
            Refusal::InboxFull { .. } => "INBOX_FULL",
            Refusal::InboxNotEmpty { .. } => "INBOX_NOT_EMPTY",
            Refusal::AccountQuota { .. } => "ACCOUNT_QUOTA",
            Refusal::TargetLocked { .. } => "TARGET_LOCKED",
            Refusal::NoSuchOperation { .. } => "NO_SUCH_OPERATION",
            Refusal::ResultNotKept { .. } => "RESULT_NOT_KEPT",
            Refusal::ResultNotReady { .. } => "RESULT_NOT_READY",
            Refusal::PolicyContradiction { .. } => "POLICY_CONTRADICTION",
            Refusal::NoSuchInbox => "NO_SUCH_INBOX",
            Refusal::NoSuchDocument => "NO_SUCH_DOCUMENT",
            Refusal::NoSuchLock => "NO_SUCH_LOCK",
            Refusal::StreamSuperseded => "STREAM_SUPERSEDED",
            Refusal::SlowConsumer => "SLOW_CONSUMER",
            Refusal::ResumeTokenInvalid(_) => "RESUME_TOKEN_INVALID",
            Refusal::InboxRecreated => "INBOX_RECREATED",
            Refusal::StoreEpochChanged => "STORE_EPOCH_CHANGED",
            Refusal::RateLimited { .. } => "RATE_LIMITED",
            Refusal::StoreUnavailable { .. } => "STORE_UNAVAILABLE",
            Refusal::Draining { .. } | Refusal::StreamAged { .. } => "DRAINING",
            Refusal::IdentityHeld { .. } => "IDENTITY_HELD",
            Refusal::CommitUnknown => "COMMIT_UNKNOWN",
            Refusal::NoAnswerYet { .. } => "NO_ANSWER_YET",
            Refusal::Internal => "INTERNAL",
            Refusal::CredentialsMissing => "CREDENTIALS_MISSING",
            Refusal::CredentialsInvalid => "CREDENTIALS_INVALID",
            Refusal::PermissionMissing { .. } => "PERMISSION_MISSING",
        }
    }

    /// Whether an effect is excluded.
    pub fn outcome(&self) -> RefusalOutcome {
        match self {
            Refusal::CommitUnknown => RefusalOutcome::Unknown,
            Refusal::NoAnswerYet { outcome } => *outcome,
            Refusal::NotBegun { .. }
            | Refusal::Invalid(_)
            | Refusal::UnknownAction { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::IntentMismatch { .. }
            | Refusal::ClockSkew { .. }
            | Refusal::AdmissionClosed { .. }
            | Refusal::EvidenceExpired { .. }
            | Refusal::InboxFull { .. }
            | Refusal::InboxNotEmpty { .. }
            | Refusal::AccountQuota { .. }
            | Refusal::TargetLocked { .. }
            | Refusal::NoSuchOperation { .. }
            | Refusal::ResultNotKept { .. }
            | Refusal::ResultNotReady { .. }
            | Refusal::PolicyContradiction { .. }
            | Refusal::NoSuchInbox
            | Refusal::NoSuchDocument
            | Refusal::NoSuchLock
            | Refusal::StreamSuperseded
            | Refusal::SlowConsumer
            | Refusal::ResumeTokenInvalid(_)
            | Refusal::InboxRecreated
            | Refusal::StoreEpochChanged
            | Refusal::RateLimited { .. }
            | Refusal::StoreUnavailable { .. }
            | Refusal::Draining { .. }
            | Refusal::StreamAged { .. }
            | Refusal::IdentityHeld { .. }
            | Refusal::Internal
            | Refusal::CredentialsMissing
            | Refusal::CredentialsInvalid
            | Refusal::PermissionMissing { .. } => RefusalOutcome::NoEffect,
        }
    }

    /// When to come back, where the answer says so.
    pub fn retry(&self, now: Option<Timestamp>) -> Option<Span> {
        match self {
            Refusal::RateLimited { retry }
            | Refusal::StoreUnavailable { retry }
            | Refusal::Draining { retry }
            | Refusal::StreamAged { retry }
            | Refusal::IdentityHeld { retry } => Some(*retry),
            Refusal::InboxFull { earliest_release, .. } => {
                let wait = (*earliest_release)? - now?;
                Some(wait.clamp(Span::millis(100), Span::minutes(1)))
            }
            Refusal::TargetLocked { lock } => {
                let wait = lock.holder.as_ref()?.release_time - now?;
                Some(wait.clamp(Span::millis(100), Span::minutes(1)))
            }
            Refusal::CommitUnknown => Some(Span::seconds(1)),
            Refusal::NotBegun { .. }
            | Refusal::Invalid(_)
            | Refusal::UnknownAction { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::IntentMismatch { .. }
            | Refusal::ClockSkew { .. }
            | Refusal::AdmissionClosed { .. }
            | Refusal::EvidenceExpired { .. }
            | Refusal::InboxNotEmpty { .. }
            | Refusal::AccountQuota { .. }
            | Refusal::NoSuchOperation { .. }
            | Refusal::ResultNotKept { .. }
            | Refusal::ResultNotReady { .. }
            | Refusal::PolicyContradiction { .. }
            | Refusal::NoSuchInbox
            | Refusal::NoSuchDocument
            | Refusal::NoSuchLock
            | Refusal::StreamSuperseded
            | Refusal::SlowConsumer
            | Refusal::ResumeTokenInvalid(_)
            | Refusal::InboxRecreated
            | Refusal::StoreEpochChanged
            | Refusal::NoAnswerYet { .. }
            | Refusal::Internal
            | Refusal::CredentialsMissing
            | Refusal::CredentialsInvalid
            | Refusal::PermissionMissing { .. } => None,
        }
    }

    /// What went wrong, for people.
    pub fn text(&self) -> String {
        match self {
            Refusal::NotBegun { fault, told } => fault.text(told),
            Refusal::Invalid(invalid) => format!("{} {}", invalid.field, invalid.problem),
            Refusal::UnknownAction { known } => {
                format!("the action is not declared; known actions: {}", known.join(", "))
            }
            Refusal::PayloadTooLarge { field, size, limit } => {
                format!("{field} has {size} bytes; at most {limit} are allowed")
            }
            Refusal::IntentMismatch { differs } => {
                let words: Vec<&str> = differs.iter().map(|part| part.word()).collect();
                format!("the id is bound to another intent; it differs in: {}", words.join(", "))
            }
            Refusal::ClockSkew { limit, .. } => format!(
                "the id's mint time is more than {} s ahead of the store's clock",
                limit.0 / 1_000_000
            ),
            Refusal::AdmissionClosed { closed_before: Some(closed), .. } => format!(
                "ids minted up to {} were closed before the admission window was widened, which \
                 opens none of them",
                format_time(*closed)
            ),
            Refusal::AdmissionClosed { window, .. } => format!(
                "the id's mint time is older than the admission window of {} s",
                window.0 / 1_000_000
            ),
            Refusal::EvidenceExpired { .. } => {
                "the id is as old as records that are no longer kept: it may have been used"
                    .to_owned()
            }
            Refusal::InboxFull { limit, in_use, .. } => format!(
                "the inbox has no free slot: {in_use} of {limit} are in use; ack results, or wait \
                 until they expire"
            ),
            Refusal::InboxNotEmpty { reserved, pending, in_flight } => format!(
                "the inbox is not empty: {reserved} reserved, {pending} pending, {in_flight} in \
                 flight; read and ack its results first, or delete it with force"
            ),
            Refusal::AccountQuota { what, limit } => {
                format!("the account has reached its limit of {limit} {what}")
            }
            Refusal::TargetLocked { .. } => "another operation holds the target".to_owned(),
            Refusal::NoSuchOperation { standing, .. } => {
                format!("there is no record under this id ({})", standing.word())
            }
            Refusal::ResultNotKept { state, size: None } => {
                format!("the operation is {} and has no result but its receipt", state.word())
            }
            Refusal::ResultNotKept { state, size: Some(size) } => format!(
                "the operation is {}; the body of its result had {size} bytes, above the limit, \
                 and was not kept",
                state.word()
            ),
            Refusal::ResultNotReady { state } => {
                format!("the operation is {}: there is no result yet", state.word())
            }
            Refusal::PolicyContradiction { setting, problem, .. } => {
                format!("the policy contradicts itself: {setting} {problem}")
            }
            Refusal::NoSuchInbox => "there is no such inbox; it appears at first use".to_owned(),
            Refusal::NoSuchDocument => "there is no document at this target".to_owned(),
            Refusal::NoSuchLock => {
                "no such lock: nobody, or another operation, holds it".to_owned()
            }
            Refusal::StreamSuperseded => {
                "a newer stream of the same consumer took over; its deliveries continue there"
                    .to_owned()
            }
            Refusal::SlowConsumer => {
                "the stream was not read in time; open it again with the last token".to_owned()
            }
            Refusal::ResumeTokenInvalid(fault) => format!(
                "the resume token is not valid here ({}); open the stream without a token to \
                 start with everything that is unacked",
                fault.word()
            ),
            Refusal::InboxRecreated => {
                "the inbox has another generation than the one that is meant, or was deleted since \
                 then; open streams without a token, and name its generation as it is now"
                    .to_owned()
            }
            Refusal::StoreEpochChanged => {
                "the store was restored since this token; open without a token, and look up what \
                 is unresolved"
                    .to_owned()
            }
            Refusal::RateLimited { .. } => "too many requests at once".to_owned(),
            Refusal::StoreUnavailable { .. } => "the store cannot be reached now".to_owned(),
            Refusal::Draining { .. } => "this server is shutting down".to_owned(),
            Refusal::StreamAged { .. } => {
                "the stream reached its maximum age; open it again".to_owned()
            }
            Refusal::IdentityHeld { .. } => {
                "another transaction holds this id now; send the same id again".to_owned()
            }
            Refusal::CommitUnknown => {
                "the store's answer to the commit was lost; look up the same id".to_owned()
            }
            Refusal::NoAnswerYet { outcome: RefusalOutcome::Unknown } => {
                "the caller's time is up, and there is no answer yet; what was asked for goes on"
                    .to_owned()
            }
            Refusal::NoAnswerYet { outcome: RefusalOutcome::NoEffect } => {
                "the caller's time is up, and there is no answer yet".to_owned()
            }
            Refusal::Internal => "a fault of the service, before any effect".to_owned(),
            Refusal::CredentialsMissing => {
                "credentials are missing; send authorization: Bearer TOKEN".to_owned()
            }
            Refusal::CredentialsInvalid => "the credentials are not valid".to_owned(),
            Refusal::PermissionMissing { permission } => {
                format!("the permission {permission} is missing")
            }
        }
    }
}
