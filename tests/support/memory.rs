//! A store in memory: the tables of both real stores, and the same `World`, without SQL.
//!
//! After each command it recounts what the rows say and walks the audit chains, so that any
//! sequence of commands is a test of the invariants I4, I13 and I15.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

#[path = "restores.rs"]
mod restores;
#[path = "verified.rs"]
mod verified;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use receiptd::domain::{
    audit::{self, AuditChain, AuditHead, AuditKind, AuditRow},
    command::{Command, Halt, Reply},
    decide::decide,
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::Document,
    epoch::{Life, SEQUENCE_JUMP},
    ids::{Account, Span, Timestamp},
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Arguments, Operation, OperationKey, PayloadKind, Retained},
    policy::Policy,
    record::unpack_events,
    refusal::Refusal,
    world::{
        Attached, Surroundings, World,
        changes::TableChanges,
        needs::{Body, CLOSED_MAX, HELD_MAX, Needs, PURGED_MAX, WAITERS_MAX},
    },
};

/// All tables, and the clock.
#[derive(Debug, Clone)]
pub struct Memory {
    pub now: Timestamp,
    pub policy: Policy,
    pub jitter: u64,
    pub life: Life,
    pub operations: BTreeMap<OperationKey, Operation>,
    pub payloads: BTreeMap<(OperationKey, PayloadKind), Bytes>,
    pub accounts: BTreeMap<Account, AccountRow>,
    pub documents: BTreeMap<TargetKey, Document>,
    pub locks: BTreeMap<TargetKey, Lock>,
    pub inboxes: BTreeMap<InboxKey, Inbox>,
    pub deliveries: BTreeMap<DeliveryKey, Delivery>,
    pub audit: Vec<AuditRow>,
    /// Every row that was ever written, also of chains that are gone.
    pub history: Vec<AuditRow>,
    /// Operations whose last row is gone, as they stood then.
    pub forgotten: BTreeMap<OperationKey, Operation>,
    pub attached: BTreeMap<InboxKey, Attached>,
    /// What others do between two rounds of the next command: the last one first.
    pub others: Vec<Command>,
    /// Rounds that the last command needed beyond the first.
    pub deferrals: usize,
    /// Documents whose content the last command had loaded.
    pub contents: usize,
    /// Deliveries that the last command handed to attached streams.
    pub handed: Vec<Delivery>,
    /// If there, follow-ups are kept here and not run: as when the process ends before them.
    pub follow_ups_kept: Option<Vec<Command>>,
}

impl Memory {
    pub fn new(policy: Policy) -> Self {
        Memory {
            now: Timestamp(1_800_000_000_000_000),
            policy,
            jitter: 7,
            life: Life::first("the first epoch".to_owned(), None),
            operations: BTreeMap::new(),
            payloads: BTreeMap::new(),
            accounts: BTreeMap::new(),
            documents: BTreeMap::new(),
            locks: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            audit: Vec::new(),
            history: Vec::new(),
            forgotten: BTreeMap::new(),
            attached: BTreeMap::new(),
            others: Vec::new(),
            deferrals: 0,
            contents: 0,
            handed: Vec::new(),
            follow_ups_kept: None,
        }
    }

    pub fn advance(&mut self, by: Span) {
        self.now = self.now + by;
    }

    /// Runs one command alone, with its follow-ups, and checks the invariants.
    pub fn run(&mut self, command: &Command) -> Result<Reply, Refusal> {
        let mut replies = self.run_batch(std::slice::from_ref(command));
        replies.remove(0)
    }

