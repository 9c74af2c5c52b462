//! The next step of whoever got an answer or a refusal.
//!
//! What must stay true: a sentence speaks of an effect only where one was asked for, and proposes
//! a submit only where one would help.

use super::{Refusal, RefusalOutcome};
use crate::domain::{advice::Advice, ids::OperationId, standing::Standing};

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
        self.advice(Asked::Change, true).action()
    }

    /// The row of the table for whoever asked, and named an operation or none.
    fn advice(&self, asked: Asked, names_operation: bool) -> Advice {
        match self {
            Refusal::NotBegun { fault, .. } => fault.advice(),
            Refusal::Invalid(_)
            | Refusal::UnknownAction { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::IntentMismatch { .. }
            | Refusal::ResumeTokenInvalid(_)
            | Refusal::InboxNotEmpty { .. }
            | Refusal::InboxRecreated
            | Refusal::PolicyContradiction { .. }
            | Refusal::NoSuchInbox
            | Refusal::NoSuchLock => Advice::Correct,
            Refusal::ClockSkew { .. } => Advice::Ahead,
            Refusal::StreamSuperseded => Advice::Superseded,
            Refusal::StoreEpochChanged => Advice::OtherEpoch,
            Refusal::NoSuchOperation { closed: None, standing } => standing.advice(),
            Refusal::NoSuchOperation { closed: Some(closed), .. } => {
                closed.advice(asked, names_operation)
            }
            Refusal::AdmissionClosed { standing: Standing::NeverAccepted, .. } => {
                Advice::NeverAccepted
            }
            // Another attempt may still be on its way; once its time is closed, that is settled.
            Refusal::AdmissionClosed { .. } => Advice::ClosedNotProven,
            Refusal::EvidenceExpired { .. } => Advice::EvidenceGone,
            Refusal::NoSuchDocument => Advice::NothingThere,
            Refusal::ResultNotKept { .. } => Advice::NoBody,
            Refusal::InboxFull { .. }
            | Refusal::AccountQuota { .. }
            | Refusal::RateLimited { .. }
            | Refusal::SlowConsumer => Advice::SlowDown,
            Refusal::TargetLocked { .. }
            | Refusal::ResultNotReady { .. }
            | Refusal::IdentityHeld { .. } => match asked {
                Asked::Change => Advice::InTheWay,
                Asked::Read | Asked::Stream => Advice::NotYet,
            },
            Refusal::StoreUnavailable { .. }
            | Refusal::Draining { .. }
            | Refusal::StreamAged { .. }
            | Refusal::CommitUnknown
            | Refusal::NoAnswerYet { .. }
            | Refusal::Internal => match (asked, names_operation) {
                (Asked::Change, true) => Advice::LookUp,
                (Asked::Change, false) | (Asked::Read, _) => Advice::CallAgain,
                (Asked::Stream, _) => Advice::OpenAgain,
            },
            Refusal::CredentialsMissing
            | Refusal::CredentialsInvalid
            | Refusal::PermissionMissing { .. } => Advice::Access,
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
        let advice = self.advice(asked, id.is_some());
        let text = format!("{known}: {}. {}", self.text(), advice.next());
        Recovery { action: advice.action(), text }
    }

    /// Whether what was asked for is not there.
    fn is_absence(&self) -> bool {
        matches!(self, Refusal::NoSuchDocument | Refusal::NoSuchInbox | Refusal::NoSuchLock)
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
