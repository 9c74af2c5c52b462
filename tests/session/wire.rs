//! A session as its client sees it: frames up as sent, frames down as they came.

use std::collections::{BTreeMap, VecDeque};

use receiptd::proto::{
    AckDeliveriesRequest, AckTarget, AttemptTarget, ConnectRequest, ConnectResponse,
    DeliveredResult, ExtendDeliveriesRequest, SessionAck, SessionAckResultItem, SessionClose,
    SessionClosed, SessionCredit, SessionExtend, SessionExtendResultItem, SessionOpen,
    SessionSubmit, SessionSubmitItem, SessionSubmitResultItem, SubmitOperationRequest,
    SubmitOperationResponse, batch_submit_result::Result as Submitted,
    connect_request::Frame as Asks, connect_response::Frame,
    session_ack_result_item::Result as Acked, session_extend_result_item::Result as Extended,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::support::{client::Caller, within};

/// An open session.
pub struct Session {
    /// Absent after the half-close.
    up: Option<mpsc::Sender<ConnectRequest>>,
    down: Streaming<ConnectResponse>,
    /// Came, and nobody asked for it yet.
    seen: VecDeque<ConnectResponse>,
    /// The last token of each inbox.
    pub tokens: BTreeMap<String, String>,
}

pub fn opening(inbox: &str, consumer: &str) -> SessionOpen {
    SessionOpen {
        inbox: inbox.to_owned(),
        consumer_id: consumer.to_owned(),
        ..SessionOpen::default()
    }
}

pub fn ack_of(inbox: &str, sequences: &[i64], consumer: &str) -> AckDeliveriesRequest {
    let target = |sequence: &i64| AckTarget {
        inbox: inbox.to_owned(),
        sequence: *sequence,
        ..AckTarget::default()
    };
    AckDeliveriesRequest {
        deliveries: sequences.iter().map(target).collect(),
        consumer_id: consumer.to_owned(),
    }
}

/// A minute more for attempts, by number and attempt.
pub fn extension_of(
    inbox: &str,
    attempts: &[(i64, i32)],
    consumer: &str,
) -> ExtendDeliveriesRequest {
    let target = |&(sequence, attempt): &(i64, i32)| {
        let inbox = inbox.to_owned();
        AttemptTarget { inbox, sequence, attempt }
    };
    ExtendDeliveriesRequest {
        deliveries: attempts.iter().map(target).collect(),
        extension: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
        consumer_id: consumer.to_owned(),
    }
}

impl Session {
    pub async fn try_connect(caller: &Caller) -> Result<Session, Status> {
        let (up, frames) = mpsc::channel(64);
        let mut client = caller.sessions.clone();
        let down = within("a session", client.connect(ReceiverStream::new(frames))).await?;
        let (seen, tokens) = (VecDeque::new(), BTreeMap::new());
        Ok(Session { up: Some(up), down: down.into_inner(), seen, tokens })
    }

    pub async fn connect(caller: &Caller) -> Session {
        Session::try_connect(caller).await.expect("the session opens")
    }

    pub async fn send(&self, frame: Option<Asks>) {
        let up = self.up.as_ref().expect("not half-closed");
        within("room for a frame", up.send(ConnectRequest { frame })).await.expect("a session");
    }

    pub async fn open(&self, open: SessionOpen) {
        self.send(Some(Asks::Open(open))).await;
    }

    pub async fn close(&self, inbox: &str) {
        self.send(Some(Asks::Close(SessionClose { inbox: inbox.to_owned() }))).await;
    }

    pub async fn credit(&self, inbox: &str, messages: i64, bytes: i64) {
        let inbox = inbox.to_owned();
        self.send(Some(Asks::Credit(SessionCredit { inbox, messages, bytes }))).await;
    }

    pub async fn submit(&self, requests: Vec<(i64, SubmitOperationRequest)>) {
        let item = |(tag, request)| SessionSubmitItem { tag, request: Some(request) };
        let items = requests.into_iter().map(item).collect();
        self.send(Some(Asks::Submit(SessionSubmit { items }))).await;
    }

    pub async fn ack(&self, tag: i64, request: AckDeliveriesRequest) {
        self.send(Some(Asks::Ack(SessionAck { tag, request: Some(request) }))).await;
    }

    pub async fn extend(&self, tag: i64, request: ExtendDeliveriesRequest) {
        self.send(Some(Asks::Extend(SessionExtend { tag, request: Some(request) }))).await;
    }

    /// Acks, unless the session is gone.
    pub async fn try_ack(&self, tag: i64, request: AckDeliveriesRequest) -> bool {
        let frame = Some(Asks::Ack(SessionAck { tag, request: Some(request) }));
        match &self.up {
            Some(up) => up.send(ConnectRequest { frame }).await.is_ok(),
            None => false,
        }
    }

    /// Says that no more frames will come.
    pub fn half_close(&mut self) {
        self.up = None;
    }

    /// The next frame, whatever it is, or how the session ended.
    pub async fn next(&mut self) -> Result<ConnectResponse, Status> {
        if let Some(seen) = self.seen.pop_front() {
            return Ok(seen);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Result<ConnectResponse, Status> {
        let received = within("a frame", self.down.message()).await?;
        let received = received.ok_or_else(|| Status::ok("the session ended"))?;
        let token = match received.frame.as_ref().expect("a frame of a kind that this test knows") {
            Frame::Opened(opened) => Some(&opened.resume_token),
            Frame::Deliveries(batch) => Some(&batch.resume_token),
            Frame::CaughtUp(caught_up) => Some(&caught_up.resume_token),
            Frame::Heartbeat(heartbeat) => Some(&heartbeat.resume_token),
            Frame::Draining(draining) => Some(&draining.resume_token),
            _ => None,
        };
        if let Some(token) = token {
            self.tokens.insert(received.inbox.clone(), token.clone());
        }
        Ok(received)
    }

    /// The first frame that `wanted` makes something of; those before it stay.
    pub async fn find<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&ConnectResponse) -> Option<T>,
    ) -> T {
        for place in 0..self.seen.len() {
            if let Some(found) = wanted(&self.seen[place]) {
                self.seen.remove(place);
                return found;
            }
        }
        let reading = async {
            loop {
                let frame = self.receive().await.expect("the session stays open");
                match wanted(&frame) {
                    Some(found) => return found,
                    None => self.seen.push_back(frame),
                }
            }
        };
        within(what, reading).await
    }

    /// The first frame of an inbox that `wanted` makes something of.
    pub async fn of<T>(&mut self, inbox: &str, mut wanted: impl FnMut(&Frame) -> Option<T>) -> T {
        let what = format!("a frame of {inbox:?}");
        self.find(&what, |frame| {
            frame.frame.as_ref().filter(|_| frame.inbox == inbox).and_then(&mut wanted)
        })
        .await
    }

    /// Waits until an inbox is open and caught up.
    pub async fn caught_up(&mut self, inbox: &str) {
        self.of(inbox, |frame| matches!(frame, Frame::CaughtUp(_)).then_some(())).await;
    }

    /// Waits for an inbox's heartbeat that was not sent yet: whatever could be sent before it was.
    pub async fn heartbeat(&mut self, inbox: &str) {
        let is_one = |frame: &ConnectResponse| {
            frame.inbox == inbox && matches!(frame.frame, Some(Frame::Heartbeat(_)))
        };
        self.seen.retain(|frame| !is_one(frame));
        self.find("a heartbeat", |frame| is_one(frame).then_some(())).await;
    }

    /// The end of an inbox, or the refusal of a frame about it.
    pub async fn closed(&mut self, inbox: &str) -> SessionClosed {
        self.of(inbox, |frame| match frame {
            Frame::Closed(closed) => Some(closed.clone()),
            _ => None,
        })
        .await
    }

    /// The next results of an inbox.
    pub async fn deliveries(&mut self, inbox: &str) -> Vec<DeliveredResult> {
        self.of(inbox, |frame| match frame {
            Frame::Deliveries(batch) => Some(batch.results.clone()),
            _ => None,
        })
        .await
    }

    /// So many results of an inbox.
    pub async fn results(&mut self, inbox: &str, count: usize) -> Vec<DeliveredResult> {
        let mut results = Vec::new();
        while results.len() < count {
            results.extend(self.deliveries(inbox).await);
        }
        assert_eq!(results.len(), count, "no more than asked for");
        results
    }

    /// Results that came and that nobody asked for.
    pub fn unasked(&mut self, inbox: &str) -> Vec<DeliveredResult> {
        let mut results = Vec::new();
        self.seen.retain(|frame| match &frame.frame {
            Some(Frame::Deliveries(batch)) if frame.inbox == inbox => {
                results.extend(batch.results.clone());
                false
            }
            _ => true,
        });
        results
    }

    /// Answers to so many submits, by tag.
    pub async fn submit_results(&mut self, count: usize) -> BTreeMap<i64, Submitted> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let items: Vec<SessionSubmitResultItem> = self
                .of("", |frame| match frame {
                    Frame::SubmitResult(packed) => Some(packed.results.clone()),
                    _ => None,
                })
                .await;
            for item in items {
                let answer = item.result.and_then(|result| result.result).expect("an answer");
                assert!(answers.insert(item.tag, answer).is_none(), "{} twice", item.tag);
            }
        }
        answers
    }

    /// The answer to one submit, which must be good.
    pub async fn submitted(&mut self, request: SubmitOperationRequest) -> SubmitOperationResponse {
        self.submit(vec![(77, request)]).await;
        match self.submit_results(1).await.remove(&77) {
            Some(Submitted::Response(response)) => response,
            other => panic!("not submitted: {other:?}"),
        }
    }

    /// Answers to so many ack frames, by tag.
    pub async fn ack_results(&mut self, count: usize) -> BTreeMap<i64, Acked> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let items: Vec<SessionAckResultItem> = self
                .of("", |frame| match frame {
                    Frame::AckResult(packed) => Some(packed.results.clone()),
                    _ => None,
                })
                .await;
            for item in items {
                let answer = item.result.expect("an answer");
                assert!(answers.insert(item.tag, answer).is_none(), "{} twice", item.tag);
            }
        }
        answers
    }

    /// Answers to so many frames of extensions, by tag.
    pub async fn extend_results(&mut self, count: usize) -> BTreeMap<i64, Extended> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let items: Vec<SessionExtendResultItem> = self
                .of("", |frame| match frame {
                    Frame::ExtendResult(packed) => Some(packed.results.clone()),
                    _ => None,
                })
                .await;
            for item in items {
                let answer = item.result.expect("an answer");
                assert!(answers.insert(item.tag, answer).is_none(), "{} twice", item.tag);
            }
        }
        answers
    }

    /// Reads until the session ends; what came, and how it ended.
    pub async fn end(&mut self) -> (Vec<ConnectResponse>, Status) {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Ok(frame) => frames.push(frame),
                Err(status) => return (frames, status),
            }
        }
    }
}
