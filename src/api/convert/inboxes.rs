//! Inboxes, frames of a stream, and acks.

use super::{
    operations::{delivery, delivery_state, operation},
    times::{duration, timestamp},
};
use crate::{
    domain::{
        command::{AckOutcome, AckTarget, Acked},
        delivery::Delivery,
        ids::{InboxName, Invalid},
        inbox::{Consumer, Inbox, InboxChange, LimitChange},
        policy::{INBOX_SLOTS_LIMIT, Policy},
        world::needs::HELD_MAX,
    },
    proto::{self, stream_deliveries_response},
    stream::{Frame, GapCause},
};

/// Unacked results of a stream if the caller names no number (contract section 7).
const WINDOW_DEFAULT: i64 = 100;
/// Acks of one call at most: one transaction.
const ACKS_MAX: usize = 1_000;

/// Reads how much a stream may hold; the inbox's limit bounds it.
///
/// # Errors
/// [`Invalid`] for a negative number.
pub fn window(window: i32) -> Result<i64, Invalid> {
    match i64::from(window) {
        0 => Ok(WINDOW_DEFAULT),
        window if window > 0 => Ok(window),
        _ => Err(Invalid::new("window", "must not be negative; 0 means the default")),
    }
}

/// Reads what is acked, in its order; `None` where no delivery can be under such a name or number.
///
/// # Errors
/// [`Invalid`] for a list that is too long.
pub fn ack_targets(targets: &[proto::AckTarget]) -> Result<Vec<Option<AckTarget>>, Invalid> {
    if targets.len() > ACKS_MAX {
        return Err(Invalid::new("deliveries", format!("must be at most {ACKS_MAX}")));
    }
    let read = |target: &proto::AckTarget| {
        let inbox = InboxName::parse(&target.inbox).ok()?;
        (target.sequence > 0).then_some(AckTarget { inbox, sequence: target.sequence })
    };
    Ok(targets.iter().map(read).collect())
}

/// How each ack of a list ended: those that the engine answered, and those that no delivery can
/// be under.
pub fn ack_results(
    asked: &[proto::AckTarget],
    read: &[Option<AckTarget>],
    acked: &[Acked],
) -> Vec<proto::AckResult> {
    let mut acked = acked.iter();
    let mut result = |(asked, read): (&proto::AckTarget, &Option<AckTarget>)| match read
        .as_ref()
        .and_then(|_| acked.next())
    {
        Some(acked) => ack_result(acked),
        None => proto::AckResult {
            inbox: asked.inbox.clone(),
            sequence: asked.sequence,
            outcome: proto::AckOutcome::NoSuchDelivery.into(),
            delivery: None,
            operation_id: asked.operation_id.clone(),
        },
    };
    asked.iter().zip(read).map(&mut result).collect()
}

/// How one ack ended.
fn ack_result(acked: &Acked) -> proto::AckResult {
    let outcome = match acked.outcome {
        AckOutcome::Acked => proto::AckOutcome::Acked,
        AckOutcome::AlreadyAcked => proto::AckOutcome::AlreadyAcked,
        AckOutcome::AckedLate => proto::AckOutcome::AckedLate,
        AckOutcome::Retired => proto::AckOutcome::Retired,
        AckOutcome::NoSuchDelivery => proto::AckOutcome::NoSuchDelivery,
    };
    proto::AckResult {
        inbox: acked.target.inbox.as_str().to_owned(),
        sequence: acked.target.sequence,
        outcome: outcome.into(),
        delivery: acked.delivery.as_ref().map(delivery),
        operation_id: String::new(),
    }
}

/// An inbox with its oldest open delivery.
pub fn inbox(inbox: &Inbox, oldest: Option<&Delivery>, policy: &Policy) -> proto::Inbox {
    proto::Inbox {
        inbox: inbox.key.inbox.as_str().to_owned(),
        generation: inbox.generation,
        slots: inbox.slots(policy),
        reserved: inbox.reserved,
        pending: inbox.pending,
        in_flight: inbox.in_flight,
        in_flight_limit: inbox.in_flight_limit(policy),
        acked_total: inbox.acked_total,
        expired_total: inbox.expired_total,
        dead_total: inbox.dead_total,
        last_sequence: inbox.last_sequence(),
        oldest_sequence: oldest.map_or(0, |delivery| delivery.key.sequence),
        oldest_queue_time: oldest.map(|delivery| timestamp(delivery.queue_time)),
        consumers: inbox.consumers.iter().map(consumer).collect(),
        create_time: Some(timestamp(inbox.create_time)),
        first_sequence: inbox.first_sequence,
        kept_from_sequence: inbox.kept_from,
    }
}

