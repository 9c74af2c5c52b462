//! The life of an inbox: its first use, its limits, its end, and what is purged meanwhile.
//!
//! What must stay true: a name keeps its numbers and its generation for ever, in a marker while
//! the inbox is deleted (T11); what a deleted generation left open is ended in bounded steps, and
//! counts in no figure of the next one; rows are purged from the lowest number on, and the inbox
//! row says from which number on they are kept, in the same transaction (T14).

use super::{
    command::{Command, Decided, Reply, Swept},
    decide::{Missing, SERVICE},
    deliver,
    delivery::{Delivery, DeliveryKey, InboxKey},
    ids::{Span, Timestamp},
    inbox::{AccountRow, Force, Inbox, InboxChange, LimitChange},
    policy::Policy,
    refusal::Refusal,
    submit::ensure_account,
    world::{
        World,
        needs::{Access, PURGED_MAX},
        searches::LeftOpen,
    },
};

/// While rows are kept, an inbox is looked at no more often than this many times in one retention:
/// a result that is acked every second must not cost a step of its own every second. A row stays
/// at most this share of the retention longer than it must.
const LOOKS_PER_RETENTION: i64 = 100;

/// The inbox, made at its first use within the account's quota; a deleted one begins its next
/// generation.
pub(super) fn ensure(world: &mut World, key: &InboxKey) -> Decided<Inbox> {
    let account = ensure_account(world, &key.account)?;
    if let Some(inbox) = live(world, key)? {
        return Ok(inbox);
    }
    let limit = world.policy(&key.account)?.inboxes_max;
    if account.inboxes >= limit {
        return Err(Refusal::AccountQuota { what: "inboxes", limit }.into());
    }
    begin(world, key, account)
}

/// The inbox of a result that has to be queued: as [`ensure`], but never refused (contract
/// section 6).
pub(super) fn ensure_for_result(world: &mut World, key: &InboxKey) -> Decided<Inbox> {
    match live(world, key)? {
        Some(inbox) => Ok(inbox),
        None => {
            world.account_to_change(&key.account)?;
            let account = ensure_account(world, &key.account)?;
            begin(world, key, account)
        }
    }
}

/// An inbox that is not deleted.
fn live(world: &World, key: &InboxKey) -> Decided<Option<Inbox>> {
    Ok(world.inbox(key)?.filter(|inbox| !inbox.deleted).cloned())
}

fn begin(world: &mut World, key: &InboxKey, account: AccountRow) -> Decided<Inbox> {
    let now = world.now();
    let mut inbox = match world.inbox(key)? {
        Some(marker) => marker.clone().revived(now),
        None => Inbox::new(key.clone(), world.loss().sequence_base, now),
    };
    let policy = world.policy(&key.account)?;
    let first_look = now + policy.record_retention.min(policy.inbox_idle_retention);
    inbox.upkeep_time = inbox.upkeep_time.into_iter().chain([first_look]).min();
    inbox.set_due();
    world.put_account(AccountRow { inboxes: account.inboxes + 1, ..account })?;
    world.put_inbox(inbox.clone())?;
    Ok(inbox)
}

/// Changes the limits of an inbox. Lowering one below what is used is allowed: submits are refused
/// and nothing more is sent until it is met again.
pub(super) fn update(world: &mut World, key: &InboxKey, change: InboxChange) -> Decided<Reply> {
    let Some(before) = live(world, key)? else { return Err(Refusal::NoSuchInbox.into()) };
    let inbox = Inbox {
        slots_limit: change.slots.apply(before.slots_limit),
        in_flight_limit: change.in_flight_limit.apply(before.in_flight_limit),
        active_time: world.now(),
        ..before
    };
    world.put_inbox(inbox.clone())?;
    Ok(Reply::InboxUpdated(Box::new(inbox)))
}

impl LimitChange {
    fn apply(self, before: Option<i64>) -> Option<i64> {
        match self {
            LimitChange::Keep => before,
            LimitChange::Default => None,
            LimitChange::To(limit) => Some(limit),
        }
    }
}

