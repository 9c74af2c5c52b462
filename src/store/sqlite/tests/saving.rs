//! Every kind of row, in and out; every count that may fall short.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::fixtures::*;
use crate::{
    domain::{
        audit::AuditHead,
        delivery::{Delivery, DeliveryState},
        document::Document,
        ids::Timestamp,
        inbox::{AccountRow, Inbox},
        lock::Lock,
        operation::{Arguments, Operation, OperationState, PayloadKind, Retained},
        world::{
            World,
            changes::{Changes, TableChanges},
            needs::{Access, Body, Need, Unloaded},
        },
    },
    engine::seams::Seams,
    store::{
        TransactError,
        sqlite::{SqliteStore, fault::Failure, save::save},
    },
};

#[tokio::test]
async fn operations_come_back_as_they_went() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let needs = || vec![write_operation(PACKED), write_operation(PLAIN)];
    let put = run(&store, needs(), |world| {
        let body = Bytes::from_static(b"body");
        world.put_payload(operation_key(PLAIN), PayloadKind::Arguments, body);
        let result = Bytes::from_static(b"0123456789");
        world.put_payload(operation_key(PLAIN), PayloadKind::Result, result);
        world.add_audit(audit_row(PLAIN, 1));
        world.add_audit(audit_row(PLAIN, 2));
        world.put_operation(full_operation(PACKED))?;
        world.put_operation(bare_operation(PLAIN))
    });
    let touches = put.await.expect("commits").touches;
    assert_eq!((touches.loaded, touches.saved, touches.commits), (2, 7, 1));
    let keys = [operation_key(PACKED), operation_key(PLAIN)];
    let rows = store.operations(&keys).await.expect("reads");
    assert_eq!(rows, [full_operation(PACKED), bare_operation(PLAIN)]);
    let loaded = run(&store, vec![Need::Arguments(operation_key(PLAIN))], |world| {
        world.arguments(&bare_operation(PLAIN))
    });
    assert_eq!(loaded.await.expect("reads").value, Bytes::from_static(b"body"));
    let (key, other) = (operation_key(PLAIN), operation_key(PACKED));
    for (offset, length, expected) in
        [(0, 4, "0123"), (4, 4, "4567"), (8, 4, "89"), (10, 4, ""), (99, 4, ""), (0, 0, "")]
    {
        let slice = store.read_payload(&key, PayloadKind::Result, offset, length).await;
        assert_eq!(slice.expect("reads").as_deref(), Some(expected.as_bytes()), "{offset}");
    }
    let absent = store.read_payload(&other, PayloadKind::Result, 0, 4).await;
    assert_eq!(absent.expect("reads"), None);
    let whole = store.payloads(&[other, key], PayloadKind::Result).await.expect("reads");
    assert_eq!(whole, [None, Some(Bytes::from_static(b"0123456789"))]);
    let audit = store.list_audit(&audit_row(PLAIN, 1).chain, 1, 10).await.expect("reads");
    assert_eq!(audit, [audit_row(PLAIN, 2)]);

    // What the intent fixed stays; everything else changes both ways.
    let changed = |to: Operation, from: Operation| Operation {
        key: from.key,
        expected_revision: from.expected_revision,
        arguments: from.arguments,
        result_kind: from.result_kind,
        content_type: from.content_type,
        lock_mode: from.lock_mode,
        inbox: from.inbox,
        labels: from.labels,
        ..to
    };
    let full = changed(bare_operation(PLAIN), full_operation(PACKED));
    let bare = changed(full_operation(PACKED), bare_operation(PLAIN));
    let rows = (full.clone(), bare.clone());
    let update = run(&store, needs(), move |world| {
        world.put_operation(rows.0)?;
        world.put_operation(rows.1)
    });
    update.await.expect("commits");
    assert_eq!(store.operations(&keys).await.expect("reads"), [full, bare]);
    store.close().await;
}

