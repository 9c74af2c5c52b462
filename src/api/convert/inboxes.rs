//! Inboxes, frames of a stream, and pulled pages.

use super::{
    operations::{delivery, delivery_state, operation},
    times::{duration, read_duration, timestamp},
};
use crate::{
    domain::{
        delivery::Delivery,
        ids::{ConsumerId, InboxName, Invalid, Span},
        inbox::{Consumer, Inbox, InboxChange, LimitChange},
        policy::{INBOX_SLOTS_LIMIT, Policy},
        world::needs::HELD_MAX,
    },
    proto::{self, stream_deliveries_response},
    stream::{Frame, GapCause, Sending, pull::Pulled},
};

/// Unacked results of a stream if the caller names no number (contract section 7).
const WINDOW_DEFAULT: i64 = 100;

/// Reads how much a stream may hold; the inbox's limit bounds it.
///
/// # Errors
/// [`Invalid`] for a negative number.
pub fn window(window: i32) -> Result<i64, Invalid> {
    results_at_most("window", window)
}

/// Bounded besides by what the inbox may have in flight, whenever results are sent.
fn results_at_most(field: &str, number: i32) -> Result<i64, Invalid> {
    match i64::from(number) {
        0 => Ok(WINDOW_DEFAULT),
        number if number > 0 => Ok(number.min(HELD_MAX)),
        _ => Err(Invalid::new(field, "must not be negative; 0 means the default")),
    }
}

/// The longest that a pull may wait.
const PULL_WAIT_MAX: Span = Span::seconds(60);

/// Reads how many results a pull may take at most, and how long it may wait.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn pull(request: &proto::PullDeliveriesRequest) -> Result<(i64, Span), Invalid> {
    let limit = results_at_most("max_deliveries", request.max_deliveries)?;
    let wait = request.wait.as_ref();
    let wait = wait.map(|wait| read_duration("wait", wait, Span(0), PULL_WAIT_MAX)).transpose()?;
    Ok((limit, wait.unwrap_or(Span(0))))
}

