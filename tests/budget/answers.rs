//! Answers as a caller of the service would see them.

use receiptd::{
    api::status::Refused,
    domain::{
        command::{Origin, Reply},
        ids::{OperationId, Timestamp},
        operation::OperationState,
        refusal::{Asked, Refusal},
    },
};
use tonic::Code;
use tonic_types::StatusExt;

/// How a submit was answered; its operation must have been applied.
pub fn applied(reply: Result<Reply, Refusal>) -> Origin {
    let Ok(Reply::Submitted(submitted)) = reply else { panic!("{reply:?}") };
    assert_eq!(submitted.operation.state, OperationState::Applied);
    submitted.origin
}

/// A refusal's code, stable reason, outcome and next step.
pub fn refused(id: &OperationId, refusal: &Refusal) -> (Code, String, String, String) {
    let refused = Refused::about(id)(refusal.clone());
    let status = refused.into_status(Asked::Change, Timestamp(0));
    let info = status.get_details_error_info().expect("a reason");
    let value = |key: &str| info.metadata.get(key).cloned().unwrap_or_default();
    assert_eq!(value("operation_id"), id.as_str());
    (status.code(), info.reason.clone(), value("outcome"), value("recovery"))
}
