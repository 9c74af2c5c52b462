use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{
    sync::{Barrier, Notify},
    time::timeout,
};
use tonic::{Code, Status};

use super::{
    super::{
        connect::ConnectOptions, error::tests::refusal, fake_service::FakeService,
        journal::MemoryJournal, retry::RetryLimits, submission::Submission,
    },
    *,
};
use crate::proto::{Draining, Policy, stream_deliveries_response::Frame};

/// No test waits longer for anything.
const BOUND: Duration = Duration::from_secs(10);

fn client(fake: &FakeService) -> Client {
    let limits = RetryLimits { total: BOUND, ..RetryLimits::standard() };
    let options = ConnectOptions { limits, ..ConnectOptions::plain() };
    Client::connect(&format!("http://{}", fake.address), options).expect("a usable endpoint")
}

async fn fill(fake: &FakeService, count: usize) {
    let client = client(fake);
    for number in 0..count {
        let line = json!({ "line": number.to_string() });
        let outcome = client.submit(Submission::json("document.append", "notes", &line)).await;
        assert!(outcome.expect("an outcome").is_applied());
    }
}

/// What one run of a stream told.
#[derive(Default)]
struct Told {
    results: Mutex<Vec<(i64, Freshness)>>,
    notices: Mutex<Vec<Notice>>,
    changed: Notify,
}

impl Told {
    fn sequences(&self) -> Vec<i64> {
        self.results.lock().expect("no panic").iter().map(|(sequence, _)| *sequence).collect()
    }

    fn result(&self, received: &Received) {
        let result = (received.delivery.sequence, received.freshness);
        self.results.lock().expect("no panic").push(result);
        self.changed.notify_waiters();
    }

    /// The first notice that is asked for.
    fn notice<T>(&self, wanted: impl Fn(&Notice) -> Option<T>) -> Option<T> {
        self.notices.lock().expect("no panic").iter().find_map(wanted)
    }

    async fn until(&self, done: impl Fn(&Told) -> bool) {
        loop {
            let changed = self.changed.notified();
            if done(self) {
                return;
            }
            changed.await;
        }
    }
}

/// A stream that tells everything, and comes back soon.
fn results(client: &Client, told: &Arc<Told>) -> Results {
    let noted = told.clone();
    client.inbox("default").consumer("laptop").reconnect(Growth::ALONE).on_notice(move |notice| {
        noted.notices.lock().expect("no panic").push(notice);
        noted.changed.notify_waiters();
    })
}

/// Reads, with handlers that always succeed, until what was told is as it should be.
async fn read_until(
    client: &Client,
    done: impl Fn(&Told) -> bool,
) -> (Arc<Told>, Result<(), StreamError>) {
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        told.result(&received);
        Ok::<(), String>(())
    };
    let reading = results(client, &told).stream_until(told.until(done), &handler);
    let ended = timeout(BOUND, reading).await.expect("it ends");
    (told, ended)
}

fn seen(count: usize) -> impl Fn(&Told) -> bool {
    move |told| told.sequences().len() >= count
}

#[tokio::test]
async fn each_result_is_handed_over_once_and_acked() {
    let fake = FakeService::start().await;
    fill(&fake, 3).await;
    let client = client(&fake);
    let (told, ended) = read_until(&client, seen(3)).await;
    ended.expect("it was asked to end");
    assert_eq!(told.sequences(), [1, 2, 3]);
    assert!(told.results.lock().expect("no panic").iter().all(|(_, it)| *it == Freshness::New));
    assert_eq!(fake.unacked(), 0);
    let kept = client.journal().reader("default", "laptop").expect("readable").expect("kept");
    assert_eq!((kept.resume_token.as_str(), kept.handled_unacked.len()), ("3", 0));
}

