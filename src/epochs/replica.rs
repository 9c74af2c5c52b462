//! One replica's part in a failover: it is named in the store, gives signs of life there, and says
//! after a promotion whether what it acknowledged is there.
//!
//! What must stay true: no replica leads; each looks by itself, and whoever sees first what a
//! failover comes to writes it, once. A replica that finds its own newest write missing has the
//! store marked, also where the others went on without its word, unless an operator said that the
//! failover was clean. What a replica acknowledged is remembered in its memory alone: one that was
//! killed can't vouch, and a new process has nothing to vouch for.
//!
//! Deliberately not here: the rules ([`crate::domain::failover`]). On the embedded store there is
//! nothing to do.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::marking::{self, MarkError};
use crate::{
    domain::{
        epoch::{Life, MarkCause, MarkRequest, Server},
        failover::{BEAT_INTERVAL, Judgement, Loser, Replica, ReplicaName, Word, gone, judge},
        ids::Span,
        policy::Policy,
    },
    engine::seams::Seams,
    store::{
        Store,
        postgres::{Glance, PostgresStore},
    },
};

/// How often a replica looks at the store's own row: a failover is judged within this time once
/// the last word is there.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What a caller is told while a mark is carried out, which takes seconds.
const MARK_RETRY: Span = Span::seconds(5);
/// Who is named in the audit.
const SUBJECT: &str = "receiptd";

/// One replica of a store.
#[derive(Debug, Clone)]
pub struct ReplicaTask {
    store: Store,
    name: ReplicaName,
    policy: Policy,
    /// How long replicas are waited for after a failover.
    wait: Span,
    seams: Seams,
}

/// What it knows from one look to the next.
struct State {
    /// The life and the server that it last saw settled.
    epoch: String,
    server: Server,
    /// Its row as last written; absent until it is named.
    own: Option<Replica>,
}

impl ReplicaTask {
    /// A replica that is not named yet.
    pub fn new(store: Store, name: ReplicaName, policy: Policy, wait: Span, seams: Seams) -> Self {
        ReplicaTask { store, name, policy, wait, seams }
    }

    /// Names the replica in the store, durable on return, before it acknowledges anything; while a
    /// failover is judged that is left to [`ReplicaTask::run`].
    ///
    /// # Errors
    /// [`MarkError`] if the store cannot be read or written.
    pub async fn enter(&self) -> Result<(), MarkError> {
        let Store::Postgres(store) = &self.store else { return Ok(()) };
        let mut state = State::of(store);
        self.look(store, &mut state).await
    }

    /// Looks again and again until `stop`, then takes the name out: what was acknowledged is written
    /// before that, so where the name is gone, nothing is missing.
    pub async fn run(self, stop: CancellationToken) {
        let Store::Postgres(store) = &self.store else { return };
        let mut state = State::of(store);
        loop {
            if let Err(error) = self.look(store, &mut state).await {
                tracing::debug!(%error, "the replica could not look at the store's own row");
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.seams.sleep(LOOK_INTERVAL) => {}
            }
        }
        if let Some(own) = &state.own {
            let removed = tokio::time::timeout(LOOK_INTERVAL, store.remove_replica(own)).await;
            if !matches!(removed, Ok(Ok(()))) {
                tracing::debug!("the replica's name stays until the others remove it");
            }
        }
    }

    async fn look(&self, store: &PostgresStore, state: &mut State) -> Result<(), MarkError> {
        let glance = store.glance_at_replicas().await?;
        let own = glance.replicas.iter().find(|replica| replica.name == self.name);
        if let Some(own) = own {
            state.own = Some(own.clone());
        }
        let Glance { life, server, .. } = &glance;
        if let Some(mark) = &life.mark {
            store.set_wait(Some(MARK_RETRY));
            return match mark.cause {
                MarkCause::Failover => self.finish_mark(store, state).await,
                // Whoever restored it carries it out.
                MarkCause::Restore => Ok(()),
            };
        }
        let settled = life.server.is_none_or(|known| known.timeline >= server.timeline);
        match settled {
            true => self.settled(store, state, &glance).await,
            false => self.judge(store, state, &glance, own).await,
        }
    }

    /// Nothing is to be judged: gives a sign of life, and removes names that nobody waits for.
    async fn settled(
        &self,
        store: &PostgresStore,
        state: &mut State,
        glance: &Glance,
    ) -> Result<(), MarkError> {
        let Glance { life, replicas, now, server } = glance;
        let own = replicas.iter().find(|replica| replica.name == self.name);
        if state.epoch != life.epoch {
            // What this one acknowledged in the life before is told to everybody as lost.
            store.forget_acknowledged();
        } else if state.server.timeline < server.timeline {
            let declared = life.clean == Some(server.timeline);
            if !declared && !store.holds_own(own).await? {
                // The others went on without this one's word.
                return self.mark(store, state, life, Loser::Missing(self.name)).await;
            }
        }
        state.epoch.clone_from(&life.epoch);
        state.server = *server;
        store.set_wait(None);
        let due = own.is_none_or(|own| own.seen + BEAT_INTERVAL <= *now || own.seen > *now);
        if due {
            let beats = state.own.as_ref().map_or(0, |own| own.beats) + 1;
            let own = Replica { name: self.name, seen: *now, beats, word: None };
            store.beat(&own).await?;
            state.own = Some(own);
            for replica in gone(replicas, &self.name, *now, self.wait) {
                store.remove_replica(replica).await?;
            }
        }
        Ok(())
    }

