//! Payloads that are erased because somebody asks for it: an early tombstone.
//!
//! What must stay true: what was sent, what the result held and the labels go; state, digests, revisions,
//! times and the trail stay, so that the id is answered as before and never executes again. Who did it,
//! and why, stands in the operation's trail, in the same transaction. Nothing is taken from what has not
//! ended or is not known, nor from under a reader whose news is open.

use super::{
    audit::{AuditEvent, AuditKind},
    command::{Decided, Erased, Erasure, Reply},
    decide::{Missing, record_events},
    operation::{OperationState, Retained},
    retire,
    world::{World, needs::Access},
};

/// Decides the erasure of one operation's payloads; harmless to repeat.
pub(super) fn erase(world: &mut World, erasure: &Erasure) -> Decided<Reply> {
    let told = |erased| Ok(Reply::Erased(erased));
    let Some(operation) = world.operation(&erasure.key, Access::Write)?.cloned() else {
        return told(Erased::NoRecord);
    };
    if operation.retained != Retained::Whole {
        return told(Erased::Before);
    }
    if operation.end_time.is_none() || operation.state == OperationState::Unknown {
        return told(Erased::Unresolved);
    }
    let mut missing = Missing::default();
    let open = missing.note(retire::open_until(world, &operation)).flatten();
    let policy = missing.note(world.policy(&operation.key.account));
    missing.check()?;
    if open.is_some() {
        return told(Erased::NewsOpen);
    }
    let Some(policy) = policy else { return told(Erased::NoRecord) };
    let mut tombstone = retire::tombstone(operation, &policy);
    let text = format!("reason: {}", erasure.reason);
    let event = AuditEvent { text, ..AuditEvent::plain(AuditKind::Erased) };
    record_events(world, &mut tombstone, &erasure.subject, &[event]);
    world.empty_operation(tombstone)?;
    told(Erased::Now)
}
