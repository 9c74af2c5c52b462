//! What a consumer says of an attempt while it works on it: it needs more time, or not now
//! (contract section 7).
//!
//! What must stay true: who names another attempt than the one in flight, or another consumer's,
//! changes nothing; a deadline is never moved back, and never past the ack window; every attempt
//! counts, also one that is given back; what is put off has time for a whole attempt afterwards.

use super::{
    command::{Decided, Reply},
    decide::Missing,
    deliver::{self, Why},
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    ids::{Account, ConsumerId, InboxName, Span},
    inbox::Inbox,
    refusal::Refusal,
    spans::not_within,
    world::{
        World,
        needs::{Access, Unloaded},
    },
};

/// One attempt that a caller names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptTarget {
    /// The inbox.
    pub inbox: InboxName,
    /// The number.
    pub sequence: i64,
    /// Which attempt.
    pub attempt: i32,
}

/// Attempts of one account, as one caller names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    /// Whose.
    pub account: Account,
    /// Which; at most 1,000.
    pub targets: Vec<AttemptTarget>,
    /// The consumer that must hold them; absent: the attempt alone decides.
    pub consumer: Option<ConsumerId>,
}

/// How it ended for one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptOutcome {
    /// Extended, or deferred.
    Done,
    /// Another attempt, or another consumer, has it now.
    NotYours,
    /// It waits, has expired or is dead.
    NotInFlight,
    /// It is acked.
    AlreadyAcked,
    /// No longer kept.
    Retired,
    /// No such number.
    NoSuchDelivery,
    /// Deferring only: after the delay, less than one ack deadline of its window would be left.
    WindowEnds,
}

/// The outcome for one attempt.
#[derive(Debug, Clone)]
pub struct Attempted {
    /// Which.
    pub target: AttemptTarget,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// The delivery as it is now, where there is one.
    pub delivery: Option<Delivery>,
}

impl Attempts {
    /// The deliveries that are named, in their order.
    pub fn keys(&self) -> impl Iterator<Item = DeliveryKey> {
        self.targets.iter().map(|target| self.key(target))
    }

    fn key(&self, target: &AttemptTarget) -> DeliveryKey {
        let inbox = InboxKey { account: self.account.clone(), inbox: target.inbox.clone() };
        DeliveryKey { inbox, sequence: target.sequence }
    }
}

/// Moves ack deadlines. No audit row: an extension changes neither the attempt nor who has it, the
/// row shows the deadline in force, and a slow handler extends again and again.
pub(super) fn extend(
    world: &mut World,
    attempts: &Attempts,
    extension: Option<Span>,
) -> Decided<Reply> {
    let policy = world.policy(&attempts.account)?;
    if let Some(asked) = extension {
        check_span("extension", asked, Span(1), policy.ack_window)?;
    }
    let extension = extension.unwrap_or(policy.ack_deadline);
    let mut missing = Missing::default();
    for target in &attempts.targets {
        missing.note(look(world, attempts, target));
    }
    missing.check()?;
    let extend_one = |world: &mut World, held: Delivery| {
        let asked = (world.now() + extension).min(held.expire_time);
        let deadline = held.ack_deadline.map_or(asked, |deadline| deadline.max(asked));
        if held.ack_deadline == Some(deadline) {
            return Ok((AttemptOutcome::Done, held));
        }
        let extended = Delivery { ack_deadline: Some(deadline), due_time: Some(deadline), ..held };
        world.put_delivery(extended.clone())?;
        Ok((AttemptOutcome::Done, extended))
    };
    each(world, attempts, extend_one)
}

