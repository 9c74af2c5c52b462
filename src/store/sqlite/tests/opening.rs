//! Opening, migrating, locking, closing.

use std::time::Duration;

use super::fixtures::{Place, account, account_row, run, simulated};
use crate::{
    domain::world::needs::{Access, Need},
    engine::seams::Seams,
    store::{
        ReadError, TransactError,
        sqlite::{
            Options, SqliteStore, connection, migrate,
            migrate::{MIGRATIONS, prepare},
        },
    },
};

#[tokio::test]
async fn a_second_opening_changes_nothing() {
    let place = Place::new(Seams::system());
    assert_eq!(migrate(&place.path, &place.seams, &Options::default()).expect("migrates"), 1);
    let store = place.open();
    let facts = store.facts().clone();
    store.close().await;
    let history = |place: &Place| -> Vec<(i64, String, i64)> {
        let stranger = place.stranger();
        let mut rows =
            stranger.prepare("SELECT number, checksum, time FROM schema_migrations").expect("ok");
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        rows.expect("ok").collect::<rusqlite::Result<_>>().expect("ok")
    };
    let before = history(&place);
    assert_eq!(before.len(), MIGRATIONS.len());
    let store = place.open();
    assert_eq!(store.facts(), facts, "epoch and key stay for the life of the store");
    assert_eq!(facts.epoch.len(), 36);
    assert_ne!(facts.token_key, [0; 32]);
    store.close().await;
    assert_eq!(history(&place), before);
}

#[test]
fn a_later_migration_is_applied_on_top() {
    let place = Place::new(Seams::system());
    migrate(&place.path, &place.seams, &Options::default()).expect("migrates");
    let mut writer = connection::open_writer(&place.path, &Options::default()).expect("opens");
    let steps = [MIGRATIONS[0], "CREATE TABLE later (number INTEGER NOT NULL) STRICT"];
    for _ in 0..2 {
        prepare(&mut writer, &place.path, &place.seams, &steps).expect("applies once");
    }
    let broken = [steps[0], steps[1], "CREATE TABLE one (a INTEGER) STRICT; nonsense"];
    prepare(&mut writer, &place.path, &place.seams, &broken).expect_err("nonsense");
    let count = "SELECT count(*) FROM sqlite_schema WHERE name IN ('later', 'one')";
    let tables: i64 = writer.query_row(count, [], |row| row.get(0)).expect("counts");
    assert_eq!(tables, 1, "a migration that fails leaves nothing behind");
}

#[test]
fn a_newer_schema_is_refused() {
    let place = Place::new(Seams::system());
    migrate(&place.path, &place.seams, &Options::default()).expect("migrates");
    let newer = "INSERT INTO schema_migrations VALUES (2, 'x', 0)";
    place.stranger().execute(newer, []).expect("inserts");
    let error = SqliteStore::open(&place.path, &place.seams, &Options::default());
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("schema 2"), "{text}");
}

#[test]
fn a_changed_migration_is_refused() {
    let place = Place::new(Seams::system());
    migrate(&place.path, &place.seams, &Options::default()).expect("migrates");
    let change = "UPDATE schema_migrations SET checksum = 'x'";
    place.stranger().execute(change, []).expect("updates");
    let error = SqliteStore::open(&place.path, &place.seams, &Options::default());
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("migration 1") && text.contains("differs"), "{text}");
}

#[test]
fn the_file_of_another_program_is_refused() {
    let place = Place::new(Seams::system());
    connection::create(&place.path).expect("creates");
    place.stranger().execute("CREATE TABLE mine (number INTEGER)", []).expect("creates");
    let error = SqliteStore::open(&place.path, &place.seams, &Options::default());
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("another program"), "{text}");
    std::fs::write(&place.path, "no database at all, but long enough to be looked at").expect("ok");
    SqliteStore::open(&place.path, &place.seams, &Options::default()).expect_err("refused");
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_has_closed() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let second = SqliteStore::open(&place.path, &place.seams, &Options::default());
    let text = second.expect_err("refused").to_string();
    assert!(text.contains("another process uses this store"), "{text}");
    store.close().await;
    place.open().close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn every_name_of_the_file_is_one_store() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let folder = place.path.parent().expect("has a folder");
    let [soft, hard] = ["soft.db", "hard.db"].map(|name| folder.join(name));
    std::os::unix::fs::symlink(&place.path, &soft).expect("links");
    std::fs::hard_link(&place.path, &hard).expect("links");
    for name in [&soft, &hard, &place.path] {
        let options = Options::default();
        let opened = SqliteStore::open(name, &place.seams, &options).map(drop);
        for refused in [opened, migrate(name, &place.seams, &options).map(drop)] {
            let text = refused.expect_err("refused").to_string();
            assert!(text.contains("another process uses this store"), "{text}");
        }
    }
    let need = || vec![Need::Account(account(), Access::Write)];
    run(&store, need(), |world| world.put_account(account_row(1))).await.expect("commits");
    store.close().await;
    for name in [soft, hard] {
        let store = SqliteStore::open(&name, &place.seams, &Options::default()).expect("is free");
        assert_eq!(store.account(&account()).await.expect("reads"), Some(account_row(1)));
        store.close().await;
    }
}

