//! W13 and W17 in full, and every age of a record (R45, R46, R48): the record, its tombstone, the
//! tombstone without its trail, and nothing but the floor. Then a year in which nobody acks (R43).

use std::time::Duration;

use prost::Message;
use receiptd::{
    domain::{
        ids::{Account, Span, Timestamp},
        policy::Policy,
    },
    proto::{
        AckOutcome, CancelOperationRequest, GetOperationResponse, ListOperationsRequest, Origin,
        ReadResultRequest, RecoveryAction, RedriveOutcome, ResultKind, Standing,
        SubmitOperationRequest, operation::State,
    },
    sweeper,
};
use tonic::Status;

use crate::{
    hosted::{Hosted, host},
    support::{
        BOUND,
        answers::{answered, delivery, found, found_receipt, lines, receipt},
        client::{Caller, Refused},
        eventually,
        requests::{Identity, into_inbox, until_acked},
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    w13_w17_every_age_of_a_record_is_answered,
    news_that_is_open_holds_its_record,
    a_year_of_abandoned_acks_leaves_nothing_behind,
);

/// Clocks of seconds.
fn policy() -> Policy {
    Policy {
        admission_window: Span::seconds(30),
        max_clock_skew: Span::seconds(5),
        record_retention: Span::seconds(60),
        audit_retention: Span::seconds(90),
        tombstone_retention: Span::seconds(120),
        ack_window: Span::seconds(40),
        ..Policy::default()
    }
}

/// A put whose content is kept as its result.
fn keeping(id: &Identity) -> SubmitOperationRequest {
    let mut request = id.put("d1", "kept");
    request.result = ResultKind::Content.into();
    request.labels = [("team".to_owned(), "blue".to_owned())].into();
    request
}

async fn read_result(caller: &Caller, id: &Identity) -> Result<Vec<u8>, Status> {
    let request = ReadResultRequest {
        operation_id: id.id.clone(),
        mint_time: id.mint_time,
        ..ReadResultRequest::default()
    };
    let mut client = caller.operations.clone();
    let mut stream = within("a result", client.read_result(request)).await?.into_inner();
    let mut body = Vec::new();
    while let Some(chunk) = within("a chunk", stream.message()).await? {
        body.extend(chunk.data);
    }
    Ok(body)
}

async fn refused_cancel(caller: &Caller, id: &Identity) -> Refused {
    let request = CancelOperationRequest {
        operation_id: id.id.clone(),
        mint_time: id.mint_time,
        reason: String::new(),
        seal: true,
    };
    let mut client = caller.operations.clone();
    let refused = within("a cancel", client.cancel_operation(request)).await;
    Refused::of(&refused.expect_err("refused"))
}

async fn listed(caller: &Caller) -> Vec<String> {
    let mut client = caller.operations.clone();
    let listed = within("a list", client.list_operations(ListOperationsRequest::default())).await;
    let operations = listed.expect("listed").into_inner().operations;
    operations
        .into_iter()
        .filter_map(|listed| listed.operation)
        .map(|operation| operation.operation_id)
        .collect()
}

fn next(answer: &GetOperationResponse) -> RecoveryAction {
    answer.recovery.as_ref().expect("a next step").action()
}

/// Moves the clock, and waits until the sweep has brought an id to a standing.
async fn aged(hosted: &Hosted, by: u64, id: &Identity, standing: Standing) -> GetOperationResponse {
    hosted.advance(Duration::from_secs(by));
    eventually("the sweep", BOUND, async || {
        let answer = hosted.a().get(id).await;
        (answer.standing() == standing).then_some(answer)
    })
    .await
}

async fn w13_w17_every_age_of_a_record_is_answered(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    let (used, lost, bare) = (Identity::fresh(), Identity::fresh(), Identity::named("opaque:1"));
    let first = caller.submitted(keeping(&used)).await;
    caller.submitted(bare.append("d2", "bare")).await;
    assert_eq!(answered(&first), (Origin::Executed, State::Applied));
    let expected = receipt(&first).encode_to_vec();
    assert_eq!(caller.ack("default", &[1, 2]).await.expect("acks"), [AckOutcome::Acked; 2]);
    assert_eq!(read_result(&caller, &used).await.expect("kept"), b"kept");

    // The tombstone: the same receipt, for a look-up and for a submit; the body is gone.
    let compacted = aged(&hosted, 61, &used, Standing::Compacted).await;
    assert_eq!(found_receipt(&compacted).encode_to_vec(), expected, "byte for byte");
    assert!(found(&compacted).compacted && found(&compacted).labels.is_empty());
    assert_eq!(next(&compacted), RecoveryAction::ReadCurrentState, "the body is gone (R48)");
    let text = compacted.recovery.expect("a next step").text;
    assert!(text.contains("no longer kept") && text.contains("d1"), "{text}");
    assert!(!text.contains("new id"), "{text}");
    let again = caller.submitted(keeping(&used)).await;
    assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&again).encode_to_vec(), expected);
    let refused = Refused::of(&read_result(&caller, &used).await.expect_err("gone"));
    assert_eq!(refused.reason, "RESULT_NOT_KEPT");
    let plain = aged(&hosted, 0, &bare, Standing::Compacted).await;
    assert_eq!(next(&plain), RecoveryAction::ShowResult, "nothing of it is gone");
    let other = caller.refused(used.put("d1", "other")).await;
    assert_eq!(
        (other.reason.as_str(), other.value("differs")),
        ("OPERATION_INTENT_MISMATCH", "arguments",)
    );
    assert_eq!(refused_cancel(&caller, &lost).await.reason, "ADMISSION_CLOSED");
    assert!(!caller.events(&used).await.is_empty());
    assert_eq!(listed(&caller).await.len(), 2);

    // Its trail goes, and the tombstone stays.
    hosted.advance(Duration::from_secs(30));
    eventually("the trail to go", BOUND, async || {
        caller.events(&used).await.is_empty().then_some(())
    })
    .await;
    assert_eq!(receipt(&caller.submitted(keeping(&used)).await).encode_to_vec(), expected);

    // Nothing but the floor: whatever was minted up to there can't be told from what is gone.
    hosted.advance(Duration::from_secs(60));
    for gone in [&used, &lost, &bare] {
        let answer = aged(&hosted, 0, gone, Standing::EvidenceExpired).await;
        assert_eq!(next(&answer), RecoveryAction::ReadCurrentState);
        assert!(answer.operation.is_none());
        let refused = caller.refused(gone.put("d1", "kept")).await;
        assert_eq!(
            (refused.reason.as_str(), refused.value("outcome"), refused.value("recovery")),
            ("EVIDENCE_EXPIRED", "NO_EFFECT", "READ_CURRENT_STATE")
        );
        assert_eq!(refused_cancel(&caller, gone).await.reason, "EVIDENCE_EXPIRED");
    }
    assert_eq!(listed(&caller).await, Vec::<String>::new());
    assert_eq!(caller.text("d1").await, ("kept".to_owned(), 1), "it was done once");

    // The account goes on: what is minted now is accepted.
    let (_, fresh) = hosted.minted_now("opaque:2");
    assert_eq!(answered(&caller.submitted(fresh.append("d2", "more")).await).0, Origin::Executed);
    hosted.stop().await;
}

