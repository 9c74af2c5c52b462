//! Promises of this store against a real server. Scenarios that both stores share are elsewhere.

mod failures;
mod plans;
mod reads;
mod rows;
mod server;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use self::{
    rows::{
        Optional, account, account_row, audit_row, delivery, delivery_key, document, inbox,
        inbox_key, lock, operation, operation_key, target_key,
    },
    server::Database,
};
use super::{PostgresStore, claim_hash, save, transact::Saved};
use crate::{
    domain::{
        ids::Timestamp,
        operation::{Arguments, Operation, PayloadKind, Retained},
        policy::Policy,
        world::{
            Surroundings, World,
            changes::{Changes, Update},
            needs::{Access, Body, Need, Needs, Unloaded},
        },
    },
    store::{BatchName, Committed, HeldIds, Purpose, TransactError, Transaction},
};

fn name() -> BatchName {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut id = [0; 16];
    id[8..].copy_from_slice(&COUNT.fetch_add(1, Ordering::SeqCst).to_be_bytes());
    BatchName { bucket: 7, id, replica: [9; 16] }
}

fn transaction<R: Send + 'static>(
    batch: BatchName,
    needs: impl IntoIterator<Item = Need>,
    decide: impl FnOnce(&mut World, &HeldIds) -> R + Send + 'static,
) -> Transaction<R> {
    let mut all = Needs::default();
    needs.into_iter().for_each(|need| all.add(need));
    let surroundings = Surroundings {
        now: Timestamp(0),
        policy: Policy::default(),
        jitter: 0,
        attached: Default::default(),
        loss: crate::domain::epoch::Loss::NONE,
    };
    Transaction {
        batch,
        needs: all,
        surroundings,
        purpose: Purpose::Serve,
        decide: Box::new(decide),
    }
}

async fn run<R: Send + 'static>(
    store: &PostgresStore,
    needs: impl IntoIterator<Item = Need>,
    decide: impl FnOnce(&mut World, &HeldIds) -> R + Send + 'static,
) -> Result<Committed<R>, TransactError<R>> {
    store.transact(transaction(name(), needs, decide)).await
}

/// Everything that [`fill`] writes.
fn all_needs() -> Vec<Need> {
    let mut needs = vec![
        Need::Account(account("alice"), Access::Write),
        Need::Document(target_key("plain"), Body::Load),
        Need::Document(target_key("held"), Body::Load),
        Need::Document(target_key("absent"), Body::Load),
        Need::Inbox(inbox_key("main")),
        Need::Inbox(inbox_key("bare")),
        Need::Arguments(operation_key("unset")),
    ];
    for id in ["set", "unset", "missing"] {
        needs.push(Need::Operation(operation_key(id), Access::Write));
    }
    for sequence in 1..=3 {
        needs.push(Need::Delivery(delivery_key("main", sequence)));
    }
    needs
}

fn fill(world: &mut World) -> Result<(), Unloaded> {
    world.put_operation(operation("set", Optional::Set))?;
    world.put_operation(operation("unset", Optional::Unset))?;
    let apart = Bytes::from_static(b"apart");
    world.put_payload(operation_key("unset"), PayloadKind::Arguments, apart);
    let result = Bytes::from_static(b"0123456789");
    world.put_payload(operation_key("unset"), PayloadKind::Result, result);
    world.put_account(account_row("alice"))?;
    world.put_document(document("plain"))?;
    world.put_document(document("held"))?;
    world.put_lock(&target_key("held"), Some(lock("held", Optional::Set)))?;
    world.put_lock(&target_key("absent"), Some(lock("absent", Optional::Unset)))?;
    world.put_inbox(inbox("main", Optional::Set))?;
    world.put_inbox(inbox("bare", Optional::Unset))?;
    world.add_delivery(delivery("main", 1, Optional::Set));
    world.add_delivery(delivery("main", 2, Optional::Unset));
    world.add_audit(audit_row("set", 1));
    world.add_audit(audit_row("set", 2));
    Ok(())
}

async fn filled(database: &Database) -> PostgresStore {
    let store = database.open().await;
    run(&store, all_needs(), |world, _| fill(world))
        .await
        .expect("it commits")
        .value
        .expect("loaded");
    store
}

