//! The loop of a session: what ends it, what it waits for, and what it sends.
//!
//! What must stay true: frames of the client are read whenever the work that they cause is within
//! its bounds, and left to flow control otherwise; what is running when either side ends the
//! session is answered first; every wait ends on shutdown and when the client is gone.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::mpsc::{self, OwnedPermit, Permit, error::SendError},
    time::Instant,
};
use tonic::{Status, Streaming};

use super::{
    Item,
    inboxes::{Inboxes, Told},
    outgoing::Outgoing,
};
use crate::{
    api::{
        Api,
        auth::Principal,
        convert::{
            sessions::{Followed, closed, of_inbox, of_session},
            times,
        },
        deadline::AnswerBy,
        status::{Refused, not_begun},
    },
    domain::{
        ids::{InboxName, Span, Timestamp},
        refusal::{Asked, Refusal},
    },
    proto::{
        self, SessionAckResultItem, SessionExtendResultItem, SessionSubmitResultItem,
        connect_response::Frame as Sent,
    },
    stream::Frames,
    telemetry,
};

/// Submits of a session that run, or whose answers wait: more than one batch of the engine holds,
/// so that a session alone can fill one.
const SUBMITS_MAX: usize = 256;
/// The same for frames of acks and of extensions; each may name a thousand results.
const LISTS_MAX: usize = 64;
/// Bytes of the requests that run and of the answers that wait: what one request of any service
/// may have.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Refused frames whose answers wait.
const TOLD_MAX: usize = 64;
/// Answers that are taken in one go.
const DONE_MAX: usize = 64;
/// A heartbeat doesn't wait longer than this for the store's clock.
const CLOCK_PATIENCE: Duration = Duration::from_secs(1);

/// What is running.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) submits: usize,
    /// Those of them that wait for an outcome.
    pub(super) waits: usize,
    /// Frames of acks and of extensions.
    pub(super) lists: usize,
    /// Of the requests.
    pub(super) bytes: usize,
}

/// Work that is done.
pub(super) enum Done {
    Opened {
        inbox: InboxName,
        stream: u64,
        opened: Result<Frames, Refused>,
    },
    Submitted {
        answer: Box<SessionSubmitResultItem>,
        waits: bool,
        bytes: usize,
    },
    Acked {
        answer: SessionAckResultItem,
        bytes: usize,
    },
    Extended {
        answer: SessionExtendResultItem,
        bytes: usize,
    },
    /// The store's clock, for a heartbeat; none where it can't be read.
    Clock(Option<Timestamp>),
}

/// Where a session's next step may come from.
pub(super) struct Sources {
    pub(super) inboxes: Inboxes,
    pub(super) work: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Absent once nothing more is read.
    inbound: Option<Streaming<proto::ConnectRequest>>,
    /// Who is asked first.
    turn: usize,
}

/// What came.
enum Came {
    Told(Told),
    Done(Vec<Done>),
    Request(Option<Result<proto::ConnectRequest, Status>>),
}

/// What a wait ended with.
enum Event {
    Shutdown,
    Gone,
    Timer,
    Sent,
    Came(Came),
}

/// How far a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Both sides talk.
    Open,
    /// The client has said all it has to say.
    HalfClosed,
    /// The server ends it.
    Ending,
}

/// Why a session ended.
enum End {
    Done(&'static str),
    Gone,
    Stalled,
    Refused(Refused),
    /// A frame that was refused before it was decoded.
    Broken(Status),
}

/// A running session.
pub(super) struct Session {
    pub(super) api: Api,
    pub(super) caller: Arc<Principal>,
    pub(super) answer_by: AnswerBy,
    pub(super) sources: Sources,
    pub(super) outgoing: Outgoing,
    pub(super) load: Load,
    /// When it ends by itself, with all its inboxes.
    pub(super) end: Instant,
    phase: Phase,
    sender: mpsc::Sender<Item>,
    heartbeat: Instant,
    /// When the client last took a frame, or none waited.
    taken: Instant,
    /// The word in metrics.
    cause: &'static str,
}

impl Session {
    pub(super) fn new(
        api: Api,
        caller: Arc<Principal>,
        inbound: Streaming<proto::ConnectRequest>,
        answer_by: AnswerBy,
        sender: mpsc::Sender<Item>,
    ) -> Self {
        let now = Instant::now();
        let settings = &api.0.streams;
        let random = api.engine().seams().random();
        let sources = Sources {
            inboxes: Inboxes::default(),
            work: FuturesUnordered::new(),
            inbound: Some(inbound),
            turn: 0,
        };
        Session {
            end: now + settings.age(random),
            heartbeat: now + settings.heartbeat.to_std(),
            api,
            caller,
            answer_by,
            sources,
            outgoing: Outgoing::default(),
            load: Load::default(),
            phase: Phase::Open,
            sender,
            taken: now,
            cause: "LEFT",
        }
    }

