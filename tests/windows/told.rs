//! What callers are told: other accounts nothing, the own account what is known, what is not, and
//! the one safe next call (R8, R26, R32, R44, R55 to R58, R60).

use std::collections::BTreeMap;

use receiptd::proto::{
    CancelOperationRequest, EffectCertainty, ListOperationEventsRequest, Origin, Recovery,
    RecoveryAction, Standing, WatchOperationRequest, operation::State,
    stream_deliveries_response::Frame,
};
use serde_json::json;
use tonic::Status;
use tonic_types::StatusExt;

use crate::support::{
    answers::{answered, delivery, found_receipt, operation, receipt},
    client::{Caller, Refused},
    requests::{Identity, expecting, intent, into_inbox, until_acked},
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    another_account_gets_every_answer_of_an_unused_id,
    a_record_holds_what_its_story_needs,
    a_replay_after_a_delete_tells_history_and_that_the_document_is_gone,
    the_policy_in_force_is_told_at_the_opening,
    every_end_of_a_submit_is_a_state_a_certainty_and_a_next_step,
);

/// Everything of a failed call that a caller could look at, with the id blanked out. The order of
/// a map's entries is chance on the wire, and the date is that of the call.
fn seen(status: &Status, id: &Identity) -> String {
    let refused = Refused::of(status);
    let metadata: BTreeMap<String, String> = refused.metadata.into_iter().collect();
    let details = status.get_error_details();
    let sentence = details.localized_message().cloned();
    let (retry, quota) = (details.retry_info().cloned(), details.quota_failure().cloned());
    let mut headers = status.metadata().clone().into_headers();
    headers.remove("date");
    let text = format!(
        "{:?} {} {} {metadata:?} {sentence:?} {retry:?} {quota:?} {headers:?} {} bytes",
        refused.code,
        refused.reason,
        refused.message,
        status.details().len(),
    );
    text.replace(&id.id, "THE-ID")
}

async fn another_account_gets_every_answer_of_an_unused_id(store: TestStore) {
    let server = store.serve(&[]);
    let (used, unused) = (Identity::named("op-used"), Identity::named("op-free"));
    let waits = Identity::named("op-wait");
    server.a().submitted(until_acked(used.append("d1", "x"))).await;
    server.a().submitted(waits.append("d1", "x")).await;
    let other = server.b();
    let mut all = Vec::new();
    for id in [&unused, &used, &waits] {
        let mut operations = other.operations.clone();
        let cancel = CancelOperationRequest {
            operation_id: id.id.clone(),
            mint_time: id.mint_time,
            reason: String::new(),
            seal: false,
        };
        let watch = WatchOperationRequest { operation_id: id.id.clone(), mint_time: id.mint_time };
        let events = ListOperationEventsRequest {
            operation_id: id.id.clone(),
            mint_time: id.mint_time,
            ..<_>::default()
        };
        let answers = [
            operations.cancel_operation(cancel).await.expect_err("no record"),
            operations.watch_operation(watch).await.expect_err("no record"),
            operations.list_operation_events(events).await.expect_err("no record"),
        ];
        for answer in &answers {
            assert_eq!(Refused::of(answer).reason, "NO_SUCH_OPERATION");
        }
        all.push(answers.map(|answer| seen(&answer, id)));
    }
    assert_eq!(all[1], all[0], "an id that another account applied");
    assert_eq!(all[2], all[0], "an id that waits for another account's target");

    let inboxes = other.inboxes.clone().get_inbox(inbox_request()).await;
    assert_eq!(Refused::of(&inboxes.expect_err("not its own")).reason, "NO_SUCH_INBOX");
    assert_eq!(other.document("d1").await, None);
    let free = other.submitted(waits.append("d1", "y")).await;
    assert_eq!(answered(&free), (Origin::Executed, State::Applied), "A's lock is A's alone");
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}

fn inbox_request() -> receiptd::proto::GetInboxRequest {
    receiptd::proto::GetInboxRequest { inbox: "default".to_owned() }
}

async fn a_record_holds_what_its_story_needs(store: TestStore) {
    let mut server = store.serve(&[]);
    server.a().submitted(Identity::fresh().put("notes/a", "one\n")).await;
    let id = Identity::named("op-1");
    let request = into_inbox(expecting(id.append("notes/a", "two"), 1), "editor");
    let submitted = server.a().submitted(request).await;
    server.crash_and_restart();
    let read = server.a().get(&id).await;
    let stored = found_receipt(&read);
    assert_eq!(stored, receipt(&submitted));
    assert_eq!((stored.operation_id.as_str(), stored.mint_time), ("op-1", id.mint_time));
    assert_eq!((stored.action.as_str(), stored.target.as_str()), ("document.append", "notes/a"));
    assert_eq!((stored.intent_digest.len(), stored.expected_revision), (32, Some(1)));
    assert_eq!((stored.state(), stored.outcome_version), (State::Applied, 1));
    assert_eq!(stored.effect_certainty(), EffectCertainty::Complete);
    let change = stored.document.as_ref().expect("what changed");
    assert_eq!((change.base_revision, change.result_revision), (1, 2));
    assert_eq!((change.size_before, change.size_after), (4, 8));
    assert_ne!(change.content_hash_before, change.content_hash_after);
    assert_eq!(read.deliveries.len(), 1, "the news has a state of its own");
    assert_eq!(read.deliveries, submitted.deliveries);
    assert_eq!(delivery(&submitted).inbox, "editor");
}

