//! The seams: clock, spawning, randomness and the network, so that a simulation can own them.
//!
//! What must stay true: nothing in the crate reads a wall clock, rolls dice, starts a task or
//! binds a socket except through these. File locks are taken in `store/sqlite`, behind
//! [`Seams::store_file_lock`].

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::task::TaskTracker;

use crate::domain::ids::{Span, Timestamp};

/// A future without a borrowed part.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Work that blocks its thread.
pub type BlockingTask = Box<dyn FnOnce() + Send>;

/// How the process meets the world outside its stores.
#[derive(Clone)]
pub struct Seams {
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    clock_offset: Arc<AtomicI64>,
    clock_stand: Arc<AtomicI64>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    spawn: Arc<dyn Fn(Task) + Send + Sync>,
    blocking: Blocking,
    file_lock: FileLock,
    tasks: TaskTracker,
}

/// Where calls that block run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// On threads of their own: the normal case.
    Threads,
    /// In place: a simulation stays deterministic.
    Inline,
}

/// Whether the embedded store's file is locked against a second process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLock {
    /// A second process is refused.
    Exclusive,
    /// Several simulated replicas share one file.
    Shared,
}

/// A watch that runs: how long something takes. It tells nothing about the time of day, and does
/// not follow the store's clock where tests move that.
pub struct Stopwatch(Watch);

enum Watch {
    Steady(Instant),
    Simulated(Arc<dyn Fn() -> Timestamp + Send + Sync>, Timestamp),
}

impl Stopwatch {
    /// How much time has passed since it was started.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Watch::Steady(start) => start.elapsed(),
            Watch::Simulated(clock, start) => (clock() - *start).to_std(),
        }
    }
}

/// No stand: the clock runs.
const RUNNING: i64 = i64::MIN;

impl Seams {
    /// The real world: the system's clock and randomness, tokio's tasks and threads.
    pub fn system() -> Self {
        let tasks = TaskTracker::new();
        let tracker = tasks.clone();
        Seams {
            clock: Arc::new(system_time),
            clock_offset: Arc::new(AtomicI64::new(0)),
            clock_stand: Arc::new(AtomicI64::new(RUNNING)),
            random: Arc::new(system_random),
            spawn: Arc::new(move |task| drop(tracker.spawn(task))),
            blocking: Blocking::Threads,
            file_lock: FileLock::Exclusive,
            tasks,
        }
    }

    /// The same with another clock, randomness and way to block: for a simulation.
    pub fn simulated(
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
        random: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Seams {
            clock: Arc::new(clock),
            random: Arc::new(random),
            blocking: Blocking::Inline,
            file_lock: FileLock::Shared,
            ..Seams::system()
        }
    }

    /// The process clock, moved by the offset. It is the clock of the embedded store, and of
    /// nothing else that decides.
    pub fn now(&self) -> Timestamp {
        self.stopped_clock().unwrap_or_else(|| (self.clock)()) + self.clock_offset()
    }

    /// Where tests have stopped the store's clock; the offset is added to it.
    pub fn stopped_clock(&self) -> Option<Timestamp> {
        let stand = self.clock_stand.load(Ordering::SeqCst);
        (stand != RUNNING).then_some(Timestamp(stand))
    }

    /// Stops the store's clock, on both stores, for every clone of these seams; it moves only by
    /// [`Seams::move_clock`] from then on.
    pub fn stop_clock(&self, at: Timestamp) {
        self.clock_stand.store(at.0, Ordering::SeqCst);
    }

    /// How far tests have moved the store's clock.
    pub fn clock_offset(&self) -> Span {
        Span(self.clock_offset.load(Ordering::SeqCst))
    }

    /// What a store with a clock of its own is told about the time: the offset to add to its
    /// clock; or, from 10^15 on, the time itself, where tests have stopped the clock. No offset is
    /// as long as the 31 years that 10^15 microseconds are.
    pub fn clock_parameter(&self) -> Span {
        match self.stopped_clock() {
            Some(stand) => Span((stand + self.clock_offset()).0),
            None => self.clock_offset(),
        }
    }

    /// Moves the store's clock, on both stores, for every clone of these seams.
    pub fn move_clock(&self, by: Span) {
        self.clock_offset.fetch_add(by.0, Ordering::SeqCst);
    }

    /// Starts a watch.
    pub fn stopwatch(&self) -> Stopwatch {
        Stopwatch(match self.blocking {
            Blocking::Threads => Watch::Steady(Instant::now()),
            Blocking::Inline => Watch::Simulated(self.clock.clone(), (self.clock)()),
        })
    }

    /// Runs work in place that may compute for long; the other tasks of its thread go on elsewhere
    /// meanwhile, where there is another thread.
    pub fn compute<T>(&self, work: impl FnOnce() -> T) -> T {
        let threads = Handle::try_current()
            .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
        match self.blocking {
            Blocking::Threads if threads => tokio::task::block_in_place(work),
            Blocking::Threads | Blocking::Inline => work(),
        }
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        (self.random)()
    }

    /// Random bytes, for ids and keys.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let random = self.random().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        bytes
    }

    /// Starts a task that is tracked until it ends (style 25).
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        (self.spawn)(Box::pin(task));
    }

    /// Where blocking calls run.
    pub fn blocking(&self) -> Blocking {
        self.blocking
    }

    /// Whether the embedded store's file is locked.
    pub fn store_file_lock(&self) -> FileLock {
        self.file_lock
    }

    /// Waits.
    pub async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until every task that was started has ended; nothing new may start after this.
    pub async fn join(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seams").field("blocking", &self.blocking).finish_non_exhaustive()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
fn system_time() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks for randomness")]
fn system_random() -> u64 {
    getrandom::u64().expect("the operating system gives randomness once it has started")
}