    /// Runs until the end, and says why.
    pub(super) async fn run(mut self, last_word: OwnedPermit<Item>) {
        telemetry::session_began();
        let end = self.follow().await;
        telemetry::session_ended(match &end {
            End::Done(cause) => cause,
            End::Gone => "GONE",
            End::Stalled => "STALLED",
            End::Refused(refused) => refused.refusal.reason(),
            End::Broken(_) => "BROKEN",
        });
        let status = match end {
            End::Done(_) | End::Gone => return,
            End::Stalled => self.api.status(Asked::Stream, Refusal::SlowConsumer.into()),
            End::Refused(refused) => self.api.status(Asked::Stream, refused),
            End::Broken(status) => status,
        };
        last_word.send(Box::new(Err(status)));
    }

    async fn follow(&mut self) -> End {
        loop {
            if self.outgoing.is_empty() {
                self.taken = Instant::now();
                if self.phase != Phase::Open
                    && self.sources.work.is_empty()
                    && self.sources.inboxes.is_empty()
                {
                    return End::Done(self.cause);
                }
            }
            let step = match self.next().await {
                Event::Shutdown => {
                    self.stop("SHUTDOWN", "the server is shutting down");
                    Ok(())
                }
                Event::Gone => Err(End::Gone),
                Event::Timer => self.run_timers(),
                Event::Sent => {
                    self.taken = Instant::now();
                    Ok(())
                }
                Event::Came(Came::Told(told)) => {
                    self.tell(told);
                    Ok(())
                }
                Event::Came(Came::Done(done)) => {
                    done.into_iter().for_each(|done| self.finish(done));
                    Ok(())
                }
                Event::Came(Came::Request(request)) => self.read(request),
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    /// Waits for the next step. What comes is taken before what waits is sent, so that answers that
    /// are ready together leave together, until what waits is due.
    async fn next(&mut self) -> Event {
        let timer = self.next_timer();
        let reads = self.has_room();
        let waits = !self.outgoing.is_empty();
        let sends_first = self.outgoing.is_due();
        let Session { api, sources, outgoing, sender, phase, .. } = self;
        let takes_frame = outgoing.takes_frame();
        outgoing.pass_over();
        tokio::select! {
            biased;
            () = api.drain().cancelled(), if *phase != Phase::Ending => Event::Shutdown,
            () = tokio::time::sleep_until(timer) => Event::Timer,
            permit = sender.reserve(), if sends_first => send(permit, outgoing),
            came = poll_fn(|context| sources.poll(context, takes_frame, reads)) => {
                Event::Came(came)
            }
            permit = sender.reserve(), if waits && !sends_first => send(permit, outgoing),
            () = sender.closed() => Event::Gone,
        }
    }

    /// Whether a further frame of the client may be read.
    fn has_room(&self) -> bool {
        let waiting = self.outgoing.waiting();
        waiting.told < TOLD_MAX
            && self.load.submits + waiting.submits < SUBMITS_MAX
            && self.load.lists + waiting.lists < LISTS_MAX
            && self.load.bytes + waiting.bytes < BYTES_MAX
    }

    fn next_timer(&self) -> Instant {
        let next = match self.phase {
            Phase::Open => self.heartbeat.min(self.end),
            // Nothing but the end of what runs is due any more.
            Phase::HalfClosed | Phase::Ending => self.heartbeat,
        };
        match self.outgoing.is_empty() {
            true => next,
            false => next.min(self.stalls_at()),
        }
    }

    fn stalls_at(&self) -> Instant {
        self.taken + self.api.0.streams.write_stall_max.to_std()
    }

    fn run_timers(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if !self.outgoing.is_empty() && now >= self.stalls_at() {
            return Err(End::Stalled);
        }
        if self.phase == Phase::Open && now >= self.end {
            self.stop("AGED", "the session reached its maximum age");
        }
        if now >= self.heartbeat {
            self.heartbeat = now + self.api.0.streams.heartbeat.to_std();
            // The inboxes have heartbeats of their own, with tokens.
            if self.sources.inboxes.is_empty() {
                let api = self.api.clone();
                self.run_beside(async move {
                    let read = tokio::time::timeout(CLOCK_PATIENCE, api.engine().store().now());
                    Done::Clock(read.await.ok().and_then(Result::ok))
                });
            }
        }
        Ok(())
    }

    /// Reads nothing more. The inboxes end by themselves, at the same sign or the same time, and
    /// each says so; where there is none, the session does.
    fn stop(&mut self, cause: &'static str, reason: &str) {
        self.sources.inbound = None;
        self.cause = cause;
        if self.phase == Phase::Open && self.sources.inboxes.is_empty() {
            let jitter = i64::try_from(self.api.engine().seams().random() % 2_001).unwrap_or(0);
            self.outgoing.tell(of_session(Sent::Draining(proto::Draining {
                reason: reason.to_owned(),
                retry_delay: Some(times::duration(super::DRAIN_RETRY + Span::millis(jitter))),
                resume_token: String::new(),
            })));
        }
        self.phase = Phase::Ending;
    }

    fn read(&mut self, request: Option<Result<proto::ConnectRequest, Status>>) -> Result<(), End> {
        match request {
            Some(Ok(request)) => self.begin(request).map_err(End::Refused),
            None => {
                self.sources.inbound = None;
                self.phase = Phase::HalfClosed;
                self.sources.inboxes.clear();
                Ok(())
            }
            Some(Err(status)) if !status.details().is_empty() => Err(End::Broken(status)),
            // Without words of ours: the client reset the stream, or its connection broke.
            Some(Err(status)) => Err(not_begun(&status).map_or(End::Gone, End::Refused)),
        }
    }

    fn tell(&mut self, told: Told) {
        let frame = match told {
            Told::Frame(inbox, frame) => of_inbox(inbox.as_str(), self.api.frame(&inbox, frame)),
            Told::Refused(inbox, refusal) => {
                let error = self.api.error(refusal.into());
                closed(inbox.as_str(), Some(error), Followed::NoMore)
            }
            Told::Closed(inbox) => closed(inbox.as_str(), None, Followed::NoMore),
        };
        self.outgoing.frame(frame);
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Opened { inbox, stream, opened: Ok(frames) } => {
                self.sources.inboxes.opened(&inbox, stream, frames);
            }
            Done::Opened { inbox, stream, opened: Err(refused) } => {
                if self.sources.inboxes.refused(&inbox, stream) {
                    let error = self.api.error(refused);
                    self.outgoing.tell(closed(inbox.as_str(), Some(error), Followed::NoMore));
                }
            }
            Done::Submitted { answer, waits, bytes } => {
                self.load.submits -= 1;
                self.load.waits -= usize::from(waits);
                self.load.bytes -= bytes;
                self.outgoing.submitted(*answer);
            }
            Done::Acked { answer, bytes } => {
                self.load.lists -= 1;
                self.load.bytes -= bytes;
                self.outgoing.acked(answer);
            }
            Done::Extended { answer, bytes } => {
                self.load.lists -= 1;
                self.load.bytes -= bytes;
                self.outgoing.extended(answer);
            }
            Done::Clock(now) => {
                let store_time = now.map(times::timestamp);
                let heartbeat = proto::Heartbeat { resume_token: String::new(), store_time };
                self.outgoing.tell(of_session(Sent::Heartbeat(heartbeat)));
            }
        }
    }
}

/// Sends what waits in the place for it; without one the client is gone.
fn send(permit: Result<Permit<'_, Item>, SendError<()>>, outgoing: &mut Outgoing) -> Event {
    let Ok(permit) = permit else { return Event::Gone };
    if let Some(frame) = outgoing.take() {
        permit.send(Box::new(Ok(frame)));
    }
    Event::Sent
}

impl Sources {
    /// The next that came, from each source in turn.
    fn poll(&mut self, context: &mut Context<'_>, takes_frame: bool, reads: bool) -> Poll<Came> {
        for _ in 0..3 {
            self.turn = (self.turn + 1) % 3;
            let came = match self.turn {
                0 if takes_frame => self.inboxes.poll_told(context).map(Came::Told),
                1 => self.poll_work(context).map(Came::Done),
                2 if reads => self.poll_inbound(context).map(Came::Request),
                _ => Poll::Pending,
            };
            if came.is_ready() {
                return came;
            }
        }
        Poll::Pending
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<Vec<Done>> {
        let mut done = Vec::new();
        while done.len() < DONE_MAX
            && let Poll::Ready(Some(next)) = self.work.poll_next_unpin(context)
        {
            done.push(next);
        }
        match done.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(done),
        }
    }

    fn poll_inbound(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<proto::ConnectRequest, Status>>> {
        match &mut self.inbound {
            Some(inbound) => std::pin::Pin::new(inbound).poll_next(context),
            None => Poll::Pending,
        }
    }
}