    /// Gives this replica's word, and writes what everybody's words come to.
    async fn judge(
        &self,
        store: &PostgresStore,
        state: &mut State,
        glance: &Glance,
        own: Option<&Replica>,
    ) -> Result<(), MarkError> {
        let Glance { life, replicas, now, server } = glance;
        let timeline = server.timeline;
        let Some(failover) = life.failover.filter(|failover| failover.timeline == timeline) else {
            tracing::warn!(timeline, "PostgreSQL was promoted; writes wait for the replicas' word");
            store.set_wait(Some(self.wait));
            let version = life.version;
            let wanted = move |life: &Life| life.version != version;
            let next = |life: &Life| life.under_judgement(timeline, *now);
            marking::change_life(&self.store, &self.policy, &self.seams, wanted, next).await?;
            return Ok(());
        };
        let holds = store.holds_own(own).await?;
        match own {
            // The server does not even know this replica.
            None if !holds => {
                return self.mark(store, state, life, Loser::Missing(self.name)).await;
            }
            Some(own) if own.word != Some(Word { timeline, holds }) => {
                let word = Some(Word { timeline, holds });
                let own = Replica { seen: *now, word, ..own.clone() };
                store.write_replica(&own).await?;
                state.own = Some(own);
                // The next look sees it together with what the others said meanwhile.
                return Ok(());
            }
            Some(_) | None => {}
        }
        match judge(replicas, timeline, failover.since, *now, self.wait) {
            Judgement::Wait(left) => {
                store.set_wait(Some(left));
                Ok(())
            }
            Judgement::Clean => {
                let server = *server;
                let wanted = move |life: &Life| {
                    life.mark.is_some()
                        || life.server.is_some_and(|known| known.timeline >= server.timeline)
                };
                let next = |life: &Life| life.on(Some(server));
                marking::change_life(&self.store, &self.policy, &self.seams, wanted, next).await?;
                tracing::info!(timeline, "the failover lost nothing: the store goes on as it was");
                Ok(())
            }
            Judgement::Lost(loser) => self.mark(store, state, life, loser).await,
        }
    }

    /// Has the store begin another life, unless somebody changed its row since it was read.
    async fn mark(
        &self,
        store: &PostgresStore,
        state: &mut State,
        life: &Life,
        loser: Loser,
    ) -> Result<(), MarkError> {
        let short = |name: ReplicaName| -> String {
            name.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
        };
        let reason = match loser {
            Loser::Missing(name) => {
                format!("the newest write of replica {} is not there", short(name))
            }
            Loser::Silent(name) => format!("replica {} did not vouch in time", short(name)),
        };
        tracing::error!(reason, "a failover may have lost something: the store is marked");
        store.set_wait(Some(MARK_RETRY));
        let epoch = uuid::Builder::from_random_bytes(self.seams.random_bytes()).into_uuid();
        let request = MarkRequest {
            cause: MarkCause::Failover,
            subject: SUBJECT.to_owned(),
            reason,
            until: None,
            jumps: 1,
            epoch: epoch.to_string(),
            server: Some(store.server()),
        };
        marking::begin(&self.store, life, &request, &self.policy, &self.seams).await?;
        self.finish_mark(store, state).await
    }

    async fn finish_mark(&self, store: &PostgresStore, state: &mut State) -> Result<(), MarkError> {
        let marked = marking::go_on(&self.store, &self.policy, &self.seams).await?;
        tracing::warn!(
            epoch = marked.life.epoch,
            accounts = marked.accounts,
            inboxes = marked.inboxes,
            "the store is marked: a new life begins"
        );
        // Nobody is named in the new life but those that live.
        for replica in store.glance_at_replicas().await?.replicas {
            let speaks = replica.word.is_some_and(|word| word.timeline == store.server().timeline);
            if replica.name != self.name && !speaks {
                store.remove_replica(&replica).await?;
            }
        }
        store.set_wait(None);
        state.own = None;
        Ok(())
    }
}

impl State {
    fn of(store: &PostgresStore) -> Self {
        let server = store.settled_on().unwrap_or_else(|| store.server());
        State { epoch: store.facts().epoch.clone(), server, own: None }
    }
}
