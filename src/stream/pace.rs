//! What all long-lived streams keep to: how old they become, the clock they show, and when their
//! callers come back.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    domain::ids::{Span, Timestamp},
    engine::Engine,
};

/// What a caller is told at a shutdown.
pub const SHUTTING_DOWN: &str = "the server is shutting down";
/// What a caller is told at the end of a stream's age.
pub const AGED: &str = "the stream reached its maximum age";
/// A heartbeat doesn't wait longer than this for the store's clock.
pub const CLOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long a caller whose stream was ended waits before it comes back, at least and at most:
/// those that were ended together do not come back together.
const RETRY_FIRST: Span = Span::seconds(1);
const RETRY_SPREAD_MS: u64 = 2_001;

/// When to come back.
pub fn retry(random: u64) -> Span {
    RETRY_FIRST + Span::millis(i64::try_from(random % RETRY_SPREAD_MS).unwrap_or(0))
}

/// `span` ± 10 %, so that streams that opened together do not end together.
pub fn spread(span: Duration, random: u64) -> Duration {
    let thousandths = u32::try_from(random % 201).unwrap_or(0);
    span.mul_f64(f64::from(900 + thousandths) / 1_000.0)
}

/// The store's clock, for heartbeats.
#[derive(Debug)]
pub struct StoreClock {
    time: Timestamp,
    read_at: Instant,
}

impl StoreClock {
    /// A clock that was just read.
    pub fn read(time: Timestamp) -> Self {
        StoreClock { time, read_at: Instant::now() }
    }

    /// Asks the store; absent where it does not answer in time.
    pub async fn ask(engine: &Engine) -> Option<Self> {
        let read = tokio::time::timeout(CLOCK_PATIENCE, engine.store().now()).await;
        read.ok()?.ok().map(StoreClock::read)
    }

    /// The store's clock; while it can't be read, as it was plus the time since.
    pub async fn now(&mut self, engine: &Engine) -> Timestamp {
        if let Some(clock) = StoreClock::ask(engine).await {
            *self = clock;
        }
        self.shown()
    }

    /// The store's clock as it was when last read, plus the time since.
    pub fn shown(&self) -> Timestamp {
        let since = i64::try_from(self.read_at.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.time + Span(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(spread(hour, 0), Duration::from_secs(3_240));
        assert_eq!(spread(hour, 100), hour);
        assert_eq!(spread(hour, 200), Duration::from_secs(3_960));
    }

    #[test]
    fn callers_come_back_within_three_seconds_and_not_together() {
        assert_eq!(retry(0), Span::seconds(1));
        assert_eq!(retry(2_000), Span::seconds(3));
        assert_eq!(retry(2_001), Span::seconds(1));
    }
}
