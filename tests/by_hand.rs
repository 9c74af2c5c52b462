//! Deliveries by hand over a real socket, on both stores: each call's effect and what it tells.

#[path = "support/hosted.rs"]
mod hosted;
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use hosted::{Hosted, host};
use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{
        AckDeliveriesRequest, AckOutcome, AckTarget, AttemptTarget, DeferDeliveriesRequest,
        DeferOutcome, DeferResult, DeliveryTarget, ExtendDeliveriesRequest, ExtendOutcome,
        ExtendResult, OperationEventKind, PullDeliveriesRequest, PullDeliveriesResponse,
        RedriveDeliveriesRequest, RedriveDeliveriesResponse, RedriveOutcome,
        delivery::State as DeliveryState, stream_deliveries_response::Frame,
    },
};
use support::{
    BOUND, background,
    client::{Caller, Refused, attempt, sequence, sequences},
    eventually,
    requests::{Identity, into_inbox, seconds},
    stores::{TestStore, on_both_stores},
    within,
};
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

on_both_stores!(
    every_outcome_of_extending_and_deferring,
    a_stream_goes_on_with_what_it_extended_and_sees_again_what_it_deferred,
    every_outcome_of_redriving,
    a_whole_inbox_is_redriven_in_steps,
    a_pull_takes_what_is_there_or_waits_for_it,
    a_pull_and_a_stream_of_one_consumer,
    an_operation_names_its_result,
    requests_that_say_nothing_are_refused_by_their_field,
);

const INBOX: &str = "editor";

fn policy() -> Policy {
    Policy {
        ack_window: Span::seconds(90),
        backoff_first: Span::seconds(1),
        retry_budget: 2,
        ..Policy::default()
    }
}

async fn queue(caller: &Caller, count: usize) -> Vec<Identity> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = Identity::fresh();
        caller.submitted(into_inbox(id.append("d1", "x"), INBOX)).await;
        ids.push(id);
    }
    ids
}

fn page(consumer: &str, max_deliveries: i32, wait: i64) -> PullDeliveriesRequest {
    PullDeliveriesRequest {
        inbox: INBOX.to_owned(),
        consumer_id: consumer.to_owned(),
        max_deliveries,
        wait: Some(seconds(wait)),
    }
}

async fn pull(
    caller: &Caller,
    request: PullDeliveriesRequest,
) -> Result<PullDeliveriesResponse, Status> {
    let mut client = caller.inboxes.clone();
    Ok(within("a page", client.pull_deliveries(request)).await?.into_inner())
}

async fn pulled(caller: &Caller, consumer: &str, max: i32) -> Vec<(i64, i32)> {
    let answer = pull(caller, page(consumer, max, 0)).await.expect("answered");
    answer.results.iter().map(|result| (sequence(result), attempt(result))).collect()
}

fn attempts(named: &[(i64, i32)]) -> Vec<AttemptTarget> {
    let target = |&(sequence, attempt): &(i64, i32)| {
        let inbox = INBOX.to_owned();
        AttemptTarget { inbox, sequence, attempt }
    };
    named.iter().map(target).collect()
}

async fn extend(
    caller: &Caller,
    consumer: &str,
    named: &[(i64, i32)],
    extension: i64,
) -> Result<Vec<ExtendResult>, Status> {
    let request = ExtendDeliveriesRequest {
        deliveries: attempts(named),
        extension: Some(seconds(extension)),
        consumer_id: consumer.to_owned(),
    };
    let mut client = caller.inboxes.clone();
    Ok(within("an extension", client.extend_deliveries(request)).await?.into_inner().results)
}

async fn defer(
    caller: &Caller,
    consumer: &str,
    named: &[(i64, i32)],
    delay: i64,
) -> Result<Vec<DeferResult>, Status> {
    let request = DeferDeliveriesRequest {
        deliveries: attempts(named),
        delay: Some(seconds(delay)),
        consumer_id: consumer.to_owned(),
    };
    let mut client = caller.inboxes.clone();
    Ok(within("a deferral", client.defer_deliveries(request)).await?.into_inner().results)
}

