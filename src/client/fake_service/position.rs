//! How the fake sends a stream.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tonic::Status;

use super::Store;
use crate::proto::{stream_deliveries_response::Frame, *};

/// One stream: where it stands, and whether it has told that the backlog is over.
pub(super) struct Position {
    store: Arc<Store>,
    sequence: i64,
    opened: bool,
    caught_up: bool,
}

impl Position {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Position { store, sequence: 0, opened: false, caught_up: false }
    }

    pub(super) async fn next_frame(
        mut self,
    ) -> Option<(Result<StreamDeliveriesResponse, Status>, Self)> {
        let frame = loop {
            if !self.opened {
                self.opened = true;
                let policy = self.store.script().policy;
                break Frame::Opened(Opened { policy, ..Opened::default() });
            }
            if let Some(frame) = self.store.script().frames.pop_front() {
                break frame;
            }
            let (results, last) = self.store.data().send_after(self.sequence);
            self.sequence = last;
            if !results.is_empty() {
                let resume_token = last.to_string();
                break Frame::Deliveries(DeliveryBatch { results, resume_token });
            }
            if !self.caught_up {
                self.caught_up = true;
                break Frame::CaughtUp(CaughtUp { resume_token: last.to_string() });
            }
            // A change between the look and the wait is found by the next look.
            let wait = self.store.changed.notified();
            drop(timeout(Duration::from_millis(20), wait).await);
        };
        Some((Ok(StreamDeliveriesResponse { frame: Some(frame) }), self))
    }
}
