//! What the sweeper looks for.
//!
//! What must stay true: a page goes forward by keyset, bucket by bucket, so that a stuck head
//! never starves the tail and every index that begins with its bucket can be used; buckets
//! without unfinished rows cost nothing. Nothing is locked here: the rows are loaded again, under
//! their locks, before anything is decided.

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use super::{
    PostgresStore,
    rows::{Fields, clock},
    session::{Call, value},
};
use crate::{
    domain::{
        delivery::{DeliveryKey, InboxKey},
        ids::{Account, InboxName, Span, Target},
        lock::TargetKey,
        operation::OperationKey,
        record::Unreadable,
    },
    store::{
        ReadError,
        query::{Due, DueKind, DuePage, DuePosition},
    },
};

/// The key of an entry in a due index. `name` is an inbox or a target.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Entry {
    bucket: i16,
    due_time: i64,
    account: String,
    name: String,
    operation_id: Vec<u8>,
    sequence: i64,
}

/// The first entries that are due after a position. The recursion steps from one bucket that has
/// entries to the next, a probe each; the join then takes them in that order and stops at the
/// limit, since LATERAL is always a nested loop. Parameters: bucket, due time and account of the
/// position, the offset of the clock, the limit, then the rest of the position. What goes beyond
/// the account begins with a comma.
macro_rules! due {
    ($table:literal, $columns:literal, $rest:literal, $position:literal) => {
        concat!(
            "WITH RECURSIVE clock AS MATERIALIZED (SELECT ",
            clock!("$4"),
            " AS time),
            buckets AS (
                (SELECT r.bucket FROM ",
            $table,
            " r WHERE r.bucket >= $1::smallint AND r.due_time IS NOT NULL
                ORDER BY r.bucket, r.due_time LIMIT 1)
                UNION ALL
                SELECT (SELECT r.bucket FROM ",
            $table,
            " r WHERE r.bucket > b.bucket AND r.due_time IS NOT NULL
                    ORDER BY r.bucket, r.due_time LIMIT 1)
                FROM buckets b WHERE b.bucket IS NOT NULL)
            SELECT b.bucket, r.due_time, r.account",
            $columns,
            " FROM clock CROSS JOIN buckets b CROSS JOIN LATERAL (
                SELECT * FROM ",
            $table,
            " r WHERE r.bucket = b.bucket AND r.due_time <= clock.time
                    AND r.due_time >= CASE WHEN b.bucket = $1::smallint THEN $2::bigint
                        ELSE '-9223372036854775808'::bigint END
                    AND (b.bucket > $1::smallint
                        OR (r.due_time, r.account",
            $rest,
            ") > ($2::bigint, $3::text",
            $position,
            "))
                ORDER BY r.due_time, r.account",
            $rest,
            " LIMIT $5::bigint) r LIMIT $5::bigint"
        )
    };
}

/// Index: deliveries_due.
pub(super) const DUE_DELIVERIES: &str = due!(
    "receiptd.deliveries",
    ", r.inbox, r.sequence, r.operation_id",
    ", r.inbox, r.sequence",
    ", $6::text, $7::bigint"
);

/// Index: operations_due.
pub(super) const DUE_OPERATIONS: &str =
    due!("receiptd.operations", ", r.operation_id", ", r.operation_id", ", $6::bytea");

/// Index: locks_due.
pub(super) const DUE_LOCKS: &str = due!("receiptd.locks", ", r.target", ", r.target", ", $6::text");

/// Index: inboxes_due.
pub(super) const DUE_INBOXES: &str =
    due!("receiptd.inboxes", ", r.inbox", ", r.inbox", ", $6::text");

/// Index: accounts_due.
pub(super) const DUE_ACCOUNTS: &str = due!("receiptd.accounts", "", "", "");

impl PostgresStore {
    /// Rows whose `due_time` has come, at most `limit`, from `after` on.
    ///
    /// # Errors
    /// [`ReadError`]; `Unreadable` for a position that this store did not make.
    pub async fn due(
        &self,
        kind: DueKind,
        after: Option<&DuePosition>,
        limit: i64,
    ) -> Result<DuePage, ReadError> {
        let start = match after {
            Some(position) => decode(position)?,
            None => before(0),
        };
        let call = due_call(kind, &start, self.0.seams.clock_parameter(), limit);
        let found = self.upkeep(vec![call]).await?.pop().unwrap_or_default();
        let mut entries = Vec::with_capacity(found.len());
        for row in &found {
            entries.push(entry(kind, row)?);
        }
        // The rows come in this order; sorting costs nothing and keeps the position right.
        entries.sort();
        let full = i64::try_from(entries.len()).is_ok_and(|found| found >= limit);
        let next = entries.last().filter(|_| full).map(encode);
        let rows =
            entries.into_iter().map(|entry| row_of(kind, entry)).collect::<Result<_, _>>()?;
        Ok(DuePage { rows, next })
    }
}

/// Before everything in a bucket.
fn before(bucket: i16) -> Entry {
    Entry { bucket, due_time: i64::MIN, ..Entry::default() }
}

/// The position before everything in a bucket.
pub fn due_from(bucket: i16) -> DuePosition {
    encode(&before(bucket))
}

fn due_call<'a>(kind: DueKind, start: &'a Entry, offset: Span, limit: i64) -> Call<'a> {
    let name = value(start.name.as_str());
    let mut parameters = vec![
        value(start.bucket),
        value(start.due_time),
        value(start.account.as_str()),
        value(offset.0),
        value(limit),
    ];
    let sql = match kind {
        DueKind::Deliveries => {
            parameters.push(name);
            parameters.push(value(start.sequence));
            DUE_DELIVERIES
        }
        DueKind::Operations => {
            parameters.push(value(&start.operation_id[..]));
            DUE_OPERATIONS
        }
        DueKind::Locks => {
            parameters.push(name);
            DUE_LOCKS
        }
        DueKind::Inboxes => {
            parameters.push(name);
            DUE_INBOXES
        }
        DueKind::Accounts => DUE_ACCOUNTS,
    };
    Call { sql, parameters }
}

