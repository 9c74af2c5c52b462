//! The database restarts in the middle of a sweep: F40.
//!
//! A smaller version of the case, deliveries only. What callers notice is measured and shown, never
//! compared with the clock: a busy machine is no fault of the service.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use receiptd::{
    client::{
        connect::{Client, ConnectOptions, Secret},
        retry::RetryLimits,
        submission::Submission,
    },
    proto::{
        GetInboxRequest, OperationEventKind, delivery::State as DeliveryState, operation::State,
    },
};
use tokio::time::MissedTickBehavior;

use crate::support::{
    answers::{lines, state_of},
    background,
    client::{Caller, Refused},
    eventually,
    requests::{Identity, append, into_inbox},
    server::{Server, TOKEN_A},
    stores::TestStore,
    within,
};

pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const REPLICAS: usize = 3;
/// Results that nobody fetches: several pages of a sweep.
const ABANDONED: usize = 3_000;
/// Between two hundreds of them. They expire as they were queued, so that the sweep has a middle of
/// some seconds, however fast it is.
const LOADING_PACE: Duration = Duration::from_millis(150);
/// One of each replica's callers submits this often: together a hundred a second.
const PACE: Duration = Duration::from_millis(30);
/// Foreground submits before there is anything to sweep, for comparison, and after the restart.
pub(super) const COMPARED: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_the_database_restarts_in_the_middle_of_a_sweep() {
    let Some(store) = TestStore::own_postgres().await else { return };
    let slots = format!("--inbox-slots={ABANDONED}");
    let flags = ["--ack-window=6s", "--ack-deadline=1s", slots.as_str()];
    let servers: Vec<Server> = (0..REPLICAS).map(|_| store.serve(&flags)).collect();
    let callers: Vec<Caller> = servers.iter().map(Server::a).collect();
    let progress = Arc::new(Progress::default());
    let foreground = servers.iter().enumerate().map(|(number, server)| {
        let client = client(server.address(), TOKEN_A);
        background(submit_at_a_pace(client, number, Arc::clone(&progress)))
    });
    let foreground: Vec<_> = foreground.collect();
    eventually("something to compare with", LONG, async || {
        (progress.ended() >= COMPARED).then_some(())
    })
    .await;

    let ids = abandon(&callers, &progress).await;
    let swept = async || callers[0].inbox("gone").await.expired_total;
    restart_in_the_middle(&store, &callers, &progress, (swept, ABANDONED as i64)).await;

    let (back, ended) = (Instant::now(), progress.ended());
    join_all(callers.iter().map(async |caller| {
        // No connection that died meanwhile stands in anybody's way.
        caller.submitted(into_inbox(Identity::fresh().put("back", "x"), "foreground")).await;
    }))
    .await;
    let gone = eventually("nothing overdue to be left", LONG, async || {
        let inbox = callers[0].inbox("gone").await;
        (inbox.expired_total == ABANDONED as i64).then_some(inbox)
    })
    .await;
    println!("nothing overdue was left {:?} after it was back", back.elapsed());
    assert_eq!((gone.pending, gone.in_flight, gone.reserved), (0, 0, 0));
    eventually("the foreground to go on", LONG, async || {
        (progress.ended() >= ended + COMPARED).then_some(())
    })
    .await;
    progress.end.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(LONG, join_all(foreground)).await.expect("every submit ends");
    let ended: Vec<Vec<Ended>> = ended.into_iter().map(|task| task.expect("no panic")).collect();
    each_had_one_effect(&callers[0], &ended).await;
    while_the_database_was_up_none_was_refused(&ended.concat());
    each_is_retired_once(&callers, &ids).await;
    let more = (0..100).map(|_| into_inbox(Identity::fresh().put("more", "x"), "gone"));
    callers[0].submitted_together(more.collect()).await;
}

/// Queues results that nobody will fetch.
async fn abandon(callers: &[Caller], progress: &Progress) -> Vec<Identity> {
    progress.enter(Phase::Loading);
    let ids: Vec<Identity> = (0..ABANDONED).map(|_| Identity::fresh()).collect();
    let mut pace = tokio::time::interval(LOADING_PACE);
    for (hundred, caller) in ids.chunks(100).zip(callers.iter().cycle()) {
        pace.tick().await;
        let submit = |id: &Identity| into_inbox(id.put(&format!("many/{}", id.id), "x"), "gone");
        caller.submitted_together(hundred.iter().map(submit).collect()).await;
    }
    ids
}

/// Stops the database when a quarter is swept, and starts it again when all replicas have noticed.
pub(super) async fn restart_in_the_middle(
    store: &TestStore,
    callers: &[Caller],
    progress: &Progress,
    (expired, all): (impl AsyncFn() -> i64, i64),
) {
    eventually("a sweep to begin", LONG, async || (expired().await > 0).then_some(())).await;
    progress.enter(Phase::Sweeping);
    let middle = eventually("the middle of the sweep", LONG, async || {
        let expired = expired().await;
        (expired >= all / 4).then_some(expired)
    })
    .await;
    assert!(middle < all, "there is something left to sweep");
    progress.enter(Phase::Away);
    let stopped = Instant::now();
    let outage = store.take_away();
    join_all(callers.iter().map(is_away)).await;
    outage.end();
    progress.enter(Phase::Back);
    println!("{middle} of {all} had expired; the restart took {:?}", stopped.elapsed());
}

