//! How an operation ends: its effect, its outcome, its delivery, and the lock it keeps.
//!
//! What must stay true: whatever ends an operation queues its news and settles its slot in the
//! same transaction (contract section 6). The caller holds a reserved slot for every operation
//! with an inbox.

use super::{
    audit::{AuditEvent, AuditKind},
    command::Decided,
    delivery::{Delivery, DeliveryKey, DeliveryState},
    document::{self, Document, DocumentAction},
    inbox::Inbox,
    inboxes,
    intent::LockMode,
    lock::{Holder, Lock},
    operation::{Operation, Outcome, PayloadKind, RejectionReason, ResultInfo, ResultKind},
    policy::Policy,
    retire,
    world::{
        World,
        needs::{Body, Unloaded},
    },
};

/// Makes the effect of an operation, or finds why there is none. The body of the result, where one
/// was asked for, is described in `operation` and kept beside it.
pub(super) fn effect(
    world: &mut World,
    operation: &mut Operation,
    action: &DocumentAction,
) -> Decided<Outcome> {
    let key = operation.target_key();
    let body = if action.reads_content() { Body::Load } else { Body::Omit };
    let locked = world.lock(&key)?.is_some();
    let policy = world.policy(&key.account)?;
    let before = world.document(&key, body)?;
    let applied = document::apply(
        &key,
        before,
        action,
        operation.expected_revision,
        policy.document_bytes_max,
        world.now(),
    );
    match applied {
        Ok((mut after, change)) => {
            after.locked = locked;
            world.put_document(after.clone())?;
            operation.result = result(world, operation, &after, policy.result_bytes_max);
            Ok(Outcome::Applied(change))
        }
        Err(rejection) => Ok(Outcome::Rejected(rejection)),
    }
}

/// The document's content as the operation's result, if that was asked for and there is content.
/// The effect is certain by now, so a body above the limit is told and left out (F07).
fn result(
    world: &mut World,
    operation: &Operation,
    after: &Document,
    bytes_max: usize,
) -> Option<ResultInfo> {
    let wanted = match operation.result_kind {
        ResultKind::Receipt => false,
        ResultKind::Content => after.exists,
    };
    let content = after.content.clone().filter(|_| wanted)?;
    let kept = content.len() <= bytes_max;
    if kept {
        world.put_payload(operation.key.clone(), PayloadKind::Result, content);
    }
    Some(ResultInfo {
        size: after.size,
        sha256: after.content_hash,
        content_type: after.content_type.clone(),
        kept,
    })
}

/// Writes the outcome into `operation` and queues its news. The caller records the events and
/// stores the operation.
pub(super) fn finish(
    world: &mut World,
    operation: &mut Operation,
    outcome: Outcome,
    events: &mut Vec<AuditEvent>,
) -> Decided<Option<Delivery>> {
    operation.state = outcome.state();
    operation.certainty = outcome.certainty();
    operation.outcome_version += 1;
    operation.end_time = Some(world.now());
    let policy = world.policy(&operation.key.account)?;
    operation.due_time = retire::due(operation, &policy);
    operation.wait_ticket = None;
    let event = told(&outcome);
    operation.outcome = Some(outcome);
    events.push(event);
    queue(world, operation, events)
}

/// The event that records an outcome: the same each time, so that the trail can be compared with the
/// receipt.
pub(super) fn told(outcome: &Outcome) -> AuditEvent {
    let (kind, text) = match outcome {
        Outcome::Applied(change) => {
            (AuditKind::Applied, format!("revision {}", change.result_revision))
        }
        Outcome::Rejected(rejection) => {
            (AuditKind::Rejected, format!("{}: {}", rejection.reason.word(), rejection.text))
        }
        Outcome::Cancelled { reason } => (AuditKind::Cancelled, reason.clone()),
    };
    AuditEvent { text, ..AuditEvent::plain(kind) }
}

