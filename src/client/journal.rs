//! What a client keeps so that a restart finds it: submissions that are not settled, and how far
//! each inbox was read.
//!
//! What must stay true: a submission is recorded durably before the first byte of it leaves; what
//! is not settled is found again whatever happened to the process; one id never stands for two
//! submissions; both kinds are bounded.
//! Deliberately not here: sending, and deciding what an unsettled submission needs (see
//! [`super::recover`]).

use std::{
    collections::BTreeMap,
    fmt, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{identity::OperationIdentity, reader_state::ReaderState, submission::Submission};
use crate::proto::operation::State;

/// The most unsettled submissions: more means that nobody settles them, and looking all of them up
/// after a restart (100 in a call) must stay a matter of seconds.
pub const UNSETTLED_MAX: usize = 10_000;
/// The most readers whose state is kept: an installation reads a few inboxes.
pub const READERS_MAX: usize = 1_000;

/// How far an entry has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// Kept; whether it was sent is not known.
    Recorded,
    /// The service has it, and it has not ended.
    Accepted,
    /// It was sent, and nobody has said what became of it.
    InDoubt,
    /// Settled: the effect is complete.
    Applied,
    /// Settled: refused before execution, recorded, no effect.
    Rejected,
    /// Settled: ended with no effect or a part of it, as declared.
    Failed,
    /// Settled: no effect.
    Cancelled,
    /// Settled: the service refused it, or it never reached the service; no effect, no record.
    NoEffect,
    /// Settled as far as it can be: the evidence is no longer kept.
    Expired,
}

impl EntryState {
    /// What an operation's state means for its entry.
    pub(crate) fn of(state: State) -> Self {
        match state {
            State::Applied => EntryState::Applied,
            State::Rejected => EntryState::Rejected,
            State::Failed => EntryState::Failed,
            State::Cancelled => EntryState::Cancelled,
            State::Accepted | State::Running => EntryState::Accepted,
            State::Unknown | State::Unspecified => EntryState::InDoubt,
        }
    }

    /// Whether nothing is left to find out.
    pub fn is_settled(self) -> bool {
        match self {
            EntryState::Recorded | EntryState::Accepted | EntryState::InDoubt => false,
            EntryState::Applied
            | EntryState::Rejected
            | EntryState::Failed
            | EntryState::Cancelled
            | EntryState::NoEffect
            | EntryState::Expired => true,
        }
    }
}

/// What recording found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The entry is new.
    New,
    /// The same entry was there, unsettled: it may have been sent before.
    Already,
}

/// A submission in a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    /// Who the operation is.
    pub identity: OperationIdentity,
    /// All of what is to be done, so that the same can be sent again.
    pub submission: Submission,
    /// When it was recorded, by this machine's clock, in milliseconds since 1970.
    pub recorded_ms: i64,
    /// How far it has come.
    pub state: EntryState,
}

