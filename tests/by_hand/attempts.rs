//! Attempts in work: extended, and given back.

use std::time::Duration;

use receiptd::proto::{
    AckOutcome, DeferOutcome, ExtendOutcome, OperationEventKind, delivery::State as DeliveryState,
    stream_deliveries_response::Frame,
};

use crate::{
    INBOX, defer, extend,
    hosted::host,
    pending, policy, pulled, queue,
    support::{
        client::{attempt, sequence, sequences},
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(
    every_outcome_of_extending_and_deferring,
    a_stream_goes_on_with_what_it_extended_and_sees_again_what_it_deferred,
);

async fn every_outcome_of_extending_and_deferring(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    let ids = queue(&caller, 4).await;
    assert_eq!(pulled(&caller, "c", 3).await, [(1, 1), (2, 1), (3, 1)]);
    caller.ack(INBOX, &[3]).await.expect("acked");
    let shown = caller.get(&ids[0]).await.deliveries.remove(0);
    hosted.advance(Duration::from_secs(20));
    let named = [(1, 1), (2, 7), (3, 1), (4, 0), (99, 1), (-1, 1)];
    let results = extend(&caller, "c", &named, 30).await.expect("answered");
    let outcomes: Vec<_> = results.iter().map(|result| result.outcome()).collect();
    assert_eq!(
        outcomes,
        [
            ExtendOutcome::Extended,
            ExtendOutcome::NotYours,
            ExtendOutcome::AlreadyAcked,
            ExtendOutcome::NotInFlight,
            ExtendOutcome::NoSuchDelivery,
            ExtendOutcome::NoSuchDelivery,
        ]
    );
    let deadline =
        |delivery: &receiptd::proto::Delivery| delivery.ack_deadline.expect("in flight").seconds;
    let extended = results[0].delivery.clone().expect("the delivery as it is now");
    assert_eq!(deadline(&extended) - deadline(&shown), 20, "30 s from now, not from then");
    assert_eq!((results[0].inbox.as_str(), results[0].sequence), (INBOX, 1));
    let other = extend(&caller, "d", &[(1, 1)], 30).await.expect("answered");
    assert_eq!(other[0].outcome(), ExtendOutcome::NotYours);
    let strange = extend(&hosted.b(), "", &[(1, 1)], 30).await.expect("answered");
    assert_eq!(strange[0].outcome(), ExtendOutcome::NoSuchDelivery, "another account");
    assert_eq!(caller.events(&ids[0]).await.len(), 3, "an extension leaves no entry");

    // 2 was not extended: its deadline passes, and it waits for its second attempt.
    hosted.advance(Duration::from_secs(10));
    pending(&caller, 2).await;
    let late = extend(&caller, "c", &[(2, 1)], 30).await.expect("answered");
    assert_eq!(late[0].outcome(), ExtendOutcome::NotInFlight);

    let too_long = defer(&caller, "c", &[(1, 1)], 90).await.expect("answered");
    assert_eq!(too_long[0].outcome(), DeferOutcome::WindowEnds);
    let kept = too_long[0].delivery.as_ref().expect("the delivery as it is now");
    assert_eq!((kept.state(), kept.attempt), (DeliveryState::InFlight, 1), "nothing changed");
    assert_eq!(deadline(kept), deadline(&extended));

    let named = [(1, 1), (2, 1), (3, 1), (1, 1), (99, 1)];
    let results = defer(&caller, "c", &named, 5).await.expect("answered");
    let outcomes: Vec<_> = results.iter().map(|result| result.outcome()).collect();
    assert_eq!(
        outcomes,
        [
            DeferOutcome::Deferred,
            DeferOutcome::NotInFlight,
            DeferOutcome::AlreadyAcked,
            DeferOutcome::NotInFlight,
            DeferOutcome::NoSuchDelivery,
        ]
    );
    let deferred = results[0].delivery.clone().expect("the delivery as it is now");
    assert_eq!(deferred.state(), DeliveryState::Pending);
    assert!(deferred.available_time.is_some() && deferred.ack_deadline.is_none());
    let events = caller.events(&ids[0]).await;
    let last = events.last().expect("an entry");
    assert_eq!(last.kind(), OperationEventKind::Returned);
    assert_eq!(
        (last.text.as_str(), last.subject.as_str()),
        ("deferred by its consumer", "tests-a")
    );
    hosted.advance(Duration::from_secs(5));
    let mut second = pulled(&caller, "c", 9).await;
    second.sort_unstable();
    assert_eq!(second, [(1, 2), (2, 2), (4, 1)]);
    let strange = defer(&caller, "d", &[(1, 2)], 5).await.expect("answered");
    assert_eq!(strange[0].outcome(), DeferOutcome::NotYours);
    let dead = defer(&caller, "c", &[(1, 2)], 5).await.expect("answered");
    assert_eq!(dead[0].outcome(), DeferOutcome::Deferred);
    let delivery = dead[0].delivery.as_ref().expect("the delivery");
    assert_eq!(delivery.state(), DeliveryState::Dead, "its last attempt");
    hosted.stop().await;
}

async fn a_stream_goes_on_with_what_it_extended_and_sees_again_what_it_deferred(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 2).await;
    let mut reader = caller.reader(INBOX, "c", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1, 2]);
    let extended = extend(&caller, "c", &[(1, 1)], 60).await.expect("answered");
    assert_eq!(extended[0].outcome(), ExtendOutcome::Extended);
    let deferred = defer(&caller, "c", &[(2, 1)], 0).await.expect("answered");
    assert_eq!(deferred[0].outcome(), DeferOutcome::Deferred);
    let again = reader.next_results().await;
    assert_eq!((sequence(&again[0]), attempt(&again[0])), (2, 2), "at once");
    caller.ack_as("c", INBOX, &[2]).await.expect("acked");
    // The first deadline passes, as the sweep of a result that nobody extended shows.
    assert_eq!(pulled(&caller, "other", 1).await, []);
    queue(&caller, 1).await;
    assert_eq!(sequences(&reader.next_results().await), [3]);
    hosted.advance(Duration::from_secs(31));
    pending(&caller, 1).await;
    hosted.advance(Duration::from_secs(1));
    let again = reader.next_results().await;
    assert_eq!((sequence(&again[0]), attempt(&again[0])), (3, 2), "only what was not extended");
    let acked = caller.ack_as("c", INBOX, &[1, 3]).await.expect("acked");
    assert_eq!(acked, [AckOutcome::Acked; 2]);
    let told = |frame: &Frame| matches!(frame, Frame::Withdrawn(_) | Frame::Gap(_));
    assert!(!reader.others.iter().any(told), "nothing was taken back: {:?}", reader.others);
    hosted.stop().await;
}
