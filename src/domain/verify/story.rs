//! A trail, replayed: from the events of a chain to the state, the outcome, the delivery and its
//! attempts, by a table of transitions of its own (I15).
//!
//! What must stay true: it uses none of the rules that write events. What leaves no event (an offer,
//! an extension, the ack of a first attempt) is left open, and compared with what it may have led to.

use super::{Contradiction, ContradictionKind, Differences, chain::shown};
use crate::domain::{
    audit::{AuditEvent, AuditKind, AuditRow},
    deliver::ack_hash,
    delivery::{Delivery, DeliveryState},
    finish::told,
    ids::Timestamp,
    operation::{EffectCertainty, Operation, OperationState},
    record::unpack_events,
};

/// Where a delivery stands as far as its operation's events tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits, or is in flight; or was acked at its first attempt, which only its row tells.
    Open,
    /// Acked at a later attempt, or with the release of its lock.
    Acked,
    /// The ack window passed.
    Expired,
    /// The retry budget is spent.
    Dead,
}

/// The news of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct News {
    sequence: i64,
    stage: Stage,
    /// The last attempt that the events tell of.
    attempt: i32,
    attempts_before: i32,
    redriven: bool,
    ended: Option<Timestamp>,
    acked_late: bool,
}

/// What the events of an operation have told so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Story {
    state: Option<OperationState>,
    accepted: Option<Timestamp>,
    ended: Option<Timestamp>,
    sealed: bool,
    waiting: bool,
    outcome_version: i32,
    /// The event of the outcome.
    outcome: Option<AuditEvent>,
    news: Option<News>,
    holds_lock: bool,
    erased: bool,
}

impl Story {
    /// Takes the next row of the chain.
    ///
    /// # Errors
    /// What was expected and what the row says, where no operation goes that way.
    pub fn take(&mut self, row: &AuditRow) -> Result<(), (String, String)> {
        let number = row.number;
        let events = unpack_events(&row.events).map_err(|unreadable| {
            (format!("events in audit row {number}"), unreadable.to_string())
        })?;
        for event in events {
            self.step(&event, row.time).map_err(|expected| {
                let found = format!("{:?} in audit row {number}", event.kind);
                (expected.to_owned(), found)
            })?;
        }
        Ok(())
    }

