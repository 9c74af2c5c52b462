//! The ways a delivery ends or comes back: acked, expired, dead, returned (contract section 7).
//!
//! What must stay true: slots and counters follow the state in the same transaction; a delivery
//! never changes an operation's state (R34); whatever ends a delivery releases the lock it holds;
//! an ack is never undone and revives nothing.

use sha2::{Digest, Sha256};

use super::{
    audit::{AuditEvent, AuditKind},
    command::{AckOutcome, Acked, Decided, Reply},
    decide::{Missing, record_events},
    delivery::{AckEvidence, Delivery, DeliveryKey, DeliveryState, DeliveryTarget, InboxKey},
    ids::{Account, Span, Timestamp},
    inbox::Inbox,
    lock::TargetKey,
    operation::{Operation, OperationKey},
    policy::Policy,
    release,
    world::{
        World,
        needs::{Access, Need, Unloaded},
    },
};

/// Acks a list, each with its own outcome.
pub(super) fn ack(
    world: &mut World,
    account: &Account,
    targets: &[DeliveryTarget],
    subject: &str,
    consumer: &str,
) -> Decided<Reply> {
    let mut missing = Missing::default();
    for target in targets {
        if let Some(Some(key)) = missing.note(resolve(world, account, target)) {
            ask(world, &key, &mut missing)?;
        }
    }
    missing.check()?;
    let mut results = Vec::with_capacity(targets.len());
    for target in targets {
        let key = resolve(world, account, target)?;
        let (outcome, delivery) = match &key {
            Some(key) => ack_one(world, key, subject, consumer)?,
            None => (AckOutcome::NoSuchDelivery, None),
        };
        results.push(Acked { key, outcome, delivery });
    }
    Ok(Reply::Acked(results))
}

/// The row that says more about a delivery that a caller names: its own, or the operation that leads
/// to it.
pub(super) fn need(account: &Account, target: &DeliveryTarget, access: Access) -> Need {
    match target {
        DeliveryTarget::Numbered { inbox, sequence } => {
            let inbox = InboxKey { account: account.clone(), inbox: inbox.clone() };
            Need::Delivery(DeliveryKey { inbox, sequence: *sequence })
        }
        DeliveryTarget::Newest { operation_id, .. } => {
            let id = operation_id.clone();
            Need::Operation(OperationKey { account: account.clone(), id }, access)
        }
    }
}

/// The delivery that a caller names; none where the operation is not known or has none, or not in
/// the inbox that it must be in.
pub(super) fn resolve(
    world: &World,
    account: &Account,
    target: &DeliveryTarget,
) -> Result<Option<DeliveryKey>, Unloaded> {
    match target {
        DeliveryTarget::Numbered { inbox, sequence } => {
            let inbox = InboxKey { account: account.clone(), inbox: inbox.clone() };
            Ok(Some(DeliveryKey { inbox, sequence: *sequence }))
        }
        DeliveryTarget::Newest { operation_id, inbox } => {
            let key = OperationKey { account: account.clone(), id: operation_id.clone() };
            let operation = world.operation(&key, Access::Read)?;
            let delivery = operation.and_then(Operation::delivery_key);
            Ok(delivery.filter(|key| inbox.as_ref().is_none_or(|name| *name == key.inbox.inbox)))
        }
    }
}

/// Asks for everything the ack of one delivery will touch, so that a long list needs few batches.
fn ask(world: &World, key: &DeliveryKey, missing: &mut Missing) -> Decided<()> {
    let Some(Some(delivery)) = missing.note(world.delivery(key)) else { return Ok(()) };
    let leaves_row = delivery.attempt > 1 || delivery.lock_target.is_some();
    let late = matches!(delivery.state, DeliveryState::Expired | DeliveryState::Dead);
    if (delivery.state.is_open() && leaves_row) || (late && delivery.ack.is_none()) {
        missing.note(world.operation(&delivery.operation_key(), Access::Write));
    }
    if delivery.state.is_open() { ask_release(world, delivery, missing) } else { Ok(()) }
}

/// Asks for what the end of a delivery will need for its lock, if it holds one.
pub(super) fn ask_release(
    world: &World,
    delivery: &Delivery,
    missing: &mut Missing,
) -> Decided<()> {
    let Some(target) = delivery.lock_target.clone() else { return Ok(()) };
    let account = delivery.key.inbox.account.clone();
    release::ask(world, &TargetKey { account, target }, missing)
}

