//! A consumer's streams: open, take a page, close (contract section 7).
//!
//! What must stay true: each delivery is in flight to one stream at a time; a newer stream of the
//! same consumer takes over, and the older one learns it at its next step; what is in flight never
//! exceeds the server's maximum or the stream's window.

use super::{
    command::{Command, Decided, Reply},
    decide::{Missing, SWEEPER},
    deliver::{self, Why},
    delivery::{Delivery, DeliveryKey, InboxKey},
    finish,
    ids::ConsumerId,
    inbox::{Consumer, Inbox},
    inboxes,
    refusal::Refusal,
    world::{
        World,
        needs::{Access, HELD_MAX},
    },
};

/// Consumers of one inbox: its row lists them all, and rows stay narrow.
pub const CONSUMERS_MAX: usize = 64;

/// Opens a stream: takes over from the consumer's older ones, whose deliveries come back.
pub(super) fn open(
    world: &mut World,
    key: &InboxKey,
    consumer: &ConsumerId,
    window: i64,
) -> Decided<Reply> {
    inboxes::ensure(world, key)?;
    let held = world.held(key, consumer)?;
    give_back_all(world, &held)?;
    let mut inbox = inboxes::ensure(world, key)?;
    inbox.consumers.retain(|other| other.id != *consumer);
    if inbox.consumers.len() >= CONSUMERS_MAX {
        let limit = i64::try_from(CONSUMERS_MAX).unwrap_or(i64::MAX);
        return Err(Refusal::AccountQuota { what: "consumers of one inbox", limit }.into());
    }
    inbox.consumer_epoch += 1;
    let now = world.now();
    let opened = Consumer {
        id: consumer.clone(),
        epoch: inbox.consumer_epoch,
        window: window.clamp(1, inbox.in_flight_limit(world.policy())),
        in_flight: 0,
        open_time: now,
        lease_time: now + world.policy().consumer_lease,
    };
    inbox.consumers.push(opened.clone());
    inbox.active_time = now;
    inbox.set_due();
    world.put_inbox(inbox.clone())?;
    Ok(Reply::Opened { inbox: Box::new(inbox), consumer: opened })
}

/// Returns deliveries of a stream that ended. Asks at once for all their operations, and for what
/// the locks of those that end here will need.
fn give_back_all(world: &mut World, held: &[DeliveryKey]) -> Decided<()> {
    let mut missing = Missing::default();
    for key in held {
        if let Some(Some(delivery)) = missing.note(world.delivery(key)) {
            missing.note(world.operation(&delivery.operation_key(), Access::Write));
            if deliver::is_last(world, delivery) {
                deliver::ask_release(world, delivery, &mut missing)?;
            }
        }
    }
    missing.check()?;
    for key in held {
        if let Some(delivery) = world.delivery(key)?.cloned() {
            deliver::give_back(world, delivery, Why::StreamEnded, SWEEPER)?;
        }
    }
    Ok(())
}

/// Puts a page in flight to a stream, and renews its lease.
pub(super) fn offer(
    world: &mut World,
    key: &InboxKey,
    consumer: &ConsumerId,
    epoch: i64,
    limit: i64,
) -> Decided<Reply> {
    let Some(mut inbox) = world.inbox(key)?.filter(|inbox| !inbox.deleted).cloned() else {
        return Err(Refusal::NoSuchInbox.into());
    };
    let before = inbox.clone();
    let Some(entry) = inbox.consumer(consumer, epoch) else {
        return Err(Refusal::StreamSuperseded.into());
    };
    let server_room = inbox.in_flight_limit(world.policy()) - inbox.in_flight;
    let room = limit.min(entry.window - entry.in_flight).min(server_room).max(0);
    let mut deliveries = Vec::new();
    if limit > 0 {
        let now = world.now();
        let (keys, end) = world.deliverable(key)?;
        let rows: Vec<Delivery> = keys
            .iter()
            .filter_map(|key| world.delivery(key).ok().flatten())
            // What is past its window is the sweeper's.
            .filter(|delivery| delivery.expire_time > now)
            .cloned()
            .collect();
        let all = i64::try_from(rows.len()).unwrap_or(i64::MAX) <= room;
        let take = usize::try_from(room).unwrap_or(0);
        for mut delivery in rows.into_iter().take(take) {
            if delivery.attempt == 0 {
                inbox.offered = inbox.offered.max(delivery.key.sequence);
            }
            finish::send(world, &mut inbox, &mut delivery, (consumer.clone(), epoch));
            world.put_delivery(delivery.clone())?;
            deliveries.push(delivery);
        }
        if all {
            inbox.offered = inbox.offered.max(end);
        }
    }
    renew(world, &mut inbox, consumer, epoch, limit == 0 || !deliveries.is_empty());
    if inbox != before {
        world.put_inbox(inbox.clone())?;
    }
    Ok(Reply::Offered { deliveries, inbox: Box::new(inbox) })
}

/// Renews a lease where the row is written anyway, or where that is the point of the call; a look
/// that finds nothing writes nothing.
fn renew(world: &World, inbox: &mut Inbox, consumer: &ConsumerId, epoch: i64, written: bool) {
    let lease = world.policy().consumer_lease;
    let now = world.now();
    if let Some(entry) = inbox.consumer_mut(consumer, epoch) {
        let half_gone = entry.lease_time - now < super::ids::Span(lease.0 / 2);
        if written || half_gone {
            entry.lease_time = now + lease;
        }
    }
    inbox.set_due();
}

/// Closes a stream: what it holds comes back.
pub(super) fn close(
    world: &mut World,
    key: &InboxKey,
    consumer: &ConsumerId,
    epoch: i64,
) -> Decided<Reply> {
    remove(world, key, consumer, epoch)?;
    Ok(Reply::Closed)
}

/// Removes a consumer's stream, if it is the one with this epoch. A stream that holds more than
/// one step may return goes on in a following one.
pub(super) fn remove(
    world: &mut World,
    key: &InboxKey,
    consumer: &ConsumerId,
    epoch: i64,
) -> Decided<()> {
    let known = |inbox: &Inbox| inbox.consumer(consumer, epoch).is_some();
    if !world.inbox(key)?.is_some_and(known) {
        return Ok(());
    }
    let held: Vec<DeliveryKey> = world
        .held(key, consumer)?
        .into_iter()
        .filter(|held| {
            let delivery = world.delivery(held).ok().flatten();
            delivery
                .and_then(|delivery| delivery.consumer.as_ref())
                .is_some_and(|(_, of)| *of == epoch)
        })
        .collect();
    give_back_all(world, &held)?;
    let Some(mut inbox) = world.inbox(key)?.cloned() else { return Ok(()) };
    let more = inbox.consumer(consumer, epoch).is_some_and(|entry| entry.in_flight > 0);
    if more && i64::try_from(held.len()).unwrap_or(0) >= HELD_MAX {
        world.follow_up(Command::Close { inbox: key.clone(), consumer: consumer.clone(), epoch });
        return Ok(());
    }
    inbox.consumers.retain(|entry| !(entry.id == *consumer && entry.epoch == epoch));
    inbox.active_time = world.now();
    inbox.set_due();
    world.put_inbox(inbox)?;
    Ok(())
}
