//! Numbers that will not come: lost deliveries as ranges.
//!
//! What must stay true: a range holds consecutive numbers of one cause and nothing else, so that a
//! reader may take it literally.

use std::collections::BTreeMap;

use super::{Frame, GapCause};
use crate::domain::{
    delivery::{Delivery, DeliveryState},
    ids::OperationId,
};

/// Operation ids in one frame (contract section 7); a longer run continues in further frames.
pub(super) const GAP_IDS_MAX: usize = 100;

/// Ranges remembered as told, of numbers beyond the position: some hundred KiB at worst. Beyond
/// that the lowest is forgotten and may be told twice, which costs a frame and never a result.
const TOLD_RANGES_MAX: usize = 10_000;

/// Consecutive lost numbers of one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GapRange {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) cause: DeliveryState,
    pub(super) operation_ids: Vec<OperationId>,
}

impl GapRange {
    pub(super) fn into_frame(self) -> Frame {
        let GapRange { first, last, cause, operation_ids } = self;
        let cause = match cause {
            DeliveryState::Dead => GapCause::Dead,
            // Nothing else is ever lost.
            DeliveryState::Expired
            | DeliveryState::Pending
            | DeliveryState::InFlight
            | DeliveryState::Acked => GapCause::Expired,
        };
        Frame::Gap { first, last, cause, operation_ids }
    }

    fn continues_with(&self, delivery: &Delivery) -> bool {
        delivery.key.sequence == self.last + 1
            && delivery.state == self.cause
            && self.operation_ids.len() < GAP_IDS_MAX
    }
}

/// Merges lost deliveries, which come by number, into ranges.
#[derive(Debug, Default)]
pub(super) struct GapMerger {
    open: Option<GapRange>,
}

impl GapMerger {
    /// Takes the next lost delivery; returns the range that it does not continue.
    pub(super) fn push(&mut self, delivery: &Delivery) -> Option<GapRange> {
        let sequence = delivery.key.sequence;
        if let Some(open) = self.open.as_mut().filter(|open| open.continues_with(delivery)) {
            open.last = sequence;
            open.operation_ids.push(delivery.operation_id.clone());
            return None;
        }
        self.open.replace(GapRange {
            first: sequence,
            last: sequence,
            cause: delivery.state,
            operation_ids: vec![delivery.operation_id.clone()],
        })
    }

    /// The last range.
    pub(super) fn finish(self) -> Option<GapRange> {
        self.open
    }
}

/// What was told beyond the position, so that it is not told again: first and last of each range.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    ranges: BTreeMap<i64, i64>,
}

impl Told {
    /// Adds a range, which may hold or touch others: they become one.
    pub(super) fn add(&mut self, first: i64, last: i64) {
        let (mut first, mut last) = (first, last);
        while let Some((start, end)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            let (start, end) = (*start, *end);
            if end.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.ranges.insert(first, last);
        if self.ranges.len() > TOLD_RANGES_MAX {
            self.ranges.pop_first();
        }
    }

    /// The parts of a range that it does not hold.
    pub(super) fn holes(&self, first: i64, last: i64) -> Vec<(i64, i64)> {
        let mut holes = Vec::new();
        let mut next = self.last_of(first).map_or(first, |end| end + 1);
        for (start, end) in self.ranges.range(first..=last) {
            if *start > next {
                holes.push((next, start - 1));
            }
            next = next.max(end + 1);
        }
        if next <= last {
            holes.push((next, last));
        }
        holes
    }

    pub(super) fn holds(&self, sequence: i64) -> bool {
        self.last_of(sequence).is_some()
    }

    /// The end of the range that holds a number.
    pub(super) fn last_of(&self, sequence: i64) -> Option<i64> {
        let (_, last) = self.ranges.range(..=sequence).next_back()?;
        Some(*last).filter(|last| *last >= sequence)
    }

    /// The position passed: what lies below it is never asked for again.
    pub(super) fn forget_up_to(&mut self, position: i64) {
        while self.ranges.first_key_value().is_some_and(|(_, last)| *last <= position) {
            self.ranges.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::testing::delivery;

    fn merged(lost: &[(i64, DeliveryState)]) -> Vec<GapRange> {
        let mut merger = GapMerger::default();
        let mut ranges = Vec::new();
        for (sequence, state) in lost {
            ranges.extend(merger.push(&delivery(*sequence, *state)));
        }
        ranges.extend(merger.finish());
        ranges
    }

    #[test]
    fn a_range_ends_where_another_number_or_cause_lies_between() {
        use DeliveryState::{Dead, Expired};
        let lost = [(1, Expired), (2, Expired), (3, Dead), (5, Dead), (6, Dead), (9, Expired)];
        let ranges: Vec<_> =
            merged(&lost).into_iter().map(|range| (range.first, range.last, range.cause)).collect();
        assert_eq!(ranges, [(1, 2, Expired), (3, 3, Dead), (5, 6, Dead), (9, 9, Expired)]);
        assert_eq!(merged(&[]), []);
    }

    #[test]
    fn a_long_run_continues_in_further_frames() {
        let lost: Vec<_> = (1..=250).map(|number| (number, DeliveryState::Expired)).collect();
        let ranges = merged(&lost);
        let bounds: Vec<_> = ranges.iter().map(|range| (range.first, range.last)).collect();
        assert_eq!(bounds, [(1, 100), (101, 200), (201, 250)]);
        assert!(ranges.iter().all(|range| {
            i64::try_from(range.operation_ids.len()) == Ok(range.last - range.first + 1)
        }));
    }

    #[test]
    fn what_was_told_is_remembered_until_the_position_passes() {
        let mut told = Told::default();
        told.add(9, 9);
        told.add(7, 7);
        told.add(5, 6);
        assert_eq!((told.last_of(5), told.last_of(8), told.last_of(9)), (Some(7), None, Some(9)));
        assert_eq!(told.ranges.len(), 2);
        assert!(told.holds(5) && told.holds(7) && told.holds(9));
        assert!(!told.holds(4) && !told.holds(8) && !told.holds(10));
        assert_eq!(told.holes(1, 12), [(1, 4), (8, 8), (10, 12)]);
        assert_eq!((told.holes(5, 7), told.holes(6, 8)), (vec![], vec![(8, 8)]));
        // A number that was told, redriven, shown here and lost again.
        told.add(6, 6);
        assert!(told.holds(5) && told.holds(7), "a part of a range splits nothing");
        told.forget_up_to(8);
        assert!(!told.holds(7) && told.holds(9));
        for number in 0..20_000 {
            told.add(10 * number, 10 * number);
        }
        assert_eq!(told.ranges.len(), TOLD_RANGES_MAX);
    }
}
