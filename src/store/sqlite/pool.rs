//! Where calls that block run: on threads of their own, or in place for a simulation.
//!
//! What must stay true: this is the only place below the store that starts a thread; a panic of
//! one job answers that job alone; whatever was queued before a close is finished before the
//! close returns. Deliberately not here: what a job does.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use crate::engine::seams::Blocking;

/// Jobs that may wait for a thread. A batch is one job and each lane has one in flight, so this
/// is reached only by a flood of reads; more than that waits in its caller.
const QUEUE_MAX: usize = 256;

/// Work on one of the states.
type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Why a job gave no answer.
#[derive(Debug)]
pub(super) enum Refused {
    /// The pool is closed; the job did not run.
    Closed,
    /// The job panicked with this text.
    Panicked(String),
}

/// Some states, each used by one job at a time.
pub(super) struct Pool<S> {
    place: Place<S>,
}

enum Place<S> {
    Threads {
        /// Taken at the close, so that the threads see the end of the queue.
        queue: Mutex<Option<mpsc::Sender<Job<S>>>>,
        /// Ends when the last thread has ended.
        ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
    },
    Inline {
        state: Mutex<Option<S>>,
        end: fn(S),
    },
}

impl<S: Send + 'static> Pool<S> {
    /// Starts a pool over `states`, of which an inline one keeps the first alone. `end` is called
    /// with each state after its last job, also if the pool is dropped without a close.
    ///
    /// # Errors
    /// A thread could not be started.
    pub(super) fn start(
        blocking: Blocking,
        name: &str,
        states: Vec<S>,
        end: fn(S),
    ) -> std::io::Result<Self> {
        if blocking == Blocking::Inline {
            let state = Mutex::new(states.into_iter().next());
            return Ok(Pool { place: Place::Inline { state, end } });
        }
        let (queue, jobs) = mpsc::channel::<Job<S>>(QUEUE_MAX);
        let (alive, ended) = mpsc::channel::<()>(1);
        let jobs = Arc::new(Mutex::new(jobs));
        for state in states {
            let (jobs, alive) = (Arc::clone(&jobs), alive.clone());
            start_thread(name, move || {
                work(state, &jobs, end);
                drop(alive);
            })?;
        }
        let queue = Mutex::new(Some(queue));
        Ok(Pool { place: Place::Threads { queue, ended: tokio::sync::Mutex::new(ended) } })
    }

    /// Runs `work` on one of the states. It runs to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// [`Refused`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        match &self.place {
            Place::Inline { state, .. } => {
                let mut state = lock(state);
                let state = state.as_mut().ok_or(Refused::Closed)?;
                guarded(|| work(state))
            }
            Place::Threads { queue, .. } => {
                let queue = lock(queue).clone().ok_or(Refused::Closed)?;
                let (answer, answered) = oneshot::channel();
                let job: Job<S> = Box::new(move |state| {
                    // Nobody may be waiting any more; the job was done all the same.
                    drop(answer.send(guarded(|| work(state))));
                });
                queue.send(job).await.map_err(|_| Refused::Closed)?;
                // A clone that is kept would keep a close from seeing the end of the queue.
                drop(queue);
                answered.await.map_err(|_| Refused::Closed)?
            }
        }
    }

    /// Takes no more jobs, finishes those that are queued, and ends every state.
    pub(super) async fn close(&self) {
        match &self.place {
            Place::Inline { state, end } => {
                let state = lock(state).take();
                if let Some(state) = state {
                    end(state);
                }
            }
            Place::Threads { queue, ended } => {
                drop(lock(queue).take());
                // Nothing is ever sent: the channel ends with the last thread.
                while ended.lock().await.recv().await.is_some() {}
            }
        }
    }

    /// Whether [`Pool::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        match &self.place {
            Place::Inline { state, .. } => lock(state).is_none(),
            Place::Threads { queue, .. } => lock(queue).is_none(),
        }
    }
}

/// Starts a named thread.
///
/// # Errors
/// The operating system refuses one.
pub(super) fn start_thread(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Runs `work`; a panic becomes its text.
///
/// # Errors
/// [`Refused::Panicked`].
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Refused> {
    // Whatever the work leaves half done is a transaction, and that is rolled back.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Refused::Panicked(text.unwrap_or_else(|| "no text".to_owned()))
    })
}

/// The loop of one thread.
fn work<S>(mut state: S, jobs: &Mutex<mpsc::Receiver<Job<S>>>, end: fn(S)) {
    loop {
        // One idle thread waits for a job, the others wait for their turn to do so.
        let job = lock(jobs).blocking_recv();
        match job {
            Some(job) => job(&mut state),
            None => break,
        }
    }
    end(state);
}

/// Locks; a panic elsewhere does not spoil what the lock guards, since jobs are guarded.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
