//! Around the commit: W7, W8, and the answer of a commit that is lost.

use std::time::Duration;

use receiptd::proto::{Origin, Standing, operation::State};

use crate::support::{
    BOUND,
    answers::{answered, found_receipt, lines, receipt, state_of},
    background,
    client::{Caller, Refused},
    eventually,
    pattern::{COMMIT_ASKED, COMMIT_DONE},
    postgres::postgres,
    proxy::{Direction, Mode, Proxy},
    requests::Identity,
    server::{Server, TOKEN_A},
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    w7_killed_at_any_moment_leaves_both_rows_or_neither,
    w8_killed_after_commit_before_the_reply_is_completed_for_a_new_process,
);

async fn w7_killed_at_any_moment_leaves_both_rows_or_neither(store: TestStore) {
    let mut server = store.serve(&[]);
    for round in 0..12_u64 {
        let proxy = Proxy::start(server.address()).await;
        let caller = Caller::new(proxy.address(), TOKEN_A);
        let id = Identity::fresh();
        caller.get(&id).await;
        let before = proxy.bytes(Direction::Up);
        let request = id.append("d1", &id.id);
        let attempt = background(async move { caller.submit(request).await });
        proxy.bytes_beyond(Direction::Up, before).await;
        // The moment of the kill moves through the work; it synchronises nothing.
        tokio::time::sleep(Duration::from_micros(round * 400)).await;
        server.kill();
        // Answered or not: that is what the window leaves open.
        drop(within("the attempt to end", attempt).await.expect("no panic"));

        server.start_again();
        let answer = server.a().get(&id).await;
        let effect = lines(&server.a().text("d1").await.0, &id.id);
        match answer.standing() {
            Standing::Recorded => {
                assert_eq!((state_of(&answer), effect), (Some(State::Applied), 1));
            }
            standing => assert_eq!((standing, effect), (Standing::NotAcceptedYet, 0)),
        }
        let again = server.a().submitted(id.append("d1", &id.id)).await;
        let expected = if effect == 1 { Origin::Replayed } else { Origin::Executed };
        assert_eq!(answered(&again), (expected, State::Applied), "round {round}");
        assert_eq!(lines(&server.a().text("d1").await.0, &id.id), 1);
    }
}

async fn w8_killed_after_commit_before_the_reply_is_completed_for_a_new_process(store: TestStore) {
    let mut server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let cut_off = Caller::new(proxy.address(), TOKEN_A);
    let id = Identity::fresh();
    cut_off.get(&id).await;
    proxy.set(Direction::Down, Mode::Swallow);
    let request = id.append("d1", "x");
    let attempt = background(async move { cut_off.submit(request).await });
    let caller = server.a();
    let committed = eventually("the operation to be applied", BOUND, async || {
        let answer = caller.get(&id).await;
        (state_of(&answer) == Some(State::Applied)).then_some(answer)
    })
    .await;
    server.kill();
    within("the cut", attempt).await.expect("no panic").expect_err("the reply never came");

    server.start_again();
    let completed = server.a().get(&id).await;
    assert_eq!(completed.standing(), Standing::Recorded);
    assert_eq!(found_receipt(&completed), found_receipt(&committed));
    let replay = server.a().submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&replay), found_receipt(&committed));
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}

/// A server whose connections to its database go through a proxy.
struct Behind {
    proxy: Proxy,
    server: Server,
}

async fn behind_a_proxy() -> Option<Behind> {
    let database = tokio::task::block_in_place(postgres)?;
    let name = database.fresh_database().await;
    let proxy = Proxy::start(([127, 0, 0, 1], database.port()).into()).await;
    let url = database.url(&name, proxy.address().port());
    let server = tokio::task::block_in_place(|| Server::serve(&url, &[]));
    Some(Behind { proxy, server })
}

#[tokio::test(flavor = "multi_thread")]
async fn w7_killed_before_the_commit_is_asked_leaves_neither_row() {
    let Some(Behind { proxy, mut server }) = behind_a_proxy().await else { return };
    let id = Identity::fresh();
    server.a().get(&id).await;
    proxy.set(Direction::Up, Mode::cut_at(COMMIT_ASKED));
    let (caller, request) = (server.a(), id.append("d1", "x"));
    let attempt = background(async move { caller.submit(request).await });
    proxy.triggered(Direction::Up, 1).await;
    server.kill();
    drop(within("the attempt to end", attempt).await.expect("no panic"));

    server.start_again();
    let again = server.a().submitted(id.append("d1", "x")).await;
    assert_eq!(again.operation.expect("an operation").state(), State::Applied);
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}

/// F04 too: the answer of the commit is lost, once after and once before it reached the store.
#[tokio::test(flavor = "multi_thread")]
async fn w8_a_commit_whose_answer_is_lost_is_never_reported_as_failed() {
    let Some(Behind { proxy, server }) = behind_a_proxy().await else { return };
    let variants = [
        (Direction::Down, COMMIT_DONE),
        (Direction::Up, COMMIT_ASKED),
        (Direction::Down, COMMIT_DONE),
    ];
    for (round, (direction, pattern)) in (1..).zip(variants) {
        let id = Identity::fresh();
        server.a().get(&id).await;
        proxy.set(direction, Mode::cut_at(pattern));
        match server.a().submit(id.append("d1", &id.id)).await {
            Ok(answer) => assert_eq!(answer.operation.expect("one").state(), State::Applied),
            Err(status) => {
                let refused = Refused::of(&status);
                let effect = lines(&server.a().text("d1").await.0, &id.id);
                assert!(
                    refused.value("outcome") != "NO_EFFECT" || effect == 0,
                    "a promise that does not hold: {refused:?}"
                );
                // Never a new id: the same one again, at once or after a while.
                assert!(["RESUBMIT_SAME_ID", "WAIT"].contains(&refused.value("recovery")));
            }
        }
        let again = eventually("an answer to the same id", BOUND, async || {
            server.a().submit(id.append("d1", &id.id)).await.ok()
        })
        .await;
        assert_eq!(again.operation.expect("an operation").state(), State::Applied);
        assert_eq!(lines(&server.a().text("d1").await.0, &id.id), 1, "variant {round}");
    }
}
