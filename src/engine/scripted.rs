//! A store for the engine's tests that ends each transaction as a script says, rules that do what
//! the id of a command says, and a record of what was decided in which transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{Backend, Engine, EngineSettings, lane::Waits, seams::Seams};
use crate::{
    domain::{
        audit::{AuditChain, AuditRow},
        command::*,
        delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
        document::DocumentAction,
        ids::*,
        intent::{Intent, IntentDigest, LockMode, PART_DIGEST_BYTES},
        operation::{EffectCertainty, Operation, OperationKey, OperationState, ResultKind},
        policy::Policy,
        refusal::Refusal,
        sample,
        world::{
            World,
            needs::{Access, Need, Needs, Unloaded},
        },
    },
    store::{BatchName, Committed, HeldIds, Settled, Touches, TransactError, Transaction},
};

/// How a transaction ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Well; for a settling one: it had not committed, and was run again.
    Commit,
    /// Well, with these ids in other hands.
    Held(Vec<&'static str>),
    /// For a settling one: it had committed.
    HadCommitted,
    Conflict,
    Failed,
    CountShort,
    Unavailable,
    Ambiguous,
    Fatal,
}

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Run,
    Settle,
}

/// What a script sees.
pub(super) struct Seen<'a> {
    /// Which transaction it is, from 0.
    pub(super) number: usize,
    /// What it needs.
    pub(super) needs: &'a Needs,
    /// What it is for.
    pub(super) purpose: Purpose,
}

impl Seen<'_> {
    /// Whether a submit of this id is part of it.
    pub(super) fn claims(&self, id: &str) -> bool {
        self.needs.claims.iter().any(|key| key.id.as_str() == id)
    }
}

/// One transaction as it ended.
#[derive(Debug, Clone)]
pub(super) struct Ran {
    pub(super) name: BatchName,
    pub(super) claims: usize,
    pub(super) step: Step,
    /// The ids that were decided with an effect, in order.
    pub(super) decided: Vec<String>,
}

type Script = Box<dyn Fn(Seen<'_>) -> Step + Send + Sync>;

/// See the module's comment. Its clock is the number of the transaction.
pub(super) struct ScriptedStore {
    script: Script,
    log: Log,
}

/// What ran, in order.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Ran>>>);

impl Log {
    pub(super) fn all(&self) -> Vec<Ran> {
        self.0.lock().expect("no test panics inside").clone()
    }

    /// The ids decided in the transactions that held, in order.
    pub(super) fn decided(&self) -> Vec<Vec<String>> {
        let held = |ran: &Ran| matches!(ran.step, Step::Commit | Step::Held(_));
        self.all().into_iter().filter(held).map(|ran| ran.decided).collect()
    }
}

impl ScriptedStore {
    pub(super) async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        match self.perform(transaction, Purpose::Run) {
            (Step::Commit | Step::Held(_), Some(committed)) => Ok(committed),
            (step, committed) => Err(error(step, committed)),
        }
    }

    pub(super) async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        match self.perform(transaction, Purpose::Settle) {
            (Step::HadCommitted, _) => Ok(Settled::Committed),
            (Step::Commit | Step::Held(_), Some(committed)) => Ok(Settled::RunAgain(committed)),
            (step, committed) => Err(error(step, committed)),
        }
    }

    fn perform<R>(
        &self,
        transaction: Transaction<R>,
        purpose: Purpose,
    ) -> (Step, Option<Committed<R>>) {
        let Transaction { batch, needs, surroundings, decide, .. } = transaction;
        let number = self.log.all().len();
        let step = (self.script)(Seen { number, needs: &needs, purpose });
        let mut world = World::new(surroundings);
        world.set_now(Timestamp(i64::try_from(number).expect("few")));
        for (key, access) in &needs.operations {
            world.load_operation(key.clone(), *access, None);
        }
        let held = match &step {
            Step::Held(ids) => {
                let held = |key: &&OperationKey| ids.contains(&key.id.as_str());
                HeldIds(needs.claims.iter().filter(held).cloned().collect::<BTreeSet<_>>())
            }
            _ => HeldIds::default(),
        };
        let decides = !matches!(step, Step::Unavailable | Step::HadCommitted);
        let committed = decides.then(|| Committed {
            value: decide(&mut world, &held),
            now: world.now(),
            touches: Touches::default(),
        });
        let audit = world.into_changes().audit;
        let decided = audit
            .into_iter()
            .map(|row| row.operation().map_or("", |key| key.id.as_str()).to_owned())
            .collect();
        let claims = needs.claims.len();
        let ran = Ran { name: batch, claims, step: step.clone(), decided };
        self.log.0.lock().expect("no test panics inside").push(ran);
        (step, committed)
    }
}

