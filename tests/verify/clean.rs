//! Stores that nobody tampered with.

use tokio::time::Instant;

use receiptd::{
    domain::{command::Reply, ids::Span},
    sweeper,
    verify::Limits,
};

use crate::{
    commands::ack,
    history,
    places::{check, close, engine, engine_with, open_to_read, policy_that_keeps},
    support::stores::{TestStore, on_both_stores},
};

on_both_stores!(
    nothing_is_found_on_a_store_with_a_history,
    nothing_is_found_at_any_age_of_the_records,
    nothing_is_found_beside_a_running_engine,
    nothing_is_found_on_a_large_store,
);

async fn nothing_is_found_on_a_store_with_a_history(store: TestStore) {
    let (running, seams) = engine(&store).await;
    let happened = history::make(&running, &seams, 2_400).await;
    let told = [happened.applied, happened.rejected, happened.waiting, happened.cancelled];
    assert!(told.iter().all(|count| *count > 0), "{happened:?}");
    let told = [happened.acked, happened.late, happened.redriven];
    assert!(told.iter().all(|count| *count > 0), "{happened:?}");
    let swept = &happened.swept;
    let told = [swept.expired, swept.returned, swept.dead, swept.purged];
    assert!(told.iter().all(|count| *count > 0), "{happened:?}");
    let told = [swept.start_deadlines, swept.locks_released];
    assert!(told.iter().all(|count| *count > 0), "{happened:?}");
    close(running).await;
    let opened = open_to_read(&store).await;
    let (alone, counts) = check(&opened, &Limits::ALONE).await;
    assert_eq!(alone, []);
    assert!(counts.operations >= 2_400 && counts.payloads > 0 && counts.inboxes > 0, "{counts:?}");
    assert!(counts.audit_rows > counts.operations && counts.deliveries > 0, "{counts:?}");
    // Little may be remembered: the effects are counted in several walks.
    let narrow = Limits { rows: 7, documents: 50, remembered: 60 };
    let (online, narrow_counts) = check(&opened, &narrow).await;
    assert_eq!(online, []);
    let same = |one: u64, other: u64| assert_eq!(one, other);
    same(counts.operations, narrow_counts.operations);
    same(counts.audit_rows, narrow_counts.audit_rows);
    same(counts.deliveries, narrow_counts.deliveries);
    same(counts.documents, narrow_counts.documents);
    same(counts.payloads, narrow_counts.payloads);
    opened.close().await;
}

/// Tombstones, tombstones without their trail with an ack that came after it, and nothing but the floor.
async fn nothing_is_found_at_any_age_of_the_records(store: TestStore) {
    let (running, seams) = engine(&store).await;
    history::make(&running, &seams, 900).await;
    let reading = open_to_read(&store).await;
    let (mut before, mut swept) = (u64::MAX, sweeper::SweepCounts::default());
    for _ in 0..10 {
        seams.move_clock(Span::seconds(500));
        // Once to end what is open, once for what ages then.
        for _ in 0..2 {
            swept = swept + sweeper::run_once(&running).await;
        }
        let late = running.run(ack("i1", &[1])).await.expect("answered");
        assert!(matches!(late, Reply::Acked { .. }), "{late:?}");
        let (told, counts) = check(&reading, &Limits::ALONE).await;
        assert_eq!(told, []);
        assert!(counts.operations <= before, "{counts:?}");
        before = counts.operations;
    }
    let aged = [swept.compacted, swept.trails_removed, swept.forgotten];
    assert!(aged.iter().all(|count| *count >= 900), "{swept:?}");
    assert_eq!(before, 0, "nothing is left of the operations");
    reading.close().await;
    close(running).await;
}

/// Every page is one moment of the store.
async fn nothing_is_found_beside_a_running_engine(store: TestStore) {
    let (running, seams) = engine(&store).await;
    history::make(&running, &seams, 300).await;
    let reading = open_to_read(&store).await;
    let checks = async {
        for _ in 0..4 {
            let (told, _) = check(&reading, &Limits::ONLINE).await;
            assert_eq!(told, []);
        }
    };
    let writes = history::make_from(&running, &seams, 300, 900);
    tokio::join!(checks, writes);
    reading.close().await;
    close(running).await;
}

/// TESTS_VERIFY_OPERATIONS says how large.
async fn nothing_is_found_on_a_large_store(store: TestStore) {
    let wanted = std::env::var("TESTS_VERIFY_OPERATIONS").ok();
    let operations = wanted.as_ref().map_or(3_000, |count| count.parse().expect("a number"));
    let (running, seams) = engine_with(&store, policy_that_keeps()).await;
    let start = Instant::now();
    history::make(&running, &seams, operations).await;
    close(running).await;
    let made = start.elapsed();
    let opened = open_to_read(&store).await;
    let start = Instant::now();
    let (told, counts) = check(&opened, &Limits::ALONE).await;
    if wanted.is_some() {
        println!("made in {made:?}, checked in {:?}: {counts:?}", start.elapsed());
    }
    assert_eq!(told, []);
    assert!(counts.operations >= u64::try_from(operations).expect("small"), "{counts:?}");
    opened.close().await;
}
