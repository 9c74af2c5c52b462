//! Random sequences of commands: after each one the invariants hold (checked by the store in
//! memory), and every effect has exactly one receipt.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;

use std::collections::BTreeMap;

use commands::{Instruction, ack, append, cancel, close, inbox, offer, open, operation, target};
use memory::Memory;
use proptest::prelude::*;
use receiptd::domain::{
    command::Command,
    ids::{Span, Timestamp},
    operation::{Operation, OperationState},
    policy::Policy,
    world::Attached,
};

/// One step, small enough that steps meet each other.
#[derive(Debug, Clone)]
enum Step {
    Submit { id: u8, target: u8, inbox: u8, expecting: Option<i64>, until_acked: bool, fail: bool },
    Cancel { id: u8 },
    Ack { inbox: u8, sequences: Vec<i64> },
    Open { inbox: u8, consumer: u8, window: i64, attach: bool },
    Offer { inbox: u8, consumer: u8, limit: i64 },
    Close { inbox: u8, consumer: u8 },
    Release { target: u8, id: u8 },
    Advance { seconds: i64 },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let submit = (0..30_u8, 0..2_u8, 0..2_u8, prop::option::of(0..4_i64), any::<bool>(), 0..6_u8);
    prop_oneof![
        6 => submit.prop_map(|(id, target, inbox, expecting, until_acked, fail)| Step::Submit {
            id, target, inbox, expecting, until_acked, fail: fail == 0
        }),
        1 => (0..30_u8).prop_map(|id| Step::Cancel { id }),
        3 => (0..2_u8, prop::collection::vec(0..20_i64, 1..5))
            .prop_map(|(inbox, sequences)| Step::Ack { inbox, sequences }),
        1 => (0..2_u8, 0..2_u8, 1..5_i64, any::<bool>()).prop_map(
            |(inbox, consumer, window, attach)| Step::Open { inbox, consumer, window, attach }
        ),
        3 => (0..2_u8, 0..2_u8, 0..5_i64)
            .prop_map(|(inbox, consumer, limit)| Step::Offer { inbox, consumer, limit }),
        1 => (0..2_u8, 0..2_u8).prop_map(|(inbox, consumer)| Step::Close { inbox, consumer }),
        1 => (0..2_u8, 0..30_u8).prop_map(|(target, id)| Step::Release { target, id }),
        2 => (1..40_i64).prop_map(|seconds| Step::Advance { seconds }),
        2 => Just(Step::Sweep),
    ]
}

fn policy() -> Policy {
    Policy {
        inbox_slots: 8,
        in_flight_max: 4,
        retry_budget: 3,
        ack_window: Span::seconds(90),
        lock_limit: Span::seconds(60),
        start_deadline: Span::seconds(70),
        ..Policy::default()
    }
}

/// The run so far: the tables, and the latest epoch of each consumer's stream.
struct Run {
    memory: Memory,
    start: Timestamp,
    epochs: BTreeMap<(u8, u8), i64>,
}

impl Run {
    fn new() -> Self {
        let memory = Memory::new(policy());
        Run { start: memory.now, memory, epochs: BTreeMap::new() }
    }

    fn take(&mut self, step: &Step) {
        let ended_before = ended(&self.memory);
        match step {
            Step::Advance { seconds } => self.memory.advance(Span::seconds(*seconds)),
            Step::Sweep => self.sweep(),
            other => {
                if let Some(command) = self.command(other) {
                    // A refusal is an answer; the invariants hold either way.
                    let _ = self.memory.run(&command);
                }
            }
        }
        for (before, after) in ended_before {
            let now = &self.memory.operations[&before];
            assert_eq!(now.outcome, after.outcome, "a final outcome never changes (I4, I7)");
            assert_eq!(now.end_time, after.end_time);
        }
        self.check_effects();
    }

