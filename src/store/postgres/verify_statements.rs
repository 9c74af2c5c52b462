//! The statements of the reads for those who check a store. Those of one page name the same page each,
//! so that they travel in one flight.

use super::rows::{
    delivery_columns, document_columns, inbox_columns, lock_columns, operation_columns,
};

/// The account that follows in one table.
macro_rules! next_in {
    ($table:literal) => {
        concat!(
            "(SELECT t.bucket, t.account FROM receiptd.",
            $table,
            " t WHERE (t.bucket, t.account) > ($1::smallint, $2::text)
              ORDER BY t.bucket, t.account LIMIT 1)"
        )
    };
}

/// Index: the primary keys.
pub(super) const NEXT_ACCOUNT: &str = concat!(
    "SELECT n.account FROM (",
    next_in!("accounts"),
    " UNION ALL ",
    next_in!("operations"),
    " UNION ALL ",
    next_in!("payloads"),
    " UNION ALL ",
    next_in!("documents"),
    " UNION ALL ",
    next_in!("locks"),
    " UNION ALL ",
    next_in!("inboxes"),
    " UNION ALL ",
    next_in!("deliveries"),
    " UNION ALL ",
    next_in!("audit"),
    ") n ORDER BY n.bucket, n.account LIMIT 1"
);

/// Index: inboxes_pkey.
pub(super) const COUNT_INBOXES: &str = "SELECT count(*) FROM receiptd.inboxes i
    WHERE i.bucket = $1::smallint AND i.account = $2::text AND i.deleted = 0";

/// Whether any other table has a row of the account. Index: the primary keys.
pub(super) const IS_USED: &str = "SELECT EXISTS (
        SELECT 1 FROM receiptd.operations t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.payloads t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.documents t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.locks t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.inboxes t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.deliveries t WHERE t.bucket = $1::smallint AND t.account = $2::text) OR EXISTS (
        SELECT 1 FROM receiptd.audit t WHERE t.bucket = $1::smallint AND t.account = $2::text)";

/// A page of operations by id.
macro_rules! page_of_operations {
    ($columns:literal) => {
        concat!(
            "(SELECT ",
            $columns,
            " FROM receiptd.operations q
              WHERE q.bucket = $1::smallint AND q.account = $2::text AND q.operation_id > $3::bytea
              ORDER BY q.operation_id LIMIT $4::bigint)"
        )
    };
}

/// Index: operations_pkey.
pub(super) const OPERATIONS_BY_ID: &str = concat!(
    "SELECT o.operation_id, ",
    operation_columns!(),
    " FROM receiptd.operations o
      WHERE o.bucket = $1::smallint AND o.account = $2::text AND o.operation_id > $3::bytea
      ORDER BY o.operation_id LIMIT $4::bigint"
);

/// Index: operations_pkey, audit_pkey.
pub(super) const CHAINS_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, e.* FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id"),
    " p CROSS JOIN LATERAL (
        SELECT e.number, e.time, e.subject, e.events, e.hash FROM receiptd.audit e
        WHERE e.bucket = p.bucket AND e.account = p.account AND e.operation_id = p.operation_id
        ORDER BY e.number LIMIT $5::bigint) e
      ORDER BY p.operation_id, e.number"
);

/// Index: operations_pkey, deliveries_pkey.
pub(super) const DELIVERIES_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, d.inbox, ",
    delivery_columns!(),
    " FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id, q.inbox, q.delivery_sequence"),
    " p JOIN receiptd.deliveries d ON d.bucket = p.bucket AND d.account = p.account
        AND d.inbox = p.inbox AND d.sequence = p.delivery_sequence"
);

/// Index: operations_pkey, inboxes_pkey.
pub(super) const INBOXES_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, i.kept_from FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id, q.inbox"),
    " p JOIN receiptd.inboxes i ON i.bucket = p.bucket AND i.account = p.account
        AND i.inbox = p.inbox"
);

/// Index: operations_pkey, documents_pkey.
pub(super) const DOCUMENTS_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, d.target, NULL::bytea, ",
    document_columns!(),
    " FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id, q.target"),
    " p JOIN receiptd.documents d ON d.bucket = p.bucket AND d.account = p.account
        AND d.target = p.target"
);

/// Index: operations_pkey, locks_pkey.
pub(super) const LOCKS_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, l.target, ",
    lock_columns!(),
    " FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id, q.target"),
    " p JOIN receiptd.locks l ON l.bucket = p.bucket AND l.account = p.account
        AND l.target = p.target"
);

/// Index: operations_pkey, payloads_pkey.
pub(super) const PAYLOADS_OF_PAGE: &str = concat!(
    "SELECT p.operation_id, y.kind FROM ",
    page_of_operations!("q.bucket, q.account, q.operation_id"),
    " p JOIN receiptd.payloads y ON y.bucket = p.bucket AND y.account = p.account
        AND y.operation_id = p.operation_id
      ORDER BY p.operation_id, y.kind"
);