/// Where the test stands, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Quiet,
    Loading,
    Sweeping,
    /// From before the database is stopped until it takes connections again.
    Away,
    Back,
}

const PHASES: [Phase; 5] =
    [Phase::Quiet, Phase::Loading, Phase::Sweeping, Phase::Away, Phase::Back];

/// What the foreground and the test tell each other.
#[derive(Default)]
pub(super) struct Progress {
    phase: AtomicU8,
    ended: AtomicUsize,
    pub(super) end: AtomicBool,
}

impl Progress {
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    pub(super) fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::SeqCst))]
    }
}

/// A submit of the foreground with its answer.
#[derive(Clone)]
pub(super) struct Ended {
    id: String,
    began: Phase,
    ended: Phase,
    took: Duration,
    attempts: u32,
}

impl Ended {
    /// Whether the database was away at any time of it.
    fn met_the_outage(&self) -> bool {
        self.began <= Phase::Away && self.ended >= Phase::Away
    }
}

pub(super) fn client(address: SocketAddr, token: &str) -> Client {
    // A crashed database reads its log before it answers, on a slow disk for longer than a person
    // would wait.
    let limits = RetryLimits { total: LONG, attempts: 200, ..RetryLimits::standard() };
    let options = ConnectOptions { limits, ..ConnectOptions::with_token(Secret::new(token)) };
    Client::connect(&format!("http://{address}"), options).expect("a usable endpoint")
}

/// Submits with the library, which alone decides what is sent again, until the test ends it.
pub(super) async fn submit_at_a_pace(
    client: Client,
    number: usize,
    progress: Arc<Progress>,
) -> Vec<Ended> {
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all = Vec::new();
    while !progress.end.load(Ordering::SeqCst) {
        pace.tick().await;
        let identity = client.mint();
        let id = identity.id().to_owned();
        let line = append(&foreground(number), &id);
        let submission = Submission::new(line).into_inbox("foreground");
        let (began, start) = (progress.phase(), Instant::now());
        let submitted =
            client.send(&identity, &submission).await.expect("every submit ends with an answer");
        let (ended, took) = (progress.phase(), start.elapsed());
        assert_eq!(submitted.state(), State::Applied);
        all.push(Ended { id, began, ended, took, attempts: submitted.attempts });
        progress.ended.fetch_add(1, Ordering::SeqCst);
    }
    all
}

fn foreground(number: usize) -> String {
    format!("foreground/{number}")
}

/// A read of this replica says that there is no store.
async fn is_away(caller: &Caller) {
    let mut client = caller.inboxes.clone();
    let request = GetInboxRequest { inbox: "gone".to_owned() };
    let answer = within("an answer without a store", client.get_inbox(request)).await;
    let refused = Refused::of(&answer.expect_err("there is no database"));
    assert_eq!(refused.reason, "STORE_UNAVAILABLE");
}

pub(super) async fn each_had_one_effect(caller: &Caller, ended: &[Vec<Ended>]) {
    for (number, ended) in ended.iter().enumerate() {
        let (text, revision) = caller.text(&foreground(number)).await;
        let once = ended.iter().all(|submit| lines(&text, &submit.id) == 1);
        assert!(once && text.lines().count() == ended.len(), "each has one effect:\n{text}");
        assert_eq!(revision, ended.len() as i64);
    }
}

/// The library needed one attempt wherever the database was there from the first byte to the last.
pub(super) fn while_the_database_was_up_none_was_refused(all: &[Ended]) {
    let (met, free): (Vec<_>, Vec<_>) = all.iter().partition(|ended| ended.met_the_outage());
    for phase in PHASES {
        show(&format!("begun {phase:?}"), free.iter().copied().filter(|one| one.began == phase));
    }
    show("met the outage", met.iter().copied());
    let attempts = met.iter().map(|ended| ended.attempts).max();
    println!("attempts of those that met the outage: at most {}", attempts.unwrap_or(0));
    let refused = free.iter().filter(|ended| ended.attempts > 1).count();
    assert_eq!(refused, 0, "submits were refused while the database was up");
    assert!(!met.is_empty(), "submits went on over the outage");
}

fn show<'a>(name: &str, ended: impl Iterator<Item = &'a Ended>) {
    let mut took: Vec<Duration> = ended.map(|ended| ended.took).collect();
    took.sort();
    let Some(last) = took.last() else { return };
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    let (half, p99, count) = (at(50), at(99), took.len());
    println!("foreground, {name}: {count} submits, p50 {half:?}, p99 {p99:?}, longest {last:?}");
}

pub(super) async fn each_is_retired_once(callers: &[Caller], ids: &[Identity]) {
    for (some, caller) in ids.chunks(50).zip(callers.iter().cycle()) {
        join_all(some.iter().map(async |id| {
            let read = caller.get(id).await;
            assert_eq!(state_of(&read), Some(State::Applied), "nothing is lost");
            assert_eq!(read.deliveries[0].state(), DeliveryState::Expired);
            assert_eq!(caller.count_events(id, OperationEventKind::Expired).await, 1);
        }))
        .await;
    }
}
