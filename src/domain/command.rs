//! What can be asked of the domain, and what it answers.
//!
//! A command names the rows it will need as far as they can be known beforehand; whatever a rule
//! finds beyond that arrives with the next batch (see [`super::world`]).

mod needs;
mod operators;
mod swept;

use std::collections::BTreeMap;

pub(super) use self::needs::BODY_WEIGHT;
pub use self::{
    operators::{Erased, Erasure, FloorRaise, FloorRaised, PolicyUpdate, PolicyUpdated},
    swept::Swept,
};
use super::{
    attempts::{Attempted, Attempts},
    delivery::{Delivery, DeliveryKey, DeliveryTarget, InboxKey},
    document::DocumentAction,
    ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Span},
    inbox::{Consumer, Force, Inbox, InboxChange},
    intent::{Intent, IntentDigest},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey, ResultKind},
    policy::Policy,
    redrive::Redriven,
    refusal::Refusal,
    standing::{Answer, Evidence},
    world::needs::Unloaded,
};

/// What a submit does when its target is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLocked {
    /// Stays ACCEPTED and starts in order.
    Wait,
    /// Is refused with TARGET_LOCKED.
    Fail,
}

/// Whether a submit is meant or only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intention {
    /// It is meant.
    Execute,
    /// Check everything, change nothing.
    ValidateOnly,
}

/// What a cancel does with an id that has no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfAbsent {
    /// Is refused with NO_SUCH_OPERATION: a submit may still be on its way.
    Refuse,
    /// Records the id as CANCELLED, so that no submit under it can execute any more.
    Seal,
}

/// One instruction under its id. Everything that can be seen from the request alone was checked.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Whose id.
    pub key: OperationKey,
    /// When it was made.
    pub mint_time: MintTime,
    /// What to do.
    pub intent: Intent,
    /// Its digest.
    pub digest: IntentDigest,
    /// Its action, parsed.
    pub action: DocumentAction,
    /// Where the result goes; absent with `delivery: NONE`.
    pub inbox: Option<InboxName>,
    /// What to do when the target is locked.
    pub on_locked: OnLocked,
    /// How long it may wait for its start; absent: as the policy says.
    pub start_deadline: Option<Span>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The credential's subject.
    pub subject: String,
    /// Meant or only tried.
    pub intention: Intention,
    /// What is to be kept of the result; not part of the intent.
    pub result: ResultKind,
}