#[tokio::test]
async fn documents_keep_a_content_that_was_not_loaded() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let put = |row: Document, body: Body| {
        let needs = vec![Need::Document(row.key.clone(), body)];
        run(&store, needs, move |world| world.put_document(row))
    };
    put(document("a", b"text"), Body::Load).await.expect("commits");
    put(document("empty", b""), Body::Load).await.expect("commits");
    assert_eq!(read_document(&store, "empty").await, Some(document("empty", b"")));
    let locked = Document { content: None, locked: true, ..document("a", b"text") };
    put(locked, Body::Omit).await.expect("commits");
    let expected = Document { locked: true, ..document("a", b"text") };
    assert_eq!(read_document(&store, "a").await, Some(expected.clone()));
    let omitted = run(&store, vec![omit_document("a")], |world| {
        Ok(world.document(&target_key("a"), Body::Omit)?.cloned())
    });
    let without = Document { content: None, ..expected };
    assert_eq!(omitted.await.expect("reads").value, Some(without));
    let marker = Document {
        exists: false,
        content: Some(Bytes::new()),
        content_type: String::new(),
        size: 0,
        content_hash: [0; 32],
        revision: 2,
        ..document("a", b"")
    };
    put(marker.clone(), Body::Load).await.expect("commits");
    assert_eq!(read_document(&store, "a").await, Some(marker.clone()));
    put(Document { content: None, revision: 3, ..marker.clone() }, Body::Omit)
        .await
        .expect("commits");
    assert_eq!(read_document(&store, "a").await, Some(Document { revision: 3, ..marker }));
    let missing = Document { content: None, ..document("new", b"text") };
    let refused = put(missing, Body::Omit).await;
    assert!(matches!(refused, Err(TransactError::CountShort(_))), "{refused:?}");
    store.close().await;
}

async fn read_document(store: &SqliteStore, target: &str) -> Option<Document> {
    store.document(&target_key(target)).await.expect("reads")
}

#[tokio::test]
async fn locks_come_and_go() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let put = |row: Option<Lock>| {
        run(&store, vec![load_document("a")], move |world| world.put_lock(&target_key("a"), row))
    };
    let read = || async { store.list_locks(&account(), "", 10).await.expect("reads") };
    put(Some(lock("a"))).await.expect("commits");
    assert_eq!(read().await, [lock("a")], "a target that has no document can be locked");
    let free = Lock { holder: None, waiting: 9, ..lock("a") };
    put(Some(free.clone())).await.expect("commits");
    assert_eq!(read().await, [free]);
    put(Some(lock("a"))).await.expect("commits");
    put(None).await.expect("commits");
    assert_eq!(read().await, []);
    store.close().await;
}

#[tokio::test]
async fn the_lock_of_a_document_is_loaded_with_it() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let stored = run(&store, vec![load_document("a")], |world| {
        world.put_document(document("a", b"text"))?;
        world.put_lock(&target_key("a"), Some(lock("a")))
    });
    stored.await.expect("commits");
    let loaded =
        run(&store, vec![omit_document("a")], |world| Ok(world.lock(&target_key("a"))?.cloned()));
    let loaded = loaded.await.expect("reads");
    assert_eq!((loaded.value, loaded.touches.loaded), (Some(lock("a")), 2));
    let released =
        run(&store, vec![omit_document("a")], |world| world.put_lock(&target_key("a"), None));
    assert_eq!(released.await.expect("commits").touches.saved, 3);
    assert_eq!(read_document(&store, "a").await, Some(document("a", b"text")));
    store.close().await;
}

