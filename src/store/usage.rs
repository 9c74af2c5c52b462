//! What an account has in a store, in figures: bounded counts, for operators.
//!
//! What must stay true: no statement examines more than [`COUNTED_MAX`] rows, so that an account with
//! millions costs as much as one with some ten thousand; what was not counted to its end says so.
//! Deliberately not here: limits that are enforced, which are counted in rows of their own.

use super::{ReadError, Store};
use crate::domain::{
    ids::{Account, Timestamp},
    operation::{OperationState, Retained},
    record::Unreadable,
};

/// Rows of one kind that are counted: some tens of milliseconds.
pub const COUNTED_MAX: i64 = 100_000;

/// Operations of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationCount {
    /// Which.
    pub state: OperationState,
    /// How many, tombstones among them.
    pub count: i64,
    /// How many of them are tombstones.
    pub compacted: i64,
    /// How often they were asked for again: replays and attaches, each an effect that was not done
    /// twice.
    pub replays: i64,
}

/// What an account has, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Operations by state, in order of the states' numbers.
    pub operations: Vec<OperationCount>,
    /// Operations that have not ended.
    pub unresolved: i64,
    /// When the oldest of them was accepted.
    pub oldest_unresolved: Option<Timestamp>,
    /// Documents that exist.
    pub documents: i64,
    /// Bytes of their contents.
    pub document_bytes: i64,
    /// Bytes of arguments and results that are kept apart.
    pub payload_bytes: i64,
    /// Inboxes that are not deleted.
    pub inboxes: i64,
    /// Their slots reserved by unfinished operations.
    pub reserved: i64,
    /// Their deliveries that wait.
    pub pending: i64,
    /// Their deliveries in flight.
    pub in_flight: i64,
    /// Deliveries acked, since the inboxes began.
    pub acked: i64,
    /// Deliveries whose ack window passed.
    pub expired: i64,
    /// Deliveries whose retry budget was spent.
    pub dead: i64,
    /// When the oldest unacked result was queued.
    pub oldest_unacked: Option<Timestamp>,
    /// Since when the oldest of what the sweep has to end is due.
    pub oldest_overdue: Option<Timestamp>,
    /// At least one figure was not counted to its end.
    pub at_least: bool,
}

/// What all accounts of a store have, for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Operations that have not ended; at most [`COUNTED_MAX`] are counted.
    pub unresolved: i64,
    /// When the oldest unacked result was queued, among as many that are looked at.
    pub oldest_unacked: Option<Timestamp>,
}

/// Rows of numbers that one statement found.
pub(super) type Figures = Vec<Vec<i64>>;

impl Usage {
    /// Puts together what the statements found, in the order of [`Statement::ALL`].
    pub(super) fn from_figures(figures: &[Figures]) -> Result<Usage, Unreadable> {
        let mut usage = Usage::default();
        for (statement, rows) in Statement::ALL.into_iter().zip(figures) {
            for row in rows {
                usage.add(statement, row).ok_or(Unreadable { what: "usage" })?;
            }
        }
        Ok(usage)
    }

    fn add(&mut self, statement: Statement, row: &[i64]) -> Option<()> {
        let mut counted = 0;
        match (statement, row) {
            (Statement::Operations, &[state, retained, count, replays]) => {
                let state = OperationState::from_stored(i16::try_from(state).ok()?)?;
                let retained = Retained::from_stored(i16::try_from(retained).ok()?)?;
                let compacted = if retained == Retained::Whole { 0 } else { count };
                match self.operations.last_mut().filter(|before| before.state == state) {
                    Some(before) => {
                        before.count += count;
                        before.compacted += compacted;
                        before.replays += replays;
                    }
                    None => {
                        self.operations.push(OperationCount { state, count, compacted, replays });
                    }
                }
                counted = self.operations.iter().map(|counted| counted.count).sum();
            }
            (Statement::Unresolved, &[count, oldest]) => {
                (self.unresolved, self.oldest_unresolved) = (count, time(oldest));
                counted = count;
            }
            (Statement::Documents, &[examined, count, bytes]) => {
                (self.documents, self.document_bytes) = (count, bytes);
                counted = examined;
            }
            (Statement::Payloads, &[examined, bytes]) => {
                self.payload_bytes = bytes;
                counted = examined;
            }
            (
                Statement::Inboxes,
                &[examined, count, reserved, pending, in_flight, acked, expired, dead],
            ) => {
                (self.inboxes, self.reserved) = (count, reserved);
                (self.pending, self.in_flight) = (pending, in_flight);
                (self.acked, self.expired, self.dead) = (acked, expired, dead);
                counted = examined;
            }
            (Statement::Unacked, &[oldest]) => self.oldest_unacked = time(oldest),
            (
                Statement::OverdueDeliveries
                | Statement::OverdueOperations
                | Statement::OverdueLocks,
                &[examined, oldest],
            ) => {
                let oldest = time(oldest);
                self.oldest_overdue = self.oldest_overdue.into_iter().chain(oldest).min();
                counted = examined;
            }
            _ => return None,
        }
        self.at_least |= counted >= COUNTED_MAX;
        Some(())
    }
}

