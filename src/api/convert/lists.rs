//! Pages and filters of lists.

use super::{known, submit::labels, times::read_timestamp};
use crate::{
    domain::{
        delivery::DeliveryState,
        filter::{OperationFilter, Scope},
        ids::{InboxName, Invalid, Target},
        operation::OperationState,
    },
    proto,
};

/// Rows of a page if the caller names no number.
const PAGE_SIZE_DEFAULT: i64 = 100;
/// Rows of a page at most (contract section 6).
pub const PAGE_SIZE_MAX: i64 = 1_000;

/// Reads the size of a page.
///
/// # Errors
/// [`Invalid`] with the limit.
pub fn page_size(size: i32) -> Result<i64, Invalid> {
    match i64::from(size) {
        0 => Ok(PAGE_SIZE_DEFAULT),
        size if (1..=PAGE_SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(Invalid::new("page_size", format!("must be 0 to {PAGE_SIZE_MAX}"))),
    }
}

/// Reads the filters of a list of operations.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn operation_filter(
    request: &proto::ListOperationsRequest,
) -> Result<OperationFilter, Invalid> {
    if !request.target.is_empty() {
        Target::parse("target", &request.target)?;
    }
    if !request.inbox.is_empty() {
        InboxName::parse(&request.inbox)?;
    }
    let time = |field: &str, time: &Option<prost_types::Timestamp>| {
        time.as_ref().map(|time| read_timestamp(field, time)).transpose()
    };
    Ok(OperationFilter {
        scope: match request.unresolved_only {
            true => Scope::Unresolved,
            false => Scope::All,
        },
        states: request.states.iter().map(|state| read_state(*state)).collect::<Result<_, _>>()?,
        delivery_states: delivery_states("delivery_states", &request.delivery_states)?,
        target: request.target.clone(),
        action: request.action.clone(),
        inbox: request.inbox.clone(),
        labels: labels(request.labels.clone())?,
        accepted_from: time("accepted_from", &request.accepted_from)?,
        accepted_before: time("accepted_before", &request.accepted_before)?,
    })
}

fn read_state(number: i32) -> Result<OperationState, Invalid> {
    match known("states", number)? {
        proto::operation::State::Unspecified => {
            Err(Invalid::new("states", "must not hold STATE_UNSPECIFIED"))
        }
        proto::operation::State::Accepted => Ok(OperationState::Accepted),
        proto::operation::State::Running => Ok(OperationState::Running),
        proto::operation::State::Applied => Ok(OperationState::Applied),
        proto::operation::State::Rejected => Ok(OperationState::Rejected),
        proto::operation::State::Failed => Ok(OperationState::Failed),
        proto::operation::State::Cancelled => Ok(OperationState::Cancelled),
        proto::operation::State::Unknown => Ok(OperationState::Unknown),
    }
}

/// Reads states of deliveries.
///
/// # Errors
/// [`Invalid`] for a number that is not one of them.
pub fn delivery_states(field: &str, numbers: &[i32]) -> Result<Vec<DeliveryState>, Invalid> {
    let state = |number: &i32| match known(field, *number)? {
        proto::delivery::State::Unspecified => {
            Err(Invalid::new(field, "must not hold STATE_UNSPECIFIED"))
        }
        proto::delivery::State::Pending => Ok(DeliveryState::Pending),
        proto::delivery::State::InFlight => Ok(DeliveryState::InFlight),
        proto::delivery::State::Acked => Ok(DeliveryState::Acked),
        proto::delivery::State::Expired => Ok(DeliveryState::Expired),
        proto::delivery::State::Dead => Ok(DeliveryState::Dead),
    };
    numbers.iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_size_within_limits() {
        assert_eq!(page_size(0), Ok(100));
        assert_eq!(page_size(1_000), Ok(1_000));
        for wrong in [-1, 1_001] {
            assert_eq!(page_size(wrong).expect_err("refused").field, "page_size");
        }
    }

    #[test]
    fn a_filter_with_an_unknown_state_is_refused() {
        let request =
            |states: Vec<i32>| proto::ListOperationsRequest { states, ..Default::default() };
        assert!(operation_filter(&request(vec![1, 7])).is_ok());
        for wrong in [vec![0], vec![8], vec![-1]] {
            assert_eq!(operation_filter(&request(wrong)).expect_err("refused").field, "states");
        }
    }
}
