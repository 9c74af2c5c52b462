//! One caller: random commands, one burst after the other, and a look at each answer.

use futures_util::future::join_all;
use receiptd::{
    domain::{
        attempts::{AttemptTarget, Attempts},
        command::{CancelOutcome, Choice, Command, IfAbsent, Origin, Reply, Submitted},
        delivery::{Delivery, DeliveryKey, DeliveryTarget, InboxKey},
        ids::{Account, ConsumerId, InboxName, MintTime, OperationId, Span},
        inbox::Force,
        operation::OperationKey,
        refusal::Refusal,
    },
    engine::Engine,
    stream::{self, Frame, OpenStream, Sending, StreamSettings},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    commands::{Instruction, append},
    hunt::Hunt,
};

/// A caller of one replica.
pub struct Worker {
    hunt: Hunt,
    engine: Engine,
    replica: usize,
    name: String,
    dice: u64,
    made: u64,
    streams: CancellationToken,
}

/// Whether others may choose the same id at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    Own,
    Raced,
}

impl Worker {
    /// A caller with dice of its own.
    pub fn new(
        hunt: Hunt,
        engine: Engine,
        replica: usize,
        index: u64,
        streams: CancellationToken,
    ) -> Worker {
        let seed = 1 + index + 100 * u64::try_from(replica).expect("two");
        let dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let name = format!("r{replica}-w{index}");
        Worker { hunt, engine, replica, name, dice, made: 0, streams }
    }

