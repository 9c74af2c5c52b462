//! How sessions and their inboxes end, and that nothing is lost by it.

use std::collections::{BTreeMap, BTreeSet};

use receiptd::proto::{
    SessionOpen, StreamDeliveriesRequest, batch_submit_result::Result as Submitted,
    connect_response::Frame, operation,
};
use tonic::Code;

use crate::{
    support::{
        BOUND,
        client::{Caller, Refused, attempt, sequence, sequences},
        eventually,
        proxy::{Direction, Mode, Proxy},
        requests::{Identity, into_inbox, until_acked, waiting},
        server::TOKEN_A,
        stores::{TestStore, on_both_stores},
    },
    wire::{Session, ack_of, opening},
};

on_both_stores! {
    half_closing_answers_what_runs_and_acks_nothing,
    a_draining_server_says_so_for_each_inbox,
    old_sessions_end_themselves,
    a_newer_stream_takes_over_one_inbox,
    a_session_that_is_cut_goes_on_with_its_tokens,
    a_client_that_reads_nothing_is_let_go,
}

async fn half_closing_answers_what_runs_and_acks_nothing(store: TestStore) {
    let server = store.serve(&[]);
    let mut session = Session::connect(&server.a()).await;
    session.open(opening("", "me")).await;
    session.caught_up("default").await;
    session.submitted(until_acked(Identity::fresh().append("held", "first"))).await;
    session.results("default", 1).await;
    let append = |tag: i64| (tag, Identity::fresh().append(&format!("d{tag}"), "x"));
    session.submit((1..=60).map(append).collect()).await;
    session.submit(vec![(61, waiting(Identity::fresh().append("held", "next"), 1))]).await;
    session.half_close();
    let answers = session.submit_results(61).await;
    assert!(answers.values().all(|answer| matches!(answer, Submitted::Response(_))));
    let (_, end) = session.end().await;
    assert_eq!(end.code(), Code::Ok, "{end:?}");
    let row = server.a().inbox("default").await;
    assert_eq!((row.acked_total, row.last_sequence), (0, 61), "the end acks nothing");
    let mut session = Session::connect(&server.a()).await;
    session.open(opening("", "me")).await;
    let mut shown: BTreeSet<i64> = BTreeSet::new();
    while shown.len() < 61 {
        shown.extend(sequences(&session.deliveries("default").await));
    }
}

async fn a_draining_server_says_so_for_each_inbox(store: TestStore) {
    let mut server = store.serve(&[]);
    let caller = server.a();
    let mut session = Session::connect(&caller).await;
    let mut idle = Session::connect(&caller).await;
    for inbox in ["one", "two"] {
        session.open(opening(inbox, "me")).await;
        session.caught_up(inbox).await;
    }
    let holder = into_inbox(Identity::fresh().append("held", "first"), "one");
    session.submitted(until_acked(holder)).await;
    let waiter = Identity::fresh();
    let wait = waiting(into_inbox(waiter.append("held", "next"), "two"), 50);
    session.submit(vec![(1, wait)]).await;
    // The wait is known to have begun once the record is there.
    let accepted = || async {
        let found = caller.get(&waiter).await;
        found.operation.filter(|found| found.state() == operation::State::Accepted)
    };
    eventually("the waiter", BOUND, accepted).await;
    let status = tokio::task::block_in_place(|| server.stop());
    assert!(status.success(), "{status:?}");
    let answers = session.submit_results(1).await;
    assert!(matches!(answers[&1], Submitted::Response(_)), "the state in force: {answers:?}");
    for (session, inboxes) in [(&mut session, vec!["one", "two"]), (&mut idle, vec![""])] {
        for inbox in inboxes {
            let draining = session
                .of(inbox, |frame| match frame {
                    Frame::Draining(draining) => Some(draining.clone()),
                    _ => None,
                })
                .await;
            assert_eq!(draining.reason, "the server is shutting down");
            assert!(draining.retry_delay.expect("a delay").seconds >= 1);
            assert_eq!(draining.resume_token.is_empty(), inbox.is_empty());
        }
        assert_eq!(session.end().await.1.code(), Code::Ok);
    }
    tokio::task::block_in_place(|| server.start_again());
    let mut again = Session::connect(&server.a()).await;
    let resume_token = session.tokens["one"].clone();
    again.open(SessionOpen { resume_token, ..opening("one", "me") }).await;
    let shown = again.results("one", 1).await;
    assert_eq!((sequence(&shown[0]), attempt(&shown[0])), (1, 2));
}

async fn old_sessions_end_themselves(store: TestStore) {
    let server = store.serve(&["--stream-age=2s"]);
    let mut session = Session::connect(&server.a()).await;
    session.open(opening("", "me")).await;
    session.caught_up("default").await;
    let mut idle = Session::connect(&server.a()).await;
    for (session, inbox) in [(&mut session, "default"), (&mut idle, "")] {
        let (frames, end) = session.end().await;
        let last = frames.last().expect("a frame");
        assert_eq!((last.inbox.as_str(), end.code()), (inbox, Code::Ok));
        assert!(matches!(last.frame, Some(Frame::Draining(_))), "{last:?}");
    }
}

