//! What the rows of a store must say of one another, and what it is called when they do not.
//!
//! What must stay true: these rules read rows and nothing else, and know nothing of how the rows
//! came about: [`story`] replays a trail by a table of its own, so that a fault of the rules that
//! write shows. One fault is told once: who has lost the thread of a chain does not go on to tell
//! what follows from it. Deliberately not here: how rows are read, page by page.

pub mod chain;
pub mod effects;
pub mod rows;
pub mod story;

use std::fmt;

use super::{
    delivery::{DeliveryKey, InboxKey},
    ids::Account,
    lock::TargetKey,
    operation::OperationKey,
};

/// What is wrong. The numbers are those of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContradictionKind {
    /// An audit row is not what was hashed, or not behind the row before.
    ChainRowChanged = 1,
    /// An audit row is missing between others, or at the beginning.
    ChainCut = 2,
    /// A chain does not end where its operation or its account says.
    ChainEnd = 3,
    /// Audit rows whose operation is not there.
    ChainWithoutOperation = 4,
    /// Events in an order that no operation goes through.
    ImpossibleHistory = 5,
    /// An operation is not what its events say.
    OperationDiffers = 6,
    /// The intent of an operation is not what was digested.
    IntentDiffers = 7,
    /// A delivery is not what the events of its operation say.
    DeliveryDiffers = 8,
    /// An operation's delivery is not there.
    DeliveryMissing = 9,
    /// A delivery of an operation that is not there, or that has another delivery.
    DeliveryWithoutOperation = 10,
    /// A count of an inbox is not what its rows give.
    InboxCounter = 11,
    /// An account's row is not there, or its count of inboxes is not what the rows give.
    AccountDiffers = 12,
    /// A lock whose holder does not hold it.
    LockWithoutHolder = 13,
    /// A lock, its waiters, its document or its delivery disagree.
    LockDiffers = 14,
    /// A document is not what its hash or its newest receipt says.
    DocumentDiffers = 15,
    /// A revision of a document that no receipt has.
    EffectWithoutReceipt = 16,
    /// A revision of a document that two receipts have.
    EffectTwice = 17,
    /// A receipt of a revision that its document has not reached.
    ReceiptWithoutEffect = 18,
    /// Bytes that an operation has are not there.
    PayloadMissing = 19,
    /// Bytes that no operation has.
    PayloadWithoutOperation = 20,
    /// Bytes of another digest than their operation says.
    PayloadDiffers = 21,
}

impl ContradictionKind {
    /// The word in texts and in the protocol.
    pub fn word(self) -> &'static str {
        match self {
            ContradictionKind::ChainRowChanged => "CHAIN_ROW_CHANGED",
            ContradictionKind::ChainCut => "CHAIN_CUT",
            ContradictionKind::ChainEnd => "CHAIN_END",
            ContradictionKind::ChainWithoutOperation => "CHAIN_WITHOUT_OPERATION",
            ContradictionKind::ImpossibleHistory => "IMPOSSIBLE_HISTORY",
            ContradictionKind::OperationDiffers => "OPERATION_DIFFERS",
            ContradictionKind::IntentDiffers => "INTENT_DIFFERS",
            ContradictionKind::DeliveryDiffers => "DELIVERY_DIFFERS",
            ContradictionKind::DeliveryMissing => "DELIVERY_MISSING",
            ContradictionKind::DeliveryWithoutOperation => "DELIVERY_WITHOUT_OPERATION",
            ContradictionKind::InboxCounter => "INBOX_COUNTER",
            ContradictionKind::AccountDiffers => "ACCOUNT_DIFFERS",
            ContradictionKind::LockWithoutHolder => "LOCK_WITHOUT_HOLDER",
            ContradictionKind::LockDiffers => "LOCK_DIFFERS",
            ContradictionKind::DocumentDiffers => "DOCUMENT_DIFFERS",
            ContradictionKind::EffectWithoutReceipt => "EFFECT_WITHOUT_RECEIPT",
            ContradictionKind::EffectTwice => "EFFECT_TWICE",
            ContradictionKind::ReceiptWithoutEffect => "RECEIPT_WITHOUT_EFFECT",
            ContradictionKind::PayloadMissing => "PAYLOAD_MISSING",
            ContradictionKind::PayloadWithoutOperation => "PAYLOAD_WITHOUT_OPERATION",
            ContradictionKind::PayloadDiffers => "PAYLOAD_DIFFERS",
        }
    }

    /// What to do about it; for people.
    pub fn next_step(self) -> &'static str {
        match self {
            ContradictionKind::ChainRowChanged
            | ContradictionKind::ChainCut
            | ContradictionKind::ChainEnd
            | ContradictionKind::ChainWithoutOperation
            | ContradictionKind::ImpossibleHistory => {
                "the trail was changed or lost: compare it with a backup from before, and find out \
                 who can write to the store"
            }
            ContradictionKind::OperationDiffers | ContradictionKind::IntentDiffers => {
                "trust the trail rather than the row: compare both with a backup, and do not \
                 resubmit under a new id before it is clear what happened"
            }
            ContradictionKind::DeliveryDiffers
            | ContradictionKind::DeliveryMissing
            | ContradictionKind::DeliveryWithoutOperation => {
                "the operation itself says what happened: read it with `receiptd get`"
            }
            ContradictionKind::InboxCounter | ContradictionKind::AccountDiffers => {
                "slots may be refused or given wrongly: report it with this line; the results \
                 themselves are not touched"
            }
            ContradictionKind::LockWithoutHolder | ContradictionKind::LockDiffers => {
                "if the target stays locked, release it by hand (ReleaseLock) once its lock limit \
                 has passed"
            }
            ContradictionKind::DocumentDiffers
            | ContradictionKind::EffectWithoutReceipt
            | ContradictionKind::EffectTwice
            | ContradictionKind::ReceiptWithoutEffect => {
                "read the document and decide what is right before anybody writes to it again; \
                 compare with a backup"
            }
            ContradictionKind::PayloadMissing
            | ContradictionKind::PayloadWithoutOperation
            | ContradictionKind::PayloadDiffers => {
                "do not use these bytes: take them from a backup, or read the target's current \
                 state"
            }
        }
    }
}

