//! What the watches share: how they wait, how they send, and why they end.
//!
//! What must stay true: every wait ends by drain, age, stall or disconnect, and each of them is told
//! to a caller that is still there; a place for the last word is kept from the beginning, so that a
//! slow watcher learns why it ended; a store that is out of reach ends no open watch.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, OwnedPermit, Permit},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{Api, status::Refused};
use crate::{
    domain::{
        ids::{Span, Timestamp},
        refusal::Refusal,
    },
    stream::pace::{self, StoreClock},
    telemetry,
    wake::Watch,
};

/// Before a failed read is tried again, give or take a half: a failover takes a few of them.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// Why a watch is over.
#[derive(Debug)]
pub(super) enum End {
    /// Everything was told.
    Complete,
    /// Nobody reads any more.
    Gone,
    /// The server ends.
    Shutdown,
    /// It reached its maximum age.
    Aged,
    /// A frame waited too long.
    Stalled,
    /// The rules say so.
    Refused(Box<Refused>),
}

impl End {
    /// The word in metrics.
    fn cause(&self) -> &'static str {
        match self {
            End::Complete => "COMPLETE",
            End::Gone => "GONE",
            End::Shutdown => "SHUTDOWN",
            End::Aged => "AGED",
            End::Stalled => "STALLED",
            End::Refused(refused) => refused.refusal.reason(),
        }
    }
}

/// What a wait ended with.
#[derive(Debug)]
pub(super) enum Event {
    /// It is time to read again.
    Changed,
    /// It is time for a sign of life.
    Heartbeat,
}

/// The timers and the channel of one watch; `T` is its frame.
pub(super) struct Pacing<T> {
    api: Api,
    watch: Watch,
    sender: mpsc::Sender<Result<T, Status>>,
    clock: StoreClock,
    heartbeat: Instant,
    age: Instant,
    /// While the store is out of reach: when to read again.
    retry: Option<Instant>,
    /// When to read again without a hint.
    look: Option<Instant>,
}

/// The place that is kept for the last item.
pub(super) type LastWord<T> = OwnedPermit<Result<T, Status>>;

/// A new watch: its pacing, the place for its last word, and what its caller reads.
type Opened<T> = (Pacing<T>, LastWord<T>, ReceiverStream<Result<T, Status>>);

impl<T> Pacing<T> {
    /// A watch with so many frames that may wait for the watcher; `now` was just read.
    ///
    /// # Errors
    /// None in practice: the channel is new.
    pub(super) fn open(
        api: &Api,
        watch: Watch,
        frames_max: usize,
        now: Timestamp,
    ) -> Result<Opened<T>, Refusal> {
        let (sender, receiver) = mpsc::channel(frames_max + 1);
        let last_word = sender.clone().try_reserve_owned().map_err(|_| Refusal::Internal)?;
        let (began, settings) = (Instant::now(), &api.0.streams);
        let age = pace::spread(settings.age_max.to_std(), api.engine().seams().random());
        let pacing = Pacing {
            watch,
            sender,
            clock: StoreClock::read(now),
            heartbeat: began + settings.heartbeat.to_std(),
            age: began + age,
            retry: None,
            look: None,
            api: api.clone(),
        };
        telemetry::stream_began();
        Ok((pacing, last_word, ReceiverStream::new(receiver)))
    }

    /// The end: counted, and told in the words of the watch.
    pub(super) fn end(self, end: &End, last_word: LastWord<T>, word: Option<Result<T, Status>>) {
        telemetry::stream_ended(end.cause());
        if let Some(word) = word {
            last_word.send(word);
        }
    }

    /// Waits for a hint, a timer or the end.
    pub(super) async fn wait(&mut self) -> Result<Event, End> {
        tokio::select! {
            biased;
            () = self.api.drain().cancelled() => Err(End::Shutdown),
            () = self.sender.closed() => Err(End::Gone),
            () = tokio::time::sleep_until(self.age) => Err(End::Aged),
            () = tokio::time::sleep_until(self.heartbeat) => Ok(Event::Heartbeat),
            () = at(self.retry) => Ok(Event::Changed),
            () = self.watch.changed(), if self.retry.is_none() => Ok(Event::Changed),
            () = at(self.look), if self.retry.is_none() => Ok(Event::Changed),
        }
    }

    /// A place for a frame; a watcher that takes none for too long is given up.
    pub(super) async fn place(&self) -> Result<Permit<'_, Result<T, Status>>, End> {
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

    /// Sends a sign of life, with the store's clock.
    pub(super) async fn show_life(
        &mut self,
        frame: impl FnOnce(Timestamp) -> T,
    ) -> Result<(), End> {
        let now = self.clock.now(self.api.engine()).await;
        self.place().await?.send(Ok(frame(now)));
        self.heartbeat = Instant::now() + self.api.0.streams.heartbeat.to_std();
        Ok(())
    }

    /// Reads again after this period, hint or not; absent: only at hints.
    pub(super) fn look_each(&mut self, period: Option<Duration>) {
        self.look = period.map(|period| Instant::now() + period);
    }

    /// After a read that did not fail.
    pub(super) fn recover(&mut self) {
        self.retry = None;
    }

    /// After a read that failed: it is tried again if that may help.
    pub(super) fn rest(&mut self, refused: Refused) -> Result<(), End> {
        let Refusal::StoreUnavailable { .. } = refused.refusal else {
            return Err(End::Refused(Box::new(refused)));
        };
        let share = u32::try_from(self.api.engine().seams().random() % 1_001).unwrap_or(0);
        self.retry = Some(Instant::now() + READ_PAUSE / 2 + READ_PAUSE * share / 1_000);
        Ok(())
    }

    /// When a caller whose watch was ended comes back.
    pub(super) fn come_back(&self) -> Span {
        pace::retry(self.api.engine().seams().random())
    }
}

/// Ends at a time; never without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
