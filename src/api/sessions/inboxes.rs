//! The inboxes that a session follows, and whose turn it is.
//!
//! What must stay true: a stream that sent a frame goes to the end of the row, so that none starves
//! another; the frames of one inbox keep their order, with its end behind them; a name is free
//! again as soon as its end is told.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt, stream::SelectAll};

use crate::{
    api::convert::sessions::Followed,
    domain::{
        ids::{InboxName, Invalid},
        refusal::Refusal,
    },
    stream::{Frame, Frames, credit::Credit},
};

/// Inboxes of one session: an editor has one, a gateway one for each of its users. Each costs about
/// 16 KiB.
pub(super) const INBOXES_MAX: usize = 128;

/// What a session follows.
#[derive(Default)]
pub(super) struct Inboxes {
    open: BTreeMap<InboxName, Entry>,
    streams: SelectAll<Named>,
    /// Tells streams of one name apart.
    next_stream: u64,
}

struct Entry {
    stream: u64,
    state: State,
    credit: Option<Arc<Credit>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Following,
    Closing,
}

/// What an inbox has to tell.
#[derive(Debug)]
pub(super) enum Told {
    /// A frame of its stream.
    Frame(InboxName, Frame),
    /// Its stream ended with this.
    Refused(InboxName, Refusal),
    /// It was closed as asked.
    Closed(InboxName),
}

/// Why a frame about an inbox is refused, and what is with the inbox now.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) refusal: Refusal,
    pub(super) followed: Followed,
}

impl Fault {
    /// The inbox is not followed.
    pub(super) fn no_more(refusal: impl Into<Refusal>) -> Self {
        Fault { refusal: refusal.into(), followed: Followed::NoMore }
    }

    /// The inbox is followed as before.
    pub(super) fn still(refusal: impl Into<Refusal>) -> Self {
        Fault { refusal: refusal.into(), followed: Followed::Still }
    }
}

impl Inboxes {
    /// Whether nothing is followed or being opened.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a name for a stream that is being opened; returns the stream's number.
    pub(super) fn begin(
        &mut self,
        inbox: &InboxName,
        credit: Option<Arc<Credit>>,
    ) -> Result<u64, Fault> {
        if self.open.contains_key(inbox) {
            let problem = "is open already; open it again after its `closed` or `draining`";
            return Err(Fault::still(Refusal::Invalid(Invalid::new("inbox", problem))));
        }
        if self.open.len() >= INBOXES_MAX {
            let limit = i64::try_from(INBOXES_MAX).unwrap_or(i64::MAX);
            return Err(Fault::no_more(Refusal::AccountQuota {
                what: "inboxes of one session",
                limit,
            }));
        }
        self.next_stream += 1;
        let stream = self.next_stream;
        self.open.insert(inbox.clone(), Entry { stream, state: State::Opening, credit });
        Ok(stream)
    }

    /// The stream is open: follows it, or closes it if that was asked meanwhile.
    pub(super) fn opened(&mut self, inbox: &InboxName, stream: u64, mut frames: Frames) {
        let entry = self.open.get_mut(inbox).filter(|entry| entry.stream == stream);
        let Some(entry) = entry else { return };
        match entry.state {
            State::Closing => frames.close(),
            State::Opening | State::Following => entry.state = State::Following,
        }
        self.streams.push(Named { inbox: inbox.clone(), stream, frames: Some(frames) });
    }

    /// The stream did not open; whether anybody still waits for it.
    pub(super) fn refused(&mut self, inbox: &InboxName, stream: u64) -> bool {
        self.forget(inbox, stream).is_some()
    }

    /// Asks a stream to end; `Told::Closed` follows.
    pub(super) fn close(&mut self, inbox: &InboxName) -> Result<(), Fault> {
        let entry = self.open.get_mut(inbox).ok_or_else(not_open)?;
        entry.state = State::Closing;
        let stream = entry.stream;
        let named = self.streams.iter_mut().find(|named| named.stream == stream);
        if let Some(frames) = named.and_then(|named| named.frames.as_mut()) {
            frames.close();
        }
        Ok(())
    }

    /// Lets a stream send more.
    pub(super) fn grant(&self, inbox: &InboxName, messages: i64, bytes: i64) -> Result<(), Fault> {
        let entry = self.open.get(inbox).ok_or_else(not_open)?;
        let bad =
            |field, problem| Err(Fault::still(Refusal::Invalid(Invalid::new(field, problem))));
        let Some(credit) = &entry.credit else {
            return bad("inbox", "was opened without a credit: its window alone bounds it");
        };
        match (messages, bytes) {
            (..0, _) => bad("messages", "must not be negative"),
            (_, ..0) => bad("bytes", "must not be negative"),
            (0, 0) => bad("messages", "must be positive, or `bytes` must"),
            (messages, bytes) => {
                credit.grant(messages, bytes);
                Ok(())
            }
        }
    }

    /// Follows nothing any more; the streams give back what they hold.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.streams.clear();
    }

    /// The next that an inbox has to tell.
    pub(super) fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<Told> {
        loop {
            let Poll::Ready(Some((inbox, stream, item))) = self.streams.poll_next_unpin(context)
            else {
                return Poll::Pending;
            };
            match item {
                Some(Ok(frame)) => {
                    if matches!(frame, Frame::Draining { .. }) {
                        self.forget(&inbox, stream);
                    }
                    return Poll::Ready(Told::Frame(inbox, frame));
                }
                Some(Err(refusal)) => {
                    self.forget(&inbox, stream);
                    return Poll::Ready(Told::Refused(inbox, refusal));
                }
                // Its end was told before, unless it was asked for.
                None => match self.forget(&inbox, stream) {
                    Some(State::Closing) => return Poll::Ready(Told::Closed(inbox)),
                    Some(State::Opening | State::Following) => {
                        return Poll::Ready(Told::Refused(inbox, Refusal::Internal));
                    }
                    None => {}
                },
            }
        }
    }

    /// Frees a name, if it is still this stream's.
    fn forget(&mut self, inbox: &InboxName, stream: u64) -> Option<State> {
        self.open.get(inbox).filter(|entry| entry.stream == stream)?;
        self.open.remove(inbox).map(|entry| entry.state)
    }
}