    /// One event: where it leads, or what had to come before.
    fn step(&mut self, event: &AuditEvent, time: Timestamp) -> Result<(), &'static str> {
        match event.kind {
            AuditKind::Accepted | AuditKind::Sealed => self.begin(event.kind, time),
            AuditKind::Waiting => {
                let fresh = self.state == Some(OperationState::Accepted) && !self.sealed;
                self.waiting = true;
                demand(fresh, "that an operation that waits was accepted before")
            }
            AuditKind::Applied => self.finish(event, OperationState::Applied, time),
            AuditKind::Rejected => self.finish(event, OperationState::Rejected, time),
            AuditKind::Cancelled => {
                demand(self.waiting || self.sealed, "that only what waits is cancelled")?;
                self.finish(event, OperationState::Cancelled, time)
            }
            AuditKind::Queued => {
                demand(self.ended.is_some() && !self.sealed, "an outcome before its news")?;
                demand(self.news.is_none(), "one delivery of one outcome")?;
                self.news = Some(News {
                    sequence: event.sequence,
                    stage: Stage::Open,
                    attempt: 0,
                    attempts_before: 0,
                    redriven: false,
                    ended: None,
                    acked_late: false,
                });
                Ok(())
            }
            AuditKind::LockHeld => {
                let open = self.news.is_some_and(|news| news.stage == Stage::Open);
                demand(open && !self.holds_lock, "an open delivery that holds no lock yet")?;
                self.holds_lock = true;
                Ok(())
            }
            AuditKind::LockReleased => self.release(event, time),
            AuditKind::Acked
            | AuditKind::Returned
            | AuditKind::Expired
            | AuditKind::Dead
            | AuditKind::AckedLate
            | AuditKind::Redriven => self.deliver(event, time),
            AuditKind::Erased => {
                self.erased = true;
                demand(self.ended.is_some(), "that only what has ended is erased")
            }
            AuditKind::PolicyChanged | AuditKind::EvidenceFloorRaised | AuditKind::StoreMarked => {
                Err("nothing of an account in an operation's chain")
            }
        }
    }

    fn begin(&mut self, kind: AuditKind, time: Timestamp) -> Result<(), &'static str> {
        demand(self.state.is_none(), "one beginning of one operation")?;
        self.state = Some(OperationState::Accepted);
        self.accepted = Some(time);
        self.sealed = kind == AuditKind::Sealed;
        Ok(())
    }

    fn finish(
        &mut self,
        event: &AuditEvent,
        state: OperationState,
        time: Timestamp,
    ) -> Result<(), &'static str> {
        let open = self.state == Some(OperationState::Accepted);
        demand(open, "that only what was accepted and has not ended ends")?;
        let cancelled = state == OperationState::Cancelled;
        demand(!self.sealed || cancelled, "that a sealed id has no effect")?;
        self.state = Some(state);
        self.ended = Some(time);
        self.waiting = false;
        self.outcome_version += 1;
        self.outcome = Some(event.clone());
        Ok(())
    }

    /// A lock goes by itself or with its delivery, which then was acked at its first attempt, or has
    /// just ended by an event of its own.
    fn release(&mut self, event: &AuditEvent, time: Timestamp) -> Result<(), &'static str> {
        demand(self.holds_lock, "that only a lock that is held is released")?;
        self.holds_lock = false;
        if event.sequence == 0 {
            return Ok(());
        }
        let news = self.news.as_mut().filter(|news| news.sequence == event.sequence);
        let news = news.ok_or("the release of the lock of this operation's own delivery")?;
        if news.stage == Stage::Open {
            demand(news.attempt <= 1, "an event of the end of a later attempt")?;
            (news.stage, news.ended) = (Stage::Acked, Some(time));
        }
        Ok(())
    }

    fn deliver(&mut self, event: &AuditEvent, time: Timestamp) -> Result<(), &'static str> {
        let news = self.news.as_mut().filter(|news| news.sequence == event.sequence);
        let news = news.ok_or("events of this operation's own delivery")?;
        let (same, next) = (event.attempt == news.attempt, event.attempt == news.attempt + 1);
        let open = news.stage == Stage::Open;
        let lost = matches!(news.stage, Stage::Expired | Stage::Dead) && !news.acked_late;
        let (fits, stage) = match event.kind {
            AuditKind::Returned => (open && next, Stage::Open),
            AuditKind::Dead => (open && next, Stage::Dead),
            AuditKind::Expired => (open && (same || next), Stage::Expired),
            // The ack of a first attempt stands in the delivery's row.
            AuditKind::Acked => (open && event.attempt > 1 && (same || next), Stage::Acked),
            AuditKind::AckedLate => (lost && same, news.stage),
            _ => (lost && same, Stage::Open),
        };
        demand(fits, "the events of a delivery, and its attempts, in their order")?;
        (news.stage, news.attempt) = (stage, event.attempt);
        match event.kind {
            AuditKind::AckedLate => news.acked_late = true,
            AuditKind::Redriven => {
                news.redriven = true;
                (news.attempts_before, news.ended) = (event.attempt, None);
            }
            AuditKind::Returned => {}
            _ => news.ended = Some(time),
        }
        Ok(())
    }

    /// Whether the operation's row is what the events led to.
    pub fn operation(&self, row: &Operation) -> Option<Contradiction> {
        let mut differences = Differences::default();
        let state = self.state.unwrap_or(OperationState::Accepted);
        differences.compare("state", self.state, Some(row.state));
        differences.compare("certainty", certainty(state), row.certainty);
        differences.compare("outcome version", self.outcome_version, row.outcome_version);
        differences.compare("accepted at", self.accepted, Some(row.accept_time));
        differences.compare("ended at", self.ended, row.end_time);
        differences.compare("waiting", self.waiting, row.wait_ticket.is_some());
        differences.compare("sealed", self.sealed, row.is_sealed());
        differences.compare(
            "outcome",
            self.outcome.as_ref(),
            row.outcome.as_ref().map(told).as_ref(),
        );
        let sequence = self.news.map(|news| news.sequence);
        differences.compare("delivery", sequence, row.delivery_sequence);
        let news_due = self.ended.is_some() && row.inbox.is_some();
        differences.compare("has news", news_due, self.news.is_some());
        differences.compare("erased", self.erased, self.erased && row.is_compacted());
        match self.ended {
            None => differences.compare("due", Some(row.start_deadline), row.due_time),
            // What is known ages; when, is up to the account's policy.
            Some(_) => {
                let ages = row.state != OperationState::Unknown;
                differences.compare("ages", ages, row.due_time.is_some());
            }
        }
        let told = differences.told(ContradictionKind::OperationDiffers, &row.key.account);
        told.map(|told| told.operation(&row.key))
    }

    /// Whether the delivery's row is what the events led to.
    pub fn delivery(&self, operation: &Operation, row: &Delivery) -> Option<Contradiction> {
        let news = self.news?;
        let mut differences = Differences::default();
        differences.compare("operation", operation.key.id.as_str(), row.operation_id.as_str());
        differences.compare("outcome version", self.outcome_version, row.outcome_version);
        differences.compare("queued at", self.ended, Some(row.queue_time));
        differences.compare("attempts before", news.attempts_before, row.attempts_before);
        differences.compare("due", row.state.is_open(), row.due_time.is_some());
        differences.compare("consumer", in_flight(row), row.consumer.is_some());
        differences.compare("ack deadline", in_flight(row), row.ack_deadline.is_some());
        differences.compare("end", !row.state.is_open(), row.end_time.is_some());
        let lock = row.lock_target.as_ref();
        differences.compare("holds a lock", self.holds_lock, lock.is_some());
        if let Some(target) = lock {
            differences.compare("lock of", operation.target.as_str(), target.as_str());
        }
        news.stage(row, &mut differences);
        if let Some(ack) = &row.ack {
            let hash = ack_hash(row, ack.time, ack.attempt, &ack.subject, &ack.consumer);
            differences.compare("hash of the ack", shown(&hash), shown(&ack.hash));
            differences.compare("attempt of the ack", row.attempt, ack.attempt);
        }
        let told = differences.told(ContradictionKind::DeliveryDiffers, &operation.key.account);
        told.map(|told| told.operation(&operation.key).delivery(&row.key))
    }
}

