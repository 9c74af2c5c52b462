//! What is known of an operation, in four words.
//!
//! What must stay true: silence is never a failure, doubt is never an outcome, and a state that
//! this library does not know counts as doubt. Each answer says the one safe next step.
//! Deliberately not here: calls.

use std::fmt;

use super::{
    error::Failure,
    identity::OperationIdentity,
    journal::EntryState,
    send::{Submitted, state_of},
};
use crate::proto::{
    Delivery, GetOperationResponse, Operation, Origin, Projection, Receipt, Recovery,
    RecoveryAction, Standing, operation::State,
};

/// What is known of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It ended: applied, rejected, failed or cancelled. The receipt says what came of it.
    Known(Box<Answer>),
    /// The service has it, durably, and it has not ended. Its result comes to its inbox.
    Pending(Box<Answer>),
    /// Nobody has said what became of it. It may have been applied, or may still be.
    Unknown(Box<Doubt>),
    /// The evidence is no longer kept whole: whether or what it did is not told any more.
    Expired(Box<Lapsed>),
}

/// An operation as the service told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Who it is.
    pub identity: OperationIdentity,
    /// The operation with its receipt.
    pub operation: Operation,
    /// How a submit was answered; absent after a look-up.
    pub origin: Option<Origin>,
    /// Its deliveries, so that a result can be acked without a stream.
    pub deliveries: Vec<Delivery>,
    /// The next step.
    pub recovery: Recovery,
    /// The target now, apart from the receipt, where the caller may see it.
    pub projection: Option<Projection>,
}

/// An operation whose outcome is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Doubt {
    /// Who it is: look up the same id, never use a new one for the same action.
    pub identity: OperationIdentity,
    /// The one safe next step.
    pub next: RecoveryAction,
    /// What is known and what is not, for people.
    pub text: String,
    /// The operation, where the service itself has it and does not know.
    pub operation: Option<Operation>,
    /// What ended the last attempt, where one failed.
    pub last: Option<Failure>,
}

/// An operation whose evidence has expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Lapsed {
    /// Who it is.
    pub identity: OperationIdentity,
    /// The one safe next step: read the target as it is now, then decide.
    pub next: RecoveryAction,
    /// What is known and what is not, for people.
    pub text: String,
}

impl Answer {
    /// The receipt; empty where the service sent none.
    pub fn receipt(&self) -> Receipt {
        self.operation.receipt.clone().unwrap_or_default()
    }

    /// The operation's state.
    pub fn state(&self) -> State {
        state_of(&self.operation)
    }
}

impl Outcome {
    /// What the answer to a submit says.
    pub fn of_submitted(identity: &OperationIdentity, submitted: Submitted) -> Self {
        let response = submitted.response;
        let origin = Some(response.origin());
        let recovery = response.recovery.unwrap_or_default();
        let Some(operation) = response.operation else {
            return Outcome::in_doubt(identity, recovery, None);
        };
        Outcome::of_operation(Answer {
            identity: identity.clone(),
            operation,
            origin,
            deliveries: response.deliveries,
            recovery,
            projection: response.projection,
        })
    }

    /// What the answer to a look-up says.
    pub fn of_look_up(identity: &OperationIdentity, response: GetOperationResponse) -> Self {
        let recovery = response.recovery.clone().unwrap_or_default();
        match response.standing() {
            Standing::Recorded | Standing::Compacted => {
                let Some(operation) = response.operation else {
                    return Outcome::in_doubt(identity, recovery, None);
                };
                Outcome::of_operation(Answer {
                    identity: identity.clone(),
                    operation,
                    origin: None,
                    deliveries: response.deliveries,
                    recovery,
                    projection: response.projection,
                })
            }
            Standing::EvidenceExpired => Outcome::lapsed(identity, &recovery),
            Standing::NotAcceptedYet | Standing::NeverAccepted | Standing::Unspecified => {
                Outcome::in_doubt(identity, recovery, response.operation)
            }
        }
    }

