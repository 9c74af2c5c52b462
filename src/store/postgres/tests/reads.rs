//! Searches of a load, and reads.

use std::time::Duration;

use super::{
    super::PostgresStore,
    filled, name,
    rows::{
        Optional, account, consumer, delivery, delivery_key, document, inbox, inbox_key, lock,
        operation, operation_key, target_key,
    },
    run,
    server::Database,
};
use crate::{
    domain::{
        delivery::{Delivery, DeliveryState},
        document::Document,
        ids::{Span, Timestamp},
        inbox::Inbox,
        operation::{Operation, OperationState},
        world::needs::{Access, Body, Need, Unloaded},
    },
    store::query::{
        DocumentGlimpse, Due, DueKind, InboxGlimpse, InboxPage, OperationGlimpse, OperationPosition,
    },
};

/// An inbox with a cursor at 2, and deliveries in every stage.
async fn queue(store: &PostgresStore, now: Timestamp) {
    let stages = [
        (1, DeliveryState::Acked, None),
        (2, DeliveryState::InFlight, None),
        (3, DeliveryState::Pending, None),
        (4, DeliveryState::Pending, Some(now - Span::seconds(1))),
        (5, DeliveryState::Pending, Some(now + Span::hours(1))),
        (6, DeliveryState::Dead, None),
        (7, DeliveryState::Pending, None),
        (8, DeliveryState::Pending, None),
    ];
    run(store, [Need::Inbox(inbox_key("queue"))], move |world, _| {
        let row = Inbox { offered: 2, next_sequence: 9, ..inbox("queue", Optional::Unset) };
        world.put_inbox(row)?;
        for (sequence, state, available_time) in stages {
            let open = state.is_open();
            world.add_delivery(Delivery {
                state,
                available_time,
                attempt: i32::from(available_time.is_some()),
                due_time: open.then_some(Timestamp(sequence * 10)),
                consumer: (state == DeliveryState::InFlight).then(|| (consumer("laptop"), 1)),
                ..delivery("queue", sequence, Optional::Unset)
            });
        }
        Ok::<(), Unloaded>(())
    })
    .await
    .expect("it commits")
    .value
    .expect("it is loaded");
}

#[tokio::test]
async fn searches_find_what_can_be_sent_and_what_is_held() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let now = store.now().await.expect("a clock");
    queue(&store, now).await;
    let searches = [
        Need::Deliverable(inbox_key("queue"), 2),
        Need::Held(inbox_key("queue"), consumer("laptop")),
        Need::Held(inbox_key("queue"), consumer("phone")),
        Need::Waiters(target_key("a/ä.txt")),
    ];
    let found = run(&store, searches, |world, _| {
        let (keys, end) = world.deliverable(&inbox_key("queue"))?;
        let sequences: Vec<i64> = keys.iter().map(|key| key.sequence).collect();
        let held = world.held(&inbox_key("queue"), &consumer("laptop"))?;
        let other = world.held(&inbox_key("queue"), &consumer("phone"))?;
        Ok::<_, Unloaded>((sequences, end, held, other, world.waiters(&target_key("a/ä.txt"))?))
    });
    let found = found.await.expect("it ends");
    // Two inboxes' keys once, one document, and the rows: fresh 2, returned 1, held 1, waiter 1.
    assert_eq!(found.touches.loaded, 1 + 1 + 5);
    let (sequences, end, held, other, waiters) = found.value.expect("it is loaded");
    assert_eq!((sequences, end), (vec![3, 7, 4], 7), "the limit holds for each kind");
    assert_eq!((held, other), (vec![delivery_key("queue", 2)], vec![]));
    assert_eq!(waiters, [operation_key("set")]);
    database.seams.move_clock(Span::hours(2));
    let later = run(&store, [Need::Deliverable(inbox_key("queue"), 100)], |world, _| {
        let (keys, end) = world.deliverable(&inbox_key("queue")).expect("it is loaded");
        (keys.iter().map(|key| key.sequence).collect::<Vec<_>>(), end)
    });
    let later = later.await.expect("it ends");
    assert_eq!(later.value, (vec![3, 7, 8, 4, 5], 8));
    assert!(later.now >= now + Span::hours(2), "the offset moves the clock");
}

