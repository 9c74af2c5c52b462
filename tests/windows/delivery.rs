//! Around delivery and ack: W4, W5, W6.

use std::time::Instant;

use receiptd::proto::{
    AckOutcome, OperationEventKind, Origin, delivery::State as DeliveryState, operation::State,
    stream_deliveries_response::Frame,
};

use crate::support::{
    BOUND,
    answers::{answered, delivery, found, lines, operation, state_of},
    client::{attempt, sequence, sequences},
    eventually,
    requests::{Identity, into_inbox, until_acked},
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    w4_reload_after_delivery_before_ack_shows_the_same_delivery_again,
    w5_never_acked_frees_slot_and_lock_and_later_work_proceeds,
    w6_a_storm_of_reconnects_stays_bounded,
);

async fn w4_reload_after_delivery_before_ack_shows_the_same_delivery_again(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let id = Identity::fresh();
    caller.submitted(into_inbox(id.append("d1", "x"), "editor")).await;

    let mut reader = caller.reader("editor", "installation-1", "").await;
    let first = reader.results(1).await.remove(0);
    assert!(!first.redelivered);
    assert_eq!(attempt(&first), 1);
    let token = reader.token.clone();
    drop(reader);

    let mut reader = server.a().reader("editor", "installation-1", &token).await;
    let again = reader.results(1).await.remove(0);
    assert!(again.redelivered, "a duplicate says that it is one");
    assert_eq!(sequence(&again), sequence(&first));
    assert_eq!(attempt(&again), 2);
    let receipt = |result: &receiptd::proto::DeliveredResult| {
        result.operation.clone().expect("an operation").receipt.expect("a receipt")
    };
    assert_eq!(receipt(&again), receipt(&first));
    assert_eq!(receipt(&again).operation_id, id.id);

    let number = sequence(&first);
    assert_eq!(caller.ack("editor", &[number]).await.expect("acked"), [AckOutcome::Acked]);
    let twice = caller.ack("editor", &[number]).await.expect("acked");
    assert_eq!(twice, [AckOutcome::AlreadyAcked], "a duplicate ack is harmless");
    assert_eq!(caller.count_events(&id, OperationEventKind::Acked).await, 1);
    assert_eq!(caller.text("d1").await, ("x\n".to_owned(), 1));
    assert_eq!(state_of(&caller.get(&id).await), Some(State::Applied));
}

async fn w5_never_acked_frees_slot_and_lock_and_later_work_proceeds(store: TestStore) {
    let server = store.serve(&["--ack-window=2s", "--ack-deadline=1s", "--inbox-slots=2"]);
    let caller = server.a();
    let holder = Identity::fresh();
    let held = caller.submitted(until_acked(holder.append("d1", "held"))).await;
    let waiter = Identity::fresh();
    let waiting = caller.submitted(into_inbox(waiter.append("d1", "waiter"), "second")).await;
    assert_eq!(answered(&waiting), (Origin::Executed, State::Accepted));

    let elsewhere = caller.submitted(Identity::fresh().append("d2", "free")).await;
    assert_eq!(operation(&elsewhere).state(), State::Applied, "another target is never delayed");
    let full = caller.refused(Identity::fresh().append("d2", "full")).await;
    assert_eq!((full.reason.as_str(), full.value("outcome")), ("INBOX_FULL", "NO_EFFECT"));

    eventually("the lock to be released", BOUND, async || {
        (state_of(&caller.get(&waiter).await) == Some(State::Applied)).then_some(())
    })
    .await;
    let inbox = eventually("the slots to be free", BOUND, async || {
        let inbox = caller.inbox("default").await;
        (inbox.expired_total == 2).then_some(inbox)
    })
    .await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.reserved), (0, 0, 0));
    let after = caller.submitted(Identity::fresh().append("d2", "after")).await;
    assert_eq!(operation(&after).state(), State::Applied);

    let expired = caller.get(&holder).await;
    assert_eq!(state_of(&expired), Some(State::Applied), "delivery never changes the outcome");
    assert_eq!(found(&expired).receipt, operation(&held).receipt, "the result stays readable");
    assert_eq!(expired.deliveries[0].state(), DeliveryState::Expired);
    for kind in [
        OperationEventKind::Applied,
        OperationEventKind::LockHeld,
        OperationEventKind::Queued,
        OperationEventKind::Expired,
        OperationEventKind::LockReleased,
    ] {
        assert_eq!(caller.count_events(&holder, kind).await, 1, "{kind:?} in the audit trail");
    }
    let late = caller.ack("default", &[delivery(&held).sequence]).await.expect("answered");
    assert_eq!(late, [AckOutcome::AckedLate]);
    assert_eq!(caller.text("d1").await, ("held\nwaiter\n".to_owned(), 2));
}

async fn w6_a_storm_of_reconnects_stays_bounded(store: TestStore) {
    let server =
        store.serve(&["--retry-budget=1000", "--backoff-first=500ms", "--backoff-limit=2s"]);
    let caller = server.a();
    for line in ["one", "two", "three"] {
        caller.submitted(into_inbox(Identity::fresh().append("d1", line), "editor")).await;
    }
    let start = Instant::now();
    let mut token = String::new();
    // A stream that is dropped right after its opening may have been sent results all the same.
    let reconnect = async |token: &mut String| {
        let mut reader = server.a().reader("editor", "installation-1", token).await;
        let first = reader.frame().await.expect("the first frame");
        assert!(matches!(first, Frame::Opened(_)), "{first:?}");
        token.clone_from(&reader.token);
    };
    for _ in 0..20 {
        reconnect(&mut token).await;
    }
    let memory = server.memory();
    for _ in 0..200 {
        reconnect(&mut token).await;
    }
    let elapsed = start.elapsed().as_secs_f64();
    if let (Some(before), Some(after)) = (memory, server.memory()) {
        assert!(after < before + (32 << 20), "memory rose from {before} to {after} bytes");
    }

    let inbox = caller.inbox("editor").await;
    assert_eq!(inbox.pending + inbox.in_flight, 3, "the queue holds what it held");
    assert!(inbox.consumers.len() <= 1, "one installation is one consumer: {inbox:?}");
    let mut reader = server.a().reader("editor", "installation-1", &token).await;
    let mut results = Vec::new();
    while results.len() < 3 {
        results.extend(reader.next_results().await);
    }
    let mut numbers = sequences(&results);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
    // The first return is free; after that each attempt waits, with jitter, a quarter of a second
    // at the least. The last one was made after the storm.
    let attempts_max = 4.0 + elapsed * 4.0;
    for result in &results {
        let attempts = f64::from(attempt(result));
        assert!(attempts <= attempts_max, "{attempts} attempts in {elapsed:.1} s");
    }
    let acked = caller.ack("editor", &numbers).await.expect("acked");
    assert_eq!(acked, [AckOutcome::Acked; 3]);
    let text = caller.text("d1").await.0;
    assert_eq!(["one", "two", "three"].map(|line| lines(&text, line)), [1; 3]);
}
