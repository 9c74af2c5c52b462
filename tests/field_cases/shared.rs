//! Consumers that share an inbox, and acks that come too late: F14, F15.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{
        AckOutcome, AttemptTarget, DeliveredResult, ExtendDeliveriesRequest, ExtendOutcome,
        OperationEventKind, PullDeliveriesRequest, RedriveDeliveriesRequest, RedriveOutcome,
        Standing, StreamDeliveriesRequest, SubmitOperationRequest,
        delivery::State as DeliveryState, operation::State,
    },
};
use tokio::sync::mpsc;

use crate::{
    hosted::{Hosted, host},
    support::{
        BOUND,
        answers::state_of,
        background,
        client::{Caller, Reader, attempt, sequence},
        eventually,
        requests::{Identity, into_inbox, seconds},
        server::TOKEN_A,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(f14_slow_but_alive_consumers, f15_ack_after_expiry);

const SHARED: &str = "shared";
/// Entries of the stream that pauses; as many as its window.
const PAUSED: i64 = 50;
/// Entries of the nine others.
const OTHERS: i64 = 450;

/// A result of about 4 KiB, so that a reader that pauses soon stops its stream.
fn large(id: &Identity) -> SubmitOperationRequest {
    let labels = (0..16).map(|number| (format!("label-{number}"), "x".repeat(250))).collect();
    let request = into_inbox(id.append(&format!("large/{}", id.id), "x"), SHARED);
    SubmitOperationRequest { labels, ..request }
}

async fn open(caller: &Caller, consumer: &str, window: i32) -> Reader {
    let request = StreamDeliveriesRequest {
        inbox: SHARED.to_owned(),
        resume_token: String::new(),
        consumer_id: consumer.to_owned(),
        window,
    };
    let mut reader = caller.open(request).await.expect("the stream opens");
    reader.frame().await.expect("opened");
    reader
}

/// Passes on what a stream shows, for as long as it is open and somebody listens.
fn pass_on(consumer: String, mut reader: Reader, sender: mpsc::UnboundedSender<Shown>) {
    background(async move {
        loop {
            for result in reader.next_results().await {
                let shown = (consumer.clone(), sequence(&result), attempt(&result));
                if sender.send(shown).is_err() {
                    return;
                }
            }
        }
    });
}

/// To whom, which number, which attempt.
type Shown = (String, i64, i32);

async fn collect(shown: &mut mpsc::UnboundedReceiver<Shown>, count: i64) -> Vec<Shown> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(within("a result", shown.recv()).await.expect("the streams are open"));
    }
    all
}

async fn extend(caller: &Caller, consumer: &str, held: &[(i64, i32)]) -> Vec<ExtendOutcome> {
    let target = |&(sequence, attempt): &(i64, i32)| {
        let inbox = SHARED.to_owned();
        AttemptTarget { inbox, sequence, attempt }
    };
    let request = ExtendDeliveriesRequest {
        deliveries: held.iter().map(target).collect(),
        extension: Some(seconds(3)),
        consumer_id: consumer.to_owned(),
    };
    let mut client = caller.inboxes.clone();
    let answer = within("an extension", client.extend_deliveries(request)).await;
    let results = answer.expect("answered").into_inner().results;
    results.iter().map(|result| result.outcome()).collect()
}

/// A reader of ten seconds' patience would end in the pauses: the clock is moved, not waited for.
async fn f14_slow_but_alive_consumers(store: TestStore) {
    let policy = Policy {
        ack_deadline: Span::seconds(3),
        backoff_first: Span::millis(100),
        in_flight_max: 1_000,
        ..Policy::default()
    };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    let ids: Vec<Identity> = (0..PAUSED).map(|_| Identity::fresh()).collect();
    caller.submitted_together(ids.iter().map(large).collect()).await;
    let narrow = Caller::with_small_windows(hosted.address, TOKEN_A);
    let mut paused = open(&narrow, "paused", 50).await;
    eventually("the paused stream to hold its fifty", BOUND, async || {
        (caller.inbox(SHARED).await.in_flight == PAUSED).then_some(())
    })
    .await;

    let (sender, mut shown) = mpsc::unbounded_channel();
    for number in 1..=9 {
        let consumer = format!("c{number}");
        let reader = open(&hosted.a(), &consumer, 60).await;
        pass_on(consumer, reader, sender.clone());
    }
    let lines: Vec<SubmitOperationRequest> = (0..OTHERS)
        .map(|line| into_inbox(Identity::fresh().append("lines", &line.to_string()), SHARED))
        .collect();
    for hundred in lines.chunks(100) {
        caller.submitted_together(hundred.to_vec()).await;
    }
    let first = collect(&mut shown, OTHERS).await;
    let numbers: BTreeSet<i64> = first.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, (PAUSED + 1..=PAUSED + OTHERS).collect(), "each to one of them");
    let mut held: BTreeMap<String, Vec<(i64, i32)>> = BTreeMap::new();
    for (consumer, number, attempt) in first {
        held.entry(consumer).or_default().push((number, attempt));
    }

    for second in 1..=6 {
        hosted.advance(Duration::from_secs(1));
        for (consumer, held) in &held {
            let outcomes = extend(&caller, consumer, held).await;
            assert!(outcomes.iter().all(|outcome| *outcome == ExtendOutcome::Extended));
        }
        if second == 3 {
            eventually("the paused stream's entries to come back", BOUND, async || {
                (caller.inbox(SHARED).await.pending == PAUSED).then_some(())
            })
            .await;
        }
        if second == 4 {
            let again = collect(&mut shown, PAUSED).await;
            let numbers: BTreeSet<i64> = again.iter().map(|(_, number, _)| *number).collect();
            assert_eq!(numbers, (1..=PAUSED).collect(), "the paused stream's, and no others");
            assert!(again.iter().all(|(_, _, attempt)| *attempt == 2));
            for (consumer, number, attempt) in again {
                held.entry(consumer).or_default().push((number, attempt));
            }
        }
    }
    assert!(shown.try_recv().is_err(), "nothing that was extended went to anybody else");

    let late: Vec<DeliveredResult> = paused.results(50).await;
    let late: Vec<(i64, i32)> = late.iter().map(|it| (sequence(it), attempt(it))).collect();
    assert!(late.iter().all(|(_, attempt)| *attempt == 1));
    assert_eq!(extend(&caller, "paused", &late).await, [ExtendOutcome::NotYours; 50]);
    for (consumer, held) in &held {
        let numbers: Vec<i64> = held.iter().map(|(number, _)| *number).collect();
        let acked = caller.ack_as(consumer, SHARED, &numbers).await.expect("acked");
        assert!(acked.iter().all(|outcome| *outcome == AckOutcome::Acked));
    }
    assert_eq!(extend(&caller, "paused", &late).await, [ExtendOutcome::AlreadyAcked; 50]);
    let numbers: Vec<i64> = late.iter().map(|(number, _)| *number).collect();
    let acked = caller.ack_as("paused", SHARED, &numbers).await.expect("answered");
    assert_eq!(acked, [AckOutcome::AlreadyAcked; 50]);
    let inbox = caller.inbox(SHARED).await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 0, PAUSED + OTHERS));
}

