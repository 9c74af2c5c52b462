//! What only one of the stores can show: F36 (shared by replicas) and F45 (embedded).

use std::time::{Duration, Instant};

use receiptd::proto::{AckOutcome, Standing, operation::State};
use rusqlite::Connection;

use crate::support::{
    BOUND,
    answers::{operation, state_of},
    background,
    client::Refused,
    eventually,
    requests::Identity,
    stores::TestStore,
    within,
};

#[tokio::test(flavor = "multi_thread")]
async fn f36_look_up_right_after_acceptance_elsewhere() {
    let Some(store) = TestStore::postgres().await else { return };
    let (one, two) = (store.serve(&[]), store.serve(&[]));
    let (submitting, reading) = (one.a(), two.a());
    for number in 0..500 {
        let id = Identity::fresh();
        submitting.submitted(id.append(&format!("d/{}", number % 7), "x")).await;
        let read = reading.get(&id).await;
        assert_eq!((read.standing(), state_of(&read)), (Standing::Recorded, Some(State::Applied)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f45_another_process_holds_the_embedded_store() {
    let store = TestStore::sqlite();
    let TestStore::Sqlite(directory) = &store else { unreachable!("just made") };
    let path = directory.path().join("receiptd.db");
    let server = store.serve(&[]);
    let caller = server.a();
    let before = caller.submitted(Identity::fresh().append("d1", "before")).await;
    let number = before.deliveries[0].sequence;

    let other = Connection::open(&path).expect("the store is a plain file");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    let start = Instant::now();
    let mut attempts = Vec::new();
    for _ in 0..5 {
        let (caller, id) = (server.a(), Identity::fresh());
        attempts.push(background(async move {
            let answer = caller.submit(id.append("d1", &id.id)).await;
            (id, answer)
        }));
    }
    let (acking, ack) = (server.a(), [number]);
    let ack = background(async move { acking.ack("default", &ack).await });
    eventually("eight seconds of a held lock", BOUND, async || {
        (start.elapsed() > Duration::from_secs(8)).then_some(())
    })
    .await;
    other.execute_batch("ROLLBACK").expect("released");

    for attempt in attempts {
        let (id, answer) = within("an answer", attempt).await.expect("no panic");
        match answer {
            Ok(answer) => assert_eq!(operation(&answer).state(), State::Applied),
            Err(status) => {
                let refused = Refused::of(&status);
                assert_eq!(refused.reason, "STORE_UNAVAILABLE", "a classified error");
                assert_eq!(refused.value("operation_id"), id.id);
            }
        }
        let again = caller.submitted(id.append("d1", &id.id)).await;
        assert_eq!(operation(&again).state(), State::Applied, "work resumes by itself");
        let text = caller.text("d1").await.0;
        assert_eq!(text.lines().filter(|line| *line == id.id).count(), 1);
    }
    match within("the ack", ack).await.expect("no panic") {
        Ok(outcomes) => assert_eq!(outcomes, [AckOutcome::Acked]),
        Err(status) => assert_eq!(Refused::of(&status).reason, "STORE_UNAVAILABLE"),
    }
    let acked = caller.ack("default", &[number]).await.expect("answered");
    assert!(matches!(acked[0], AckOutcome::Acked | AckOutcome::AlreadyAcked));
}
