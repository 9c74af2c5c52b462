//! The results of an inbox, each handed to a handler of the application.
//!
//! What must stay true: a result is handed over once per life of the process, and again only when
//! its handler failed; that it was handled is kept before its ack leaves; an ack is repeated until
//! it is answered; what is handled slowly gets more time; handlers run side by side up to a bound.
//! Deliberately not here: connections and positions (see [`super::inbox`]).

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::pending, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{
    connect::Client,
    error::Failure,
    inbox::{Extend, InboxReader, ReaderError, ReaderOptions},
    journal::{EntryState, Journal, JournalError},
    pauses::Growth,
    reader_state::{News, ReaderState, ResultKey, SeenAgain},
    send::state_of,
};
use crate::proto::{
    DeliveredResult, Delivery, Gap, Opened, Operation, Receipt, WithdrawnDelivery, operation::State,
};

/// How many handlers run at once unless chosen: results are shown in the order of their numbers.
const HANDLERS: usize = 1;
/// How long the last acks may take when a stream ends; those left are sent by the next one.
const LAST_ACKS_LIMIT: Duration = Duration::from_secs(5);
/// Resynchronising twice within this time means that it does not help: the second one waits.
const RESYNCHRONISE_INTERVAL: Duration = Duration::from_secs(10);

/// Whether a result may have been seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It is sent for the first time.
    New,
    /// It was sent before: by an earlier life of this program that did not get to keep that it was
    /// handled, to another consumer, or to a handler that failed.
    Redelivered,
}

/// A result for the application.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Whether it may have been seen before.
    pub freshness: Freshness,
    /// Its number, attempt and deadlines.
    pub delivery: Delivery,
    /// The operation with its receipt.
    pub operation: Operation,
}

impl Received {
    fn of(result: DeliveredResult) -> Self {
        let delivery = result.delivery.unwrap_or_default();
        let again = result.redelivered || delivery.attempt > 1;
        Received {
            freshness: if again { Freshness::Redelivered } else { Freshness::New },
            delivery,
            operation: result.operation.unwrap_or_default(),
        }
    }

    /// The operation's state; one that this library does not know counts as UNKNOWN.
    pub fn state(&self) -> State {
        state_of(&self.operation)
    }

    /// The receipt; empty where the service sent none.
    pub fn receipt(&self) -> Receipt {
        self.operation.receipt.clone().unwrap_or_default()
    }
}

/// What happens beside the results.
#[derive(Debug)]
pub enum Notice {
    /// A stream is open.
    Opened(Box<Opened>),
    /// Everything that was there at the opening has come.
    CaughtUp,
    /// A result that was handled before came again; it is acked, and shown to nobody.
    AlreadySeen(SeenAgain),
    /// Numbers that will not come; their results are readable through a look-up.
    Gap(Gap),
    /// A result that ended elsewhere. A handler that has it goes on, and no other one gets it
    /// meanwhile.
    Withdrawn(WithdrawnDelivery),
    /// The position was not valid any more: everything unacked comes again, and what was handled is
    /// recognised. After [`ReaderError::StoreEpochChanged`], look up what is unresolved.
    Resynchronising(ReaderError),
    /// The stream ended and is opened again from the last position.
    Reconnecting(Option<Box<Failure>>),
    /// A handler failed; its result comes again after its ack deadline.
    HandlerFailed {
        /// The result's number.
        sequence: i64,
        /// Its operation.
        operation_id: String,
        /// What the handler said.
        text: String,
    },
    /// An ack was refused. It is tried again.
    AckRefused(Box<Failure>),
    /// The server gives no more time for what is being handled: slow results come again.
    ExtensionRefused(Box<Failure>),
    /// What was handled could not be kept; after a restart it may be shown again.
    StateNotKept(JournalError),
}

