//! How far a stream has come: what it showed, what it told, and the position of its token.
//!
//! What must stay true: a token never claims more than was sent; below the position there is
//! nothing that may still be lost and was not shown here, because what is lost is told from the
//! position on. A position that is too low costs a gap told twice; one that is too high would leave
//! a lost number untold. Deliveries themselves do not depend on it: whatever is unacked comes again,
//! before the position too.

use std::collections::{BTreeMap, BTreeSet};

use super::gaps::{GapRange, Told};
use crate::domain::{
    delivery::{Delivery, DeliveryState},
    ids::{ConsumerId, OperationId},
    inbox::Inbox,
};

/// A shown delivery that ended elsewhere: its number, and its operation and how it ended unless its
/// row was purged before that was seen.
pub(super) type Ended = (i64, Option<(OperationId, DeliveryState)>);

/// Shown deliveries that are watched beyond the window: what returned after its ack deadline, or
/// is with another consumer, leaves the window and is still worth a word when it ends. What is more
/// is forgotten from the lowest on, and told as a gap if it is lost.
const WATCHED_BEYOND_WINDOW: usize = 1_000;
/// So many more are shown before they are compared without waiting for the tick, so that those
/// that were acked make room for those that are still open, however fast they come and go: several
/// pages, and far below what is watched.
const COMPARED_AFTER: usize = 500;

/// Whether everything that was there at the opening has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backlog {
    /// Not yet.
    Sending,
    /// It has, and the client was told.
    Sent,
}

/// How far a stream has come.
#[derive(Debug)]
pub(super) struct Progress {
    /// What the next token says.
    position: i64,
    /// Every number up to here was shown to somebody, was told, or had been acked.
    cursor: i64,
    /// The highest number at the opening.
    last_at_open: i64,
    backlog: Backlog,
    /// Shown on this stream, and not known to have ended, whoever has them now.
    shown: BTreeSet<i64>,
    shown_max: usize,
    /// At this size what was shown is compared with the rows.
    compare_at: usize,
    /// Beyond the position: told as lost, or shown here and known to have ended.
    told: Told,
}

impl Progress {
    /// At the opening, from the token's position (0 without a token).
    pub(super) fn new(position: i64, opened: &Inbox, window: i64) -> Self {
        let window = usize::try_from(window).unwrap_or(1).max(1);
        Progress {
            position,
            cursor: opened.offered.max(position),
            last_at_open: opened.last_sequence(),
            backlog: Backlog::Sending,
            shown: BTreeSet::new(),
            // What is shown at once is a window at most.
            shown_max: window.saturating_mul(2).saturating_add(WATCHED_BEYOND_WINDOW),
            compare_at: window.saturating_add(COMPARED_AFTER),
            told: Told::default(),
        }
    }

    pub(super) fn position(&self) -> i64 {
        self.position
    }

    pub(super) fn cursor(&self) -> i64 {
        self.cursor
    }

    pub(super) fn last_at_open(&self) -> i64 {
        self.last_at_open
    }

    pub(super) fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Up to which number everything is with somebody, told or acked once the page of an offer is
    /// sent. While deliveries that were never sent wait although the offer found no more, they are
    /// past their ack window and about to be swept: the cursor waits until they can be told.
    pub(super) fn covered(&self, inbox: &Inbox, offer: Offered) -> i64 {
        match (has_fresh(inbox), offer) {
            (false, _) => inbox.last_sequence(),
            (true, Offered::Full) => inbox.offered.max(self.cursor),
            (true, Offered::Short) => self.cursor,
        }
    }

    /// Whether everything that was there at the opening and can be sent now is with the client,
    /// once the page of an offer is sent. What can't be sent yet is still owed.
    pub(super) fn backlog_ends(&self, inbox: &Inbox, offer: Offered) -> bool {
        match offer {
            Offered::Short => true,
            Offered::Full => {
                inbox.pending == 0
                    || (inbox.returned == 0 && self.covered(inbox, offer) >= self.last_at_open)
            }
        }
    }

