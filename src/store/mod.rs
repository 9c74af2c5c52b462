//! Two stores, one meaning: they differ only in how they load and save.
//!
//! What must stay true: no rule in here. A store locks and loads what it is told, calls the
//! decision, writes every change it returned, and says honestly how the commit ended. All SQL of
//! the crate stands below this folder.

mod marks;
pub mod postgres;
pub mod query;
pub mod sqlite;
pub mod usage;
pub mod verify;

use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::domain::{
    epoch::{Life, Loss},
    ids::{Span, Timestamp},
    operation::OperationKey,
    world::{Surroundings, World, needs::Needs},
};

/// The name of a batch: its row settles a commit whose answer was lost (architecture section 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchName {
    /// The bucket of its first command.
    pub bucket: i16,
    /// Random, 16 bytes.
    pub id: [u8; 16],
    /// The replica that made it, 16 bytes.
    pub replica: [u8; 16],
}

/// What a decision is given besides the world: the ids that another transaction holds now.
#[derive(Debug, Clone, Default)]
pub struct HeldIds(pub BTreeSet<OperationKey>);

/// What runs between load and save: pure, synchronous, once per transaction.
pub type Decide<R> = Box<dyn FnOnce(&mut World, &HeldIds) -> R + Send>;

/// One transaction to run.
pub struct Transaction<R> {
    /// Its name.
    pub batch: BatchName,
    /// What to lock and load.
    pub needs: Needs,
    /// What the world is given besides rows; the store sets the clock.
    pub surroundings: Surroundings,
    /// What for: a mark runs while nobody is served.
    pub purpose: Purpose,
    /// What to decide.
    pub decide: Decide<R>,
}

/// What a batch cost, for metrics and for the row budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Touches {
    /// Keys sent in loads, and rows that searches found.
    pub loaded: usize,
    /// Rows sent in saves.
    pub saved: usize,
    /// Round trips to the store; 0 for the embedded one.
    pub round_trips: usize,
    /// Commits that wrote something.
    pub commits: usize,
}

/// A transaction that ended well.
#[derive(Debug)]
pub struct Committed<R> {
    /// What the decision returned; durable.
    pub value: R,
    /// The store's clock as the decision saw it.
    pub now: Timestamp,
    /// What it cost.
    pub touches: Touches,
}

/// How a transaction failed. Everything but [`TransactError::Ambiguous`] and
/// [`TransactError::Fatal`] left nothing behind.
#[derive(Debug)]
pub enum TransactError<R> {
    /// Deadlock, serialization failure, unique violation: worth a second run as a whole.
    Conflict(String),
    /// A lock timeout or any other error of a statement: worth halving.
    Failed(String),
    /// A count fell short: a bug of ours, refused with INTERNAL.
    CountShort(String),
    /// The store cannot be reached, or is busy beyond patience.
    Unavailable(String),
    /// The answer to the commit was lost. The value is what will hold if it committed.
    Ambiguous(R),
    /// The store must not be used any more (a failed flush). Whether this transaction counts is not
    /// known before the store is opened again.
    Fatal(String),
}

/// How a lost commit was settled.
#[derive(Debug)]
pub enum Settled<R> {
    /// It had committed: the replies already decided hold.
    Committed,
    /// It never will: the batch was run again within the settling transaction.
    RunAgain(Committed<R>),
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store cannot be reached.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The store's content cannot be read by this release.
    #[error(transparent)]
    Unreadable(#[from] crate::domain::record::Unreadable),
}

/// Why a store does not open. The text says what to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To serve: a store that must not serve as it is does not open.
    Serve,
    /// To mark it ([`crate::epochs`]), or only to look at it: whatever it is, it opens.
    Mark,
}

/// What is the same for every transaction of a store's life.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreFacts {
    /// Which life of the store: changes when it is restored.
    pub epoch: String,
    /// The key that authenticates tokens, 32 bytes, kept in the store.
    pub token_key: [u8; 32],
    /// What it may have lost.
    pub loss: Loss,
}

/// Refuses a store whose mark was cut.
///
/// # Errors
/// [`OpenError`] that says to run the mark again.
pub(in crate::store) fn refuse_half_marked(life: &Life) -> Result<(), OpenError> {
    match life.mark {
        None => Ok(()),
        Some(_) => Err(OpenError(
            "the store is marked half way: a restore-mark was cut; run `receiptd restore-mark` \
             on it again, which goes on where it was"
                .into(),
        )),
    }
}

/// Without the key: whoever has it makes tokens for every inbox.
impl fmt::Debug for StoreFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreFacts").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// One of the two stores.
#[derive(Debug, Clone)]
pub enum Store {
    /// Embedded.
    Sqlite(sqlite::SqliteStore),
    /// Shared by replicas.
    Postgres(postgres::PostgresStore),
}

impl Store {
    /// Runs one transaction: load under locks, decide, save, commit. Nothing is written, and no
    /// flush awaited, where nothing changed. Durable on return.
    ///
    /// # Errors
    /// [`TransactError`]; only `Ambiguous` may have committed.
    pub async fn transact<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Committed<R>, TransactError<R>> {
        match self {
            Store::Sqlite(store) => store.transact(transaction).await,
            Store::Postgres(store) => store.transact(transaction).await,
        }
    }

    /// Settles a commit whose answer was lost, by the batch's row: waits for the lost transaction
    /// to end; if it did not commit, runs `transaction` within the settling one. The row is
    /// written even if nothing changed: it keeps the lost transaction, which may still be on its
    /// way, from ever committing.
    ///
    /// # Errors
    /// [`TransactError`], as [`Store::transact`].
    pub async fn settle<R: Send + 'static>(
        &self,
        transaction: Transaction<R>,
    ) -> Result<Settled<R>, TransactError<R>> {
        match self {
            Store::Sqlite(store) => store.settle(transaction).await,
            Store::Postgres(store) => store.settle(transaction).await,
        }
    }

    /// What the store is now: on PostgreSQL a mark may change it while it is open.
    pub fn facts(&self) -> Arc<StoreFacts> {
        match self {
            Store::Sqlite(store) => store.facts(),
            Store::Postgres(store) => store.facts(),
        }
    }

    /// Whether this opening created the store.
    pub fn is_new(&self) -> bool {
        match self {
            Store::Sqlite(store) => store.is_new(),
            Store::Postgres(store) => store.is_new(),
        }
    }

    /// How long writes may still be refused because a failover is judged or a mark is carried out,
    /// as far as that is known.
    pub fn wait(&self) -> Option<Span> {
        match self {
            Store::Sqlite(_) => None,
            Store::Postgres(store) => store.wait(),
        }
    }

    /// Stops using the store: waits for what runs, closes files and connections.
    pub async fn close(&self) {
        match self {
            Store::Sqlite(store) => store.close().await,
            Store::Postgres(store) => store.close().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_tokens_never_shows() {
        let facts = StoreFacts { epoch: "e".to_owned(), token_key: [177; 32], loss: Loss::NONE };
        assert!(!format!("{facts:?}").contains("177"));
    }
}