/// One thing that cannot be: what is expected, and what is there. Names no value of a caller's
/// arguments, results or documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// What is wrong.
    pub kind: ContradictionKind,
    /// Whose rows.
    pub account: Account,
    /// The operation; empty if none.
    pub operation_id: String,
    /// The inbox; empty if none.
    pub inbox: String,
    /// The delivery's number; 0 if none.
    pub sequence: i64,
    /// The target; empty if none.
    pub target: String,
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
}

impl Contradiction {
    /// One about an account.
    pub fn of(
        kind: ContradictionKind,
        account: &Account,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Contradiction {
            kind,
            account: account.clone(),
            operation_id: String::new(),
            inbox: String::new(),
            sequence: 0,
            target: String::new(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Names the operation.
    #[must_use]
    pub fn operation(self, key: &OperationKey) -> Self {
        Contradiction { operation_id: key.id.as_str().to_owned(), ..self }
    }

    /// Names the inbox.
    #[must_use]
    pub fn inbox(self, key: &InboxKey) -> Self {
        Contradiction { inbox: key.inbox.as_str().to_owned(), ..self }
    }

    /// Names the delivery.
    #[must_use]
    pub fn delivery(self, key: &DeliveryKey) -> Self {
        Contradiction { sequence: key.sequence, ..self.inbox(&key.inbox) }
    }

    /// Names the target.
    #[must_use]
    pub fn target(self, key: &TargetKey) -> Self {
        Contradiction { target: key.target.as_str().to_owned(), ..self }
    }
}

/// One line.
impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} account {}", self.kind.word(), self.account.as_str())?;
        for (name, value) in
            [("operation", &self.operation_id), ("inbox", &self.inbox), ("target", &self.target)]
        {
            if !value.is_empty() {
                write!(f, ", {name} {value}")?;
            }
        }
        if self.sequence != 0 {
            write!(f, ", delivery {}", self.sequence)?;
        }
        write!(f, ": expected {}, found {}. ", self.expected, self.found)?;
        write!(f, "Next: {}", self.kind.next_step())
    }
}

/// What two rows say of one thing, where they disagree.
#[derive(Debug, Default)]
struct Differences {
    expected: Vec<String>,
    found: Vec<String>,
}

impl Differences {
    fn compare<T: PartialEq + fmt::Debug>(&mut self, name: &'static str, expected: T, found: T) {
        if expected != found {
            self.expected.push(format!("{name} {expected:?}"));
            self.found.push(format!("{name} {found:?}"));
        }
    }

    /// All of them in one contradiction, if there are any.
    fn told(&self, kind: ContradictionKind, account: &Account) -> Option<Contradiction> {
        let differ = !self.expected.is_empty();
        let told =
            || Contradiction::of(kind, account, self.expected.join(", "), self.found.join(", "));
        differ.then(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contradiction_is_one_line_that_says_what_to_do() {
        let account = Account::parse("a").expect("valid");
        let told = Contradiction {
            operation_id: "op".to_owned(),
            inbox: "default".to_owned(),
            sequence: 3,
            ..Contradiction::of(ContradictionKind::DeliveryMissing, &account, "a row", "none")
        };
        assert_eq!(
            told.to_string(),
            "DELIVERY_MISSING account a, operation op, inbox default, delivery 3: expected a row, \
             found none. Next: the operation itself says what happened: read it with `receiptd get`"
        );
    }
}
