//! One batch: what it needs, what is decided about each of its commands, and how its transaction
//! ended.
//!
//! What must stay true: the decision is pure and can be made again, as often as the transaction
//! has to be run again. A command is decided only if everything it waits for was decided before:
//! a held id, or missing rows of an earlier command of its account, put it off; what it would miss
//! itself is looked up all the same, so that the next batch has it. A batch computes for a bounded
//! time: what it does not come to leads the next one. An answer is never
//! a guess: a commit whose answer was lost is settled by the batch's name, or reported as unknown.
//!
//! Deliberately not here: what happens to the commands afterwards (see [`super::lane`]).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Shared,
    queue::{Answer, Queued, identity},
    totals::Submits,
};
use crate::{
    domain::{
        command::{Command, Decided, Halt, Reply},
        delivery::{Delivery, InboxKey},
        epoch::Loss,
        ids::{Account, Timestamp},
        lock::TargetKey,
        operation::{Operation, OperationKey},
        refusal::Refusal,
        world::{
            Attached, Surroundings, World,
            needs::{Need, Needs, Unloaded},
        },
    },
    engine::seams::Stopwatch,
    store::{BatchName, Committed, HeldIds, Purpose, Settled, Touches, TransactError, Transaction},
    telemetry::{self, Settlement},
};

/// The rules, as the engine calls them.
pub(super) type DecideCommand = fn(&mut World, &Command) -> Decided<Reply>;

/// What was decided about one command.
#[derive(Debug)]
pub(super) enum Decision {
    /// It has its answer.
    Answered(Box<Answer>),
    /// It needs these rows besides.
    RowsMissing(Vec<Need>),
    /// An earlier command of its account needs rows. So that the next batch has room for both,
    /// these are the rows that it would miss itself.
    BehindRows(Vec<Need>),
    /// The batch has computed long enough: it leads the next one.
    OutOfTime,
    /// Another transaction holds its id.
    Held,
    /// An earlier command waits for the same id.
    BehindHeld,
}

/// What was decided in one transaction.
#[derive(Debug)]
pub(super) struct Decisions {
    /// About each command, in order.
    pub(super) each: Vec<Decision>,
    /// What was put in flight to attached streams.
    pub(super) handed: Vec<(Delivery, Operation)>,
    /// Inboxes whose readers have news.
    pub(super) inboxes: BTreeSet<InboxKey>,
    /// Operations to which something happened.
    pub(super) operations: Vec<OperationKey>,
    /// Documents with another version.
    pub(super) documents: Vec<TargetKey>,
    /// Work that one command may not do at a time.
    pub(super) follow_ups: Vec<Command>,
    /// Operations that became APPLIED.
    pub(super) effects: u64,
}

/// Why a batch has no decisions that hold.
#[derive(Debug)]
pub(super) enum Fault {
    /// Worth a second run as a whole.
    Conflict(String),
    /// Worth halving.
    Failed(String),
    /// A bug of ours.
    CountShort(String),
    /// The store cannot be reached.
    Unavailable(String),
    /// The store must not be used any more.
    Fatal(String),
    /// The answer to the commit was lost and could not be settled.
    Unsettled,
}

/// What earlier commands of a batch wait for: what later ones stay behind. It outlives the halves
/// of a batch.
#[derive(Debug, Default)]
pub(super) struct Behind {
    accounts: HashSet<Account>,
    ids: HashSet<OperationKey>,
}

impl Behind {
    /// Why a command cannot be decided now, if it cannot.
    pub(super) fn holds_back(&self, command: &Command) -> Option<Decision> {
        // The id comes first: a command is never put before another one on its id.
        if identity(command).is_some_and(|key| self.ids.contains(key)) {
            return Some(Decision::BehindHeld);
        }
        let behind = self.accounts.contains(command.account());
        behind.then(|| Decision::BehindRows(Vec::new()))
    }

    /// Remembers what was decided.
    pub(super) fn note(&mut self, command: &Command, decision: &Decision) {
        match decision {
            Decision::RowsMissing(_) | Decision::OutOfTime => {
                self.accounts.insert(command.account().clone());
            }
            Decision::Held => self.ids.extend(identity(command).cloned()),
            Decision::Answered(_) | Decision::BehindRows(_) | Decision::BehindHeld => {}
        }
    }
}

