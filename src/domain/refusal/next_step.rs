//! The next step of whoever got an answer or a refusal.
//!
//! What must stay true: a sentence speaks of an effect only where one was asked for, and proposes
//! a submit only where one would help.

use super::{Refusal, RefusalOutcome};
use crate::domain::{ids::OperationId, standing::Standing};

/// The one safe next step (contract section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// The outcome is certain: show it.
    ShowResult,
    /// Work is going on.
    Wait,
    /// Send the same submit again.
    ResubmitSameId,
    /// Settled without effect: a new instruction may take a new id.
    NewIdSafe,
    /// Read the target, then decide.
    ReadCurrentState,
    /// Settle by evidence.
    Reconcile,
    /// A person has to decide.
    AskHuman,
    /// Correct the request.
    FixRequest,
    /// A permission is missing.
    RequestAccess,
    /// Send less, or later.
    SlowDown,
}

impl RecoveryAction {
    /// The word in metadata and texts.
    pub fn word(self) -> &'static str {
        match self {
            RecoveryAction::ShowResult => "SHOW_RESULT",
            RecoveryAction::Wait => "WAIT",
            RecoveryAction::ResubmitSameId => "RESUBMIT_SAME_ID",
            RecoveryAction::NewIdSafe => "NEW_ID_SAFE",
            RecoveryAction::ReadCurrentState => "READ_CURRENT_STATE",
            RecoveryAction::Reconcile => "RECONCILE",
            RecoveryAction::AskHuman => "ASK_HUMAN",
            RecoveryAction::FixRequest => "FIX_REQUEST",
            RecoveryAction::RequestAccess => "REQUEST_ACCESS",
            RecoveryAction::SlowDown => "SLOW_DOWN",
        }
    }
}

/// The next step, with its sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// For programs.
    pub action: RecoveryAction,
    /// For people.
    pub text: String,
}

/// What a refused call asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A change.
    Change,
    /// To be told something, also by a stream that did not begin.
    Read,
    /// More of a stream that had begun.
    Stream,
}