/// 0 stands for none: no store is as old.
pub(super) fn time(micros: i64) -> Option<Timestamp> {
    (micros != 0).then_some(Timestamp(micros))
}

/// What is asked, each in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statement {
    /// State, retained, count and replays.
    Operations,
    /// Count and the oldest acceptance.
    Unresolved,
    /// Rows examined, those that exist and their bytes.
    Documents,
    /// Rows examined and their bytes.
    Payloads,
    /// Rows examined, those in use, and the sums of their counters.
    Inboxes,
    /// The oldest queue time of what is open.
    Unacked,
    /// Due rows of the bucket examined, and the oldest of the account.
    OverdueDeliveries,
    /// The same.
    OverdueOperations,
    /// The same.
    OverdueLocks,
}

impl Statement {
    pub(super) const ALL: [Statement; 9] = [
        Statement::Operations,
        Statement::Unresolved,
        Statement::Documents,
        Statement::Payloads,
        Statement::Inboxes,
        Statement::Unacked,
        Statement::OverdueDeliveries,
        Statement::OverdueOperations,
        Statement::OverdueLocks,
    ];

    /// Whether it looks at what is due now, and so has the time as its last parameter.
    pub(super) fn looks_at_the_clock(self) -> bool {
        use Statement::{OverdueDeliveries, OverdueLocks, OverdueOperations};
        matches!(self, OverdueDeliveries | OverdueOperations | OverdueLocks)
    }
}

impl Store {
    /// What an account has. One snapshot.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn usage(&self, account: &Account) -> Result<Usage, ReadError> {
        let now = self.now().await?;
        match self {
            Store::Sqlite(store) => store.usage(account, now).await,
            Store::Postgres(store) => store.usage(account, now).await,
        }
    }

    /// What all accounts have together.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn pressure(&self) -> Result<Pressure, ReadError> {
        match self {
            Store::Sqlite(store) => store.pressure().await,
            Store::Postgres(store) => store.pressure().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(operations: Figures) -> Vec<Figures> {
        vec![
            operations,
            vec![vec![2, 7]],
            vec![vec![5, 4, 100]],
            vec![vec![3, 6_000]],
            vec![vec![3, 2, 1, 4, 5, 60, 7, 8]],
            vec![vec![11]],
            vec![vec![4, 30]],
            vec![vec![1, 20]],
            vec![vec![0, 0]],
        ]
    }

    #[test]
    fn figures_are_put_together() {
        let applied = OperationState::Applied as i64;
        let rows = vec![vec![applied, 1, 10, 3], vec![applied, 2, 5, 1], vec![4, 1, 2, 0]];
        let usage = Usage::from_figures(&figures(rows)).expect("readable");
        let counts: Vec<_> = usage
            .operations
            .iter()
            .map(|of| (of.state, of.count, of.compacted, of.replays))
            .collect();
        assert_eq!(
            counts,
            [(OperationState::Applied, 15, 5, 4), (OperationState::Rejected, 2, 0, 0)]
        );
        assert_eq!((usage.unresolved, usage.oldest_unresolved), (2, Some(Timestamp(7))));
        assert_eq!((usage.documents, usage.document_bytes, usage.payload_bytes), (4, 100, 6_000));
        assert_eq!((usage.inboxes, usage.reserved, usage.pending, usage.in_flight), (2, 1, 4, 5));
        assert_eq!((usage.acked, usage.expired, usage.dead), (60, 7, 8));
        assert_eq!(usage.oldest_unacked, Some(Timestamp(11)));
        assert_eq!(usage.oldest_overdue, Some(Timestamp(20)), "the oldest of all kinds");
        assert!(!usage.at_least);
    }

    #[test]
    fn what_is_not_counted_to_its_end_says_so() {
        let many = vec![vec![3, 1, COUNTED_MAX - 1, 0], vec![4, 1, 1, 0]];
        assert!(Usage::from_figures(&figures(many)).expect("readable").at_least);
        let wrong = vec![vec![99, 1, 1, 0]];
        assert!(Usage::from_figures(&figures(wrong)).is_err());
    }
}