fn ack_one(
    world: &mut World,
    key: &DeliveryKey,
    subject: &str,
    consumer: &str,
) -> Decided<(AckOutcome, Option<Delivery>)> {
    let last = world.inbox(&key.inbox)?.map_or(0, Inbox::last_sequence);
    if !(1..=last).contains(&key.sequence) {
        return Ok((AckOutcome::NoSuchDelivery, None));
    }
    let Some(delivery) = world.delivery(key)?.cloned() else {
        return Ok((AckOutcome::Retired, None));
    };
    let evidence = evidence(world.now(), &delivery, subject, consumer);
    let sequence = key.sequence;
    let attempt = delivery.attempt;
    match delivery.state {
        DeliveryState::Pending | DeliveryState::InFlight => {
            let acked = Delivery { ack: Some(evidence), ..delivery };
            let event = AuditEvent { sequence, attempt, ..AuditEvent::plain(AuditKind::Acked) };
            let trail = if attempt > 1 { Trail::Chained(event) } else { Trail::InDelivery };
            let acked = end(world, acked, DeliveryState::Acked, trail, subject)?;
            Ok((AckOutcome::Acked, Some(acked)))
        }
        DeliveryState::Acked => Ok((AckOutcome::AlreadyAcked, Some(delivery))),
        DeliveryState::Expired | DeliveryState::Dead if delivery.ack.is_some() => {
            Ok((AckOutcome::AckedLate, Some(delivery)))
        }
        DeliveryState::Expired | DeliveryState::Dead => {
            let operation = delivery.operation_key();
            if let Some(mut operation) = world.operation(&operation, Access::Write)?.cloned() {
                let event =
                    AuditEvent { sequence, attempt, ..AuditEvent::plain(AuditKind::AckedLate) };
                record_events(world, &mut operation, subject, &[event]);
                world.put_operation(operation)?;
            }
            let late = Delivery { ack: Some(evidence), ..delivery };
            world.put_delivery(late.clone())?;
            Ok((AckOutcome::AckedLate, Some(late)))
        }
    }
}

fn evidence(now: Timestamp, delivery: &Delivery, subject: &str, consumer: &str) -> AckEvidence {
    AckEvidence {
        time: now,
        attempt: delivery.attempt,
        subject: subject.to_owned(),
        consumer: consumer.to_owned(),
        hash: ack_hash(delivery, now, delivery.attempt, subject, consumer),
    }
}

/// SHA-256 over everything that the evidence of an ack says, and over what was acked.
pub(super) fn ack_hash(
    delivery: &Delivery,
    time: Timestamp,
    attempt: i32,
    subject: &str,
    consumer: &str,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"receiptd.ack.v1");
    for piece in [
        delivery.key.inbox.account.as_str().as_bytes(),
        delivery.key.inbox.inbox.as_str().as_bytes(),
        delivery.operation_id.as_str().as_bytes(),
        subject.as_bytes(),
        consumer.as_bytes(),
    ] {
        hash.update(u64::try_from(piece.len()).expect("a length fits 64 bits").to_be_bytes());
        hash.update(piece);
    }
    hash.update(delivery.key.sequence.to_be_bytes());
    hash.update(attempt.to_be_bytes());
    hash.update(time.0.to_be_bytes());
    hash.finalize().into()
}

/// Where the evidence of a transition stands.
pub(super) enum Trail {
    /// In the delivery row itself: a first-attempt ack.
    InDelivery,
    /// In the operation's chain.
    Chained(AuditEvent),
}