async fn news_that_is_open_holds_its_record(store: TestStore) {
    let policy = Policy { ack_window: Span::seconds(100), ..policy() };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    let id = Identity::fresh();
    let sequence = delivery(&caller.submitted(keeping(&id)).await).sequence;
    hosted.advance(Duration::from_secs(65));
    sweeper::run_once(&hosted.engine).await;
    assert_eq!(caller.get(&id).await.standing(), Standing::Recorded, "its news is open");
    assert_eq!(read_result(&caller, &id).await.expect("kept"), b"kept");
    // The news expires before the tombstone would go; then the record ages, and there is nothing left to send again.
    let answer = aged(&hosted, 40, &id, Standing::Compacted).await;
    assert_eq!(answer.deliveries.len(), 1);
    assert_eq!(caller.redrive("default", &[sequence]).await, [RedriveOutcome::Retired]);
    assert_eq!(
        caller.ack("default", &[sequence]).await.expect("acks"),
        [AckOutcome::AckedLate],
        "a late ack is still recorded"
    );
    hosted.stop().await;
}

/// Rows of the tables that grow with use.
async fn rows(hosted: &Hosted) -> [usize; 2] {
    let store = hosted.engine.store();
    let tables = store.dump_tables().await.expect("dumps");
    ["operations", "audit"].map(|name| {
        tables.iter().find(|(table, _)| table == name).map_or(0, |(_, rows)| rows.len())
    })
}

