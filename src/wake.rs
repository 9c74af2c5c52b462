//! Hints: who waits for what, and that it may have changed.
//!
//! What must stay true: a waiter registers before it reads, so that a change after its read always
//! wakes it; a change between two calls of [`Watch::changed`] is not lost; memory is bounded by the
//! watches that live. A wake carries no payload: whoever is woken reads again (T13), and losing a
//! hint costs at most one period of the bulk re-read, never data.
//!
//! What this replica changed goes into an `outbox` for the other ones; how it gets there, and how
//! theirs comes here, is in [`replicas`].

#[cfg(feature = "nats")]
pub mod nats;
mod outbox;
mod payload;
pub mod replicas;

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use self::outbox::Outbox;
use crate::{
    domain::{delivery::InboxKey, lock::TargetKey, operation::OperationKey},
    store::{
        ReadError, Store,
        query::{DocumentGlimpse, InboxGlimpse, OperationGlimpse},
    },
    telemetry,
};

/// Keys in one bulk read: enough for a busy replica in one statement, small enough for the
/// arrays of any store.
const REREAD_KEYS_MAX: usize = 5_000;
/// Least time between two looks that hints ask for: a storm of them costs the store four reads a
/// second, and a reader no more than a person notices.
const LOOKS_APART: Duration = Duration::from_millis(250);

/// Hints in this process: who waits for what. Clones share one registry.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    registry: Arc<Mutex<HashMap<Key, Waiting>>>,
    outbox: Arc<Outbox>,
    /// Asks the bulk re-read to look before its period is over.
    look: Arc<Notify>,
}

/// What can be waited for. Inboxes come first: most who wait for another replica are streams.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Inbox(InboxKey),
    Operation(OperationKey),
    Document(TargetKey),
}

/// Everything that somebody waits for.
#[derive(Debug, Default)]
pub struct Watched {
    /// Operations.
    pub operations: Vec<OperationKey>,
    /// Inboxes.
    pub inboxes: Vec<InboxKey>,
    /// Documents, whether they exist or not.
    pub documents: Vec<TargetKey>,
}

impl Watched {
    fn len(&self) -> usize {
        self.operations.len() + self.inboxes.len() + self.documents.len()
    }
}

/// One key with everybody who waits for it.
#[derive(Debug)]
struct Waiting {
    signal: Arc<Signal>,
    watches: usize,
}

/// Rises with every change; the watches of one key share it.
#[derive(Debug, Default)]
struct Signal {
    version: AtomicU64,
    notify: Notify,
}

impl Signal {
    fn raise(&self) {
        // The version rises first: who registered for the notification before it looked at the
        // version sees one or the other.
        self.version.fetch_add(1, Ordering::SeqCst);
        self.notify.notify_waiters();
    }
}

/// One registered reader; deregisters when dropped.
#[derive(Debug)]
pub struct Watch {
    wake: Wake,
    key: Key,
    signal: Arc<Signal>,
    seen: AtomicU64,
}

