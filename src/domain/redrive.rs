//! Ended deliveries made pending again by hand (contract sections 3 and 6).
//!
//! What must stay true: only what expired or died without an ack comes back, with a new ack window
//! and a new retry budget; attempts keep their numbers and totals stay histories; it takes a slot
//! like any other, never the lock that it once held; the inbox's cursor never finds it, so that it
//! is sent once.

use super::{
    audit::{AuditEvent, AuditKind},
    command::{Decided, Reply},
    decide::{Missing, record_events},
    deliver,
    delivery::{Delivery, DeliveryKey, DeliveryState, DeliveryTarget},
    ids::Account,
    inbox::Inbox,
    operation::Operation,
    world::{
        World,
        needs::{Access, Unloaded},
    },
};

/// How one redrive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedriveOutcome {
    /// It is pending again.
    Redriven,
    /// It is pending or in flight.
    NotEnded,
    /// It is acked, in time or late.
    AlreadyAcked,
    /// Its inbox has no free slot.
    InboxFull,
    /// No longer kept, or of a deleted generation of its inbox.
    Retired,
    /// No such delivery.
    NoSuchDelivery,
}

/// The outcome of one redrive.
#[derive(Debug, Clone)]
pub struct Redriven {
    /// Which; absent if the caller named an operation that has no delivery there.
    pub key: Option<DeliveryKey>,
    /// How it ended.
    pub outcome: RedriveOutcome,
    /// The delivery as it is now, where there is one.
    pub delivery: Option<Delivery>,
}

/// Redrives a list, each with its own outcome.
pub(super) fn redrive(
    world: &mut World,
    account: &Account,
    targets: &[DeliveryTarget],
    subject: &str,
) -> Decided<Reply> {
    let mut missing = Missing::default();
    for target in targets {
        if let Some(Some(key)) = missing.note(deliver::resolve(world, account, target)) {
            missing.note(look(world, &key));
        }
    }
    missing.check()?;
    let mut results = Vec::with_capacity(targets.len());
    for target in targets {
        let key = deliver::resolve(world, account, target)?;
        let (outcome, delivery) = match &key {
            Some(key) => redrive_one(world, key, subject)?,
            None => (RedriveOutcome::NoSuchDelivery, None),
        };
        results.push(Redriven { key, outcome, delivery });
    }
    Ok(Reply::Redriven(results))
}

/// A delivery that may be redriven, with its inbox and its operation.
struct Ended {
    inbox: Inbox,
    delivery: Delivery,
    operation: Operation,
}

/// Why a delivery is not redriven, and the delivery where there is one.
type Otherwise = (RedriveOutcome, Option<Delivery>);

fn look(world: &World, key: &DeliveryKey) -> Result<Result<Ended, Otherwise>, Unloaded> {
    let no_such = Ok(Err((RedriveOutcome::NoSuchDelivery, None)));
    let Some(inbox) = world.inbox(&key.inbox)? else { return no_such };
    if !(1..=inbox.last_sequence()).contains(&key.sequence) {
        return no_such;
    }
    let Some(delivery) = world.delivery(key)? else {
        return Ok(Err((RedriveOutcome::Retired, None)));
    };
    let otherwise = |outcome| Ok(Err((outcome, Some(delivery.clone()))));
    match delivery.state {
        DeliveryState::Pending | DeliveryState::InFlight => otherwise(RedriveOutcome::NotEnded),
        DeliveryState::Acked => otherwise(RedriveOutcome::AlreadyAcked),
        DeliveryState::Expired | DeliveryState::Dead if delivery.ack.is_some() => {
            otherwise(RedriveOutcome::AlreadyAcked)
        }
        // It went with a deleted generation of its inbox: nobody reads those numbers any more.
        DeliveryState::Expired | DeliveryState::Dead if !inbox.owns(key) => {
            otherwise(RedriveOutcome::Retired)
        }
        DeliveryState::Expired | DeliveryState::Dead => {
            // Without its whole record there is nothing that it could show.
            match world.operation(&delivery.operation_key(), Access::Write)? {
                Some(operation) if !operation.is_compacted() => Ok(Ok(Ended {
                    inbox: inbox.clone(),
                    delivery: delivery.clone(),
                    operation: operation.clone(),
                })),
                Some(_) | None => otherwise(RedriveOutcome::Retired),
            }
        }
    }
}

fn redrive_one(world: &mut World, key: &DeliveryKey, subject: &str) -> Decided<Otherwise> {
    let Ended { mut inbox, delivery, mut operation } = match look(world, key)? {
        Ok(ended) => ended,
        Err(otherwise) => return Ok(otherwise),
    };
    let policy = world.policy(&key.inbox.account)?;
    if inbox.slots_used() >= inbox.slots(&policy) {
        return Ok((RedriveOutcome::InboxFull, Some(delivery)));
    }
    let now = world.now();
    inbox.pending += 1;
    inbox.returned += 1;
    inbox.active_time = now;
    let expire_time = now + policy.ack_window;
    let redriven = Delivery {
        state: DeliveryState::Pending,
        attempts_before: delivery.attempt,
        available_time: Some(now),
        expire_time,
        due_time: Some(expire_time),
        end_time: None,
        returns: 0,
        ..delivery
    };
    let event = AuditEvent {
        sequence: key.sequence,
        attempt: redriven.attempt,
        ..AuditEvent::plain(AuditKind::Redriven)
    };
    record_events(world, &mut operation, subject, &[event]);
    world.put_inbox(inbox)?;
    world.put_delivery(redriven.clone())?;
    world.put_operation(operation)?;
    Ok((RedriveOutcome::Redriven, Some(redriven)))
}
