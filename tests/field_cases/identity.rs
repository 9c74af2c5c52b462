//! Identity of the intent: F26, F28 (b with a store that is away: see `outages`), F30.

use receiptd::proto::{
    GetOperationRequest, Intent, Origin, RejectionReason, Standing,
    batch_submit_result::Result as Outcome, operation::State,
};
use tonic::Code;

use crate::support::{
    answers::{answered, found_receipt, operation, receipt, state_of},
    client::Refused,
    requests::{Identity, expecting},
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    f26_same_id_any_other_intent_in_a_batch_too,
    f28_a_rejection_is_remembered_and_replayed,
    f28_a_refusal_never_occupies_the_id,
    f30_a_bad_id_never_switches_protection_off,
);

async fn f26_same_id_any_other_intent_in_a_batch_too(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().put("d1", "base\n")).await;
    let id = Identity::named("op-p");
    let request = expecting(id.append("d1", "x"), 1);
    let first = caller.submitted(request.clone()).await;
    assert_eq!(answered(&first), (Origin::Executed, State::Applied));

    let neighbour = Identity::fresh();
    let changed = |change: &dyn Fn(&mut Intent)| {
        let mut request = request.clone();
        change(request.intent.as_mut().expect("an intent"));
        request
    };
    let requests = vec![
        changed(&|intent| intent.action = "document.delete".to_owned()),
        neighbour.append("d2", "neighbour"),
        changed(&|intent| intent.target = "d2".to_owned()),
        changed(&|intent| intent.expected_revision = Some(2)),
        changed(&|intent| intent.arguments = br#"{"line":"y"}"#.to_vec()),
        request.clone(),
    ];
    let expected = ["action", "", "target", "expected_revision", "arguments", ""];
    let outcomes = caller.submit_together(requests).await;
    assert_eq!(outcomes.len(), expected.len());
    for (outcome, part) in outcomes.iter().zip(expected) {
        match outcome {
            Outcome::Error(error) => {
                assert_eq!(error.code, Code::AlreadyExists as i32);
                assert_eq!(error.reason, "OPERATION_INTENT_MISMATCH");
                assert!(error.metadata["differs"].split(',').any(|found| found.trim() == part));
                assert_eq!(error.metadata["outcome"], "NO_EFFECT");
            }
            Outcome::Response(answer) => {
                assert_eq!(part, "", "a bad one fails alone");
                assert_eq!(operation(answer).state(), State::Applied);
            }
        }
    }
    assert_eq!(found_receipt(&caller.get(&id).await), receipt(&first));
    assert_eq!(caller.text("d1").await, ("base\nx\n".to_owned(), 2));
    assert_eq!(caller.text("d2").await, ("neighbour\n".to_owned(), 1));
}

async fn f28_a_rejection_is_remembered_and_replayed(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().put("d1", "base")).await;
    let id = Identity::named("op-q");
    let request = expecting(id.append("d1", "x"), 7);
    let rejected = caller.submitted(request.clone()).await;
    assert_eq!(answered(&rejected), (Origin::Executed, State::Rejected));
    let reason = receipt(&rejected).rejection.as_ref().expect("a reason").reason();
    assert_eq!(reason, RejectionReason::RevisionMismatch);

    let again = caller.submitted(request.clone()).await;
    let Outcome::Response(in_batch) = caller.submit_together(vec![request]).await.remove(0) else {
        panic!("a business outcome is never an error");
    };
    for replay in [&again, &in_batch] {
        assert_eq!(answered(replay), (Origin::Replayed, State::Rejected));
        assert_eq!(receipt(replay), receipt(&rejected));
    }
    assert_eq!(caller.text("d1").await, ("base".to_owned(), 1));
}

async fn f28_a_refusal_never_occupies_the_id(store: TestStore) {
    let server = store.serve(&["--inbox-slots=1"]);
    let caller = server.a();
    let blocking = caller.submitted(Identity::fresh().append("d1", "first")).await;
    let id = Identity::named("op-r");
    let refused = caller.refused(id.append("d1", "x")).await;
    assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "INBOX_FULL"));
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    assert_eq!(caller.get(&id).await.standing(), Standing::NotAcceptedYet);
    caller.ack("default", &[blocking.deliveries[0].sequence]).await.expect("acked");
    let executed = caller.submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&executed), (Origin::Executed, State::Applied));
    assert_eq!(caller.text("d1").await, ("first\nx\n".to_owned(), 2));
}

async fn f30_a_bad_id_never_switches_protection_off(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let mint_time = Identity::named("any").mint_time;
    let long = "x".repeat(1024);
    for bad in ["", long.as_str(), "tab\there", "line\nfeed", " op", "op ", "ö", "a/b"] {
        let id = Identity { id: bad.to_owned(), mint_time };
        let refused = caller.refused(id.append("d1", "x")).await;
        assert_eq!(refused.code, Code::InvalidArgument, "{bad:?}");
        assert_eq!(refused.reason, "INVALID_FIELD", "{bad:?}");
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
        assert!(refused.message.contains("operation_id"), "{}", refused.message);
        assert!(refused.message.contains("64"), "the limit is told: {}", refused.message);
        let look_up = GetOperationRequest { operation_id: bad.to_owned(), mint_time };
        let mut client = caller.operations.clone();
        let status = client.get_operation(look_up).await.expect_err("a look-up refuses it too");
        assert_eq!(Refused::of(&status).reason, "INVALID_FIELD");
    }
    let without_time = Identity { id: "op-x".to_owned(), mint_time: None };
    let refused = caller.refused(without_time.append("d1", "x")).await;
    assert_eq!(refused.reason, "INVALID_FIELD", "another id than a UUIDv7 needs its mint time");
    assert_eq!(caller.text("d1").await, (String::new(), 0));

    let (lower, upper) = (Identity::named("op-case"), Identity::named("OP-CASE"));
    caller.submitted(lower.append("d1", "lower")).await;
    assert_eq!(state_of(&caller.get(&upper).await), None, "never normalised");
    let other = caller.submitted(upper.append("d1", "upper")).await;
    assert_eq!(answered(&other), (Origin::Executed, State::Applied));
    assert_eq!(caller.text("d1").await, ("lower\nupper\n".to_owned(), 2));
}
