//! What the bounded searches found, joined with what this batch has changed since.
//!
//! What must stay true: a search was made under the lock that it relies on, so that it and the
//! changes of this batch together are the whole truth; a search that hit its limit says so, and
//! nothing behind its end is answered.

use super::{
    World,
    needs::{Need, PURGED_MAX, Unloaded, WAITERS_MAX, unloaded},
};
use crate::domain::{
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    ids::ConsumerId,
    inbox::Inbox,
    lock::TargetKey,
    operation::{Operation, OperationKey},
};

/// What one search returned.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// The search returned everything there is.
    complete: bool,
    /// The highest number that it looked at.
    last: i64,
}

impl World {
    /// Loads the keys of the next waiters of a target, by ticket.
    pub fn load_waiters(&mut self, key: TargetKey, waiters: Vec<OperationKey>) {
        self.waiters.insert(key, waiters);
    }

    /// Loads what an inbox can send: fresh rows after its cursor by number, and returned or
    /// redriven ones that are available, by number. `limit` is the limit of the search.
    pub fn load_deliverable(
        &mut self,
        key: InboxKey,
        limit: i64,
        fresh: Vec<Delivery>,
        returned: Vec<Delivery>,
    ) {
        let complete = i64::try_from(fresh.len()).unwrap_or(i64::MAX) < limit;
        let last = fresh.last().map_or(0, |delivery| delivery.key.sequence);
        self.fresh.insert(key, Found { complete, last });
        for delivery in fresh.into_iter().chain(returned) {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Loads what a consumer holds, by number.
    pub fn load_held(&mut self, key: InboxKey, consumer: ConsumerId, held: Vec<Delivery>) {
        self.held.insert((key, consumer));
        for delivery in held {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Loads the oldest open deliveries of an inbox, by number.
    pub fn load_oldest_open(&mut self, key: InboxKey, open: Vec<Delivery>) {
        self.oldest_open.insert(key);
        for delivery in open {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Loads the oldest kept deliveries of an inbox, by number.
    pub fn load_oldest_kept(&mut self, key: InboxKey, kept: Vec<Delivery>) {
        let complete = i64::try_from(kept.len()).unwrap_or(i64::MAX) < PURGED_MAX;
        let last = kept.last().map_or(0, |delivery| delivery.key.sequence);
        self.oldest_kept.insert(key, Found { complete, last });
        for delivery in kept {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// The operations that wait for a target, by ticket: those that the search found and those
    /// that this batch added. Their rows may not be loaded yet.
    pub fn waiters(&self, key: &TargetKey) -> Result<Vec<OperationKey>, Unloaded> {
        let found = self.waiters.get(key).ok_or_else(|| unloaded(Need::Waiters(key.clone())))?;
        let mut waiters: Vec<OperationKey> = found
            .iter()
            .filter(|waiter| match self.operations.get(waiter) {
                Some(Some(operation)) => operation.wait_ticket.is_some(),
                // Not loaded: the search, made under the lock, is the truth.
                _ => true,
            })
            .cloned()
            .collect();
        let mut added: Vec<&Operation> = self
            .operations
            .rows
            .values()
            .filter(|row| row.loaded.is_none())
            .filter_map(|row| row.current.as_ref())
            .filter(|operation| {
                operation.wait_ticket.is_some()
                    && operation.target == key.target
                    && operation.key.account == key.account
            })
            .collect();
        added.sort_by_key(|operation| operation.wait_ticket);
        // A search that hit its limit may have left out waiters older than those of this batch.
        if i64::try_from(found.len()).unwrap_or(i64::MAX) < WAITERS_MAX {
            waiters.extend(added.into_iter().map(|operation| operation.key.clone()));
        }
        Ok(waiters)
    }

    /// What an inbox can send now: returned deliveries that are available, then fresh ones, each
    /// by number; and the highest number up to which nothing fresh remains.
    pub fn deliverable(&self, key: &InboxKey) -> Result<(Vec<DeliveryKey>, i64), Unloaded> {
        let search = self.fresh.get(key);
        let missing = || unloaded(Need::Deliverable(key.clone(), 1));
        let search = search.ok_or_else(missing)?;
        let inbox = self.inbox(key)?;
        let offered = inbox.map_or(0, |inbox| inbox.offered);
        let end = match search {
            Found { complete: true, .. } => inbox.map_or(0, Inbox::last_sequence),
            Found { complete: false, last } => *last,
        };
        let now = self.now();
        let pending: Vec<&Delivery> = self
            .deliveries_of(key)
            .filter(|delivery| delivery.state == DeliveryState::Pending)
            .collect();
        let returned = pending
            .iter()
            .filter(|delivery| delivery.available_time.is_some_and(|available| available <= now));
        let fresh = pending.iter().filter(|delivery| {
            let sequence = delivery.key.sequence;
            delivery.is_fresh() && sequence > offered && sequence <= end
        });
        // What a deleted generation left behind is nobody's any more.
        let own = |delivery: &&&Delivery| inbox.is_some_and(|inbox| inbox.owns(&delivery.key));
        let returned = returned.filter(own);
        let keys = returned.chain(fresh).map(|delivery| delivery.key.clone()).collect();
        Ok((keys, end))
    }

    /// What a consumer holds in an inbox, whatever stream of it, by number.
    pub fn held(
        &self,
        key: &InboxKey,
        consumer: &ConsumerId,
    ) -> Result<Vec<DeliveryKey>, Unloaded> {
        if !self.held.contains(&(key.clone(), consumer.clone())) {
            return Err(unloaded(Need::Held(key.clone(), consumer.clone())));
        }
        let held = self.deliveries_of(key).filter(|delivery| {
            delivery.consumer.as_ref().is_some_and(|(holder, _)| holder == consumer)
        });
        Ok(held.map(|delivery| delivery.key.clone()).collect())
    }

    /// Deliveries of an inbox that have not ended, by number: the oldest, and those of this batch.
    pub fn oldest_open(&self, key: &InboxKey) -> Result<Vec<DeliveryKey>, Unloaded> {
        if !self.oldest_open.contains(key) {
            return Err(unloaded(Need::OldestOpen(key.clone())));
        }
        let open = self.deliveries_of(key).filter(|delivery| delivery.state.is_open());
        Ok(open.map(|delivery| delivery.key.clone()).collect())
    }

    /// The oldest deliveries of an inbox whose rows are kept, by number, without a gap.
    pub fn oldest_kept(&self, key: &InboxKey) -> Result<Vec<Delivery>, Unloaded> {
        let missing = || unloaded(Need::OldestKept(key.clone()));
        let found = self.oldest_kept.get(key).ok_or_else(missing)?;
        let end = if found.complete { i64::MAX } else { found.last };
        let kept = self.deliveries_of(key).filter(|delivery| delivery.key.sequence <= end);
        Ok(kept.cloned().collect())
    }

    fn deliveries_of<'a>(&'a self, key: &'a InboxKey) -> impl Iterator<Item = &'a Delivery> {
        let first = DeliveryKey { inbox: key.clone(), sequence: 0 };
        self.deliveries
            .rows
            .range(first..)
            .take_while(move |(delivery, _)| delivery.inbox == *key)
            .filter_map(|(_, row)| row.current.as_ref())
    }
}
