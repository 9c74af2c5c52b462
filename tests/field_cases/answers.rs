//! The caller does not hear the answer: F01, F02, F05, F25.

use std::{collections::BTreeMap, time::Duration};

use receiptd::proto::{OperationEventKind, Origin, RejectionReason, operation::State};
use tonic::Code;

use crate::support::{
    BOUND,
    answers::{
        answered, delivery, found_receipt, lines, operation, receipt, result_revision, state_of,
    },
    background,
    client::Caller,
    eventually,
    proxy::{Direction, Mode, Proxy},
    requests::{Identity, expecting, into_inbox, until_acked, waiting},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    f01_the_callers_own_deadline_fires_first,
    f01_the_reply_is_dropped,
    f02_identical_submissions_at_the_same_instant,
    f05_disconnect_is_not_a_cancel,
    f25_old_instruction_newer_document,
);

async fn f01_the_callers_own_deadline_fires_first(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let held = caller.submitted(until_acked(Identity::fresh().append("d1", "held"))).await;
    let id = Identity::named("op-a");

    let mut request = tonic::Request::new(waiting(id.append("d1", "x"), 30));
    request.set_timeout(Duration::from_secs(1));
    let mut client = caller.operations.clone();
    let accept_time = match within("the deadline", client.submit_operation(request)).await {
        // The server answers with the state in force shortly before the caller's deadline.
        Ok(answer) => {
            let answer = answer.into_inner();
            assert_eq!(answered(&answer), (Origin::Executed, State::Accepted));
            receipt(&answer).accept_time
        }
        Err(status) => {
            assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled));
            found_receipt(&caller.get(&id).await).accept_time
        }
    };
    for _ in 0..4 {
        let again = caller.submitted(id.append("d1", "x")).await;
        assert_eq!(answered(&again), (Origin::Attached, State::Accepted));
        assert_eq!(receipt(&again).accept_time, accept_time, "the first acceptance");
    }
    let held = delivery(&held);
    caller.ack(&held.inbox, &[held.sequence]).await.expect("acked");
    eventually("the operation to be applied", BOUND, async || {
        (state_of(&caller.get(&id).await) == Some(State::Applied)).then_some(())
    })
    .await;
    let replay = caller.submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(lines(&caller.text("d1").await.0, "x"), 1);
}

async fn f01_the_reply_is_dropped(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let caller = Caller::new(proxy.address(), TOKEN_A);
    server.a().submitted(Identity::fresh().put("d1", "base\n")).await;
    let id = Identity::named("op-b");
    caller.get(&id).await;
    proxy.set(Direction::Down, Mode::cut_at(&id.id));
    caller.submit(id.append("d1", "x")).await.expect_err("the reply is dropped");

    // A connection of its own: whether the cut one is noticed in time is the transport's affair.
    let caller = Caller::new(proxy.address(), TOKEN_A);
    let mut receipts = Vec::new();
    for _ in 0..5 {
        let again = caller.submitted(waiting(id.append("d1", "x"), 5)).await;
        assert_eq!(operation(&again).state(), State::Applied);
        assert_ne!(again.origin(), Origin::Executed, "the first submit had executed it");
        receipts.push(receipt(&again).clone());
    }
    receipts.dedup();
    assert_eq!(receipts.len(), 1, "the same receipt each time");
    assert_eq!(server.a().text("d1").await, ("base\nx\n".to_owned(), 2));
}

async fn f02_identical_submissions_at_the_same_instant(store: TestStore) {
    let servers = match &store {
        TestStore::Sqlite(_) => vec![store.serve(&[])],
        TestStore::Postgres(..) => vec![store.serve(&[]), store.serve(&[])],
    };
    let callers: Vec<Caller> = (0..20).map(|at| servers[at % servers.len()].a()).collect();
    for _ in 0..50 {
        let id = Identity::fresh();
        let attempts: Vec<_> = callers
            .iter()
            .map(|caller| {
                let (caller, request) = (caller.clone(), waiting(id.append("d1", &id.id), 8));
                background(async move { caller.submit(request).await })
            })
            .collect();
        let mut origins: BTreeMap<i32, usize> = BTreeMap::new();
        let mut receipts = Vec::new();
        for attempt in attempts {
            let answer = within("an answer", attempt).await.expect("no panic");
            let answer = answer.expect("no error of any kind");
            assert_eq!(operation(&answer).state(), State::Applied);
            *origins.entry(answer.origin).or_default() += 1;
            receipts.push(receipt(&answer).clone());
        }
        receipts.dedup();
        assert_eq!(receipts.len(), 1, "one receipt");
        assert_eq!(origins.get(&Origin::Executed.into()), Some(&1), "one execution: {origins:?}");
        assert_eq!(lines(&servers[0].a().text("d1").await.0, &id.id), 1);
    }
}

async fn f05_disconnect_is_not_a_cancel(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let leaving = Caller::new(proxy.address(), TOKEN_A);
    let caller = server.a();
    let held = caller.submitted(until_acked(Identity::fresh().append("d1", "held"))).await;
    let id = Identity::named("op-f");
    let request = into_inbox(waiting(id.append("d1", "x"), 30), "editor");
    let attempt = background(async move { leaving.submit(request).await });
    eventually("the operation to be accepted", BOUND, async || {
        (state_of(&caller.get(&id).await) == Some(State::Accepted)).then_some(())
    })
    .await;
    proxy.cut_all();
    within("the cut", attempt).await.expect("no panic").expect_err("the caller is gone");
    let held = delivery(&held);
    caller.ack(&held.inbox, &[held.sequence]).await.expect("acked");

    let another = server.a();
    let mut reader = another.reader("editor", "installation-2", "").await;
    let result = reader.results(1).await.remove(0);
    let delivered = result.operation.expect("an operation");
    assert_eq!((delivered.operation_id.as_str(), delivered.state()), ("op-f", State::Applied));
    assert_eq!(lines(&another.text("d1").await.0, "x"), 1);
    assert_eq!(another.count_events(&id, OperationEventKind::Cancelled).await, 0);
}

async fn f25_old_instruction_newer_document(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let caller = Caller::new(proxy.address(), TOKEN_A);
    let person = server.a();
    person.submitted(Identity::fresh().put("d1", "base\n")).await;
    let (n, o) = (Identity::named("op-n"), Identity::named("op-o"));
    caller.get(&n).await;
    proxy.set(Direction::Down, Mode::cut_at(&n.id));
    caller.submit(n.append("d1", "x")).await.expect_err("the reply is lost");
    eventually("op-n to be applied", BOUND, async || {
        (state_of(&person.get(&n).await) == Some(State::Applied)).then_some(())
    })
    .await;
    person.submitted(Identity::fresh().put("d1", "newer")).await;

    let replay = caller.submitted(n.append("d1", "x")).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(result_revision(receipt(&replay)), 2);
    assert_eq!(replay.projection.expect("the present").revision, 3);
    let stale = caller.submitted(expecting(o.append("d1", "y"), 2)).await;
    assert_eq!(answered(&stale), (Origin::Executed, State::Rejected));
    let rejection = receipt(&stale).rejection.clone().expect("a reason");
    assert_eq!(rejection.reason(), RejectionReason::RevisionMismatch);
    assert_eq!(rejection.found_revision, Some(3));
    assert_eq!(stale.projection.expect("the present").revision, 3);
    assert_eq!(person.text("d1").await, ("newer".to_owned(), 3));
}