impl News {
    /// Compares what the events leave open with what a row may have come to without an event.
    fn stage(&self, row: &Delivery, differences: &mut Differences) {
        let first_ack = self.attempt <= 1 && row.state == DeliveryState::Acked;
        let state = match self.stage {
            Stage::Open if first_ack || row.state == DeliveryState::InFlight => row.state,
            Stage::Open => DeliveryState::Pending,
            Stage::Acked => DeliveryState::Acked,
            Stage::Expired => DeliveryState::Expired,
            Stage::Dead => DeliveryState::Dead,
        };
        differences.compare("state", state, row.state);
        let attempt = match self.stage {
            // One attempt more is under way; a first one may be acked before it began, or after it ended.
            Stage::Open if in_flight(row) => self.attempt + 1,
            Stage::Open | Stage::Acked if first_ack => row.attempt.clamp(self.attempt, 1),
            Stage::Open | Stage::Acked | Stage::Expired | Stage::Dead => self.attempt,
        };
        differences.compare("attempt", attempt, row.attempt);
        let came_back = row.state == DeliveryState::Pending && (self.attempt > 0 || self.redriven);
        differences.compare("came back", came_back, row.available_time.is_some());
        let acked = row.state == DeliveryState::Acked || self.acked_late;
        differences.compare("acked", acked, row.ack.is_some());
        match (self.ended, self.acked_late, &row.ack) {
            (None, _, None) => {}
            (None, _, Some(ack)) => differences.compare("end", Some(ack.time), row.end_time),
            (Some(ended), ..) => differences.compare("end", Some(ended), row.end_time),
        }
    }
}

fn in_flight(row: &Delivery) -> bool {
    row.state == DeliveryState::InFlight
}

fn certainty(state: OperationState) -> EffectCertainty {
    match state {
        OperationState::Applied => EffectCertainty::Complete,
        OperationState::Accepted | OperationState::Rejected | OperationState::Cancelled => {
            EffectCertainty::None
        }
        OperationState::Running | OperationState::Failed | OperationState::Unknown => {
            EffectCertainty::Unknown
        }
    }
}

