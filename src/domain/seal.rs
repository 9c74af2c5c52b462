//! Sealing: an id without a record is recorded as CANCELLED, so that no submit under it can execute
//! any more, also one that is still on its way (contract section 3).
//!
//! What must stay true: a seal is admitted like a submit, under the id's lock; it has no intent, no
//! target, no inbox and no news. Whatever submit comes later replays it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    audit::{AuditEvent, AuditHead, AuditKind},
    command::Decided,
    decide::record_events,
    finish,
    ids::{MintTime, Target},
    intent::{IntentDigest, LockMode},
    operation::{
        Arguments, EffectCertainty, Operation, OperationKey, OperationState, Outcome, ResultKind,
        Retained,
    },
    standing,
    submit::ensure_account,
    world::World,
};

/// Seals an id that has no record: the operation as it is recorded.
pub(super) fn seal(
    world: &mut World,
    key: &OperationKey,
    mint_time: MintTime,
    reason: &str,
    subject: &str,
) -> Decided<Operation> {
    let (account, policy) = (world.account(&key.account)?, world.policy(&key.account)?);
    standing::admit(mint_time, account, &policy, world.loss(), world.now())?;
    ensure_account(world, &key.account)?;
    let mut operation = without_intent(world, key, mint_time);
    let mut events = vec![AuditEvent::plain(AuditKind::Sealed)];
    let outcome = Outcome::Cancelled { reason: reason.to_owned() };
    finish::finish(world, &mut operation, outcome, &mut events)?;
    record_events(world, &mut operation, subject, &events);
    world.put_operation(operation.clone())?;
    Ok(operation)
}

fn without_intent(world: &World, key: &OperationKey, mint_time: MintTime) -> Operation {
    let now = world.now();
    Operation {
        key: key.clone(),
        mint_time,
        digest: IntentDigest::NONE,
        action: String::new(),
        target: Target::from_stored(""),
        expected_revision: None,
        content_type: String::new(),
        arguments: Arguments::Inline(Bytes::new()),
        lock_mode: LockMode::UntilFinal,
        result_kind: ResultKind::Receipt,
        inbox: None,
        labels: BTreeMap::new(),
        accept_time: now,
        start_deadline: now,
        state: OperationState::Accepted,
        certainty: EffectCertainty::None,
        outcome_version: 0,
        outcome: None,
        result: None,
        end_time: None,
        due_time: None,
        wait_ticket: None,
        delivery_sequence: None,
        audit: AuditHead::default(),
        replay_count: 0,
        last_replay_time: None,
        retained: Retained::Whole,
    }
}
