//! One call of each method, as a row: what is sent, when its answer has ended, and what must stand
//! in it. The rows are played in this order on a fresh server, and make one story: an append that
//! holds its target until its result is acked, and a second one that waits behind it.

use serde_json::{Value, json};

use crate::{support::requests::Identity, tool::Ends};

/// A call.
pub struct Call {
    /// `package.Service/Method`.
    pub method: &'static str,
    /// The request, as protobuf's JSON.
    pub request: Value,
    /// When its answer has ended.
    pub ends: Ends,
    /// JSON pointers into the list of the answer's messages, and what stands there.
    pub found: Vec<(&'static str, Value)>,
}

const TARGET: &str = "notes/tools";
const INBOX: &str = "tools";
/// Arguments as protobuf's JSON wants bytes: base64 of `{"line":"x"}`.
const ARGUMENTS: &str = "eyJsaW5lIjoieCJ9";
/// The digest of [`intent`], which is the same for ever.
const DIGEST: &str = "Ba/0hmnQ/cKpWnbwXdLkx7TRoHGs87f+R1ldudxWSeE=";

/// A row: the method, its request, the end of its answer, and what stands in it.
macro_rules! call {
    ($method:literal, $request:tt, $ends:expr, { $($pointer:literal: $value:tt),+ $(,)? }) => {
        Call {
            method: $method,
            request: json!($request),
            ends: $ends,
            found: vec![$(($pointer, json!($value))),+],
        }
    };
}

/// The calls, with fresh ids.
pub fn calls() -> Vec<Call> {
    let (first, second) = (Identity::fresh().id, Identity::fresh().id);
    let mut calls = health();
    calls.extend(submits(&first, &second));
    calls.extend(reads(&first, &second));
    calls.extend(deliveries(&first));
    calls.extend(by_hand(&first));
    calls.extend(endings(&first, &second));
    calls
}

fn health() -> Vec<Call> {
    let service = "receiptd.v1.OperationService";
    vec![
        call!("grpc.health.v1.Health/Check", { "service": service }, Ends::Alone, {
            "/0/status": "SERVING",
        }),
        call!("grpc.health.v1.Health/Watch", { "service": service }, Ends::With("/status"), {
            "/0/status": "SERVING",
        }),
    ]
}

fn intent() -> Value {
    json!({
        "action": "document.append",
        "target": TARGET,
        "arguments": ARGUMENTS,
        "lockMode": "LOCK_MODE_UNTIL_ACKED",
    })
}

fn submits(first: &str, second: &str) -> Vec<Call> {
    let submit = |id: &str| {
        json!({
            "operationId": id,
            "intent": intent(),
            "inbox": INBOX,
            "result": "RESULT_KIND_CONTENT",
        })
    };
    let one = submit(first);
    let again = one.clone();
    let other = submit(second);
    vec![
        call!("receiptd.v1.OperationService/SubmitOperation", one, Ends::Alone, {
            "/0/origin": "ORIGIN_EXECUTED",
            "/0/operation/state": "STATE_APPLIED",
            "/0/operation/receipt/document/resultRevision": "1",
        }),
        call!("receiptd.v1.OperationService/SubmitOperation", again, Ends::Alone, {
            "/0/origin": "ORIGIN_REPLAYED",
            "/0/operation/receipt/operationId": first,
            "/0/operation/receipt/document/resultRevision": "1",
        }),
        call!(
            "receiptd.v1.OperationService/BatchSubmitOperations",
            { "requests": [other] },
            Ends::Alone,
            {
                "/0/results/0/response/operation/state": "STATE_ACCEPTED",
                "/0/results/0/response/operation/waitingFor/operationId": first,
                "/0/results/0/response/recovery/action": "RECOVERY_ACTION_WAIT",
            }
        ),
    ]
}

fn reads(first: &str, second: &str) -> Vec<Call> {
    let asked = intent();
    vec![
        call!("receiptd.v1.OperationService/GetOperation", { "operationId": first }, Ends::Alone, {
            "/0/standing": "STANDING_RECORDED",
            "/0/operation/receipt/effectCertainty": "EFFECT_CERTAINTY_COMPLETE",
            "/0/projection/revision": "1",
        }),
        call!(
            "receiptd.v1.OperationService/BatchGetOperations",
            { "requests": [{ "operationId": second }, { "operationId": Identity::fresh().id }] },
            Ends::Alone,
            {
                "/0/results/0/operation/state": "STATE_ACCEPTED",
                "/0/results/1/standing": "STANDING_NOT_ACCEPTED_YET",
                "/0/results/1/recovery/action": "RECOVERY_ACTION_RESUBMIT_SAME_ID",
            }
        ),
        call!(
            "receiptd.v1.OperationService/ListOperations",
            { "unresolvedOnly": true },
            Ends::Alone,
            { "/0/operations/0/operation/operationId": second }
        ),
        call!(
            "receiptd.v1.OperationService/WatchOperation",
            { "operationId": first },
            Ends::Alone,
            {
                "/0/snapshot": true,
                "/0/operation/state": "STATE_APPLIED",
                "/0/recovery/action": "RECOVERY_ACTION_SHOW_RESULT",
            }
        ),
        call!(
            "receiptd.v1.OperationService/WatchOperation",
            { "operationId": second },
            Ends::With("/operation"),
            { "/0/snapshot": true, "/0/operation/waitingFor/target": TARGET }
        ),
        call!("receiptd.v1.OperationService/ReadResult", { "operationId": first }, Ends::Alone, {
            "/0/result/sizeBytes": "2",
            "/0/data": "eAo=",
            "/0/last": true,
        }),
        call!(
            "receiptd.v1.OperationService/ListOperationEvents",
            { "operationId": second },
            Ends::Alone,
            {
                "/0/events/0/kind": "OPERATION_EVENT_KIND_ACCEPTED",
                "/0/events/0/number": "1",
                "/0/events/0/part": 1,
                "/0/events/1/number": "1",
                "/0/events/1/part": 2,
                "/0/events/0/subject": "local",
            }
        ),
        call!(
            "receiptd.v1.OperationService/ComputeIntentDigest",
            { "intent": asked },
            Ends::Alone,
            { "/0/intentDigest": DIGEST, "/0/canonicalArguments": ARGUMENTS }
        ),
        call!("receiptd.v1.DocumentService/GetDocument", { "target": TARGET }, Ends::Alone, {
            "/0/document/text": "x\n",
            "/0/document/revision": "1",
        }),
        call!(
            "receiptd.v1.DocumentService/ListDocuments",
            { "targetPrefix": "notes/" },
            Ends::Alone,
            { "/0/documents/0/target": TARGET, "/0/documents/0/sizeBytes": "2" }
        ),
        call!(
            "receiptd.v1.DocumentService/WatchDocument",
            { "target": TARGET, "includeContent": true },
            Ends::With("/change"),
            {
                "/0/change/document/text": "x\n",
                "/0/change/document/revision": "1",
                "/0/change/exists": true,
                "/0/change/snapshot": true,
            }
        ),
    ]
}

fn deliveries(first: &str) -> Vec<Call> {
    vec![
        call!(
            "receiptd.v1.InboxService/StreamDeliveries",
            { "inbox": INBOX, "consumerId": "tool" },
            Ends::With("/caughtUp"),
            {
                "/0/opened/inbox": INBOX,
                "/0/opened/policy/ackWindow": "900s",
                "/1/deliveries/results/0/operation/operationId": first,
                "/1/deliveries/results/0/delivery/sequence": "1",
            }
        ),
        call!("receiptd.v1.InboxService/GetInbox", { "inbox": INBOX }, Ends::Alone, {
            "/0/inbox/inbox": INBOX,
            "/0/inbox/reserved": "1",
            "/0/inbox/lastSequence": "1",
        }),
        call!("receiptd.v1.InboxService/ListInboxes", {}, Ends::Alone, {
            "/0/inboxes/0/inbox": INBOX,
            "/0/inboxes/0/slots": "1000",
        }),
        call!(
            "receiptd.v1.InboxService/UpdateInbox",
            { "inbox": { "inbox": INBOX, "slots": "5" }, "updateMask": "slots" },
            Ends::Alone,
            { "/0/inbox/slots": "5", "/0/inbox/inFlightLimit": "256" }
        ),
        call!("receiptd.v1.InboxService/ListDeliveries", { "inbox": INBOX }, Ends::Alone, {
            "/0/deliveries/0/operationId": first,
        }),
    ]
}

/// The first result once more: pulled as soon as the stream has given it back, kept for longer,
/// given back, and then only asked for in a session.
fn by_hand(first: &str) -> Vec<Call> {
    let attempt = json!({ "inbox": INBOX, "sequence": "1", "attempt": 2 });
    let again = attempt.clone();
    let submit = json!({ "operationId": first, "intent": intent(), "inbox": INBOX });
    vec![
        call!(
            "receiptd.v1.InboxService/PullDeliveries",
            { "inbox": INBOX, "consumerId": "tool", "wait": "10s" },
            Ends::Alone,
            {
                "/0/consumerId": "tool",
                "/0/results/0/operation/operationId": first,
                "/0/results/0/delivery/attempt": 2,
            }
        ),
        call!(
            "receiptd.v1.InboxService/ExtendDeliveries",
            { "deliveries": [attempt], "extension": "60s", "consumerId": "tool" },
            Ends::Alone,
            { "/0/results/0/outcome": "EXTEND_OUTCOME_EXTENDED" }
        ),
        call!(
            "receiptd.v1.InboxService/DeferDeliveries",
            { "deliveries": [again], "delay": "60s" },
            Ends::Alone,
            {
                "/0/results/0/outcome": "DEFER_OUTCOME_DEFERRED",
                "/0/results/0/delivery/state": "STATE_PENDING",
            }
        ),
        call!(
            "receiptd.v1.InboxService/RedriveDeliveries",
            { "deliveries": [{ "operationId": first }] },
            Ends::Alone,
            { "/0/results/0/outcome": "REDRIVE_OUTCOME_NOT_ENDED" }
        ),
        // The end of its one frame ends the session once that is answered.
        call!(
            "receiptd.v1.SessionService/Connect",
            { "submit": { "items": [{ "tag": "7", "request": submit }] } },
            Ends::Alone,
            {
                "/0/submitResult/results/0/tag": "7",
                "/0/submitResult/results/0/result/response/origin": "ORIGIN_REPLAYED",
            }
        ),
    ]
}

/// What changes the story's state comes last, so that every read finds the same.
fn endings(first: &str, second: &str) -> Vec<Call> {
    let never_sent = Identity::fresh().id;
    vec![
        call!(
            "receiptd.v1.AdminService/UpdatePolicy",
            {
                "policy": { "lockLimit": "1800s" },
                "updateMask": "lockLimit",
                "reason": "the tool says so",
            },
            Ends::Alone,
            { "/0/policy/lockLimit": "1800s" }
        ),
        call!("receiptd.v1.AdminService/GetPolicy", {}, Ends::Alone, {
            "/0/policy/lockLimit": "1800s",
            "/0/defaults/lockLimit": "3600s",
            "/0/changes/0/number": "1",
        }),
        call!(
            "receiptd.v1.AdminService/RaiseEvidenceFloor",
            { "floor": "2020-01-01T00:00:00Z", "reason": "the tool says so" },
            Ends::Alone,
            { "/0/floor": "2020-01-01T00:00:00Z", "/0/account": "local" }
        ),
        call!("receiptd.v1.AdminService/ExportOperations", { "pageSize": 1 }, Ends::Alone, {
            "/0/operations/0/events/0/number": "1",
        }),
        call!(
            "receiptd.v1.AdminService/ErasePayloads",
            { "target": "nothing/here", "reason": "the tool says so" },
            Ends::Alone,
            { "/0/account": "local" }
        ),
        call!("receiptd.v1.AdminService/GetUsage", {}, Ends::Alone, { "/0/account": "local" }),
        call!("receiptd.v1.AdminService/RunSweep", {}, Ends::Alone, { "/0/account": "local" }),
        call!("receiptd.v1.AdminService/VerifyInvariants", {}, Ends::Alone, {
            "/0/lookedAt/operations": "2",
            "/0/lookedAt/locks": "1",
        }),
        call!("receiptd.v1.AdminService/ListLocks", {}, Ends::Alone, {
            "/0/locks/0/target": TARGET,
            "/0/locks/0/operationId": first,
            "/0/locks/0/waiting": "1",
        }),
        call!(
            "receiptd.v1.OperationService/CancelOperation",
            { "operationId": second, "reason": "the tool says so" },
            Ends::Alone,
            {
                "/0/outcome": "CANCEL_OUTCOME_CANCELLED",
                "/0/operation/state": "STATE_CANCELLED",
            }
        ),
        call!(
            "receiptd.v1.OperationService/CancelOperation",
            { "operationId": never_sent, "seal": true },
            Ends::Alone,
            {
                "/0/outcome": "CANCEL_OUTCOME_CANCELLED",
                "/0/operation/receipt/sealed": true,
            }
        ),
        call!(
            "receiptd.v1.AdminService/ReleaseLock",
            { "target": TARGET, "operationId": first, "reason": "the tool says so" },
            Ends::Alone,
            { "/0/lock/operationId": first, "/0/lock/lockMode": "LOCK_MODE_UNTIL_ACKED" }
        ),
        call!(
            "receiptd.v1.InboxService/AckDeliveries",
            { "deliveries": [{ "inbox": INBOX, "sequence": "1" }] },
            Ends::Alone,
            { "/0/results/0/outcome": "ACK_OUTCOME_ACKED" }
        ),
        call!(
            "receiptd.v1.InboxService/DeleteInbox",
            { "inbox": INBOX, "force": true, "generation": "1" },
            Ends::Alone,
            { "/0/inbox/inbox": INBOX, "/0/inbox/ackedTotal": "1" }
        ),
    ]
}
