//! One test, both stores, and how each of them goes away for a while.

use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    BOUND,
    postgres::{Postgres, own_postgres, postgres},
    server::Server,
};

/// A store of one test's own.
pub enum TestStore {
    /// Embedded: a file in a directory of its own.
    Sqlite(TempDir),
    /// A fresh database.
    Postgres(&'static Postgres, String),
}

impl TestStore {
    /// An embedded store.
    pub fn sqlite() -> TestStore {
        TestStore::Sqlite(TempDir::with_prefix("receiptd-store-").expect("a temporary directory"))
    }

    /// A fresh database, where PostgreSQL is installed.
    pub async fn postgres() -> Option<TestStore> {
        // The first test waits for the server to start, on a thread that may block.
        let server = tokio::task::block_in_place(postgres)?;
        let database = server.fresh_database().await;
        Some(TestStore::Postgres(server, database))
    }

    /// A fresh database on a server of the test's own, which the test may take away.
    pub async fn own_postgres() -> Option<TestStore> {
        let server = tokio::task::block_in_place(own_postgres)?;
        let database = server.fresh_database().await;
        Some(TestStore::Postgres(server, database))
    }

    /// Takes the store away: the database server is stopped, or somebody else has locked the
    /// embedded file. Returns when nothing can be written any more.
    pub fn take_away(&self) -> Outage {
        tokio::task::block_in_place(|| match self {
            TestStore::Sqlite(directory) => {
                let file = directory.path().join("receiptd.db");
                let other = Connection::open(file).expect("the store is a plain file");
                other.busy_timeout(BOUND).expect("a setting of this connection");
                other.execute_batch("BEGIN EXCLUSIVE").expect("the lock, between two batches");
                Outage::Locked(other)
            }
            TestStore::Postgres(server, _) => {
                server.stop();
                Outage::Stopped(server)
            }
        })
    }

    /// What `--store` takes.
    pub fn url(&self) -> String {
        match self {
            TestStore::Sqlite(directory) => {
                format!("sqlite:{}", directory.path().join("receiptd.db").display())
            }
            TestStore::Postgres(server, database) => server.url(database, server.port()),
        }
    }

    /// receiptd on this store, with the flags of a test.
    pub fn serve(&self, flags: &[&str]) -> Server {
        let url = self.url();
        tokio::task::block_in_place(|| Server::serve(&url, flags))
    }
}

/// A store that is away.
pub enum Outage {
    /// The embedded file, locked by this connection.
    Locked(Connection),
    /// The server, which does not run.
    Stopped(&'static Postgres),
}

impl Outage {
    /// The store is there again, when this returns.
    pub fn end(self) {
        tokio::task::block_in_place(|| match self {
            Outage::Locked(other) => other.execute_batch("ROLLBACK").expect("released"),
            Outage::Stopped(server) => server.start_again(),
        });
    }
}

/// Makes two tests, `name::sqlite` and `name::postgres`, of each `async fn name(store: TestStore)`.
/// Those after `alone:` may take their store away.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        on_both_stores!(postgres: $($name),+);
    };
    (alone: $($name:ident),+ $(,)?) => {
        on_both_stores!(own_postgres: $($name),+);
    };
    ($postgres:ident: $($name:ident),+) => {
        $(mod $name {
            use crate::support::stores::TestStore;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name(TestStore::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(store) = TestStore::$postgres().await {
                    super::$name(store).await;
                }
            }
        })+
    };
}

pub(crate) use on_both_stores;
