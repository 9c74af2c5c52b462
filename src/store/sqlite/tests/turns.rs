//! The turns of the writer: how they begin, end, fail and follow one another.

use std::time::Duration;

use super::fixtures::*;
use crate::{
    domain::{
        ids::{ConsumerId, Span, Timestamp},
        inbox::Inbox,
        operation::Operation,
        world::needs::{Access, HELD_MAX, Need, WAITERS_MAX},
    },
    engine::seams::Seams,
    store::{
        Settled, Touches, TransactError,
        sqlite::{Options, SqliteStore, fault::Failure},
    },
};

fn account_needed() -> Vec<Need> {
    vec![Need::Account(account(), Access::Write)]
}

async fn count_batches(store: &SqliteStore) -> usize {
    let tables = store.dump_tables().await.expect("dumps");
    tables.into_iter().find(|(name, _)| name == "batches").expect("is there").1.len()
}

#[tokio::test]
async fn a_batch_without_changes_writes_nothing() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let wal_bytes = store.wal_bytes();
    let read = run(&store, account_needed(), |world| world.account(&account()).map(|_| ()));
    let touches = read.await.expect("reads").touches;
    assert_eq!(touches, Touches { loaded: 1, saved: 0, round_trips: 0, commits: 0 });
    assert_eq!(count_batches(&store).await, 0);
    assert_eq!(store.wal_bytes(), wal_bytes);
    let written = run(&store, account_needed(), |world| world.put_account(account_row(1)));
    let touches = written.await.expect("commits").touches;
    assert_eq!(touches, Touches { loaded: 1, saved: 2, round_trips: 0, commits: 1 });
    assert_eq!(count_batches(&store).await, 1);
    store.close().await;
}

#[tokio::test]
async fn a_file_that_somebody_else_writes_is_waited_for_and_no_longer_than_said() {
    let place = Place::new(Seams::system());
    let options = Options { busy_timeout: Duration::from_millis(50), ..Options::default() };
    let store = place.open_with(&options);
    let stranger = place.stranger();
    stranger.execute_batch("BEGIN IMMEDIATE").expect("begins");
    let refused = run(&store, account_needed(), |world| world.put_account(account_row(1))).await;
    assert!(matches!(refused, Err(TransactError::Unavailable(_))), "{refused:?}");
    assert_eq!(store.account(&account()).await.expect("reads all the same"), None);
    stranger.execute_batch("ROLLBACK").expect("ends");
    let written = run(&store, account_needed(), |world| world.put_account(account_row(1)));
    written.await.expect("commits");
    store.close().await;
}

#[tokio::test]
async fn a_panic_fails_its_batch_alone() {
    for seams in [Seams::system(), simulated(5)] {
        let place = Place::new(seams);
        let store = place.open();
        let refused = run(&store, account_needed(), |world| {
            world.put_account(account_row(1))?;
            assert_eq!(world.now(), Timestamp(-1), "a bug");
            Ok(())
        });
        let refused = refused.await;
        assert!(matches!(&refused, Err(TransactError::Failed(text)) if text.contains("a bug")));
        assert_eq!(store.account(&account()).await.expect("reads"), None);
        let written = run(&store, account_needed(), |world| world.put_account(account_row(1)));
        written.await.expect("commits");
        store.close().await;
    }
}

#[tokio::test]
async fn a_batch_is_settled_by_its_row() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let make = || {
        transaction(store.seams(), account_needed(), |world| {
            world.put_account(account_row(1)).expect("loaded");
            "decided"
        })
    };
    let committed = make();
    let batch = committed.batch.clone();
    store.transact(committed).await.expect("commits");
    let mut again = make();
    again.batch = batch.clone();
    let settled = store.settle(again).await.expect("settles");
    assert!(matches!(settled, Settled::Committed), "{settled:?}");
    let tables = store.dump_tables().await.expect("dumps");
    let batches = &tables.iter().find(|(name, _)| name == "batches").expect("is there").1;
    assert!(batches.len() == 1 && batches[0].ends_with("settled=1"), "{batches:?}");

    let settled = store.settle(make()).await.expect("settles");
    let Settled::RunAgain(committed) = settled else { panic!("{settled:?}") };
    assert_eq!((committed.value, committed.touches.commits), ("decided", 1));
    assert_eq!(count_batches(&store).await, 2);
    let mut taken = make();
    taken.batch = batch;
    let refused = store.transact(taken).await;
    assert!(matches!(refused, Err(TransactError::Conflict(_))), "{refused:?}");
    store.close().await;
}