#[tokio::test]
async fn what_deleted_generations_left_takes_no_place_of_a_page() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    queue(&store, store.now().await.expect("a clock")).await;
    let key = inbox_key("queue");
    let begun = run(&store, [Need::Inbox(key.clone())], |world, _| {
        let row = world.inbox(&inbox_key("queue"))?.cloned().expect("stored");
        world.put_inbox(Inbox { first_sequence: 5, offered: 8, ..row })
    });
    begun.await.expect("it commits").value.expect("it is loaded");
    database.seams.move_clock(Span::hours(2));
    let searches = [Need::Deliverable(key.clone(), 1), Need::Held(key.clone(), consumer("laptop"))];
    let found = run(&store, searches, |world, _| {
        let (keys, _) = world.deliverable(&inbox_key("queue"))?;
        Ok::<_, Unloaded>((keys, world.held(&inbox_key("queue"), &consumer("laptop"))?))
    });
    let (deliverable, held) = found.await.expect("it ends").value.expect("it is loaded");
    assert_eq!(deliverable, [delivery_key("queue", 5)], "4 came back earlier, and is another's");
    assert_eq!(held, [], "2 is another's too");
    let oldest = store.oldest_open_of(&[key]).await.expect("a read");
    let oldest: Vec<_> = oldest.into_iter().flatten().map(|row| row.key.sequence).collect();
    assert_eq!(oldest, [5]);
}

#[tokio::test]
async fn deliveries_are_read_by_number_and_state() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    queue(&store, store.now().await.expect("a clock")).await;
    let key = inbox_key("queue");
    let numbers = |deliveries: Vec<Delivery>| {
        deliveries.iter().map(|delivery| delivery.key.sequence).collect::<Vec<_>>()
    };
    let keys = [inbox_key("gone"), key.clone()];
    let oldest = store.oldest_open_of(&keys).await.expect("a read");
    let oldest = oldest.into_iter().map(|row| row.map(|row| row.key.sequence));
    assert_eq!(oldest.collect::<Vec<_>>(), [None, Some(2)]);
    let page = store.list_deliveries(&key, 2, &[], 3).await.expect("a read");
    assert_eq!((page.next, numbers(page.deliveries)), (Some(5), vec![3, 4, 5]));
    let states = [DeliveryState::Acked, DeliveryState::InFlight];
    let page = store.list_deliveries(&key, 0, &states, 9).await.expect("a read");
    assert_eq!((page.next, numbers(page.deliveries)), (None, vec![1, 2]));
    let open = [DeliveryState::InFlight];
    let page = store.list_deliveries(&key, 0, &open, 9).await.expect("a read");
    assert_eq!((page.next, numbers(page.deliveries)), (None, vec![2]));
    let dead = [DeliveryState::Dead];
    let page = store.list_deliveries(&key, 0, &dead, 1).await.expect("a read");
    assert_eq!((page.next, numbers(page.deliveries)), (Some(6), vec![6]));
    assert_eq!(numbers(store.list_lost(&key, 0, 9).await.expect("a read")), [6]);
    assert_eq!(store.count_acked(&key, 0, 9).await.expect("a read"), 1);
    assert_eq!(store.count_acked(&key, 1, 9).await.expect("a read"), 0);
    let asked = [3, 99, 1].map(|sequence| delivery_key("queue", sequence));
    assert_eq!(numbers(store.deliveries(&asked).await.expect("a read")), [3, 1]);
}

