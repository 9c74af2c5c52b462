//! A backup is restored: what came after it is lost, and says so.

use std::path::Path;

use receiptd::proto::{GapCause, Standing};

use crate::{
    JUMP, SKEW, epoch, gaps, is_lost, marked, new_append, refused_mark,
    support::{
        client::{sequence, sequences},
        postgres::Postgres,
        requests::{Identity, into_inbox},
        server::Server,
        stores::TestStore,
    },
    token_is_refused,
};

/// A store whose server is stopped, and the copy that was made of it.
enum Backup {
    Sqlite { file: std::path::PathBuf, copy: std::path::PathBuf },
    Postgres { copy: &'static Postgres, database: String },
}

impl Backup {
    /// Copies a store that nobody serves.
    fn of(store: &TestStore) -> Backup {
        tokio::task::block_in_place(|| match store {
            TestStore::Sqlite(directory) => {
                let (file, copy) =
                    (directory.path().join("receiptd.db"), directory.path().join("copy.db"));
                std::fs::copy(&file, &copy).expect("a copy");
                Backup::Sqlite { file, copy }
            }
            TestStore::Postgres(server, database) => {
                server.stop_well();
                let copy = server.copied();
                server.start_again();
                Backup::Postgres { copy, database: database.clone() }
            }
        })
    }