    /// Runs commands as one batch; those that miss rows lead the next one.
    pub fn run_batch(&mut self, commands: &[Command]) -> Vec<Result<Reply, Refusal>> {
        self.deferrals = 0;
        self.handed.clear();
        let mut replies: Vec<Option<Result<Reply, Refusal>>> = vec![None; commands.len()];
        let mut needs = Needs::default();
        let mut follow_ups = Vec::new();
        for command in commands {
            command.needs().into_iter().for_each(|need| needs.add(need));
        }
        while replies.iter().any(Option::is_none) {
            let mut world = self.load(&needs);
            let mut missing = Vec::new();
            for (command, reply) in commands.iter().zip(&mut replies) {
                if reply.is_some() || !missing.is_empty() {
                    continue;
                }
                world.begin();
                match decide(&mut world, command) {
                    Ok(good) => *reply = Some(Ok(good)),
                    Err(halt) => {
                        world.undo();
                        match halt {
                            Halt::Refused(refusal) => *reply = Some(Err(*refusal)),
                            Halt::Unloaded(unloaded) => missing = unloaded.0,
                        }
                    }
                }
            }
            follow_ups.extend(world.take_follow_ups());
            self.handed.extend(world.handed().into_iter().map(|(delivery, _)| delivery));
            self.save(world);
            if !missing.is_empty() {
                self.deferrals += 1;
                // A release whose waiter's inbox was deleted takes six.
                assert!(self.deferrals <= 6 * commands.len(), "asks for ever: {missing:?}");
                missing.into_iter().for_each(|need| needs.add(need));
                self.let_others_run();
            }
        }
        let deferrals = self.deferrals;
        let contents = needs.documents.values().filter(|body| **body == Body::Load).count();
        let handed = std::mem::take(&mut self.handed);
        if let Some(kept) = &mut self.follow_ups_kept {
            kept.append(&mut follow_ups);
        }
        for command in follow_ups {
            self.run(&command).expect("a follow-up is never refused");
        }
        self.deferrals = deferrals;
        self.contents = contents;
        self.handed = handed;
        self.check();
        replies.into_iter().map(|reply| reply.expect("the loop ends when all are there")).collect()
    }

    /// Runs one command of the others, without a trace in what is told about this one.
    fn let_others_run(&mut self) {
        let Some(command) = self.others.pop() else { return };
        let others = std::mem::take(&mut self.others);
        let (deferrals, handed) = (self.deferrals, std::mem::take(&mut self.handed));
        self.run(&command).expect("the others are not refused");
        (self.others, self.deferrals, self.handed) = (others, deferrals, handed);
    }

    fn load(&self, needs: &Needs) -> World {
        let mut world = World::new(Surroundings {
            now: self.now,
            policy: self.policy.clone(),
            jitter: self.jitter,
            attached: self.attached.clone(),
            loss: self.life.loss,
        });
        for (key, access) in &needs.operations {
            world.load_operation(key.clone(), *access, self.operations.get(key).cloned());
        }
        for key in &needs.arguments {
            let row = (key.clone(), PayloadKind::Arguments);
            world.load_arguments(key.clone(), self.payloads[&row].clone());
        }
        for (account, access) in &needs.accounts {
            world.load_account(account.clone(), *access, self.accounts.get(account).cloned());
        }
        for (key, body) in &needs.documents {
            let document = self.documents.get(key).cloned().map(|document| match body {
                Body::Load => document,
                Body::Omit => Document { content: None, ..document },
            });
            // As the real stores do: an unlocked document costs no look at the lock table.
            let looks = document.as_ref().is_none_or(|document| document.locked);
            let lock = self.locks.get(key).filter(|_| looks).cloned();
            world.load_document(key.clone(), document, lock);
        }
        for key in &needs.inboxes {
            world.load_inbox(key.clone(), self.inboxes.get(key).cloned());
        }
        for key in &needs.deliveries {
            world.load_delivery(key.clone(), self.deliveries.get(key).cloned());
        }
        self.search(needs, &mut world);
        world
    }

