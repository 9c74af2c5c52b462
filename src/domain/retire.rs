//! How records age (contract sections 3 and 8): some time after its end a record becomes its
//! tombstone, later its trail goes, and at last the tombstone.
//!
//! What must stay true: each step is forward only, and each id stays answered. A tombstone keeps
//! what an answer and the receipt need, so that a submit under it replays, and only what was sent
//! and what the result held is gone. With the last of it the account's evidence floor rises over
//! the id, in the same transaction; it never rises into the admission window, so that no id which
//! may still be accepted is refused for one that is gone. What is not known never ages, and nothing
//! ages while its news is open.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    closing,
    command::{Decided, Reply, Swept},
    decide::Missing,
    ids::Timestamp,
    inbox::AccountRow,
    operation::{Arguments, Operation, OperationState, Retained},
    policy::Policy,
    world::{World, needs::Unloaded},
};

/// What time does next to a record that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It becomes its tombstone.
    Compact,
    /// Its trail goes; the tombstone stays.
    DropTrail,
    /// The tombstone goes.
    Delete,
}

/// The next step of a record, and when it may be taken; `None`: it never ages as it is.
fn next(operation: &Operation, policy: &Policy) -> Option<(Step, Timestamp)> {
    let end = operation.end_time?;
    if operation.state == OperationState::Unknown {
        return None;
    }
    let compacted = end + policy.record_retention;
    let trail_gone = end + policy.audit_retention;
    // Not within the admission window of the id, whatever its clock said: the floor rises to it.
    let minted = operation.mint_time.to_timestamp();
    let closed = minted + policy.admission_window + closing::MARGIN;
    let deleted = (end + policy.tombstone_retention).max(closed);
    Some(match operation.retained {
        Retained::Whole => (Step::Compact, compacted),
        Retained::Tombstone if trail_gone < deleted => (Step::DropTrail, trail_gone),
        Retained::Tombstone | Retained::WithoutTrail => (Step::Delete, deleted),
    })
}

/// When the sweep has to look at a record that has ended.
pub(super) fn due(operation: &Operation, policy: &Policy) -> Option<Timestamp> {
    next(operation, policy).map(|(_, time)| time)
}

/// A record that has ended, and whose time may have come.
pub(super) fn sweep(world: &mut World, operation: Operation) -> Decided<Reply> {
    let nothing = Ok(Reply::Swept(Swept::Nothing));
    let policy = world.policy(&operation.key.account)?;
    let now = world.now();
    if operation.due_time.is_none_or(|time| time > now) {
        return nothing;
    }
    let Some((step, time)) = next(&operation, &policy) else {
        return look_again(world, operation, None);
    };
    if time > now {
        // Its retention was prolonged meanwhile. What was shortened keeps the time it was given.
        return look_again(world, operation, Some(time));
    }
    let mut missing = Missing::default();
    let open = missing.note(open_until(world, &operation)).flatten();
    if step == Step::Delete {
        missing.note(world.account_to_change(&operation.key.account));
    }
    missing.check()?;
    if let Some(open) = open {
        return look_again(world, operation, Some(open.max(now + policy.ack_deadline)));
    }
    match step {
        Step::Compact => compact(world, operation, &policy),
        Step::DropTrail => drop_trail(world, operation, &policy),
        Step::Delete => delete(world, &operation),
    }
}

/// Until when the news of it can be open; `None`: it is not.
pub(super) fn open_until(
    world: &World,
    operation: &Operation,
) -> Result<Option<Timestamp>, Unloaded> {
    let Some(key) = operation.delivery_key() else { return Ok(None) };
    let open = world.delivery(&key)?.filter(|delivery| delivery.state.is_open());
    Ok(open.map(|delivery| delivery.expire_time))
}

fn look_again(
    world: &mut World,
    operation: Operation,
    due_time: Option<Timestamp>,
) -> Decided<Reply> {
    world.put_operation(Operation { due_time, ..operation })?;
    Ok(Reply::Swept(Swept::Nothing))
}