    fn command(&mut self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::Submit { id, target, inbox, expecting, until_acked, fail } => {
                let mut instruction = append(&format!("o{id}"), self.start)
                    .on(&format!("t{target}"))
                    .into_inbox(&format!("i{inbox}"));
                instruction.expected_revision = *expecting;
                if *until_acked {
                    instruction = instruction.until_acked();
                }
                if *fail {
                    instruction = instruction.or_fail();
                }
                Instruction::command(instruction)
            }
            Step::Cancel { id } => cancel(&format!("o{id}"), self.start),
            Step::Ack { inbox, sequences } => ack(&format!("i{inbox}"), sequences),
            Step::Open { inbox: name, consumer, window, attach } => {
                let key = inbox(&format!("i{name}"));
                let epoch = self.memory.inboxes.get(&key).map_or(0, |row| row.consumer_epoch) + 1;
                self.epochs.insert((*name, *consumer), epoch);
                self.memory.attached.remove(&key);
                if *attach {
                    let consumer = commands::consumer(&format!("c{consumer}"));
                    self.memory.attached.insert(key, Attached { consumer, epoch, room: 2 });
                }
                open(&format!("i{name}"), &format!("c{consumer}"), *window)
            }
            Step::Offer { inbox, consumer, limit } => {
                let epoch = self.epochs.get(&(*inbox, *consumer))?;
                offer(&format!("i{inbox}"), &format!("c{consumer}"), *epoch, *limit)
            }
            Step::Close { inbox, consumer } => {
                let epoch = self.epochs.get(&(*inbox, *consumer))?;
                close(&format!("i{inbox}"), &format!("c{consumer}"), *epoch)
            }
            Step::Release { target: path, id } => Command::ReleaseLock {
                target: target(&format!("t{path}")),
                operation_id: operation(&format!("o{id}")).id,
                reason: String::new(),
                subject: "operator".into(),
            },
            Step::Advance { .. } | Step::Sweep => return None,
        })
    }

    /// What the sweeper would find due, through the same commands.
    fn sweep(&mut self) {
        let now = self.memory.now;
        let mut commands = Vec::new();
        for row in self.memory.deliveries.values() {
            if row.due_time.is_some_and(|due| due <= now) {
                let operation_id = row.operation_id.clone();
                commands.push(Command::SweepDelivery { key: row.key.clone(), operation_id });
            }
        }
        for row in self.memory.operations.values() {
            if row.due_time.is_some_and(|due| due <= now) {
                commands.push(Command::SweepOperation { key: row.key.clone() });
            }
        }
        for row in self.memory.locks.values().filter(|row| row.due_time <= now) {
            commands.push(Command::SweepLock { target: row.key.clone() });
        }
        for row in self.memory.inboxes.values() {
            if row.due_time.is_some_and(|due| due <= now) {
                commands.push(Command::SweepInbox { key: row.key.clone() });
            }
        }
        for reply in self.memory.run_batch(&commands) {
            reply.expect("a sweep is never refused");
        }
        let late = |due: Option<Timestamp>| due.is_some_and(|due| due <= now);
        assert!(!self.memory.deliveries.values().any(|row| late(row.due_time)), "nothing is left");
        assert!(!self.memory.operations.values().any(|row| late(row.due_time)));
        assert!(!self.memory.locks.values().any(|row| row.due_time <= now));
    }

    /// One line in a document for each APPLIED operation, no more and no less (I2, I3).
    fn check_effects(&self) {
        let mut lines = 0;
        for document in self.memory.documents.values() {
            let content = document.content.as_ref().expect("content");
            lines += content.iter().filter(|byte| **byte == b'\n').count();
        }
        let applied = self
            .memory
            .operations
            .values()
            .filter(|row| row.state == OperationState::Applied)
            .count();
        assert_eq!(lines, applied);
        let revisions: i64 = self.memory.documents.values().map(|row| row.revision).sum();
        assert_eq!(revisions, i64::try_from(applied).expect("small"));
    }
}

fn ended(memory: &Memory) -> Vec<(receiptd::domain::operation::OperationKey, Operation)> {
    let rows = memory.operations.iter().filter(|(_, row)| row.state.is_final());
    rows.map(|(key, row)| (key.clone(), row.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn invariants_hold_after_every_step(steps in prop::collection::vec(step(), 1..80)) {
        let mut run = Run::new();
        for step in &steps {
            run.take(step);
        }
        // Liveness (I14, I21): with time and sweeps alone everything comes to rest.
        for _ in 0..8 {
            run.memory.advance(Span::seconds(100));
            run.take(&Step::Sweep);
        }
        for row in run.memory.inboxes.values() {
            prop_assert_eq!(row.slots_used(), 0, "every slot is released");
        }
        prop_assert!(run.memory.locks.is_empty(), "every lock is released");
        prop_assert!(run.memory.operations.values().all(|row| row.state.is_final()));
    }
}