/// Deletes an inbox: its streams end and its slots are free at once. What it left open ends in
/// steps that follow, so that nobody who works on it meanwhile can put the deletion off.
pub(super) fn delete(
    world: &mut World,
    key: &InboxKey,
    force: Force,
    generation: Option<i64>,
) -> Decided<Reply> {
    let Some(inbox) = live(world, key)? else { return Err(Refusal::NoSuchInbox.into()) };
    if generation.is_some_and(|generation| generation != inbox.generation) {
        return Err(Refusal::InboxRecreated.into());
    }
    if inbox.slots_used() > 0 && force == Force::OnlyEmpty {
        let Inbox { reserved, pending, in_flight, .. } = inbox;
        return Err(Refusal::InboxNotEmpty { reserved, pending, in_flight }.into());
    }
    retire(world, inbox.clone())?;
    if inbox.pending + inbox.in_flight > 0 {
        world.follow_up(Command::SweepInbox { key: key.clone() });
    }
    Ok(Reply::InboxDeleted(Box::new(inbox)))
}

/// Makes an inbox a marker. Whoever still reads it finds no consumer of its own; what is open
/// belongs to nobody from here on, and is ended by [`close_some`].
fn retire(world: &mut World, inbox: Inbox) -> Decided<()> {
    let account = ensure_account(world, &inbox.key.account)?;
    let inboxes = (account.inboxes - 1).max(0);
    world.put_account(AccountRow { inboxes, ..account })?;
    let closing = inbox.closing + inbox.pending + inbox.in_flight;
    let upkeep_time = match closing {
        0 => inbox.upkeep_time.filter(|_| !inbox.keeps_nothing()),
        _ => Some(world.now()),
    };
    let mut marker = Inbox {
        deleted: true,
        // A stream compares it: this is what wakes the readers on every replica.
        consumer_epoch: inbox.consumer_epoch + 1,
        consumers: Vec::new(),
        offered: inbox.last_sequence(),
        first_sequence: inbox.next_sequence,
        pending: 0,
        returned: 0,
        in_flight: 0,
        acked_total: 0,
        expired_total: 0,
        dead_total: 0,
        closing,
        slots_limit: None,
        in_flight_limit: None,
        upkeep_time,
        ..inbox
    };
    marker.set_due();
    world.put_inbox(marker)?;
    Ok(())
}

/// Ends open deliveries of deleted generations, as many as one step may and as are loaded; the rest
/// follows. A count that is not theirs is made true first: no step would ever bring it to zero.
fn close_some(world: &mut World, key: &InboxKey) -> Decided<Swept> {
    let Some(inbox) = world.inbox(key)?.cloned() else { return Ok(Swept::Nothing) };
    // A waiter that starts may begin the inbox again: the account is asked for with the first look,
    // so that the whole way stays within the engine's patience.
    let mut missing = Missing::default();
    let left = missing.note(world.left_open(key));
    missing.note(world.account_to_change(&key.account));
    missing.check()?;
    let (left, known) = left.unwrap_or((Vec::new(), LeftOpen::SoManyAtLeast));
    let (counted, found) = (inbox.closing, count(&left));
    if known == LeftOpen::All && counted != found {
        let mut repaired = Inbox { closing: found, ..inbox };
        if found > 0 {
            // Should the step that follows be lost, the sweeper takes it.
            repaired.upkeep_time = Some(world.now());
            world.follow_up(Command::SweepInbox { key: key.clone() });
        }
        repaired.set_due();
        world.put_inbox(repaired)?;
        return Ok(Swept::Recounted { counted, found });
    }
    let ready = ready_to_close(world, &left)?;
    for key in &ready {
        if let Some(delivery) = world.delivery(key)?.cloned() {
            deliver::close(world, delivery, SERVICE)?;
        }
    }
    let more = world.inbox(key)?.is_some_and(|inbox| inbox.closing > 0);
    if more && !ready.is_empty() {
        world.follow_up(Command::SweepInbox { key: key.clone() });
    }
    Ok(Swept::Closed(count(&ready)))
}