fn error<R>(step: Step, committed: Option<Committed<R>>) -> TransactError<R> {
    let text = "as the script says".to_owned();
    match (step, committed) {
        (Step::Conflict, _) => TransactError::Conflict(text),
        (Step::Failed, _) => TransactError::Failed(text),
        (Step::CountShort, _) => TransactError::CountShort(text),
        (Step::Unavailable, _) => TransactError::Unavailable(text),
        (Step::Fatal, _) => TransactError::Fatal(text),
        (Step::Ambiguous, Some(committed)) => TransactError::Ambiguous(committed.value),
        (step, _) => panic!("{step:?} is no error here"),
    }
}

/// An engine with one lane on a script, and the record of what ran. Waits are short.
pub(super) fn engine(script: impl Fn(Seen<'_>) -> Step + Send + Sync + 'static) -> (Engine, Log) {
    engine_in_time(std::time::Duration::MAX, script)
}

/// The same, where each look at the watch takes a millisecond, and a batch may compute for so long.
pub(super) fn engine_in_time(
    decide_max: std::time::Duration,
    script: impl Fn(Seen<'_>) -> Step + Send + Sync + 'static,
) -> (Engine, Log) {
    let log = Log::default();
    let store = ScriptedStore { script: Box::new(script), log: log.clone() };
    let random = AtomicU64::new(1);
    let looks = AtomicI64::new(0);
    let clock = move || Timestamp(1_000 * looks.fetch_add(1, Ordering::Relaxed));
    let seams = Seams::simulated(clock, move || random.fetch_add(1, Ordering::Relaxed));
    let millis = std::time::Duration::from_millis;
    let waits = Waits {
        held_retry: millis(1),
        held_max: millis(100),
        settle_pause_first: millis(1),
        settle_pause_max: millis(4),
        settle_max: millis(100),
        replay_fold: millis(1),
        decide_max,
    };
    let backend = Backend::Scripted(store);
    let settings = EngineSettings { lanes: 1 };
    let engine = Engine::start_with(backend, Policy::default(), settings, seams, decide, waits);
    (engine, log)
}

/// Rules by the id of the command. Everything that is done leaves a row in the trail.
fn decide(world: &mut World, command: &Command) -> Decided<Reply> {
    let Some(key) = super::queue::identity(command) else {
        return Ok(Reply::Closed);
    };
    world.add_audit(AuditRow {
        chain: AuditChain::Operation(key.clone()),
        number: 1,
        time: world.now(),
        subject: String::new(),
        events: Vec::new(),
        hash: [0; 32],
    });
    let kind = key.id.as_str().split('-').next().unwrap_or_default();
    match kind {
        "panic" => panic!("as the id says"),
        "refused" => Err(Refusal::NoSuchInbox.into()),
        "never" => Err(Unloaded(vec![Need::Operation(key.clone(), Access::Write)]).into()),
        "missing" => {
            let row = operation_key(key.account.as_str(), &format!("row-of-{}", key.id));
            world.operation(&row, Access::Write)?;
            Ok(told(world))
        }
        "hand" => {
            let inbox = inbox_key(key.account.as_str());
            let attached = world.attached(&inbox).filter(|attached| attached.room > 0).cloned();
            let consumer = attached.map(|attached| (attached.consumer, attached.epoch));
            let handed = consumer.is_some();
            let delivery = delivery(&inbox, key, consumer);
            let delivery_key = delivery.key.clone();
            world.put_operation(operation(key))?;
            world.add_delivery(delivery);
            if handed {
                world.hand_over(delivery_key);
            }
            Ok(told(world))
        }
        _ => Ok(told(world)),
    }
}

/// A reply that tells in which transaction it was decided.
fn told(world: &World) -> Reply {
    let inbox = inbox_key("local");
    let key = DeliveryKey { inbox, sequence: world.now().0 };
    Reply::Acked(vec![Acked { key: Some(key), outcome: AckOutcome::Acked, delivery: None }])
}

/// In which transaction a command was decided.
pub(super) fn transaction_of(reply: &Reply) -> i64 {
    match reply {
        Reply::Acked(acked) => acked[0].key.as_ref().expect("a number").sequence,
        other => panic!("{other:?} does not tell"),
    }
}

pub(super) fn operation_key(account: &str, id: &str) -> OperationKey {
    let account = Account::parse(account).expect("valid");
    OperationKey { account, id: OperationId::parse(id).expect("valid") }
}

pub(super) fn inbox_key(account: &str) -> InboxKey {
    let account = Account::parse(account).expect("valid");
    InboxKey { account, inbox: InboxName::parse("").expect("the default") }
}

/// A submit with arguments of so many bytes.
pub(super) fn heavy_submit(account: &str, id: &str, bytes: usize) -> Command {
    let key = operation_key(account, id);
    let inbox = id.starts_with("hand").then(|| inbox_key(account).inbox);
    Command::Submit(Box::new(Submit {
        key,
        mint_time: MintTime::from_millis(0),
        intent: Intent {
            action: "document.delete".to_owned(),
            target: Target::parse("intent.target", "notes/a").expect("valid"),
            expected_revision: None,
            content_type: String::new(),
            arguments: Bytes::from(vec![0; bytes]),
            lock_mode: LockMode::UntilFinal,
        },
        digest: digest(),
        action: DocumentAction::Delete,
        inbox,
        on_locked: OnLocked::Wait,
        start_deadline: None,
        labels: BTreeMap::new(),
        subject: String::new(),
        intention: Intention::Execute,
        result: ResultKind::Receipt,
    }))
}

pub(super) fn submit(account: &str, id: &str) -> Command {
    heavy_submit(account, id, 0)
}

pub(super) fn cancel(account: &str, id: &str) -> Command {
    Command::Cancel {
        key: operation_key(account, id),
        mint_time: MintTime::from_millis(0),
        reason: String::new(),
        subject: String::new(),
        if_absent: IfAbsent::Refuse,
    }
}

fn digest() -> IntentDigest {
    IntentDigest { version: 1, whole: [0; 32], parts: [0; PART_DIGEST_BYTES * 5] }
}

pub(super) fn operation(key: &OperationKey) -> Operation {
    Operation {
        key: key.clone(),
        digest: digest(),
        inbox: None,
        accept_time: Timestamp(0),
        state: OperationState::Applied,
        certainty: EffectCertainty::Complete,
        outcome_version: 1,
        ..sample::operation(key.id.as_str())
    }
}

/// A delivery numbered by the last part of its operation's id.
pub(super) fn delivery(
    inbox: &InboxKey,
    key: &OperationKey,
    consumer: Option<(ConsumerId, i64)>,
) -> Delivery {
    let number = key.id.as_str().rsplit('-').next().and_then(|number| number.parse().ok());
    let number = number.expect("a number");
    Delivery {
        key: DeliveryKey { inbox: inbox.clone(), sequence: number },
        state: match consumer {
            Some(_) => DeliveryState::InFlight,
            None => DeliveryState::Pending,
        },
        queue_time: Timestamp(0),
        expire_time: Timestamp(0),
        consumer,
        ..sample::delivery(key.id.as_str(), number)
    }
}