/// A page that was pulled.
pub fn pulled(pulled: Pulled, consumer: &ConsumerId) -> proto::PullDeliveriesResponse {
    proto::PullDeliveriesResponse {
        results: pulled.results.into_iter().map(delivered).collect(),
        consumer_id: consumer.as_str().to_owned(),
        pending: pulled.pending,
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
        consumers: inbox.consumers.iter().map(|it| consumer(it, inbox, policy)).collect(),
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

fn consumer(consumer: &Consumer, inbox: &Inbox, policy: &Policy) -> proto::Consumer {
    proto::Consumer {
        consumer_id: consumer.id.as_str().to_owned(),
        epoch: consumer.epoch,
        window: narrow(inbox.window_of(consumer, policy)),
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
        inboxes_limit: policy.inboxes_max,
        in_flight_limit: policy.in_flight_max,
        arguments_limit_bytes: bytes(policy.arguments_bytes_max),
        document_limit_bytes: bytes(policy.document_bytes_max),
        result_limit_bytes: bytes(policy.result_bytes_max),
        inline_payload_limit_bytes: bytes(policy.inline_payload_bytes_max),
        inbox_idle_retention: Some(duration(policy.inbox_idle_retention)),
        audit_retention: Some(duration(policy.audit_retention)),
    }
}

/// One frame of a stream of an inbox; the first tells which life of the store this is, and the
/// policy.
pub fn frame(
    frame: Frame,
    inbox: &InboxName,
    store_epoch: &str,
) -> proto::StreamDeliveriesResponse {
    use stream_deliveries_response::Frame as Sent;
    let sent = match frame {
        Frame::Opened { resume_token, inbox, consumer, policy, acked_elsewhere, heartbeat } => {
            Sent::Opened(proto::Opened {
                resume_token,
                store_epoch: store_epoch.to_owned(),
                window: narrow(inbox.window_of(&consumer, &policy)),
                policy: Some(self::policy(&policy)),
                depth: inbox.pending + inbox.in_flight,
                acked_elsewhere,
                heartbeat_interval: Some(duration(heartbeat)),
                consumer_id: consumer.id.as_str().to_owned(),
                inbox: inbox.key.inbox.as_str().to_owned(),
                generation: inbox.generation,
            })
        }
        Frame::Deliveries { results, resume_token } => Sent::Deliveries(proto::DeliveryBatch {
            results: results.into_iter().map(delivered).collect(),
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
            list_operations: matches!(cause, GapCause::Purged | GapCause::Restored).then(|| {
                let inbox = inbox.as_str().to_owned();
                Box::new(proto::ListOperationsRequest { inbox, ..Default::default() })
            }),
        }),
        Frame::Withdrawn(ended) => Sent::Withdrawn(proto::Withdrawn {
            deliveries: ended
                .into_iter()
                .map(|(sequence, how)| match how {
                    Some((operation_id, state)) => proto::WithdrawnDelivery {
                        sequence,
                        operation_id: operation_id.to_string(),
                        state: delivery_state(state).into(),
                    },
                    None => proto::WithdrawnDelivery { sequence, ..Default::default() },
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

/// How many bytes a result takes of a reader's credit: its own message, without the frame's tags.
pub fn result_bytes(result: &Sending) -> usize {
    use prost::{Message, encoding};
    // The body is counted without a copy of it.
    let body = result.payload.as_ref().map_or(0, |payload| {
        let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        1 + encoding::encoded_len_varint(length) + payload.len()
    });
    delivered(Sending { payload: None, ..result.clone() }).encoded_len() + body
}

fn delivered(result: Sending) -> proto::DeliveredResult {
    proto::DeliveredResult {
        delivery: Some(delivery(&result.delivery)),
        operation: Some(operation(&result.operation, None)),
        redelivered: result.delivery.attempt > 1,
        payload: result.payload.map(Vec::from),
    }
}

fn gap_cause(cause: GapCause) -> proto::GapCause {
    match cause {
        GapCause::Expired => proto::GapCause::Expired,
        GapCause::Dead => proto::GapCause::Dead,
        GapCause::Purged => proto::GapCause::Purged,
        GapCause::Restored => proto::GapCause::Restored,
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
    fn a_pull_is_bounded_in_size_and_time() {
        let read = |max_deliveries, seconds| {
            let wait = Some(prost_types::Duration { seconds, nanos: 0 });
            let request =
                proto::PullDeliveriesRequest { max_deliveries, wait, ..Default::default() };
            pull(&request)
        };
        assert_eq!(read(0, 0), Ok((WINDOW_DEFAULT, Span(0))));
        assert_eq!(read(7, 60), Ok((7, Span::seconds(60))));
        assert_eq!(read(-1, 0).expect_err("refused").field, "max_deliveries");
        for seconds in [-1, 61] {
            assert_eq!(read(1, seconds).expect_err("refused").field, "wait");
        }
        assert_eq!(pull(&proto::PullDeliveriesRequest::default()), Ok((WINDOW_DEFAULT, Span(0))));
    }

    #[test]
    fn no_result_is_larger_than_credit_reckons_with() {
        use crate::{
            api::convert::submit::labels,
            domain::{
                ids::{InboxName, OperationId, Target, Timestamp},
                operation::{OperationState, Outcome, ResultInfo},
                policy::INLINE_PAYLOAD_BYTES_LIMIT,
            },
            stream::credit::RESULT_BYTES_MAX,
        };
        let (name, time) = ("n".repeat(64), Timestamp(i64::MAX / 2));
        let of = crate::domain::operation::Operation {
            target: Target::parse("target", &"t".repeat(512)).expect("valid"),
            action: "a".repeat(64),
            content_type: "c".repeat(128),
            inbox: Some(InboxName::parse(&name).expect("valid")),
            labels: labels(
                (10..26).map(|number| (format!("{}{number}", "k".repeat(62)), "v".repeat(256))),
            )
            .expect("valid"),
            state: OperationState::Cancelled,
            outcome: Some(Outcome::Cancelled { reason: "r".repeat(512) }),
            result: Some(ResultInfo {
                size: i64::MAX,
                sha256: [1; 32],
                content_type: "c".repeat(128),
                kept: true,
            }),
            outcome_version: i32::MAX,
            end_time: Some(time),
            last_replay_time: Some(time),
            replay_count: i64::MAX,
            expected_revision: Some(i64::MAX),
            ..sample::operation(&name)
        };
        let sent = Delivery {
            attempt: i32::MAX,
            available_time: Some(time),
            ack_deadline: Some(time),
            end_time: Some(time),
            last_failure_time: Some(time),
            operation_id: OperationId::parse(&name).expect("valid"),
            ..sample::delivery(&name, i64::MAX)
        };
        let body = vec![7; INLINE_PAYLOAD_BYTES_LIMIT];
        let largest = Sending { delivery: sent, operation: of, payload: Some(body.into()) };
        let most = i64::try_from(result_bytes(&largest)).expect("small");
        let whole = prost::Message::encoded_len(&delivered(largest));
        assert_eq!(i64::try_from(whole), Ok(most), "counted as it is sent");
        assert!(most < RESULT_BYTES_MAX, "{most}");
        assert!(most > RESULT_BYTES_MAX / 2, "{most}: the bound is far above what there is");
    }

    #[test]
    fn only_a_second_attempt_is_a_redelivery() {
        let of = sample::operation("op-1");
        for (attempt, redelivered) in [(1, false), (2, true)] {
            let delivery = Delivery { attempt, ..sample::delivery("op-1", 1) };
            let sent = Sending { delivery, operation: of.clone(), payload: None };
            assert_eq!(delivered(sent).redelivered, redelivered);
        }
    }
}
