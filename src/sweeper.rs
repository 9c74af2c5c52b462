//! The sweeper: everything unfinished that became overdue and that nobody else ended.
//!
//! What must stay true: a pass ends, whatever is due, and whatever fails; one that reached its limit
//! is continued by the next one, at once; neither rows that cannot be settled nor an account with
//! a backlog keep the others waiting (see `walk`). Every row goes through the same rules as a call, is
//! loaded again under its lock, and is safe to look at twice: replicas sweep without a leader.
//!
//! Deliberately not here: when something is overdue, and what happens to it then. The rules say.

mod asked;
mod walk;

use std::{collections::BTreeMap, ops::Add, time::Duration};

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::asked::{AskedSweep, Scope, run_asked};
use self::walk::Walk;
use crate::{
    domain::{
        command::{Command, Reply, Swept},
        delivery::DeliveryKey,
        ids::{Span, Timestamp},
        operation::OperationKey,
    },
    engine::Engine,
    store::{
        ReadError,
        query::{Due, DueKind},
    },
    telemetry,
};

/// Rows in one page: a few batches of the engine.
const PAGE: i64 = 500;
/// Pages of one kind in one pass: 10,000 rows, a few seconds of work, so that the other kinds get
/// their turn also after an outage.
const PAGES_MAX: usize = 20;
/// Commands of the sweep that wait at once: a quarter of a batch of the engine, so that they share
/// commits and leave the rest of the queue to callers, whose batches last no longer for it than they
/// must (F40).
const CONCURRENCY: usize = 50;
/// Batch rows are kept this long: far longer than a lost commit takes to settle.
const BATCH_AGE: Span = Span::hours(1);
/// Batch rows deleted at once: a few milliseconds, for which callers may have to wait.
const BATCHES_PAGE: i64 = 1_000;
/// Such pages in one pass: 50,000 rows, several times the commits of the same second, so that the
/// table stays at the length of its age.
const BATCH_PAGES_MAX: usize = 50;

/// Pages of accounts in one pass: 2,000 of them, each a write that nobody waits for. Every account
/// is due once in a step (an hour with the default window), which leaves room for millions.
const ACCOUNT_PAGES_MAX: usize = 4;

/// Pages of records in one pass: 5,000 of them, about a second of work, so that a backlog never
/// keeps what waits; and more than what ends in a usual period.
const RECORD_PAGES_MAX: usize = 10;

/// The order of a pass: what frees slots first, and what nobody waits for last.
const KINDS: [DueKind; 6] = [
    DueKind::Deliveries,
    DueKind::Operations,
    DueKind::Locks,
    DueKind::Inboxes,
    DueKind::Accounts,
    DueKind::Records,
];

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Deliveries whose attempt ended.
    pub returned: u64,
    /// Deliveries whose ack window passed.
    pub expired: u64,
    /// Deliveries whose retry budget was spent.
    pub dead: u64,
    /// Operations that nobody started in time.
    pub start_deadlines: u64,
    /// Locks released, or whose waiters went on.
    pub locks_released: u64,
    /// Consumers that gave no sign of life.
    pub consumers_removed: u64,
    /// Deliveries that ended because their inbox was deleted.
    pub closed: u64,
    /// Rows of ended deliveries whose retention had passed.
    pub purged: u64,
    /// Inboxes that nobody used.
    pub inboxes_retired: u64,
    /// Accounts closed for ids up to a later time.
    pub accounts_closed: u64,
    /// Records that became tombstones.
    pub compacted: u64,
    /// Audit chains of tombstones that went.
    pub trails_removed: u64,
    /// Tombstones that went, each with a rise of the evidence floor.
    pub forgotten: u64,
    /// Batch rows that are no longer needed.
    pub batches_removed: u64,
}

