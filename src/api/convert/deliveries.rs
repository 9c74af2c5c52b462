//! Deliveries that callers name: acks, attempts, redrives.
//!
//! What must stay true: what no delivery can be under fails alone; a request that says nothing, or
//! two things at once, is refused as a whole before any effect.

use super::{
    lists,
    operations::{delivery, delivery_state},
    times::read_duration,
};
use crate::{
    domain::{
        attempts::{AttemptOutcome, AttemptTarget, Attempted, Attempts},
        command::{AckOutcome, Acked},
        delivery::{Delivery, DeliveryKey, DeliveryState, DeliveryTarget},
        ids::{Account, ConsumerId, InboxName, Invalid, OperationId, Span},
        policy::SPAN_LIMIT,
        redrive::{RedriveOutcome, Redriven},
    },
    proto,
};

/// Deliveries of one call at most: one transaction.
pub const TARGETS_MAX: usize = 1_000;

fn check_length(length: usize) -> Result<(), Invalid> {
    match length <= TARGETS_MAX {
        true => Ok(()),
        false => Err(Invalid::new("deliveries", format!("must be at most {TARGETS_MAX}"))),
    }
}

/// Reads one named delivery; `None` where no delivery can be under such a name or number.
fn delivery_target(
    place: usize,
    inbox: &str,
    sequence: i64,
    operation_id: &str,
) -> Result<Option<DeliveryTarget>, Invalid> {
    let invalid = |field: &str, problem: &str| {
        Err(Invalid::new(format!("deliveries[{place}].{field}"), problem))
    };
    match (sequence, operation_id) {
        (0, "") => invalid("sequence", "must be given, or else operation_id"),
        (0, id) => {
            let inbox = match inbox {
                "" => Ok(None),
                name => InboxName::parse(name).map(Some),
            };
            let (Ok(operation_id), Ok(inbox)) = (OperationId::parse(id), inbox) else {
                return Ok(None);
            };
            Ok(Some(DeliveryTarget::Newest { operation_id, inbox }))
        }
        (sequence, "") => {
            let inbox = InboxName::parse(inbox).ok().filter(|_| sequence > 0);
            Ok(inbox.map(|inbox| DeliveryTarget::Numbered { inbox, sequence }))
        }
        (_, _) => invalid("operation_id", "must be empty where a number is given"),
    }
}

/// Reads what is acked, in its order; `None` where no delivery can be under such a name or number.
///
/// # Errors
/// [`Invalid`] for a list that is too long, and for one that names both a number and an operation,
/// or neither.
pub fn ack_targets(targets: &[proto::AckTarget]) -> Result<Vec<Option<DeliveryTarget>>, Invalid> {
    check_length(targets.len())?;
    let read = |(place, target): (usize, &proto::AckTarget)| {
        delivery_target(place, &target.inbox, target.sequence, &target.operation_id)
    };
    targets.iter().enumerate().map(read).collect()
}

/// Joins what was asked with what the engine answered, in the order asked: `None` for what no
/// delivery can be under.
fn paired<'a, A, R, D>(
    asked: &'a [A],
    read: &'a [Option<R>],
    done: &'a [D],
) -> impl Iterator<Item = (&'a A, Option<&'a D>)> {
    let mut done = done.iter();
    let pair = move |(asked, read): (&'a A, &'a Option<R>)| {
        (asked, read.as_ref().and_then(|_| done.next()))
    };
    asked.iter().zip(read).map(pair)
}

/// The inbox and the number of an answer: the delivery's, or as the caller named them.
fn place_of(key: Option<&DeliveryKey>, inbox: &str, sequence: i64) -> (String, i64) {
    match key {
        Some(key) => (key.inbox.inbox.as_str().to_owned(), key.sequence),
        None => (inbox.to_owned(), sequence),
    }
}