/// Everything that changes state goes through one of these.
#[derive(Debug, Clone)]
pub enum Command {
    /// Claims an id and executes, attaches, or replays.
    Submit(Box<Submit>),
    /// Cancels what has not begun; may seal what has no record.
    Cancel {
        /// Whose id.
        key: OperationKey,
        /// When it was made.
        mint_time: MintTime,
        /// Why.
        reason: String,
        /// The credential's subject.
        subject: String,
        /// What becomes of an id without a record.
        if_absent: IfAbsent,
    },
    /// Takes the lock of an id and looks what is known of it: changes nothing but the row of an
    /// account that has none.
    Probe {
        /// Whose id.
        key: OperationKey,
        /// When it was made.
        mint_time: MintTime,
    },
    /// Acks deliveries, each with its own outcome.
    Ack {
        /// Whose.
        account: Account,
        /// Which; at most 1,000.
        targets: Vec<DeliveryTarget>,
        /// The credential's subject.
        subject: String,
        /// The consumer that the caller named; empty if none.
        consumer: String,
    },
    /// Moves the ack deadlines of attempts, each with its own outcome.
    Extend {
        /// Which.
        attempts: Attempts,
        /// How far from now; absent: as the policy says for an attempt.
        extension: Option<Span>,
    },
    /// Gives attempts back at once, each with its own outcome.
    Defer {
        /// Which.
        attempts: Attempts,
        /// When they may be sent again, from now.
        delay: Span,
        /// The credential's subject.
        subject: String,
    },
    /// Makes ended deliveries pending again, each with its own outcome.
    Redrive {
        /// Whose.
        account: Account,
        /// Which; at most 1,000.
        targets: Vec<DeliveryTarget>,
        /// The credential's subject.
        subject: String,
    },
    /// Marks a page of deliveries in flight to a consumer without a stream.
    Pull {
        /// Which inbox; made at first use.
        inbox: InboxKey,
        /// Who.
        consumer: ConsumerId,
        /// How many at most.
        limit: i64,
    },
    /// Opens a stream of a consumer: takes over from its older streams.
    Open {
        /// Which inbox; made at first use.
        inbox: InboxKey,
        /// Who.
        consumer: ConsumerId,
        /// How many unacked results it may hold.
        window: i64,
    },
    /// Opens a stream again whose lease ended: as [`Command::Open`], unless a newer stream of the
    /// consumer is open, or the inbox was deleted meanwhile.
    Reopen {
        /// Which inbox.
        inbox: InboxKey,
        /// Who.
        consumer: ConsumerId,
        /// The epoch of the stream that lapsed.
        epoch: i64,
        /// How many unacked results it may hold.
        window: i64,
        /// Which generation of the inbox it read.
        generation: i64,
    },
    /// Marks a page of deliveries in flight to a stream, and renews its lease.
    Offer {
        /// Which inbox.
        inbox: InboxKey,
        /// Whose stream.
        consumer: ConsumerId,
        /// Which of its streams.
        epoch: i64,
        /// How many at most; 0 renews the lease only.
        limit: i64,
        /// Which of them.
        choice: Choice,
    },
    /// Closes a stream: what it holds becomes available again.
    Close {
        /// Which inbox.
        inbox: InboxKey,
        /// Whose stream.
        consumer: ConsumerId,
        /// Which of its streams.
        epoch: i64,
    },
    /// Changes the limits of an inbox.
    UpdateInbox {
        /// Which.
        inbox: InboxKey,
        /// How.
        change: InboxChange,
    },
    /// Deletes an inbox.
    DeleteInbox {
        /// Which.
        inbox: InboxKey,
        /// With or without content.
        force: Force,
        /// The generation that is meant; absent: whichever it is.
        generation: Option<i64>,
    },
    /// Changes an account's policy.
    UpdatePolicy(Box<PolicyUpdate>),
    /// Raises an account's evidence floor by hand.
    RaiseFloor(Box<FloorRaise>),
    /// Erases the payloads of an operation.
    Erase(Box<Erasure>),
    /// Releases a lock by hand.
    ReleaseLock {
        /// Which.
        target: TargetKey,
        /// The believed holder.
        operation_id: OperationId,
        /// Why.
        reason: String,
        /// The credential's subject.
        subject: String,
    },
    /// Looks at a delivery that is due.
    SweepDelivery {
        /// Which.
        key: DeliveryKey,
        /// Whose outcome it is: known to the search, so that its row is loaded at once.
        operation_id: OperationId,
    },
    /// Looks at an operation that is due.
    SweepOperation {
        /// Which.
        key: OperationKey,
    },
    /// Looks at a lock that is due.
    SweepLock {
        /// Which.
        target: TargetKey,
    },
    /// Looks at an inbox whose consumers may be gone, or whose upkeep is due.
    SweepInbox {
        /// Which.
        key: InboxKey,
    },
    /// Looks at an account that may close for more old ids.
    SweepAccount {
        /// Which.
        account: Account,
    },
    /// Folds the count of replays into an operation.
    FoldReplays {
        /// Which.
        key: OperationKey,
        /// How many since the last fold.
        count: i64,
    },
}

/// How a call was answered (contract section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This call caused it.
    Executed,
    /// It joined unfinished work.
    Attached,
    /// A stored receipt was returned.
    Replayed,
}

/// The answer to a submit.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The operation.
    pub operation: Operation,
    /// How it was answered.
    pub origin: Origin,
    /// Its delivery, if this batch holds it; a replay reads it afterwards.
    pub delivery: Option<Delivery>,
    /// Who holds the target, if the operation waits.
    pub waiting_for: Option<Lock>,
    /// The document's revision and generation after, if this batch holds it.
    pub projection: Option<(bool, i64, i64)>,
    /// The submit named this inbox, and the operation's first one stays in place.
    pub other_inbox: Option<InboxName>,
    /// Meant or only tried.
    pub intention: Intention,
    /// What the account keeps.
    pub evidence: Evidence,
}