#[tokio::test]
async fn a_settled_batch_never_commits_even_if_settling_changed_nothing() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let nothing = transaction(store.seams(), account_needed(), |_| "nothing");
    let batch = nothing.batch.clone();
    let settled = store.settle(nothing).await.expect("settles");
    let Settled::RunAgain(committed) = settled else { panic!("{settled:?}") };
    assert_eq!((committed.value, committed.touches.commits), ("nothing", 1));
    let mut late = transaction(store.seams(), account_needed(), |world| {
        world.put_account(account_row(1)).expect("loaded");
    });
    late.batch = batch;
    let refused = store.transact(late).await;
    assert!(matches!(refused, Err(TransactError::Conflict(_))), "{refused:?}");
    assert_eq!(store.account(&account()).await.expect("reads"), None);
    assert_eq!(count_batches(&store).await, 1);
    store.close().await;
}

#[tokio::test]
async fn the_offset_moves_the_clock_of_a_turn() {
    let seams = simulated(5);
    let place = Place::new(seams.clone());
    let store = place.open();
    let now = async || run(&store, vec![], |world| Ok(world.now())).await.expect("reads");
    assert_eq!((now().await.value, now().await.now), (Timestamp(5), Timestamp(5)));
    seams.move_clock(Span(10));
    assert_eq!(
        (now().await.value, store.now().await.expect("ticks")),
        (Timestamp(15), Timestamp(15))
    );
    store.close().await;
}

#[tokio::test]
async fn everything_that_was_asked_for_is_loaded_found_or_not() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let needs = vec![
        write_operation(PACKED),
        Need::Arguments(operation_key(PACKED)),
        Need::Account(account(), Access::Read),
        load_document("absent"),
        Need::Waiters(target_key("absent")),
        Need::Delivery(delivery_key("default", 1)),
        Need::Deliverable(inbox_key("default"), 10),
        Need::Held(inbox_key("default"), ConsumerId::from_stored("phone")),
    ];
    let loaded = run(&store, needs, |world| {
        assert_eq!(world.operation(&operation_key(PACKED), Access::Write)?, None);
        assert_eq!(world.account(&account())?, None);
        assert_eq!(world.lock(&target_key("absent"))?, None);
        assert_eq!(world.waiters(&target_key("absent"))?, []);
        assert_eq!(world.inbox(&inbox_key("default"))?, None);
        assert_eq!(world.delivery(&delivery_key("default", 1))?, None);
        assert_eq!(world.deliverable(&inbox_key("default"))?, (vec![], 0));
        assert_eq!(world.held(&inbox_key("default"), &ConsumerId::from_stored("phone"))?, []);
        Ok(())
    });
    assert_eq!(loaded.await.expect("reads").touches.loaded, 7);
    store.close().await;
}

#[tokio::test]
async fn waiters_come_by_ticket_up_to_the_limit() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let ids: Vec<String> = (0..WAITERS_MAX + 2).map(|number| format!("wait-{number}")).collect();
    let needs = ids.iter().map(|id| write_operation(id)).collect();
    let stored = run(&store, needs, move |world| {
        for (ticket, id) in (0_i64..).zip(&ids) {
            let wait_ticket = (ticket != 1).then_some(100 - ticket);
            world.put_operation(Operation { wait_ticket, ..bare_operation(id) })?;
        }
        Ok(())
    });
    stored.await.expect("commits");
    let target = target_key("notes/ä");
    let found =
        run(&store, vec![Need::Waiters(target.clone())], move |world| world.waiters(&target));
    let found = found.await.expect("reads");
    let expected = (0..WAITERS_MAX).map(|place| format!("wait-{}", WAITERS_MAX + 1 - place));
    let expected: Vec<_> = expected.map(|id| operation_key(&id)).collect();
    assert_eq!(found.value, expected, "the one without a ticket and the last one stay out");
    store.close().await;
}

