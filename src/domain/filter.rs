//! Which operations a list shows: filters joined by "and".
//!
//! What must stay true: a filter has one hash, so that a page token of one list never continues
//! another.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{
    delivery::{Delivery, DeliveryState},
    ids::Timestamp,
    operation::{Operation, OperationState},
};

/// Which operations are looked at at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of the account.
    All,
    /// Those that are not final: found by an index of their own.
    Unresolved,
}

/// What a list shows. An empty list of states, an empty text or an absent time admits all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationFilter {
    /// Which are looked at.
    pub scope: Scope,
    /// In one of these states.
    pub states: Vec<OperationState>,
    /// With a delivery in one of these states.
    pub delivery_states: Vec<DeliveryState>,
    /// On exactly this target.
    pub target: String,
    /// Of this action.
    pub action: String,
    /// With results for exactly this inbox.
    pub inbox: String,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Accepted at or after.
    pub accepted_from: Option<Timestamp>,
    /// Accepted before.
    pub accepted_before: Option<Timestamp>,
}

impl OperationFilter {
    /// Whether the operation's own row passes.
    pub fn admits(&self, operation: &Operation) -> bool {
        let in_scope = match self.scope {
            Scope::All => true,
            Scope::Unresolved => !operation.state.is_final(),
        };
        in_scope
            && (self.states.is_empty() || self.states.contains(&operation.state))
            && (self.target.is_empty() || self.target == operation.target.as_str())
            && (self.action.is_empty() || self.action == operation.action)
            && (self.inbox.is_empty()
                || operation.inbox.as_ref().is_some_and(|inbox| inbox.as_str() == self.inbox))
            && self.labels.iter().all(|(key, value)| operation.labels.get(key) == Some(value))
            && self.accepted_from.is_none_or(|from| operation.accept_time >= from)
            && self.accepted_before.is_none_or(|before| operation.accept_time < before)
    }

    /// Whether one of its deliveries is in a state asked for.
    pub fn admits_deliveries(&self, deliveries: &[Delivery]) -> bool {
        self.delivery_states.is_empty()
            || deliveries.iter().any(|delivery| self.delivery_states.contains(&delivery.state))
    }

    /// Whether nothing older than `operation` can pass: lists go from the newest on.
    pub fn ends_at(&self, operation: &Operation) -> bool {
        self.accepted_from.is_some_and(|from| operation.accept_time < from)
    }

    /// What binds a page token to this filter.
    pub fn hash(&self) -> [u8; 32] {
        // The parts stand behind their lengths in Debug's quoting, so no two filters share a text.
        Sha256::digest(format!("{self:?}").as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sample::{delivery, operation};

    fn everything() -> OperationFilter {
        OperationFilter {
            scope: Scope::All,
            states: Vec::new(),
            delivery_states: Vec::new(),
            target: String::new(),
            action: String::new(),
            inbox: String::new(),
            labels: BTreeMap::new(),
            accepted_from: None,
            accepted_before: None,
        }
    }

    #[test]
    fn each_part_admits_and_excludes() {
        let mut operation = operation("op-1");
        operation.labels.insert("thread".to_owned(), "7".to_owned());
        let time = operation.accept_time;
        let label = |value: &str| BTreeMap::from([("thread".to_owned(), value.to_owned())]);
        let later = Timestamp(time.0 + 1);
        for (filter, admits) in [
            (everything(), true),
            (OperationFilter { scope: Scope::Unresolved, ..everything() }, true),
            (OperationFilter { states: vec![OperationState::Accepted], ..everything() }, true),
            (OperationFilter { states: vec![OperationState::Applied], ..everything() }, false),
            (OperationFilter { target: "notes/a".to_owned(), ..everything() }, true),
            (OperationFilter { target: "notes".to_owned(), ..everything() }, false),
            (OperationFilter { action: "document.put".to_owned(), ..everything() }, false),
            (OperationFilter { labels: label("7"), ..everything() }, true),
            (OperationFilter { labels: label("8"), ..everything() }, false),
            (OperationFilter { accepted_from: Some(time), ..everything() }, true),
            (OperationFilter { accepted_from: Some(later), ..everything() }, false),
            (OperationFilter { accepted_before: Some(time), ..everything() }, false),
            (OperationFilter { accepted_before: Some(later), ..everything() }, true),
        ] {
            assert_eq!(filter.admits(&operation), admits, "{filter:?}");
        }
        let ended = Operation { state: OperationState::Applied, ..operation };
        let unresolved = OperationFilter { scope: Scope::Unresolved, ..everything() };
        assert!(!unresolved.admits(&ended));
    }

    #[test]
    fn deliveries_are_asked_for_by_state() {
        let filter =
            OperationFilter { delivery_states: vec![DeliveryState::Pending], ..everything() };
        assert!(filter.admits_deliveries(&[delivery("op-1", 1)]));
        let acked = Delivery { state: DeliveryState::Acked, ..delivery("op-1", 1) };
        assert!(!filter.admits_deliveries(&[acked]));
        assert!(!filter.admits_deliveries(&[]) && everything().admits_deliveries(&[]));
    }

    #[test]
    fn two_filters_have_two_hashes() {
        let filter = OperationFilter { target: "a".to_owned(), ..everything() };
        let other = OperationFilter { action: "a".to_owned(), ..everything() };
        assert_ne!(filter.hash(), other.hash());
        assert_eq!(filter.hash(), filter.clone().hash());
    }
}
