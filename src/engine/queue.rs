//! The fair queue of a lane: who waits, in which order, and what makes up the next batch.
//!
//! What must stay true: commands of one account leave in the order in which they came, unless
//! another transaction holds the id of one; then only commands on that id wait for it. No account
//! takes more than half of a batch while others wait, and accounts take turns. Everything is
//! bounded.
//!
//! Deliberately not here: locks, waiting and time. The lane has them.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    domain::{
        command::{Command, Reply},
        ids::Account,
        operation::OperationKey,
        refusal::Refusal,
        world::needs::Need,
    },
    telemetry,
};

/// Commands that wait in one lane at most: a hundred full batches, about a second of work. Who
/// comes later would wait longer than a caller's patience.
pub(super) const LANE_COMMANDS_MAX: usize = 20_000;
/// Commands of one account that wait at most: a quarter of its lane, so that one account alone
/// cannot have the others refused.
pub(super) const ACCOUNT_COMMANDS_MAX: usize = 5_000;
/// Bytes that wait in one lane at most: sixteen batches of the largest kind. Without it a full
/// queue of large submits would be gigabytes.
pub(super) const LANE_BYTES_MAX: usize = 16 * BATCH_BYTES_MAX;
/// Commands of one batch at most: beyond that only latency grows.
pub(super) const BATCH_COMMANDS_MAX: usize = 200;
/// Commands of one account in a batch while others wait: half.
pub(super) const BATCH_SHARE_MAX: usize = BATCH_COMMANDS_MAX / 2;
/// Bytes of one batch at most, unless a single command is larger: beyond that only latency grows.
pub(super) const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Commands of one batch that try a held id again: a quarter, so that many held ids cannot crowd
/// out commands that nothing holds back.
pub(super) const BATCH_HELD_MAX: usize = BATCH_COMMANDS_MAX / 4;

/// How a command ended.
pub(super) type Answer = Result<Reply, Refusal>;

/// A command on its way, with the caller who waits for the answer.
pub(super) struct Queued {
    /// The command; shared, because a batch that is run again decides it again.
    pub(super) command: Arc<Command>,
    /// Rows that earlier decisions missed.
    pub(super) found: BTreeSet<Need>,
    /// How often it was put off for missing rows.
    pub(super) deferrals: u32,
    /// Since when its id was seen in another transaction's hands.
    pub(super) held_since: Option<Instant>,
    answer: oneshot::Sender<Answer>,
}

impl Queued {
    /// A new command, and where its answer arrives.
    pub(super) fn new(command: Command) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        let command = Arc::new(command);
        let found = BTreeSet::new();
        let queued = Queued { command, found, deferrals: 0, held_since: None, answer };
        (queued, receiver)
    }

    /// Answers the caller; it may be gone, and the command has run all the same.
    pub(super) fn answer(self, answer: Answer) {
        telemetry::replied(answer.as_ref().map_or_else(Refusal::reason, |_| "OK"));
        drop(self.answer.send(answer));
    }
}

/// The id that a command is about, for the order behind a held id. A sweep of a delivery is about
/// the delivery, and looks again under the locks.
pub(super) fn identity(command: &Command) -> Option<&OperationKey> {
    match command {
        Command::Submit(submit) => Some(&submit.key),
        Command::Cancel { key, .. }
        | Command::Probe { key, .. }
        | Command::SweepOperation { key }
        | Command::FoldReplays { key, .. } => Some(key),
        Command::Erase(erasure) => Some(&erasure.key),
        Command::Ack { .. }
        | Command::Extend { .. }
        | Command::Defer { .. }
        | Command::Redrive { .. }
        | Command::Pull { .. }
        | Command::Open { .. }
        | Command::Reopen { .. }
        | Command::Offer { .. }
        | Command::Close { .. }
        | Command::UpdateInbox { .. }
        | Command::DeleteInbox { .. }
        | Command::UpdatePolicy(_)
        | Command::RaiseFloor(_)
        | Command::ReleaseLock { .. }
        | Command::SweepDelivery { .. }
        | Command::SweepLock { .. }
        | Command::SweepInbox { .. }
        | Command::SweepAccount { .. } => None,
    }
}

/// Why a queue does not take a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The lane ends.
    Closed,
    /// Too much waits already.
    Full,
}

/// What the next batch could be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Commands that nothing holds back.
    Ready,
    /// Only commands whose id another transaction holds.
    HeldOnly,
    /// Nothing.
    Nothing,
}

/// The commands of one account.
#[derive(Default)]
struct Line {
    ready: VecDeque<Queued>,
    /// How many more of them wait for a held id.
    held: usize,
}

