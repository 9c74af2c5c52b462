//! A lease that ended without a newer stream: the stream opens again in place.

use receiptd::{
    domain::{
        command::{Command, Reply, Swept},
        ids::Span,
        policy::Policy,
        refusal::Refusal,
    },
    stream::Frame,
};

use crate::{
    Frames, Running,
    commands::{append, inbox},
    last, next, opened, results, running,
    support::within,
};

const LEASE: Span = Span::seconds(60);

fn leased() -> Policy {
    Policy { ack_deadline: Span::hours(1), ack_window: Span::hours(2), ..Policy::default() }
}

/// The store's clock jumps beyond the lease, and the sweeper is faster than the stream.
async fn lapse(running: &Running) {
    let sweep = Command::SweepInbox { key: inbox("default") };
    let sweeping = async {
        loop {
            running.engine.seams().move_clock(LEASE + Span::seconds(1));
            let swept = running.engine.run(sweep.clone()).await.expect("swept");
            if matches!(swept, Reply::Swept(Swept::ConsumerRemoved)) {
                return;
            }
        }
    };
    within("the lease to end", sweeping).await;
}

async fn sent_three(running: &Running) -> Frames {
    running.submit_many(1, 3).await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    opened(&mut frames).await;
    assert_eq!(results(&mut frames, 3).await.0, [(1, 1), (2, 1), (3, 1)]);
    assert!(matches!(next(&mut frames).await, Frame::CaughtUp { .. }));
    frames
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lapsed_stream_goes_on_and_what_it_held_comes_again() {
    let running = running(leased());
    let mut frames = sent_three(&running).await;
    let before = running.row().await.consumers[0].clone();
    lapse(&running).await;
    let (got, _) = results(&mut frames, 3).await;
    assert_eq!(got, [(1, 2), (2, 2), (3, 2)], "on the same stream");
    let row = running.row().await;
    let [after] = row.consumers.as_slice() else { panic!("{row:?}") };
    assert!(after.id == before.id && after.epoch > before.epoch, "{after:?}");
    assert_eq!((after.window, after.in_flight), (10, 3));
    running.ack("me", &[1, 2, 3]).await;
    running.submit("op-4").await;
    let (got, token) = results(&mut frames, 1).await;
    assert_eq!(got, [(4, 1)], "live ones too");
    running.ack("me", &[4]).await;
    drop(frames);
    let mut frames = running.open("me", 10, &token).await.expect("the token is good");
    assert_eq!(opened(&mut frames).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lapsed_stream_that_was_replaced_is_superseded() {
    let running = running(leased());
    let mut first = sent_three(&running).await;
    lapse(&running).await;
    let mut second = running.open("me", 10, "").await.expect("opens");
    opened(&mut second).await;
    let end = last(&mut first).await;
    assert!(matches!(end, Err(Refusal::StreamSuperseded)), "{end:?}");
    let got: Vec<i64> = results(&mut second, 3).await.0.iter().map(|(number, _)| *number).collect();
    assert_eq!(got, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_keeps_its_lease() {
    let lease = Span::millis(1_500);
    let running = running(Policy { consumer_lease: lease, ..leased() });
    let now = running.engine.store().now().await.expect("a clock");
    let submits = (1..=20).map(|number| {
        let mut command = append(&format!("op-{number}"), now).command();
        if let Command::Submit(submit) = &mut command {
            // Each fills a frame of its own.
            submit.labels.insert("text".to_owned(), "x".repeat(16 * 1024));
        }
        running.engine.run(command)
    });
    for reply in futures_util::future::join_all(submits).await {
        assert!(matches!(reply, Ok(Reply::Submitted(_))), "{reply:?}");
    }
    let mut frames = running.open("me", 20, "").await.expect("opens");
    opened(&mut frames).await;
    let epoch = running.row().await.consumers[0].epoch;
    let mut got = Vec::new();
    while got.len() < 20 {
        got.extend(results(&mut frames, 1).await.0);
        // The page as a whole takes longer than the lease, and no frame as long as a stall.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert_eq!(got, (1..=20).map(|number| (number, 1)).collect::<Vec<_>>(), "none came back");
    assert_eq!(running.row().await.consumers[0].epoch, epoch);
}
