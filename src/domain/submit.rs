//! A submit: claim an id and execute, join unfinished work, or replay the stored receipt.
//!
//! What must stay true: the order of checks of contract section 2. Every refusal that leaves no
//! record comes before every outcome that is recorded; from the first stored row on the id is
//! spent.

use super::{
    audit::{AuditEvent, AuditHead, AuditKind},
    command::{BODY_WEIGHT, Decided, Intention, OnLocked, Origin, Reply, Submit, Submitted},
    decide::record_events,
    delivery::InboxKey,
    document::DocumentAction,
    finish,
    ids::Span,
    inbox::AccountRow,
    inboxes,
    intent::IntentPart,
    lock::{Lock, TargetKey},
    operation::{
        Arguments, EffectCertainty, INLINE_BYTES_MAX, Operation, OperationState, PayloadKind,
        ResultKind, Retained,
    },
    policy::Policy,
    refusal::Refusal,
    spans::not_within,
    standing::{self, Evidence},
    world::{
        World,
        needs::{Access, Body},
    },
};

impl Submit {
    /// The size of the result's body as far as the request alone tells it: a put's content.
    pub fn result_bytes(&self) -> usize {
        match (self.result, &self.action) {
            (ResultKind::Content, DocumentAction::Put { content, .. }) => content.len(),
            (ResultKind::Receipt | ResultKind::Content, _) => 0,
        }
    }

    /// What the result's body weighs in the limit of a batch; see [`BODY_WEIGHT`].
    pub(super) fn result_weight(&self) -> usize {
        match self.result {
            ResultKind::Content if self.action.reads_content() => BODY_WEIGHT,
            ResultKind::Receipt | ResultKind::Content => self.result_bytes(),
        }
    }
}

/// Decides a submit.
pub(super) fn submit(world: &mut World, submit: &Submit) -> Decided<Reply> {
    if let Some(operation) = world.operation(&submit.key, Access::Read)?.cloned() {
        return replay(world, submit, operation);
    }
    let submitted = first(world, submit)?;
    if submit.intention == Intention::ValidateOnly {
        world.undo();
    }
    Ok(Reply::Submitted(Box::new(submitted)))
}

/// The id has a record: attach, replay, or refuse another intent.
fn replay(world: &World, submit: &Submit, operation: Operation) -> Decided<Reply> {
    let sealed = operation.is_sealed();
    // A sealed id has no intent that another could differ from; its mint time is its identity.
    let mut differs = match sealed {
        true => Vec::new(),
        false => operation.digest.differs(&submit.digest),
    };
    if operation.mint_time != submit.mint_time {
        differs.push(IntentPart::MintTime);
    }
    let same = sealed || operation.digest.whole == submit.digest.whole;
    if !differs.is_empty() || !same {
        return Err(Refusal::IntentMismatch { differs }.into());
    }
    let waiting_for = match operation.wait_ticket {
        Some(_) => world.lock(&target_key(submit))?.cloned(),
        None => None,
    };
    let ended = operation.state.ends_the_wait();
    Ok(Reply::Submitted(Box::new(Submitted {
        origin: if ended { Origin::Replayed } else { Origin::Attached },
        // A sealed id has no news, so there is no inbox that could stay in place.
        other_inbox: submit.inbox.clone().filter(|_| !sealed && submit.inbox != operation.inbox),
        operation,
        delivery: None,
        waiting_for,
        projection: None,
        intention: submit.intention,
        evidence: evidence(world, submit)?,
    })))
}

fn evidence(world: &World, submit: &Submit) -> Decided<Evidence> {
    let account = &submit.key.account;
    Ok(Evidence::of(world.account(account)?, &world.policy(account)?, world.loss()))
}

fn target_key(submit: &Submit) -> TargetKey {
    TargetKey { account: submit.key.account.clone(), target: submit.intent.target.clone() }
}

/// The id has no record.
fn first(world: &mut World, submit: &Submit) -> Decided<Submitted> {
    // Not before the record is looked for: a limit that was lowered must not hide a receipt.
    let policy = world.policy(&submit.key.account)?;
    let (size, limit) = (submit.intent.arguments.len(), policy.arguments_bytes_max);
    if size > limit {
        return Err(Refusal::PayloadTooLarge { field: "intent.arguments", size, limit }.into());
    }
    check_result(submit, &policy)?;
    check_start_deadline(submit, &policy)?;
    let account = world.account(&submit.key.account)?.cloned();
    standing::admit(submit.mint_time, account.as_ref(), &policy, world.loss(), world.now())?;
    if let Some(inbox) = &submit.inbox {
        let key = InboxKey { account: submit.key.account.clone(), inbox: inbox.clone() };
        take_slot(world, &key, &policy)?;
    } else {
        ensure_account(world, &submit.key.account)?;
    }
    let target = target_key(submit);
    let lock = world.lock(&target)?.cloned();
    match lock {
        Some(lock) if submit.on_locked == OnLocked::Fail => {
            Err(Refusal::TargetLocked { lock: Box::new(lock) }.into())
        }
        Some(lock) => wait(world, submit, lock, &policy),
        None => execute(world, submit, &target, &policy),
    }
}

