//! Sending one submission so that a lost answer never makes it happen twice.
//!
//! What must stay true: every attempt carries the identity that was fixed before the first byte;
//! a later refusal never hides that an earlier attempt may have been executed; and when the limits
//! are reached, the answer says that the outcome is not known, never that it failed.
//! Deliberately not here: the journal (see [`super::submit`]), for which the caller of these
//! functions stands in, and minting an id again. An id that was sent stays bound to its intent.

use std::{future::Future, time::Duration};

use tokio::time::{sleep, timeout};

use super::{
    connect::Client,
    error::{Failure, FailureOutcome},
    identity::OperationIdentity,
    retry::{Attempts, Decision, RetryLimits, after_failed_submit},
    submission::Submission,
};
use crate::proto::{
    Operation, Origin, SubmitOperationRequest, SubmitOperationResponse, operation::State,
};

/// The server answers shortly before the caller's own deadline; ours ends a little after it.
const ANSWER_SLACK: Duration = Duration::from_millis(500);

/// The answer to a submit.
#[derive(Clone, Debug, PartialEq)]
pub struct Submitted {
    /// What the service said.
    pub response: SubmitOperationResponse,
    /// How many attempts it took.
    pub attempts: u32,
}

impl Submitted {
    /// How the last call was answered. REPLAYED after more than one attempt usually means that an
    /// earlier attempt was executed and its answer lost.
    pub fn origin(&self) -> Origin {
        self.response.origin()
    }

    /// The operation, if the answer carries one.
    pub fn operation(&self) -> Option<&Operation> {
        self.response.operation.as_ref()
    }

    /// The operation's state; one that this library does not know counts as UNKNOWN.
    pub fn state(&self) -> State {
        self.operation().map_or(State::Unknown, state_of)
    }
}

/// An operation's state; one that this library does not know counts as UNKNOWN, never as success.
pub fn state_of(operation: &Operation) -> State {
    match State::try_from(operation.state) {
        Ok(State::Unspecified) | Err(_) => State::Unknown,
        Ok(known) => known,
    }
}

/// Why a submission has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SendError {
    /// The service refused it and no attempt had an effect. The failure carries the reason, the
    /// text, the metadata and the next step.
    #[error("operation {identity} was refused and had no effect: {failure}")]
    Refused {
        /// The operation.
        identity: OperationIdentity,
        /// What the service said.
        failure: Box<Failure>,
    },
    /// No connection could be made, so that nothing was sent. The same id may be submitted later.
    #[error("operation {identity} was not sent: {failure}")]
    NotSent {
        /// The operation.
        identity: OperationIdentity,
        /// The last try.
        failure: Box<Failure>,
    },
    /// At least one attempt may have been executed, and nobody has said what became of it.
    #[error(
        "the outcome of operation {identity} is not known after {attempts} attempt(s): it may have \
         been applied or may still be; look up the same id, or send the same submit with the same \
         id again, and never a new id (last answer: {last})"
    )]
    OutcomeUnknown {
        /// The operation, for the look-up.
        identity: OperationIdentity,
        /// How many attempts were made.
        attempts: u32,
        /// What ended the last one.
        last: Box<Failure>,
    },
}

/// Whether the id may have been sent before, by an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// This is the id's first use.
    Never,
    /// Nobody knows: a refusal now says nothing about then.
    Perhaps,
}

impl Client {
    /// Sends a submission, and repeats under the same id while that can settle what became of it.
    /// An answer means that the record is durable. Keep the identity where a restart finds it
    /// before you call this; [`Client::submit`] does that by itself.
    ///
    /// # Errors
    /// [`SendError`], which says whether an effect is excluded.
    pub async fn send(
        &self,
        identity: &OperationIdentity,
        submission: &Submission,
    ) -> Result<Submitted, SendError> {
        self.send_after(Before::Never, identity, submission).await
    }