#[tokio::test]
async fn a_payload_is_read_whole_or_in_slices() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let (key, other) = (operation_key("unset"), operation_key("set"));
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
}

#[tokio::test]
async fn a_tombstone_lets_go_of_its_payloads_and_its_trail() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let (set, unset) = (operation_key("set"), operation_key("unset"));
    let tombstone = |operation: Operation| Operation {
        arguments: Arguments::Inline(Bytes::new()),
        labels: BTreeMap::new(),
        retained: Retained::Tombstone,
        ..operation
    };
    let left = [
        tombstone(operation("set", Optional::Set)),
        tombstone(operation("unset", Optional::Unset)),
    ];
    let rows = left.clone();
    run(&store, all_needs(), |world, _| {
        world.drop_trail(rows[0].key.clone());
        rows.into_iter().try_for_each(|row| world.empty_operation(row))
    })
    .await
    .expect("it commits")
    .value
    .expect("loaded");
    let keys = [set.clone(), unset.clone()];
    assert_eq!(store.operations(&keys).await.expect("reads"), left);
    for kind in [PayloadKind::Arguments, PayloadKind::Result] {
        assert_eq!(store.payloads(&keys, kind).await.expect("reads"), [None, None]);
    }
    let chain = audit_row("set", 1).chain;
    assert_eq!(store.list_audit(&chain, 0, 9).await.expect("reads"), []);
    run(&store, all_needs(), move |world, _| world.delete_operation(&set))
        .await
        .expect("it commits")
        .value
        .expect("loaded");
    assert_eq!(store.operations(&keys).await.expect("reads").len(), 1);
}

#[tokio::test]
async fn every_row_comes_back_as_it_was_written() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let seen = run(&store, all_needs(), |world, _| {
        let key = operation_key;
        assert_eq!(
            world.operation(&key("set"), Access::Write)?,
            Some(&operation("set", Optional::Set))
        );
        let unset = operation("unset", Optional::Unset);
        assert_eq!(world.operation(&key("unset"), Access::Write)?, Some(&unset));
        assert_eq!(world.operation(&key("missing"), Access::Write)?, None);
        assert_eq!(world.arguments(&unset)?, Bytes::from_static(b"apart"));
        assert_eq!(world.account(&account("alice"))?, Some(&account_row("alice")));
        assert_eq!(world.document(&target_key("plain"), Body::Load)?, Some(&document("plain")));
        let held = crate::domain::document::Document { locked: true, ..document("held") };
        assert_eq!(world.document(&target_key("held"), Body::Load)?, Some(&held));
        assert_eq!(world.lock(&target_key("plain"))?, None);
        assert_eq!(world.lock(&target_key("held"))?, Some(&lock("held", Optional::Set)));
        assert_eq!(world.lock(&target_key("absent"))?, Some(&lock("absent", Optional::Unset)));
        assert_eq!(world.inbox(&inbox_key("main"))?, Some(&inbox("main", Optional::Set)));
        assert_eq!(world.inbox(&inbox_key("bare"))?, Some(&inbox("bare", Optional::Unset)));
        for (sequence, optional) in [(1, Optional::Set), (2, Optional::Unset)] {
            let expected = delivery("main", sequence, optional);
            assert_eq!(world.delivery(&expected.key)?, Some(&expected));
        }
        assert_eq!(world.delivery(&delivery_key("main", 3))?, None);
        Ok::<(), Unloaded>(())
    });
    let seen = seen.await.expect("it ends");
    seen.value.expect("everything was loaded");
    assert_eq!((seen.touches.saved, seen.touches.commits), (0, 0), "nothing changed");
    let trail = store.list_audit(&audit_row("set", 1).chain, 0, 10).await.expect("a read");
    assert_eq!(trail, [audit_row("set", 1), audit_row("set", 2)]);
    let dump = store.dump_tables().await.expect("a dump");
    let batches = dump.iter().find(|(table, _)| table == "batches").expect("a table");
    assert_eq!(batches.1.len(), 1, "a batch without changes writes no row");
    let accounts = dump.iter().find(|(table, _)| table == "accounts").expect("a table");
    let alice = format!(
        "bucket={}|account=alice|create_time=1|inboxes=2|closed_before=3|evidence_floor=4\
         |due_time=5|policy=0a07080410c096b10210011a20{}",
        account("alice").bucket(),
        "06".repeat(32),
    );
    assert_eq!(accounts.1, [alice]);
    let names: Vec<&str> = dump.iter().map(|(table, _)| table.as_str()).collect();
    let sorted = "accounts audit batches deliveries documents inboxes locks operations payloads";
    assert_eq!(names.join(" "), sorted);
}

