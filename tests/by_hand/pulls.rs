//! Results without a stream, and beside one.

use std::time::Duration;

use receiptd::{
    domain::policy::Policy,
    proto::{DeferOutcome, PullDeliveriesResponse},
};
use tokio::task::JoinHandle;
use tonic::Request;

use crate::{
    INBOX, defer,
    hosted::{Hosted, host},
    page, policy, pull, pulled, queue,
    support::{
        BOUND, background,
        client::{attempt, sequence, sequences},
        eventually,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(a_pull_takes_what_is_there_or_waits_for_it, a_pull_and_a_stream_of_one_consumer);

/// A call that waits by now.
async fn waits(hosted: &Hosted) -> JoinHandle<PullDeliveriesResponse> {
    let caller = hosted.a();
    let waiting =
        background(async move { pull(&caller, page("waiting", 9, 60)).await.expect("answered") });
    eventually("the call to watch its inbox", BOUND, async || {
        (!hosted.engine.wake().watched().inboxes.is_empty()).then_some(())
    })
    .await;
    waiting
}

async fn a_pull_takes_what_is_there_or_waits_for_it(store: TestStore) {
    let hosted = host(store, Policy { in_flight_max: 4, ..policy() }).await;
    let caller = hosted.a();
    let empty = pull(&caller, page("", 0, 0)).await.expect("answered");
    assert!(empty.results.is_empty() && empty.pending == 0);
    assert!(empty.consumer_id.starts_with("c-"), "a name of its own: {}", empty.consumer_id);
    assert_eq!(caller.inbox(INBOX).await.last_sequence, 0, "made at first use");

    let waiting = waits(&hosted).await;
    queue(&caller, 1).await;
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [1], "as soon as there is something");
    assert_eq!(answer.consumer_id, "waiting");
    assert!(!answer.results[0].redelivered);

    let deferred = defer(&caller, "waiting", &[(1, 1)], 10).await.expect("answered");
    assert_eq!(deferred[0].outcome(), DeferOutcome::Deferred);
    let waiting = waits(&hosted).await;
    hosted.advance(Duration::from_secs(10));
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [1], "when its delay is over");
    assert!(answer.results[0].redelivered);

    queue(&caller, 5).await;
    let some = pull(&caller, page("c", 2, 0)).await.expect("answered");
    assert_eq!((sequences(&some.results), some.pending), (vec![2, 3], 3));
    assert_eq!(pulled(&caller, "c", 0).await, [(4, 1)], "the inbox's maximum of four");
    let waiting = waits(&hosted).await;
    caller.ack(INBOX, &[2]).await.expect("acked");
    let answer = within("the waiting call", waiting).await.expect("no panic");
    assert_eq!(sequences(&answer.results), [5], "an ack makes room");
    assert_eq!(caller.inbox(INBOX).await.consumers.len(), 0, "no stream");

    // The caller's own time limit comes first: an empty page, and not silence.
    let mut request = Request::new(page("c", 1, 60));
    request.set_timeout(Duration::from_millis(600));
    let mut client = caller.inboxes.clone();
    let answer = within("an answer in time", client.pull_deliveries(request)).await;
    assert!(answer.expect("answered").into_inner().results.is_empty());
    let waiting = waits(&hosted).await;
    let ended = background(hosted.stop());
    let answer = within("an answer at the end of the service", waiting).await;
    assert!(answer.expect("no panic").results.is_empty());
    within("the end", ended).await.expect("ends");
}

async fn a_pull_and_a_stream_of_one_consumer(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 2).await;
    assert_eq!(pulled(&caller, "c", 1).await, [(1, 1)]);
    let mut reader = caller.reader(INBOX, "c", "").await;
    let mut backlog = reader.backlog().await;
    backlog.sort_by_key(sequence);
    let shown: Vec<_> = backlog.iter().map(|it| (sequence(it), attempt(it))).collect();
    assert_eq!(shown, [(1, 2), (2, 1)], "the stream takes over what was pulled");
    caller.ack_as("c", INBOX, &[1, 2]).await.expect("acked");
    // What was pulled and not acked comes again after its deadline, here to the stream.
    queue(&caller, 1).await;
    assert_eq!(sequences(&reader.next_results().await), [3]);
    assert_eq!(defer(&caller, "c", &[(3, 1)], 40).await.expect("answered").len(), 1);
    drop(reader);
    eventually("the stream to end", BOUND, async || {
        caller.inbox(INBOX).await.consumers.is_empty().then_some(())
    })
    .await;
    hosted.advance(Duration::from_secs(40));
    assert_eq!(pulled(&caller, "c", 1).await, [(3, 2)]);
    hosted.stop().await;
}
