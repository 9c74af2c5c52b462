//! Which server a transaction met: whether it is the one that holds everything that was
//! acknowledged.
//!
//! What must stay true: every transaction, also one that only reads, tells which timeline it ran on
//! and shows the store's own row, so that neither a pooler nor an address that moved leads to an
//! answer of a server that is behind; what was met once is never forgotten while the process runs.
//! Deliberately not here: the rules ([`crate::domain::failover`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::Row;

use crate::{
    domain::{
        epoch::{Life, Loss, Server},
        failover::{Mismatch, Verdict, verdict},
        ids::Span,
        record::{pack_life, unpack_life},
    },
    store::{OpenError, Purpose, StoreFacts},
};

/// The timeline of a server; nothing for a standby. Taken from the name of the log that it writes:
/// what the control file says is older than a promotion until the next checkpoint.
macro_rules! timeline {
    () => {
        "CASE WHEN pg_is_in_recovery() THEN NULL ELSE
         ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END"
    };
}
pub(super) use timeline;

/// What of a server is met before there is a store: shared by all connections of one URL.
#[derive(Debug, Default)]
pub(super) struct Met(Mutex<Option<Server>>);

impl Met {
    /// Takes note of a server that a new connection leads to.
    ///
    /// # Errors
    /// Why it must not be used.
    pub(super) fn note(&self, met: Server) -> Result<(), Mismatch> {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing_known = Life::first(String::new(), None);
        match verdict(*before, Some(met), &nothing_known) {
            Verdict::Refuse(mismatch) => Err(mismatch),
            Verdict::Serve | Verdict::Wait => {
                *before = Some(met);
                Ok(())
            }
        }
    }
}

/// What a transaction may do where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Everything.
    Serves(Place),
    /// Read, or mark.
    Waits(Place),
}

/// Where a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) loss: Loss,
    pub(super) timeline: i32,
}

/// The store as it was last met.
#[derive(Debug)]
pub(super) struct Guard {
    purpose: Purpose,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// The store's own row, as stored.
    bytes: Vec<u8>,
    life: Life,
    /// The newest server that any transaction met.
    server: Server,
    facts: Arc<StoreFacts>,
    /// How long submits may have to wait from when it was last asked; none: they do not.
    wait: Option<Span>,
}

impl Guard {
    /// Begins with the store as it was opened.
    pub(super) fn new(life: Life, server: Server, facts: StoreFacts, purpose: Purpose) -> Self {
        let (bytes, facts) = (pack_life(&life), Arc::new(facts));
        let known = Mutex::new(Known { bytes, life, server, facts, wait: None });
        Guard { purpose, known }
    }

    /// What the store is now.
    pub(super) fn facts(&self) -> Arc<StoreFacts> {
        self.known().facts.clone()
    }

    /// The newest server that was met.
    pub(super) fn server(&self) -> Server {
        self.known().server
    }

    /// The server that the store's own row names, as last read.
    pub(super) fn settled_on(&self) -> Option<Server> {
        self.known().life.server
    }

    /// Looks at the reply to [`super::transact::SETTINGS`].
    ///
    /// # Errors
    /// Why nothing of this transaction may be used.
    pub(super) fn look(&self, settings: &[Row]) -> Result<Found, String> {
        let unreadable = || "PostgreSQL did not say which server it is".to_owned();
        let row = settings.first().ok_or_else(unreadable)?;
        let bytes: Option<&[u8]> = row.try_get("life").map_err(|_| unreadable())?;
        let timeline: Option<i32> = row.try_get("timeline").map_err(|_| unreadable())?;
        let bytes = bytes.ok_or_else(|| "the store's own row is gone".to_owned())?;
        let mut known = self.known();
        if self.purpose == Purpose::Mark {
            // Whatever it is, it is about to be marked.
            let life = unpack_life(bytes).map_err(|error| error.to_string())?;
            let place = Place { loss: life.loss, timeline: timeline.unwrap_or_default() };
            return Ok(Found::Waits(place));
        }
        if bytes != known.bytes {
            let life = unpack_life(bytes).map_err(|error| error.to_string())?;
            known.weigh(timeline, &life)?;
            if life.version < known.life.version {
                return Err("the store was marked, or judged, while this began".into());
            }
            known.take(bytes.to_vec(), life);
        }
        let found = known.weigh(timeline, &known.life)?;
        if let Some(timeline) = timeline {
            known.server.timeline = timeline;
        }
        Ok(found)
    }

    /// How long submits may have to wait, as far as that is known.
    pub(super) fn wait(&self) -> Option<Span> {
        self.known().wait
    }

    /// Says how long submits may have to wait.
    pub(super) fn set_wait(&self, wait: Option<Span>) {
        self.known().wait = wait;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn weigh(&self, timeline: Option<i32>, life: &Life) -> Result<Found, String> {
        // The connection was checked for its system identifier when it was made.
        let met = timeline.map(|timeline| Server { timeline, ..self.server });
        let place = |timeline| Place { loss: life.loss, timeline };
        match verdict(Some(self.server), met, life) {
            Verdict::Serve => Ok(Found::Serves(place(timeline.unwrap_or_default()))),
            Verdict::Wait => Ok(Found::Waits(place(timeline.unwrap_or_default()))),
            Verdict::Refuse(mismatch) => Err(mismatch.to_string()),
        }
    }

    fn take(&mut self, bytes: Vec<u8>, life: Life) {
        if self.facts.epoch != life.epoch {
            tracing::warn!(epoch = life.epoch, "the store begins another life");
        }
        self.facts = Arc::new(StoreFacts {
            epoch: life.epoch.clone(),
            token_key: self.facts.token_key,
            loss: life.loss,
        });
        self.bytes = bytes;
        self.life = life;
    }
}

/// Refuses to open a store on a server that does not hold it as it was left.
///
/// # Errors
/// What to do.
pub(super) fn refuse_mismatch(server: Server, life: &Life) -> Result<(), OpenError> {
    match verdict(None, Some(server), life) {
        Verdict::Refuse(mismatch) => Err(OpenError(mismatch.to_string())),
        Verdict::Serve | Verdict::Wait => Ok(()),
    }
}