/// See the module's comment.
#[derive(Default)]
pub(super) struct FairQueue {
    accounts: HashMap<Account, Line>,
    /// Accounts with ready commands, each once, in the order of their turns.
    turns: VecDeque<Account>,
    /// Commands that wait for a held id, in order.
    held: HashMap<OperationKey, VecDeque<Queued>>,
    /// The held ids, each once, in the order of their next try.
    held_turns: VecDeque<OperationKey>,
    commands: usize,
    bytes: usize,
    closed: bool,
}

/// A batch while it is filled.
#[derive(Default)]
struct Filling {
    commands: Vec<Queued>,
    bytes: usize,
    shares: HashMap<Account, usize>,
}

impl Filling {
    fn share(&self, account: &Account) -> usize {
        self.shares.get(account).copied().unwrap_or(0)
    }

    /// A command that is larger than a batch goes alone.
    fn fits(&self, queued: &Queued) -> bool {
        self.commands.is_empty() || self.bytes + queued.command.weight() <= BATCH_BYTES_MAX
    }

    fn push(&mut self, queued: Queued) {
        self.bytes += queued.command.weight();
        *self.shares.entry(queued.command.account().clone()).or_insert(0) += 1;
        self.commands.push(queued);
    }
}

impl FairQueue {
    /// Adds a command at the end of its account's line.
    pub(super) fn push(&mut self, queued: Queued) -> Result<(), NotTaken> {
        if self.closed {
            return Err(NotTaken::Closed);
        }
        let account = queued.command.account();
        let line = self.accounts.get(account);
        let waiting = line.map_or(0, |line| line.ready.len() + line.held);
        let bytes = self.bytes + queued.command.weight();
        if self.commands >= LANE_COMMANDS_MAX
            || waiting >= ACCOUNT_COMMANDS_MAX
            || (self.commands > 0 && bytes > LANE_BYTES_MAX)
        {
            return Err(NotTaken::Full);
        }
        let account = account.clone();
        self.arrived(&queued);
        let line = self.accounts.entry(account.clone()).or_default();
        line.ready.push_back(queued);
        if line.ready.len() == 1 {
            self.turns.push_back(account);
        }
        Ok(())
    }

    /// Refuses everything from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether it was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// What the next batch could be made of.
    pub(super) fn waiting(&self) -> Waiting {
        match (self.turns.is_empty(), self.held_turns.is_empty()) {
            (false, _) => Waiting::Ready,
            (true, false) => Waiting::HeldOnly,
            (true, true) => Waiting::Nothing,
        }
    }

    /// Takes the next batch, in order: first some of those that wait for a held id, then everyone
    /// else by turns, at most so many of them.
    pub(super) fn take(&mut self, most: usize) -> Vec<Queued> {
        let mut batch = Filling::default();
        let half = BATCH_SHARE_MAX.min(most.div_ceil(2));
        let share = if self.turns.len() > 1 { half } else { BATCH_COMMANDS_MAX };
        self.take_held(&mut batch);
        let length = batch.commands.len().saturating_add(most).min(BATCH_COMMANDS_MAX);
        self.take_ready(&mut batch, length, share);
        for queued in &batch.commands {
            self.commands -= 1;
            self.bytes -= queued.command.weight();
        }
        telemetry::queue_shrank(batch.commands.len());
        batch.commands
    }

    /// Puts commands back at the front of their accounts' lines; they lead the next batch. Given
    /// in order, they stay in order.
    pub(super) fn put_back(&mut self, commands: Vec<Queued>) {
        let mut leading: Vec<Account> = Vec::new();
        let mut seen = HashSet::new();
        for queued in commands.into_iter().rev() {
            self.arrived(&queued);
            if identity(&queued.command).is_some_and(|key| self.held.contains_key(key)) {
                self.hold(queued, VecDeque::push_front);
                continue;
            }
            let account = queued.command.account().clone();
            self.accounts.entry(account.clone()).or_default().ready.push_front(queued);
            leading.retain(|other| *other != account);
            leading.push(account.clone());
            seen.insert(account);
        }
        self.turns.retain(|account| !seen.contains(account));
        for account in leading {
            self.turns.push_front(account);
        }
    }

    /// Puts commands back, each at the front of those that wait for its id. Given in order, they
    /// stay in order: whatever waits for the same id already came later.
    pub(super) fn put_back_held(&mut self, commands: Vec<Queued>) {
        // The ids take their turns in the same order.
        for queued in &commands {
            self.held_line(identity(&queued.command));
        }
        for queued in commands.into_iter().rev() {
            self.arrived(&queued);
            self.hold(queued, VecDeque::push_front);
        }
    }

    /// Empties the queue: whoever waits learns that nobody will answer.
    pub(super) fn abandon(&mut self) {
        telemetry::queue_shrank(self.commands);
        *self = FairQueue { closed: true, ..FairQueue::default() };
    }

