//! Queues that must not jam, and sweeping: F16, F18, F40 (with a restart of the database: see
//! `sweeping`).

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use receiptd::proto::{
    AckOutcome, OperationEventKind, RedriveOutcome, WatchOperationRequest,
    delivery::State as DeliveryState, operation::State, stream_deliveries_response::Frame,
};

use crate::support::{
    answers::{found_receipt, operation, receipt, state_of},
    client::{Caller, attempt, sequence},
    eventually,
    requests::{Identity, into_inbox, until_acked},
    server::Server,
    stores::{TestStore, on_both_stores},
    within,
};

const LONG: Duration = Duration::from_secs(30);
/// Results that nobody fetches: several pages of a sweep.
const ABANDONED: usize = 3_000;

on_both_stores!(
    f16_expiry_needs_no_visitor,
    f18_an_entry_nobody_can_digest,
    f40_sweeping_is_bounded_and_retires_each_once,
    a_watcher_sees_who_holds_the_lock_next,
);

async fn f16_expiry_needs_no_visitor(store: TestStore) {
    let server = store.serve(&["--inbox-slots=5", "--ack-deadline=1s", "--ack-window=4s"]);
    let caller = server.a();
    let mut first = Vec::new();
    for line in 0..5 {
        let id = Identity::fresh();
        let request = into_inbox(id.append("d1", &line.to_string()), "editor");
        first.push((id, caller.submitted(request).await));
    }
    let mut reader = server.a().reader("editor", "installation-1", "").await;
    assert_eq!(reader.backlog().await.len(), 5);
    drop(reader);
    let refused = caller.refused(into_inbox(Identity::fresh().append("d1", "6"), "editor")).await;
    assert_eq!(refused.reason, "INBOX_FULL");
    assert_eq!((refused.value("limit"), refused.value("in_use")), ("5", "5"));

    eventually("nothing in flight", LONG, async || {
        let inbox = caller.inbox("editor").await;
        (inbox.in_flight == 0 && inbox.pending == 5).then_some(())
    })
    .await;
    let inbox = eventually("everything to expire", LONG, async || {
        let inbox = caller.inbox("editor").await;
        (inbox.expired_total == 5).then_some(inbox)
    })
    .await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.reserved), (0, 0, 0));
    for line in 5..10 {
        let request = into_inbox(Identity::fresh().append("d1", &line.to_string()), "editor");
        assert_eq!(operation(&caller.submitted(request).await).state(), State::Applied);
    }
    for (id, answer) in &first {
        let read = caller.get(id).await;
        assert_eq!(found_receipt(&read), receipt(answer), "still readable");
        assert_eq!(read.deliveries[0].state(), DeliveryState::Expired);
        assert_eq!(caller.count_events(id, OperationEventKind::Expired).await, 1);
    }
    let mut reader = server.a().reader("editor", "installation-2", "").await;
    let gap = loop {
        if let Frame::Gap(gap) = reader.frame().await.expect("the stream stays open") {
            break gap;
        }
    };
    assert_eq!((gap.first_sequence, gap.last_sequence), (1, 5), "which numbers will not come");
    assert_eq!(gap.operation_ids.len(), 5);

    let first_five: Vec<i64> = (1..=5).collect();
    let full = caller.redrive("editor", &first_five).await;
    assert_eq!(full, [RedriveOutcome::InboxFull; 5], "the five submissions have the places");
    let mut later = Vec::new();
    while later.len() < 5 {
        later.extend(reader.next_results().await);
    }
    let numbers: Vec<i64> = later.iter().map(sequence).collect();
    caller.ack_as("installation-2", "editor", &numbers).await.expect("acked");
    assert_eq!(caller.redrive("editor", &first_five).await, [RedriveOutcome::Redriven; 5]);
    let mut revived = BTreeSet::new();
    while revived.len() < 5 {
        for result in reader.next_results().await {
            assert!(sequence(&result) <= 5 && result.redelivered, "{result:?}");
            revived.insert(sequence(&result));
        }
    }
    let acked = caller.ack_as("installation-2", "editor", &first_five).await.expect("acked");
    assert_eq!(acked, [AckOutcome::Acked; 5], "none is lost");
}

