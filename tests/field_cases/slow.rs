//! A reader that does not read for a while: many small results must neither cut the connection
//! (reliability trap T20) nor get lost, and they arrive in order.

use receiptd::proto::{
    AckOutcome, BatchSubmitOperationsRequest, batch_submit_result::Result as Outcome,
};

use crate::support::{
    BOUND,
    client::sequences,
    eventually,
    requests::{Identity, into_inbox},
    stores::{TestStore, on_both_stores},
    within,
};

const RESULTS: i64 = 2_000;

on_both_stores!(many_small_results_reach_a_reader_that_was_slow);

async fn many_small_results_reach_a_reader_that_was_slow(store: TestStore) {
    let server = store.serve(&["--inbox-slots=10000"]);
    let caller = server.a();
    let mut reader = caller.reader("editor", "installation-1", "").await;
    for batch in 0..RESULTS / 100 {
        let target = format!("small/{batch}");
        let requests = (0..100)
            .map(|_| into_inbox(Identity::fresh().append(&target, "x"), "editor"))
            .collect();
        let request = BatchSubmitOperationsRequest { requests };
        let mut client = caller.operations.clone();
        let answer = within("a batch", client.batch_submit_operations(request)).await;
        let results = answer.expect("answered").into_inner().results;
        assert!(results.iter().all(|item| matches!(item.result, Some(Outcome::Response(_)))));
    }
    // Nothing was read so far: what is in flight is bounded, the rest waits in the store.
    let inbox = eventually("the window to be full", BOUND, async || {
        let inbox = caller.inbox("editor").await;
        (inbox.in_flight >= 100).then_some(inbox)
    })
    .await;
    assert!(inbox.in_flight <= inbox.in_flight_limit);
    assert_eq!(inbox.pending + inbox.in_flight, RESULTS);

    let mut seen = Vec::new();
    while seen.len() < usize::try_from(RESULTS).expect("few") {
        let numbers = sequences(&reader.next_results().await);
        let acked = caller.ack("editor", &numbers).await.expect("acked");
        assert!(acked.iter().all(|outcome| *outcome == AckOutcome::Acked));
        seen.extend(numbers);
    }
    assert_eq!(seen, (1..=RESULTS).collect::<Vec<i64>>(), "all of them, in order");
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 0, RESULTS));
}
