//! The sweeper: everything unfinished that became overdue and that nobody else ended.
//!
//! What must stay true: a pass ends, whatever is due, and whatever fails; the search goes forward
//! by key, and a pass that reached its limit is continued by the next one, so that rows that cannot
//! be settled never starve those behind them. Every row goes through the same rules as a call, is
//! loaded again under its lock, and is safe to look at twice: replicas sweep without a leader.
//!
//! Deliberately not here: when something is overdue, and what happens to it then. The rules say.

use std::{collections::BTreeMap, ops::Add, time::Duration};

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    domain::{
        command::{Command, Reply, Swept},
        delivery::DeliveryKey,
        ids::{Account, Span, Timestamp},
        operation::OperationKey,
    },
    engine::Engine,
    store::{
        ReadError,
        query::{Due, DueKind, DuePage, DuePosition},
    },
    telemetry,
};

/// Rows in one page: a few batches of the engine.
const PAGE: i64 = 500;
/// Pages of one kind in one pass: 100,000 rows, more than a pass settles within a usual period, so
/// that the limit is met only after an outage, and the other kinds still get their turn.
const PAGES_MAX: usize = 200;
/// Commands of the sweep that wait at once: one full batch of the engine, so that they share
/// commits and leave the rest of the queue to callers.
const CONCURRENCY: usize = 200;
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

/// Pages of one kind in a pass that somebody asked for: 10,000 rows, a few seconds of work, for which
/// they wait.
const ASKED_PAGES_MAX: usize = 20;

/// The order of a pass: what frees slots first, and what nobody waits for last.
const KINDS: [DueKind; 5] =
    [DueKind::Deliveries, DueKind::Operations, DueKind::Locks, DueKind::Inboxes, DueKind::Accounts];

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
            ("batch_removed", self.batches_removed),
        ];
        for (result, count) in results {
            telemetry::swept(result, count);
        }
    }
}

/// Whose rows a pass is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's, with what belongs to nobody.
    All,
    /// One account's. Its rows are searched among those of its bucket.
    Account(Account),
}

/// A pass that somebody asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedSweep {
    /// What it did.
    pub counts: SweepCounts,
    /// Rows that it left, by the reason of the refusal.
    pub refused: BTreeMap<&'static str, u64>,
    /// It met its limit, or a search failed: there may be more.
    pub more: bool,
}

/// One pass over everything that is due now, from the beginning.
pub async fn run_once(engine: &Engine) -> SweepCounts {
    pass(engine, &mut Positions::default()).await
}

/// One bounded pass now, beside those that come by themselves. Everything it tells of is durable on
/// return; a pass that is dropped has done a part of it.
pub async fn run_asked(engine: &Engine, scope: &Scope) -> AskedSweep {
    let mut done = Done::default();
    let mut more = false;
    for kind in KINDS {
        match sweep_asked(engine, kind, scope, &mut done).await {
            Ok(limited) => more |= limited,
            Err(error) => {
                failed(&error);
                more = true;
            }
        }
    }
    if *scope == Scope::All
        && let Err(error) = sweep_batches(engine, &mut done).await
    {
        failed(&error);
        more = true;
    }
    done.record();
    AskedSweep { counts: done.counts, refused: done.refused, more }
}

/// What is due of one kind and in scope, page by page; whether the limit was met.
async fn sweep_asked(
    engine: &Engine,
    kind: DueKind,
    scope: &Scope,
    done: &mut Done,
) -> Result<bool, ReadError> {
    let store = engine.store();
    let mut after = match scope {
        Scope::All => None,
        Scope::Account(account) => Some(store.due_from(account.bucket())),
    };
    for _ in 0..ASKED_PAGES_MAX.min(pages_max(kind)) {
        let DuePage { rows, next } = store.due(kind, after.as_ref(), PAGE).await?;
        let last = rows.last().map(account_of).map(Account::bucket);
        let rows = match scope {
            Scope::All => rows,
            Scope::Account(account) => {
                rows.into_iter().filter(|due| account_of(due) == account).collect()
            }
        };
        sweep_rows(engine, rows, done).await;
        // Buckets come in order: what follows another one's rows is not the account's.
        let beyond = match scope {
            Scope::All => false,
            Scope::Account(account) => last != Some(account.bucket()),
        };
        match next {
            Some(position) if !beyond => after = Some(position),
            Some(_) | None => return Ok(false),
        }
    }
    Ok(true)
}

fn account_of(due: &Due) -> &Account {
    match due {
        Due::Delivery(key, _) => &key.inbox.account,
        Due::Operation(key) => &key.account,
        Due::Lock(target) => &target.account,
        Due::Inbox(key) => &key.account,
        Due::Account(account) => account,
    }
}

/// Passes every `period` with jitter until `shutdown`; the first one at once. Passes never overlap:
/// a long one is followed by the next without a pause.
pub async fn run(engine: Engine, period: Duration, shutdown: CancellationToken) {
    let mut positions = Positions::default();
    loop {
        let next = Instant::now() + jittered(period, engine.seams().random());
        tokio::select! {
            biased;
            // Commands that were handed to the engine complete without us.
            () = shutdown.cancelled() => return,
            _ = pass(&engine, &mut positions) => {}
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

/// Where the next pass begins, for each kind that reached its limit.
#[derive(Debug, Default)]
struct Positions(BTreeMap<DueKind, DuePosition>);

/// What a pass has done so far; kept when a search fails.
#[derive(Debug, Default)]
struct Done {
    counts: SweepCounts,
    /// Rows left to the next pass, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// How long the oldest row met was overdue.
    overdue: Span,
}

async fn pass(engine: &Engine, positions: &mut Positions) -> SweepCounts {
    let start = Instant::now();
    let mut done = Done::default();
    for kind in KINDS {
        if let Err(error) = sweep_kind(engine, kind, positions, &mut done).await {
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

/// Everything of one kind that is due, page by page.
async fn sweep_kind(
    engine: &Engine,
    kind: DueKind,
    positions: &mut Positions,
    done: &mut Done,
) -> Result<(), ReadError> {
    let mut after = positions.0.remove(&kind);
    for page in 0..pages_max(kind) {
        let DuePage { rows, next } = engine.store().due(kind, after.as_ref(), PAGE).await?;
        if page == 0 {
            done.overdue = done.overdue.max(oldest_overdue(engine, &rows).await?);
        }
        sweep_rows(engine, rows, done).await;
        match next {
            Some(position) => after = Some(position),
            None => return Ok(()),
        }
    }
    positions.0.extend(after.map(|position| (kind, position)));
    Ok(())
}

/// Pages of one kind in one pass.
fn pages_max(kind: DueKind) -> usize {
    match kind {
        DueKind::Deliveries | DueKind::Operations | DueKind::Locks | DueKind::Inboxes => PAGES_MAX,
        DueKind::Accounts => ACCOUNT_PAGES_MAX,
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
