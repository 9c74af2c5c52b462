//! The answer is lost on the way to the reader, or the reader comes back beside itself: F06, F08,
//! F09, F44.

use receiptd::proto::{
    AckOutcome, DeliveredResult, StreamDeliveriesRequest, delivery::State as DeliveryState,
    stream_deliveries_response::Frame,
};
use tonic::{Code, Status};

use crate::support::{
    BOUND,
    answers::state_of,
    client::{Caller, Refused, attempt, sequence, sequences},
    eventually,
    proxy::{Direction, Mode, Proxy},
    requests::{Identity, into_inbox},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    f06_written_to_the_socket_is_not_delivered,
    f08_replays_are_recognisable,
    f09_a_token_of_another_inbox_or_a_mangled_one_is_refused,
    f44_a_second_stream_replaces_the_first,
);

async fn f06_written_to_the_socket_is_not_delivered(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    // Each time a connection of its own: whether a cut one is noticed in time is the transport's
    // affair.
    let reading = || Caller::new(proxy.address(), TOKEN_A);
    let caller = server.a();
    let mut token = String::new();
    let id = Identity::fresh();
    for round in 1..=3 {
        let mut reader = reading().reader("editor", "installation-1", &token).await;
        assert!(matches!(reader.frame().await.expect("the first frame"), Frame::Opened(_)));
        let old_token = reader.token.clone();
        if round == 1 {
            proxy.set(Direction::Down, Mode::Swallow);
            caller.submitted(into_inbox(id.append("d1", "x"), "editor")).await;
        } else {
            let result = reader.results(1).await.remove(0);
            assert_eq!((sequence(&result), attempt(&result)), (1, round));
            assert!(result.redelivered);
        }
        eventually("the server to have sent it", BOUND, async || {
            let delivery = caller.get(&id).await.deliveries.remove(0);
            let sent = (delivery.state(), delivery.attempt) == (DeliveryState::InFlight, round);
            sent.then_some(())
        })
        .await;
        proxy.cut_all();
        proxy.heal();
        reader.end().await;
        token = old_token;
    }
    let mut reader = reading().reader("editor", "installation-1", &token).await;
    let result = reader.results(1).await.remove(0);
    assert_eq!((sequence(&result), attempt(&result)), (1, 4));
    assert_eq!(caller.ack("editor", &[1]).await.expect("acked"), [AckOutcome::Acked]);
    drop(reader);
    let mut reader = reading().reader("editor", "installation-1", &token).await;
    assert!(reader.backlog().await.is_empty(), "after the ack it is gone");
    assert_eq!(caller.text("d1").await, ("x\n".to_owned(), 1));
}

async fn f08_replays_are_recognisable(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let mut ids = Vec::new();
    for line in ["one", "two", "three"] {
        let id = Identity::fresh();
        caller.submitted(into_inbox(id.append("d1", line), "editor")).await;
        ids.push(id);
    }
    let mut reader = caller.reader("editor", "installation-1", "").await;
    let first = reader.backlog().await;
    assert_eq!(sequences(&first), [1, 2, 3]);
    assert!(first.iter().all(|result| !result.redelivered));
    let token = reader.token.clone();
    drop(reader);
    eventually("the server to see that the stream ended", BOUND, async || {
        caller.inbox("editor").await.consumers.is_empty().then_some(())
    })
    .await;

    let fourth = Identity::fresh();
    caller.submitted(into_inbox(fourth.append("d1", "four"), "editor")).await;
    let mut reader = server.a().reader("editor", "installation-1", &token).await;
    let mut again = Vec::new();
    while again.len() < 4 {
        again.extend(reader.next_results().await);
    }
    again.sort_by_key(sequence);
    let seen: Vec<_> = again
        .iter()
        .map(|result| {
            let operation = result.operation.as_ref().expect("an operation");
            (sequence(result), operation.operation_id.clone(), result.redelivered)
        })
        .collect();
    ids.push(fourth);
    let expected: Vec<_> =
        (1..).zip(&ids).map(|(number, id)| (number, id.id.clone(), number < 4)).collect();
    assert_eq!(seen, expected);
}

