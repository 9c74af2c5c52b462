//! A steady load: callers that submit one operation after the other, and at each inbox a consumer
//! that acks what it is sent, page by page. A cycle is a submit, its delivery and its ack.

use std::time::Duration;

use futures_util::future::join_all;
use receiptd::{
    domain::{
        command::{AckOutcome, Command, Reply},
        ids::Span,
        operation::OperationState,
    },
    engine::{Engine, totals::Totals},
    store::Touches,
    stream::{self, Frame, Frames, OpenStream, StreamSettings},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::commands::{self, append, consumer, inbox};

/// Inboxes, each with an attached consumer.
pub const INBOXES: usize = 16;
/// How long a load may take: many times what it needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with readers, which end with it.
pub struct Load<'a> {
    engine: &'a Engine,
    readers: Vec<Frames>,
    stop: CancellationToken,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl<'a> Load<'a> {
    /// Attaches a consumer to each inbox.
    pub async fn attach(engine: &'a Engine) -> Load<'a> {
        let stop = CancellationToken::new();
        let mut readers = Vec::new();
        for number in 0..INBOXES {
            readers.push(open(engine, number, &stop).await);
        }
        Load { engine, readers, stop }
    }

    /// Runs `each` cycles of each of `callers`, a multiple of the inboxes, and says what they cost.
    pub async fn cycles(&mut self, callers: usize, each: usize) -> Cost {
        assert_eq!(callers % INBOXES, 0, "every reader gets as much as the others");
        let before = self.engine.totals();
        let engine = self.engine;
        let submitting = join_all((0..callers).map(|caller| submit(engine, caller, each)));
        let expected = callers / INBOXES * each;
        let readers = self.readers.iter_mut().enumerate();
        let reading =
            join_all(readers.map(|(number, frames)| read(engine, number, frames, expected)));
        let all = async { tokio::join!(submitting, reading) };
        tokio::time::timeout(PATIENCE, all).await.expect("the load ends in time");
        Cost { cycles: callers * each, totals: difference(self.engine.totals(), before) }
    }
}

/// What some cycles cost.
#[derive(Debug)]
pub struct Cost {
    pub cycles: usize,
    pub totals: Totals,
}

impl Cost {
    /// Rows loaded and saved for one cycle.
    pub fn touches_per_cycle(&self) -> f64 {
        let Touches { loaded, saved, .. } = self.totals.touches;
        (loaded + saved) as f64 / self.cycles as f64
    }

    /// Commits for one submit.
    pub fn commits_per_operation(&self) -> f64 {
        self.totals.touches.commits as f64 / self.cycles as f64
    }
}

fn difference(after: Totals, before: Totals) -> Totals {
    let (new, old) = (after.touches, before.touches);
    Totals {
        batches: after.batches - before.batches,
        commands: after.commands - before.commands,
        touches: Touches {
            loaded: new.loaded - old.loaded,
            saved: new.saved - old.saved,
            round_trips: new.round_trips - old.round_trips,
            commits: new.commits - old.commits,
        },
        submits: after.submits,
    }
}

async fn open(engine: &Engine, number: usize, stop: &CancellationToken) -> Frames {
    let request = OpenStream {
        inbox: inbox(&name(number)),
        consumer: consumer("installation"),
        window: 256,
        resume_token: String::new(),
        credit: None,
        end: None,
    };
    let settings = StreamSettings {
        heartbeat: Span::seconds(20),
        age_max: Span::hours(1),
        write_stall_max: Span::seconds(30),
    };
    stream::open(engine, request, settings, stop.clone()).await.expect("the stream opens")
}

fn name(number: usize) -> String {
    format!("inbox-{number}")
}

/// Submits one after the other, to documents of the caller's own.
async fn submit(engine: &Engine, caller: usize, each: usize) {
    for number in 0..each {
        let now = engine.seams().now();
        let instruction = append(&Uuid::now_v7().to_string(), now)
            .on(&format!("documents/{caller}/{}", number % 4))
            .into_inbox(&name(caller % INBOXES));
        let reply = engine.run(instruction.command()).await;
        let Ok(Reply::Submitted(submitted)) = reply else { panic!("{reply:?}") };
        assert_eq!(submitted.operation.state, OperationState::Applied);
    }
}

/// Reads `expected` results and acks each page as it comes.
async fn read(engine: &Engine, number: usize, frames: &mut Frames, expected: usize) {
    let mut seen = 0;
    while seen < expected {
        let frame = frames.recv().await.expect("the stream stays open").expect("no refusal");
        let Frame::Deliveries { results, .. } = frame else { continue };
        let sequences: Vec<i64> = results.iter().map(|sent| sent.delivery.key.sequence).collect();
        let Command::Ack { account, targets, subject, .. } =
            commands::ack(&name(number), &sequences)
        else {
            unreachable!("it builds an ack")
        };
        let consumer = "installation".to_owned();
        let reply = engine.run(Command::Ack { account, targets, subject, consumer }).await;
        let Ok(Reply::Acked(acked)) = reply else { panic!("{reply:?}") };
        assert!(acked.iter().all(|ack| ack.outcome == AckOutcome::Acked), "{acked:?}");
        seen += sequences.len();
    }
    assert_eq!(seen, expected, "none came twice");
}
