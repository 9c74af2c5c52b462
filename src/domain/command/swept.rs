//! What came of one row that the sweeper found.

/// What a sweep did to one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// Nothing was due any more.
    Nothing,
    /// An attempt ended; the delivery is pending again.
    Returned,
    /// The ack window passed.
    Expired,
    /// The retry budget was spent.
    Dead,
    /// An operation was not started in time.
    StartDeadline,
    /// A lock was released, or its waiters went on.
    LockReleased,
    /// A consumer that gave no sign of life was removed.
    ConsumerRemoved,
    /// So many deliveries of a deleted inbox were ended.
    Closed(i64),
    /// So many rows of ended deliveries were purged.
    Purged(i64),
    /// An inbox that nobody used became a marker.
    InboxRetired,
    /// An account was closed for ids up to a later time.
    AccountClosed,
    /// A record became its tombstone.
    Compacted,
    /// The audit chain of a tombstone went.
    TrailRemoved,
    /// A tombstone went, and the evidence floor rose.
    Forgotten,
    /// An inbox counted open deliveries of deleted generations otherwise than there are: a bug, or a
    /// hand in the store. The count is true again.
    Recounted {
        /// What it counted.
        counted: i64,
        /// How many there are.
        found: i64,
    },
}
