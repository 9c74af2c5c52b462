//! What an engine has done since it started: the measure of the row budget.
//!
//! What must stay true: every batch that ended well counts once, with what it cost; nothing here
//! is read by a decision. The metrics say the same of the process; this says it of one engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::Touches;

/// What an engine has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches that ended well, those that changed nothing among them.
    pub batches: usize,
    /// Commands in these batches; one that was put off counts in each.
    pub commands: usize,
    /// What the batches cost together.
    pub touches: Touches,
}

/// The counter of an engine.
#[derive(Debug, Default)]
pub(super) struct Counter(Mutex<Totals>);

impl Counter {
    /// Adds a batch.
    pub(super) fn add(&self, commands: usize, cost: Touches) {
        let Touches { loaded, saved, round_trips, commits } = cost;
        let mut totals = self.lock();
        totals.batches += 1;
        totals.commands += commands;
        totals.touches.loaded += loaded;
        totals.touches.saved += saved;
        totals.touches.round_trips += round_trips;
        totals.touches.commits += commits;
    }

    /// Everything so far.
    pub(super) fn totals(&self) -> Totals {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Totals> {
        // Additions cannot fail half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
