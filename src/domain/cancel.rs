//! Cancelling: only what has not begun; the answer is the state in force (contract section 4). An
//! id without a record is refused, or sealed.

use super::{
    command::{CancelOutcome, Decided, IfAbsent, Reply},
    decide::{Missing, record_events},
    finish,
    ids::MintTime,
    intent::IntentPart,
    operation::{Operation, OperationKey, OperationState, Outcome},
    refusal::Refusal,
    release, seal, standing,
    world::{World, needs::Access},
};

/// Decides a cancel.
pub(super) fn cancel(
    world: &mut World,
    key: &OperationKey,
    mint_time: MintTime,
    (reason, subject): (&str, &str),
    if_absent: IfAbsent,
) -> Decided<Reply> {
    let Some(mut operation) = world.operation(key, Access::Write)?.cloned() else {
        return absent(world, key, mint_time, (reason, subject), if_absent);
    };
    if operation.mint_time != mint_time {
        return Err(Refusal::IntentMismatch { differs: vec![IntentPart::MintTime] }.into());
    }
    let outcome = match operation.state {
        OperationState::Cancelled => CancelOutcome::Cancelled,
        OperationState::Applied
        | OperationState::Rejected
        | OperationState::Failed
        | OperationState::Running
        | OperationState::Unknown => CancelOutcome::TooLate,
        OperationState::Accepted => {
            let outcome = Outcome::Cancelled { reason: reason.to_owned() };
            let delivery = end_waiting(world, &mut operation, outcome, subject)?;
            return Ok(Reply::Cancelled {
                outcome: CancelOutcome::Cancelled,
                operation: Box::new(operation),
                delivery: delivery.map(Box::new),
            });
        }
    };
    Ok(Reply::Cancelled { outcome, operation: Box::new(operation), delivery: None })
}

/// A cancel of an id without a record.
fn absent(
    world: &mut World,
    key: &OperationKey,
    mint_time: MintTime,
    (reason, subject): (&str, &str),
    if_absent: IfAbsent,
) -> Decided<Reply> {
    match if_absent {
        IfAbsent::Seal => {
            let operation = Box::new(seal::seal(world, key, mint_time, reason, subject)?);
            let outcome = CancelOutcome::Cancelled;
            Ok(Reply::Cancelled { outcome, operation, delivery: None })
        }
        IfAbsent::Refuse => {
            let (account, policy) = (world.account(&key.account)?, world.policy(&key.account)?);
            let refusal =
                standing::refuse_absent(mint_time, account, &policy, world.loss(), world.now());
            Err(refusal.into())
        }
    }
}

/// Ends an ACCEPTED operation that has not begun: takes it out of the queue, and queues its news.
pub(super) fn end_waiting(
    world: &mut World,
    operation: &mut Operation,
    outcome: Outcome,
    subject: &str,
) -> Decided<Option<super::delivery::Delivery>> {
    let mut missing = Missing::default();
    missing.note(world.lock(&operation.target_key()));
    missing.note(world.policy(&operation.key.account));
    if let Some(inbox) = operation.inbox_key() {
        missing.note(world.inbox(&inbox));
    }
    missing.check()?;
    release::leave_queue(world, operation)?;
    let mut events = Vec::new();
    let delivery = finish::finish(world, operation, outcome, &mut events)?;
    record_events(world, operation, subject, &events);
    world.put_operation(operation.clone())?;
    Ok(delivery)
}
