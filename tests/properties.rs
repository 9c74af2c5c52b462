//! Random sequences of commands: after each one the invariants hold (checked by the store in
//! memory), and every effect has exactly one receipt.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/steps.rs"]
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use memory::Memory;
use proptest::prelude::*;
use receiptd::domain::{
    command::{Command, Reply},
    delivery::DeliveryKey,
    ids::{Account, Span, Timestamp},
    operation::{Operation, OperationKey, OperationState},
    refusal::Refusal,
    standing::Standing,
};
use steps::{Model, Step, step};

/// What happens: a command, time, or the store as a whole goes back.
#[derive(Debug, Clone)]
enum Happening {
    Step(Step),
    /// A copy is made, in the place of the one before.
    Copy,
    /// The last copy takes the store's place, and is marked (R46).
    Restore,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        30 => step().prop_map(Happening::Step),
        2 => Just(Happening::Copy),
        1 => Just(Happening::Restore),
    ]
}

struct Run {
    model: Model,
    copy: Memory,
    /// Ids that were used in a life that was lost, and that its copy does not know.
    lost: BTreeSet<OperationKey>,
    /// Which operation each number of an inbox was given to, in whatever life.
    given: BTreeMap<DeliveryKey, OperationKey>,
    /// Ids of which was said that they were never accepted.
    never: BTreeSet<OperationKey>,
}

impl Run {
    fn new() -> Self {
        let model = Model::new();
        Run {
            copy: model.memory.clone(),
            model,
            lost: BTreeSet::new(),
            given: BTreeMap::new(),
            never: BTreeSet::new(),
        }
    }

    fn happens(&mut self, happening: &Happening) {
        match happening {
            Happening::Step(step) => self.take(step),
            Happening::Copy => self.copy = self.model.memory.clone(),
            Happening::Restore => self.restore(),
        }
        let memory = &self.model.memory;
        for (key, row) in &memory.deliveries {
            let before = self.given.entry(key.clone()).or_insert_with(|| row.operation_key());
            assert_eq!(*before, row.operation_key(), "no number is given out twice");
        }
        let back = self.lost.iter().find(|key| memory.operations.contains_key(key));
        assert_eq!(back, None, "what was lost is never executed again (I18, R46)");
    }

    fn restore(&mut self) {
        let (used_before, floors) = (used(&self.model.memory), floors(&self.model.memory));
        self.model.memory.restore(&self.copy);
        let memory = &self.model.memory;
        let known = used(memory);
        self.lost.extend(used_before.difference(&known).cloned());
        for (account, floor) in floors {
            let now = memory.accounts.get(&account).map(|row| row.evidence_floor);
            let now = now.unwrap_or(memory.life.loss.evidence_floor);
            assert!(now >= floor && now >= memory.now, "no floor falls: {account:?}");
        }
        self.check_effects();
        // The copy of now knows this mark.
        self.copy = memory.clone();
    }

    fn take(&mut self, step: &Step) {
        let ended_before = ended(&self.model.memory);
        match step {
            Step::Advance { seconds } => self.model.memory.advance(Span::seconds(*seconds)),
            Step::Sweep => self.sweep(),
            other => {
                if let Some(command) = self.model.command(other) {
                    // A refusal is an answer; the invariants hold either way.
                    let answer = self.model.memory.run(&command);
                    self.check_standing(&command, &answer);
                }
            }
        }
        for (before, after) in ended_before {
            let memory = &self.model.memory;
            let gone = || memory.forgotten.get(&before);
            let now =
                memory.operations.get(&before).or_else(gone).expect("kept, or known to be gone");
            assert_eq!(now.outcome, after.outcome, "a final outcome never changes (I4, I7)");
            assert_eq!(now.end_time, after.end_time);
        }
        self.check_effects();
    }

