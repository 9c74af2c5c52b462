//! Random steps, small enough that they meet each other, and the commands they mean.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use receiptd::domain::{
    attempts::Attempts,
    command::{Command, Intention},
    ids::{Span, Timestamp},
    inbox::{Force, Inbox, InboxChange, LimitChange},
    policy::Policy,
    settings::Setting,
    world::Attached,
};

use crate::{
    commands::{
        self, Instruction, ack, ack_newest, append, attempts, cancel, close, defer, delete,
        delivery, extend, inbox, newest, numbered, offer, offer_again, open, operation, probe,
        pull, redrive, reopen, seal, target,
    },
    memory::Memory,
};

/// One step, small enough that steps meet each other.
#[derive(Debug, Clone)]
pub enum Step {
    Submit {
        id: u8,
        target: u8,
        inbox: u8,
        expecting: Option<i64>,
        until_acked: bool,
        fail: bool,
    },
    Cancel {
        id: u8,
    },
    Seal {
        id: u8,
    },
    Probe {
        id: u8,
    },
    /// A submit under an id whose time may be over; see [`Model::mint`].
    Late {
        id: u8,
    },
    Ack {
        inbox: u8,
        sequences: Vec<i64>,
    },
    AckNewest {
        id: u8,
    },
    /// The attempt in force where `attempt` is 0; of a consumer, or of whoever has it from 2 on.
    Extend {
        inbox: u8,
        sequence: i64,
        attempt: i32,
        consumer: u8,
        seconds: i64,
    },
    Defer {
        inbox: u8,
        sequence: i64,
        attempt: i32,
        consumer: u8,
        seconds: i64,
    },
    Redrive {
        inbox: u8,
        sequences: Vec<i64>,
        id: u8,
    },
    Pull {
        inbox: u8,
        consumer: u8,
        limit: i64,
    },
    Open {
        inbox: u8,
        consumer: u8,
        window: i64,
        attach: bool,
    },
    Reopen {
        inbox: u8,
        consumer: u8,
        window: i64,
    },
    Offer {
        inbox: u8,
        consumer: u8,
        limit: i64,
        again: Option<Vec<i64>>,
    },
    Close {
        inbox: u8,
        consumer: u8,
    },
    Release {
        target: u8,
        id: u8,
    },
    Update {
        inbox: u8,
        slots: u8,
        in_flight_limit: u8,
    },
    Delete {
        inbox: u8,
        force: bool,
        generation: Option<i64>,
    },
    /// One of a few settings; without a value it goes back to the default.
    Policy {
        setting: u8,
        value: Option<i64>,
        trial: bool,
    },
    Erase {
        id: u8,
    },
    /// To so long ago; a few are too far ahead.
    RaiseFloor {
        ago: i64,
        trial: bool,
    },
    Advance {
        seconds: i64,
    },
    Sweep,
}