    fn search(&self, needs: &Needs, world: &mut World) {
        for key in &needs.waiters {
            let mut waiters: Vec<&Operation> = self.waiting(key).collect();
            waiters.sort_by_key(|operation| operation.wait_ticket);
            let limit = usize::try_from(WAITERS_MAX).expect("small");
            let keys = waiters.into_iter().take(limit).map(|waiter| waiter.key.clone());
            world.load_waiters(key.clone(), keys.collect());
        }
        for (key, limit) in &needs.deliverable {
            let take = usize::try_from(*limit).expect("small");
            let offered = self.inboxes.get(key).map_or(0, |inbox| inbox.offered);
            let pending = || {
                self.deliveries_of(key).filter(|delivery| delivery.state == DeliveryState::Pending)
            };
            let fresh = pending()
                .filter(|delivery| delivery.is_fresh() && delivery.key.sequence > offered)
                .take(take)
                .cloned()
                .collect();
            let available = |delivery: &&Delivery| {
                self.owns(&delivery.key) && delivery.available_time.is_some_and(|at| at <= self.now)
            };
            let mut returned: Vec<Delivery> = pending().filter(available).cloned().collect();
            // As the real stores do: those that are available for longest.
            returned.sort_by_key(|delivery| delivery.available_time);
            returned.truncate(take);
            returned.sort_by_key(|delivery| delivery.key.sequence);
            world.load_deliverable(key.clone(), *limit, fresh, returned);
        }
        for (key, consumer) in &needs.held {
            let held = self.deliveries_of(key).filter(|delivery| {
                self.owns(&delivery.key)
                    && delivery.state == DeliveryState::InFlight
                    && delivery.consumer.as_ref().is_some_and(|(holder, _)| holder == consumer)
            });
            let held = held.take(usize::try_from(HELD_MAX).expect("small")).cloned().collect();
            world.load_held(key.clone(), consumer.clone(), held);
        }
        let limit = |limit: i64| usize::try_from(limit).expect("small");
        for key in &needs.oldest_open {
            let open = self.deliveries_of(key).filter(|delivery| delivery.state.is_open());
            let open = open.take(limit(CLOSED_MAX)).cloned().collect();
            world.load_oldest_open(key.clone(), open);
        }
        for key in &needs.oldest_kept {
            let kept = self.deliveries_of(key).take(limit(PURGED_MAX)).cloned().collect();
            world.load_oldest_kept(key.clone(), kept);
        }
    }

    fn owns(&self, key: &DeliveryKey) -> bool {
        self.inboxes.get(&key.inbox).is_some_and(|inbox| inbox.owns(key))
    }

    pub fn waiting<'a>(&'a self, key: &'a TargetKey) -> impl Iterator<Item = &'a Operation> {
        self.operations.values().filter(move |operation| {
            operation.wait_ticket.is_some()
                && operation.target == key.target
                && operation.key.account == key.account
        })
    }

    pub fn deliveries_of<'a>(&'a self, key: &'a InboxKey) -> impl Iterator<Item = &'a Delivery> {
        self.deliveries.values().filter(move |delivery| delivery.key.inbox == *key)
    }

    fn save(&mut self, world: World) {
        let changes = world.into_changes();
        for row in &changes.operations.inserts {
            let before = self.forgotten.get(&row.key);
            assert!(
                before.is_none_or(|before| before.mint_time < row.mint_time),
                "an id that was used is never executed again (I18)"
            );
        }
        for row in &changes.operations.deletes {
            self.forgotten.insert(row.key.clone(), row.clone());
        }
        apply(&mut self.operations, changes.operations, |row| row.key.clone());
        for key in &changes.emptied {
            let row = &self.operations[key];
            let nothing = row.arguments == Arguments::Inline(Bytes::new()) && row.labels.is_empty();
            assert!(nothing, "a tombstone holds nothing of the payloads");
            self.payloads.retain(|(owner, _), _| owner != key);
        }
        for row in changes.payloads {
            let before = self.payloads.insert((row.key, row.kind), row.body);
            assert!(before.is_none(), "a payload is written once");
        }
        apply(&mut self.accounts, changes.accounts, |row| row.account.clone());
        let bodies: BTreeMap<TargetKey, Option<Bytes>> = self
            .documents
            .iter()
            .map(|(key, document)| (key.clone(), document.content.clone()))
            .collect();
        apply(&mut self.documents, changes.documents, |row| row.key.clone());
        for (key, document) in &mut self.documents {
            if document.content.is_none() {
                document.content = bodies.get(key).cloned().flatten();
            }
        }
        apply(&mut self.locks, changes.locks, |row| row.key.clone());
        apply(&mut self.inboxes, changes.inboxes, |row| row.key.clone());
        apply(&mut self.deliveries, changes.deliveries, |row| row.key.clone());
        self.history.extend(changes.audit.iter().cloned());
        self.audit.extend(changes.audit);
        self.audit.retain(|row| row.operation().is_none_or(|key| !changes.trails.contains(key)));
    }

