//! One consumer's life: offer, send within its window, wait, repeat.
//!
//! What must stay true: `Opened` is the first frame; a stream registers for hints before it reads
//! (T13), and re-reads the truth on each; the window is the inbox row's, never a count of our own;
//! nothing that others need is held while a client is slow; every end gives back what the stream
//! holds, and what can't be given back is swept when the consumer's lease ends.
//!
//! Deliberately not here: messages of the API and permissions (the face of a stream), acks (they
//! are commands of their own, valid from any connection), and what may be sent to whom (the rules).
//!
//! In reading order: `pace` is what all long-lived streams keep to, watches too;
//! `gaps`, `frames` and `progress` are pure; `credit` is what a reader grants; `ends` says why a
//! stream is over, `timers` what is due when; `life` is the loop, `work` what it does with the
//! store, `send` how results leave, and `losses` what is told of deliveries that will not come.
//! [`pull`] is for consumers without a stream.

pub mod credit;
mod ends;
mod frames;
mod gaps;
mod life;
mod losses;
pub mod pace;
mod progress;
pub mod pull;
mod send;
mod timers;
mod work;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::credit::Credit;
use crate::{
    domain::{
        command::{Command, Reply},
        delivery::{Delivery, DeliveryState, InboxKey},
        ids::{ConsumerId, OperationId, Span, Timestamp},
        inbox::{Consumer, Inbox},
        operation::Operation,
        policy::Policy,
        refusal::Refusal,
        token::ResumeToken,
        world::needs::HELD_MAX,
    },
    engine::Engine,
    store::ReadError,
};

/// Frames that wait for the client: enough to keep the connection busy while the next page is
/// read, few enough that a stalled client costs at most 64 KiB, or five bodies of that size.
const FRAMES_MAX: usize = 4;
/// What a caller is told when the store can't be read.
const RETRY: Span = Span::seconds(1);

/// What a caller asked for; the token is not opened yet.
#[derive(Debug, Clone)]
pub struct OpenStream {
    /// Which inbox; made at first use.
    pub inbox: InboxKey,
    /// Who reads.
    pub consumer: ConsumerId,
    /// Unacked results the stream may hold; already bounded by the policy.
    pub window: i64,
    /// Empty: start with everything that is unacked.
    pub resume_token: String,
    /// What its reader lets it send; absent: the window alone bounds it.
    pub credit: Option<Granted>,
    /// When it ends at the latest; absent: at an age of its own.
    pub end: Option<Instant>,
}

/// A credit, and what a result takes of it.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Shared with whoever grants more.
    pub credit: Arc<Credit>,
    /// How many bytes a result takes where the reader counts them.
    pub result_bytes: fn(&Sending) -> usize,
}

/// A result on its way to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sending {
    /// Its delivery.
    pub delivery: Delivery,
    /// Its operation.
    pub operation: Operation,
    /// Its body, where that travels along.
    pub payload: Option<Bytes>,
}

/// How streams behave.
#[derive(Debug, Clone)]
pub struct StreamSettings {
    /// A heartbeat comes at least this often.
    pub heartbeat: Span,
    /// Streams end themselves at this age, with jitter.
    pub age_max: Span,
    /// A frame that nobody takes for this long ends the stream.
    pub write_stall_max: Span,
}

impl StreamSettings {
    /// How old one stream or session gets: the maximum ± 10 %, so that those that opened together
    /// do not end together.
    pub fn age(&self, random: u64) -> Duration {
        pace::spread(self.age_max.to_std(), random)
    }
}

/// Why numbers will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GapCause {
    /// Their ack window passed, or their inbox was deleted.
    Expired,
    /// Their retry budget was spent.
    Dead,
    /// They are no longer kept, whatever became of them.
    Purged,
    /// A mark of the store passed over them: what a lost store gave out under them is not known.
    Restored,
}

/// What a stream sends (contract section 7).
#[derive(Debug, Clone)]
pub enum Frame {
    /// Always first.
    Opened {
        /// The position of this stream.
        resume_token: String,
        /// The inbox as it was at the opening.
        inbox: Box<Inbox>,
        /// The consumer with its epoch and window.
        consumer: Consumer,
        /// The policy of its account.
        policy: Box<Policy>,
        /// How many after the token's position were acked elsewhere; 10,000 at most are counted.
        acked_elsewhere: i64,
        /// How often heartbeats come.
        heartbeat: Span,
    },
    /// Results.
    Deliveries {
        /// What is due for longest first; equals by number.
        results: Vec<Sending>,
        /// Everything up to here was sent.
        resume_token: String,
    },
    /// Everything that was there at the opening has been sent.
    CaughtUp {
        /// A fresh token.
        resume_token: String,
    },
    /// Still alive.
    Heartbeat {
        /// A fresh token.
        resume_token: String,
        /// The store's clock.
        now: Timestamp,
    },
    /// Numbers that will not come.
    Gap {
        /// The first.
        first: i64,
        /// The last.
        last: i64,
        /// Why.
        cause: GapCause,
        /// Their operations, at most 100; none where they are purged or passed over.
        operation_ids: Vec<OperationId>,
    },
    /// Results shown on this stream that ended elsewhere: number; operation and how, unless the row
    /// was purged before that was seen.
    Withdrawn(Vec<(i64, Option<(OperationId, DeliveryState)>)>),
    /// The server ends this stream.
    Draining {
        /// Why, for people.
        reason: String,
        /// When to come back.
        retry: Span,
        /// The last token.
        resume_token: String,
    },
}

