//! Every frame in its plain use, and every frame that is refused.

use receiptd::proto::{
    AckOutcome, Delivery, ExtendOutcome, Origin, SessionOpen, SessionSubmit,
    batch_submit_result::Result as Submitted, connect_request::Frame as Asks,
    connect_response::Frame, session_ack_result_item::Result as Acked,
    session_extend_result_item::Result as Extended,
};
use tonic::Code;
use tonic_types::StatusExt;

use crate::{
    support::{
        BOUND,
        answers::delivery,
        client::{Caller, Refused, attempt, sequence, sequences},
        eventually,
        requests::{Identity, into_inbox, until_acked, waiting},
        server::{TOKEN_ACKS, TOKEN_READS, TOKEN_RECEIVES, TOKEN_SUBMITS},
        stores::{TestStore, on_both_stores},
    },
    wire::{Session, ack_of, extension_of, opening},
};

on_both_stores! {
    every_frame_does_what_it_says,
    inboxes_share_a_session,
    a_bad_frame_is_answered_for_itself,
    a_frame_that_belongs_nowhere_ends_the_session,
    each_frame_needs_its_own_permission,
    a_wait_holds_up_nothing_else,
    an_inbox_is_closed_and_opened_again,
}

async fn every_frame_does_what_it_says(store: TestStore) {
    let server = store.serve(&["--heartbeat=300ms"]);
    let mut session = Session::connect(&server.a()).await;
    session.heartbeat("").await;

    session.open(opening("", "me")).await;
    let opened = session
        .of("default", |frame| match frame {
            Frame::Opened(opened) => Some(opened.clone()),
            _ => None,
        })
        .await;
    assert_eq!((opened.inbox.as_str(), opened.consumer_id.as_str()), ("default", "me"));
    assert_eq!(opened.window, 100);
    session.caught_up("default").await;
    session.heartbeat("default").await;

    let response = session.submitted(Identity::fresh().append("d", "x")).await;
    assert_eq!(response.origin(), Origin::Executed);
    let shown = session.results("default", 1).await;
    assert_eq!(shown[0].operation, response.operation);
    // More time for what it works on; with it the deadline is later than any attempt's own.
    session.extend(6, extension_of("", &[(1, 1), (1, 2)], "me")).await;
    match session.extend_results(1).await.remove(&6) {
        Some(Extended::Response(response)) => {
            let outcomes = response.results.iter().map(|result| result.outcome());
            let expected = [ExtendOutcome::Extended, ExtendOutcome::NotYours];
            assert_eq!(outcomes.collect::<Vec<_>>(), expected);
            let deadline = |delivery: &Option<Delivery>| {
                delivery.as_ref().and_then(|it| it.ack_deadline).map(|it| (it.seconds, it.nanos))
            };
            let extended = deadline(&response.results[0].delivery).expect("a deadline");
            assert!(extended > deadline(&shown[0].delivery).expect("a deadline"));
        }
        other => panic!("not extended: {other:?}"),
    }
    session.ack(5, ack_of("", &[1], "me")).await;
    match session.ack_results(1).await.remove(&5) {
        Some(Acked::Response(response)) => {
            assert_eq!(response.results[0].outcome(), AckOutcome::Acked);
        }
        other => panic!("not acked: {other:?}"),
    }
    assert_eq!(server.a().inbox("default").await.acked_total, 1);

    // What ends elsewhere is withdrawn here.
    session.submitted(Identity::fresh().append("d", "y")).await;
    session.results("default", 1).await;
    server.a().ack("default", &[2]).await.expect("acked");
    let withdrawn = session
        .of("default", |frame| match frame {
            Frame::Withdrawn(withdrawn) => Some(withdrawn.deliveries.clone()),
            _ => None,
        })
        .await;
    assert_eq!(withdrawn[0].sequence, 2);

    session.close("default").await;
    let closed = session.closed("default").await;
    assert!(closed.error.is_none() && !closed.still_open);
    assert!(server.a().inbox("default").await.consumers.is_empty(), "given back before `closed`");
}