/// Why a stream ended for good. What was handled is kept, and nothing is lost by starting another.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The journal does not tell where to start.
    #[error("the journal does not tell how far the inbox was read")]
    Journal(#[from] JournalError),
    /// The server ended it, and waiting changes nothing.
    #[error(transparent)]
    Reader(#[from] ReaderError),
}

/// The results of one inbox, with the choices around them.
pub struct Results {
    client: Client,
    inbox: String,
    consumer_id: Option<String>,
    handlers_max: usize,
    options: ReaderOptions,
    on_notice: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}

impl Client {
    /// The results of this inbox.
    pub fn inbox(&self, name: impl Into<String>) -> Results {
        Results {
            client: self.clone(),
            inbox: name.into(),
            consumer_id: None,
            handlers_max: HANDLERS,
            options: ReaderOptions { extend: Extend::WhileHeld, ..ReaderOptions::standard() },
            on_notice: Arc::new(drop),
        }
    }
}

impl Results {
    /// Who reads: one id per installation of the program, the same after a restart. Its position
    /// and what it handled are kept in the journal; without it the server chooses one for each
    /// stream and nothing is kept.
    pub fn consumer(self, id: impl Into<String>) -> Self {
        Results { consumer_id: Some(id.into()), ..self }
    }

    /// How many handlers run at once; at least 1, and 1 unless chosen. They share one task: a
    /// handler that computes for long holds the others back, but no ack and no extension.
    pub fn handlers_max(self, handlers_max: usize) -> Self {
        Results { handlers_max: handlers_max.max(1), ..self }
    }

    /// How many unacked results the stream may hold; 100 unless chosen, bounded by the server.
    pub fn window(mut self, window: i32) -> Self {
        self.options.window = window;
        self
    }

    /// How the pauses before a stream is opened again grow.
    pub fn reconnect(mut self, growth: Growth) -> Self {
        self.options.reconnect = growth;
        self
    }

    /// Is told what happens beside the results. It must not block.
    pub fn on_notice(self, on_notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Results { on_notice: Arc::new(on_notice), ..self }
    }

    /// Hands each result to the handler, over lost connections and server restarts, until waiting
    /// changes nothing. A handler's Ok means that the result is used: that is kept, then acked.
    /// When this is dropped, results whose handlers had not ended come again.
    ///
    /// # Errors
    /// [`StreamError`], always: this ends in no other way.
    pub async fn stream<H, F, E>(self, handler: H) -> Result<(), StreamError>
    where
        H: Fn(Received) -> F,
        F: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        self.stream_until(pending(), handler).await
    }

    /// The same until `end`; then the running handlers end, their results are acked (for up to
    /// 5 s; those left are acked after the next start), and Ok is returned.
    ///
    /// # Errors
    /// [`StreamError`] when the server or the journal ends it first.
    pub async fn stream_until<H, F, E>(
        self,
        end: impl Future<Output = ()>,
        handler: H,
    ) -> Result<(), StreamError>
    where
        H: Fn(Received) -> F,
        F: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let state = self.saved_state().await?;
        let mut reader = InboxReader::start(self.client.clone(), state, self.options);
        let mut resynchronised = Resynchronised::default();
        let mut running = FuturesUnordered::new();
        let mut end = pin!(end);
        let ended = loop {
            let room = match running.len() < self.handlers_max {
                true => Room::ForResults,
                false => Room::ForNoticesOnly,
            };
            tokio::select! {
                biased;
                () = &mut end => break Ok(()),
                Some(first) = running.next(), if !running.is_empty() => {
                    self.ended(&reader, first, &mut running).await;
                }
                news = next_news(&mut reader, room) => match news {
                    Ok(News::Result(result)) => running.push(run_handler(&handler, *result)),
                    Ok(other) => self.tell(other),
                    Err(error) => match again(&reader, &error, &mut resynchronised) {
                        Some(pause) => {
                            (self.on_notice)(Notice::Resynchronising(error));
                            reader.resynchronise(pause);
                        }
                        None => break Err(error),
                    },
                },
            }
        };
        while let Some(first) = running.next().await {
            self.ended(&reader, first, &mut running).await;
        }
        reader.flush(LAST_ACKS_LIMIT).await;
        let state = reader.close().await;
        self.save(state, Vec::new()).await;
        ended.map_err(StreamError::from)
    }

    /// Where this consumer stopped. An ack that an earlier life still owes is in it.
    async fn saved_state(&self) -> Result<ReaderState, JournalError> {
        let Some(consumer_id) = self.consumer_id.clone() else {
            return Ok(ReaderState::new(&self.inbox, ""));
        };
        let (inbox, consumer) = (self.inbox.clone(), consumer_id.clone());
        let read = move |journal: &dyn Journal| journal.reader(&inbox, &consumer);
        let saved = self.client.with_journal(read).await?;
        Ok(saved.unwrap_or_else(|| ReaderState::new(&self.inbox, consumer_id)))
    }

    /// Handlers have ended: what they used is kept, then acked. Several that end together cost one
    /// write.
    async fn ended<F: Future<Output = Handled>>(
        &self,
        reader: &InboxReader,
        first: Handled,
        running: &mut FuturesUnordered<F>,
    ) {
        let mut ended = vec![first];
        while let Some(Some(more)) = running.next().now_or_never() {
            ended.push(more);
        }
        let (mut keys, mut settled) = (Vec::new(), Vec::new());
        for handled in ended {
            match handled.failure {
                None => {
                    reader.note_handled(handled.key);
                    keys.push(handled.key);
                    settled.push((handled.operation_id, handled.state));
                }
                Some(text) => {
                    reader.give_back_key(handled.key);
                    (self.on_notice)(Notice::HandlerFailed {
                        sequence: handled.key.sequence,
                        operation_id: handled.operation_id,
                        text,
                    });
                }
            }
        }
        if !keys.is_empty() {
            self.save(reader.state(), settled).await;
            reader.release_acks(&keys);
        }
    }

    /// Keeps the state, and that these operations are settled: their results were handled, so that
    /// no restart needs to ask for them.
    async fn save(&self, state: ReaderState, settled: Vec<(String, EntryState)>) {
        let named = self.consumer_id.is_some();
        let keep = move |journal: &dyn Journal| {
            for (id, state) in settled {
                journal.settle(&id, state)?;
            }
            if named { journal.save_reader(&state) } else { Ok(()) }
        };
        if let Err(error) = self.client.with_journal(keep).await {
            (self.on_notice)(Notice::StateNotKept(error));
        }
    }

    fn tell(&self, news: News) {
        (self.on_notice)(match news {
            // Results go to their handler.
            News::Result(_) => return,
            News::Opened(opened) => Notice::Opened(opened),
            News::AlreadySeen(again) => Notice::AlreadySeen(again),
            News::CaughtUp => Notice::CaughtUp,
            News::Gap(gap) => Notice::Gap(gap),
            News::Withdrawn(withdrawn) => Notice::Withdrawn(withdrawn),
            News::Reconnecting(failure) => Notice::Reconnecting(failure),
            News::AckRefused(failure) => Notice::AckRefused(failure),
            News::ExtensionRefused(failure) => Notice::ExtensionRefused(failure),
        });
    }
}

