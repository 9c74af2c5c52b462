//! Hints make it sooner, and nothing is lost with them: reliability rows 38 and T12.

use std::time::{Duration, Instant};

use receiptd::proto::{AckOutcome, Origin, StreamDeliveriesRequest, operation::State};

use crate::{
    HINTS_ONLY, POLLS, Shared,
    support::{
        answers::answered,
        client::{Caller, Reader, sequences},
        proxy::{Direction, Mode, Proxy},
        requests::{Identity, into_inbox, until_acked, waiting},
        within,
    },
};

/// How long nobody can listen: `TESTS_LISTEN_CUT_SECONDS`, else for one result.
fn cut_for() -> Duration {
    let named = std::env::var("TESTS_LISTEN_CUT_SECONDS").ok();
    Duration::from_secs(named.map_or(0, |text| text.parse().expect("whole seconds")))
}

pub async fn submit(caller: &Caller, inbox: &str) {
    let request = Identity::fresh().append("notes", "x");
    caller.submitted(into_inbox(request, inbox)).await;
}

pub async fn caught_up(caller: &Caller, window: i32) -> Reader {
    let request = StreamDeliveriesRequest {
        inbox: "editor".to_owned(),
        consumer_id: "laptop".to_owned(),
        window,
        ..StreamDeliveriesRequest::default()
    };
    let mut reader = caller.open(request).await.expect("the stream opens");
    assert!(reader.backlog().await.is_empty());
    reader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_reaches_the_stream_of_another_replica_by_the_hint_alone() {
    let Some(shared) = Shared::new().await else { return };
    let (a, b) = (shared.serve(&[HINTS_ONLY]), shared.serve(&[HINTS_ONLY]));
    shared.listening(2, &[]).await;
    let mut reader = caught_up(&b.a(), 1).await;
    submit(&a.a(), "editor").await;
    submit(&a.a(), "editor").await;
    assert_eq!(sequences(&reader.results(1).await), [1]);
    // The window is full: the ack at the other replica makes room for the second one.
    assert_eq!(a.a().ack("editor", &[1]).await.expect("acked"), [AckOutcome::Acked]);
    assert_eq!(sequences(&reader.results(1).await), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_submit_hears_what_another_replica_did() {
    let Some(shared) = Shared::new().await else { return };
    let (a, b) = (shared.serve(&[HINTS_ONLY]), shared.serve(&[HINTS_ONLY]));
    shared.listening(2, &[]).await;
    let holds = until_acked(Identity::fresh().append("notes", "first"));
    a.a().submitted(into_inbox(holds, "editor")).await;
    let (at_a, at_b) = (a.a(), b.a());
    let second = Identity::fresh();
    let accepted = at_b.submitted(second.append("notes", "second")).await;
    assert_eq!(answered(&accepted), (Origin::Executed, State::Accepted));
    let wait = at_b.submitted(waiting(second.append("notes", "second"), 60));
    let (waited, acked) = tokio::join!(wait, at_a.ack("editor", &[1]));
    assert_eq!(acked.expect("acked"), [AckOutcome::Acked]);
    assert_eq!(answered(&waited).1, State::Applied);
    assert_eq!(at_a.text("notes").await, ("first\nsecond\n".to_owned(), 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_was_killed_listens_again_and_misses_nothing() {
    let Some(shared) = Shared::new().await else { return };
    let (a, b) = (shared.serve(&[HINTS_ONLY]), shared.serve(&[HINTS_ONLY]));
    let mut killed = shared.listening(2, &[]).await;
    let mut reader = caught_up(&b.a(), 0).await;
    for round in 1..=3 {
        let kill = "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid";
        shared.beside.query(kill, &[&killed]).await.expect("they are there");
        // While nobody listens, or just before, or just after: the look that follows finds it.
        submit(&a.a(), "editor").await;
        assert_eq!(sequences(&reader.results(1).await), [2 * round - 1]);
        killed.extend(shared.listening(2, &killed).await);
        submit(&a.a(), "editor").await;
        assert_eq!(sequences(&reader.results(1).await), [2 * round], "by a hint again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nobody_can_listen_results_come_by_polling() {
    let Some(shared) = Shared::new().await else { return };
    let proxy = Proxy::start(([127, 0, 0, 1], shared.postgres.port()).into()).await;
    let listen_url = shared.postgres.url(&shared.name, proxy.address().port());
    let a = shared.serve(&[POLLS]);
    let b = shared.serve(&[POLLS, &format!("--listen-url={listen_url}")]);
    let before = shared.listening(2, &[]).await;
    let mut reader = caught_up(&b.a(), 0).await;
    // Who listens is silent first, then cut, and cannot come back.
    proxy.set(Direction::Down, Mode::Swallow);
    submit(&a.a(), "editor").await;
    assert_eq!(sequences(&reader.results(1).await), [1]);
    a.a().ack("editor", &[1]).await.expect("acked");
    let tries = proxy.connections();
    proxy.cut_all();
    let cut = Instant::now();
    let mut number = 1;
    let mut longest = Duration::ZERO;
    while number < 2 || cut.elapsed() < cut_for() {
        number += 1;
        let start = Instant::now();
        submit(&a.a(), "editor").await;
        assert_eq!(sequences(&reader.results(1).await), [number]);
        longest = longest.max(start.elapsed());
        a.a().ack("editor", &[number]).await.expect("acked");
    }
    println!("{number} results, each within {longest:?}, polled every 200 ms");
    assert!(shared.listeners().await.len() < 2, "it still cannot listen");
    let tried = async {
        while proxy.connections() == tries {
            tokio::task::yield_now().await;
        }
    };
    within("a try to listen", tried).await;
    proxy.heal();
    proxy.cut_all();
    let after = shared.listening(2, &[]).await;
    assert_ne!(before, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_nothing_is_lost() {
    let Some(shared) = Shared::new().await else { return };
    let flags = [POLLS, "--hints=none"];
    let (a, b) = (shared.serve(&flags), shared.serve(&flags));
    let mut reader = caught_up(&b.a(), 0).await;
    for _ in 0..20 {
        submit(&a.a(), "editor").await;
    }
    assert_eq!(sequences(&reader.results(20).await), (1..=20).collect::<Vec<i64>>());
    assert!(shared.listeners().await.is_empty());
}
