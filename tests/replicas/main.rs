//! Several replicas on one PostgreSQL: hints between them, and what stands between them and it.
//!
//! What must stay true: a hint is told from a poll by a poll that comes too late for the test; a
//! test that is about lost hints polls often instead.

#[path = "../support/mod.rs"]
mod support;

mod balanced;
mod crash;
mod hints;
#[cfg(feature = "nats")]
mod nats;
mod policies;
mod poolers;
mod takeover;

use support::{
    BOUND, eventually,
    postgres::{Postgres, postgres},
    server::Server,
};
use tokio_postgres::Client;

/// No poll within the time of a test.
const HINTS_ONLY: &str = "--sweep-interval=10m";
/// Polls as often as a test can want.
const POLLS: &str = "--sweep-interval=200ms";

/// A database of a test's own, and a session beside the replicas.
struct Shared {
    postgres: &'static Postgres,
    name: String,
    beside: Client,
}

impl Shared {
    async fn new() -> Option<Shared> {
        let postgres = tokio::task::block_in_place(postgres)?;
        let name = postgres.fresh_database().await;
        let beside = postgres.connect(&name).await;
        Some(Shared { postgres, name, beside })
    }

    /// The URL of the server itself.
    fn url(&self) -> String {
        self.postgres.url(&self.name, self.postgres.port())
    }

    /// A replica.
    fn serve(&self, flags: &[&str]) -> Server {
        let url = self.url();
        tokio::task::block_in_place(|| Server::serve(&url, flags))
    }

    /// The server's processes for connections that listen and wait for news; now and then they ask
    /// whether they still do.
    async fn listeners(&self) -> Vec<i32> {
        let text = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()
            AND (query = 'LISTEN receiptd_hints' OR query LIKE '%pg_listening_channels()%')
            AND state = 'idle' AND pid <> pg_backend_pid() ORDER BY pid";
        let rows = self.beside.query(text, &[]).await.expect("the server's processes");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until so many listen, none of which is among `gone`.
    async fn listening(&self, count: usize, gone: &[i32]) -> Vec<i32> {
        eventually("the replicas to listen", BOUND * 3, async || {
            let listeners = self.listeners().await;
            let new = listeners.iter().all(|process| !gone.contains(process));
            (new && listeners.len() == count).then_some(listeners)
        })
        .await
    }
}
