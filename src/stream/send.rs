//! Sending results frame by frame, each with the bodies that travel along.
//!
//! What must stay true: what was put in flight is sent whatever a read of bodies yields, because a
//! body can be read by itself; no more bodies than one frame holds are in memory at a time.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Frame, Granted, Sending,
    ends::{End, Fault},
    frames::{self, Joined},
    life::Life,
};
use crate::{
    domain::operation::{OperationKey, PayloadKind},
    engine::Engine,
    store::ReadError,
    telemetry,
};

/// What became of results that were to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// All were sent.
    Whole,
    /// The lease ended in between: the rest came back, and comes again.
    TakenBack,
}

impl Life {
    /// Sends results, which are in flight to us, and keeps the lease while the client reads slowly.
    pub(super) async fn send_results(&mut self, results: Vec<frames::Joined>) -> Result<Sent, End> {
        let epoch = self.consumer.epoch;
        let mut store_answers = true;
        let mut highest = 0;
        let mut unsent: BTreeSet<i64> =
            results.iter().map(|(delivery, _)| delivery.key.sequence).collect();
        for results in frames::split(results, self.policy.inline_payload_bytes_max) {
            if store_answers && Instant::now() >= self.timers.renew {
                match self.renew().await {
                    Ok(()) => {}
                    Err(Fault::End(end)) => return Err(end),
                    // The next turn tries again.
                    Err(Fault::Retry(_)) => store_answers = false,
                }
                if self.consumer.epoch != epoch {
                    return Ok(Sent::TakenBack);
                }
            }
            let results = Box::pin(self.join_bodies(results)).await?;
            for result in &results {
                let first = !self.progress.has_shown(result.delivery.key.sequence);
                if let Some(Granted { credit, result_bytes }) =
                    self.granted.as_ref().filter(|_| first)
                {
                    let bytes = result_bytes(result);
                    credit.spend(i64::try_from(bytes).unwrap_or(i64::MAX));
                }
            }
            for result in &results {
                let sequence = result.delivery.key.sequence;
                self.progress.show(sequence);
                unsent.remove(&sequence);
                highest = highest.max(sequence);
            }
            self.raise_to(unsent.first().map_or(highest, |next| highest.min(next - 1)));
            telemetry::results_sent(results.len());
            let resume_token = self.token();
            self.send(Frame::Deliveries { results, resume_token }).await?;
        }
        Ok(Sent::Whole)
    }

    /// Joins results with the bodies that travel along, in one read outside all locks.
    async fn join_bodies(&mut self, results: Vec<Joined>) -> Result<Vec<Sending>, End> {
        let limit = self.policy.inline_payload_bytes_max;
        let keys = frames::with_body(results.iter(), limit);
        let mut bodies = BTreeMap::new();
        if !keys.is_empty() {
            let engine = self.engine.clone();
            match self.read(Box::pin(async move { bodies_of(&engine, keys).await })).await {
                Ok(found) => bodies = found,
                Err(Fault::End(end)) => return Err(end),
                Err(Fault::Retry(refusal)) => {
                    tracing::debug!(reason = refusal.reason(), "results go without their bodies");
                }
            }
        }
        Ok(with_bodies(results, &bodies))
    }
}

/// Bodies of results, by operation, those that are there.
pub(super) async fn bodies_of(
    engine: &Engine,
    keys: Vec<OperationKey>,
) -> Result<BTreeMap<OperationKey, Bytes>, ReadError> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = engine.store().payloads(&keys, PayloadKind::Result).await?;
    Ok(keys.into_iter().zip(found).filter_map(|(key, body)| Some((key, body?))).collect())
}

/// Each result with its body, where there is one.
pub(super) fn with_bodies(
    results: Vec<Joined>,
    bodies: &BTreeMap<OperationKey, Bytes>,
) -> Vec<Sending> {
    let joined = results.into_iter().map(|(delivery, operation)| Sending {
        payload: bodies.get(&operation.key).cloned(),
        delivery,
        operation,
    });
    joined.collect()
}
