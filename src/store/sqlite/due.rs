//! What the sweeper finds: rows whose time has come, a page at a time.
//!
//! What must stay true: a page goes on strictly after the last row of the page before, whatever
//! became of that row, so that a stuck head never starves the tail; only unfinished rows are
//! walked through. Deliberately not here: what is done about a row.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    by_key::many,
    fault::Fault,
    rows::{Columns, operation_id},
};
use crate::{
    domain::{
        delivery::{DeliveryKey, InboxKey},
        ids::{Account, InboxName, OperationId, Target, Timestamp},
        lock::TargetKey,
        operation::OperationKey,
        record::Unreadable,
    },
    store::query::{Due, DueKind, DuePage, DuePosition},
};

/// Where a page starts: strictly after this row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    bucket: i16,
    due_time: i64,
    account: String,
    /// The operation's id, the target or the inbox, as stored.
    key: Vec<u8>,
    /// The delivery's number; 0 for the other kinds.
    sequence: i64,
}

/// The rows of a kind that are due, at most `limit` (at least one), bucket after bucket.
pub(super) fn page(
    connection: &Connection,
    kind: DueKind,
    now: Timestamp,
    after: Option<&DuePosition>,
    limit: i64,
) -> Result<DuePage, Fault> {
    let limit = limit.max(1);
    let mut rows = Vec::new();
    let mut position = match after {
        Some(after) => Position::decode(&after.0).ok_or(Unreadable { what: "sweep position" })?,
        None => Position::start(0),
    };
    while let Some(bucket) = next_bucket(connection, kind, position.bucket)? {
        if bucket > position.bucket {
            position = Position::start(bucket);
        }
        let room = limit - i64::try_from(rows.len()).unwrap_or(limit);
        let found = in_bucket(connection, kind, now, &position, room)?;
        for (due, last) in found {
            rows.push(due);
            position = last;
        }
        if i64::try_from(rows.len()).unwrap_or(limit) >= limit {
            return Ok(DuePage { rows, next: Some(DuePosition(position.encode())) });
        }
        // Buckets end at 1,023.
        position = Position::start(bucket.saturating_add(1));
    }
    Ok(DuePage { rows, next: None })
}

/// The position before everything in a bucket.
pub fn due_from(bucket: i16) -> DuePosition {
    DuePosition(Position::start(bucket).encode())
}

/// Index: deliveries_due.
pub(super) const DELIVERY_BUCKET: &str = "SELECT bucket FROM deliveries INDEXED BY deliveries_due \
    WHERE bucket >= ?1 AND due_time IS NOT NULL ORDER BY bucket LIMIT 1";
/// Index: operations_due.
pub(super) const OPERATION_BUCKET: &str = "SELECT bucket FROM operations INDEXED BY operations_due \
    WHERE bucket >= ?1 AND due_time IS NOT NULL ORDER BY bucket LIMIT 1";
/// Index: locks_due.
pub(super) const LOCK_BUCKET: &str =
    "SELECT bucket FROM locks INDEXED BY locks_due WHERE bucket >= ?1 ORDER BY bucket LIMIT 1";
/// Index: inboxes_due.
pub(super) const INBOX_BUCKET: &str = "SELECT bucket FROM inboxes INDEXED BY inboxes_due \
    WHERE bucket >= ?1 AND due_time IS NOT NULL ORDER BY bucket LIMIT 1";

/// Index: accounts_due.
pub(super) const ACCOUNT_BUCKET: &str = "SELECT bucket FROM accounts INDEXED BY accounts_due WHERE bucket >= ?1 ORDER BY bucket LIMIT 1";

/// The next bucket, from `from` on, in which something of this kind can become due.
fn next_bucket(connection: &Connection, kind: DueKind, from: i16) -> Result<Option<i16>, Fault> {
    let statement = match kind {
        DueKind::Deliveries => DELIVERY_BUCKET,
        DueKind::Operations => OPERATION_BUCKET,
        DueKind::Locks => LOCK_BUCKET,
        DueKind::Inboxes => INBOX_BUCKET,
        DueKind::Accounts => ACCOUNT_BUCKET,
    };
    let mut statement = connection.prepare_cached(statement)?;
    Ok(statement.query_row([from], |row| row.get(0)).optional()?)
}

/// Index: deliveries_due.
pub(super) const DELIVERIES: &str = "SELECT bucket, due_time, account, CAST(inbox AS BLOB), sequence, \
    operation_id FROM deliveries INDEXED BY deliveries_due \
    WHERE bucket = ?1 AND due_time <= ?2 \
    AND (due_time, account, inbox, sequence) > (?3, ?4, ?5, ?6) \
    ORDER BY due_time, account, inbox, sequence LIMIT ?7";
/// Index: operations_due.
pub(super) const OPERATIONS: &str = "SELECT bucket, due_time, account, operation_id, 0 \
    FROM operations INDEXED BY operations_due WHERE bucket = ?1 AND due_time <= ?2 \
    AND (due_time, account, operation_id) > (?3, ?4, ?5) \
    ORDER BY due_time, account, operation_id LIMIT ?6";
