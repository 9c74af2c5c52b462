//! The count of replays and attaches: kept in memory, folded into the rows once a second.
//!
//! What must stay true: a replay costs no write of its own, and the memory for it is bounded. The
//! count is for people: a crash may lose the last second of it.
//!
//! Deliberately not here: what the count means, and how it is stored.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::StreamExt;

use crate::{
    domain::{command::Command, operation::OperationKey, refusal::Refusal},
    engine::Shared,
    telemetry,
};

/// Ids that wait for their count at most. With a fold a second this is far beyond what the lanes
/// could write; whoever replays more than that is not counted.
pub(super) const REPLAYS_MAX: usize = 10_000;
/// Folds under way at once: a part of a batch, so that others find room beside them.
const FOLDS_AT_ONCE: usize = 64;

/// How often each id was replayed since the last fold.
#[derive(Debug, Default)]
pub(super) struct Replays(Mutex<HashMap<OperationKey, i64>>);

impl Replays {
    /// Counts `times` replays.
    pub(super) fn count(&self, key: &OperationKey, times: i64) {
        let mut counts = self.lock();
        let full = counts.len() >= REPLAYS_MAX;
        match counts.entry(key.clone()) {
            Entry::Occupied(mut count) => *count.get_mut() += times,
            Entry::Vacant(_) if full => telemetry::replay_dropped(),
            Entry::Vacant(place) => {
                place.insert(times);
            }
        }
    }

    fn take(&self) -> HashMap<OperationKey, i64> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OperationKey, i64>> {
        // Each change is a single step, so that a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Folds the counts each second until the engine drains, and a last time then.
pub(super) async fn fold_until_drained(shared: Arc<Shared>) {
    let mut draining = false;
    while !draining {
        let pause = tokio::time::timeout(shared.waits.replay_fold, shared.draining.cancelled());
        draining = pause.await.is_ok();
        fold(&shared).await;
    }
}

async fn fold(shared: &Shared) {
    let counts = shared.replays.take();
    let folds = counts.into_iter().map(|(key, count)| async move {
        let command = Command::FoldReplays { key: key.clone(), count };
        let answer = match shared.enqueue(command) {
            Ok(answer) => answer.await.unwrap_or(Err(Refusal::CommitUnknown)),
            Err(refusal) => Err(refusal),
        };
        // The next second may be better. A fold whose fate is unknown is not repeated: it would
        // count twice.
        if let Err(Refusal::StoreUnavailable { .. } | Refusal::RateLimited { .. }) = answer {
            shared.replays.count(&key, count);
        }
    });
    futures_util::stream::iter(folds).buffer_unordered(FOLDS_AT_ONCE).for_each(async |()| {}).await;
}