async fn f18_an_entry_nobody_can_digest(store: TestStore) {
    let flags = ["--retry-budget=3", "--ack-deadline=500ms", "--backoff-first=1s"];
    let server = store.serve(&flags);
    let caller = server.a();
    let mut ids = Vec::new();
    for line in 1..=6 {
        let id = Identity::fresh();
        caller.submitted(into_inbox(id.append("d1", &line.to_string()), "editor")).await;
        ids.push(id);
    }
    let mut reader = caller.reader("editor", "installation-1", "").await;
    let mut digested = Vec::new();
    let mut attempts: Vec<(i32, Instant)> = Vec::new();
    while digested.len() < 5 || attempts.len() < 3 {
        for result in reader.next_results().await {
            match sequence(&result) {
                3 => attempts.push((attempt(&result), Instant::now())),
                number => {
                    caller.ack("editor", &[number]).await.expect("acked");
                    digested.push((number, attempts.len()));
                }
            }
        }
    }
    assert!(digested.iter().all(|(_, attempts)| *attempts <= 1), "{digested:?} did not wait");
    let numbers: Vec<i32> = attempts.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let gap = |later: usize| attempts[later].1 - attempts[later - 1].1;
    assert!(gap(2) > gap(1), "growing gaps: {:?} and {:?}", gap(1), gap(2));

    let dead = eventually("the result to die", LONG, async || {
        let read = caller.get(&ids[2]).await;
        (read.deliveries[0].state() == DeliveryState::Dead).then_some(read)
    })
    .await;
    assert_eq!(dead.deliveries[0].attempt, 3, "exactly three attempts");
    assert!(dead.deliveries[0].last_failure_time.is_some());
    assert_eq!(state_of(&dead), Some(State::Applied));
    assert_eq!(found_receipt(&dead).operation_id, ids[2].id);
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.dead_total, inbox.acked_total), (1, 5));
    assert_eq!((inbox.pending, inbox.in_flight), (0, 0));

    assert_eq!(
        caller.redrive("editor", &[3, 1]).await,
        [RedriveOutcome::Redriven, RedriveOutcome::AlreadyAcked]
    );
    let revived = reader.next_results().await.remove(0);
    assert_eq!((sequence(&revived), attempt(&revived)), (3, 4), "numbers of attempts go on");
    assert_eq!(caller.count_events(&ids[2], OperationEventKind::Redriven).await, 1);
    assert_eq!(caller.ack("editor", &[3]).await.expect("acked"), [AckOutcome::Acked]);
}

/// A smaller version, deliveries only: thousands expire while callers go on, and where replicas
/// can share the store, three of them sweep it without a leader.
async fn f40_sweeping_is_bounded_and_retires_each_once(store: TestStore) {
    let replicas = match &store {
        TestStore::Sqlite(_) => 1,
        TestStore::Postgres(..) => 3,
    };
    let flags = ["--ack-window=3s", "--ack-deadline=1s", "--inbox-slots=1000000"];
    let servers: Vec<Server> = (0..replicas).map(|_| store.serve(&flags)).collect();
    let callers: Vec<Caller> = servers.iter().map(Server::a).collect();
    let ids: Vec<Identity> = (0..ABANDONED).map(|_| Identity::fresh()).collect();
    for (hundred, caller) in ids.chunks(100).zip(callers.iter().cycle()) {
        let submit = |id: &Identity| into_inbox(id.put(&format!("many/{}", id.id), "x"), "gone");
        caller.submitted_together(hundred.iter().map(submit).collect()).await;
    }

    let expired = ids.len() as i64;
    let foreground = join_all(callers.iter().map(async |caller| {
        loop {
            // Answered, and not refused: sweeping is nothing that callers notice.
            let request = into_inbox(Identity::fresh().append("foreground", "x"), "foreground");
            caller.submitted(request).await;
            if caller.inbox("gone").await.expired_total == expired {
                return;
            }
        }
    }));
    tokio::time::timeout(LONG, foreground).await.expect("nothing is left after a while");
    let inbox = callers[0].inbox("gone").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.reserved), (0, 0, 0));
    let count = async |id| callers[0].count_events(id, OperationEventKind::Expired).await;
    for some in ids.chunks(50) {
        let counts = join_all(some.iter().map(count)).await;
        assert!(counts.iter().all(|count| *count == 1), "each retired once: {counts:?}");
    }
}

/// The row of an operation that waits doesn't change when its lock passes from one to the next.
async fn a_watcher_sees_who_holds_the_lock_next(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().append("d", "0")).await;
    let ids = [Identity::fresh(), Identity::fresh(), Identity::fresh()];
    for id in &ids {
        caller.submitted(into_inbox(until_acked(id.append("d", "x")), &id.id)).await;
    }
    let [holder, next, last] = &ids;
    let watch = WatchOperationRequest {
        operation_id: last.id.clone(),
        mint_time: last.look_up().mint_time,
    };
    let mut frames = caller.operations.clone().watch_operation(watch).await.expect("watched");
    let frames = frames.get_mut();
    let mut held_by = async || {
        let frame = within("a frame", frames.message()).await.expect("not ended");
        let watched = frame.and_then(|frame| frame.operation).expect("an operation");
        (watched.state(), watched.waiting_for.map(|lock| lock.operation_id).unwrap_or_default())
    };
    assert_eq!(held_by().await, (State::Accepted, holder.id.clone()));
    caller.ack(&holder.id, &[1]).await.expect("acked");
    assert_eq!(held_by().await, (State::Accepted, next.id.clone()));
    caller.ack(&next.id, &[1]).await.expect("acked");
    assert_eq!(held_by().await, (State::Applied, String::new()));
}
