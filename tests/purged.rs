//! Streams over rows that are purged, and over inboxes that are deleted, step by step: the clock
//! stands still, and the sweeper runs only when it is told to.

#[path = "support/commands.rs"]
mod commands;

use std::time::Duration;

use commands::{ack, append, consumer, delete, inbox};
use receiptd::{
    domain::{
        command::Reply,
        ids::{Span, Timestamp},
        inbox::{Force, Inbox},
        policy::Policy,
        refusal::{Refusal, TokenFault},
        token::ResumeToken,
    },
    engine::{Engine, EngineSettings, seams::Seams},
    store::{Store, sqlite},
    stream::{self, Frame, Frames, GapCause, OpenStream, StreamSettings},
    sweeper,
};
use tokio_util::sync::CancellationToken;

struct Standing {
    engine: Engine,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Standing {
    async fn row(&self) -> Inbox {
        self.engine.store().inbox(&inbox("default")).await.expect("reads").expect("a row")
    }

    async fn submit(&self, count: usize) {
        let now = self.engine.store().now().await.expect("a clock");
        let all = (1..=count).map(async |number| {
            let id = format!("op-{number}");
            let reply = self.engine.run(append(&id, now).on(&id).command()).await;
            assert!(matches!(reply, Ok(Reply::Submitted(_))), "{reply:?}");
        });
        futures_util::future::join_all(all).await;
    }

    async fn open(&self, token: &str) -> Result<Frames, Refusal> {
        let request = OpenStream {
            inbox: inbox("default"),
            consumer: consumer("me"),
            window: 10,
            resume_token: token.to_owned(),
            credit: None,
            end: None,
        };
        let settings = StreamSettings {
            heartbeat: Span::minutes(1),
            age_max: Span::hours(1),
            write_stall_max: Span::minutes(1),
        };
        stream::open(&self.engine, request, settings, self.shutdown.clone()).await
    }
}

async fn next(frames: &mut Frames) -> Frame {
    let item = tokio::time::timeout(Duration::from_secs(10), frames.recv()).await;
    item.expect("in time").expect("not ended").expect("no refusal")
}

/// A service whose clock stands still and that sweeps only when it is told to.
fn standing(policy: Policy) -> Standing {
    let folder = tempfile::tempdir().expect("a folder");
    let seams = Seams::system();
    seams.stop_clock(Timestamp(1_800_000_000_000_000));
    let path = folder.path().join("receiptd.sqlite");
    let store =
        sqlite::SqliteStore::open(&path, &seams, &sqlite::Options::default()).expect("opens");
    let settings = EngineSettings { lanes: 1 };
    let engine = Engine::start(Store::Sqlite(store), policy, settings, seams);
    Standing { engine, shutdown: CancellationToken::new(), _folder: folder }
}

/// T14: rows are deleted under an open scan. The reader takes no frame while everything is purged,
/// so that the stream is in the middle of its first page then.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_under_an_open_scan_is_a_gap_and_not_silence() {
    let policy = Policy {
        record_retention: Span::days(2),
        inbox_slots: 2_000,
        consumer_lease: Span::days(100),
        ..Policy::default()
    };
    let running = standing(policy);
    running.submit(1_200).await;
    // Every second one is lost: a frame for each, and more of them than one page.
    let odd: Vec<i64> = (1..=1_200).step_by(2).collect();
    running.engine.run(ack("default", &odd)).await.expect("acked");
    let seams = running.engine.seams().clone();
    seams.move_clock(Span::minutes(15));
    assert_eq!(sweeper::run_once(&running.engine).await.expired, 600);
    let mut frames = running.open("").await.expect("opens");
    assert!(matches!(next(&mut frames).await, Frame::Opened { .. }));
    assert!(matches!(next(&mut frames).await, Frame::Gap { first: 2, last: 2, .. }));
    seams.move_clock(Span::days(2));
    let counts = sweeper::run_once(&running.engine).await;
    assert_eq!(counts.purged, 500, "the first step; the rest follows at once");
    while running.row().await.kept_from < 1_201 {
        tokio::task::yield_now().await;
    }
    let mut gaps = Vec::new();
    loop {
        match next(&mut frames).await {
            Frame::Gap { first, last, cause, operation_ids } => {
                assert_eq!(operation_ids.is_empty(), cause == GapCause::Purged);
                gaps.push((first, last, cause));
            }
            Frame::CaughtUp { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    let page = (2..=500).map(|number| (2 * number, 2 * number, GapCause::Expired));
    let expected: Vec<_> = page.chain([(1_001, 1_200, GapCause::Purged)]).collect();
    assert_eq!(gaps, expected, "each number that was not told is covered, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_do_not_fit_the_inbox_as_it_is_are_refused() {
    let running = standing(Policy::default());
    running.submit(3).await;
    let facts = running.engine.store().facts().clone();
    let token = |generation, position| {
        let store_epoch = facts.epoch.clone();
        let token = ResumeToken { inbox: inbox("default"), generation, store_epoch, position };
        token.seal(&facts.token_key)
    };
    let future = Refusal::ResumeTokenInvalid(TokenFault::FuturePosition);
    let refused = async |generation, position| {
        let opened = running.open(&token(generation, position)).await;
        opened.expect_err("refused")
    };
    assert_eq!(refused(1, 4).await, future);
    assert_eq!(refused(2, 1).await, future);
    let command = delete("default", Force::WithContent, None);
    running.engine.run(command).await.expect("deleted");
    assert_eq!(refused(1, 2).await, Refusal::InboxRecreated, "of the deleted generation");
    assert_eq!(refused(2, 4).await, future);
    assert!(running.row().await.deleted, "a refused opening begins nothing");
    // Nothing of the deleted generation is told to whoever begins before it.
    let mut frames = running.open(&token(2, 0)).await.expect("opens");
    assert!(matches!(next(&mut frames).await, Frame::Opened { .. }));
    assert!(matches!(next(&mut frames).await, Frame::CaughtUp { .. }));
    assert_eq!(running.row().await.generation, 2);
}
