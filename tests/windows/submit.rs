//! Around acceptance and the answer: W1, W2, W3, W9, W10.

use std::collections::BTreeSet;

use receiptd::proto::{EffectCertainty, Origin, RecoveryAction, Standing, operation::State};

use crate::support::{
    BOUND,
    answers::{answered, delivery, found, found_receipt, lines, operation, receipt, state_of},
    background,
    client::{Caller, Refused},
    eventually,
    proxy::{Direction, Mode, Proxy},
    requests::{Identity, until_acked, waiting},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    w1_cut_before_acceptance_leaves_nothing_and_the_retry_starts_once,
    w2_same_id_attaches_to_accepted_work_after_a_cut_and_after_a_crash,
    w3_cut_after_commit_replays_the_receipt_and_not_the_effect,
    w9_of_many_attempts_at_once_one_executes_and_all_get_its_receipt,
    w10_answers_are_the_same_after_a_restart,
);

async fn w1_cut_before_acceptance_leaves_nothing_and_the_retry_starts_once(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let caller = Caller::new(proxy.address(), TOKEN_A);
    let id = Identity::fresh();
    assert_eq!(caller.get(&id).await.standing(), Standing::NotAcceptedYet);

    proxy.set(Direction::Up, Mode::cut_at(&id.id));
    let lost = caller.submit(id.append("d1", "x")).await.expect_err("the request is cut");
    proxy.triggered(Direction::Up, 1).await;
    assert_ne!(Refused::of(&lost).value("outcome"), "NO_EFFECT", "nobody may promise that");

    let absent = server.a().get(&id).await;
    assert_eq!((absent.standing(), state_of(&absent)), (Standing::NotAcceptedYet, None));
    let recovery = absent.recovery.expect("a next step");
    assert_eq!(recovery.action(), RecoveryAction::ResubmitSameId);
    assert!(recovery.text.contains(&id.id), "the text names the operation");
    assert_eq!(server.a().text("d1").await, (String::new(), 0));

    let retry = caller.submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&retry), (Origin::Executed, State::Applied));
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}

async fn w2_same_id_attaches_to_accepted_work_after_a_cut_and_after_a_crash(store: TestStore) {
    let mut server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let cut_off = Caller::new(proxy.address(), TOKEN_A);
    let caller = server.a();
    let holder = caller.submitted(until_acked(Identity::fresh().append("d1", "held"))).await;

    let id = Identity::fresh();
    let request = waiting(id.append("d1", "x"), 30);
    let first = background(async move { cut_off.submit(request).await });
    let accepted = eventually("the operation to be accepted", BOUND, async || {
        let answer = caller.get(&id).await;
        (state_of(&answer) == Some(State::Accepted)).then_some(answer)
    })
    .await;
    proxy.cut_all();
    let lost = within("the cut", first).await.expect("no panic").expect_err("the answer is cut");
    assert_ne!(Refused::of(&lost).value("outcome"), "NO_EFFECT");

    let attached = caller.submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&attached), (Origin::Attached, State::Accepted));
    assert_eq!(receipt(&attached).accept_time, found_receipt(&accepted).accept_time);
    assert_eq!(operation(&attached).effect_certainty(), EffectCertainty::None);
    let waits_for = operation(&attached).waiting_for.as_ref().expect("it says for whom it waits");
    assert_eq!(waits_for.operation_id, operation(&holder).operation_id);

    server.crash_and_restart();
    let caller = server.a();
    let attached = caller.submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&attached), (Origin::Attached, State::Accepted));
    assert_eq!(caller.text("d1").await, ("held\n".to_owned(), 1));

    let held = delivery(&holder);
    caller.ack(&held.inbox, &[held.sequence]).await.expect("acked");
    let done = caller.submitted(waiting(id.append("d1", "x"), 8)).await;
    assert_eq!(operation(&done).state(), State::Applied);
    assert_eq!(caller.text("d1").await, ("held\nx\n".to_owned(), 2));
}

async fn w3_cut_after_commit_replays_the_receipt_and_not_the_effect(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let cut_off = Caller::new(proxy.address(), TOKEN_A);
    let id = Identity::fresh();
    cut_off.get(&id).await;

    proxy.set(Direction::Down, Mode::cut_at(&id.id));
    cut_off.submit(id.append("d1", "x")).await.expect_err("the answer is cut");
    let caller = server.a();
    let applied = eventually("the operation to be applied", BOUND, async || {
        let answer = caller.get(&id).await;
        (state_of(&answer) == Some(State::Applied)).then_some(answer)
    })
    .await;
    assert_eq!(applied.recovery.as_ref().expect("a step").action(), RecoveryAction::ShowResult);

    for _ in 0..5 {
        let replay = cut_off.submitted(id.append("d1", "x")).await;
        assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
        assert_eq!(receipt(&replay), found_receipt(&applied), "the receipt never changes");
    }
    assert_eq!(caller.text("d1").await, ("x\n".to_owned(), 1));
}

async fn w9_of_many_attempts_at_once_one_executes_and_all_get_its_receipt(store: TestStore) {
    let server = store.serve(&[]);
    for round in 0..20 {
        let id = Identity::fresh();
        let line = format!("round {round}");
        let attempts: Vec<_> = (0..20)
            .map(|_| {
                let (caller, request) = (server.a(), waiting(id.append("d1", &line), 8));
                background(async move { caller.submitted(request).await })
            })
            .collect();
        let mut executed = 0;
        let mut receipts = BTreeSet::new();
        for attempt in attempts {
            let answer = within("an answer", attempt).await.expect("no panic");
            executed += usize::from(answer.origin() == Origin::Executed);
            assert_ne!(answer.origin(), Origin::Unspecified);
            receipts.insert(prost::Message::encode_to_vec(receipt(&answer)));
        }
        assert_eq!((executed, receipts.len()), (1, 1), "round {round}");
        assert_eq!(lines(&server.a().text("d1").await.0, &line), 1);
    }
}

async fn w10_answers_are_the_same_after_a_restart(store: TestStore) {
    let mut server = store.serve(&[]);
    let id = Identity::fresh();
    let first = server.a().submitted(id.append("d1", "x")).await;
    let before = server.a().get(&id).await;

    server.crash_and_restart();
    let after = server.a().get(&id).await;
    assert_eq!(after.standing(), Standing::Recorded);
    assert_eq!(found(&after).receipt, found(&before).receipt);
    assert_eq!(after.deliveries, before.deliveries);
    assert_eq!(after.projection, before.projection);
    let replay = server.a().submitted(id.append("d1", "x")).await;
    assert_eq!(answered(&replay), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&replay), receipt(&first));

    assert!(server.stop().success(), "SIGTERM ends it in order");
    server.start_again();
    assert_eq!(server.a().get(&id).await.deliveries, before.deliveries);
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}