impl Refusal {
    /// The next step. Never "use a new id" for doubt about an old one.
    pub fn recovery(&self) -> RecoveryAction {
        match self {
            Refusal::NotBegun { .. }
            | Refusal::Invalid(_)
            | Refusal::UnknownAction { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::IntentMismatch { .. }
            | Refusal::ClockSkew { .. }
            | Refusal::ResumeTokenInvalid(_)
            | Refusal::InboxNotEmpty { .. }
            | Refusal::InboxRecreated
            | Refusal::StreamSuperseded
            | Refusal::StoreEpochChanged
            | Refusal::PolicyContradiction { .. }
            | Refusal::NoSuchInbox
            | Refusal::NoSuchLock => RecoveryAction::FixRequest,
            Refusal::NoSuchOperation { closed: None, standing } => standing.recovery(),
            Refusal::NoSuchOperation { closed: Some(closed), .. } => closed.recovery(),
            Refusal::AdmissionClosed { standing: Standing::NeverAccepted, .. } => {
                RecoveryAction::NewIdSafe
            }
            Refusal::EvidenceExpired { .. }
            | Refusal::NoSuchDocument
            | Refusal::ResultNotKept { .. } => RecoveryAction::ReadCurrentState,
            Refusal::InboxFull { .. }
            | Refusal::AccountQuota { .. }
            | Refusal::RateLimited { .. }
            | Refusal::SlowConsumer => RecoveryAction::SlowDown,
            // Another attempt may still be on its way; once its time is closed, that is settled.
            Refusal::AdmissionClosed { .. }
            | Refusal::TargetLocked { .. }
            | Refusal::ResultNotReady { .. }
            | Refusal::IdentityHeld { .. } => RecoveryAction::Wait,
            Refusal::StoreUnavailable { .. }
            | Refusal::Draining { .. }
            | Refusal::StreamAged { .. }
            | Refusal::CommitUnknown
            | Refusal::NoAnswerYet { .. }
            | Refusal::Internal => RecoveryAction::ResubmitSameId,
            Refusal::CredentialsMissing
            | Refusal::CredentialsInvalid
            | Refusal::PermissionMissing { .. } => RecoveryAction::RequestAccess,
        }
    }

    /// The next step, with a sentence that names the operation where there is one.
    pub fn recovery_for(&self, id: Option<&OperationId>, asked: Asked) -> Recovery {
        let never_began = matches!(self, Refusal::NotBegun { .. });
        let known = match (asked, self.outcome(), id) {
            // Nobody has looked at what it asked for.
            (Asked::Change | Asked::Read, _, None) if never_began => {
                "The call did not begin".to_owned()
            }
            (Asked::Change, RefusalOutcome::NoEffect, Some(id)) => {
                format!("Operation {id} had no effect through this call")
            }
            (Asked::Change, RefusalOutcome::NoEffect, None) => "The call had no effect".to_owned(),
            (Asked::Change, RefusalOutcome::Unknown, Some(id)) => {
                format!("Operation {id} has an outcome that is not known to you")
            }
            (Asked::Change, RefusalOutcome::Unknown, None) => {
                "The call has an outcome that is not known to you".to_owned()
            }
            (Asked::Read, _, Some(id)) => format!("Nothing can be told of operation {id}"),
            (Asked::Read, _, None) if self.is_absence() => "Nothing was found".to_owned(),
            (Asked::Read, _, None) => "The call has no answer".to_owned(),
            (Asked::Stream, _, Some(id)) => format!("The stream of operation {id} has ended"),
            (Asked::Stream, _, None) => "The stream has ended".to_owned(),
        };
        let text = format!("{known}: {}. {}", self.text(), self.next_sentence(id, asked));
        Recovery { action: self.recovery(), text }
    }

    /// Whether the id can't be accepted any more, so that a submit under it is of no use.
    fn is_closed(&self) -> bool {
        let refusal = match self {
            Refusal::NoSuchOperation { closed: Some(closed), .. } => closed,
            other => other,
        };
        matches!(refusal, Refusal::AdmissionClosed { .. })
    }

    /// Whether what was asked for is not there.
    fn is_absence(&self) -> bool {
        matches!(self, Refusal::NoSuchDocument | Refusal::NoSuchInbox | Refusal::NoSuchLock)
    }

    fn next_sentence(&self, id: Option<&OperationId>, asked: Asked) -> &'static str {
        if let Refusal::NotBegun { fault, .. } = self {
            return fault.next_sentence();
        }
        let is_absent = matches!(self, Refusal::NoSuchOperation { .. });
        match (self.recovery(), asked) {
            (RecoveryAction::ShowResult, _) => "Show the result.",
            (RecoveryAction::Wait, _) if self.is_closed() => "Wait, then look up the same id.",
            (RecoveryAction::Wait, Asked::Change) => "Wait, then send the same id again.",
            (RecoveryAction::Wait, Asked::Read | Asked::Stream) => "Wait, then ask again.",
            (RecoveryAction::ResubmitSameId, Asked::Read | Asked::Stream) if is_absent => {
                "Send the same submit with the same id."
            }
            (RecoveryAction::ResubmitSameId, Asked::Stream) => "Open it again.",
            (RecoveryAction::ResubmitSameId, Asked::Read) => "Send the same call again.",
            (RecoveryAction::ResubmitSameId, Asked::Change) if id.is_none() => {
                "Send the same call again."
            }
            (RecoveryAction::ResubmitSameId, Asked::Change) => {
                "Look it up, or send the same submit with the same id again."
            }
            (RecoveryAction::NewIdSafe, _) => "A new instruction may take a new id.",
            (RecoveryAction::ReadCurrentState, _) if *self == Refusal::NoSuchDocument => {
                "That is its current state; decide by it."
            }
            (RecoveryAction::ReadCurrentState, _) => "Read the target as it is now, then decide.",
            (RecoveryAction::Reconcile, _) => "Settle the outcome by evidence.",
            (RecoveryAction::AskHuman, _) => "Ask a person.",
            // To open it again as it was would end the newer one, and so for ever.
            (RecoveryAction::FixRequest, _) if *self == Refusal::StreamSuperseded => {
                "Leave it to the newer stream, or open one with a consumer id of its own."
            }
            (RecoveryAction::FixRequest, _) if *self == Refusal::StoreEpochChanged => {
                "Open the stream without a token."
            }
            (RecoveryAction::FixRequest, _) => "Correct the request.",
            (RecoveryAction::RequestAccess, _) => "Ask for access.",
            (RecoveryAction::SlowDown, _) => "Send less, or later.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_again_is_not_waited_for() {
        for (refusal, sentence) in [
            (Refusal::StreamSuperseded, "Leave it to the newer stream"),
            (Refusal::StoreEpochChanged, "without a token"),
        ] {
            let recovery = refusal.recovery_for(None, Asked::Stream);
            assert_eq!(recovery.action, RecoveryAction::FixRequest, "{refusal:?}");
            assert!(recovery.text.contains(sentence), "{}", recovery.text);
        }
    }

    #[test]
    fn absence_is_told_as_what_was_found() {
        for refusal in [Refusal::NoSuchDocument, Refusal::NoSuchInbox, Refusal::NoSuchLock] {
            let text = refusal.recovery_for(None, Asked::Read).text;
            assert!(text.starts_with("Nothing was found: "), "{text}");
        }
    }
}
