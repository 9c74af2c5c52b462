//! The store goes away and comes back: F28 (b).

use std::time::{Duration, Instant};

use receiptd::proto::{
    BatchSubmitOperationsRequest, ListOperationsRequest, OperationEventKind, Origin, Standing,
    SubmitOperationRequest, batch_submit_result::Result as Outcome, operation::State,
};
use tonic::Code;

use crate::support::{
    answers::{answered, lines},
    client::{Caller, Refused},
    requests::Identity,
    stores::{TestStore, on_both_stores},
};

/// A refusal may take this long: an embedded file that somebody has locked is waited for, and what
/// waits for it waits in turn.
const PATIENCE: Duration = Duration::from_secs(60);

on_both_stores!(alone: f28_an_outage_refuses_and_never_occupies_the_id);

async fn f28_an_outage_refuses_and_never_occupies_the_id(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().put("d1", "base\n")).await;
    let before = caller.inbox("default").await;
    let single = Identity::named("op-r");
    let many: Vec<Identity> = (1..=3).map(|at| Identity::named(&format!("op-r{at}"))).collect();
    let all = || many.iter().chain([&single]);
    let submit = |id: &Identity| id.append("d1", &id.id);

    let outage = store.take_away();
    let start = Instant::now();
    is_unavailable(&single, &refused(&caller, submit(&single)).await);
    println!("the single submit was refused after {:?}", start.elapsed());
    let start = Instant::now();
    let outcomes = together(&caller, many.iter().map(submit).collect()).await;
    println!("the batch was refused after {:?}", start.elapsed());
    assert_eq!(outcomes.len(), many.len());
    for (id, outcome) in many.iter().zip(&outcomes) {
        match outcome {
            Outcome::Error(error) => is_unavailable(id, &Refused::of_item(error)),
            Outcome::Response(answer) => panic!("answered without a store: {answer:?}"),
        }
    }
    outage.end();

    for id in all() {
        let read = caller.get(id).await;
        assert_eq!(read.standing(), Standing::NotAcceptedYet, "nothing was stored");
        assert!(read.operation.is_none() && read.deliveries.is_empty());
    }
    assert_eq!(caller.text("d1").await, ("base\n".to_owned(), 1));
    assert_eq!(caller.inbox("default").await, before, "no number and no slot was spent");

    assert_eq!(
        answered(&caller.submitted(submit(&single)).await),
        (Origin::Executed, State::Applied)
    );
    for answer in caller.submitted_together(many.iter().map(submit).collect()).await {
        assert_eq!(answered(&answer), (Origin::Executed, State::Applied));
    }
    for id in all() {
        let again = caller.submitted(submit(id)).await;
        assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
        for kind in [OperationEventKind::Accepted, OperationEventKind::Applied] {
            assert_eq!(caller.count_events(id, kind).await, 1, "{} {kind:?}", id.id);
        }
    }
    let (text, revision) = caller.text("d1").await;
    assert!(all().all(|id| lines(&text, &id.id) == 1), "each has one effect:\n{text}");
    assert_eq!((text.lines().count(), revision), (5, 5));
    assert_eq!(operations(&caller).await, 5, "one record each, and the one from before");
}

/// The refusal of contract section 9: no effect, the same id again, and when.
fn is_unavailable(id: &Identity, refused: &Refused) {
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    assert_eq!(refused.value("operation_id"), id.id);
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    assert_eq!(refused.value("recovery"), "RESUBMIT_SAME_ID");
    assert_eq!(refused.retry_delay, Some(Duration::from_secs(1)), "when to come back");
}

/// Submits once; must be refused, as late as that may be.
async fn refused(caller: &Caller, request: SubmitOperationRequest) -> Refused {
    let mut client = caller.operations.clone();
    let submit = tokio::time::timeout(PATIENCE, client.submit_operation(request));
    let answer = submit.await.expect("an answer, and no hanging");
    Refused::of(&answer.expect_err("there is no store"))
}

/// The outcomes of a batch, as late as they may be.
async fn together(caller: &Caller, requests: Vec<SubmitOperationRequest>) -> Vec<Outcome> {
    let mut client = caller.operations.clone();
    let batch = BatchSubmitOperationsRequest { requests };
    let submit = tokio::time::timeout(PATIENCE, client.batch_submit_operations(batch));
    let answer = submit.await.expect("an answer, and no hanging");
    let results = answer.expect("each item has its own outcome").into_inner().results;
    results.into_iter().map(|item| item.result.expect("an outcome")).collect()
}

/// How many records the account has.
async fn operations(caller: &Caller) -> usize {
    let request = ListOperationsRequest { page_size: 1_000, ..ListOperationsRequest::default() };
    let mut client = caller.operations.clone();
    let answer = client.list_operations(request).await.expect("a list").into_inner();
    answer.operations.len()
}
