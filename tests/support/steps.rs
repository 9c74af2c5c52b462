//! Random steps, small enough that they meet each other, and the commands they mean.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use receiptd::domain::{
    command::Command,
    ids::{Span, Timestamp},
    inbox::{Force, InboxChange, LimitChange},
    policy::Policy,
    world::Attached,
};

use crate::{
    commands::{
        self, Instruction, ack, append, cancel, close, delete, inbox, offer, open, operation,
        target,
    },
    memory::Memory,
};

/// One step, small enough that steps meet each other.
#[derive(Debug, Clone)]
pub enum Step {
    Submit { id: u8, target: u8, inbox: u8, expecting: Option<i64>, until_acked: bool, fail: bool },
    Cancel { id: u8 },
    Ack { inbox: u8, sequences: Vec<i64> },
    Open { inbox: u8, consumer: u8, window: i64, attach: bool },
    Offer { inbox: u8, consumer: u8, limit: i64 },
    Close { inbox: u8, consumer: u8 },
    Release { target: u8, id: u8 },
    Update { inbox: u8, slots: u8, in_flight_limit: u8 },
    Delete { inbox: u8, force: bool, generation: Option<i64> },
    Advance { seconds: i64 },
    Sweep,
}

pub fn step() -> impl Strategy<Value = Step> {
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
        1 => (0..2_u8, 0..10_u8, 0..6_u8).prop_map(|(inbox, slots, in_flight_limit)| {
            Step::Update { inbox, slots, in_flight_limit }
        }),
        1 => (0..2_u8, any::<bool>(), prop::option::of(1..3_i64))
            .prop_map(|(inbox, force, generation)| Step::Delete { inbox, force, generation }),
        // Mostly within the ack window, now and then beyond what is kept.
        2 => prop_oneof![9 => 1..40_i64, 1 => 100..900_i64]
            .prop_map(|seconds| Step::Advance { seconds }),
        2 => Just(Step::Sweep),
    ]
}

pub fn policy() -> Policy {
    Policy {
        inbox_slots: 8,
        in_flight_max: 4,
        retry_budget: 3,
        ack_window: Span::seconds(90),
        lock_limit: Span::seconds(60),
        start_deadline: Span::seconds(70),
        record_retention: Span::seconds(300),
        inbox_idle_retention: Span::seconds(400),
        ..Policy::default()
    }
}

/// What a small number means to an update.
fn limit(number: u8) -> LimitChange {
    match number {
        0 => LimitChange::Default,
        1 => LimitChange::Keep,
        number => LimitChange::To(number.into()),
    }
}

/// The model: the tables in memory, and the latest epoch of each consumer's stream.
pub struct Model {
    pub memory: Memory,
    pub start: Timestamp,
    epochs: BTreeMap<(u8, u8), i64>,
}

impl Model {
    pub fn new() -> Self {
        let memory = Memory::new(policy());
        Model { start: memory.now, memory, epochs: BTreeMap::new() }
    }

    /// The command that a step means now; a sweep means several, and a pause none.
    pub fn command(&mut self, step: &Step) -> Option<Command> {
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
            Step::Update { inbox: name, slots, in_flight_limit } => Command::UpdateInbox {
                inbox: inbox(&format!("i{name}")),
                change: InboxChange {
                    slots: limit(*slots),
                    in_flight_limit: limit(*in_flight_limit),
                },
            },
            Step::Delete { inbox, force, generation } => {
                let force = if *force { Force::WithContent } else { Force::OnlyEmpty };
                delete(&format!("i{inbox}"), force, *generation)
            }
            Step::Advance { .. } | Step::Sweep => return None,
        })
    }

    /// What the sweeper would find due, through the same commands.
    pub fn due(&self) -> Vec<Command> {
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
        commands
    }
}