fn demand(holds: bool, expected: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(expected) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds of events, with the attempt that they speak of.
    type Events<'a> = &'a [(AuditKind, i32)];

    fn play(events: Events) -> Result<Story, &'static str> {
        let mut story = Story::default();
        for (number, (kind, attempt)) in events.iter().enumerate() {
            let speaks = !matches!(kind, AuditKind::Accepted | AuditKind::Waiting);
            let event = AuditEvent {
                sequence: if speaks { 1 } else { 0 },
                attempt: *attempt,
                ..AuditEvent::plain(*kind)
            };
            story.step(&event, Timestamp(i64::try_from(number).expect("small")))?;
        }
        Ok(story)
    }

    #[test]
    fn only_possible_histories_are_taken() {
        use AuditKind::{
            Accepted, Acked, AckedLate, Applied, Cancelled, Dead, Expired, LockHeld, LockReleased,
            PolicyChanged, Queued, Redriven, Rejected, Returned, Sealed, Waiting,
        };
        let applied = [(Accepted, 0), (Applied, 0), (Queued, 0)];
        let held = [(Accepted, 0), (Applied, 0), (Queued, 0), (LockHeld, 0)];
        let table: &[(Events, Events, bool)] = &[
            (&[], &[(Accepted, 0)], true),
            (&[], &[(Accepted, 0), (Waiting, 0), (Cancelled, 0), (Queued, 0)], true),
            (&[], &[(Accepted, 0), (Waiting, 0), (Rejected, 0)], true),
            (&[], &[(Sealed, 0), (Cancelled, 0)], true),
            (&[], &[(Sealed, 0), (Applied, 0)], false),
            (&[], &[(Sealed, 0), (Cancelled, 0), (Queued, 0)], false),
            (&[], &[(Applied, 0)], false),
            (&[], &[(Waiting, 0)], false),
            (&[], &[(Accepted, 0), (Cancelled, 0)], false),
            (&[], &[(Accepted, 0), (Queued, 0)], false),
            (&applied, &[(Applied, 0)], false),
            (&applied, &[(Cancelled, 0)], false),
            (&applied, &[(Accepted, 0)], false),
            (&applied, &[(Queued, 0)], false),
            (&applied, &[(PolicyChanged, 0)], false),
            (&applied, &[(Returned, 1), (Returned, 2), (Dead, 3)], true),
            (&applied, &[(Returned, 2)], false),
            (&applied, &[(Returned, 1), (Returned, 1)], false),
            (&applied, &[(Returned, 1), (Acked, 2)], true),
            (&applied, &[(Returned, 1), (Returned, 2), (Acked, 2)], true),
            (&applied, &[(Acked, 1)], false),
            (&applied, &[(Expired, 0), (AckedLate, 0)], true),
            (&applied, &[(Expired, 1), (AckedLate, 0)], false),
            (&applied, &[(Returned, 1), (Expired, 1)], true),
            (&applied, &[(Returned, 1), (Expired, 2)], true),
            (&applied, &[(Returned, 1), (Expired, 3)], false),
            (&applied, &[(Expired, 0), (Expired, 0)], false),
            (&applied, &[(Expired, 0), (Acked, 2)], false),
            (&applied, &[(Expired, 1), (Redriven, 1), (Returned, 2), (Dead, 3)], true),
            (&applied, &[(Expired, 1), (AckedLate, 1), (Redriven, 1)], false),
            (&applied, &[(Redriven, 0)], false),
            (&applied, &[(LockReleased, 0)], false),
            (&held, &[(LockReleased, 0)], true),
            (&held, &[(LockReleased, 0), (LockReleased, 0)], false),
            (&held, &[(Returned, 1), (Acked, 2), (LockReleased, 0)], true),
            (&held, &[(Returned, 1), (LockReleased, 0)], true),
            (&held, &[(Returned, 1), (Returned, 2), (LockReleased, 0)], false),
            (&held, &[(LockHeld, 0)], false),
        ];
        for (before, events, possible) in table {
            let all: Vec<_> = before.iter().chain(*events).copied().collect();
            assert_eq!(play(&all).is_ok(), *possible, "{all:?}");
        }
    }

    #[test]
    fn a_story_ends_where_its_events_lead() {
        use AuditKind::{
            Accepted, Applied, Expired, LockHeld, Queued, Redriven, Returned, Waiting,
        };
        let all = [
            (Accepted, 0),
            (Waiting, 0),
            (Applied, 0),
            (Queued, 0),
            (Returned, 1),
            (Expired, 2),
            (Redriven, 2),
            (LockHeld, 0),
        ];
        let story = play(&all).expect("possible");
        assert_eq!((story.state, story.waiting), (Some(OperationState::Applied), false));
        assert_eq!((story.accepted, story.ended), (Some(Timestamp(0)), Some(Timestamp(2))));
        assert_eq!((story.outcome_version, story.holds_lock), (1, true));
        let news = story.news.expect("queued");
        assert_eq!((news.stage, news.attempt, news.attempts_before), (Stage::Open, 2, 2));
        assert_eq!((news.ended, news.acked_late), (None, false));
    }
}