#[tokio::test]
async fn a_rare_state_is_searched_for_in_bounded_steps() {
    let Some(database) = Database::new().await else { return };
    let store = database.open().await;
    let client = database.client().await;
    let key = inbox_key("queue");
    let (bucket, account) = (key.account.bucket(), key.account.as_str());
    let seed = format!(
        "INSERT INTO receiptd.deliveries
        SELECT {bucket}, '{account}', 'queue', n, convert_to('op-1', 'UTF8'), 1,
            CASE WHEN n > 25000 THEN 5 WHEN n = 2 OR n > 12000 THEN 4 ELSE 3 END, 1, n, NULL, NULL,
            n, NULL, n, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL
        FROM generate_series(1, 25001) n"
    );
    client.batch_execute(&seed).await.expect("seeded");
    let walk = async |states: &[DeliveryState]| {
        let (mut steps, mut after) = (Vec::new(), 0);
        loop {
            let page = store.list_deliveries(&key, after, states, 9).await.expect("a read");
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
    assert_eq!(store.count_acked(&key, 12_000, 9).await.expect("a read"), 0);
    assert_eq!(store.count_acked(&key, 1_990, 20_000).await.expect("a read"), 10_000);
}

#[tokio::test]
async fn markers_of_deleted_documents_are_passed_in_bounded_steps() {
    let Some(database) = Database::new().await else { return };
    let store = database.open().await;
    let client = database.client().await;
    let account = account("alice");
    let (bucket, name) = (account.bucket(), account.as_str());
    let seed = format!(
        "INSERT INTO receiptd.documents
        SELECT {bucket}, '{name}',
            CASE n WHEN 0 THEN 'a' WHEN 25001 THEN 'z' ELSE 'm-' || to_char(n - 1, 'FM00000') END,
            1, 1, CASE WHEN n IN (0, 25001) THEN 1 ELSE 0 END, 'text/plain', 0,
            sha256(''), 1, 1, 0, ''
        FROM generate_series(0, 25001) n"
    );
    client.batch_execute(&seed).await.expect("seeded");
    let (mut steps, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_documents(&account, "", after.as_ref(), 9).await.expect("a read");
        let next = page.next.as_ref().map(|target| target.as_str().to_owned());
        steps.push((page.documents.len(), next));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let at = |target: &str| Some(target.to_owned());
    assert_eq!(steps, [(1, at("m-09998")), (0, at("m-19998")), (1, None)]);
}

#[tokio::test]
async fn upkeep_goes_on_while_callers_hold_every_connection() {
    let Some(database) = Database::new().await else { return };
    let store =
        database.open_with(|options| options.wait_timeout = Duration::from_millis(50)).await;
    let mut held = Vec::new();
    for (pool, size) in [
        (&store.0.reads, store.0.options.read_connections),
        (&store.0.writes, store.0.options.write_connections),
    ] {
        for _ in 0..size {
            held.push(pool.borrow().await.expect("a connection"));
        }
    }
    let key = inbox_key("main");
    store.inbox(&key).await.expect_err("no connection for callers");
    store.account_and_now(&key.account).await.expect_err("no connection for callers");
    store.now().await.expect("the probe");
    store.due(DueKind::Deliveries, None, 1).await.expect("the sweeper");
    store.glimpse(&[], &[key]).await.expect("the re-read");
    store.glimpse_documents(&[target_key("held")]).await.expect("the re-read");
    store.sweep_batches(Span::hours(1), 1).await.expect("the sweeper");
}

#[tokio::test]
async fn a_look_up_shows_a_record_with_its_parts() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    run(&store, [Need::Operation(operation_key("linked"), Access::Read)], |world, _| {
        let linked = Operation {
            delivery_sequence: Some(1),
            target: target_key("held").target,
            ..operation("linked", Optional::Set)
        };
        world.put_operation(linked)
    })
    .await
    .expect("it commits")
    .value
    .expect("it is loaded");
    let keys = ["unset", "gone", "linked"].map(operation_key);
    let found = store.look_up(&keys).await.expect("a read");
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].operation, Some(operation("unset", Optional::Unset)));
    assert!(found[0].deliveries.is_empty() && found[0].document.is_none());
    assert!(found[1].operation.is_none() && found[1].lock.is_none());
    assert_eq!(found[2].deliveries, [delivery("main", 1, Optional::Set)]);
    let held = Document { locked: true, content: None, ..document("held") };
    assert_eq!(found[2].document, Some(held));
    assert_eq!(found[2].lock, Some(lock("held", Optional::Set)), "it waits");
    let operations = store.operations(&keys).await.expect("a read");
    let ids: Vec<&str> = operations.iter().map(|operation| operation.key.id.as_str()).collect();
    assert_eq!(ids, ["unset", "linked"]);
}