    /// The same for an id that may have been sent before.
    pub(crate) async fn send_after(
        &self,
        before: Before,
        identity: &OperationIdentity,
        submission: &Submission,
    ) -> Result<Submitted, SendError> {
        let request = submission.to_request(identity);
        self.send_request(before, identity, request, submission.wait).await
    }

    /// Checks everything and changes nothing: the answer says what would happen now.
    ///
    /// # Errors
    /// [`SendError`]: what would be refused, is.
    pub async fn validate(
        &self,
        identity: &OperationIdentity,
        submission: &Submission,
    ) -> Result<Submitted, SendError> {
        let request =
            SubmitOperationRequest { validate_only: true, ..submission.to_request(identity) };
        self.send_request(Before::Never, identity, request, submission.wait).await
    }

    async fn send_request(
        &self,
        before: Before,
        identity: &OperationIdentity,
        request: SubmitOperationRequest,
        wait: Option<Duration>,
    ) -> Result<Submitted, SendError> {
        let wait = wait.unwrap_or(Duration::ZERO);
        let per_attempt = self.limits().per_attempt + wait;
        let attempt = |left: Duration| self.submit_once(request.clone(), per_attempt.min(left));
        send_with(before, identity, self.limits(), wait, attempt).await
    }

    /// One attempt, ended by its own deadline.
    async fn submit_once(
        &self,
        request: SubmitOperationRequest,
        deadline: Duration,
    ) -> Result<SubmitOperationResponse, Failure> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(deadline);
        let mut operations = self.operations();
        let call = operations.submit_operation(request);
        match timeout(deadline + ANSWER_SLACK, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let failure = Failure::from(status);
                if let Some(store_time) = failure.store_time() {
                    self.learn_store_time(&store_time);
                }
                Err(failure)
            }
            Err(_) => Err(Failure::gave_up_waiting(deadline)),
        }
    }
}

/// The rules of repeating, apart from the network.
async fn send_with<F, A>(
    before: Before,
    identity: &OperationIdentity,
    limits: RetryLimits,
    wait: Duration,
    attempt: F,
) -> Result<Submitted, SendError>
where
    F: Fn(Duration) -> A,
    A: Future<Output = Result<SubmitOperationResponse, Failure>>,
{
    let mut attempts = Attempts::begin(limits, wait);
    let mut doubt = before == Before::Perhaps;
    loop {
        let failure = match attempt(attempts.left()).await {
            Ok(response) => return Ok(Submitted { response, attempts: attempts.made() + 1 }),
            Err(failure) => failure,
        };
        doubt |= failure.outcome == FailureOutcome::Unknown;
        let pause = match after_failed_submit(&failure) {
            Decision::SameIdAgain(asked) => attempts.pause_after(&failure, asked),
            Decision::Stop => attempts.stop(),
        };
        match pause {
            Some(pause) => sleep(pause).await,
            None => return Err(give_up(identity, attempts.made(), doubt, failure)),
        }
    }
}

