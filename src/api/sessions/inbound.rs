//! What a frame of the client asks for.
//!
//! What must stay true: permissions are those of the unary calls, asked for each frame; a frame
//! that is refused is answered where it belongs, by its inbox or its tag; only what belongs
//! nowhere ends the session, and no effect of it begins.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use prost::Message;

use super::{
    inboxes::Fault,
    life::{Done, Session},
};
use crate::{
    api::{
        Api,
        auth::{Permission, Principal},
        convert::{
            inboxes::result_bytes,
            sessions::{closed, stream_request},
            submit::WAIT_LIMIT,
            times,
        },
        deadline::AnswerBy,
        inboxes::Wanted,
        status::Refused,
        submits::BATCH_MAX,
    },
    domain::{
        ids::{InboxName, Invalid, Span},
        refusal::Refusal,
    },
    proto::{
        self, SessionAckResultItem, SessionExtendResultItem, SessionSubmitResultItem,
        connect_request::Frame as Asks, session_ack_result_item::Result as Acked,
        session_extend_result_item::Result as Extended,
    },
    stream::{Granted, credit::Credit},
    telemetry,
};

/// Submits of a session that wait for their outcome at a time. Half of what may run, so that
/// waiting never holds up what comes after; further ones are answered with the state in force.
pub(super) const WAITS_MAX: usize = 128;
/// An inbox's name in an answer to a frame that named a bad one: as long as a good one may be.
const NAME_TOLD_MAX: usize = 64;

impl Session {
    /// Begins what a frame asks for.
    ///
    /// # Errors
    /// INVALID_FIELD for a frame that can't be answered for itself.
    pub(super) fn begin(&mut self, request: proto::ConnectRequest) -> Result<(), Refused> {
        let Some(frame) = request.frame else {
            let problem = "is empty, or of a kind that this release does not know";
            return Err(Invalid::new("frame", problem).into());
        };
        telemetry::session_frame(kind(&frame));
        match frame {
            Asks::Open(open) => {
                let named = open.inbox.clone();
                let opening = self.begin_opening(open);
                self.tell_fault(&named, opening);
            }
            Asks::Submit(submit) => self.begin_submits(submit)?,
            Asks::Ack(ack) => self.begin_ack(ack),
            Asks::Extend(extend) => self.begin_extension(extend),
            Asks::Credit(credit) => {
                let granted = name(&credit.inbox).and_then(|inbox| {
                    self.sources.inboxes.grant(&inbox, credit.messages, credit.bytes)
                });
                self.tell_fault(&credit.inbox, granted);
            }
            Asks::Close(close) => {
                let closing =
                    name(&close.inbox).and_then(|inbox| self.sources.inboxes.close(&inbox));
                self.tell_fault(&close.inbox, closing);
            }
        }
        Ok(())
    }

    fn begin_opening(&mut self, open: proto::SessionOpen) -> Result<(), Fault> {
        self.caller.may(Permission::Receive).map_err(Fault::no_more)?;
        let inbox = name(&open.inbox)?;
        let granted = granted(&open)?;
        let credit = granted.as_ref().map(|granted| Arc::clone(&granted.credit));
        let stream = self.sources.inboxes.begin(&inbox, credit)?;
        let request = stream_request(open);
        let wanted = Wanted { request, credit: granted, end: Some(self.end) };
        let (api, caller) = (self.api.clone(), Arc::clone(&self.caller));
        self.run_beside(async move {
            let opened = api.frames(&caller.account, wanted).await;
            Done::Opened { inbox, stream, opened }
        });
        Ok(())
    }

    fn begin_submits(&mut self, submit: proto::SessionSubmit) -> Result<(), Refused> {
        if submit.items.len() > BATCH_MAX {
            return Err(Invalid::new("submit.items", format!("must be at most {BATCH_MAX}")).into());
        }
        for item in submit.items {
            self.begin_submit(item.tag, item.request.unwrap_or_default());
        }
        Ok(())
    }

