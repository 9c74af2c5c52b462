//! The end of a lock, and the start of those that waited for it, in one transaction.
//!
//! What must stay true: waiters start in order of acceptance; a lock row without holder and
//! waiters does not exist; an operation releases only its own lock (canary B8).

use super::{
    audit::{AuditEvent, AuditKind},
    command::{Command, Decided, Halt, Reply},
    decide::{Missing, SERVICE, record_events},
    document::{self, DocumentAction},
    finish,
    ids::OperationId,
    intent::{self, Intent},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey, Outcome, Rejection, RejectionReason},
    refusal::Refusal,
    world::{
        World,
        needs::{Access, Body},
    },
};

/// Locks with waiters that one command releases at once at most; those beyond are released too,
/// and their waiters start right after it, each target by a command of its own. Each may bring a
/// document and the arguments of sixteen waiters along, 5 MiB at the largest: this many still load
/// in a fraction of the time that a flight of the store may take.
const RELEASES_MAX: usize = 8;

/// Releases a lock by hand.
pub(super) fn by_hand(
    world: &mut World,
    target: &TargetKey,
    operation_id: &OperationId,
    reason: &str,
    subject: &str,
) -> Decided<Reply> {
    let lock = world.lock(target)?.cloned();
    let held = |lock: &Lock| {
        lock.holder.as_ref().is_some_and(|holder| holder.operation_id == *operation_id)
    };
    let Some(lock) = lock.filter(held) else {
        return Err(Refusal::NoSuchLock.into());
    };
    let text = if reason.is_empty() { "by hand".to_owned() } else { format!("by hand: {reason}") };
    let_go(world, target, operation_id, &text, subject)?;
    Ok(Reply::Released(Box::new(lock)))
}

/// Releases the lock of an operation whose delivery goes on: by hand, or at the lock limit.
pub(super) fn let_go(
    world: &mut World,
    target: &TargetKey,
    operation_id: &OperationId,
    text: &str,
    subject: &str,
) -> Decided<()> {
    let key = OperationKey { account: target.account.clone(), id: operation_id.clone() };
    let mut missing = Missing::default();
    let operation = missing.note(world.operation(&key, Access::Write)).flatten().cloned();
    let delivery = operation.as_ref().and_then(Operation::delivery_key);
    if let Some(delivery) = &delivery {
        missing.note(world.delivery(delivery));
    }
    let lock = missing.note(world.lock(target)).flatten();
    if lock.is_some_and(|lock| lock.waiting > 0) {
        missing.note_decided(prepare(world, target))?;
    }
    missing.check()?;
    if let Some(delivery) = delivery
        && let Some(delivery) = world.delivery(&delivery)?.cloned()
    {
        world.put_delivery(super::delivery::Delivery { lock_target: None, ..delivery })?;
    }
    release(world, target, operation_id)?;
    // The waiters may have changed the row of the operation's own inbox, never the operation.
    if let Some(mut operation) = operation {
        let event =
            AuditEvent { text: text.to_owned(), ..AuditEvent::plain(AuditKind::LockReleased) };
        record_events(world, &mut operation, subject, &[event]);
        world.put_operation(operation)?;
    }
    Ok(())
}

/// Ends the lock that `holder` has on `target`, if it has it, and starts the next waiters. Those
/// that the command did not ask for, because it ends many locks, start in a step of their own.
pub(super) fn release(world: &mut World, target: &TargetKey, holder: &OperationId) -> Decided<()> {
    let Some(lock) = world.lock(target)?.cloned() else { return Ok(()) };
    if lock.holder.as_ref().is_none_or(|held| held.operation_id != *holder) {
        return Ok(());
    }
    let lock = Lock { holder: None, ..lock };
    if lock.waiting == 0 {
        world.put_lock(target, None)?;
        return Ok(());
    }
    match prepare(world, target) {
        Ok(starts) => start_all(world, target, lock, starts),
        Err(Halt::Unloaded(_)) => {
            world.put_lock(target, Some(Lock { due_time: world.now(), ..lock }))?;
            world.follow_up(Command::SweepLock { target: target.clone() });
            Ok(())
        }
        Err(refused) => Err(refused),
    }
}

/// Starts waiters of a lock that nobody holds, until one of them holds it or none is left; at
/// most as many as the search found and as are loaded. The rest follows at once in the next batch.
pub(super) fn start_waiters(world: &mut World, target: &TargetKey, lock: Lock) -> Decided<()> {
    if lock.waiting == 0 {
        world.put_lock(target, None)?;
        return Ok(());
    }
    let starts = prepare(world, target)?;
    start_all(world, target, lock, starts)
}

/// Starts these waiters, until one of them holds the lock.
fn start_all(world: &mut World, target: &TargetKey, lock: Lock, starts: Vec<Start>) -> Decided<()> {
    let found_some = !starts.is_empty();
    let mut lock = Lock { due_time: world.now(), ..lock };
    world.put_lock(target, Some(lock.clone()))?;
    for (operation, action) in starts {
        lock.waiting -= 1;
        if let Some(held) = start(world, operation, action.as_ref())? {
            lock = Lock { waiting: lock.waiting, ..held };
            break;
        }
    }
    match (&lock.holder, lock.waiting) {
        (None, ..=0) => world.put_lock(target, None)?,
        (None, _) => {
            world.put_lock(target, Some(lock))?;
            // A count without waiters would be a bug; the sweeper's pace is enough for it.
            if found_some {
                world.follow_up(Command::SweepLock { target: target.clone() });
            }
        }
        (Some(_), _) => world.put_lock(target, Some(lock))?,
    }
    Ok(())
}

