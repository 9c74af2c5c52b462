//! Results as frames: several in one message, because small unread messages get whole connections
//! killed (T20), and not too many, because a message is taken or lost as a whole.

use std::collections::BTreeMap;

use crate::domain::{
    delivery::Delivery,
    ids::OperationId,
    operation::{Operation, OperationKey, Outcome},
};

/// The most that a frame is filled to; one larger result goes alone.
const FRAME_BYTES_MAX: usize = 16 * 1024;
/// The most results in one frame: a reader handles and acks them together, and 64 usual ones fill
/// it anyway.
const FRAME_RESULTS_MAX: usize = 64;
/// What a result takes without its names and texts: seven times of 12 bytes, digest and content
/// hashes of 32 each, numbers, and the tags of three nested messages. It need not be exact: nothing
/// but the fill of a frame depends on it.
const RESULT_BYTES: usize = 400;
/// What is said of a body without its type: a digest of 32 bytes, a number, and tags.
const RESULT_INFO_BYTES: usize = 56;
/// Tags and lengths of one label.
const LABEL_BYTES: usize = 8;

/// A delivery with its operation.
pub type Joined = (Delivery, Operation);

/// Each delivery with its operation, in the order of the deliveries. A delivery whose operation is
/// no longer kept is left out: there is nothing to show.
pub(super) fn join(deliveries: &[Delivery], operations: Vec<Operation>) -> Vec<Joined> {
    let operations: BTreeMap<OperationId, Operation> =
        operations.into_iter().map(|operation| (operation.key.id.clone(), operation)).collect();
    deliveries
        .iter()
        .filter_map(|delivery| {
            let operation = operations.get(&delivery.operation_id)?;
            Some((delivery.clone(), operation.clone()))
        })
        .collect()
}

/// Splits results into frames, keeping their order. Bodies up to `inline` bytes travel along.
pub(super) fn split(results: Vec<Joined>, inline: usize) -> Vec<Vec<Joined>> {
    let mut frames = Vec::new();
    let (mut frame, mut bytes) = (Vec::new(), 0);
    for result in results {
        let size = estimated_bytes(&result, inline);
        let full = frame.len() == FRAME_RESULTS_MAX || bytes + size > FRAME_BYTES_MAX;
        if full && !frame.is_empty() {
            frames.push(std::mem::take(&mut frame));
            bytes = 0;
        }
        bytes += size;
        frame.push(result);
    }
    if !frame.is_empty() {
        frames.push(frame);
    }
    frames
}

/// The operations of those results whose body travels along.
pub(super) fn with_body<'a>(
    results: impl Iterator<Item = &'a Joined>,
    inline: usize,
) -> Vec<OperationKey> {
    let has_body =
        |operation: &Operation| operation.body().is_some_and(|body| body.is_inline(inline));
    let with_body = results.filter(|(_, operation)| has_body(operation));
    with_body.map(|(_, operation)| operation.key.clone()).collect()
}

/// About how many bytes a result takes in a message.
pub(super) fn estimated_bytes((delivery, operation): &Joined, inline: usize) -> usize {
    let body = match operation.body() {
        Some(result) if result.is_inline(inline) => usize::try_from(result.size).unwrap_or(inline),
        Some(_) | None => 0,
    };
    let labels: usize =
        operation.labels.iter().map(|(name, value)| name.len() + value.len() + LABEL_BYTES).sum();
    let outcome = match &operation.outcome {
        Some(Outcome::Rejected(rejection)) => rejection.text.len(),
        Some(Outcome::Cancelled { reason }) => reason.len(),
        Some(Outcome::Applied(_)) | None => 0,
    };
    RESULT_BYTES
        + 2 * delivery.operation_id.as_str().len()
        + 2 * delivery.key.inbox.inbox.as_str().len()
        + operation.target.as_str().len()
        + operation.action.len()
        + labels
        + outcome
        + body
        + operation
            .result
            .as_ref()
            .map_or(0, |result| result.content_type.len() + RESULT_INFO_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{delivery::DeliveryState, operation::ResultInfo},
        stream::testing,
    };

    const INLINE: usize = 64 * 1024;

    fn result(sequence: i64, label_bytes: usize) -> Joined {
        let delivery = testing::delivery(sequence, DeliveryState::InFlight);
        let mut operation = testing::operation(&delivery);
        operation.labels.insert("text".to_owned(), "x".repeat(label_bytes));
        (delivery, operation)
    }

    #[test]
    fn frames_keep_the_order_and_their_bounds() {
        let results: Vec<Joined> =
            (1..=300).map(|sequence| result(sequence, (sequence as usize * 37) % 900)).collect();
        let frames = split(results.clone(), INLINE);
        for frame in &frames {
            let bytes: usize = frame.iter().map(|result| estimated_bytes(result, INLINE)).sum();
            assert!(frame.len() <= FRAME_RESULTS_MAX && bytes <= FRAME_BYTES_MAX);
        }
        let all_but_last = &frames[..frames.len() - 1];
        for frame in all_but_last {
            let bytes: usize = frame.iter().map(|result| estimated_bytes(result, INLINE)).sum();
            assert!(frame.len() == FRAME_RESULTS_MAX || bytes > FRAME_BYTES_MAX / 2, "{bytes}");
        }
        assert_eq!(frames.concat(), results);
        assert_eq!(split(Vec::new(), INLINE), Vec::<Vec<Joined>>::new());
    }

    #[test]
    fn a_result_above_the_bound_goes_alone() {
        let results = vec![result(1, 10), result(2, 40_000), result(3, 10)];
        let lengths: Vec<usize> = split(results, INLINE).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 1, 1]);
    }

    #[test]
    fn a_body_fills_a_frame_only_if_it_travels_along() {
        let with_body = |sequence, size, kept| {
            let (delivery, mut operation) = result(sequence, 0);
            let content_type = "text/plain".to_owned();
            operation.result = Some(ResultInfo { size, sha256: [0; 32], content_type, kept });
            (delivery, operation)
        };
        let lengths = |size, kept| -> Vec<usize> {
            let results = (1..=4).map(|sequence| with_body(sequence, size, kept)).collect();
            split(results, INLINE).iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(64 * 1024, true), [1, 1, 1, 1]);
        assert_eq!(lengths(7 * 1024, true), [2, 2]);
        assert_eq!(lengths(64 * 1024 + 1, true), [4], "it is read by itself");
        assert_eq!(lengths(64 * 1024, false), [4], "it was not kept");
    }

    #[test]
    fn small_results_fill_a_frame_by_number() {
        let small: Vec<Joined> = (1..=100).map(|sequence| result(sequence, 0)).collect();
        let frames = split(small, INLINE);
        assert!(frames[0].len() >= 30, "{}", frames[0].len());
    }

    #[test]
    fn deliveries_are_joined_in_their_order() {
        let deliveries: Vec<Delivery> =
            [3, 1, 2].map(|number| testing::delivery(number, DeliveryState::InFlight)).to_vec();
        let mut operations: Vec<Operation> = deliveries.iter().map(testing::operation).collect();
        operations.reverse();
        operations.retain(|operation| operation.key.id != deliveries[1].operation_id);
        let joined = join(&deliveries, operations);
        let sequences: Vec<i64> =
            joined.iter().map(|(delivery, _)| delivery.key.sequence).collect();
        assert_eq!(sequences, [3, 2]);
    }
}