/// Ends a delivery: its slot, its place with its consumer and its lock go with it.
pub(super) fn end(
    world: &mut World,
    delivery: Delivery,
    state: DeliveryState,
    trail: Trail,
    subject: &str,
) -> Decided<Delivery> {
    let mut inbox = inbox_of(world, &delivery)?;
    leave_state(&mut inbox, &delivery);
    if inbox.owns(&delivery.key) {
        count_end(&mut inbox, state);
        inbox.active_time = world.now();
    }
    if inbox.pending == inbox.returned {
        // Nothing fresh is left: no later search has to walk what has ended.
        inbox.offered = inbox.last_sequence();
    }
    let lock_target = delivery.lock_target.clone();
    let ended = Delivery {
        state,
        available_time: None,
        ack_deadline: None,
        due_time: None,
        end_time: Some(world.now()),
        consumer: None,
        lock_target: None,
        ..delivery
    };
    world.put_inbox(inbox)?;
    world.put_delivery(ended.clone())?;
    let mut events = match trail {
        Trail::InDelivery => Vec::new(),
        Trail::Chained(event) => vec![event],
    };
    if let Some(target) = lock_target {
        let target = TargetKey { account: ended.key.inbox.account.clone(), target };
        release::release(world, &target, &ended.operation_id)?;
        events.push(AuditEvent {
            sequence: ended.key.sequence,
            ..AuditEvent::plain(AuditKind::LockReleased)
        });
    }
    note(world, &ended, subject, &events)?;
    Ok(ended)
}

fn count_end(inbox: &mut Inbox, state: DeliveryState) {
    match state {
        DeliveryState::Acked => inbox.acked_total += 1,
        DeliveryState::Expired => inbox.expired_total += 1,
        DeliveryState::Dead => inbox.dead_total += 1,
        DeliveryState::Pending | DeliveryState::InFlight => {}
    }
}

/// Writes events to the chain of a delivery's operation, if there are any.
fn note(
    world: &mut World,
    delivery: &Delivery,
    subject: &str,
    events: &[AuditEvent],
) -> Decided<()> {
    if events.is_empty() {
        return Ok(());
    }
    if let Some(mut operation) = world.operation(&delivery.operation_key(), Access::Write)?.cloned()
    {
        record_events(world, &mut operation, subject, events);
        world.put_operation(operation)?;
    }
    Ok(())
}

fn inbox_of(world: &World, delivery: &Delivery) -> Decided<Inbox> {
    let key = &delivery.key.inbox;
    let inbox = world.inbox(key)?.cloned();
    Ok(inbox.unwrap_or_else(|| Inbox::new(key.clone(), world.loss().sequence_base, world.now())))
}

/// Takes a delivery out of the counters of the state it is in.
fn leave_state(inbox: &mut Inbox, delivery: &Delivery) {
    match delivery.state {
        DeliveryState::Pending | DeliveryState::InFlight if !inbox.owns(&delivery.key) => {
            inbox.closing -= 1;
        }
        DeliveryState::Pending => {
            inbox.pending -= 1;
            if delivery.available_time.is_some() {
                inbox.returned -= 1;
            }
        }
        DeliveryState::InFlight => {
            inbox.in_flight -= 1;
            if let Some((id, epoch)) = &delivery.consumer
                && let Some(consumer) = inbox.consumer_mut(id, *epoch)
            {
                consumer.in_flight -= 1;
            }
        }
        DeliveryState::Acked | DeliveryState::Expired | DeliveryState::Dead => {}
    }
}

/// Why an attempt ended without an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Its stream ended or was taken over.
    StreamEnded,
    /// Its ack deadline passed.
    DeadlineMissed,
    /// Its consumer gave it back, to be sent again after this long.
    Deferred(Span),
}

/// Whether an attempt that ends now is the delivery's last.
pub(super) fn is_last(world: &World, delivery: &Delivery) -> Result<bool, Unloaded> {
    let policy = world.policy(&delivery.key.inbox.account)?;
    Ok(delivery.expire_time <= world.now()
        || delivery.attempts_spent() >= policy.retry_budget
        || is_left(world, delivery))
}

/// Whether a delivery belongs to a deleted generation of its inbox.
fn is_left(world: &World, delivery: &Delivery) -> bool {
    let inbox = world.inbox(&delivery.key.inbox).ok().flatten();
    inbox.is_some_and(|inbox| !inbox.owns(&delivery.key))
}

