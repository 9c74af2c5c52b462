//! Pauses with full jitter: each is a random part of a limit that doubles.
//!
//! What must stay true: clients that lost one server together do not come back together, neither
//! the first time nor later; a pause that the service asked for is kept.
//! Deliberately not here: what is repeated (see [`super::retry`]).

use std::time::Duration;

use super::identity::system_random;

/// How pauses grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The limit of the first pause.
    pub first: Duration,
    /// The limit that no pause passes.
    pub limit: Duration,
}

impl Growth {
    /// Between the attempts of one call: short at first, since most disconnections heal at once,
    /// and below the patience of a person later.
    pub const CALLS: Growth =
        Growth { first: Duration::from_millis(40), limit: Duration::from_secs(5) };
    /// Between streams: a server that restarts loses all of them at one moment, and the first
    /// attempts of thousands are spread over its first seconds.
    pub const STREAMS: Growth =
        Growth { first: Duration::from_secs(4), limit: Duration::from_secs(20) };
    /// Between streams that hardly anybody shares a server with: tests, rehearsals, a person at a
    /// terminal.
    pub const ALONE: Growth =
        Growth { first: Duration::from_millis(40), limit: Duration::from_secs(5) };

    /// The pause before the attempt after `failed` failed ones, from a random number.
    pub fn pause(self, failed: u32, random: u64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(failed).unwrap_or(u32::MAX));
        let limit = u64::try_from(doubled.min(self.limit).as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(random % limit.saturating_add(1))
    }
}

/// One row of pauses.
#[derive(Clone, Debug)]
pub(crate) struct Pauses {
    growth: Growth,
    failed: u32,
}

impl Pauses {
    /// None was made yet.
    pub(crate) fn new(growth: Growth) -> Self {
        Pauses { growth, failed: 0 }
    }

    /// The next pause. To what the service asked for a random part of ours is added: it told the
    /// same to everybody.
    pub(crate) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let own = self.growth.pause(self.failed, random());
        self.failed = self.failed.saturating_add(1);
        asked.unwrap_or(Duration::ZERO).saturating_add(own)
    }

    /// What is tried has worked: the next pause is a first one.
    pub(crate) fn start_anew(&mut self) {
        self.failed = 0;
    }

    /// How many pauses were made since the start.
    #[cfg(test)]
    pub(crate) fn made(&self) -> u32 {
        self.failed
    }
}

fn random() -> u64 {
    let bytes = system_random();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evenly spread numbers, the same in every run.
    fn randoms(count: u64) -> impl Iterator<Item = u64> {
        (1..=count).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn five_hundred_streams_come_back_over_several_seconds() {
        let mut firsts: Vec<Duration> =
            randoms(500).map(|random| Growth::STREAMS.pause(0, random)).collect();
        firsts.sort_unstable();
        assert!(firsts[499] - firsts[0] >= Duration::from_secs(3), "{firsts:?}");
        // No second sees more than a fair share of them.
        for second in 0..4 {
            let within = |pause: &&Duration| pause.as_secs() == second;
            assert!(firsts.iter().filter(within).count() <= 150, "second {second}");
        }
    }

    #[test]
    fn later_pauses_are_spread_wider_and_never_pass_the_limit() {
        let longest =
            |failed| randoms(500).map(|random| Growth::STREAMS.pause(failed, random)).max();
        let rows = [(0, 4), (1, 8), (2, 16), (3, 20), (40, 20), (u32::MAX, 20)];
        for (failed, limit) in rows {
            let longest = longest(failed).expect("pauses");
            let limit = Duration::from_secs(limit);
            assert!(longest <= limit && longest >= limit * 9 / 10, "{failed}: {longest:?}");
        }
    }

    #[test]
    fn what_the_service_asked_for_is_kept_and_spread() {
        let asked = Duration::from_secs(7);
        let waited: Vec<Duration> =
            (0..50).map(|_| Pauses::new(Growth::STREAMS).next(Some(asked))).collect();
        assert!(waited.iter().all(|pause| *pause >= asked));
        assert!(waited.iter().any(|pause| *pause > asked + Duration::from_millis(100)));
    }

    #[test]
    fn pauses_start_anew_when_something_worked() {
        let mut pauses = Pauses::new(Growth::CALLS);
        for _ in 0..20 {
            pauses.next(None);
        }
        pauses.start_anew();
        assert!(pauses.next(None) <= Growth::CALLS.first);
    }
}