/// Gives attempts back, to be sent again after `delay`. A delay that would end the delivery, or
/// leave too little of its window to work on it, changes nothing: the caller still has it, and is
/// told so.
pub(super) fn defer(
    world: &mut World,
    attempts: &Attempts,
    delay: Span,
    subject: &str,
) -> Decided<Reply> {
    let policy = world.policy(&attempts.account)?;
    check_span("delay", delay, Span(0), policy.ack_window)?;
    let mut missing = Missing::default();
    for target in &attempts.targets {
        let Some(Ok(held)) = missing.note(look(world, attempts, target)) else { continue };
        if !fits(world, &held, delay)? {
            continue;
        }
        missing.note(world.operation(&held.operation_key(), Access::Write));
        if deliver::is_last(world, &held)? {
            deliver::ask_release(world, &held, &mut missing)?;
        }
    }
    missing.check()?;
    each(world, attempts, |world, held| {
        if !fits(world, &held, delay)? {
            return Ok((AttemptOutcome::WindowEnds, held));
        }
        let key = held.key.clone();
        deliver::give_back(world, held.clone(), Why::Deferred(delay), subject)?;
        Ok((AttemptOutcome::Done, world.delivery(&key)?.cloned().unwrap_or(held)))
    })
}

/// A span beyond the ack window would promise what no result has.
fn check_span(field: &str, span: Span, least: Span, most: Span) -> Result<(), Refusal> {
    match (least..=most).contains(&span) {
        true => Ok(()),
        false => Err(Refusal::Invalid(not_within(field, least, most))),
    }
}

/// Whether an attempt may be put off for so long: one ack deadline of the window is left after it.
/// What is given back at once loses no time, and a last attempt has none after it.
fn fits(world: &World, held: &Delivery, delay: Span) -> Result<bool, Unloaded> {
    let deadline = world.policy(&held.key.inbox.account)?.ack_deadline;
    Ok(delay == Span(0)
        || deliver::is_last(world, held)?
        || world.now() + delay + deadline <= held.expire_time)
}

/// Does `step` with each attempt that is in flight as its caller says.
fn each(
    world: &mut World,
    attempts: &Attempts,
    mut step: impl FnMut(&mut World, Delivery) -> Decided<(AttemptOutcome, Delivery)>,
) -> Decided<Reply> {
    let mut results = Vec::with_capacity(attempts.targets.len());
    for target in &attempts.targets {
        let (outcome, delivery) = match look(world, attempts, target)? {
            Ok(held) => {
                let (outcome, delivery) = step(world, held)?;
                (outcome, Some(delivery))
            }
            Err(other) => other,
        };
        results.push(Attempted { target: target.clone(), outcome, delivery });
    }
    Ok(Reply::Attempted(results))
}

/// Why an attempt is not the caller's to speak for, and the delivery where there is one.
type Otherwise = (AttemptOutcome, Option<Delivery>);

/// The delivery, if the named attempt is in flight and the caller's.
fn look(
    world: &World,
    attempts: &Attempts,
    target: &AttemptTarget,
) -> Result<Result<Delivery, Otherwise>, Unloaded> {
    let key = attempts.key(target);
    let inbox = world.inbox(&key.inbox)?;
    let last = inbox.map_or(0, Inbox::last_sequence);
    if !(1..=last).contains(&key.sequence) {
        return Ok(Err((AttemptOutcome::NoSuchDelivery, None)));
    }
    let Some(delivery) = world.delivery(&key)?.cloned() else {
        return Ok(Err((AttemptOutcome::Retired, None)));
    };
    let owned = inbox.is_some_and(|inbox| inbox.owns(&key));
    let holder = delivery.consumer.as_ref().map(|(id, _)| id);
    let other_consumer = attempts.consumer.is_some() && attempts.consumer.as_ref() != holder;
    let other_attempt = delivery.attempt != target.attempt;
    let outcome = match delivery.state {
        DeliveryState::Acked => AttemptOutcome::AlreadyAcked,
        DeliveryState::Expired | DeliveryState::Dead => AttemptOutcome::NotInFlight,
        DeliveryState::Pending | DeliveryState::InFlight if other_attempt => {
            AttemptOutcome::NotYours
        }
        DeliveryState::Pending => AttemptOutcome::NotInFlight,
        DeliveryState::InFlight if other_consumer => AttemptOutcome::NotYours,
        // Past its window, or left by a deleted inbox, it is the sweeper's, which only has not come
        // yet.
        DeliveryState::InFlight if delivery.expire_time <= world.now() || !owned => {
            AttemptOutcome::NotInFlight
        }
        DeliveryState::InFlight => return Ok(Ok(delivery)),
    };
    Ok(Err((outcome, Some(delivery))))
}
