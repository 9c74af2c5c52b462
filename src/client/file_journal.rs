//! A journal in one file: lines that are only added, each with a checksum.
//!
//! What must stay true: what a call promises to be durable has reached the disk when it returns; a
//! line that a crash tore is cut at the next opening, and anything else that is wrong refuses the
//! file instead of losing an id; one process at a time; the file stays within a small multiple of
//! what it holds.
//! Deliberately not here: what the lines mean to the client (see [`super::journal`]).

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use prost::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    identity::OperationIdentity,
    journal::{EntryState, Journal, JournalEntry, JournalError, Ledger, Recorded},
    reader_state::ReaderState,
    submission::Submission,
};
use crate::proto::SubmitOperationRequest;

/// A file below this is not made smaller: writing it anew would cost more than it saves.
const COMPACT_BYTES_MIN: u64 = 1024 * 1024;
/// A larger file is written anew when it is this many times what it holds, so that each line is
/// copied a bounded number of times on average.
const COMPACT_FACTOR: u64 = 4;
/// The most bytes of unsettled submissions; the service takes requests of up to 4 MiB, and all of
/// this is in memory too.
const HELD_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Characters of the checksum: 64 bits of SHA-256, against torn and mixed-up writes.
const CHECKSUM_LENGTH: usize = 16;

/// One line of the file, before its checksum.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A submission; the request as on the wire, in base64.
    Record { identity: OperationIdentity, recorded_ms: i64, state: EntryState, request: String },
    /// How far it has come.
    State { id: String, state: EntryState },
    /// It is dropped.
    Forget { id: String },
    /// How far an inbox was read.
    Reader(ReaderState),
}

impl Line {
    fn of_entry(entry: &JournalEntry) -> Self {
        let request = entry.submission.to_request(&entry.identity);
        Line::Record {
            identity: entry.identity.clone(),
            recorded_ms: entry.recorded_ms,
            state: entry.state,
            request: BASE64.encode(request.encode_to_vec()),
        }
    }

    /// The line as it stands in the file: JSON, a tab, the checksum, a line feed.
    fn to_bytes(&self) -> Result<Vec<u8>, io::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        let checksum = checksum(&bytes);
        bytes.push(b'\t');
        bytes.extend(checksum.into_bytes());
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Back from the file, without the line feed; none if it is not whole.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.len().checked_sub(CHECKSUM_LENGTH + 1)?;
        let (json, tail) = bytes.split_at(end);
        let whole = tail[0] == b'\t' && tail[1..] == *checksum(json).as_bytes();
        whole.then(|| serde_json::from_slice(json).ok()).flatten()
    }

    /// Whom it speaks of. Ids hold no slash, so that the two kinds never meet.
    fn key(&self) -> (String, LineKind) {
        match self {
            Line::Record { identity, .. } => (identity.id().to_owned(), LineKind::Keeps),
            Line::State { id, .. } | Line::Forget { id } => (id.clone(), LineKind::Notes),
            Line::Reader(state) => {
                (format!("{}/{}", state.inbox, state.consumer_id), LineKind::Keeps)
            }
        }
    }

    /// None: a whole line that cannot be understood.
    fn apply(self, ledger: &mut Ledger) -> Option<()> {
        match self {
            Line::Record { identity, recorded_ms, state, request } => {
                let request = BASE64.decode(request).ok()?;
                let request = SubmitOperationRequest::decode(request.as_slice()).ok()?;
                let submission = Submission::from_request(request);
                ledger.record(JournalEntry { identity, submission, recorded_ms, state });
            }
            Line::State { id, state } => ledger.settle(&id, state),
            Line::Forget { id } => ledger.forget(&id),
            Line::Reader(state) => ledger.save_reader(state),
        }
        Some(())
    }
}