/// How each ack of a list ended: those that the engine answered, and those that no delivery can
/// be under.
pub fn ack_results(
    asked: &[proto::AckTarget],
    read: &[Option<DeliveryTarget>],
    acked: &[Acked],
) -> Vec<proto::AckResult> {
    let result = |(asked, acked): (&proto::AckTarget, Option<&Acked>)| {
        let key = acked.and_then(|acked| acked.key.as_ref());
        let (inbox, sequence) = place_of(key, &asked.inbox, asked.sequence);
        proto::AckResult {
            inbox,
            sequence,
            outcome: acked.map_or(AckOutcome::NoSuchDelivery, |acked| acked.outcome).shown().into(),
            delivery: acked.and_then(|acked| acked.delivery.as_ref()).map(delivery),
            operation_id: asked.operation_id.clone(),
        }
    };
    paired(asked, read, acked).map(result).collect()
}

impl AckOutcome {
    fn shown(self) -> proto::AckOutcome {
        match self {
            AckOutcome::Acked => proto::AckOutcome::Acked,
            AckOutcome::AlreadyAcked => proto::AckOutcome::AlreadyAcked,
            AckOutcome::AckedLate => proto::AckOutcome::AckedLate,
            AckOutcome::Retired => proto::AckOutcome::Retired,
            AckOutcome::NoSuchDelivery => proto::AckOutcome::NoSuchDelivery,
        }
    }
}

/// Reads named attempts; those that no delivery can be under are left out, see
/// `attempt_results`.
///
/// # Errors
/// [`Invalid`] for a list that is too long, and for a consumer that is not well formed.
pub fn attempts(
    account: &Account,
    targets: &[proto::AttemptTarget],
    consumer_id: &str,
) -> Result<(Attempts, Vec<Option<AttemptTarget>>), Invalid> {
    check_length(targets.len())?;
    let consumer = match consumer_id {
        "" => None,
        id => Some(ConsumerId::parse(id)?),
    };
    let read = |target: &proto::AttemptTarget| {
        let inbox = InboxName::parse(&target.inbox).ok().filter(|_| target.sequence > 0)?;
        Some(AttemptTarget { inbox, sequence: target.sequence, attempt: target.attempt })
    };
    let read: Vec<Option<AttemptTarget>> = targets.iter().map(read).collect();
    let possible = read.iter().flatten().cloned().collect();
    Ok((Attempts { account: account.clone(), targets: possible, consumer }, read))
}

/// Reads how far from now a deadline is moved; absent: as the policy says.
///
/// # Errors
/// [`Invalid`] for a span that is not positive. The rules bound it by the account's ack window.
pub fn extension(extension: Option<&prost_types::Duration>) -> Result<Option<Span>, Invalid> {
    let read = |span| read_duration("extension", span, Span(1), SPAN_LIMIT);
    extension.map(read).transpose()
}

/// Reads after how long a deferred attempt may be sent again; at once if absent.
///
/// # Errors
/// [`Invalid`] for a span that is negative. The rules bound it by the account's ack window.
pub fn delay(delay: Option<&prost_types::Duration>) -> Result<Span, Invalid> {
    let read = |span| read_duration("delay", span, Span(0), SPAN_LIMIT);
    Ok(delay.map(read).transpose()?.unwrap_or(Span(0)))
}

/// One attempt as answered: inbox, number, outcome, and the delivery where there is one.
type AttemptResult = (String, i64, AttemptOutcome, Option<proto::Delivery>);

fn attempt_results<'a>(
    asked: &'a [proto::AttemptTarget],
    read: &'a [Option<AttemptTarget>],
    done: &'a [Attempted],
) -> impl Iterator<Item = AttemptResult> {
    paired(asked, read, done).map(|(asked, done)| match done {
        Some(Attempted { target, outcome, delivery: row }) => {
            let inbox = target.inbox.as_str().to_owned();
            (inbox, target.sequence, *outcome, row.as_ref().map(delivery))
        }
        None => (asked.inbox.clone(), asked.sequence, AttemptOutcome::NoSuchDelivery, None),
    })
}

