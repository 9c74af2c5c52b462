//! WatchOperation: an operation now, then each change of it, to its final state.
//!
//! What must stay true: a watcher registers before it reads, and a hint only makes it read again
//! (T13); a stream that ends OK has told the final state: every other end is an error with its
//! reason; a store that is out of reach ends no open watch.

use std::time::Duration;

use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    Api,
    auth::{Permission, Principal},
    convert::{Identity, times},
    shown::Shown,
    status::{Refused, read_failed},
    watching::{End, Event, LastWord, Pacing},
};
use crate::{
    domain::{
        ids::{OperationId, Timestamp},
        operation::{OperationKey, OperationState},
        refusal::{Asked, Refusal},
    },
    proto::{WatchOperationResponse as Response, watch_operation_response::Heartbeat},
};

/// Frames that a slow watcher may lag behind: the next one tells everything anyway.
const FRAMES_BUFFERED: usize = 4;

type Item = Result<Response, Status>;

/// Between two looks at the lock that an operation waits for. Its holder changes without the
/// operation, whose watchers no hint reaches; as often as other replicas' changes are looked for.
const HOLDER_PERIOD: Duration = Duration::from_secs(1);

/// What a watcher compares: another one is worth a frame. What becomes of a delivery changes no
/// operation and has a stream of its own.
#[derive(PartialEq, Eq)]
struct Glimpse {
    state: OperationState,
    outcome_version: i32,
    holder: Option<OperationId>,
}

impl Glimpse {
    fn of(shown: &Shown) -> Self {
        let holder = shown.waiting_for.as_ref().and_then(|lock| lock.holder.as_ref());
        Glimpse {
            state: shown.operation.state,
            outcome_version: shown.operation.outcome_version,
            holder: holder.map(|holder| holder.operation_id.clone()),
        }
    }
}

impl Api {
    /// The operation now, then each change of it.
    pub(super) async fn watch(
        &self,
        caller: &Principal,
        identity: Identity,
    ) -> Result<ReceiverStream<Item>, Refused> {
        let key = identity.key(&caller.account);
        caller.may(Permission::Read).map_err(Refused::about(&key.id))?;
        let watch = self.engine().wake().watch_operation(key.clone());
        let Some(shown) = self.look_up(&key).await? else {
            return Err(self.absent(&identity, &caller.account).await);
        };
        let now = self.engine().store().now().await;
        let now = now.map_err(|error| Refused::about(&key.id)(read_failed(&error)))?;
        let opened = Pacing::open(self, watch, FRAMES_BUFFERED, now);
        let (pacing, last_word, frames) = opened.map_err(Refused::about(&key.id))?;
        let watching = Watching { api: self.clone(), identity, key, pacing };
        self.engine().seams().spawn(watching.run(shown, last_word));
        Ok(frames)
    }
}

/// A running watch.
struct Watching {
    api: Api,
    identity: Identity,
    key: OperationKey,
    pacing: Pacing<Response>,
}

impl Watching {
    /// Runs until the end, and says why.
    async fn run(mut self, first: Shown, last_word: LastWord<Response>) {
        let end = self.follow(first).await.err().unwrap_or(End::Complete);
        let word = self.last_word(&end);
        self.pacing.end(&end, last_word, word);
    }

    /// Sends until the operation is final.
    async fn follow(&mut self, first: Shown) -> Result<(), End> {
        let (mut seen, mut last) = (Glimpse::of(&first), first.operation.state);
        self.pacing.look_each(first.waiting_for.is_some().then_some(HOLDER_PERIOD));
        self.pacing.place().await?.send(Ok(frame(&first, Snapshot::First)));
        while !last.is_final() {
            match self.pacing.wait().await? {
                Event::Heartbeat => self.pacing.show_life(heartbeat).await?,
                Event::Changed => {
                    let Some(shown) = self.look(&seen).await? else { continue };
                    (seen, last) = (Glimpse::of(&shown), shown.operation.state);
                }
            }
        }
        Ok(())
    }

    /// Reads again, and tells what differs from what was seen.
    async fn look(&mut self, seen: &Glimpse) -> Result<Option<Shown>, End> {
        // The place comes first: nothing is read for a watcher that would not take it.
        let place = self.pacing.place().await?;
        let refused = match self.api.look_up(&self.key).await {
            Ok(Some(shown)) => {
                let differs = Glimpse::of(&shown) != *seen;
                let waits_for_lock = shown.waiting_for.is_some();
                if differs {
                    place.send(Ok(frame(&shown, Snapshot::Change)));
                } else {
                    drop(place);
                }
                self.pacing.recover();
                self.pacing.look_each(waits_for_lock.then_some(HOLDER_PERIOD));
                return Ok(differs.then_some(shown));
            }
            Ok(None) => self.api.absent(&self.identity, &self.key.account).await,
            Err(refused) => refused,
        };
        drop(place);
        self.pacing.rest(refused).map(|()| None)
    }

    fn last_word(&self, end: &End) -> Option<Item> {
        let about = |refusal| Refused::about(&self.key.id)(refusal);
        let refused = match end {
            End::Complete | End::Gone => return None,
            End::Shutdown => about(Refusal::Draining { retry: self.pacing.come_back() }),
            End::Aged => about(Refusal::StreamAged { retry: self.pacing.come_back() }),
            End::Stalled => about(Refusal::SlowConsumer),
            End::Refused(refused) => (**refused).clone(),
        };
        Some(Err(self.api.status(Asked::Stream, refused)))
    }
}

fn heartbeat(now: Timestamp) -> Response {
    let heartbeat = Heartbeat { store_time: Some(times::timestamp(now)) };
    Response { heartbeat: Some(heartbeat), ..Response::default() }
}

/// Whether a frame is the first of its stream.
#[derive(PartialEq, Eq)]
enum Snapshot {
    First,
    Change,
}

fn frame(shown: &Shown, snapshot: Snapshot) -> Response {
    Response {
        operation: Some(shown.operation()),
        deliveries: shown.deliveries(),
        recovery: Some(shown.recovery(None)),
        snapshot: snapshot == Snapshot::First,
        heartbeat: None,
    }
}