impl Watch {
    /// Ends when something changed since the last call (a change in between is not lost), or since
    /// the watch began. Dropping the future before its end loses nothing.
    pub async fn changed(&self) {
        loop {
            let mut notified = std::pin::pin!(self.signal.notify.notified());
            notified.as_mut().enable();
            let version = self.signal.version.load(Ordering::SeqCst);
            if self.seen.swap(version, Ordering::SeqCst) != version {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut registry = self.wake.registry();
        if let Some(watched) = registry.get_mut(&self.key) {
            watched.watches -= 1;
            if watched.watches == 0 {
                registry.remove(&self.key);
            }
        }
    }
}

impl Wake {
    /// Registers a reader of an operation. Register first, then read.
    pub fn watch_operation(&self, key: OperationKey) -> Watch {
        self.watch(Key::Operation(key))
    }

    /// Registers a reader of an inbox. Register first, then read.
    pub fn watch_inbox(&self, key: InboxKey) -> Watch {
        self.watch(Key::Inbox(key))
    }

    /// Registers a reader of a document, which need not exist. Register first, then read.
    pub fn watch_document(&self, key: TargetKey) -> Watch {
        self.watch(Key::Document(key))
    }

    /// A commit of this replica changed the operation: wakes whoever waits for it here, and leaves
    /// word for the other replicas.
    pub fn operation_changed(&self, key: &OperationKey) {
        self.changed(Key::Operation(key.clone()));
    }

    /// A commit of this replica changed the inbox: as [`Wake::operation_changed`].
    pub fn inbox_changed(&self, key: &InboxKey) {
        self.changed(Key::Inbox(key.clone()));
    }

    /// The same for a document.
    pub fn document_changed(&self, key: &TargetKey) {
        self.changed(Key::Document(key.clone()));
    }

    /// Everything somebody waits for, for the bulk re-read.
    pub fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for key in self.registry().keys() {
            match key {
                Key::Operation(key) => watched.operations.push(key.clone()),
                Key::Inbox(key) => watched.inboxes.push(key.clone()),
                Key::Document(key) => watched.documents.push(key.clone()),
            }
        }
        watched
    }

    fn watch(&self, key: Key) -> Watch {
        let mut registry = self.registry();
        let watched = registry
            .entry(key.clone())
            .or_insert_with(|| Waiting { signal: Arc::new(Signal::default()), watches: 0 });
        watched.watches += 1;
        let signal = watched.signal.clone();
        let seen = AtomicU64::new(signal.version.load(Ordering::SeqCst));
        Watch { wake: self.clone(), key, signal, seen }
    }

    fn changed(&self, key: Key) {
        self.raise(&key);
        self.outbox.put(key);
    }

    /// Wakes whoever waits for the key here, and tells nobody else: what was read, or heard of,
    /// is known to others already.
    fn raise(&self, key: &Key) {
        if let Some(watched) = self.registry().get(key) {
            watched.signal.raise();
        }
    }

    /// Has the bulk re-read look at everything that is watched as soon as it may: hints were lost,
    /// or there were too many to name. It wakes only those for whom something changed.
    fn look_soon(&self) {
        self.look.notify_one();
    }

    fn registry(&self) -> MutexGuard<'_, HashMap<Key, Waiting>> {
        // Nothing that panics runs under the lock; a poisoned one is as good as any.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads everything that somebody waits for once per `period`, and when hints ask for it, and wakes
/// those whose row changed since the look before. A failed read is repeated at the next period.
/// Ends with `shutdown`.
pub async fn reread(store: Store, wake: Wake, period: Duration, shutdown: CancellationToken) {
    let mut seen = Seen::default();
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut earliest = Instant::now();
    loop {
        let asked = async {
            wake.look.notified().await;
            tokio::time::sleep_until(earliest).await;
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
            () = asked => {}
        }
        let looked = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            looked = look(&store, &wake, &mut seen) => looked,
        };
        if let Err(error) = looked {
            telemetry::reread_failed();
            tracing::debug!(%error, "the bulk re-read failed; the next period tries again");
        }
        earliest = Instant::now() + LOOKS_APART;
    }
}

/// The glimpses of the look before, by key.
#[derive(Debug, Default)]
struct Seen {
    operations: HashMap<OperationKey, Option<OperationGlimpse>>,
    inboxes: HashMap<InboxKey, Option<InboxGlimpse>>,
    documents: HashMap<TargetKey, Option<DocumentGlimpse>>,
}

/// One look at everything that is watched.
async fn look(store: &Store, wake: &Wake, seen: &mut Seen) -> Result<(), ReadError> {
    let watched = wake.watched();
    telemetry::watched(watched.len());
    let Watched { operations, inboxes, documents } = watched;
    forget_unwatched(&mut seen.operations, &operations);
    forget_unwatched(&mut seen.inboxes, &inboxes);
    forget_unwatched(&mut seen.documents, &documents);
    for keys in operations.chunks(REREAD_KEYS_MAX) {
        let (glimpses, _) = store.glimpse(keys, &[]).await?;
        let changed = changed_since(&mut seen.operations, keys, glimpses);
        changed.into_iter().for_each(|key| wake.raise(&Key::Operation(key)));
    }
    for keys in inboxes.chunks(REREAD_KEYS_MAX) {
        let (_, glimpses) = store.glimpse(&[], keys).await?;
        let changed = changed_since(&mut seen.inboxes, keys, glimpses);
        changed.into_iter().for_each(|key| wake.raise(&Key::Inbox(key)));
    }
    for keys in documents.chunks(REREAD_KEYS_MAX) {
        let glimpses = store.glimpse_documents(keys).await?;
        let changed = changed_since(&mut seen.documents, keys, glimpses);
        changed.into_iter().for_each(|key| wake.raise(&Key::Document(key)));
    }
    Ok(())
}

/// Drops what nobody waits for any more.
fn forget_unwatched<K: Eq + Hash, G>(seen: &mut HashMap<K, G>, watched: &[K]) {
    if seen.is_empty() {
        return;
    }
    let watched: std::collections::HashSet<&K> = watched.iter().collect();
    seen.retain(|key, _| watched.contains(key));
}

/// The keys whose glimpse differs from the one before. The first look at a key counts as a change:
/// its waiter may have read before a change whose hint was lost, and the look only after it.
fn changed_since<K: Eq + Hash + Clone, G: PartialEq>(
    seen: &mut HashMap<K, G>,
    keys: &[K],
    glimpses: Vec<G>,
) -> Vec<K> {
    let mut changed = Vec::new();
    for (key, glimpse) in keys.iter().zip(glimpses) {
        let same = seen.get(key).is_some_and(|before| *before == glimpse);
        if !same {
            seen.insert(key.clone(), glimpse);
            changed.push(key.clone());
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::ids::{Account, InboxName};

    pub(super) fn inbox(name: &str) -> InboxKey {
        InboxKey {
            account: Account::parse("local").expect("valid"),
            inbox: InboxName::parse(name).expect("valid"),
        }
    }

    #[test]
    fn a_change_between_two_calls_is_not_lost() {
        let wake = Wake::default();
        let watch = wake.watch_inbox(inbox("a"));
        assert!(watch.changed().now_or_never().is_none(), "nothing changed yet");
        wake.inbox_changed(&inbox("a"));
        wake.inbox_changed(&inbox("a"));
        assert!(watch.changed().now_or_never().is_some(), "the change came while nobody waited");
        assert!(watch.changed().now_or_never().is_none(), "changes fold into one wake");
        wake.inbox_changed(&inbox("b"));
        assert!(watch.changed().now_or_never().is_none(), "another inbox");
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let wake = Wake::default();
        let watch = wake.watch_inbox(inbox("a"));
        let other = wake.watch_inbox(inbox("a"));
        let waiting = async { tokio::join!(watch.changed(), other.changed()) };
        let changing = async {
            tokio::task::yield_now().await;
            wake.inbox_changed(&inbox("a"));
        };
        tokio::join!(waiting, changing);
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_nothing() {
        let wake = Wake::default();
        let watch = wake.watch_inbox(inbox("a"));
        {
            let mut waiting = Box::pin(watch.changed());
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            wake.inbox_changed(&inbox("a"));
        }
        assert!(watch.changed().now_or_never().is_some());
    }

    #[test]
    fn watches_of_one_key_share_and_the_last_one_clears_it() {
        let wake = Wake::default();
        let first = wake.watch_inbox(inbox("a"));
        let second = wake.watch_inbox(inbox("a"));
        assert_eq!(wake.watched().inboxes, vec![inbox("a")]);
        wake.inbox_changed(&inbox("a"));
        let third = wake.watch_inbox(inbox("a"));
        assert!(first.changed().now_or_never().is_some());
        assert!(second.changed().now_or_never().is_some());
        assert!(third.changed().now_or_never().is_none(), "it registered after the change");
        drop((first, second));
        assert_eq!(wake.watched().len(), 1);
        drop(third);
        assert!(wake.registry().is_empty());
        wake.inbox_changed(&inbox("a"));
        assert!(wake.registry().is_empty(), "a hint for nobody leaves nothing behind");
    }

    #[test]
    fn a_task_can_carry_the_reread() {
        fn task(_: impl Future<Output = ()> + Send + 'static) {}
        let _ = |store, wake, period, shutdown| task(reread(store, wake, period, shutdown));
    }

    #[test]
    fn the_first_look_and_every_difference_wake() {
        let mut seen = HashMap::new();
        let keys = ["a", "b"];
        assert_eq!(changed_since(&mut seen, &keys, vec![Some(1), None]), keys);
        assert_eq!(changed_since(&mut seen, &keys, vec![Some(1), None]), Vec::<&str>::new());
        assert_eq!(changed_since(&mut seen, &keys, vec![Some(1), Some(1)]), ["b"]);
        assert_eq!(changed_since(&mut seen, &keys, vec![None, Some(1)]), ["a"]);
        forget_unwatched(&mut seen, &["b"]);
        assert_eq!(seen.len(), 1);
        assert_eq!(changed_since(&mut seen, &keys, vec![None, Some(1)]), ["a"], "looked at anew");
    }
}
