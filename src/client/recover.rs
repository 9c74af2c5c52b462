//! After a restart: what became of every submission that the journal has not settled.
//!
//! What must stay true: it is asked before anything is sent; only the same submission under the
//! same id is ever sent again, which executes at most once; no new id is made for an old intent;
//! what cannot be settled now stays in the journal.
//! Deliberately not here: results, which come to their inbox as always.

use super::{
    connect::Client,
    error::Failure,
    journal::{JournalEntry, JournalError},
    outcome::Outcome,
    send::Before,
    submit::SubmitError,
};
use crate::proto::{GetOperationRequest, GetOperationResponse, RecoveryAction, Standing};

/// The most ids in one look-up, by the service's limit.
const LOOK_UP_MAX: usize = 100;

/// What to do with a submission that the service does not know while it may still take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// Send the same submission under the same id: what the person asked for before the restart is
    /// done now, at most once.
    Resubmit,
    /// Only tell: the application sends it with [`Client::submit_as`], or drops it with
    /// [`super::journal::Journal::forget`].
    Report,
}

/// One submission and what is known of it now.
#[derive(Debug)]
pub struct Recovered {
    /// The submission as it was kept.
    pub entry: JournalEntry,
    /// What is known. [`Outcome::Pending`] and [`Outcome::Unknown`] stay in the journal; an error
    /// means that it had no effect and never will, so that the action may be submitted anew.
    pub finding: Result<Outcome, SubmitError>,
}

/// What a look-up leads to.
#[derive(Debug, PartialEq)]
enum Finding {
    /// This is known.
    Known(Outcome),
    /// The service does not know it; the same submission may be sent again.
    Unsent(Outcome),
    /// It was never accepted and can no longer start, in the service's words.
    Never(String),
}

impl Client {
    /// Settles whatever the journal has not settled, oldest first, and says for each what is known
    /// and what to do. Call it after a restart, before new submits, and again while some are in
    /// doubt. A service that cannot be reached leaves them [`Outcome::Unknown`].
    ///
    /// # Errors
    /// [`JournalError`] when the journal cannot be read; nothing was sent.
    pub async fn recover(&self, unsent: Unsent) -> Result<Vec<Recovered>, JournalError> {
        let entries = self.with_journal(|journal| journal.unsettled()).await?;
        let mut recovered = Vec::with_capacity(entries.len());
        for page in entries.chunks(LOOK_UP_MAX) {
            let findings = self.find(page).await;
            for (entry, finding) in page.iter().cloned().zip(findings) {
                let finding = self.follow(&entry, finding, unsent).await;
                recovered.push(Recovered { entry, finding });
            }
        }
        Ok(recovered)
    }

    /// Looks up a page; one finding for each entry, in their order.
    async fn find(&self, page: &[JournalEntry]) -> Vec<Finding> {
        let asked = page.iter().map(|entry| GetOperationRequest {
            operation_id: entry.identity.id().to_owned(),
            mint_time: entry.identity.wire_mint_time(),
        });
        let looked_up = self.look_up_all(asked.collect()).await;
        let mut answers = looked_up.as_ref().ok().cloned().unwrap_or_default().into_iter();
        let unanswered = looked_up.err().unwrap_or_else(Failure::not_answered);
        let found = |entry: &JournalEntry| match answers.next() {
            Some(answer) => finding_of(entry, answer),
            None => Finding::Known(Outcome::unanswered(&entry.identity, unanswered.clone())),
        };
        page.iter().map(found).collect()
    }

    async fn follow(
        &self,
        entry: &JournalEntry,
        finding: Finding,
        unsent: Unsent,
    ) -> Result<Outcome, SubmitError> {
        let outcome = match finding {
            Finding::Unsent(_) if unsent == Unsent::Resubmit => {
                return self.send_entry(Before::Perhaps, entry).await;
            }
            Finding::Known(outcome) | Finding::Unsent(outcome) => Ok(outcome),
            Finding::Never(text) => {
                Err(SubmitError::NeverAccepted { identity: entry.identity.clone(), text })
            }
        };
        // What is not noted is found once more by the next recovery, and means the same then.
        drop(self.keep_outcome(&outcome).await);
        outcome
    }
}

