//! Identity, scope and history: W11, W12, W15.

use receiptd::proto::{
    LockMode, OperationEventKind, Origin, RecoveryAction, Standing, SubmitOperationRequest,
    operation::State,
};
use serde_json::json;

use crate::support::{
    answers::{answered, found_receipt, lines, operation, receipt, result_revision, state_of},
    requests::{Identity, expecting},
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    w11_any_other_intent_under_the_id_is_a_conflict_that_shows_nothing,
    w12_another_account_gets_the_answer_for_an_unused_id,
    w15_a_replay_shows_history_beside_the_present_and_overwrites_nothing,
    the_same_intent_under_another_id_runs_again,
    texts_name_the_operation_its_end_and_what_changed,
);

async fn w11_any_other_intent_under_the_id_is_a_conflict_that_shows_nothing(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().put("d1", "")).await;
    let id = Identity::named("op-p");
    let request = expecting(id.append("d1", "stored-secret"), 1);
    let first = caller.submitted(request.clone()).await;
    assert_eq!(answered(&first), (Origin::Executed, State::Applied));

    let changed = |change: &dyn Fn(&mut receiptd::proto::Intent)| {
        let mut request = request.clone();
        change(request.intent.as_mut().expect("an intent"));
        request
    };
    let other = json!({ "line": "other" }).to_string().into_bytes();
    let variants: [(&str, SubmitOperationRequest); 6] = [
        ("action", changed(&|intent| intent.action = "document.delete".to_owned())),
        ("target", changed(&|intent| intent.target = "d2".to_owned())),
        ("expected_revision", changed(&|intent| intent.expected_revision = Some(2))),
        ("expected_revision", changed(&|intent| intent.expected_revision = None)),
        ("arguments", changed(&|intent| intent.arguments.clone_from(&other))),
        ("lock_mode", changed(&|intent| intent.lock_mode = LockMode::UntilAcked.into())),
    ];
    for (part, variant) in variants {
        let refused = caller.refused(variant).await;
        assert_eq!(refused.code, tonic::Code::AlreadyExists);
        assert_eq!(refused.reason, "OPERATION_INTENT_MISMATCH", "{part}");
        assert_eq!(refused.value("differs"), part);
        assert_eq!(refused.value("operation_id"), id.id);
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
        assert!(!format!("{refused:?}").contains("stored-secret"), "no stored value: {refused:?}");
    }
    assert_eq!(caller.text("d1").await, ("stored-secret\n".to_owned(), 2));
    assert_eq!(caller.text("d2").await, (String::new(), 0));
    assert_eq!(found_receipt(&caller.get(&id).await), receipt(&first));
}

async fn w12_another_account_gets_the_answer_for_an_unused_id(store: TestStore) {
    let server = store.serve(&[]);
    let (used, unused) = (Identity::named("op-used"), Identity::named("op-free"));
    server.a().submitted(used.append("d1", "x")).await;

    let mut answers = Vec::new();
    for id in [&used, &unused] {
        let mut answer = server.b().get(id).await;
        assert_eq!((answer.standing(), state_of(&answer)), (Standing::NotAcceptedYet, None));
        assert_eq!((answer.deliveries.len(), &answer.projection), (0, &None));
        answer.store_time = None;
        answer.operation_id.clear();
        let recovery = answer.recovery.as_mut().expect("a next step");
        recovery.text = recovery.text.replace(&id.id, "ID");
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1], "the same answer, but for the id");
    assert_eq!(server.b().document("d1").await, None);

    let own = server.b().submitted(used.append("d1", "x")).await;
    assert_eq!(answered(&own), (Origin::Executed, State::Applied), "the id is B's own too");
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
    assert_eq!(server.b().text("d1").await, ("x\n".to_owned(), 1));
}

async fn w15_a_replay_shows_history_beside_the_present_and_overwrites_nothing(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    for revision in 1..=12 {
        caller.submitted(Identity::fresh().append("d1", &format!("line {revision}"))).await;
    }
    let id = Identity::fresh();
    let thirteen = caller.submitted(expecting(id.append("d1", "thirteen"), 12)).await;
    assert_eq!(result_revision(receipt(&thirteen)), 13);
    caller.submitted(Identity::fresh().put("d1", "fourteen")).await;

    let replay = caller.submitted(expecting(id.append("d1", "thirteen"), 12)).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&replay), receipt(&thirteen), "13 is history");
    assert_eq!(replay.projection.expect("the present").revision, 14);
    let read = caller.get(&id).await;
    assert_eq!(result_revision(found_receipt(&read)), 13);
    assert_eq!(read.projection.expect("the present").revision, 14);
    assert_eq!(caller.text("d1").await, ("fourteen".to_owned(), 14));
}

async fn texts_name_the_operation_its_end_and_what_changed(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let id = Identity::fresh();
    let first = caller.submitted(id.append("notes/today", "x")).await;
    let replay = caller.submitted(id.append("notes/today", "x")).await;
    let read = caller.get(&id).await;
    for recovery in [&first.recovery, &replay.recovery, &read.recovery] {
        let recovery = recovery.as_ref().expect("a next step");
        assert_eq!(recovery.action(), RecoveryAction::ShowResult);
        assert!(recovery.text.contains(&id.id), "which operation: {}", recovery.text);
        let text = recovery.text.to_lowercase();
        assert!(text.contains("applied"), "how it ended: {text}");
        assert!(text.contains("revision 1"), "what changed: {text}");
    }
    let change = receipt(&first).document.clone().expect("what changed");
    assert_eq!((change.base_revision, change.result_revision, change.created), (0, 1, true));
    assert_eq!((change.size_before, change.size_after), (0, 2));
    assert_eq!(change.content_hash_after.len(), 32);
    assert!(change.content_hash_before.is_empty());
}

/// A person may mean it twice: only the id tells.
async fn the_same_intent_under_another_id_runs_again(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let first = Identity::fresh();
    caller.submitted(first.append("d1", "x")).await;
    let second = caller.submitted(Identity::fresh().append("d1", "x")).await;
    assert_eq!(answered(&second), (Origin::Executed, State::Applied));
    assert_ne!(operation(&second).operation_id, first.id);
    let (text, revision) = caller.text("d1").await;
    assert_eq!((lines(&text, "x"), revision), (2, 2));
    assert_eq!(caller.count_events(&first, OperationEventKind::Applied).await, 1);
}
