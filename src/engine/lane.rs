//! A lane: takes what waits, runs it as one batch, and deals with what went wrong.
//!
//! What must stay true: whatever waits when the last transaction ends becomes the next batch, and
//! no timer delays it. A bad command fails alone: a batch that fails is halved, in order, until it
//! stands alone. Nothing loops: every re-run, halving, deferral and wait is bounded. Every command
//! is answered once.
//!
//! Deliberately not here: what a batch decides (see [`super::batch`]), and the order of the queue
//! (see [`super::queue`]).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    Shared,
    batch::{self, Behind, Decision, Decisions, Fault},
    queue::{BATCH_COMMANDS_MAX, FairQueue, NotTaken, Queued, Waiting},
};
use crate::{
    domain::{
        command::{Command, Reply, Swept},
        ids::Span,
        refusal::Refusal,
    },
    telemetry::{self, Deferral},
};

/// Runs of a whole batch after a conflict, before it is halved: the second conflict is hardly
/// chance any more, the third is a cause inside the batch.
const RERUNS_MAX: u32 = 2;
/// How often a command is put off for missing rows: each time brings the rows that it missed, so
/// that more than this means that they change faster than they can be locked. A release with waiters
/// takes four where nobody interferes, six if its waiter's inbox was deleted; among busy replicas each may be in vain once.
const DEFERRALS_MAX: u32 = 10;

/// Rows that a command has found, beyond which no more are kept for it before its turn: as many as
/// the longest list of acks finds in one step. Whoever waits behind many could collect what has
/// long changed; in its turn it asks for what it misses then.
const FOUND_MAX: usize = 4_000;

/// How long the engine waits for what; in one place, so that tests need not wait as long.
#[derive(Debug, Clone)]
pub(super) struct Waits {
    /// Between two tries of a held id while nothing else is queued.
    pub(super) held_retry: Duration,
    /// Until a held id is answered with IDENTITY_HELD.
    pub(super) held_max: Duration,
    /// The first pause between two tries to settle a lost commit; doubles.
    pub(super) settle_pause_first: Duration,
    /// The longest such pause.
    pub(super) settle_pause_max: Duration,
    /// Until a lost commit is reported as COMMIT_UNKNOWN.
    pub(super) settle_max: Duration,
    /// Between two folds of the replays.
    pub(super) replay_fold: Duration,
    /// How long one batch computes, beyond its first command.
    pub(super) decide_max: Duration,
}

impl Waits {
    /// What holds outside tests.
    pub(super) const STANDARD: Waits = Waits {
        // A few times the length of a batch, by which the id is usually free.
        held_retry: Duration::from_millis(20),
        // Architecture section 1.
        held_max: Duration::from_millis(250),
        settle_pause_first: Duration::from_millis(50),
        settle_pause_max: Duration::from_secs(2),
        // Longer than a failover within one zone, shorter than a caller's patience of 30 s.
        settle_max: Duration::from_secs(20),
        replay_fold: Duration::from_secs(1),
        // The rows of the batch are locked meanwhile. Less than another replica waits for a lock
        // (250 ms) and far less than the server lets a transaction stand still (4 s); long beside
        // a commit, so that putting off the rest costs little.
        decide_max: Duration::from_millis(150),
    };
}

/// When to come back after what one command alone met: by then a lock has usually been released.
const RETRY_ALONE: Span = Span::millis(250);
/// When to come back to a store that is away, or to a lane that is full.
const RETRY_LATER: Span = Span::seconds(1);

/// A lane's queue, and how its task learns of new commands.
#[derive(Default)]
pub(super) struct Lane {
    queue: Mutex<FairQueue>,
    arrived: Notify,
}

/// A part of a batch: the whole of it at first, a half after an error.
struct Part {
    commands: Vec<Queued>,
    reruns: u32,
}

/// Commands without an answer yet, in order.
#[derive(Default)]
struct PutOff {
    /// Lead the next batch.
    leading: Vec<Queued>,
    /// Wait for an id.
    held: Vec<Queued>,
    /// How many commands a batch came to, if there was one that ran out of time.
    in_time: Option<usize>,
}

impl Lane {
    /// Adds a command.
    pub(super) fn push(&self, queued: Queued) -> Result<(), Refusal> {
        let pushed = self.lock().push(queued);
        match pushed {
            Ok(()) => {
                self.arrived.notify_one();
                Ok(())
            }
            Err(NotTaken::Full) => Err(Refusal::RateLimited { retry: RETRY_LATER }),
            Err(NotTaken::Closed) => Err(Refusal::Draining { retry: RETRY_LATER }),
        }
    }

