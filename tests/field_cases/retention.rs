//! F29: a retry after the record is gone, with the short clocks of the field cases, on the real clock.

use std::time::Duration;

use receiptd::proto::{
    Origin, RecoveryAction, ResultKind, Standing, SubmitOperationRequest, operation::State,
};

use crate::support::{
    answers::{answered, found_receipt, receipt},
    client::{Caller, Refused},
    eventually,
    requests::Identity,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(f29_a_retry_after_the_record_is_gone);

/// The tombstone outlives its time until its id could no longer be accepted: a minute beyond the
/// admission window.
const LONG: Duration = Duration::from_secs(90);

const FLAGS: [&str; 7] = [
    "--admission-window=5s",
    "--max-clock-skew=1s",
    "--record-retention=6s",
    "--audit-retention=6s",
    "--tombstone-retention=8s",
    "--ack-window=4s",
    "--ack-deadline=3s",
];

fn keeping(id: &Identity) -> SubmitOperationRequest {
    SubmitOperationRequest { result: ResultKind::Content.into(), ..id.put("d1", "kept") }
}

async fn standing(caller: &Caller, id: &Identity, wanted: Standing) {
    eventually("the record to age", LONG, async || {
        (caller.get(id).await.standing() == wanted).then_some(())
    })
    .await;
}

async fn f29_a_retry_after_the_record_is_gone(store: TestStore) {
    let server = store.serve(&FLAGS);
    let caller = server.a();
    let id = Identity::fresh();
    let first = caller.submitted(keeping(&id)).await;
    // Two ids of one millisecond can't be told apart by the floor.
    let never = eventually("the next millisecond", LONG, async || {
        let next = Identity::fresh();
        (next.id[..13] != id.id[..13]).then_some(next)
    })
    .await;

    // Within the horizon: known, applied at that time, its body no longer kept, not executed again.
    standing(&caller, &id, Standing::Compacted).await;
    let read = caller.get(&id).await;
    assert_eq!(found_receipt(&read), receipt(&first));
    let recovery = read.recovery.expect("a next step");
    assert_eq!(recovery.action(), RecoveryAction::ReadCurrentState);
    assert!(recovery.text.contains("no longer kept"), "{}", recovery.text);
    let again = caller.submitted(keeping(&id)).await;
    assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
    assert_eq!((receipt(&again), again.result.as_deref()), (receipt(&first), None));

    // Beyond it: the horizon is told, and nothing is executed.
    standing(&caller, &id, Standing::EvidenceExpired).await;
    let read = caller.get(&id).await;
    let evidence = read.evidence.expect("what is kept");
    let floor = evidence.evidence_floor.expect("something was deleted");
    let minted = id.mint_time.or(receipt(&first).mint_time).expect("a time");
    assert_eq!(floor, minted, "the greatest mint time that is gone");
    assert_eq!(evidence.tombstone_retention.expect("a clock").seconds, 8);
    let text = read.recovery.expect("a next step").text;
    assert!(!text.contains("new id"), "{text}");
    let refused = caller.refused(keeping(&id)).await;
    assert_eq!(refused.reason, "EVIDENCE_EXPIRED");
    assert!(!refused.value("evidence_floor").is_empty(), "{refused:?}");

    // An id that was never used, made just after: the floor is not above it, so it is proven.
    standing(&caller, &never, Standing::NeverAccepted).await;
    // One whose age nobody can tell is told so, and not called absent.
    let unknown = Identity { id: "opaque".to_owned(), mint_time: None };
    let mut client = caller.operations.clone();
    let told = within("an answer", client.get_operation(unknown.look_up())).await;
    let told = Refused::of(&told.expect_err("no time"));
    assert_eq!((told.reason.as_str(), told.value("field")), ("INVALID_FIELD", "mint_time"));
    assert_eq!(caller.text("d1").await, ("kept".to_owned(), 1), "executed once");
}
