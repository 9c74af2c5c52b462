//! What is known about an operation, what is not, and the one safe next call (R10).
//!
//! What must stay true: the step and its sentence come from the table of [`super::advice`]. Texts name
//! the operation and its target, never a stored value.

use super::{
    advice::Advice,
    command::Origin,
    document::DocumentChange,
    ids::OperationId,
    lock::Lock,
    operation::{EffectCertainty, Operation, OperationState, Outcome, Rejection, RejectionReason},
    refusal::{Recovery, Refusal},
    standing::{Admission, Answer, Standing},
};

/// The target as it is now, apart from the receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projected {
    /// Whether a document exists.
    pub exists: bool,
    /// Its revision; 0 if the path was never used.
    pub revision: i64,
    /// Its generation.
    pub generation: i64,
}

/// What stands beside the operation in an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances<'a> {
    /// How a submit was answered; absent for every other call.
    pub origin: Option<Origin>,
    /// The target now, if the caller may see it.
    pub projected: Option<Projected>,
    /// Who holds the target.
    pub waiting_for: Option<&'a Lock>,
}

/// The next step for a recorded operation.
pub fn of_operation(operation: &Operation, beside: Circumstances<'_>) -> Recovery {
    let id = &operation.key.id;
    let (advice, known) = match (&operation.outcome, operation.state) {
        (Some(Outcome::Applied(change)), _) => applied(operation, change, beside.projected),
        (Some(Outcome::Rejected(rejection)), _) => (
            of_rejection(rejection),
            format!(
                "Operation {id} was rejected ({}) and had no effect; its id is spent.",
                rejection.reason.word()
            ),
        ),
        (Some(Outcome::Cancelled { .. }), _) if operation.is_sealed() => (
            Advice::Cancelled,
            format!(
                "Operation {id} was sealed before any submit was accepted: it had no effect, and \
                 no submit under this id can have one."
            ),
        ),
        (Some(Outcome::Cancelled { .. }), _) => (
            Advice::Cancelled,
            format!("Operation {id} was cancelled before it began and had no effect."),
        ),
        (None, OperationState::Accepted) => (Advice::Unfinished, waiting(id, beside.waiting_for)),
        (None, OperationState::Running) => (
            Advice::Unfinished,
            format!("Operation {id} is running; its outcome is not known yet."),
        ),
        (None, OperationState::Unknown) => (
            Advice::NotKnown,
            format!("Whether operation {id} had its effect is not known, and no retry can tell."),
        ),
        (None, OperationState::Failed) => failed(operation),
        // A final state always has its outcome; its absence would be a fault of ours, and doubt
        // is said as doubt.
        (None, OperationState::Applied | OperationState::Rejected | OperationState::Cancelled) => {
            (Advice::Unreadable, format!("Operation {id} ended, and its outcome cannot be shown."))
        }
    };
    let text = format!("{known} {}{}", advice.next(), repeated(operation, beside.origin));
    Recovery { action: advice.action(), text }
}

/// The next step for an id without a record, by what the table of standings says of it.
pub fn of_absent(id: &OperationId, answer: &Answer) -> Recovery {
    let (advice, known) = match (answer.standing, &answer.submit) {
        (Standing::NeverAccepted, _) => (
            Advice::NeverAccepted,
            "it was never accepted and had no effect, and no submit under this id can be accepted \
             any more"
                .to_owned(),
        ),
        (Standing::EvidenceExpired, _) => (
            Advice::EvidenceGone,
            "records of that time are no longer kept, so it may have been executed".to_owned(),
        ),
        (_, Admission::Refused(refusal @ Refusal::ClockSkew { .. })) => {
            (Advice::Ahead, refusal.text())
        }
        (_, Admission::Refused(refusal)) => (
            Advice::ClosedNotProven,
            format!(
                "{}: no submit is accepted any more, but one may have been on its way",
                refusal.text()
            ),
        ),
        (_, Admission::Executes | Admission::Replays) => {
            (Advice::MayArrive, "a submit may still be on its way".to_owned())
        }
    };
    let text = format!("There is no record of operation {id}; {known}. {}", advice.next());
    Recovery { action: advice.action(), text }
}