async fn redrive(
    caller: &Caller,
    request: RedriveDeliveriesRequest,
) -> Result<RedriveDeliveriesResponse, Status> {
    let mut client = caller.inboxes.clone();
    Ok(within("a redrive", client.redrive_deliveries(request)).await?.into_inner())
}

/// Waits until so many of the inbox are lost.
async fn lost(caller: &Caller, count: i64) {
    eventually("deliveries to be lost", BOUND, async || {
        let inbox = caller.inbox(INBOX).await;
        (inbox.expired_total + inbox.dead_total == count).then_some(())
    })
    .await;
}

async fn pending(caller: &Caller, count: i64) {
    eventually("deliveries to come back", BOUND, async || {
        (caller.inbox(INBOX).await.pending == count).then_some(())
    })
    .await;
}

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

/// A call that waits by now.
async fn waits(hosted: &Hosted) -> JoinHandle<PullDeliveriesResponse> {
    let caller = hosted.a();
    let waiting =
        background(async move { pull(&caller, page("waiting", 9, 60)).await.expect("answered") });
    eventually("the call to watch its inbox", BOUND, async || {
        (!hosted.engine.wake().watched().inboxes.is_empty()).then_some(())
    })
    .await;
    waiting
}

async fn a_pull_takes_what_is_there_or_waits_for_it(store: TestStore) {
    let hosted = host(store, Policy { in_flight_max: 4, ..policy() }).await;
    let caller = hosted.a();
    let empty = pull(&caller, page("", 0, 0)).await.expect("answered");
    assert!(empty.results.is_empty() && empty.pending == 0);
    assert!(empty.consumer_id.starts_with("c-"), "a name of its own: {}", empty.consumer_id);
    assert_eq!(caller.inbox(INBOX).await.last_sequence, 0, "made at first use");

    let waiting = waits(&hosted).await;
    queue(&caller, 1).await;
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [1], "as soon as there is something");
    assert_eq!(answer.consumer_id, "waiting");
    assert!(!answer.results[0].redelivered);

    let deferred = defer(&caller, "waiting", &[(1, 1)], 10).await.expect("answered");
    assert_eq!(deferred[0].outcome(), DeferOutcome::Deferred);
    let waiting = waits(&hosted).await;
    hosted.advance(Duration::from_secs(10));
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [1], "when its delay is over");
    assert!(answer.results[0].redelivered);

    queue(&caller, 5).await;
    let some = pull(&caller, page("c", 2, 0)).await.expect("answered");
    assert_eq!((sequences(&some.results), some.pending), (vec![2, 3], 3));
    assert_eq!(pulled(&caller, "c", 0).await, [(4, 1)], "the inbox's maximum of four");
    let waiting = waits(&hosted).await;
    caller.ack(INBOX, &[2]).await.expect("acked");
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [5], "an ack makes room");
    assert_eq!(caller.inbox(INBOX).await.consumers.len(), 0, "no stream");

    // The caller's own time limit comes first: an empty page, and not silence.
    let mut request = Request::new(page("c", 1, 60));
    request.set_timeout(Duration::from_millis(600));
    let mut client = caller.inboxes.clone();
    let answer = within("an answer in time", client.pull_deliveries(request)).await;
    assert!(answer.expect("answered").into_inner().results.is_empty());
    let waiting = waits(&hosted).await;
    let ended = background(hosted.stop());
    let answer = within("an answer at the end of the service", waiting).await;
    assert!(answer.expect("no panic").results.is_empty());
    within("the end", ended).await.expect("ends");
}

async fn a_pull_and_a_stream_of_one_consumer(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 2).await;
    assert_eq!(pulled(&caller, "c", 1).await, [(1, 1)]);
    let mut reader = caller.reader(INBOX, "c", "").await;
    let mut backlog = reader.backlog().await;
    backlog.sort_by_key(sequence);
    let shown: Vec<_> = backlog.iter().map(|it| (sequence(it), attempt(it))).collect();
    assert_eq!(shown, [(1, 2), (2, 1)], "the stream takes over what was pulled");
    caller.ack_as("c", INBOX, &[1, 2]).await.expect("acked");
    // What was pulled and not acked comes again after its deadline, here to the stream.
    queue(&caller, 1).await;
    assert_eq!(sequences(&reader.next_results().await), [3]);
    assert_eq!(defer(&caller, "c", &[(3, 1)], 40).await.expect("answered").len(), 1);
    drop(reader);
    eventually("the stream to end", BOUND, async || {
        caller.inbox(INBOX).await.consumers.is_empty().then_some(())
    })
    .await;
    hosted.advance(Duration::from_secs(40));
    assert_eq!(pulled(&caller, "c", 1).await, [(3, 2)]);
    hosted.stop().await;
}

