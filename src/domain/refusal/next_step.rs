//! The next step of whoever got an answer or a refusal.

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