/// The next step for a submit that was only tried.
pub fn of_trial(operation: &Operation) -> Recovery {
    let id = &operation.key.id;
    let (advice, would) = match (&operation.outcome, operation.state) {
        (Some(Outcome::Rejected(rejection)), _) => {
            let advice = match of_rejection(rejection) {
                Advice::RejectedStale => Advice::TrialStale,
                _ => Advice::TrialWrong,
            };
            let reason = rejection.reason.word();
            (advice, format!("end REJECTED ({reason}), and its id would be spent"))
        }
        (_, OperationState::Accepted) => {
            (Advice::TrialGood, "stay ACCEPTED until its target is free".to_owned())
        }
        (_, state) => (Advice::TrialGood, format!("end {}", state.word())),
    };
    let next = advice.next();
    Recovery {
        action: advice.action(),
        text: format!(
            "Nothing was changed. Sent for real now, operation {id} would {would}. {next}"
        ),
    }
}

fn applied(
    operation: &Operation,
    change: &DocumentChange,
    projected: Option<Projected>,
) -> (Advice, String) {
    let (id, target) = (&operation.key.id, operation.target.as_str());
    let revision = change.result_revision;
    let did = match change.hash_after.is_empty() {
        true => format!("Operation {id} was applied: it deleted {target}, as revision {revision}"),
        false => format!("Operation {id} was applied at revision {revision} of {target}"),
    };
    let now = match projected {
        Some(now) if !now.exists && !change.hash_after.is_empty() => {
            "; the document has been deleted since".to_owned()
        }
        Some(now) if now.revision != revision => {
            format!("; the document is now at revision {}", now.revision)
        }
        Some(_) | None => String::new(),
    };
    let had_body = operation.result.as_ref().is_some_and(|result| result.kept);
    match had_body && operation.body().is_none() {
        true => {
            let gone = "The body of its result is no longer kept.";
            (Advice::BodyGone, format!("{did}{now}. {gone}"))
        }
        false => (Advice::Applied, format!("{did}{now}.")),
    }
}

fn of_rejection(rejection: &Rejection) -> Advice {
    match rejection.reason {
        RejectionReason::RevisionMismatch | RejectionReason::EditOutOfRange => {
            Advice::RejectedStale
        }
        RejectionReason::DocumentMissing
        | RejectionReason::PatchFailed
        | RejectionReason::DocumentTooLarge
        | RejectionReason::ContentKind => Advice::RejectedWrong,
        RejectionReason::StartDeadline => Advice::RejectedLate,
    }
}

fn failed(operation: &Operation) -> (Advice, String) {
    let id = &operation.key.id;
    match operation.certainty {
        EffectCertainty::None => {
            (Advice::FailedWithoutEffect, format!("Operation {id} failed and had no effect."))
        }
        EffectCertainty::Complete | EffectCertainty::Partial | EffectCertainty::Unknown => (
            Advice::FailedInPart,
            format!("Operation {id} failed, and a part of its effect may have happened."),
        ),
    }
}

fn waiting(id: &OperationId, lock: Option<&Lock>) -> String {
    match lock.and_then(|lock| lock.holder.as_ref()) {
        Some(holder) => format!(
            "Operation {id} is recorded and has had no effect yet: it waits for its target, which \
             operation {} holds.",
            holder.operation_id
        ),
        None => format!("Operation {id} is recorded and has had no effect yet."),
    }
}

