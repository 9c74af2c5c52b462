//! Numbers that will not come are told, each once per resume.

use std::time::Duration;

use receiptd::{
    domain::{delivery::DeliveryState, ids::Span, policy::Policy},
    stream::{Frame, GapCause},
};

use crate::{
    Frames, Running,
    commands::{attempts, extend, pull},
    next, opened, policy, results, running,
    support::within,
};

/// Nothing comes due by itself: the test moves the clock.
fn slow_policy() -> Policy {
    Policy {
        ack_deadline: Span::seconds(30),
        ack_window: Span::minutes(10),
        backoff_first: Span::minutes(5),
        backoff_limit: Span::minutes(5),
        consumer_lease: Span::hours(10),
        ..Policy::default()
    }
}

impl Running {
    fn pass(&self, time: Span) {
        self.engine.seams().move_clock(time);
    }
}

/// What a stream told until `CaughtUp`: withdrawn and lost numbers, and the last token.
async fn told(frames: &mut Frames) -> (Vec<i64>, Vec<i64>, String) {
    let (mut withdrawn, mut lost) = (Vec::new(), Vec::new());
    loop {
        match within("CaughtUp", next(frames)).await {
            Frame::Withdrawn(ended) => withdrawn.extend(ended.iter().map(|(number, ..)| *number)),
            Frame::Gap { first, last, operation_ids, .. } => {
                assert_eq!(operation_ids.len() as i64, last - first + 1);
                lost.extend(first..=last);
            }
            Frame::CaughtUp { resume_token } => return (withdrawn, lost, resume_token),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broken_stream_was_sent_and_is_lost_later_is_told() {
    let running = running(slow_policy());
    running.submit_many(1, 5).await;
    let mut broken = running.open("me", 10, "").await.expect("opens");
    opened(&mut broken).await;
    assert_eq!(results(&mut broken, 5).await.0.len(), 5);
    drop(broken);
    running.until("all to come back", |row| row.returned == 5).await;
    // Its client got none of them, and so has no token.
    let mut frames = running.open("me", 1, "").await.expect("opens");
    opened(&mut frames).await;
    let (got, token) = results(&mut frames, 1).await;
    assert_eq!(got, [(1, 2)]);
    running.pass(Span::minutes(11));
    let (mut withdrawn, lost, caught_up) = told(&mut frames).await;
    if withdrawn.is_empty() {
        match next(&mut frames).await {
            Frame::Withdrawn(ended) => withdrawn.extend(ended.iter().map(|(number, ..)| *number)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((withdrawn, lost), (vec![1], vec![2, 3, 4, 5]), "each once");
    drop(frames);
    // From the token of the result on, which is below all that could still be lost, the same is
    // told; from the last one on, nothing.
    for (token, expected) in [(token, vec![1, 2, 3, 4, 5]), (caught_up, vec![])] {
        let mut frames = running.open("me", 1, &token).await.expect("opens");
        opened(&mut frames).await;
        let (withdrawn, lost, _) = told(&mut frames).await;
        assert_eq!((withdrawn, lost), (vec![], expected));
    }
}

/// The stream looks in between: what another consumer has then is told when it ends, as it would be
/// told by a stream that looks only afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_took_and_lost_is_withdrawn_and_no_gap() {
    let running = running(slow_policy());
    running.submit_many(1, 2).await;
    let mut frames = running.open("me", 1, "").await.expect("opens");
    opened(&mut frames).await;
    assert_eq!(results(&mut frames, 1).await.0, [(1, 1)]);
    running.pass(Span::seconds(31));
    assert_eq!(results(&mut frames, 1).await.0, [(2, 1)], "the first backs off");
    let slow = extend(attempts("default", None, &[(2, 1)]), Some(Span::minutes(9)));
    running.engine.run(slow).await.expect("extended");
    running.pass(Span::minutes(6));
    running.engine.run(pull("default", "other", 1)).await.expect("the first is another's now");
    assert_eq!((running.row().await.in_flight, running.row().await.pending), (2, 0));
    running.ack("", &[2]).await;
    assert_eq!(withdrawn(&mut frames).await, [(2, DeliveryState::Acked)], "it has looked");
    running.pass(Span::minutes(11));
    assert_eq!(withdrawn(&mut frames).await, [(1, DeliveryState::Expired)]);
    running.submit("op-3").await;
    assert_eq!(results(&mut frames, 1).await.0, [(3, 1)], "and nothing more of it");
}

/// The next withdrawals. Nothing else is told before them.
async fn withdrawn(frames: &mut Frames) -> Vec<(i64, DeliveryState)> {
    loop {
        match within("Withdrawn", next(frames)).await {
            Frame::Withdrawn(ended) => {
                let state = |how: Option<(_, DeliveryState)>| how.expect("kept").1;
                return ended.into_iter().map(|(number, how)| (number, state(how))).collect();
            }
            Frame::CaughtUp { .. } | Frame::Heartbeat { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_stays_below_what_backs_off_while_higher_numbers_come() {
    let running = running(slow_policy());
    running.submit_many(1, 2).await;
    let mut gone = running.open("gone", 1, "").await.expect("opens");
    opened(&mut gone).await;
    assert_eq!(results(&mut gone, 1).await.0, [(1, 1)]);
    running.pass(Span::seconds(31));
    // The first backs off after its missed deadline; the second comes back at once.
    assert_eq!(results(&mut gone, 1).await.0, [(2, 1)]);
    drop(gone);
    running.until("both to come back", |row| row.returned == 2).await;
    let mut frames = running.open("me", 10, "").await.expect("opens");
    opened(&mut frames).await;
    let (got, token) = results(&mut frames, 1).await;
    assert_eq!(got, [(2, 2)], "the first still backs off");
    running.ack("me", &[2]).await;
    drop(frames);
    running.pass(Span::minutes(10));
    running.until("the first to expire", |row| row.expired_total == 1).await;
    let mut frames = running.open("me", 10, &token).await.expect("opens");
    opened(&mut frames).await;
    let (_, lost, _) = told(&mut frames).await;
    assert_eq!(lost, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_ones_are_told_once() {
    let running = running(Policy { ack_deadline: Span::seconds(3), ..policy() });
    running.submit_many(1, 6).await;
    let mut frames = running.open("me", 2, "").await.expect("opens");
    opened(&mut frames).await;
    let (got, token) = results(&mut frames, 2).await;
    assert_eq!(got, [(1, 1), (2, 1)]);
    let (mut withdrawn, mut gaps, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    let started = std::time::Instant::now();
    while withdrawn.len() + gaps.len() < 6 && started.elapsed() < Duration::from_secs(9) {
        match next(&mut frames).await {
            Frame::Withdrawn(ended) => {
                withdrawn.extend(ended.into_iter().map(|(n, how)| (n, how.expect("kept").1)))
            }
            Frame::Gap { first, last, cause, operation_ids } => {
                assert_eq!(operation_ids.len() as i64, last - first + 1);
                assert_eq!(cause, GapCause::Expired);
                gaps.extend((first..=last).map(|n| (n, DeliveryState::Expired)));
            }
            Frame::Deliveries { results, .. } => shown.extend(
                results.iter().map(|sent| (sent.delivery.key.sequence, sent.delivery.attempt)),
            ),
            Frame::CaughtUp { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    withdrawn.extend(gaps);
    withdrawn.sort_unstable();
    assert_eq!(withdrawn, (1..=6).map(|n| (n, DeliveryState::Expired)).collect::<Vec<_>>());
    drop(frames);
    let mut frames = running.open("me", 2, &token).await.expect("opens");
    opened(&mut frames).await;
    let gap = next(&mut frames).await;
    assert!(matches!(gap, Frame::Gap { first: 3, last: 6, .. }), "{gap:?}");
    assert!(matches!(next(&mut frames).await, Frame::CaughtUp { .. }));
}
