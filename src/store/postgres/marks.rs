//! The reads of [`crate::store::Store::life`] and of the pages of a mark.

use super::{
    PostgresStore,
    read::of,
    rows::Fields,
    session::{Call, value},
};
use crate::{
    domain::{
        delivery::InboxKey,
        epoch::Life,
        ids::{Account, InboxName},
        record::{Unreadable, unpack_life},
    },
    store::ReadError,
};

/// Index: store_facts_pkey.
const LIFE: &str = "SELECT f.value FROM receiptd.store_facts f
    WHERE f.bucket = 0 AND f.account = '' AND f.name = 'life'";

/// Index: accounts_pkey.
pub(super) const ACCOUNTS_AFTER: &str = "SELECT a.account FROM receiptd.accounts a
    WHERE (a.bucket, a.account) > ($1::smallint, $2::text)
    ORDER BY a.bucket, a.account LIMIT $3::bigint";

/// Index: inboxes_pkey.
pub(super) const INBOXES_AFTER: &str = "SELECT i.account, i.inbox FROM receiptd.inboxes i
    WHERE (i.bucket, i.account, i.inbox) > ($1::smallint, $2::text, $3::text)
    ORDER BY i.bucket, i.account, i.inbox LIMIT $4::bigint";

/// Before every bucket.
const FIRST: i16 = i16::MIN;

impl PostgresStore {
    /// See [`crate::store::Store::life`].
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn life(&self) -> Result<Life, ReadError> {
        let replies = self.upkeep(vec![Call { sql: LIFE, parameters: Vec::new() }]).await?;
        let row = replies.first().and_then(|rows| rows.first());
        let row = row.ok_or(Unreadable { what: "row of the store itself" })?;
        Ok(unpack_life(Fields::new(row, "row of the store itself").take()?)?)
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
        let mut parameters = after.map_or_else(|| vec![value(FIRST), value("")], of);
        parameters.push(value(limit));
        let replies = self.upkeep(vec![Call { sql: ACCOUNTS_AFTER, parameters }]).await?;
        let read = |row| Ok(Account::from_stored(Fields::new(row, "account").take()?));
        replies.iter().flatten().map(read).collect()
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
        let mut parameters = match after {
            Some(after) => {
                let mut parameters = of(&after.account);
                parameters.push(value(after.inbox.as_str()));
                parameters
            }
            None => vec![value(FIRST), value(""), value("")],
        };
        parameters.push(value(limit));
        let replies = self.upkeep(vec![Call { sql: INBOXES_AFTER, parameters }]).await?;
        let read = |row| {
            let mut fields = Fields::new(row, "inbox");
            Ok(InboxKey {
                account: Account::from_stored(fields.take()?),
                inbox: InboxName::from_stored(fields.take()?),
            })
        };
        replies.iter().flatten().map(read).collect()
    }
}
