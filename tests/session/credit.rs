//! Credit in results and in bytes is kept exactly.

use prost::Message;
use receiptd::proto::{
    DeliveredResult, SessionOpen, batch_submit_result::Result as Submitted, connect_response::Frame,
};

use crate::{
    support::{
        client::{attempt, sequence, sequences},
        requests::{Identity, into_inbox},
        stores::{TestStore, on_both_stores},
    },
    wire::{Session, ack_of, opening},
};

on_both_stores! {
    results_are_counted,
    bytes_are_counted,
    what_was_shown_comes_again_without_credit,
    without_any_credit_an_inbox_is_caught_up_only_when_it_is_empty,
}

async fn fill(session: &mut Session, count: usize) {
    let append = |tag: i64| {
        let text = "x".repeat(usize::try_from(tag).expect("small") % 7 * 40);
        let mut request = Identity::fresh().append(&format!("d{tag}"), "x");
        request.labels.insert("text".to_owned(), text);
        (tag, request)
    };
    let count_tags = i64::try_from(count).expect("small");
    session.submit((1..=count_tags).map(append).collect()).await;
    let answers = session.submit_results(count).await;
    assert!(answers.values().all(|answer| matches!(answer, Submitted::Response(_))), "{answers:?}");
}

fn counted(messages: Option<i64>, bytes: Option<i64>) -> SessionOpen {
    SessionOpen { credit_messages: messages, credit_bytes: bytes, ..opening("", "me") }
}

async fn results_are_counted(store: TestStore) {
    let server = store.serve(&["--heartbeat=200ms"]);
    let mut session = Session::connect(&server.a()).await;
    fill(&mut session, 12).await;
    session.open(counted(Some(3), None)).await;
    assert_eq!(sequences(&session.results("default", 3).await), [1, 2, 3]);
    // An ack refills the window and no credit.
    session.ack(1, ack_of("", &[1, 2, 3], "me")).await;
    session.ack_results(1).await;
    session.heartbeat("default").await;
    session.heartbeat("default").await;
    assert_eq!(session.unasked("default").len(), 0);
    session.credit("default", 2, 0).await;
    assert_eq!(sequences(&session.results("default", 2).await), [4, 5]);
    session.credit("", 2, 10).await;
    assert_eq!(sequences(&session.results("default", 2).await), [6, 7]);
    session.heartbeat("default").await;
    session.heartbeat("default").await;
    assert_eq!(session.unasked("default").len(), 0);
    assert_eq!(server.a().inbox("default").await.in_flight, 4, "nothing waits in between");
    session.credit("default", 100, 0).await;
    assert_eq!(sequences(&session.results("default", 5).await), [8, 9, 10, 11, 12]);
    session.caught_up("default").await;
    // Live ones count as well.
    session.open(SessionOpen { inbox: "live".to_owned(), ..counted(Some(1), None) }).await;
    session.caught_up("live").await;
    for number in 0..3 {
        let request = Identity::fresh().append(&format!("live{number}"), "x");
        session.submitted(into_inbox(request, "live")).await;
    }
    session.results("live", 1).await;
    session.heartbeat("live").await;
    session.heartbeat("live").await;
    assert_eq!(session.unasked("live").len(), 0);
    session.credit("live", i64::MAX, 0).await;
    session.credit("live", i64::MAX, 0).await;
    session.results("live", 2).await;
}

fn bytes(results: &[DeliveredResult]) -> i64 {
    results.iter().map(|result| i64::try_from(result.encoded_len()).expect("small")).sum()
}

async fn bytes_are_counted(store: TestStore) {
    let server = store.serve(&["--heartbeat=200ms"]);
    let mut session = Session::connect(&server.a()).await;
    fill(&mut session, 60).await;
    let mut granted = 1_500;
    session.open(counted(Some(1_000), Some(granted))).await;
    let mut shown = Vec::new();
    for more in [1, 20_000, 900] {
        loop {
            let last = shown.last().map_or(0, |result| bytes(std::slice::from_ref(result)));
            if bytes(&shown) >= granted {
                assert!(bytes(&shown) - last < granted, "only the last one overdraws");
                break;
            }
            shown.extend(session.deliveries("default").await);
        }
        session.heartbeat("default").await;
        session.heartbeat("default").await;
        assert_eq!(session.unasked("default").len(), 0, "{granted} bytes");
        granted += more;
        session.credit("default", 0, more).await;
        if more == 1 {
            // The overdraft is paid first.
            let before = bytes(&shown);
            session.heartbeat("default").await;
            session.heartbeat("default").await;
            shown.extend(session.unasked("default"));
            assert_eq!(bytes(&shown) > before, before < granted);
        }
    }
    session.credit("default", 0, i64::MAX).await;
    while shown.len() < 60 {
        shown.extend(session.deliveries("default").await);
    }
    assert_eq!(sequences(&shown), (1..=60).collect::<Vec<_>>());
}

async fn what_was_shown_comes_again_without_credit(store: TestStore) {
    let flags = ["--heartbeat=200ms", "--ack-deadline=600ms", "--backoff-limit=200ms"];
    let server = store.serve(&flags);
    let mut session = Session::connect(&server.a()).await;
    fill(&mut session, 5).await;
    session.open(counted(Some(2), Some(1 << 20))).await;
    let mut attempts = [0; 2];
    while attempts.iter().any(|attempts| *attempts < 3) {
        for result in session.deliveries("default").await {
            let place = usize::try_from(sequence(&result) - 1).expect("positive");
            assert!(place < 2, "only what was shown comes again: {result:?}");
            assert_eq!(result.redelivered, attempts[place] > 0);
            attempts[place] = attempt(&result);
        }
    }
    session.ack(1, ack_of("", &[1, 2], "me")).await;
    session.ack_results(1).await;
    session.credit("default", 3, 0).await;
    let mut fresh = Vec::new();
    while fresh.len() < 3 {
        let shown = session.deliveries("default").await;
        fresh.extend(sequences(&shown).into_iter().filter(|number| *number > 2));
        fresh.sort_unstable();
        fresh.dedup();
    }
    assert_eq!(fresh, [3, 4, 5]);
}

async fn without_any_credit_an_inbox_is_caught_up_only_when_it_is_empty(store: TestStore) {
    let server = store.serve(&["--heartbeat=200ms"]);
    let mut session = Session::connect(&server.a()).await;
    session.open(SessionOpen { inbox: "empty".to_owned(), ..counted(Some(0), None) }).await;
    session.caught_up("empty").await;
    fill(&mut session, 1).await;
    session.open(counted(None, Some(0))).await;
    session.heartbeat("default").await;
    session.heartbeat("default").await;
    // Acked elsewhere: there is nothing left to wait for.
    let told = session
        .find("the opening", |frame| match &frame.frame {
            Some(Frame::Opened(opened)) if frame.inbox == "default" => Some(opened.depth),
            Some(Frame::CaughtUp(_)) if frame.inbox == "default" => Some(-1),
            _ => None,
        })
        .await;
    assert_eq!(told, 1);
    server.a().ack("default", &[1]).await.expect("acked");
    session.caught_up("default").await;
}