/// Those whose end has everything it needs. If none has, everything that is missing is asked for at
/// once; others join the queues of their locks in every batch, and must not put off the rest.
fn ready_to_close(world: &World, left: &[DeliveryKey]) -> Decided<Vec<DeliveryKey>> {
    let (mut ready, mut asked) = (Vec::new(), Missing::default());
    for key in left {
        let mut missing = Missing::default();
        if let Some(Some(delivery)) = missing.note(world.delivery(key)) {
            missing.note(world.operation(&delivery.operation_key(), Access::Write));
            deliver::ask_release(world, delivery, &mut missing)?;
        }
        match missing.check() {
            Ok(()) => ready.push(key.clone()),
            Err(missing) => drop(asked.note::<()>(Err(missing))),
        }
    }
    if ready.is_empty() {
        asked.check()?;
    }
    Ok(ready)
}

/// What time alone does to an inbox: ends what deleted generations left, purges rows whose
/// retention has passed, and retires an inbox that nobody uses.
pub(super) fn sweep(world: &mut World, inbox: Inbox) -> Decided<Swept> {
    let now = world.now();
    if inbox.closing != 0 {
        return close_some(world, &inbox.key);
    }
    if inbox.upkeep_time.is_none_or(|time| time > now) {
        return Ok(Swept::Nothing);
    }
    let kept = world.oldest_kept(&inbox.key)?;
    let policy = world.policy(&inbox.key.account)?;
    let purged = purge(world, &kept, policy.record_retention)?;
    let mut inbox = inbox;
    if let Some(last) = purged.last() {
        inbox.kept_from = last.sequence + 1;
        inbox.offered = inbox.offered.max(last.sequence);
    }
    let oldest = kept.get(purged.len());
    let complete = count(&kept) < PURGED_MAX;
    if complete && oldest.is_none() {
        inbox.kept_from = inbox.next_sequence;
    }
    if purged.is_empty() && is_idle(&inbox, now, policy.inbox_idle_retention) {
        retire(world, inbox)?;
        return Ok(Swept::InboxRetired);
    }
    if oldest.is_none() && !complete {
        inbox.upkeep_time = Some(now);
        world.follow_up(Command::SweepInbox { key: inbox.key.clone() });
    } else {
        inbox.upkeep_time = next_upkeep(&policy, now, &inbox, oldest);
    }
    inbox.set_due();
    world.put_inbox(inbox)?;
    Ok(match count(&purged) {
        0 => Swept::Nothing,
        purged => Swept::Purged(purged),
    })
}

/// Deletes the first of these rows, as far as each has ended and its retention has passed.
fn purge(world: &mut World, kept: &[Delivery], retention: Span) -> Decided<Vec<DeliveryKey>> {
    let now = world.now();
    let over = |row: &&Delivery| row.end_time.is_some_and(|end| end + retention <= now);
    let gone: Vec<DeliveryKey> = kept.iter().take_while(over).map(|row| row.key.clone()).collect();
    for key in &gone {
        world.delete_delivery(key)?;
    }
    Ok(gone)
}

fn is_idle(inbox: &Inbox, now: Timestamp, retention: Span) -> bool {
    !inbox.deleted
        && !in_use(inbox)
        && inbox.keeps_nothing()
        && inbox.active_time + retention <= now
}

fn in_use(inbox: &Inbox) -> bool {
    !inbox.consumers.is_empty() || inbox.slots_used() > 0 || inbox.closing > 0
}

/// When the inbox is to be looked at again. It is computed here and at the first use alone, so
/// that no submit and no ack moves an indexed time: a row that comes or ends after this look can
/// not be over before one whole retention from now.
fn next_upkeep(
    policy: &Policy,
    now: Timestamp,
    inbox: &Inbox,
    oldest: Option<&Delivery>,
) -> Option<Timestamp> {
    let retention = policy.record_retention;
    match oldest {
        Some(row) => {
            let soonest = now + Span(retention.0 / LOOKS_PER_RETENTION);
            Some((row.end_time.unwrap_or(now) + retention).max(soonest))
        }
        None if inbox.deleted => None,
        None => {
            let since = if in_use(inbox) { now } else { inbox.active_time };
            Some((since + policy.inbox_idle_retention).min(now + retention))
        }
    }
}

fn count<T>(rows: &[T]) -> i64 {
    i64::try_from(rows.len()).unwrap_or(i64::MAX)
}
