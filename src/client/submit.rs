//! Submitting with a journal: the identity and the submission are kept before the first byte.
//!
//! What must stay true: nothing is sent that is not in the journal; an error means that the id had
//! no effect and never will have one, so that everything else, silence above all, is an
//! [`Outcome`]; what is not settled stays in the journal, and what the journal may still send after
//! a restart is no error.
//! Deliberately not here: repeating (see [`super::send`]) and restarts (see [`super::recover`]).

use std::sync::Arc;

use super::{
    connect::Client,
    error::Failure,
    identity::{OperationIdentity, system_millis},
    journal::{EntryState, Journal, JournalEntry, JournalError, Recorded},
    outcome::Outcome,
    send::{Before, SendError, Submitted},
    submission::Submission,
};
use crate::proto::{Recovery, RecoveryAction};

/// Why an operation does not exist and never will: no effect, no record, nothing left to find out.
/// The same action may be submitted anew.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The service refused it. The failure carries the reason, the text and the next step.
    #[error("operation {identity} was refused and had no effect: {failure}")]
    Refused {
        /// The operation.
        identity: OperationIdentity,
        /// What the service said.
        failure: Box<Failure>,
    },
    /// No connection could be made, so that nothing was sent.
    #[error("operation {identity} was not sent: {failure}")]
    NotSent {
        /// The operation.
        identity: OperationIdentity,
        /// The last try.
        failure: Box<Failure>,
    },
    /// The service proves that it never accepted the id and that it can no longer start.
    #[error("operation {identity} was never accepted and can no longer start: {text}")]
    NeverAccepted {
        /// The operation.
        identity: OperationIdentity,
        /// What the service said.
        text: String,
    },
    /// It could not be kept, so that nothing was sent. Where the disk itself failed, the file may
    /// hold it all the same: then [`Client::recover`] finds it after a restart. Submit again under
    /// this identity, not under a new one, if that matters.
    #[error("operation {identity} was not sent, because the journal could not keep it")]
    Journal {
        /// The operation.
        identity: OperationIdentity,
        /// Why.
        source: JournalError,
    },
}

impl SubmitError {
    /// Who the operation would have been.
    pub fn identity(&self) -> &OperationIdentity {
        match self {
            SubmitError::Refused { identity, .. }
            | SubmitError::NotSent { identity, .. }
            | SubmitError::NeverAccepted { identity, .. }
            | SubmitError::Journal { identity, .. } => identity,
        }
    }

    /// What the service said, if it said anything.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            SubmitError::Refused { failure, .. } | SubmitError::NotSent { failure, .. } => {
                Some(failure)
            }
            SubmitError::NeverAccepted { .. } | SubmitError::Journal { .. } => None,
        }
    }
}

impl Client {
    /// Submits one intended action: makes its id, keeps both in the journal, sends, and repeats
    /// under the same id within the limits. When it returns, the outcome is in the journal too;
    /// when it is dropped before, [`Client::recover`] finds the operation there.
    ///
    /// # Errors
    /// [`SubmitError`], which always means: no effect, not now and not later. Doubt is
    /// [`Outcome::Unknown`].
    pub async fn submit(&self, submission: Submission) -> Result<Outcome, SubmitError> {
        let first = self.submit_as(self.mint(), submission.clone()).await;
        // A wrong clock made an id that the service cannot take. It was refused without effect and
        // told its own time, from which the next id is made: once, so that no loop depends on it.
        let clock = |failure: &Failure| failure.is("CLOCK_SKEW") || failure.is("ADMISSION_CLOSED");
        match first {
            Err(SubmitError::Refused { failure, .. }) if clock(&failure) => {
                self.submit_as(self.mint(), submission).await
            }
            answered => answered,
        }
    }

    /// The same under an identity of the caller's own, for those who keep one id per intended
    /// action by themselves.
    ///
    /// # Errors
    /// [`SubmitError`], as for [`Client::submit`]; but it speaks of what this journal knows: an id
    /// that was settled before, or that somebody else has used, had its effect then.
    pub async fn submit_as(
        &self,
        identity: OperationIdentity,
        submission: Submission,
    ) -> Result<Outcome, SubmitError> {
        let entry = JournalEntry {
            identity,
            submission,
            recorded_ms: system_millis(),
            state: EntryState::Recorded,
        };
        let kept = entry.clone();
        let before = match self.with_journal(move |journal| journal.record(&kept)).await {
            Ok(Recorded::New) => Before::Never,
            Ok(Recorded::Already) => Before::Perhaps,
            Err(source) => return Err(SubmitError::Journal { identity: entry.identity, source }),
        };
        self.send_entry(before, &entry).await
    }

    /// Sends what the journal keeps, and keeps what came of it.
    pub(crate) async fn send_entry(
        &self,
        before: Before,
        entry: &JournalEntry,
    ) -> Result<Outcome, SubmitError> {
        let sent = self.send_after(before, &entry.identity, &entry.submission).await;
        let outcome = outcome_of(&entry.identity, sent);
        match (self.keep_outcome(&outcome).await, outcome) {
            // The journal still holds it as unsettled, and would send it after a restart.
            (
                Err(_),
                Err(
                    SubmitError::Refused { identity, failure }
                    | SubmitError::NotSent { identity, failure },
                ),
            ) => Ok(Outcome::unanswered(&identity, *failure)),
            (_, outcome) => outcome,
        }
    }

    /// Notes an outcome in the journal.
    ///
    /// # Errors
    /// It was not noted: it is looked up once more after a restart.
    pub(crate) async fn keep_outcome(
        &self,
        outcome: &Result<Outcome, SubmitError>,
    ) -> Result<(), JournalError> {
        let (identity, state) = match outcome {
            Ok(outcome) => (outcome.identity(), outcome.entry_state()),
            Err(error) => (error.identity(), EntryState::NoEffect),
        };
        let id = identity.id().to_owned();
        self.with_journal(move |journal| journal.settle(&id, state)).await
    }

    /// Calls the journal where blocking is allowed.
    pub(crate) async fn with_journal<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Journal) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let journal = Arc::clone(self.journal());
        blocking(move || call(journal.as_ref())).await
    }
}

/// The one place that leaves the runtime: a journal waits for its disk.
#[expect(clippy::disallowed_methods, reason = "the client links no engine and has no seams")]
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    let called = tokio::task::spawn_blocking(call).await;
    called.unwrap_or_else(|stopped| Err(JournalError::Own(Box::new(stopped))))
}

/// What came of sending, in the words of outcomes.
fn outcome_of(
    identity: &OperationIdentity,
    sent: Result<Submitted, SendError>,
) -> Result<Outcome, SubmitError> {
    match sent {
        Ok(submitted) => Ok(Outcome::of_submitted(identity, submitted)),
        Err(SendError::OutcomeUnknown { last, .. } | SendError::Refused { failure: last, .. })
            if last.is("EVIDENCE_EXPIRED") =>
        {
            let recovery = Recovery {
                action: RecoveryAction::ReadCurrentState.into(),
                text: last.text.clone(),
            };
            Ok(Outcome::lapsed(identity, &recovery))
        }
        Err(SendError::OutcomeUnknown { identity, last, .. }) => {
            Ok(Outcome::unanswered(&identity, *last))
        }
        Err(SendError::Refused { identity, failure }) => {
            Err(SubmitError::Refused { identity, failure })
        }
        Err(SendError::NotSent { identity, failure }) => {
            Err(SubmitError::NotSent { identity, failure })
        }
    }
}

#[cfg(test)]
#[path = "submit_tests.rs"]
mod tests;