async fn a_newer_stream_takes_over_one_inbox(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let mut session = Session::connect(&caller).await;
    for inbox in ["one", "two"] {
        session.open(opening(inbox, "me")).await;
        session.caught_up(inbox).await;
        let request = Identity::fresh().append(inbox, "x");
        session.submitted(into_inbox(request, inbox)).await;
        session.results(inbox, 1).await;
    }
    let request = StreamDeliveriesRequest {
        inbox: "one".to_owned(),
        consumer_id: "me".to_owned(),
        ..StreamDeliveriesRequest::default()
    };
    let mut stream = caller.open(request).await.expect("opens");
    let taken = stream.results(1).await;
    assert_eq!((sequence(&taken[0]), attempt(&taken[0])), (1, 2));
    let closed = session.closed("one").await;
    let error = closed.error.expect("an error");
    assert_eq!((error.code, error.reason.as_str()), (10, "STREAM_SUPERSEDED"));
    assert!(!closed.still_open);
    // The other inbox goes on, and the session takes the first one back.
    session.submitted(into_inbox(Identity::fresh().append("two", "y"), "two")).await;
    session.results("two", 1).await;
    session.open(opening("one", "me")).await;
    assert_eq!(sequences(&session.results("one", 1).await), [1]);
    let end = Refused::of(&stream.end().await);
    assert_eq!((end.code, end.reason.as_str()), (Code::Aborted, "STREAM_SUPERSEDED"));
}

async fn a_session_that_is_cut_goes_on_with_its_tokens(store: TestStore) {
    const EACH: i64 = 200;
    let server = store.serve(&["--backoff-limit=200ms", "--retry-budget=1000"]);
    let proxy = Proxy::start(server.address()).await;
    let caller = Caller::new(proxy.address(), TOKEN_A);
    for inbox in INBOXES {
        for first in [0, 100] {
            let append = |number: i64| {
                let id = Identity::fresh();
                into_inbox(id.append(&format!("{inbox}/{number}"), "x"), inbox)
            };
            server.a().submitted_together((first..first + 100).map(append).collect()).await;
        }
    }
    let mut acked: BTreeSet<(String, i64)> = BTreeSet::new();
    let mut tokens = BTreeMap::new();
    let mut cuts = 0_u64;
    while !all_acked(&server.a(), EACH).await {
        cuts += 1;
        assert!(cuts < 200, "{} acked", acked.len());
        let Ok(mut session) = Session::try_connect(&caller).await else { continue };
        session.tokens = tokens;
        for inbox in INBOXES {
            let resume_token = session.tokens.get(inbox).cloned().unwrap_or_default();
            session.open(SessionOpen { resume_token, window: 40, ..opening(inbox, "me") }).await;
        }
        proxy.set(Direction::Down, Mode::CutAfter(9_000 + cuts * 3_217 % 40_000));
        let mut asked = BTreeMap::new();
        while let Ok(frame) = session.next().await {
            match frame.frame {
                Some(Frame::Deliveries(batch)) => {
                    let shown = sequences(&batch.results);
                    for number in &shown {
                        let key = (frame.inbox.clone(), *number);
                        assert!(!acked.contains(&key), "{key:?} was acked");
                    }
                    let tag = i64::try_from(asked.len()).expect("small");
                    // What is cut off here is acked again by the next session.
                    session.try_ack(tag, ack_of(&frame.inbox, &shown, "me")).await;
                    asked.insert(tag, (frame.inbox, shown));
                }
                Some(Frame::AckResult(packed)) => {
                    for item in packed.results {
                        let (inbox, numbers) = &asked[&item.tag];
                        acked.extend(numbers.iter().map(|number| (inbox.clone(), *number)));
                    }
                    if all_acked(&server.a(), EACH).await {
                        break;
                    }
                }
                Some(Frame::Closed(closed)) => panic!("{closed:?}"),
                _ => {}
            }
        }
        tokens = std::mem::take(&mut session.tokens);
    }
    assert!(cuts > 2, "it was cut");
}

const INBOXES: [&str; 2] = ["one", "two"];

async fn all_acked(caller: &Caller, each: i64) -> bool {
    for inbox in INBOXES {
        let row = caller.inbox(inbox).await;
        assert_eq!(row.last_sequence, each);
        if row.acked_total < each {
            return false;
        }
    }
    true
}

async fn a_client_that_reads_nothing_is_let_go(store: TestStore) {
    let server = store.serve(&["--write-stall=500ms", "--inbox-slots=100000"]);
    let caller = server.a();
    for _ in 0..20 {
        let append = |number: i64| {
            let mut request = Identity::fresh().append(&format!("d{number}"), "x");
            // 256 of them are more than all buffers on the way hold.
            for label in 0..16 {
                request.labels.insert(format!("text-{label}"), "x".repeat(250));
            }
            request
        };
        caller.submitted_together((0..100).map(append).collect()).await;
    }
    let reader = Caller::with_small_windows(server.address(), TOKEN_A);
    let mut session = Session::connect(&reader).await;
    session.open(SessionOpen { window: 256, ..opening("", "me") }).await;
    let gone = || async {
        let row = caller.inbox("default").await;
        (row.consumers.is_empty() && row.in_flight == 0 && row.pending == 2_000).then_some(())
    };
    let opened = || async {
        let row = caller.inbox("default").await;
        (!row.consumers.is_empty()).then_some(())
    };
    eventually("the stream", BOUND, opened).await;
    eventually("its end", BOUND, gone).await;
    let (frames, end) = session.end().await;
    let told = frames.iter().any(|frame| match &frame.frame {
        Some(Frame::Closed(closed)) => {
            closed.error.as_ref().is_some_and(|error| error.reason == "SLOW_CONSUMER")
        }
        _ => false,
    });
    assert!(told || Refused::of(&end).reason == "SLOW_CONSUMER", "{end:?}");
}
