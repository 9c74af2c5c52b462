//! The form of a submit: everything that can be seen from the request alone (contract section 2).
//!
//! What must stay true: whatever is refused here left no record; the checks stand in the order in
//! which a caller would read the message.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Identity, identity, known, times};
use crate::{
    api::status::Refused,
    domain::{
        command::{Intention, OnLocked, Submit},
        document::{self, DocumentAction},
        ids::{Account, InboxName, Invalid, Span, Target},
        intent::{self, ACTION_BYTES_MAX, Intent, IntentDigest, JSON, LockMode},
        operation::ResultKind,
        policy::SPAN_LIMIT,
        refusal::Refusal,
    },
    proto,
};

/// The answer is held back at most this long (contract section 4).
pub const WAIT_LIMIT: Span = Span::seconds(60);
/// Labels of one operation at most; they are for finding, not for storing.
const LABELS_MAX: usize = 16;
/// A label's key, in bytes.
const LABEL_KEY_BYTES_MAX: usize = 64;
/// A label's value, in bytes.
const LABEL_VALUE_BYTES_MAX: usize = 256;

/// A submit whose form is right.
#[derive(Debug)]
pub struct SubmitForm {
    /// What the engine runs.
    pub submit: Submit,
    /// How long the answer may be held back.
    pub wait: Span,
}

/// Reads a submit.
///
/// # Errors
/// INVALID_FIELD or UNKNOWN_ACTION, naming the operation once its id is good.
pub fn submit(
    request: proto::SubmitOperationRequest,
    account: &Account,
    subject: &str,
) -> Result<SubmitForm, Refused> {
    let identity = identity(&request.operation_id, request.mint_time.as_ref())?;
    let id = identity.id.clone();
    read(request, identity, account, subject).map_err(Refused::about(&id))
}

fn read(
    request: proto::SubmitOperationRequest,
    identity: Identity,
    account: &Account,
    subject: &str,
) -> Result<SubmitForm, Refusal> {
    let invalid = Refusal::Invalid;
    let intent = self::intent(request.intent)?;
    let (digest, hashed) = intent::digest(&intent).map_err(invalid)?;
    let action = self::action(&intent, &hashed)?;
    check_digest(&request.intent_digest, &digest).map_err(invalid)?;
    let inbox = self::inbox(&request.inbox, request.delivery, intent.lock_mode).map_err(invalid)?;
    let on_locked = match known("on_locked", request.on_locked).map_err(invalid)? {
        proto::OnLocked::Unspecified | proto::OnLocked::Wait => OnLocked::Wait,
        proto::OnLocked::Fail => OnLocked::Fail,
    };
    // The account's retention bounds it further, where the account is known.
    let start_deadline = request
        .start_deadline
        .map(|span| times::read_duration("start_deadline", &span, Span(1), SPAN_LIMIT))
        .transpose()
        .map_err(invalid)?;
    let wait = request
        .wait
        .map(|span| times::read_duration("wait", &span, Span(0), WAIT_LIMIT))
        .transpose()
        .map_err(invalid)?;
    let intention = match request.validate_only {
        true => Intention::ValidateOnly,
        false => Intention::Execute,
    };
    let submit = Submit {
        key: identity.key(account),
        mint_time: identity.mint_time,
        intent,
        digest,
        action,
        inbox,
        on_locked,
        start_deadline,
        labels: labels(request.labels).map_err(invalid)?,
        subject: subject.to_owned(),
        intention,
        result: match known("result", request.result).map_err(invalid)? {
            proto::ResultKind::Unspecified => ResultKind::Receipt,
            proto::ResultKind::Content => ResultKind::Content,
        },
    };
    Ok(SubmitForm { submit, wait: wait.unwrap_or(Span(0)) })
}

/// Reads an intent; defaults applied.
///
/// # Errors
/// INVALID_FIELD.
pub fn intent(intent: Option<proto::Intent>) -> Result<Intent, Refusal> {
    let intent =
        intent.ok_or_else(|| Refusal::Invalid(Invalid::new("intent", "is needed: what to do")))?;
    plain_intent(intent).map_err(Refusal::Invalid)
}

