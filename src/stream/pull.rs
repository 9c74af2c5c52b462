//! A page of results for a consumer without a stream.
//!
//! What must stay true: it registers for hints before it reads (T13), and each hint only makes it
//! read again; the wait ends by results, time or shutdown; what is in flight is in the answer, and
//! what does not arrive comes again after its ack deadline.

use std::collections::BTreeMap;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    Sending,
    frames::{self, Joined},
    send::{bodies_of, with_bodies},
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
/// largest are half a MiB without their bodies.
const STEP_MAX: i64 = 64;
/// No further step begins at this size, and bodies travel along up to it: an answer stays below
/// 1.5 MiB or so, less than half of what usual clients take. ReadResult has the other bodies.
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
    /// In the order of sending: due for longest first.
    pub results: Vec<Sending>,
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
        let read = engine.store().inbox_and_account(&page.inbox).await;
        let (row, account) = read.map_err(unreadable)?;
        let policy = engine.policy_of(account.as_ref());
        let has_room = |row: &Inbox| row.in_flight < row.in_flight_limit(&policy);
        if row.is_some_and(|row| row.pending > 0 && has_room(&row)) {
            return Ok(true);
        }
    }
}

/// Takes what is there now, in steps.
async fn take(engine: &Engine, page: &PullPage) -> Result<Pulled, Refusal> {
    let policy = engine.policy(&page.inbox.account).await.map_err(unreadable)?;
    let inline = policy.inline_payload_bytes_max;
    let mut results: Vec<Joined> = Vec::new();
    let mut pending = 0;
    let (mut left, mut bytes) = (page.limit, 0);
    while left > 0 && bytes < FULL_BYTES {
        let limit = left.min(STEP_MAX);
        match step(engine, page, limit).await {
            Ok((found, taken, inbox)) => {
                let size = |result: &Joined| frames::estimated_bytes(result, inline);
                bytes += found.iter().map(size).sum::<usize>();
                results.extend(found);
                pending = inbox.pending;
                if taken < limit {
                    break;
                }
                left -= taken;
            }
            // What is in flight already is worth an answer.
            Err(_) if !results.is_empty() => break,
            Err(refusal) => return Err(refusal),
        }
    }
    if !results.is_empty() {
        telemetry::results_pulled(results.len());
    }
    Ok(Pulled { results: sending(engine, results, inline).await, pending })
}

/// Joins results with the bodies that travel along. What is in flight is worth an answer without
/// them: a body can be read by itself.
async fn sending(engine: &Engine, results: Vec<Joined>, inline: usize) -> Vec<Sending> {
    let mut bytes = 0;
    let fits = |result: &&Joined| {
        bytes += frames::estimated_bytes(result, inline);
        bytes <= FULL_BYTES
    };
    let keys = frames::with_body(results.iter().take_while(fits), inline);
    let bodies = match bodies_of(engine, keys).await {
        Ok(bodies) => bodies,
        Err(error) => {
            tracing::debug!(%error, "pulled results go without their bodies");
            BTreeMap::new()
        }
    };
    with_bodies(results, &bodies)
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
