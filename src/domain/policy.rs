//! The clocks and limits (contract sections 6 and 8). Each is a setting of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    ids::Span,
    spans::{format_span, span_text},
    world::needs::HELD_MAX,
};

/// Everything time or size decides, as in force for one account; also a table of the settings.
///
/// Clocks are the store's; sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How old a mint time may be at first acceptance.
    #[serde(with = "span_text")]
    pub admission_window: Span,
    /// How long a record is kept after the operation's end.
    #[serde(with = "span_text")]
    pub record_retention: Span,
    /// How long a tombstone is kept after the operation's end.
    #[serde(with = "span_text")]
    pub tombstone_retention: Span,
    /// How long the audit trail of an operation is kept after its end; not beyond its tombstone.
    #[serde(with = "span_text")]
    pub audit_retention: Span,
    /// How long a result may wait for its ack, from the moment it is queued.
    #[serde(with = "span_text")]
    pub ack_window: Span,
    /// How long one attempt may wait for its ack.
    #[serde(with = "span_text")]
    pub ack_deadline: Span,
    /// How often a result is sent at most.
    pub retry_budget: i32,
    /// The first pause between attempts; doubles each time.
    #[serde(with = "span_text")]
    pub backoff_first: Span,
    /// The longest pause between attempts.
    #[serde(with = "span_text")]
    pub backoff_limit: Span,
    /// The longest time a lock is held.
    #[serde(with = "span_text")]
    pub lock_limit: Span,
    /// How long an operation may wait for its start.
    #[serde(with = "span_text")]
    pub start_deadline: Span,
    /// How far ahead of the store a mint time may be.
    #[serde(with = "span_text")]
    pub max_clock_skew: Span,
    /// How long an inbox that nobody uses stays, once none of its deliveries is kept.
    #[serde(with = "span_text")]
    pub inbox_idle_retention: Span,
    /// Slots of an inbox, at most 1,000,000.
    pub inbox_slots: i64,
    /// Inboxes of an account.
    pub inboxes_max: i64,
    /// Results in flight per inbox, at most 1,000: what one takeover returns at once.
    pub in_flight_max: i64,
    /// Arguments of one operation.
    pub arguments_bytes_max: usize,
    /// Content of one document.
    pub document_bytes_max: usize,
    /// The body of one result.
    pub result_bytes_max: usize,
    /// The largest body that travels with its news; a larger one is read by itself.
    pub inline_payload_bytes_max: usize,
    /// How long a consumer's entry stays after its last sign of life; not a promise to callers, so
    /// it is not part of the contract's list. Twice the heartbeat, so that one may be lost.
    #[serde(with = "span_text")]
    pub consumer_lease: Span,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            admission_window: Span::hours(24),
            record_retention: Span::days(30),
            tombstone_retention: Span::days(400),
            audit_retention: Span::days(400),
            ack_window: Span::minutes(15),
            ack_deadline: Span::seconds(30),
            retry_budget: 10,
            backoff_first: Span::seconds(1),
            backoff_limit: Span::seconds(60),
            lock_limit: Span::hours(1),
            start_deadline: Span::hours(1),
            max_clock_skew: Span::minutes(5),
            inbox_idle_retention: Span::days(30),
            inbox_slots: 1_000,
            inboxes_max: 10_000,
            in_flight_max: 256,
            arguments_bytes_max: 256 * 1024,
            document_bytes_max: 1024 * 1024,
            result_bytes_max: RESULT_BYTES_LIMIT,
            inline_payload_bytes_max: INLINE_PAYLOAD_BYTES_LIMIT,
            consumer_lease: Span::seconds(60),
        }
    }
}

/// Slots an inbox can have at most (contract section 6).
pub const INBOX_SLOTS_LIMIT: i64 = 1_000_000;
/// The body of a result at most (contract section 6): written in one transaction with its outcome.
pub const RESULT_BYTES_LIMIT: usize = 16 * 1024 * 1024;
/// A body that travels with its news at most (contract section 6): what a reader's credit and a
/// stream's memory reckon with.
pub const INLINE_PAYLOAD_BYTES_LIMIT: usize = 64 * 1024;

/// How far ahead of the store a clock may be at most: one that is wrong by more than a day is wrong, and
/// what was accepted from it is kept for as much longer.
pub const SKEW_LIMIT: Span = Span::hours(24);
/// Arguments and documents stay below this: a client decodes 4 MiB by default, and its envelope
/// needs room.
pub const BODY_BYTES_LIMIT: usize = 3 * 1024 * 1024;
/// A century: longer than any store, and short enough that no time runs out of the calendar.
pub const SPAN_LIMIT: Span = Span::days(36_500);

/// What is wrong with a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyFault {
    /// One setting is out of its range.
    OutOfRange {
        /// Which.
        setting: &'static str,
        /// What it must be.
        problem: String,
    },
    /// Two settings contradict each other.
    Contradiction {
        /// The first.
        setting: &'static str,
        /// The second.
        other: &'static str,
        /// What the first must be with regard to the second, and why.
        problem: String,
    },
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyFault::OutOfRange { setting, problem }
            | PolicyFault::Contradiction { setting, problem, .. } => {
                write!(f, "{setting} {problem}")
            }
        }
    }
}

fn out_of_range(setting: &'static str, problem: impl Into<String>) -> Result<(), PolicyFault> {
    Err(PolicyFault::OutOfRange { setting, problem: problem.into() })
}

impl Policy {
    /// Checks the policy as a whole.
    ///
    /// # Errors
    /// [`PolicyFault`]: the setting that is out of its range, or the two that contradict each
    /// other; shown as one sentence.
    pub fn check(&self) -> Result<(), PolicyFault> {
        self.check_spans()?;
        self.check_counts()?;
        self.check_together()
    }

