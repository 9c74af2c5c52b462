//! F17: who asks for everything and acks nothing, beside one who works.

use std::time::{Duration, Instant};

use receiptd::proto::{
    ResultKind, StreamDeliveriesRequest, SubmitOperationRequest, batch_submit_result,
    operation::State,
};

use crate::{
    size_of,
    support::{
        answers::operation,
        background,
        client::Caller,
        requests::{Identity, into_inbox},
        server::TOKEN_A,
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(f17_a_client_that_never_acks_beside_one_that_does);

const STREAMS: usize = 50;
/// Results that arrive; 20,000 are the whole case (`TESTS_F17_RESULTS`).
const RESULTS: usize = 2_000;
const RESULT_BYTES: usize = 10 * 1024;
/// What the server may add for all of them.
const MEMORY_RISE_MAX: u64 = 96 << 20;

/// One result of ten KiB for the greedy one.
fn result(text: &str, inbox: &str) -> SubmitOperationRequest {
    let request = into_inbox(Identity::fresh().put("greedy", text), inbox);
    SubmitOperationRequest { result: ResultKind::Content.into(), ..request }
}

/// Reads whatever comes, for as long as the stream is open.
async fn take_all(caller: Caller, number: usize) {
    let request = StreamDeliveriesRequest {
        inbox: "greedy".into(),
        consumer_id: format!("window-{number}"),
        window: i32::MAX,
        ..StreamDeliveriesRequest::default()
    };
    let mut reader = caller.open(request).await.expect("the stream opens");
    while reader.frame().await.is_ok() {}
}

/// How long each of some submits took, sorted.
async fn times_of(caller: &Caller) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..100 {
        let start = Instant::now();
        let answer = caller.submitted(Identity::fresh().append("works", "x")).await;
        assert_eq!(operation(&answer).state(), State::Applied);
        times.push(start.elapsed());
        let sequence =
            answer.operation.and_then(|_| answer.deliveries.first().map(|it| it.sequence));
        caller.ack("default", &[sequence.expect("a delivery")]).await.expect("acked");
    }
    times.sort_unstable();
    times
}

async fn f17_a_client_that_never_acks_beside_one_that_does(store: TestStore) {
    let results = size_of("TESTS_F17_RESULTS", RESULTS);
    let slots = format!("--inbox-slots={results}");
    let server =
        store.serve(&[&slots, "--ack-deadline=2s", "--retry-budget=100", "--heartbeat=1s"]);
    let (greedy, works) = (server.a(), server.b());
    let alone = times_of(&works).await;
    let readers: Vec<_> = (0..STREAMS)
        .map(|number| background(take_all(Caller::new(server.address(), TOKEN_A), number)))
        .collect();
    let text = "x".repeat(RESULT_BYTES);
    let before = server.memory();
    let mut beside = Vec::new();
    for page in 0..results / 100 {
        let requests = (0..100).map(|_| result(&text, "greedy")).collect();
        for outcome in greedy.submit_together(requests).await {
            assert!(matches!(outcome, batch_submit_result::Result::Response(_)), "{outcome:?}");
        }
        let inbox = greedy.inbox("greedy").await;
        assert!(inbox.in_flight <= inbox.in_flight_limit, "{inbox:?}");
        if page % 10 == 5 {
            beside.extend(times_of(&works).await);
        }
    }
    if let (Some(before), Some(after)) = (before, server.memory()) {
        println!("memory rose by {:.1} MiB", (after.saturating_sub(before)) as f64 / 1048576.0);
        assert!(after < before + MEMORY_RISE_MAX, "from {before} to {after} bytes");
    }
    beside.sort_unstable();
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100];
    println!("p99 of a submit: {:?} alone, {:?} beside", p99(&alone), p99(&beside));

    // Full: the greedy one is told the bound, the use and when a place is free; nobody else is.
    let full = greedy.refused(result(&text, "greedy")).await;
    assert_eq!((full.reason.as_str(), full.value("outcome")), ("INBOX_FULL", "NO_EFFECT"));
    assert_eq!(full.value("limit"), results.to_string(), "{full:?}");
    assert_eq!(full.value("in_use"), results.to_string(), "{full:?}");
    assert!(!full.value("earliest_release").is_empty() || full.retry_delay.is_some(), "{full:?}");
    let elsewhere = greedy.submitted(Identity::fresh().append("other", "x")).await;
    assert_eq!(operation(&elsewhere).state(), State::Applied, "another inbox is free");
    times_of(&works).await;
    assert!(readers.iter().all(|reader| !reader.is_finished()), "no stream was cut for it");
    readers.iter().for_each(|reader| reader.abort());
}
