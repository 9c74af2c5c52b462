//! Reading answers: each function fails with the whole answer when a part is missing.

use receiptd::proto::{
    Delivery, GetOperationResponse, Operation, Origin, Receipt, SubmitOperationResponse,
    operation::State,
};

/// How a submit was answered, and the state in force.
pub fn answered(answer: &SubmitOperationResponse) -> (Origin, State) {
    (answer.origin(), operation(answer).state())
}

/// The operation of a submit's answer.
pub fn operation(answer: &SubmitOperationResponse) -> &Operation {
    answer.operation.as_ref().unwrap_or_else(|| panic!("an operation in {answer:?}"))
}

/// The receipt of a submit's answer.
pub fn receipt(answer: &SubmitOperationResponse) -> &Receipt {
    let receipt = operation(answer).receipt.as_ref();
    receipt.unwrap_or_else(|| panic!("a receipt in {answer:?}"))
}

/// The one delivery of a submit's answer.
pub fn delivery(answer: &SubmitOperationResponse) -> &Delivery {
    assert_eq!(answer.deliveries.len(), 1, "one delivery in {answer:?}");
    &answer.deliveries[0]
}

/// The operation that a look-up found.
pub fn found(answer: &GetOperationResponse) -> &Operation {
    answer.operation.as_ref().unwrap_or_else(|| panic!("an operation in {answer:?}"))
}

/// The receipt that a look-up found.
pub fn found_receipt(answer: &GetOperationResponse) -> &Receipt {
    found(answer).receipt.as_ref().unwrap_or_else(|| panic!("a receipt in {answer:?}"))
}

/// The state that a look-up found; `None` where there is no record.
pub fn state_of(answer: &GetOperationResponse) -> Option<State> {
    answer.operation.as_ref().map(Operation::state)
}

/// The revision that an applied operation made.
pub fn result_revision(receipt: &Receipt) -> i64 {
    receipt.document.as_ref().unwrap_or_else(|| panic!("a change in {receipt:?}")).result_revision
}

/// How often a line stands in a text: the effect, counted at the target.
pub fn lines(text: &str, line: &str) -> usize {
    text.lines().filter(|found| *found == line).count()
}