fn plain_intent(intent: proto::Intent) -> Result<Intent, Invalid> {
    let printable = |text: &str| text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    let action = intent.action;
    if action.is_empty() || action.len() > ACTION_BYTES_MAX || !printable(&action) {
        return Err(Invalid::new(
            "intent.action",
            format!("must be 1 to {ACTION_BYTES_MAX} bytes of printable ASCII"),
        ));
    }
    let target = Target::parse("intent.target", &intent.target)?;
    if intent.expected_revision.is_some_and(|revision| revision < 0) {
        return Err(Invalid::new(
            "intent.expected_revision",
            "must be 0 (no document) or a revision from 1 on",
        ));
    }
    let content_type = match intent.content_type.is_empty() {
        true => JSON.to_owned(),
        false => intent.content_type,
    };
    if !document::is_content_type(&content_type) {
        return Err(Invalid::new(
            "intent.content_type",
            "must be at most 128 bytes of printable ASCII",
        ));
    }
    let lock_mode = match known("intent.lock_mode", intent.lock_mode)? {
        proto::LockMode::Unspecified | proto::LockMode::UntilFinal => LockMode::UntilFinal,
        proto::LockMode::UntilAcked => LockMode::UntilAcked,
    };
    Ok(Intent {
        action,
        target,
        expected_revision: intent.expected_revision,
        content_type,
        arguments: Bytes::from(intent.arguments),
        lock_mode,
    })
}

fn action(intent: &Intent, hashed: &Bytes) -> Result<DocumentAction, Refusal> {
    match document::parse(intent, hashed) {
        Some(action) => action.map_err(Refusal::Invalid),
        None => Err(Refusal::UnknownAction {
            known: document::ACTIONS.iter().map(|name| (*name).to_owned()).collect(),
        }),
    }
}

/// The caller's digest is checked and never trusted.
fn check_digest(stated: &[u8], computed: &IntentDigest) -> Result<(), Invalid> {
    match stated {
        [] => Ok(()),
        stated if stated.len() != computed.whole.len() => {
            Err(Invalid::new("intent_digest", "must be 32 bytes, or absent"))
        }
        stated if stated == computed.whole => Ok(()),
        _ => Err(Invalid::new(
            "intent_digest",
            "differs from what the service computed from the intent; ComputeIntentDigest shows how",
        )),
    }
}

fn inbox(name: &str, mode: i32, lock_mode: LockMode) -> Result<Option<InboxName>, Invalid> {
    match known("delivery", mode)? {
        proto::DeliveryMode::Unspecified | proto::DeliveryMode::Queue => {
            InboxName::parse(name).map(Some)
        }
        proto::DeliveryMode::None if lock_mode == LockMode::UntilAcked => Err(Invalid::new(
            "delivery",
            "DELIVERY_MODE_NONE queues nothing, so LOCK_MODE_UNTIL_ACKED would never be acked",
        )),
        proto::DeliveryMode::None => {
            InboxName::parse(name)?;
            Ok(None)
        }
    }
}

