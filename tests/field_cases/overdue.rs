//! F40: everything that was abandoned is overdue at once, each result and then its record, and the
//! database restarts while they are swept. A hundredth of the case by default, the whole of it with
//! `TESTS_F40_RESULTS=200000`. What callers notice is shown, never asserted.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use prost_types::FieldMask;
use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{
        self, OperationEventKind, Standing, SubmitOperationRequest, UpdatePolicyRequest,
        delivery::State as DeliveryState, operation::State,
    },
};

use crate::{
    hosted::{Hosted, host_replicas},
    support::{
        answers::state_of,
        background,
        client::Caller,
        eventually,
        requests::{Identity, into_inbox, seconds},
        server::TOKEN_B,
        stores::TestStore,
        within,
    },
    sweeping::{
        self, COMPARED, Ended, LONG, Progress, REPLICAS, each_had_one_effect,
        restart_in_the_middle, submit_at_a_pace, while_the_database_was_up_none_was_refused,
    },
};

const RESULTS: usize = 2_000;
/// Results of one inbox: its slots.
const SLOTS: usize = 1_000;
const BATCH: usize = 100;
/// The whole case takes its time to load and to sweep on a small machine.
const SWEPT: Duration = Duration::from_secs(600);
/// So many are looked at one by one, evenly spread.
const LOOKED_AT: usize = 200;

/// Long enough to load everything; what is abandoned is overdue two hours later, and its record is
/// due. The other account's ids may still be submitted then: it keeps the defaults.
fn short() -> Policy {
    Policy {
        admission_window: Span::seconds(600),
        record_retention: Span::seconds(3_600),
        audit_retention: Span::seconds(30 * 86_400),
        tombstone_retention: Span::seconds(90 * 86_400),
        ack_window: Span::seconds(1_800),
        inbox_slots: SLOTS as i64,
        ..Policy::default()
    }
}

/// The foreground's account: clients mint by the clock of the machine, which nobody moves, and
/// nobody acks its results either.
async fn lengthen_admission(caller: &Caller) {
    let day = Some(seconds(86_400));
    let paths = ["admission_window", "record_retention", "ack_window", "ack_deadline"];
    let request = UpdatePolicyRequest {
        policy: Some(proto::Policy {
            admission_window: day,
            record_retention: Some(seconds(2 * 86_400)),
            ack_window: Some(seconds(5)),
            ack_deadline: Some(seconds(1)),
            ..proto::Policy::default()
        }),
        update_mask: Some(FieldMask { paths: paths.map(str::to_owned).into() }),
        reason: "clocks".to_owned(),
        ..UpdatePolicyRequest::default()
    };
    let mut admin = caller.admin.clone();
    within("a change", admin.update_policy(request)).await.expect("changed");
}

fn inbox(number: usize) -> String {
    format!("gone-{}", number / SLOTS)
}

fn abandoned(id: &Identity, number: usize) -> SubmitOperationRequest {
    into_inbox(id.put(&format!("many/{}", id.id), "x"), &inbox(number))
}

/// Submits so many, over all replicas at once.
async fn load(callers: &[Caller], count: usize) -> Vec<Identity> {
    let ids: Vec<Identity> = (0..count).map(|_| Identity::fresh()).collect();
    let numbered: Vec<(usize, &Identity)> = ids.iter().enumerate().collect();
    let share = numbered.len().div_ceil(callers.len()).max(1);
    join_all(callers.iter().zip(numbered.chunks(share)).map(async |(caller, part)| {
        for batch in part.chunks(BATCH) {
            let requests = batch.iter().map(|(number, id)| abandoned(id, *number));
            caller.submitted_together(requests.collect()).await;
        }
    }))
    .await;
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_everything_is_overdue_at_once() {
    let Some(store) = TestStore::own_postgres().await else { return };
    let wanted = std::env::var("TESTS_F40_RESULTS").ok();
    let results = wanted.map_or(RESULTS, |text| text.parse().expect("a whole number"));
    let replicas = host_replicas(store, short(), REPLICAS).await;
    let callers: Vec<Caller> = replicas.iter().map(Hosted::a).collect();
    lengthen_admission(&replicas[0].b()).await;

    let began = Instant::now();
    let ids = load(&callers, results).await;
    println!("{results} results were loaded in {:?}", began.elapsed());

    let progress = Arc::new(Progress::default());
    let foreground = replicas.iter().enumerate().map(|(number, replica)| {
        let client = sweeping::client(replica.address, TOKEN_B);
        background(submit_at_a_pace(client, number, Arc::clone(&progress)))
    });
    let foreground: Vec<_> = foreground.collect();
    eventually("something to compare with", LONG, async || {
        (progress.ended() >= COMPARED).then_some(())
    })
    .await;

    // The clock of all replicas.
    replicas[0].advance(Duration::from_secs(2 * 3_600));
    let began = Instant::now();
    let swept = async || expired(&callers, results).await;
    let all = (swept, results as i64);
    restart_in_the_middle(replicas[0].store(), &callers, &progress, all).await;
    eventually("nothing overdue to be left", SWEPT, async || {
        (expired(&callers, results).await == results as i64).then_some(())
    })
    .await;
    println!("nothing overdue was left after {:?}", began.elapsed());
    for id in looked_at(&ids) {
        eventually("every record to be retired", SWEPT, async || {
            (callers[0].get(id).await.standing() == Standing::Compacted).then_some(())
        })
        .await;
    }
    println!("no record was due after {:?}", began.elapsed());
    let ended = progress.ended();
    eventually("the foreground to go on", LONG, async || {
        (progress.ended() >= ended + COMPARED).then_some(())
    })
    .await;
    progress.end.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(LONG, join_all(foreground)).await.expect("every submit ends");
    let ended: Vec<Vec<Ended>> = ended.into_iter().map(|task| task.expect("no panic")).collect();
    each_had_one_effect(&replicas[0].b(), &ended).await;
    while_the_database_was_up_none_was_refused(&ended.concat());
    each_was_retired_once(&callers, &ids).await;
    nothing_is_held(&callers[0], results).await;
    for replica in replicas {
        replica.stop().await;
    }
}

fn looked_at(ids: &[Identity]) -> impl Iterator<Item = &Identity> {
    ids.iter().rev().step_by((ids.len() / LOOKED_AT).max(1))
}

/// Expired results of all inboxes.
async fn expired(callers: &[Caller], results: usize) -> i64 {
    let inboxes = (0..results).step_by(SLOTS).map(inbox);
    let counts = inboxes.zip(callers.iter().cycle()).map(async |(name, caller)| {
        let inbox = caller.inbox(&name).await;
        inbox.expired_total
    });
    join_all(counts).await.into_iter().sum()
}

async fn each_was_retired_once(callers: &[Caller], ids: &[Identity]) {
    for (id, caller) in looked_at(ids).zip(callers.iter().cycle()) {
        let read = caller.get(id).await;
        assert_eq!(read.standing(), Standing::Compacted);
        assert_eq!(state_of(&read), Some(State::Applied), "nothing is lost");
        let states: Vec<_> = read.deliveries.iter().map(|one| one.state()).collect();
        assert_eq!(states, [DeliveryState::Expired]);
        assert_eq!(caller.count_events(id, OperationEventKind::Expired).await, 1);
    }
}

/// Every slot is free again: each inbox takes as many as before.
async fn nothing_is_held(caller: &Caller, results: usize) {
    for name in (0..results).step_by(SLOTS).map(inbox) {
        let inbox = caller.inbox(&name).await;
        assert_eq!((inbox.pending, inbox.in_flight, inbox.reserved), (0, 0, 0));
    }
}