/// Queues the news of the outcome into the operation's inbox, under the next number.
fn queue(
    world: &mut World,
    operation: &mut Operation,
    events: &mut Vec<AuditEvent>,
) -> Decided<Option<Delivery>> {
    let Some(key) = operation.inbox_key() else { return Ok(None) };
    let now = world.now();
    let policy = world.policy(&key.account)?;
    let mut inbox = inboxes::ensure_for_result(world, &key)?;
    let sequence = inbox.next_sequence;
    let mut delivery = Delivery {
        key: DeliveryKey { inbox: key, sequence },
        operation_id: operation.key.id.clone(),
        outcome_version: operation.outcome_version,
        state: DeliveryState::Pending,
        attempt: 0,
        attempts_before: 0,
        queue_time: now,
        available_time: None,
        ack_deadline: None,
        expire_time: now + policy.ack_window,
        due_time: Some(now + policy.ack_window),
        end_time: None,
        last_failure_time: None,
        consumer: None,
        returns: 0,
        lock_target: None,
        ack: None,
    };
    if operation.lock_mode == LockMode::UntilAcked && holds(world, operation)? {
        delivery.lock_target = Some(operation.target.clone());
    }
    inbox.reserved = (inbox.reserved - 1).max(0);
    let at_once = can_take(world, &inbox, &policy);
    inbox.next_sequence += 1;
    inbox.pending += 1;
    if at_once {
        let consumer = &inbox.consumers[0];
        let holder = (consumer.id.clone(), consumer.epoch);
        send(world, &mut inbox, &mut delivery, holder)?;
        inbox.offered = sequence;
    }
    world.put_inbox(inbox)?;
    world.add_delivery(delivery.clone());
    if at_once {
        world.hand_over(delivery.key.clone());
    }
    operation.delivery_sequence = Some(sequence);
    events.push(AuditEvent { sequence, ..AuditEvent::plain(AuditKind::Queued) });
    Ok(Some(delivery))
}

/// Whether an operation with UNTIL_ACKED holds its target beyond its end: it got as far as the
/// target, and there is a document row. The row is what guards its lock; without one there is
/// nothing that others could change under the reader's eyes.
fn holds(world: &World, operation: &Operation) -> Decided<bool> {
    let began = match &operation.outcome {
        Some(Outcome::Applied(_)) => true,
        Some(Outcome::Rejected(rejection)) => rejection.reason != RejectionReason::StartDeadline,
        Some(Outcome::Cancelled { .. }) | None => false,
    };
    Ok(began && world.document(&operation.target_key(), Body::Omit)?.is_some())
}

/// Whether the next delivery can go straight to the one stream that reads the inbox: it is served
/// here, at the end of the inbox, has room, and nothing else waits (architecture section 1).
fn can_take(world: &World, inbox: &Inbox, policy: &Policy) -> bool {
    let (Some(attached), [consumer]) = (world.attached(&inbox.key), inbox.consumers.as_slice())
    else {
        return false;
    };
    attached.room > 0
        && attached.consumer == consumer.id
        && attached.epoch == consumer.epoch
        && inbox.offered == inbox.last_sequence()
        && inbox.returned == 0
        && consumer.in_flight < inbox.window_of(consumer, policy)
        && inbox.in_flight < inbox.in_flight_limit(policy)
}

/// Puts a PENDING delivery in flight: one more attempt, with its own ack deadline.
pub(super) fn send(
    world: &World,
    inbox: &mut Inbox,
    delivery: &mut Delivery,
    holder: (super::ids::ConsumerId, i64),
) -> Result<(), Unloaded> {
    let policy = world.policy(&inbox.key.account)?;
    inbox.pending -= 1;
    if delivery.available_time.take().is_some() {
        inbox.returned -= 1;
    }
    inbox.in_flight += 1;
    if let Some(consumer) = inbox.consumer_mut(&holder.0, holder.1) {
        consumer.in_flight += 1;
    }
    let deadline = (world.now() + policy.ack_deadline).min(delivery.expire_time);
    delivery.state = DeliveryState::InFlight;
    delivery.attempt += 1;
    delivery.ack_deadline = Some(deadline);
    delivery.due_time = Some(deadline);
    delivery.consumer = Some(holder);
    Ok(())
}

/// The lock that an operation with UNTIL_ACKED holds after its end, over the lock row that may be
/// there already. `None`: it holds none.
pub(super) fn lock_after(
    world: &World,
    operation: &Operation,
    delivery: Option<&Delivery>,
    events: &mut Vec<AuditEvent>,
) -> Result<Option<Lock>, Unloaded> {
    let held = delivery.filter(|delivery| delivery.lock_target.is_some());
    let Some(delivery) = held else { return Ok(None) };
    let key = operation.target_key();
    let now = world.now();
    let release_time = delivery.expire_time.min(now + world.policy(&key.account)?.lock_limit);
    let row = world.lock(&key).ok().flatten();
    events.push(AuditEvent::plain(AuditKind::LockHeld));
    Ok(Some(Lock {
        holder: Some(Holder {
            operation_id: operation.key.id.clone(),
            acquire_time: now,
            release_time,
            mode: operation.lock_mode,
        }),
        next_ticket: row.map_or(1, |lock| lock.next_ticket),
        waiting: row.map_or(0, |lock| lock.waiting),
        due_time: release_time,
        key,
    }))
}
