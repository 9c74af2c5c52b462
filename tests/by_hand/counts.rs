//! A count that somebody changed in the store itself.

use receiptd::proto::DeleteInboxRequest;

use crate::{
    BOUND, INBOX,
    hosted::host,
    policy, queue,
    support::{
        eventually,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(a_wrong_count_of_what_a_deleted_inbox_left_is_repaired_by_the_sweep);

/// The store, beside the service.
enum Beside {
    File(std::path::PathBuf),
    Server(tokio_postgres::Client),
}

impl Beside {
    async fn of(store: &TestStore) -> Beside {
        match store {
            TestStore::Sqlite(directory) => Beside::File(directory.path().join("receiptd.db")),
            TestStore::Postgres(server, database) => {
                Beside::Server(server.connect_through(server.port(), database).await)
            }
        }
    }

    fn file(path: &std::path::Path) -> rusqlite::Connection {
        let file = rusqlite::Connection::open(path).expect("the store is a plain file");
        file.busy_timeout(BOUND).expect("a setting of this connection");
        file
    }

    /// Makes the deleted inbox due, with three deliveries to close that are not there.
    async fn plant(&self) {
        const PLANT: &str = "inboxes SET closing = 3, due_time = 1 WHERE deleted = 1";
        match self {
            Beside::File(path) => {
                let changed = Beside::file(path).execute(&format!("UPDATE {PLANT}"), []);
                assert_eq!(changed.expect("planted"), 1);
            }
            Beside::Server(client) => {
                let changed = client.execute(&format!("UPDATE receiptd.{PLANT}"), &[]).await;
                assert_eq!(changed.expect("planted"), 1);
            }
        }
    }

    /// What the deleted inbox counts, and when it is due.
    async fn counted(&self) -> (i64, Option<i64>) {
        match self {
            Beside::File(path) => Beside::file(path)
                .query_row("SELECT closing, due_time FROM inboxes WHERE deleted = 1", [], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .expect("a row"),
            Beside::Server(client) => {
                let read = "SELECT closing, due_time FROM receiptd.inboxes WHERE deleted = 1";
                let row = client.query_one(read, &[]).await.expect("a row");
                (row.get(0), row.get(1))
            }
        }
    }
}

async fn a_wrong_count_of_what_a_deleted_inbox_left_is_repaired_by_the_sweep(store: TestStore) {
    let beside = Beside::of(&store).await;
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 2).await;
    let request = DeleteInboxRequest { inbox: INBOX.to_owned(), force: true, ..Default::default() };
    let mut client = caller.inboxes.clone();
    within("a deletion", client.delete_inbox(request)).await.expect("deleted");
    let now = hosted.engine.store().now().await.expect("a clock").0;
    let settled = async || {
        let (closing, due) = beside.counted().await;
        (closing == 0 && due.is_none_or(|due| due > now)).then_some(())
    };
    eventually("what it left to be closed", BOUND, settled).await;
    beside.plant().await;
    eventually("the count to be true, and the inbox not to be due again", BOUND, settled).await;
    hosted.stop().await;
}