async fn inboxes_share_a_session(store: TestStore) {
    const EACH: usize = 120;
    let server = store.serve(&[]);
    let caller = server.a();
    let mut session = Session::connect(&caller).await;
    let inboxes = ["one", "two", "three"];
    for inbox in inboxes {
        session.open(opening(inbox, "me")).await;
    }
    for inbox in inboxes {
        session.caught_up(inbox).await;
    }
    for round in 0..EACH {
        let append = |inbox: &str| {
            into_inbox(Identity::fresh().append(&format!("{inbox}/{round}"), "x"), inbox)
        };
        let items = inboxes.iter().zip(1..).map(|(inbox, tag)| (tag, append(inbox))).collect();
        session.submit(items).await;
        for (tag, answer) in session.submit_results(inboxes.len()).await {
            assert!(matches!(answer, Submitted::Response(_)), "{tag}: {answer:?}");
        }
        if round % 40 == 39 {
            for (inbox, tag) in inboxes.iter().zip(1..) {
                let shown = sequences(&session.results(inbox, 40).await);
                session.ack(tag, ack_of(inbox, &shown, "me")).await;
            }
            session.ack_results(inboxes.len()).await;
        }
    }
    for inbox in inboxes {
        let row = caller.inbox(inbox).await;
        assert_eq!((row.acked_total, row.pending, row.in_flight), (EACH as i64, 0, 0), "{inbox}");
    }
}

async fn a_bad_frame_is_answered_for_itself(store: TestStore) {
    let server = store.serve(&[]);
    let mut session = Session::connect(&server.a()).await;
    session.open(opening("mine", "me")).await;
    session.caught_up("mine").await;
    let rows = [
        (Asks::Open(opening("a/b", "")), "a/b", "inbox", false),
        (Asks::Open(opening("mine", "other")), "mine", "inbox", true),
        (Asks::Open(SessionOpen { window: -1, ..opening("new", "") }), "new", "window", false),
        (Asks::Open(opening("new", "a b")), "new", "consumer_id", false),
        (
            Asks::Open(SessionOpen { credit_bytes: Some(-1), ..opening("new", "") }),
            "new",
            "credit_bytes",
            false,
        ),
        (Asks::Credit(credit("other", 1, 1)), "other", "inbox", false),
        (Asks::Credit(credit("mine", 1, 1)), "mine", "inbox", true),
        (Asks::Close(receiptd::proto::SessionClose::default()), "default", "inbox", false),
    ];
    for (frame, inbox, field, still_open) in rows {
        let what = format!("{frame:?}");
        session.send(Some(frame)).await;
        let closed = session.closed(inbox).await;
        let error = closed.error.expect("an error");
        assert_eq!((error.code, error.reason.as_str()), (3, "INVALID_FIELD"), "{what}");
        assert_eq!(error.metadata["field"], field, "{what}");
        assert_eq!(error.metadata["outcome"], "NO_EFFECT", "{what}");
        assert_eq!(closed.still_open, still_open, "{what}");
    }
    session.open(SessionOpen { credit_messages: Some(0), ..opening("counted", "") }).await;
    session.caught_up("counted").await;
    for (messages, bytes, field) in [(0, 0, "messages"), (-1, 5, "messages"), (5, -1, "bytes")] {
        session.credit("counted", messages, bytes).await;
        let closed = session.closed("counted").await;
        assert_eq!(closed.error.expect("an error").metadata["field"], field);
        assert!(closed.still_open);
    }
    let token = SessionOpen { resume_token: "mangled".to_owned(), ..opening("new", "") };
    session.open(token).await;
    let error = session.closed("new").await.error.expect("an error");
    assert_eq!(error.reason, "RESUME_TOKEN_INVALID");
    // All the while the session and its inboxes live.
    session.submitted(into_inbox(Identity::fresh().append("d", "x"), "mine")).await;
    session.results("mine", 1).await;
}

