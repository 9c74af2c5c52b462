//! An operation: its row, its states and its outcome.
//!
//! What must stay true: APPLIED, REJECTED, FAILED and CANCELLED are absorbing; an outcome, once
//! written, never changes, so that every receipt of one outcome version is equal byte for byte.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    audit::AuditHead,
    delivery::{DeliveryKey, InboxKey},
    document::DocumentChange,
    ids::{Account, InboxName, MintTime, OperationId, Target, Timestamp},
    intent::{IntentDigest, LockMode},
    lock::TargetKey,
};

/// The key of an operation (R2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationKey {
    /// The owner.
    pub account: Account,
    /// The id.
    pub id: OperationId,
}

/// What happened to the effect (contract section 3). The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationState {
    /// Durable, no effect yet.
    Accepted = 1,
    /// An effect is possible.
    Running = 2,
    /// Complete.
    Applied = 3,
    /// Refused before execution.
    Rejected = 4,
    /// Ended as declared.
    Failed = 5,
    /// No effect.
    Cancelled = 6,
    /// Not known; resolved by evidence only.
    Unknown = 7,
}

impl OperationState {
    /// Every state, in the order of its number.
    pub const ALL: [OperationState; 7] = [
        OperationState::Accepted,
        OperationState::Running,
        OperationState::Applied,
        OperationState::Rejected,
        OperationState::Failed,
        OperationState::Cancelled,
        OperationState::Unknown,
    ];

    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as i16 == number)
    }

    /// Whether nothing but a reader's interest can change any more.
    pub fn is_final(self) -> bool {
        match self {
            OperationState::Applied
            | OperationState::Rejected
            | OperationState::Failed
            | OperationState::Cancelled => true,
            OperationState::Accepted | OperationState::Running | OperationState::Unknown => false,
        }
    }

    /// Whether a waiting caller is answered: final, or UNKNOWN.
    pub fn ends_the_wait(self) -> bool {
        self.is_final() || self == OperationState::Unknown
    }

    /// The word in texts, proto and command line.
    pub fn word(self) -> &'static str {
        match self {
            OperationState::Accepted => "ACCEPTED",
            OperationState::Running => "RUNNING",
            OperationState::Applied => "APPLIED",
            OperationState::Rejected => "REJECTED",
            OperationState::Failed => "FAILED",
            OperationState::Cancelled => "CANCELLED",
            OperationState::Unknown => "UNKNOWN",
        }
    }
}

/// What is known of the effect. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectCertainty {
    /// There is none.
    None = 1,
    /// It is complete.
    Complete = 2,
    /// A part of it happened.
    Partial = 3,
    /// Nobody can say.
    Unknown = 4,
}

impl EffectCertainty {
    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        [Self::None, Self::Complete, Self::Partial, Self::Unknown]
            .into_iter()
            .find(|certainty| *certainty as i16 == number)
    }
}

/// Why an operation was refused before its effect. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// The target is not at the expected revision.
    RevisionMismatch = 1,
    /// The action needs an existing document.
    DocumentMissing = 2,
    /// An edit points outside the text.
    EditOutOfRange = 3,
    /// The patch does not apply.
    PatchFailed = 4,
    /// The document would be too large.
    DocumentTooLarge = 5,
    /// The content is not of the kind that the action edits.
    ContentKind = 6,
    /// Nobody started it in time.
    StartDeadline = 7,
}

impl RejectionReason {
    /// Every reason.
    pub const ALL: [RejectionReason; 7] = [
        RejectionReason::RevisionMismatch,
        RejectionReason::DocumentMissing,
        RejectionReason::EditOutOfRange,
        RejectionReason::PatchFailed,
        RejectionReason::DocumentTooLarge,
        RejectionReason::ContentKind,
        RejectionReason::StartDeadline,
    ];

    /// The word in texts.
    pub fn word(self) -> &'static str {
        match self {
            RejectionReason::RevisionMismatch => "REVISION_MISMATCH",
            RejectionReason::DocumentMissing => "DOCUMENT_MISSING",
            RejectionReason::EditOutOfRange => "EDIT_OUT_OF_RANGE",
            RejectionReason::PatchFailed => "PATCH_FAILED",
            RejectionReason::DocumentTooLarge => "DOCUMENT_TOO_LARGE",
            RejectionReason::ContentKind => "CONTENT_KIND",
            RejectionReason::StartDeadline => "START_DEADLINE",
        }
    }
}

/// A refusal before the effect, as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The reason.
    pub reason: RejectionReason,
    /// For people.
    pub text: String,
    /// The revision found, where that is the reason; 0: no document.
    pub found_revision: Option<i64>,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A document changed.
    Applied(DocumentChange),
    /// Refused before the effect.
    Rejected(Rejection),
    /// Cancelled before it began.
    Cancelled {
        /// Why, as the caller said.
        reason: String,
    },
}

impl Outcome {
    /// The state this outcome means.
    pub fn state(&self) -> OperationState {
        match self {
            Outcome::Applied(_) => OperationState::Applied,
            Outcome::Rejected(_) => OperationState::Rejected,
            Outcome::Cancelled { .. } => OperationState::Cancelled,
        }
    }

    /// The certainty this outcome means.
    pub fn certainty(&self) -> EffectCertainty {
        match self {
            Outcome::Applied(_) => EffectCertainty::Complete,
            Outcome::Rejected(_) | Outcome::Cancelled { .. } => EffectCertainty::None,
        }
    }
}

