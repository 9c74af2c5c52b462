//! Builders of commands, so that a table row says only what matters in it.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;

use bytes::Bytes;
use receiptd::domain::{
    attempts::{AttemptTarget, Attempts},
    command::{
        Choice, Command, Erasure, FloorRaise, IfAbsent, Intention, OnLocked, PolicyUpdate, Submit,
    },
    delivery::{DeliveryKey, DeliveryTarget, InboxKey},
    document,
    ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Span, Target, Timestamp},
    inbox::Force,
    intent::{Intent, JSON, LockMode, digest},
    lock::TargetKey,
    operation::{OperationKey, ResultKind},
    settings::{Setting, SettingsChange},
};

pub fn account() -> Account {
    Account::parse("a").expect("valid")
}

pub fn inbox(name: &str) -> InboxKey {
    InboxKey { account: account(), inbox: InboxName::parse(name).expect("valid") }
}

pub fn target(path: &str) -> TargetKey {
    TargetKey { account: account(), target: Target::parse("target", path).expect("valid") }
}

pub fn operation(id: &str) -> OperationKey {
    OperationKey { account: account(), id: OperationId::parse(id).expect("valid") }
}

pub fn delivery(name: &str, sequence: i64) -> DeliveryKey {
    DeliveryKey { inbox: inbox(name), sequence }
}

pub fn consumer(id: &str) -> ConsumerId {
    ConsumerId::parse(id).expect("valid")
}

/// An append of one line to `d`, minted at `now`.
#[derive(Clone)]
pub struct Instruction {
    pub id: String,
    pub mint: MintTime,
    pub action: String,
    pub target: String,
    pub expected_revision: Option<i64>,
    pub arguments: String,
    pub lock_mode: LockMode,
    pub on_locked: OnLocked,
    pub inbox: Option<String>,
    pub intention: Intention,
    pub result: ResultKind,
    pub start_deadline: Option<Span>,
}

pub fn append(id: &str, now: Timestamp) -> Instruction {
    Instruction {
        id: id.to_owned(),
        mint: MintTime::from_timestamp(now),
        action: "document.append".to_owned(),
        target: "d".to_owned(),
        expected_revision: None,
        arguments: r#"{"line":"x"}"#.to_owned(),
        lock_mode: LockMode::UntilFinal,
        on_locked: OnLocked::Wait,
        inbox: Some("default".to_owned()),
        intention: Intention::Execute,
        result: ResultKind::Receipt,
        start_deadline: None,
    }
}

impl Instruction {
    pub fn on(self, target: &str) -> Self {
        Instruction { target: target.to_owned(), ..self }
    }

    pub fn until_acked(self) -> Self {
        Instruction { lock_mode: LockMode::UntilAcked, ..self }
    }

    pub fn or_fail(self) -> Self {
        Instruction { on_locked: OnLocked::Fail, ..self }
    }

    pub fn expecting(self, revision: i64) -> Self {
        Instruction { expected_revision: Some(revision), ..self }
    }

    pub fn keeping_content(self) -> Self {
        Instruction { result: ResultKind::Content, ..self }
    }

    pub fn into_inbox(self, name: &str) -> Self {
        Instruction { inbox: Some(name.to_owned()), ..self }
    }

    pub fn command(self) -> Command {
        let intent = Intent {
            action: self.action,
            target: Target::parse("target", &self.target).expect("valid"),
            expected_revision: self.expected_revision,
            content_type: JSON.to_owned(),
            arguments: Bytes::from(self.arguments),
            lock_mode: self.lock_mode,
        };
        let (digest, hashed) = digest(&intent).expect("a digest");
        let action = document::parse(&intent, &hashed).expect("an action");
        let action = action.expect("valid arguments");
        Command::Submit(Box::new(Submit {
            key: operation(&self.id),
            mint_time: self.mint,
            intent,
            digest,
            action,
            inbox: self.inbox.map(|name| InboxName::parse(&name).expect("valid")),
            on_locked: self.on_locked,
            start_deadline: self.start_deadline,
            labels: BTreeMap::new(),
            subject: "tester".to_owned(),
            intention: self.intention,
            result: self.result,
        }))
    }
}

pub fn ack(name: &str, sequences: &[i64]) -> Command {
    Command::Ack {
        account: account(),
        targets: numbered(name, sequences),
        subject: "tester".to_owned(),
        consumer: String::new(),
    }
}

pub fn numbered(name: &str, sequences: &[i64]) -> Vec<DeliveryTarget> {
    let inbox = InboxName::parse(name).expect("valid");
    let target =
        |sequence: &i64| DeliveryTarget::Numbered { inbox: inbox.clone(), sequence: *sequence };
    sequences.iter().map(target).collect()
}

