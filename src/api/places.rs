//! How many streams, sessions and watches an account may have open.
//!
//! What must stay true: a place is taken before anything else happens for a stream, and is free
//! again as soon as its answer is dropped, however it ended. Counted per server, not per store: it
//! protects this process's memory.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::Stream;

use crate::domain::{ids::Account, refusal::Refusal};

/// The places of all accounts.
#[derive(Clone, Debug)]
pub struct Places {
    /// For each account.
    limit: usize,
    taken: Arc<Mutex<HashMap<Account, usize>>>,
}

impl Places {
    /// So many for each account.
    pub fn new(limit: usize) -> Self {
        Places { limit, taken: Arc::default() }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// ACCOUNT_QUOTA when the account has all of its places.
    pub fn take(&self, account: &Account) -> Result<Place, Refusal> {
        let mut taken = self.taken();
        let count = taken.entry(account.clone()).or_default();
        if *count >= self.limit {
            let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
            return Err(Refusal::AccountQuota { what: "streams, sessions and watches", limit });
        }
        *count += 1;
        Ok(Place { places: self.clone(), account: account.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Account, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    account: Account,
}

impl Place {
    /// A stream that keeps the place for as long as it lives.
    pub fn hold<S>(self, stream: S) -> Placed<S> {
        Placed { stream, _place: self }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        match taken.get_mut(&self.account) {
            Some(count) if *count > 1 => *count -= 1,
            // Whoever has no stream costs nothing.
            Some(_) | None => drop(taken.remove(&self.account)),
        }
    }
}

/// A stream in its place.
#[derive(Debug)]
pub struct Placed<S> {
    stream: S,
    _place: Place,
}

impl<S: Stream + Unpin> Stream for Placed<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_places_and_gets_them_back() {
        let places = Places::new(2);
        let (ours, other) = (Account::from_stored("ours"), Account::from_stored("other"));
        let first = places.take(&ours).expect("a place");
        let second = places.take(&ours).expect("a place");
        let refused = places.take(&ours).expect_err("no place");
        assert_eq!(
            refused,
            Refusal::AccountQuota { what: "streams, sessions and watches", limit: 2 }
        );
        let foreign = places.take(&other).expect("a place of its own");
        drop(first);
        let third = places.take(&ours).expect("free again");
        drop((second, third, foreign));
        assert!(places.taken().is_empty());
    }
}
