//! A consumer's streams: open, take a page, close; and pages without a stream (contract section 7).
//!
//! What must stay true: each delivery is in flight to one stream at a time; a newer stream of the
//! same consumer takes over, and the older one learns it at its next step; nothing else does: a
//! stream whose lease ended may open again; no page brings what is in flight beyond the stream's
//! window or the inbox's limit, as it is then.

use std::collections::BTreeSet;

use super::{
    command::{Choice, Command, Decided, Reply},
    decide::{Missing, SWEEPER},
    deliver::{self, Why},
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    finish,
    ids::{ConsumerId, Span},
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

/// The epoch of what is held without a stream; streams count from 1.
const NO_STREAM: i64 = 0;

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
    let policy = Box::new(world.policy(&key.account)?);
    let opened = Consumer {
        id: consumer.clone(),
        epoch: inbox.consumer_epoch,
        // The inbox's limit bounds each page besides, as it then is: a window that was cut to it
        // once would not rise with it.
        window: window.clamp(1, HELD_MAX),
        in_flight: 0,
        open_time: now,
        lease_time: now + world.defaults().consumer_lease,
    };
    inbox.consumers.push(opened.clone());
    inbox.active_time = now;
    inbox.set_due();
    world.put_inbox(inbox.clone())?;
    Ok(Reply::Opened { inbox: Box::new(inbox), consumer: opened, policy })
}

/// Opens a stream again whose lease ended, unless a newer one of its consumer is open: that one
/// took over, whatever the older one's lease came to. It belongs to one generation of the inbox,
/// and begins no other.
pub(super) fn reopen(
    world: &mut World,
    key: &InboxKey,
    (consumer, epoch): (&ConsumerId, i64),
    window: i64,
    generation: i64,
) -> Decided<Reply> {
    let Some(inbox) = world.inbox(key)?.filter(|inbox| !inbox.deleted) else {
        return Err(Refusal::NoSuchInbox.into());
    };
    if inbox.generation != generation {
        return Err(Refusal::InboxRecreated.into());
    }
    if is_superseded(inbox, consumer, epoch) {
        return Err(Refusal::StreamSuperseded.into());
    }
    open(world, key, consumer, window)
}

/// Whether a newer stream of the consumer is open.
fn is_superseded(inbox: &Inbox, consumer: &ConsumerId, epoch: i64) -> bool {
    inbox.consumers.iter().any(|other| other.id == *consumer && other.epoch > epoch)
}