fn entry(kind: DueKind, row: &Row) -> Result<Entry, Unreadable> {
    let mut fields = Fields::new(row, "due row");
    let mut entry = Entry {
        bucket: fields.take()?,
        due_time: fields.take()?,
        account: fields.take()?,
        ..Entry::default()
    };
    match kind {
        DueKind::Deliveries => {
            entry.name = fields.take()?;
            entry.sequence = fields.take()?;
            entry.operation_id = fields.take()?;
        }
        DueKind::Operations => entry.operation_id = fields.take()?,
        DueKind::Locks | DueKind::Inboxes => entry.name = fields.take()?,
        DueKind::Accounts => {}
    }
    Ok(entry)
}

fn row_of(kind: DueKind, entry: Entry) -> Result<Due, Unreadable> {
    let account = Account::from_stored(&entry.account);
    let id = || {
        crate::domain::ids::OperationId::from_stored(&entry.operation_id)
            .ok_or(Unreadable { what: "due row" })
    };
    let inbox = |account| InboxKey { account, inbox: InboxName::from_stored(&entry.name) };
    Ok(match kind {
        DueKind::Deliveries => {
            let key = DeliveryKey { inbox: inbox(account), sequence: entry.sequence };
            Due::Delivery(key, id()?)
        }
        DueKind::Operations => Due::Operation(OperationKey { account, id: id()? }),
        DueKind::Locks => {
            Due::Lock(TargetKey { account, target: Target::from_stored(&entry.name) })
        }
        DueKind::Inboxes => Due::Inbox(inbox(account)),
        DueKind::Accounts => Due::Account(account),
    })
}

fn encode(entry: &Entry) -> DuePosition {
    DuePosition(serde_json::to_vec(entry).expect("numbers and texts are JSON"))
}

fn decode(position: &DuePosition) -> Result<Entry, Unreadable> {
    serde_json::from_slice(&position.0).map_err(|_| Unreadable { what: "sweep position" })
}

/// Steps from replica to replica and takes the oldest rows of each, but never its newest.
/// Index: batches_by_replica.
pub(super) const SWEEP_BATCHES: &str = "WITH RECURSIVE replicas AS (
        (SELECT b.replica FROM receiptd.batches b ORDER BY b.replica, b.time, b.batch LIMIT 1)
        UNION ALL
        SELECT (SELECT b.replica FROM receiptd.batches b WHERE b.replica > r.replica
            ORDER BY b.replica, b.time, b.batch LIMIT 1)
        FROM replicas r WHERE r.replica IS NOT NULL),
    old AS MATERIALIZED (
        SELECT o.bucket, o.batch
        FROM replicas r
        CROSS JOIN LATERAL (
            SELECT n.time, n.batch FROM receiptd.batches n WHERE n.replica = r.replica
            ORDER BY n.replica DESC, n.time DESC, n.batch DESC LIMIT 1) newest
        CROSS JOIN LATERAL (
            SELECT b.bucket, b.batch FROM receiptd.batches b
            WHERE b.replica = r.replica AND (b.time, b.batch) < (newest.time, newest.batch)
                AND b.time < $1::bigint
            ORDER BY b.replica, b.time, b.batch LIMIT $2::bigint) o
        LIMIT $2::bigint)
    DELETE FROM receiptd.batches b USING old
    WHERE b.bucket = old.bucket AND b.batch = old.batch RETURNING 1";

impl PostgresStore {
    /// Deletes batch rows older than `age`, except each replica's newest: at most `limit`.
    /// Returns how many went. If it does not return, they may be gone all the same.
    pub async fn sweep_batches(&self, age: Span, limit: i64) -> Result<u64, ReadError> {
        let parameters = vec![value((self.now().await? - age).0), value(limit)];
        let rows = self.upkeep_write(Call { sql: SWEEP_BATCHES, parameters }).await?;
        Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
    }
}
