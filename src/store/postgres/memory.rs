//! What this process remembers of what it acknowledged, so that it can say after a failover whether
//! the promoted server holds it.
//!
//! What must stay true: once it was asked for a timeline, nothing that was written on an older one
//! is acknowledged any more: an answer that comes late is one that was lost, and is settled where
//! the store is now. Deliberately not here: reading whether something is there.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::store::BatchName;

/// Names of batches that are remembered. Only commits that were under way together can have been
/// answered in another order than they were written, and a replica has at most a hundred
/// connections: the last one written is among so many.
const BATCHES_MAX: usize = 128;

/// The newest acknowledged writes of this process.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// Writes on older timelines do not count any more.
    fence: i32,
    acknowledged: u64,
    /// Each with its place among all.
    batches: VecDeque<(u64, i16, [u8; 16])>,
    beats: i64,
}

/// What has to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) batches: Vec<(i16, [u8; 16])>,
    pub(super) beats: i64,
}

impl Memory {
    /// Remembers a batch that was committed on a timeline. `false`: its answer came too late to
    /// count.
    #[must_use]
    pub(super) fn acknowledge(&self, batch: &BatchName, timeline: i32) -> bool {
        let mut own = self.own();
        if timeline < own.fence {
            return false;
        }
        own.acknowledged += 1;
        let place = own.acknowledged;
        own.batches.push_back((place, batch.bucket, batch.id));
        if own.batches.len() > BATCHES_MAX {
            own.batches.pop_front();
        }
        true
    }

    /// The place of the last acknowledged batch, before a sign of life is written.
    pub(super) fn place(&self) -> u64 {
        self.own().acknowledged
    }

    /// A sign of life was written after the batch at `place` was acknowledged: where that is, the
    /// batch is too.
    pub(super) fn beaten(&self, beats: i64, place: u64) {
        let mut own = self.own();
        own.beats = own.beats.max(beats);
        own.batches.retain(|(batch, _, _)| *batch > place);
    }

    /// What has to be there on a timeline; from here on nothing older counts.
    pub(super) fn newest(&self, timeline: i32) -> Newest {
        let mut own = self.own();
        own.fence = own.fence.max(timeline);
        let batches = own.batches.iter().map(|(_, bucket, id)| (*bucket, *id)).collect();
        Newest { batches, beats: own.beats }
    }

    /// Another life has begun: what was acknowledged in the one before may be lost, and everybody
    /// knows.
    pub(super) fn forget(&self) {
        let mut own = self.own();
        own.batches.clear();
        own.beats = 0;
    }

    fn own(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u8) -> BatchName {
        BatchName { bucket: 0, id: [number; 16], replica: [9; 16] }
    }

    fn ids(memory: &Memory, timeline: i32) -> Vec<u8> {
        memory.newest(timeline).batches.iter().map(|(_, id)| id[0]).collect()
    }

    #[test]
    fn a_sign_of_life_stands_for_what_was_acknowledged_before_it_was_written() {
        let memory = Memory::default();
        assert_eq!(memory.newest(1), Newest { batches: vec![], beats: 0 });
        assert!(memory.acknowledge(&batch(1), 1));
        let place = memory.place();
        assert!(memory.acknowledge(&batch(2), 1), "while the sign is on its way");
        memory.beaten(1, place);
        assert_eq!(ids(&memory, 1), [2]);
        assert_eq!(memory.newest(1).beats, 1);
        memory.forget();
        assert_eq!(memory.newest(1), Newest { batches: vec![], beats: 0 });
    }

    #[test]
    fn a_late_answer_of_the_old_primary_is_none() {
        let memory = Memory::default();
        assert!(memory.acknowledge(&batch(1), 1));
        assert_eq!(ids(&memory, 2), [1]);
        assert!(!memory.acknowledge(&batch(2), 1));
        assert!(memory.acknowledge(&batch(3), 2));
        assert_eq!(ids(&memory, 2), [1, 3]);
    }

    #[test]
    fn it_stays_small() {
        let memory = Memory::default();
        for number in 0..=255 {
            assert!(memory.acknowledge(&batch(number), 1));
        }
        assert_eq!(ids(&memory, 1), (128..=255).collect::<Vec<u8>>());
    }
}
