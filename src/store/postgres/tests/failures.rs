//! What is refused, and what becomes of a transaction whose connection or commit is lost.

use std::time::Duration;

use super::{
    super::{
        Migrations, PostgresOptions, PostgresStore,
        errors::Trouble,
        migrate::{self, MIGRATIONS, Migration},
        pool::Connector,
    },
    filled, name,
    rows::{Optional, inbox, inbox_key},
    run,
    server::{Database, start},
    transaction,
};
use crate::{
    domain::world::{World, needs::Need},
    engine::seams::Seams,
    store::{BatchName, OpenError, Settled, TransactError, Transaction},
};

async fn open(database: &Database, migrations: Migrations) -> Result<PostgresStore, OpenError> {
    let options = PostgresOptions::usual(migrations);
    PostgresStore::open(&database.url(), &database.seams, options).await
}

#[tokio::test]
async fn migrations_run_once_and_other_schemas_are_refused() {
    let Some(database) = Database::new().await else { return };
    let refused = open(&database, Migrations::Demand).await.expect_err("nothing is there").0;
    assert!(refused.contains("migrate command"), "{refused}");
    let options = PostgresOptions::usual(Migrations::Apply);
    let url = database.url();
    let both = tokio::join!(
        migrate::migrate(&url, &database.seams, &options),
        migrate::migrate(&url, &database.seams, &options),
    );
    let (one, other) = (both.0.expect("it migrates"), both.1.expect("it waits"));
    assert_eq!((one.current, other.current), (1, 1));
    assert_eq!([one.applied, other.applied].concat(), [1], "one of the two applied it");
    let store = open(&database, Migrations::Demand).await.expect("current");
    let again = open(&database, Migrations::Apply).await.expect("current");
    assert_eq!(store.facts(), again.facts(), "a store has one life");
    assert_eq!(store.facts().epoch.len(), 36);
    assert_ne!(store.facts().token_key, [0; 32]);
    let shown = format!("{store:?}");
    assert!(!shown.contains("a-password"), "{shown}");

    let session = Connector::new(&database.url(), &database.seams, &options).expect("a url");
    let session = session.connect().await.expect("a connection");
    let changed = [Migration { number: 1, sql: "SELECT 1" }];
    let refused = migrate::apply(&session, &database.seams, &changed).await.expect_err("changed").0;
    assert!(refused.contains("another file"), "{refused}");
    let more = [MIGRATIONS[0], Migration { number: 2, sql: "CREATE TABLE receiptd.x (a int)" }];
    let report = migrate::apply(&session, &database.seams, &more).await.expect("it migrates");
    assert_eq!((report.applied, report.current), (vec![2], 2));
    let refused = open(&database, Migrations::Apply).await.expect_err("newer").0;
    assert!(refused.contains("newer release"), "{refused}");
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing() {
    let Some(database) = Database::new().await else { return };
    let options = PostgresOptions::usual(Migrations::Apply);
    let session = Connector::new(&database.url(), &database.seams, &options).expect("a url");
    let session = session.connect().await.expect("a connection");
    let bad = [MIGRATIONS[0], Migration { number: 2, sql: "SELECT 1 / 0" }];
    migrate::apply(&session, &database.seams, &bad).await.expect_err("it fails");
    let report = migrate::apply(&session, &database.seams, MIGRATIONS).await.expect("it migrates");
    assert_eq!(report.applied, [1], "the first was rolled back with the second");
}

#[tokio::test]
async fn a_server_that_would_lose_commits_is_refused() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let client = database.client().await;
    let alter = |value: &str| format!("ALTER DATABASE {} SET {value}", database.name);
    client.batch_execute(&alter("synchronous_commit = off")).await.expect("altered");
    let refused = open(&database, Migrations::Apply).await.expect_err("unsafe").0;
    assert!(refused.contains("RESET synchronous_commit"), "{refused}");
    // Each new connection is checked as well.
    store.0.writes.forget_idle();
    let refused = run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await;
    let Err(TransactError::Unavailable(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("synchronous_commit"), "{text}");
}

#[tokio::test]
async fn a_connection_without_tls_is_made_only_where_that_is_allowed() {
    let Some(database) = Database::new().await else { return };
    let open = async |mode: &str| {
        let options = PostgresOptions::usual(Migrations::Apply);
        let url = database.url().replace("disable", mode);
        PostgresStore::open(&url, &database.seams, options).await
    };
    open("prefer").await.expect("the server has no TLS");
    let refused = open("require").await.expect_err("the server has no TLS").0;
    assert!(refused.contains("TLS") && !refused.contains("a-password"), "{refused}");
    let url = "postgres://user:a-password@host:port/x";
    let options = PostgresOptions::usual(Migrations::Apply);
    let refused = PostgresStore::open(url, &database.seams, options).await.expect_err("no port").0;
    assert!(refused.contains("not valid") && !refused.contains("a-password"), "{refused}");
}

#[tokio::test]
async fn a_database_with_other_defaults_behaves_the_same() {
    let Some(database) = Database::new().await else { return };
    let client = database.client().await;
    let text = format!(
        "ALTER DATABASE {0} SET default_transaction_isolation = 'serializable';
         ALTER DATABASE {0} SET search_path = ''",
        database.name
    );
    client.batch_execute(&text).await.expect("altered");
    let store = filled(&database).await;
    run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("it ends");
}

/// What `text` finds about the server processes of the store. Asked from a thread of its own, so
/// that a decision can do it.
fn ask_about_backends(database: String, text: String) -> Vec<tokio_postgres::Row> {
    let task = async move {
        let (client, connection) =
            tokio_postgres::connect(&database, tokio_postgres::NoTls).await.expect("a connection");
        let text = format!(
            "{text} FROM pg_stat_activity
            WHERE application_name = 'receiptd' AND datname = current_database()"
        );
        tokio::select! {
            found = client.query(&text, &[]) => found.expect("an answer"),
            _ = connection => panic!("the connection ended"),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let thread = std::thread::spawn(move || runtime.expect("a runtime").block_on(task));
    thread.join().expect("no panic")
}

/// Ends every connection of the store.
fn terminate(url: String) {
    ask_about_backends(url, "SELECT pg_terminate_backend(pid, 5000)".into());
}

/// Stops every server process of the store without ending its connection, as a frozen machine
/// does, or lets them go on.
fn signal_backends(url: String, signal: &str) {
    for row in ask_about_backends(url, "SELECT pid".into()) {
        let process = row.get::<_, i32>(0).to_string();
        let sent = std::process::Command::new("kill").args([signal, &process]).status();
        assert!(sent.expect("kill runs").success());
    }
}

fn put(batch: &BatchName, inbox_name: &'static str) -> Transaction<&'static str> {
    transaction(batch.clone(), [Need::Inbox(inbox_key(inbox_name))], move |world: &mut World, _| {
        world.put_inbox(inbox(inbox_name, Optional::Set)).expect("it is loaded");
        inbox_name
    })
}

#[tokio::test]
async fn a_connection_that_died_unnoticed_is_replaced() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    store.inbox(&inbox_key("main")).await.expect("a read");
    terminate(database.url().replace("disable", "disable&application_name=tests"));
    run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("begun again");
    assert!(store.inbox(&inbox_key("main")).await.expect("read again").is_some());
}

#[tokio::test]
async fn a_commit_whose_connection_is_lost_is_settled_by_its_row() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let url = database.url().replace("disable", "disable&application_name=tests");
    let batch = name();
    let mut lost = put(&batch, "lost");
    let decide = lost.decide;
    lost.decide = Box::new(move |world, held| {
        terminate(url);
        decide(world, held)
    });
    match store.transact(lost).await {
        Err(TransactError::Ambiguous("lost") | TransactError::Unavailable(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(store.inbox(&inbox_key("lost")).await.expect("a read").is_none());
    let settled = store.settle(put(&batch, "lost")).await.expect("it settles");
    let Settled::RunAgain(committed) = settled else { panic!("it had not committed") };
    assert_eq!((committed.value, committed.touches.commits), ("lost", 1));
    assert!(store.inbox(&inbox_key("lost")).await.expect("a read").is_some());
    let settled = store.settle(put(&batch, "lost")).await.expect("it settles");
    assert!(matches!(settled, Settled::Committed), "{settled:?}");
}

#[tokio::test]
async fn settling_waits_for_the_lost_transaction() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    for (end, committed) in [("COMMIT", true), ("ROLLBACK", false)] {
        let batch = name();
        let ghost = database.client().await;
        ghost.batch_execute("BEGIN").await.expect("it begins");
        let insert = "INSERT INTO receiptd.batches VALUES ($1, $2, $3, 1, 0)";
        ghost
            .execute(insert, &[&batch.bucket, &&batch.id[..], &&batch.replica[..]])
            .await
            .expect("inserted");
        let (settled, ()) = tokio::join!(store.settle(put(&batch, "main-2")), async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            ghost.batch_execute(end).await.expect("it ends");
        });
        let settled = settled.expect("it settles");
        assert_eq!(matches!(settled, Settled::Committed), committed, "{settled:?}");
        assert_eq!(store.inbox(&inbox_key("main-2")).await.expect("a read").is_none(), committed);
    }
}

#[tokio::test]
async fn a_settled_batch_never_commits_even_if_settling_changed_nothing() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let batch = name();
    let nothing = transaction(batch.clone(), [Need::Inbox(inbox_key("late"))], |_, _| ());
    let settled = store.settle(nothing).await.expect("it settles");
    let Settled::RunAgain(committed) = settled else { panic!("{settled:?}") };
    assert_eq!((committed.touches.saved, committed.touches.commits), (1, 1), "the name");
    let before = store.dump_tables().await.expect("a dump");
    let late = store.transact(put(&batch, "late")).await;
    assert!(matches!(late, Err(TransactError::Conflict(_))), "{late:?}");
    assert_eq!(store.dump_tables().await.expect("a dump"), before);
}

#[tokio::test]
async fn a_server_that_freezes_holds_up_nobody_for_longer_than_a_flight() {
    let Some(database) = Database::new().await else { return };
    let short = Duration::from_millis(300);
    let store = database.open_with(|options| options.flight_timeout = short).await;
    let patience = Duration::from_secs(5);
    let url = database.url().replace("disable", "disable&application_name=tests");
    // Frozen between the load and the end of a batch without changes.
    let freezes = url.clone();
    let nothing = run(&store, [Need::Inbox(inbox_key("main"))], move |_, _| {
        signal_backends(freezes, "-STOP");
        "decided"
    });
    let ended = tokio::time::timeout(patience, nothing).await.expect("in time");
    signal_backends(url.clone(), "-CONT");
    assert_eq!(ended.expect("the answer holds").value, "decided");
    assert_eq!(store.0.writes.count(), 0, "its connection is closed");

    // Frozen after a statement that failed.
    let lease = store.0.writes.borrow().await.expect("a connection");
    lease.run("BEGIN").await.expect("it begins");
    let error = lease.run("SELECT 1 / 0").await.expect_err("an error of a statement");
    signal_backends(url.clone(), "-STOP");
    let given_up = tokio::time::timeout(patience, store.give_up(lease, &Some(error))).await;
    signal_backends(url, "-CONT");
    assert!(matches!(given_up.expect("in time"), Trouble::CountShort(_)));
    assert_eq!(store.0.writes.count(), 0, "its connection is closed");
}

#[tokio::test]
async fn a_server_that_accepts_and_is_silent_does_not_hold_up_the_opening() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let url = format!("postgres://receiptd@127.0.0.1:{port}/x?sslmode=disable");
    let options = PostgresOptions {
        create_timeout: Duration::from_millis(200),
        ..PostgresOptions::usual(Migrations::Demand)
    };
    let seams = Seams::system();
    let opened = PostgresStore::open(&url, &seams, options);
    let opened = tokio::time::timeout(Duration::from_secs(5), opened).await.expect("in time");
    let refused = opened.expect_err("nobody answers").0;
    assert!(refused.contains("in time"), "{refused}");
}

#[tokio::test]
async fn a_commit_that_no_standby_confirmed_is_not_an_answer() {
    // A server of its own: the setting holds for all databases.
    let Some(server) = start() else {
        eprintln!("SKIPPED: PostgreSQL is not installed");
        return;
    };
    let database = Database::on(&server).await;
    let store = filled(&database).await;
    let client = database.client().await;
    let standbys = async |names: &str| {
        // ALTER SYSTEM does not wait for a standby; the reload is seen within moments.
        let text = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        client.batch_execute(&text).await.expect("altered");
        client.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    standbys("nobody").await;
    let batch = name();
    let cancel = async || {
        let text = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
            WHERE wait_event = 'SyncRep'";
        loop {
            let row = client.query_one(text, &[]).await.expect("a count");
            if row.get::<_, i64>(0) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (answer, ()) = tokio::join!(store.transact(put(&batch, "waits")), cancel());
    assert!(matches!(answer, Err(TransactError::Ambiguous("waits"))), "{answer:?}");
    let (answer, ()) = tokio::join!(store.settle(put(&batch, "waits")), cancel());
    assert!(matches!(answer, Err(TransactError::Unavailable(_))), "not confirmed: {answer:?}");
    standbys("").await;
    let settled = store.settle(put(&batch, "waits")).await.expect("it settles");
    assert!(matches!(settled, Settled::Committed), "{settled:?}");
    assert!(store.inbox(&inbox_key("waits")).await.expect("a read").is_some());
}

#[tokio::test]
async fn a_transaction_dropped_half_way_leaves_no_lock_and_no_broken_connection() {
    let Some(database) = Database::new().await else { return };
    let store = database.open_with(|options| options.write_connections = 1).await;
    let other = database.client().await;
    run(&store, [Need::Inbox(inbox_key("main"))], |world, _| {
        world.put_inbox(inbox("main", Optional::Unset)).expect("it is loaded");
    })
    .await
    .expect("it commits");
    other.batch_execute("BEGIN; SELECT * FROM receiptd.inboxes FOR UPDATE").await.expect("locked");
    let waits = run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ());
    tokio::time::timeout(Duration::from_millis(100), waits).await.expect_err("it waits");
    other.batch_execute("COMMIT").await.expect("released");
    run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("a good connection");
}

#[tokio::test]
async fn closing_ends_every_connection() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    store.close().await;
    let closed = run(&store, [Need::Inbox(inbox_key("main"))], |_, _| ()).await;
    assert!(matches!(closed, Err(TransactError::Unavailable(_))), "{closed:?}");
    drop(store);
    let joined = tokio::time::timeout(Duration::from_secs(10), database.seams.join());
    joined.await.expect("no task is left");
}

#[tokio::test]
async fn a_decision_that_outlasts_the_patience_of_the_server_is_worth_halving() {
    let Some(database) = Database::new().await else { return };
    let store = filled(&database).await;
    let patience = Duration::from_millis(200);
    let options = PostgresOptions {
        idle_in_transaction_timeout: patience,
        ..PostgresOptions::usual(Migrations::Demand)
    };
    let impatient = PostgresStore::open(&database.url(), &database.seams, options).await;
    let impatient = impatient.expect("opens");
    let watched = database.seams.stopwatch();
    let slow = run(&impatient, [Need::Inbox(inbox_key("main"))], move |_, _| {
        while watched.elapsed() < 2 * patience {
            std::thread::yield_now();
        }
    });
    let failed = slow.await;
    assert!(matches!(failed, Err(TransactError::Failed(_))), "{failed:?}");
    run(&impatient, [Need::Inbox(inbox_key("main"))], |_, _| ()).await.expect("the next one ends");
    drop(store);
}

#[tokio::test]
async fn a_transaction_that_the_server_ended_is_worth_halving() {
    let Some(database) = Database::new().await else { return };
    let client = database.client().await;
    let text = "DO $$ BEGIN RAISE EXCEPTION 'ended' USING ERRCODE = '25P03'; END $$";
    let error = client.batch_execute(text).await.expect_err("as it says");
    let trouble = super::super::errors::of_statement(&error);
    assert!(matches!(trouble, Trouble::Failed(_)), "{trouble:?}");
}