/// F08: what was handled before a restart is recognised, and only what is new is shown.
#[tokio::test]
async fn f08_a_restart_with_its_journal_shows_nothing_twice() {
    let fake = FakeService::start().await;
    fill(&fake, 3).await;
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    let client = client(&fake).with_journal_in(journal);
    fake.script(|script| script.refused_acks = Some(Status::unavailable("lost")));
    let reading = async {
        let told = Arc::new(Told::default());
        let handler = async |received: Received| {
            told.result(&received);
            Ok::<(), String>(())
        };
        // Dropped like a process that ends: no ack has left.
        let kept = async {
            told.until(seen(3)).await;
            let state = || client.journal().reader("default", "laptop").expect("readable");
            while state().is_none_or(|state| state.handled_unacked.len() < 3) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = results(&client, &told).stream(&handler) => panic!("nothing ends it"),
            () = kept => {}
        }
    };
    timeout(BOUND, reading).await.expect("three results are handled and kept");
    assert_eq!(fake.unacked(), 3);

    fill(&fake, 1).await;
    fake.script(|script| script.refused_acks = None);
    let (told, ended) = read_until(&client, seen(1)).await;
    ended.expect("it was asked to end");
    assert_eq!(*told.results.lock().expect("no panic"), [(4, Freshness::New)]);
    let again: BTreeSet<i64> = told
        .notices
        .lock()
        .expect("no panic")
        .iter()
        .filter_map(|notice| match notice {
            Notice::AlreadySeen(again) => Some(again.key.sequence),
            _ => None,
        })
        .collect();
    assert_eq!(again, BTreeSet::from([1, 2, 3]));
    assert_eq!(fake.unacked(), 0);
}

#[tokio::test]
async fn a_result_that_a_handler_could_not_use_comes_again() {
    let fake = FakeService::start().await;
    fill(&fake, 1).await;
    // Opened, the results, the end of the backlog: then the stream ends, and another begins.
    fake.end_streams_after(3);
    let client = client(&fake);
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        told.result(&received);
        match received.freshness {
            Freshness::New => Err("not now"),
            Freshness::Redelivered => Ok(()),
        }
    };
    let reading = results(&client, &told).stream_until(told.until(seen(2)), &handler);
    timeout(BOUND, reading).await.expect("it comes again").expect("it was asked to end");
    let expected = [(1, Freshness::New), (1, Freshness::Redelivered)];
    assert_eq!(*told.results.lock().expect("no panic"), expected);
    let failed = told.notice(|notice| match notice {
        Notice::HandlerFailed { sequence, text, .. } => Some((*sequence, text.clone())),
        _ => None,
    });
    assert_eq!(failed, Some((1, "not now".to_owned())));
    assert_eq!(fake.unacked(), 0);
}

