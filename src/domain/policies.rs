//! A policy of an account's own: how it changes (contract sections 8 and 9).
//!
//! What must stay true: what is in force is checked as a whole, an account's own settings together
//! with the server's; a change is in the account's row and in its audit chain, or in neither. It
//! never touches the evidence floor or `closed_before`: a wider window opens nothing that was
//! closed. What was decided before keeps the times that it was given.

use super::{
    audit::{AuditChain, AuditEvent, AuditKind, append},
    closing,
    command::{Decided, Intention, PolicyUpdate, PolicyUpdated, Reply},
    ids::Invalid,
    inbox::AccountRow,
    policy::{Policy, PolicyFault},
    record,
    refusal::Refusal,
    settings::{OwnSettings, Setting},
    submit::ensure_account,
    world::World,
};

/// Decides a change of an account's policy. One that changes nothing writes nothing.
pub(super) fn update(world: &mut World, update: &PolicyUpdate) -> Decided<Reply> {
    world.account_to_change(&update.account)?;
    let before = ensure_account(world, &update.account)?;
    let own = before.own.clone().changed(&update.change);
    let policy = own.over(world.defaults());
    policy.check().map_err(refusal)?;
    let row = match before.own == own {
        true => before,
        false => change(world, update, before, own, &policy)?,
    };
    if update.intention == Intention::ValidateOnly {
        world.undo();
    }
    Ok(Reply::PolicyUpdated(Box::new(PolicyUpdated { row, policy })))
}

fn change(
    world: &mut World,
    update: &PolicyUpdate,
    before: AccountRow,
    own: OwnSettings,
    policy: &Policy,
) -> Decided<AccountRow> {
    let was = before.own.over(world.defaults());
    let mut events: Vec<AuditEvent> = Setting::ALL
        .into_iter()
        .filter_map(|setting| {
            let from = told(setting, &before.own, &was);
            let to = told(setting, &own, policy);
            (from != to).then(|| event(format!("{} from {from} to {to}", setting.name())))
        })
        .collect();
    if !update.reason.is_empty() {
        events.push(event(format!("reason: {}", update.reason)));
    }
    let chain = AuditChain::Account(update.account.clone());
    let packed = record::pack_events(&events);
    let (row, audit) = append(before.audit, &chain, world.now(), &update.subject, packed);
    world.add_audit(row);
    // A shorter window closes sooner, and a longer one later.
    let due_time = closing::due(policy, before.closed_before);
    let after = AccountRow { own, audit, due_time, ..before };
    world.put_account(after.clone())?;
    Ok(after)
}

fn event(text: String) -> AuditEvent {
    AuditEvent { text, ..AuditEvent::plain(AuditKind::PolicyChanged) }
}

/// A setting in force, and whether it is the account's own.
fn told(setting: Setting, own: &OwnSettings, policy: &Policy) -> String {
    let value = setting.shown(policy);
    match own.has(setting) {
        true => value,
        false => format!("the default ({value})"),
    }
}

fn refusal(fault: PolicyFault) -> Refusal {
    match fault {
        PolicyFault::OutOfRange { setting, problem } => {
            let known = Setting::ALL.into_iter().find(|known| known.name() == setting);
            let field = known.map_or(setting, Setting::field);
            Refusal::Invalid(Invalid::new(format!("policy.{field}"), problem))
        }
        PolicyFault::Contradiction { setting, other, problem } => {
            Refusal::PolicyContradiction { setting, other, problem }
        }
    }
}