/// How each extension of a list ended.
pub fn extend_results(
    asked: &[proto::AttemptTarget],
    read: &[Option<AttemptTarget>],
    done: &[Attempted],
) -> Vec<proto::ExtendResult> {
    let result = |(inbox, sequence, outcome, delivery)| {
        let outcome = match outcome {
            AttemptOutcome::Done => proto::ExtendOutcome::Extended,
            AttemptOutcome::NotYours => proto::ExtendOutcome::NotYours,
            // A deadline ends with the window at the latest: extending never says that it ends.
            AttemptOutcome::NotInFlight | AttemptOutcome::WindowEnds => {
                proto::ExtendOutcome::NotInFlight
            }
            AttemptOutcome::AlreadyAcked => proto::ExtendOutcome::AlreadyAcked,
            AttemptOutcome::Retired => proto::ExtendOutcome::Retired,
            AttemptOutcome::NoSuchDelivery => proto::ExtendOutcome::NoSuchDelivery,
        };
        proto::ExtendResult { inbox, sequence, outcome: outcome.into(), delivery }
    };
    attempt_results(asked, read, done).map(result).collect()
}

/// How each deferral of a list ended.
pub fn defer_results(
    asked: &[proto::AttemptTarget],
    read: &[Option<AttemptTarget>],
    done: &[Attempted],
) -> Vec<proto::DeferResult> {
    let result = |(inbox, sequence, outcome, delivery)| {
        let outcome = match outcome {
            AttemptOutcome::Done => proto::DeferOutcome::Deferred,
            AttemptOutcome::NotYours => proto::DeferOutcome::NotYours,
            AttemptOutcome::NotInFlight => proto::DeferOutcome::NotInFlight,
            AttemptOutcome::AlreadyAcked => proto::DeferOutcome::AlreadyAcked,
            AttemptOutcome::Retired => proto::DeferOutcome::Retired,
            AttemptOutcome::NoSuchDelivery => proto::DeferOutcome::NoSuchDelivery,
            AttemptOutcome::WindowEnds => proto::DeferOutcome::WindowEnds,
        };
        proto::DeferResult { inbox, sequence, outcome: outcome.into(), delivery }
    };
    attempt_results(asked, read, done).map(result).collect()
}

/// What a redrive is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redrive {
    /// These; `None` where no delivery can be under such a name or number.
    Listed(Vec<Option<DeliveryTarget>>),
    /// What ended in an inbox.
    Inbox {
        /// Which.
        inbox: InboxName,
        /// In one of these states.
        states: Vec<DeliveryState>,
        /// With higher numbers than this.
        after: i64,
    },
}

/// Reads what is redriven.
///
/// # Errors
/// [`Invalid`] with the field: a list and an inbox at once, or neither; a list that is too long; a
/// state in which nothing has ended.
pub fn redrive(request: &proto::RedriveDeliveriesRequest) -> Result<Redrive, Invalid> {
    let states = lists::delivery_states("states", &request.states)?;
    if !request.deliveries.is_empty() {
        let empty = [
            ("inbox", request.inbox.is_empty()),
            ("states", states.is_empty()),
            ("after_sequence", request.after_sequence == 0),
        ];
        if let Some((field, _)) = empty.into_iter().find(|(_, empty)| !empty) {
            return Err(Invalid::new(field, "must be empty where deliveries are listed"));
        }
        check_length(request.deliveries.len())?;
        let read = |(place, target): (usize, &proto::DeliveryTarget)| {
            delivery_target(place, &target.inbox, target.sequence, &target.operation_id)
        };
        let listed = request.deliveries.iter().enumerate().map(read);
        return Ok(Redrive::Listed(listed.collect::<Result<_, _>>()?));
    }
    if request.inbox.is_empty() {
        // Nobody redrives a whole inbox by an empty request.
        return Err(Invalid::new("inbox", "must be named, or else deliveries"));
    }
    let ended = [DeliveryState::Expired, DeliveryState::Dead];
    if let Some(other) = states.iter().find(|state| !ended.contains(state)) {
        let word = delivery_state(*other).as_str_name();
        let problem = format!("must be STATE_EXPIRED or STATE_DEAD, not {word}");
        return Err(Invalid::new("states", problem));
    }
    if request.after_sequence < 0 {
        return Err(Invalid::new("after_sequence", "must not be negative"));
    }
    Ok(Redrive::Inbox {
        inbox: InboxName::parse(&request.inbox)?,
        states: if states.is_empty() { ended.to_vec() } else { states },
        after: request.after_sequence,
    })
}

