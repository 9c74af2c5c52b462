//! What the engine promises, on a scripted store. The queue's own tests stand beside it.
//!
//! Commands that are taken without an await between them meet in one batch, because the lane's
//! task shares the test's thread.

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::{
    Engine,
    queue::{Answer, BATCH_COMMANDS_MAX},
    scripted::*,
};
use crate::domain::{
    command::{Command, Reply},
    ids::{ConsumerId, Timestamp},
    operation::Operation,
    policy::Policy,
    refusal::Refusal,
    world::{Surroundings, World, needs::Access},
};

fn ask(engine: &Engine, command: Command) -> oneshot::Receiver<Answer> {
    engine.take(command).expect("taken")
}

fn ask_all(engine: &Engine, ids: &[&str]) -> Vec<oneshot::Receiver<Answer>> {
    ids.iter().map(|id| ask(engine, submit("a", id))).collect()
}

/// `OK` or the reason of each, in the order asked.
async fn reasons(answers: Vec<oneshot::Receiver<Answer>>) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    for answer in answers {
        let answer = answer.await.expect("answered");
        reasons.push(answer.as_ref().map_or_else(Refusal::reason, |_| "OK"));
    }
    reasons
}

async fn transaction_of_answer(answer: oneshot::Receiver<Answer>) -> i64 {
    transaction_of(&answer.await.expect("answered").expect("a good answer"))
}

#[tokio::test]
async fn what_waits_becomes_one_batch_in_order() {
    let (engine, log) = engine(|_| Step::Commit);
    let answers = ask_all(&engine, &["3", "1", "2"]);
    assert_eq!(reasons(answers).await, ["OK", "OK", "OK"]);
    assert_eq!(log.decided(), [["3", "1", "2"]]);
}