    fn sweep(&mut self) {
        // A record that is long overdue takes its steps one after the other.
        for _ in 0..3 {
            let commands = self.model.due();
            for reply in self.model.memory.run_batch(&commands) {
                reply.expect("a sweep is never refused");
            }
        }
        let now = self.model.memory.now;
        let late = |due: Option<Timestamp>| due.is_some_and(|due| due <= now);
        assert!(
            !self.model.memory.deliveries.values().any(|row| late(row.due_time)),
            "nothing is left"
        );
        assert!(!self.model.memory.operations.values().any(|row| late(row.due_time)));
        assert!(!self.model.memory.accounts.values().any(|row| row.due_time <= now));
        assert!(!self.model.memory.locks.values().any(|row| row.due_time <= now));
    }

    /// A used id is never called absent, and one that was called never accepted never executes (I6,
    /// I18). What a submit is told agrees.
    fn check_standing(&mut self, command: &Command, answer: &Result<Reply, Refusal>) {
        if let (Command::Probe { key, .. }, Ok(Reply::Probed(answer))) = (command, answer) {
            let memory = &self.model.memory;
            let expected = match memory.operations.get(key) {
                Some(row) if row.is_compacted() => Some(Standing::Compacted),
                Some(_) => Some(Standing::Recorded),
                None if memory.forgotten.contains_key(key) || self.lost.contains(key) => {
                    Some(Standing::EvidenceExpired)
                }
                None => None,
            };
            match expected {
                Some(expected) => assert_eq!(answer.standing, expected, "{key:?}"),
                None => assert!(
                    !matches!(answer.standing, Standing::Recorded | Standing::Compacted),
                    "{key:?}"
                ),
            }
            if answer.standing == Standing::NeverAccepted {
                self.never.insert(key.clone());
            }
        }
        let refused = answer.as_ref().err();
        if let (Command::Submit(submit), Some(Refusal::AdmissionClosed { standing, .. })) =
            (command, refused)
        {
            if *standing == Standing::NeverAccepted {
                self.never.insert(submit.key.clone());
            }
            assert!(*standing == Standing::NeverAccepted || !self.never.contains(&submit.key));
        }
        let operations = &self.model.memory.operations;
        assert!(self.never.iter().all(|key| !operations.contains_key(key)), "{command:?}");
        let forgotten = &self.model.memory.forgotten;
        assert!(self.never.iter().all(|key| !forgotten.contains_key(key)), "{command:?}");
    }

    /// One line in a document for each APPLIED operation, no more and no less (I2, I3).
    fn check_effects(&self) {
        let mut lines = 0;
        for document in self.model.memory.documents.values() {
            let content = document.content.as_ref().expect("content");
            lines += content.iter().filter(|byte| **byte == b'\n').count();
        }
        let applied = self
            .model
            .memory
            .operations
            .values()
            .chain(self.model.memory.forgotten.values())
            .filter(|row| row.state == OperationState::Applied)
            .count();
        assert_eq!(lines, applied);
        let revisions: i64 = self.model.memory.documents.values().map(|row| row.revision).sum();
        assert_eq!(revisions, i64::try_from(applied).expect("small"));
    }
}

fn used(memory: &Memory) -> BTreeSet<OperationKey> {
    memory.operations.keys().chain(memory.forgotten.keys()).cloned().collect()
}

fn floors(memory: &Memory) -> Vec<(Account, Timestamp)> {
    memory.accounts.values().map(|row| (row.account.clone(), row.evidence_floor)).collect()
}

fn ended(memory: &Memory) -> Vec<(receiptd::domain::operation::OperationKey, Operation)> {
    let rows = memory.operations.iter().filter(|(_, row)| row.state.is_final());
    rows.map(|(key, row)| (key.clone(), row.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn invariants_hold_after_every_step(happenings in prop::collection::vec(happening(), 1..90)) {
        let mut run = Run::new();
        for happening in &happenings {
            run.happens(happening);
        }
        // Liveness (I14, I21): with time and sweeps alone everything comes to rest.
        for _ in 0..8 {
            run.model.memory.advance(Span::seconds(100));
            run.take(&Step::Sweep);
        }
        for row in run.model.memory.inboxes.values() {
            prop_assert_eq!(row.slots_used(), 0, "every slot is released");
        }
        prop_assert!(run.model.memory.locks.is_empty(), "every lock is released");
        prop_assert!(run.model.memory.operations.values().all(|row| row.state.is_final()));
    }
}
