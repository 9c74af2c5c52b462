//! Releases need few batches, however many locks end in one step and whoever joins meanwhile.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;

use commands::{ack, append, close, delete, offer, open, operation, sweep_inbox};
use memory::Memory;
use receiptd::domain::{
    command::{Command, Reply, Swept},
    inbox::Force,
    operation::OperationState,
    policy::Policy,
};

/// How often the engine puts a command off at most.
const DEFERRALS_MAX: usize = 5;

/// Runs a command that must be answered within the engine's patience.
fn run(memory: &mut Memory, command: &Command) -> Reply {
    let reply = memory.run(command).expect("no refusal");
    assert!(memory.deferrals <= DEFERRALS_MAX, "{} for {command:?}", memory.deferrals);
    reply
}

fn ended_applied(memory: &Memory, id: &str) -> bool {
    memory.operations[&operation(id)].state == OperationState::Applied
}

#[test]
fn those_who_join_a_queue_do_not_put_off_the_release() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    run(&mut memory, &append("first", now).until_acked().command());
    run(&mut memory, &append("w00", now).command());
    let joins = |number| append(&format!("w{number:02}"), now).into_inbox("other").command();
    memory.others = (1..20).rev().map(joins).collect();
    run(&mut memory, &ack("default", &[1]));
    assert!(memory.others.is_empty(), "somebody joined before every further round");
    assert!(memory.locks.is_empty(), "whoever joined meanwhile follows at once");
    assert!((0..20).all(|number| ended_applied(&memory, &format!("w{number:02}"))));
}

#[test]
fn many_locks_of_one_step_are_released_in_few_batches() {
    let mut memory = Memory::new(Policy { retry_budget: 1, ..Policy::default() });
    let now = memory.now;
    for number in 0..20 {
        let (path, inbox) = (format!("d{number}"), format!("i{number}"));
        run(&mut memory, &append(&path, now).on(&path).until_acked().command());
        let waiter = append(&format!("w{number}"), now).on(&path).into_inbox(&inbox);
        run(&mut memory, &waiter.command());
    }
    let first_half: Vec<i64> = (1..=10).collect();
    run(&mut memory, &ack("default", &first_half));
    assert_eq!(memory.locks.len(), 10);
    // The other half dies with the stream that holds it.
    run(&mut memory, &open("default", "c", 100));
    run(&mut memory, &offer("default", "c", 1, 100));
    run(&mut memory, &close("default", "c", 1));
    assert!(memory.locks.is_empty());
    assert!((0..20).all(|number| ended_applied(&memory, &format!("w{number}"))));
}

#[test]
fn the_end_of_a_deleted_inbox_is_within_the_patience_of_the_engine() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 0..20 {
        let path = format!("d{number}");
        run(&mut memory, &append(&path, now).on(&path).until_acked().command());
        // Their results make the inbox again.
        run(&mut memory, &append(&format!("w{number}"), now).on(&path).command());
    }
    memory.follow_ups_kept = Some(Vec::new());
    run(&mut memory, &delete("default", Force::WithContent, None));
    memory.follow_ups_kept = None;
    let joins = |number| append(&format!("j{number}"), now).on("d0").into_inbox("other").command();
    memory.others = (0..10).map(joins).collect();
    let ended = run(&mut memory, &sweep_inbox("default"));
    assert!(matches!(ended, Reply::Swept(Swept::Closed(20))), "{ended:?}");
    assert!((0..20).all(|number| ended_applied(&memory, &format!("w{number}"))));
    // Acks whose waiter has to make its inbox again.
    for number in 20..40 {
        let path = format!("d{number}");
        let holder = append(&path, now).on(&path).until_acked().into_inbox("acked");
        run(&mut memory, &holder.command());
        run(
            &mut memory,
            &append(&format!("w{number}"), now).on(&path).into_inbox("gone").command(),
        );
    }
    run(&mut memory, &delete("gone", Force::WithContent, None));
    run(&mut memory, &ack("acked", &(1..=20).collect::<Vec<_>>()));
    assert!((20..40).all(|number| ended_applied(&memory, &format!("w{number}"))));
}