async fn an_operation_names_its_result(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    let ids = queue(&caller, 2).await;
    let named = |inbox: &str, operation_id: &str| AckTarget {
        inbox: inbox.to_owned(),
        sequence: 0,
        operation_id: operation_id.to_owned(),
    };
    let deliveries = vec![
        named("", &ids[1].id),
        named(INBOX, &ids[0].id),
        named("other", &ids[0].id),
        named("", &ids[1].id),
        named("", "nobody"),
        named("", "no such id"),
    ];
    let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    let mut client = caller.inboxes.clone();
    let answer = within("the acks", client.ack_deliveries(request.clone())).await;
    let results = answer.expect("answered").into_inner().results;
    let told: Vec<_> = results
        .iter()
        .map(|result| (result.inbox.as_str(), result.sequence, result.outcome()))
        .collect();
    use AckOutcome::{Acked, AlreadyAcked, NoSuchDelivery};
    assert_eq!(
        told,
        [
            (INBOX, 2, Acked),
            (INBOX, 1, Acked),
            ("other", 0, NoSuchDelivery),
            (INBOX, 2, AlreadyAcked),
            ("", 0, NoSuchDelivery),
            ("", 0, NoSuchDelivery),
        ]
    );
    assert_eq!(results[0].operation_id, ids[1].id);
    assert_eq!(results[0].delivery.as_ref().expect("the row").state(), DeliveryState::Acked);
    let mut strange = hosted.b().inboxes;
    let answer = within("the acks", strange.ack_deliveries(request)).await;
    let results = answer.expect("answered").into_inner().results;
    assert!(results.iter().all(|result| result.outcome() == NoSuchDelivery), "another account");
    hosted.stop().await;
}

async fn requests_that_say_nothing_are_refused_by_their_field(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 1).await;
    assert_eq!(pulled(&caller, "c", 1).await, [(1, 1)]);
    let invalid = |status: Status, field: &str| {
        let refused = Refused::of(&status);
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "INVALID_FIELD")
        );
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
        assert!(refused.message.contains(field), "{field} in {}", refused.message);
    };
    for extension in [0, -1, 91] {
        let refused = extend(&caller, "c", &[(1, 1)], extension).await;
        invalid(refused.expect_err("refused"), "extension");
    }
    for delay in [-1, 91] {
        let refused = defer(&caller, "c", &[(1, 1)], delay).await;
        invalid(refused.expect_err("refused"), "delay");
    }
    let refused = extend(&caller, "not a consumer", &[(1, 1)], 1).await;
    invalid(refused.expect_err("refused"), "consumer_id");
    let many = vec![(1, 1); 1_001];
    invalid(extend(&caller, "c", &many, 1).await.expect_err("refused"), "deliveries");
    let refused = redrive(&caller, RedriveDeliveriesRequest::default()).await;
    invalid(refused.expect_err("refused"), "inbox");
    let mut client = caller.inboxes.clone();
    for (sequence, operation_id, field) in [(0, "", "sequence"), (1, "op-1", "operation_id")] {
        let (inbox, operation_id) = (INBOX.to_owned(), operation_id.to_owned());
        let deliveries = vec![AckTarget { inbox, sequence, operation_id }];
        let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
        let refused = within("a refusal", client.ack_deliveries(request)).await;
        invalid(refused.expect_err("refused"), &format!("deliveries[0].{field}"));
    }
    let refused = pull(&caller, page("c", -1, 0)).await.expect_err("refused");
    invalid(refused, "max_deliveries");
    invalid(pull(&caller, page("c", 1, 61)).await.expect_err("refused"), "wait");
    let row = caller.inbox(INBOX).await;
    assert_eq!((row.pending, row.in_flight), (0, 1), "nothing happened");
    hosted.stop().await;
}