    /// Refuses new commands; the lane ends when its queue is empty.
    pub(super) fn close(&self) {
        self.lock().close();
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue> {
        // A panic inside ends the lane, whose guard still has to reach the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch, of at most so many commands beside those that try a held id; `None` when
    /// the lane was closed and nothing waits.
    async fn next_batch(&self, held_retry: Duration, most: usize) -> Option<Vec<Queued>> {
        loop {
            let (waiting, closed) = {
                let mut queue = self.lock();
                match queue.waiting() {
                    Waiting::Ready => return Some(queue.take(most)),
                    waiting => (waiting, queue.is_closed()),
                }
            };
            let arrived = self.arrived.notified();
            match waiting {
                Waiting::Nothing if closed => return None,
                Waiting::HeldOnly => {
                    if tokio::time::timeout(held_retry, arrived).await.is_err() {
                        return Some(self.lock().take(most));
                    }
                }
                Waiting::Nothing | Waiting::Ready => arrived.await,
            }
        }
    }
}

/// Answers for a lane that ends: whoever still waits learns that nobody will.
struct Ending {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.lane.lock().abandon();
        if std::thread::panicking() {
            batch::fail(&self.shared, "a lane panicked");
        }
    }
}

/// Runs batches until the lane is closed and empty.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<Lane>) {
    let ending = Ending { shared, lane };
    let (shared, lane) = (&ending.shared, &ending.lane);
    let mut most = BATCH_COMMANDS_MAX;
    while let Some(commands) = lane.next_batch(shared.waits.held_retry, most).await {
        let put_off = run_taken(shared, commands).await;
        // What a batch does not come to was loaded for nothing.
        most = match put_off.in_time {
            Some(decided) => decided.max(1),
            None => (most * 2).min(BATCH_COMMANDS_MAX),
        };
        let mut queue = lane.lock();
        queue.put_back_held(put_off.held);
        queue.put_back(put_off.leading);
    }
}

/// Runs what was taken, whole or in parts, until each command is answered or put off.
async fn run_taken(shared: &Shared, commands: Vec<Queued>) -> PutOff {
    let mut put_off = PutOff::default();
    let mut behind = Behind::default();
    // The next part is the last one in here.
    let mut parts = vec![Part { commands, reruns: 0 }];
    while let Some(part) = parts.pop() {
        let part = without_held_back(part, &behind, &mut put_off);
        if part.commands.is_empty() {
            continue;
        }
        if shared.failed.is_cancelled() {
            refuse(part.commands, &Refusal::StoreUnavailable { retry: RETRY_LATER });
            continue;
        }
        let ran = batch::run(shared, &part.commands).await;
        if let Some(stores) = stores(&ran, part.commands.len()) {
            shared.stores.store(stores, Ordering::Relaxed);
        }
        match ran {
            Ok(decisions) => finish(shared, part.commands, decisions, &mut behind, &mut put_off),
            Err(fault) => parts.extend(after_fault(shared, part, fault)),
        }
    }
    put_off
}

/// What a run says about whether the store takes writes; `None`: nothing. What fails alone may be
/// the fault of that one command: the next probe, which writes, says which it is.
fn stores(ran: &Result<Decisions, Fault>, commands: usize) -> Option<bool> {
    match ran {
        Ok(_) => Some(true),
        Err(Fault::Failed(_)) if commands == 1 => Some(false),
        Err(Fault::Unavailable(_) | Fault::Unsettled | Fault::Fatal(_)) => Some(false),
        Err(Fault::Conflict(_) | Fault::Failed(_) | Fault::CountShort(_)) => None,
    }
}

/// Takes out what stays behind commands of an earlier half.
fn without_held_back(part: Part, behind: &Behind, put_off: &mut PutOff) -> Part {
    let mut commands = Vec::with_capacity(part.commands.len());
    for queued in part.commands {
        match behind.holds_back(&queued.command) {
            None => commands.push(queued),
            Some(decision) => put_off.add(queued, decision),
        }
    }
    Part { commands, ..part }
}

/// What is still to be run after an error, the next part last. Refuses what will not be run.
fn after_fault(shared: &Shared, part: Part, fault: Fault) -> Vec<Part> {
    let Part { commands, reruns } = part;
    let alone = commands.len() == 1;
    match fault {
        // What stands alone and fails has mostly waited for a row behind a slow commit elsewhere.
        Fault::Conflict(_) | Fault::Failed(_)
            if reruns < RERUNS_MAX && (alone || matches!(fault, Fault::Conflict(_))) =>
        {
            telemetry::batch_rerun();
            vec![Part { commands, reruns: reruns + 1 }]
        }
        Fault::Conflict(_) | Fault::Failed(_) | Fault::CountShort(_) if !alone => halves(commands),
        Fault::Conflict(error) | Fault::Failed(error) => {
            tracing::warn!(error, "the store refused a command that stood alone");
            refuse(commands, &Refusal::StoreUnavailable { retry: RETRY_ALONE });
            Vec::new()
        }
        Fault::CountShort(error) => {
            tracing::error!(error, "a count fell short; the command is refused");
            refuse(commands, &Refusal::Internal);
            Vec::new()
        }
        Fault::Unavailable(error) => {
            tracing::warn!(error, commands = commands.len(), "the store cannot be reached");
            let retry = shared.backend.wait().unwrap_or(RETRY_LATER);
            refuse(commands, &Refusal::StoreUnavailable { retry });
            Vec::new()
        }
        Fault::Fatal(error) => {
            // What the failed flush left in the log may count after a restart.
            batch::fail(shared, &error);
            refuse(commands, &Refusal::CommitUnknown);
            Vec::new()
        }
        Fault::Unsettled => {
            refuse(commands, &Refusal::CommitUnknown);
            Vec::new()
        }
    }
}

