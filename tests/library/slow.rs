//! F14 as an application meets it: a handler that works for longer than one attempt may wait.

use std::time::Duration;

use receiptd::{
    client::results::Received,
    domain::{ids::Span, policy::Policy},
    proto::{
        Delivery, ListDeliveriesRequest, StreamDeliveriesRequest, delivery::State as DeliveryState,
    },
};
use tokio::sync::Notify;

use crate::{
    append, client,
    hosted::host,
    support::{
        BOUND,
        client::Caller,
        eventually,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(f14_a_slow_handler_keeps_its_result);

async fn only_delivery(caller: &Caller) -> Delivery {
    let request = ListDeliveriesRequest { inbox: "editor".to_owned(), ..Default::default() };
    let answer = caller.inboxes.clone().list_deliveries(request).await.expect("answered");
    answer.into_inner().deliveries.into_iter().next().expect("one delivery")
}

fn deadline(delivery: &Delivery) -> Option<(i64, i32)> {
    delivery.ack_deadline.map(|time| (time.seconds, time.nanos))
}

/// The library extends by its own clock; the store's is moved, so that no pause of this machine
/// can end an attempt.
async fn f14_a_slow_handler_keeps_its_result(store: TestStore) {
    let policy = Policy { ack_deadline: Span::seconds(2), ..Policy::default() };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let client = client(hosted.address, &directory.path().join("journal"));
    let submission = append("lines/editor", "x").into_inbox("editor");
    client.submit(submission).await.expect("an outcome");

    let (began, may_end) = (Notify::new(), Notify::new());
    let handler = async |_: Received| {
        began.notify_one();
        may_end.notified().await;
        Ok::<(), String>(())
    };
    let end = async {
        within("the handler to begin", began.notified()).await;
        // Somebody else would take it at once.
        let request = StreamDeliveriesRequest {
            inbox: "editor".to_owned(),
            consumer_id: "other".to_owned(),
            ..Default::default()
        };
        let other = caller.open(request).await.expect("the stream opens");
        for _ in 0..3 {
            // Before the clock moves: an extension that comes in between is one already.
            let before = deadline(&only_delivery(&caller).await);
            hosted.advance(Duration::from_millis(1_500));
            let extended = async || {
                let now = deadline(&only_delivery(&caller).await);
                (now > before).then_some(())
            };
            eventually("more time", BOUND, extended).await;
        }
        may_end.notify_one();
        let acked = async || {
            let state = only_delivery(&caller).await.state();
            (state == DeliveryState::Acked).then_some(())
        };
        eventually("the ack", BOUND, acked).await;
        drop(other);
    };
    let results = client.inbox("editor").consumer("laptop");
    within("all of it", results.stream_until(end, handler)).await.expect("it was asked to end");
    assert_eq!(only_delivery(&caller).await.attempt, 1, "it was handed to nobody else");
    hosted.stop().await;
}