/// Runs a batch in one transaction, and settles it if its commit's answer was lost.
pub(super) async fn run(shared: &Shared, batch: &[Queued]) -> Result<Decisions, Fault> {
    let start = Instant::now();
    let name = name(shared, batch);
    let transaction = transaction(shared, batch, name.clone());
    let decisions = match shared.backend.transact(transaction).await {
        Ok(committed) => value_of(shared, batch, committed),
        Err(TransactError::Ambiguous(first)) => settle(shared, batch, name, first).await?,
        Err(TransactError::Conflict(text)) => return Err(Fault::Conflict(text)),
        Err(TransactError::Failed(text)) => return Err(Fault::Failed(text)),
        Err(TransactError::CountShort(text)) => return Err(Fault::CountShort(text)),
        Err(TransactError::Unavailable(text)) => return Err(Fault::Unavailable(text)),
        Err(TransactError::Fatal(text)) => return Err(Fault::Fatal(text)),
    };
    telemetry::batch_committed(batch.len(), start.elapsed());
    let answers = decisions.each.iter().filter_map(|decision| match decision {
        Decision::Answered(answer) => Some(answer.as_ref()),
        _ => None,
    });
    let submits = Submits::of(answers, decisions.effects);
    shared.counter.add_submits(&submits);
    for (origin, count) in submits.by_origin().into_iter().filter(|(_, count)| *count > 0) {
        telemetry::submits(origin, count);
    }
    telemetry::effects(submits.effects, submits.duplicates_prevented());
    Ok(decisions)
}