fn halves(mut first: Vec<Queued>) -> Vec<Part> {
    telemetry::batch_halved();
    let second = first.split_off(first.len() / 2);
    vec![Part { commands: second, reruns: 0 }, Part { commands: first, reruns: 0 }]
}

fn refuse(commands: Vec<Queued>, refusal: &Refusal) {
    for queued in commands {
        queued.answer(Err(refusal.clone()));
    }
}

/// What follows a commit: streams first, then hints, then the callers.
fn finish(
    shared: &Shared,
    commands: Vec<Queued>,
    decisions: Decisions,
    behind: &mut Behind,
    put_off: &mut PutOff,
) {
    let Decisions { each, handed, inboxes, operations, documents, follow_ups, effects: _ } =
        decisions;
    shared.streams.hand(handed);
    for inbox in &inboxes {
        shared.wake.inbox_changed(inbox);
    }
    for operation in &operations {
        shared.wake.operation_changed(operation);
    }
    for document in &documents {
        shared.wake.document_changed(document);
    }
    let held = each.iter().filter(|decision| matches!(decision, Decision::Held)).count();
    telemetry::ids_held(held);
    if each.iter().any(|decision| matches!(decision, Decision::OutOfTime)) {
        let decided =
            |each: &&Decision| matches!(each, Decision::Answered(_) | Decision::RowsMissing(_));
        put_off.in_time = Some(each.iter().filter(decided).count());
    }
    for (queued, decision) in commands.into_iter().zip(each) {
        match tried(queued, decision, shared.waits.held_max) {
            Tried::Answered => {}
            Tried::PutOff(queued, decision) => {
                behind.note(&queued.command, &decision);
                put_off.add(queued, decision);
            }
        }
    }
    // Nobody waits for the answer of a follow-up; it leads the next batch.
    put_off.leading.extend(follow_ups.into_iter().map(|command| Queued::new(command).0));
}

/// What became of one command.
enum Tried {
    /// Its caller has the answer.
    Answered,
    /// It tries again.
    PutOff(Queued, Decision),
}

/// Answers a command that was decided, or whose patience is spent.
fn tried(mut queued: Queued, decision: Decision, held_max: Duration) -> Tried {
    match decision {
        Decision::Answered(answer) => {
            if let Ok(Reply::Swept(Swept::Recounted { counted, found })) = *answer {
                tell_recounted(&queued.command, counted, found);
            }
            queued.answer(*answer);
            Tried::Answered
        }
        Decision::RowsMissing(_) if queued.deferrals >= DEFERRALS_MAX => {
            tracing::warn!("the rows of a command changed faster than they could be locked");
            queued.answer(Err(Refusal::StoreUnavailable { retry: RETRY_ALONE }));
            Tried::Answered
        }
        Decision::Held if queued.held_since.is_some_and(|since| since.elapsed() >= held_max) => {
            queued.answer(Err(Refusal::IdentityHeld { retry: RETRY_ALONE }));
            Tried::Answered
        }
        Decision::Held => {
            queued.held_since.get_or_insert_with(Instant::now);
            Tried::PutOff(queued, decision)
        }
        Decision::RowsMissing(_)
        | Decision::BehindRows(_)
        | Decision::OutOfTime
        | Decision::BehindHeld => Tried::PutOff(queued, decision),
    }
}

/// Tells of a repaired count, once it is committed: here, because nobody hears the answer of a
/// command that followed another.
fn tell_recounted(command: &Command, counted: i64, found: i64) {
    telemetry::swept("recounted", 1);
    if let Command::SweepInbox { key } = command {
        let inbox = key.inbox.as_str();
        tracing::warn!(inbox.id = inbox, counted, found, "a wrong count of an inbox was repaired");
    }
}

impl PutOff {
    fn add(&mut self, mut queued: Queued, decision: Decision) {
        match decision {
            Decision::RowsMissing(needs) => {
                telemetry::deferred(Deferral::RowsMissing);
                queued.deferrals += 1;
                queued.found.extend(needs);
                self.leading.push(queued);
            }
            Decision::BehindRows(needs) => {
                telemetry::deferred(Deferral::Behind);
                if queued.found.len() < FOUND_MAX {
                    queued.found.extend(needs);
                }
                self.leading.push(queued);
            }
            Decision::OutOfTime => {
                telemetry::deferred(Deferral::OutOfTime);
                self.leading.push(queued);
            }
            Decision::Held => {
                telemetry::deferred(Deferral::IdHeld);
                self.held.push(queued);
            }
            Decision::BehindHeld => {
                telemetry::deferred(Deferral::Behind);
                self.held.push(queued);
            }
            Decision::Answered(answer) => queued.answer(*answer),
        }
    }
}
