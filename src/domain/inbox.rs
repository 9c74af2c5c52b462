//! An inbox: counters, limits and the consumers that read it.
//!
//! What must stay true: `pending`, `in_flight`, `closing` and `reserved` equal what a recount of
//! the rows would give (I13); a number is never used twice for a name (T11), whatever was deleted
//! in between; a delivery row changes only under the lock of its inbox row.

use super::{
    audit::AuditHead,
    closing,
    delivery::{DeliveryKey, InboxKey},
    epoch::{Loss, Skipped},
    ids::{ConsumerId, Timestamp},
    policy::Policy,
    settings::OwnSettings,
};

/// One reader of an inbox, as stored inside the inbox row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Who.
    pub id: ConsumerId,
    /// Which of its streams; rises with each one that opens on the inbox.
    pub epoch: i64,
    /// How many unacked results it may hold, as it asked: what bounds it is [`Inbox::window_of`].
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
    /// Deliveries acked since the inbox exists, in this generation.
    pub acked_total: i64,
    /// Deliveries expired since the inbox exists, in this generation.
    pub expired_total: i64,
    /// Deliveries dead since the inbox exists, in this generation.
    pub dead_total: i64,
    /// The highest epoch given to a consumer.
    pub consumer_epoch: i64,
    /// Who reads it now.
    pub consumers: Vec<Consumer>,
    /// When it was first used, in this generation.
    pub create_time: Timestamp,
    /// When the sweeper has to look at it: the earliest end of a consumer's lease, or the next
    /// upkeep; absent for a marker without kept rows.
    pub due_time: Option<Timestamp>,
    /// The first number of this generation; what is below belongs to deleted ones.
    pub first_sequence: i64,
    /// The lowest number whose row may exist: what is below was purged.
    pub kept_from: i64,
    /// Open deliveries of deleted generations, which the sweeper is about to end. They count in
    /// none of the figures above.
    pub closing: i64,
    /// It was deleted, and this row is the marker that keeps its numbers and its generation.
    pub deleted: bool,
    /// Slots of this inbox; absent: as the policy says.
    pub slots_limit: Option<i64>,
    /// Deliveries of this inbox in flight at most; absent: as the policy says.
    pub in_flight_limit: Option<i64>,
    /// When it was last used: by a submit, an end of a delivery, a stream or an update.
    pub active_time: Timestamp,
    /// When rows may have to be purged, or the inbox may be idle; absent for a marker without
    /// kept rows.
    pub upkeep_time: Option<Timestamp>,
    /// Numbers of this generation that marks passed over, lowest first, at most
    /// [`super::epoch::SKIPPED_MAX`] ranges: a stream tells them as gaps.
    pub skipped: Vec<Skipped>,
}

impl Inbox {
    /// An inbox at its first use. Up to `base` a store before this one may have given out numbers
    /// under its name ([`super::epoch::Loss`]); they are skipped.
    pub fn new(key: InboxKey, base: i64, now: Timestamp) -> Self {
        let skipped = (base > 0).then_some(Skipped { first: 1, last: base });
        Inbox {
            key,
            generation: 1,
            next_sequence: base + 1,
            offered: base,
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
            first_sequence: 1,
            kept_from: base + 1,
            closing: 0,
            deleted: false,
            slots_limit: None,
            in_flight_limit: None,
            active_time: now,
            upkeep_time: None,
            skipped: skipped.into_iter().collect(),
        }
    }

    /// The next generation of a deleted inbox: its numbers go on, and so do the slots of
    /// operations that are still to end; everything else begins anew.
    #[must_use]
    pub fn revived(self, now: Timestamp) -> Self {
        Inbox {
            generation: self.next_generation(),
            next_sequence: self.next_sequence,
            offered: self.last_sequence(),
            reserved: self.reserved,
            consumer_epoch: self.consumer_epoch,
            first_sequence: self.next_sequence,
            kept_from: self.kept_from,
            closing: self.closing,
            upkeep_time: self.upkeep_time,
            ..Inbox::new(self.key, 0, now)
        }
    }

    /// The generation that a use from now on belongs to.
    pub fn next_generation(&self) -> i64 {
        self.generation + i64::from(self.deleted)
    }

    /// Up to which number a reader has nothing to expect: its token's position, or what deleted
    /// generations had.
    pub fn start(&self, position: Option<i64>) -> i64 {
        position.unwrap_or(0).max(self.first_sequence - 1)
    }

    /// Whether a delivery belongs to this generation.
    pub fn owns(&self, delivery: &DeliveryKey) -> bool {
        delivery.sequence >= self.first_sequence
    }

    /// Its slots.
    pub fn slots(&self, policy: &Policy) -> i64 {
        self.slots_limit.unwrap_or(policy.inbox_slots)
    }

    /// Deliveries that may be in flight.
    pub fn in_flight_limit(&self, policy: &Policy) -> i64 {
        self.in_flight_limit.unwrap_or(policy.in_flight_max)
    }

    /// How many unacked results a consumer may hold now: as it asked, within what may be in flight.
    pub fn window_of(&self, consumer: &Consumer, policy: &Policy) -> i64 {
        consumer.window.min(self.in_flight_limit(policy))
    }

    /// Whether no row of a delivery is kept, of whatever generation.
    pub fn keeps_nothing(&self) -> bool {
        self.kept_from >= self.next_sequence
    }

    /// Sets when the sweeper looks: when the first of the consumers' leases ends, or at the next
    /// upkeep.
    pub fn set_due(&mut self) {
        let leases = self.consumers.iter().map(|consumer| consumer.lease_time);
        self.due_time = leases.chain(self.upkeep_time).min();
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

/// What becomes of a limit of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitChange {
    /// It stays.
    Keep,
    /// Back to what the policy says.
    Default,
    /// This many, checked against its range.
    To(i64),
}

/// What an update changes of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxChange {
    /// Its slots, 1 to 1,000,000.
    pub slots: LimitChange,
    /// Its deliveries in flight at most, 1 to 1,000.
    pub in_flight_limit: LimitChange,
}

/// Whether an inbox goes with what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Only if nothing is in it.
    OnlyEmpty,
    /// With everything in it.
    WithContent,
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
    /// No id minted up to here can be accepted any more; only rises.
    pub closed_before: Timestamp,
    /// The greatest mint time whose record was deleted or may be lost; only rises, from
    /// [`Timestamp::BEGINNING`].
    pub evidence_floor: Timestamp,
    /// When the sweeper has to look at it: when `closed_before` may rise by a step.
    pub due_time: Timestamp,
    /// What it has of its own among the settings.
    pub own: OwnSettings,
    /// The head of its own audit chain.
    pub audit: AuditHead,
}

impl AccountRow {
    /// The policy of the account of a row, or of one that was never used.
    pub fn policy(row: Option<&AccountRow>, defaults: &Policy) -> Policy {
        row.map_or_else(|| defaults.clone(), |row| row.own.over(defaults))
    }

    /// An account at its first use: nothing was deleted, a store before this one may have known it,
    /// and closed is what lies behind the admission window.
    pub fn new(account: super::ids::Account, policy: &Policy, loss: Loss, now: Timestamp) -> Self {
        let closed_before = closing::limit(policy, now);
        AccountRow {
            account,
            create_time: now,
            inboxes: 0,
            closed_before,
            evidence_floor: loss.evidence_floor,
            due_time: closing::due(policy, closed_before),
            own: OwnSettings::default(),
            audit: AuditHead::default(),
        }
    }
}