#[tokio::test]
async fn accounts_inboxes_and_deliveries_come_back_as_they_went() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let needs = || {
        let account = Need::Account(account(), Access::Write);
        let deliveries = [1, 2].map(|sequence| Need::Delivery(delivery_key("default", sequence)));
        [account].into_iter().chain(deliveries).collect::<Vec<_>>()
    };
    let bare = |world: &World| Inbox::new(inbox_key("default"), 0, world.now());
    let put = run(&store, needs(), move |world| {
        world.put_account(account_row(1))?;
        world.put_inbox(bare(world))?;
        world.add_delivery(full_delivery("default", 1));
        world.add_delivery(pending("default", 2));
        Ok(bare(world))
    });
    let inbox = put.await.expect("commits").value;
    let keys = [delivery_key("default", 2), delivery_key("default", 3), delivery_key("default", 1)];
    assert_eq!(store.account(&account()).await.expect("reads"), Some(account_row(1)));
    assert_eq!(store.inbox(&inbox.key).await.expect("reads"), Some(inbox));
    let rows = store.deliveries(&keys).await.expect("reads");
    assert_eq!(rows, [pending("default", 2), full_delivery("default", 1)]);
    let update = run(&store, needs(), |world| {
        let closed_before = crate::domain::ids::Timestamp(99);
        world.put_account(AccountRow { closed_before, ..account_row(2) })?;
        world.put_inbox(full_inbox("default"))?;
        world.put_delivery(pending("default", 1))?;
        world.put_delivery(full_delivery("default", 2))
    });
    update.await.expect("commits");
    assert_eq!(store.account(&account()).await.expect("reads").expect("is there").inboxes, 2);
    let inbox = store.inbox(&inbox_key("default")).await.expect("reads");
    assert_eq!(inbox, Some(full_inbox("default")));
    let rows = store.deliveries(&keys).await.expect("reads");
    assert_eq!(rows, [full_delivery("default", 2), pending("default", 1)]);
    store.close().await;
}

