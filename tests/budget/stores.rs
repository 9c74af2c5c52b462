//! An engine on a store of the test's own, in this process.

use std::path::PathBuf;

use receiptd::{
    domain::policy::Policy,
    engine::{Engine, EngineSettings, LANES_DEFAULT, seams::Seams},
    store::{
        Store,
        postgres::{Migrations, PostgresOptions, PostgresStore},
        sqlite::{Options, SqliteStore},
    },
};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::postgres;

/// An engine on PostgreSQL, with a session beside it.
pub struct OnPostgres {
    pub engine: Engine,
    /// A session of the test's own on the same database.
    pub beside: Client,
}

/// An engine on the embedded store.
pub struct OnSqlite {
    pub engine: Engine,
    /// The store's file.
    pub path: PathBuf,
    _folder: TempDir,
}

/// `None` where PostgreSQL is not installed.
pub async fn on_postgres() -> Option<OnPostgres> {
    // Blocks until the first test has started the server: nothing else runs in here yet.
    let server = postgres::postgres()?;
    let database = server.fresh_database().await;
    let url = server.url(&database, server.port());
    let seams = Seams::system();
    let options = PostgresOptions::usual(Migrations::Apply);
    let store = PostgresStore::open(&url, &seams, options).await.expect("the store opens");
    let engine = started(Store::Postgres(store), seams);
    Some(OnPostgres { engine, beside: server.connect(&database).await })
}

/// Always there.
pub fn on_sqlite() -> OnSqlite {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("receiptd.db");
    let seams = Seams::system();
    let store = SqliteStore::open(&path, &seams, &Options::default()).expect("the store opens");
    OnSqlite { engine: started(Store::Sqlite(store), seams), path, _folder: folder }
}

fn started(store: Store, seams: Seams) -> Engine {
    let settings = EngineSettings { lanes: LANES_DEFAULT };
    Engine::start(store, Policy::default(), settings, seams)
}
