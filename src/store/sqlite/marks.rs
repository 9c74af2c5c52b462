//! The reads of [`crate::store::Store::life`] and of the pages of a mark.

use rusqlite::{Connection, OptionalExtension};

use super::{SqliteStore, fault::Fault, rows::Columns};
use crate::{
    domain::{
        delivery::InboxKey,
        epoch::Life,
        ids::Account,
        record::{Unreadable, unpack_life},
    },
    store::ReadError,
};

/// Index: the primary key.
pub(super) const LIFE: &str =
    "SELECT value FROM store_facts WHERE bucket = 0 AND account = '' AND name = 'life'";

/// Index: the primary key.
pub(super) const ACCOUNTS_AFTER: &str = "SELECT account FROM accounts \
    WHERE (bucket, account) > (?1, ?2) ORDER BY bucket, account LIMIT ?3";

/// Index: the primary key.
pub(super) const INBOXES_AFTER: &str = "SELECT account, inbox FROM inboxes \
    WHERE (bucket, account, inbox) > (?1, ?2, ?3) ORDER BY bucket, account, inbox LIMIT ?4";

/// Before every bucket.
const FIRST: i16 = i16::MIN;

impl SqliteStore {
    /// See [`crate::store::Store::life`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn life(&self) -> Result<Life, ReadError> {
        self.read(life).await
    }

    /// See [`crate::store::Store::accounts_after`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn accounts_after(
        &self,
        after: Option<&Account>,
        limit: i64,
    ) -> Result<Vec<Account>, ReadError> {
        let after = after.cloned();
        self.read(move |connection| {
            let (bucket, account) =
                after.as_ref().map_or((FIRST, ""), |after| (after.bucket(), after.as_str()));
            let mut statement = connection.prepare_cached(ACCOUNTS_AFTER)?;
            let mut rows = statement.query((bucket, account, limit))?;
            let mut accounts = Vec::new();
            while let Some(row) = rows.next()? {
                accounts.push(Columns::of(row).account()?);
            }
            Ok(accounts)
        })
        .await
    }

    /// See [`crate::store::Store::inboxes_after`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn inboxes_after(
        &self,
        after: Option<&InboxKey>,
        limit: i64,
    ) -> Result<Vec<InboxKey>, ReadError> {
        let after = after.cloned();
        self.read(move |connection| {
            let (bucket, account, inbox) = after.as_ref().map_or((FIRST, "", ""), |after| {
                (after.account.bucket(), after.account.as_str(), after.inbox.as_str())
            });
            let mut statement = connection.prepare_cached(INBOXES_AFTER)?;
            let mut rows = statement.query((bucket, account, inbox, limit))?;
            let mut inboxes = Vec::new();
            while let Some(row) = rows.next()? {
                let columns = &mut Columns::of(row);
                inboxes.push(InboxKey { account: columns.account()?, inbox: columns.inbox()? });
            }
            Ok(inboxes)
        })
        .await
    }
}

fn life(connection: &Connection) -> Result<Life, Fault> {
    let mut statement = connection.prepare_cached(LIFE)?;
    let bytes: Option<Vec<u8>> = statement.query_row([], |row| row.get(0)).optional()?;
    let bytes = bytes.ok_or(Unreadable { what: "row of the store itself" })?;
    Ok(unpack_life(&bytes)?)
}