#[tokio::test]
async fn pages_go_on_where_the_last_one_ended() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let ids = ["p-1", "p-2", "p-3", "p-4"];
    let targets = ["docs/a", "docs/b", "docs/c", "docs0", "dod"];
    let needs = ids
        .map(|id| Need::Operation(operation_key(id), Access::Write))
        .into_iter()
        .chain(targets.map(|target| Need::Document(target_key(target), Body::Omit)));
    run(&store, needs, move |world, _| {
        for (time, id) in (100..).zip(ids) {
            let end_time = (id == "p-2").then_some(Timestamp(1));
            let accept_time = Timestamp(time / 2);
            let row = operation(id, Optional::Unset);
            world.put_operation(Operation { accept_time, end_time, ..row })?;
        }
        for target in targets {
            world.put_document(Document { exists: target != "docs/b", ..document(target) })?;
        }
        Ok::<(), Unloaded>(())
    })
    .await
    .expect("it commits")
    .value
    .expect("it is loaded");
    let alice = account("alice");
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = store.list_operations(&alice, after.as_ref(), 3).await.expect("a read");
        let Some(last) = page.last() else { break };
        let (accept_time, id) = (last.accept_time, last.key.id.clone());
        after = Some(OperationPosition { accept_time, id });
        listed.extend(page.into_iter().map(|operation| operation.key.id.as_str().to_owned()));
    }
    assert_eq!(listed, ["p-4", "p-3", "p-2", "p-1", "unset", "set"]);
    let open = store.list_unresolved(&alice, None, 9).await.expect("a read");
    let open: Vec<&str> = open.iter().map(|operation| operation.key.id.as_str()).collect();
    assert_eq!(open, ["p-4", "p-3", "p-1", "unset"]);
    let names = |documents: Vec<Document>| {
        documents.iter().map(|document| document.key.target.as_str().to_owned()).collect::<Vec<_>>()
    };
    let page = store.list_documents(&alice, "docs/", None, 9).await.expect("a read").documents;
    assert!(page.iter().all(|document| document.content.is_none()));
    assert_eq!(names(page), ["docs/a", "docs/c"]);
    let after = target_key("docs/a").target;
    let page = store.list_documents(&alice, "", Some(&after), 2).await.expect("a read");
    assert_eq!(page.next, Some(target_key("docs0").target));
    assert_eq!(names(page.documents), ["docs/c", "docs0"]);
    let inboxes = store.list_inboxes(&alice, "", 9).await.expect("a read");
    assert_eq!((inboxes.inboxes, inboxes.next), (vec![inbox("bare", Optional::Unset)], None));
    let inboxes = store.list_inboxes(&alice, "bare", 9).await.expect("a read");
    assert_eq!(inboxes, InboxPage { inboxes: Vec::new(), next: None }, "main is a marker");
    let inboxes = store.list_inboxes(&alice, "", 1).await.expect("a read");
    assert_eq!(inboxes.next, Some(inbox_key("bare").inbox));
    assert_eq!(store.list_locks(&alice, "absent", 9).await.expect("a read").len(), 1);
    assert_eq!(store.account(&account("bob")).await.expect("a read"), None);
}

