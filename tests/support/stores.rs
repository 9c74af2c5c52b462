//! One test, both stores.

use tempfile::TempDir;

use super::{
    postgres::{Postgres, postgres},
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

/// Makes two tests, `name::sqlite` and `name::postgres`, of each `async fn name(store: TestStore)`.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            use crate::support::stores::TestStore;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name(TestStore::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(store) = TestStore::postgres().await {
                    super::$name(store).await;
                }
            }
        })+
    };
}

pub(crate) use on_both_stores;
