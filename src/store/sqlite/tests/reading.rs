//! The reads: what they find, in which order, and where they stop.

use super::fixtures::*;
use crate::{
    domain::{
        delivery::{Delivery, DeliveryState, InboxKey},
        document::Document,
        ids::{Account, InboxName, Span, Target, Timestamp},
        inbox::Inbox,
        lock::Lock,
        operation::Operation,
        world::needs::Need,
    },
    engine::seams::Seams,
    store::{
        query::{
            DocumentGlimpse, Due, DueKind, DuePosition, InboxGlimpse, InboxPage, OperationGlimpse,
            OperationPosition,
        },
        sqlite::SqliteStore,
    },
};

async fn store_operations(store: &SqliteStore, rows: Vec<Operation>) {
    let needs = rows.iter().map(|row| write_operation(row.key.id.as_str())).collect();
    let stored =
        run(store, needs, |world| rows.into_iter().try_for_each(|row| world.put_operation(row)));
    stored.await.expect("commits");
}

async fn store_documents(store: &SqliteStore, rows: Vec<Document>) {
    let needs = rows.iter().map(|row| load_document(row.key.target.as_str())).collect();
    let stored =
        run(store, needs, |world| rows.into_iter().try_for_each(|row| world.put_document(row)));
    stored.await.expect("commits");
}

#[tokio::test]
async fn a_look_up_shows_the_record_with_what_belongs_to_it() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let target = "notes/ä";
    store_deliveries(&store, full_inbox("default"), vec![pending("default", 60)]).await;
    store_documents(&store, vec![document(target, b"text")]).await;
    let stored = run(&store, vec![omit_document(target)], |world| {
        world.put_lock(&target_key(target), Some(lock(target)))
    });
    stored.await.expect("commits");
    store_operations(&store, vec![full_operation(PACKED), bare_operation(PLAIN)]).await;
    let keys = ["absent", PACKED, PLAIN].map(operation_key);
    let found = store.look_up(&keys).await.expect("reads");
    assert!(found[0].operation.is_none() && found[0].document.is_none());
    assert_eq!(found[1].operation, Some(full_operation(PACKED)));
    assert_eq!(found[1].deliveries, [pending("default", 60)]);
    assert_eq!(found[1].lock, Some(lock(target)));
    let projection = Document { content: None, locked: true, ..document(target, b"text") };
    assert_eq!(found[2].document, Some(projection));
    assert_eq!((&found[2].lock, found[2].deliveries.len()), (&None, 0), "it does not wait");
    store.close().await;
}

#[tokio::test]
async fn operations_are_listed_newest_first_page_by_page() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let row = |id: &str, time: i64, end: Option<i64>| Operation {
        accept_time: Timestamp(time),
        end_time: end.map(Timestamp),
        ..bare_operation(id)
    };
    let rows = vec![row("a", 1, None), row("b", 2, None), row("c", 2, Some(9)), row("d", 3, None)];
    store_operations(&store, rows).await;
    let (mut all, mut open, mut after) = (String::new(), String::new(), None);
    while let Some(last) = {
        let page = store.list_operations(&account(), after.as_ref(), 1).await.expect("reads");
        page.into_iter().next()
    } {
        all.push_str(last.key.id.as_str());
        after = Some(OperationPosition { accept_time: last.accept_time, id: last.key.id });
    }
    for row in store.list_unresolved(&account(), None, 10).await.expect("reads") {
        open.push_str(row.key.id.as_str());
    }
    assert_eq!((all.as_str(), open.as_str()), ("dcba", "dba"));
    let other = Account::from_stored("Ada");
    assert!(store.list_operations(&other, None, 10).await.expect("reads").is_empty());
    store.close().await;
}

#[tokio::test]
async fn documents_are_listed_by_bytes_under_their_prefix() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let targets = ["B", "a", "a%", "a/b", "aä", "b", "é", "\u{10FFFF}x"];
    let mut rows: Vec<Document> = targets.map(|target| document(target, b"text")).to_vec();
    rows.push(Document { exists: false, ..document("a/gone", b"") });
    store_documents(&store, rows).await;
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(Target::from_stored);
        let rows = store.list_documents(&account(), prefix, after.as_ref(), limit).await;
        let rows = rows.expect("reads").documents.into_iter();
        rows.map(|row| row.key.target.as_str().to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(list("", None, 100).await, targets);
    assert_eq!(list("a", None, 100).await, ["a", "a%", "a/b", "aä"]);
    assert_eq!(list("a", Some("a%"), 1).await, ["a/b"]);
    assert_eq!(list("a%", None, 100).await, ["a%"], "no pattern");
    assert_eq!(list("\u{10FFFF}", None, 100).await, ["\u{10FFFF}x"]);
    assert_eq!(list("b", Some("a"), 100).await, ["b"], "a cursor before the prefix");
    assert!(list("a", Some("b"), 100).await.is_empty());
    store.close().await;
}