async fn a_replay_after_a_delete_tells_history_and_that_the_document_is_gone(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let id = Identity::fresh();
    let first = caller.submitted(id.append("notes/a", "x")).await;
    let delete = Identity::fresh().submit(intent("document.delete", "notes/a", &json!({})));
    assert_eq!(operation(&caller.submitted(delete).await).state(), State::Applied);

    let replay = caller.submitted(id.append("notes/a", "x")).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&replay), receipt(&first));
    let projection = replay.projection.expect("the present");
    assert_eq!((projection.exists, projection.revision), (false, 2));
    let text = replay.recovery.expect("a next step").text;
    assert!(text.contains("has been deleted since"), "{text}");
    assert!(text.contains("nothing was executed again"), "{text}");
    assert_eq!(caller.document("notes/a").await, None, "and a replay brings nothing back");
}

async fn the_policy_in_force_is_told_at_the_opening(store: TestStore) {
    let server = store.serve(&["--ack-window=77s", "--lock-limit=33s", "--inbox-slots=5"]);
    let caller = server.a();
    let mut reader = caller.reader("editor", "installation-1", "").await;
    let Frame::Opened(opened) = reader.frame().await.expect("a frame") else {
        panic!("the first frame is another one");
    };
    let policy = opened.policy.expect("the clocks and limits");
    let seconds = |span: Option<prost_types::Duration>| span.expect("a clock").seconds;
    assert_eq!((seconds(policy.ack_window), seconds(policy.lock_limit)), (77, 33));
    assert_eq!(policy.inbox_slots, 5);
    let day = 86_400;
    assert_eq!(seconds(policy.admission_window), day);
    assert_eq!(seconds(policy.record_retention), 30 * day);
    assert_eq!(seconds(policy.tombstone_retention), 400 * day);
}

/// R57, R58: programs read enums, people a text that names the operation and the next call.
async fn every_end_of_a_submit_is_a_state_a_certainty_and_a_next_step(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(until_acked(Identity::fresh().append("held", "x"))).await;
    let (applied, stale, waits) =
        (Identity::named("applied"), Identity::named("stale"), Identity::named("waits"));
    let none = EffectCertainty::None;
    let rows = [
        (&applied, "d1", None, State::Applied, EffectCertainty::Complete, "ShowResult"),
        (&stale, "d1", Some(9), State::Rejected, none, "ReadCurrentState"),
        (&waits, "held", None, State::Accepted, none, "Wait"),
    ];
    for (id, target, expected_revision, state, certainty, next) in rows {
        let name = id.id.as_str();
        let mut request = id.append(target, "x");
        request.intent.as_mut().expect("an intent").expected_revision = expected_revision;
        let answer = caller.submitted(request).await;
        let read = caller.get(id).await;
        for (found, recovery) in [
            (answer.operation.as_ref(), answer.recovery.as_ref()),
            (read.operation.as_ref(), read.recovery.as_ref()),
        ] {
            let (found, recovery) = (found.expect("one"), recovery.expect("a next step"));
            assert_eq!((found.state(), found.effect_certainty()), (state, certainty), "{name}");
            assert_eq!(format!("{:?}", recovery.action()), next, "{name}");
            assert!(recovery.text.contains(name), "{}", recovery.text);
        }
    }
    let cancelled = cancel(&caller, &waits).await;
    assert_eq!(cancelled.action(), RecoveryAction::NewIdSafe);
    assert!(cancelled.text.contains("waits was cancelled before it began"), "{}", cancelled.text);

    let absent = Identity::named("absent");
    let read = caller.get(&absent).await;
    assert_eq!((read.standing(), read.operation), (Standing::NotAcceptedYet, None));
    let recovery = read.recovery.expect("a next step");
    assert_eq!(recovery.action(), RecoveryAction::ResubmitSameId);
    for part in ["absent", "may still be on its way", "same id"] {
        assert!(recovery.text.contains(part), "{}", recovery.text);
    }
}

async fn cancel(caller: &Caller, id: &Identity) -> Recovery {
    let request = CancelOperationRequest {
        operation_id: id.id.clone(),
        mint_time: id.mint_time,
        reason: "changed my mind".to_owned(),
        seal: false,
    };
    let answer = caller.operations.clone().cancel_operation(request).await.expect("answered");
    answer.into_inner().recovery.expect("a next step")
}