impl Add for SweepCounts {
    type Output = SweepCounts;
    fn add(self, other: SweepCounts) -> SweepCounts {
        SweepCounts {
            returned: self.returned + other.returned,
            expired: self.expired + other.expired,
            dead: self.dead + other.dead,
            start_deadlines: self.start_deadlines + other.start_deadlines,
            locks_released: self.locks_released + other.locks_released,
            consumers_removed: self.consumers_removed + other.consumers_removed,
            closed: self.closed + other.closed,
            purged: self.purged + other.purged,
            inboxes_retired: self.inboxes_retired + other.inboxes_retired,
            accounts_closed: self.accounts_closed + other.accounts_closed,
            compacted: self.compacted + other.compacted,
            trails_removed: self.trails_removed + other.trails_removed,
            forgotten: self.forgotten + other.forgotten,
            batches_removed: self.batches_removed + other.batches_removed,
        }
    }
}

impl SweepCounts {
    /// One row's result.
    fn of(swept: Swept) -> SweepCounts {
        let none = SweepCounts::default();
        match swept {
            Swept::Nothing => none,
            Swept::Returned => SweepCounts { returned: 1, ..none },
            Swept::Expired => SweepCounts { expired: 1, ..none },
            Swept::Dead => SweepCounts { dead: 1, ..none },
            Swept::StartDeadline => SweepCounts { start_deadlines: 1, ..none },
            Swept::LockReleased => SweepCounts { locks_released: 1, ..none },
            Swept::ConsumerRemoved => SweepCounts { consumers_removed: 1, ..none },
            Swept::Closed(count) => SweepCounts { closed: count.unsigned_abs(), ..none },
            Swept::Purged(count) => SweepCounts { purged: count.unsigned_abs(), ..none },
            Swept::InboxRetired => SweepCounts { inboxes_retired: 1, ..none },
            Swept::AccountClosed => SweepCounts { accounts_closed: 1, ..none },
            Swept::Compacted => SweepCounts { compacted: 1, ..none },
            Swept::TrailRemoved => SweepCounts { trails_removed: 1, ..none },
            Swept::Forgotten => SweepCounts { forgotten: 1, ..none },
            // The engine tells it, whoever asked.
            Swept::Recounted { .. } => none,
        }
    }

    fn record(&self) {
        let results = [
            ("returned", self.returned),
            ("expired", self.expired),
            ("dead", self.dead),
            ("start_deadline", self.start_deadlines),
            ("lock_released", self.locks_released),
            ("consumer_removed", self.consumers_removed),
            ("closed", self.closed),
            ("purged", self.purged),
            ("inbox_retired", self.inboxes_retired),
            ("account_closed", self.accounts_closed),
            ("compacted", self.compacted),
            ("trail_removed", self.trails_removed),
            ("forgotten", self.forgotten),
            ("batch_removed", self.batches_removed),
        ];
        for (result, count) in results {
            telemetry::swept(result, count);
        }
    }
}

/// One pass over everything that is due now, from the beginning.
pub async fn run_once(engine: &Engine) -> SweepCounts {
    pass(engine, &mut Walks::default()).await
}