fn compact(world: &mut World, operation: Operation, policy: &Policy) -> Decided<Reply> {
    world.empty_operation(tombstone(operation, policy))?;
    Ok(Reply::Swept(Swept::Compacted))
}

/// What is left of a record: all but what was sent, what the result held, and the labels.
pub(super) fn tombstone(operation: Operation, policy: &Policy) -> Operation {
    let mut left = Operation {
        retained: Retained::Tombstone,
        arguments: Arguments::Inline(Bytes::new()),
        labels: BTreeMap::new(),
        ..operation
    };
    left.due_time = due(&left, policy);
    left
}

fn drop_trail(world: &mut World, operation: Operation, policy: &Policy) -> Decided<Reply> {
    let mut left = Operation { retained: Retained::WithoutTrail, ..operation };
    left.due_time = due(&left, policy);
    world.drop_trail(left.key.clone());
    world.put_operation(left)?;
    Ok(Reply::Swept(Swept::TrailRemoved))
}

/// The last of it goes, and the floor rises over its id (R45, R46).
fn delete(world: &mut World, operation: &Operation) -> Decided<Reply> {
    let key = &operation.key;
    // Without the account's row nothing could say afterwards that the id was used.
    let Some(account) = world.account_to_change(&key.account)?.cloned() else {
        return Ok(Reply::Swept(Swept::Nothing));
    };
    let minted = operation.mint_time.to_timestamp();
    if minted > account.evidence_floor {
        world.put_account(AccountRow { evidence_floor: minted, ..account })?;
    }
    world.drop_trail(key.clone());
    world.delete_operation(key)?;
    Ok(Reply::Swept(Swept::Forgotten))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ids::Span, sample};

    const END: Timestamp = Timestamp(1_700_000_100_000_000);

    fn ended(retained: Retained) -> Operation {
        let state = OperationState::Applied;
        Operation { state, end_time: Some(END), retained, ..sample::operation("a") }
    }

    #[test]
    fn each_step_has_its_time_and_what_is_not_known_has_none() {
        let policy = Policy::default();
        let sooner = Policy { audit_retention: Span::days(90), ..Policy::default() };
        let later = Policy { audit_retention: Span::days(900), ..Policy::default() };
        let (record, trail, last) = (Span::days(30), Span::days(90), Span::days(400));
        for (retained, policy, expected) in [
            (Retained::Whole, &policy, (Step::Compact, END + record)),
            (Retained::Whole, &sooner, (Step::Compact, END + record)),
            // With the last of it, if it is not to go before.
            (Retained::Tombstone, &policy, (Step::Delete, END + last)),
            (Retained::Tombstone, &later, (Step::Delete, END + last)),
            (Retained::Tombstone, &sooner, (Step::DropTrail, END + trail)),
            (Retained::WithoutTrail, &sooner, (Step::Delete, END + last)),
        ] {
            assert_eq!(next(&ended(retained), policy), Some(expected), "{retained:?}");
        }
        for operation in [
            sample::operation("a"),
            Operation { state: OperationState::Unknown, ..ended(Retained::Whole) },
        ] {
            assert_eq!(due(&operation, &policy), None, "{:?}", operation.state);
        }
    }

    #[test]
    fn nothing_goes_while_its_id_could_still_be_accepted() {
        let policy = Policy {
            admission_window: Span::seconds(10),
            record_retention: Span::seconds(20),
            audit_retention: Span::seconds(20),
            tombstone_retention: Span::seconds(30),
            ..Policy::default()
        };
        // Minted by a clock that goes ahead.
        let ahead = END + Span::minutes(4);
        let mint_time = crate::domain::ids::MintTime::from_timestamp(ahead);
        let operation = Operation { mint_time, ..ended(Retained::WithoutTrail) };
        let (_, time) = next(&operation, &policy).expect("it ages");
        assert_eq!(time, ahead + policy.admission_window + closing::MARGIN);
    }
}