pub fn step() -> impl Strategy<Value = Step> {
    let submit = (0..30_u8, 0..2_u8, 0..2_u8, prop::option::of(0..4_i64), any::<bool>(), 0..6_u8);
    let again = prop::option::weighted(0.3, prop::collection::vec(0..20_i64, 0..6));
    let attempt = || (0..2_u8, 0..20_i64, 0..3_i32, 0..4_u8, 0..100_i64);
    prop_oneof![
        6 => submit.prop_map(|(id, target, inbox, expecting, until_acked, fail)| Step::Submit {
            id, target, inbox, expecting, until_acked, fail: fail == 0
        }),
        1 => (0..30_u8).prop_map(|id| Step::Cancel { id }),
        1 => (0..60_u8).prop_map(|id| Step::Seal { id }),
        2 => (0..60_u8).prop_map(|id| Step::Probe { id }),
        1 => (30..60_u8).prop_map(|id| Step::Late { id }),
        3 => (0..2_u8, prop::collection::vec(0..20_i64, 1..5))
            .prop_map(|(inbox, sequences)| Step::Ack { inbox, sequences }),
        1 => (0..30_u8).prop_map(|id| Step::AckNewest { id }),
        2 => attempt().prop_map(|(inbox, sequence, attempt, consumer, seconds)| Step::Extend {
            inbox, sequence, attempt, consumer, seconds
        }),
        2 => attempt().prop_map(|(inbox, sequence, attempt, consumer, seconds)| Step::Defer {
            inbox, sequence, attempt, consumer, seconds
        }),
        2 => (0..2_u8, prop::collection::vec(0..20_i64, 1..5), 0..30_u8)
            .prop_map(|(inbox, sequences, id)| Step::Redrive { inbox, sequences, id }),
        2 => (0..2_u8, 0..2_u8, 1..5_i64)
            .prop_map(|(inbox, consumer, limit)| Step::Pull { inbox, consumer, limit }),
        1 => (0..2_u8, 0..2_u8, 1..5_i64, any::<bool>()).prop_map(
            |(inbox, consumer, window, attach)| Step::Open { inbox, consumer, window, attach }
        ),
        1 => (0..2_u8, 0..2_u8, 1..5_i64)
            .prop_map(|(inbox, consumer, window)| Step::Reopen { inbox, consumer, window }),
        3 => (0..2_u8, 0..2_u8, 0..5_i64, again).prop_map(
            |(inbox, consumer, limit, again)| Step::Offer { inbox, consumer, limit, again }
        ),
        1 => (0..2_u8, 0..2_u8).prop_map(|(inbox, consumer)| Step::Close { inbox, consumer }),
        1 => (0..2_u8, 0..30_u8).prop_map(|(target, id)| Step::Release { target, id }),
        1 => (0..2_u8, 0..10_u8, 0..6_u8).prop_map(|(inbox, slots, in_flight_limit)| {
            Step::Update { inbox, slots, in_flight_limit }
        }),
        1 => (0..2_u8, any::<bool>(), prop::option::of(1..3_i64))
            .prop_map(|(inbox, force, generation)| Step::Delete { inbox, force, generation }),
        1 => (0..6_u8, prop::option::weighted(0.8, 0..6_i64), 0..5_u8).prop_map(
            |(setting, value, trial)| Step::Policy { setting, value, trial: trial == 0 }
        ),
        2 => (0..8_u8).prop_map(|id| Step::Erase { id }),
        1 => (prop_oneof![1 => -400..-200_i64, 20 => 100..800_i64], any::<bool>())
            .prop_map(|(ago, trial)| Step::RaiseFloor { ago, trial }),
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
        // Three lines, so that some results are kept and some are not.
        result_bytes_max: 6,
        admission_window: Span::seconds(250),
        record_retention: Span::seconds(300),
        audit_retention: Span::seconds(400),
        tombstone_retention: Span::seconds(500),
        inbox_idle_retention: Span::seconds(400),
        ..Policy::default()
    }
}

