//! A lock: who excludes others from a target, and who waits (contract section 6).
//!
//! What must stay true: a row exists only while somebody holds the target beyond its own
//! transaction, or waits for it; the document's `locked` flag says whether a row exists, so that
//! an unlocked document costs no second read.

use super::{
    ids::{Account, OperationId, Target, Timestamp},
    intent::LockMode,
};

/// The key of a document and of its lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetKey {
    /// The owner.
    pub account: Account,
    /// The path.
    pub target: Target,
}

/// One lock as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The key.
    pub key: TargetKey,
    /// Who holds it; absent while the waiters of a released lock are being started.
    pub holder: Option<Holder>,
    /// The place of the next waiter in the queue; only rises.
    pub next_ticket: i64,
    /// How many wait.
    pub waiting: i64,
    /// When the sweeper has to look at it.
    pub due_time: Timestamp,
}

/// Who holds a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The operation.
    pub operation_id: OperationId,
    /// Since when.
    pub acquire_time: Timestamp,
    /// The latest time of release.
    pub release_time: Timestamp,
    /// How long it holds.
    pub mode: LockMode,
}
