//! The store shared by replicas: PostgreSQL 15 and newer.
//!
//! What must stay true: it means the same as the embedded store, which the table dumps of both
//! after one scenario show. Settings that lose acknowledged commits are refused. Statements are
//! constants, each addresses rows by keys that begin with bucket and account, and nothing is kept
//! in a session, so that a pooler or a distributed engine may stand in between.
//!
//! Deliberately not here: rules, retries of commands, and waking readers.

mod check;
mod dump;
mod errors;
mod guard;
mod listen;
mod load;
mod load_statements;
mod marks;
mod memory;
mod migrate;
mod pool;
mod pooled;
mod read;
mod read_due;
mod read_lists;
mod replicas;
mod rows;
mod save;
mod save_statements;
mod session;
#[cfg(test)]
mod tests;
mod transact;
mod usage;
mod verify;
mod verify_statements;

use std::{sync::Arc, time::Duration};

pub use listen::{Heard, Listening};
pub use load::claim_hash;
pub use migrate::{MigrationReport, migrate};
pub use pool::{DirectUrl, Migrations, Pooler, PostgresOptions};
pub use read_due::due_from;
pub use replicas::Glance;

use self::{
    guard::Guard,
    memory::Memory,
    pool::{Connections, Connector},
};
use super::{OpenError, Purpose, StoreFacts, refuse_half_marked};
use crate::engine::seams::Seams;

/// How often closing looks whether all connections are back: short beside a transaction.
const CLOSE_INTERVAL: Duration = Duration::from_millis(10);

/// A handle; clones share its connections.
#[derive(Clone)]
pub struct PostgresStore(Arc<Inner>);

struct Inner {
    direct: Arc<Connector>,
    writes: Connections,
    reads: Connections,
    upkeep: Connections,
    is_new: bool,
    guard: Guard,
    memory: Memory,
    seams: Seams,
    options: PostgresOptions,
}

impl PostgresStore {
    /// Opens the store: checks the server's settings, applies or demands migrations, reads what
    /// the store is.
    ///
    /// # Errors
    /// [`OpenError`] that says what to change.
    pub async fn open(
        url: &str,
        seams: &Seams,
        options: PostgresOptions,
    ) -> Result<PostgresStore, OpenError> {
        let connector = Arc::new(Connector::new(url, seams, &options)?);
        let direct = match &options.direct_url {
            Some(DirectUrl(url)) => Arc::new(Connector::new(url, seams, &options)?),
            None => connector.clone(),
        };
        let session = direct.connect().await?;
        pooled::refuse_mismatch(&session, &direct, &connector, &options).await?;
        let is_new = match options.migrations {
            Migrations::Apply => {
                let report = migrate::apply(&session, seams, migrate::MIGRATIONS).await?;
                report.applied.first() == Some(&1)
            }
            Migrations::Demand => {
                migrate::demand_current(&session).await?;
                false
            }
        };
        let (facts, life) = migrate::facts(&session).await?;
        let server = session
            .server()
            .ok_or_else(|| OpenError("PostgreSQL did not say which server it is".into()))?;
        if options.purpose == Purpose::Serve {
            guard::refuse_mismatch(server, &life)?;
            refuse_half_marked(&life)?;
        }
        if options.direct_url.is_some() {
            pooled::refuse_other_store(&facts, &connector).await?;
        }
        let writes = Connections::new(&connector, options.write_connections, &options)?;
        let reads = Connections::new(&connector, options.read_connections, &options)?;
        let upkeep = Connections::new(&connector, options.upkeep_connections, &options)?;
        let seams = seams.clone();
        let memory = Memory::default();
        let guard = Guard::new(life, server, facts, options.purpose);
        let inner = Inner { direct, writes, reads, upkeep, is_new, guard, memory, seams, options };
        Ok(PostgresStore(Arc::new(inner)))
    }

    /// What the store is now.
    pub fn facts(&self) -> Arc<StoreFacts> {
        self.0.guard.facts()
    }

    /// Whether this opening created the schema.
    pub fn is_new(&self) -> bool {
        self.0.is_new
    }

    /// Closes the connections that nobody uses and waits for those in use, at most as long as a
    /// flight may take. What asks for one from now on fails with `Unavailable`.
    pub async fn close(&self) {
        let pools = [&self.0.writes, &self.0.reads, &self.0.upkeep];
        pools.iter().for_each(|pool| pool.close());
        let all_back = async {
            while pools.iter().any(|pool| pool.count() > 0) {
                self.0.seams.sleep(CLOSE_INTERVAL).await;
            }
        };
        // Whatever is left then is closed when its borrower lets go of it.
        tokio::time::timeout(self.0.options.flight_timeout, all_back).await.ok();
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The connection string holds a password.
        f.debug_struct("PostgresStore").field("epoch", &self.facts().epoch).finish_non_exhaustive()
    }
}