    /// Whether numbers between the cursor and `covered` are missing from a page: shown to others,
    /// acked, or lost.
    pub(super) fn misses_any(&self, page: &[i64], covered: i64) -> bool {
        let fresh = page.iter().filter(|number| (self.cursor + 1..=covered).contains(*number));
        let fresh = i64::try_from(fresh.count()).unwrap_or(i64::MAX);
        fresh < covered - self.cursor
    }

    /// Whether a delivery that waits was there at the opening and has not been shown here.
    pub(super) fn is_owed(&self, sequence: i64) -> bool {
        sequence <= self.last_at_open && !self.shown.contains(&sequence)
    }

    /// Whether a delivery was shown here and is not known to have ended.
    pub(super) fn has_shown(&self, sequence: i64) -> bool {
        self.shown.contains(&sequence)
    }

    /// Whether a number was told as lost, or was shown here and is known to have ended.
    pub(super) fn is_over(&self, sequence: i64) -> bool {
        self.told.holds(sequence)
    }

    /// Whether a lost number is still to be told. What was shown here is withdrawn instead.
    pub(super) fn is_untold(&self, sequence: i64) -> bool {
        !self.told.holds(sequence) && !self.shown.contains(&sequence)
    }

    /// From which number on lost ones may be untold, at `after` or beyond.
    pub(super) fn untold_after(&self, after: i64) -> i64 {
        self.told.last_of(after + 1).unwrap_or(after)
    }

    /// A range was told.
    pub(super) fn told(&mut self, range: &GapRange) {
        self.told.add(range.first, range.last);
    }

    /// A range without deliveries was told.
    pub(super) fn skip(&mut self, first: i64, last: i64) {
        self.told.add(first, last);
    }

    /// A delivery goes out with the next frame.
    pub(super) fn show(&mut self, sequence: i64) {
        self.shown.insert(sequence);
        while self.shown.len() > self.shown_max {
            self.shown.pop_first();
        }
    }

    /// A page has been sent as a whole.
    pub(super) fn cover(&mut self, covered: i64) {
        self.cursor = self.cursor.max(covered);
    }

    /// Everything that was there at the opening has been sent.
    pub(super) fn catch_up(&mut self) {
        self.backlog = Backlog::Sent;
    }

    /// Nothing up to here may still be lost untold.
    pub(super) fn raise(&mut self, position: i64) {
        self.position = self.position.max(position);
        self.told.forget_up_to(self.position);
    }

    /// How far the position may rise, by the inbox's first open deliveries after it: to just below
    /// the lowest that was not shown here, whoever has it. `next`: where the list goes on, if it
    /// does.
    pub(super) fn reach(&self, open: &[Delivery], next: Option<i64>) -> i64 {
        let mut numbers = open.iter().map(|delivery| delivery.key.sequence);
        let unshown = numbers.find(|number| !self.shown.contains(number));
        unshown.map(|number| number - 1).or(next).unwrap_or(self.cursor).min(self.cursor)
    }

    /// How many are watched.
    pub(super) fn shown_count(&self) -> usize {
        self.shown.len()
    }

    /// The numbers to ask for when something ended.
    pub(super) fn shown(&self) -> Vec<i64> {
        self.shown.iter().copied().collect()
    }

    /// Whether so much was shown that it is time to see what of it has ended.
    pub(super) fn is_crowded(&self) -> bool {
        self.shown.len() >= self.compare_at
    }