/// Index: locks_due.
pub(super) const LOCKS: &str = "SELECT bucket, due_time, account, CAST(target AS BLOB), 0 \
    FROM locks INDEXED BY locks_due WHERE bucket = ?1 AND due_time <= ?2 \
    AND (due_time, account, target) > (?3, ?4, ?5) \
    ORDER BY due_time, account, target LIMIT ?6";
/// Index: inboxes_due.
pub(super) const INBOXES: &str = "SELECT bucket, due_time, account, CAST(inbox AS BLOB), 0 \
    FROM inboxes INDEXED BY inboxes_due WHERE bucket = ?1 AND due_time <= ?2 \
    AND (due_time, account, inbox) > (?3, ?4, ?5) \
    ORDER BY due_time, account, inbox LIMIT ?6";

/// Index: accounts_due.
pub(super) const ACCOUNTS: &str = "SELECT bucket, due_time, account, CAST('' AS BLOB), 0 \
    FROM accounts INDEXED BY accounts_due WHERE bucket = ?1 AND due_time <= ?2 \
    AND (due_time, account) > (?3, ?4) ORDER BY due_time, account LIMIT ?5";

/// What is due in the bucket of `after`, each row with the position after it.
fn in_bucket(
    connection: &Connection,
    kind: DueKind,
    now: Timestamp,
    after: &Position,
    limit: i64,
) -> Result<Vec<(Due, Position)>, Fault> {
    let Position { bucket, due_time, account, key, sequence } = after;
    let text = || String::from_utf8(key.clone()).map_err(|_| Unreadable { what: "sweep position" });
    match kind {
        DueKind::Deliveries => {
            let after = params![bucket, now.0, due_time, account, text()?, sequence, limit];
            many(connection, DELIVERIES, after, |row| {
                let columns = &mut Columns::of(row);
                let position = Position::read(columns)?;
                let key = DeliveryKey { inbox: position.inbox()?, sequence: position.sequence };
                Ok((Due::Delivery(key, columns.operation_id()?), position))
            })
        }
        DueKind::Operations => {
            let after = params![bucket, now.0, due_time, account, key, limit];
            many(connection, OPERATIONS, after, |row| {
                let position = Position::read(&mut Columns::of(row))?;
                let id: OperationId = operation_id(&position.key)?;
                let key = OperationKey { account: position.account(), id };
                Ok((Due::Operation(key), position))
            })
        }
        DueKind::Locks => {
            let after = params![bucket, now.0, due_time, account, text()?, limit];
            many(connection, LOCKS, after, |row| {
                let position = Position::read(&mut Columns::of(row))?;
                let target = Target::from_stored(position.text()?);
                let key = TargetKey { account: position.account(), target };
                Ok((Due::Lock(key), position))
            })
        }
        DueKind::Inboxes => {
            let after = params![bucket, now.0, due_time, account, text()?, limit];
            many(connection, INBOXES, after, |row| {
                let position = Position::read(&mut Columns::of(row))?;
                Ok((Due::Inbox(position.inbox()?), position))
            })
        }
        DueKind::Accounts => {
            let after = params![bucket, now.0, due_time, account, limit];
            many(connection, ACCOUNTS, after, |row| {
                let position = Position::read(&mut Columns::of(row))?;
                Ok((Due::Account(position.account()), position))
            })
        }
    }
}

impl Position {
    /// Before everything in a bucket.
    fn start(bucket: i16) -> Self {
        Position {
            bucket,
            due_time: i64::MIN,
            account: String::new(),
            key: Vec::new(),
            sequence: 0,
        }
    }

    /// Reads the columns that every kind begins with.
    fn read(columns: &mut Columns<'_, '_>) -> Result<Self, Fault> {
        Ok(Position {
            bucket: columns.take()?,
            due_time: columns.take()?,
            account: columns.take()?,
            key: columns.take()?,
            sequence: columns.take()?,
        })
    }

    fn account(&self) -> Account {
        Account::from_stored(&self.account)
    }

    fn inbox(&self) -> Result<InboxKey, Fault> {
        let inbox = InboxName::from_stored(self.text()?);
        Ok(InboxKey { account: self.account(), inbox })
    }

    fn text(&self) -> Result<&str, Fault> {
        std::str::from_utf8(&self.key).map_err(|_| Unreadable { what: "key of a due row" }.into())
    }

    /// Numbers in 8 bytes each, then the account behind its length, then the key.
    fn encode(&self) -> Vec<u8> {
        let length = i64::try_from(self.account.len()).expect("an account has at most 128 bytes");
        let numbers = [i64::from(self.bucket), self.due_time, self.sequence, length];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.extend_from_slice(self.account.as_bytes());
        bytes.extend_from_slice(&self.key);
        bytes
    }

    /// Reads what [`Position::encode`] wrote.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.split_at_checked(4 * 8)?;
        let mut numbers =
            numbers.chunks_exact(8).map(|number| number.try_into().map(i64::from_be_bytes).ok());
        let bucket = i16::try_from(numbers.next()??).ok()?;
        let due_time = numbers.next()??;
        let sequence = numbers.next()??;
        let length = usize::try_from(numbers.next()??).ok()?;
        let (account, key) = rest.split_at_checked(length)?;
        let account = String::from_utf8(account.to_vec()).ok()?;
        Some(Position { bucket, due_time, account, key: key.to_vec(), sequence })
    }
}