/// A waiter, and what it is to do; absent if this release does not accept its arguments any more.
type Start = (Operation, Option<DocumentAction>);

/// Notes what a release of the target's lock will need, as far as it can be seen by now, so that
/// several releases in one step need no more batches than one. Where nobody waits that is the lock
/// alone; where somebody does, his start is asked for within [`RELEASES_MAX`].
pub(super) fn ask(world: &World, target: &TargetKey, missing: &mut Missing) -> Decided<()> {
    let Some(Some(lock)) = missing.note(world.lock(target)) else { return Ok(()) };
    if lock.waiting > 0 && missing.count_release() <= RELEASES_MAX {
        missing.note_decided(prepare(world, target))?;
    }
    Ok(())
}

/// The first waiters, in order, with everything their start needs. Those behind one that is not
/// loaded are left out: others may join the queue in every batch, and must not put off the first
/// for ever. If not even the first is loaded, everything that is missing is asked for at once.
fn prepare(world: &World, target: &TargetKey) -> Decided<Vec<Start>> {
    let mut missing = Missing::default();
    missing.note(world.document(target, Body::Load));
    // Every start needs both.
    missing.note(world.policy(&target.account));
    let start_is_possible = missing.is_empty();
    let mut starts = Vec::new();
    for key in world.waiters(target)? {
        match prepare_one(world, &key, &mut missing)? {
            Some(start) if missing.is_empty() => starts.push(start),
            Some(_) | None => {}
        }
    }
    if starts.is_empty() || !start_is_possible {
        missing.check()?;
    }
    Ok(starts)
}

/// A waiter with everything its start needs; `None` after noting what is missing.
fn prepare_one(world: &World, key: &OperationKey, missing: &mut Missing) -> Decided<Option<Start>> {
    let operation = missing.note(world.operation(key, Access::Write)).flatten().cloned();
    let Some(operation) = operation else { return Ok(None) };
    if let Some(inbox) = operation.inbox_key()
        && let Some(row) = missing.note(world.inbox(&inbox))
        && row.is_none_or(|row| row.deleted)
    {
        // His result begins the inbox's next generation.
        missing.note(world.account_to_change(&inbox.account));
    }
    let Some(arguments) = missing.note(world.arguments(&operation)) else { return Ok(None) };
    let action = stored_action(&operation, arguments);
    Ok(Some((operation, action)))
}

/// The action of a stored operation. Its bytes were parsed once before they were stored; a later
/// release may read them more strictly, which must not keep the waiters behind it from starting.
fn stored_action(operation: &Operation, arguments: bytes::Bytes) -> Option<DocumentAction> {
    let intent = Intent {
        action: operation.action.clone(),
        target: operation.target.clone(),
        expected_revision: operation.expected_revision,
        content_type: operation.content_type.clone(),
        arguments,
        lock_mode: operation.lock_mode,
    };
    let (_, hashed) = intent::digest(&intent).ok()?;
    document::parse(&intent, &hashed)?.ok()
}

/// Starts one waiter; returns the lock that it holds from now on, if it does.
fn start(
    world: &mut World,
    mut operation: Operation,
    action: Option<&DocumentAction>,
) -> Decided<Option<Lock>> {
    let outcome = match action {
        _ if operation.start_deadline <= world.now() => start_deadline_passed(),
        Some(action) => finish::effect(world, &mut operation, action)?,
        None => unreadable_arguments(),
    };
    let mut events = Vec::new();
    let delivery = finish::finish(world, &mut operation, outcome, &mut events)?;
    let lock = finish::lock_after(world, &operation, delivery.as_ref(), &mut events)?;
    record_events(world, &mut operation, SERVICE, &events);
    world.put_operation(operation)?;
    Ok(lock)
}

/// What becomes of an operation whose arguments this release refuses.
fn unreadable_arguments() -> Outcome {
    Outcome::Rejected(Rejection {
        reason: RejectionReason::PatchFailed,
        text: "the stored arguments are not accepted by this release".to_owned(),
        found_revision: None,
    })
}

/// What becomes of an operation that nobody started in time.
pub(super) fn start_deadline_passed() -> Outcome {
    Outcome::Rejected(Rejection {
        reason: RejectionReason::StartDeadline,
        text: "the operation was not started before its start deadline".to_owned(),
        found_revision: None,
    })
}

/// Takes an operation that ends without having begun out of its target's queue.
pub(super) fn leave_queue(world: &mut World, operation: &Operation) -> Decided<()> {
    if operation.wait_ticket.is_none() {
        return Ok(());
    }
    let target = operation.target_key();
    let Some(lock) = world.lock(&target)?.cloned() else { return Ok(()) };
    let lock = Lock { waiting: (lock.waiting - 1).max(0), ..lock };
    let gone = lock.holder.is_none() && lock.waiting == 0;
    world.put_lock(&target, (!gone).then_some(lock))?;
    Ok(())
}
