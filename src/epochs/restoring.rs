//! What `receiptd restore-mark` does: looks whether anybody uses the store, then marks it, or takes
//! over the server that it is on.
//!
//! What must stay true: nothing is written before it is known that nobody serves from the store.
//! Deliberately not here: words for people.

use std::time::Duration;

use super::marking::{self, MarkError, Marked};
use crate::{
    domain::{
        epoch::{Life, MarkRequest, Server},
        failover::{Replica, may_live},
        policy::Policy,
    },
    engine::seams::Seams,
    store::{Store, postgres::Glance},
};

/// How often signs of life are looked for; they come every ten seconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a store was not marked.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A replica is at work on it.
    #[error(
        "a replica of receiptd is at work on this store: it gave a sign of life while this was \
         looking; stop every server of the store first, or say --force if that is impossible"
    )]
    InUse,
    /// It is marked half way, so nobody can say that nothing was lost.
    #[error(
        "a mark of this store is under way: run restore-mark without --clean, which goes on where \
         it was"
    )]
    HalfMarked,
    /// Somebody else changed the store meanwhile.
    #[error("somebody else marked the store, or judged its failover, meanwhile: look again")]
    Overtaken,
    /// It could not be carried out.
    #[error(transparent)]
    Mark(#[from] MarkError),
}

/// What there was to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// A mark was begun and carried to its end.
    Marked(Marked),
    /// One that was cut was carried to its end; what was asked for now counts for nothing.
    WentOn(Marked),
}

/// Whether a store is looked at before it is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A store that somebody uses is refused.
    First,
    /// It is marked, whoever uses it.
    Never,
}

/// Which server a store is on now; none for the embedded one.
pub fn server(store: &Store) -> Option<Server> {
    match store {
        Store::Sqlite(_) => None,
        Store::Postgres(store) => Some(store.server()),
    }
}

/// Marks a store after a restore. Durable on return.
///
/// # Errors
/// [`RestoreError`]. What it wrote stays; run again, it goes on where it was.
pub async fn restore(
    store: &Store,
    request: &MarkRequest,
    look: Look,
    policy: &Policy,
    seams: &Seams,
) -> Result<Restored, RestoreError> {
    if look == Look::First {
        refuse_in_use(store, seams).await?;
    }
    let life = store.life().await.map_err(MarkError::from)?;
    let goes_on = life.mark.is_some();
    if !goes_on {
        let begun = marking::begin(store, &life, request, policy, seams).await?;
        if begun.epoch != request.epoch {
            return Err(RestoreError::Overtaken);
        }
    }
    let marked = marking::go_on(store, policy, seams).await?;
    if let Store::Postgres(store) = store {
        // Those of before the restore vouch for nothing any more.
        let glance = store.glance_at_replicas().await.map_err(MarkError::from)?;
        for replica in &glance.replicas {
            store.remove_replica(replica).await.map_err(MarkError::from)?;
        }
    }
    Ok(if goes_on { Restored::WentOn(marked) } else { Restored::Marked(marked) })
}

/// Takes over the server that a store is on now, and says that nothing was lost on the way there:
/// the same life goes on. Returns its row, durable. Replicas may wait for this meanwhile.
///
/// # Errors
/// [`RestoreError`]; then nothing was changed.
pub async fn declare_clean(
    store: &Store,
    policy: &Policy,
    seams: &Seams,
) -> Result<Life, RestoreError> {
    let met = server(store);
    let wanted = |life: &Life| life.mark.is_some() || (life.server == met && life.clean.is_some());
    let next = |life: &Life| life.declared_clean(met);
    if met.is_none() {
        // An embedded store knows no server: what is there is all there is.
        let life = store.life().await.map_err(MarkError::from)?;
        return match life.mark {
            Some(_) => Err(RestoreError::HalfMarked),
            None => Ok(life),
        };
    }
    let life = marking::change_life(store, policy, seams, wanted, next).await?;
    match life.mark {
        Some(_) => Err(RestoreError::HalfMarked),
        None => Ok(life),
    }
}

/// Refuses a store on which a replica is at work: one whose signs of life go on. In a restored copy
/// they are old, or do not go on; to see that of a fresh copy takes half a minute.
async fn refuse_in_use(store: &Store, seams: &Seams) -> Result<(), RestoreError> {
    // The file of an embedded store is locked by whoever uses it.
    let Store::Postgres(store) = store else { return Ok(()) };
    let first = store.glance_at_replicas().await.map_err(MarkError::from)?;
    let began = |replica: &Replica| {
        let before = first.replicas.iter().find(|before| before.name == replica.name);
        before.is_none_or(|before| before.beats != replica.beats || before.word != replica.word)
    };
    let mut latest = first.clone();
    loop {
        let Glance { replicas, now, .. } = &latest;
        if replicas.iter().any(began) {
            return Err(RestoreError::InUse);
        }
        if !replicas.iter().any(|replica| may_live(replica, *now)) {
            return Ok(());
        }
        seams.sleep(LOOK_INTERVAL).await;
        latest = store.glance_at_replicas().await.map_err(MarkError::from)?;
    }
}