/// Reads what an update changes.
///
/// # Errors
/// [`Invalid`] for a mask that is empty or names anything else, and for a limit out of its range.
pub fn inbox_change(
    inbox: &proto::Inbox,
    mask: Option<&prost_types::FieldMask>,
) -> Result<InboxChange, Invalid> {
    let mut change = InboxChange { slots: LimitChange::Keep, in_flight_limit: LimitChange::Keep };
    let paths = mask.map_or(&[][..], |mask| &mask.paths);
    if paths.is_empty() {
        return Err(Invalid::new("update_mask", "must name what changes: slots, in_flight_limit"));
    }
    for path in paths {
        match path.as_str() {
            "slots" => change.slots = limit("inbox.slots", inbox.slots, INBOX_SLOTS_LIMIT)?,
            "in_flight_limit" => {
                let field = "inbox.in_flight_limit";
                change.in_flight_limit = limit(field, inbox.in_flight_limit, HELD_MAX)?;
            }
            _ => {
                let problem = "names something that cannot be changed; these can: slots, \
                               in_flight_limit";
                return Err(Invalid::new("update_mask", problem));
            }
        }
    }
    Ok(change)
}

fn limit(field: &str, limit: i64, max: i64) -> Result<LimitChange, Invalid> {
    match limit {
        0 => Ok(LimitChange::Default),
        limit if (1..=max).contains(&limit) => Ok(LimitChange::To(limit)),
        _ => {
            Err(Invalid::new(field, format!("must be 1 to {max}, or 0 for the account's default")))
        }
    }
}

fn consumer(consumer: &Consumer) -> proto::Consumer {
    proto::Consumer {
        consumer_id: consumer.id.as_str().to_owned(),
        epoch: consumer.epoch,
        window: narrow(consumer.window),
        in_flight: consumer.in_flight,
        open_time: Some(timestamp(consumer.open_time)),
    }
}

/// Windows are bounded far below 32 bits.
fn narrow(window: i64) -> i32 {
    i32::try_from(window).unwrap_or(i32::MAX)
}

/// The clocks and limits in force.
pub fn policy(policy: &Policy) -> proto::Policy {
    let bytes = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    proto::Policy {
        admission_window: Some(duration(policy.admission_window)),
        record_retention: Some(duration(policy.record_retention)),
        tombstone_retention: Some(duration(policy.tombstone_retention)),
        ack_window: Some(duration(policy.ack_window)),
        ack_deadline: Some(duration(policy.ack_deadline)),
        retry_budget: policy.retry_budget,
        backoff_first: Some(duration(policy.backoff_first)),
        backoff_limit: Some(duration(policy.backoff_limit)),
        lock_limit: Some(duration(policy.lock_limit)),
        start_deadline: Some(duration(policy.start_deadline)),
        max_clock_skew: Some(duration(policy.max_clock_skew)),
        inbox_slots: policy.inbox_slots,
        in_flight_limit: policy.in_flight_max,
        arguments_limit_bytes: bytes(policy.arguments_bytes_max),
        document_limit_bytes: bytes(policy.document_bytes_max),
        inbox_idle_retention: Some(duration(policy.inbox_idle_retention)),
    }
}

/// What stands in the first frame beside what the stream knows.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Which life of the store.
    pub store_epoch: String,
    /// The clocks and limits in force.
    pub policy: Policy,
    /// Which inbox.
    pub inbox: String,
}

/// One frame of a stream.
pub fn frame(frame: Frame, opening: &Opening) -> proto::StreamDeliveriesResponse {
    use stream_deliveries_response::Frame as Sent;
    let sent = match frame {
        Frame::Opened { resume_token, inbox, consumer, acked_elsewhere, heartbeat } => {
            Sent::Opened(proto::Opened {
                resume_token,
                store_epoch: opening.store_epoch.clone(),
                policy: Some(policy(&opening.policy)),
                depth: inbox.pending + inbox.in_flight,
                acked_elsewhere,
                heartbeat_interval: Some(duration(heartbeat)),
                consumer_id: consumer.id.as_str().to_owned(),
                inbox: inbox.key.inbox.as_str().to_owned(),
                generation: inbox.generation,
                window: narrow(consumer.window),
            })
        }
        Frame::Deliveries { results, resume_token } => Sent::Deliveries(proto::DeliveryBatch {
            results: results.iter().map(|(sent, of)| delivered(sent, of)).collect(),
            resume_token,
        }),
        Frame::CaughtUp { resume_token } => Sent::CaughtUp(proto::CaughtUp { resume_token }),
        Frame::Heartbeat { resume_token, now } => {
            Sent::Heartbeat(proto::Heartbeat { resume_token, store_time: Some(timestamp(now)) })
        }
        Frame::Gap { first, last, cause, operation_ids } => Sent::Gap(proto::Gap {
            first_sequence: first,
            last_sequence: last,
            cause: gap_cause(cause).into(),
            operation_ids: operation_ids.iter().map(ToString::to_string).collect(),
            list_operations: (cause == GapCause::Purged).then(|| {
                let inbox = opening.inbox.clone();
                Box::new(proto::ListOperationsRequest { inbox, ..Default::default() })
            }),
        }),
        Frame::Withdrawn(ended) => Sent::Withdrawn(proto::Withdrawn {
            deliveries: ended
                .into_iter()
                .map(|(sequence, operation_id, state)| proto::WithdrawnDelivery {
                    sequence,
                    operation_id: operation_id.to_string(),
                    state: delivery_state(state).into(),
                })
                .collect(),
        }),
        Frame::Draining { reason, retry, resume_token } => Sent::Draining(proto::Draining {
            reason,
            retry_delay: Some(duration(retry)),
            resume_token,
        }),
    };
    proto::StreamDeliveriesResponse { frame: Some(sent) }
}