    /// Goes on until `end`.
    pub async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            match self.roll(21) {
                0..=7 => self.submit_some().await,
                8 => self.submit_raced().await,
                9 | 10 => self.cancel().await,
                11..=14 => self.ack().await,
                15 => self.consume().await,
                16 => self.pull().await,
                17 => self.stream().await,
                18 => self.release().await,
                19 => self.delete_inbox().await,
                _ => self.replay().await,
            }
        }
    }

    /// A number below `sides` (xorshift: the order of events is not repeatable anyway).
    fn roll(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) % sides
    }

    /// `0..count`, in the direction of this replica.
    fn directed(&self, count: u64) -> Vec<u64> {
        let forth = 0..count;
        if self.replica == 0 { forth.collect() } else { forth.rev().collect() }
    }

    fn account(&mut self) -> Account {
        Hunt::account(self.roll(4))
    }

    fn inbox(&mut self, account: &Account) -> InboxKey {
        let number = self.roll(3);
        let name = self.hunt.inbox(number);
        InboxKey { account: account.clone(), inbox: InboxName::parse(&name).expect("valid") }
    }

    /// A burst over all documents and inboxes of an account or two, in this replica's order.
    async fn submit_some(&mut self) {
        let Ok(now) = self.engine.store().now().await else {
            return self.hunt.fault("the clock could not be read".to_owned());
        };
        let first = self.roll(4);
        let mut commands = Vec::new();
        for number in self.directed(6) {
            let account = Hunt::account(first + number / 3);
            let inbox = number + self.roll(2);
            self.made += 1;
            let id = format!("{}-{}", self.name, self.made);
            let arguments = format!(r#"{{"line":"{id}"}}"#);
            let mut instruction = Instruction { arguments, ..append(&id, now) }
                .on(&self.hunt.document(number))
                .into_inbox(&self.hunt.inbox(inbox));
            match self.roll(8) {
                0 | 1 => instruction = instruction.until_acked(),
                2 => instruction = instruction.or_fail(),
                3 => instruction.start_deadline = Some(Span::seconds(1)),
                4 => instruction.inbox = None,
                _ => {}
            }
            commands.push(owned_by(&account, instruction));
        }
        join_all(commands.into_iter().map(|command| self.submit(command, Ids::Own))).await;
    }

    /// An id that callers of both replicas use now.
    async fn submit_raced(&mut self) {
        let (id, mint) = self.hunt.raced();
        let arguments = format!(r#"{{"line":"{id}"}}"#);
        let instruction = Instruction { arguments, mint, ..append(&id, mint.to_timestamp()) }
            .on("raced")
            .into_inbox("raced");
        self.submit(owned_by(&Hunt::account(0), instruction), Ids::Raced).await;
    }

    async fn submit(&self, command: Command, ids: Ids) {
        let Command::Submit(submit) = &command else { unreachable!("a submit") };
        let (key, mint) = (submit.key.clone(), submit.mint_time);
        match self.engine.run(command).await {
            Ok(Reply::Submitted(submitted)) => self.submitted(&key, mint, &submitted, ids),
            Ok(other) => self.hunt.fault(format!("a submit was answered with {other:?}")),
            Err(refusal) => {
                let raced: &[&str] = match ids {
                    Ids::Own => &[],
                    Ids::Raced => &["IDENTITY_HELD"],
                };
                self.refused("submit", &refusal, &[&["INBOX_FULL", "TARGET_LOCKED"], raced]);
            }
        }
    }

    fn submitted(&self, key: &OperationKey, mint: MintTime, submitted: &Submitted, ids: Ids) {
        let Submitted { operation, origin, delivery, .. } = submitted;
        self.hunt.count("submit", &format!("{origin:?} {:?}", operation.state));
        match (origin, ids) {
            (Origin::Executed, _) => self.hunt.executed(key),
            (Origin::Attached | Origin::Replayed, Ids::Raced) => self.engine.count_replay(key),
            (Origin::Attached | Origin::Replayed, Ids::Own) => {
                self.hunt.fault(format!("{key:?} was sent once and answered {origin:?}"));
            }
        }
        self.hunt.told(key, mint, operation.state);
        if let Some(delivery) = delivery {
            self.hunt.queued(delivery.key.clone());
        }
    }

    async fn cancel(&mut self) {
        let Some((key, mint_time)) = self.hunt.operation(self.dice >> 20) else { return };
        self.roll(2);
        let subject = self.name.clone();
        let command = Command::Cancel {
            key: key.clone(),
            mint_time,
            reason: String::new(),
            subject,
            if_absent: IfAbsent::Refuse,
        };
        match self.engine.run(command).await {
            Ok(Reply::Cancelled { outcome, operation, .. }) => {
                self.hunt.count("cancel", &format!("{outcome:?}"));
                self.hunt.told(&key, mint_time, operation.state);
                if outcome == CancelOutcome::Cancelled && !operation.state.is_final() {
                    self.hunt.fault(format!("{key:?} was cancelled and goes on"));
                }
            }
            Ok(other) => self.hunt.fault(format!("a cancel was answered with {other:?}")),
            Err(refusal) => self.refused("cancel", &refusal, &[]),
        }
    }

    /// One ack, or a list over the inboxes in this replica's order.
    async fn ack(&mut self) {
        let account = self.account();
        let limit = if self.roll(2) == 0 { 1 } else { 12 };
        let mut targets = self.hunt.deliveries(&account, limit);
        targets.sort_by(|one, other| one.inbox.cmp(&other.inbox));
        if self.replica == 1 {
            targets.reverse();
        }
        if targets.is_empty() {
            return;
        }
        let mut targets: Vec<DeliveryTarget> = targets.into_iter().map(numbered).collect();
        let named = self.hunt.operation(self.dice >> 20).map(|(key, _)| key);
        targets.extend(
            named
                .filter(|key| key.account == account)
                .map(|key| DeliveryTarget::Newest { operation_id: key.id, inbox: None }),
        );
        let (subject, consumer) = (self.name.clone(), String::new());
        let command = match self.roll(3) {
            0 => Command::Redrive { account, targets, subject },
            _ => Command::Ack { account, targets, subject, consumer },
        };
        match self.engine.run(command).await {
            Ok(Reply::Redriven(each)) => {
                for redriven in each {
                    self.hunt.count("redrive", &format!("{:?}", redriven.outcome));
                }
            }
            Ok(Reply::Acked(each)) => {
                for acked in each {
                    self.hunt.count("ack", &format!("{:?}", acked.outcome));
                }
            }
            Ok(other) => self.hunt.fault(format!("an ack was answered with {other:?}")),
            Err(refusal) => self.refused("ack", &refusal, &[]),
        }
    }

    /// Pulls a page, extends it, and gives some of it back.
    async fn pull(&mut self) {
        let account = self.account();
        let inbox = self.inbox(&account);
        let consumer = ConsumerId::parse(&format!("c{}", self.roll(3))).expect("valid");
        let pull = Command::Pull { inbox, consumer: consumer.clone(), limit: 4 };
        let deliveries = match self.engine.run(pull).await {
            Ok(Reply::Offered { deliveries, .. }) => deliveries,
            Ok(other) => return self.hunt.fault(format!("a pull was answered with {other:?}")),
            Err(refusal) => return self.refused("pull", &refusal, &[]),
        };
        self.hunt.count("pull", "OK");
        let target = |delivery: &Delivery| AttemptTarget {
            inbox: delivery.key.inbox.inbox.clone(),
            sequence: delivery.key.sequence,
            attempt: delivery.attempt,
        };
        let targets = deliveries.iter().map(target).collect();
        let attempts = Attempts { account, targets, consumer: Some(consumer) };
        deliveries.into_iter().for_each(|delivery| self.hunt.queued(delivery.key));
        let extend = Command::Extend { attempts: attempts.clone(), extension: None };
        let (delay, subject) = (Span(0), self.name.clone());
        for (kind, command) in
            [("extend", extend), ("defer", Command::Defer { attempts, delay, subject })]
        {
            match self.engine.run(command).await {
                Ok(Reply::Attempted(each)) => {
                    for attempted in each {
                        self.hunt.count(kind, &format!("{:?}", attempted.outcome));
                    }
                }
                Ok(other) => self.hunt.fault(format!("{kind} was answered with {other:?}")),
                Err(refusal) => self.refused(kind, &refusal, &[]),
            }
        }
    }

    /// Opens a stream by command, offers to it twice, and closes it or leaves it to the sweeper.
    async fn consume(&mut self) {
        let account = self.account();
        let inbox = self.inbox(&account);
        let consumer = ConsumerId::parse(&format!("c{}", self.roll(3))).expect("valid");
        let open = Command::Open { inbox: inbox.clone(), consumer: consumer.clone(), window: 8 };
        let (mut epoch, generation) = match self.engine.run(open).await {
            Ok(Reply::Opened { consumer, inbox, .. }) => (consumer.epoch, inbox.generation),
            Ok(other) => return self.hunt.fault(format!("an open was answered with {other:?}")),
            Err(refusal) => return self.refused("open", &refusal, &[]),
        };
        self.hunt.count("open", "OK");
        for _ in 0..2 {
            let (inbox_key, consumer_id) = (inbox.clone(), consumer.clone());
            let (inbox, consumer, limit) = (inbox.clone(), consumer.clone(), 4);
            let choice = Choice::Any;
            match self.engine.run(Command::Offer { inbox, consumer, epoch, limit, choice }).await {
                Ok(Reply::Offered { deliveries, .. }) => {
                    self.hunt.count("offer", "OK");
                    for delivery in deliveries {
                        self.hunt.queued(delivery.key);
                    }
                }
                Ok(Reply::Lapsed) => {
                    self.hunt.count("offer", "Lapsed");
                    epoch = self.reopen(&inbox_key, &consumer_id, (epoch, generation)).await;
                }
                Ok(other) => self.hunt.fault(format!("an offer was answered with {other:?}")),
                Err(refusal) => {
                    self.refused("offer", &refusal, &[&["STREAM_SUPERSEDED", "NO_SUCH_INBOX"]]);
                }
            }
        }
        if self.roll(4) > 0 {
            match self.engine.run(Command::Close { inbox, consumer, epoch }).await {
                Ok(_) => self.hunt.count("close", "OK"),
                Err(refusal) => self.refused("close", &refusal, &[&["STREAM_SUPERSEDED"]]),
            }
        }
    }

    /// Opens a stream again whose lease ended; returns its epoch from then on.
    async fn reopen(
        &mut self,
        inbox: &InboxKey,
        consumer: &ConsumerId,
        (epoch, generation): (i64, i64),
    ) -> i64 {
        let (inbox, consumer, window) = (inbox.clone(), consumer.clone(), 8);
        let command = Command::Reopen { inbox, consumer, epoch, window, generation };
        match self.engine.run(command).await {
            Ok(Reply::Opened { consumer, .. }) => return consumer.epoch,
            Ok(other) => self.hunt.fault(format!("a reopen was answered with {other:?}")),
            Err(refusal) => self.refused(
                "reopen",
                &refusal,
                &[&["STREAM_SUPERSEDED", "NO_SUCH_INBOX", "INBOX_RECREATED"]],
            ),
        }
        epoch
    }

    /// A whole stream: reads some results, acks every other one, and goes away.
    async fn stream(&mut self) {
        let account = self.account();
        let inbox = self.inbox(&account);
        let consumer = ConsumerId::parse(&format!("s{}", self.roll(2))).expect("valid");
        let request = OpenStream {
            inbox: inbox.clone(),
            consumer,
            window: 8,
            resume_token: String::new(),
            credit: None,
            end: None,
        };
        let settings = StreamSettings {
            heartbeat: Span::millis(300),
            age_max: Span::seconds(2),
            write_stall_max: Span::millis(500),
        };
        let mut frames =
            match stream::open(&self.engine, request, settings, self.streams.clone()).await {
                Ok(frames) => frames,
                Err(refusal) => return self.refused("stream", &refusal, &[]),
            };
        for _ in 0..4 {
            match frames.recv().await {
                Some(Ok(Frame::Deliveries { results, .. })) => {
                    self.hunt.count("stream", "results");
                    for Sending { delivery, .. } in results {
                        self.hunt.queued(delivery.key);
                    }
                }
                Some(Ok(_)) => self.hunt.count("stream", "frame"),
                Some(Err(refusal)) => {
                    let deleted = ["NO_SUCH_INBOX", "INBOX_RECREATED"];
                    self.refused("stream", &refusal, &[&["STREAM_SUPERSEDED"], &deleted]);
                }
                None => break,
            }
        }
    }

    /// Releases a lock by hand: of its holder, or of somebody who does not hold it.
    async fn release(&mut self) {
        let account = self.account();
        let Ok(locks) = self.engine.store().list_locks(&account, "", 20).await else {
            return self.hunt.fault("locks could not be read".to_owned());
        };
        let Some(lock) = locks.into_iter().next() else { return };
        let nobody = || OperationId::parse("nobody").expect("valid");
        let operation_id = lock.holder.map_or_else(nobody, |holder| holder.operation_id);
        let (reason, subject) = ("hunt".to_owned(), self.name.clone());
        let command = Command::ReleaseLock { target: lock.key, operation_id, reason, subject };
        match self.engine.run(command).await {
            Ok(_) => self.hunt.count("release", "OK"),
            Err(refusal) => self.refused("release", &refusal, &[&["NO_SUCH_LOCK"]]),
        }
    }

    /// Deletes an inbox, mostly with what is in it, now and then a generation that is over.
    async fn delete_inbox(&mut self) {
        let account = self.account();
        let inbox = self.inbox(&account);
        let force = if self.roll(3) > 0 { Force::WithContent } else { Force::OnlyEmpty };
        let generation = (self.roll(4) == 0).then_some(1);
        match self.engine.run(Command::DeleteInbox { inbox, force, generation }).await {
            Ok(_) => self.hunt.count("delete", "OK"),
            Err(refusal) => {
                let honest = ["NO_SUCH_INBOX", "INBOX_NOT_EMPTY", "INBOX_RECREATED"];
                self.refused("delete", &refusal, &[&honest]);
            }
        }
    }

    /// Counts replays of a recent operation, to be folded beside everything else.
    async fn replay(&mut self) {
        let Some((key, _)) = self.hunt.operation(self.dice >> 20) else { return };
        self.roll(2);
        match self.engine.run(Command::FoldReplays { key, count: 1 }).await {
            Ok(_) => self.hunt.count("fold", "OK"),
            Err(refusal) => self.refused("fold", &refusal, &[]),
        }
    }

    /// Counts a refusal; any but the honest ones is a fault.
    fn refused(&self, kind: &str, refusal: &Refusal, honest: &[&[&str]]) {
        let reason = refusal.reason();
        self.hunt.count(kind, reason);
        if !honest.concat().contains(&reason) {
            self.hunt.fault(format!("{kind} of {} was refused with {refusal:?}", self.name));
        }
    }
}

fn owned_by(account: &Account, instruction: Instruction) -> Command {
    let mut command = instruction.command();
    if let Command::Submit(submit) = &mut command {
        submit.key.account = account.clone();
    }
    command
}

fn numbered(key: DeliveryKey) -> DeliveryTarget {
    DeliveryTarget::Numbered { inbox: key.inbox.inbox, sequence: key.sequence }
}
