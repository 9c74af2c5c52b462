//! An account's evidence floor, raised by hand (contract section 3).
//!
//! What must stay true: it only rises; what has a record keeps it and answers as before. Everything
//! minted up to it that has none answers EVIDENCE_EXPIRED from then on and executes never more: what
//! an operator says who knows that records of that time were lost. The raise and its reason stand in
//! the account's own audit chain, or neither does.

use super::{
    audit::{AuditChain, AuditEvent, AuditKind, append},
    command::{Decided, FloorRaise, FloorRaised, Intention, Reply},
    ids::{Invalid, Timestamp},
    inbox::AccountRow,
    record,
    refusal::Refusal,
    spans::{format_span, format_time},
    submit::ensure_account,
    world::World,
};

/// Decides a raise. A floor that is as high already stays, and nothing is written.
pub(super) fn raise(world: &mut World, raise: &FloorRaise) -> Decided<Reply> {
    world.account_to_change(&raise.account)?;
    let (now, skew) = (world.now(), world.policy(&raise.account)?.max_clock_skew);
    if raise.floor > now + skew {
        // No id of that time could be accepted, so that none of them can have been lost.
        let problem = format!(
            "must be at most max_clock_skew ({}) ahead of the store's clock, which says {}",
            format_span(skew),
            format_time(now)
        );
        return Err(Refusal::Invalid(Invalid::new("floor", problem)).into());
    }
    let before = ensure_account(world, &raise.account)?;
    let (floor_before, floor) = (before.evidence_floor, before.evidence_floor.max(raise.floor));
    if floor > floor_before {
        let events = [
            event(format!("evidence floor from {} to {}", told(floor_before), told(floor))),
            event(format!("reason: {}", raise.reason)),
        ];
        let chain = AuditChain::Account(raise.account.clone());
        let packed = record::pack_events(&events);
        let (row, audit) = append(before.audit, &chain, now, &raise.subject, packed);
        world.add_audit(row);
        world.put_account(AccountRow { evidence_floor: floor, audit, ..before })?;
    }
    if raise.intention == Intention::ValidateOnly {
        world.undo();
    }
    Ok(Reply::FloorRaised(FloorRaised { before: floor_before, after: floor }))
}

fn event(text: String) -> AuditEvent {
    AuditEvent { text, ..AuditEvent::plain(AuditKind::EvidenceFloorRaised) }
}

fn told(floor: Timestamp) -> String {
    match floor {
        Timestamp::BEGINNING => "none".to_owned(),
        floor => format_time(floor),
    }
}
