//! How many fields a request may hold: counted as its bytes arrive, before anything is decoded.
//!
//! What must stay true: a request that costs many times its size once it is decoded (an item of
//! several hundred bytes takes two on the wire) is never decoded; what the services take is never
//! refused here; the size of a message is not judged here, nor whether it is one.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::status;
use crate::domain::refusal::Asked;

/// Fields of one message with those of the messages in it. The fullest ones that the services take
/// have half of it: 1,000 acks with all their fields, 100 submits with all their labels.
pub const FIELDS_MAX: u32 = 10_000;
/// Levels of messages that lists stand in: a list of requests and its requests. Below them are
/// arguments, which are bytes of the caller's own.
const LEVELS: usize = 2;
/// A frame of a session, its kind, the item there, and its request.
const SESSION_LEVELS: usize = 4;
/// A message on the wire begins with a flag and four bytes of length.
const PREFIX_BYTES: u8 = 5;

/// Lets a request through while its messages have at most [`FIELDS_MAX`] fields each.
pub fn bound(request: http::Request<Body>) -> http::Request<Body> {
    let kind = match request.uri().path().starts_with("/receiptd.v1.SessionService/") {
        true => Kind::Session,
        false => Kind::Call,
    };
    request.map(|body| Body::new(Bounded { body, scan: Scan::new(kind) }))
}

/// What the messages of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call's request.
    Call,
    /// The frames of a session.
    Session,
}

impl Kind {
    fn asked(self) -> Asked {
        match self {
            Kind::Call => Asked::Change,
            Kind::Session => Asked::Stream,
        }
    }
}