/// Ends an attempt: the delivery is pending again, or expired, or dead. Returns the state after.
pub(super) fn give_back(
    world: &mut World,
    delivery: Delivery,
    why: Why,
    subject: &str,
) -> Decided<DeliveryState> {
    let now = world.now();
    let (sequence, attempt) = (delivery.key.sequence, delivery.attempt);
    let delivery = Delivery { last_failure_time: Some(now), ..delivery };
    let event = |kind, text: &str| AuditEvent { kind, text: text.to_owned(), sequence, attempt };
    if delivery.expire_time <= now {
        return expire(world, delivery, subject);
    }
    if is_left(world, &delivery) {
        return close(world, delivery, subject);
    }
    let spent = delivery.attempts_spent();
    let policy = world.policy(&delivery.key.inbox.account)?;
    if spent >= policy.retry_budget {
        let trail = Trail::Chained(event(AuditKind::Dead, "the retry budget is spent"));
        end(world, delivery, DeliveryState::Dead, trail, subject)?;
        return Ok(DeliveryState::Dead);
    }
    let backoff = || backoff(&policy, spent, world.jitter(), sequence);
    let (available, text) = match why {
        // No failure: due since it was queued, so that a reader that reconnects sees the old first.
        Why::StreamEnded if delivery.returns == 0 && spent == 1 => {
            (delivery.queue_time, "its stream ended")
        }
        // Due at once as well, but an earlier attempt failed: behind all that waits by now.
        Why::StreamEnded if delivery.returns == 0 => (now, "its stream ended"),
        Why::StreamEnded => (now + backoff(), "its stream ended"),
        Why::DeadlineMissed => (now + backoff(), "its ack deadline passed"),
        // The named delay takes the place of the backoff.
        Why::Deferred(delay) => (now + delay, "deferred by its consumer"),
    };
    let mut inbox = inbox_of(world, &delivery)?;
    leave_state(&mut inbox, &delivery);
    inbox.pending += 1;
    inbox.returned += 1;
    let returned = Delivery {
        state: DeliveryState::Pending,
        available_time: Some(available),
        ack_deadline: None,
        due_time: Some(delivery.expire_time),
        consumer: None,
        returns: delivery.returns + i32::from(why == Why::StreamEnded),
        ..delivery
    };
    world.put_inbox(inbox)?;
    world.put_delivery(returned.clone())?;
    note(world, &returned, subject, &[event(AuditKind::Returned, text)])?;
    Ok(DeliveryState::Pending)
}

/// Ends a delivery whose ack window passed.
pub(super) fn expire(
    world: &mut World,
    delivery: Delivery,
    subject: &str,
) -> Decided<DeliveryState> {
    expire_because(world, delivery, "", subject)
}

/// Ends a delivery of a deleted generation of its inbox.
pub(super) fn close(
    world: &mut World,
    delivery: Delivery,
    subject: &str,
) -> Decided<DeliveryState> {
    expire_because(world, delivery, "its inbox was deleted", subject)
}

fn expire_because(
    world: &mut World,
    delivery: Delivery,
    text: &str,
    subject: &str,
) -> Decided<DeliveryState> {
    let event = AuditEvent {
        text: text.to_owned(),
        sequence: delivery.key.sequence,
        attempt: delivery.attempt,
        ..AuditEvent::plain(AuditKind::Expired)
    };
    end(world, delivery, DeliveryState::Expired, Trail::Chained(event), subject)?;
    Ok(DeliveryState::Expired)
}

/// The pause after an attempt: doubles each time up to the limit, less up to a fifth by chance, so
/// that what failed together does not come back together.
fn backoff(policy: &Policy, attempt: i32, jitter: u64, sequence: i64) -> Span {
    let doublings = u32::try_from(attempt - 1).unwrap_or(0).min(40);
    let full = policy.backoff_first.0.saturating_mul(1_i64 << doublings);
    let full = full.min(policy.backoff_limit.0);
    let mixed = jitter.wrapping_add(sequence.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let share = i64::try_from((mixed >> 32) % 1_000).unwrap_or(0);
    Span(full - full / 5_000 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_whatever_the_dice_say() {
        let policy = Policy::default();
        for jitter in [0, 1, u64::MAX, 0xDEAD_BEEF_0000_0000] {
            let pauses: Vec<i64> =
                (1..=6).map(|attempt| backoff(&policy, attempt, jitter, 3).0).collect();
            assert!(pauses.windows(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
            assert!(pauses[0] >= 800_000 && pauses[0] <= 1_000_000, "{pauses:?}");
            let last = backoff(&policy, 1_000, jitter, 3).0;
            assert!((48_000_000..=60_000_000).contains(&last), "{last}");
        }
    }
}