/// The frames of one stream, in order. The last item may be a refusal.
#[derive(Debug)]
pub struct Frames(mpsc::Receiver<Item>);

/// What waits in a stream's channel: boxed, because a channel keeps room for many.
type Item = Box<Result<Frame, Refusal>>;

impl Frames {
    /// The next frame; none after the end.
    pub async fn recv(&mut self) -> Option<Result<Frame, Refusal>> {
        self.0.recv().await.map(|item| *item)
    }

    /// Asks the stream to end. What it had sent can still be read; the frames end once it has
    /// given back what it held, or can't.
    pub fn close(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
impl Frames {
    /// Frames that a test sends itself.
    pub(crate) fn of(items: mpsc::Receiver<Box<Result<Frame, Refusal>>>) -> Self {
        Frames(items)
    }
}

impl Stream for Frames {
    type Item = Result<Frame, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|item| item.map(|item| *item))
    }
}

/// Opens a stream and runs it in a task of its own until the receiver is dropped, `shutdown` is
/// cancelled, a newer stream takes over, or it is too old. The last item may be a refusal.
///
/// # Errors
/// Any refusal before the first frame: a token that is not valid here, an account's limit of
/// inboxes, a store that cannot be reached, a server that shuts down.
pub async fn open(
    engine: &Engine,
    request: OpenStream,
    settings: StreamSettings,
    shutdown: CancellationToken,
) -> Result<Frames, Refusal> {
    if shutdown.is_cancelled() {
        return Err(Refusal::Draining { retry: RETRY });
    }
    let watch = engine.wake().watch_inbox(request.inbox.clone());
    // The token comes first: a bad one must not take over from the consumer's good stream.
    let epoch = engine.store().facts().epoch.clone();
    let position = token_position(engine, &request).await?;
    let end = request.end;
    let command = Command::Open {
        inbox: request.inbox,
        consumer: request.consumer,
        window: request.window.clamp(1, HELD_MAX),
    };
    let (sender, receiver) = mpsc::channel(FRAMES_MAX + 1);
    // One place is kept for the last item, so that a stream whose client is slow can still say why
    // it ends.
    let last_word = sender.clone().try_reserve_owned().map_err(|_| Refusal::Internal)?;
    let (answer, answered) = oneshot::channel();
    let task_engine = engine.clone();
    // The task opens and closes: a caller that goes away in between leaves nothing open.
    engine.seams().spawn(async move {
        let opening = Box::pin(task_engine.run(command));
        let (opened, consumer, policy) = match opening.await {
            Ok(Reply::Opened { inbox, consumer, policy }) => (*inbox, consumer, policy),
            Ok(_) => return drop(answer.send(Err(Refusal::Internal))),
            Err(refusal) => return drop(answer.send(Err(refusal))),
        };
        if position.is_some_and(|(_, generation)| generation != opened.generation) {
            // Deleted after the token was read: this opening began another generation.
            let end = ends::End::Refused(Box::new(Refusal::InboxRecreated));
            ends::close(&task_engine, &opened.key, &consumer, &end).await;
            return drop(answer.send(Err(Refusal::InboxRecreated)));
        }
        if task_engine.store().facts().epoch != epoch {
            let end = ends::End::Refused(Box::new(Refusal::StoreEpochChanged));
            ends::close(&task_engine, &opened.key, &consumer, &end).await;
            return drop(answer.send(Err(Refusal::StoreEpochChanged)));
        }
        let position = position.map(|(position, _)| position);
        let start =
            life::Start { position, epoch, opened, consumer, policy, granted: request.credit, end };
        let life = life::Life::new(task_engine, start, settings, shutdown, watch, sender);
        // If nobody waits for the answer, the receiver is gone too, and the stream ends at once.
        drop(answer.send(Ok(())));
        // On the heap, so that the opening's own needs are not kept for the stream's life.
        Box::pin(life.run(position, last_word)).await;
    });
    answered.await.unwrap_or(Err(Refusal::Internal))?;
    Ok(Frames(receiver))
}

/// Where the token says to go on, and in which generation; `None` without one.
async fn token_position(
    engine: &Engine,
    request: &OpenStream,
) -> Result<Option<(i64, i64)>, Refusal> {
    if request.resume_token.is_empty() {
        return Ok(None);
    }
    let row = engine.store().inbox(&request.inbox).await.map_err(unreadable)?;
    // A deleted inbox is used again by this very opening.
    let (generation, last_sequence) =
        row.map_or((1, 0), |inbox| (inbox.next_generation(), inbox.last_sequence()));
    let facts = engine.store().facts();
    let text = &request.resume_token;
    let inbox = &request.inbox;
    ResumeToken::open(&facts.token_key, text, inbox, generation, &facts.epoch, last_sequence)
        .map(|position| Some((position, generation)))
}

/// What a failed read means to a caller.
fn unreadable(error: ReadError) -> Refusal {
    match error {
        ReadError::Unavailable(cause) => {
            tracing::debug!(%cause, "a read of a stream failed");
            Refusal::StoreUnavailable { retry: RETRY }
        }
        ReadError::Unreadable(cause) => {
            tracing::error!(%cause, "a stored row cannot be read by this release");
            Refusal::Internal
        }
    }
}

#[cfg(test)]
mod testing;
