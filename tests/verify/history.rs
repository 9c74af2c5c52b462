//! A history of everything that can happen to an account, as long as asked for.

use futures_util::future::join_all;
use receiptd::{
    domain::{
        command::{Command, Intention, Reply},
        delivery::DeliveryState,
        ids::{Span, Timestamp},
        inbox::Force,
        lock::TargetKey,
        refusal::Refusal,
        settings::Setting,
    },
    engine::{Engine, seams::Seams},
    sweeper,
};

use crate::commands::{
    Instruction, ack, ack_newest, append, attempts, cancel, defer, delete, newest, pull, redrive,
    seal, set, target, update_policy,
};

/// Commands that run at once.
const TOGETHER: usize = 100;
const INBOXES: usize = 8;

/// What happened, so that a test can see that everything did.
#[derive(Debug, Default)]
pub struct Happened {
    pub applied: usize,
    pub rejected: usize,
    pub waiting: usize,
    pub cancelled: usize,
    pub acked: usize,
    pub late: usize,
    pub redriven: usize,
    pub swept: sweeper::SweepCounts,
}

/// Some ids are UUIDs with their time, others are a caller's own.
fn id(number: usize, now: Timestamp) -> String {
    match number % 3 {
        0 => format!("own-{number}"),
        _ => {
            let millis = now.0 / 1_000;
            let (high, low) = (millis >> 16, millis & 0xFFFF);
            format!("{high:08x}-{low:04x}-7000-8000-{number:012x}")
        }
    }
}