fn not_open() -> Fault {
    Fault::no_more(Refusal::Invalid(Invalid::new("inbox", "is not open here")))
}

/// The frames of one inbox, and one item more at their end.
struct Named {
    inbox: InboxName,
    stream: u64,
    /// Absent after the end.
    frames: Option<Frames>,
}

impl Stream for Named {
    type Item = (InboxName, u64, Option<Result<Frame, Refusal>>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(frames) = self.frames.as_mut() else { return Poll::Ready(None) };
        let Poll::Ready(item) = frames.poll_next_unpin(context) else { return Poll::Pending };
        if item.is_none() {
            self.frames = None;
        }
        Poll::Ready(Some((self.inbox.clone(), self.stream, item)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::mpsc;

    use super::*;

    type Sender = mpsc::Sender<Box<Result<Frame, Refusal>>>;

    fn name(text: &str) -> InboxName {
        InboxName::parse(text).expect("valid")
    }

    fn follow(inboxes: &mut Inboxes, inbox: &str) -> Sender {
        let (sender, receiver) = mpsc::channel(16);
        let stream = inboxes.begin(&name(inbox), None).expect("a free name");
        inboxes.opened(&name(inbox), stream, Frames::of(receiver));
        sender
    }

    fn send(sender: &Sender, token: &str) {
        let frame = Frame::CaughtUp { resume_token: token.to_owned() };
        sender.try_send(Box::new(Ok(frame))).expect("room");
    }

    async fn told(inboxes: &mut Inboxes) -> String {
        match poll_fn(|context| inboxes.poll_told(context)).await {
            Told::Frame(inbox, Frame::CaughtUp { resume_token }) => {
                format!("{}:{resume_token}", inbox.as_str())
            }
            Told::Frame(inbox, _) => format!("{} draining", inbox.as_str()),
            Told::Refused(inbox, refusal) => format!("{} {}", inbox.as_str(), refusal.reason()),
            Told::Closed(inbox) => format!("{} closed", inbox.as_str()),
        }
    }

    #[tokio::test]
    async fn inboxes_take_turns_whatever_waits_in_one() {
        let mut inboxes = Inboxes::default();
        let (busy, quiet) = (follow(&mut inboxes, "busy"), follow(&mut inboxes, "quiet"));
        for number in 0..16 {
            send(&busy, &number.to_string());
        }
        assert_eq!(told(&mut inboxes).await, "busy:0");
        send(&quiet, "a");
        send(&quiet, "b");
        let mut order = Vec::new();
        for _ in 0..6 {
            order.push(told(&mut inboxes).await);
        }
        let place = |what: &str| order.iter().position(|told| told == what).expect("told");
        assert!(place("quiet:a") <= 2 && place("quiet:b") <= 4, "{order:?}");
        assert!(place("busy:1") < place("busy:2") && place("busy:2") < place("busy:3"));
    }

    #[tokio::test]
    async fn a_name_is_free_once_its_end_is_told() {
        let mut inboxes = Inboxes::default();
        let first = follow(&mut inboxes, "a");
        assert!(inboxes.begin(&name("a"), None).is_err(), "open");
        first.try_send(Box::new(Err(Refusal::StreamSuperseded))).expect("room");
        assert_eq!(told(&mut inboxes).await, "a STREAM_SUPERSEDED");
        // The old stream's channel is still there, and says nothing about the new one.
        let second = follow(&mut inboxes, "a");
        drop(first);
        send(&second, "t");
        assert_eq!(told(&mut inboxes).await, "a:t");
        inboxes.close(&name("a")).expect("open");
        assert!(second.is_closed() && inboxes.begin(&name("a"), None).is_err(), "closing");
        drop(second);
        assert_eq!(told(&mut inboxes).await, "a closed");
        assert!(inboxes.is_empty());
        let draining = follow(&mut inboxes, "a");
        let frame = Frame::Draining {
            reason: String::new(),
            retry: crate::domain::ids::Span::seconds(1),
            resume_token: String::new(),
        };
        draining.try_send(Box::new(Ok(frame))).expect("room");
        assert_eq!(told(&mut inboxes).await, "a draining");
        assert!(inboxes.is_empty(), "nothing more comes");
        drop(follow(&mut inboxes, "a"));
        assert_eq!(told(&mut inboxes).await, "a INTERNAL", "a stream that vanished");
    }

    #[tokio::test]
    async fn a_close_during_the_opening_is_kept() {
        let mut inboxes = Inboxes::default();
        let stream = inboxes.begin(&name("a"), None).expect("free");
        inboxes.close(&name("a")).expect("opening");
        let (sender, receiver) = mpsc::channel(1);
        inboxes.opened(&name("a"), stream, Frames::of(receiver));
        assert!(sender.is_closed());
        drop(sender);
        assert_eq!(told(&mut inboxes).await, "a closed");
        let stream = inboxes.begin(&name("a"), None).expect("free again");
        assert!(inboxes.refused(&name("a"), stream) && !inboxes.refused(&name("a"), stream));
    }
}
