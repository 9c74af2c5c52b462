//! What becomes of rows that are due. Each is looked at again under its lock: a search that is
//! old by now changes nothing (T4).

use super::{
    cancel,
    command::{Command, Decided, Reply, Swept},
    consume,
    decide::{Missing, SWEEPER},
    deliver::{self, Why},
    delivery::{DeliveryKey, DeliveryState, InboxKey},
    inboxes,
    lock::TargetKey,
    operation::{OperationKey, OperationState},
    release, retire,
    world::{World, needs::Access},
};

/// A delivery past its ack deadline or ack window.
pub(super) fn delivery(world: &mut World, key: &DeliveryKey) -> Decided<Reply> {
    let Some(delivery) = world.delivery(key)?.cloned() else {
        return Ok(Reply::Swept(Swept::Nothing));
    };
    let now = world.now();
    if delivery.state.is_open() && deliver::is_last(world, &delivery)? {
        let mut missing = Missing::default();
        deliver::ask_release(world, &delivery, &mut missing)?;
        missing.check()?;
    }
    let after = match delivery.state {
        DeliveryState::Acked | DeliveryState::Expired | DeliveryState::Dead => None,
        DeliveryState::Pending if delivery.expire_time > now => None,
        DeliveryState::InFlight if delivery.ack_deadline.is_some_and(|end| end > now) => None,
        DeliveryState::Pending => Some(deliver::expire(world, delivery, SWEEPER)?),
        DeliveryState::InFlight => {
            Some(deliver::give_back(world, delivery, Why::DeadlineMissed, SWEEPER)?)
        }
    };
    Ok(Reply::Swept(match after {
        None | Some(DeliveryState::InFlight | DeliveryState::Acked) => Swept::Nothing,
        Some(DeliveryState::Pending) => Swept::Returned,
        Some(DeliveryState::Expired) => Swept::Expired,
        Some(DeliveryState::Dead) => Swept::Dead,
    }))
}

/// An operation past its start deadline, or one whose record ages.
pub(super) fn operation(world: &mut World, key: &OperationKey) -> Decided<Reply> {
    let nothing = Ok(Reply::Swept(Swept::Nothing));
    let Some(mut operation) = world.operation(key, Access::Write)?.cloned() else {
        return nothing;
    };
    if operation.end_time.is_some() {
        return retire::sweep(world, operation);
    }
    if operation.state != OperationState::Accepted || operation.start_deadline > world.now() {
        return nothing;
    }
    cancel::end_waiting(world, &mut operation, release::start_deadline_passed(), SWEEPER)?;
    Ok(Reply::Swept(Swept::StartDeadline))
}

/// A lock past its limit, or one whose waiters go on.
pub(super) fn lock(world: &mut World, target: &TargetKey) -> Decided<Reply> {
    let now = world.now();
    let Some(lock) = world.lock(target)?.cloned() else {
        return Ok(Reply::Swept(Swept::Nothing));
    };
    match &lock.holder {
        Some(holder) if holder.release_time > now => return Ok(Reply::Swept(Swept::Nothing)),
        Some(holder) => {
            release::let_go(world, target, &holder.operation_id, "the lock limit passed", SWEEPER)?;
        }
        None => release::start_waiters(world, target, lock)?,
    }
    Ok(Reply::Swept(Swept::LockReleased))
}

/// An inbox whose consumers may be gone, or whose upkeep is due. One consumer a step; the rest
/// follows.
pub(super) fn inbox(world: &mut World, key: &InboxKey) -> Decided<Reply> {
    let now = world.now();
    let Some(inbox) = world.inbox(key)?.cloned() else {
        return Ok(Reply::Swept(Swept::Nothing));
    };
    let mut gone = inbox.consumers.iter().filter(|consumer| consumer.lease_time <= now);
    let Some(consumer) = gone.next().cloned() else {
        return Ok(Reply::Swept(inboxes::sweep(world, inbox)?));
    };
    consume::remove(world, key, &consumer.id, consumer.epoch)?;
    if gone.next().is_some() {
        world.follow_up(Command::SweepInbox { key: key.clone() });
    }
    Ok(Reply::Swept(Swept::ConsumerRemoved))
}