    fn begin_submit(&mut self, tag: i64, mut request: proto::SubmitOperationRequest) {
        let wait = request.wait.as_ref();
        let wait =
            wait.and_then(|span| times::read_duration("wait", span, Span(1), WAIT_LIMIT).ok());
        let waits = wait.is_some() && self.load.waits < WAITS_MAX;
        if wait.is_some() && !waits {
            request.wait = None;
        }
        let bytes = request.encoded_len();
        self.load.submits += 1;
        self.load.waits += usize::from(waits);
        self.load.bytes += bytes;
        let (api, caller, answer_by) = (self.api.clone(), Arc::clone(&self.caller), self.answer_by);
        // Each future hands its command to the engine when it is first polled, and they are first
        // polled in their order.
        self.run_beside(async move {
            let outcome = api.submit(&caller, request, answer_by).await;
            let answer = SessionSubmitResultItem { tag, result: Some(api.item(outcome)) };
            Done::Submitted { answer: Box::new(answer), waits, bytes }
        });
    }

    /// Counts a list of acks or extensions, and hands out what runs it.
    fn begin_list(&mut self, bytes: usize) -> (Api, Arc<Principal>, AnswerBy) {
        self.load.lists += 1;
        self.load.bytes += bytes;
        (self.api.clone(), Arc::clone(&self.caller), self.answer_by)
    }

    fn begin_ack(&mut self, ack: proto::SessionAck) {
        let proto::SessionAck { tag, request } = ack;
        let request = request.unwrap_or_default();
        let bytes = request.encoded_len();
        let (api, caller, answer_by) = self.begin_list(bytes);
        self.run_beside(async move {
            let outcome = match caller.may(Permission::Ack) {
                Ok(()) => api.ack(&caller, request, answer_by).await,
                Err(refusal) => Err(refusal.into()),
            };
            let result = match outcome {
                Ok(response) => Acked::Response(response),
                Err(refused) => Acked::Error(api.error(refused)),
            };
            Done::Acked { answer: SessionAckResultItem { tag, result: Some(result) }, bytes }
        });
    }

    fn begin_extension(&mut self, extend: proto::SessionExtend) {
        let proto::SessionExtend { tag, request } = extend;
        let request = request.unwrap_or_default();
        let bytes = request.encoded_len();
        let (api, caller, answer_by) = self.begin_list(bytes);
        self.run_beside(async move {
            let outcome = match caller.may(Permission::Ack) {
                Ok(()) => api.extend(&caller, request, answer_by).await,
                Err(refusal) => Err(refusal.into()),
            };
            let result = match outcome {
                Ok(response) => Extended::Response(response),
                Err(refused) => Extended::Error(api.error(refused)),
            };
            Done::Extended { answer: SessionExtendResultItem { tag, result: Some(result) }, bytes }
        });
    }

    /// Answers a frame about an inbox that is refused.
    fn tell_fault(&mut self, inbox: &str, outcome: Result<(), Fault>) {
        let Err(Fault { refusal, followed }) = outcome else { return };
        let error = self.api.error(refusal.into());
        let named: String = match InboxName::parse(inbox) {
            Ok(name) => name.as_str().to_owned(),
            Err(_) => inbox.chars().take(NAME_TOLD_MAX).collect(),
        };
        self.outgoing.tell(closed(&named, Some(error), followed));
    }

    /// Runs something without waiting for it here.
    pub(super) fn run_beside(&mut self, work: impl Future<Output = Done> + Send + 'static) {
        let work: BoxFuture<'static, Done> = Box::pin(work);
        self.sources.work.push(work);
    }
}

/// The word in metrics.
fn kind(frame: &Asks) -> &'static str {
    match frame {
        Asks::Open(_) => "open",
        Asks::Submit(_) => "submit",
        Asks::Ack(_) => "ack",
        Asks::Extend(_) => "extend",
        Asks::Credit(_) => "credit",
        Asks::Close(_) => "close",
    }
}

fn name(inbox: &str) -> Result<InboxName, Fault> {
    InboxName::parse(inbox).map_err(|invalid| Fault::no_more(Refusal::Invalid(invalid)))
}

/// What an opening grants; none if the window alone is to bound the stream.
fn granted(open: &proto::SessionOpen) -> Result<Option<Granted>, Fault> {
    let (messages, bytes) = (open.credit_messages, open.credit_bytes);
    for (field, value) in [("credit_messages", messages), ("credit_bytes", bytes)] {
        if value.is_some_and(|value| value < 0) {
            let invalid = Invalid::new(field, "must not be negative; absent means not bounded");
            return Err(Fault::no_more(Refusal::Invalid(invalid)));
        }
    }
    let credit = || Granted { credit: Arc::new(Credit::new(messages, bytes)), result_bytes };
    Ok((messages.is_some() || bytes.is_some()).then(credit))
}