/// A decision about a row that it believes to be another than what is stored.
type Mistaken = (&'static str, fn(&mut World) -> Result<(), Unloaded>);

fn mistaken_operation(world: &mut World, before: Operation) -> Result<(), Unloaded> {
    world.load_operation(before.key.clone(), Access::Write, Some(before));
    world.put_operation(Operation { replay_count: 1, ..bare_operation(PACKED) })
}

fn mistaken_lock(world: &mut World, before: Lock, after: Option<Lock>) -> Result<(), Unloaded> {
    world.load_document(before.key.clone(), None, Some(before));
    world.put_lock(&target_key("locked"), after)
}

fn mistaken_inbox(world: &mut World, before: Inbox) -> Result<(), Unloaded> {
    world.load_inbox(before.key.clone(), Some(before));
    world.put_inbox(full_inbox("default"))
}

fn mistaken_delivery(world: &mut World, before: Delivery) -> Result<(), Unloaded> {
    world.load_delivery(before.key.clone(), Some(before));
    world.put_delivery(ended("default", 1, DeliveryState::Acked))
}

/// Each is wrong about exactly one column that a precondition repeats, or lets a time fall that
/// only rises.
const MISTAKEN: [Mistaken; 15] = [
    ("state of an operation", |world| {
        let state = OperationState::Unknown;
        mistaken_operation(world, Operation { state, ..bare_operation(PACKED) })
    }),
    ("outcome of an operation", |world| {
        mistaken_operation(world, Operation { outcome_version: 1, ..bare_operation(PACKED) })
    }),
    ("audit of an operation", |world| {
        let audit = AuditHead { length: 1, hash: [0; 32] };
        mistaken_operation(world, Operation { audit, ..bare_operation(PACKED) })
    }),
    ("presence of an operation", |world| {
        let absent = bare_operation("absent");
        world.load_operation(absent.key.clone(), Access::Write, Some(absent.clone()));
        world.put_operation(absent)
    }),
    ("inboxes of an account", |world| {
        world.load_account(account(), Access::Write, Some(account_row(7)));
        world.put_account(account_row(8))
    }),
    ("closed time of an account, which only rises", |world| {
        world.load_account(account(), Access::Write, Some(account_row(1)));
        world.put_account(AccountRow { closed_before: Timestamp(1), ..account_row(1) })
    }),
    ("floor of an account, which only rises", |world| {
        world.load_account(account(), Access::Write, Some(account_row(1)));
        world.put_account(AccountRow { evidence_floor: Timestamp(2), ..account_row(1) })
    }),
    ("revision of a document", |world| {
        let before = Document { revision: 7, ..document("locked", b"text") };
        world.load_document(target_key("locked"), Some(before), None);
        world.put_document(Document { revision: 8, ..document("locked", b"new") })
    }),
    ("ticket of a lock", |world| {
        mistaken_lock(world, Lock { next_ticket: 7, ..lock("locked") }, Some(lock("locked")))
    }),
    ("holder of a lock", |world| {
        mistaken_lock(world, Lock { holder: None, ..lock("locked") }, Some(lock("locked")))
    }),
    ("holder of a lock that goes", |world| {
        mistaken_lock(world, Lock { holder: None, ..lock("locked") }, None)
    }),
    ("number of an inbox", |world| {
        mistaken_inbox(world, Inbox { next_sequence: 7, ..full_inbox("default") })
    }),
    ("epoch of an inbox", |world| {
        mistaken_inbox(world, Inbox { consumer_epoch: 7, ..full_inbox("default") })
    }),
    ("state of a delivery", |world| {
        mistaken_delivery(world, Delivery { attempt: 0, ..in_flight("default", 1, "phone") })
    }),
    ("attempt of a delivery", |world| {
        mistaken_delivery(world, Delivery { attempt: 7, ..pending("default", 1) })
    }),
];

async fn store_one_of_each(store: &SqliteStore) {
    let needs = vec![
        write_operation(PACKED),
        Need::Account(account(), Access::Write),
        load_document("locked"),
        Need::Inbox(inbox_key("default")),
    ];
    let stored = run(store, needs, |world| {
        world.put_operation(bare_operation(PACKED))?;
        world.put_account(account_row(1))?;
        world.put_document(document("locked", b"text"))?;
        world.put_lock(&target_key("locked"), Some(lock("locked")))?;
        world.put_inbox(full_inbox("default"))?;
        world.add_delivery(pending("default", 1));
        Ok(())
    });
    stored.await.expect("commits");
}

#[tokio::test]
async fn a_count_that_falls_short_leaves_nothing_behind() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_one_of_each(&store).await;
    let before = store.dump_tables().await.expect("dumps");
    for (what, mistaken) in MISTAKEN {
        let refused = run(&store, vec![], move |world| {
            *world = World::new(surroundings());
            // Good rows of the same batch, written before and after the one that falls short.
            world.load_operation(operation_key(PLAIN), Access::Write, None);
            world.put_operation(bare_operation(PLAIN))?;
            world.add_audit(audit_row(PLAIN, 1));
            mistaken(world)
        });
        let refused = refused.await;
        assert!(matches!(refused, Err(TransactError::CountShort(_))), "{what}: {refused:?}");
        assert_eq!(store.dump_tables().await.expect("dumps"), before, "{what}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_tombstone_lets_go_of_its_payloads_and_its_trail() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let needs = || vec![write_operation(PACKED), write_operation(PLAIN)];
    let put = run(&store, needs(), |world| {
        for kind in [PayloadKind::Arguments, PayloadKind::Result] {
            world.put_payload(operation_key(PLAIN), kind, Bytes::from_static(b"body"));
        }
        world.put_payload(operation_key(PACKED), PayloadKind::Result, Bytes::from_static(b"kept"));
        world.add_audit(audit_row(PLAIN, 1));
        world.add_audit(audit_row(PACKED, 1));
        world.put_operation(full_operation(PACKED))?;
        world.put_operation(bare_operation(PLAIN))
    });
    put.await.expect("commits");
    let left = Operation {
        arguments: Arguments::Inline(Bytes::new()),
        labels: BTreeMap::new(),
        retained: Retained::Tombstone,
        ..bare_operation(PLAIN)
    };
    let tombstone = left.clone();
    let emptied = run(&store, needs(), |world| {
        world.drop_trail(operation_key(PLAIN));
        world.empty_operation(tombstone)
    });
    emptied.await.expect("commits");
    let keys = [operation_key(PLAIN), operation_key(PACKED)];
    assert_eq!(store.operations(&keys).await.expect("reads"), [left, full_operation(PACKED)]);
    let bodies = store.payloads(&keys, PayloadKind::Result).await.expect("reads");
    assert_eq!(bodies, [None, Some(Bytes::from_static(b"kept"))]);
    let count =
        async |id| store.list_audit(&audit_row(id, 1).chain, 0, 9).await.expect("reads").len();
    assert_eq!((count(PLAIN).await, count(PACKED).await), (0, 1));
    let gone = run(&store, needs(), |world| world.delete_operation(&operation_key(PLAIN)));
    gone.await.expect("commits");
    assert_eq!(store.operations(&keys).await.expect("reads").len(), 1);
    store.close().await;
}

fn deletes<T>(deletes: Vec<T>) -> TableChanges<T> {
    TableChanges { inserts: Vec::new(), updates: Vec::new(), deletes }
}

/// No rule deletes most kinds of rows yet, so that no world can ask for it.
fn delete_one_of_each() -> Changes {
    Changes {
        operations: deletes(vec![bare_operation(PACKED)]),
        emptied: Vec::new(),
        payloads: Vec::new(),
        accounts: deletes(vec![account_row(1)]),
        documents: deletes(vec![document("locked", b"text")]),
        locks: deletes(vec![lock("locked")]),
        inboxes: deletes(vec![full_inbox("default")]),
        deliveries: deletes(vec![pending("default", 1)]),
        audit: Vec::new(),
        trails: vec![operation_key(PACKED)],
        life: None,
    }
}

async fn save_alone(store: &SqliteStore, changes: Changes) -> Result<(), Failure> {
    let batch = batch(store.seams());
    store.write(move |connection| save(connection, &batch, Timestamp(1), &changes)).await
}

#[tokio::test]
async fn deletes_repeat_what_they_rely_on() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_one_of_each(&store).await;
    let mut wrong: Vec<Changes> = vec![delete_one_of_each(); 7];
    wrong[0].operations.deletes[0].state = OperationState::Unknown;
    wrong[1].accounts.deletes[0].inboxes = 7;
    wrong[2].documents.deletes[0].revision = 7;
    wrong[3].locks.deletes[0].next_ticket = 7;
    wrong[4].inboxes.deletes[0].next_sequence = 7;
    wrong[5].deliveries.deletes[0].attempt = 7;
    wrong[6].emptied.push(operation_key("absent"));
    let before = store.dump_tables().await.expect("dumps");
    for changes in wrong {
        let refused = save_alone(&store, changes).await;
        assert!(matches!(refused, Err(Failure::CountShort(_))), "{refused:?}");
        assert_eq!(store.dump_tables().await.expect("dumps"), before);
    }
    save_alone(&store, delete_one_of_each()).await.expect("commits");
    for (table, rows) in store.dump_tables().await.expect("dumps") {
        assert!(rows.is_empty() || table == "batches", "{table}: {rows:?}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_key_that_is_taken_is_a_conflict() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_one_of_each(&store).await;
    let before = store.dump_tables().await.expect("dumps");
    let refused = run(&store, vec![], |world| {
        *world = World::new(surroundings());
        world.load_operation(operation_key(PACKED), Access::Read, None);
        world.put_operation(bare_operation(PACKED))
    });
    assert!(matches!(refused.await, Err(TransactError::Conflict(_))));
    let refused = run(&store, vec![], |world| {
        world.add_delivery(pending("default", 1));
        Ok(())
    });
    assert!(matches!(refused.await, Err(TransactError::Conflict(_))));
    assert_eq!(store.dump_tables().await.expect("dumps"), before);
    store.close().await;
}

#[tokio::test]
async fn a_dump_shows_every_table_and_column() {
    let place = Place::new(Seams::system());
    let store = place.open();
    store_one_of_each(&store).await;
    let tables = store.dump_tables().await.expect("dumps");
    let names: Vec<&str> = tables.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "accounts",
        "audit",
        "batches",
        "deliveries",
        "documents",
        "inboxes",
        "locks",
        "operations",
        "payloads",
    ];
    assert_eq!(names, expected);
    let rows = |table: &str| &tables.iter().find(|(name, _)| name == table).expect("is there").1;
    let bucket = account().bucket();
    assert_eq!(
        rows("accounts")[0],
        format!(
            "bucket={bucket}|account=ada|create_time=1|inboxes=1|closed_before=2|evidence_floor=3\
             |due_time=4|policy=0a07080410c096b10210011a20{}",
            "06".repeat(32)
        )
    );
    let operation = &rows("operations")[0];
    assert!(operation.contains("|expected_revision=-|"), "{operation}");
    assert!(operation.contains("|operation_id=0190163d8694739baea5966c26f8ad91|"), "{operation}");
    assert!(operation.contains("|labels={}|"), "{operation}");
    store.close().await;
}