/// The POSIX locks of this process on the file.
#[cfg(target_os = "linux")]
fn posix_locks(path: &std::path::Path) -> usize {
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("exists"));
    let (process, inode) = (std::process::id().to_string(), format!(":{inode}"));
    let locks = std::fs::read_to_string("/proc/locks").expect("is readable");
    let ours = locks.lines().filter(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.contains(&"POSIX")
            && words.contains(&process.as_str())
            && words.iter().any(|word| word.ends_with(&inode))
    });
    ours.count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_refused_opening_leaves_the_locks_of_sqlite() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let before = posix_locks(&place.path);
    assert!(before > 0, "SQLite keeps a shared lock while it has the file open");
    SqliteStore::open(&place.path, &place.seams, &Options::default()).expect_err("refused");
    assert_eq!(posix_locks(&place.path), before);
    store.close().await;
    assert_eq!(posix_locks(&place.path), 0);
}

#[tokio::test]
async fn simulated_replicas_share_a_file() {
    let seams = simulated(5);
    let place = Place::new(seams);
    let (first, second) = (place.open(), place.open());
    assert_eq!(first.facts(), second.facts());
    let need = vec![Need::Account(account(), Access::Write)];
    run(&first, need.clone(), |world| world.put_account(account_row(1))).await.expect("commits");
    let seen = run(&second, need, |world| world.account(&account()).map(Option::<&_>::cloned));
    assert_eq!(seen.await.expect("reads").value, Some(account_row(1)));
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn a_closed_store_is_unavailable() {
    for seams in [Seams::system(), simulated(5)] {
        let place = Place::new(seams);
        let store = place.open();
        let clone = store.clone();
        let need = vec![Need::Account(account(), Access::Write)];
        let stored = run(&store, need.clone(), |world| world.put_account(account_row(1)));
        stored.await.expect("commits");
        tokio::join!(store.close(), clone.close());
        assert_eq!(store.wal_bytes(), 0, "everything is in the file itself");
        let refused = run(&clone, need, |_| Ok(())).await;
        assert!(matches!(refused, Err(TransactError::Unavailable(_))), "{refused:?}");
        assert!(matches!(store.now().await, Err(ReadError::Unavailable(_))));
        assert!(matches!(store.account(&account()).await, Err(ReadError::Unavailable(_))));
        assert!(matches!(
            store.sweep_batches(crate::domain::ids::Span(0), 1).await,
            Err(ReadError::Unavailable(_))
        ));
        let again = place.open();
        assert_eq!(again.account(&account()).await.expect("reads"), Some(account_row(1)));
        again.close().await;
    }
}

#[tokio::test]
async fn a_close_finishes_what_is_queued() {
    let place = Place::new(Seams::system());
    let store = place.open();
    let (entered, waits) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let slow = store.clone();
    let need = || vec![Need::Account(account(), Access::Write)];
    let slow = run(&slow, need(), move |world| {
        entered.send(()).expect("is awaited");
        released.recv_timeout(Duration::from_secs(60)).expect("is released");
        world.put_account(account_row(1))
    });
    let closing = async {
        waits.await.expect("is entered");
        let closing = store.close();
        tokio::pin!(closing);
        // One poll takes the queue away; the turn still runs.
        tokio::select! {
            biased;
            () = &mut closing => panic!("closed under a running turn"),
            () = std::future::ready(()) => {}
        }
        release.send(()).expect("is awaited");
        closing.await;
    };
    let (committed, ()) = tokio::join!(slow, closing);
    committed.expect("commits");
    let store = place.open();
    assert_eq!(store.account(&account()).await.expect("reads"), Some(account_row(1)));
    store.close().await;
}
