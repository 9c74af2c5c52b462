//! What an engine has done since it started: the measure of the row budget.
//!
//! What must stay true: every batch that ended well counts once, with what it cost; nothing here
//! is read by a decision. The metrics say the same of the process; this says it of one engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    domain::{
        command::{Intention, Origin, Reply},
        refusal::Refusal,
    },
    store::Touches,
};

/// What an engine has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Batches that ended well, those that changed nothing among them.
    pub batches: usize,
    /// Commands in these batches; one that was put off counts in each.
    pub commands: usize,
    /// What the batches cost together.
    pub touches: Touches,
    /// What submits came to.
    pub submits: Submits,
}

/// What submits came to: effects are counted where they were committed, not where they were
/// answered (R59).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Submits {
    /// Operations that a submit recorded.
    pub executed: u64,
    /// Submits that joined work which had not ended.
    pub attached: u64,
    /// Submits that were answered with a stored receipt.
    pub replayed: u64,
    /// Submits of another intent under a used id.
    pub mismatched: u64,
    /// Operations that became APPLIED in a commit, whoever caused it.
    pub effects: u64,
}

impl Submits {
    /// Effects that a retry would have caused a second time: what found a record.
    pub fn duplicates_prevented(&self) -> u64 {
        self.attached + self.replayed + self.mismatched
    }

    /// Each of the figures of submits, by its word.
    pub fn by_origin(&self) -> [(&'static str, u64); 4] {
        [
            ("executed", self.executed),
            ("attached", self.attached),
            ("replayed", self.replayed),
            ("mismatched", self.mismatched),
        ]
    }

    /// What a batch adds, by its answers and the effects in its commit.
    pub(super) fn of<'a>(
        answers: impl Iterator<Item = &'a Result<Reply, Refusal>>,
        effects: u64,
    ) -> Submits {
        let mut submits = Submits { effects, ..Submits::default() };
        for answer in answers {
            match answer {
                Ok(Reply::Submitted(submitted)) if submitted.intention == Intention::Execute => {
                    match submitted.origin {
                        Origin::Executed => submits.executed += 1,
                        Origin::Attached => submits.attached += 1,
                        Origin::Replayed => submits.replayed += 1,
                    }
                }
                Err(Refusal::IntentMismatch { .. }) => submits.mismatched += 1,
                Ok(_) | Err(_) => {}
            }
        }
        submits
    }
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

    /// Adds what the submits of a batch came to.
    pub(super) fn add_submits(&self, added: &Submits) {
        let Submits { executed, attached, replayed, mismatched, effects } = *added;
        let submits = &mut self.lock().submits;
        submits.executed += executed;
        submits.attached += attached;
        submits.replayed += replayed;
        submits.mismatched += mismatched;
        submits.effects += effects;
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
