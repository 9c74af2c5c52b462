//! More time for results that the application still holds.
//!
//! What must stay true: an extension is asked for before two thirds of the ack deadline have
//! passed, with time for a second try; only for the attempt that was shown last, and only while the
//! application holds the result.
//! Deliberately not here: the network (see [`super::inbox`]).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::reader_state::{Book, ResultKey};
use crate::proto::{
    AttemptTarget, DeliveredResult, ExtendDeliveriesRequest, ExtendOutcome, ExtendResult,
};

/// The service's default; its policy says what is in force.
const ACK_DEADLINE: Duration = Duration::from_secs(30);
/// The most attempts in one call; the service takes 1,000.
const EXTEND_BATCH_MAX: usize = 500;

/// What is held, and when its time is to be extended.
#[derive(Debug)]
pub(crate) struct Extensions {
    ack_deadline: Duration,
    held: BTreeMap<ResultKey, Held>,
    refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    attempt: i32,
    due: Instant,
}

impl Default for Extensions {
    fn default() -> Self {
        Extensions { ack_deadline: ACK_DEADLINE, held: BTreeMap::new(), refused: false }
    }
}

/// A result and the attempt that shows it.
pub(crate) fn attempt_of(result: &DeliveredResult) -> Option<(ResultKey, i32)> {
    let delivery = result.delivery.as_ref()?;
    Some((ResultKey::of(delivery), delivery.attempt))
}

impl Extensions {
    /// A stream was opened, with this policy in force; perhaps by another server than before.
    pub(crate) fn opened(&mut self, ack_deadline: Option<&prost_types::Duration>) {
        self.refused = false;
        let told = ack_deadline.and_then(|time| Duration::try_from(*time).ok());
        if let Some(told) = told.filter(|told| !told.is_zero()) {
            self.ack_deadline = told;
        }
    }

    /// These attempts were shown now; those of results that the application holds count.
    pub(crate) fn shown(&mut self, book: &Book, shown: &[(ResultKey, i32)], now: Instant) {
        let due = now + self.first();
        for (key, attempt) in shown.iter().filter(|(key, _)| book.holds(*key)) {
            self.held.insert(*key, Held { attempt: *attempt, due });
        }
    }

    /// The server extends nothing: it is not asked again on this stream.
    pub(crate) fn refused(&mut self) {
        self.refused = true;
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.refused {
            return None;
        }
        self.held.values().map(|held| held.due).min()
    }

    /// What is due now. Until it is answered it is due again soon; what the application no longer
    /// holds is forgotten.
    pub(crate) fn request(&mut self, book: &Book, now: Instant) -> ExtendDeliveriesRequest {
        self.held.retain(|key, _| book.holds(*key));
        let again = now + self.patience();
        let due = self.held.iter_mut().filter(|(_, held)| held.due <= now).take(EXTEND_BATCH_MAX);
        let target = |(key, held): (&ResultKey, &mut Held)| {
            held.due = again;
            AttemptTarget {
                inbox: book.state.inbox.clone(),
                sequence: key.sequence,
                attempt: held.attempt,
            }
        };
        ExtendDeliveriesRequest {
            deliveries: due.map(target).collect(),
            extension: None,
            consumer_id: book.state.consumer_id.clone(),
        }
    }

    /// How long one try may take: after a lost one there is time for another.
    pub(crate) fn patience(&self) -> Duration {
        self.ack_deadline / 8
    }

    /// After half of the time; with one lost try it is still less than two thirds.
    fn first(&self) -> Duration {
        self.ack_deadline / 2
    }