/// The statements whose plans matter, by name: those of loads, saves, polls, sweeps and checks.
pub fn hot_statements() -> &'static [(&'static str, &'static str)] {
    use load_statements as load;
    use save_statements as save;
    use verify_statements as check;
    &[
        ("lock_operations", load::LOCK_OPERATIONS),
        ("operations", load::OPERATIONS),
        ("arguments", load::ARGUMENTS),
        ("lock_accounts", load::LOCK_ACCOUNTS),
        ("accounts", load::ACCOUNTS),
        ("lock_documents", load::LOCK_DOCUMENTS),
        ("lock_locks", load::LOCK_LOCKS),
        ("lock_inboxes", load::LOCK_INBOXES),
        ("deliveries", load::DELIVERIES),
        ("waiters", load::WAITERS),
        ("fresh", load::FRESH),
        ("returned", load::RETURNED),
        ("held", load::HELD),
        ("load_oldest_open", load::OLDEST_OPEN),
        ("load_oldest_kept", load::OLDEST_KEPT),
        ("update_operations", save::UPDATE_OPERATIONS),
        ("delete_operations", save::DELETE_OPERATIONS),
        ("empty_operations", save::EMPTY_OPERATIONS),
        ("delete_payloads", save::DELETE_PAYLOADS),
        ("update_accounts", save::UPDATE_ACCOUNTS),
        ("update_documents", save::UPDATE_DOCUMENTS),
        ("update_locks", save::UPDATE_LOCKS),
        ("delete_locks", save::DELETE_LOCKS),
        ("update_inboxes", save::UPDATE_INBOXES),
        ("update_deliveries", save::UPDATE_DELIVERIES),
        ("delete_deliveries", save::DELETE_DELIVERIES),
        ("delete_trails", save::DELETE_TRAILS),
        ("look_up_deliveries", read::LOOK_UP_DELIVERIES),
        ("look_up_documents", read::LOOK_UP_DOCUMENTS),
        ("look_up_locks", read::LOOK_UP_LOCKS),
        ("payloads", read::PAYLOADS),
        ("payload_slice", read::PAYLOAD_SLICE),
        ("glimpse_operations", read::GLIMPSE_OPERATIONS),
        ("glimpse_inboxes", read::GLIMPSE_INBOXES),
        ("glimpse_documents", read::GLIMPSE_DOCUMENTS),
        ("list_operations", read_lists::LIST_OPERATIONS),
        ("list_unresolved", read_lists::LIST_UNRESOLVED),
        ("list_documents", read_lists::LIST_DOCUMENTS),
        ("list_inboxes", read_lists::LIST_INBOXES),
        ("list_deliveries", read_lists::LIST_DELIVERIES),
        ("list_open_deliveries", read_lists::LIST_OPEN_DELIVERIES),
        ("list_lost_deliveries", read_lists::LIST_LOST_DELIVERIES),
        ("list_lost", read_lists::LIST_LOST),
        ("count_acked", read_lists::COUNT_ACKED),
        ("oldest_open", read_lists::OLDEST_OPEN),
        ("due_deliveries", read_due::DUE_DELIVERIES),
        ("due_operations", read_due::DUE_OPERATIONS),
        ("due_locks", read_due::DUE_LOCKS),
        ("due_inboxes", read_due::DUE_INBOXES),
        ("due_accounts", read_due::DUE_ACCOUNTS),
        ("due_records", read_due::DUE_RECORDS),
        ("sweep_batches", read_due::SWEEP_BATCHES),
        ("check_next_account", check::NEXT_ACCOUNT),
        ("check_count_inboxes", check::COUNT_INBOXES),
        ("check_is_used", check::IS_USED),
        ("check_operations_by_id", check::OPERATIONS_BY_ID),
        ("check_chains_of_page", check::CHAINS_OF_PAGE),
        ("check_deliveries_of_page", check::DELIVERIES_OF_PAGE),
        ("check_inboxes_of_page", check::INBOXES_OF_PAGE),
        ("check_documents_of_page", check::DOCUMENTS_OF_PAGE),
        ("check_locks_of_page", check::LOCKS_OF_PAGE),
        ("check_payloads_of_page", check::PAYLOADS_OF_PAGE),
        ("check_chains", check::CHAINS),
        ("check_deliveries_by_key", check::DELIVERIES_BY_KEY),
        ("check_operations_of_deliveries", check::OPERATIONS_OF_DELIVERIES),
        ("check_inboxes_by_name", check::INBOXES_BY_NAME),
        ("check_count_deliveries", check::COUNT_DELIVERIES),
        ("check_count_held", check::COUNT_HELD),
        ("check_count_reserved", check::COUNT_RESERVED),
        ("check_locks_by_target", check::LOCKS_BY_TARGET),
        ("check_holders", check::HOLDERS),
        ("check_holders_deliveries", check::HOLDERS_DELIVERIES),
        ("check_count_waiting", check::COUNT_WAITING),
        ("check_documents_by_target", check::DOCUMENTS_BY_TARGET),
        ("check_payloads_by_key", check::PAYLOADS_BY_KEY),
        ("check_operations_of_payloads", check::OPERATIONS_OF_PAYLOADS),
        ("check_revisions", check::REVISIONS),
    ]
}