/// The last word. A refusal of a later attempt does not settle an earlier one that is still in
/// doubt: it may be on its way. Only a mismatch does, because it proves that the id belongs to
/// another intent for good.
fn give_up(
    identity: &OperationIdentity,
    attempts: u32,
    doubt: bool,
    failure: Failure,
) -> SendError {
    let identity = identity.clone();
    let settled =
        failure.is("OPERATION_INTENT_MISMATCH") && failure.outcome == FailureOutcome::NoEffect;
    if doubt && !settled {
        return SendError::OutcomeUnknown { identity, attempts, last: Box::new(failure) };
    }
    match failure.outcome {
        FailureOutcome::NeverSent => SendError::NotSent { identity, failure: Box::new(failure) },
        FailureOutcome::NoEffect | FailureOutcome::Unknown => {
            SendError::Refused { identity, failure: Box::new(failure) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tonic::{Code, Status};

    use super::{super::error::tests::refusal, *};

    fn identity() -> OperationIdentity {
        OperationIdentity::mint_at(1, &[0; 10])
    }

    /// Plays the answers in order and tells how often it was asked.
    async fn play(
        answers: Vec<Result<SubmitOperationResponse, Status>>,
    ) -> (Result<Submitted, SendError>, usize) {
        play_after(Before::Never, answers).await
    }

    async fn play_after(
        before: Before,
        answers: Vec<Result<SubmitOperationResponse, Status>>,
    ) -> (Result<Submitted, SendError>, usize) {
        let total = answers.len();
        let left = Mutex::new(answers.into_iter());
        let attempt = |_| {
            let next = left.lock().expect("no test panics here").next();
            async move {
                next.unwrap_or_else(|| Err(Status::unavailable("over"))).map_err(Failure::from)
            }
        };
        let outcome =
            send_with(before, &identity(), RetryLimits::standard(), Duration::ZERO, attempt).await;
        let asked = total - left.lock().expect("no test panics here").len();
        (outcome, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_is_asked_for_again() {
        let lost = Err(Status::unavailable("connection lost"));
        let (outcome, asked) = play(vec![lost, Ok(SubmitOperationResponse::default())]).await;
        assert_eq!((outcome.map(|it| it.attempts), asked), (Ok(2), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_is_given_more_than_what_is_left() {
        let limits = RetryLimits { total: Duration::from_secs(5), ..RetryLimits::standard() };
        let wait = Duration::from_secs(2);
        let start = tokio::time::Instant::now();
        // A server that answers nothing holds each attempt to its end.
        let silent = |left: Duration| async move {
            sleep(left.min(Duration::from_secs(4))).await;
            Err(Failure::from(Status::deadline_exceeded("")))
        };
        let outcome = send_with(Before::Never, &identity(), limits, wait, silent).await;
        assert!(matches!(outcome, Err(SendError::OutcomeUnknown { attempts: 2, .. })));
        assert!(start.elapsed() <= limits.total + wait, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_not_repeated() {
        let full = refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT");
        let (outcome, asked) = play(vec![Err(full)]).await;
        assert!(matches!(outcome, Err(SendError::Refused { .. })), "{outcome:?}");
        assert_eq!(asked, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_after_a_lost_answer_settles_nothing() {
        let lost = Err(Status::deadline_exceeded(""));
        let full = Err(refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT"));
        let (outcome, _) = play(vec![lost, full]).await;
        assert!(matches!(outcome, Err(SendError::OutcomeUnknown { attempts: 2, .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_of_an_id_that_may_have_been_sent_before_settles_nothing() {
        let full = Err(refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT"));
        let (outcome, _) = play_after(Before::Perhaps, vec![full]).await;
        assert!(matches!(outcome, Err(SendError::OutcomeUnknown { attempts: 1, .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mismatch_after_a_lost_answer_is_a_mismatch() {
        let lost = Err(Status::deadline_exceeded(""));
        let mismatch = Err(refusal(Code::AlreadyExists, "OPERATION_INTENT_MISMATCH", "NO_EFFECT"));
        let (outcome, _) = play(vec![lost, mismatch]).await;
        assert!(matches!(outcome, Err(SendError::Refused { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_outcome_is_not_known_and_the_id_is_named() {
        let (outcome, _) = play(Vec::new()).await;
        let text = outcome.expect_err("every attempt is lost").to_string();
        assert!(text.contains(identity().id()), "{text}");
        assert!(text.contains("not known"), "{text}");
        assert!(!text.contains("fail"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn held_back_without_effect_until_the_limit_is_a_refusal() {
        let draining = || Err(refusal(Code::Unavailable, "DRAINING", "NO_EFFECT"));
        let (outcome, asked) = play((0..40).map(|_| draining()).collect()).await;
        assert!(matches!(outcome, Err(SendError::Refused { .. })), "{outcome:?}");
        assert!(asked > 3);
    }

    #[test]
    fn a_state_from_the_future_is_unknown() {
        let operation = Operation { state: 99, ..Operation::default() };
        assert_eq!(state_of(&operation), State::Unknown);
    }
}