/// How each redrive of a list ended.
pub fn redrive_results(
    asked: &[proto::DeliveryTarget],
    read: &[Option<DeliveryTarget>],
    done: &[Redriven],
) -> Vec<proto::RedriveResult> {
    let result = |(asked, done): (&proto::DeliveryTarget, Option<&Redriven>)| {
        let key = done.and_then(|done| done.key.as_ref());
        let (inbox, sequence) = place_of(key, &asked.inbox, asked.sequence);
        let outcome = done.map_or(RedriveOutcome::NoSuchDelivery, |done| done.outcome);
        let row = done.and_then(|done| done.delivery.as_ref());
        redrive_result(inbox, sequence, outcome, row, &asked.operation_id)
    };
    paired(asked, read, done).map(result).collect()
}

/// How each redrive of an inbox's deliveries ended.
pub fn redriven_of_inbox(done: &[Redriven]) -> Vec<proto::RedriveResult> {
    let result = |done: &Redriven| {
        let (inbox, sequence) = place_of(done.key.as_ref(), "", 0);
        redrive_result(inbox, sequence, done.outcome, done.delivery.as_ref(), "")
    };
    done.iter().map(result).collect()
}

fn redrive_result(
    inbox: String,
    sequence: i64,
    outcome: RedriveOutcome,
    row: Option<&Delivery>,
    operation_id: &str,
) -> proto::RedriveResult {
    let outcome = match outcome {
        RedriveOutcome::Redriven => proto::RedriveOutcome::Redriven,
        RedriveOutcome::NotEnded => proto::RedriveOutcome::NotEnded,
        RedriveOutcome::AlreadyAcked => proto::RedriveOutcome::AlreadyAcked,
        RedriveOutcome::InboxFull => proto::RedriveOutcome::InboxFull,
        RedriveOutcome::Retired => proto::RedriveOutcome::Retired,
        RedriveOutcome::NoSuchDelivery => proto::RedriveOutcome::NoSuchDelivery,
    };
    proto::RedriveResult {
        inbox,
        sequence,
        outcome: outcome.into(),
        delivery: row.map(delivery),
        operation_id: operation_id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::delivery::InboxKey;

    fn target(inbox: &str, sequence: i64, operation_id: &str) -> proto::AckTarget {
        proto::AckTarget {
            inbox: inbox.to_owned(),
            sequence,
            operation_id: operation_id.to_owned(),
        }
    }

    #[test]
    fn an_impossible_ack_fails_alone() {
        let asked = [
            target("a/b", 1, ""),
            target("", 1, ""),
            target("a", -1, ""),
            target("", 0, "no such id"),
            target("a/b", 0, "op-1"),
            target("", 0, "op-1"),
        ];
        let read = ack_targets(&asked).expect("a good list");
        assert_eq!(
            read.iter().map(Option::is_some).collect::<Vec<_>>(),
            [false, true, false, false, false, true]
        );
        let account = Account::parse("local").expect("valid");
        let key = |inbox: &str, sequence| {
            let inbox = InboxName::parse(inbox).expect("valid");
            Some(DeliveryKey { inbox: InboxKey { account: account.clone(), inbox }, sequence })
        };
        let acked = |key| Acked { key, outcome: AckOutcome::Acked, delivery: None };
        let results = ack_results(&asked, &read, &[acked(key("", 1)), acked(key("b", 7))]);
        let told: Vec<_> = results
            .iter()
            .map(|result| (result.inbox.as_str(), result.sequence, result.outcome()))
            .collect();
        let none = proto::AckOutcome::NoSuchDelivery;
        let done = proto::AckOutcome::Acked;
        assert_eq!(
            told,
            [
                ("a/b", 1, none),
                ("default", 1, done),
                ("a", -1, none),
                ("", 0, none),
                ("a/b", 0, none),
                ("b", 7, done),
            ]
        );
        assert_eq!(results[5].operation_id, "op-1");
    }

    #[test]
    fn a_list_that_says_nothing_or_two_things_is_refused_by_its_field() {
        let long = vec![target("a", 1, ""); 1_001];
        let rows = [
            (long, "deliveries"),
            (vec![target("", 1, ""), target("", 0, "")], "deliveries[1].sequence"),
            (vec![target("", 1, "op-1")], "deliveries[0].operation_id"),
        ];
        for (asked, field) in rows {
            assert_eq!(ack_targets(&asked).expect_err("refused").field, field);
        }
    }

    #[test]
    fn spans_have_a_sign_and_a_limit() {
        let span = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        let longer = |asked: Option<_>| extension(asked.as_ref());
        let later = |asked: Option<_>| delay(asked.as_ref());
        assert_eq!(longer(None), Ok(None));
        assert_eq!(longer(span(90, 0)), Ok(Some(Span::seconds(90))));
        assert_eq!(later(None), Ok(Span(0)));
        assert_eq!(later(span(0, 0)), Ok(Span(0)));
        assert_eq!(later(span(90, 0)), Ok(Span::seconds(90)));
        for wrong in [span(0, 0), span(-1, 0), span(i64::MAX, 0)] {
            assert_eq!(longer(wrong).expect_err("refused").field, "extension");
        }
        for wrong in [span(-1, 0), span(i64::MAX, 0)] {
            assert_eq!(later(wrong).expect_err("refused").field, "delay");
        }
    }

    #[test]
    fn a_redrive_names_a_list_or_an_inbox() {
        let listed = |sequence| proto::DeliveryTarget { sequence, ..Default::default() };
        let list =
            proto::RedriveDeliveriesRequest { deliveries: vec![listed(1)], ..Default::default() };
        let inbox = proto::RedriveDeliveriesRequest { inbox: "a".to_owned(), ..Default::default() };
        assert!(matches!(redrive(&list), Ok(Redrive::Listed(read)) if read.len() == 1));
        let both = vec![DeliveryState::Expired, DeliveryState::Dead];
        let name = InboxName::parse("a").expect("valid");
        let whole = Redrive::Inbox { inbox: name, states: both, after: 0 };
        assert_eq!(redrive(&inbox), Ok(whole));
        let acked = proto::delivery::State::Acked.into();
        let rows = [
            (proto::RedriveDeliveriesRequest::default(), "inbox"),
            (proto::RedriveDeliveriesRequest { inbox: "a".into(), ..list.clone() }, "inbox"),
            (proto::RedriveDeliveriesRequest { states: vec![4], ..list.clone() }, "states"),
            (proto::RedriveDeliveriesRequest { after_sequence: 1, ..list }, "after_sequence"),
            (proto::RedriveDeliveriesRequest { states: vec![acked], ..inbox.clone() }, "states"),
            (proto::RedriveDeliveriesRequest { after_sequence: -1, ..inbox }, "after_sequence"),
        ];
        for (request, field) in rows {
            assert_eq!(redrive(&request).expect_err("refused").field, field, "{request:?}");
        }
    }
}
