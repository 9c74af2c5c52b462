//! Streams through the library: over the embedded store, and over PostgreSQL behind a proxy.

#[path = "../support/commands.rs"]
mod commands;
#[path = "../support/mod.rs"]
mod support;

mod ends;
mod gaps;
mod hang;
mod lapse;

use std::time::Duration;

use commands::{append, consumer, inbox};
use receiptd::{
    domain::{
        command::{Command, Reply},
        delivery::DeliveryState,
        ids::Span,
        inbox::Inbox,
        policy::Policy,
        refusal::{Refusal, TokenFault},
    },
    engine::{Engine, EngineSettings, seams::Seams},
    store::{Store, sqlite},
    stream::{self, Frame, Frames, OpenStream, StreamSettings},
    sweeper, wake,
};
use tokio_util::sync::CancellationToken;

struct Running {
    engine: Engine,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

fn running(policy: Policy) -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let seams = Seams::system();
    let path = folder.path().join("receiptd.sqlite");
    let store =
        sqlite::SqliteStore::open(&path, &seams, &sqlite::Options::default()).expect("opens");
    let settings = EngineSettings { lanes: 2 };
    let engine = Engine::start(Store::Sqlite(store), policy, settings, seams.clone());
    let shutdown = CancellationToken::new();
    let period = Duration::from_millis(300);
    seams.spawn(sweeper::run(engine.clone(), period, shutdown.clone()));
    let (store, wake) = (engine.store().clone(), engine.wake().clone());
    seams.spawn(wake::reread(store, wake, Duration::from_secs(1), shutdown.clone()));
    Running { engine, shutdown, _folder: folder }
}

fn policy() -> Policy {
    Policy {
        ack_deadline: Span::millis(1_500),
        ack_window: Span::seconds(4),
        backoff_first: Span::millis(200),
        backoff_limit: Span::seconds(1),
        consumer_lease: Span::seconds(3),
        ..Policy::default()
    }
}

fn settings() -> StreamSettings {
    StreamSettings {
        heartbeat: Span::seconds(1),
        age_max: Span::hours(1),
        write_stall_max: Span::millis(500),
    }
}

impl Running {
    async fn row(&self) -> Inbox {
        self.engine.store().inbox(&inbox("default")).await.expect("reads").expect("a row")
    }

    /// Waits until the inbox row is as wanted, by its hints.
    async fn until(&self, what: &str, wanted: impl Fn(&Inbox) -> bool) {
        let watch = self.engine.wake().watch_inbox(inbox("default"));
        let waiting = async {
            while !wanted(&self.row().await) {
                watch.changed().await;
            }
        };
        support::within(what, waiting).await;
    }

    async fn submit(&self, id: &str) {
        let now = self.engine.store().now().await.expect("a clock");
        let mut reply = self.engine.run(append(id, now).on(id).command()).await;
        while let Err(Refusal::InboxFull { .. }) = reply {
            tokio::time::sleep(Duration::from_millis(20)).await;
            reply = self.engine.run(append(id, now).on(id).command()).await;
        }
        assert!(matches!(reply, Ok(Reply::Submitted(_))), "{reply:?}");
    }

    async fn submit_many(&self, first: usize, last: usize) {
        let all =
            (first..=last).map(|number| async move { self.submit(&format!("op-{number}")).await });
        futures_util::future::join_all(all).await;
    }

    async fn open(&self, who: &str, window: i64, token: &str) -> Result<Frames, Refusal> {
        self.open_with(who, window, token, settings()).await
    }

    async fn open_with(
        &self,
        who: &str,
        window: i64,
        token: &str,
        settings: StreamSettings,
    ) -> Result<Frames, Refusal> {
        let request = OpenStream {
            inbox: inbox("default"),
            consumer: consumer(who),
            window,
            resume_token: token.to_owned(),
            credit: None,
            end: None,
        };
        stream::open(&self.engine, request, settings, self.shutdown.clone()).await
    }

    async fn ack(&self, who: &str, sequences: &[i64]) {
        let command = Command::Ack {
            account: commands::account(),
            targets: commands::numbered("default", sequences),
            subject: "t".to_owned(),
            consumer: who.to_owned(),
        };
        self.engine.run(command).await.expect("acked");
    }
}