fn instruction(number: usize, now: Timestamp, documents: usize) -> Instruction {
    let own = format!("notes/{}", number % documents);
    let shared = format!("shared/{}", (number / 20) % 4);
    let plain =
        append(&id(number, now), now).on(&own).into_inbox(&format!("i{}", number % INBOXES));
    let act = |action: &str, arguments: String| Instruction {
        action: action.to_owned(),
        arguments,
        ..plain.clone()
    };
    match number % 20 {
        3 => plain.expecting(1_000_000),
        4 => plain.keeping_content(),
        5 | 6 | 15 => plain.on(&shared).until_acked(),
        7 => act("document.delete", "{}".to_owned()),
        8 => act("document.put", format!(r#"{{"content":"{}"}}"#, "x".repeat(2_000))),
        9 => Instruction { inbox: None, ..plain },
        10 => act("document.splice", r#"{"edits":[[1000000,0,"x"]]}"#.to_owned()),
        11 => act("document.put", format!(r#"{{"content":"{number}"}}"#)).keeping_content(),
        12 => plain.on(&shared),
        _ => plain,
    }
}

/// Makes a history of this many operations on the account of the tests.
pub async fn make(engine: &Engine, seams: &Seams, operations: usize) -> Happened {
    make_from(engine, seams, 0, operations).await
}

/// As [`make`], going on behind a history of `from` operations up to `to`.
pub async fn make_from(engine: &Engine, seams: &Seams, from: usize, to: usize) -> Happened {
    let mut happened = Happened::default();
    let documents = to / 20 + 3;
    for first in (from..to).step_by(TOGETHER) {
        let now = seams.now();
        let numbers = first..to.min(first + TOGETHER);
        let submits = numbers.map(|number| instruction(number, now, documents).command());
        let ids: Vec<String> = submit_all(engine, submits, &mut happened).await;
        let chunk = first / TOGETHER;
        if let Some(waiting) = ids.first() {
            engine.run(cancel(waiting, now)).await.expect("known");
            happened.cancelled += 1;
        }
        engine.run(seal(&format!("sealed-{chunk}"), now)).await.expect("sealed");
        read(engine, chunk, &mut happened).await;
        seams.move_clock(Span::seconds(5));
        if chunk % 6 == 5 {
            disturb(engine, seams, chunk, &ids, &mut happened).await;
        }
        let swept = sweeper::run_once(engine).await;
        happened.swept = happened.swept + swept;
    }
    happened
}

/// Runs submits; returns the ids of those that wait for their target.
async fn submit_all(
    engine: &Engine,
    submits: impl Iterator<Item = Command>,
    happened: &mut Happened,
) -> Vec<String> {
    use receiptd::domain::operation::OperationState::{Accepted, Applied, Rejected};
    let answers = join_all(submits.map(|submit| engine.run(submit))).await;
    let mut waiting = Vec::new();
    for answer in answers {
        let Ok(Reply::Submitted(submitted)) = answer else { panic!("{answer:?}") };
        match submitted.operation.state {
            Applied => happened.applied += 1,
            Rejected => happened.rejected += 1,
            Accepted => waiting.push(submitted.operation.key.id.as_str().to_owned()),
            other => panic!("{other:?}"),
        }
    }
    happened.waiting += waiting.len();
    waiting
}

/// Two inboxes are read: most is acked, some is given back, some is forgotten.
async fn read(engine: &Engine, chunk: usize, happened: &mut Happened) {
    for inbox in [chunk % INBOXES, (chunk + 3) % INBOXES] {
        let name = format!("i{inbox}");
        let answer = engine.run(pull(&name, "reader", 60)).await;
        let Ok(Reply::Offered { deliveries, .. }) = answer else { panic!("{answer:?}") };
        let (mut acked, mut deferred) = (Vec::new(), Vec::new());
        for delivery in &deliveries {
            assert_eq!(delivery.state, DeliveryState::InFlight);
            match delivery.key.sequence % 10 {
                8 => deferred.push((delivery.key.sequence, delivery.attempt)),
                9 => {}
                _ => acked.push(delivery.key.sequence),
            }
        }
        happened.acked += acked.len();
        engine.run(ack(&name, &acked)).await.expect("acked");
        let deferred = attempts(&name, None, &deferred);
        engine.run(defer(deferred, Span::seconds(1))).await.expect("deferred");
    }
}

/// What is rare: windows pass, results are redriven and acked late, an inbox is deleted, the policy
/// changes, a lock is released by hand.
async fn disturb(
    engine: &Engine,
    seams: &Seams,
    chunk: usize,
    waiting: &[String],
    happened: &mut Happened,
) {
    for shared in 0..4 {
        let TargetKey { account, target } = target(&format!("shared/{shared}"));
        let locks = engine.store().list_locks(&account, "", 1_000).await.expect("reads");
        let lock = locks.into_iter().find(|lock| lock.key.target == target);
        let holder = lock.and_then(|lock| lock.holder);
        if let (Some(holder), true) = (holder, shared % 2 == 0) {
            let release = Command::ReleaseLock {
                target: TargetKey { account, target },
                operation_id: holder.operation_id,
                reason: "stuck".to_owned(),
                subject: "operator".to_owned(),
            };
            engine.run(release).await.expect("released");
        }
    }
    // Attempts are missed until nothing is left of the budget; then everything else is past its
    // window, its start or its limit.
    for pause in [32, 32, 32, 100, 2, 2] {
        engine.run(pull(&format!("i{}", chunk % INBOXES), "forgetful", 30)).await.expect("sent");
        seams.move_clock(Span::seconds(pause));
        happened.swept = happened.swept + sweeper::run_once(engine).await;
        seams.move_clock(Span::seconds(2));
    }
    for id in waiting.iter().take(3) {
        let answer = engine.run(redrive(vec![newest(id)])).await;
        happened.redriven += usize::from(answer.is_ok());
    }
    for id in waiting.iter().skip(3).take(3) {
        let answer = engine.run(ack_newest(id)).await;
        happened.late += usize::from(answer.is_ok());
    }
    let answer = engine.run(delete("i7", Force::WithContent, None)).await;
    assert!(matches!(answer, Ok(_) | Err(Refusal::NoSuchInbox)), "{answer:?}");
    let window = Span::seconds(80 + i64::try_from(chunk % 3).expect("small"));
    engine.run(set(Setting::AckWindow, window.0)).await.expect("changed");
    let back = update_policy([(Setting::AckWindow, None)].into(), Intention::Execute);
    engine.run(back).await.expect("changed");
}