async fn a_year_of_abandoned_acks_leaves_nothing_behind(store: TestStore) {
    const DAYS: i64 = 365;
    const EACH_DAY: i64 = 4;
    let policy = Policy {
        record_retention: Span::days(3),
        audit_retention: Span::days(5),
        tombstone_retention: Span::days(7),
        inbox_idle_retention: Span::days(3),
        ..Policy::default()
    };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    let account = Account::parse("a").expect("valid");
    let mut kept: Vec<(Timestamp, Identity)> = Vec::new();
    let (mut floor, mut most) = (None, [0, 0]);
    for day in 0..DAYS {
        for number in 0..EACH_DAY {
            let (minted, id) = hosted.minted_now(&format!("day-{day}:{number}"));
            // Each abandons its news, and half of them a lock and an inbox of their own with it.
            let target = format!("d{number}");
            let submit = match number % 2 {
                0 => id.append(&target, &id.id),
                _ => until_acked(into_inbox(id.append(&target, &id.id), &format!("i{day}"))),
            };
            let answer = caller.submitted(submit).await;
            assert_eq!(
                answered(&answer),
                (Origin::Executed, State::Applied),
                "nothing is in the way"
            );
            kept.push((minted, id));
        }
        hosted.advance(Duration::from_secs(24 * 3600));
        for _ in 0..3 {
            sweeper::run_once(&hosted.engine).await;
        }
        let inbox = caller.inbox("default").await;
        assert_eq!((inbox.pending, inbox.in_flight, inbox.reserved), (0, 0, 0), "day {day}");
        let locks = hosted.engine.store().list_locks(&account, "", 10).await.expect("reads");
        assert!(locks.is_empty(), "day {day}: {locks:?}");
        let row = hosted.engine.store().account(&account).await.expect("reads").expect("used");
        assert!(Some(row.evidence_floor) >= floor, "it only rises");
        floor = Some(row.evidence_floor);
        // What the floor passed is gone, everything else is there; and both are told so.
        let oldest = hosted.seams.now() - Span::days(9);
        let (gone, others): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(minted, _)| *minted <= row.evidence_floor);
        assert!(others.iter().all(|(minted, _)| *minted > oldest), "day {day}: the floor keeps up");
        for (_, id) in gone.iter().chain(others.first()) {
            let standing = caller.get(id).await.standing();
            let expected = match gone.iter().any(|(_, other)| other == id) {
                true => Standing::EvidenceExpired,
                false => Standing::Compacted,
            };
            let young = standing == Standing::Recorded && day < 4;
            assert!(standing == expected || young, "day {day}: {id:?} is {standing:?}");
        }
        kept = others;
        if day % 30 == 29 {
            let found = rows(&hosted).await;
            most = [most[0].max(found[0]), most[1].max(found[1])];
        }
    }
    // At most what nine days bring: an operation each, and three audit rows.
    let days = usize::try_from(9 * EACH_DAY).expect("small");
    assert!(most[0] <= days && most[1] <= 3 * days, "{most:?} rows");
    let text = caller.text("d0").await.0;
    for day in 0..DAYS {
        assert_eq!(lines(&text, &format!("day-{day}:0")), 1, "each effect once");
    }
    hosted.stop().await;
}