#[tokio::test]
async fn a_conflict_is_run_again_twice_and_then_halved() {
    let (engine, log) = engine(|seen| match seen.claims("bad") {
        true => Step::Conflict,
        false => Step::Commit,
    });
    let answers = ask_all(&engine, &["1", "2", "3", "bad"]);
    assert_eq!(reasons(answers).await, ["OK", "OK", "OK", "STORE_UNAVAILABLE"]);
    let sizes: Vec<usize> = log.all().iter().map(|ran| ran.claims).collect();
    assert_eq!(sizes, [4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(log.decided(), [vec!["1", "2"], vec!["3"]]);
}

#[tokio::test]
async fn a_conflict_that_passes_changes_nothing() {
    let (engine, log) = engine(|seen| match seen.number {
        0 | 1 => Step::Conflict,
        _ => Step::Commit,
    });
    assert_eq!(reasons(ask_all(&engine, &["1", "2"])).await, ["OK", "OK"]);
    assert_eq!(log.decided(), [["1", "2"]]);
}

#[tokio::test]
async fn a_command_that_fails_fails_alone() {
    let (engine, log) = engine(|seen| match seen.claims("bad") {
        true => Step::Failed,
        false => Step::Commit,
    });
    let answers = ask_all(&engine, &["1", "bad", "2", "3", "4"]);
    assert_eq!(reasons(answers).await, ["OK", "STORE_UNAVAILABLE", "OK", "OK", "OK"]);
    assert_eq!(log.decided().concat(), ["1", "2", "3", "4"], "halves run in order");
    let all = log.all();
    for (index, ran) in all.iter().enumerate() {
        assert!(all[..index].iter().all(|other| other.name != ran.name), "a name of its own");
        assert_eq!(ran.name.bucket, 663, "the bucket of account a");
    }
}

#[tokio::test]
async fn a_count_that_falls_short_is_internal_for_its_command_alone() {
    let (engine, log) = engine(|seen| match seen.claims("bad") {
        true => Step::CountShort,
        false => Step::Commit,
    });
    let answers = ask_all(&engine, &["1", "bad", "2"]);
    assert_eq!(reasons(answers).await, ["OK", "INTERNAL", "OK"]);
    assert_eq!(log.all().len(), 5, "halved, never repeated");
}

#[tokio::test]
async fn an_unavailable_store_refuses_the_whole_batch_once() {
    let (engine, log) = engine(|_| Step::Unavailable);
    let answers = ask_all(&engine, &["1", "2"]);
    assert_eq!(reasons(answers).await, ["STORE_UNAVAILABLE", "STORE_UNAVAILABLE"]);
    assert_eq!(log.all().len(), 1);
}

#[tokio::test]
async fn a_store_that_refuses_what_stands_alone_is_asked_by_a_write_of_its_own() {
    let (engine, log) = engine(|seen| match seen.number {
        // Both together, each of them three times, and the first probe.
        0..8 => Step::Failed,
        _ => Step::Commit,
    });
    assert!(engine.stores());
    assert_eq!(reasons(ask_all(&engine, &["1", "2"])).await, ["STORE_UNAVAILABLE"; 2]);
    assert!(!engine.stores(), "halved until they stood alone");
    engine.try_to_store().await;
    assert!(!engine.stores(), "the probe is refused as well");
    engine.try_to_store().await;
    assert!(engine.stores());
    let probe = log.all().pop().expect("a probe");
    assert_eq!((probe.claims, probe.decided.len()), (0, 0), "no account is touched");
}

#[tokio::test]
async fn what_stands_alone_behind_a_slow_commit_elsewhere_is_tried_again() {
    let (engine, log) = engine(|seen| match seen.number {
        0..2 => Step::Failed,
        _ => Step::Commit,
    });
    assert_eq!(reasons(ask_all(&engine, &["1"])).await, ["OK"]);
    assert_eq!(log.all().len(), 3, "twice more, and no more");
    assert!(engine.stores());
}

#[tokio::test]
async fn a_command_that_is_refused_by_the_rules_says_nothing_about_the_store() {
    let (engine, _) = engine(|seen| match seen.claims("short") {
        true => Step::CountShort,
        false => Step::Commit,
    });
    assert_eq!(
        reasons(ask_all(&engine, &["refused", "short"])).await,
        ["NO_SUCH_INBOX", "INTERNAL"]
    );
    assert!(engine.stores());
}

#[tokio::test]
async fn a_fatal_error_marks_the_engine_as_failed() {
    let (engine, log) = engine(|_| Step::Fatal);
    assert_eq!(reasons(ask_all(&engine, &["1", "2"])).await, ["COMMIT_UNKNOWN"; 2]);
    engine.failed().cancelled().await;
    let refusal = engine.run(submit("a", "3")).await.expect_err("refused");
    assert_eq!(refusal.reason(), "STORE_UNAVAILABLE");
    assert_eq!(log.all().len(), 1, "the store was left alone");
    engine.drain().await;
}

#[tokio::test]
async fn a_lost_commit_that_took_place_gives_the_first_replies() {
    let (engine, log) = engine(|seen| match seen.purpose {
        Purpose::Run => Step::Ambiguous,
        Purpose::Settle if seen.number == 1 => Step::Unavailable,
        Purpose::Settle => Step::HadCommitted,
    });
    assert_eq!(transaction_of_answer(ask(&engine, submit("a", "1"))).await, 0);
    let all = log.all();
    assert!(all.iter().all(|ran| ran.name == all[0].name), "settled under the same name");
}

#[tokio::test]
async fn a_lost_commit_that_never_took_place_gives_new_replies() {
    let (engine, _) = engine(|seen| match seen.purpose {
        Purpose::Run => Step::Ambiguous,
        Purpose::Settle => Step::Commit,
    });
    assert_eq!(transaction_of_answer(ask(&engine, submit("a", "1"))).await, 1);
}

#[tokio::test]
async fn a_settling_commit_that_is_lost_too_is_settled_with_its_own_replies() {
    let (engine, _) = engine(|seen| match seen.number {
        0 | 1 => Step::Ambiguous,
        _ => Step::HadCommitted,
    });
    assert_eq!(transaction_of_answer(ask(&engine, submit("a", "1"))).await, 1);
}

#[tokio::test]
async fn a_lost_commit_that_cannot_be_settled_is_unknown() {
    let (engine, log) = engine(|seen| match (seen.purpose, seen.claims("1")) {
        (Purpose::Run, true) => Step::Ambiguous,
        (Purpose::Settle, _) => Step::Unavailable,
        (Purpose::Run, false) => Step::Commit,
    });
    assert_eq!(reasons(ask_all(&engine, &["1", "2"])).await, ["COMMIT_UNKNOWN"; 2]);
    assert!(log.all().len() > 2, "tried more than once");
    assert_eq!(reasons(ask_all(&engine, &["3"])).await, ["OK"], "the lane goes on");
}

#[tokio::test]
async fn a_settling_run_that_wrote_nothing_leaves_the_first_one_open() {
    let (engine, log) = engine(|seen| match (seen.purpose, seen.number) {
        (Purpose::Run, _) => Step::Ambiguous,
        (Purpose::Settle, 1) => Step::CountShort,
        (Purpose::Settle, _) => Step::HadCommitted,
    });
    assert_eq!(transaction_of_answer(ask(&engine, submit("a", "1"))).await, 0);
    assert_eq!(log.all().len(), 3, "it arrived after the first try to settle it");
}

#[tokio::test]
async fn a_held_id_is_answered_after_a_while_and_holds_nobody_else_back() {
    let (engine, log) = engine(|_| Step::Held(vec!["held"]));
    let held = ask(&engine, submit("a", "held"));
    let again = ask(&engine, submit("a", "held"));
    let cancelled = ask(&engine, cancel("a", "held"));
    let others = vec![ask(&engine, submit("a", "1")), ask(&engine, submit("b", "2"))];
    assert_eq!(reasons(others).await, ["OK", "OK"]);
    assert_eq!(log.decided(), [["2", "1"]], "by turns, in the first batch");
    let late = ask(&engine, submit("a", "3"));
    assert_eq!(reasons(vec![late]).await, ["OK"]);
    let ended = reasons(vec![held, again, cancelled]).await;
    assert_eq!(ended, ["IDENTITY_HELD", "IDENTITY_HELD", "OK"]);
    let decided = log.decided().concat();
    assert_eq!(decided, ["2", "1", "3", "held"], "the cancel stayed behind its id");
    assert!(log.all().len() >= 3, "tried again in between");
}

#[tokio::test]
async fn an_id_that_is_released_is_decided_in_order() {
    let (engine, log) = engine(|seen| match seen.number {
        0..3 => Step::Held(vec!["held"]),
        _ => Step::Commit,
    });
    let answers = vec![
        ask(&engine, submit("a", "held")),
        ask(&engine, cancel("a", "held")),
        ask(&engine, submit("a", "1")),
    ];
    assert_eq!(reasons(answers).await, ["OK", "OK", "OK"]);
    let decided = log.decided();
    assert_eq!(decided.first().expect("a batch"), &["1"]);
    assert_eq!(decided.last().expect("a batch"), &["held", "held"]);
}

#[tokio::test]
async fn a_command_that_misses_rows_leads_the_next_batch_of_its_account() {
    let (engine, log) = engine(|_| Step::Commit);
    let answers = vec![
        ask(&engine, submit("a", "1")),
        ask(&engine, submit("a", "missing")),
        ask(&engine, submit("a", "2")),
        ask(&engine, submit("b", "3")),
        ask(&engine, submit("a", "4")),
    ];
    assert_eq!(reasons(answers).await, ["OK"; 5]);
    assert_eq!(log.decided(), [vec!["1", "3"], vec!["missing", "2", "4"]]);
}

#[tokio::test]
async fn commands_that_find_more_come_through_together() {
    let (engine, log) = engine(|_| Step::Commit);
    let ids: Vec<String> = (0..50).map(|number| format!("missing-{number}")).collect();
    let answers: Vec<_> = ids.iter().map(|id| ask(&engine, cancel("a", id))).collect();
    assert_eq!(reasons(answers).await, ["OK"; 50]);
    let empty: Vec<String> = Vec::new();
    assert_eq!(log.decided(), [empty, ids], "one batch to find, one to decide, in order");
}

#[tokio::test]
async fn what_was_only_looked_at_leaves_nothing_and_counts_for_nothing() {
    let (engine, log) = engine(|_| Step::Commit);
    let ids = ["missing", "panic", "refused", "1", "never", "missing-2"];
    let answers = ids.iter().map(|id| ask(&engine, cancel("a", id))).collect();
    let expected = ["OK", "INTERNAL", "NO_SUCH_INBOX", "OK", "STORE_UNAVAILABLE", "OK"];
    assert_eq!(reasons(answers).await, expected);
    assert_eq!(log.decided().concat(), ["missing", "1", "missing-2"]);
}

#[tokio::test]
async fn a_batch_that_ran_out_of_time_leaves_the_rest_to_shorter_ones_in_order() {
    let three = std::time::Duration::from_millis(3);
    let (engine, log) = engine_in_time(three, |_| Step::Commit);
    let ids: Vec<String> = (0..20).map(|id| id.to_string()).collect();
    let answers: Vec<_> = ids.iter().map(|id| ask(&engine, submit("a", id))).collect();
    assert!(reasons(answers).await.iter().all(|reason| *reason == "OK"));
    let decided = log.decided();
    assert_eq!(decided.concat(), ids, "each once, in order");
    let lengths: Vec<usize> = decided.iter().map(Vec::len).collect();
    assert_eq!(lengths, [3, 3, 3, 3, 3, 3, 2]);
    // The first batch took all, the second what the first had come to, the third twice as many.
    let taken: Vec<usize> = log.all().iter().map(|ran| ran.claims).collect();
    assert_eq!(taken, [20, 3, 6, 3, 6, 3, 2]);
}

#[tokio::test]
async fn what_a_batch_did_not_come_to_holds_back_its_account_alone_and_the_missing_come_on() {
    let (engine, log) = engine_in_time(std::time::Duration::ZERO, |seen| match seen.number {
        0 => Step::Failed,
        _ => Step::Commit,
    });
    let answers = vec![
        ask(&engine, submit("a", "1")),
        ask(&engine, submit("a", "missing")),
        ask(&engine, submit("a", "2")),
        ask(&engine, submit("b", "3")),
        ask(&engine, cancel("a", "2")),
    ];
    assert_eq!(reasons(answers).await, ["OK"; 5]);
    let decided: Vec<Vec<String>> =
        log.decided().into_iter().filter(|decided| !decided.is_empty()).collect();
    assert!(decided.iter().all(|decided| decided.len() == 1), "one command a batch: {decided:?}");
    let mine: Vec<String> = decided.concat().into_iter().filter(|id| id != "3").collect();
    assert_eq!(mine, ["1", "missing", "2", "2"], "in order");
}

#[tokio::test]
async fn a_half_stays_behind_the_half_before_it() {
    let (engine, log) = engine(|seen| match seen.number {
        0 => Step::Failed,
        _ => Step::Commit,
    });
    let answers = ask_all(&engine, &["missing", "1", "2", "3"]);
    assert_eq!(reasons(answers).await, ["OK"; 4]);
    let empty: Vec<&str> = Vec::new();
    assert_eq!(log.decided(), [empty, vec!["missing", "1", "2", "3"]]);
}

#[tokio::test]
async fn rows_that_never_arrive_end_in_a_refusal_without_effect() {
    let (engine, log) = engine(|_| Step::Commit);
    let answers = ask_all(&engine, &["never", "1"]);
    assert_eq!(reasons(answers).await, ["STORE_UNAVAILABLE", "OK"]);
    assert_eq!(log.all().len(), 12, "put off ten times; then the one behind it");
    assert_eq!(log.decided().concat(), ["1"]);
}

#[tokio::test]
async fn a_command_runs_although_its_caller_is_gone() {
    let (engine, log) = engine(|_| Step::Commit);
    assert!(engine.run(submit("a", "1")).now_or_never().is_none(), "taken, then dropped");
    engine.drain().await;
    assert_eq!(log.decided(), [["1"]]);
}

#[tokio::test]
async fn a_refusal_or_a_panic_of_one_command_leaves_its_neighbours_alone() {
    let (engine, log) = engine(|_| Step::Commit);
    let answers = ask_all(&engine, &["1", "panic", "2", "refused", "3"]);
    assert_eq!(reasons(answers).await, ["OK", "INTERNAL", "OK", "NO_SUCH_INBOX", "OK"]);
    assert_eq!(log.decided(), [["1", "2", "3"]]);
}

#[tokio::test]
async fn a_drained_engine_finished_what_it_took_and_takes_nothing_more() {
    let (engine, log) = engine(|_| Step::Commit);
    let ids: Vec<String> = (0..2 * BATCH_COMMANDS_MAX).map(|id| id.to_string()).collect();
    let answers: Vec<_> = ids.iter().map(|id| ask(&engine, submit("a", id))).collect();
    engine.drain().await;
    assert_eq!(log.decided().concat(), ids);
    assert!(reasons(answers).await.iter().all(|reason| *reason == "OK"));
    let refusal = engine.run(submit("a", "late")).await.expect_err("refused");
    assert_eq!(refusal.reason(), "DRAINING");
    engine.seams().join().await;
}

#[tokio::test]
async fn a_command_that_waits_for_a_held_id_is_answered_before_the_drain_ends() {
    let (engine, _) = engine(|_| Step::Held(vec!["held"]));
    let answer = ask(&engine, submit("a", "held"));
    engine.drain().await;
    assert_eq!(reasons(vec![answer]).await, ["IDENTITY_HELD"]);
}

#[tokio::test]
async fn replays_are_folded_by_command() {
    let (engine, log) = engine(|_| Step::Commit);
    for id in ["1", "2", "1"] {
        engine.count_replay(&operation_key("a", id));
    }
    engine.drain().await;
    let mut folded = log.decided().concat();
    folded.sort();
    assert_eq!(folded, ["1", "2"], "one command for each id");
}

#[tokio::test]
async fn a_lane_that_dies_leaves_nobody_waiting() {
    let (engine, _) = engine(|_| panic!("the store has a bug"));
    assert_eq!(engine.run(submit("a", "1")).await.expect_err("refused"), Refusal::CommitUnknown);
    engine.failed().cancelled().await;
    let refusal = engine.run(submit("a", "2")).await.expect_err("refused");
    assert_eq!(refusal.reason(), "STORE_UNAVAILABLE");
    engine.drain().await;
}

#[tokio::test]
async fn an_attached_stream_is_handed_what_it_has_room_for() {
    let (engine, _) = engine(|_| Step::Commit);
    let consumer = ConsumerId::parse("c").expect("valid");
    let mut stream = engine.attach(inbox_key("a"), consumer.clone(), 7, 2);
    assert_eq!(reasons(ask_all(&engine, &["hand-1", "hand-2", "hand-3"])).await, ["OK"; 3]);
    let mut handed = Vec::new();
    while let Ok(deliveries) = stream.try_recv() {
        handed.extend(deliveries.into_iter().map(|(delivery, _)| delivery.key.sequence));
    }
    assert_eq!(handed, [1, 2], "in order, within its room");
    let second = engine.attach(inbox_key("a"), consumer.clone(), 8, 2);
    assert_eq!(reasons(ask_all(&engine, &["hand-4"])).await, ["OK"]);
    assert!(stream.try_recv().is_err(), "nothing while two streams read");
    drop(second);
    assert_eq!(reasons(ask_all(&engine, &["hand-5"])).await, ["OK"]);
    assert!(stream.try_recv().is_ok(), "alone again");
    engine.detach(&inbox_key("a"), &consumer, 7);
    assert_eq!(reasons(ask_all(&engine, &["hand-6"])).await, ["OK"]);
    assert!(stream.recv().await.is_none(), "forgotten");
}

#[tokio::test]
async fn a_command_without_an_id_is_answered_too() {
    let (engine, _) = engine(|_| Step::Commit);
    let key = inbox_key("a");
    let consumer = ConsumerId::parse("c").expect("valid");
    let close = Command::Close { inbox: key, consumer, epoch: 1 };
    assert!(matches!(engine.run(close).await, Ok(Reply::Closed)));
}

#[test]
fn only_news_wakes_anyone() {
    let surroundings = Surroundings {
        now: Timestamp(0),
        policy: Policy::default(),
        jitter: 0,
        attached: Default::default(),
        loss: crate::domain::epoch::Loss::NONE,
    };
    let mut world = World::new(surroundings);
    let (first, second) = (operation_key("a", "op-1"), operation_key("a", "op-2"));
    let consumer = ConsumerId::parse("c").expect("valid");
    world.add_delivery(delivery(&inbox_key("a"), &first, Some((consumer, 1))));
    assert!(world.changed_inboxes().is_empty(), "it is in flight already");
    world.add_delivery(delivery(&inbox_key("b"), &second, None));
    assert_eq!(world.changed_inboxes().into_iter().collect::<Vec<_>>(), [inbox_key("b")]);
    world.load_operation(first.clone(), Access::Write, Some(operation(&first)));
    let replayed = Operation { replay_count: 5, ..operation(&first) };
    world.put_operation(replayed).expect("declared");
    assert!(world.changed_operations().is_empty(), "a replay is no news");
    world.load_operation(second.clone(), Access::Read, None);
    world.put_operation(operation(&second)).expect("declared");
    assert_eq!(world.changed_operations(), [second]);
}
