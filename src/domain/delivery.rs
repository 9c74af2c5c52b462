//! A delivery: the news of one outcome, apart from the outcome itself (R33).

use super::{
    ids::{Account, ConsumerId, InboxName, OperationId, Target, Timestamp},
    operation::OperationKey,
};

/// The key of an inbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InboxKey {
    /// The owner.
    pub account: Account,
    /// The name.
    pub inbox: InboxName,
}

/// The key of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryKey {
    /// The inbox.
    pub inbox: InboxKey,
    /// The number; from 1, in commit order, never used twice.
    pub sequence: i64,
}

/// One delivery that a caller names, to ack or to redrive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryTarget {
    /// By its number.
    Numbered {
        /// The inbox.
        inbox: InboxName,
        /// The number.
        sequence: i64,
    },
    /// The newest delivery of an operation.
    Newest {
        /// Which operation.
        operation_id: OperationId,
        /// The inbox it must be in; absent: wherever it is.
        inbox: Option<InboxName>,
    },
}

/// What happened to the news (contract section 3). The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryState {
    /// Waits for a consumer.
    Pending = 1,
    /// Sent and not acked yet.
    InFlight = 2,
    /// Acked.
    Acked = 3,
    /// The ack window passed.
    Expired = 4,
    /// The retry budget is spent.
    Dead = 5,
}

impl DeliveryState {
    /// Every state, in the order of its number.
    pub const ALL: [DeliveryState; 5] = [
        DeliveryState::Pending,
        DeliveryState::InFlight,
        DeliveryState::Acked,
        DeliveryState::Expired,
        DeliveryState::Dead,
    ];

    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as i16 == number)
    }

    /// Whether it still takes a slot.
    pub fn is_open(self) -> bool {
        match self {
            DeliveryState::Pending | DeliveryState::InFlight => true,
            DeliveryState::Acked | DeliveryState::Expired | DeliveryState::Dead => false,
        }
    }

    /// The word in texts.
    pub fn word(self) -> &'static str {
        match self {
            DeliveryState::Pending => "PENDING",
            DeliveryState::InFlight => "IN_FLIGHT",
            DeliveryState::Acked => "ACKED",
            DeliveryState::Expired => "EXPIRED",
            DeliveryState::Dead => "DEAD",
        }
    }
}

/// Who acked, kept in the delivery row: the evidence of a first-attempt ack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckEvidence {
    /// When.
    pub time: Timestamp,
    /// The attempt that was in force.
    pub attempt: i32,
    /// The credential's subject.
    pub subject: String,
    /// The consumer that the caller named; empty if none.
    pub consumer: String,
    /// SHA-256 over all of this and the delivery's key.
    pub hash: [u8; 32],
}

/// One delivery as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The key.
    pub key: DeliveryKey,
    /// Whose outcome.
    pub operation_id: OperationId,
    /// Which outcome of it.
    pub outcome_version: i32,
    /// What happened to the news.
    pub state: DeliveryState,
    /// How often it was sent.
    pub attempt: i32,
    /// How often it had been sent when it was last redriven: its budget and its backoff count from
    /// there. 0 if it never was.
    pub attempts_before: i32,
    /// When it was queued.
    pub queue_time: Timestamp,
    /// While PENDING after an attempt or a redrive: from when it may be sent again, which is the
    /// moment it was queued where only the stream of its first attempt ended; absent otherwise.
    pub available_time: Option<Timestamp>,
    /// While IN_FLIGHT: until when this attempt may be acked; absent otherwise.
    pub ack_deadline: Option<Timestamp>,
    /// When the ack window ends.
    pub expire_time: Timestamp,
    /// When the sweeper has to look at it; absent once it has ended.
    pub due_time: Option<Timestamp>,
    /// When it was acked, expired or died; absent before.
    pub end_time: Option<Timestamp>,
    /// When the last attempt ended without an ack; absent if none did.
    pub last_failure_time: Option<Timestamp>,
    /// While IN_FLIGHT: to whom, and to which of its streams; absent otherwise.
    pub consumer: Option<(ConsumerId, i64)>,
    /// How often it came back because its stream ended or was taken over; from 0 again when it is
    /// redriven.
    pub returns: i32,
    /// The target whose lock this delivery holds until it ends; absent if none.
    pub lock_target: Option<Target>,
    /// Who acked; absent before, and for late acks kept beside the ended state.
    pub ack: Option<AckEvidence>,
}

impl Delivery {
    /// The attempts that its retry budget counts.
    pub fn attempts_spent(&self) -> i32 {
        self.attempt.saturating_sub(self.attempts_before)
    }

    /// Since when a PENDING one could be sent, and its number, which decides between equals: the
    /// order of sending (contract section 7).
    pub fn due_since(&self) -> (Timestamp, i64) {
        (self.available_time.unwrap_or(self.queue_time), self.key.sequence)
    }

    /// Whether it waits for its first attempt and was never given back or redriven: what the cursor
    /// of its inbox finds.
    pub fn is_fresh(&self) -> bool {
        self.state == DeliveryState::Pending && self.attempt == 0 && self.available_time.is_none()
    }

    /// The operation whose outcome it tells.
    pub fn operation_key(&self) -> OperationKey {
        OperationKey { account: self.key.inbox.account.clone(), id: self.operation_id.clone() }
    }
}
