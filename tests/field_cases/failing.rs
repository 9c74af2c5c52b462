//! A result that its reader cannot finish holds back no other (contract section 7): neither when it
//! is never acked, nor when the stream ends on it each time.

use std::time::Duration;

use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{AckOutcome, DeliveredResult, StreamDeliveriesRequest},
};

use crate::{
    hosted::{Hosted, host},
    support::{
        BOUND,
        client::{Caller, Reader, attempt, sequence},
        eventually,
        requests::{Identity, into_inbox},
        stores::{TestStore, on_both_stores},
    },
};

const RESULTS: i64 = 10;
const CONSUMER: &str = "installation-1";

on_both_stores!(
    a_result_that_is_never_acked_holds_back_no_other,
    a_result_on_which_the_stream_always_ends_holds_back_no_other,
);

/// Ten results in `editor`. The clock stands still; nothing expires or dies in these tests.
async fn with_ten(store: TestStore) -> (Hosted, Caller) {
    let policy =
        Policy { ack_window: Span::hours(2), lock_limit: Span::hours(4), ..Policy::default() };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    for _ in 0..RESULTS {
        caller.submitted(into_inbox(Identity::fresh().put("notes", "x"), "editor")).await;
    }
    (hosted, caller)
}

/// A reader that holds one result at a time.
async fn one_at_a_time(caller: &Caller) -> Reader {
    let request = StreamDeliveriesRequest {
        inbox: "editor".into(),
        consumer_id: CONSUMER.into(),
        window: 1,
        ..StreamDeliveriesRequest::default()
    };
    caller.open(request).await.expect("the stream opens")
}

fn shown(results: &[DeliveredResult]) -> Vec<(i64, i32)> {
    results.iter().map(|result| (sequence(result), attempt(result))).collect()
}

/// Acks each other result as it comes. All come before the first one comes again, although its
/// pause is over long before them.
async fn others_come_first(hosted: &Hosted, caller: &Caller, reader: &mut Reader, again: i32) {
    for number in 2..=RESULTS {
        assert_eq!(shown(&reader.results(1).await), [(number, 1)]);
        hosted.advance(Duration::from_secs(2));
        let acked = caller.ack("editor", &[number]).await.expect("acked");
        assert_eq!(acked, [AckOutcome::Acked]);
    }
    assert_eq!(shown(&reader.results(1).await), [(1, again)]);
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 1, RESULTS - 1));
    assert_eq!((inbox.expired_total, inbox.dead_total), (0, 0));
}

async fn a_result_that_is_never_acked_holds_back_no_other(store: TestStore) {
    let (hosted, caller) = with_ten(store).await;
    let mut reader = one_at_a_time(&caller).await;
    assert_eq!(shown(&reader.results(1).await), [(1, 1)]);
    hosted.advance(Duration::from_secs(31));
    others_come_first(&hosted, &caller, &mut reader, 2).await;
    hosted.stop().await;
}

async fn a_result_on_which_the_stream_always_ends_holds_back_no_other(store: TestStore) {
    let (hosted, caller) = with_ten(store).await;
    // Ended once, it comes again at once and before the others: the order of their numbers.
    for attempt in 1..=2 {
        let mut reader = one_at_a_time(&caller).await;
        assert_eq!(shown(&reader.results(1).await), [(1, attempt)]);
        drop(reader);
        eventually("the result to come back", BOUND, async || {
            (caller.inbox("editor").await.in_flight == 0).then_some(())
        })
        .await;
    }
    let mut reader = one_at_a_time(&caller).await;
    others_come_first(&hosted, &caller, &mut reader, 3).await;
    hosted.stop().await;
}