/// Returns deliveries of a stream that ended. Asks at once for all their operations, and for what
/// the locks of those that end here will need.
fn give_back_all(world: &mut World, held: &[DeliveryKey]) -> Decided<()> {
    let mut missing = Missing::default();
    for key in held {
        if let Some(Some(delivery)) = missing.note(world.delivery(key)) {
            missing.note(world.operation(&delivery.operation_key(), Access::Write));
            if deliver::is_last(world, delivery)? {
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

/// Puts a page in flight to a stream, and renews its lease. A lease that ended and was swept is no
/// takeover: its stream may open again.
pub(super) fn offer(
    world: &mut World,
    key: &InboxKey,
    (consumer, epoch): (&ConsumerId, i64),
    limit: i64,
    choice: &Choice,
) -> Decided<Reply> {
    let Some(mut inbox) = world.inbox(key)?.filter(|inbox| !inbox.deleted).cloned() else {
        return Err(Refusal::NoSuchInbox.into());
    };
    let before = inbox.clone();
    let Some(entry) = inbox.consumer(consumer, epoch) else {
        return match is_superseded(&inbox, consumer, epoch) {
            true => Err(Refusal::StreamSuperseded.into()),
            false => Ok(Reply::Lapsed),
        };
    };
    let mut deliveries = Vec::new();
    if limit > 0 {
        let policy = world.policy(&key.account)?;
        let own_room = inbox.window_of(entry, &policy) - entry.in_flight;
        let inbox_room = inbox.in_flight_limit(&policy) - inbox.in_flight;
        let room = limit.min(own_room).min(inbox_room).max(0);
        deliveries = take_page(world, &mut inbox, room, &(consumer.clone(), epoch), choice)?;
    }
    renew(world, &mut inbox, consumer, epoch, limit == 0 || !deliveries.is_empty());
    if inbox != before {
        world.put_inbox(inbox.clone())?;
    }
    Ok(Reply::Offered { deliveries, inbox: Box::new(inbox) })
}

/// Puts up to `room` deliveries in flight to a consumer. The caller stores the inbox.
fn take_page(
    world: &mut World,
    inbox: &mut Inbox,
    room: i64,
    holder: &(ConsumerId, i64),
    choice: &Choice,
) -> Decided<Vec<Delivery>> {
    let (rows, end) = choose(world, inbox, choice)?;
    let all = i64::try_from(rows.len()).unwrap_or(i64::MAX) <= room;
    let take = usize::try_from(room).unwrap_or(0);
    let mut deliveries = Vec::new();
    for mut delivery in rows.into_iter().take(take) {
        if delivery.is_fresh() {
            inbox.offered = inbox.offered.max(delivery.key.sequence);
        }
        finish::send(world, inbox, &mut delivery, holder.clone())?;
        world.put_delivery(delivery.clone())?;
        deliveries.push(delivery);
    }
    if let (true, Some(end)) = (all, end) {
        inbox.offered = inbox.offered.max(end);
    }
    Ok(deliveries)
}

/// What an offer may take, in its order; and the highest number up to which nothing fresh remains
/// behind it, where it looked for that.
fn choose(world: &World, inbox: &Inbox, choice: &Choice) -> Decided<(Vec<Delivery>, Option<i64>)> {
    let now = world.now();
    // What is past its window is the sweeper's.
    let living = |delivery: &&Delivery| delivery.expire_time > now;
    match choice {
        Choice::Any => {
            let (keys, end) = world.deliverable(&inbox.key)?;
            let rows = keys.iter().filter_map(|key| world.delivery(key).ok().flatten());
            Ok((rows.filter(living).cloned().collect(), Some(end)))
        }
        Choice::Returned(sequences) => {
            let mut missing = Missing::default();
            let mut rows = Vec::new();
            // A number that is named twice is one delivery.
            for sequence in BTreeSet::from_iter(sequences) {
                let key = DeliveryKey { inbox: inbox.key.clone(), sequence: *sequence };
                if let Some(Some(delivery)) = missing.note(world.delivery(&key))
                    && inbox.owns(&key)
                    && delivery.state == DeliveryState::Pending
                    && delivery.available_time.is_some_and(|available| available <= now)
                    && living(&delivery)
                {
                    rows.push(delivery.clone());
                }
            }
            missing.check()?;
            rows.sort_by_key(Delivery::due_since);
            Ok((rows, None))
        }
    }
}

/// Puts a page in flight to a consumer without a stream. The inbox row does not list it: nobody
/// renews a lease for it, and the ack deadline brings back what it does not ack. A stream that the
/// same consumer opens takes over what was pulled.
pub(super) fn pull(
    world: &mut World,
    key: &InboxKey,
    consumer: &ConsumerId,
    limit: i64,
) -> Decided<Reply> {
    let mut inbox = inboxes::ensure(world, key)?;
    let before = inbox.clone();
    let policy = world.policy(&key.account)?;
    let room = limit.min(inbox.in_flight_limit(&policy) - inbox.in_flight).max(0);
    let deliveries =
        take_page(world, &mut inbox, room, &(consumer.clone(), NO_STREAM), &Choice::Any)?;
    // Whoever pulls uses the inbox, also where nothing comes; that alone seldom writes the row.
    let half_idle = Span(policy.inbox_idle_retention.0 / 2);
    if !deliveries.is_empty() || inbox.active_time + half_idle <= world.now() {
        inbox.active_time = world.now();
    }
    if inbox != before {
        world.put_inbox(inbox.clone())?;
    }
    Ok(Reply::Offered { deliveries, inbox: Box::new(inbox) })
}

/// Renews a lease where the row is written anyway, or where that is the point of the call; a look
/// that finds nothing writes nothing.
fn renew(world: &World, inbox: &mut Inbox, consumer: &ConsumerId, epoch: i64, written: bool) {
    let lease = world.defaults().consumer_lease;
    let now = world.now();
    if let Some(entry) = inbox.consumer_mut(consumer, epoch) {
        let half_gone = entry.lease_time - now < Span(lease.0 / 2);
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