#[tokio::test]
async fn a_glimpse_keeps_the_order_of_the_keys() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let (operations, inboxes) = store
        .glimpse(&["gone", "set"].map(operation_key), &["main", "gone"].map(inbox_key))
        .await
        .expect("a read");
    let set = OperationGlimpse { state: OperationState::Applied as i16, outcome_version: 1 };
    assert_eq!(operations, [None, Some(set)]);
    let main = InboxGlimpse {
        last_sequence: 6,
        pending: 5,
        returned: 6,
        offered: 3,
        in_flight: 7,
        ended: 27,
        consumer_epoch: inbox("main", Optional::Set).consumer_epoch,
    };
    assert_eq!(inboxes, [Some(main), None]);
    let (none, one) = store.glimpse(&[], &[inbox_key("main")]).await.expect("a read");
    assert_eq!((none.len(), one.len()), (0, 1));
    let documents = ["gone", "held"].map(target_key);
    let glimpses = store.glimpse_documents(&documents).await.expect("a read");
    let held = DocumentGlimpse { revision: 1, generation: 2, exists: true };
    assert_eq!(glimpses, [None, Some(held)]);
    assert_eq!(store.glimpse_documents(&[]).await.expect("nothing asked"), []);
    let facts = store.document_facts(&documents[1]).await.expect("a read");
    let held = Document { locked: true, content: None, ..document("held") };
    assert_eq!(facts, Some(held));
}

#[tokio::test]
async fn a_sweep_goes_through_all_that_is_due_once() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    queue(&store, store.now().await.expect("a clock")).await;
    // Rows of other accounts, in other buckets, some of them at the same time.
    let client = database.client().await;
    let copy = "INSERT INTO receiptd.locks SELECT n % 5, 'other-' || n % 7, 'target-' || n,
            NULL, NULL, NULL, NULL, 1, 1, n / 4 FROM generate_series(1, 40) n";
    client.batch_execute(copy).await.expect("seeded");
    let far = "INSERT INTO receiptd.locks VALUES (9, 'far', 'far', NULL, NULL, NULL, NULL, 1, 1,
            9000000000000000)";
    client.batch_execute(far).await.expect("seeded");
    for (kind, expected) in [
        (DueKind::Deliveries, 1 + 6),
        (DueKind::Operations, 0),
        (DueKind::Records, 1),
        (DueKind::Locks, 2 + 40),
        (DueKind::Inboxes, 1),
        (DueKind::Accounts, 1),
    ] {
        for limit in [1, 3, 1000] {
            let mut found: Vec<Due> = Vec::new();
            let mut after = None;
            loop {
                let page = store.due(kind, after.as_ref(), limit).await.expect("a read");
                assert!(page.rows.len() <= usize::try_from(limit).expect("small"));
                for due in page.rows {
                    assert!(!found.contains(&due), "{due:?} came twice");
                    found.push(due);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found.len(), expected, "{kind:?} by {limit}");
        }
    }
}

#[tokio::test]
async fn old_batches_go_but_the_newest_of_each_replica_stays() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let client = database.client().await;
    let seed = "INSERT INTO receiptd.batches
        SELECT n % 3, decode(lpad(to_hex(n), 32, '0'), 'hex'), decode(repeat('0' || r, 16), 'hex'),
            n, 0 FROM generate_series(1, 2) r, generate_series(r * 100 + 1, r * 100 + 10) n";
    client.batch_execute(seed).await.expect("seeded");
    assert_eq!(store.sweep_batches(Span::hours(1), 4).await.expect("swept"), 4);
    assert_eq!(store.sweep_batches(Span::hours(1), 100).await.expect("swept"), 14);
    assert_eq!(store.sweep_batches(Span::hours(1), 100).await.expect("swept"), 0);
    let left = client.query("SELECT time FROM receiptd.batches WHERE time < 1000", &[]).await;
    assert_eq!(left.expect("a read").len(), 2);
    assert_eq!(name().bucket, 7);
}