#[tokio::test]
async fn markers_of_deleted_documents_are_passed_in_bounded_steps() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let marker = Document { exists: false, ..document("m-00000", b"") };
    store_documents(&store, vec![document("a", b"text"), marker, document("z", b"text")]).await;
    let copies = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 24999)
        INSERT INTO documents SELECT bucket, account, printf('m-%05d', n.n), revision, generation,
            present, content_type, size, content_hash, create_time, update_time, locked, content
        FROM documents, n WHERE target = 'm-00000'";
    place.stranger().execute_batch(copies).expect("copies");
    let (mut steps, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_documents(&account(), "", after.as_ref(), 9).await.expect("reads");
        let next = page.next.as_ref().map(|target| target.as_str().to_owned());
        steps.push((page.documents.len(), next));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let at = |target: &str| Some(target.to_owned());
    assert_eq!(steps, [(1, at("m-09998")), (0, at("m-19998")), (1, None)]);
    store.close().await;
}

#[tokio::test]
async fn deliveries_are_listed_by_state() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let rows = vec![
        ended("default", 1, DeliveryState::Acked),
        ended("default", 2, DeliveryState::Expired),
        Delivery { due_time: Some(Timestamp(2)), ..pending("default", 3) },
        Delivery { due_time: Some(Timestamp(1)), ..in_flight("default", 4, "phone") },
        ended("default", 5, DeliveryState::Dead),
        ended("default", 6, DeliveryState::Acked),
    ];
    store_deliveries(&store, full_inbox("default"), rows.clone()).await;
    store_deliveries(&store, full_inbox("Default"), vec![]).await;
    let key = inbox_key("default");
    let numbers = |rows: Vec<Delivery>| -> Vec<i64> {
        rows.into_iter().map(|row| row.key.sequence).collect()
    };
    let states = [DeliveryState::Acked, DeliveryState::Dead];
    let listed = store.list_deliveries(&key, 1, &states, 2).await.expect("reads");
    assert_eq!((listed.next, numbers(listed.deliveries)), (Some(6), vec![5, 6]));
    let listed = store.list_deliveries(&key, 0, &[], 10).await.expect("reads");
    assert_eq!((listed.next, listed.deliveries), (None, rows));
    let open = [DeliveryState::InFlight];
    let listed = store.list_deliveries(&key, 0, &open, 10).await.expect("reads");
    assert_eq!((listed.next, numbers(listed.deliveries)), (None, vec![4]));
    let dead = [DeliveryState::Dead];
    let listed = store.list_deliveries(&key, 0, &dead, 1).await.expect("reads");
    assert_eq!((listed.next, numbers(listed.deliveries)), (Some(5), vec![5]));
    assert_eq!(numbers(store.list_lost(&key, 2, 10).await.expect("reads")), [5]);
    assert_eq!(store.count_acked(&key, 0, 10).await.expect("counts"), 2);
    assert_eq!(store.count_acked(&key, 0, 1).await.expect("counts"), 1);
    let keys = [inbox_key("Default"), key];
    let oldest = store.oldest_open_of(&keys).await.expect("reads");
    let oldest = oldest.into_iter().map(|row| row.map(|row| row.key.sequence));
    let oldest: Vec<_> = oldest.collect();
    assert_eq!(oldest, [None, Some(3)], "the oldest number, whatever is due first");
    store_deliveries(&store, Inbox::new(inbox_key("bare"), 0, Timestamp(1)), vec![]).await;
    let bare = || vec![Inbox::new(inbox_key("bare"), 0, Timestamp(1))];
    let inboxes = store.list_inboxes(&account(), "", 10).await.expect("reads");
    let page = InboxPage { inboxes: bare(), next: None };
    assert_eq!(inboxes, page, "the others are markers");
    let inboxes = store.list_inboxes(&account(), "bare", 1).await.expect("reads");
    assert_eq!((inboxes.inboxes, inboxes.next), (Vec::new(), None));
    let inboxes = store.list_inboxes(&account(), "", 1).await.expect("reads");
    assert_eq!((inboxes.inboxes, inboxes.next), (bare(), Some(inbox_key("bare").inbox)));
    store.close().await;
}

