//! A store of a test's own: opened with an engine, checked, and changed behind everybody's back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use receiptd::{
    domain::{
        ids::{Account, Span, Timestamp},
        policy::Policy,
        verify::Contradiction,
    },
    engine::{Engine, EngineSettings, seams::Seams},
    store::{
        Store,
        postgres::{Migrations, PostgresOptions, PostgresStore},
        sqlite::{Options, SqliteStore},
    },
    verify::{Counts, Limits, Place, step},
};

use crate::support::{stores::TestStore, wall_clock};

/// Short clocks, so that a history has everything in it.
pub fn policy() -> Policy {
    Policy {
        ack_window: Span::seconds(180),
        lock_limit: Span::seconds(60),
        start_deadline: Span::seconds(70),
        retry_budget: 3,
        in_flight_max: 1_000,
        inbox_slots: 1_000_000,
        admission_window: Span::seconds(600),
        record_retention: Span::seconds(900),
        audit_retention: Span::seconds(2_000),
        tombstone_retention: Span::seconds(4_000),
        ..Policy::default()
    }
}

/// As [`policy`], and nothing ages while a test runs.
pub fn policy_that_keeps() -> Policy {
    let usual = Policy::default();
    Policy {
        record_retention: usual.record_retention,
        audit_retention: usual.audit_retention,
        tombstone_retention: usual.tombstone_retention,
        ..policy()
    }
}

/// An engine on the store, on a clock that stands still.
pub async fn engine(store: &TestStore) -> (Engine, Seams) {
    engine_with(store, policy()).await
}

/// The same under a policy.
pub async fn engine_with(store: &TestStore, policy: Policy) -> (Engine, Seams) {
    let counter = Arc::new(AtomicU64::new(1));
    let seams = Seams::simulated(|| Timestamp(0), move || counter.fetch_add(1, Ordering::SeqCst));
    let now = wall_clock().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    seams.stop_clock(Timestamp(i64::try_from(now.as_micros()).expect("fits for ages")));
    let opened = match store {
        TestStore::Sqlite(folder) => {
            let path = folder.path().join("receiptd.db");
            Store::Sqlite(SqliteStore::open(&path, &seams, &Options::default()).expect("opens"))
        }
        TestStore::Postgres(..) => {
            let options = PostgresOptions::usual(Migrations::Apply);
            let opened = PostgresStore::open(&store.url(), &seams, options).await;
            Store::Postgres(opened.expect("opens"))
        }
    };
    let settings = EngineSettings { lanes: 1 };
    (Engine::start(opened, policy, settings, seams.clone()), seams)
}

/// Ends an engine and its store.
pub async fn close(engine: Engine) {
    engine.drain().await;
    engine.store().close().await;
}

/// The store, as `receiptd verify` opens it.
pub async fn open_to_read(store: &TestStore) -> Store {
    let seams = Seams::system();
    match store {
        TestStore::Sqlite(folder) => {
            let path = folder.path().join("receiptd.db");
            let opened = SqliteStore::open_to_read(&path, &seams, &Options::default());
            Store::Sqlite(opened.expect("opens"))
        }
        TestStore::Postgres(..) => {
            let options = PostgresOptions::usual(Migrations::Demand);
            let opened = PostgresStore::open(&store.url(), &seams, options).await;
            Store::Postgres(opened.expect("opens"))
        }
    }
}

/// Checks every account, each place once through its token.
pub async fn check(store: &Store, limits: &Limits) -> (Vec<Contradiction>, Counts) {
    let (mut told, mut counts) = (Vec::new(), Counts::default());
    let mut before: Option<Account> = None;
    while let Some(account) = store.next_account(before.as_ref()).await.expect("reads") {
        let mut place = Some(Place::start());
        while let Some(from) = place {
            let found = step(store, &account, from, limits).await.expect("reads");
            told.extend(found.contradictions);
            counts += found.counts;
            place = found.next.map(|next| Place::unpack(&next.pack()).expect("its own bytes"));
        }
        before = Some(account);
    }
    (told, counts)
}

/// Runs statements on the tables themselves; bytes are written `BLOB'00ff'`.
pub async fn run(store: &TestStore, statements: &str) {
    match store {
        TestStore::Sqlite(folder) => {
            let file = folder.path().join("receiptd.db");
            let connection = rusqlite::Connection::open(file).expect("the store is a plain file");
            let statements = statements.replace("receiptd.", "").replace("BLOB'", "x'");
            connection.execute_batch(&statements).unwrap_or_else(|error| {
                panic!("{statements}: {error}");
            });
        }
        TestStore::Postgres(server, database) => {
            let client = server.connect(database).await;
            let statements = statements.replace("BLOB'", "'\\x");
            client.batch_execute(&statements).await.unwrap_or_else(|error| {
                panic!("{statements}: {error:?}");
            });
        }
    }
}

/// Bytes as [`run`] takes them.
pub fn blob(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("BLOB'{hex}'")
}