    /// Takes in the answers. Whatever is not extended has ended here, whoever handles it goes on:
    /// its ack counts all the same.
    pub(crate) fn answered(&mut self, results: &[ExtendResult], now: Instant) {
        let due = now + self.first();
        for result in results {
            let extended = match result.outcome() {
                ExtendOutcome::Extended => true,
                ExtendOutcome::Unspecified
                | ExtendOutcome::NotYours
                | ExtendOutcome::NotInFlight
                | ExtendOutcome::AlreadyAcked
                | ExtendOutcome::Retired
                | ExtendOutcome::NoSuchDelivery => false,
            };
            let mut of_result =
                self.held.iter_mut().filter(|(key, _)| key.sequence == result.sequence);
            let Some((key, held)) = of_result.next() else { continue };
            if extended {
                held.due = due;
            } else {
                let key = *key;
                self.held.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::reader_state::ReaderState, *};
    use crate::proto::{Delivery, DeliveryBatch};

    fn result(sequence: i64, attempt: i32) -> DeliveredResult {
        let delivery = Delivery { sequence, attempt, outcome_version: 1, ..Delivery::default() };
        DeliveredResult {
            delivery: Some(delivery),
            operation: None,
            redelivered: attempt > 1,
            payload: None,
        }
    }

    fn show(book: &mut Book, extensions: &mut Extensions, results: &[(i64, i32)], now: Instant) {
        let results: Vec<_> = results.iter().map(|(number, at)| result(*number, *at)).collect();
        let shown: Vec<_> = results.iter().filter_map(attempt_of).collect();
        book.take_in(DeliveryBatch { results, resume_token: String::new() });
        extensions.shown(book, &shown, now);
    }

    fn asked(request: &ExtendDeliveriesRequest) -> Vec<(i64, i32)> {
        request.deliveries.iter().map(|target| (target.sequence, target.attempt)).collect()
    }

    fn answer(sequence: i64, outcome: ExtendOutcome) -> ExtendResult {
        ExtendResult { sequence, outcome: outcome.into(), ..ExtendResult::default() }
    }

    #[test]
    fn what_is_held_is_extended_in_time_and_what_is_not_is_left() {
        let mut book = Book::new(ReaderState::new("i", "c"), 10);
        let mut extensions = Extensions::default();
        extensions.opened(Some(&prost_types::Duration { seconds: 24, nanos: 0 }));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(extensions.next_due(), None);
        show(&mut book, &mut extensions, &[(1, 1), (2, 1), (3, 2)], start);
        assert_eq!(extensions.next_due(), Some(after(12)));
        book.handled(ResultKey { sequence: 2, outcome_version: 1 });
        let request = extensions.request(&book, after(12));
        assert_eq!(asked(&request), [(1, 1), (3, 2)]);
        assert_eq!((request.consumer_id.as_str(), request.extension), ("c", None));
        // The answer is lost: a second try before two thirds of the time.
        assert_eq!(extensions.next_due(), Some(after(15)));
        assert_eq!(asked(&extensions.request(&book, after(15))), [(1, 1), (3, 2)]);
        extensions.answered(&[answer(1, ExtendOutcome::Extended)], after(15));
        extensions.answered(&[answer(3, ExtendOutcome::NotYours)], after(15));
        assert_eq!(extensions.next_due(), Some(after(27)), "only the first one is still ours");
        book.give_back(ResultKey { sequence: 1, outcome_version: 1 });
        assert!(asked(&extensions.request(&book, after(27))).is_empty());
        assert_eq!(extensions.next_due(), None);
    }

    #[test]
    fn every_definite_no_ends_the_extending_of_an_attempt_and_a_new_attempt_begins_it_anew() {
        use ExtendOutcome::*;
        for outcome in [Unspecified, NotYours, NotInFlight, AlreadyAcked, Retired, NoSuchDelivery] {
            let mut book = Book::new(ReaderState::new("i", "c"), 10);
            let mut extensions = Extensions::default();
            let start = Instant::now();
            show(&mut book, &mut extensions, &[(1, 1)], start);
            extensions.answered(&[answer(1, outcome)], start);
            assert_eq!(extensions.next_due(), None, "{outcome:?}");
            show(&mut book, &mut extensions, &[(1, 2)], start);
            let later = start + ACK_DEADLINE;
            assert_eq!(asked(&extensions.request(&book, later)), [(1, 2)], "{outcome:?}");
        }
    }

    #[test]
    fn a_server_that_extends_nothing_is_asked_again_on_the_next_stream() {
        let mut book = Book::new(ReaderState::new("i", "c"), 10);
        let mut extensions = Extensions::default();
        show(&mut book, &mut extensions, &[(1, 1)], Instant::now());
        extensions.refused();
        assert_eq!(extensions.next_due(), None);
        extensions.opened(None);
        assert!(extensions.next_due().is_some());
    }
}
