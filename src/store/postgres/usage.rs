//! The reads of [`crate::store::usage`], in one snapshot.
//!
//! What must stay true: each statement stops at its limit, whatever the table holds.

use super::{
    PostgresStore,
    rows::Fields,
    session::{Call, Parameter, value},
};
use crate::{
    domain::ids::{Account, Timestamp},
    store::{
        ReadError,
        usage::{COUNTED_MAX, Figures, Pressure, Statement, Usage, time},
    },
};

/// Index: the primary key.
const OPERATIONS: &str = "SELECT o.state::bigint, o.retained::bigint, count(*), coalesce(sum(o.replay_count), \
    0)::bigint FROM (SELECT state, retained, replay_count FROM receiptd.operations WHERE \
    bucket = $1::smallint AND account = $2::text LIMIT $3::bigint) o GROUP BY o.state, \
    o.retained ORDER BY o.state, o.retained";
/// Index: operations_unresolved.
const UNRESOLVED: &str = "SELECT count(*), coalesce(min(o.accept_time), 0) FROM (SELECT accept_time FROM \
    receiptd.operations WHERE bucket = $1::smallint AND account = $2::text AND end_time IS \
    NULL ORDER BY accept_time LIMIT $3::bigint) o";
/// Index: the primary key.
const DOCUMENTS: &str = "SELECT count(*), count(*) FILTER (WHERE d.present = 1), coalesce(sum(d.size) FILTER \
    (WHERE d.present = 1), 0)::bigint FROM (SELECT present, size FROM receiptd.documents \
    WHERE bucket = $1::smallint AND account = $2::text LIMIT $3::bigint) d";
/// Index: the primary key.
const PAYLOADS: &str = "SELECT count(*), coalesce(sum(p.size), 0)::bigint FROM (SELECT octet_length(body) AS \
    size FROM receiptd.payloads WHERE bucket = $1::smallint AND account = $2::text LIMIT \
    $3::bigint) p";
/// Index: the primary key.
const INBOXES: &str = "SELECT count(*), count(*) FILTER (WHERE i.deleted = 0), coalesce(sum(i.reserved), \
    0)::bigint, coalesce(sum(i.pending), 0)::bigint, coalesce(sum(i.in_flight), 0)::bigint, \
    coalesce(sum(i.acked_total), 0)::bigint, coalesce(sum(i.expired_total), 0)::bigint, \
    coalesce(sum(i.dead_total), 0)::bigint FROM (SELECT * FROM receiptd.inboxes WHERE bucket \
    = $1::smallint AND account = $2::text LIMIT $3::bigint) i";
/// Index: the primary key, and deliveries_open.
const UNACKED: &str = "SELECT coalesce(min(q.queue_time), 0) FROM (SELECT (SELECT d.queue_time FROM \
    receiptd.deliveries d WHERE d.bucket = i.bucket AND d.account = i.account AND d.inbox = \
    i.inbox AND d.due_time IS NOT NULL ORDER BY d.sequence LIMIT 1) AS queue_time FROM \
    (SELECT bucket, account, inbox, pending, in_flight FROM receiptd.inboxes WHERE bucket = \
    $1::smallint AND account = $2::text LIMIT $3::bigint) i WHERE i.pending + i.in_flight > \
    0) q";
/// Index: deliveries_due.
const OVERDUE_DELIVERIES: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = $2::text), 0) FROM \
    (SELECT account, due_time FROM receiptd.deliveries WHERE bucket = $1::smallint AND \
    due_time <= $4::bigint ORDER BY due_time LIMIT $3::bigint) d";
/// Index: operations_due.
const OVERDUE_OPERATIONS: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = $2::text), 0) FROM \
    (SELECT account, due_time FROM receiptd.operations WHERE bucket = $1::smallint AND \
    due_time <= $4::bigint AND end_time IS NULL ORDER BY due_time LIMIT $3::bigint) d";
/// Index: locks_due.
const OVERDUE_LOCKS: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = $2::text), 0) FROM \
    (SELECT account, due_time FROM receiptd.locks WHERE bucket = $1::smallint AND due_time \
    <= $4::bigint ORDER BY due_time LIMIT $3::bigint) d";
/// Index: operations_unresolved.
const ALL_UNRESOLVED: &str = "SELECT count(*) FROM (SELECT 1 FROM receiptd.operations WHERE end_time IS NULL LIMIT \
    $1::bigint) o";
/// Index: deliveries_open.
const ALL_UNACKED: &str = "SELECT coalesce(min(d.queue_time), 0) FROM (SELECT queue_time FROM receiptd.deliveries \
    WHERE due_time IS NOT NULL LIMIT $1::bigint) d";

fn sql(statement: Statement) -> &'static str {
    match statement {
        Statement::Operations => OPERATIONS,
        Statement::Unresolved => UNRESOLVED,
        Statement::Documents => DOCUMENTS,
        Statement::Payloads => PAYLOADS,
        Statement::Inboxes => INBOXES,
        Statement::Unacked => UNACKED,
        Statement::OverdueDeliveries => OVERDUE_DELIVERIES,
        Statement::OverdueOperations => OVERDUE_OPERATIONS,
        Statement::OverdueLocks => OVERDUE_LOCKS,
    }
}

impl PostgresStore {
    /// See [`crate::store::Store::usage`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn usage(&self, account: &Account, now: Timestamp) -> Result<Usage, ReadError> {
        let calls = Statement::ALL.map(|statement| {
            let mut parameters: Vec<Parameter<'_>> =
                vec![value(account.bucket()), value(account.as_str()), value(COUNTED_MAX)];
            parameters.extend(statement.looks_at_the_clock().then(|| value(now.0)));
            Call { sql: sql(statement), parameters }
        });
        Ok(Usage::from_figures(&self.figures(calls.into()).await?)?)
    }

    /// See [`crate::store::Store::pressure`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn pressure(&self) -> Result<Pressure, ReadError> {
        let call = |sql| Call { sql, parameters: vec![value(COUNTED_MAX)] };
        let found = self.figures(vec![call(ALL_UNRESOLVED), call(ALL_UNACKED)]).await?;
        let number = |at: usize| found.get(at).and_then(|rows| rows.first()?.first().copied());
        Ok(Pressure {
            unresolved: number(0).unwrap_or(0),
            oldest_unacked: number(1).and_then(time),
        })
    }

    async fn figures(&self, calls: Vec<Call<'_>>) -> Result<Vec<Figures>, ReadError> {
        let replies = self.snapshot(calls).await?;
        let mut all = Vec::new();
        for rows in replies.into_rows() {
            let mut figures = Figures::new();
            for row in &rows {
                let mut fields = Fields::new(row, "usage");
                let numbers = (0..row.len()).map(|_| fields.take()).collect::<Result<_, _>>()?;
                figures.push(numbers);
            }
            all.push(figures);
        }
        Ok(all)
    }
}
