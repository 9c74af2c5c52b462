//! Acknowledgements: F10, F11, F12, F13.

use std::{collections::BTreeSet, time::Duration};

use receiptd::proto::{AckOutcome, StreamDeliveriesRequest};

use crate::support::{
    background,
    client::{Caller, attempt, sequence, sequences},
    proxy::{Direction, Mode, Proxy},
    requests::{Identity, into_inbox},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    f10_ack_after_a_reconnect_twice_and_for_nonsense,
    f11_the_ack_never_arrived,
    f12_out_of_order_acks,
    f13_acked_stays_acked,
);

/// Queues `count` results into an inbox.
async fn queue(caller: &Caller, inbox: &str, count: usize) {
    for line in 0..count {
        let request = Identity::fresh().append(&format!("lines/{inbox}"), &line.to_string());
        caller.submitted(into_inbox(request, inbox)).await;
    }
}

async fn f10_ack_after_a_reconnect_twice_and_for_nonsense(store: TestStore) {
    let server = store.serve(&[]);
    queue(&server.a(), "editor", 3).await;
    let mut reader = server.a().reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1, 2, 3]);

    let other = server.a();
    let ack = async |numbers: &[i64]| other.ack("editor", numbers).await.expect("answered");
    assert_eq!(ack(&[1]).await, [AckOutcome::Acked]);
    assert_eq!(ack(&[1]).await, [AckOutcome::AlreadyAcked]);
    assert_eq!(ack(&[999]).await, [AckOutcome::NoSuchDelivery]);
    assert_eq!(
        ack(&[2, 999, 3]).await,
        [AckOutcome::Acked, AckOutcome::NoSuchDelivery, AckOutcome::Acked],
        "a bad one fails alone"
    );
    let strange = server.b().ack("editor", &[1]).await.expect("answered");
    assert_eq!(strange, [AckOutcome::NoSuchDelivery], "another account's inbox is its own");

    queue(&server.a(), "editor", 1).await;
    assert_eq!(sequences(&reader.next_results().await), [4], "the stream goes on");
}

async fn f11_the_ack_never_arrived(store: TestStore) {
    let server = store.serve(&["--ack-deadline=1s"]);
    let proxy = Proxy::start(server.address()).await;
    let acking = Caller::new(proxy.address(), TOKEN_A);
    queue(&server.a(), "editor", 1).await;
    let mut reader = server.a().reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1]);

    acking.inbox("editor").await;
    proxy.set(Direction::Up, Mode::cut_at("editor"));
    acking.ack("editor", &[1]).await.expect_err("the ack is dropped");
    let again = reader.next_results().await.remove(0);
    assert_eq!((sequence(&again), attempt(&again), again.redelivered), (1, 2, true));
    assert_eq!(acking.ack("editor", &[1]).await.expect("acked"), [AckOutcome::Acked]);
    let inbox = server.a().inbox("editor").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 0, 1));
    assert_eq!(server.a().text("lines/editor").await, ("0\n".to_owned(), 1));
}

async fn f12_out_of_order_acks(store: TestStore) {
    let server = store.serve(&["--ack-deadline=2s"]);
    let caller = server.a();
    queue(&caller, "editor", 19).await;
    let request = StreamDeliveriesRequest {
        inbox: "editor".to_owned(),
        resume_token: String::new(),
        consumer_id: "installation-1".to_owned(),
        window: 10,
    };
    let mut reader = caller.open(request).await.expect("the stream opens");
    let mut first = Vec::new();
    while first.len() < 10 {
        first.extend(reader.next_results().await);
    }
    assert_eq!(sequences(&first), (1..=10).collect::<Vec<i64>>(), "the window bounds it");
    let rest: Vec<i64> = (2..=10).collect();
    let acked = caller.ack("editor", &rest).await.expect("acked");
    assert_eq!(acked, [AckOutcome::Acked; 9]);

    let mut next = BTreeSet::new();
    let mut redelivered = BTreeSet::new();
    while next.len() < 9 || redelivered.is_empty() {
        for result in reader.next_results().await {
            let seen = if result.redelivered { &mut redelivered } else { &mut next };
            seen.insert(sequence(&result));
            if sequence(&result) > 10 {
                let acked = caller.ack("editor", &[sequence(&result)]).await.expect("acked");
                assert_eq!(acked, [AckOutcome::Acked]);
            }
        }
    }
    assert_eq!(next, (11..=19).collect(), "nine places were free at once");
    assert_eq!(redelivered, BTreeSet::from([1]), "only what was not acked comes again");
}

async fn f13_acked_stays_acked(store: TestStore) {
    let mut server = store.serve(&[]);
    for round in 0..5_u64 {
        let inbox = format!("round-{round}");
        queue(&server.a(), &inbox, 30).await;
        let (caller, name) = (server.a(), inbox.clone());
        let acking = background(async move {
            let mut acked = BTreeSet::new();
            for number in 1..=30 {
                match caller.ack(&name, &[number]).await {
                    Ok(outcomes) => {
                        assert_eq!(outcomes, [AckOutcome::Acked]);
                        acked.insert(number);
                    }
                    Err(_) => return acked,
                }
            }
            acked
        });
        // The moment of the kill moves through the work; it synchronises nothing.
        tokio::time::sleep(Duration::from_millis(5 + round * 7)).await;
        server.kill();
        let acked = within("the acks to end", acking).await.expect("no panic");

        server.start_again();
        let mut reader = server.a().reader(&inbox, "installation-1", "").await;
        let delivered: BTreeSet<i64> = sequences(&reader.backlog().await).into_iter().collect();
        assert!(delivered.is_disjoint(&acked), "round {round}: {delivered:?} after {acked:?}");
        // The ack under way at the kill may have committed without an answer: at most one.
        let lost = 30 - acked.len() - delivered.len();
        assert!(lost <= 1, "round {round}: {lost} results are neither acked nor delivered");
    }
}
