//! A pass of the sweeper that somebody asks for, over everything or one account.

use std::collections::BTreeMap;

use super::{Done, KINDS, PAGE, SweepCounts, failed, pages_max, sweep_batches, sweep_rows};
use crate::{
    domain::ids::Account,
    engine::Engine,
    store::{
        ReadError,
        query::{Due, DueKind, DuePage},
    },
};

/// Whose rows a pass is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's, with what belongs to nobody.
    All,
    /// One account's. Its rows are searched among those of its bucket.
    Account(Account),
}

/// A pass that somebody asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedSweep {
    /// What it did.
    pub counts: SweepCounts,
    /// Rows that it left, by the reason of the refusal.
    pub refused: BTreeMap<&'static str, u64>,
    /// It met its limit, or a search failed: there may be more.
    pub more: bool,
}

/// One bounded pass now, beside those that come by themselves. Everything it tells of is durable on
/// return; a pass that is dropped has done a part of it.
pub async fn run_asked(engine: &Engine, scope: &Scope) -> AskedSweep {
    let mut done = Done::default();
    let mut more = false;
    for kind in KINDS {
        match sweep_asked(engine, kind, scope, &mut done).await {
            Ok(limited) => more |= limited,
            Err(error) => {
                failed(&error);
                more = true;
            }
        }
    }
    if *scope == Scope::All
        && let Err(error) = sweep_batches(engine, &mut done).await
    {
        failed(&error);
        more = true;
    }
    done.record();
    AskedSweep { counts: done.counts, refused: done.refused, more }
}

/// What is due of one kind and in scope, page by page; whether the limit was met.
async fn sweep_asked(
    engine: &Engine,
    kind: DueKind,
    scope: &Scope,
    done: &mut Done,
) -> Result<bool, ReadError> {
    let store = engine.store();
    let mut after = match scope {
        Scope::All => None,
        Scope::Account(account) => Some(store.due_from(account.bucket())),
    };
    for _ in 0..pages_max(kind) {
        let DuePage { rows, next } = store.due(kind, after.as_ref(), PAGE).await?;
        let last = rows.last().map(Due::bucket);
        let rows = match scope {
            Scope::All => rows,
            Scope::Account(account) => {
                rows.into_iter().filter(|due| due.account() == account).collect()
            }
        };
        sweep_rows(engine, rows, done).await;
        // Buckets come in order: what follows another one's rows is not the account's.
        let beyond = match scope {
            Scope::All => false,
            Scope::Account(account) => last != Some(account.bucket()),
        };
        match next {
            Some(position) if !beyond => after = Some(position),
            Some(_) | None => return Ok(false),
        }
    }
    Ok(true)
}