#[tokio::test]
async fn a_rare_state_is_searched_for_in_bounded_steps() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let rows = vec![
        ended("default", 1, DeliveryState::Acked),
        ended("default", 2, DeliveryState::Expired),
        ended("default", 25_001, DeliveryState::Dead),
    ];
    store_deliveries(&store, full_inbox("default"), rows).await;
    let copy = |from: i64, first: i64, last: i64| {
        let copy = format!(
            "CREATE TEMP TABLE copied AS SELECT * FROM deliveries WHERE sequence = {from};
             WITH RECURSIVE n(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})
             INSERT INTO deliveries SELECT bucket, account, inbox, n.n, operation_id,
                outcome_version, state, attempt, queue_time, available_time, ack_deadline,
                expire_time, due_time, end_time, last_failure_time, consumer, consumer_epoch,
                returns, attempts_before, lock_target, ack_time, ack_attempt, ack_subject, ack_consumer, ack_hash
             FROM copied, n;
             DROP TABLE copied"
        );
        place.stranger().execute_batch(&copy).expect("copies");
    };
    copy(1, 3, 12_000);
    copy(2, 12_001, 25_000);
    let key = inbox_key("default");
    let walk = async |states: &[DeliveryState]| {
        let (mut steps, mut after) = (Vec::new(), 0);
        loop {
            let page = store.list_deliveries(&key, after, states, 9).await.expect("reads");
            steps.push((page.deliveries.len(), page.next));
            match page.next {
                Some(next) => after = next,
                None => return steps,
            }
        }
    };
    let mixed = [DeliveryState::Pending, DeliveryState::Dead];
    let steps = [(0, Some(10_000)), (0, Some(20_000)), (1, None)];
    assert_eq!(walk(&mixed).await, steps);
    // Of the lost ones 2 is the first, 21,999 the 10,000th.
    assert_eq!(walk(&[DeliveryState::Dead]).await, [(0, Some(21_999)), (1, None)]);
    assert_eq!(walk(&[DeliveryState::Pending]).await, [(0, None)], "history costs nothing");
    assert_eq!(store.count_acked(&key, 12_000, 9).await.expect("counts"), 0);
    assert_eq!(store.count_acked(&key, 1_990, 20_000).await.expect("counts"), 10_000);
    store.close().await;
}

#[tokio::test]
async fn glimpses_show_what_changes() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_deliveries(&store, full_inbox("default"), vec![]).await;
    store_operations(&store, vec![full_operation(PACKED)]).await;
    let operations = ["absent", PACKED].map(operation_key);
    let inboxes = ["default", "absent"].map(inbox_key);
    let (operations, inboxes) = store.glimpse(&operations, &inboxes).await.expect("reads");
    assert_eq!(operations, [None, Some(OperationGlimpse { state: 3, outcome_version: 1 })]);
    let glimpse = InboxGlimpse {
        last_sequence: 99,
        pending: 9,
        returned: 10,
        offered: 7,
        in_flight: 11,
        ended: 39,
        consumer_epoch: full_inbox("default").consumer_epoch,
    };
    assert_eq!(inboxes, [Some(glimpse), None]);
    store.close().await;
}

#[tokio::test]
async fn glimpses_of_documents_keep_the_order_of_the_keys() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let stored = document("notes/a", b"text");
    store_documents(&store, vec![stored.clone()]).await;
    let keys = [target_key("absent"), stored.key.clone()];
    let glimpse = DocumentGlimpse {
        revision: stored.revision,
        generation: stored.generation,
        exists: stored.exists,
    };
    let glimpses = store.glimpse_documents(&keys).await.expect("reads");
    assert_eq!(glimpses, [None, Some(glimpse)]);
    let facts = store.document_facts(&stored.key).await.expect("reads");
    assert_eq!(facts, Some(Document { content: None, ..stored }));
    store.close().await;
}

/// All pages of what is due, and how many there were.
async fn due(store: &SqliteStore, kind: DueKind, limit: i64) -> (Vec<Due>, usize) {
    let (mut rows, mut pages, mut after) = (Vec::new(), 0, None::<DuePosition>);
    loop {
        let page = store.due(kind, after.as_ref(), limit).await.expect("reads");
        pages += 1;
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = Some(next),
            None => return (rows, pages),
        }
    }
}

