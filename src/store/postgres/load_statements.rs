//! The statements of a load. Each says which index it needs; the golden plans hold it to that.
//!
//! What must stay true: rows are addressed by their full key, and a statement never repeats the
//! predicate of a partial index by accident, which would turn it into a scan of that index
//! (performance.md section 6). `n` is the number of the key that was asked for, from 1.

use super::rows::{
    account_columns, clock, delivery_columns, document_columns, inbox_columns, lock_columns,
    operation_columns,
};

/// Claims ids; returns the numbers of those that another transaction holds. Reads no table.
pub(super) const CLAIM: &str = "SELECT k.n FROM UNNEST($1::bigint[]) WITH ORDINALITY AS k(hash, n)
    WHERE NOT pg_try_advisory_xact_lock(k.hash)";

macro_rules! operations_by_key {
    ($rest:literal) => {
        concat!(
            "SELECT k.n, ",
            operation_columns!(),
            " FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
                WITH ORDINALITY AS k(bucket, account, operation_id, n)
              JOIN receiptd.operations o ON o.bucket = k.bucket AND o.account = k.account
                AND o.operation_id = k.operation_id ",
            $rest
        )
    };
}

/// Operations that may change. Index: operations_pkey.
pub(super) const LOCK_OPERATIONS: &str =
    operations_by_key!("ORDER BY o.bucket, o.account, o.operation_id FOR UPDATE OF o");

/// Operations that are only looked at. Index: operations_pkey.
pub(super) const OPERATIONS: &str = operations_by_key!("");

/// Arguments that are kept apart. Index: payloads_pkey.
pub(super) const ARGUMENTS: &str = "SELECT k.n, p.body
    FROM UNNEST($1::smallint[], $2::text[], $3::bytea[])
        WITH ORDINALITY AS k(bucket, account, operation_id, n)
    JOIN receiptd.payloads p ON p.bucket = k.bucket AND p.account = k.account
        AND p.operation_id = k.operation_id AND p.kind = 1";

macro_rules! accounts_by_key {
    ($rest:literal) => {
        concat!(
            "SELECT k.n, ",
            account_columns!(),
            " FROM UNNEST($1::smallint[], $2::text[]) WITH ORDINALITY AS k(bucket, account, n)
              JOIN receiptd.accounts a ON a.bucket = k.bucket AND a.account = k.account ",
            $rest
        )
    };
}

/// Accounts that may change. Index: accounts_pkey.
pub(super) const LOCK_ACCOUNTS: &str =
    accounts_by_key!("ORDER BY a.bucket, a.account FOR UPDATE OF a");

/// Accounts that are only looked at. Index: accounts_pkey.
pub(super) const ACCOUNTS: &str = accounts_by_key!("");

/// Documents; the content only where `body` says so. Index: documents_pkey.
pub(super) const LOCK_DOCUMENTS: &str = concat!(
    "SELECT k.n, CASE WHEN k.body THEN d.content END, ",
    document_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[], $4::boolean[])
        WITH ORDINALITY AS k(bucket, account, target, body, n)
      JOIN receiptd.documents d ON d.bucket = k.bucket AND d.account = k.account
        AND d.target = k.target
      ORDER BY d.bucket, d.account, d.target FOR UPDATE OF d"
);

/// Locks of targets that have no document, or one that says it is locked. Its own statement after
/// the documents': the flag is then read under the document's lock. Index: documents_pkey,
/// locks_pkey.
pub(super) const LOCK_LOCKS: &str = concat!(
    "SELECT k.n, ",
    lock_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, target, n)
      LEFT JOIN receiptd.documents d ON d.bucket = k.bucket AND d.account = k.account
        AND d.target = k.target
      JOIN receiptd.locks l ON l.bucket = k.bucket AND l.account = k.account
        AND l.target = k.target
      WHERE d.locked IS DISTINCT FROM 0
      ORDER BY l.bucket, l.account, l.target FOR UPDATE OF l"
);

/// Inboxes. Index: inboxes_pkey.
pub(super) const LOCK_INBOXES: &str = concat!(
    "SELECT k.n, ",
    inbox_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      ORDER BY i.bucket, i.account, i.inbox FOR UPDATE OF i"
);

