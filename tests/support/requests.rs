//! What tests send: identities and submits, with only the fields that a case is about.

use std::time::{Duration, UNIX_EPOCH};

use prost_types::Timestamp;
use receiptd::proto::{GetOperationRequest, Intent, SubmitOperationRequest};
use serde_json::{Value, json};
use uuid::Uuid;

use super::wall_clock;

/// An operation id with the time it was made: chosen before the first attempt, kept over all.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// The id.
    pub id: String,
    /// When it was made; `None` for a UUIDv7, which carries it.
    pub mint_time: Option<Timestamp>,
}

impl Identity {
    /// A fresh UUIDv7.
    pub fn fresh() -> Identity {
        Identity { id: Uuid::now_v7().to_string(), mint_time: None }
    }

    /// A name of the test's own, made now.
    pub fn named(id: &str) -> Identity {
        Identity { id: id.to_owned(), mint_time: Some(milliseconds_now()) }
    }

    /// The look-up of this id.
    pub fn look_up(&self) -> GetOperationRequest {
        GetOperationRequest { operation_id: self.id.clone(), mint_time: self.mint_time }
    }

    /// A submit of `intent` under this id, with every other field at its default.
    pub fn submit(&self, intent: Intent) -> SubmitOperationRequest {
        SubmitOperationRequest {
            operation_id: self.id.clone(),
            mint_time: self.mint_time,
            intent: Some(intent),
            ..SubmitOperationRequest::default()
        }
    }

    /// Appends a line: deliberately not idempotent, so that a duplicate is a second line.
    pub fn append(&self, target: &str, line: &str) -> SubmitOperationRequest {
        self.submit(append(target, line))
    }

    /// Writes a whole document.
    pub fn put(&self, target: &str, content: &str) -> SubmitOperationRequest {
        self.submit(intent("document.put", target, &json!({ "content": content })))
    }
}

/// The present in the unit of mint times.
pub fn milliseconds_now() -> Timestamp {
    let since = wall_clock().duration_since(UNIX_EPOCH).expect("after 1970");
    let millis = u64::try_from(since.as_millis()).expect("fits for ages");
    let whole = UNIX_EPOCH + Duration::from_millis(millis);
    Timestamp::from(whole)
}

/// An intent with JSON arguments.
pub fn intent(action: &str, target: &str, arguments: &Value) -> Intent {
    raw_intent(action, target, &arguments.to_string())
}

/// An intent whose arguments are exactly this JSON text.
pub fn raw_intent(action: &str, target: &str, arguments: &str) -> Intent {
    Intent {
        action: action.to_owned(),
        target: target.to_owned(),
        arguments: arguments.as_bytes().to_vec(),
        content_type: "application/json".to_owned(),
        ..Intent::default()
    }
}

/// An append of one line.
pub fn append(target: &str, line: &str) -> Intent {
    intent("document.append", target, &json!({ "line": line }))
}

/// Edits of a text: position, characters to delete, characters to insert.
pub fn splice(target: &str, edits: &[(u64, u64, &str)]) -> Intent {
    let edits: Vec<Value> = edits.iter().map(|(at, gone, text)| json!([at, gone, text])).collect();
    intent("document.splice", target, &json!({ "edits": edits }))
}

/// A span for request fields.
pub fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

/// The same submit, holding its target until its result is acked.
pub fn until_acked(mut request: SubmitOperationRequest) -> SubmitOperationRequest {
    let intent = request.intent.as_mut().expect("a submit has an intent");
    intent.lock_mode = receiptd::proto::LockMode::UntilAcked.into();
    request
}

/// The same submit at an expected revision.
pub fn expecting(mut request: SubmitOperationRequest, revision: i64) -> SubmitOperationRequest {
    request.intent.as_mut().expect("a submit has an intent").expected_revision = Some(revision);
    request
}

/// The same submit into another inbox.
pub fn into_inbox(request: SubmitOperationRequest, inbox: &str) -> SubmitOperationRequest {
    SubmitOperationRequest { inbox: inbox.to_owned(), ..request }
}

/// The same submit, answered when the outcome is there, at most this much later.
pub fn waiting(request: SubmitOperationRequest, for_seconds: i64) -> SubmitOperationRequest {
    SubmitOperationRequest { wait: Some(seconds(for_seconds)), ..request }
}