    fn of_operation(answer: Answer) -> Self {
        match answer.state() {
            State::Applied | State::Rejected | State::Failed | State::Cancelled => {
                Outcome::Known(Box::new(answer))
            }
            State::Accepted | State::Running => Outcome::Pending(Box::new(answer)),
            State::Unknown | State::Unspecified => {
                Outcome::in_doubt(&answer.identity, answer.recovery, Some(answer.operation))
            }
        }
    }

    fn in_doubt(
        identity: &OperationIdentity,
        recovery: Recovery,
        operation: Option<Operation>,
    ) -> Self {
        let text = match recovery.text.is_empty() {
            false => recovery.text.clone(),
            true => format!(
                "The outcome of operation {identity} is not known: it may have been applied or may \
                 still be. Look up the same id; never use a new id for it."
            ),
        };
        Outcome::Unknown(Box::new(Doubt {
            identity: identity.clone(),
            next: named(&recovery, RecoveryAction::ResubmitSameId),
            text,
            operation,
            last: None,
        }))
    }

    /// No attempt was answered.
    pub(crate) fn unanswered(identity: &OperationIdentity, last: Failure) -> Self {
        Outcome::Unknown(Box::new(Doubt {
            identity: identity.clone(),
            next: RecoveryAction::ResubmitSameId,
            text: format!(
                "The outcome of operation {identity} is not known: it may have been applied or may \
                 still be. Look up the same id, or send the same submit with the same id again; \
                 never use a new id for it (last answer: {last})."
            ),
            operation: None,
            last: Some(last),
        }))
    }

    pub(crate) fn lapsed(identity: &OperationIdentity, recovery: &Recovery) -> Self {
        let text = match recovery.text.is_empty() {
            false => recovery.text.clone(),
            true => format!(
                "The evidence about operation {identity} is no longer kept. It may have been \
                 applied: read the target as it is now, then decide."
            ),
        };
        Outcome::Expired(Box::new(Lapsed {
            identity: identity.clone(),
            next: named(recovery, RecoveryAction::ReadCurrentState),
            text,
        }))
    }

    /// Who the operation is.
    pub fn identity(&self) -> &OperationIdentity {
        match self {
            Outcome::Known(answer) | Outcome::Pending(answer) => &answer.identity,
            Outcome::Unknown(doubt) => &doubt.identity,
            Outcome::Expired(lapsed) => &lapsed.identity,
        }
    }

    /// Whether the effect is certain and complete. False says nothing about an outcome that is
    /// not known.
    pub fn is_applied(&self) -> bool {
        matches!(self, Outcome::Known(answer) if answer.state() == State::Applied)
    }

    /// Whether it ended REJECTED: refused before execution, without effect.
    pub fn is_rejected(&self) -> bool {
        matches!(self, Outcome::Known(answer) if answer.state() == State::Rejected)
    }

    /// The one safe next step.
    pub fn next_step(&self) -> RecoveryAction {
        match self {
            Outcome::Known(answer) => named(&answer.recovery, RecoveryAction::ShowResult),
            Outcome::Pending(answer) => named(&answer.recovery, RecoveryAction::Wait),
            Outcome::Unknown(doubt) => doubt.next,
            Outcome::Expired(lapsed) => lapsed.next,
        }
    }

    /// What a journal keeps of it.
    pub(crate) fn entry_state(&self) -> EntryState {
        match self {
            Outcome::Known(answer) | Outcome::Pending(answer) => EntryState::of(answer.state()),
            Outcome::Unknown(_) => EntryState::InDoubt,
            Outcome::Expired(_) => EntryState::Expired,
        }
    }
}