    /// Recounts and walks the chains, once by itself and once as `receiptd verify` does.
    pub fn check(&self) {
        assert_eq!(verified::contradictions(self), [], "`verify` finds nothing");
        for inbox in self.inboxes.values() {
            self.check_inbox(inbox);
        }
        for account in self.accounts.values() {
            let own = |row: &&Inbox| row.key.account == account.account && !row.deleted;
            let live = self.inboxes.values().filter(own).count();
            assert_eq!(account.inboxes, i64::try_from(live).expect("small"), "inboxes in use");
            self.check_chain(&AuditChain::Account(account.account.clone()), account.audit);
        }
        for (key, document) in &self.documents {
            assert_eq!(document.locked, self.locks.contains_key(key), "flag of {key:?}");
        }
        for (key, lock) in &self.locks {
            let waiting = i64::try_from(self.waiting(key).count()).expect("small");
            assert_eq!(lock.waiting, waiting, "waiters of {key:?}");
            assert!(lock.holder.is_some() || lock.waiting > 0, "an empty lock row of {key:?}");
            assert!(self.documents.contains_key(key), "a lock that no document row guards");
            let tickets: BTreeSet<_> = self.waiting(key).map(|row| row.wait_ticket).collect();
            assert_eq!(i64::try_from(tickets.len()).expect("small"), waiting, "one ticket each");
            assert!(tickets.iter().flatten().all(|ticket| *ticket < lock.next_ticket));
        }
        for (key, row) in &self.forgotten {
            let floor = self.accounts[&key.account].evidence_floor;
            assert!(row.mint_time.to_timestamp() <= floor, "the floor stands over what is gone");
        }
        for operation in self.operations.values() {
            let target = TargetKey {
                account: operation.key.account.clone(),
                target: operation.target.clone(),
            };
            assert!(operation.wait_ticket.is_none() || self.locks.contains_key(&target));
            assert_eq!(operation.end_time.is_some(), operation.state.is_final());
            self.check_aging(operation);
            if operation.retained != Retained::WithoutTrail {
                self.check_chain(&AuditChain::Operation(operation.key.clone()), operation.audit);
            }
        }
    }

    /// What ages has a time for it, and what is gone is below its account's floor.
    fn check_aging(&self, operation: &Operation) {
        let whole = operation.retained == Retained::Whole;
        assert!(whole || operation.end_time.is_some(), "only what has ended ages");
        assert_eq!(
            operation.end_time.is_some(),
            operation.due_time.is_some_and(|_| operation.state.is_final())
        );
        let open = operation.delivery_key().and_then(|key| self.deliveries.get(&key));
        assert!(whole || open.is_none_or(|row| !row.state.is_open()), "open news holds its record");
    }

