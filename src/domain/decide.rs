//! The way in: one command, the rows it needs, one answer.
//!
//! What must stay true: pure and synchronous; on `Err` the caller takes the world back to where
//! the command began. Every change of state in the product is made below this function.

use super::{
    attempts,
    audit::{self, AuditChain, AuditEvent},
    cancel, closing,
    command::{Command, Decided, Halt, Reply},
    consume, deliver, erase, floor, inboxes,
    operation::{Operation, OperationKey},
    policies, record, redrive, release, standing, submit, sweep,
    world::{
        World,
        needs::{Access, Unloaded},
    },
};

/// Decides one command.
///
/// # Errors
/// [`super::command::Halt`]: a refusal, or rows that are missing; the world must then be taken
/// back with [`World::undo`].
pub fn decide(world: &mut World, command: &Command) -> Decided<Reply> {
    match command {
        Command::Submit(submit) => submit::submit(world, submit),
        Command::Cancel { key, mint_time, reason, subject, if_absent } => {
            cancel::cancel(world, key, *mint_time, (reason, subject), *if_absent)
        }
        Command::Probe { key, mint_time } => standing::probe(world, key, *mint_time),
        Command::Ack { account, targets, subject, consumer } => {
            deliver::ack(world, account, targets, subject, consumer)
        }
        Command::Extend { attempts, extension } => attempts::extend(world, attempts, *extension),
        Command::Defer { attempts, delay, subject } => {
            attempts::defer(world, attempts, *delay, subject)
        }
        Command::Redrive { account, targets, subject } => {
            redrive::redrive(world, account, targets, subject)
        }
        Command::Pull { inbox, consumer, limit } => consume::pull(world, inbox, consumer, *limit),
        Command::Open { inbox, consumer, window } => consume::open(world, inbox, consumer, *window),
        Command::Reopen { inbox, consumer, epoch, window, generation } => {
            consume::reopen(world, inbox, (consumer, *epoch), *window, *generation)
        }
        Command::Offer { inbox, consumer, epoch, limit, choice } => {
            consume::offer(world, inbox, (consumer, *epoch), *limit, choice)
        }
        Command::Close { inbox, consumer, epoch } => consume::close(world, inbox, consumer, *epoch),
        Command::UpdateInbox { inbox, change } => inboxes::update(world, inbox, *change),
        Command::DeleteInbox { inbox, force, generation } => {
            inboxes::delete(world, inbox, *force, *generation)
        }
        Command::UpdatePolicy(update) => policies::update(world, update),
        Command::RaiseFloor(raise) => floor::raise(world, raise),
        Command::Erase(erasure) => erase::erase(world, erasure),
        Command::ReleaseLock { target, operation_id, reason, subject } => {
            release::by_hand(world, target, operation_id, reason, subject)
        }
        Command::SweepDelivery { key, .. } => sweep::delivery(world, key),
        Command::SweepOperation { key } => sweep::operation(world, key),
        Command::SweepLock { target } => sweep::lock(world, target),
        Command::SweepInbox { key } => sweep::inbox(world, key),
        Command::SweepAccount { account } => closing::sweep(world, account),
        Command::FoldReplays { key, count } => fold_replays(world, key, *count),
    }
}

fn fold_replays(world: &mut World, key: &OperationKey, count: i64) -> Decided<Reply> {
    if let Some(operation) = world.operation(key, Access::Write)?.cloned() {
        world.put_operation(Operation {
            replay_count: operation.replay_count.saturating_add(count),
            last_replay_time: Some(world.now()),
            ..operation
        })?;
    }
    Ok(Reply::Folded)
}

/// Writes one row to an operation's trail; the caller stores the operation afterwards.
pub(super) fn record_events(
    world: &mut World,
    operation: &mut Operation,
    subject: &str,
    events: &[AuditEvent],
) {
    let packed = record::pack_events(events);
    let chain = AuditChain::Operation(operation.key.clone());
    let (row, head) = audit::append(operation.audit, &chain, world.now(), subject, packed);
    operation.audit = head;
    world.add_audit(row);
}

/// Collects what several look-ups miss, so that one more batch brings it all.
#[derive(Debug, Default)]
pub(super) struct Missing {
    needs: Vec<super::world::needs::Need>,
    /// How many locks with waiters the command releases.
    releases: usize,
}

impl Missing {
    /// The value, or `None` after noting what is missing.
    pub(super) fn note<T>(&mut self, looked: Result<T, Unloaded>) -> Option<T> {
        match looked {
            Ok(value) => Some(value),
            Err(Unloaded(needs)) => {
                self.needs.extend(needs);
                None
            }
        }
    }

    /// As [`Missing::note`], for a rule; a refusal goes on to the caller.
    pub(super) fn note_decided<T>(&mut self, decided: Decided<T>) -> Decided<Option<T>> {
        match decided {
            Ok(value) => Ok(Some(value)),
            Err(Halt::Unloaded(unloaded)) => Ok(self.note(Err(unloaded))),
            Err(refused) => Err(refused),
        }
    }

    /// Counts a release of a lock with waiters; returns how many there are by now.
    pub(super) fn count_release(&mut self) -> usize {
        self.releases += 1;
        self.releases
    }

    /// Whether nothing was missing so far.
    pub(super) fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    /// Fails if anything was missing.
    pub(super) fn check(self) -> Result<(), Unloaded> {
        if self.needs.is_empty() { Ok(()) } else { Err(Unloaded(self.needs)) }
    }
}

/// Who the trail names for what follows from another's step: a waiter's start.
pub(super) const SERVICE: &str = "receiptd";
/// Who the trail names for what time alone brings.
pub(super) const SWEEPER: &str = "sweeper";
