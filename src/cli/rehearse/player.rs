//! Plays a recorded session against a service, one operation per transaction, and loses
//! connections and servers on the way.
//!
//! What must stay true: every operation keeps its id over all its attempts, and expects exactly the
//! revision that its predecessor made, so that a lost or a doubled effect cannot pass unseen. The
//! negative control breaks the first half of this on purpose.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    super::{Failure, output::state_word},
    proxy::{Cut, Proxy},
    report::Report,
    server::{Server, ServerPlan},
    trace::{Trace, splice_arguments},
};
use crate::{
    client::{
        connect::Client,
        inbox::{InboxReader, News, ReaderOptions, ReaderState},
        send::{SendError, Submitted},
        submission::Submission,
    },
    proto::{Intent, ListOperationsRequest, Origin, document::Content, operation::State},
};

/// How long a full inbox is waited for: its acks are on their way.
const INBOX_FULL_LIMIT: Duration = Duration::from_secs(60);
/// How long the last results may take to arrive after the last submit.
const LAST_RESULTS_LIMIT: Duration = Duration::from_secs(120);
/// How often a fresh id is tried by the negative control.
const FRESH_IDS_MAX: u32 = 50;
/// A kill comes at most this long after the operation was begun, which is about as long as one
/// operation takes: some die before it, some within it, some after it.
const KILL_DELAY_MAX_MICROS: u64 = 2_500;

/// Whether a retry keeps its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// By the contract.
    SameId,
    /// The negative control: a fresh id for each retry, without an expected revision.
    FreshId,
}

/// What is lost, and when.
#[derive(Debug, Clone, Copy)]
pub struct Losses {
    /// A connection with each n-th operation, at each boundary in turn; 0: never.
    pub cut_every: u64,
    /// The server with each n-th operation; 0: never.
    pub kill_every: u64,
    /// Whether a retry keeps its id.
    pub retries: Retries,
}

/// The service under rehearsal with a proxy before each of its two doors.
#[derive(Debug)]
pub struct Stage {
    /// Before the submits.
    pub submit_proxy: Proxy,
    /// Before the delivery stream and the acks.
    pub delivery_proxy: Proxy,
    /// The child, when there is one to kill.
    pub server: Option<Server>,
    /// How to start it again.
    pub plan: Option<ServerPlan>,
}

/// Who plays, and where.
#[derive(Debug)]
pub struct Parts {
    /// Submits, through the first proxy.
    pub submit: Client,
    /// Reads and acks, through the second proxy.
    pub delivery: Client,
    /// The document.
    pub target: String,
    /// The inbox.
    pub inbox: String,
}

/// What has been counted so far.
#[derive(Debug, Default)]
struct Counts {
    operations: u64,
    attempts: u64,
    replays: u64,
    kills: u64,
    results: AtomicU64,
}

/// Plays a session from its start to its end, and tells what came of it.
///
/// # Errors
/// [`Failure`] when an operation does not end as the contract says.
pub async fn play(
    trace: &Trace,
    losses: Losses,
    stage: &mut Stage,
    parts: &Parts,
    progress: &dyn Fn(u64),
) -> Result<Report, Failure> {
    let state = ReaderState::new(&parts.inbox, "rehearsal");
    let mut reader = InboxReader::start(parts.delivery.clone(), state, ReaderOptions::alone());
    let started = Instant::now();
    let mut counts = Counts::default();
    let results = AtomicU64::new(0);
    {
        let submits = submit_all(trace, losses, stage, parts, &mut counts, progress);
        alongside(read_results(&mut reader, &results), submits).await?;
    }
    let expected = match losses.retries {
        Retries::SameId => counts.operations,
        // What the lost attempts left behind arrives too, but nobody can say how much.
        Retries::FreshId => 0,
    };
    let last = async {
        let end = Instant::now() + LAST_RESULTS_LIMIT;
        while results.load(Ordering::Relaxed) < expected && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    };
    alongside(read_results(&mut reader, &results), last).await?;
    reader.flush(Duration::from_secs(30)).await;
    counts.results = results;
    let seconds = started.elapsed().as_secs_f64();
    let totals = reader.totals();
    reader.close().await;
    let mut report = inspect(trace, parts, &counts).await?;
    report.cuts = stage.submit_proxy.fired() + stage.delivery_proxy.fired();
    report.duplicates_seen = totals.already_seen;
    report.seconds = seconds;
    Ok(report)
}

/// Runs the work while results are read; the reader alone never ends it but by an error.
async fn alongside<T>(
    reading: impl Future<Output = Failure>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = work => done,
        failure = reading => Err(failure),
    }
}