fn checksum(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(CHECKSUM_LENGTH / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// A journal in one file. It is free for others when the last clone of its client is dropped and the
/// call on it that runs then has ended.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    inner: Mutex<Inner>,
    /// Held as long as the journal: the file itself is replaced at times.
    _lock: Lock,
}

/// The file beside it, locked for this journal.
#[derive(Debug)]
struct Lock(File);

/// Released by name: closing the file releases nothing while a copy of its descriptor is open, and a
/// process that is being started elsewhere in this program has one until it runs its own program.
impl Drop for Lock {
    fn drop(&mut self) {
        // Where that fails the lock ends with the last copy.
        let _ = self.0.unlock();
    }
}

#[derive(Debug)]
struct Inner {
    file: File,
    ledger: Ledger,
    /// Whole lines only.
    bytes: u64,
    held: Held,
    broken: bool,
}

/// How large the file would be if it were written anew: the size of each line that still counts.
#[derive(Debug, Default)]
struct Held {
    sizes: BTreeMap<String, u64>,
    bytes: u64,
}

impl Held {
    fn add(&mut self, key: String, bytes: u64) {
        self.bytes += bytes;
        self.bytes -= self.sizes.insert(key, bytes).unwrap_or(0);
    }

    fn remove(&mut self, key: &str) {
        self.bytes -= self.sizes.remove(key).unwrap_or(0);
    }

    /// Counts a line of this size after it was applied to the ledger.
    fn count(&mut self, key: String, bytes: u64, line: LineKind, ledger: &Ledger) {
        match line {
            LineKind::Keeps => self.add(key, bytes),
            LineKind::Notes if ledger.entry(&key).is_none() => self.remove(&key),
            LineKind::Notes => {}
        }
    }
}

/// What a line does to the size of what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// It holds something.
    Keeps,
    /// It says something about what another line holds.
    Notes,
}

