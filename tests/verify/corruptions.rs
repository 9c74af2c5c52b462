//! Corruptions, planted one at a time in the tables themselves: each is found by its name, and nothing
//! else is.

use receiptd::{
    domain::{
        audit::{AuditChain, AuditHead, append as append_row},
        command::{Command, Reply},
        ids::Span,
        operation::OperationState,
        record::{pack_events, unpack_events},
        settings::Setting,
        verify::ContradictionKind as Kind,
    },
    engine::Engine,
    sweeper,
    verify::Limits,
};

use crate::{
    commands::{Instruction, ack, append, attempts, defer, operation, pull, set},
    places::{blob, check, close, engine, open_to_read, run},
    support::stores::{TestStore, on_both_stores},
};

on_both_stores!(each_planted_corruption_is_found_by_its_name_alone);

const TABLES: [&str; 8] =
    ["accounts", "operations", "payloads", "documents", "locks", "inboxes", "deliveries", "audit"];

/// One operation of each kind, under names that say which.
async fn plant_nothing(store: &TestStore) {
    let (running, seams) = engine(store).await;
    let now = seams.now();
    let submit = async |instruction: Instruction| submit(&running, instruction).await;
    let plain = |id: &str| append(id, now).on(&format!("doc/{id}")).into_inbox("q");
    let apart = |id: &str| Instruction { inbox: None, ..plain(id) };
    let put = |id: &str, text: &str| Instruction {
        action: "document.put".to_owned(),
        arguments: format!(r#"{{"content":"{text}"}}"#),
        ..apart(id)
    };
    submit(append("lost", now).on("doc/lost").into_inbox("e")).await;
    seams.move_clock(Span::seconds(200));
    assert_eq!(sweeper::run_once(&running).await.expired, 1);
    assert_eq!(submit(plain("plain")).await, OperationState::Applied);
    submit(plain("long")).await;
    submit(put("large", &"x".repeat(2_000)).keeping_content()).await;
    let rejected = submit(apart("norow").expecting(7)).await;
    assert_eq!(rejected, OperationState::Rejected);
    submit(put("first", "same").on("doc/twice")).await;
    submit(put("second", "same").on("doc/twice")).await;
    submit(apart("effect")).await;
    let pulled = running.run(pull("q", "reader", 10)).await;
    assert!(matches!(&pulled, Ok(Reply::Offered { deliveries, .. }) if deliveries.len() == 2));
    running.run(ack("q", &[1])).await.expect("acked");
    running.run(defer(attempts("q", None, &[(2, 1)]), Span(0))).await.expect("deferred");
    seams.move_clock(Span::seconds(1));
    let pulled = running.run(pull("q", "reader", 10)).await;
    assert!(matches!(&pulled, Ok(Reply::Offered { deliveries, .. }) if deliveries.len() == 1));
    running.run(ack("q", &[2])).await.expect("acked");
    submit(plain("held").into_inbox("r").until_acked()).await;
    let waits = submit(plain("waiter").on("doc/held").into_inbox("r")).await;
    assert_eq!(waits, OperationState::Accepted);
    running.run(set(Setting::InFlightMax, 500)).await.expect("changed");
    close(running).await;
}

async fn submit(engine: &Engine, instruction: Instruction) -> OperationState {
    let command: Command = instruction.command();
    match engine.run(command).await {
        Ok(Reply::Submitted(submitted)) => submitted.operation.state,
        other => panic!("{other:?}"),
    }
}

/// A row of an operation.
fn of(id: &str) -> String {
    format!("account = 'a' AND operation_id = {}", blob(id.as_bytes()))
}

/// The chain of an operation with the events of its only row in another order, hashed again.
async fn reordered(store: &TestStore) -> String {
    let opened = open_to_read(store).await;
    let chain = AuditChain::Operation(operation("plain"));
    let rows = opened.list_audit(&chain, 0, 10).await.expect("reads");
    opened.close().await;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    let mut events = unpack_events(&row.events).expect("events");
    events.swap(0, 1);
    let packed = pack_events(&events);
    let head = AuditHead::default();
    let (row, _) = append_row(head, &chain, row.time, &row.subject, packed);
    let (events, hash) = (blob(&row.events), blob(&row.hash));
    format!(
        "UPDATE receiptd.audit SET events = {events}, hash = {hash} WHERE {0};
         UPDATE receiptd.operations SET audit_hash = {hash} WHERE {0}",
        of("plain")
    )
}

/// Every corruption, and what it is called.
fn table() -> Vec<(&'static str, Kind, String)> {
    let on = |table: &str, set: &str, filter: &str| {
        format!("UPDATE receiptd.{table} SET {set} WHERE {filter}")
    };
    let target = |name: &str| format!("account = 'a' AND target = 'doc/{name}'");
    let inbox = |name: &str| format!("account = 'a' AND inbox = '{name}'");
    let gone = |table: &str, filter: &str| format!("DELETE FROM receiptd.{table} WHERE {filter}");
    let ghost = blob(b"ghost");
    let (long, large) = (of("long"), of("large"));
    let result = format!("{large} AND kind = 2");
    let lock = format!(
        "INSERT INTO receiptd.locks SELECT bucket, account, 'doc/effect', {ghost}, acquire_time,
            release_time, lock_mode, 1, 0, due_time FROM receiptd.locks WHERE {0};
         UPDATE receiptd.documents SET locked = 1 WHERE {1}",
        target("held"),
        target("effect")
    );
    let shortened = format!(
        "DELETE FROM receiptd.audit WHERE {long} AND number = 3;
         UPDATE receiptd.operations SET audit_length = 2, audit_hash =
            (SELECT a.hash FROM receiptd.audit a WHERE {long} AND a.number = 2) WHERE {long}"
    );
    let swapped = format!(
        "UPDATE receiptd.audit SET number = 9 WHERE {long} AND number = 2;
         UPDATE receiptd.audit SET number = 2 WHERE {long} AND number = 3;
         UPDATE receiptd.audit SET number = 3 WHERE {long} AND number = 9"
    );
    let owned = format!(
        "INSERT INTO receiptd.payloads SELECT bucket, account, {ghost}, kind, body
            FROM receiptd.payloads WHERE {result}"
    );
    let account = "account = 'a'";
    let own = format!("account = 'a' AND operation_id = {}", blob(b""));
    vec![
        (
            "an operation's state",
            Kind::OperationDiffers,
            on("operations", "state = 4", &of("plain")),
        ),
        ("an operation's end", Kind::OperationDiffers, {
            on("operations", "end_time = end_time + 1", &of("lost"))
        }),
        ("an operation is gone", Kind::ChainWithoutOperation, gone("operations", &of("norow"))),
        ("its arguments", Kind::IntentDiffers, {
            on("operations", &format!("arguments = {}", blob(br#"{"line":"y"}"#)), &of("effect"))
        }),
        ("its action", Kind::IntentDiffers, {
            on("operations", "action = 'document.put'", &of("effect"))
        }),
        ("an audit row's subject", Kind::ChainRowChanged, {
            on("audit", "subject = 'nobody'", &format!("{long} AND number = 2"))
        }),
        ("a change of a policy", Kind::ChainRowChanged, on("audit", "time = time - 1", &own)),
        ("a chain's end is gone", Kind::ChainEnd, gone("audit", &format!("{long} AND number = 3"))),
        ("a chain's middle is gone", Kind::ChainCut, {
            gone("audit", &format!("{long} AND number = 2"))
        }),
        ("a whole chain is gone", Kind::ChainEnd, gone("audit", &of("effect"))),
        ("two audit rows change places", Kind::ChainRowChanged, swapped),
        ("a chain is shortened with its head", Kind::DeliveryDiffers, shortened),
        ("a delivery's state", Kind::DeliveryDiffers, {
            on("deliveries", "state = 4", &format!("{} AND sequence = 1", inbox("q")))
        }),
        ("who acked", Kind::DeliveryDiffers, {
            on("deliveries", "ack_subject = 'nobody'", &format!("{} AND sequence = 1", inbox("q")))
        }),
        ("a delivery is gone", Kind::DeliveryMissing, {
            gone("deliveries", &format!("{} AND sequence = 1", inbox("q")))
        }),
        ("a delivery of nobody", Kind::DeliveryWithoutOperation, {
            on("deliveries", &format!("operation_id = {ghost}"), &inbox("e"))
        }),
        ("a counter", Kind::InboxCounter, on("inboxes", "pending = pending + 1", &inbox("q"))),
        ("a reserved slot", Kind::InboxCounter, on("inboxes", "reserved = 0", &inbox("r"))),
        ("a count of inboxes", Kind::AccountDiffers, {
            on("accounts", "inboxes = inboxes + 1", account)
        }),
        ("an account's row is gone", Kind::AccountDiffers, {
            format!("{}; {}", gone("accounts", account), gone("audit", &own))
        }),
        ("a lock of nobody", Kind::LockWithoutHolder, lock),
        ("waiters of a lock", Kind::LockDiffers, on("locks", "waiting = 2", &target("held"))),
        ("a flag of a lock", Kind::LockDiffers, on("documents", "locked = 1", &target("effect"))),
        ("an effect without receipt", Kind::EffectWithoutReceipt, {
            on("documents", "revision = revision + 1", &target("effect"))
        }),
        ("a receipt without effect", Kind::ReceiptWithoutEffect, {
            on("documents", "revision = revision - 1", &target("twice"))
        }),
        ("a document's content", Kind::DocumentDiffers, {
            on("documents", &format!("content = {}", blob(b"y\n")), &target("effect"))
        }),
        ("a result of another digest", Kind::PayloadDiffers, {
            on("payloads", &format!("body = {}", blob(b"other")), &result)
        }),
        ("arguments of another digest", Kind::PayloadDiffers, {
            let other = blob(br#"{"content":"z"}"#);
            on("payloads", &format!("body = {other}"), &format!("{large} AND kind = 1"))
        }),
        ("a result is gone", Kind::PayloadMissing, gone("payloads", &result)),
        ("a result of nobody", Kind::PayloadWithoutOperation, owned),
    ]
}

async fn each_planted_corruption_is_found_by_its_name_alone(store: TestStore) {
    plant_nothing(&store).await;
    assert_eq!(found(&store).await, []);
    for name in TABLES {
        run(&store, &format!("CREATE TABLE kept_{name} AS SELECT * FROM receiptd.{name}")).await;
    }
    let mut all = table();
    all.push((
        "events change places, hashed again",
        Kind::ImpossibleHistory,
        reordered(&store).await,
    ));
    for (what, kind, statements) in all {
        run(&store, &statements).await;
        let told = found(&store).await;
        let kinds: Vec<Kind> = told.iter().map(|told| told.kind).collect();
        assert_eq!(kinds, [kind], "{what}: {told:#?}");
        assert!(told[0].expected != told[0].found, "{what}: {told:#?}");
        for name in TABLES {
            run(
                &store,
                &format!(
                    "DELETE FROM receiptd.{name};
                     INSERT INTO receiptd.{name} SELECT * FROM kept_{name}"
                ),
            )
            .await;
        }
    }
    assert_eq!(found(&store).await, []);
}

async fn found(store: &TestStore) -> Vec<receiptd::domain::verify::Contradiction> {
    let opened = open_to_read(store).await;
    let (told, _) = check(&opened, &Limits::ONLINE).await;
    opened.close().await;
    told
}
