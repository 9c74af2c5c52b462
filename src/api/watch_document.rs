//! WatchDocument: a document now, then each change of it.
//!
//! What must stay true: a watcher registers before it reads, and a hint only makes it read again
//! (T13); a frame is read only when it has a place, so that a slow watcher costs one content and is
//! told the newest version, with what came between folded; every wait ends by drain, age, stall or
//! disconnect, and each of them says so. A store that is out of reach ends no open watch.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, OwnedPermit, Permit},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    Api,
    convert::{operations, times},
    status::{Refused, read_failed},
};
use crate::{
    domain::{
        document::Document,
        ids::{Account, Invalid, Target},
        lock::TargetKey,
        refusal::{Asked, Refusal},
    },
    proto::{
        self, WatchDocumentResponse as Response,
        watch_document_response::{Change, Draining, Frame, Heartbeat},
    },
    stream::pace::{self, StoreClock},
    telemetry,
    wake::Watch,
};

/// Frames that wait for the watcher: each may carry a whole document, and the next one makes it
/// stale.
const FRAMES_MAX: usize = 1;
/// Before a failed read is tried again, give or take a half: a failover takes a few of them.
const READ_PAUSE: Duration = Duration::from_secs(1);

type Item = Result<Response, Status>;

/// Whether frames carry the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    With,
    Without,
}

/// What a watcher compares: another one is worth a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Version {
    revision: i64,
    generation: i64,
    exists: bool,
}

impl Version {
    fn of(found: Option<&Document>) -> Self {
        found.map_or_else(Version::default, |document| Version {
            revision: document.revision,
            generation: document.generation,
            exists: document.exists,
        })
    }
}

/// Why a watch is over.
enum End {
    Gone,
    Shutdown,
    Aged,
    Stalled,
    Refused(Refusal),
}

impl End {
    /// The word in metrics.
    fn cause(&self) -> &'static str {
        match self {
            End::Gone => "GONE",
            End::Shutdown => "SHUTDOWN",
            End::Aged => "AGED",
            End::Stalled => "STALLED",
            End::Refused(refusal) => refusal.reason(),
        }
    }
}

/// What a wait ended with.
enum Event {
    Changed,
    Heartbeat,
}

impl Api {
    /// Opens a watch; it runs in a task of its own.
    pub(super) async fn watch_document_of(
        &self,
        account: &Account,
        request: proto::WatchDocumentRequest,
    ) -> Result<ReceiverStream<Item>, Refused> {
        if self.drain().is_cancelled() {
            let retry = pace::retry(self.engine().seams().random());
            return Err(Refusal::Draining { retry }.into());
        }
        let target = Target::parse("target", &request.target)?;
        let (revision, generation) = (request.known_revision, request.known_generation);
        for (field, number) in [("known_revision", revision), ("known_generation", generation)] {
            if number < 0 {
                return Err(Invalid::new(field, "must be 0 or more".to_owned()).into());
            }
        }
        let key = TargetKey { account: account.clone(), target };
        let content = if request.include_content { Content::With } else { Content::Without };
        let watch = self.engine().wake().watch_document(key.clone());
        let (_, now) = self.engine().store().account_and_now(account).await?;
        let (mut found, mut unchanged) = (None, false);
        if revision > 0 {
            found = self.read_document(&key, Content::Without).await?;
            let told = Version::of(found.as_ref());
            unchanged = (told.revision, told.generation) == (revision, generation);
        }
        if !unchanged {
            found = self.read_document(&key, content).await?;
        }
        let told = Version::of(found.as_ref());
        let change = change(&key, found, revision);
        let first = Change { snapshot: true, unchanged, ..change };
        let (sender, receiver) = mpsc::channel(FRAMES_MAX + 1);
        // One place is kept for the last item, so that a slow watcher still learns why it ended.
        let last_word = sender.clone().try_reserve_owned().map_err(|_| Refusal::Internal)?;
        let watching =
            Watching::new(self.clone(), key, content, watch, sender, told, StoreClock::read(now));
        self.engine().seams().spawn(watching.run(first, last_word));
        Ok(ReceiverStream::new(receiver))
    }

    async fn read_document(
        &self,
        key: &TargetKey,
        content: Content,
    ) -> Result<Option<Document>, Refusal> {
        let store = self.engine().store();
        let found = match content {
            Content::With => store.document(key).await,
            Content::Without => store.document_facts(key).await,
        };
        found.map_err(|error| read_failed(&error))
    }
}

/// A running watch.
struct Watching {
    api: Api,
    key: TargetKey,
    content: Content,
    watch: Watch,
    sender: mpsc::Sender<Item>,
    /// What the last frame told.
    told: Version,
    clock: StoreClock,
    heartbeat: Instant,
    age: Instant,
    /// While the store is out of reach: when to read again.
    retry: Option<Instant>,
}

