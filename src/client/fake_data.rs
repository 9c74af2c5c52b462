//! What the fake service keeps, and the effects of its calls.

use std::collections::BTreeMap;

use crate::proto::{
    DeliveredResult, Delivery, DocumentChange, Intent, Operation, Receipt, SubmitOperationRequest,
    operation,
};

#[derive(Default)]
pub(crate) struct Data {
    pub(crate) operations: BTreeMap<String, Operation>,
    pub(crate) text: Vec<char>,
    pub(crate) revision: i64,
    pub(crate) deliveries: BTreeMap<i64, FakeDelivery>,
}

pub(crate) struct FakeDelivery {
    pub(crate) operation_id: String,
    pub(crate) attempt: i32,
    pub(crate) acked: bool,
}

impl Data {
    pub(crate) fn apply(&mut self, request: &SubmitOperationRequest) -> Operation {
        let intent = request.intent.clone().unwrap_or_default();
        let wrong = intent.expected_revision.filter(|expected| *expected != self.revision);
        let state = match wrong.is_none() && self.edit(&intent) {
            true => operation::State::Applied,
            false => operation::State::Rejected,
        };
        let base_revision = self.revision;
        self.revision += i64::from(state == operation::State::Applied);
        let document = DocumentChange {
            base_revision,
            result_revision: self.revision,
            ..DocumentChange::default()
        };
        let operation = Operation {
            operation_id: request.operation_id.clone(),
            state: state.into(),
            receipt: Some(Receipt { document: Some(document), ..Receipt::default() }),
            ..Operation::default()
        };
        let sequence = 1 + i64::try_from(self.deliveries.len()).unwrap_or(0);
        let operation_id = request.operation_id.clone();
        let delivery = FakeDelivery { operation_id, attempt: 0, acked: false };
        self.deliveries.insert(sequence, delivery);
        self.operations.insert(request.operation_id.clone(), operation.clone());
        operation
    }

    fn edit(&mut self, intent: &Intent) -> bool {
        let arguments: serde_json::Value =
            serde_json::from_slice(&intent.arguments).unwrap_or_default();
        if let Some(content) = arguments["content"].as_str() {
            self.text = content.chars().collect();
        }
        if let Some(line) = arguments["line"].as_str() {
            self.text.extend(line.chars().chain(['\n']));
        }
        for edit in arguments["edits"].as_array().into_iter().flatten() {
            let number = |index: usize| {
                edit[index].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
            };
            let (start, end) = (number(0), number(0) + number(1));
            if end > self.text.len() {
                return false;
            }
            let inserted = edit[2].as_str().unwrap_or_default().chars();
            self.text.splice(start..end, inserted);
        }
        true
    }

    /// Marks everything unacked above a number as sent once more.
    pub(crate) fn send_after(&mut self, position: i64) -> (Vec<DeliveredResult>, i64) {
        let mut last = position;
        let mut results = Vec::new();
        for (sequence, kept) in self.deliveries.range_mut(position + 1..) {
            last = *sequence;
            if kept.acked {
                continue;
            }
            kept.attempt += 1;
            let delivery = Delivery {
                sequence: *sequence,
                operation_id: kept.operation_id.clone(),
                outcome_version: 1,
                attempt: kept.attempt,
                ..Delivery::default()
            };
            results.push(DeliveredResult {
                delivery: Some(delivery),
                operation: self.operations.get(&kept.operation_id).cloned(),
                redelivered: kept.attempt > 1,
            });
        }
        (results, last)
    }
}
