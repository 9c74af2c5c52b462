//! The audit trail: one hash chain per operation, and one per account for what belongs to no
//! operation; written in the transaction of what it records.
//!
//! What must stay true: a row is never changed; each row's hash covers the row before it, so that
//! a later change of either is detectable (I15). Deliberately not here: signed checkpoints, which
//! cover the heads of all chains of an account.

use sha2::{Digest, Sha256};

use super::{
    ids::{Account, OperationId, Timestamp},
    operation::OperationKey,
};

/// What a chain tells of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditChain {
    /// One operation; its row holds the chain's head.
    Operation(OperationKey),
    /// An account as a whole: its policy, and the marks of its store; the account's row holds the
    /// head.
    Account(Account),
}

impl AuditChain {
    /// Whose rows these are.
    pub fn account(&self) -> &Account {
        match self {
            AuditChain::Operation(key) => &key.account,
            AuditChain::Account(account) => account,
        }
    }

    /// The operation's id as it is stored; no bytes, which are no id, for an account's own chain.
    pub fn to_stored(&self) -> Vec<u8> {
        match self {
            AuditChain::Operation(key) => key.id.to_stored(),
            AuditChain::Account(_) => Vec::new(),
        }
    }

    /// Reads what [`AuditChain::to_stored`] wrote. `None` for bytes it never writes.
    pub fn from_stored(account: Account, stored: &[u8]) -> Option<Self> {
        if stored.is_empty() {
            return Some(AuditChain::Account(account));
        }
        let id = OperationId::from_stored(stored)?;
        Some(AuditChain::Operation(OperationKey { account, id }))
    }
}

/// Where a chain stands: how many rows, and the hash of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuditHead {
    /// Rows written so far.
    pub length: i32,
    /// The hash of the last one; zeros before the first.
    pub hash: [u8; 32],
}

/// What an event records. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditKind {
    /// The operation was accepted.
    Accepted = 1,
    /// It waits for its target.
    Waiting = 2,
    /// It was applied.
    Applied = 3,
    /// It was rejected.
    Rejected = 4,
    /// It was cancelled.
    Cancelled = 5,
    /// It holds the lock beyond its own end.
    LockHeld = 6,
    /// Its lock was released.
    LockReleased = 7,
    /// Its result was queued.
    Queued = 8,
    /// Its result was acked.
    Acked = 9,
    /// An attempt ended without an ack.
    Returned = 10,
    /// The ack window passed.
    Expired = 11,
    /// The retry budget was spent.
    Dead = 12,
    /// An ack came after the delivery had ended.
    AckedLate = 13,
    /// An ended delivery was made pending again by hand.
    Redriven = 14,
    /// The id had no record and was sealed.
    Sealed = 15,
    /// A setting of the account changed; in the account's own chain alone.
    PolicyChanged = 16,
    /// The account's evidence floor was raised by hand; in the account's own chain alone.
    EvidenceFloorRaised = 17,
    /// The store was marked: it may have lost what was accepted; in the account's own chain alone.
    StoreMarked = 18,
    /// The payloads were erased by hand.
    Erased = 19,
}

impl AuditKind {
    /// Every kind.
    pub const ALL: [AuditKind; 19] = [
        AuditKind::Accepted,
        AuditKind::Waiting,
        AuditKind::Applied,
        AuditKind::Rejected,
        AuditKind::Cancelled,
        AuditKind::LockHeld,
        AuditKind::LockReleased,
        AuditKind::Queued,
        AuditKind::Acked,
        AuditKind::Returned,
        AuditKind::Expired,
        AuditKind::Dead,
        AuditKind::AckedLate,
        AuditKind::Redriven,
        AuditKind::Sealed,
        AuditKind::PolicyChanged,
        AuditKind::EvidenceFloorRaised,
        AuditKind::StoreMarked,
        AuditKind::Erased,
    ];
}

/// One thing that happened to an operation or to its news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// What.
    pub kind: AuditKind,
    /// The same for people; empty where the kind says it all.
    pub text: String,
    /// The delivery it speaks of; 0 if none.
    pub sequence: i64,
    /// The attempt it speaks of; 0 if none.
    pub attempt: i32,
}

impl AuditEvent {
    /// An event without a delivery and without further words.
    pub fn plain(kind: AuditKind) -> Self {
        AuditEvent { kind, text: String::new(), sequence: 0, attempt: 0 }
    }
}

/// One row of a chain: everything one command did to one operation, or to an account's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Which chain.
    pub chain: AuditChain,
    /// Its place in the chain, from 1.
    pub number: i32,
    /// When, by the store's clock.
    pub time: Timestamp,
    /// Who: the credential's subject, or `sweeper`.
    pub subject: String,
    /// What, packed by [`super::record::pack_events`].
    pub events: Vec<u8>,
    /// SHA-256 over the row before and this one.
    pub hash: [u8; 32],
}

impl AuditRow {
    /// The operation that it tells of, if it tells of one.
    pub fn operation(&self) -> Option<&OperationKey> {
        match &self.chain {
            AuditChain::Operation(key) => Some(key),
            AuditChain::Account(_) => None,
        }
    }
}

/// The row that follows `head`, and the head after it.
pub fn append(
    head: AuditHead,
    chain: &AuditChain,
    time: Timestamp,
    subject: &str,
    events: Vec<u8>,
) -> (AuditRow, AuditHead) {
    let number = head.length.saturating_add(1);
    let hash = row_hash(&head.hash, number, time, subject, &events);
    let row =
        AuditRow { chain: chain.clone(), number, time, subject: subject.to_owned(), events, hash };
    (row, AuditHead { length: number, hash })
}

/// The hash of a row that follows a row with hash `before`.
pub fn row_hash(
    before: &[u8; 32],
    number: i32,
    time: Timestamp,
    subject: &str,
    events: &[u8],
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"receiptd.audit.v1");
    hash.update(before);
    hash.update(number.to_be_bytes());
    hash.update(time.0.to_be_bytes());
    hash.update(u64::try_from(subject.len()).expect("a length fits 64 bits").to_be_bytes());
    hash.update(subject.as_bytes());
    hash.update(events);
    hash.finalize().into()
}
