//! GetUsage.

use crate::{
    api::{
        Api,
        convert::{operations, times::timestamp},
        status::Refused,
    },
    domain::{ids::Account, operation::OperationState},
    engine::totals::Submits,
    proto,
};

impl Api {
    pub(super) async fn usage(
        &self,
        account: &Account,
    ) -> Result<proto::GetUsageResponse, Refused> {
        let store = self.engine().store();
        let usage = store.usage(account).await?;
        let now = store.now().await?;
        let applied = usage.operations.iter().filter(|of| of.state == OperationState::Applied);
        Ok(proto::GetUsageResponse {
            account: account.as_str().to_owned(),
            effects: applied.map(|of| of.count).sum(),
            duplicates_prevented: usage.operations.iter().map(|of| of.replays).sum(),
            operations: usage
                .operations
                .iter()
                .map(|of| proto::OperationUsage {
                    state: operations::state(of.state).into(),
                    count: of.count,
                    compacted: of.compacted,
                    replays: of.replays,
                })
                .collect(),
            unresolved: usage.unresolved,
            oldest_unresolved: usage.oldest_unresolved.map(timestamp),
            documents: usage.documents,
            document_bytes: usage.document_bytes,
            payload_bytes: usage.payload_bytes,
            inboxes: usage.inboxes,
            reserved: usage.reserved,
            pending: usage.pending,
            in_flight: usage.in_flight,
            acked_total: usage.acked,
            expired_total: usage.expired,
            dead_total: usage.dead,
            oldest_unacked: usage.oldest_unacked.map(timestamp),
            oldest_overdue: usage.oldest_overdue.map(timestamp),
            time: Some(timestamp(now)),
            at_least: usage.at_least,
            replica: Some(replica(&self.engine().totals().submits)),
        })
    }
}

fn replica(submits: &Submits) -> proto::ReplicaTotals {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    proto::ReplicaTotals {
        executed: count(submits.executed),
        attached: count(submits.attached),
        replayed: count(submits.replayed),
        mismatched: count(submits.mismatched),
        effects: count(submits.effects),
    }
}
