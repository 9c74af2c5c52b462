//! Reading an inbox over lost connections and restarts.
//!
//! What must stay true: a task always drains the stream, however slow the application is (unread
//! small frames make some peers close the connection); a broken stream is opened again from the
//! last token; an ack is repeated until it is answered; both tasks end with the reader.
//! Deliberately not here: what a result means, and when it is used: the application says so.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    connect::Client,
    error::Failure,
    extend::{Extensions, attempt_of},
    pauses::{Growth, Pauses},
    reader_state::{Book, ResultKey},
    retry::{Decision, after_failed_call},
};
use crate::proto::{
    AckDeliveriesRequest, DeliveredResult, StreamDeliveriesRequest, StreamDeliveriesResponse,
    WithdrawnDelivery, stream_deliveries_response::Frame,
};

pub use super::reader_state::{News, ReaderState, SeenAgain, Stage, Totals};

/// How long the server may take to open a stream.
const OPEN_LIMIT: Duration = Duration::from_secs(15);
/// How long a stream may be silent before its `Opened` names the heartbeat.
const SILENCE_FIRST: Duration = Duration::from_secs(30);
/// A stream that misses this many heartbeats is opened again.
const HEARTBEATS_MISSED_MAX: u32 = 3;

/// How a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// How many unacked results the stream may hold.
    pub window: i32,
    /// How many results wait for the application at most; more are left with the server and come
    /// again.
    pub results_waiting_max: usize,
    /// How the pauses before a stream is opened again grow.
    pub reconnect: Growth,
    /// Whether results that wait for the application, or are with it, get more time.
    pub extend: Extend,
}

/// What happens to a result that takes longer than its ack deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extend {
    /// It comes again, until its budget is spent.
    Never,
    /// Its deadline is moved until it is handled or given back, within its ack window.
    WhileHeld,
}

impl ReaderOptions {
    /// The service's own window, and a buffer that holds it several times over.
    pub const fn standard() -> Self {
        ReaderOptions {
            window: 100,
            results_waiting_max: 1_000,
            reconnect: Growth::STREAMS,
            extend: Extend::Never,
        }
    }

    /// The same for a reader that shares its server with few others: it comes back at once.
    pub const fn alone() -> Self {
        ReaderOptions { reconnect: Growth::ALONE, ..ReaderOptions::standard() }
    }
}

/// Why a reader ended. Its state is still there, and nothing is lost by starting another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// The token is not valid here; start again with [`ReaderState::without_token`].
    #[error("the resume token is not valid here: {0}")]
    ResumeTokenInvalid(Box<Failure>),
    /// The inbox was deleted and used again; start again with [`ReaderState::without_token`].
    #[error("the inbox was recreated: {0}")]
    InboxRecreated(Box<Failure>),
    /// The store was restored from an older copy: look up what is unresolved, then start again
    /// with [`ReaderState::without_token`].
    #[error("the store was restored: {0}")]
    StoreEpochChanged(Box<Failure>),
    /// Another stream of the same consumer took over.
    #[error("another stream of this consumer took over: {0}")]
    Superseded(Box<Failure>),
    /// The server refuses this stream, and waiting changes nothing.
    #[error("the stream was refused: {0}")]
    Refused(Box<Failure>),
}

/// A reader of one inbox with its two tasks: one reads, one acks.
#[derive(Debug)]
pub struct InboxReader {
    client: Client,
    options: ReaderOptions,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// What the tasks and the application share.
#[derive(Debug)]
struct Shared {
    book: Mutex<Book>,
    extensions: Mutex<Extensions>,
    held: Notify,
    end: Mutex<Option<ReaderError>>,
    news: Notify,
    acks: Notify,
    answered: Notify,
}

impl InboxReader {
    /// Starts reading from a state, new or saved. Needs a tokio runtime.
    pub fn start(client: Client, state: ReaderState, options: ReaderOptions) -> Self {
        let shared = Shared::new(state, options);
        let mut tasks = JoinSet::new();
        start_task(&mut tasks, read(client.clone(), shared.clone(), options));
        start_task(&mut tasks, send_acks(client.clone(), shared.clone()));
        match options.extend {
            Extend::Never => {}
            Extend::WhileHeld => start_task(&mut tasks, extend(client.clone(), shared.clone())),
        }
        InboxReader { client, options, shared, tasks }
    }