/// Index: audit_pkey, operations_pkey.
pub(super) const CHAINS: &str = "SELECT c.operation_id, EXISTS (
        SELECT 1 FROM receiptd.operations o WHERE o.bucket = $1::smallint
            AND o.account = $2::text AND o.operation_id = c.operation_id), c.count
    FROM (SELECT e.operation_id, count(*) AS count FROM (
            SELECT a.operation_id FROM receiptd.audit a
            WHERE a.bucket = $1::smallint AND a.account = $2::text AND a.operation_id > $3::bytea
            ORDER BY a.operation_id LIMIT $4::bigint) e
        GROUP BY e.operation_id) c
    ORDER BY c.operation_id";

/// Index: deliveries_pkey.
pub(super) const DELIVERIES_BY_KEY: &str = concat!(
    "SELECT d.inbox, ",
    delivery_columns!(),
    " FROM receiptd.deliveries d
      WHERE d.bucket = $1::smallint AND d.account = $2::text
        AND (d.inbox, d.sequence) > ($3::text, $4::bigint)
      ORDER BY d.inbox, d.sequence LIMIT $5::bigint"
);

/// Index: deliveries_pkey, operations_pkey.
pub(super) const OPERATIONS_OF_DELIVERIES: &str = concat!(
    "SELECT p.inbox, p.sequence, o.operation_id, ",
    operation_columns!(),
    " FROM (SELECT d.bucket, d.account, d.inbox, d.sequence, d.operation_id
        FROM receiptd.deliveries d
        WHERE d.bucket = $1::smallint AND d.account = $2::text
            AND (d.inbox, d.sequence) > ($3::text, $4::bigint)
        ORDER BY d.inbox, d.sequence LIMIT $5::bigint) p
      JOIN receiptd.operations o ON o.bucket = p.bucket AND o.account = p.account
        AND o.operation_id = p.operation_id"
);

/// A page of inboxes by name.
macro_rules! page_of_inboxes {
    () => {
        "(SELECT q.bucket, q.account, q.inbox, q.first_sequence FROM receiptd.inboxes q
          WHERE q.bucket = $1::smallint AND q.account = $2::text AND q.inbox > $3::text
          ORDER BY q.inbox LIMIT $4::bigint)"
    };
}

/// Index: inboxes_pkey.
pub(super) const INBOXES_BY_NAME: &str = concat!(
    "SELECT i.inbox, ",
    inbox_columns!(),
    " FROM receiptd.inboxes i
      WHERE i.bucket = $1::smallint AND i.account = $2::text AND i.inbox > $3::text
      ORDER BY i.inbox LIMIT $4::bigint"
);

/// Index: inboxes_pkey, deliveries_open, deliveries_pkey.
pub(super) const COUNT_DELIVERIES: &str = concat!(
    "SELECT p.inbox, c.pending, c.returned, c.in_flight, c.closing, coalesce((
        SELECT d.sequence FROM receiptd.deliveries d
        WHERE d.bucket = p.bucket AND d.account = p.account AND d.inbox = p.inbox
        ORDER BY d.sequence DESC LIMIT 1), 0)
      FROM ",
    page_of_inboxes!(),
    " p CROSS JOIN LATERAL (SELECT
        count(*) FILTER (WHERE d.state = 1 AND d.sequence >= p.first_sequence) AS pending,
        count(*) FILTER (WHERE d.state = 1 AND d.sequence >= p.first_sequence
            AND d.available_time IS NOT NULL) AS returned,
        count(*) FILTER (WHERE d.state = 2 AND d.sequence >= p.first_sequence) AS in_flight,
        count(*) FILTER (WHERE d.sequence < p.first_sequence) AS closing
        FROM receiptd.deliveries d
        WHERE d.bucket = p.bucket AND d.account = p.account AND d.inbox = p.inbox
            AND d.due_time IS NOT NULL AND d.state IN (1, 2)) c"
);

/// Index: inboxes_pkey, deliveries_open.
pub(super) const COUNT_HELD: &str = concat!(
    "SELECT p.inbox, d.consumer, d.consumer_epoch, count(*) FROM ",
    page_of_inboxes!(),
    " p JOIN receiptd.deliveries d ON d.bucket = p.bucket AND d.account = p.account
        AND d.inbox = p.inbox AND d.due_time IS NOT NULL AND d.state = 2
        AND d.sequence >= p.first_sequence
      WHERE d.consumer IS NOT NULL
      GROUP BY p.inbox, d.consumer, d.consumer_epoch ORDER BY 1, 2, 3"
);

/// Index: inboxes_pkey, operations_unresolved.
pub(super) const COUNT_RESERVED: &str = concat!(
    "SELECT o.inbox, count(*) FROM receiptd.operations o
      WHERE o.bucket = $1::smallint AND o.account = $2::text AND o.end_time IS NULL
        AND o.inbox IN (SELECT p.inbox FROM ",
    page_of_inboxes!(),
    " p) GROUP BY o.inbox"
);

/// A page of locks by target.
macro_rules! page_of_locks {
    () => {
        "(SELECT q.bucket, q.account, q.target, q.holder FROM receiptd.locks q
          WHERE q.bucket = $1::smallint AND q.account = $2::text AND q.target > $3::text
          ORDER BY q.target LIMIT $4::bigint)"
    };
}

