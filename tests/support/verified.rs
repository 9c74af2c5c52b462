//! The check of a store, over tables in memory: what it says of them must be nothing, whatever was
//! done.

use receiptd::domain::{
    audit::AuditChain,
    delivery::DeliveryState,
    ids::{Account, ConsumerId, Timestamp},
    operation::{Operation, PayloadKind, Retained},
    verify::{
        Contradiction,
        chain::Followed,
        effects::{Effects, Owned},
        rows::{
            AccountFacts, DeliveryFacts, DocumentFacts, InboxFacts, LockFacts, OperationFacts,
            PayloadFacts,
        },
        story::Story,
    },
};

use super::Memory;

/// Everything that contradicts.
pub fn contradictions(memory: &Memory) -> Vec<Contradiction> {
    let mut told: Vec<Contradiction> = Vec::new();
    for operation in memory.operations.values() {
        told.extend(of_operation(memory, operation));
    }
    for delivery in memory.deliveries.values() {
        let operation = memory.operations.get(&delivery.operation_key()).cloned();
        let floor = floor_of(memory, &delivery.key.inbox.account);
        told.extend(DeliveryFacts { delivery: delivery.clone(), operation }.check(floor));
    }
    told.extend(of_inboxes(memory));
    told.extend(of_targets(memory));
    for ((key, kind), body) in &memory.payloads {
        let operation = memory.operations.get(key).cloned();
        let facts = PayloadFacts { key: key.clone(), kind: *kind, body: body.clone(), operation };
        told.extend(facts.check());
    }
    for (account, row) in &memory.accounts {
        let live = memory.inboxes.values().filter(|inbox| !inbox.deleted);
        let live = live.filter(|inbox| inbox.key.account == *account).count();
        let inboxes = i64::try_from(live).expect("small");
        let facts =
            AccountFacts { account: account.clone(), row: Some(row.clone()), inboxes, used: true };
        told.extend(facts.check());
        let mut effects = Effects::default();
        let own = memory.documents.values().filter(|row| row.key.account == *account);
        for document in own {
            let owned = Owned { revision: document.revision, spans: Vec::new() };
            effects.expect(document.key.target.clone(), owned);
        }
        let own = memory.operations.values().filter(|row| row.key.account == *account);
        told.extend(own.filter_map(|row| effects.receipt(row)));
        told.extend(effects.missing(account, row.evidence_floor));
    }
    told
}

fn floor_of(memory: &Memory, account: &Account) -> Timestamp {
    memory.accounts.get(account).map_or(Timestamp::BEGINNING, |row| row.evidence_floor)
}

fn of_operation(memory: &Memory, operation: &Operation) -> Vec<Contradiction> {
    let chain = AuditChain::Operation(operation.key.clone());
    let audit: Vec<_> = memory.audit.iter().filter(|row| row.chain == chain).cloned().collect();
    let (mut followed, mut story) = (Followed::default(), Story::default());
    // Nothing is left to follow from, once the trail has gone.
    let whole = operation.retained != Retained::WithoutTrail;
    for row in audit.iter().filter(|_| whole) {
        followed.take(row).expect("a chain that holds");
        story.take(row).unwrap_or_else(|wrong| panic!("{:?}: {wrong:?}", operation.key));
    }
    let delivery = operation.delivery_key().and_then(|key| memory.deliveries.get(&key).cloned());
    let mut told = Vec::new();
    if whole {
        told.extend(followed.end(&chain, operation.audit));
        told.extend(story.operation(operation));
        told.extend(delivery.as_ref().and_then(|row| story.delivery(operation, row)));
    }
    let inbox = operation.inbox_key().and_then(|key| memory.inboxes.get(&key));
    let target = operation.target_key();
    let kinds = [PayloadKind::Arguments, PayloadKind::Result].into_iter();
    let kept = |kind: &PayloadKind| memory.payloads.contains_key(&(operation.key.clone(), *kind));
    let facts = OperationFacts {
        operation: operation.clone(),
        audit,
        delivery,
        kept_from: inbox.map(|inbox| inbox.kept_from),
        document: memory.documents.get(&target).cloned(),
        lock: memory.locks.get(&target).cloned(),
        payloads: kinds.filter(kept).collect(),
    };
    told.extend(facts.check());
    told
}

fn of_inboxes(memory: &Memory) -> Vec<Contradiction> {
    let told = memory.inboxes.values().filter_map(|inbox| {
        let rows: Vec<_> = memory.deliveries_of(&inbox.key).collect();
        let count = |state: DeliveryState, owned: bool| {
            let rows = rows.iter().filter(|row| row.state == state);
            let rows = rows.filter(|row| inbox.owns(&row.key) == owned);
            i64::try_from(rows.count()).expect("small")
        };
        let (pending, in_flight) = (DeliveryState::Pending, DeliveryState::InFlight);
        let returned = rows.iter().filter(|row| {
            row.state == pending && row.available_time.is_some() && inbox.owns(&row.key)
        });
        let reserved = memory
            .operations
            .values()
            .filter(|row| row.end_time.is_none() && row.inbox_key().as_ref() == Some(&inbox.key));
        let mut held: Vec<(ConsumerId, i64, i64)> = Vec::new();
        for row in rows.iter().filter(|row| row.state == in_flight && inbox.owns(&row.key)) {
            let (id, epoch) = row.consumer.clone().expect("a consumer");
            match held.iter_mut().find(|held| held.0 == id && held.1 == epoch) {
                Some(found) => found.2 += 1,
                None => held.push((id, epoch, 1)),
            }
        }
        let facts = InboxFacts {
            inbox: inbox.clone(),
            pending: count(pending, true),
            returned: i64::try_from(returned.count()).expect("small"),
            in_flight: count(in_flight, true),
            closing: count(pending, false) + count(in_flight, false),
            reserved: i64::try_from(reserved.count()).expect("small"),
            held,
            last: rows.last().map_or(0, |row| row.key.sequence),
        };
        facts.check()
    });
    told.collect()
}

fn of_targets(memory: &Memory) -> Vec<Contradiction> {
    let mut told = Vec::new();
    for (key, lock) in &memory.locks {
        let holder = lock.holder.as_ref().and_then(|holder| {
            let id = &holder.operation_id;
            memory
                .operations
                .values()
                .find(|row| row.key.account == key.account && row.key.id == *id)
        });
        let delivery = holder.and_then(Operation::delivery_key);
        let facts = LockFacts {
            lock: lock.clone(),
            holder: holder.cloned(),
            delivery: delivery.and_then(|key| memory.deliveries.get(&key).cloned()),
            waiting: i64::try_from(memory.waiting(key).count()).expect("small"),
            document: memory.documents.contains_key(key),
        };
        told.extend(facts.check());
    }
    for (key, document) in &memory.documents {
        let has_lock = memory.locks.contains_key(key);
        told.extend(DocumentFacts { document: document.clone(), has_lock }.check());
    }
    told
}
