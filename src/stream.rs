//! Placeholder of the first step; replaced by the life of a consumer.
#![allow(unused_variables, missing_docs, clippy::unimplemented, clippy::allow_attributes)]
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    domain::{
        delivery::{Delivery, DeliveryState, InboxKey},
        ids::{ConsumerId, OperationId, Span, Timestamp},
        inbox::{Consumer, Inbox},
        operation::Operation,
        refusal::Refusal,
    },
    engine::Engine,
};

/// What a caller asked for; the token is not opened yet.
#[derive(Debug, Clone)]
pub struct OpenStream {
    pub inbox: InboxKey,
    pub consumer: ConsumerId,
    /// Unacked results the stream may hold; already bounded by the policy.
    pub window: i64,
    /// Empty: start with everything that is unacked.
    pub resume_token: String,
}

/// How streams behave.
#[derive(Debug, Clone)]
pub struct StreamSettings {
    pub heartbeat: Span,
    /// Streams end themselves at this age, with jitter.
    pub age_max: Span,
    /// A frame that nobody takes for this long ends the stream.
    pub write_stall_max: Span,
}

#[derive(Debug, Clone)]
pub enum Frame {
    Opened {
        resume_token: String,
        inbox: Box<Inbox>,
        consumer: Consumer,
        acked_elsewhere: i64,
        heartbeat: Span,
    },
    Deliveries {
        results: Vec<(Delivery, Operation)>,
        resume_token: String,
    },
    CaughtUp {
        resume_token: String,
    },
    Heartbeat {
        resume_token: String,
        now: Timestamp,
    },
    Gap {
        first: i64,
        last: i64,
        cause: DeliveryState,
        operation_ids: Vec<OperationId>,
    },
    Withdrawn(Vec<(i64, OperationId, DeliveryState)>),
    Draining {
        reason: String,
        retry: Span,
        resume_token: String,
    },
}

/// Opens a stream and runs it in a task of its own until the receiver is dropped, `shutdown` is
/// cancelled, a newer stream takes over, or it is too old. The last item may be a refusal.
pub async fn open(
    engine: &Engine,
    request: OpenStream,
    settings: StreamSettings,
    shutdown: CancellationToken,
) -> Result<mpsc::Receiver<Result<Frame, Refusal>>, Refusal> {
    unimplemented!()
}