async fn f09_a_token_of_another_inbox_or_a_mangled_one_is_refused(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    for inbox in ["i1", "i2"] {
        for line in 1..=5 {
            let request = Identity::fresh().append("d1", &format!("{inbox} {line}"));
            caller.submitted(into_inbox(request, inbox)).await;
        }
    }
    let mut reader = caller.reader("i1", "installation-1", "").await;
    reader.backlog().await;
    let token = reader.token.clone();
    drop(reader);
    let mut mangled = token.clone();
    let last = mangled.pop().expect("a token has characters");
    mangled.push(if last == 'A' { 'B' } else { 'A' });

    let cases = [("i2", &token, "OTHER_INBOX"), ("i1", &mangled, "UNREADABLE")];
    for (inbox, token, cause) in cases {
        let status = refusal(&caller, inbox, token).await;
        let refused = Refused::of(&status);
        assert_eq!(refused.code, Code::InvalidArgument, "{refused:?}");
        assert_eq!(refused.reason, "RESUME_TOKEN_INVALID");
        assert_eq!(refused.value("cause"), cause);
        assert!(refused.message.contains("without a token"), "it says how to start over");
    }
    let foreign = Refused::of(&refusal(&server.b(), "i1", &token).await);
    assert_eq!(foreign.reason, "RESUME_TOKEN_INVALID", "another account's token");
    assert_eq!(foreign.value("cause"), "UNREADABLE", "and nothing about whose it is");
    assert_eq!(state_of(&server.b().get(&Identity::fresh()).await), None);
}

/// How an attempt to open a stream is refused; not a single result may come before it.
async fn refusal(caller: &Caller, inbox: &str, token: &str) -> Status {
    let request = StreamDeliveriesRequest {
        inbox: inbox.to_owned(),
        resume_token: token.to_owned(),
        consumer_id: "installation-1".to_owned(),
        window: 0,
    };
    match caller.open(request).await {
        Err(status) => status,
        Ok(mut reader) => reader.frame().await.expect_err("refused before any frame"),
    }
}

async fn f44_a_second_stream_replaces_the_first(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let caller = server.a();
    for line in ["one", "two", "three"] {
        caller.submitted(into_inbox(Identity::fresh().append("d1", line), "editor")).await;
    }
    let half_open = Caller::new(proxy.address(), TOKEN_A);
    let mut first = half_open.reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&first.backlog().await), [1, 2, 3]);
    // Neither side learns that the other is gone.
    proxy.set(Direction::Up, Mode::Swallow);
    proxy.set(Direction::Down, Mode::Swallow);

    let mut second = server.a().reader("editor", "installation-1", &first.token).await;
    let again = second.backlog().await;
    let shown = |results: &[DeliveredResult]| -> Vec<(i64, i32, bool)> {
        results.iter().map(|it| (sequence(it), attempt(it), it.redelivered)).collect()
    };
    assert_eq!(shown(&again), [(1, 2, true), (2, 2, true), (3, 2, true)], "at once");
    caller.submitted(into_inbox(Identity::fresh().append("d1", "four"), "editor")).await;
    assert_eq!(shown(&second.results(1).await), [(4, 1, false)], "not first into the old one");
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.consumers.len(), inbox.in_flight, inbox.pending), (1, 4, 0));

    let mut third = server.a().reader("editor", "installation-1", &second.token).await;
    assert_eq!(Refused::of(&second.end().await).reason, "STREAM_SUPERSEDED");
    // Those that come back for the second time wait for their pause, each for its own.
    let mut again = shown(&third.backlog().await);
    again.sort_unstable();
    assert_eq!(again, [(1, 3, true), (2, 3, true), (3, 3, true), (4, 2, true)]);
    let acked = caller.ack("editor", &[1, 2, 3, 4]).await.expect("acked");
    assert_eq!(acked, [AckOutcome::Acked; 4]);
}