/// The rules of recovering, apart from the network.
fn finding_of(entry: &JournalEntry, answer: GetOperationResponse) -> Finding {
    let (standing, next) =
        (answer.standing(), answer.recovery.as_ref().map(|recovery| recovery.action()));
    let other = answer.operation_id != entry.identity.id();
    let text = answer.recovery.clone().unwrap_or_default().text;
    let outcome = Outcome::of_look_up(&entry.identity, answer);
    if other {
        // An answer about somebody else says nothing about this one.
        return Finding::Known(Outcome::unanswered(&entry.identity, Failure::not_answered()));
    }
    match standing {
        // Where the service names another next step, a submit would be refused.
        Standing::NotAcceptedYet if next == Some(RecoveryAction::ResubmitSameId) => {
            Finding::Unsent(outcome)
        }
        Standing::NeverAccepted => Finding::Never(text),
        Standing::NotAcceptedYet
        | Standing::Recorded
        | Standing::Compacted
        | Standing::EvidenceExpired
        | Standing::Unspecified => Finding::Known(outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::journal::tests::entry, *};
    use crate::proto::{Operation, Recovery, operation::State};

    fn answer(standing: Standing, state: State, next: RecoveryAction) -> GetOperationResponse {
        let operation = (state != State::Unspecified)
            .then(|| Operation { state: state.into(), ..Operation::default() });
        GetOperationResponse {
            operation_id: entry(1).identity.id().to_owned(),
            standing: standing.into(),
            operation,
            recovery: Some(Recovery { action: next.into(), text: "text".to_owned() }),
            ..GetOperationResponse::default()
        }
    }

    #[test]
    fn what_a_look_up_leads_to() {
        use RecoveryAction::{NewIdSafe, ReadCurrentState, ResubmitSameId, ShowResult, Wait};
        use Standing::{Compacted, EvidenceExpired, NeverAccepted, NotAcceptedYet, Recorded};
        let rows = [
            (answer(Recorded, State::Applied, ShowResult), "known"),
            (answer(Recorded, State::Rejected, ReadCurrentState), "known"),
            (answer(Recorded, State::Accepted, Wait), "pending"),
            (answer(Recorded, State::Running, Wait), "pending"),
            (answer(Recorded, State::Unknown, RecoveryAction::Reconcile), "unknown"),
            (answer(Compacted, State::Applied, ShowResult), "known"),
            (answer(EvidenceExpired, State::Unspecified, ReadCurrentState), "expired"),
            (answer(NotAcceptedYet, State::Unspecified, ResubmitSameId), "unsent"),
            (answer(NotAcceptedYet, State::Unspecified, Wait), "unknown"),
            (answer(NotAcceptedYet, State::Unspecified, ReadCurrentState), "unknown"),
            (answer(NeverAccepted, State::Unspecified, NewIdSafe), "never"),
            (answer(Standing::Unspecified, State::Unspecified, NewIdSafe), "unknown"),
        ];
        for (answer, expected) in rows {
            let name = format!("{answer:?}");
            let word = match finding_of(&entry(1), answer) {
                Finding::Unsent(_) => "unsent",
                Finding::Never(_) => "never",
                Finding::Known(Outcome::Known(_)) => "known",
                Finding::Known(Outcome::Pending(_)) => "pending",
                Finding::Known(Outcome::Unknown(_)) => "unknown",
                Finding::Known(Outcome::Expired(_)) => "expired",
            };
            assert_eq!(word, expected, "{name}");
        }
    }

    #[test]
    fn an_answer_about_another_id_settles_nothing() {
        let other = GetOperationResponse {
            operation_id: "other".to_owned(),
            ..answer(Standing::Recorded, State::Applied, RecoveryAction::ShowResult)
        };
        let finding = finding_of(&entry(1), other);
        assert!(matches!(finding, Finding::Known(Outcome::Unknown(_))), "{finding:?}");
    }
}