#[tokio::test]
async fn an_inbox_offers_what_returned_and_what_is_fresh() {
    let seams = simulated(50);
    let place = Place::new(seams);
    let store = place.open();
    let returned = |sequence, available: i64| crate::domain::delivery::Delivery {
        attempt: 1,
        available_time: Some(Timestamp(available)),
        ..pending("default", sequence)
    };
    let rows = vec![
        returned(1, 50),
        returned(2, 51),
        returned(3, 40),
        in_flight("default", 4, "phone"),
        in_flight("default", 5, "laptop"),
        pending("default", 6),
        pending("default", 8),
        pending("default", 9),
        pending("default", 10),
    ];
    let inbox = Inbox { next_sequence: 11, offered: 6, ..full_inbox("default") };
    store_deliveries(&store, inbox, rows).await;
    store_deliveries(&store, full_inbox("other"), vec![in_flight("other", 4, "phone")]).await;
    let phone = ConsumerId::from_stored("phone");
    let key = inbox_key("default");
    let needs = vec![Need::Deliverable(key.clone(), 2), Need::Held(key.clone(), phone.clone())];
    let found =
        run(&store, needs, move |world| Ok((world.deliverable(&key)?, world.held(&key, &phone)?)));
    let ((deliverable, end), held) = found.await.expect("reads").value;
    assert_eq!(deliverable, [8, 9, 3, 1].map(|sequence| delivery_key("default", sequence)));
    assert_eq!(end, 9);
    assert_eq!(held, [delivery_key("default", 4)]);
    store.close().await;
}

#[tokio::test]
async fn what_deleted_generations_left_takes_no_place_of_a_page() {
    let place = Place::new(simulated(50));
    let store = place.open();
    let returned = |sequence| crate::domain::delivery::Delivery {
        attempt: 1,
        available_time: Some(Timestamp(sequence - HELD_MAX)),
        ..pending("default", sequence)
    };
    let mut rows: Vec<_> =
        (1..=HELD_MAX).map(|number| in_flight("default", number, "phone")).collect();
    rows.extend([returned(HELD_MAX + 1), returned(HELD_MAX + 2)]);
    // This generation's.
    let first = HELD_MAX + 3;
    rows.extend([returned(first), in_flight("default", first + 1, "phone")]);
    let last = first + 1;
    let inbox = Inbox {
        next_sequence: last + 1,
        offered: last,
        first_sequence: first,
        ..full_inbox("default")
    };
    store_deliveries(&store, inbox, rows).await;
    let phone = ConsumerId::from_stored("phone");
    let key = inbox_key("default");
    let needs = vec![Need::Deliverable(key.clone(), 1), Need::Held(key.clone(), phone.clone())];
    let found =
        run(&store, needs, move |world| Ok((world.deliverable(&key)?, world.held(&key, &phone)?)));
    let ((deliverable, _), held) = found.await.expect("reads").value;
    assert_eq!(deliverable, [delivery_key("default", first)]);
    assert_eq!(held, [delivery_key("default", last)]);
    let oldest = store.oldest_open_of(&[inbox_key("default")]).await.expect("reads");
    let oldest: Vec<_> = oldest.into_iter().flatten().map(|row| row.key.sequence).collect();
    assert_eq!(oldest, [first]);
    store.close().await;
}

#[tokio::test]
async fn what_is_held_comes_by_number_up_to_the_limit() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let rows = (1..=HELD_MAX + 5).rev().map(|sequence| {
        let due_time = Some(Timestamp(10_000 - sequence));
        crate::domain::delivery::Delivery { due_time, ..in_flight("default", sequence, "phone") }
    });
    store_deliveries(&store, full_inbox("default"), rows.collect()).await;
    let (key, phone) = (inbox_key("default"), ConsumerId::from_stored("phone"));
    let needs = vec![Need::Held(key.clone(), phone.clone())];
    let held = run(&store, needs, move |world| world.held(&key, &phone));
    let held = held.await.expect("reads").value;
    let expected: Vec<_> =
        (1..=HELD_MAX).map(|sequence| delivery_key("default", sequence)).collect();
    assert_eq!(held, expected);
    store.close().await;
}

