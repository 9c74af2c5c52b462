//! Waiting for an operation: held-back answers, and what is told of an absent one.
//!
//! What must stay true: a waiter registers before it reads; a hint only makes it read again; every
//! wait ends by outcome, time, shutdown or disconnect.

use tokio::time::Instant;

use super::{
    Api,
    convert::Identity,
    shown::Shown,
    status::{Refused, read_failed},
};
use crate::domain::{ids::Account, operation::OperationKey, standing};

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
    /// then, unless it can't be read.
    pub(super) async fn await_end(&self, key: &OperationKey, end: Instant) -> Option<Shown> {
        let watch = self.engine().wake().watch_operation(key.clone());
        loop {
            let shown = self.look_up_again(key).await?;
            if shown.operation.state.ends_the_wait() {
                return Some(shown);
            }
            tokio::select! {
                biased;
                () = self.drain().cancelled() => return Some(shown),
                () = tokio::time::sleep_until(end) => return Some(shown),
                () = watch.changed() => {}
            }
        }
    }

    /// The refusal for an id without a record. The record was read before the account's times and
    /// the clock: one that was not there then may only arrive if these still admit it.
    pub(super) async fn absent(&self, identity: &Identity, account: &Account) -> Refused {
        let refusal = match self.engine().store().account_and_now(account).await {
            Ok((row, now)) => {
                let policy = self.engine().policy();
                standing::refuse_absent(identity.mint_time, row.as_ref(), policy, now)
            }
            Err(error) => read_failed(&error),
        };
        Refused::about(&identity.id)(refusal)
    }
}
