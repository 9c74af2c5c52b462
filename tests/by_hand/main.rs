//! Deliveries by hand over a real socket, on both stores: each call's effect and what it tells.

#[path = "../support/hosted.rs"]
mod hosted;
#[path = "../support/mod.rs"]
mod support;

mod attempts;
mod counts;
mod limits;
mod names;
mod pulls;
mod redrives;
mod refusals;

use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{
        AttemptTarget, DeferDeliveriesRequest, DeferResult, ExtendDeliveriesRequest, ExtendResult,
        PullDeliveriesRequest, PullDeliveriesResponse, RedriveDeliveriesRequest,
        RedriveDeliveriesResponse,
    },
};
use support::{
    BOUND,
    client::{Caller, attempt, sequence},
    eventually,
    requests::{Identity, into_inbox, seconds},
    within,
};
use tonic::Status;

const INBOX: &str = "editor";

fn policy() -> Policy {
    Policy {
        ack_window: Span::seconds(90),
        backoff_first: Span::seconds(1),
        retry_budget: 2,
        ..Policy::default()
    }
}

async fn queue(caller: &Caller, count: usize) -> Vec<Identity> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = Identity::fresh();
        caller.submitted(into_inbox(id.append("d1", "x"), INBOX)).await;
        ids.push(id);
    }
    ids
}

fn page(consumer: &str, max_deliveries: i32, wait: i64) -> PullDeliveriesRequest {
    PullDeliveriesRequest {
        inbox: INBOX.to_owned(),
        consumer_id: consumer.to_owned(),
        max_deliveries,
        wait: Some(seconds(wait)),
    }
}

async fn pull(
    caller: &Caller,
    request: PullDeliveriesRequest,
) -> Result<PullDeliveriesResponse, Status> {
    let mut client = caller.inboxes.clone();
    Ok(within("a page", client.pull_deliveries(request)).await?.into_inner())
}

async fn pulled(caller: &Caller, consumer: &str, max: i32) -> Vec<(i64, i32)> {
    let answer = pull(caller, page(consumer, max, 0)).await.expect("answered");
    answer.results.iter().map(|result| (sequence(result), attempt(result))).collect()
}

fn attempts(named: &[(i64, i32)]) -> Vec<AttemptTarget> {
    let target = |&(sequence, attempt): &(i64, i32)| {
        let inbox = INBOX.to_owned();
        AttemptTarget { inbox, sequence, attempt }
    };
    named.iter().map(target).collect()
}

async fn extend(
    caller: &Caller,
    consumer: &str,
    named: &[(i64, i32)],
    extension: i64,
) -> Result<Vec<ExtendResult>, Status> {
    let request = ExtendDeliveriesRequest {
        deliveries: attempts(named),
        extension: Some(seconds(extension)),
        consumer_id: consumer.to_owned(),
    };
    let mut client = caller.inboxes.clone();
    Ok(within("an extension", client.extend_deliveries(request)).await?.into_inner().results)
}

async fn defer(
    caller: &Caller,
    consumer: &str,
    named: &[(i64, i32)],
    delay: i64,
) -> Result<Vec<DeferResult>, Status> {
    let request = DeferDeliveriesRequest {
        deliveries: attempts(named),
        delay: Some(seconds(delay)),
        consumer_id: consumer.to_owned(),
    };
    let mut client = caller.inboxes.clone();
    Ok(within("a deferral", client.defer_deliveries(request)).await?.into_inner().results)
}

async fn redrive(
    caller: &Caller,
    request: RedriveDeliveriesRequest,
) -> Result<RedriveDeliveriesResponse, Status> {
    let mut client = caller.inboxes.clone();
    Ok(within("a redrive", client.redrive_deliveries(request)).await?.into_inner())
}

/// Waits until so many of the inbox are lost.
async fn lost(caller: &Caller, count: i64) {
    eventually("deliveries to be lost", BOUND, async || {
        let inbox = caller.inbox(INBOX).await;
        (inbox.expired_total + inbox.dead_total == count).then_some(())
    })
    .await;
}

async fn pending(caller: &Caller, count: i64) {
    eventually("deliveries to come back", BOUND, async || {
        (caller.inbox(INBOX).await.pending == count).then_some(())
    })
    .await;
}