/// What a cancel found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// Cancelled, no effect.
    Cancelled,
    /// It had ended before.
    TooLate,
}

/// How one ack ended (contract section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckOutcome {
    /// Acked now.
    Acked,
    /// Acked before.
    AlreadyAcked,
    /// Had expired or died; recorded.
    AckedLate,
    /// No longer kept.
    Retired,
    /// No such number.
    NoSuchDelivery,
}

/// The outcome of one ack.
#[derive(Debug, Clone)]
pub struct Acked {
    /// Which; absent if the caller named an operation that has no delivery there.
    pub key: Option<DeliveryKey>,
    /// How it ended.
    pub outcome: AckOutcome,
    /// The delivery as it is now, where there is one.
    pub delivery: Option<Delivery>,
}

/// Which deliveries an offer may put in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Any: what came back first, then what was never sent.
    Any,
    /// Of these numbers those that came back and are available: what a stream without credit for
    /// more showed before.
    Returned(Vec<i64>),
}

/// The answer to a command.
#[derive(Debug, Clone)]
pub enum Reply {
    /// To [`Command::Submit`].
    Submitted(Box<Submitted>),
    /// To [`Command::Cancel`].
    Cancelled {
        /// What it found.
        outcome: CancelOutcome,
        /// The operation.
        operation: Box<Operation>,
        /// Its delivery, if this batch holds it.
        delivery: Option<Box<Delivery>>,
    },
    /// To [`Command::Probe`].
    Probed(Box<Answer>),
    /// To [`Command::Ack`], in the order asked.
    Acked(Vec<Acked>),
    /// To [`Command::Extend`] and [`Command::Defer`], in the order asked.
    Attempted(Vec<Attempted>),
    /// To [`Command::Redrive`], in the order asked.
    Redriven(Vec<Redriven>),
    /// To [`Command::Open`] and [`Command::Reopen`].
    Opened {
        /// The inbox.
        inbox: Box<Inbox>,
        /// The consumer with its new epoch.
        consumer: Consumer,
        /// The policy of the account.
        policy: Box<Policy>,
    },
    /// To [`Command::Offer`] of a stream whose lease ended; nothing was done. What it held came back.
    Lapsed,
    /// To [`Command::Offer`] and [`Command::Pull`], in the order of sending.
    Offered {
        /// What is in flight now.
        deliveries: Vec<Delivery>,
        /// The inbox after.
        inbox: Box<Inbox>,
    },
    /// To [`Command::Close`].
    Closed,
    /// To [`Command::UpdateInbox`]: the inbox after.
    InboxUpdated(Box<Inbox>),
    /// To [`Command::DeleteInbox`]: the inbox as it was.
    InboxDeleted(Box<Inbox>),
    /// To [`Command::UpdatePolicy`].
    PolicyUpdated(Box<PolicyUpdated>),
    /// To [`Command::RaiseFloor`].
    FloorRaised(FloorRaised),
    /// To [`Command::Erase`].
    Erased(Erased),
    /// To [`Command::ReleaseLock`]: the lock as it was.
    Released(Box<Lock>),
    /// To the sweeps.
    Swept(Swept),
    /// To [`Command::FoldReplays`].
    Folded,
}

/// Why a command has no answer yet, or never gets a good one.
#[derive(Debug, Clone)]
pub enum Halt {
    /// The answer is no.
    Refused(Box<Refusal>),
    /// Rows are missing: it leads the next batch with them.
    Unloaded(Unloaded),
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Halt::Refused(Box::new(refusal))
    }
}

impl From<Unloaded> for Halt {
    fn from(unloaded: Unloaded) -> Self {
        Halt::Unloaded(unloaded)
    }
}

/// What a rule returns.
pub type Decided<T> = Result<T, Halt>;
