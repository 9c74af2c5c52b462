//! SessionService: what an editor needs on one stream (contract section 4).
//!
//! What must stay true: an inbox of a session is a stream like any other, and a submit, an ack or an
//! extension goes through the same functions as its unary call; no frame of one inbox or submit
//! waits for another's; whatever a peer sends, a session holds a bounded amount of it. The end of
//! the caller's frames acks nothing (gotcha 13).
//!
//! `inbound` does what a frame asks for, `inboxes` holds what is followed, `outgoing` what is to be
//! told, and `life` is the loop.

mod inbound;
mod inboxes;
mod life;
mod outgoing;

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Api,
    auth::{self, Permission, Principal},
    deadline::{AnswerBy, Call},
    places::Placed,
    status::Refused,
};
use crate::{
    domain::{ids::Span, refusal::Refusal},
    proto::{self, session_service_server::SessionService},
};

/// Frames that wait for the client: what one flush of the connection takes, and few enough that a
/// stalled client costs little.
const FRAMES_MAX: usize = 4;
/// When to come back to a server that shuts down.
const DRAIN_RETRY: Span = Span::seconds(1);

/// What waits in a session's channel: boxed, because a channel keeps room for many.
type Item = Box<Result<proto::ConnectResponse, Status>>;
type Frames = Pin<Box<dyn Stream<Item = Result<proto::ConnectResponse, Status>> + Send>>;

#[tonic::async_trait]
impl SessionService for Api {
    type ConnectStream = Placed<Frames>;

    async fn connect(
        &self,
        request: Request<Streaming<proto::ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let call = Call::plain(&request);
        let answer = || {
            let caller = auth::principal(&request)?;
            if caller.may(Permission::Submit).is_err() && caller.may(Permission::Ack).is_err() {
                caller.may(Permission::Receive)?;
            }
            let place = self.place(&caller)?;
            if self.drain().is_cancelled() {
                return Err(Refusal::Draining { retry: DRAIN_RETRY }.into());
            }
            Ok((place, caller))
        };
        let answer: Result<_, Refused> = answer();
        let answer_by = call.answer_by;
        let result = match answer {
            Ok((place, caller)) => self
                .session(caller, request.into_inner(), answer_by)
                .map(|frames| place.hold(frames)),
            Err(refused) => Err(refused),
        };
        self.answer(call, result)
    }
}

impl Api {
    /// Runs a session in a task of its own until one side ends it.
    fn session(
        &self,
        caller: Arc<Principal>,
        frames: Streaming<proto::ConnectRequest>,
        answer_by: AnswerBy,
    ) -> Result<Frames, Refused> {
        let (sender, receiver) = mpsc::channel(FRAMES_MAX + 1);
        // One place is kept for the last item, so that a session whose client is slow can still
        // say why it ends.
        let last_word = sender.clone().try_reserve_owned().map_err(|_| Refusal::Internal)?;
        let session = life::Session::new(self.clone(), caller, frames, answer_by, sender);
        self.engine().seams().spawn(session.run(last_word));
        Ok(Box::pin(ReceiverStream::new(receiver).map(|item: Item| *item)))
    }
}