    fn arrived(&mut self, queued: &Queued) {
        self.commands += 1;
        self.bytes += queued.command.weight();
        telemetry::queue_grew(1);
    }

    fn hold(&mut self, queued: Queued, place: fn(&mut VecDeque<Queued>, Queued)) {
        self.accounts.entry(queued.command.account().clone()).or_default().held += 1;
        let command = queued.command.clone();
        place(self.held_line(identity(&command)), queued);
    }

    /// Those that wait for an id; a new id has its turn after the others.
    fn held_line(&mut self, key: Option<&OperationKey>) -> &mut VecDeque<Queued> {
        let key = key.expect("only a command about an id waits for one");
        self.held.entry(key.clone()).or_insert_with(|| {
            self.held_turns.push_back(key.clone());
            VecDeque::new()
        })
    }

    fn take_held(&mut self, batch: &mut Filling) {
        for _ in 0..self.held_turns.len() {
            let Some(key) = self.held_turns.pop_front() else { return };
            let Some(line) = self.held.get_mut(&key) else { continue };
            let mut taken = 0;
            while batch.commands.len() < BATCH_HELD_MAX
                && line.front().is_some_and(|queued| batch.fits(queued))
                && let Some(queued) = line.pop_front()
            {
                batch.push(queued);
                taken += 1;
            }
            if line.is_empty() {
                self.held.remove(&key);
            } else {
                self.held_turns.push_back(key.clone());
            }
            if let Some(line) = self.accounts.get_mut(&key.account) {
                line.held -= taken;
            }
            self.forget_if_empty(&key.account);
            if batch.commands.len() >= BATCH_HELD_MAX {
                return;
            }
        }
    }

    fn take_ready(&mut self, batch: &mut Filling, length: usize, share: usize) {
        let mut served = VecDeque::new();
        while batch.commands.len() < length {
            let Some(account) = self.turns.pop_front() else { break };
            if batch.share(&account) >= share {
                served.push_back(account);
                continue;
            }
            let Some(line) = self.accounts.get_mut(&account) else { continue };
            let Some(queued) = line.ready.pop_front() else { continue };
            let follows = identity(&queued.command).is_some_and(|key| self.held.contains_key(key));
            if !follows && !batch.fits(&queued) {
                // It keeps its turn, and leads the next batch.
                line.ready.push_front(queued);
                self.turns.push_front(account);
                break;
            }
            let more = !line.ready.is_empty();
            match (follows, more) {
                // It had its turn only if it takes a place in the batch.
                (true, true) => self.turns.push_front(account.clone()),
                (false, true) => self.turns.push_back(account.clone()),
                (_, false) => {}
            }
            match follows {
                true => self.hold(queued, VecDeque::push_back),
                false => batch.push(queued),
            }
            self.forget_if_empty(&account);
        }
        self.turns.append(&mut served);
    }