/// Reads labels.
///
/// # Errors
/// [`Invalid`] with the limits.
pub fn labels(
    labels: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Invalid> {
    let labels: BTreeMap<String, String> = labels.into_iter().collect();
    let good = |(key, value): (&String, &String)| {
        (1..=LABEL_KEY_BYTES_MAX).contains(&key.len())
            && value.len() <= LABEL_VALUE_BYTES_MAX
            && !key.chars().chain(value.chars()).any(char::is_control)
    };
    match labels.len() <= LABELS_MAX && labels.iter().all(good) {
        true => Ok(labels),
        false => Err(Invalid::new(
            "labels",
            format!(
                "must be at most {LABELS_MAX}, with keys of 1 to {LABEL_KEY_BYTES_MAX} and values \
                 of at most {LABEL_VALUE_BYTES_MAX} bytes, without control characters"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

    type Change = Box<dyn Fn(&mut proto::SubmitOperationRequest)>;

    fn request() -> proto::SubmitOperationRequest {
        proto::SubmitOperationRequest {
            operation_id: V7.to_owned(),
            intent: Some(proto::Intent {
                action: "document.append".to_owned(),
                target: "notes/a".to_owned(),
                arguments: br#"{"line":"x"}"#.to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn read(request: proto::SubmitOperationRequest) -> Result<SubmitForm, Refused> {
        submit(request, &Account::from_stored("acme"), "editor")
    }

    fn changed(change: impl Fn(&mut proto::SubmitOperationRequest)) -> Result<SubmitForm, Refused> {
        let mut request = request();
        change(&mut request);
        read(request)
    }

    fn on_intent(change: impl Fn(&mut proto::Intent) + 'static) -> Change {
        Box::new(move |request| change(request.intent.as_mut().expect("there is one")))
    }

    #[test]
    fn defaults_are_applied() {
        let SubmitForm { submit, wait } = read(request()).expect("a good form");
        assert_eq!(submit.inbox, Some(InboxName::from_stored("default")));
        assert_eq!(submit.intent.content_type, JSON);
        assert_eq!(submit.intent.lock_mode, LockMode::UntilFinal);
        assert_eq!((submit.on_locked, submit.intention), (OnLocked::Wait, Intention::Execute));
        assert_eq!((submit.start_deadline, wait), (None, Span(0)));
        assert_eq!(submit.subject, "editor");
    }

    #[test]
    fn a_wrong_field_is_named() {
        let second = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let table: Vec<(&str, Change)> = vec![
            ("operation_id", Box::new(|request| request.operation_id = "a b".to_owned())),
            ("mint_time", Box::new(|request| request.operation_id = "op-1".to_owned())),
            ("intent", Box::new(|request| request.intent = None)),
            ("intent.action", on_intent(|intent| intent.action = String::new())),
            ("intent.action", on_intent(|intent| intent.action = "a b".to_owned())),
            ("intent.action", on_intent(|intent| intent.action = "a".repeat(129))),
            ("intent.target", on_intent(|intent| intent.target = "a//b".to_owned())),
            ("intent.target", on_intent(|intent| intent.target = "a\0".to_owned())),
            ("intent.expected_revision", on_intent(|intent| intent.expected_revision = Some(-1))),
            ("intent.content_type", on_intent(|intent| intent.content_type = "ä".to_owned())),
            ("intent.content_type", on_intent(|intent| intent.content_type = "a/b".to_owned())),
            ("intent.lock_mode", on_intent(|intent| intent.lock_mode = 99)),
            ("intent.arguments", on_intent(|intent| intent.arguments = b"{".to_vec())),
            ("intent.arguments", on_intent(|intent| intent.arguments = b"{}".to_vec())),
            (
                "intent.arguments",
                on_intent(|intent| intent.arguments = br#"{"line":"x","line":"y"}"#.to_vec()),
            ),
            ("intent_digest", Box::new(|request| request.intent_digest = vec![1; 31])),
            ("intent_digest", Box::new(|request| request.intent_digest = vec![1; 32])),
            ("inbox", Box::new(|request| request.inbox = "a/b".to_owned())),
            ("delivery", Box::new(|request| request.delivery = 99)),
            (
                "delivery",
                Box::new(|request| {
                    request.delivery = proto::DeliveryMode::None.into();
                    let intent = request.intent.as_mut().expect("there is one");
                    intent.lock_mode = proto::LockMode::UntilAcked.into();
                }),
            ),
            ("on_locked", Box::new(|request| request.on_locked = -1)),
            ("start_deadline", Box::new(move |request| request.start_deadline = second(0))),
            (
                "start_deadline",
                Box::new(move |request| request.start_deadline = second(36_500 * 86_400 + 1)),
            ),
            ("wait", Box::new(move |request| request.wait = second(61))),
            ("wait", Box::new(move |request| request.wait = second(-1))),
            (
                "labels",
                Box::new(|request| {
                    request.labels = (0..17).map(|n| (n.to_string(), String::new())).collect();
                }),
            ),
            ("labels", Box::new(|request| request.labels = [("k".into(), "a\0".into())].into())),
            ("labels", Box::new(|request| request.labels = [("".into(), "a".into())].into())),
        ];
        for (field, change) in table {
            match changed(change).expect_err(field).refusal {
                Refusal::Invalid(invalid) => assert_eq!(invalid.field, field, "{invalid:?}"),
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[test]
    fn an_unknown_action_has_a_reason_of_its_own() {
        let unknown = changed(on_intent(|intent| intent.action = "document.burn".to_owned()));
        let refused = unknown.expect_err("unknown");
        assert_eq!(refused.refusal.reason(), "UNKNOWN_ACTION");
        assert_eq!(refused.operation_id.map(|id| id.to_string()).as_deref(), Some(V7));
    }

    #[test]
    fn the_callers_digest_may_agree() {
        let digest = read(request()).expect("a good form").submit.digest.whole.to_vec();
        assert!(changed(|request| request.intent_digest = digest.clone()).is_ok());
    }
}