pub fn ack_newest(id: &str) -> Command {
    Command::Ack {
        account: account(),
        targets: vec![newest(id)],
        subject: "tester".to_owned(),
        consumer: String::new(),
    }
}

/// The newest delivery of an operation, wherever it is.
pub fn newest(id: &str) -> DeliveryTarget {
    DeliveryTarget::Newest { operation_id: operation(id).id, inbox: None }
}

/// Attempts by number and attempt; of one consumer, or of whoever has them.
pub fn attempts(name: &str, who: Option<&str>, attempts: &[(i64, i32)]) -> Attempts {
    let inbox = InboxName::parse(name).expect("valid");
    let target = |&(sequence, attempt): &(i64, i32)| {
        let inbox = inbox.clone();
        AttemptTarget { inbox, sequence, attempt }
    };
    let targets = attempts.iter().map(target).collect();
    Attempts { account: account(), targets, consumer: who.map(consumer) }
}

pub fn extend(attempts: Attempts, extension: Option<Span>) -> Command {
    Command::Extend { attempts, extension }
}

pub fn defer(attempts: Attempts, delay: Span) -> Command {
    Command::Defer { attempts, delay, subject: "tester".to_owned() }
}

pub fn redrive(targets: Vec<DeliveryTarget>) -> Command {
    Command::Redrive { account: account(), targets, subject: "tester".to_owned() }
}

pub fn pull(name: &str, who: &str, limit: i64) -> Command {
    Command::Pull { inbox: inbox(name), consumer: consumer(who), limit }
}

pub fn cancel(id: &str, mint: Timestamp) -> Command {
    Command::Cancel {
        key: operation(id),
        mint_time: MintTime::from_timestamp(mint),
        reason: "changed my mind".to_owned(),
        subject: "tester".to_owned(),
        if_absent: IfAbsent::Refuse,
    }
}

pub fn seal(id: &str, mint: Timestamp) -> Command {
    Command::Cancel {
        key: operation(id),
        mint_time: MintTime::from_timestamp(mint),
        reason: "never mind".to_owned(),
        subject: "tester".to_owned(),
        if_absent: IfAbsent::Seal,
    }
}

pub fn probe(id: &str, mint: Timestamp) -> Command {
    Command::Probe { key: operation(id), mint_time: MintTime::from_timestamp(mint) }
}

pub fn open(name: &str, who: &str, window: i64) -> Command {
    Command::Open { inbox: inbox(name), consumer: consumer(who), window }
}

/// In the generation that the stream read.
pub fn reopen(name: &str, who: &str, (epoch, generation): (i64, i64), window: i64) -> Command {
    Command::Reopen { inbox: inbox(name), consumer: consumer(who), epoch, window, generation }
}

pub fn offer(name: &str, who: &str, epoch: i64, limit: i64) -> Command {
    let choice = Choice::Any;
    Command::Offer { inbox: inbox(name), consumer: consumer(who), epoch, limit, choice }
}

pub fn offer_again(name: &str, who: &str, epoch: i64, limit: i64, sequences: &[i64]) -> Command {
    let choice = Choice::Returned(sequences.to_vec());
    Command::Offer { inbox: inbox(name), consumer: consumer(who), epoch, limit, choice }
}

pub fn close(name: &str, who: &str, epoch: i64) -> Command {
    Command::Close { inbox: inbox(name), consumer: consumer(who), epoch }
}

pub fn delete(name: &str, force: Force, generation: Option<i64>) -> Command {
    Command::DeleteInbox { inbox: inbox(name), force, generation }
}

pub fn sweep_inbox(name: &str) -> Command {
    Command::SweepInbox { key: inbox(name) }
}

pub fn erase(id: &str) -> Command {
    Command::Erase(Box::new(Erasure {
        key: operation(id),
        reason: "asked for".to_owned(),
        subject: "operator".to_owned(),
    }))
}

pub fn update_policy(change: BTreeMap<Setting, Option<i64>>, intention: Intention) -> Command {
    Command::UpdatePolicy(Box::new(PolicyUpdate {
        account: account(),
        change: SettingsChange(change),
        reason: "as asked".into(),
        subject: "operator".into(),
        intention,
    }))
}

pub fn raise_floor(floor: Timestamp, intention: Intention) -> Command {
    Command::RaiseFloor(Box::new(FloorRaise {
        account: account(),
        floor,
        reason: "records were lost".into(),
        subject: "operator".into(),
        intention,
    }))
}

/// Gives the account one setting of its own.
pub fn set(setting: Setting, value: i64) -> Command {
    update_policy([(setting, Some(value))].into(), Intention::Execute)
}
