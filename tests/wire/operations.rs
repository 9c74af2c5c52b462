//! WatchOperation: signs of life, and ends that say why.

use std::time::Duration;

use receiptd::proto::{WatchOperationRequest, WatchOperationResponse, operation::State};
use tonic::{Code, Status, Streaming};

use crate::support::{
    BOUND, background,
    client::{Caller, Refused},
    eventually,
    requests::{Identity, until_acked},
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(a_watch_shows_signs_of_life_and_ends_by_age_and_drain);

mod with_a_store_of_their_own {
    use super::*;

    on_both_stores!(alone: a_watch_outlives_an_outage_of_its_store);

    async fn a_watch_outlives_an_outage_of_its_store(store: TestStore) {
        let server = store.serve(&["--heartbeat=50ms"]);
        let caller = server.a();
        let mut watched = Watched::of_a_waiter(&caller).await;
        let outage = store.take_away();
        for _ in 0..3 {
            let life = watched.frame().await.expect("alive").expect("alive");
            assert!(life.heartbeat.is_some(), "{life:?}");
        }
        outage.end();
        // The ack releases the lock that the watched operation waits for.
        eventually("an ack", BOUND, async || caller.ack("", &[1]).await.ok()).await;
        assert_eq!(watched.change().await.operation.map(|now| now.state()), Some(State::Applied));
        assert!(watched.frame().await.expect("a good end").is_none());
    }
}

struct Watched(Streaming<WatchOperationResponse>, Identity);

impl Watched {
    /// Watches an operation that waits until delivery 1 is acked; its snapshot was read.
    async fn of_a_waiter(caller: &Caller) -> Watched {
        let (holder, waiter) = (Identity::fresh(), Identity::fresh());
        caller.submitted(until_acked(holder.append("d", "x"))).await;
        caller.submitted(waiter.append("d", "y")).await;
        let mut client = caller.operations.clone();
        let request = WatchOperationRequest { operation_id: waiter.id.clone(), mint_time: None };
        let opened = within("a watch to open", client.watch_operation(request)).await;
        let mut watched = Watched(opened.expect("opens").into_inner(), waiter);
        let first = watched.change().await;
        assert!(first.snapshot);
        assert_eq!(first.operation.map(|now| now.state()), Some(State::Accepted));
        watched
    }

    async fn frame(&mut self) -> Result<Option<WatchOperationResponse>, Status> {
        within("a frame", self.0.message()).await
    }

    async fn change(&mut self) -> WatchOperationResponse {
        loop {
            let frame = self.frame().await.expect("it goes on").expect("it goes on");
            if frame.heartbeat.is_none() {
                return frame;
            }
        }
    }

    /// The error with which it ends.
    async fn end(&mut self) -> Refused {
        loop {
            match self.frame().await {
                Ok(frame) => assert!(frame.is_some(), "an end without a reason"),
                Err(status) => return Refused::of(&status),
            }
        }
    }
}

async fn a_watch_shows_signs_of_life_and_ends_by_age_and_drain(store: TestStore) {
    let mut server = store.serve(&["--heartbeat=50ms", "--stream-age=1s"]);
    let mut aged = Watched::of_a_waiter(&server.a()).await;
    let life = aged.frame().await.expect("alive").expect("alive");
    assert!(life.heartbeat.expect("a sign of life").store_time.is_some());
    assert!(life.operation.is_none() && life.recovery.is_none() && !life.snapshot);
    let end = aged.end().await;
    assert_eq!((end.code, end.reason.as_str()), (Code::Unavailable, "DRAINING"));
    assert_eq!(end.message, "the stream reached its maximum age; open it again");
    assert_eq!(end.value("operation_id"), aged.1.id);
    let delay = end.retry_delay.expect("when to come back");
    assert!((1..=3).contains(&delay.as_secs()), "{delay:?}");
    assert!(tokio::task::block_in_place(|| server.stop()).success());

    let mut server = store.serve(&[]);
    let mut drained = Watched::of_a_waiter(&server.b()).await;
    let reading = background(async move { drained.end().await });
    let status = tokio::task::block_in_place(|| server.stop());
    assert!(status.success());
    let end = within("the end", reading).await.expect("no panic");
    assert_eq!((end.code, end.reason.as_str()), (Code::Unavailable, "DRAINING"));
    assert_eq!(end.message, "this server is shutting down");
    assert!(end.retry_delay.is_some_and(|delay| delay >= Duration::from_secs(1)));
}
