//! What operators ask of an account, and what they are answered.

use super::Intention;
use crate::domain::{
    ids::{Account, Timestamp},
    inbox::AccountRow,
    operation::OperationKey,
    policy::Policy,
    settings::SettingsChange,
};

/// A change of an account's policy.
#[derive(Debug, Clone)]
pub struct PolicyUpdate {
    /// Whose.
    pub account: Account,
    /// What becomes of which setting.
    pub change: SettingsChange,
    /// Why.
    pub reason: String,
    /// The credential's subject.
    pub subject: String,
    /// Meant or only tried.
    pub intention: Intention,
}

/// The answer to [`super::Command::UpdatePolicy`].
#[derive(Debug, Clone)]
pub struct PolicyUpdated {
    /// The account after.
    pub row: AccountRow,
    /// What is in force for it then.
    pub policy: Policy,
}

/// A raise of an account's evidence floor by hand.
#[derive(Debug, Clone)]
pub struct FloorRaise {
    /// Whose.
    pub account: Account,
    /// Up to which mint time, at least.
    pub floor: Timestamp,
    /// Why.
    pub reason: String,
    /// The credential's subject.
    pub subject: String,
    /// Meant or only tried.
    pub intention: Intention,
}

/// The answer to [`super::Command::RaiseFloor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloorRaised {
    /// The floor as it was.
    pub before: Timestamp,
    /// The floor then; the same where it was as high already.
    pub after: Timestamp,
}

/// Payloads of one operation to be erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Whose.
    pub key: OperationKey,
    /// Why, for the trail.
    pub reason: String,
    /// Who, for the trail.
    pub subject: String,
}

/// The answer to [`super::Command::Erase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erased {
    /// The payloads are gone.
    Now,
    /// They had gone before.
    Before,
    /// The operation has not ended, or its outcome is not known: it keeps them.
    Unresolved,
    /// Its news is open: it keeps them until that was acked or has expired.
    NewsOpen,
    /// There is no record.
    NoRecord,
}