/// Why a journal did not do what it was asked. Nothing was sent because of it.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("the journal {path} cannot be used: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process uses it: two would settle each other's submissions.
    #[error("the journal {0} is in use by another process; give each process a journal of its own")]
    InUse(PathBuf),
    /// A line before the last one does not have its checksum: something else wrote into the file.
    #[error(
        "line {line} of the journal {path} is damaged; keep the file, look up the ids that it \
         still names, and start with another one"
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An earlier write failed half way, so that nobody knows what the file holds. Opening it again
    /// finds out.
    #[error("an earlier write to the journal {0} failed; open it again")]
    Broken(PathBuf),
    /// There is no room for another one.
    #[error("the journal holds {0}, which is its limit; settle or forget some (recover)")]
    Full(&'static str),
    /// The id stands for another submission that is not settled.
    #[error("operation {0} is in the journal with another submission; use an id of its own")]
    OtherSubmission(String),
    /// A journal of your own says why.
    #[error("the journal failed")]
    Own(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where a client keeps what a restart must find. Implement it over a store of your own to record
/// a submission together with what caused it.
///
/// Calls may block: the client makes them where blocking is allowed, one after the other for one
/// submission and at the same time for several.
pub trait Journal: fmt::Debug + Send + Sync {
    /// Keeps an entry; durable on return, which comes before the first byte of the submit. The
    /// same entry again changes nothing.
    ///
    /// # Errors
    /// [`JournalError`]: the submission is not sent.
    fn record(&self, entry: &JournalEntry) -> Result<Recorded, JournalError>;

    /// Notes how far an operation has come. An id that is not kept is not an error.
    /// [`EntryState::NoEffect`] is durable on return: the service has no record of it, so that a
    /// recovery which does not know of it might send the operation. Another state that is lost in a
    /// crash is looked up once more, and need not be.
    ///
    /// # Errors
    /// [`JournalError`]: the entry stays as it was.
    fn settle(&self, id: &str, state: EntryState) -> Result<(), JournalError>;

    /// What is not settled, oldest first.
    ///
    /// # Errors
    /// [`JournalError`]: what is unsettled is not known.
    fn unsettled(&self) -> Result<Vec<JournalEntry>, JournalError>;

    /// Drops an entry whose outcome nobody wants to know any more; durable on return.
    ///
    /// # Errors
    /// [`JournalError`]: the entry stays.
    fn forget(&self, id: &str) -> Result<(), JournalError>;

    /// Keeps how far an inbox was read; durable on return, in place of the state before.
    ///
    /// # Errors
    /// [`JournalError`]: after a restart, results that were handled since come again.
    fn save_reader(&self, state: &ReaderState) -> Result<(), JournalError>;

    /// How far this consumer has read this inbox, if it was kept.
    ///
    /// # Errors
    /// [`JournalError`]: it is not known.
    fn reader(&self, inbox: &str, consumer_id: &str) -> Result<Option<ReaderState>, JournalError>;
}

/// What a journal holds, apart from where it is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// By the order of recording.
    entries: BTreeMap<u64, JournalEntry>,
    numbers: BTreeMap<String, u64>,
    last_number: u64,
    readers: BTreeMap<(String, String), ReaderState>,
}

impl Ledger {
    /// Whether an entry may be recorded, and whether it is new.
    pub(crate) fn admit(&self, entry: &JournalEntry) -> Result<Recorded, JournalError> {
        if let Some(kept) = self.entry(entry.identity.id()) {
            let same = kept.identity == entry.identity && kept.submission == entry.submission;
            let other = || JournalError::OtherSubmission(entry.identity.id().to_owned());
            return same.then_some(Recorded::Already).ok_or_else(other);
        }
        if self.entries.len() >= UNSETTLED_MAX {
            return Err(JournalError::Full("10,000 unsettled submissions"));
        }
        Ok(Recorded::New)
    }

    pub(crate) fn record(&mut self, entry: JournalEntry) {
        self.last_number += 1;
        self.numbers.insert(entry.identity.id().to_owned(), self.last_number);
        self.entries.insert(self.last_number, entry);
    }

    pub(crate) fn entry(&self, id: &str) -> Option<&JournalEntry> {
        self.entries.get(self.numbers.get(id)?)
    }

    /// Settled entries are dropped: nothing is left to find out about them.
    pub(crate) fn settle(&mut self, id: &str, state: EntryState) {
        if state.is_settled() {
            self.forget(id);
        } else if let Some(entry) =
            self.numbers.get(id).and_then(|number| self.entries.get_mut(number))
        {
            entry.state = state;
        }
    }

    pub(crate) fn forget(&mut self, id: &str) {
        if let Some(number) = self.numbers.remove(id) {
            self.entries.remove(&number);
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &JournalEntry> {
        self.entries.values()
    }

    /// Whether a reader's state may be kept.
    pub(crate) fn admit_reader(&self, state: &ReaderState) -> Result<(), JournalError> {
        let full = self.readers.len() >= READERS_MAX && !self.readers.contains_key(&key(state));
        if full { Err(JournalError::Full("the states of 1,000 readers")) } else { Ok(()) }
    }

    pub(crate) fn save_reader(&mut self, state: ReaderState) {
        self.readers.insert(key(&state), state);
    }

    pub(crate) fn reader(&self, inbox: &str, consumer_id: &str) -> Option<&ReaderState> {
        self.readers.get(&(inbox.to_owned(), consumer_id.to_owned()))
    }

    pub(crate) fn readers(&self) -> impl Iterator<Item = &ReaderState> {
        self.readers.values()
    }
}

fn key(state: &ReaderState) -> (String, String) {
    (state.inbox.clone(), state.consumer_id.clone())
}

/// A journal that ends with its process: for tests, and for programs that need no restart.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    ledger: Mutex<Ledger>,
}

impl MemoryJournal {
    /// An empty one.
    pub fn new() -> Self {
        MemoryJournal::default()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Every change of a ledger is whole, whoever panicked meanwhile.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryJournal {
    fn record(&self, entry: &JournalEntry) -> Result<Recorded, JournalError> {
        let mut ledger = self.ledger();
        let recorded = ledger.admit(entry)?;
        if recorded == Recorded::New {
            ledger.record(entry.clone());
        }
        Ok(recorded)
    }

    fn settle(&self, id: &str, state: EntryState) -> Result<(), JournalError> {
        self.ledger().settle(id, state);
        Ok(())
    }

    fn unsettled(&self) -> Result<Vec<JournalEntry>, JournalError> {
        Ok(self.ledger().entries().cloned().collect())
    }

    fn forget(&self, id: &str) -> Result<(), JournalError> {
        self.ledger().forget(id);
        Ok(())
    }

    fn save_reader(&self, state: &ReaderState) -> Result<(), JournalError> {
        let mut ledger = self.ledger();
        ledger.admit_reader(state)?;
        ledger.save_reader(state.clone());
        Ok(())
    }

    fn reader(&self, inbox: &str, consumer_id: &str) -> Result<Option<ReaderState>, JournalError> {
        Ok(self.ledger().reader(inbox, consumer_id).cloned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// An entry with a number in its id and in its arguments.
    pub(crate) fn entry(number: i64) -> JournalEntry {
        let line = json!({ "line": format!("line {number}") });
        JournalEntry {
            identity: OperationIdentity::from_caller(&format!("save:{number}"), 1_000 + number)
                .expect("a valid identity"),
            submission: Submission::json("document.append", "notes/today", &line),
            recorded_ms: 2_000 + number,
            state: EntryState::Recorded,
        }
    }

    /// What every journal does, whatever it is kept in.
    pub(crate) fn keeps_what_it_promises(journal: &dyn Journal) {
        for number in [2, 1, 3] {
            journal.record(&entry(number)).expect("recorded");
        }
        journal.record(&entry(1)).expect("the same again changes nothing");
        let other = JournalEntry { submission: entry(9).submission, ..entry(1) };
        assert!(matches!(journal.record(&other), Err(JournalError::OtherSubmission(_))));
        let kept = journal.unsettled().expect("readable");
        assert_eq!(kept, [entry(2), entry(1), entry(3)], "oldest first");

        journal.settle("save:1", EntryState::Accepted).expect("noted");
        journal.settle("save:2", EntryState::Applied).expect("noted");
        journal.settle("nobody", EntryState::Applied).expect("not an error");
        journal.forget("save:3").expect("dropped");
        let kept = journal.unsettled().expect("readable");
        assert_eq!(kept, [JournalEntry { state: EntryState::Accepted, ..entry(1) }]);

        let mut state = ReaderState::new("editor", "laptop");
        assert_eq!(journal.reader("editor", "laptop").expect("readable"), None);
        journal.save_reader(&state).expect("kept");
        state.resume_token = "token".to_owned();
        journal.save_reader(&state).expect("kept");
        assert_eq!(journal.reader("editor", "laptop").expect("readable"), Some(state));
        assert_eq!(journal.reader("editor", "desktop").expect("readable"), None);
    }

    #[test]
    fn a_journal_in_memory_keeps_what_it_promises() {
        keeps_what_it_promises(&MemoryJournal::new());
    }

    #[test]
    fn a_journal_is_bounded() {
        let journal = MemoryJournal::new();
        for number in 0..i64::try_from(UNSETTLED_MAX).expect("small") {
            journal.record(&entry(number)).expect("room");
        }
        assert!(matches!(journal.record(&entry(-1)), Err(JournalError::Full(_))));
        journal.settle("save:0", EntryState::NoEffect).expect("noted");
        journal.record(&entry(-1)).expect("room again");
        for number in 0..READERS_MAX {
            journal.save_reader(&ReaderState::new(number.to_string(), "c")).expect("room");
        }
        let one_more = journal.save_reader(&ReaderState::new("more", "c"));
        assert!(matches!(one_more, Err(JournalError::Full(_))));
        journal.save_reader(&ReaderState::new("0", "c")).expect("in place of the one before");
    }

    #[test]
    fn what_is_settled() {
        use EntryState::*;
        for state in [Recorded, Accepted, InDoubt] {
            assert!(!state.is_settled(), "{state:?}");
        }
        for state in [Applied, Rejected, Failed, Cancelled, NoEffect, Expired] {
            assert!(state.is_settled(), "{state:?}");
        }
    }
}