fn repeated(operation: &Operation, origin: Option<Origin>) -> &'static str {
    match (origin, operation.state.ends_the_wait()) {
        (Some(Origin::Replayed | Origin::Attached), true) => {
            " An earlier call caused this; nothing was executed again."
        }
        (Some(Origin::Attached), false) => {
            " This call joined the work that an earlier one began; nothing is executed twice."
        }
        (Some(Origin::Replayed), false) | (Some(Origin::Executed) | None, _) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        ids::{Span, Timestamp},
        refusal::RecoveryAction,
        sample::operation,
    };

    fn change(revision: i64) -> DocumentChange {
        DocumentChange {
            base_revision: revision - 1,
            result_revision: revision,
            generation: 1,
            size_before: 0,
            size_after: 1,
            hash_before: Vec::new(),
            hash_after: vec![1],
            edits: 1,
        }
    }

    fn ended(outcome: Outcome) -> Operation {
        let (state, certainty) = (outcome.state(), outcome.certainty());
        Operation { state, certainty, outcome: Some(outcome), ..operation("op-1") }
    }

    fn rejection(reason: RejectionReason) -> Outcome {
        Outcome::Rejected(Rejection { reason, text: String::new(), found_revision: None })
    }

    #[test]
    fn an_applied_operation_tells_its_revision_and_the_one_of_now() {
        let operation = ended(Outcome::Applied(change(13)));
        let beside = Circumstances {
            origin: Some(Origin::Executed),
            projected: Some(Projected { exists: true, revision: 14, generation: 1 }),
            waiting_for: None,
        };
        let recovery = of_operation(&operation, beside);
        assert_eq!(recovery.action, RecoveryAction::ShowResult);
        assert_eq!(
            recovery.text,
            "Operation op-1 was applied at revision 13 of notes/a; the document is now at \
             revision 14. Show the result."
        );
        let replay = Circumstances { origin: Some(Origin::Replayed), ..beside };
        assert!(of_operation(&operation, replay).text.ends_with("nothing was executed again."));
    }

    #[test]
    fn every_state_has_its_next_step() {
        let accepted = operation("op-1");
        let state = |state| Operation { state, ..operation("op-1") };
        let failed = |certainty| Operation { certainty, ..state(OperationState::Failed) };
        for (operation, action) in [
            (accepted, RecoveryAction::Wait),
            (state(OperationState::Running), RecoveryAction::Wait),
            (state(OperationState::Unknown), RecoveryAction::Reconcile),
            (failed(EffectCertainty::None), RecoveryAction::NewIdSafe),
            (failed(EffectCertainty::Partial), RecoveryAction::AskHuman),
            (ended(Outcome::Applied(change(1))), RecoveryAction::ShowResult),
            (ended(Outcome::Cancelled { reason: String::new() }), RecoveryAction::NewIdSafe),
            (ended(rejection(RejectionReason::RevisionMismatch)), RecoveryAction::ReadCurrentState),
            (ended(rejection(RejectionReason::StartDeadline)), RecoveryAction::NewIdSafe),
            (ended(rejection(RejectionReason::PatchFailed)), RecoveryAction::NewIdSafe),
        ] {
            let recovery = of_operation(&operation, Circumstances::default());
            assert_eq!(recovery.action, action, "{:?}", operation.state);
            assert!(recovery.text.contains("op-1"));
        }
    }

    #[test]
    fn a_trial_that_would_be_rejected_is_not_advised() {
        let trial = of_trial(&ended(rejection(RejectionReason::RevisionMismatch)));
        assert_eq!(trial.action, RecoveryAction::ReadCurrentState);
        assert!(trial.text.contains("Do not send it"), "{}", trial.text);
        let trial = of_trial(&ended(Outcome::Applied(change(1))));
        assert_eq!(trial.action, RecoveryAction::ResubmitSameId);
    }

    #[test]
    fn an_absent_id_is_never_told_to_take_a_new_one_in_doubt() {
        let id = OperationId::parse("op-1").expect("valid");
        let (now, span) = (Timestamp(0), Span::seconds(1));
        let closed = |standing| {
            let closed_before = None;
            Admission::Refused(Refusal::AdmissionClosed {
                store_time: now,
                window: span,
                closed_before,
                standing,
            })
        };
        let skew = Refusal::ClockSkew { store_time: now, limit: span };
        let expired = Refusal::EvidenceExpired { floor: now };
        let (waits, never) = (Standing::NotAcceptedYet, Standing::NeverAccepted);
        for (standing, submit, action) in [
            (waits, Admission::Executes, RecoveryAction::ResubmitSameId),
            (waits, closed(waits), RecoveryAction::Wait),
            (waits, Admission::Refused(skew), RecoveryAction::FixRequest),
            (
                Standing::EvidenceExpired,
                Admission::Refused(expired),
                RecoveryAction::ReadCurrentState,
            ),
            (never, closed(never), RecoveryAction::NewIdSafe),
        ] {
            let recovery = of_absent(&id, &Answer { standing, submit });
            assert_eq!(recovery.action, action);
            assert!(recovery.text.contains("op-1"));
            let new_id = recovery.text.contains("new id");
            assert_eq!(new_id, standing == never, "{}", recovery.text);
        }
    }

    #[test]
    fn a_sealed_id_says_that_nothing_under_it_can_have_an_effect() {
        let cancelled = ended(Outcome::Cancelled { reason: String::new() });
        let sealed = Operation { digest: crate::domain::intent::IntentDigest::NONE, ..cancelled };
        let recovery = of_operation(&sealed, Circumstances::default());
        assert_eq!(recovery.action, RecoveryAction::NewIdSafe);
        assert!(recovery.text.starts_with("Operation op-1 was sealed"), "{}", recovery.text);
    }
}
