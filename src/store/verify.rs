//! Reads for those who check a store: pages of rows, each with everything that speaks of them.
//!
//! What must stay true: what one page shows is one moment of the store, whatever runs beside it, so
//! that rows which disagree do so in the store. A page is bounded by its limit, and where rows hold
//! bodies also by [`BYTES_MAX`]. Deliberately not here: what should agree.

use super::{ReadError, Store};
use crate::domain::{
    audit::AuditChain,
    ids::{Account, Target},
    verify::rows::{
        AccountFacts, DeliveryFacts, DocumentFacts, InboxFacts, LockFacts, OperationFacts,
        PayloadFacts,
    },
};

/// Rows of one chain that come with its operation: more than any delivery leaves without being
/// redriven. Longer ones are read on, row by row in pages.
pub const CHAIN_MAX: i64 = 64;
/// Bytes of bodies on one page, or one body that is larger: what a server can hold beside its work.
pub const BYTES_MAX: i64 = 4 * 1024 * 1024;
/// Audit rows that one look for chains without operation examines: some milliseconds.
pub const EVENTS_EXAMINED_MAX: i64 = 2_000;

/// Chains without an operation, among those that were examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainPage {
    /// Which.
    pub orphans: Vec<AuditChain>,
    /// How many chains were examined.
    pub examined: u64,
    /// After which chain to go on, as it is stored; absent at the end.
    pub next: Option<Vec<u8>>,
}

/// Calls the same function of whichever store it is.
macro_rules! read {
    ($store:expr, $function:ident ( $($argument:expr),* )) => {
        match $store {
            Store::Sqlite(store) => store.$function($($argument),*).await,
            Store::Postgres(store) => store.$function($($argument),*).await,
        }
    };
}

impl Store {
    /// The account that follows in the order of the tables; one that any table names.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn next_account(
        &self,
        after: Option<&Account>,
    ) -> Result<Option<Account>, ReadError> {
        read!(self, next_account(after))
    }

    /// An account's row, and how many inboxes it has.
    pub async fn account_facts(&self, account: &Account) -> Result<AccountFacts, ReadError> {
        read!(self, account_facts(account))
    }

    /// Operations by id, as ids are stored: at most `limit`.
    pub async fn operation_facts(
        &self,
        account: &Account,
        after: &[u8],
        limit: i64,
    ) -> Result<Vec<OperationFacts>, ReadError> {
        read!(self, operation_facts(account, after, limit))
    }

    /// Chains whose operation is not there, among [`EVENTS_EXAMINED_MAX`] audit rows.
    pub async fn orphaned_chains(
        &self,
        account: &Account,
        after: &[u8],
    ) -> Result<ChainPage, ReadError> {
        read!(self, orphaned_chains(account, after))
    }

    /// Deliveries by inbox and number: at most `limit`.
    pub async fn delivery_facts(
        &self,
        account: &Account,
        after: (&str, i64),
        limit: i64,
    ) -> Result<Vec<DeliveryFacts>, ReadError> {
        read!(self, delivery_facts(account, after, limit))
    }

    /// Inboxes by name, markers too: at most `limit`.
    pub async fn inbox_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<InboxFacts>, ReadError> {
        read!(self, inbox_facts(account, after, limit))
    }

    /// Locks by target: at most `limit`.
    pub async fn lock_facts(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<LockFacts>, ReadError> {
        read!(self, lock_facts(account, after, limit))
    }

    /// Documents by target, markers too: at most `limit`, and of at most [`BYTES_MAX`] but the first.
    pub async fn document_facts_of(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<DocumentFacts>, ReadError> {
        read!(self, document_facts_of(account, after, limit))
    }

    /// Payloads by id, as ids are stored, and kind: at most `limit`, and of at most [`BYTES_MAX`] but
    /// the first.
    pub async fn payload_facts(
        &self,
        account: &Account,
        after: (&[u8], i16),
        limit: i64,
    ) -> Result<Vec<PayloadFacts>, ReadError> {
        read!(self, payload_facts(account, after, limit))
    }

    /// Targets with their documents' revisions, markers too: at most `limit`.
    pub async fn revisions(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(Target, i64)>, ReadError> {
        read!(self, revisions(account, after, limit))
    }
}