    /// The next piece of news. An error ends the reading, not the acks.
    pub async fn next(&mut self) -> Result<News, ReaderError> {
        self.next_of(Book::take_news).await
    }

    /// The next piece of news that is no result, for an application that takes no more results now.
    pub(crate) async fn next_notice(&mut self) -> Result<News, ReaderError> {
        self.next_of(Book::take_notice).await
    }

    async fn next_of(&mut self, take: fn(&mut Book) -> Option<News>) -> Result<News, ReaderError> {
        loop {
            if let Some(news) = take(&mut self.shared.book()) {
                return Ok(news);
            }
            if let Some(end) = lock(&self.shared.end).clone() {
                return Err(end);
            }
            self.shared.news.notified().await;
        }
    }

    /// The application has used this result: its ack is sent, and repeated until it is answered.
    pub fn handled(&self, result: &DeliveredResult) {
        if let Some(delivery) = &result.delivery {
            self.shared.book().handled(ResultKey::of(delivery));
            self.shared.acks.notify_one();
        }
    }

    /// The application has used this result; its ack waits for [`InboxReader::release_acks`].
    pub(crate) fn note_handled(&self, key: ResultKey) {
        self.shared.book().note_handled(key);
    }

    /// The state that knows these results as handled is kept: their acks may leave.
    pub(crate) fn release_acks(&self, keys: &[ResultKey]) {
        keys.iter().for_each(|key| self.shared.book().release_ack(*key));
        self.shared.acks.notify_one();
    }

    /// After an error about the token: reads on without one. What the application holds, and what
    /// was acked, stays known, so that nothing is handed over twice.
    pub(crate) fn resynchronise(&mut self, pause: Duration) {
        self.shared.book().state.resume_token.clear();
        *lock(&self.shared.end) = None;
        let reading = read(self.client.clone(), self.shared.clone(), self.options);
        start_task(&mut self.tasks, async move {
            sleep(pause).await;
            reading.await;
        });
    }

    /// The same as [`InboxReader::give_back`], for a result that is known by its key.
    pub(crate) fn give_back_key(&self, key: ResultKey) {
        self.shared.book().give_back(key);
    }

    /// The application could not use this result: when it comes again, it counts as new.
    pub fn give_back(&self, result: &DeliveredResult) {
        result.delivery.iter().for_each(|delivery| self.give_back_key(ResultKey::of(delivery)));
    }

    /// The application does nothing more for a withdrawn result: if it is redriven, it is new.
    pub fn let_go(&self, withdrawn: &WithdrawnDelivery) {
        self.shared.book().let_go(withdrawn.sequence);
    }

    /// What to save.
    pub fn state(&self) -> ReaderState {
        self.shared.book().state.clone()
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.shared.book().totals
    }

    /// Waits until every handled result is acked, at most this long. False: some are not; they stay
    /// in the state.
    pub async fn flush(&self, limit: Duration) -> bool {
        self.shared.book().release_acks();
        self.shared.acks.notify_one();
        let all_answered = async {
            while !self.shared.book().state.handled_unacked.is_empty() {
                self.shared.answered.notified().await;
            }
        };
        timeout(limit, all_answered).await.is_ok()
    }