impl Watching {
    fn new(
        api: Api,
        key: TargetKey,
        content: Content,
        watch: Watch,
        sender: mpsc::Sender<Item>,
        told: Version,
        clock: StoreClock,
    ) -> Self {
        let (now, settings) = (Instant::now(), &api.0.streams);
        let heartbeat = now + settings.heartbeat.to_std();
        let age = now + pace::spread(settings.age_max.to_std(), api.engine().seams().random());
        Watching { key, content, watch, sender, told, clock, heartbeat, age, retry: None, api }
    }

    /// Runs until the end, and says why.
    async fn run(mut self, first: Change, last_word: OwnedPermit<Item>) {
        telemetry::stream_began();
        let end = match self.follow(first).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        telemetry::stream_ended(end.cause());
        if let Some(word) = self.last_word(end) {
            last_word.send(word);
        }
    }

    async fn follow(&mut self, first: Change) -> Result<std::convert::Infallible, End> {
        self.place().await?.send(response(Frame::Change(first)));
        loop {
            match self.wait().await? {
                Event::Changed => self.look().await?,
                Event::Heartbeat => self.show_life().await?,
            }
        }
    }

    /// Waits for a hint, a timer or the end.
    async fn wait(&mut self) -> Result<Event, End> {
        tokio::select! {
            biased;
            () = self.api.drain().cancelled() => Err(End::Shutdown),
            () = self.sender.closed() => Err(End::Gone),
            () = tokio::time::sleep_until(self.age) => Err(End::Aged),
            () = tokio::time::sleep_until(self.heartbeat) => Ok(Event::Heartbeat),
            () = at(self.retry) => Ok(Event::Changed),
            () = self.watch.changed(), if self.retry.is_none() => Ok(Event::Changed),
        }
    }

    /// Reads again, and tells what differs.
    async fn look(&mut self) -> Result<(), End> {
        // The place comes first: nothing is read for a watcher that would not take it.
        let place = self.place().await?;
        let found = match self.api.read_document(&self.key, self.content).await {
            Ok(found) => found,
            Err(Refusal::StoreUnavailable { .. }) => {
                drop(place);
                let share = u32::try_from(self.api.engine().seams().random() % 1_001).unwrap_or(0);
                let pause = READ_PAUSE / 2 + READ_PAUSE * share / 1_000;
                self.retry = Some(Instant::now() + pause);
                return Ok(());
            }
            Err(refusal) => return Err(End::Refused(refusal)),
        };
        let version = Version::of(found.as_ref());
        if version != self.told {
            place.send(response(Frame::Change(change(&self.key, found, self.told.revision))));
        } else {
            drop(place);
        }
        (self.told, self.retry) = (version, None);
        Ok(())
    }

    async fn show_life(&mut self) -> Result<(), End> {
        let now = self.clock.now(self.api.engine()).await;
        let place = self.place().await?;
        place.send(response(Frame::Heartbeat(Heartbeat {
            store_time: Some(times::timestamp(now)),
        })));
        self.heartbeat = Instant::now() + self.api.0.streams.heartbeat.to_std();
        Ok(())
    }

    /// A place for a frame; a watcher that takes none for too long is given up.
    async fn place(&self) -> Result<Permit<'_, Item>, End> {
        let stall = self.api.0.streams.write_stall_max.to_std();
        tokio::select! {
            biased;
            place = tokio::time::timeout(stall, self.sender.reserve()) => match place {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(_)) => Err(End::Gone),
                Err(_) => Err(End::Stalled),
            },
            () = self.api.drain().cancelled() => Err(End::Shutdown),
        }
    }

    fn last_word(&self, end: End) -> Option<Item> {
        let draining = |reason: &str| {
            let retry = pace::retry(self.api.engine().seams().random());
            response(Frame::Draining(Draining {
                reason: reason.to_owned(),
                retry_delay: Some(times::duration(retry)),
            }))
        };
        let refused = |refusal: Refusal| Err(self.api.status(Asked::Stream, refusal.into()));
        match end {
            End::Gone => None,
            End::Shutdown => Some(draining(pace::SHUTTING_DOWN)),
            End::Aged => Some(draining(pace::AGED)),
            End::Stalled => Some(refused(Refusal::SlowConsumer)),
            End::Refused(refusal) => Some(refused(refusal)),
        }
    }
}

/// Ends at a time; never without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what the channel of the stream takes")]
fn response(frame: Frame) -> Item {
    Ok(Response { frame: Some(frame) })
}

/// A look at the document; the flags of a snapshot are its caller's to set.
fn change(key: &TargetKey, found: Option<Document>, previous_revision: i64) -> Change {
    let exists = found.as_ref().is_some_and(|document| document.exists);
    let mut document = match &found {
        Some(document) => operations::document(document),
        None => proto::Document { target: key.target.as_str().to_owned(), ..<_>::default() },
    };
    if !exists {
        // The marker's hash and content say nothing.
        (document.content, document.content_hash) = (None, Vec::new());
    }
    Change {
        document: Some(document),
        exists,
        snapshot: false,
        unchanged: false,
        previous_revision,
    }
}
