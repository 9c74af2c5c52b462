//! A page of results for a consumer without a stream.
//!
//! What must stay true: it registers for hints before it reads (T13), and each hint only makes it
//! read again; the wait ends by results, time or shutdown; what is in flight is in the answer, and
//! what does not arrive comes again after its ack deadline.

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    frames::{self, Joined},
    timers::{LOOK_PAUSE, TICK},
    unreadable,
    work::operation_keys,
};
use crate::{
    domain::{
        command::{Command, Reply},
        delivery::{Delivery, InboxKey},
        ids::ConsumerId,
        inbox::Inbox,
        refusal::Refusal,
    },
    engine::Engine,
    telemetry,
    wake::Watch,
};

/// Results put in flight in one step: their size is known only afterwards, and so many of the
/// largest are half a MiB.
const STEP_MAX: i64 = 64;
/// No further step begins at this size: an answer stays below a MiB or so, a quarter of what usual
/// clients take.
const FULL_BYTES: usize = 512 * 1024;

/// What is pulled.
#[derive(Debug, Clone)]
pub struct PullPage {
    /// From which inbox; made at first use.
    pub inbox: InboxKey,
    /// Who has the results in flight.
    pub consumer: ConsumerId,
    /// How many at most; already bounded by the policy.
    pub limit: i64,
}

/// A page.
#[derive(Debug)]
pub struct Pulled {
    /// By number within each kind: first those that were sent before.
    pub results: Vec<Joined>,
    /// How many of the inbox's results wait.
    pub pending: i64,
}

/// Puts a page in flight; waits for a first result until `end`. The page is durable on return.
///
/// # Errors
/// An account's limit of inboxes; a store that cannot be reached. What was put in flight by then
/// comes again after its ack deadline.
pub async fn pull(
    engine: &Engine,
    page: &PullPage,
    end: Instant,
    shutdown: &CancellationToken,
) -> Result<Pulled, Refusal> {
    let watch = engine.wake().watch_inbox(page.inbox.clone());
    loop {
        let pulled = take(engine, page).await?;
        if !pulled.results.is_empty()
            || !something_waits(engine, page, &watch, end, shutdown).await?
        {
            return Ok(pulled);
        }
    }
}

/// Waits until there may be something to take; not so when the time is up.
async fn something_waits(
    engine: &Engine,
    page: &PullPage,
    watch: &Watch,
    end: Instant,
    shutdown: &CancellationToken,
) -> Result<bool, Refusal> {
    loop {
        let tick = Instant::now() + TICK;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(false),
            () = sleep_until(end) => return Ok(false),
            () = watch.changed() => sleep(LOOK_PAUSE).await,
            () = sleep_until(tick) => {}
        }
        let row = engine.store().inbox(&page.inbox).await.map_err(unreadable)?;
        let in_flight_max = engine.policy().in_flight_max;
        if row.is_some_and(|row| row.pending > 0 && row.in_flight < in_flight_max) {
            return Ok(true);
        }
    }
}

/// Takes what is there now, in steps.
async fn take(engine: &Engine, page: &PullPage) -> Result<Pulled, Refusal> {
    let mut pulled = Pulled { results: Vec::new(), pending: 0 };
    let (mut left, mut bytes) = (page.limit, 0);
    while left > 0 && bytes < FULL_BYTES {
        let limit = left.min(STEP_MAX);
        match step(engine, page, limit).await {
            Ok((results, taken, inbox)) => {
                bytes += results.iter().map(frames::estimated_bytes).sum::<usize>();
                pulled.results.extend(results);
                pulled.pending = inbox.pending;
                if taken < limit {
                    break;
                }
                left -= taken;
            }
            // What is in flight already is worth an answer.
            Err(_) if !pulled.results.is_empty() => break,
            Err(refusal) => return Err(refusal),
        }
    }
    if !pulled.results.is_empty() {
        telemetry::results_pulled(pulled.results.len());
    }
    Ok(pulled)
}

/// One step: the results, how many deliveries went in flight, and the inbox after.
async fn step(
    engine: &Engine,
    page: &PullPage,
    limit: i64,
) -> Result<(Vec<Joined>, i64, Inbox), Refusal> {
    let (inbox, consumer) = (page.inbox.clone(), page.consumer.clone());
    let reply = engine.run(Command::Pull { inbox, consumer, limit }).await?;
    let Reply::Offered { deliveries, inbox } = reply else { return Err(Refusal::Internal) };
    let taken = i64::try_from(deliveries.len()).unwrap_or(limit);
    Ok((joined(engine, &deliveries).await?, taken, *inbox))
}

async fn joined(engine: &Engine, deliveries: &[Delivery]) -> Result<Vec<Joined>, Refusal> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    let operations = engine.store().operations(&operation_keys(deliveries)).await;
    Ok(frames::join(deliveries, operations.map_err(unreadable)?))
}
