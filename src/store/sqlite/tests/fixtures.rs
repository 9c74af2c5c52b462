//! Rows with everything set and with everything absent, and a short way to run a transaction.

use std::{collections::BTreeMap, path::PathBuf};

use bytes::Bytes;

use crate::{
    domain::{
        audit::{AuditChain, AuditEvent, AuditHead, AuditKind, AuditRow},
        delivery::{AckEvidence, Delivery, DeliveryKey, DeliveryState, InboxKey},
        document::{Document, DocumentChange},
        ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Target, Timestamp},
        inbox::{AccountRow, Consumer, Inbox},
        intent::{IntentDigest, LockMode},
        lock::{Holder, Lock, TargetKey},
        operation::{
            Arguments, EffectCertainty, Operation, OperationKey, OperationState, Outcome,
            ResultInfo, ResultKind,
        },
        policy::Policy,
        record::pack_events,
        sample,
        settings::OwnSettings,
        world::{
            Surroundings, World,
            needs::{Access, Body, Need, Needs, Unloaded},
        },
    },
    engine::seams::Seams,
    store::{
        BatchName, Committed, TransactError, Transaction,
        sqlite::{Options, SqliteStore},
    },
};

/// A packed id, and one that is stored as its text.
pub(super) const PACKED: &str = "0190163d-8694-739b-aea5-966c26f8ad91";
pub(super) const PLAIN: &str = "sixteen.chars-id";

/// A store in a folder of its own.
pub(super) struct Place {
    pub(super) seams: Seams,
    pub(super) path: PathBuf,
    folder: tempfile::TempDir,
}

impl Place {
    pub(super) fn new(seams: Seams) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("data").join("receiptd.db");
        Place { seams, path, folder }
    }

    pub(super) fn open(&self) -> SqliteStore {
        self.open_with(&Options::default())
    }

    pub(super) fn open_with(&self, options: &Options) -> SqliteStore {
        SqliteStore::open(&self.path, &self.seams, options).expect("opens")
    }

    /// Somebody else's connection to the same file.
    pub(super) fn stranger(&self) -> rusqlite::Connection {
        assert!(self.folder.path().exists());
        rusqlite::Connection::open(&self.path).expect("opens")
    }
}

/// A simulated world at a time; its random numbers only count.
pub(super) fn simulated(now: i64) -> Seams {
    let next = std::sync::atomic::AtomicU64::new(1);
    let random = move || next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    Seams::simulated(move || Timestamp(now), random)
}

pub(super) fn surroundings() -> Surroundings {
    Surroundings {
        now: Timestamp(0),
        policy: Policy::default(),
        jitter: 0,
        attached: BTreeMap::new(),
        loss: crate::domain::epoch::Loss::NONE,
    }
}

pub(super) fn batch(seams: &Seams) -> BatchName {
    BatchName { bucket: account().bucket(), id: seams.random_bytes(), replica: [7; 16] }
}

pub(super) fn transaction<R>(
    seams: &Seams,
    needs: Vec<Need>,
    decide: impl FnOnce(&mut World) -> R + Send + 'static,
) -> Transaction<R> {
    let mut all = Needs::default();
    needs.into_iter().for_each(|need| all.add(need));
    Transaction {
        batch: batch(seams),
        needs: all,
        surroundings: surroundings(),
        purpose: crate::store::Purpose::Serve,
        decide: Box::new(|world, _| decide(world)),
    }
}

/// Runs a transaction whose decision finds everything loaded that it asks for.
pub(super) async fn run<R: Send + 'static>(
    store: &SqliteStore,
    needs: Vec<Need>,
    decide: impl FnOnce(&mut World) -> Result<R, Unloaded> + Send + 'static,
) -> Result<Committed<R>, TransactError<R>> {
    let decide = |world: &mut World| decide(world).expect("everything is loaded");
    store.transact(transaction(store.seams(), needs, decide)).await
}

