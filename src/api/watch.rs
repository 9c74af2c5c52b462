//! Waiting for an operation: held-back answers, and what is told of an absent one.
//!
//! What must stay true: a waiter registers before it reads; a hint only makes it read again; every
//! wait ends by outcome, time, shutdown or disconnect.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Api,
    convert::Identity,
    shown::Shown,
    status::{Refused, read_failed},
};
use crate::domain::{ids::Account, operation::OperationKey, standing};

/// Between two reads while the store can't be read: soon enough for a short wait, rare enough for a
/// store that has trouble.
const READ_PAUSE: Duration = Duration::from_millis(500);

impl Api {
    /// The record under a key, if there is one.
    pub(super) async fn look_up(&self, key: &OperationKey) -> Result<Option<Shown>, Refused> {
        let found = self.engine().store().look_up(std::slice::from_ref(key)).await;
        let found = found.map_err(|error| Refused::about(&key.id)(read_failed(&error)))?;
        Ok(found.into_iter().next().and_then(Shown::of_look_up))
    }

    /// As [`Api::look_up`] where an answer is already certain without it: a failed read leaves
    /// that answer as it is.
    pub(super) async fn look_up_again(&self, key: &OperationKey) -> Option<Shown> {
        self.look_up(key).await.unwrap_or(None)
    }

    /// Waits until the operation's state ends the wait, or the time is up; the state in force
    /// then. A read that fails is tried again until then, and the state last read stands; none:
    /// there was none.
    pub(super) async fn await_end(&self, key: &OperationKey, end: Instant) -> Option<Shown> {
        let watch = self.engine().wake().watch_operation(key.clone());
        let read = || self.look_up(key);
        let answers = |shown: &Shown| shown.operation.state.ends_the_wait();
        let mut last = None;
        tokio::select! {
            biased;
            () = self.drain().cancelled() => {}
            () = read_until(read, answers, || watch.changed(), &mut last) => {}
            () = tokio::time::sleep_until(end) => {}
        }
        last
    }

    /// The refusal for an id without a record. The record was read before the account's times and
    /// the clock: one that was not there then may only arrive if these still admit it.
    pub(super) async fn absent(&self, identity: &Identity, account: &Account) -> Refused {
        let refusal = match self.engine().store().account_and_now(account).await {
            Ok((row, now)) => {
                let policy = self.engine().policy_of(row.as_ref());
                let loss = self.engine().store().facts().loss;
                standing::refuse_absent(identity.mint_time, row.as_ref(), &policy, loss, now)
            }
            Err(error) => read_failed(&error),
        };
        Refused::about(&identity.id)(refusal)
    }
}

/// Reads until there is an answer, or nothing to read, and again at every hint. A read that fails
/// says nothing: it is tried again after a pause. What was last read is in `last`.
async fn read_until<T, E, R, H>(
    read: impl Fn() -> R,
    answers: impl Fn(&T) -> bool,
    hint: impl Fn() -> H,
    last: &mut Option<T>,
) where
    R: Future<Output = Result<Option<T>, E>>,
    H: Future<Output = ()>,
{
    loop {
        match read().await {
            Ok(found) => {
                *last = found;
                if last.as_ref().is_none_or(&answers) {
                    return;
                }
                hint().await;
            }
            Err(_) => tokio::select! {
                () = hint() => {}
                () = tokio::time::sleep(READ_PAUSE) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::ready};

    use futures_util::FutureExt as _;

    use super::*;

    /// Reads as a script says, in which 9 is an answer; a hint comes at once as often as allowed.
    /// Returns what was last read, whether the wait ended, and how much of the script is left.
    async fn waited(
        script: &[Result<Option<i32>, ()>],
        hints: usize,
    ) -> (Option<i32>, bool, usize) {
        let (script, hints) = (RefCell::new(script.to_vec()), RefCell::new(hints));
        let read = || ready(script.borrow_mut().remove(0));
        let hint = || {
            let comes = *hints.borrow() > 0;
            *hints.borrow_mut() -= usize::from(comes);
            async move { if comes { ready(()).await } else { std::future::pending().await } }
        };
        let mut last = None;
        let ended = read_until(read, |found| *found == 9, hint, &mut last).now_or_never();
        (last, ended.is_some(), script.take().len())
    }

    #[tokio::test]
    async fn a_wait_holds_through_failed_reads() {
        let cases = [
            (vec![Ok(Some(9))], 0, (Some(9), true, 0)),
            (vec![Ok(Some(1)), Ok(Some(9))], 1, (Some(9), true, 0)),
            (vec![Ok(Some(1)), Err(()), Ok(Some(9))], 2, (Some(9), true, 0)),
            (vec![Err(()), Ok(Some(1))], 1, (Some(1), false, 0)),
            (vec![Ok(Some(1)), Err(()), Ok(Some(9))], 1, (Some(1), false, 1)),
            (vec![Ok(Some(1)), Ok(None)], 1, (None, true, 0)),
        ];
        for (script, hints, expected) in cases {
            assert_eq!(waited(&script, hints).await, expected, "{script:?} with {hints} hints");
        }
    }

    #[tokio::test]
    async fn a_failed_read_is_tried_again_without_a_hint() {
        let script = RefCell::new(vec![Err(()), Err(()), Ok(Some(9))]);
        let read = || ready(script.borrow_mut().remove(0));
        let mut last = None;
        read_until(read, |found| *found == 9, std::future::pending, &mut last).await;
        assert_eq!(last, Some(9));
    }
}
