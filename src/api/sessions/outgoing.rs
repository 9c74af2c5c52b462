//! What a session has to tell: frames of its inboxes, and answers, several in one message.
//!
//! What must stay true: small messages are packed while they wait (T20); one kind never starves
//! another; what waits is passed over a bounded number of times; whatever waits here still counts as work of the session, so that its amount is bounded.

use std::collections::VecDeque;

use prost::Message;

use crate::{
    api::convert::sessions::of_session,
    proto::{
        ConnectResponse, SessionAckResult, SessionAckResultItem, SessionExtendResult,
        SessionExtendResultItem, SessionSubmitResult, SessionSubmitResultItem,
        connect_response::Frame as Sent,
    },
};

/// The most that a message is filled to, as frames with results are; one larger answer goes alone.
const PACK_BYTES_MAX: usize = 16 * 1024;
/// Tag and length of one answer in a message.
const ANSWER_BYTES: usize = 8;
/// Steps of a session for which what waits here is passed over: enough to pack answers well. A
/// peer that floods frames without answers (credit) has no other bound.
const PASSED_OVER_MAX: u32 = 64;

/// What waits for the client.
#[derive(Default)]
pub(super) struct Outgoing {
    /// The next frame of an inbox. Only one: the others wait in the inboxes' own channels.
    frame: Option<ConnectResponse>,
    /// About single frames of the client, and about the session.
    told: VecDeque<ConnectResponse>,
    submits: Answers<SessionSubmitResultItem>,
    acks: Answers<SessionAckResultItem>,
    extensions: Answers<SessionExtendResultItem>,
    /// Whose turn it is.
    turn: usize,
    /// Steps for which what waits was passed over.
    passed_over: u32,
}

/// Answers of one kind, each with its size in a message.
struct Answers<T> {
    waiting: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Answers { waiting: VecDeque::new(), bytes: 0 }
    }
}

/// How much waits for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// About single frames and the session.
    pub(super) told: usize,
    /// Answers to submits.
    pub(super) submits: usize,
    /// Answers to acks and to extensions.
    pub(super) lists: usize,
    /// Of all answers.
    pub(super) bytes: usize,
}

/// The kinds that take turns.
const KINDS: usize = 5;

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_none()
            && self.told.is_empty()
            && self.submits.waiting.is_empty()
            && self.acks.waiting.is_empty()
            && self.extensions.waiting.is_empty()
    }

    /// Counts a step before which nothing was sent.
    pub(super) fn pass_over(&mut self) {
        self.passed_over = match self.is_empty() {
            true => 0,
            false => self.passed_over.saturating_add(1),
        };
    }

    /// Whether what waits goes before anything else that could come.
    pub(super) fn is_due(&self) -> bool {
        self.passed_over >= PASSED_OVER_MAX
    }

    /// Whether the next frame of an inbox may be taken.
    pub(super) fn takes_frame(&self) -> bool {
        self.frame.is_none()
    }

    pub(super) fn waiting(&self) -> Waiting {
        Waiting {
            told: self.told.len(),
            submits: self.submits.waiting.len(),
            lists: self.acks.waiting.len() + self.extensions.waiting.len(),
            bytes: self.submits.bytes + self.acks.bytes + self.extensions.bytes,
        }
    }

    pub(super) fn frame(&mut self, frame: ConnectResponse) {
        self.frame = Some(frame);
    }

    pub(super) fn tell(&mut self, frame: ConnectResponse) {
        self.told.push_back(frame);
    }

    pub(super) fn submitted(&mut self, answer: SessionSubmitResultItem) {
        self.submits.push(answer);
    }

    pub(super) fn acked(&mut self, answer: SessionAckResultItem) {
        self.acks.push(answer);
    }

    pub(super) fn extended(&mut self, answer: SessionExtendResultItem) {
        self.extensions.push(answer);
    }

    /// The next message.
    pub(super) fn take(&mut self) -> Option<ConnectResponse> {
        self.passed_over = 0;
        (0..KINDS).find_map(|_| {
            self.turn = (self.turn + 1) % KINDS;
            match self.turn {
                0 => self.frame.take(),
                1 => self.told.pop_front(),
                2 => self
                    .submits
                    .pack()
                    .map(|results| of_session(Sent::SubmitResult(SessionSubmitResult { results }))),
                3 => self
                    .acks
                    .pack()
                    .map(|results| of_session(Sent::AckResult(SessionAckResult { results }))),
                _ => self
                    .extensions
                    .pack()
                    .map(|results| of_session(Sent::ExtendResult(SessionExtendResult { results }))),
            }
        })
    }
}