#[tokio::test]
async fn what_is_due_is_found_page_by_page_in_all_buckets() {
    let seams = simulated(100);
    let place = Place::new(seams.clone());
    let store = place.open();
    let names = ["ada", "bob", "eve"];
    for name in names {
        let inbox = InboxKey {
            account: Account::from_stored(name),
            inbox: InboxName::from_stored("default"),
        };
        let rows = (1..=5).map(|sequence| {
            let mut row = pending("default", sequence);
            row.key.inbox = inbox.clone();
            // Two share a time, and the last one is not due yet.
            row.due_time = Some(Timestamp(if sequence == 5 { 101 } else { 90 + sequence / 2 }));
            row
        });
        let row =
            Inbox { due_time: Some(Timestamp(99)), ..Inbox::new(inbox.clone(), 0, Timestamp(1)) };
        store_deliveries(&store, row, rows.collect()).await;
    }
    for limit in [1, 2, 3, 12, 100] {
        let (rows, pages) = due(&store, DueKind::Deliveries, limit).await;
        let mut numbers: Vec<(String, i64)> = rows
            .iter()
            .map(|due| match due {
                Due::Delivery(key, _) => (key.inbox.account.as_str().to_owned(), key.sequence),
                other => panic!("{other:?}"),
            })
            .collect();
        numbers.sort();
        let expected = names.map(|name| (1..=4).map(move |number| (name.to_owned(), number)));
        let expected: Vec<(String, i64)> = expected.into_iter().flatten().collect();
        assert_eq!(numbers, expected, "pages of {limit}");
        assert!(pages >= 12 / usize::try_from(limit).expect("small"), "pages of {limit}");
    }
    seams.move_clock(Span(1));
    assert_eq!(due(&store, DueKind::Deliveries, 2).await.0.len(), 15, "the clock moved");
    assert_eq!(due(&store, DueKind::Inboxes, 2).await.0.len(), 3);
    assert_eq!(due(&store, DueKind::Operations, 2).await, (vec![], 1));
    store.due(DueKind::Locks, Some(&DuePosition(vec![1])), 1).await.expect_err("no position");
    store.close().await;
}

#[tokio::test]
async fn each_kind_of_due_row_names_its_key() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let ids = [PACKED, PLAIN];
    let row = |id: &str| Operation { due_time: Some(Timestamp(7)), ..bare_operation(id) };
    let mut rows: Vec<Operation> = ids.map(row).to_vec();
    rows.push(bare_operation("never"));
    store_operations(&store, rows).await;
    let locks = ["a", "ä"];
    let needs = locks.map(omit_document).to_vec();
    let stored = run(&store, needs, move |world| {
        locks.iter().try_for_each(|target| world.put_lock(&target_key(target), Some(lock(target))))
    });
    stored.await.expect("commits");
    let inbox = Inbox { due_time: None, ..full_inbox("idle") };
    store_deliveries(&store, inbox, vec![pending("idle", 1)]).await;
    store_deliveries(&store, full_inbox("default"), vec![]).await;
    let due = async |kind| due(&store, kind, 1).await.0;
    let operations = ids.map(|id| Due::Operation(operation_key(id)));
    assert_eq!(due(DueKind::Operations).await, operations);
    let expected = locks.map(|target| Due::Lock(target_key(target)));
    assert_eq!(due(DueKind::Locks).await, expected);
    assert_eq!(due(DueKind::Inboxes).await, [Due::Inbox(inbox_key("default"))]);
    let delivery = Due::Delivery(delivery_key("idle", 1), operation_key(PACKED).id);
    assert_eq!(due(DueKind::Deliveries).await, [delivery]);
    let listed = store.list_locks(&account(), "a", 10).await.expect("reads");
    assert_eq!(listed, [Lock { ..lock("ä") }]);
    store.close().await;
}

#[tokio::test]
async fn old_batches_go_but_the_newest_of_each_replica() {
    let seams = simulated(100);
    let place = Place::new(seams.clone());
    let store = place.open();
    let stranger = place.stranger();
    let insert = "INSERT INTO batches VALUES (?1, ?2, ?3, ?4, 0)";
    for (batch, replica, time) in [(1, 1, 10), (2, 1, 20), (3, 1, 95), (4, 2, 10), (5, 2, 11)] {
        let row = (batch, vec![batch; 16], vec![replica; 16], time);
        stranger.execute(insert, row).expect("inserts");
    }
    let left = async || {
        let tables = store.dump_tables().await.expect("dumps");
        tables.into_iter().find(|(name, _)| name == "batches").expect("is there").1.len()
    };
    assert_eq!(store.sweep_batches(Span(50), 2).await.expect("sweeps"), 2);
    assert_eq!(store.sweep_batches(Span(50), 2).await.expect("sweeps"), 1);
    assert_eq!(store.sweep_batches(Span(50), 2).await.expect("sweeps"), 0);
    assert_eq!(left().await, 2);
    store.close().await;
}

#[tokio::test]
async fn a_row_of_a_later_release_is_refused_and_not_guessed() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_operations(&store, vec![full_operation(PACKED)]).await;
    place.stranger().execute("UPDATE operations SET state = 99", []).expect("updates");
    let key = [operation_key(PACKED)];
    let error = store.look_up(&key).await.expect_err("unreadable");
    assert!(error.to_string().contains("operation state"), "{error}");
    let needs = vec![write_operation(PACKED), Need::Inbox(inbox_key("default"))];
    run(&store, needs, |_| Ok(())).await.expect_err("not decided either");
    store.close().await;
}