/// Handles and acks whatever comes.
async fn read_results(reader: &mut InboxReader, results: &AtomicU64) -> Failure {
    loop {
        match reader.next().await {
            Ok(News::Result(result)) => {
                reader.handled(&result);
                results.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => return Failure::plain(error),
        }
    }
}

async fn submit_all(
    trace: &Trace,
    losses: Losses,
    stage: &mut Stage,
    parts: &Parts,
    counts: &mut Counts,
    progress: &dyn Fn(u64),
) -> Result<(), Failure> {
    let put = (!trace.start.is_empty()).then(|| {
        let arguments = json!({ "content": trace.start }).to_string().into_bytes();
        ("document.put", arguments)
    });
    let splices =
        trace.transactions.iter().map(|edits| ("document.splice", splice_arguments(edits)));
    for (action, arguments) in put.into_iter().chain(splices) {
        let revision = i64::try_from(counts.operations).unwrap_or(i64::MAX);
        let intent = Intent {
            action: action.to_owned(),
            target: parts.target.clone(),
            expected_revision: match losses.retries {
                Retries::SameId => Some(revision),
                Retries::FreshId => None,
            },
            arguments,
            ..Intent::default()
        };
        counts.operations += 1;
        one_operation(intent, losses, stage, parts, counts).await?;
        progress(counts.operations);
    }
    Ok(())
}

/// One operation, with the losses that are due with it.
async fn one_operation(
    intent: Intent,
    losses: Losses,
    stage: &mut Stage,
    parts: &Parts,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let number = counts.operations;
    if is_due(number, losses.cut_every) {
        arm_cut(stage, number / losses.cut_every);
    }
    let submitting = submit_until_answered(intent, losses.retries, parts);
    let (submitted, attempts) = if is_due(number, losses.kill_every) {
        counts.kills += 1;
        let killing = kill_and_restart(stage, kill_delay(number));
        let (submitted, killed) = tokio::join!(submitting, killing);
        killed?;
        submitted?
    } else {
        submitting.await?
    };
    counts.attempts += u64::from(attempts);
    counts.replays += u64::from(submitted.origin() != Origin::Executed);
    let state = submitted.state();
    if state != State::Applied && losses.retries == Retries::SameId {
        let operation = submitted.operation().cloned().unwrap_or_default();
        let why = operation.receipt.and_then(|receipt| receipt.rejection);
        let why = why.map(|rejection| format!(": {}", rejection.text)).unwrap_or_default();
        return Err(Failure::plain(format!(
            "operation {number} ({}) ended {}{why}",
            operation.operation_id,
            state_word(state)
        )));
    }
    Ok(())
}

fn is_due(number: u64, every: u64) -> bool {
    every > 0 && number.is_multiple_of(every)
}

/// Each boundary in turn: before the request leaves, after it left, before the reply arrives, and
/// before the ack of a delivered result.
fn arm_cut(stage: &Stage, turn: u64) {
    match turn % 4 {
        1 => stage.submit_proxy.arm(Cut::BeforeRequest),
        2 => stage.submit_proxy.arm(Cut::AfterRequest),
        3 => stage.submit_proxy.arm(Cut::BeforeReply),
        _ => stage.delivery_proxy.arm(Cut::BeforeRequest),
    }
}

/// A moment that differs from kill to kill and is the same in every run.
fn kill_delay(number: u64) -> Duration {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Duration::from_micros(scattered % KILL_DELAY_MAX_MICROS)
}

async fn kill_and_restart(stage: &mut Stage, after: Duration) -> Result<(), Failure> {
    sleep(after).await;
    let (Some(server), Some(plan)) = (stage.server.take(), &stage.plan) else { return Ok(()) };
    server.kill().await?;
    let server = Server::start(plan).await?;
    stage.submit_proxy.redirect(server.address());
    stage.delivery_proxy.redirect(server.address());
    stage.server = Some(server);
    Ok(())
}

/// Submits, and tells the answer with the number of attempts.
async fn submit_until_answered(
    intent: Intent,
    retries: Retries,
    parts: &Parts,
) -> Result<(Submitted, u32), Failure> {
    let mut identity = parts.submit.mint();
    let wait = Duration::from_secs(10);
    let submission = Submission::new(intent).into_inbox(&parts.inbox).waiting(wait);
    let full_until = Instant::now() + INBOX_FULL_LIMIT;
    let mut attempts = 0;
    loop {
        let error = match parts.submit.send(&identity, &submission).await {
            Ok(submitted) => {
                let all = attempts + submitted.attempts;
                return Ok((submitted, all));
            }
            Err(error) => error,
        };
        attempts += 1;
        match (&error, retries) {
            (SendError::Refused { failure, .. }, _)
                if failure.is("INBOX_FULL") && Instant::now() < full_until => {}
            (SendError::Refused { failure, .. }, Retries::SameId) => {
                return Err(Failure::plain(failure));
            }
            // The mistake that the negative control shows: doubt is answered with a new id.
            (_, Retries::FreshId) if attempts < FRESH_IDS_MAX => {
                identity = parts.submit.mint();
            }
            (_, Retries::SameId | Retries::FreshId) => return Err(Failure::plain(error)),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// What the store holds at the end.
async fn inspect(trace: &Trace, parts: &Parts, counts: &Counts) -> Result<Report, Failure> {
    let document = parts.delivery.document(&parts.target).await.map_err(Failure::plain)?;
    let text_equal = matches!(&document.content, Some(Content::Text(text)) if *text == trace.end);
    Ok(Report {
        operations: counts.operations,
        attempts: counts.attempts,
        replays: counts.replays,
        kills: counts.kills,
        results: counts.results.load(Ordering::Relaxed),
        effects: count_applied(parts).await?,
        final_revision: document.revision,
        text_equal,
        cuts: 0,
        duplicates_seen: 0,
        seconds: 0.0,
    })
}

/// How many operations were applied to the document, by the store's own list.
async fn count_applied(parts: &Parts) -> Result<u64, Failure> {
    let mut request = ListOperationsRequest {
        page_size: 1_000,
        target: parts.target.clone(),
        states: vec![State::Applied.into()],
        ..ListOperationsRequest::default()
    };
    let mut applied = 0;
    loop {
        let page = parts.delivery.list_operations(request.clone()).await;
        let page = page.map_err(Failure::plain)?;
        applied += u64::try_from(page.operations.len()).unwrap_or(0);
        if page.next_page_token.is_empty() {
            return Ok(applied);
        }
        request.page_token = page.next_page_token;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::trace::builtin, *};
    use crate::client::{connect::ConnectOptions, fake_service::FakeService, retry::RetryLimits};

    async fn rehearse_against_the_fake(losses: Losses) -> (Report, usize) {
        let fake = FakeService::start().await;
        let proxy = async || Proxy::start(fake.address).await.expect("a free port");
        let mut stage = Stage {
            submit_proxy: proxy().await,
            delivery_proxy: proxy().await,
            server: None,
            plan: None,
        };
        let client = |proxy: &Proxy| {
            Client::connect(&proxy.endpoint(), ConnectOptions::plain()).expect("a usable endpoint")
        };
        let submit = client(&stage.submit_proxy);
        let parts = Parts {
            submit: match losses.retries {
                Retries::SameId => submit,
                Retries::FreshId => submit.with_limits(RetryLimits::once(Duration::from_secs(5))),
            },
            delivery: client(&stage.delivery_proxy),
            target: "t".to_owned(),
            inbox: "i".to_owned(),
        };
        let played = play(&builtin(), losses, &mut stage, &parts, &|_| {}).await;
        (played.expect("the session is played to its end"), fake.unacked())
    }

    #[tokio::test]
    async fn cuts_at_every_boundary_leave_one_effect_each() {
        let losses = Losses { cut_every: 3, kill_every: 0, retries: Retries::SameId };
        let (report, unacked) = rehearse_against_the_fake(losses).await;
        assert!(report.passed(), "{report:?}");
        assert_eq!(report.cuts, report.operations / 3);
        // A request that was passed on whole, and a reply that was swallowed, are replayed.
        // Whether a lost ack also brings its result again depends on which is faster, the next ack
        // or the next stream; the reader's own tests show what it does with a duplicate.
        assert!(report.replays >= report.cuts / 4, "{report:?}");
        assert_eq!((report.duplicate_effects(), unacked), (0, 0));
    }

    #[tokio::test]
    async fn a_quiet_rehearsal_has_no_replays() {
        let losses = Losses { cut_every: 0, kill_every: 0, retries: Retries::SameId };
        let (report, _) = rehearse_against_the_fake(losses).await;
        assert!(report.passed(), "{report:?}");
        assert_eq!((report.replays, report.attempts), (0, report.operations));
    }

    #[tokio::test]
    async fn fresh_ids_show_duplicate_effects() {
        let losses = Losses { cut_every: 3, kill_every: 0, retries: Retries::FreshId };
        let (report, _) = rehearse_against_the_fake(losses).await;
        assert!(!report.passed());
        assert!(report.duplicate_effects() > 0, "{report:?}");
    }
}