impl<T: Message> Answers<T> {
    fn push(&mut self, answer: T) {
        let bytes = answer.encoded_len() + ANSWER_BYTES;
        self.bytes += bytes;
        self.waiting.push_back((answer, bytes));
    }

    /// As many answers as one message takes, at least one if there is any.
    fn pack(&mut self) -> Option<Vec<T>> {
        let mut packed = Vec::new();
        let mut filled = 0;
        while let Some((_, bytes)) = self.waiting.front()
            && (filled == 0 || filled + bytes <= PACK_BYTES_MAX)
            && let Some((answer, bytes)) = self.waiting.pop_front()
        {
            filled += bytes;
            self.bytes -= bytes;
            packed.push(answer);
        }
        (!packed.is_empty()).then_some(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{AckDeliveriesResponse, AckResult, session_ack_result_item::Result as Item};

    fn acked(tag: i64, inbox_bytes: usize) -> SessionAckResultItem {
        let inbox = "i".repeat(inbox_bytes);
        let results = vec![AckResult { inbox, ..AckResult::default() }];
        let response = AckDeliveriesResponse { results };
        SessionAckResultItem { tag, result: Some(Item::Response(response)) }
    }

    fn tags(message: Option<ConnectResponse>) -> Vec<i64> {
        match message.and_then(|message| message.frame) {
            Some(Sent::AckResult(packed)) => packed.results.iter().map(|item| item.tag).collect(),
            Some(Sent::SubmitResult(packed)) => {
                packed.results.iter().map(|item| item.tag).collect()
            }
            Some(Sent::ExtendResult(packed)) => {
                packed.results.iter().map(|item| item.tag).collect()
            }
            other => panic!("not answers: {other:?}"),
        }
    }

    #[test]
    fn answers_are_packed_in_order_up_to_the_bound() {
        let mut outgoing = Outgoing::default();
        for (tag, bytes) in [(1, 10), (2, 10), (3, PACK_BYTES_MAX), (4, 9_000), (5, 9_000)] {
            outgoing.acked(acked(tag, bytes));
        }
        let waiting = outgoing.waiting();
        assert_eq!((waiting.told, waiting.submits, waiting.lists), (0, 0, 5));
        assert!(waiting.bytes > PACK_BYTES_MAX + 18_000, "{waiting:?}");
        for expected in [vec![1, 2], vec![3], vec![4], vec![5]] {
            assert_eq!(tags(outgoing.take()), expected);
        }
        assert!(outgoing.is_empty() && outgoing.take().is_none());
        assert_eq!(outgoing.waiting().bytes, 0);
    }

    #[test]
    fn kinds_take_turns() {
        let mut outgoing = Outgoing::default();
        let named = |inbox: &str| ConnectResponse { inbox: inbox.to_owned(), frame: None };
        for number in 0..3 {
            outgoing.tell(named(&format!("told-{number}")));
            outgoing.acked(acked(number, PACK_BYTES_MAX));
            outgoing.submitted(SessionSubmitResultItem { tag: number, result: None });
            outgoing.extended(SessionExtendResultItem { tag: 10 + number, result: None });
        }
        outgoing.frame(named("frame"));
        assert!(!outgoing.takes_frame());
        assert_eq!(outgoing.take().map(|frame| frame.inbox).as_deref(), Some("told-0"));
        assert_eq!(tags(outgoing.take()), [0, 1, 2], "submits");
        assert_eq!(tags(outgoing.take()), [0], "acks");
        assert_eq!(tags(outgoing.take()), [10, 11, 12], "extensions");
        assert_eq!(outgoing.take().map(|frame| frame.inbox).as_deref(), Some("frame"));
        assert_eq!(outgoing.take().map(|frame| frame.inbox).as_deref(), Some("told-1"));
    }
    #[test]
    fn what_waits_is_passed_over_for_a_while() {
        let mut outgoing = Outgoing::default();
        for _ in 0..2 * PASSED_OVER_MAX {
            outgoing.pass_over();
        }
        assert!(!outgoing.is_due(), "nothing waits");
        outgoing.acked(acked(1, 10));
        for _ in 0..PASSED_OVER_MAX {
            assert!(!outgoing.is_due());
            outgoing.pass_over();
        }
        assert!(outgoing.is_due(), "whatever else comes");
        assert_eq!(tags(outgoing.take()), [1]);
        assert!(!outgoing.is_due());
    }
}
