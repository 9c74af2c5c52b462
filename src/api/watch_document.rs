//! WatchDocument: a document now, then each change of it.
//!
//! What must stay true: a watcher registers before it reads, and a hint only makes it read again
//! (T13); a frame is read only when it has a place, so that a slow watcher costs one content and is
//! told the newest version, with what came between folded; every wait ends by drain, age, stall or
//! disconnect, and each of them says so. A store that is out of reach ends no open watch.

use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    Api,
    convert::{operations, times},
    status::{Refused, read_failed},
    watching::{End, Event, LastWord, Pacing},
};
use crate::{
    domain::{
        document::Document,
        ids::{Account, Invalid, Target, Timestamp},
        lock::TargetKey,
        refusal::{Asked, Refusal},
    },
    proto::{
        self, WatchDocumentResponse as Response,
        watch_document_response::{Change, Draining, Frame, Heartbeat},
    },
    stream::pace,
};

/// Frames that wait for the watcher: each may carry a whole document, and the next one makes it
/// stale.
const FRAMES_MAX: usize = 1;

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
        let (pacing, last_word, frames) = Pacing::open(self, watch, FRAMES_MAX, now)?;
        let watching = Watching { api: self.clone(), key, content, told, pacing };
        self.engine().seams().spawn(watching.run(first, last_word));
        Ok(frames)
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
    /// What the last frame told.
    told: Version,
    pacing: Pacing<Response>,
}

impl Watching {
    /// Runs until the end, and says why.
    async fn run(mut self, first: Change, last_word: LastWord<Response>) {
        let end = match self.follow(first).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        let word = self.last_word(&end);
        self.pacing.end(&end, last_word, word);
    }

    async fn follow(&mut self, first: Change) -> Result<std::convert::Infallible, End> {
        self.pacing.place().await?.send(Ok(response(Frame::Change(first))));
        loop {
            match self.pacing.wait().await? {
                Event::Changed => self.look().await?,
                Event::Heartbeat => self.pacing.show_life(heartbeat).await?,
            }
        }
    }

    /// Reads again, and tells what differs.
    async fn look(&mut self) -> Result<(), End> {
        // The place comes first: nothing is read for a watcher that would not take it.
        let place = self.pacing.place().await?;
        let found = match self.api.read_document(&self.key, self.content).await {
            Ok(found) => found,
            Err(refusal) => {
                drop(place);
                return self.pacing.rest(refusal.into());
            }
        };
        let version = Version::of(found.as_ref());
        if version == self.told {
            drop(place);
        } else {
            let change = change(&self.key, found, self.told.revision);
            place.send(Ok(response(Frame::Change(change))));
        }
        self.told = version;
        self.pacing.recover();
        Ok(())
    }

    fn last_word(&self, end: &End) -> Option<Item> {
        let draining = |reason: &str| {
            Ok(response(Frame::Draining(Draining {
                reason: reason.to_owned(),
                retry_delay: Some(times::duration(self.pacing.come_back())),
            })))
        };
        let refused = |refused: Refused| Err(self.api.status(Asked::Stream, refused));
        match end {
            End::Complete | End::Gone => None,
            End::Shutdown => Some(draining(pace::SHUTTING_DOWN)),
            End::Aged => Some(draining(pace::AGED)),
            End::Stalled => Some(refused(Refusal::SlowConsumer.into())),
            End::Refused(cause) => Some(refused((**cause).clone())),
        }
    }
}

fn heartbeat(now: Timestamp) -> Response {
    response(Frame::Heartbeat(Heartbeat { store_time: Some(times::timestamp(now)) }))
}

fn response(frame: Frame) -> Response {
    Response { frame: Some(frame) }
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