pub(super) fn account() -> Account {
    Account::from_stored("ada")
}

pub(super) fn operation_key(id: &str) -> OperationKey {
    OperationKey { account: account(), id: OperationId::parse(id).expect("valid") }
}

pub(super) fn target_key(target: &str) -> TargetKey {
    TargetKey { account: account(), target: Target::from_stored(target) }
}

pub(super) fn inbox_key(inbox: &str) -> InboxKey {
    InboxKey { account: account(), inbox: InboxName::from_stored(inbox) }
}

pub(super) fn delivery_key(inbox: &str, sequence: i64) -> DeliveryKey {
    DeliveryKey { inbox: inbox_key(inbox), sequence }
}

pub(super) fn bare_operation(id: &str) -> Operation {
    Operation {
        key: operation_key(id),
        mint_time: MintTime::from_millis(1),
        digest: IntentDigest { version: 1, whole: [1; 32], parts: [2; 80] },
        action: "document.put".to_owned(),
        target: Target::from_stored("notes/ä"),
        content_type: String::new(),
        arguments: Arguments::Apart,
        inbox: None,
        accept_time: Timestamp(10),
        start_deadline: Timestamp(20),
        ..sample::operation("op-1")
    }
}

pub(super) fn full_operation(id: &str) -> Operation {
    let change = DocumentChange {
        base_revision: 1,
        result_revision: 2,
        generation: 1,
        size_before: 3,
        size_after: 4,
        hash_before: vec![5; 32],
        hash_after: Vec::new(),
        edits: 6,
    };
    Operation {
        expected_revision: Some(0),
        arguments: Arguments::Inline(Bytes::new()),
        result_kind: ResultKind::Content,
        content_type: "application/json".to_owned(),
        lock_mode: LockMode::UntilAcked,
        inbox: Some(InboxName::from_stored("default")),
        labels: BTreeMap::from([("a|b".to_owned(), "\n\"".to_owned())]),
        state: OperationState::Applied,
        certainty: EffectCertainty::Complete,
        outcome_version: 1,
        outcome: Some(Outcome::Applied(change)),
        result: Some(ResultInfo {
            size: 4,
            sha256: [4; 32],
            content_type: "text/plain".to_owned(),
            kept: true,
        }),
        end_time: Some(Timestamp(30)),
        due_time: Some(Timestamp(40)),
        wait_ticket: Some(50),
        delivery_sequence: Some(60),
        audit: AuditHead { length: 2, hash: [3; 32] },
        replay_count: 70,
        last_replay_time: Some(Timestamp(80)),
        ..bare_operation(id)
    }
}

pub(super) fn account_row(inboxes: i64) -> AccountRow {
    AccountRow {
        account: account(),
        create_time: Timestamp(1),
        inboxes,
        closed_before: Timestamp(2),
        evidence_floor: Timestamp(3),
        due_time: Timestamp(4),
        own: OwnSettings::from_stored([(4, 5_000_000)]),
        audit: AuditHead { length: 1, hash: [6; 32] },
    }
}

pub(super) fn document(target: &str, content: &'static [u8]) -> Document {
    Document {
        key: target_key(target),
        revision: 1,
        generation: 1,
        exists: true,
        content_type: "text/plain".to_owned(),
        content: Some(Bytes::from_static(content)),
        size: i64::try_from(content.len()).expect("short"),
        content_hash: [9; 32],
        create_time: Timestamp(1),
        update_time: Timestamp(2),
        locked: false,
    }
}

pub(super) fn lock(target: &str) -> Lock {
    let holder = Holder {
        operation_id: operation_key(PACKED).id,
        acquire_time: Timestamp(1),
        release_time: Timestamp(2),
        mode: LockMode::UntilAcked,
    };
    Lock {
        key: target_key(target),
        holder: Some(holder),
        next_ticket: 3,
        waiting: 4,
        due_time: Timestamp(5),
    }
}

