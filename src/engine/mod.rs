//! The engine: commands in, answers out, and between them few transactions for many commands.
//!
//! What must stay true: the caller never owns the transaction. A command that was taken runs to
//! its end whether or not anyone waits for the answer. Commands of one account run in one lane,
//! in order; lanes commit in parallel.
//!
//! Deliberately not here: rules (see [`crate::domain::decide`]), SQL (see [`crate::store`]), and
//! searches that precede a batch.
//!
//! `lane` takes what `queue` holds, and has `batch` run it; `attached` knows the streams
//! that take results right after a commit, `replays` counts what needs no commit of its own, and
//! `totals` what all of it cost.

mod attached;
mod batch;
mod lane;
mod queue;
mod replays;
pub mod seams;
pub mod totals;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    attached::Streams,
    batch::DecideCommand,
    lane::{Lane, Waits},
    queue::{Answer, Queued},
    replays::Replays,
    totals::{Counter, Totals},
};
use crate::{
    domain::{
        command::{Command, Reply},
        decide::decide,
        delivery::{Delivery, InboxKey},
        ids::{Account, ConsumerId, Span},
        inbox::AccountRow,
        operation::{Operation, OperationKey},
        policy::Policy,
        refusal::Refusal,
        world::needs::Needs,
    },
    engine::seams::Seams,
    store::{BatchName, Committed, Purpose, ReadError, Settled, Store, TransactError, Transaction},
    telemetry,
    wake::Wake,
};

/// When to come back to a server that takes no more: by then another one answers.
const RETRY_ELSEWHERE: Span = Span::seconds(1);

/// Lanes unless a setting says otherwise: two keep a small machine busy.
pub const LANES_DEFAULT: usize = 2;

/// A handle; clones share one engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Lanes that commit in parallel, at least one; usually [`LANES_DEFAULT`]. An account's lane is
    /// its bucket modulo this; replicas may differ.
    pub lanes: usize,
}

/// Deliveries handed to an attached stream right after the commit that put them in flight. Each
/// message of the channel holds one, so that the channel's room counts deliveries; a reader takes
/// many at once with `recv_many`.
pub type Handed = Vec<(Delivery, Operation)>;

/// What the tasks of an engine share.
struct Shared {
    backend: Backend,
    policy: Policy,
    seams: Seams,
    wake: Wake,
    decide: DecideCommand,
    waits: Waits,
    replica: [u8; 16],
    lanes: Vec<Arc<Lane>>,
    streams: Streams,
    replays: Replays,
    counter: Counter,
    /// Cancelled when new commands are refused.
    draining: CancellationToken,
    /// Cancelled when the store must not be used any more.
    failed: CancellationToken,
    /// Whether the last batch found the store able to commit.
    stores: AtomicBool,
    lane_tasks: TaskTracker,
    fold_tasks: TaskTracker,
}

impl Engine {
    /// Starts the lanes over an open store. [`Engine::drain`] ends them.
    pub fn start(store: Store, policy: Policy, settings: EngineSettings, seams: Seams) -> Engine {
        let backend = Backend::Store(store);
        Engine::start_with(backend, policy, settings, seams, decide, Waits::STANDARD)
    }

    fn start_with(
        backend: Backend,
        policy: Policy,
        settings: EngineSettings,
        seams: Seams,
        decide: DecideCommand,
        waits: Waits,
    ) -> Engine {
        let shared = Arc::new(Shared {
            backend,
            policy,
            replica: seams.random_bytes(),
            seams,
            wake: Wake::default(),
            decide,
            waits,
            lanes: (0..settings.lanes.max(1)).map(|_| Arc::default()).collect(),
            streams: Streams::default(),
            replays: Replays::default(),
            counter: Counter::default(),
            draining: CancellationToken::new(),
            failed: CancellationToken::new(),
            stores: AtomicBool::new(true),
            lane_tasks: TaskTracker::new(),
            fold_tasks: TaskTracker::new(),
        });
        for lane in &shared.lanes {
            let task = shared.lane_tasks.track_future(lane::run(shared.clone(), lane.clone()));
            shared.seams.spawn(task);
        }
        let fold = replays::fold_until_drained(shared.clone());
        shared.seams.spawn(shared.fold_tasks.track_future(fold));
        Engine { shared }
    }

    /// Runs one command. Once it was taken it completes, even if the caller goes away. On `Ok`
    /// what was decided is durable; on `Err` nothing was done, unless the refusal says
    /// [`Refusal::CommitUnknown`].
    ///
    /// # Errors
    /// A [`Refusal`]: of the rules, or because the engine or the store cannot serve now.
    pub async fn run(&self, command: Command) -> Result<Reply, Refusal> {
        match self.take(command) {
            // A lane that died cannot say how far it came.
            Ok(answer) => answer.await.unwrap_or(Err(Refusal::CommitUnknown)),
            Err(refusal) => {
                telemetry::replied(refusal.reason());
                Err(refusal)
            }
        }
    }

    fn take(&self, command: Command) -> Result<oneshot::Receiver<Answer>, Refusal> {
        if self.shared.draining.is_cancelled() {
            return Err(Refusal::Draining { retry: RETRY_ELSEWHERE });
        }
        self.shared.enqueue(command)
    }

    /// The store that the engine runs on, for reads.
    pub fn store(&self) -> &Store {
        match &self.shared.backend {
            Backend::Store(store) => store,
            #[cfg(test)]
            Backend::Scripted(_) => unreachable!("an engine on a script is never read from"),
        }
    }

