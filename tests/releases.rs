//! Releases need few batches, however many locks end in one step and whoever joins meanwhile.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;

use commands::{ack, append, close, offer, open, operation};
use memory::Memory;
use receiptd::domain::{
    command::{Command, Reply},
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