fn credit(inbox: &str, messages: i64, bytes: i64) -> receiptd::proto::SessionCredit {
    receiptd::proto::SessionCredit { inbox: inbox.to_owned(), messages, bytes }
}

async fn a_frame_that_belongs_nowhere_ends_the_session(store: TestStore) {
    let server = store.serve(&[]);
    let many = SessionSubmit { items: vec![Default::default(); 101] };
    for (frame, field) in [(None, "frame"), (Some(Asks::Submit(many)), "submit.items")] {
        let mut session = Session::connect(&server.a()).await;
        session.send(frame).await;
        let refused = Refused::of(&session.end().await.1);
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "INVALID_FIELD")
        );
        assert_eq!(refused.value("field"), field);
    }
    // So many items that they are not even decoded: small on the wire, and large in memory.
    let mut session = Session::connect(&server.a()).await;
    session
        .send(Some(Asks::Submit(SessionSubmit { items: vec![Default::default(); 10_001] })))
        .await;
    let refused = Refused::of(&session.end().await.1);
    assert_eq!((refused.code, refused.reason.as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
    assert_eq!((refused.value("field"), refused.value("outcome")), ("request", "NO_EFFECT"));
    // Beyond the limit of a message.
    let mut session = Session::connect(&server.a()).await;
    let mut request = Identity::fresh().append("d", "x");
    request.intent.as_mut().expect("an intent").arguments = vec![b' '; 5 << 20];
    session.submit(vec![(1, request)]).await;
    let ended = session.end().await.1;
    let refused = Refused::of(&ended);
    assert_eq!(refused.reason, "PAYLOAD_TOO_LARGE");
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    let told = ended.get_details_localized_message().expect("a sentence").message;
    assert!(told.starts_with("The stream has ended: the request is too large"), "{told}");
}

async fn each_frame_needs_its_own_permission(store: TestStore) {
    let server = store.serve(&[]);
    let caller = |token| Caller::new(server.address(), token);
    let refused = Session::try_connect(&caller(TOKEN_READS)).await.err().expect("refused");
    assert_eq!(Refused::of(&refused).reason, "PERMISSION_MISSING");
    let refused = Session::try_connect(&Caller::anonymous(server.address())).await;
    assert_eq!(Refused::of(&refused.err().expect("refused")).reason, "CREDENTIALS_MISSING");

    let accepted = caller(TOKEN_SUBMITS).submitted(Identity::fresh().append("before", "x")).await;
    let mut acks = Session::connect(&caller(TOKEN_ACKS)).await;
    acks.ack(1, ack_of("", &[delivery(&accepted).sequence], "")).await;
    match acks.ack_results(1).await.remove(&1) {
        Some(Acked::Response(response)) => {
            assert_eq!(response.results[0].outcome(), AckOutcome::Acked);
        }
        other => panic!("not acked: {other:?}"),
    }
    acks.open(opening("mine", "me")).await;
    let error = acks.closed("mine").await.error.expect("an error");
    assert_eq!(error.metadata["permission"], "receive");

    let mut submits = Session::connect(&caller(TOKEN_SUBMITS)).await;
    submits.open(opening("mine", "me")).await;
    let error = submits.closed("mine").await.error.expect("an error");
    assert_eq!(
        (error.reason.as_str(), error.metadata["permission"].as_str()),
        (MISSING, "receive")
    );
    submits.ack(1, ack_of("", &[1], "")).await;
    match submits.ack_results(1).await.remove(&1) {
        Some(Acked::Error(error)) => {
            assert_eq!((error.code, error.reason.as_str()), (7, MISSING));
            assert_eq!(error.metadata["permission"], "ack");
        }
        other => panic!("not refused: {other:?}"),
    }
    let identity = Identity::fresh();
    submits.submitted(into_inbox(identity.append("d", "x"), "mine")).await;

    submits.extend(2, extension_of("", &[(1, 1)], "")).await;
    match submits.extend_results(1).await.remove(&2) {
        Some(Extended::Error(error)) => {
            assert_eq!((error.code, error.reason.as_str()), (7, MISSING));
            assert_eq!(error.metadata["permission"], "ack");
        }
        other => panic!("not refused: {other:?}"),
    }

    let mut receives = Session::connect(&caller(TOKEN_RECEIVES)).await;
    receives.open(opening("mine", "me")).await;
    assert_eq!(receives.results("mine", 1).await.len(), 1);
    receives.submit(vec![(4, Identity::fresh().append("d", "x"))]).await;
    match receives.submit_results(1).await.remove(&4) {
        Some(Submitted::Error(error)) => assert_eq!(error.reason, MISSING),
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(server.a().text("d").await, ("x\n".to_owned(), 1), "one effect");
}

const MISSING: &str = "PERMISSION_MISSING";

async fn a_wait_holds_up_nothing_else(store: TestStore) {
    let server = store.serve(&[]);
    let mut session = Session::connect(&server.a()).await;
    session.open(opening("", "me")).await;
    session.caught_up("default").await;
    session.submitted(until_acked(Identity::fresh().append("held", "first"))).await;
    // More waits than a session holds: the rest is answered with the state in force.
    let waits = |_| waiting(Identity::fresh().append("held", "next"), 50);
    for first in [0, 100] {
        let items = (first..first + 100).map(|tag| (tag, waits(tag))).collect();
        session.submit(items).await;
    }
    let accepted = session.submit_results(72).await;
    for (tag, answer) in &accepted {
        match answer {
            Submitted::Response(response) => {
                let state = response.operation.as_ref().expect("an operation").state();
                assert_eq!(state, receiptd::proto::operation::State::Accepted, "{tag}");
            }
            Submitted::Error(error) => panic!("{tag}: {error:?}"),
        }
    }
    assert_eq!(accepted.keys().next(), Some(&128), "the first 128 wait");
    // An ack on the same stream releases the lock, and so ends the waits.
    let first = session.results("default", 1).await;
    session.ack(1, ack_of("", &[sequence(&first[0])], "me")).await;
    session.ack_results(1).await;
    for (tag, answer) in session.submit_results(128).await {
        match answer {
            Submitted::Response(response) => {
                let state = response.operation.as_ref().expect("an operation").state();
                assert_eq!(state, receiptd::proto::operation::State::Applied, "{tag}");
            }
            Submitted::Error(error) => panic!("{tag}: {error:?}"),
        }
    }
    let caller = server.a();
    let all = || async { (caller.text("held").await.0.lines().count() == 201).then_some(()) };
    eventually("those that did not wait", BOUND, all).await;
}

async fn an_inbox_is_closed_and_opened_again(store: TestStore) {
    let server = store.serve(&[]);
    let mut session = Session::connect(&server.a()).await;
    session.submitted(Identity::fresh().append("d", "x")).await;
    for round in 1..=3 {
        // A close right behind the opening is answered too.
        session.open(opening("", "me")).await;
        if round == 2 {
            session.close("").await;
            assert!(session.closed("default").await.error.is_none());
            session.open(opening("", "me")).await;
        }
        loop {
            let shown = session.deliveries("default").await;
            assert_eq!(sequences(&shown), [1]);
            if attempt(&shown[0]) >= round {
                break;
            }
        }
        session.close("").await;
        assert!(session.closed("default").await.error.is_none());
    }
    // The 129th inbox.
    for number in 0..128 {
        session.open(opening(&format!("i{number}"), "me")).await;
    }
    for number in 0..128 {
        session.caught_up(&format!("i{number}")).await;
    }
    session.open(opening("one-more", "me")).await;
    let error = session.closed("one-more").await.error.expect("an error");
    assert_eq!((error.reason.as_str(), error.metadata["limit"].as_str()), ("ACCOUNT_QUOTA", "128"));
}