/// Settles a lost commit, within a bounded time. `known` is what holds if the last transaction
/// that may have committed did: the first one, until a settling transaction has run the batch
/// again, which it does only if the first one never commits.
async fn settle(
    shared: &Shared,
    batch: &[Queued],
    name: BatchName,
    first: Decisions,
) -> Result<Decisions, Fault> {
    let mut known = first;
    let mut pause = shared.waits.settle_pause_first;
    let give_up = Instant::now() + shared.waits.settle_max;
    loop {
        let error = match shared.backend.settle(transaction(shared, batch, name.clone())).await {
            Ok(Settled::Committed) => {
                telemetry::commit_settled(Settlement::Committed);
                return Ok(known);
            }
            Ok(Settled::RunAgain(committed)) => {
                telemetry::commit_settled(Settlement::RunAgain);
                return Ok(value_of(shared, batch, committed));
            }
            Err(TransactError::Fatal(text)) => {
                telemetry::commit_settled(Settlement::Unknown);
                fail(shared, &text);
                return Err(Fault::Unsettled);
            }
            Err(TransactError::Ambiguous(again)) => {
                known = again;
                "the answer to the settling commit was lost too".to_owned()
            }
            // It left nothing behind, not even the name: the first run may still commit.
            Err(
                TransactError::CountShort(text)
                | TransactError::Conflict(text)
                | TransactError::Failed(text)
                | TransactError::Unavailable(text),
            ) => text,
        };
        if Instant::now() + pause >= give_up {
            telemetry::commit_settled(Settlement::Unknown);
            tracing::error!(error, commands = batch.len(), "a lost commit could not be settled");
            return Err(Fault::Unsettled);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(shared.waits.settle_pause_max);
    }
}

/// Marks the engine as failed: nothing reaches the store any more, and the server exits.
pub(super) fn fail(shared: &Shared, text: &str) {
    if !shared.failed.is_cancelled() {
        tracing::error!(error = text, "the store must not be used any more");
        shared.failed.cancel();
    }
}

fn value_of(shared: &Shared, batch: &[Queued], committed: Committed<Decisions>) -> Decisions {
    shared.counter.add(batch.len(), committed.touches);
    let Touches { loaded, saved, round_trips, commits } = committed.touches;
    telemetry::store_touched(loaded, saved, round_trips, commits);
    committed.value
}

/// Each transaction has a name of its own; only a settling one repeats the name it settles.
fn name(shared: &Shared, batch: &[Queued]) -> BatchName {
    let bucket = batch.first().map_or(0, |first| first.command.account().bucket());
    BatchName { bucket, id: shared.seams.random_bytes(), replica: shared.replica }
}

fn transaction(shared: &Shared, batch: &[Queued], name: BatchName) -> Transaction<Decisions> {
    let mut needs = Needs::default();
    for queued in batch {
        needs.claims.extend(queued.command.claim().cloned());
        for need in queued.command.needs().into_iter().chain(queued.found.iter().cloned()) {
            needs.add(need);
        }
    }
    let inboxes: BTreeSet<InboxKey> =
        batch.iter().filter_map(|queued| submit_inbox(&queued.command)).collect();
    let surroundings = surroundings(shared, shared.streams.of(inboxes.into_iter()));
    let commands: Vec<Arc<Command>> = batch.iter().map(|queued| queued.command.clone()).collect();
    let (decide, seams, decide_max) =
        (shared.decide, shared.seams.clone(), shared.waits.decide_max);
    let decide = Box::new(move |world: &mut World, held: &HeldIds| {
        let time = TimeLeft { watch: seams.stopwatch(), max: decide_max, spent: false };
        decide_all(world, held, &commands, decide, time)
    });
    Transaction { batch: name, needs, surroundings, purpose: Purpose::Serve, decide }
}

/// What a transaction is given besides rows.
pub(super) fn surroundings(
    shared: &Shared,
    attached: BTreeMap<InboxKey, Attached>,
) -> Surroundings {
    Surroundings {
        // The store sets the clock when it holds the locks, and tells what it may have lost.
        now: Timestamp::default(),
        policy: shared.policy.clone(),
        jitter: shared.seams.random(),
        attached,
        loss: Loss::NONE,
    }
}

fn submit_inbox(command: &Command) -> Option<InboxKey> {
    let Command::Submit(submit) = command else { return None };
    let account = submit.key.account.clone();
    submit.inbox.clone().map(|inbox| InboxKey { account, inbox })
}

/// How long a batch may still compute. Its rows are locked meanwhile, and its server waits.
struct TimeLeft {
    watch: Stopwatch,
    max: Duration,
    spent: bool,
}

impl TimeLeft {
    /// Whether it is spent; from then on it stays so. The first command is always decided: every
    /// batch gets further.
    fn is_spent(&mut self, decided: usize) -> bool {
        self.spent = self.spent || (decided > 0 && self.watch.elapsed() >= self.max);
        self.spent
    }
}

fn decide_all(
    world: &mut World,
    held: &HeldIds,
    commands: &[Arc<Command>],
    decide: DecideCommand,
    mut time: TimeLeft,
) -> Decisions {
    let mut decided = 0;
    let mut behind = Behind::default();
    let mut each = Vec::with_capacity(commands.len());
    for command in commands {
        let is_held = command.claim().is_some_and(|key| held.0.contains(key));
        let decision = match behind.holds_back(command) {
            // Each submit of a held id has a patience of its own.
            Some(Decision::BehindHeld) | None if is_held => Decision::Held,
            Some(Decision::BehindRows(_)) | None if time.is_spent(decided) => Decision::OutOfTime,
            Some(Decision::BehindRows(_)) if finds_more(command) => {
                Decision::BehindRows(would_miss(world, command, decide))
            }
            Some(decision) => decision,
            None => {
                decided += 1;
                decide_one(world, command, decide)
            }
        };
        behind.note(command, &decision);
        each.push(decision);
    }
    Decisions {
        each,
        handed: world.handed(),
        inboxes: world.changed_inboxes(),
        operations: world.changed_operations(),
        documents: world.changed_documents(),
        follow_ups: world.take_follow_ups(),
        effects: world.effects(),
    }
}

/// Whether a command usually finds rows that it did not name. A submit names them all: deciding it
/// only to see what it would miss would be its whole effort for nothing.
fn finds_more(command: &Command) -> bool {
    !matches!(command, Command::Submit(_))
}

/// The rows that a command would miss if it were its turn; the world stays as it was. What stands
/// before it may still change that: it is a hint, so that many that find more come through in a
/// few batches instead of a batch each.
fn would_miss(world: &mut World, command: &Command, decide: DecideCommand) -> Vec<Need> {
    world.begin();
    let decided = catch_unwind(AssertUnwindSafe(|| decide(world, command)));
    world.undo();
    match decided {
        Ok(Err(Halt::Unloaded(Unloaded(needs)))) => needs,
        // It is decided again when it is its turn, and only then does it count.
        Ok(Ok(_) | Err(Halt::Refused(_))) | Err(_) => Vec::new(),
    }
}

/// Decides one command; whatever is no good answer leaves the world as it was, even a panic.
fn decide_one(world: &mut World, command: &Command, decide: DecideCommand) -> Decision {
    world.begin();
    let decided = catch_unwind(AssertUnwindSafe(|| decide(world, command)));
    if !matches!(decided, Ok(Ok(_))) {
        world.undo();
    }
    match decided {
        Ok(Ok(reply)) => Decision::Answered(Box::new(Ok(reply))),
        Ok(Err(Halt::Refused(refusal))) => Decision::Answered(Box::new(Err(*refusal))),
        Ok(Err(Halt::Unloaded(Unloaded(needs)))) => Decision::RowsMissing(needs),
        Err(_) => {
            tracing::error!("a rule panicked; its command is refused, the batch goes on");
            Decision::Answered(Box::new(Err(Refusal::Internal)))
        }
    }
}