    /// Compares what was shown with the rows as they are, those that exist: returns what ended
    /// elsewhere, and forgets what is no longer this stream's concern. Only an end is a word: who
    /// had a delivery in between is seen at one time and not at another, and its end stays.
    pub(super) fn settle(&mut self, rows: &[Delivery], consumer: &ConsumerId) -> Vec<Ended> {
        let rows: BTreeMap<i64, &Delivery> =
            rows.iter().map(|row| (row.key.sequence, row)).collect();
        let mut open = BTreeSet::new();
        let mut ended = Vec::new();
        for sequence in std::mem::take(&mut self.shown) {
            let row = rows.get(&sequence);
            match row.map_or(Fate::Ended, |row| fate(row, consumer)) {
                Fate::Open => {
                    open.insert(sequence);
                    continue;
                }
                Fate::AckedHere => {}
                Fate::Ended => {
                    ended.push((sequence, row.map(|row| (row.operation_id.clone(), row.state))));
                }
            }
            // What was shown here is no gap, lost or purged.
            self.told.add(sequence, sequence);
        }
        self.told.forget_up_to(self.position);
        self.compare_at = self.compare_at.max(open.len().saturating_add(COMPARED_AFTER));
        self.shown = open;
        ended
    }

    /// The parts of a range that were neither shown nor told here.
    pub(super) fn untold(&self, first: i64, last: i64) -> Vec<(i64, i64)> {
        let mut known = self.told.clone();
        self.shown.range(first..=last).for_each(|number| known.add(*number, *number));
        known.holes(first, last)
    }
}

/// Whether deliveries wait that were never sent.
pub(super) fn has_fresh(inbox: &Inbox) -> bool {
    inbox.pending > inbox.returned
}

/// Whether, by the inbox's row, nothing is open below what was offered to this stream, but for what
/// it holds itself: nothing came back, nothing is with others, and no fresh delivery was passed
/// over because its ack window had ended.
pub(super) fn is_straight(inbox: &Inbox, own_in_flight: i64) -> bool {
    inbox.returned == 0
        && inbox.in_flight == own_in_flight
        && inbox.pending <= inbox.last_sequence() - inbox.offered
}

/// Whether an offer returned as many deliveries as it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    /// There may be more.
    Full,
    /// There was no more.
    Short,
}

/// What became of a shown delivery.
enum Fate {
    /// It may still end, whoever has it.
    Open,
    /// Its consumer acked it, over this stream's connection or another one.
    AckedHere,
    /// It ended, and the client does not know.
    Ended,
}

