//! What a mark reads: the store's own row, and which accounts and inboxes there are.
//!
//! What must stay true: the pages go forward by key over everything, deleted inboxes too, and are
//! read when nobody adds rows. Deliberately not here: writing, which goes through
//! [`Store::transact`] as every decision does.

use super::{ReadError, Store};
use crate::domain::{delivery::InboxKey, epoch::Life, ids::Account};

impl Store {
    /// The store's own row as it stands now.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn life(&self) -> Result<Life, ReadError> {
        match self {
            Store::Sqlite(store) => store.life().await,
            Store::Postgres(store) => store.life().await,
        }
    }

    /// The accounts that follow one by key, at most `limit`; from the first one on without.
    pub async fn accounts_after(
        &self,
        after: Option<&Account>,
        limit: i64,
    ) -> Result<Vec<Account>, ReadError> {
        match self {
            Store::Sqlite(store) => store.accounts_after(after, limit).await,
            Store::Postgres(store) => store.accounts_after(after, limit).await,
        }
    }

    /// The inboxes that follow one by key, of all accounts, at most `limit`.
    pub async fn inboxes_after(
        &self,
        after: Option<&InboxKey>,
        limit: i64,
    ) -> Result<Vec<InboxKey>, ReadError> {
        match self {
            Store::Sqlite(store) => store.inboxes_after(after, limit).await,
            Store::Postgres(store) => store.inboxes_after(after, limit).await,
        }
    }
}