#[tokio::test]
async fn changes_are_written_in_two_round_trips() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let needs = || {
        let mut needs = all_needs();
        needs.push(Need::Document(target_key("plain"), Body::Omit));
        needs.retain(|need| *need != Need::Document(target_key("plain"), Body::Load));
        needs
    };
    let change = |world: &mut World, _: &HeldIds| {
        let mut operation = operation("unset", Optional::Set);
        operation.key = operation_key("unset");
        operation.arguments = crate::domain::operation::Arguments::Apart;
        operation.audit.length = 2;
        world.put_operation(operation)?;
        world
            .put_account(crate::domain::inbox::AccountRow { inboxes: 3, ..account_row("alice") })?;
        let plain = world.document(&target_key("plain"), Body::Omit)?.expect("it is there").clone();
        assert_eq!(plain.content, None, "the content was not asked for");
        world.put_document(crate::domain::document::Document { revision: 2, ..plain })?;
        world.put_lock(&target_key("held"), None)?;
        world.put_lock(&target_key("absent"), Some(lock("absent", Optional::Set)))?;
        world.put_inbox(inbox("bare", Optional::Set))?;
        world.put_delivery(delivery("main", 2, Optional::Set))?;
        world.put_delivery(delivery("main", 1, Optional::Unset))
    };
    run(&store, needs(), change).await.expect("it commits").value.expect("loaded");
    let document =
        store.document(&target_key("plain")).await.expect("a read").expect("it is there");
    assert_eq!(document.revision, 2);
    assert_eq!(document.content.as_deref(), Some(&b"the content"[..]), "left as it was");
    let locks = store.list_locks(&account("alice"), "", 10).await.expect("a read");
    assert_eq!(locks, [lock("absent", Optional::Set)]);
    let second = store.deliveries(&[delivery_key("main", 2)]).await.expect("a read");
    assert_eq!(second, [delivery("main", 2, Optional::Set)]);
    // The same statements again, on a connection that knows them: two trips.
    let again = run(&store, needs(), |world, _| {
        let inbox = inbox("bare", Optional::Unset);
        world.put_inbox(inbox)
    });
    let touches = again.await.expect("it commits").touches;
    assert_eq!((touches.round_trips, touches.commits, touches.saved), (2, 1, 2));
    assert_eq!(touches.loaded, 3 + 1 + 1 + 3 + 2 + 3, "every key counts once");
}

#[tokio::test]
async fn a_row_that_does_not_stand_as_loaded_fails_the_whole_save() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let dump = store.dump_tables().await.expect("a dump");
    for wrong in wrong_preconditions() {
        let error = save_wrongly(&store, wrong).await;
        assert!(matches!(error, TransactError::CountShort(_)), "{error:?}");
    }
    assert_eq!(store.dump_tables().await.expect("a dump"), dump, "nothing was written");
}

/// Adds an update or a delete whose row does not stand as it says.
type Wrong = fn(&mut Changes);

