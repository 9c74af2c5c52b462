//! Once per period, everything somebody waits for is re-read in bulk: a lost hint costs at most a
//! period, never data (architecture section 1).

use std::{collections::BTreeMap, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    domain::{delivery::InboxKey, operation::OperationKey},
    engine::Engine,
    store::query::{InboxGlimpse, OperationGlimpse},
};

/// Keys of one read: bounded, so that one read never grows with the number of waiters.
const KEYS_MAX: usize = 1_000;

#[derive(Default)]
struct Seen {
    operations: BTreeMap<OperationKey, Option<OperationGlimpse>>,
    inboxes: BTreeMap<InboxKey, Option<InboxGlimpse>>,
}

/// Re-reads every `period` until `stop`.
pub(super) async fn run(engine: Engine, period: Duration, stop: CancellationToken) {
    let mut seen = Seen::default();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.seams().sleep(period) => {}
        }
        seen = once(&engine, seen).await;
    }
}

/// A key that is seen for the first time is woken too: what changed between its waiter's read and
/// this one would be missed otherwise.
async fn once(engine: &Engine, before: Seen) -> Seen {
    let (operations, inboxes) = engine.wake().watched();
    let mut seen = Seen::default();
    for keys in operations.chunks(KEYS_MAX) {
        // A store that does not answer is told by the probes; waiters stay where they are.
        let Ok((found, _)) = engine.store().glimpse(keys, &[]).await else { return before };
        for (key, glimpse) in keys.iter().zip(found) {
            if before.operations.get(key) != Some(&glimpse) {
                engine.wake().operation_changed(key);
            }
            seen.operations.insert(key.clone(), glimpse);
        }
    }
    for keys in inboxes.chunks(KEYS_MAX) {
        let Ok((_, found)) = engine.store().glimpse(&[], keys).await else { return before };
        for (key, glimpse) in keys.iter().zip(found) {
            if before.inboxes.get(key) != Some(&glimpse) {
                engine.wake().inbox_changed(key);
            }
            seen.inboxes.insert(key.clone(), glimpse);
        }
    }
    seen
}