/// Full sentences for a person or a model: which operation, what is known, the next step.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Known(answer) | Outcome::Pending(answer) => {
                if answer.recovery.text.is_empty() {
                    let word = answer.state().as_str_name().trim_start_matches("STATE_");
                    write!(f, "Operation {} is {word}.", answer.identity)
                } else {
                    f.write_str(&answer.recovery.text)
                }
            }
            Outcome::Unknown(doubt) => f.write_str(&doubt.text),
            Outcome::Expired(lapsed) => f.write_str(&lapsed.text),
        }
    }
}

/// The action that the service named, or ours where it named none that this library knows.
fn named(recovery: &Recovery, otherwise: RecoveryAction) -> RecoveryAction {
    match recovery.action() {
        RecoveryAction::Unspecified => otherwise,
        action => action,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SubmitOperationResponse;

    fn identity() -> OperationIdentity {
        OperationIdentity::mint_at(1, &[0; 10])
    }

    fn operation(state: i32) -> Option<Operation> {
        Some(Operation { state, ..Operation::default() })
    }

    fn word(outcome: &Outcome) -> &'static str {
        match outcome {
            Outcome::Known(_) => "known",
            Outcome::Pending(_) => "pending",
            Outcome::Unknown(_) => "unknown",
            Outcome::Expired(_) => "expired",
        }
    }

    #[test]
    fn every_state_is_one_of_the_four() {
        let rows = [
            (State::Applied.into(), "known", EntryState::Applied),
            (State::Rejected.into(), "known", EntryState::Rejected),
            (State::Failed.into(), "known", EntryState::Failed),
            (State::Cancelled.into(), "known", EntryState::Cancelled),
            (State::Accepted.into(), "pending", EntryState::Accepted),
            (State::Running.into(), "pending", EntryState::Accepted),
            (State::Unknown.into(), "unknown", EntryState::InDoubt),
            (State::Unspecified.into(), "unknown", EntryState::InDoubt),
            (99, "unknown", EntryState::InDoubt),
        ];
        for (state, expected, kept) in rows {
            let response = SubmitOperationResponse {
                operation: operation(state),
                ..SubmitOperationResponse::default()
            };
            let outcome = Outcome::of_submitted(&identity(), Submitted { response, attempts: 1 });
            assert_eq!((word(&outcome), outcome.entry_state()), (expected, kept), "{state}");
            assert_eq!(outcome.is_applied(), state == i32::from(State::Applied));
            assert!(outcome.to_string().contains(identity().id()), "{outcome}");
        }
    }

    #[test]
    fn every_standing_is_one_of_the_four() {
        let applied = || operation(State::Applied.into());
        let rows = [
            (Standing::Recorded, applied(), "known", RecoveryAction::ShowResult),
            (Standing::Recorded, None, "unknown", RecoveryAction::ResubmitSameId),
            (Standing::Compacted, applied(), "known", RecoveryAction::ShowResult),
            (Standing::EvidenceExpired, None, "expired", RecoveryAction::ReadCurrentState),
            (Standing::NotAcceptedYet, None, "unknown", RecoveryAction::ResubmitSameId),
            (Standing::Unspecified, None, "unknown", RecoveryAction::ResubmitSameId),
        ];
        for (standing, operation, expected, next) in rows {
            let response = GetOperationResponse {
                standing: standing.into(),
                operation,
                ..GetOperationResponse::default()
            };
            let outcome = Outcome::of_look_up(&identity(), response);
            assert_eq!((word(&outcome), outcome.next_step()), (expected, next), "{standing:?}");
        }
    }

    #[test]
    fn the_services_own_words_go_first() {
        let recovery =
            Recovery { action: RecoveryAction::Wait.into(), text: "its own words".to_owned() };
        let response = SubmitOperationResponse {
            operation: operation(State::Accepted.into()),
            recovery: Some(recovery),
            ..SubmitOperationResponse::default()
        };
        let outcome = Outcome::of_submitted(&identity(), Submitted { response, attempts: 1 });
        assert_eq!(outcome.to_string(), "its own words");
        assert_eq!(outcome.next_step(), RecoveryAction::Wait);
    }
}