    /// Puts the copy in the store's place; says where it is.
    fn restore(&self) -> String {
        match self {
            Backup::Sqlite { file, copy } => {
                std::fs::copy(copy, file).expect("a copy");
                for beside in ["-wal", "-shm"] {
                    let mut name = file.as_os_str().to_owned();
                    name.push(beside);
                    drop(std::fs::remove_file(Path::new(&name)));
                }
                format!("sqlite:{}", file.display())
            }
            Backup::Postgres { copy, database } => copy.url(database, copy.port()),
        }
    }
}

fn serve(url: &str) -> Server {
    tokio::task::block_in_place(|| Server::serve(url, &[SKEW]))
}

fn stop(server: &mut Server) {
    tokio::task::block_in_place(|| server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_file_admits_what_it_has_lost() {
    what_was_lost_is_admitted(TestStore::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_server_admits_what_it_has_lost() {
    let Some(store) = TestStore::own_postgres().await else { return };
    what_was_lost_is_admitted(store).await;
}

async fn what_was_lost_is_admitted(store: TestStore) {
    let mut first = serve(&store.url());
    let known = Identity::fresh();
    let (a, b) = (first.a(), first.b());
    a.submitted(known.append("d1", "known")).await;
    drop((a, b));
    stop(&mut first);
    let backup = Backup::of(&store);

    let mut lived = serve(&store.url());
    let (a, b) = (lived.a(), lived.b());
    let mut reader = a.reader("default", "reader", "").await;
    let shown = reader.backlog().await;
    assert_eq!(sequences(&shown), [1]);
    let old_epoch = epoch(&reader);
    let (lost, of_another, elsewhere) = (Identity::fresh(), Identity::fresh(), Identity::fresh());
    a.submitted(lost.append("d1", "lost")).await;
    a.submitted(into_inbox(elsewhere.append("d2", "lost"), "late")).await;
    b.submitted(of_another.append("d1", "lost")).await;
    assert_eq!(sequence(&reader.results(1).await[0]), 2);
    let token = reader.token.clone();
    drop((reader, a, b));
    stop(&mut lived);

    let url = backup.restore();
    let said = marked(&url, &["--lost", "1h", "--reason", "the disk failed", "--by", "operator"]);
    assert!(said.contains("1 accounts") && said.contains("1 inboxes raised"), "{said}");

    let mut restored = serve(&url);
    let (a, b) = (restored.a(), restored.b());
    is_lost(&a, &lost, "d1").await;
    is_lost(&a, &elsewhere, "d2").await;
    is_lost(&b, &of_another, "d1").await;
    assert_eq!(a.get(&known).await.standing(), Standing::Recorded, "what is kept is known");
    assert_eq!(a.text("d1").await, ("known\n".to_owned(), 1), "nothing executed");
    token_is_refused(&a, "default", &token).await;

    let again = new_append(&a, "d1", "again").await;
    assert_eq!(a.get(&again).await.standing(), Standing::Recorded);
    let mut reader = a.reader("default", "reader", "").await;
    let results = reader.backlog().await;
    assert_eq!(sequences(&results), [1, JUMP + 2], "what is unacked, and on above the jump");
    assert_eq!(gaps(&reader), [(2, JUMP + 1, GapCause::Restored)]);
    assert_ne!(epoch(&reader), old_epoch);
    // A token of now goes on, and tells the gap once.
    let token = reader.token.clone();
    drop(reader);
    let mut reader = a.reader("default", "reader", &token).await;
    reader.backlog().await;
    let told = gaps(&reader);
    assert!(told.len() <= 1, "{told:?}");

    // A name that the copy does not know may have been used too.
    let id = Identity::fresh();
    a.submitted(into_inbox(id.append("d2", "new"), "late")).await;
    let mut late = a.reader("late", "reader", "").await;
    assert_eq!(sequences(&late.backlog().await), [JUMP + 1]);
    assert_eq!(gaps(&late), [(1, JUMP, GapCause::Restored)]);
    history_tells_of_the_mark(&a).await;
    drop((reader, late, a, b));
    stop(&mut restored);
}

/// The account's own chain says who marked the store, and why.
async fn history_tells_of_the_mark(caller: &crate::support::client::Caller) {
    let mut client = caller.admin.clone();
    let request = receiptd::proto::GetPolicyRequest::default();
    let answer = crate::support::within("the policy", client.get_policy(request)).await;
    let changes = answer.expect("answered").into_inner().changes;
    let text = format!("{changes:?}");
    assert!(text.contains("the store was restored from a backup"), "{text}");
    assert!(text.contains("the disk failed") && text.contains("lost from"), "{text}");
    assert!(text.contains("\"operator\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_use_is_not_marked() {
    let store = TestStore::sqlite();
    let mut server = serve(&store.url());
    let said = refused_mark(&store.url(), &[]);
    assert!(said.contains("another process uses this store"), "{said}");
    stop(&mut server);
    marked(&store.url(), &[]);

    let Some(store) = TestStore::postgres().await else { return };
    let mut server = serve(&store.url());
    let said = refused_mark(&store.url(), &[]);
    assert!(said.contains("at work on this store") && said.contains("--force"), "{said}");
    let a = server.a();
    let before = Identity::fresh();
    a.submitted(before.append("d1", "one")).await;
    // Forced, the server finds itself in another life, and goes on in it.
    marked(&store.url(), &["--force"]);
    new_append(&a, "d1", "two").await;
    assert_eq!(a.text("d1").await, ("one\ntwo\n".to_owned(), 2));
    stop(&mut server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_without_a_store_is_not_marked() {
    let directory = tempfile::TempDir::new().expect("a folder");
    let path = directory.path().join("none.db");
    let said = refused_mark(&format!("sqlite:{}", path.display()), &[]);
    assert!(said.contains("there is no store"), "{said}");
    assert!(!path.exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_on_another_server_is_refused_until_it_is_marked() {
    let Some(TestStore::Postgres(shared, database)) = TestStore::postgres().await else { return };
    let Some(TestStore::Postgres(other, other_database)) = TestStore::own_postgres().await else {
        return;
    };
    let mut server = serve(&shared.url(&database, shared.port()));
    let a = server.a();
    let known = Identity::fresh();
    a.submitted(known.append("d1", "known")).await;
    drop(a);
    stop(&mut server);
    tokio::task::block_in_place(|| shared.dump_into(&database, other, &other_database));

    let url = other.url(&other_database, other.port());
    let refusal = tokio::task::block_in_place(|| Server::refused(&url, &[]));
    assert!(refusal.text.contains("system identifier"), "{}", refusal.text);
    assert!(refusal.text.contains("restore-mark"), "{}", refusal.text);
    marked(&url, &[]);
    let mut server = serve(&url);
    let a = server.a();
    assert_eq!(a.get(&known).await.standing(), Standing::Recorded);
    new_append(&a, "d1", "on").await;
    drop(a);
    stop(&mut server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_moved_whole_is_taken_over_as_it_is() {
    let Some(TestStore::Postgres(shared, database)) = TestStore::postgres().await else { return };
    let Some(TestStore::Postgres(other, other_database)) = TestStore::own_postgres().await else {
        return;
    };
    let mut server = serve(&shared.url(&database, shared.port()));
    let a = server.a();
    a.submitted(Identity::fresh().append("d1", "known")).await;
    let mut reader = a.reader("default", "reader", "").await;
    reader.backlog().await;
    let (token, life) = (reader.token.clone(), epoch(&reader));
    drop((a, reader));
    stop(&mut server);
    tokio::task::block_in_place(|| shared.dump_into(&database, other, &other_database));

    let url = other.url(&other_database, other.port());
    let said = marked(&url, &["--clean"]);
    assert!(said.contains(&life) && said.contains("goes on"), "{said}");
    let mut server = serve(&url);
    let a = server.a();
    let fresh = Identity::fresh();
    a.submitted(fresh.append("d1", "at once")).await;
    let mut reader = a.reader("default", "reader", &token).await;
    assert_eq!(sequences(&reader.backlog().await), [1, 2]);
    assert_eq!((gaps(&reader), epoch(&reader)), (vec![], life));
    drop((a, reader));
    stop(&mut server);
}
