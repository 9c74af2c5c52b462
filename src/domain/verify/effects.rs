//! Effects, counted per operation: each revision of a document has exactly one receipt (I2, I3).
//!
//! What must stay true: it counts revisions up to the one that a document had when the count began,
//! so that what happens meanwhile changes nothing. It keeps spans of revisions, not revisions:
//! receipts that come in the order of acceptance leave one span for each document and one for each
//! operation that waited.

use std::collections::BTreeMap;

use super::{Contradiction, ContradictionKind};
use crate::domain::{
    ids::{Account, Target, Timestamp},
    lock::TargetKey,
    operation::{Operation, Outcome},
};

/// Revisions without a receipt that are told for one document; the rest is counted in the last.
const SPANS_TOLD_MAX: usize = 10;

/// Documents of one account, and which of their revisions have a receipt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    documents: BTreeMap<Target, Owned>,
}

/// One document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    /// Its revision when the count began.
    pub revision: i64,
    /// First and last revision of each span with receipts, in order, none touching another.
    pub spans: Vec<(i64, i64)>,
}

impl Effects {
    /// Counts for one document more.
    pub fn expect(&mut self, target: Target, owned: Owned) {
        self.documents.insert(target, owned);
    }

    /// Every document, in order.
    pub fn documents(&self) -> impl Iterator<Item = (&Target, &Owned)> {
        self.documents.iter()
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// How much is kept: documents and spans.
    pub fn size(&self) -> usize {
        self.documents.values().map(|owned| 1 + owned.spans.len()).sum()
    }

    /// Gives up the documents from the middle on, to be counted later. Returns the last that stays.
    pub fn halve(&mut self) -> Option<Target> {
        let middle = self.documents.keys().nth(self.documents.len() / 2).cloned()?;
        if self.documents.len() > 1 {
            self.documents.split_off(&middle);
        }
        self.documents.keys().next_back().cloned()
    }

    /// Takes an operation's receipt, if it is one of these documents'.
    pub fn receipt(&mut self, operation: &Operation) -> Option<Contradiction> {
        let Some(Outcome::Applied(change)) = &operation.outcome else { return None };
        let owned = self.documents.get_mut(&operation.target)?;
        let revision = change.result_revision;
        if revision > owned.revision || owned.add(revision) {
            return None;
        }
        let expected = format!("one receipt for revision {revision}");
        let account = &operation.key.account;
        let told =
            Contradiction::of(ContradictionKind::EffectTwice, account, expected, "another one");
        Some(told.operation(&operation.key).target(&operation.target_key()))
    }

    /// The revisions that have no receipt, once all receipts were taken. Once records of the account
    /// were deleted, `floor` has risen, and a revision may have lost its receipt with them.
    pub fn missing(&self, account: &Account, floor: Timestamp) -> Vec<Contradiction> {
        if floor > Timestamp::BEGINNING {
            return Vec::new();
        }
        let mut told = Vec::new();
        for (target, owned) in &self.documents {
            let key = TargetKey { account: account.clone(), target: target.clone() };
            for (first, last) in owned.gaps().into_iter().take(SPANS_TOLD_MAX) {
                let revisions = match first == last {
                    true => format!("revision {first}"),
                    false => format!("each of the revisions {first} to {last}"),
                };
                let kind = ContradictionKind::EffectWithoutReceipt;
                let expected = format!("a receipt for {revisions}");
                told.push(Contradiction::of(kind, account, expected, "none").target(&key));
            }
        }
        told
    }
}

impl Owned {
    /// Adds a revision; whether it was not there.
    fn add(&mut self, revision: i64) -> bool {
        let at = self.spans.partition_point(|(first, _)| *first <= revision);
        if at > 0 && self.spans[at - 1].1 >= revision {
            return false;
        }
        let before = at > 0 && self.spans[at - 1].1 + 1 == revision;
        let after = self.spans.get(at).is_some_and(|(first, _)| *first == revision + 1);
        match (before, after) {
            (true, true) => {
                self.spans[at - 1].1 = self.spans[at].1;
                self.spans.remove(at);
            }
            (true, false) => self.spans[at - 1].1 = revision,
            (false, true) => self.spans[at].0 = revision,
            (false, false) => self.spans.insert(at, (revision, revision)),
        }
        true
    }

    /// The spans without receipts, from 1 to the document's revision.
    fn gaps(&self) -> Vec<(i64, i64)> {
        let mut next = 1;
        let mut gaps = Vec::new();
        for (first, last) in self.spans.iter().copied().chain([(self.revision + 1, i64::MAX)]) {
            if first > next {
                gaps.push((next, first - 1));
            }
            next = last.saturating_add(1);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_grow_together_in_any_order() {
        for order in [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [2, 4, 3, 1, 5], [1, 5, 2, 4, 3]] {
            let mut owned = Owned { revision: 6, spans: Vec::new() };
            assert_eq!(owned.gaps(), [(1, 6)]);
            assert!(order.iter().all(|revision| owned.add(*revision)), "{order:?}");
            assert_eq!((owned.spans.clone(), owned.gaps()), (vec![(1, 5)], vec![(6, 6)]));
            assert!(!order.iter().any(|revision| owned.add(*revision)), "each of them twice");
        }
        let mut owned = Owned { revision: 5, spans: Vec::new() };
        assert!(owned.add(2) && owned.add(4));
        assert_eq!(owned.gaps(), [(1, 1), (3, 3), (5, 5)]);
    }

    #[test]
    fn deleted_records_may_leave_revisions_without_receipts() {
        let account = Account::parse("a").expect("valid");
        let mut effects = Effects::default();
        effects.expect(Target::from_stored("d"), Owned { revision: 3, spans: vec![(2, 3)] });
        let told = effects.missing(&account, Timestamp::BEGINNING);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].kind, ContradictionKind::EffectWithoutReceipt);
        assert_eq!(told[0].expected, "a receipt for revision 1");
        assert!(effects.missing(&account, Timestamp(1)).is_empty());
    }

    #[test]
    fn what_is_too_much_is_left_for_later() {
        let mut effects = Effects::default();
        for target in ["a", "b", "c", "d"] {
            effects.expect(Target::from_stored(target), Owned::default());
        }
        assert_eq!(effects.halve(), Some(Target::from_stored("b")));
        assert_eq!(effects.halve(), Some(Target::from_stored("a")));
        assert_eq!((effects.halve(), effects.size()), (Some(Target::from_stored("a")), 1));
    }
}
