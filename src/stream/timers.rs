//! When something is due on a stream without a hint.
//!
//! What must stay true: while the store is out of reach nothing is asked of it before the pause is
//! over, and heartbeats and the end of the stream do not wait for that.

use std::time::Duration;

use tokio::time::Instant;

/// Between two looks at what may have become due without a hint, such as the end of a backoff.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Between two looks that hints ask for: under load they fold, and nobody feels the wait.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// How long before a heartbeat the store's clock is read, which is what that may take. The heartbeat
/// doesn't wait for it.
pub(super) const CLOCK_PATIENCE: Duration = Duration::from_secs(1);
/// The first and the longest pause while the store can't be reached.
const BACKOFF_FIRST: Duration = Duration::from_millis(400);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// When something is due without a hint.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) heartbeat: Instant,
    /// What the next heartbeat tells is read from here on.
    pub(super) refresh: Instant,
    pub(super) tick: Instant,
    /// The lease of the consumer.
    pub(super) renew: Instant,
    /// The end of the stream.
    pub(super) age: Instant,
    /// The last look at the inbox row.
    pub(super) looked: Instant,
    /// While the store is out of reach: no work before this.
    rest: Option<Instant>,
    pause: Duration,
}

impl Timers {
    /// At the opening. There are no heartbeats before `Opened`.
    pub(super) fn new(now: Instant, age: Instant, lease: Duration) -> Self {
        Timers {
            heartbeat: age,
            refresh: age,
            tick: now + TICK,
            renew: now + lease / 3,
            age,
            looked: now,
            rest: None,
            pause: BACKOFF_FIRST,
        }
    }

    /// The next heartbeat is one interval away.
    pub(super) fn next_heartbeat(&mut self, now: Instant, interval: Duration) {
        self.heartbeat = now + interval;
        self.refresh = now + interval - CLOCK_PATIENCE.min(interval / 2);
    }

    /// The lease was renewed; a third of it leaves two more tries.
    pub(super) fn renewed(&mut self, lease: Duration) {
        self.renew = Instant::now() + lease / 3;
    }

    /// Whether a look that a hint asked for may begin.
    pub(super) fn looks(&self, now: Instant) -> bool {
        now >= self.looked + LOOK_PAUSE
    }

    /// Whether the store is to be left alone.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rest.is_some_and(|until| now < until)
    }

    /// The store is out of reach: leaves it alone for a pause that grows. Half of it is left to
    /// chance, so that streams don't come back together. True for the first of several.
    pub(super) fn rest(&mut self, random: u64) -> bool {
        let first = self.rest.is_none();
        let half = self.pause / 2;
        let share = u32::try_from(random % 1_001).unwrap_or(0);
        self.rest = Some(Instant::now() + half + half * share / 1_000);
        self.pause = (self.pause * 2).min(BACKOFF_MAX);
        first
    }

    /// The store answers.
    pub(super) fn recover(&mut self) {
        self.rest = None;
        self.pause = BACKOFF_FIRST;
    }

    /// When something is due next.
    pub(super) fn next(&self, look_wanted: bool) -> Instant {
        let next = self.heartbeat.min(self.tick).min(self.age);
        match self.rest.filter(|until| *until > Instant::now()) {
            Some(until) => next.min(until),
            None => {
                let next = next.min(self.renew).min(self.refresh);
                if look_wanted { next.min(self.looked + LOOK_PAUSE) } else { next }
            }
        }
    }
}