/// Deliveries, under the lock of their inbox. Index: deliveries_pkey.
pub(super) const DELIVERIES: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[], $4::bigint[])
        WITH ORDINALITY AS k(bucket, account, inbox, sequence, n)
      JOIN receiptd.deliveries d ON d.bucket = k.bucket AND d.account = k.account
        AND d.inbox = k.inbox AND d.sequence = k.sequence"
);

/// The next operations that wait for a target, by ticket. Index: operations_waiting.
pub(super) const WAITERS: &str = "SELECT k.n, w.operation_id
    FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, target, n)
    CROSS JOIN LATERAL (
        SELECT o.operation_id, o.wait_ticket FROM receiptd.operations o
        WHERE o.bucket = k.bucket AND o.account = k.account AND o.target = k.target
            AND o.wait_ticket IS NOT NULL
        ORDER BY o.wait_ticket LIMIT $4::bigint) w
    ORDER BY k.n, w.wait_ticket";

/// Deliveries that were never sent, after the inbox's cursor, by number. What expired unsent
/// lies after the cursor as well, and is not walked through; if it was redriven, RETURNED finds it.
/// Index: inboxes_pkey, deliveries_open.
pub(super) const FRESH: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[], $4::bigint[])
        WITH ORDINALITY AS k(bucket, account, inbox, amount, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.due_time IS NOT NULL AND d.sequence > i.offered AND d.state = 1
            AND d.attempt = 0 AND d.available_time IS NULL
        ORDER BY d.sequence LIMIT k.amount) d
      ORDER BY k.n, d.sequence"
);

/// Deliveries that came back or were redriven and may be sent now, those that wait longest. The clock is
/// read once, so that it can bound the index, which has entries only for what came back: what is
/// in flight or fresh costs nothing here. What deleted generations left takes no place of the page.
/// Index: inboxes_pkey, deliveries_returned.
pub(super) const RETURNED: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT ",
    clock!("$5"),
    " AS time)
     SELECT k.n, ",
    delivery_columns!(),
    " FROM clock CROSS JOIN UNNEST($1::smallint[], $2::text[], $3::text[], $4::bigint[])
        WITH ORDINALITY AS k(bucket, account, inbox, amount, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.available_time IS NOT NULL AND d.available_time <= clock.time
            AND d.sequence >= i.first_sequence
        ORDER BY d.available_time, d.sequence LIMIT k.amount) d
      ORDER BY k.n, d.sequence"
);

/// What a consumer holds, by number, from the first of this generation on. Every delivery that has
/// not ended has a `due_time`, so that the index spares the history of the inbox, which has no end.
/// Index: inboxes_pkey, deliveries_open.
pub(super) const HELD: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[], $4::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, consumer, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.due_time IS NOT NULL AND d.sequence >= i.first_sequence AND d.state = 2 AND d.consumer = k.consumer
        ORDER BY d.sequence LIMIT $5::bigint) d
      ORDER BY k.n, d.sequence"
);

/// The oldest deliveries that have not ended, by number. Index: deliveries_open.
pub(super) const OLDEST_OPEN: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, n)
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.due_time IS NOT NULL
        ORDER BY d.sequence LIMIT $4::bigint) d
      ORDER BY k.n, d.sequence"
);

/// The oldest deliveries whose rows are kept, by number, from the lowest number that is kept on,
/// so that entries of purged rows are not walked through. Index: inboxes_pkey, deliveries_pkey.
pub(super) const OLDEST_KEPT: &str = concat!(
    "SELECT k.n, ",
    delivery_columns!(),
    " FROM UNNEST($1::smallint[], $2::text[], $3::text[])
        WITH ORDINALITY AS k(bucket, account, inbox, n)
      JOIN receiptd.inboxes i ON i.bucket = k.bucket AND i.account = k.account
        AND i.inbox = k.inbox
      CROSS JOIN LATERAL (
        SELECT * FROM receiptd.deliveries d
        WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
            AND d.sequence >= i.kept_from
        ORDER BY d.sequence LIMIT $4::bigint) d
      ORDER BY k.n, d.sequence"
);

/// The server's clock in microseconds, moved by the offset of tests. Reads no table.
pub(super) const CLOCK: &str = concat!("SELECT ", clock!("$1"));
