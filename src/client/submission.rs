//! What is to be done, apart from who it is.
//!
//! What must stay true: the same submission makes the same message under the same identity, also
//! after it was kept and read again.
//! Deliberately not here: the identity, which the library makes, and sending.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::identity::OperationIdentity;
use crate::proto::{DeliveryMode, Intent, OnLocked, ResultKind, SubmitOperationRequest};

/// One instruction with the choices around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// What to do.
    pub intent: Intent,
    /// The inbox of the result; `default` if empty.
    pub inbox: String,
    /// Whether the result is queued.
    pub delivery: DeliveryMode,
    /// What to do when the target is locked.
    pub on_locked: OnLocked,
    /// How long the operation may wait for its start; the policy's value if absent.
    pub start_deadline: Option<Duration>,
    /// How long the answer may be held back until the outcome is there; at most 60 s.
    pub wait: Option<Duration>,
    /// What is kept of the result beside the receipt; a replay gets what the first submit chose.
    pub result: ResultKind,
    /// Labels, for lists; up to 16.
    pub labels: BTreeMap<String, String>,
}

impl Submission {
    /// An instruction with the service's own choices for everything else.
    pub fn new(intent: Intent) -> Self {
        Submission {
            intent,
            inbox: String::new(),
            delivery: DeliveryMode::Unspecified,
            on_locked: OnLocked::Unspecified,
            start_deadline: None,
            wait: None,
            result: ResultKind::Unspecified,
            labels: BTreeMap::new(),
        }
    }

    /// An instruction with arguments in JSON, for example `document.splice`.
    pub fn json(action: &str, target: &str, arguments: &Value) -> Self {
        Submission::new(Intent {
            action: action.to_owned(),
            target: target.to_owned(),
            arguments: arguments.to_string().into_bytes(),
            ..Intent::default()
        })
    }

    /// The same with its result in this inbox.
    pub fn into_inbox(self, inbox: impl Into<String>) -> Self {
        Submission { inbox: inbox.into(), ..self }
    }

    /// The same for exactly this revision of the target; 0: it must not exist.
    pub fn at_revision(mut self, revision: i64) -> Self {
        self.intent.expected_revision = Some(revision);
        self
    }

    /// The same, answered when the outcome is there, or after this time; at most 60 s.
    pub fn waiting(self, wait: Duration) -> Self {
        Submission { wait: Some(wait), ..self }
    }

    /// The message on the wire, the same for every attempt.
    pub fn to_request(&self, identity: &OperationIdentity) -> SubmitOperationRequest {
        let duration = |time: Duration| prost_types::Duration::try_from(time).ok();
        SubmitOperationRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
            intent: Some(self.intent.clone()),
            intent_digest: Vec::new(),
            inbox: self.inbox.clone(),
            delivery: self.delivery.into(),
            on_locked: self.on_locked.into(),
            start_deadline: self.start_deadline.and_then(duration),
            wait: self.wait.and_then(duration),
            validate_only: false,
            labels: self.labels.clone().into_iter().collect(),
            result: self.result.into(),
        }
    }

    /// Back from the message; what stands for the identity in it is left out.
    pub fn from_request(request: SubmitOperationRequest) -> Self {
        let duration = |time: prost_types::Duration| Duration::try_from(time).ok();
        Submission {
            delivery: request.delivery(),
            on_locked: request.on_locked(),
            result: request.result(),
            intent: request.intent.unwrap_or_default(),
            inbox: request.inbox,
            start_deadline: request.start_deadline.and_then(duration),
            wait: request.wait.and_then(duration),
            labels: request.labels.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_submission_comes_back_whole_from_its_message() {
        let mut submission =
            Submission::json("document.append", "notes/today", &json!({ "line": "hello" }))
                .into_inbox("editor")
                .at_revision(3)
                .waiting(Duration::from_millis(1_500));
        submission.delivery = DeliveryMode::Queue;
        submission.on_locked = OnLocked::Fail;
        submission.start_deadline = Some(Duration::from_secs(60));
        submission.labels.insert("key".to_owned(), "value".to_owned());
        let identity = OperationIdentity::mint_at(1, &[0; 10]);
        let request = submission.to_request(&identity);
        assert_eq!(request.operation_id, identity.id());
        assert_eq!(Submission::from_request(request), submission);
    }
}