/// A request's body, counted on its way.
struct Bounded {
    body: Body,
    scan: Scan,
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && self.scan.take(data) == Fields::TooMany
        {
            return Poll::Ready(Some(Err(status::too_many_fields(
                self.scan.kind.asked(),
                FIELDS_MAX,
            ))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a message may still be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fields {
    Within,
    TooMany,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Prefix,
    Tag,
    Varint,
    Length,
    /// Bytes that are nobody's fields; at least one.
    Skip(u64),
}

/// Reads messages as they arrive, in pieces of any size, and keeps a few numbers of them. Fields
/// whose bytes could be a message are entered like one: a name is short, and counts for little.
struct Scan {
    kind: Kind,
    reading: Reading,
    /// The number that is being read, and its bytes so far.
    number: u64,
    bytes: u8,
    /// What is left of each open message, the innermost last.
    left: Vec<u64>,
    fields: u32,
}

impl Scan {
    fn new(kind: Kind) -> Self {
        Scan { kind, reading: Reading::Prefix, number: 0, bytes: 0, left: Vec::new(), fields: 0 }
    }

    fn take(&mut self, mut data: &[u8]) -> Fields {
        while let Some((byte, rest)) = data.split_first() {
            if let Reading::Skip(left) = self.reading {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                data = &data[step..];
                self.skip(left - step as u64);
            } else {
                self.read(*byte);
                data = rest;
            }
            self.leave_what_ended();
            if self.fields > FIELDS_MAX {
                return Fields::TooMany;
            }
        }
        Fields::Within
    }

    fn read(&mut self, byte: u8) {
        if self.reading == Reading::Prefix {
            self.number = self.number << 8 | u64::from(byte);
            self.bytes += 1;
            if self.bytes == PREFIX_BYTES {
                let length = u64::from(self.number as u32);
                self.fields = 0;
                self.left.push(length);
                self.begin(Reading::Tag);
            }
            return;
        }
        self.shorten(1);
        self.number |= u64::from(byte & 0x7f).checked_shl(7 * u32::from(self.bytes)).unwrap_or(0);
        self.bytes += 1;
        if byte >= 0x80 {
            if self.bytes == 10 {
                self.give_up();
            }
            return;
        }
        let number = self.number;
        match self.reading {
            Reading::Tag => {
                self.fields += 1;
                match number & 7 {
                    0 => self.begin(Reading::Varint),
                    1 => self.pass(8),
                    2 => self.begin(Reading::Length),
                    // Groups: their fields count like any others.
                    3 | 4 => self.begin(Reading::Tag),
                    5 => self.pass(4),
                    _ => self.give_up(),
                }
            }
            Reading::Length => {
                let levels = match self.kind {
                    Kind::Call => LEVELS,
                    Kind::Session => SESSION_LEVELS,
                };
                if self.left.len() < levels && number <= self.innermost() {
                    self.shorten(number);
                    self.left.push(number);
                    self.begin(Reading::Tag);
                } else {
                    self.pass(number);
                }
            }
            Reading::Varint | Reading::Prefix | Reading::Skip(_) => self.begin(Reading::Tag),
        }
    }

    fn begin(&mut self, reading: Reading) {
        (self.reading, self.number, self.bytes) = (reading, 0, 0);
    }

    fn innermost(&self) -> u64 {
        self.left.last().copied().unwrap_or(0)
    }

    fn shorten(&mut self, by: u64) {
        if let Some(left) = self.left.last_mut() {
            *left = left.saturating_sub(by);
        }
    }

    /// So many bytes of the innermost message are no fields; no more than it has.
    fn pass(&mut self, bytes: u64) {
        let bytes = bytes.min(self.innermost());
        self.shorten(bytes);
        self.skip(bytes);
    }

    fn skip(&mut self, bytes: u64) {
        self.begin(if bytes == 0 { Reading::Tag } else { Reading::Skip(bytes) });
    }

    /// The innermost message is none; if it should be one, decoding will say so.
    fn give_up(&mut self) {
        self.pass(u64::MAX);
    }

    fn leave_what_ended(&mut self) {
        if let Reading::Prefix | Reading::Skip(_) = self.reading {
            return;
        }
        while self.left.last() == Some(&0) {
            self.left.pop();
            self.begin(Reading::Tag);
        }
        if self.left.is_empty() {
            self.begin(Reading::Prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::{
        AckDeliveriesRequest, AckTarget, BatchGetOperationsRequest, BatchSubmitOperationsRequest,
        ConnectRequest, GetOperationRequest, Intent, SessionAck, SessionSubmit, SessionSubmitItem,
        SubmitOperationRequest, connect_request::Frame as Sent,
    };

    fn on_the_wire(message: &impl Message) -> Vec<u8> {
        let length = u32::try_from(message.encoded_len()).expect("small");
        [&[0][..], &length.to_be_bytes(), &message.encode_to_vec()].concat()
    }

    /// The same whatever the pieces are.
    fn judged(kind: Kind, bytes: &[u8]) -> Fields {
        let by_pieces = |size: usize| {
            let mut scan = Scan::new(kind);
            match bytes.chunks(size).any(|piece| scan.take(piece) == Fields::TooMany) {
                true => Fields::TooMany,
                false => {
                    assert_eq!(
                        (scan.reading, scan.left.len()),
                        (Reading::Prefix, 0),
                        "a whole one"
                    );
                    Fields::Within
                }
            }
        };
        let whole = by_pieces(bytes.len());
        for size in [1, 2, 3, 7, 1_000, 16_384] {
            assert_eq!(by_pieces(size), whole, "{size}");
        }
        whole
    }

    fn in_session(frame: Sent) -> Vec<u8> {
        on_the_wire(&ConnectRequest { frame: Some(frame) })
    }

    fn full_submit() -> SubmitOperationRequest {
        let label = |number: u32| (format!("label-{number}"), "value".to_owned());
        SubmitOperationRequest {
            operation_id: "id".to_owned(),
            intent: Some(Intent {
                action: "document.append".to_owned(),
                target: "notes/today".to_owned(),
                // Were this read as fields, there would be far too many.
                arguments: [0x0a, 0].repeat(100_000),
                ..Intent::default()
            }),
            inbox: "editor".to_owned(),
            labels: (0..16).map(label).collect(),
            ..SubmitOperationRequest::default()
        }
    }

    fn acks(count: usize) -> AckDeliveriesRequest {
        let target = AckTarget {
            inbox: "editor".to_owned(),
            sequence: i64::MAX,
            operation_id: "id".to_owned(),
        };
        AckDeliveriesRequest { deliveries: vec![target; count], consumer_id: "me".to_owned() }
    }

    #[test]
    fn the_fullest_requests_that_are_taken_go_through() {
        let batch = BatchSubmitOperationsRequest { requests: vec![full_submit(); 100] };
        let item = SessionSubmitItem { tag: 1, request: Some(full_submit()) };
        let items = vec![item; 100];
        let rows = [
            (Kind::Call, on_the_wire(&full_submit())),
            (Kind::Call, on_the_wire(&batch)),
            (Kind::Call, on_the_wire(&acks(1_000))),
            (Kind::Call, on_the_wire(&SubmitOperationRequest::default())),
            (Kind::Session, in_session(Sent::Submit(SessionSubmit { items }))),
            (
                Kind::Session,
                in_session(Sent::Ack(SessionAck { tag: 1, request: Some(acks(1_000)) })),
            ),
        ];
        for (number, (kind, bytes)) in rows.into_iter().enumerate() {
            // Each message is counted for itself.
            assert_eq!(judged(kind, &bytes.repeat(3)), Fields::Within, "{number}");
        }
    }

    #[test]
    fn what_grows_when_it_is_decoded_is_stopped() {
        let many = 10_001;
        let requests = vec![SubmitOperationRequest::default(); many];
        let gets = vec![GetOperationRequest::default(); many];
        let items = vec![SessionSubmitItem::default(); many];
        let labels = (0..many).map(|number| (number.to_string(), String::new())).collect();
        let labelled = SubmitOperationRequest { labels, ..SubmitOperationRequest::default() };
        let item = SessionSubmitItem { tag: 1, request: Some(labelled.clone()) };
        let ack = SessionAck { tag: 1, request: Some(acks(many)) };
        let rows = [
            (Kind::Call, on_the_wire(&BatchSubmitOperationsRequest { requests })),
            (Kind::Call, on_the_wire(&BatchGetOperationsRequest { requests: gets })),
            (Kind::Call, on_the_wire(&BatchSubmitOperationsRequest { requests: vec![labelled] })),
            (Kind::Call, on_the_wire(&acks(many))),
            (Kind::Session, in_session(Sent::Submit(SessionSubmit { items }))),
            (Kind::Session, in_session(Sent::Submit(SessionSubmit { items: vec![item] }))),
            (Kind::Session, in_session(Sent::Ack(ack))),
        ];
        for (number, (kind, bytes)) in rows.into_iter().enumerate() {
            assert_eq!(judged(kind, &bytes), Fields::TooMany, "{number}");
        }
    }

    /// Whatever comes, the scan finds the end of each message and never fails.
    #[test]
    fn bytes_that_are_no_fields_do_no_harm() {
        for body in [
            &[0xff; 40][..],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1],
            &[0x0a, 4, 0x0a, 9, 1, 2],
            &[0x0e, 1, 2],
            &[0x09, 1],
            &[0x80],
            &[0x0a],
            &[0x0b, 0x0c],
        ] {
            let length = u32::try_from(body.len()).expect("small").to_be_bytes();
            let bytes = [&[0][..], &length, body].concat();
            assert_eq!(judged(Kind::Call, &bytes.repeat(2)), Fields::Within, "{body:?}");
            assert_eq!(judged(Kind::Session, &bytes.repeat(2)), Fields::Within, "{body:?}");
        }
    }
}
