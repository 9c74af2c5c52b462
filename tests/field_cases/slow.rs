//! A reader that does not read for a while: many small results must neither cut the connection
//! (reliability trap T20) nor get lost, and they arrive in order.

use std::time::{Duration, Instant};

use receiptd::proto::AckOutcome;

use tokio::sync::mpsc;

use crate::support::{
    BOUND, background,
    client::{Caller, Reader, sequences},
    eventually,
    requests::{Identity, into_inbox},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
};

const RESULTS: i64 = 2_000;

on_both_stores!(
    many_small_results_reach_a_reader_that_was_slow,
    many_results_reach_a_reader_that_pauses_and_one_with_small_windows,
);

async fn many_small_results_reach_a_reader_that_was_slow(store: TestStore) {
    let server = store.serve(&["--inbox-slots=10000"]);
    let caller = server.a();
    let mut reader = caller.reader("editor", "installation-1", "").await;
    for batch in 0..RESULTS / 100 {
        submit_hundred(&caller, "editor", batch).await;
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

/// How many results each of the two readers gets, unless a store has a number of its own. Enough
/// that a connection which counts small unread frames against itself would be gone: it died after
/// 12,726 for a reader that paused, and after 159 with small windows.
const MANY: i64 = 100_000;
/// On PostgreSQL, where each of them costs more: even what is left after the pause is well above
/// those figures, and on its own it takes half a minute.
const MANY_ON_POSTGRES: i64 = 20_000;
/// Names another number for either store, for example the full one on PostgreSQL.
const MANY_VARIABLE: &str = "TESTS_T20_DELIVERIES";
/// Several times what the full number takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// Batches of a hundred under way at once into each inbox.
const PRODUCERS: i64 = 4;
/// Who reads and acks.
const CONSUMER: &str = "installation-1";

async fn submit_hundred(caller: &Caller, inbox: &str, number: i64) {
    let target = format!("small/{inbox}/{number}");
    let requests = (0..100).map(|_| into_inbox(Identity::fresh().put(&target, "x"), inbox));
    caller.submitted_together(requests.collect()).await;
}

/// Submits everything for one inbox, a few batches at a time.
async fn produce(caller: Caller, inbox: &'static str, many: i64) {
    let producers = (0..PRODUCERS).map(|first| {
        let caller = caller.clone();
        background(async move {
            for number in (first..many / 100).step_by(PRODUCERS as usize) {
                submit_hundred(&caller, inbox, number).await;
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await.expect("no panic");
    }
}

/// Reads everything on one stream, whose end would be a panic. It never waits for an ack: with
/// small windows the unread results could keep the ack's answer from coming.
async fn read(
    mut reader: Reader,
    many: i64,
    pause: Duration,
    read: mpsc::UnboundedSender<Vec<i64>>,
) {
    let mut seen = 0;
    let mut pause = Some(pause);
    while seen < many {
        let numbers = sequences(&reader.next_results().await);
        let expected: Vec<i64> = (seen + 1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "each once, in order");
        seen += i64::try_from(numbers.len()).expect("few");
        read.send(numbers).expect("whoever acks is there");
        if let Some(pause) = pause.take_if(|_| seen > many / 10) {
            // The pause is the case: nothing is read while results pile up.
            tokio::time::sleep(pause).await;
        }
    }
    assert_eq!(reader.others.len(), 2, "opened and caught up, and nothing was taken back");
}

/// Acks whatever was read since the ack before.
async fn ack(caller: Caller, inbox: &str, mut read: mpsc::UnboundedReceiver<Vec<i64>>) {
    while let Some(mut numbers) = read.recv().await {
        while let Ok(more) = read.try_recv() {
            numbers.extend(more);
        }
        let acked = caller.ack_as(CONSUMER, inbox, &numbers).await.expect("acked");
        assert!(acked.iter().all(|outcome| *outcome == AckOutcome::Acked));
    }
}

fn many(store: &TestStore) -> i64 {
    let own = match store {
        TestStore::Sqlite(_) => MANY,
        TestStore::Postgres(..) => MANY_ON_POSTGRES,
    };
    let Ok(wanted) = std::env::var(MANY_VARIABLE) else { return own };
    let wanted: i64 = wanted.parse().expect("a number of deliveries");
    assert!(wanted > 0 && wanted % 100 == 0, "{MANY_VARIABLE} counts whole batches of 100");
    wanted
}

async fn many_results_reach_a_reader_that_pauses_and_one_with_small_windows(store: TestStore) {
    let many = many(&store);
    let start = Instant::now();
    let server = store.serve(&["--inbox-slots=1000000"]);
    let (pausing, narrow) = (server.a(), Caller::with_small_windows(server.address(), TOKEN_A));
    let tasks = [(pausing, "pausing", Duration::from_secs(10)), (narrow, "narrow", Duration::ZERO)]
        .map(async |(caller, inbox, pause)| {
            let reader = caller.reader(inbox, CONSUMER, "").await;
            let producing = background(produce(server.a(), inbox, many));
            let (send, receive) = mpsc::unbounded_channel();
            let reading = background(read(reader, many, pause, send));
            ack(caller.clone(), inbox, receive).await;
            reading.await.expect("everything arrives on one connection");
            producing.await.expect("everything is accepted");
            let row = caller.inbox(inbox).await;
            assert_eq!((row.pending, row.in_flight, row.acked_total), (0, 0, many));
        });
    let all = futures_util::future::join_all(tasks);
    tokio::time::timeout(PATIENCE, all).await.expect("in a bounded time");
    println!("2 x {many} results arrived after {:?}", start.elapsed());
}