pub(super) fn full_inbox(name: &str) -> Inbox {
    let consumer = Consumer {
        id: ConsumerId::from_stored("phone"),
        epoch: 1,
        window: 2,
        in_flight: 3,
        open_time: Timestamp(4),
        lease_time: Timestamp(5),
    };
    Inbox {
        next_sequence: 100,
        offered: 7,
        reserved: 8,
        pending: 9,
        returned: 10,
        in_flight: 11,
        acked_total: 12,
        expired_total: 13,
        dead_total: 14,
        consumer_epoch: 15,
        consumers: vec![consumer],
        due_time: Some(Timestamp(16)),
        first_sequence: 0,
        kept_from: 19,
        closing: 20,
        deleted: true,
        slots_limit: Some(21),
        in_flight_limit: Some(22),
        active_time: Timestamp(23),
        upkeep_time: Some(Timestamp(24)),
        skipped: vec![crate::domain::epoch::Skipped { first: 2, last: 7 }],
        ..Inbox::new(inbox_key(name), 0, Timestamp(17))
    }
}

pub(super) fn pending(inbox: &str, sequence: i64) -> Delivery {
    Delivery {
        key: delivery_key(inbox, sequence),
        operation_id: operation_key(PACKED).id,
        queue_time: Timestamp(1),
        expire_time: Timestamp(1_000),
        due_time: Some(Timestamp(1_000)),
        ..sample::delivery("op-1", sequence)
    }
}

pub(super) fn in_flight(inbox: &str, sequence: i64, consumer: &str) -> Delivery {
    Delivery {
        state: DeliveryState::InFlight,
        attempt: 1,
        ack_deadline: Some(Timestamp(500)),
        due_time: Some(Timestamp(500)),
        consumer: Some((ConsumerId::from_stored(consumer), 3)),
        ..pending(inbox, sequence)
    }
}

pub(super) fn ended(inbox: &str, sequence: i64, state: DeliveryState) -> Delivery {
    let end_time = Some(Timestamp(9));
    Delivery { state, attempt: 1, due_time: None, end_time, ..pending(inbox, sequence) }
}

/// No delivery is like this; each column is set.
pub(super) fn full_delivery(inbox: &str, sequence: i64) -> Delivery {
    let ack = AckEvidence {
        time: Timestamp(1),
        attempt: 2,
        subject: "subject".to_owned(),
        consumer: String::new(),
        hash: [4; 32],
    };
    Delivery {
        available_time: Some(Timestamp(1)),
        end_time: Some(Timestamp(2)),
        last_failure_time: Some(Timestamp(3)),
        returns: 4,
        attempts_before: 5,
        lock_target: Some(Target::from_stored("notes/ä")),
        ack: Some(ack),
        ..in_flight(inbox, sequence, "phone")
    }
}

pub(super) fn audit_row(id: &str, number: i32) -> AuditRow {
    AuditRow {
        chain: AuditChain::Operation(operation_key(id)),
        number,
        time: Timestamp(number.into()),
        subject: "subject".to_owned(),
        events: pack_events(&[AuditEvent::plain(AuditKind::Accepted)]),
        hash: [6; 32],
    }
}

/// Needs to change an operation, a document with content, and so on.
pub(super) fn write_operation(id: &str) -> Need {
    Need::Operation(operation_key(id), Access::Write)
}

pub(super) fn load_document(target: &str) -> Need {
    Need::Document(target_key(target), Body::Load)
}

pub(super) fn omit_document(target: &str) -> Need {
    Need::Document(target_key(target), Body::Omit)
}

/// Stores rows of deliveries and the inbox they are in.
pub(super) async fn store_deliveries(store: &SqliteStore, inbox: Inbox, rows: Vec<Delivery>) {
    let stored = run(store, vec![Need::Inbox(inbox.key.clone())], move |world| {
        rows.into_iter().for_each(|row| world.add_delivery(row));
        world.put_inbox(inbox)
    });
    stored.await.expect("commits");
}