/// Index: locks_pkey.
pub(super) const LOCKS_BY_TARGET: &str = concat!(
    "SELECT l.target, ",
    lock_columns!(),
    " FROM receiptd.locks l
      WHERE l.bucket = $1::smallint AND l.account = $2::text AND l.target > $3::text
      ORDER BY l.target LIMIT $4::bigint"
);

/// Index: locks_pkey, operations_pkey.
pub(super) const HOLDERS: &str = concat!(
    "SELECT p.target, o.operation_id, ",
    operation_columns!(),
    " FROM ",
    page_of_locks!(),
    " p JOIN receiptd.operations o ON o.bucket = p.bucket AND o.account = p.account
        AND o.operation_id = p.holder"
);

/// Index: locks_pkey, operations_pkey, deliveries_pkey.
pub(super) const HOLDERS_DELIVERIES: &str = concat!(
    "SELECT p.target, d.inbox, ",
    delivery_columns!(),
    " FROM ",
    page_of_locks!(),
    " p JOIN receiptd.operations o ON o.bucket = p.bucket AND o.account = p.account
        AND o.operation_id = p.holder
      JOIN receiptd.deliveries d ON d.bucket = o.bucket AND d.account = o.account
        AND d.inbox = o.inbox AND d.sequence = o.delivery_sequence"
);

/// Index: locks_pkey, operations_waiting, documents_pkey.
pub(super) const COUNT_WAITING: &str = concat!(
    "SELECT p.target, (
        SELECT count(*) FROM receiptd.operations o
        WHERE o.bucket = p.bucket AND o.account = p.account AND o.target = p.target
            AND o.wait_ticket IS NOT NULL), EXISTS (
        SELECT 1 FROM receiptd.documents d
        WHERE d.bucket = p.bucket AND d.account = p.account AND d.target = p.target)
      FROM ",
    page_of_locks!(),
    " p"
);

/// Rows from the first one on whose bodies together stay within the limit. Index: documents_pkey,
/// locks_pkey.
pub(super) const DOCUMENTS_BY_TARGET: &str = concat!(
    "SELECT d.target, EXISTS (SELECT 1 FROM receiptd.locks l
        WHERE l.bucket = $1::smallint AND l.account = $2::text AND l.target = d.target),
        d.content, ",
    document_columns!(),
    " FROM (SELECT q.target, sum(octet_length(q.content)) OVER (ORDER BY q.target)
            - octet_length(q.content) AS before
        FROM (SELECT r.target, r.content FROM receiptd.documents r
            WHERE r.bucket = $1::smallint AND r.account = $2::text AND r.target > $3::text
            ORDER BY r.target LIMIT $4::bigint) q) p
      JOIN receiptd.documents d ON d.bucket = $1::smallint AND d.account = $2::text
        AND d.target = p.target
      WHERE p.before < $5::bigint
      ORDER BY d.target"
);

/// As [`DOCUMENTS_BY_TARGET`]. Index: payloads_pkey.
pub(super) const PAYLOADS_BY_KEY: &str = "SELECT y.operation_id, y.kind, y.body
    FROM (SELECT q.operation_id, q.kind, sum(octet_length(q.body))
            OVER (ORDER BY q.operation_id, q.kind) - octet_length(q.body) AS before
        FROM (SELECT r.operation_id, r.kind, r.body FROM receiptd.payloads r
            WHERE r.bucket = $1::smallint AND r.account = $2::text
                AND (r.operation_id, r.kind) > ($3::bytea, $4::smallint)
            ORDER BY r.operation_id, r.kind LIMIT $5::bigint) q) p
    JOIN receiptd.payloads y ON y.bucket = $1::smallint AND y.account = $2::text
        AND y.operation_id = p.operation_id AND y.kind = p.kind
    WHERE p.before < $6::bigint
    ORDER BY y.operation_id, y.kind";

/// Index: payloads_pkey, operations_pkey.
pub(super) const OPERATIONS_OF_PAYLOADS: &str = concat!(
    "SELECT o.operation_id, ",
    operation_columns!(),
    " FROM receiptd.operations o
      WHERE o.bucket = $1::smallint AND o.account = $2::text AND o.operation_id IN (
        SELECT r.operation_id FROM receiptd.payloads r
        WHERE r.bucket = $1::smallint AND r.account = $2::text
            AND (r.operation_id, r.kind) > ($3::bytea, $4::smallint)
        ORDER BY r.operation_id, r.kind LIMIT $5::bigint)"
);

/// Index: documents_pkey.
pub(super) const REVISIONS: &str = "SELECT d.target, d.revision FROM receiptd.documents d
    WHERE d.bucket = $1::smallint AND d.account = $2::text AND d.target > $3::text
    ORDER BY d.target LIMIT $4::bigint";
