//! The rows that name batches: they go when nobody can ask for them any more, and writing one is
//! how a store is asked whether it takes writes.

use receiptd::{engine::Engine, sweeper};

use crate::{
    answers::applied,
    commands::append,
    stores::{on_postgres, on_sqlite},
};

/// More than the sweeper deletes at once.
const OLD: usize = 3_500;

async fn count(engine: &Engine) -> usize {
    let tables = engine.store().dump_tables().await.expect("a read");
    tables.into_iter().find(|(name, _)| name == "batches").expect("a table").1.len()
}

async fn check_sweep(engine: &Engine) {
    applied(engine.run(append("op", engine.seams().now()).command()).await);
    let before = count(engine).await;
    assert!(before > OLD, "{before}");
    let counts = sweeper::run_once(engine).await;
    assert_eq!(counts.batches_removed, 3_499, "all but the newest of their replica, in one pass");
    assert_eq!(count(engine).await, before - 3_499);
    assert_eq!(sweeper::run_once(engine).await.batches_removed, 0);
}

#[tokio::test]
async fn one_pass_removes_what_many_commits_left_on_postgres() {
    let Some(store) = on_postgres().await else { return };
    let seed = "INSERT INTO receiptd.batches SELECT n % 7, decode(lpad(to_hex(n), 32, '0'), 'hex'),
        decode(repeat('07', 16), 'hex'), n, 0 FROM generate_series(1, 3500) n";
    store.beside.batch_execute(seed).await.expect("seeded");
    check_sweep(&store.engine).await;
}

#[tokio::test]
async fn one_pass_removes_what_many_commits_left_on_sqlite() {
    let store = on_sqlite();
    let beside = rusqlite::Connection::open(&store.path).expect("the store is a plain file");
    let seed = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3500)
        INSERT INTO batches SELECT n % 7, CAST(printf('%016d', n) AS BLOB), zeroblob(16), n, 0
        FROM n";
    beside.execute_batch(seed).expect("seeded");
    drop(beside);
    check_sweep(&store.engine).await;
}

/// A disk without room, played by a trigger on every table that a submit writes.
#[tokio::test]
async fn a_server_that_refuses_writes_is_found_out_and_found_well_again() {
    let Some(store) = on_postgres().await else { return };
    let engine = &store.engine;
    let full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE EXCEPTION ''no room'' USING ERRCODE = ''53100''; END';
        CREATE TRIGGER full_disk BEFORE INSERT ON receiptd.batches
            FOR EACH STATEMENT EXECUTE FUNCTION full_disk()";
    store.beside.batch_execute(full).await.expect("the trigger is there");
    let submit = || engine.run(append("op", engine.seams().now()).command());
    assert_eq!(submit().await.expect_err("no room").reason(), "STORE_UNAVAILABLE");
    assert!(!engine.stores());
    engine.try_to_store().await;
    assert!(!engine.stores(), "a read would not have told");
    let drop_trigger = "DROP TRIGGER full_disk ON receiptd.batches";
    store.beside.batch_execute(drop_trigger).await.expect("dropped");
    let before = count(engine).await;
    engine.try_to_store().await;
    assert!(engine.stores());
    assert_eq!(count(engine).await, before + 1, "it wrote");
    let listed = engine.store().dump_tables().await.expect("a read");
    let others = listed.into_iter().filter(|(name, _)| name != "batches");
    assert!(others.into_iter().all(|(_, rows)| rows.is_empty()), "and nothing of an account's");
    applied(submit().await);
}