async fn next(frames: &mut Frames) -> Frame {
    loop {
        let item = tokio::time::timeout(Duration::from_secs(10), frames.recv()).await;
        match item.expect("in time").expect("not ended") {
            Ok(Frame::Heartbeat { .. }) => {}
            Ok(frame) => return frame,
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

async fn last(frames: &mut Frames) -> Result<Frame, Refusal> {
    let mut last = None;
    loop {
        let item = tokio::time::timeout(Duration::from_secs(10), frames.recv()).await;
        match item.expect("in time") {
            Some(item) => last = Some(item),
            None => return last.expect("an item"),
        }
    }
}

/// Reads until so many results came; returns (sequence, attempt) and the last token.
async fn results(frames: &mut Frames, count: usize) -> (Vec<(i64, i32)>, String) {
    let mut got = Vec::new();
    let mut token = String::new();
    while got.len() < count {
        match next(frames).await {
            Frame::Deliveries { results, resume_token } => {
                got.extend(results.iter().map(
                    |receiptd::stream::Sending { delivery, operation, .. }| {
                        assert_eq!(delivery.operation_id, operation.key.id);
                        (delivery.key.sequence, delivery.attempt)
                    },
                ));
                token = resume_token;
            }
            Frame::CaughtUp { resume_token } => token = resume_token,
            other => panic!("{other:?}"),
        }
    }
    (got, token)
}

async fn opened(frames: &mut Frames) -> i64 {
    match next(frames).await {
        Frame::Opened { acked_elsewhere, .. } => acked_elsewhere,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_then_live_then_resume() {
    let running = running(policy());
    running.submit_many(1, 5).await;
    let mut frames = running.open("me", 100, "").await.expect("opens");
    opened(&mut frames).await;
    let (got, _) = results(&mut frames, 5).await;
    assert_eq!(got, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
    assert!(matches!(next(&mut frames).await, Frame::CaughtUp { .. }));
    tokio::time::sleep(Duration::from_millis(50)).await;
    for number in 6..=8 {
        running.submit(&format!("op-{number}")).await;
    }
    let (got, token) = results(&mut frames, 3).await;
    assert_eq!(got, [(6, 1), (7, 1), (8, 1)]);
    running.ack("me", &[1, 2, 3]).await;
    running.ack("other", &[4, 5]).await;
    match next(&mut frames).await {
        Frame::Withdrawn(ended) => {
            let state = |how: &Option<(_, DeliveryState)>| how.as_ref().expect("kept").1;
            let ended: Vec<_> = ended.iter().map(|(number, how)| (*number, state(how))).collect();
            assert_eq!(ended, [(4, DeliveryState::Acked), (5, DeliveryState::Acked)]);
        }
        other => panic!("{other:?}"),
    }
    drop(frames);
    running.submit("op-9").await;
    let mut frames = running.open("me", 100, &token).await.expect("opens");
    assert_eq!(opened(&mut frames).await, 0);
    let (mut got, _) = results(&mut frames, 4).await;
    got.sort_unstable();
    assert_eq!(got[..3], [(6, 2), (7, 2), (8, 2)]);
    assert_eq!(got[3].0, 9, "once more if it was handed to the stream that had just gone");
    // Mangled and foreign tokens.
    let bad = running.open("me", 10, &format!("{token}x")).await;
    assert!(matches!(bad, Err(Refusal::ResumeTokenInvalid(TokenFault::Unreadable))));
    running.shutdown.cancel();
    let end = last(&mut frames).await;
    assert!(matches!(end, Ok(Frame::Draining { .. })), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn window_is_kept_and_redelivers() {
    let running = running(policy());
    running.submit_many(1, 19).await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    opened(&mut frames).await;
    let (got, _) = results(&mut frames, 10).await;
    assert_eq!(got.last(), Some(&(10, 1)));
    running.ack("me", &[2, 3, 4, 5, 6, 7, 8, 9, 10]).await;
    let (got, _) = results(&mut frames, 9).await;
    assert_eq!(
        got.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        (11..=19).collect::<Vec<_>>()
    );
    running.ack("me", &(11..=19).collect::<Vec<_>>()).await;
    let mut caught_up = 0;
    loop {
        match next(&mut frames).await {
            Frame::CaughtUp { .. } => caught_up += 1,
            Frame::Deliveries { results, .. } => {
                assert_eq!(results.len(), 1);
                assert_eq!((results[0].delivery.key.sequence, results[0].delivery.attempt), (1, 2));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(caught_up, 1);
}

/// A service whose only result was sent once and backs off.
async fn with_one_that_backs_off(backoff: Span) -> Running {
    let (backoff_first, backoff_limit) = (backoff, backoff);
    let (ack_deadline, ack_window) = (Span::millis(600), Span::seconds(60));
    let policy = Policy { ack_deadline, ack_window, backoff_first, backoff_limit, ..policy() };
    let running = running(policy);
    running.submit("op-1").await;
    let mut frames = running.open("gone", 10, "").await.expect("opens");
    opened(&mut frames).await;
    assert_eq!(results(&mut frames, 1).await.0, [(1, 1)]);
    while running.row().await.returned == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn what_backs_off_at_the_opening_comes_before_caught_up() {
    let running = with_one_that_backs_off(Span::seconds(4)).await;
    running.submit("op-2").await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    let (mut shown, mut heartbeats) = (Vec::new(), 0);
    loop {
        let item = tokio::time::timeout(Duration::from_secs(10), frames.recv()).await;
        match item.expect("in time").expect("not ended").expect("no refusal") {
            Frame::Deliveries { results, .. } => {
                shown.extend(
                    results.iter().map(|sent| (sent.delivery.key.sequence, sent.delivery.attempt)),
                );
                running.ack("me", &[results[0].delivery.key.sequence]).await;
            }
            Frame::Heartbeat { .. } => heartbeats += 1,
            Frame::Opened { .. } => {}
            Frame::CaughtUp { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(shown, [(2, 1), (1, 2)], "everything that was there at the opening");
    assert!(heartbeats > 0, "it is alive meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_that_ends_elsewhere_is_caught_up() {
    let running = with_one_that_backs_off(Span::seconds(50)).await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    opened(&mut frames).await;
    let early = tokio::time::timeout(Duration::from_millis(1_500), next(&mut frames)).await;
    assert!(early.is_err(), "it is held: {early:?}");
    running.ack("other", &[1]).await;
    assert!(matches!(next(&mut frames).await, Frame::CaughtUp { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_results_all_arrive() {
    let running = running(Policy {
        ack_deadline: Span::seconds(30),
        ack_window: Span::minutes(5),
        ..policy()
    });
    let mut frames = running.open("me", 200, "").await.expect("opens");
    opened(&mut frames).await;
    let total = 3_000;
    let submitting = async {
        for start in (0..total).step_by(100) {
            running.submit_many(start, start + 99).await;
        }
    };
    let reading = async {
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < total {
            match next(&mut frames).await {
                Frame::Deliveries { results, .. } => {
                    let numbers: Vec<i64> =
                        results.iter().map(|sent| sent.delivery.key.sequence).collect();
                    for number in &numbers {
                        assert!(seen.insert(*number), "{number} twice");
                    }
                    running.ack("me", &numbers).await;
                }
                Frame::CaughtUp { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let ((), ()) = tokio::join!(submitting, reading);
    assert_eq!(running.row().await.in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_whatever_drops() {
    let running = running(Policy {
        ack_deadline: Span::seconds(2),
        retry_budget: 1000,
        ack_window: Span::minutes(5),
        backoff_first: Span::millis(50),
        backoff_limit: Span::millis(200),
        ..policy()
    });
    let acked = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let total = 1_500_usize;
    let submitting = async {
        for start in (0..total).step_by(50) {
            running.submit_many(start, start + 49).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    };
    let reader = |who: String, seed: u64| {
        let (running, acked) = (&running, &acked);
        async move {
            let mut random = seed;
            let mut token = String::new();
            let mut step = move || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                random >> 33
            };
            let mut opens = 0;
            while acked.lock().expect("l").len() < total {
                let mut frames = running
                    .open(&who, 1 + (step() % 60) as i64, if step() % 3 == 0 { "" } else { &token })
                    .await
                    .expect("opens");
                opens += 1;
                let stay = tokio::time::Instant::now() + Duration::from_millis(50 + step() % 700);
                while let Ok(Some(item)) = tokio::time::timeout_at(stay, frames.recv()).await {
                    match item {
                        Ok(Frame::Deliveries { results, resume_token }) => {
                            token = resume_token;
                            if step() % 4 == 0 {
                                continue;
                            }
                            let numbers: Vec<i64> =
                                results.iter().map(|sent| sent.delivery.key.sequence).collect();
                            running.ack(&who, &numbers).await;
                            acked.lock().expect("l").extend(numbers);
                        }
                        Ok(Frame::Gap { .. }) => panic!("nothing expires here"),
                        Ok(_) => {}
                        Err(Refusal::StreamSuperseded) => break,
                        Err(refusal) => panic!("{refusal:?}"),
                    }
                }
            }
            opens
        }
    };
    let all = async {
        tokio::join!(
            submitting,
            reader("a".into(), 1),
            reader("b".into(), 2),
            reader("a".into(), 3),
            reader("c".into(), 4)
        )
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), all).await;
    assert!(ended.is_ok(), "in time");
    let row = running.engine.store().inbox(&inbox("default")).await.expect("r").expect("row");
    let missing: Vec<i64> =
        (1..=total as i64).filter(|n| !acked.lock().expect("l").contains(n)).collect();
    assert!(missing.is_empty());
    assert_eq!(row.acked_total, total as i64);
}
