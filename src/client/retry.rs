//! When a call is sent again, and after which pause.
//!
//! What must stay true: a submit is sent again only under the same id, and only when the service
//! says that waiting helps or when nobody can say what became of it. A refusal that waiting does
//! not change is never repeated.
//! Deliberately not here: the calls themselves.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::{
    error::{Failure, FailureOutcome},
    pauses::{Growth, Pauses},
};

/// How long and how often a call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryLimits {
    /// All attempts together take at most this long, and the `wait` that a submit asks for; the
    /// last one is cut short for it.
    pub total: Duration,
    /// At most this many attempts.
    pub attempts: u32,
    /// One attempt waits at most this long for its answer, beyond the `wait` it asks for.
    pub per_attempt: Duration,
    /// For how long it is tried to make a connection at all, when none can be made.
    pub unreachable: Duration,
}

impl RetryLimits {
    /// For an interactive program: a person learns within half a minute what is not known.
    pub const fn standard() -> Self {
        RetryLimits {
            total: Duration::from_secs(30),
            attempts: 12,
            per_attempt: Duration::from_secs(10),
            unreachable: Duration::from_secs(30),
        }
    }

    /// One attempt, for callers that repeat by rules of their own.
    pub const fn once(per_attempt: Duration) -> Self {
        RetryLimits { total: per_attempt, attempts: 1, per_attempt, unreachable: per_attempt }
    }
}

/// One call's attempts against its limits.
#[derive(Debug)]
pub(crate) struct Attempts {
    limits: RetryLimits,
    pauses: Pauses,
    end: Instant,
    unreachable_since: Option<Instant>,
    made: u32,
}

impl Attempts {
    /// The first attempt begins now; `extra` is what the call itself asks to be held back.
    pub(crate) fn begin(limits: RetryLimits, extra: Duration) -> Self {
        Attempts {
            limits,
            pauses: Pauses::new(Growth::CALLS),
            end: Instant::now() + limits.total + extra,
            unreachable_since: None,
            made: 0,
        }
    }

    /// How long one more attempt may take, so that all together keep to their limit.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// How many attempts have failed.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// An attempt has failed, and waiting changes nothing.
    pub(crate) fn stop(&mut self) -> Option<Duration> {
        self.made += 1;
        None
    }

    /// An attempt has failed: the pause before the next one, or none when the limits are reached.
    pub(crate) fn pause_after(
        &mut self,
        failure: &Failure,
        asked: Option<Duration>,
    ) -> Option<Duration> {
        let now = Instant::now();
        self.made += 1;
        self.unreachable_since = match failure.outcome {
            FailureOutcome::NeverSent => self.unreachable_since.or(Some(now)),
            FailureOutcome::NoEffect | FailureOutcome::Unknown => None,
        };
        let pause = self.pauses.next(asked);
        let unreachable = self
            .unreachable_since
            .is_some_and(|since| now + pause >= since + self.limits.unreachable);
        let over = self.made >= self.limits.attempts || now + pause >= self.end || unreachable;
        (!over).then_some(pause)
    }
}

/// What a failed attempt of a submit leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send the same id again, not before this pause where one is named.
    SameIdAgain(Option<Duration>),
    /// Waiting changes nothing.
    Stop,
}

/// Decides after a failed attempt.
pub fn after_failed_submit(failure: &Failure) -> Decision {
    let waiting_helps = match (failure.reason.as_deref(), failure.outcome) {
        (Some("IDENTITY_HELD" | "STORE_UNAVAILABLE" | "DRAINING"), _) => true,
        // The service names the pause when it only asks for less at once.
        (Some("RATE_LIMITED"), _) => failure.retry_delay.is_some(),
        (Some(_), FailureOutcome::NoEffect) => false,
        (Some(_), _) => is_doubt(failure.code),
        (None, _) => is_transient(failure.code),
    };
    if waiting_helps { Decision::SameIdAgain(failure.retry_delay) } else { Decision::Stop }
}

/// Whether a call that may be repeated without thought (an ack, a look-up, a stream with its
/// resume token) is repeated after this failure.
pub fn after_failed_call(failure: &Failure) -> Decision {
    let waiting_helps = match failure.reason.as_deref() {
        Some(
            "IDENTITY_HELD" | "STORE_UNAVAILABLE" | "DRAINING" | "RATE_LIMITED" | "SLOW_CONSUMER"
            | "COMMIT_UNKNOWN" | "INTERNAL",
        ) => true,
        Some(_) => is_doubt(failure.code),
        None => is_transient(failure.code),
    };
    if waiting_helps { Decision::SameIdAgain(failure.retry_delay) } else { Decision::Stop }
}

/// Codes under which a call may have been executed.
fn is_doubt(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::DataLoss
    )
}

/// The same, and what transports and proxies answer without receiptd's own words: an h2 error such
/// as ENHANCE_YOUR_CALM arrives as RESOURCE_EXHAUSTED, a proxy's abort as ABORTED.
fn is_transient(code: Code) -> bool {
    is_doubt(code) || matches!(code, Code::ResourceExhausted | Code::Aborted)
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::{super::error::tests::refusal, *};

    fn submit_again(status: Status) -> bool {
        matches!(after_failed_submit(&status.into()), Decision::SameIdAgain(_))
    }

    #[test]
    fn the_table_of_retries() {
        let no_effect = |code, reason| refusal(code, reason, "NO_EFFECT");
        let rows = [
            (Status::unavailable(""), true),
            (Status::deadline_exceeded(""), true),
            (Status::cancelled(""), true),
            (Status::unknown("h2 protocol error"), true),
            (Status::internal(""), true),
            (Status::resource_exhausted("h2 protocol error: enhance your calm"), true),
            (Status::aborted(""), true),
            (Status::invalid_argument(""), false),
            (Status::unimplemented(""), false),
            (Status::permission_denied(""), false),
            (Status::unauthenticated(""), false),
            (no_effect(Code::Unavailable, "IDENTITY_HELD"), true),
            (no_effect(Code::Unavailable, "STORE_UNAVAILABLE"), true),
            (no_effect(Code::Unavailable, "DRAINING"), true),
            (no_effect(Code::ResourceExhausted, "RATE_LIMITED"), true),
            (no_effect(Code::ResourceExhausted, "INBOX_FULL"), false),
            (no_effect(Code::Aborted, "TARGET_LOCKED"), false),
            (no_effect(Code::AlreadyExists, "OPERATION_INTENT_MISMATCH"), false),
            (no_effect(Code::InvalidArgument, "CLOCK_SKEW"), false),
            (no_effect(Code::FailedPrecondition, "ADMISSION_CLOSED"), false),
            (no_effect(Code::Internal, "INTERNAL"), false),
            (refusal(Code::Unknown, "COMMIT_UNKNOWN", "UNKNOWN"), true),
            (refusal(Code::Unavailable, "SOMETHING_NEW", "UNKNOWN"), true),
        ];
        for (status, again) in rows {
            let name = format!("{status:?}");
            assert_eq!(submit_again(status), again, "{name}");
        }
    }

    #[test]
    fn the_services_own_pause_is_kept() {
        let failure = refusal(Code::Unavailable, "DRAINING", "NO_EFFECT").into();
        let asked = Duration::from_millis(250);
        assert_eq!(after_failed_submit(&failure), Decision::SameIdAgain(Some(asked)));
    }
}
