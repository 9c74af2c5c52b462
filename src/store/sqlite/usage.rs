//! The reads of [`crate::store::usage`], each in one read transaction.
//!
//! What must stay true: each statement stops at its limit, whatever the table holds.

use rusqlite::{Connection, Params, params};

use super::{SqliteStore, by_key::many, fault::Fault};
use crate::{
    domain::ids::{Account, Timestamp},
    store::{
        ReadError,
        usage::{COUNTED_MAX, Figures, Pressure, Statement, Usage, time},
    },
};

/// Index: the primary key.
const OPERATIONS: &str = "SELECT o.state, o.retained, count(*), coalesce(sum(o.replay_count), 0) FROM (SELECT \
    state, retained, replay_count FROM operations NOT INDEXED WHERE bucket = ?1 AND account \
    = ?2 LIMIT ?3) o GROUP BY o.state, o.retained ORDER BY o.state, o.retained";
/// Index: operations_unresolved.
const UNRESOLVED: &str = "SELECT count(*), coalesce(min(o.accept_time), 0) FROM (SELECT accept_time FROM \
    operations INDEXED BY operations_unresolved WHERE bucket = ?1 AND account = ?2 AND \
    end_time IS NULL ORDER BY accept_time LIMIT ?3) o";
/// Index: the primary key.
const DOCUMENTS: &str = "SELECT count(*), count(*) FILTER (WHERE d.present = 1), coalesce(sum(d.size) FILTER \
    (WHERE d.present = 1), 0) FROM (SELECT present, size FROM documents NOT INDEXED WHERE \
    bucket = ?1 AND account = ?2 LIMIT ?3) d";
/// Index: the primary key.
const PAYLOADS: &str = "SELECT count(*), coalesce(sum(p.size), 0) FROM (SELECT length(body) AS size FROM \
    payloads NOT INDEXED WHERE bucket = ?1 AND account = ?2 LIMIT ?3) p";
/// Index: the primary key.
const INBOXES: &str = "SELECT count(*), count(*) FILTER (WHERE i.deleted = 0), coalesce(sum(i.reserved), 0), \
    coalesce(sum(i.pending), 0), coalesce(sum(i.in_flight), 0), coalesce(sum(i.acked_total), \
    0), coalesce(sum(i.expired_total), 0), coalesce(sum(i.dead_total), 0) FROM (SELECT * \
    FROM inboxes NOT INDEXED WHERE bucket = ?1 AND account = ?2 LIMIT ?3) i";
/// Index: the primary key, and deliveries_open.
const UNACKED: &str = "SELECT coalesce(min(q.queue_time), 0) FROM (SELECT (SELECT d.queue_time FROM deliveries \
    d INDEXED BY deliveries_open WHERE d.bucket = i.bucket AND d.account = i.account AND \
    d.inbox = i.inbox AND d.due_time IS NOT NULL ORDER BY d.sequence LIMIT 1) AS queue_time \
    FROM (SELECT bucket, account, inbox, pending, in_flight FROM inboxes NOT INDEXED WHERE \
    bucket = ?1 AND account = ?2 LIMIT ?3) i WHERE i.pending + i.in_flight > 0) q";
/// Index: deliveries_due.
const OVERDUE_DELIVERIES: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = ?2), 0) FROM (SELECT \
    account, due_time FROM deliveries INDEXED BY deliveries_due WHERE bucket = ?1 AND \
    due_time <= ?4 ORDER BY due_time LIMIT ?3) d";
/// Index: operations_due.
const OVERDUE_OPERATIONS: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = ?2), 0) FROM (SELECT \
    account, due_time FROM operations INDEXED BY operations_due WHERE bucket = ?1 AND \
    due_time <= ?4 AND end_time IS NULL ORDER BY due_time LIMIT ?3) d";
/// Index: locks_due.
const OVERDUE_LOCKS: &str = "SELECT count(*), coalesce(min(d.due_time) FILTER (WHERE d.account = ?2), 0) FROM (SELECT \
    account, due_time FROM locks INDEXED BY locks_due WHERE bucket = ?1 AND due_time <= ?4 \
    ORDER BY due_time LIMIT ?3) d";
/// Index: operations_unresolved.
const ALL_UNRESOLVED: &str = "SELECT count(*) FROM (SELECT 1 FROM operations INDEXED BY operations_unresolved WHERE \
    end_time IS NULL LIMIT ?1) o";
/// Index: deliveries_open.
const ALL_UNACKED: &str = "SELECT coalesce(min(d.queue_time), 0) FROM (SELECT queue_time FROM deliveries INDEXED BY \
    deliveries_open WHERE due_time IS NOT NULL LIMIT ?1) d";

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

impl SqliteStore {
    /// See [`crate::store::Store::usage`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn usage(&self, account: &Account, now: Timestamp) -> Result<Usage, ReadError> {
        let account = account.clone();
        self.read(move |connection| {
            let mut all = Vec::new();
            for statement in Statement::ALL {
                let (bucket, name) = (account.bucket(), account.as_str());
                let found = match statement.looks_at_the_clock() {
                    true => {
                        let parameters = params![bucket, name, COUNTED_MAX, now.0];
                        figures(connection, sql(statement), parameters)?
                    }
                    false => {
                        figures(connection, sql(statement), params![bucket, name, COUNTED_MAX])?
                    }
                };
                all.push(found);
            }
            Ok(Usage::from_figures(&all)?)
        })
        .await
    }

    /// See [`crate::store::Store::pressure`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn pressure(&self) -> Result<Pressure, ReadError> {
        self.read(|connection| {
            let number = |sql| {
                let rows = figures(connection, sql, params![COUNTED_MAX])?;
                Ok::<i64, Fault>(rows.first().and_then(|row| row.first().copied()).unwrap_or(0))
            };
            Ok(Pressure {
                unresolved: number(ALL_UNRESOLVED)?,
                oldest_unacked: time(number(ALL_UNACKED)?),
            })
        })
        .await
    }
}

fn figures(
    connection: &Connection,
    sql: &'static str,
    parameters: impl Params,
) -> Result<Figures, Fault> {
    many(connection, sql, parameters, |row| {
        let columns = row.as_ref().column_count();
        Ok((0..columns).map(|at| row.get(at)).collect::<Result<Vec<i64>, _>>()?)
    })
}