/// A setting and its value; some contradict the others, or are out of range.
fn policy_step(setting: u8, value: Option<i64>) -> (Setting, Option<i64>) {
    let seconds = |least: i64| value.map(|value| Span::seconds(least + 20 * value).0);
    match setting {
        0 => (Setting::AckWindow, seconds(25)),
        1 => (Setting::LockLimit, seconds(10)),
        2 => (Setting::InboxIdleRetention, seconds(80)),
        3 => (Setting::InFlightMax, value),
        // Never above that of the start, which the recount bounds attempts by.
        4 => (Setting::RetryBudget, value.map(|value| value % 4)),
        _ => (Setting::InboxSlots, value.map(|value| 2 * value)),
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

/// The model: the tables in memory, and the latest stream of each consumer.
pub struct Model {
    pub memory: Memory,
    pub start: Timestamp,
    /// When each id was first named.
    mints: BTreeMap<u8, Timestamp>,
    epochs: BTreeMap<(u8, u8), i64>,
    /// Which generation of the inbox each of them reads.
    generations: BTreeMap<(u8, u8), i64>,
}

impl Model {
    pub fn new() -> Self {
        let memory = Memory::new(policy());
        Model {
            start: memory.now,
            memory,
            mints: BTreeMap::new(),
            epochs: BTreeMap::new(),
            generations: BTreeMap::new(),
        }
    }

    /// The command that a step means now; a sweep means several, and a pause none.
    pub fn command(&mut self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::Submit { id, target, inbox, expecting, until_acked, fail } => {
                let mut instruction = append(&format!("o{id}"), self.mint(*id))
                    .on(&format!("t{target}"))
                    .into_inbox(&format!("i{inbox}"));
                instruction.expected_revision = *expecting;
                if id % 2 == 0 {
                    instruction = instruction.keeping_content();
                }
                if *until_acked {
                    instruction = instruction.until_acked();
                }
                if *fail {
                    instruction = instruction.or_fail();
                }
                Instruction::command(instruction)
            }
            Step::Cancel { id } => cancel(&format!("o{id}"), self.mint(*id)),
            Step::Seal { id } => seal(&format!("o{id}"), self.mint(*id)),
            Step::Probe { id } => probe(&format!("o{id}"), self.mint(*id)),
            Step::Late { id } => append(&format!("o{id}"), self.mint(*id)).on("t0").command(),
            Step::Ack { inbox, sequences } => ack(&format!("i{inbox}"), sequences),
            Step::AckNewest { id } => ack_newest(&format!("o{id}")),
            Step::Extend { inbox, sequence, attempt, consumer, seconds } => {
                let attempts = self.attempts(*inbox, *sequence, *attempt, *consumer);
                extend(attempts, (*seconds > 0).then(|| Span::seconds(*seconds)))
            }
            Step::Defer { inbox, sequence, attempt, consumer, seconds } => defer(
                self.attempts(*inbox, *sequence, *attempt, *consumer),
                Span::seconds(*seconds),
            ),
            Step::Redrive { inbox, sequences, id } => {
                let mut targets = numbered(&format!("i{inbox}"), sequences);
                targets.push(newest(&format!("o{id}")));
                redrive(targets)
            }
            Step::Pull { inbox, consumer, limit } => {
                pull(&format!("i{inbox}"), &format!("c{consumer}"), *limit)
            }
            Step::Open { inbox: name, consumer, window, attach } => {
                let key = inbox(&format!("i{name}"));
                let epoch = self.memory.inboxes.get(&key).map_or(0, |row| row.consumer_epoch) + 1;
                self.epochs.insert((*name, *consumer), epoch);
                let generation = self.memory.inboxes.get(&key).map_or(1, Inbox::next_generation);
                self.generations.insert((*name, *consumer), generation);
                self.memory.attached.remove(&key);
                if *attach {
                    let consumer = commands::consumer(&format!("c{consumer}"));
                    self.memory.attached.insert(key, Attached { consumer, epoch, room: 2 });
                }
                open(&format!("i{name}"), &format!("c{consumer}"), *window)
            }
            // Sometimes refused: then the epoch that is remembered is one of no stream.
            Step::Reopen { inbox: name, consumer, window } => {
                let lapsed = *self.epochs.get(&(*name, *consumer))?;
                let generation = *self.generations.get(&(*name, *consumer))?;
                let key = inbox(&format!("i{name}"));
                let epoch = self.memory.inboxes.get(&key).map_or(0, |row| row.consumer_epoch) + 1;
                self.epochs.insert((*name, *consumer), epoch);
                self.memory.attached.remove(&key);
                reopen(&format!("i{name}"), &format!("c{consumer}"), (lapsed, generation), *window)
            }
            Step::Offer { inbox, consumer, limit, again } => {
                let epoch = *self.epochs.get(&(*inbox, *consumer))?;
                let (inbox, who) = (format!("i{inbox}"), format!("c{consumer}"));
                match again {
                    None => offer(&inbox, &who, epoch, *limit),
                    Some(sequences) => offer_again(&inbox, &who, epoch, *limit, sequences),
                }
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
            Step::Policy { setting, value, trial } => {
                let intention = if *trial { Intention::ValidateOnly } else { Intention::Execute };
                commands::update_policy([policy_step(*setting, *value)].into(), intention)
            }
            Step::Erase { id } => commands::erase(&format!("o{id}")),
            Step::RaiseFloor { ago, trial } => {
                let intention = if *trial { Intention::ValidateOnly } else { Intention::Execute };
                commands::raise_floor(self.memory.now - Span::seconds(*ago), intention)
            }
            Step::Advance { .. } | Step::Sweep => return None,
        })
    }

    /// When an id was made: when it was first named, or, from the thirtieth on, around the edge of
    /// the admission window, which some of them cross while the model runs.
    fn mint(&mut self, id: u8) -> Timestamp {
        match id.checked_sub(30) {
            None => *self.mints.entry(id).or_insert(self.memory.now),
            Some(old) => self.start - Span::seconds(11 * i64::from(old)),
        }
    }

    fn attempts(&self, inbox: u8, sequence: i64, attempt: i32, consumer: u8) -> Attempts {
        let name = format!("i{inbox}");
        let row = self.memory.deliveries.get(&delivery(&name, sequence));
        let attempt = match attempt {
            0 => row.map_or(0, |row| row.attempt),
            other => other,
        };
        let consumer = (consumer < 2).then(|| format!("c{consumer}"));
        attempts(&name, consumer.as_deref(), &[(sequence, attempt)])
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
        for row in self.memory.accounts.values().filter(|row| row.due_time <= now) {
            commands.push(Command::SweepAccount { account: row.account.clone() });
        }
        commands
    }
}