/// While all handlers are busy, results wait with the reader, and notices do not.
async fn next_news(reader: &mut InboxReader, room: Room) -> Result<News, ReaderError> {
    match room {
        Room::ForResults => reader.next().await,
        Room::ForNoticesOnly => reader.next_notice().await,
    }
}

/// Whether another handler may be started.
#[derive(Clone, Copy)]
enum Room {
    ForResults,
    ForNoticesOnly,
}

/// A handler that has ended.
struct Handled {
    key: ResultKey,
    operation_id: String,
    state: EntryState,
    failure: Option<String>,
}

async fn run_handler<H, F, E>(handler: &H, result: DeliveredResult) -> Handled
where
    H: Fn(Received) -> F,
    F: Future<Output = Result<(), E>>,
    E: fmt::Display,
{
    let received = Received::of(result);
    let key = ResultKey::of(&received.delivery);
    let operation_id = received.delivery.operation_id.clone();
    let state = EntryState::of(received.state());
    let failure = handler(received).await.err().map(|error| error.to_string());
    Handled { key, operation_id, state, failure }
}

/// When a reader that ended may go on without its position: after which pause, or not at all.
fn again(
    reader: &InboxReader,
    error: &ReaderError,
    resynchronised: &mut Resynchronised,
) -> Option<Duration> {
    match error {
        ReaderError::ResumeTokenInvalid(_)
        | ReaderError::InboxRecreated(_)
        | ReaderError::StoreEpochChanged(_) => {
            // Without a position there is none that could be wrong.
            let had_position = !reader.state().resume_token.is_empty();
            had_position.then(|| resynchronised.pause(Instant::now()))
        }
        ReaderError::Superseded(_) | ReaderError::Refused(_) => None,
    }
}

/// When it was resynchronised last.
#[derive(Debug, Default)]
struct Resynchronised {
    last: Option<Instant>,
}

impl Resynchronised {
    /// The first one is made at once, the next one when the interval has passed.
    fn pause(&mut self, now: Instant) -> Duration {
        let earliest = self.last.map_or(now, |last| last + RESYNCHRONISE_INTERVAL).max(now);
        self.last = Some(earliest);
        earliest - now
    }
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
