//! Frames of a session: those of its inboxes are the frames of StreamDeliveries.

use crate::proto::{
    self, ConnectResponse, connect_response::Frame as Sent,
    stream_deliveries_response::Frame as Streamed,
};

/// Reads what an opening asks of its inbox, as StreamDeliveries would be asked.
pub fn stream_request(open: proto::SessionOpen) -> proto::StreamDeliveriesRequest {
    proto::StreamDeliveriesRequest {
        inbox: open.inbox,
        resume_token: open.resume_token,
        consumer_id: open.consumer_id,
        window: open.window,
    }
}

/// A frame of an inbox.
pub fn of_inbox(inbox: &str, streamed: proto::StreamDeliveriesResponse) -> ConnectResponse {
    let frame = streamed.frame.map(|frame| match frame {
        Streamed::Opened(opened) => Sent::Opened(opened),
        Streamed::Deliveries(batch) => Sent::Deliveries(batch),
        Streamed::CaughtUp(caught_up) => Sent::CaughtUp(caught_up),
        Streamed::Heartbeat(heartbeat) => Sent::Heartbeat(heartbeat),
        Streamed::Gap(gap) => Sent::Gap(gap),
        Streamed::Withdrawn(withdrawn) => Sent::Withdrawn(withdrawn),
        Streamed::Draining(draining) => Sent::Draining(draining),
    });
    ConnectResponse { inbox: inbox.to_owned(), frame }
}

/// A frame about the session or its answers.
pub fn of_session(frame: Sent) -> ConnectResponse {
    ConnectResponse { inbox: String::new(), frame: Some(frame) }
}

/// Whether an inbox is still followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// As before.
    Still,
    /// Not, or not any more.
    NoMore,
}

/// An inbox's end, or the refusal of a frame about it.
pub fn closed(
    inbox: &str,
    error: Option<proto::SubmitError>,
    followed: Followed,
) -> ConnectResponse {
    let closed = proto::SessionClosed { error, still_open: followed == Followed::Still };
    ConnectResponse { inbox: inbox.to_owned(), frame: Some(Sent::Closed(closed)) }
}