    fn check_inbox(&self, inbox: &Inbox) {
        let count_all = |wanted: &dyn Fn(&Delivery) -> bool| {
            i64::try_from(self.deliveries_of(&inbox.key).filter(|row| wanted(row)).count())
                .expect("small")
        };
        let count = |wanted: &dyn Fn(&Delivery) -> bool| {
            count_all(&|row| inbox.owns(&row.key) && wanted(row))
        };
        let is_left = |row: &Delivery| !inbox.owns(&row.key) && row.state.is_open();
        assert_eq!(inbox.closing, count_all(&is_left), "open in deleted generations");
        if inbox.deleted {
            assert!(inbox.consumers.is_empty() && inbox.first_sequence == inbox.next_sequence);
        }
        assert_eq!(inbox.pending, count(&|row| row.state == DeliveryState::Pending));
        assert_eq!(inbox.in_flight, count(&|row| row.state == DeliveryState::InFlight));
        assert_eq!(inbox.returned, count(&|row| row.available_time.is_some()));
        let lost = inbox.expired_total + inbox.dead_total;
        let redriven = self.count_events(inbox, AuditKind::Redriven);
        // Marks pass over whole jumps of numbers, which nobody ever had.
        let purged = (inbox.kept_from - inbox.first_sequence).max(0) % SEQUENCE_JUMP;
        let ended = count(&|row| !row.state.is_open());
        assert_eq!(inbox.acked_total + lost, ended + purged + redriven, "totals are histories");
        assert_eq!(inbox.expired_total, self.count_events(inbox, AuditKind::Expired));
        assert_eq!(inbox.dead_total, self.count_events(inbox, AuditKind::Dead));
        let acked = count(&|row| row.state == DeliveryState::Acked);
        assert!(inbox.acked_total >= acked && (purged > 0 || inbox.acked_total == acked));
        let kept: Vec<i64> = self.deliveries_of(&inbox.key).map(|row| row.key.sequence).collect();
        let rows = i64::try_from(kept.len()).expect("small");
        let absent = inbox.next_sequence - inbox.kept_from - rows;
        assert_eq!(
            absent % SEQUENCE_JUMP,
            0,
            "numbers without gaps, from the first that is kept on"
        );
        let kept_ones = inbox.kept_from..inbox.next_sequence;
        assert!(kept.iter().all(|number| kept_ones.contains(number)));
        let reserved = self.operations.values().filter(|operation| {
            operation.inbox.as_ref() == Some(&inbox.key.inbox)
                && operation.key.account == inbox.key.account
                && operation.outcome_version == 0
        });
        assert_eq!(inbox.reserved, i64::try_from(reserved.count()).expect("small"), "reserved");
        for consumer in &inbox.consumers {
            let holder = Some((consumer.id.clone(), consumer.epoch));
            assert_eq!(consumer.in_flight, count(&|row| row.consumer == holder), "credit");
            assert!(consumer.in_flight <= consumer.window);
        }
        for row in self.deliveries_of(&inbox.key) {
            assert_eq!(row.due_time.is_some(), row.state.is_open());
            assert_eq!(row.consumer.is_some(), row.state == DeliveryState::InFlight);
            assert!(row.attempts_spent() <= self.policy.retry_budget);
            let after_cursor = row.key.sequence > inbox.offered;
            assert!(
                !row.is_fresh()
                    || !inbox.owns(&row.key)
                    || after_cursor
                    || row.expire_time <= self.now
            );
        }
    }

    /// How often something of a kind stands in the trails of an inbox's operations.
    fn count_events(&self, inbox: &Inbox, kind: AuditKind) -> i64 {
        let into = |row: &&AuditRow| {
            let Some(key) = row.operation() else { return false };
            let known = self.operations.get(key).or_else(|| self.forgotten.get(key));
            known.is_some_and(|row| row.inbox.as_ref() == Some(&inbox.key.inbox))
                && key.account == inbox.key.account
        };
        let events = self
            .history
            .iter()
            .filter(into)
            .flat_map(|row| unpack_events(&row.events).expect("packed by this release"))
            // What deleted generations left counts in no figure.
            .filter(|event| event.sequence >= inbox.first_sequence && event.kind == kind);
        i64::try_from(events.count()).expect("small")
    }

    fn check_chain(&self, chain: &AuditChain, head: AuditHead) {
        let mut hash = [0; 32];
        let mut length = 0;
        for row in self.audit.iter().filter(|row| row.chain == *chain) {
            length += 1;
            assert_eq!(row.number, length);
            hash = audit::row_hash(&hash, row.number, row.time, &row.subject, &row.events);
            assert_eq!(hash, row.hash);
        }
        assert_eq!((head.length, head.hash), (length, hash));
    }
}

/// Applies one table's changes; a broken precondition is a fault of the world.
fn apply<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    table: &mut BTreeMap<K, V>,
    changes: TableChanges<V>,
    key: impl Fn(&V) -> K,
) {
    for row in changes.inserts {
        let place = key(&row);
        assert!(table.insert(place, row).is_none(), "an insert of a row that exists");
    }
    for update in changes.updates {
        assert!(table.insert(key(&update.after), update.after).is_some(), "an absent row");
    }
    for row in changes.deletes {
        assert!(table.remove(&key(&row)).is_some(), "an absent row goes");
    }
}