#[tokio::test]
async fn the_log_stays_bounded_under_commits() {
    for seams in [Seams::system(), simulated(5)] {
        let place = Place::new(seams);
        let wal_bytes_max = 256 * 1024;
        let store = place.open_with(&Options { wal_bytes_max, ..Options::default() });
        let mut longest = 0;
        for round in 0..200_u32 {
            let key = target_key(&format!("document-{}", round % 10));
            let content: &[u8] = &[7; 8 * 1024];
            let row = document(key.target.as_str(), content);
            let need = vec![load_document(key.target.as_str())];
            run(&store, need, move |world| world.put_document(row)).await.expect("commits");
            longest = longest.max(store.wal_bytes());
        }
        // One commit is at most a few pages over the limit before the writer looks.
        assert!(longest <= wal_bytes_max + 64 * 1024, "{longest}");
        assert!(longest > 64 * 1024, "the log is in use: {longest}");
        store.close().await;
    }
}

#[tokio::test]
async fn a_long_read_of_somebody_else_only_lets_the_log_grow() {
    let place = Place::new(Seams::system());
    let wal_bytes_max = 64 * 1024;
    let store = place.open_with(&Options { wal_bytes_max, ..Options::default() });
    let stranger = place.stranger();
    stranger.execute_batch("BEGIN; SELECT count(*) FROM accounts").expect("reads");
    let write = async |inboxes| {
        let needs = account_needed();
        run(&store, needs, move |world| world.put_account(account_row(inboxes))).await
    };
    for inboxes in 0..40 {
        write(inboxes).await.expect("commits");
    }
    assert!(store.wal_bytes() > wal_bytes_max);
    stranger.execute_batch("COMMIT").expect("ends");
    // The background's checkpoint may hold the writer's off for a few turns, never for good.
    let bound = wal_bytes_max + 64 * 1024;
    let mut commits = 0;
    while store.wal_bytes() > bound && commits < 1_000 {
        write(commits).await.expect("commits");
        commits += 1;
    }
    assert!(store.wal_bytes() <= bound, "{} after {commits} commits", store.wal_bytes());
    store.close().await;
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_answers_reads_until_there_is_room() {
    let place = Place::new(Seams::system());
    let store = place.open();
    static CONTENT: [u8; 1_000_000] = [7; 1_000_000];
    let put = async |path: &'static str, bytes: usize| {
        let needs = vec![load_document(path)];
        let row = document(path, &CONTENT[..bytes]);
        run(&store, needs, move |world| world.put_document(row)).await
    };
    put("small", 10).await.expect("commits");
    let limit = |pages: &'static str| {
        store.write(move |connection| {
            let set = format!("PRAGMA max_page_count = {pages}");
            Ok(connection.query_row(&set, [], |row| row.get::<_, i64>(0))?)
        })
    };
    // Less than there is means: no page more.
    limit("1").await.expect("limited");
    let refused = put("large", 1_000_000).await;
    assert!(matches!(refused, Err(TransactError::Unavailable(_))), "{refused:?}");
    assert!(store.document(&target_key("small")).await.expect("reads").is_some());
    assert!(store.document(&target_key("large")).await.expect("reads").is_none());
    limit("1000000").await.expect("lifted");
    put("large", 1_000_000).await.expect("commits again");
    store.close().await;
}

#[tokio::test]
async fn after_a_commit_that_failed_nothing_is_answered() {
    let place = Place::new(Seams::system());
    let store = place.open();
    // Takes the transaction away from under the commit, which then fails for good.
    let failed = store.write(|connection| Ok(connection.execute_batch("ROLLBACK")?)).await;
    assert!(matches!(failed, Err(Failure::Fatal(_))), "{failed:?}");
    let refused = run(&store, account_needed(), |world| world.put_account(account_row(1))).await;
    assert!(matches!(refused, Err(TransactError::Fatal(_))), "{refused:?}");
    store.account(&account()).await.expect_err("a read is not answered either");
    store.close().await;
    let store = place.open();
    assert_eq!(store.account(&account()).await.expect("reads"), None);
    store.close().await;
}