async fn pull_one(hosted: &Hosted) -> Vec<DeliveredResult> {
    let request = PullDeliveriesRequest {
        inbox: SHARED.to_owned(),
        consumer_id: "late".to_owned(),
        max_deliveries: 1,
        wait: None,
    };
    let mut client = hosted.a().inboxes;
    let answer = within("a page", client.pull_deliveries(request)).await;
    answer.expect("answered").into_inner().results
}

/// An entry that died, and one whose record and delivery have passed their retention.
async fn f15_ack_after_expiry(store: TestStore) {
    let policy = Policy { ack_deadline: Span::seconds(3), retry_budget: 1, ..Policy::default() };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    let ids = [Identity::fresh(), Identity::fresh()];
    for id in &ids {
        caller.submitted(into_inbox(id.append("d1", "x"), SHARED)).await;
    }
    assert_eq!(sequence(&pull_one(&hosted).await[0]), 1);
    hosted.advance(Duration::from_secs(3));
    eventually("the entry to die", BOUND, async || {
        (caller.inbox(SHARED).await.dead_total == 1).then_some(())
    })
    .await;
    let before = caller.events(&ids[0]).await.len();
    for _ in 0..2 {
        let late = caller.ack(SHARED, &[1]).await.expect("answered");
        assert_eq!(late, [AckOutcome::AckedLate], "too late, and no reason to try again");
    }
    assert_eq!(caller.events(&ids[0]).await.len(), before + 1, "noted once");
    assert_eq!(caller.count_events(&ids[0], OperationEventKind::AckedLate).await, 1);
    let read = caller.get(&ids[0]).await;
    assert_eq!(state_of(&read), Some(State::Applied));
    assert_eq!(read.deliveries[0].state(), DeliveryState::Dead, "an ack revives nothing");
    let request = RedriveDeliveriesRequest { inbox: SHARED.to_owned(), ..Default::default() };
    let mut client = caller.inboxes.clone();
    let answer = within("a redrive", client.redrive_deliveries(request)).await;
    assert!(answer.expect("answered").into_inner().results.is_empty(), "its reader has it");
    assert_eq!(caller.redrive(SHARED, &[1]).await, [RedriveOutcome::AlreadyAcked]);
    assert_eq!(sequence(&pull_one(&hosted).await[0]), 2, "later entries flow");

    let day = Duration::from_secs(24 * 3600);
    hosted.advance(day);
    eventually("the second entry to end", BOUND, async || {
        let read = caller.get(&ids[1]).await;
        (read.deliveries[0].state() == DeliveryState::Expired).then_some(())
    })
    .await;
    hosted.advance(31 * day);
    eventually("both to be retired", BOUND, async || {
        (caller.inbox(SHARED).await.kept_from_sequence == 3).then_some(())
    })
    .await;
    eventually("their records to age", BOUND, async || {
        (caller.get(&ids[1]).await.standing() == Standing::Compacted).then_some(())
    })
    .await;
    let before = [caller.events(&ids[0]).await, caller.events(&ids[1]).await];
    let late = caller.ack(SHARED, &[2, 1]).await.expect("answered");
    assert_eq!(late, [AckOutcome::Retired; 2], "no longer kept, and no reason to try again");
    assert_eq!([caller.events(&ids[0]).await, caller.events(&ids[1]).await], before);
    let (_, id) = hosted.minted_now("later");
    caller.submitted(into_inbox(id.append("d1", "x"), SHARED)).await;
    assert_eq!(sequence(&pull_one(&hosted).await[0]), 3, "and still they flow");
    hosted.stop().await;
}