/// One for each guarded statement.
fn wrong_preconditions() -> [Wrong; 10] {
    [
        |changes| {
            let before = operation("set", Optional::Set);
            let wrong =
                crate::domain::operation::Operation { outcome_version: 9, ..before.clone() };
            changes.operations.updates.push(Update { before: wrong, after: before });
        },
        |changes| {
            let before = document("plain");
            let wrong = crate::domain::document::Document { revision: 9, ..before.clone() };
            changes.documents.updates.push(Update { before: wrong, after: before });
        },
        |changes| {
            let before = inbox("main", Optional::Set);
            let wrong = crate::domain::inbox::Inbox { next_sequence: 9, ..before.clone() };
            changes.inboxes.updates.push(Update { before: wrong, after: before });
        },
        |changes| {
            let before = delivery("main", 1, Optional::Set);
            let wrong = crate::domain::delivery::Delivery { attempt: 9, ..before.clone() };
            changes.deliveries.updates.push(Update { before: wrong, after: before });
        },
        |changes| {
            let before = account_row("alice");
            let wrong = crate::domain::inbox::AccountRow { inboxes: 9, ..before.clone() };
            changes.accounts.updates.push(Update { before: wrong, after: before });
        },
        |changes| {
            let before = account_row("alice");
            let closed_before = Timestamp(before.closed_before.0 - 1);
            let lower = crate::domain::inbox::AccountRow { closed_before, ..before.clone() };
            changes.accounts.updates.push(Update { before, after: lower });
        },
        |changes| {
            let before = account_row("alice");
            let evidence_floor = Timestamp(before.evidence_floor.0 - 1);
            let lower = crate::domain::inbox::AccountRow { evidence_floor, ..before.clone() };
            changes.accounts.updates.push(Update { before, after: lower });
        },
        |changes| changes.emptied.push(operation_key("absent")),
        |changes| {
            let mut wrong = lock("held", Optional::Set);
            wrong.next_ticket = 9;
            changes.locks.deletes.push(wrong);
        },
        |changes| {
            let mut wrong = lock("held", Optional::Set);
            wrong.next_ticket = 9;
            changes
                .locks
                .updates
                .push(Update { before: wrong, after: lock("held", Optional::Unset) });
        },
    ]
}

/// Saves a good insert together with a wrong change.
async fn save_wrongly(store: &PostgresStore, wrong: Wrong) -> TransactError<()> {
    let mut world = World::new(transaction(name(), [], |_, _| ()).surroundings);
    world.load_inbox(inbox_key("new"), None);
    world.put_inbox(inbox("new", Optional::Set)).expect("it is loaded");
    let mut changes = world.into_changes();
    wrong(&mut changes);
    let lease = store.0.writes.borrow().await.expect("a connection");
    lease.run("BEGIN").await.expect("it begins");
    let batch = name();
    let first = Some(save::batch(&batch, Timestamp(1)));
    let saved = store.save(lease, first, &changes).await;
    let Saved::Nothing(trouble) = saved else { panic!("{saved:?}") };
    trouble.into()
}

#[tokio::test]
async fn an_id_that_somebody_holds_is_told_and_the_rest_is_loaded() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let other = database.client().await;
    let hash = claim_hash(&operation_key("set"));
    other
        .batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({hash})"))
        .await
        .expect("held");
    let claims = || {
        let mut claims = transaction(name(), all_needs(), |world, held: &HeldIds| {
            assert!(world.operation(&operation_key("set"), Access::Write).is_ok());
            held.0.iter().map(|key| key.id.as_str().to_owned()).collect::<Vec<_>>()
        });
        claims.needs.claims.extend(["unset", "set", "missing"].map(operation_key));
        claims
    };
    assert_eq!(store.transact(claims()).await.expect("it ends").value, ["set"]);
    other.batch_execute("COMMIT").await.expect("released");
    assert!(store.transact(claims()).await.expect("it ends").value.is_empty());
}

#[test]
fn the_number_of_a_claim_is_pinned() {
    // Replicas of different releases must agree on it.
    assert_eq!(claim_hash(&operation_key("op-1")), GOLDEN_CLAIM);
}

/// `SHA-256(00 00 00 00 00 00 00 05 "alice" "op-1")`, first eight bytes.
const GOLDEN_CLAIM: i64 = 3_105_647_645_695_936_261;

#[tokio::test]
async fn a_lock_is_not_awaited_for_long() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let other = database.client().await;
    other.batch_execute("BEGIN; SELECT * FROM receiptd.inboxes FOR UPDATE").await.expect("locked");
    let failed = run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await;
    assert!(matches!(failed, Err(TransactError::Failed(_))), "{failed:?}");
    other.batch_execute("ROLLBACK").await.expect("released");
    run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("the connection is good");
}

#[tokio::test]
async fn an_insert_that_meets_another_is_a_conflict() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let twice = run(&store, [Need::Inbox(inbox_key("main"))], |world, _| {
        world.put_inbox(inbox("main", Optional::Set))?;
        world.add_delivery(delivery("main", 1, Optional::Unset));
        Ok::<(), Unloaded>(())
    });
    let twice = twice.await;
    assert!(matches!(twice, Err(TransactError::Conflict(_))), "{twice:?}");
    run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("the connection is good");
}