    fn check_spans(&self) -> Result<(), PolicyFault> {
        let spans = [
            ("admission_window", self.admission_window),
            ("record_retention", self.record_retention),
            ("tombstone_retention", self.tombstone_retention),
            ("audit_retention", self.audit_retention),
            ("ack_window", self.ack_window),
            ("ack_deadline", self.ack_deadline),
            ("backoff_first", self.backoff_first),
            ("backoff_limit", self.backoff_limit),
            ("lock_limit", self.lock_limit),
            ("start_deadline", self.start_deadline),
            ("inbox_idle_retention", self.inbox_idle_retention),
            ("consumer_lease", self.consumer_lease),
        ];
        if let Some((name, _)) = spans.into_iter().find(|(_, span)| *span <= Span(0)) {
            return out_of_range(name, "must be longer than zero");
        }
        if !(Span(0)..=SKEW_LIMIT).contains(&self.max_clock_skew) {
            let problem = format!("must be 0s to {}", format_span(SKEW_LIMIT));
            return out_of_range("max_clock_skew", problem);
        }
        match spans.into_iter().find(|(_, span)| *span > SPAN_LIMIT) {
            Some((name, _)) => {
                out_of_range(name, format!("must be at most {}", format_span(SPAN_LIMIT)))
            }
            None => Ok(()),
        }
    }

    fn check_counts(&self) -> Result<(), PolicyFault> {
        if self.retry_budget < 1 {
            return out_of_range("retry_budget", "must be at least 1");
        }
        if !(1..=INBOX_SLOTS_LIMIT).contains(&self.inbox_slots) {
            return out_of_range("inbox_slots", format!("must be 1 to {INBOX_SLOTS_LIMIT}"));
        }
        if self.inboxes_max < 1 {
            return out_of_range("inboxes_max", "must be at least 1");
        }
        if !(1..=HELD_MAX).contains(&self.in_flight_max) {
            return out_of_range("in_flight_max", format!("must be 1 to {HELD_MAX}"));
        }
        let sizes = [
            ("arguments_bytes_max", self.arguments_bytes_max, 1, BODY_BYTES_LIMIT),
            ("document_bytes_max", self.document_bytes_max, 1, BODY_BYTES_LIMIT),
            ("result_bytes_max", self.result_bytes_max, 1, RESULT_BYTES_LIMIT),
            // 0: every body is read by itself.
            (
                "inline_payload_bytes_max",
                self.inline_payload_bytes_max,
                0,
                INLINE_PAYLOAD_BYTES_LIMIT,
            ),
        ];
        match sizes.into_iter().find(|(_, size, least, most)| !(least..=most).contains(&size)) {
            Some((name, _, least, most)) => {
                out_of_range(name, format!("must be {least} to {most}"))
            }
            None => Ok(()),
        }
    }

    /// What one setting must be with regard to another.
    fn check_together(&self) -> Result<(), PolicyFault> {
        let gone = "a retry could otherwise arrive when its record is gone";
        let pairs = [
            (
                self.record_retention > self.admission_window,
                ("record_retention", "must be longer than", "admission_window", gone),
            ),
            (
                self.tombstone_retention > self.record_retention,
                ("tombstone_retention", "must be longer than", "record_retention", gone),
            ),
            (
                self.audit_retention >= self.record_retention,
                (
                    "audit_retention",
                    "must not be shorter than",
                    "record_retention",
                    "a whole record has its trail",
                ),
            ),
            (
                self.inbox_idle_retention > self.ack_window,
                (
                    "inbox_idle_retention",
                    "must be longer than",
                    "ack_window",
                    "an inbox whose results can still be acked is in use",
                ),
            ),
            (
                self.backoff_first <= self.backoff_limit,
                (
                    "backoff_first",
                    "must not be longer than",
                    "backoff_limit",
                    "no pause is longer than that",
                ),
            ),
            (
                self.ack_deadline <= self.ack_window,
                (
                    "ack_deadline",
                    "must not be longer than",
                    "ack_window",
                    "no attempt lasts beyond that",
                ),
            ),
        ];
        match pairs.into_iter().find(|(good, _)| !good) {
            Some((_, (setting, relation, other, why))) => Err(PolicyFault::Contradiction {
                setting,
                other,
                problem: format!("{relation} {other}: {why}"),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        assert_eq!(Policy::default().check(), Ok(()));
        let policy = Policy { admission_window: Span::days(31), ..Policy::default() };
        assert!(
            policy.check().expect_err("contradiction").to_string().contains("record_retention")
        );
        let policy = Policy { inbox_idle_retention: Span::minutes(15), ..Policy::default() };
        assert!(policy.check().expect_err("contradiction").to_string().contains("ack_window"));
        let policy = Policy { retry_budget: 0, ..Policy::default() };
        assert!(policy.check().expect_err("range").to_string().contains("retry_budget"));
        for (policy, named) in [
            (Policy { result_bytes_max: 0, ..Policy::default() }, "result_bytes_max"),
            (
                Policy { result_bytes_max: RESULT_BYTES_LIMIT + 1, ..Policy::default() },
                "result_bytes_max",
            ),
            (
                Policy {
                    inline_payload_bytes_max: INLINE_PAYLOAD_BYTES_LIMIT + 1,
                    ..Policy::default()
                },
                "inline_payload_bytes_max",
            ),
        ] {
            assert!(policy.check().expect_err("range").to_string().contains(named), "{named}");
        }
        let none_inline = Policy { inline_payload_bytes_max: 0, ..Policy::default() };
        assert_eq!(none_inline.check(), Ok(()));
    }
}