    /// What holds where an account has no setting of its own.
    pub fn defaults(&self) -> &Policy {
        &self.shared.policy
    }

    /// The clocks and limits in force for an account, by its row; none: it was never used.
    pub fn policy_of(&self, row: Option<&AccountRow>) -> Policy {
        AccountRow::policy(row, self.defaults())
    }

    /// The clocks and limits in force for an account now.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn policy(&self, account: &Account) -> Result<Policy, ReadError> {
        Ok(self.policy_of(self.store().account(account).await?.as_ref()))
    }

    /// How the process meets the world outside.
    pub fn seams(&self) -> &Seams {
        &self.shared.seams
    }

    /// The hints that this engine gives after each commit.
    pub fn wake(&self) -> &Wake {
        &self.shared.wake
    }

    /// Whether the last batch could be committed: a store that answers reads may still refuse to
    /// write.
    pub fn stores(&self) -> bool {
        self.shared.stores.load(Ordering::Relaxed)
    }

    /// Writes the row of a batch that does nothing, which is durable on return, so that
    /// [`Engine::stores`] tells of now. It belongs to no account, and the sweeper removes it.
    pub async fn try_to_store(&self) {
        let shared = &self.shared;
        if shared.failed.is_cancelled() {
            return;
        }
        let (id, replica) = (shared.seams.random_bytes(), shared.replica);
        let transaction = Transaction {
            batch: BatchName { bucket: 0, id, replica },
            needs: Needs::default(),
            surroundings: batch::surroundings(shared, BTreeMap::new()),
            purpose: Purpose::Serve,
            decide: Box::new(|_, _| ()),
        };
        // A batch without changes writes nothing, but settling a name always writes its row.
        let tried = shared.backend.settle(transaction).await;
        if let Err(TransactError::Fatal(text)) = &tried {
            batch::fail(shared, text);
        }
        shared.stores.store(tried.is_ok(), Ordering::Relaxed);
        tracing::debug!(stores = tried.is_ok(), "tried to store");
    }

    /// The name under which this engine's batches are written.
    pub fn replica(&self) -> [u8; 16] {
        self.shared.replica
    }

    /// What this engine has done since it started.
    pub fn totals(&self) -> Totals {
        self.shared.counter.totals()
    }

    /// Counts a replay or attach, to be folded into the row at most once a second.
    pub fn count_replay(&self, key: &OperationKey) {
        self.shared.replays.count(key, 1);
    }

    /// Makes a stream known, so that submits can put deliveries in flight to it at once: at most
    /// `room` that it has not taken from the channel yet. [`Engine::detach`] comes before the
    /// stream's close.
    pub fn attach(
        &self,
        inbox: InboxKey,
        consumer: ConsumerId,
        epoch: i64,
        room: usize,
    ) -> mpsc::Receiver<Handed> {
        self.shared.streams.attach(inbox, consumer, epoch, room)
    }

    /// Forgets a stream. What was handed to it before is still in its channel.
    pub fn detach(&self, inbox: &InboxKey, consumer: &ConsumerId, epoch: i64) {
        self.shared.streams.detach(inbox, consumer, epoch);
    }

    /// Cancelled once the store must not be used any more: the server exits then.
    pub fn failed(&self) -> CancellationToken {
        self.shared.failed.clone()
    }

    /// Refuses new commands with DRAINING and waits for those that run or wait. Streams that close
    /// themselves by a command are to be ended before.
    pub async fn drain(&self) {
        let shared = &self.shared;
        shared.draining.cancel();
        // The last fold still needs the lanes.
        shared.fold_tasks.close();
        shared.fold_tasks.wait().await;
        for lane in &shared.lanes {
            lane.close();
        }
        shared.lane_tasks.close();
        shared.lane_tasks.wait().await;
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("lanes", &self.shared.lanes.len()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Puts a command into the lane of its account.
    fn enqueue(&self, command: Command) -> Result<oneshot::Receiver<Answer>, Refusal> {
        if self.failed.is_cancelled() {
            return Err(Refusal::StoreUnavailable { retry: RETRY_ELSEWHERE });
        }
        let bucket = usize::try_from(command.account().bucket()).unwrap_or(0);
        let (queued, answer) = Queued::new(command);
        self.lanes[bucket % self.lanes.len()].push(queued)?;
        Ok(answer)
    }
}

/// What runs transactions: the store, or a script in the engine's own tests.
enum Backend {
    /// One of the two stores.
    Store(Store),
    /// A script.
    #[cfg(test)]
    Scripted(scripted::ScriptedStore),
}

impl Backend {
    /// See [`Store::transact`].
    async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        match self {
            Backend::Store(store) => store.transact(transaction).await,
            #[cfg(test)]
            Backend::Scripted(store) => store.transact(transaction).await,
        }
    }

    /// When a store that takes no writes is likely to take them again, if it knows.
    fn wait(&self) -> Option<Span> {
        match self {
            Backend::Store(store) => store.wait(),
            #[cfg(test)]
            Backend::Scripted(_) => None,
        }
    }

    /// See [`Store::settle`].
    async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        match self {
            Backend::Store(store) => store.settle(transaction).await,
            #[cfg(test)]
            Backend::Scripted(store) => store.settle(transaction).await,
        }
    }
}