#[tokio::test]
async fn handlers_run_side_by_side_up_to_their_bound() {
    let fake = FakeService::start().await;
    fill(&fake, 6).await;
    let client = client(&fake);
    for bound in [1, 3] {
        let told = Arc::new(Told::default());
        let (together, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let meeting = Barrier::new(bound);
        let handler = async |received: Received| {
            most.fetch_max(1 + together.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            meeting.wait().await;
            together.fetch_sub(1, Ordering::SeqCst);
            told.result(&received);
            Ok::<(), String>(())
        };
        let reading = results(&client, &told).consumer(format!("bound-{bound}"));
        let reading = reading.handlers_max(bound);
        // Acks are refused, so that both rounds find the same results.
        fake.script(|script| script.refused_acks = Some(Status::permission_denied("not yet")));
        let done = reading.stream(&handler);
        tokio::select! {
            ended = done => panic!("nothing ends it: {ended:?}"),
            all = timeout(BOUND, told.until(seen(6))) => all.expect("all are handled"),
        }
        assert_eq!(most.load(Ordering::SeqCst), bound);
    }
}

fn lost_position(reason: &str) -> Status {
    let code = match reason {
        "RESUME_TOKEN_INVALID" => Code::InvalidArgument,
        _ => Code::FailedPrecondition,
    };
    refusal(code, reason, "NO_EFFECT")
}

/// F34 and the like: once without the position, and the application is told.
#[tokio::test]
async fn a_position_that_is_not_valid_is_given_up_once_and_told() {
    for reason in ["RESUME_TOKEN_INVALID", "INBOX_RECREATED", "STORE_EPOCH_CHANGED"] {
        let fake = FakeService::start().await;
        fill(&fake, 1).await;
        let client = client(&fake);
        let state =
            ReaderState { resume_token: "old".to_owned(), ..ReaderState::new("default", "laptop") };
        client.journal().save_reader(&state).expect("kept");
        fake.script(|script| script.refused_streams.push_back(lost_position(reason)));
        let (told, ended) = read_until(&client, seen(1)).await;
        ended.expect("it was asked to end");
        assert_eq!(fake.asked().tokens, ["old", ""], "{reason}");
        let error = told.notice(|notice| match notice {
            Notice::Resynchronising(error) => Some(error.clone()),
            _ => None,
        });
        let named = match error.expect("the application is told") {
            ReaderError::ResumeTokenInvalid(_) => "RESUME_TOKEN_INVALID",
            ReaderError::InboxRecreated(_) => "INBOX_RECREATED",
            ReaderError::StoreEpochChanged(_) => "STORE_EPOCH_CHANGED",
            other => panic!("another error: {other}"),
        };
        assert_eq!(named, reason);
        assert_eq!(fake.unacked(), 0);
    }
}

#[tokio::test]
async fn what_waiting_does_not_change_ends_the_stream() {
    let superseded = refusal(Code::Aborted, "STREAM_SUPERSEDED", "NO_EFFECT");
    let denied = refusal(Code::PermissionDenied, "PERMISSION_MISSING", "NO_EFFECT");
    // Without a position there is none that could be wrong.
    for status in [superseded, denied, lost_position("RESUME_TOKEN_INVALID")] {
        let fake = FakeService::start().await;
        fake.script(|script| script.refused_streams.push_back(status.clone()));
        let (_, ended) = read_until(&client(&fake), seen(1)).await;
        let error = match ended.expect_err("it ends") {
            StreamError::Reader(error) => error,
            other => panic!("another error: {other}"),
        };
        let fits = match status.code() {
            Code::Aborted => matches!(error, ReaderError::Superseded(_)),
            Code::PermissionDenied => matches!(error, ReaderError::Refused(_)),
            _ => matches!(error, ReaderError::ResumeTokenInvalid(_)),
        };
        assert!(fits, "{status:?}: {error}");
        assert_eq!(fake.asked().tokens.len(), 1, "it is not tried again");
    }
}

#[test]
fn resynchronising_again_waits_until_ten_seconds_have_passed() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut resynchronised = Resynchronised::default();
    let rows = [(0, 0), (2, 8), (11, 9), (60, 0)];
    for (at, pause) in rows {
        assert_eq!(resynchronised.pause(after(at)), Duration::from_secs(pause), "at {at}");
    }
}

#[tokio::test]
async fn gaps_withdrawals_and_the_end_of_a_stream_are_told() {
    let fake = FakeService::start().await;
    fill(&fake, 1).await;
    let gap = Gap { first_sequence: 1, last_sequence: 9, ..Gap::default() };
    let gone = WithdrawnDelivery { sequence: 7, ..WithdrawnDelivery::default() };
    let withdrawn = crate::proto::Withdrawn { deliveries: vec![gone.clone()] };
    let draining = Draining { resume_token: "drained".to_owned(), ..Draining::default() };
    fake.script(|script| {
        script.frames.extend([
            Frame::Gap(gap.clone()),
            Frame::Withdrawn(withdrawn),
            Frame::Draining(draining),
        ]);
    });
    let (told, ended) = read_until(&client(&fake), seen(1)).await;
    ended.expect("it was asked to end");
    assert!(
        told.notice(|it| matches!(it, Notice::Gap(told) if *told == gap).then_some(())).is_some()
    );
    let told_gone =
        |it: &Notice| matches!(it, Notice::Withdrawn(told) if *told == gone).then_some(());
    assert!(told.notice(told_gone).is_some());
    assert!(told.notice(|it| matches!(it, Notice::Reconnecting(None)).then_some(())).is_some());
    assert_eq!(fake.asked().tokens, ["", "drained"]);
}

/// A result is withdrawn while its handler is running, and redriven: it comes on the same stream.
#[tokio::test]
async fn a_withdrawn_result_that_is_redriven_is_in_one_handler_at_a_time() {
    let fake = FakeService::start().await;
    fill(&fake, 1).await;
    // A stream that ends sends what is unacked again on the next one.
    fake.end_streams_after(3);
    let client = client(&fake);
    let told = Arc::new(Told::default());
    let came_again = |told: &Told| {
        let notices = told.notices.lock().expect("no panic");
        let mut after = notices.iter().skip_while(|it| !matches!(it, Notice::Withdrawn(_)));
        after.any(|it| matches!(it, Notice::AlreadySeen(_)))
    };
    let handler = async |received: Received| {
        told.result(&received);
        fake.script(|script| {
            let gone = WithdrawnDelivery { sequence: 1, ..WithdrawnDelivery::default() };
            script
                .frames
                .push_back(Frame::Withdrawn(crate::proto::Withdrawn { deliveries: vec![gone] }));
        });
        told.until(|told| came_again(told) || seen(2)(told)).await;
        Ok::<(), String>(())
    };
    let end = told.until(|told| came_again(told) || seen(2)(told));
    let reading = results(&client, &told).handlers_max(2).stream_until(end, &handler);
    timeout(BOUND, reading).await.expect("it comes again").expect("it was asked to end");
    assert_eq!(told.sequences(), [1], "the second one is no second hand-over");
    assert_eq!(fake.unacked(), 0);
}

fn short_deadline(fake: &FakeService) {
    let ack_deadline = prost_types::Duration { seconds: 0, nanos: 200_000_000 };
    let policy = Policy { ack_deadline: Some(ack_deadline), ..Policy::default() };
    fake.script(|script| script.policy = Some(policy));
}

/// F14, the library's half: what is handled, or waits for that, gets more time again and again.
#[tokio::test]
async fn slow_results_get_more_time_until_they_are_handled() {
    let fake = FakeService::start().await;
    fill(&fake, 2).await;
    short_deadline(&fake);
    let client = client(&fake);
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        // The first one is slow: until it, and the one that waits behind it, were extended thrice.
        let thrice = |all: &[(i64, i32)], number| {
            all.iter().filter(|(sequence, _)| *sequence == number).count() >= 3
        };
        if received.delivery.sequence == 1 {
            fake.until(|all| thrice(&all.extensions, 1) && thrice(&all.extensions, 2)).await;
        }
        told.result(&received);
        Ok::<(), String>(())
    };
    let reading = results(&client, &told).stream_until(told.until(seen(2)), &handler);
    timeout(BOUND, reading).await.expect("both are handled").expect("it was asked to end");
    assert_eq!(told.sequences(), [1, 2]);
    assert!(fake.asked().extensions.iter().all(|(_, attempt)| *attempt == 1));
    assert_eq!(fake.unacked(), 0);
}

#[tokio::test]
async fn a_server_that_gives_no_more_time_is_asked_once_and_told() {
    let fake = FakeService::start().await;
    fill(&fake, 1).await;
    short_deadline(&fake);
    fake.script(|script| script.refused_extensions = Some(Status::unimplemented("older")));
    let client = client(&fake);
    let told = Arc::new(Told::default());
    let refused = |told: &Told| {
        told.notice(|it| matches!(it, Notice::ExtensionRefused(_)).then_some(())).is_some()
    };
    let handler = async |received: Received| {
        told.result(&received);
        told.until(refused).await;
        Ok::<(), String>(())
    };
    let end = told.until(|told| refused(told) && seen(1)(told));
    let reading = results(&client, &told).stream_until(end, &handler);
    timeout(BOUND, reading).await.expect("it goes on without").expect("it was asked to end");
    assert_eq!(fake.asked().extensions.len(), 1);
    assert_eq!(fake.unacked(), 0);
}
