//! What all callers of the hunt share: names that meet, what was answered, what was wrong.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use receiptd::domain::{
    delivery::DeliveryKey,
    ids::{Account, MintTime, Timestamp},
    operation::{OperationKey, OperationState},
};
use tokio::time::Instant;

/// Accounts: more than lanes, so that a lane's batch spans several.
const ACCOUNTS: [&str; 4] = ["acme", "birch", "cedar", "delta"];
/// How many recent operations and deliveries are remembered for cancels and acks.
const RECENT_MAX: usize = 400;
/// Faults that are kept: one cause tends to show often.
const FAULTS_MAX: usize = 1_000;

/// A handle; clones share one hunt.
#[derive(Clone)]
pub struct Hunt(Arc<Shared>);

struct Shared {
    begun: Instant,
    mint: Timestamp,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    counts: BTreeMap<String, u64>,
    faults: Vec<String>,
    operations: VecDeque<(OperationKey, MintTime)>,
    deliveries: BTreeMap<Account, VecDeque<DeliveryKey>>,
    /// Final states that callers were told.
    told: BTreeMap<OperationKey, OperationState>,
    /// Ids whose execution somebody was told.
    executed: BTreeSet<OperationKey>,
}

impl Hunt {
    /// Begins; raced ids are minted at `now`.
    pub fn begin(now: Timestamp) -> Hunt {
        Hunt(Arc::new(Shared { begun: Instant::now(), mint: now, seen: Mutex::default() }))
    }

    /// The account of a number.
    pub fn account(number: u64) -> Account {
        let count = u64::try_from(ACCOUNTS.len()).expect("a few");
        let place = usize::try_from(number % count).expect("a few");
        Account::parse(ACCOUNTS[place]).expect("valid")
    }

    /// One of three documents. They change every other second, so that first writes race too, and
    /// stay small.
    pub fn document(&self, number: u64) -> String {
        format!("notes/{}/{}", self.0.begun.elapsed().as_secs() / 2, number % 3)
    }

    /// One of three inboxes, which change every ten seconds.
    pub fn inbox(&self, number: u64) -> String {
        format!("inbox-{}-{}", self.0.begun.elapsed().as_secs() / 10, number % 3)
    }

    /// A name that several callers choose in the same moment.
    pub fn raced(&self) -> (String, MintTime) {
        let moment = self.0.begun.elapsed().as_millis() / 50;
        (format!("raced-{moment}"), MintTime::from_timestamp(self.0.mint))
    }

    /// Counts what a kind of command was answered.
    pub fn count(&self, kind: &str, answer: &str) {
        *self.seen().counts.entry(format!("{kind} {answer}")).or_default() += 1;
    }

    /// Notes what must not be.
    pub fn fault(&self, text: String) {
        let mut seen = self.seen();
        if seen.faults.len() < FAULTS_MAX {
            seen.faults.push(text);
        }
    }

    /// Notes that a caller was told of an execution: never twice for one id.
    pub fn executed(&self, key: &OperationKey) {
        if !self.seen().executed.insert(key.clone()) {
            self.fault(format!("{key:?} was executed twice"));
        }
    }

    /// Remembers an operation for cancels, and the state that its caller was told.
    pub fn told(&self, key: &OperationKey, mint: MintTime, state: OperationState) {
        let mut seen = self.seen();
        if state.is_final() {
            seen.told.insert(key.clone(), state);
        }
        seen.operations.push_back((key.clone(), mint));
        if seen.operations.len() > RECENT_MAX {
            seen.operations.pop_front();
        }
    }

    /// Remembers a delivery for acks.
    pub fn queued(&self, key: DeliveryKey) {
        let mut seen = self.seen();
        let deliveries = seen.deliveries.entry(key.inbox.account.clone()).or_default();
        deliveries.push_back(key);
        if deliveries.len() > RECENT_MAX {
            deliveries.pop_front();
        }
    }

    /// A recent operation.
    pub fn operation(&self, number: u64) -> Option<(OperationKey, MintTime)> {
        let seen = self.seen();
        let count = u64::try_from(seen.operations.len()).expect("a few");
        let place = usize::try_from(number.checked_rem(count)?).expect("a few");
        seen.operations.get(place).cloned()
    }

    /// Recent deliveries of an account, the newest first: at most `limit`.
    pub fn deliveries(&self, account: &Account, limit: usize) -> Vec<DeliveryKey> {
        let seen = self.seen();
        let found = seen.deliveries.get(account);
        found.map_or_else(Vec::new, |all| all.iter().rev().take(limit).cloned().collect())
    }

    /// What was answered how often.
    pub fn figures(&self) -> String {
        let seen = self.seen();
        let lines = seen.counts.iter().map(|(name, count)| format!("{name}: {count}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// What was wrong.
    pub fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.seen().faults)
    }

    /// The final states that callers were told.
    pub fn take_answers(&self) -> BTreeMap<OperationKey, OperationState> {
        std::mem::take(&mut self.seen().told)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
