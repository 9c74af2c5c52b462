//! An operation with everything that stands beside it in an answer.

use super::convert::operations as convert;
use crate::{
    domain::{
        command::{Origin, Submitted},
        delivery::Delivery,
        lock::Lock,
        operation::Operation,
        recovery::{self, Circumstances, Projected},
        standing::Standing,
    },
    proto,
    store::query::LookedUp,
};

/// What is shown of one operation.
#[derive(Debug)]
pub(super) struct Shown {
    /// The operation.
    pub(super) operation: Operation,
    /// Its deliveries.
    pub(super) deliveries: Vec<Delivery>,
    /// The target now; absent where it was not read.
    pub(super) projected: Option<Projected>,
    /// Who holds the target while it waits.
    pub(super) waiting_for: Option<Lock>,
}

impl Shown {
    /// What a look-up found, if it found a record.
    pub(super) fn of_look_up(found: LookedUp) -> Option<Self> {
        Some(Shown {
            projected: Some(convert::projected(found.document.as_ref()))
                .filter(|_| !found.operation.as_ref().is_some_and(Operation::is_sealed)),
            operation: found.operation?,
            deliveries: found.deliveries,
            waiting_for: found.lock,
        })
    }

    /// What the batch that decided a submit held.
    pub(super) fn of_submitted(submitted: Submitted) -> Self {
        Shown {
            operation: submitted.operation,
            deliveries: submitted.delivery.into_iter().collect(),
            projected: submitted.projection.map(|(exists, revision, generation)| Projected {
                exists,
                revision,
                generation,
            }),
            waiting_for: submitted.waiting_for,
        }
    }

    /// Whether something has to be read that the batch did not hold.
    pub(super) fn lacks_something(&self) -> bool {
        let lacks_delivery =
            self.operation.delivery_sequence.is_some() && self.deliveries.is_empty();
        // A sealed id has no target that could be read.
        lacks_delivery || (self.projected.is_none() && !self.operation.is_sealed())
    }

    /// What is said of its id.
    pub(super) fn standing(&self) -> Standing {
        match self.operation.is_compacted() {
            true => Standing::Compacted,
            false => Standing::Recorded,
        }
    }

    /// The operation for a caller.
    pub(super) fn operation(&self) -> proto::Operation {
        convert::operation(&self.operation, self.waiting_for.as_ref())
    }

    /// Its deliveries for a caller.
    pub(super) fn deliveries(&self) -> Vec<proto::Delivery> {
        self.deliveries.iter().map(convert::delivery).collect()
    }

    /// The target now, for a caller.
    pub(super) fn projection(&self) -> Option<proto::Projection> {
        let target = self.operation.target.as_str();
        self.projected.map(|projected| convert::projection(target, projected))
    }

    /// The next step.
    pub(super) fn recovery(&self, origin: Option<Origin>) -> proto::Recovery {
        let beside = Circumstances {
            origin,
            projected: self.projected,
            waiting_for: self.waiting_for.as_ref(),
        };
        convert::recovery(recovery::of_operation(&self.operation, beside))
    }
}
