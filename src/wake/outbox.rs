//! What this replica changed and the other ones have not been told of yet.
//!
//! What must stay true: memory is bounded, whatever happens to the one who sends; nothing waits for
//! room. Beyond the bound the names are dropped and one mark stands for all of them.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::Key;

/// Names that are kept: somewhat more than one hint can carry, with short names (`payload.rs`). Who
/// changes more than this between two hints makes every reader of the others look anyway.
const KEYS_MAX: usize = 512;

/// Where changes wait for the next hint; each one once.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    kept: Mutex<Kept>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    /// Whether anybody sends: nothing is kept otherwise.
    open: bool,
    changed: Changed,
}

/// What changed since the hint before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// These.
    Keys(BTreeSet<Key>),
    /// More than can be named.
    Everything,
}

impl Default for Changed {
    fn default() -> Self {
        Changed::Keys(BTreeSet::new())
    }
}

impl Changed {
    fn is_empty(&self) -> bool {
        matches!(self, Changed::Keys(keys) if keys.is_empty())
    }
}

impl Outbox {
    /// From now on changes are kept.
    pub(super) fn open(&self) {
        self.kept().open = true;
    }

    /// Nobody sends any more.
    pub(super) fn close(&self) {
        *self.kept() = Kept::default();
    }

    /// Keeps a change, if anybody sends.
    pub(super) fn put(&self, key: Key) {
        let mut kept = self.kept();
        if !kept.open {
            return;
        }
        let was_empty = kept.changed.is_empty();
        if let Changed::Keys(keys) = &mut kept.changed {
            keys.insert(key);
            if keys.len() > KEYS_MAX {
                kept.changed = Changed::Everything;
            }
        }
        drop(kept);
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Takes what is kept; waits until there is something. One caller at a time. Dropping the
    /// future before its end loses nothing.
    pub(super) async fn take(&self) -> Changed {
        loop {
            let taken = std::mem::take(&mut self.kept().changed);
            if !taken.is_empty() {
                return taken;
            }
            self.filled.notified().await;
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing that panics runs under the lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::{super::tests::inbox, *};

    fn key(number: usize) -> Key {
        Key::Inbox(inbox(&format!("inbox-{number}")))
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let outbox = Outbox::default();
        outbox.put(key(1));
        outbox.open();
        assert!(outbox.take().now_or_never().is_none());
        outbox.put(key(1));
        outbox.close();
        outbox.put(key(2));
        assert!(outbox.take().now_or_never().is_none());
    }

    #[test]
    fn changes_fold_and_are_taken_once() {
        let outbox = Outbox::default();
        outbox.open();
        for number in [1, 2, 1, 2, 1] {
            outbox.put(key(number));
        }
        let taken = outbox.take().now_or_never();
        assert_eq!(taken, Some(Changed::Keys([key(1), key(2)].into())));
        assert!(outbox.take().now_or_never().is_none(), "taken already");
        outbox.put(key(1));
        assert_eq!(outbox.take().now_or_never(), Some(Changed::Keys([key(1)].into())));
    }

    #[test]
    fn too_many_names_become_one_mark() {
        let outbox = Outbox::default();
        outbox.open();
        (0..KEYS_MAX).for_each(|number| outbox.put(key(number)));
        let Some(Changed::Keys(keys)) = outbox.take().now_or_never() else { panic!("names") };
        assert_eq!(keys.len(), KEYS_MAX);
        (0..KEYS_MAX * 3).for_each(|number| outbox.put(key(number)));
        assert_eq!(outbox.take().now_or_never(), Some(Changed::Everything));
        outbox.put(key(1));
        assert_eq!(outbox.take().now_or_never(), Some(Changed::Keys([key(1)].into())));
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_the_first_change() {
        let outbox = Outbox::default();
        outbox.open();
        let changing = async {
            tokio::task::yield_now().await;
            outbox.put(key(1));
            outbox.put(key(2));
        };
        let (taken, ()) = tokio::join!(outbox.take(), changing);
        assert_eq!(taken, Changed::Keys([key(1), key(2)].into()));
    }
}