/// A result that is too large for certain is refused before any effect (F07). What only the
/// document decides is not: see [`finish::effect`].
fn check_result(submit: &Submit, policy: &Policy) -> Result<(), Refusal> {
    let (size, limit) = (submit.result_bytes(), policy.result_bytes_max);
    if size > limit {
        return Err(Refusal::PayloadTooLarge { field: "result", size, limit });
    }
    Ok(())
}

/// A start deadline beyond the record's own retention would promise nothing.
fn check_start_deadline(submit: &Submit, policy: &Policy) -> Result<(), Refusal> {
    let most = policy.record_retention;
    match submit.start_deadline {
        Some(asked) if asked > most => {
            Err(Refusal::Invalid(not_within("start_deadline", Span(1), most)))
        }
        Some(_) | None => Ok(()),
    }
}

/// Makes the account's row at its first use.
pub(super) fn ensure_account(
    world: &mut World,
    account: &super::ids::Account,
) -> Decided<AccountRow> {
    if let Some(row) = world.account(account)? {
        return Ok(row.clone());
    }
    let row = AccountRow::new(account.clone(), world.defaults(), world.loss(), world.now());
    world.put_account(row.clone())?;
    Ok(row)
}

/// Reserves a slot for the outcome, or refuses.
fn take_slot(world: &mut World, key: &InboxKey, policy: &Policy) -> Decided<()> {
    let mut inbox = inboxes::ensure(world, key)?;
    let (limit, in_use) = (inbox.slots(policy), inbox.slots_used());
    if in_use >= limit {
        return Err(Refusal::InboxFull { limit, in_use, earliest_release: None }.into());
    }
    inbox.reserved += 1;
    inbox.active_time = world.now();
    world.put_inbox(inbox)?;
    Ok(())
}

/// The target is locked: the operation stays ACCEPTED and takes its place in the queue.
fn wait(world: &mut World, submit: &Submit, mut lock: Lock, policy: &Policy) -> Decided<Submitted> {
    let mut operation = accepted(world, submit, policy);
    operation.wait_ticket = Some(lock.next_ticket);
    operation.due_time = Some(operation.start_deadline);
    lock.next_ticket += 1;
    lock.waiting += 1;
    world.put_lock(&target_key(submit), Some(lock.clone()))?;
    let events = [AuditEvent::plain(AuditKind::Accepted), AuditEvent::plain(AuditKind::Waiting)];
    record_events(world, &mut operation, &submit.subject, &events);
    world.put_operation(operation.clone())?;
    Ok(Submitted {
        operation,
        origin: Origin::Executed,
        delivery: None,
        waiting_for: Some(lock),
        projection: None,
        other_inbox: None,
        intention: submit.intention,
        evidence: evidence(world, submit)?,
    })
}

/// The target is free: effect and receipt come in this very transaction (R9).
fn execute(
    world: &mut World,
    submit: &Submit,
    target: &TargetKey,
    policy: &Policy,
) -> Decided<Submitted> {
    let mut operation = accepted(world, submit, policy);
    let outcome = finish::effect(world, &mut operation, &submit.action)?;
    let mut events = vec![AuditEvent::plain(AuditKind::Accepted)];
    let delivery = finish::finish(world, &mut operation, outcome, &mut events)?;
    if let Some(lock) = finish::lock_after(world, &operation, delivery.as_ref(), &mut events)? {
        world.put_lock(target, Some(lock))?;
    }
    record_events(world, &mut operation, &submit.subject, &events);
    world.put_operation(operation.clone())?;
    let projection = world
        .document(target, Body::Omit)?
        .map(|document| (document.exists, document.revision, document.generation));
    Ok(Submitted {
        operation,
        origin: Origin::Executed,
        delivery,
        waiting_for: None,
        projection: projection.or(Some((false, 0, 0))),
        other_inbox: None,
        intention: submit.intention,
        evidence: evidence(world, submit)?,
    })
}

/// The operation as it is accepted; large arguments go to their own table.
fn accepted(world: &mut World, submit: &Submit, policy: &Policy) -> Operation {
    let now = world.now();
    let bytes = submit.intent.arguments.clone();
    let arguments = if bytes.len() <= INLINE_BYTES_MAX {
        Arguments::Inline(bytes)
    } else {
        world.put_payload(submit.key.clone(), PayloadKind::Arguments, bytes);
        Arguments::Apart
    };
    Operation {
        key: submit.key.clone(),
        mint_time: submit.mint_time,
        digest: submit.digest.clone(),
        action: submit.intent.action.clone(),
        target: submit.intent.target.clone(),
        expected_revision: submit.intent.expected_revision,
        content_type: submit.intent.content_type.clone(),
        arguments,
        lock_mode: submit.intent.lock_mode,
        result_kind: submit.result,
        inbox: submit.inbox.clone(),
        labels: submit.labels.clone(),
        accept_time: now,
        start_deadline: now + submit.start_deadline.unwrap_or(policy.start_deadline),
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