    fn forget_if_empty(&mut self, account: &Account) {
        if self.accounts.get(account).is_some_and(|line| line.ready.is_empty() && line.held == 0) {
            self.accounts.remove(account);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::scripted::{cancel, heavy_submit, submit},
        *,
    };

    fn push(queue: &mut FairQueue, command: Command) {
        queue.push(Queued::new(command).0).expect("taken");
    }

    fn push_many(queue: &mut FairQueue, account: &str, count: usize) {
        for number in 0..count {
            push(queue, submit(account, &format!("{account}{number}")));
        }
    }

    fn ids(batch: &[Queued]) -> Vec<String> {
        let id = |queued: &Queued| identity(&queued.command).map(|key| key.id.to_string());
        batch.iter().filter_map(id).collect()
    }

    #[test]
    fn another_account_is_in_the_next_batch_and_nobody_has_more_than_half() {
        let mut queue = FairQueue::default();
        push_many(&mut queue, "a", 1_000);
        push_many(&mut queue, "b", 1);
        let batch = ids(&queue.take(BATCH_COMMANDS_MAX));
        assert_eq!(batch.len(), BATCH_SHARE_MAX + 1);
        assert!(batch.contains(&"b0".to_owned()));
        let mine: Vec<&String> = batch.iter().filter(|id| id.starts_with('a')).collect();
        let expected: Vec<String> = (0..BATCH_SHARE_MAX).map(|id| format!("a{id}")).collect();
        assert_eq!(mine, expected.iter().collect::<Vec<_>>(), "in order");
        assert_eq!(queue.take(BATCH_COMMANDS_MAX).len(), BATCH_COMMANDS_MAX, "alone it takes all");
    }

    #[test]
    fn a_short_batch_is_shared_too_and_held_ids_take_no_place_in_it() {
        let mut queue = FairQueue::default();
        push_many(&mut queue, "h", 2);
        let held = queue.take(BATCH_COMMANDS_MAX);
        queue.put_back_held(held);
        push_many(&mut queue, "a", 5);
        push_many(&mut queue, "b", 5);
        assert_eq!(ids(&queue.take(4)), ["h0", "h1", "a0", "b0", "a1", "b1"]);
        assert_eq!(ids(&queue.take(1)), ["a2"]);
        assert_eq!(ids(&queue.take(1)), ["b2"]);
    }

    #[test]
    fn accounts_take_turns() {
        let mut queue = FairQueue::default();
        for account in ["a", "b", "c"] {
            push_many(&mut queue, account, 2);
        }
        assert_eq!(ids(&queue.take(BATCH_COMMANDS_MAX)), ["a0", "b0", "c0", "a1", "b1", "c1"]);
        assert_eq!(queue.waiting(), Waiting::Nothing);
        assert_eq!((queue.commands, queue.bytes, queue.accounts.len()), (0, 0, 0));
    }

    #[test]
    fn a_batch_has_a_weight_and_a_larger_command_goes_alone() {
        let mut queue = FairQueue::default();
        push(&mut queue, heavy_submit("a", "1", BATCH_BYTES_MAX / 2));
        push(&mut queue, heavy_submit("a", "2", BATCH_BYTES_MAX / 2));
        push(&mut queue, heavy_submit("a", "3", 2 * BATCH_BYTES_MAX));
        push(&mut queue, submit("a", "4"));
        let batches: Vec<_> = (0..4).map(|_| ids(&queue.take(BATCH_COMMANDS_MAX))).collect();
        assert_eq!(batches, [["1"], ["2"], ["3"], ["4"]]);
    }

    #[test]
    fn an_account_and_a_lane_have_bounds() {
        let mut queue = FairQueue::default();
        push_many(&mut queue, "a", ACCOUNT_COMMANDS_MAX);
        let refused = |queue: &mut FairQueue, command| queue.push(Queued::new(command).0).err();
        assert_eq!(refused(&mut queue, submit("a", "x")), Some(NotTaken::Full));
        for account in ["b", "c", "d"] {
            push_many(&mut queue, account, ACCOUNT_COMMANDS_MAX);
        }
        assert_eq!(queue.commands, LANE_COMMANDS_MAX);
        assert_eq!(refused(&mut queue, submit("e", "x")), Some(NotTaken::Full));
        queue.take(BATCH_COMMANDS_MAX);
        assert_eq!(refused(&mut queue, submit("e", "x")), None);
        queue.close();
        assert_eq!(refused(&mut queue, submit("e", "y")), Some(NotTaken::Closed));
        let mut queue = FairQueue::default();
        push(&mut queue, heavy_submit("a", "1", LANE_BYTES_MAX - 4_096));
        assert_eq!(refused(&mut queue, heavy_submit("b", "2", 8_192)), Some(NotTaken::Full));
    }

    #[test]
    fn what_is_put_back_leads_in_order() {
        let mut queue = FairQueue::default();
        push_many(&mut queue, "a", 3);
        push_many(&mut queue, "b", 3);
        let batch = queue.take(BATCH_COMMANDS_MAX);
        push_many(&mut queue, "c", 1);
        push(&mut queue, submit("a", "a3"));
        queue.put_back(batch);
        let expected = ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3"];
        assert_eq!(ids(&queue.take(BATCH_COMMANDS_MAX)), expected);
        assert_eq!((queue.commands, queue.bytes, queue.accounts.len()), (0, 0, 0));
    }

    #[test]
    fn many_held_ids_leave_room_and_their_followers_stay_behind_them() {
        let mut queue = FairQueue::default();
        push_many(&mut queue, "a", BATCH_COMMANDS_MAX);
        let batch = queue.take(BATCH_COMMANDS_MAX);
        queue.put_back_held(batch);
        assert_eq!(queue.waiting(), Waiting::HeldOnly);
        push(&mut queue, cancel("a", "a199"));
        push(&mut queue, submit("a", "free"));
        let batch = ids(&queue.take(BATCH_COMMANDS_MAX));
        assert_eq!(batch.len(), BATCH_HELD_MAX + 1);
        assert_eq!((batch[0].as_str(), batch[50].as_str()), ("a0", "free"));
        queue.take(BATCH_COMMANDS_MAX);
        queue.take(BATCH_COMMANDS_MAX);
        let batch = ids(&queue.take(BATCH_COMMANDS_MAX));
        assert_eq!((batch.len(), batch[49].as_str()), (BATCH_HELD_MAX, "a199"));
        assert_eq!(ids(&queue.take(BATCH_COMMANDS_MAX)), ["a199"], "the cancel, behind its id");
        assert_eq!(queue.waiting(), Waiting::Nothing);
        assert_eq!((queue.commands, queue.bytes, queue.accounts.len()), (0, 0, 0));
    }
}
