//! How streams end, and what ends none.

use std::time::Duration;

use receiptd::{
    domain::{ids::Span, refusal::Refusal},
    stream::{Frame, StreamSettings},
};

use crate::{last, opened, policy, results, running, settings};

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_honest() {
    let running = running(policy());
    running.submit_many(1, 3).await;
    let mut first = running.open("me", 10, "").await.expect("opens");
    opened(&mut first).await;
    results(&mut first, 3).await;
    let mut second = running.open("me", 10, "").await.expect("opens");
    opened(&mut second).await;
    let began = std::time::Instant::now();
    let end = last(&mut first).await;
    assert!(matches!(end, Err(Refusal::StreamSuperseded)), "{end:?}");
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    let (got, _) = results(&mut second, 3).await;
    assert_eq!(got, [(1, 2), (2, 2), (3, 2)]);
    drop(second);
    // A stream that lives longer than its lease keeps it.
    let aged = StreamSettings { age_max: Span::seconds(5), ..settings() };
    let mut frames = running.open_with("me", 10, "", aged).await.expect("opens");
    let end = last(&mut frames).await;
    assert!(matches!(end, Ok(Frame::Draining { .. })), "{end:?}");
    // One that reads nothing.
    running.submit_many(10, 400).await;
    let mut frames = running.open("me", 256, "").await.expect("opens");
    assert_eq!(running.row().await.consumers.len(), 1);
    // Nothing is read before everything has been given back.
    let given_back = async {
        loop {
            let row = running.row().await;
            if (row.in_flight, row.consumers.len()) == (0, 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let bound = Duration::from_secs(20);
    tokio::time::timeout(bound, given_back).await.expect("all is given back");
    let end = last(&mut frames).await;
    assert!(matches!(end, Err(Refusal::SlowConsumer)), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_store_ends_no_stream() {
    let running = running(policy());
    running.submit_many(1, 5).await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    opened(&mut frames).await;
    results(&mut frames, 5).await;
    running.engine.store().close().await;
    let end = tokio::time::Instant::now() + Duration::from_secs(6);
    let mut beats = 0;
    while let Ok(item) = tokio::time::timeout_at(end, frames.recv()).await {
        match item {
            Some(Ok(Frame::Heartbeat { .. })) => beats += 1,
            Some(Ok(Frame::CaughtUp { .. })) => {}
            other => {
                panic!("{other:?}");
            }
        }
    }
    assert!(beats >= 5);
    running.shutdown.cancel();
    assert!(matches!(last(&mut frames).await, Ok(Frame::Draining { .. })));
    let joined = tokio::time::timeout(Duration::from_secs(10), async {
        running.engine.drain().await;
        running.engine.seams().join().await
    })
    .await;
    assert!(joined.is_ok(), "everything ends");
}