/// Passes every `period` with jitter until `shutdown`; the first one at once. Passes never overlap: a
/// long one, and one that met a limit, is followed by the next without a pause.
pub async fn run(engine: Engine, period: Duration, shutdown: CancellationToken) {
    let mut walks = Walks::default();
    loop {
        let next = Instant::now() + jittered(period, engine.seams().random());
        tokio::select! {
            biased;
            // Commands that were handed to the engine complete without us.
            () = shutdown.cancelled() => return,
            _ = pass(&engine, &mut walks) => {}
        }
        if walks.values().any(Walk::is_under_way) {
            continue;
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// `period` ± 10 %, so that replicas that started together drift apart.
fn jittered(period: Duration, random: u64) -> Duration {
    let tenths_of_percent = u32::try_from(random % 201).unwrap_or(0);
    period * (900 + tenths_of_percent) / 1_000
}

/// How far each kind has come.
type Walks = BTreeMap<DueKind, Walk>;

/// What a pass has done so far; kept when a search fails.
#[derive(Debug, Default)]
struct Done {
    counts: SweepCounts,
    /// Rows left to the next pass, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// How long the oldest row met was overdue.
    overdue: Span,
}

async fn pass(engine: &Engine, walks: &mut Walks) -> SweepCounts {
    let start = Instant::now();
    let mut done = Done::default();
    for kind in KINDS {
        if let Err(error) =
            sweep_kind(engine, kind, walks.entry(kind).or_default(), &mut done).await
        {
            failed(&error);
        }
    }
    if let Err(error) = sweep_batches(engine, &mut done).await {
        failed(&error);
    }
    done.record();
    telemetry::sweep_overdue(done.overdue.to_std());
    telemetry::sweep_passed(start.elapsed());
    done.counts
}

fn failed(error: &ReadError) {
    telemetry::sweep_failed();
    tracing::debug!(%error, "a search of the sweep failed; the next pass tries again");
}

/// Batch rows that are no longer needed, until a page is short.
async fn sweep_batches(engine: &Engine, done: &mut Done) -> Result<(), ReadError> {
    for _ in 0..BATCH_PAGES_MAX {
        let removed = engine.store().sweep_batches(BATCH_AGE, BATCHES_PAGE).await?;
        done.counts.batches_removed += removed;
        if i64::try_from(removed).is_ok_and(|removed| removed < BATCHES_PAGE) {
            break;
        }
    }
    Ok(())
}

/// What of one kind is due, page by page, within the limit of a pass.
async fn sweep_kind(
    engine: &Engine,
    kind: DueKind,
    walk: &mut Walk,
    done: &mut Done,
) -> Result<(), ReadError> {
    let store = engine.store();
    for page in 0..pages_max(kind) {
        let Some(search) = walk.next() else { return Ok(()) };
        let found = match store.due(kind, search.position(), PAGE).await {
            Ok(found) => found,
            Err(error) => {
                // The round that failed is looked at from its beginning.
                *walk = Walk::default();
                return Err(error);
            }
        };
        let rows = walk.found(&search, found, |bucket| store.due_from(bucket));
        if page == 0 {
            done.overdue = done.overdue.max(oldest_overdue(engine, &rows).await?);
        }
        sweep_rows(engine, rows, done).await;
    }
    Ok(())
}

/// Pages of one kind in one pass.
fn pages_max(kind: DueKind) -> usize {
    match kind {
        DueKind::Deliveries | DueKind::Operations | DueKind::Locks | DueKind::Inboxes => PAGES_MAX,
        DueKind::Accounts => ACCOUNT_PAGES_MAX,
        DueKind::Records => RECORD_PAGES_MAX,
    }
}

/// Runs one command for each row, several at once, so that the engine commits them together.
async fn sweep_rows(engine: &Engine, rows: Vec<Due>, done: &mut Done) {
    let mut replies = futures_util::stream::iter(rows)
        .map(|due| {
            let engine = engine.clone();
            async move { engine.run(command(due)).await }
        })
        .buffer_unordered(CONCURRENCY);
    while let Some(reply) = replies.next().await {
        match reply {
            Ok(Reply::Swept(swept)) => done.counts = done.counts + SweepCounts::of(swept),
            Ok(other) => debug_assert!(false, "a sweep was answered with {other:?}"),
            Err(refusal) => *done.refused.entry(refusal.reason()).or_default() += 1,
        }
    }
}

fn command(due: Due) -> Command {
    match due {
        Due::Delivery(key, operation_id) => Command::SweepDelivery { key, operation_id },
        Due::Operation(key) => Command::SweepOperation { key },
        Due::Lock(target) => Command::SweepLock { target },
        Due::Inbox(key) => Command::SweepInbox { key },
        Due::Account(account) => Command::SweepAccount { account },
    }
}

impl Done {
    fn record(&self) {
        self.counts.record();
        for (reason, count) in &self.refused {
            telemetry::sweep_refused(reason, *count);
        }
        if !self.refused.is_empty() {
            tracing::debug!(refused = ?self.refused, "rows were left to the next pass");
        }
    }
}

/// How long the oldest of these rows is overdue. Locks, inboxes and accounts are left out: they have
/// no read by list of keys, and nobody waits for them alone.
async fn oldest_overdue(engine: &Engine, rows: &[Due]) -> Result<Span, ReadError> {
    let (deliveries, operations) = oldest_of_each_bucket(rows);
    let mut oldest: Option<Timestamp> = None;
    if !deliveries.is_empty() {
        let rows = engine.store().deliveries(&deliveries).await?;
        oldest = rows.iter().filter_map(|delivery| delivery.due_time).min();
    }
    if !operations.is_empty() {
        let rows = engine.store().operations(&operations).await?;
        oldest = rows.iter().filter_map(|operation| operation.due_time).min();
    }
    let Some(oldest) = oldest else { return Ok(Span(0)) };
    let now = engine.store().now().await?;
    Ok((now - oldest).max(Span(0)))
}

/// A page holds one kind, by due time within each bucket: the first of a bucket is its oldest.
fn oldest_of_each_bucket(rows: &[Due]) -> (Vec<DeliveryKey>, Vec<OperationKey>) {
    let (mut deliveries, mut operations) = (Vec::new(), Vec::new());
    let mut before = None;
    for due in rows {
        match due {
            Due::Delivery(key, _) => {
                let bucket = key.inbox.account.bucket();
                if before.replace(bucket) != Some(bucket) {
                    deliveries.push(key.clone());
                }
            }
            Due::Operation(key) => {
                let bucket = key.account.bucket();
                if before.replace(bucket) != Some(bucket) {
                    operations.push(key.clone());
                }
            }
            Due::Lock(_) | Due::Inbox(_) | Due::Account(_) => {}
        }
    }
    (deliveries, operations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        delivery::InboxKey,
        ids::{Account, InboxName, OperationId},
    };

    fn delivery(account: &str, sequence: i64) -> Due {
        let inbox = InboxKey {
            account: Account::parse(account).expect("valid"),
            inbox: InboxName::parse("").expect("valid"),
        };
        let key = DeliveryKey { inbox, sequence };
        Due::Delivery(key, OperationId::parse("op").expect("valid"))
    }

    #[test]
    fn a_task_can_carry_it() {
        fn task(_: impl Future<Output = ()> + Send + 'static) {}
        let _ = |engine: Engine, period, shutdown| task(run(engine, period, shutdown));
    }

    #[test]
    fn counts_add_up() {
        let swept = [Swept::Returned, Swept::Dead, Swept::Nothing, Swept::Returned];
        let counts = swept.map(SweepCounts::of).into_iter().fold(SweepCounts::default(), Add::add);
        let expected = SweepCounts { returned: 2, dead: 1, ..SweepCounts::default() };
        assert_eq!(counts, expected);
    }

    #[test]
    fn periods_differ_by_a_tenth_at_most() {
        let period = Duration::from_secs(1);
        assert_eq!(jittered(period, 0), Duration::from_millis(900));
        assert_eq!(jittered(period, 200), Duration::from_millis(1_100));
        assert_eq!(jittered(period, 201), Duration::from_millis(900));
        let random = (0..10_000).map(|random| jittered(period, random));
        assert!(random.into_iter().all(|next| (900..=1_100).contains(&next.as_millis())));
    }

    #[test]
    fn the_oldest_of_each_bucket_is_looked_at() {
        let rows = [delivery("a", 4), delivery("a", 2), delivery("b", 3), delivery("b", 9)];
        let (deliveries, operations) = oldest_of_each_bucket(&rows);
        let sequences: Vec<i64> = deliveries.iter().map(|key| key.sequence).collect();
        assert_eq!((sequences, operations.len()), (vec![4, 3], 0));
    }
}
