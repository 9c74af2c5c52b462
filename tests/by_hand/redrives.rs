//! Results that expired or died, made pending again.

use std::time::Duration;

use receiptd::{
    domain::policy::Policy,
    proto::{
        AckOutcome, DeliveryTarget, OperationEventKind, RedriveDeliveriesRequest,
        RedriveDeliveriesResponse, RedriveOutcome, delivery::State as DeliveryState,
        stream_deliveries_response::Frame,
    },
};

use crate::{
    INBOX,
    hosted::host,
    lost, policy, pulled, queue, redrive,
    support::{
        client::{Refused, attempt, sequence, sequences},
        requests::{Identity, into_inbox},
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(every_outcome_of_redriving, a_whole_inbox_is_redriven_in_steps);

async fn every_outcome_of_redriving(store: TestStore) {
    let hosted = host(store, Policy { inbox_slots: 5, ..policy() }).await;
    let caller = hosted.a();
    let ids = queue(&caller, 5).await;
    caller.ack(INBOX, &[1]).await.expect("acked");
    hosted.advance(Duration::from_secs(90));
    lost(&caller, 4).await;
    assert_eq!(caller.ack(INBOX, &[2]).await.expect("answered"), [AckOutcome::AckedLate]);
    queue(&caller, 3).await;
    let mut reader = caller.reader(INBOX, "c", "").await;
    let gap = loop {
        if let Frame::Gap(gap) = reader.frame().await.expect("the stream stays open") {
            break gap;
        }
    };
    assert_eq!((gap.first_sequence, gap.last_sequence), (2, 5));
    assert_eq!(sequences(&reader.backlog().await), [6, 7, 8]);
    use RedriveOutcome::{AlreadyAcked, InboxFull, NoSuchDelivery, NotEnded, Redriven};
    let outcomes = caller.redrive(INBOX, &[1, 2, 3, 4, 5, 6, 99, -1]).await;
    assert_eq!(
        outcomes,
        [
            AlreadyAcked,
            AlreadyAcked,
            Redriven,
            Redriven,
            InboxFull,
            NotEnded,
            NoSuchDelivery,
            NoSuchDelivery
        ]
    );
    assert_eq!(hosted.b().redrive(INBOX, &[5]).await, [NoSuchDelivery], "another account");
    let mut again = reader.results(2).await;
    again.sort_by_key(sequence);
    assert_eq!(sequences(&again), [3, 4], "what was told as a gap is shown when it comes back");
    assert!(again.iter().all(|result| attempt(result) == 1), "sent for the first time");
    let events = caller.events(&ids[2]).await;
    assert_eq!(events.last().map(|event| event.kind()), Some(OperationEventKind::Redriven));
    caller.ack(INBOX, &[3, 4]).await.expect("acked");

    let named = |operation_id: &str| DeliveryTarget {
        operation_id: operation_id.to_owned(),
        ..DeliveryTarget::default()
    };
    let deliveries = vec![named(&ids[4].id), named("nobody"), named("no such id")];
    let request = RedriveDeliveriesRequest { deliveries, ..Default::default() };
    let answer = redrive(&caller, request).await.expect("answered");
    let told: Vec<_> = answer
        .results
        .iter()
        .map(|result| (result.inbox.as_str(), result.sequence, result.outcome()))
        .collect();
    assert_eq!(told, [(INBOX, 5, Redriven), ("", 0, NoSuchDelivery), ("", 0, NoSuchDelivery)]);
    assert_eq!(answer.results[0].operation_id, ids[4].id);
    let delivery = answer.results[0].delivery.as_ref().expect("the delivery");
    assert_eq!(delivery.state(), DeliveryState::Pending);
    assert_eq!((answer.more, answer.last_sequence), (false, 0));
    assert_eq!(sequences(&reader.next_results().await), [5]);
    let row = caller.inbox(INBOX).await;
    assert_eq!((row.expired_total, row.pending, row.in_flight), (4, 0, 4), "a history");
    hosted.stop().await;
}

async fn a_whole_inbox_is_redriven_in_steps(store: TestStore) {
    let slots = Policy { inbox_slots: 3_000, in_flight_max: 1_000, retry_budget: 1, ..policy() };
    let hosted = host(store, slots).await;
    let caller = hosted.a();
    for _ in 0..11 {
        let submit = |_| into_inbox(Identity::fresh().append("d1", "x"), INBOX);
        caller.submitted_together((0..100).map(submit).collect()).await;
    }
    // Ten die, the others expire unsent.
    assert_eq!(pulled(&caller, "c", 10).await.len(), 10);
    hosted.advance(Duration::from_secs(30));
    lost(&caller, 10).await;
    hosted.advance(Duration::from_secs(60));
    lost(&caller, 1_100).await;
    caller.ack(INBOX, &[1, 2]).await.expect("answered");
    let request = |states: &[DeliveryState], after_sequence| RedriveDeliveriesRequest {
        inbox: INBOX.to_owned(),
        states: states.iter().map(|state| i32::from(*state)).collect(),
        after_sequence,
        ..Default::default()
    };
    let dead = redrive(&caller, request(&[DeliveryState::Dead], 0)).await.expect("answered");
    let numbers: Vec<i64> = dead.results.iter().map(|result| result.sequence).collect();
    assert_eq!(numbers, (3..=10).collect::<Vec<i64>>(), "what was acked late is left out");
    assert!(!dead.more);
    let first = redrive(&caller, request(&[], 0)).await.expect("answered");
    assert_eq!((first.results.len(), first.more), (1_000, true));
    let redriven = |answer: &RedriveDeliveriesResponse| {
        answer.results.iter().all(|result| result.outcome() == RedriveOutcome::Redriven)
    };
    assert!(redriven(&first));
    let rest = redrive(&caller, request(&[], first.last_sequence)).await.expect("answered");
    assert_eq!((rest.results.len(), rest.more, rest.last_sequence), (90, false, 1_100));
    assert!(redriven(&rest));
    assert_eq!(caller.inbox(INBOX).await.pending, 1_098);
    let mut all = Vec::new();
    while all.len() < 1_098 {
        let page: Vec<i64> =
            pulled(&caller, "c", 1_000).await.into_iter().map(|(number, _)| number).collect();
        assert!(!page.is_empty());
        caller.ack(INBOX, &page).await.expect("acked");
        all.extend(page);
    }
    all.sort_unstable();
    assert_eq!(all, (3..=1_100).collect::<Vec<i64>>(), "each once");
    let nowhere = RedriveDeliveriesRequest { inbox: "nowhere".into(), ..Default::default() };
    let refused = redrive(&caller, nowhere).await.expect_err("refused");
    assert_eq!(Refused::of(&refused).reason, "NO_SUCH_INBOX");
    hosted.stop().await;
}