fn delivered(sent: &Delivery, of: &crate::domain::operation::Operation) -> proto::DeliveredResult {
    proto::DeliveredResult {
        delivery: Some(delivery(sent)),
        operation: Some(operation(of, None)),
        redelivered: sent.attempt > 1,
    }
}

fn gap_cause(cause: GapCause) -> proto::GapCause {
    match cause {
        GapCause::Expired => proto::GapCause::Expired,
        GapCause::Dead => proto::GapCause::Dead,
        GapCause::Purged => proto::GapCause::Purged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sample;

    #[test]
    fn a_window_has_a_default_and_is_not_negative() {
        assert_eq!(window(0), Ok(WINDOW_DEFAULT));
        assert_eq!(window(7), Ok(7));
        assert_eq!(window(-1).expect_err("refused").field, "window");
    }

    #[test]
    fn an_update_changes_what_its_mask_names_and_refuses_the_rest() {
        let read = |slots, in_flight_limit, paths: &[&str]| {
            let inbox = proto::Inbox { slots, in_flight_limit, ..Default::default() };
            let paths = paths.iter().map(ToString::to_string).collect();
            inbox_change(&inbox, Some(&prost_types::FieldMask { paths }))
        };
        use LimitChange::{Default as Usual, Keep, To};
        let change = |slots, in_flight_limit| Ok(InboxChange { slots, in_flight_limit });
        assert_eq!(read(5, 7, &["slots"]), change(To(5), Keep));
        assert_eq!(read(5, 0, &["in_flight_limit"]), change(Keep, Usual));
        assert_eq!(
            read(1_000_000, 1_000, &["slots", "in_flight_limit"]),
            change(To(1_000_000), To(1_000))
        );
        let cases: [(i64, i64, &[&str], &str); 6] = [
            (1_000_001, 1, &["slots"], "inbox.slots"),
            (-1, 1, &["slots"], "inbox.slots"),
            (1, 1_001, &["in_flight_limit"], "inbox.in_flight_limit"),
            (1, 1, &[], "update_mask"),
            (1, 1, &["slots", "pending"], "update_mask"),
            (1, 1, &["*"], "update_mask"),
        ];
        for (slots, in_flight_limit, paths, field) in cases {
            let invalid = read(slots, in_flight_limit, paths).expect_err("refused");
            assert_eq!(invalid.field, field, "{paths:?}");
            let names = invalid.problem.contains("slots, in_flight_limit");
            assert!(names || field != "update_mask", "{}", invalid.problem);
        }
        assert!(inbox_change(&proto::Inbox::default(), None).is_err());
    }

    #[test]
    fn an_impossible_ack_fails_alone() {
        let target = |inbox: &str, sequence| proto::AckTarget {
            inbox: inbox.to_owned(),
            sequence,
            ..Default::default()
        };
        let asked = [target("a/b", 1), target("", 1), target("a", 0), target("a", -1)];
        let read = ack_targets(&asked).expect("a good list");
        let possible = read[1].clone().expect("the only possible one");
        assert_eq!(possible.inbox.as_str(), "default");
        assert_eq!(read.iter().flatten().count(), 1);
        let acked = Acked { target: possible, outcome: AckOutcome::Acked, delivery: None };
        let results = ack_results(&asked, &read, &[acked]);
        let told: Vec<_> = results
            .iter()
            .map(|result| (result.inbox.as_str(), result.sequence, result.outcome()))
            .collect();
        let none = proto::AckOutcome::NoSuchDelivery;
        let acked = ("default", 1, proto::AckOutcome::Acked);
        assert_eq!(told, [("a/b", 1, none), acked, ("a", 0, none), ("a", -1, none)]);
        let long = vec![target("a", 1); 1_001];
        assert_eq!(ack_targets(&long).expect_err("refused").field, "deliveries");
    }

    #[test]
    fn only_a_second_attempt_is_a_redelivery() {
        let of = sample::operation("op-1");
        for (attempt, redelivered) in [(1, false), (2, true)] {
            let sent = Delivery { attempt, ..sample::delivery("op-1", 1) };
            assert_eq!(delivered(&sent, &of).redelivered, redelivered);
        }
    }
}
