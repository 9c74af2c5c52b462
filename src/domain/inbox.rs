//! An inbox: counters, limits and the consumers that read it.
//!
//! What must stay true: `pending`, `in_flight` and `reserved` equal what a recount of the rows
//! would give (I13); a number is never used twice (T11); a delivery row changes only under the
//! lock of its inbox row.

use super::{
    delivery::InboxKey,
    ids::{ConsumerId, Timestamp},
};

/// One reader of an inbox, as stored inside the inbox row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Who.
    pub id: ConsumerId,
    /// Which of its streams; rises with each one that opens on the inbox.
    pub epoch: i64,
    /// How many unacked results it may hold.
    pub window: i64,
    /// How many it holds.
    pub in_flight: i64,
    /// When its stream opened.
    pub open_time: Timestamp,
    /// Until when it counts as alive without a sign of life.
    pub lease_time: Timestamp,
}

/// One inbox as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    /// The key.
    pub key: InboxKey,
    /// Rises when a deleted inbox is used again; from 1.
    pub generation: i64,
    /// The number of the next delivery; from 1.
    pub next_sequence: i64,
    /// Everything up to here was offered at least once, or had ended before.
    pub offered: i64,
    /// Slots of operations without an outcome.
    pub reserved: i64,
    /// Deliveries that wait.
    pub pending: i64,
    /// How many of `pending` came back after an attempt, or were redriven.
    pub returned: i64,
    /// Deliveries sent and not acked.
    pub in_flight: i64,
    /// Deliveries acked since the inbox exists.
    pub acked_total: i64,
    /// Deliveries expired since the inbox exists.
    pub expired_total: i64,
    /// Deliveries dead since the inbox exists.
    pub dead_total: i64,
    /// The highest epoch given to a consumer.
    pub consumer_epoch: i64,
    /// Who reads it now.
    pub consumers: Vec<Consumer>,
    /// When it was first used.
    pub create_time: Timestamp,
    /// When the sweeper has to look at it: the earliest end of a consumer's lease; absent without
    /// consumers.
    pub due_time: Option<Timestamp>,
}

impl Inbox {
    /// An inbox at its first use.
    pub fn new(key: InboxKey, now: Timestamp) -> Self {
        Inbox {
            key,
            generation: 1,
            next_sequence: 1,
            offered: 0,
            reserved: 0,
            pending: 0,
            returned: 0,
            in_flight: 0,
            acked_total: 0,
            expired_total: 0,
            dead_total: 0,
            consumer_epoch: 0,
            consumers: Vec::new(),
            create_time: now,
            due_time: None,
        }
    }

    /// Slots taken now.
    pub fn slots_used(&self) -> i64 {
        self.reserved + self.pending + self.in_flight
    }

    /// The highest number used; 0 if none.
    pub fn last_sequence(&self) -> i64 {
        self.next_sequence - 1
    }

    /// The consumer whose stream has this epoch.
    pub fn consumer(&self, id: &ConsumerId, epoch: i64) -> Option<&Consumer> {
        self.consumers.iter().find(|consumer| consumer.id == *id && consumer.epoch == epoch)
    }

    /// As [`Inbox::consumer`], to change it.
    pub fn consumer_mut(&mut self, id: &ConsumerId, epoch: i64) -> Option<&mut Consumer> {
        self.consumers.iter_mut().find(|consumer| consumer.id == *id && consumer.epoch == epoch)
    }
}

/// An account as stored; made at its first use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRow {
    /// Whose.
    pub account: super::ids::Account,
    /// When it was first used.
    pub create_time: Timestamp,
    /// How many inboxes it has.
    pub inboxes: i64,
    /// No id minted up to here can be accepted any more; only rises, from
    /// [`Timestamp::BEGINNING`].
    pub closed_before: Timestamp,
    /// The greatest mint time whose record was deleted or may be lost; only rises, from
    /// [`Timestamp::BEGINNING`].
    pub evidence_floor: Timestamp,
}

impl AccountRow {
    /// An account at its first use: nothing was deleted, and nothing is closed.
    pub fn new(account: super::ids::Account, now: Timestamp) -> Self {
        AccountRow {
            account,
            create_time: now,
            inboxes: 0,
            closed_before: Timestamp::BEGINNING,
            evidence_floor: Timestamp::BEGINNING,
        }
    }
}
