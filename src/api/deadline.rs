//! The caller's own time limit, so that its end need not be silence (contract section 4).

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::metadata::MetadataMap;

use super::status::Refused;
use crate::domain::{
    ids::OperationId,
    refusal::{Refusal, RefusalOutcome},
};

/// The answer leaves at least this long before the caller gives up.
const MARGIN_LEAST: Duration = Duration::from_millis(50);
/// And never earlier than this.
const MARGIN_MOST: Duration = Duration::from_millis(100);

/// When an answer has to leave: shortly before its caller gives up, if it ever does.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBy(Option<Instant>);

impl AnswerBy {
    /// Made first thing in a handler: whatever the call waits for afterwards, also for its turn in
    /// the engine's queue, is time that the caller has already waited.
    pub fn of(metadata: &MetadataMap, entered: Instant) -> Self {
        AnswerBy(grpc_timeout(metadata).map(|timeout| {
            // A caller in a hurry still leaves the answer half of its time.
            let margin = (timeout / 10).clamp(MARGIN_LEAST, MARGIN_MOST).min(timeout / 2);
            entered + timeout.saturating_sub(margin)
        }))
    }

    /// The end of a wait that begins now.
    pub fn end_of(self, wait: Duration) -> Instant {
        let end = Instant::now() + wait;
        self.0.map_or(end, |latest| latest.min(end))
    }

    /// What is only good to know: nothing, where it does not come in time.
    pub async fn in_time<T>(self, known: impl Future<Output = Option<T>>) -> Option<T> {
        match self.0 {
            Some(latest) => timeout_at(latest, known).await.unwrap_or(None),
            None => known.await,
        }
    }

    /// The answer, or the refusal that says that there is none yet. Dropping what waits for the
    /// engine ends no command of it.
    pub async fn or_late<T, E: From<Refusal>>(
        self,
        outcome: RefusalOutcome,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.0 {
            Some(latest) => timeout_at(latest, answer)
                .await
                .unwrap_or_else(|_| Err(Refusal::NoAnswerYet { outcome }.into())),
            None => answer.await,
        }
    }
}

/// What a handler knows of its call before it looks at the data.
#[derive(Clone, Debug)]
pub struct Call {
    /// When the answer has to leave.
    pub answer_by: AnswerBy,
    /// The id that it is about, if it names a valid one.
    pub id: Option<OperationId>,
}

impl Call {
    /// Made first thing in a handler; `id` is what the request names.
    pub fn of<T>(request: &tonic::Request<T>, id: impl FnOnce(&T) -> &str) -> Self {
        let answer_by = AnswerBy::of(request.metadata(), Instant::now());
        Call { answer_by, id: OperationId::parse(id(request.get_ref())).ok() }
    }

    /// A call that is about no id, or about many.
    pub fn plain<T>(request: &tonic::Request<T>) -> Self {
        Call { id: None, ..Call::of(request, |_| "") }
    }

    /// A refusal, with the id wherever the request named one.
    pub fn told(self, refused: Refused) -> Refused {
        Refused { operation_id: refused.operation_id.or(self.id), ..refused }
    }
}

/// The `grpc-timeout` of a call: at most eight digits and a unit.
fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("ASCII"));
        metadata
    }

    #[test]
    fn the_callers_timeout_is_read_in_every_unit() {
        for (text, timeout) in [
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("500m", Some(Duration::from_millis(500))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("1n", Some(Duration::from_nanos(1))),
            ("", None),
            ("S", None),
            ("5", None),
            ("5x", None),
            ("-5S", None),
            ("123456789S", None),
        ] {
            assert_eq!(grpc_timeout(&with(text)), timeout, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_leaves_before_the_caller_gives_up() {
        let entered = Instant::now();
        let minute = Duration::from_secs(60);
        let end = |text, wait| AnswerBy::of(&with(text), entered).end_of(wait) - entered;
        assert_eq!(AnswerBy::of(&MetadataMap::new(), entered).end_of(minute), entered + minute);
        assert_eq!(end("5S", minute), Duration::from_millis(4_900));
        assert_eq!(end("600m", minute), Duration::from_millis(540));
        assert_eq!(end("200m", minute), Duration::from_millis(150));
        assert_eq!(end("10m", minute), Duration::from_millis(5));
        assert_eq!(end("5S", Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_the_queue_is_the_callers_time() {
        let entered = Instant::now();
        let answer_by = AnswerBy::of(&with("600m"), entered);
        tokio::time::advance(Duration::from_millis(400)).await;
        let end = answer_by.end_of(Duration::from_secs(60));
        assert_eq!(end - entered, Duration::from_millis(540));
        let read = answer_by.in_time(std::future::pending::<Option<()>>()).await;
        assert_eq!((read, entered.elapsed().as_millis()), (None, 540));
        assert_eq!(answer_by.in_time(async { Some(1) }).await, Some(1), "what is there is told");
    }
}