/// Arguments up to this size stand inside the operation row, larger ones in their own table
/// (architecture section 1).
pub const INLINE_BYTES_MAX: usize = 1024;

/// Where the bytes of the first submit are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// In the operation row: at most [`INLINE_BYTES_MAX`].
    Inline(Bytes),
    /// In the payload table, under the operation's key.
    Apart,
}

/// What is left of a record; forward only (contract section 3). The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retained {
    /// All of it.
    Whole = 1,
    /// The tombstone: all but arguments, the body of the result, and labels.
    Tombstone = 2,
    /// The tombstone; the rows of its audit chain are gone, and their head stays.
    WithoutTrail = 3,
}

impl Retained {
    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        [Self::Whole, Self::Tombstone, Self::WithoutTrail]
            .into_iter()
            .find(|retained| *retained as i16 == number)
    }
}

/// Which payload of an operation; each stands in the payload table. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadKind {
    /// The bytes of the first submit, where they are kept apart.
    Arguments = 1,
    /// The body of the result.
    Result = 2,
}

impl PayloadKind {
    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        [Self::Arguments, Self::Result].into_iter().find(|kind| *kind as i16 == number)
    }
}

/// What the first submit asked to be kept of the result. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// The receipt only.
    Receipt = 1,
    /// The document's content after the change.
    Content = 2,
}

impl ResultKind {
    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        [Self::Receipt, Self::Content].into_iter().find(|kind| *kind as i16 == number)
    }
}

/// The body of a result, as the outcome describes it; it never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultInfo {
    /// Bytes.
    pub size: i64,
    /// SHA-256 of the bytes.
    pub sha256: [u8; 32],
    /// Their type.
    pub content_type: String,
    /// Whether they were kept when it ended; if not, they were above the limit of results then.
    /// They are gone once the record is compacted.
    pub kept: bool,
}

impl ResultInfo {
    /// Whether a body that can be read travels with its news: it is within `limit` bytes.
    pub fn is_inline(&self, limit: usize) -> bool {
        usize::try_from(self.size).is_ok_and(|size| size <= limit)
    }
}

/// One operation as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The key.
    pub key: OperationKey,
    /// When the id was made.
    pub mint_time: MintTime,
    /// The digest, whole and per part.
    pub digest: IntentDigest,
    /// The intent's action.
    pub action: String,
    /// The intent's target.
    pub target: Target,
    /// The intent's expected revision.
    pub expected_revision: Option<i64>,
    /// The intent's content type.
    pub content_type: String,
    /// The intent's arguments.
    pub arguments: Arguments,
    /// The intent's lock mode.
    pub lock_mode: LockMode,
    /// What the first submit asked to be kept.
    pub result_kind: ResultKind,
    /// Where the result goes; absent with `delivery: NONE`.
    pub inbox: Option<InboxName>,
    /// The labels of the first submit.
    pub labels: BTreeMap<String, String>,
    /// When it was accepted.
    pub accept_time: Timestamp,
    /// Until when it may start.
    pub start_deadline: Timestamp,
    /// What happened to the effect.
    pub state: OperationState,
    /// What is known of it.
    pub certainty: EffectCertainty,
    /// Rises with each outcome; 0 while there is none.
    pub outcome_version: i32,
    /// How it ended; absent before.
    pub outcome: Option<Outcome>,
    /// The body of the outcome, stored with it; absent where there is none.
    pub result: Option<ResultInfo>,
    /// When it ended; absent before.
    pub end_time: Option<Timestamp>,
    /// When the sweeper has to look at it; absent once nothing can become overdue.
    pub due_time: Option<Timestamp>,
    /// Its place in the queue for its target; absent while it does not wait.
    pub wait_ticket: Option<i64>,
    /// The number of its delivery in its inbox; absent before there is one.
    pub delivery_sequence: Option<i64>,
    /// The head of its audit chain.
    pub audit: AuditHead,
    /// How often it was attached to or replayed.
    pub replay_count: i64,
    /// When it was last attached to or replayed.
    pub last_replay_time: Option<Timestamp>,
    /// What is left of it.
    pub retained: Retained,
}

impl Operation {
    /// Whether the id was sealed: recorded without intent, so that nothing under it can execute.
    pub fn is_sealed(&self) -> bool {
        self.digest.is_none()
    }

    /// Whether only its tombstone is left.
    pub fn is_compacted(&self) -> bool {
        self.retained > Retained::Whole
    }

    /// What is said of the body of its result, while the body can still be read.
    pub fn body(&self) -> Option<&ResultInfo> {
        self.result.as_ref().filter(|result| result.kept && !self.is_compacted())
    }

    /// What it acts on.
    pub fn target_key(&self) -> TargetKey {
        TargetKey { account: self.key.account.clone(), target: self.target.clone() }
    }

    /// Where its news goes, if anywhere.
    pub fn inbox_key(&self) -> Option<InboxKey> {
        Some(InboxKey { account: self.key.account.clone(), inbox: self.inbox.clone()? })
    }

    /// The delivery of its outcome, once there is one.
    pub fn delivery_key(&self) -> Option<DeliveryKey> {
        Some(DeliveryKey { inbox: self.inbox_key()?, sequence: self.delivery_sequence? })
    }
}
