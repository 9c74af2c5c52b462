//! What the bounded searches found, joined with what this batch has changed since.
//!
//! What must stay true: a search was made under the lock that it relies on, so that it and the
//! changes of this batch together are the whole truth; a search that hit its limit says so, and
//! nothing behind its end is answered.

use super::{
    World,
    needs::{CLOSED_MAX, Need, PURGED_MAX, Unloaded, WAITERS_MAX, unloaded},
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

/// What is known of the open deliveries that deleted generations left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOpen {
    /// There are no others.
    All,
    /// The search reached its limit: there may be more.
    SoManyAtLeast,
}

impl World {
    /// Loads the keys of the next waiters of a target, by ticket.
    pub fn load_waiters(&mut self, key: TargetKey, waiters: Vec<OperationKey>) {
        self.waiters.insert(key, waiters);
    }

    /// Loads what an inbox can send: fresh rows after its cursor by number, and returned or
    /// redriven ones of this generation that are available, by number. `limit` is the limit of the search.
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

    /// Loads what a consumer holds of this generation, by number.
    pub fn load_held(&mut self, key: InboxKey, consumer: ConsumerId, held: Vec<Delivery>) {
        self.held.insert((key, consumer));
        for delivery in held {
            self.load_delivery(delivery.key.clone(), Some(delivery));
        }
    }

    /// Loads the oldest open deliveries of an inbox, by number.
    pub fn load_oldest_open(&mut self, key: InboxKey, open: Vec<Delivery>) {
        let complete = i64::try_from(open.len()).unwrap_or(i64::MAX) < CLOSED_MAX;
        let last = open.last().map_or(0, |delivery| delivery.key.sequence);
        self.oldest_open.insert(key, Found { complete, last });
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

    /// What an inbox can send now, what is due for longest first; and the highest number up to which
    /// nothing fresh remains.
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
        // What a deleted generation left behind is nobody's any more. The search leaves it out too;
        // here it may be loaded for another command.
        let own = |delivery: &&&Delivery| inbox.is_some_and(|inbox| inbox.owns(&delivery.key));
        let returned = returned.filter(own);
        let order = in_order(fresh.copied().collect(), returned.copied().collect());
        Ok((order.into_iter().map(|delivery| delivery.key.clone()).collect(), end))
    }

    /// What a consumer holds in this generation of an inbox, whatever stream of it, by number.
    pub fn held(
        &self,
        key: &InboxKey,
        consumer: &ConsumerId,
    ) -> Result<Vec<DeliveryKey>, Unloaded> {
        if !self.held.contains(&(key.clone(), consumer.clone())) {
            return Err(unloaded(Need::Held(key.clone(), consumer.clone())));
        }
        let inbox = self.inbox(key)?;
        let held = self.deliveries_of(key).filter(|delivery| {
            inbox.is_some_and(|inbox| inbox.owns(&delivery.key))
                && delivery.consumer.as_ref().is_some_and(|(holder, _)| holder == consumer)
        });
        Ok(held.map(|delivery| delivery.key.clone()).collect())
    }

    /// Deliveries of deleted generations of an inbox that have not ended, by number: the oldest, and
    /// those of this batch. And whether these are all of them.
    pub fn left_open(&self, key: &InboxKey) -> Result<(Vec<DeliveryKey>, LeftOpen), Unloaded> {
        let missing = || unloaded(Need::OldestOpen(key.clone()));
        let found = self.oldest_open.get(key).ok_or_else(missing)?;
        let first = self.inbox(key)?.map_or(0, |inbox| inbox.first_sequence);
        let open = self.deliveries_of(key).filter(|delivery| delivery.state.is_open());
        let left = open.take_while(|delivery| delivery.key.sequence < first);
        let left = left.map(|delivery| delivery.key.clone()).collect();
        let known = if found.complete || found.last >= first {
            LeftOpen::All
        } else {
            LeftOpen::SoManyAtLeast
        };
        Ok((left, known))
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

/// Deliveries in the order of their sending: due for longest first, then by number. What failed is
/// due when its backoff ends, behind all that waited before that moment: it holds nothing back
/// (contract section 7). What came back because the stream of its first attempt ended is due since it
/// was queued, so that a reader that reconnects sees numbers in their order; from the second attempt
/// on it ranks like what failed, so that a result on which streams end each time starves nothing.
///
/// Both lists may be pages of their search: fresh ones by number, returned ones by this order. As
/// many of the merge as one page holds are then a prefix of the whole order.
///
/// Fresh ones stay in the order of their numbers, whatever the store's clock did: the inbox's cursor
/// passes over them in that order.
fn in_order<'a>(fresh: Vec<&'a Delivery>, mut returned: Vec<&'a Delivery>) -> Vec<&'a Delivery> {
    returned.sort_by_key(|delivery| delivery.due_since());
    let mut order = Vec::with_capacity(fresh.len() + returned.len());
    let mut returned = returned.into_iter().peekable();
    for next in fresh {
        while let Some(earlier) = returned.next_if(|other| other.due_since() < next.due_since()) {
            order.push(earlier);
        }
        order.push(next);
    }
    order.extend(returned);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ids::Timestamp, sample};

    fn delivery(sequence: i64, queued: i64, available: Option<i64>) -> Delivery {
        Delivery {
            queue_time: Timestamp(queued),
            available_time: available.map(Timestamp),
            ..sample::delivery("a", sequence)
        }
    }

    fn numbers(fresh: &[(i64, i64)], returned: &[(i64, i64)]) -> Vec<i64> {
        let fresh: Vec<Delivery> = fresh.iter().map(|(n, at)| delivery(*n, *at, None)).collect();
        let returned: Vec<Delivery> =
            returned.iter().map(|(n, at)| delivery(*n, 0, Some(*at))).collect();
        let order = in_order(fresh.iter().collect(), returned.iter().collect());
        order.iter().map(|delivery| delivery.key.sequence).collect()
    }

    #[test]
    fn what_is_due_for_longest_goes_first() {
        type Numbered = &'static [(i64, i64)];
        let cases: [(Numbered, Numbered, &[i64]); 7] = [
            (&[], &[], &[]),
            (&[(2, 10), (3, 11)], &[(1, 9)], &[1, 2, 3]),
            // Failed: behind all that waited before its backoff ended, before what came later.
            (&[(2, 10), (3, 12)], &[(1, 11)], &[2, 1, 3]),
            (&[(2, 10), (3, 11)], &[(1, 50)], &[2, 3, 1]),
            // The number decides between equals.
            (&[(2, 10), (4, 10)], &[(3, 10), (1, 10)], &[1, 2, 3, 4]),
            // Returned ones among themselves.
            (&[], &[(1, 30), (2, 20), (3, 20)], &[2, 3, 1]),
            // A clock that stepped back does not bring fresh ones out of order.
            (&[(5, 40), (6, 10)], &[(1, 20)], &[1, 5, 6]),
        ];
        for (fresh, returned, order) in cases {
            assert_eq!(numbers(fresh, returned), order, "{fresh:?} {returned:?}");
        }
    }
}