impl FileJournal {
    /// Opens a journal, or makes one. A line that a crash tore is cut.
    ///
    /// # Errors
    /// [`JournalError`] when another process has it, when it is damaged, or when its files (this
    /// one and `PATH.lock` beside it) cannot be used.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, JournalError> {
        let path: PathBuf = path.into();
        let failed = |source| JournalError::Io { path: path.clone(), source };
        let lock_path = beside(&path, ".lock");
        let lock = File::options().create(true).append(true).open(&lock_path).map_err(failed)?;
        let lock = match lock.try_lock() {
            Ok(()) => Lock(lock),
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(path)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        };
        let mut file =
            File::options().create(true).read(true).append(true).open(&path).map_err(failed)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        let Read { ledger, held, bytes } = read_lines(&path, &text)?;
        if bytes < bytes_of(text.len()) {
            file.set_len(bytes).map_err(failed)?;
        }
        // What was read may have been written without having reached the disk.
        file.sync_all().and_then(|()| sync_directory(&path)).map_err(failed)?;
        let inner = Inner { file, ledger, bytes, held, broken: false };
        Ok(FileJournal { path, inner: Mutex::new(inner), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic between the file and the ledger would have been one of ours; what the file holds
        // is read again at the next opening.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to the file, then to the ledger. It has reached the disk on return: with one
    /// line at most that has not, a crash tears nothing but the last one.
    fn add(&self, inner: &mut Inner, line: Line) -> Result<(), JournalError> {
        let broken = || JournalError::Broken(self.path.clone());
        if inner.broken {
            return Err(broken());
        }
        let failed = |source| JournalError::Io { path: self.path.clone(), source };
        let bytes = line.to_bytes().map_err(failed)?;
        inner.append(&bytes).map_err(failed)?;
        let (key, kind) = line.key();
        if line.apply(&mut inner.ledger).is_none() {
            // We wrote it ourselves a moment ago.
            inner.broken = true;
            return Err(broken());
        }
        inner.held.count(key, bytes_of(bytes.len()), kind, &inner.ledger);
        if inner.bytes > COMPACT_BYTES_MIN.max(COMPACT_FACTOR * inner.held.bytes) {
            // The line is kept whatever comes of this: to report a failure would deny it. The next
            // line tries again.
            let _ = self.compact(inner);
        }
        Ok(())
    }

    /// Writes what is held into a new file and puts it in the place of the old one. A crash leaves
    /// one of the two, and both hold the same.
    fn compact(&self, inner: &mut Inner) -> Result<(), io::Error> {
        let mut lines = Vec::new();
        for entry in inner.ledger.entries() {
            lines.extend(Line::of_entry(entry).to_bytes()?);
        }
        for state in inner.ledger.readers() {
            lines.extend(Line::Reader(state.clone()).to_bytes()?);
        }
        let new_path = beside(&self.path, ".new");
        let mut new = File::create(&new_path)?;
        new.write_all(&lines)?;
        new.sync_all()?;
        drop(new);
        fs::rename(&new_path, &self.path)?;
        // From here on the old file is nobody's: without the new one nothing may be promised.
        inner.broken = true;
        inner.file = File::options().read(true).append(true).open(&self.path)?;
        sync_directory(&self.path)?;
        inner.broken = false;
        inner.bytes = bytes_of(lines.len());
        Ok(())
    }
}

impl Inner {
    /// Adds whole lines. What a failed write left is cut; where that fails too, or where nobody
    /// knows what reached the disk, nothing is written any more.
    fn append(&mut self, bytes: &[u8]) -> Result<(), io::Error> {
        if let Err(error) = self.file.write_all(bytes) {
            self.broken = self.file.set_len(self.bytes).is_err();
            return Err(error);
        }
        if let Err(error) = self.file.sync_data() {
            // Best effort: a line that is reported as not kept should not be found later.
            let _ = self.file.set_len(self.bytes);
            self.broken = true;
            return Err(error);
        }
        self.bytes += bytes_of(bytes.len());
        Ok(())
    }
}

impl Journal for FileJournal {
    fn record(&self, entry: &JournalEntry) -> Result<Recorded, JournalError> {
        let mut inner = self.inner();
        if inner.ledger.admit(entry)? == Recorded::Already {
            return Ok(Recorded::Already);
        }
        if inner.held.bytes > HELD_BYTES_MAX {
            return Err(JournalError::Full("64 MiB of unsettled submissions"));
        }
        self.add(&mut inner, Line::of_entry(entry)).map(|()| Recorded::New)
    }

    fn settle(&self, id: &str, state: EntryState) -> Result<(), JournalError> {
        let mut inner = self.inner();
        match inner.ledger.entry(id) {
            Some(entry) if entry.state != state => {}
            Some(_) | None => return Ok(()),
        }
        self.add(&mut inner, Line::State { id: id.to_owned(), state })
    }

    fn unsettled(&self) -> Result<Vec<JournalEntry>, JournalError> {
        Ok(self.inner().ledger.entries().cloned().collect())
    }

    fn forget(&self, id: &str) -> Result<(), JournalError> {
        let mut inner = self.inner();
        if inner.ledger.entry(id).is_none() {
            return Ok(());
        }
        self.add(&mut inner, Line::Forget { id: id.to_owned() })
    }

    fn save_reader(&self, state: &ReaderState) -> Result<(), JournalError> {
        let mut inner = self.inner();
        inner.ledger.admit_reader(state)?;
        if inner.ledger.reader(&state.inbox, &state.consumer_id) == Some(state) {
            return Ok(());
        }
        self.add(&mut inner, Line::Reader(state.clone()))
    }

    fn reader(&self, inbox: &str, consumer_id: &str) -> Result<Option<ReaderState>, JournalError> {
        Ok(self.inner().ledger.reader(inbox, consumer_id).cloned())
    }
}

/// What a file holds.
struct Read {
    ledger: Ledger,
    held: Held,
    /// Whole lines only.
    bytes: u64,
}

/// Reads whole lines. Only the last one may be torn.
fn read_lines(path: &Path, text: &[u8]) -> Result<Read, JournalError> {
    let (mut ledger, mut held) = (Ledger::default(), Held::default());
    let mut whole = 0;
    for (number, bytes) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let line = bytes.strip_suffix(b"\n").and_then(Line::from_bytes);
        let key = line.as_ref().map(Line::key);
        let applied = line.and_then(|line| line.apply(&mut ledger));
        let (Some((key, kind)), Some(())) = (key, applied) else {
            if whole + bytes.len() < text.len() || begins_with_whole_line(bytes) {
                return Err(JournalError::Damaged { path: path.to_owned(), line: number + 1 });
            }
            break;
        };
        held.count(key, bytes_of(bytes.len()), kind, &ledger);
        whole += bytes.len();
    }
    Ok(Read { ledger, held, bytes: bytes_of(whole) })
}

/// Whether a line that is not whole is two of them, the first of which had ended: JSON holds no tab,
/// so that the first one ends it.
fn begins_with_whole_line(bytes: &[u8]) -> bool {
    let Some(tab) = bytes.iter().position(|byte| *byte == b'\t') else { return false };
    let end = tab + 1 + CHECKSUM_LENGTH;
    bytes.len() > end + 1 && Line::from_bytes(&bytes[..end]).is_some()
}

fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// A new name is durable when its directory is.
#[cfg(unix)]
fn sync_directory(path: &Path) -> Result<(), io::Error> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Elsewhere a directory cannot be opened, and its changes are durable with the file's.
#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> Result<(), io::Error> {
    Ok(())
}

#[cfg(test)]
#[path = "file_journal_tests.rs"]
mod tests;