fn fate(row: &Delivery, consumer: &ConsumerId) -> Fate {
    match row.state {
        DeliveryState::Pending | DeliveryState::InFlight => Fate::Open,
        DeliveryState::Acked => match &row.ack {
            Some(ack) if ack.consumer == consumer.as_str() => Fate::AckedHere,
            Some(_) | None => Fate::Ended,
        },
        DeliveryState::Expired | DeliveryState::Dead => Fate::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::delivery::AckEvidence,
        domain::ids::Timestamp,
        stream::testing::{delivery, inbox},
    };

    fn sent(progress: &mut Progress, numbers: &[i64]) {
        numbers.iter().for_each(|number| progress.show(*number));
    }

    fn states(ended: Vec<Ended>) -> Vec<(i64, Option<DeliveryState>)> {
        ended.into_iter().map(|(number, how)| (number, how.map(|(_, state)| state))).collect()
    }

    fn opened(last: i64, offered: i64, pending: i64, returned: i64) -> Inbox {
        Inbox { next_sequence: last + 1, offered, pending, returned, ..inbox() }
    }

    #[test]
    fn the_cursor_waits_for_numbers_that_are_about_to_be_lost() {
        let at_open = opened(10, 0, 10, 0);
        let progress = Progress::new(0, &at_open, 100);
        let unswept = opened(10, 10, 7, 0);
        assert_eq!(progress.covered(&unswept, Offered::Short), 0, "seven can still be told");
        assert_eq!(progress.covered(&opened(10, 10, 0, 0), Offered::Short), 10);
        assert_eq!(progress.covered(&opened(10, 10, 2, 2), Offered::Short), 10, "they come back");
    }

    #[test]
    fn the_position_stays_below_what_may_be_lost_untold() {
        let mut progress = Progress::new(2, &opened(60, 50, 20, 9), 100);
        sent(&mut progress, &[50, 4]);
        progress.cover(50);
        let open = |numbers: &[i64]| -> Vec<Delivery> {
            numbers.iter().map(|number| delivery(*number, DeliveryState::Pending)).collect()
        };
        let cases = [
            (open(&[3, 4, 50]), None, 2, "3 still backs off and may be lost"),
            (open(&[4, 7, 50]), None, 6, "it ended, and 7 is with another"),
            (open(&[4, 50]), None, 50, "all was shown or has ended"),
            (open(&[4]), Some(30), 30, "what follows is not known"),
            (open(&[4, 50, 55]), None, 50, "never beyond the cursor"),
            (open(&[]), None, 50, "nothing is open"),
        ];
        for (open, next, reach, why) in cases {
            assert_eq!(progress.reach(&open, next), reach, "{why}");
        }
        progress.raise(50);
        progress.raise(7);
        assert_eq!(progress.position(), 50, "it never falls");
    }

    #[test]
    fn an_inbox_is_straight_where_nothing_was_passed_over() {
        let mut inbox = Inbox { in_flight: 3, ..opened(10, 6, 4, 0) };
        assert!(is_straight(&inbox, 3));
        assert!(!is_straight(&inbox, 2), "another holds one");
        inbox.pending = 5;
        assert!(!is_straight(&inbox, 3), "one up to 6 waits for the sweeper");
        assert!(!is_straight(&opened(10, 6, 1, 1), 0), "one came back");
    }

    #[test]
    fn catching_up_leaves_the_position() {
        let at_open = opened(100, 100, 1, 1);
        let mut progress = Progress::new(40, &at_open, 100);
        assert_eq!((progress.position(), progress.cursor()), (40, 100));
        assert!(progress.backlog_ends(&at_open, Offered::Short), "the one left backs off");
        assert!(progress.is_owed(3) && !progress.is_owed(101));
        sent(&mut progress, &[3]);
        assert!(!progress.is_owed(3));
        progress.catch_up();
        assert_eq!((progress.position(), progress.backlog()), (40, Backlog::Sent));
    }

    #[test]
    fn the_backlog_ends_once_when_nothing_of_the_opening_can_be_sent() {
        let progress = Progress::new(0, &opened(100, 0, 100, 0), 10);
        let full = Offered::Full;
        assert!(!progress.backlog_ends(&opened(100, 50, 50, 0), full));
        assert!(progress.backlog_ends(&opened(100, 100, 0, 0), full), "nothing is left");
        assert!(progress.backlog_ends(&opened(120, 100, 20, 0), full), "what is left is newer");
        assert!(!progress.backlog_ends(&opened(120, 100, 20, 1), full), "one came back");
        assert!(progress.backlog_ends(&opened(100, 50, 50, 0), Offered::Short));
    }

    #[test]
    fn a_page_with_holes_is_noticed() {
        let progress = Progress::new(4, &opened(10, 4, 6, 0), 10);
        assert!(!progress.misses_any(&[5, 6, 7], 7));
        assert!(!progress.misses_any(&[2, 5, 6, 7], 7), "a redelivery beside");
        assert!(progress.misses_any(&[5, 7], 7));
        assert!(progress.misses_any(&[], 7));
        assert!(!progress.misses_any(&[], 4));
    }

    #[test]
    fn what_was_told_or_shown_is_not_told_again() {
        let at_open = opened(10, 2, 3, 0);
        let mut progress = Progress::new(0, &at_open, 10);
        let range = |first, last| GapRange {
            first,
            last,
            cause: DeliveryState::Dead,
            operation_ids: Vec::new(),
        };
        progress.told(&range(1, 1));
        progress.told(&range(5, 6));
        sent(&mut progress, &[3]);
        assert!(!progress.is_untold(5) && !progress.is_untold(3));
        assert!(progress.is_untold(4));
        assert_eq!((progress.untold_after(4), progress.untold_after(6)), (6, 6));
        assert!(!progress.is_untold(1), "also below the cursor");
    }

    #[test]
    fn only_what_ended_elsewhere_is_withdrawn() {
        let me = ConsumerId::parse("me").expect("valid");
        let other = ConsumerId::parse("other").expect("valid");
        let mut progress = Progress::new(0, &opened(9, 0, 9, 0), 10);
        sent(&mut progress, &(1..=9).collect::<Vec<i64>>());
        let acked_by = |sequence, consumer: &str| {
            let mut row = delivery(sequence, DeliveryState::Acked);
            row.ack = Some(AckEvidence {
                time: Timestamp(0),
                attempt: 1,
                subject: String::new(),
                consumer: consumer.to_owned(),
                hash: [0; 32],
            });
            row
        };
        let held_by = |sequence, consumer: &ConsumerId| {
            let mut row = delivery(sequence, DeliveryState::InFlight);
            row.consumer = Some((consumer.clone(), 1));
            row
        };
        let rows = [
            held_by(1, &me),
            held_by(2, &other),
            delivery(3, DeliveryState::Pending),
            acked_by(4, "me"),
            acked_by(5, "other"),
            acked_by(6, ""),
            delivery(7, DeliveryState::Expired),
            delivery(8, DeliveryState::Dead),
        ];
        use DeliveryState::{Acked, Dead, Expired};
        let withdrawn =
            [(5, Some(Acked)), (6, Some(Acked)), (7, Some(Expired)), (8, Some(Dead)), (9, None)];
        assert_eq!(states(progress.settle(&rows, &me)), withdrawn);
        assert_eq!(progress.shown(), [1, 2, 3], "they may still end, whoever has them");
        assert!(progress.settle(&rows[..3], &me).is_empty(), "told once");
        assert!((7..=9).all(|number| !progress.is_untold(number)), "no gap beside it");
        assert_eq!(progress.untold(1, 12), [(10, 12)], "what was shown and acked is no gap either");
    }

    /// Another consumer takes a result that was shown here, and it ends with that one: whether this
    /// stream looked before, in between or only after, it says the same word.
    #[test]
    fn the_word_about_a_shown_result_does_not_depend_on_when_the_stream_looks() {
        let me = ConsumerId::parse("me").expect("valid");
        let mut taken = delivery(1, DeliveryState::InFlight);
        taken.consumer = Some((ConsumerId::parse("other").expect("valid"), 1));
        let returned = delivery(1, DeliveryState::Pending);
        use DeliveryState::{Acked, Dead, Expired};
        for end in [Acked, Expired, Dead] {
            let ended = delivery(1, end);
            let looks: [&[&Delivery]; 4] =
                [&[&ended], &[&taken, &ended], &[&returned, &ended], &[&taken, &returned, &ended]];
            for looks in looks {
                let mut progress = Progress::new(0, &opened(1, 0, 1, 0), 10);
                sent(&mut progress, &[1]);
                let mut told = Vec::new();
                for row in looks {
                    assert!(!progress.is_untold(1), "never a gap");
                    told.extend(states(progress.settle(std::slice::from_ref(*row), &me)));
                }
                assert_eq!(told, [(1, Some(end))], "after {} looks", looks.len());
                assert!(!progress.is_untold(1));
            }
        }
    }

    #[test]
    fn what_was_acked_makes_room_for_what_is_still_open() {
        let me = ConsumerId::parse("me").expect("valid");
        let mut progress = Progress::new(0, &opened(0, 0, 0, 0), 2);
        let open = delivery(1, DeliveryState::InFlight);
        for number in 1..=5_000 {
            sent(&mut progress, &[number]);
            if progress.is_crowded() {
                // All others are purged by now.
                progress.settle(std::slice::from_ref(&open), &me);
            }
        }
        assert!(progress.has_shown(1), "however many came and went");
        progress.settle(std::slice::from_ref(&open), &me);
        assert_eq!(progress.shown(), [1]);
    }

    #[test]
    fn the_watched_set_is_bounded() {
        let mut progress = Progress::new(0, &opened(0, 0, 0, 0), 2);
        sent(&mut progress, &(1..=5_000).collect::<Vec<i64>>());
        assert_eq!(progress.shown(), (3_997..=5_000).collect::<Vec<i64>>());
    }
}