    /// Ends both tasks and gives the state back.
    pub async fn close(mut self) -> ReaderState {
        self.tasks.shutdown().await;
        self.state()
    }
}

impl Shared {
    fn new(state: ReaderState, options: ReaderOptions) -> Arc<Self> {
        Arc::new(Shared {
            book: Mutex::new(Book::new(state, options.results_waiting_max)),
            extensions: Mutex::new(Extensions::default()),
            held: Notify::new(),
            end: Mutex::new(None),
            news: Notify::new(),
            acks: Notify::new(),
            answered: Notify::new(),
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Tells the application.
    fn tell(&self, news: News) {
        self.book().notice(news);
        self.news.notify_one();
    }
}

/// The one place that starts tasks here: they belong to a set that ends with its reader.
fn start_task(tasks: &mut JoinSet<()>, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(task);
}

/// A panic in the application's thread leaves the data whole: every change is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How one stream ended.
enum StreamEnd {
    /// Open it again, not before this pause where one is named.
    Again(Option<Duration>, Option<Failure>),
    /// Waiting changes nothing.
    Over(ReaderError),
}

impl StreamEnd {
    fn of(failure: Failure) -> Self {
        let boxed = || Box::new(failure.clone());
        match failure.reason.as_deref() {
            Some("RESUME_TOKEN_INVALID") => {
                return StreamEnd::Over(ReaderError::ResumeTokenInvalid(boxed()));
            }
            Some("INBOX_RECREATED") => {
                return StreamEnd::Over(ReaderError::InboxRecreated(boxed()));
            }
            Some("STORE_EPOCH_CHANGED") => {
                return StreamEnd::Over(ReaderError::StoreEpochChanged(boxed()));
            }
            Some("STREAM_SUPERSEDED") => return StreamEnd::Over(ReaderError::Superseded(boxed())),
            _ => {}
        }
        match after_failed_call(&failure) {
            Decision::SameIdAgain(asked) => StreamEnd::Again(asked, Some(failure)),
            Decision::Stop => StreamEnd::Over(ReaderError::Refused(boxed())),
        }
    }
}

/// Reads stream after stream until waiting changes nothing.
async fn read(client: Client, shared: Arc<Shared>, options: ReaderOptions) {
    let mut pauses = Pauses::new(options.reconnect);
    loop {
        match read_stream(&client, &shared, options.window, &mut pauses).await {
            StreamEnd::Again(asked, failure) => {
                shared.book().totals.reconnects += 1;
                shared.tell(News::Reconnecting(failure.map(Box::new)));
                sleep(pauses.next(asked)).await;
            }
            StreamEnd::Over(error) => {
                *lock(&shared.end) = Some(error);
                shared.news.notify_one();
                return;
            }
        }
    }
}

/// Reads one stream to its end. The first sign that it works starts the pauses anew.
async fn read_stream(
    client: &Client,
    shared: &Shared,
    window: i32,
    backoff: &mut Pauses,
) -> StreamEnd {
    let request = {
        let book = shared.book();
        StreamDeliveriesRequest {
            inbox: book.state.inbox.clone(),
            resume_token: book.state.resume_token.clone(),
            consumer_id: book.state.consumer_id.clone(),
            window,
        }
    };
    let mut inboxes = client.inboxes();
    let mut stream = match timeout(OPEN_LIMIT, inboxes.stream_deliveries(request)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return StreamEnd::of(status.into()),
        Err(_) => return StreamEnd::of(Failure::gave_up_waiting(OPEN_LIMIT)),
    };
    let mut silence_limit = SILENCE_FIRST;
    loop {
        let frame = match timeout(silence_limit, stream.message()).await {
            Ok(Ok(Some(StreamDeliveriesResponse { frame: Some(frame) }))) => frame,
            // A frame of a later version; its token comes again with the next heartbeat.
            Ok(Ok(Some(StreamDeliveriesResponse { frame: None }))) => continue,
            Ok(Ok(None)) => return StreamEnd::Again(None, None),
            Ok(Err(status)) => return StreamEnd::of(status.into()),
            Err(_) => return StreamEnd::of(Failure::gave_up_waiting(silence_limit)),
        };
        if shows_that_it_works(&frame) {
            backoff.start_anew();
        }
        if let Frame::Opened(opened) = &frame {
            silence_limit = silence_limit_of(opened.heartbeat_interval.as_ref());
        }
        if let Some(end) = take_frame(shared, frame) {
            return end;
        }
    }
}

/// Whether a stream does what it is for. `Opened` alone proves little: a stream that opens and ends
/// at once, again and again, would otherwise be opened again without growing pauses.
fn shows_that_it_works(frame: &Frame) -> bool {
    match frame {
        Frame::Deliveries(_) | Frame::CaughtUp(_) | Frame::Heartbeat(_) => true,
        Frame::Opened(_) | Frame::Gap(_) | Frame::Withdrawn(_) | Frame::Draining(_) => false,
    }
}

fn silence_limit_of(heartbeat: Option<&prost_types::Duration>) -> Duration {
    heartbeat
        .and_then(|interval| Duration::try_from(*interval).ok())
        .filter(|interval| !interval.is_zero())
        .map_or(SILENCE_FIRST, |interval| {
            (interval * HEARTBEATS_MISSED_MAX).max(Duration::from_secs(5))
        })
}

/// Takes in one frame. Some: the server ends this stream.
fn take_frame(shared: &Shared, frame: Frame) -> Option<StreamEnd> {
    match frame {
        Frame::Opened(opened) => {
            let told = opened.policy.as_ref().and_then(|policy| policy.ack_deadline.as_ref());
            lock(&shared.extensions).opened(told);
            let mut book = shared.book();
            book.keep_token(&opened.resume_token);
            if book.state.consumer_id.is_empty() {
                book.state.consumer_id.clone_from(&opened.consumer_id);
            }
            book.notice(News::Opened(Box::new(opened)));
        }
        Frame::Deliveries(batch) => {
            let shown: Vec<_> = batch.results.iter().filter_map(attempt_of).collect();
            let mut book = shared.book();
            book.take_in(batch);
            lock(&shared.extensions).shown(&book, &shown, Instant::now());
            drop(book);
            shared.held.notify_one();
            // A copy of a handled result makes its ack due again.
            shared.acks.notify_one();
        }
        Frame::CaughtUp(caught_up) => {
            shared.book().caught_up(&caught_up.resume_token);
            shared.acks.notify_one();
        }
        Frame::Heartbeat(heartbeat) => shared.book().keep_token(&heartbeat.resume_token),
        Frame::Gap(gap) => shared.book().notice(News::Gap(gap)),
        Frame::Withdrawn(withdrawn) => shared.book().withdraw(withdrawn),
        Frame::Draining(draining) => {
            shared.book().keep_token(&draining.resume_token);
            let asked = draining.retry_delay.and_then(|delay| Duration::try_from(delay).ok());
            return Some(StreamEnd::Again(asked, None));
        }
    }
    shared.news.notify_one();
    None
}

/// Asks for more time for what the application holds, before two thirds of it have passed.
async fn extend(client: Client, shared: Arc<Shared>) {
    loop {
        let due = lock(&shared.extensions).next_due();
        let Some(due) = due else {
            shared.held.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = shared.held.notified() => continue,
        }
        let (request, patience) = {
            let book = shared.book();
            let mut extensions = lock(&shared.extensions);
            (extensions.request(&book, Instant::now()), extensions.patience())
        };
        if request.deliveries.is_empty() {
            continue;
        }
        let failure = match timeout(patience, client.extend_once(request)).await {
            Ok(Ok(response)) => {
                lock(&shared.extensions).answered(&response.into_inner().results, Instant::now());
                continue;
            }
            Ok(Err(status)) => Failure::from(status),
            // Whatever was asked for is asked for again when it is due again.
            Err(_) => continue,
        };
        if after_failed_call(&failure) == Decision::Stop {
            lock(&shared.extensions).refused();
            shared.tell(News::ExtensionRefused(Box::new(failure)));
        }
    }
}

/// Sends what is due, a list at a time: whatever was handled while one list was on its way is the
/// next one.
async fn send_acks(client: Client, shared: Arc<Shared>) {
    let per_attempt = client.limits().per_attempt;
    let mut backoff = Pauses::new(Growth::CALLS);
    loop {
        let request = {
            let book = shared.book();
            AckDeliveriesRequest {
                deliveries: book.acks_due(),
                consumer_id: book.state.consumer_id.clone(),
            }
        };
        if request.deliveries.is_empty() {
            shared.acks.notified().await;
            continue;
        }
        let started = Instant::now();
        let failure = match timeout(per_attempt, client.ack_once(request)).await {
            Ok(Ok(response)) => {
                let answered = shared.book().acks_answered(&response.into_inner().results);
                shared.answered.notify_one();
                if answered > 0 {
                    backoff.start_anew();
                    continue;
                }
                // An answer that settles nothing would otherwise be asked for without a pause.
                Failure::before_sending(tonic::Code::Internal, "no ack was answered".to_owned())
            }
            Ok(Err(status)) => Failure::from(status),
            Err(_) => Failure::gave_up_waiting(started.elapsed()),
        };
        let asked = match after_failed_call(&failure) {
            Decision::SameIdAgain(asked) => asked,
            Decision::Stop => {
                shared.tell(News::AckRefused(Box::new(failure)));
                None
            }
        };
        sleep(backoff.next(asked)).await;
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::{
        super::{connect::ConnectOptions, error::tests::refusal, fake_service::FakeService},
        *,
    };

    async fn read_once(fake: &FakeService, backoff: &mut Pauses) -> StreamEnd {
        let address = format!("http://{}", fake.address);
        let client = Client::connect(&address, ConnectOptions::plain()).expect("a usable endpoint");
        let shared = Shared::new(ReaderState::new("default", "me"), ReaderOptions::standard());
        read_stream(&client, &shared, 1, backoff).await
    }

    #[tokio::test]
    async fn a_stream_that_opens_and_ends_is_opened_again_with_growing_pauses() {
        let fake = FakeService::start().await;
        fake.end_streams_after(1);
        let mut backoff = Pauses::new(Growth::CALLS);
        for failed in 0..4 {
            assert_eq!(backoff.made(), failed, "Opened alone proves little");
            let end = read_once(&fake, &mut backoff).await;
            assert!(matches!(end, StreamEnd::Again(None, None)));
            backoff.next(None);
        }
        // The second frame says that everything was sent: this one worked.
        fake.end_streams_after(2);
        read_once(&fake, &mut backoff).await;
        assert_eq!(backoff.made(), 0);
    }

    #[test]
    fn how_streams_end() {
        let token = refusal(Code::InvalidArgument, "RESUME_TOKEN_INVALID", "NO_EFFECT");
        assert!(matches!(
            StreamEnd::of(token.into()),
            StreamEnd::Over(ReaderError::ResumeTokenInvalid(_))
        ));
        let newer = refusal(Code::Aborted, "STREAM_SUPERSEDED", "NO_EFFECT");
        assert!(matches!(StreamEnd::of(newer.into()), StreamEnd::Over(ReaderError::Superseded(_))));
        let denied = refusal(Code::PermissionDenied, "PERMISSION_MISSING", "NO_EFFECT");
        assert!(matches!(StreamEnd::of(denied.into()), StreamEnd::Over(ReaderError::Refused(_))));
        let calm = Status::resource_exhausted("h2 protocol error: ENHANCE_YOUR_CALM");
        assert!(matches!(StreamEnd::of(calm.into()), StreamEnd::Again(..)));
        let slow = refusal(Code::ResourceExhausted, "SLOW_CONSUMER", "NO_EFFECT");
        assert!(matches!(StreamEnd::of(slow.into()), StreamEnd::Again(..)));
    }

    #[test]
    fn silence_is_measured_in_heartbeats() {
        let ten = prost_types::Duration { seconds: 10, nanos: 0 };
        assert_eq!(silence_limit_of(Some(&ten)), Duration::from_secs(30));
        assert_eq!(silence_limit_of(None), SILENCE_FIRST);
    }
}
