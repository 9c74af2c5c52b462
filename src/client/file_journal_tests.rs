use std::{error::Error, fs};

use super::{
    super::journal::tests::{entry, keeps_what_it_promises},
    *,
};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// How many whole lines stand in a file.
fn lines(path: &Path) -> usize {
    fs::read(path).expect("readable").split_inclusive(|byte| *byte == b'\n').count()
}

#[test]
fn a_journal_in_a_file_keeps_what_it_promises_also_after_a_restart() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    keeps_what_it_promises(&journal);
    let kept = journal.unsettled().expect("readable");
    drop(journal);
    let again = FileJournal::open(&path).expect("a whole file");
    assert_eq!(again.unsettled().expect("readable"), kept);
    let state = again.reader("editor", "laptop").expect("readable").expect("kept");
    assert_eq!(state.resume_token, "token");
}

#[test]
fn two_processes_never_share_a_journal() {
    let directory = directory();
    let path = directory.path().join("journal");
    let first = FileJournal::open(&path).expect("a new file");
    assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse(_))));
    drop(first);
    FileJournal::open(&path).expect("free again");
}

/// As a program that starts others has it: a new process holds every descriptor for a moment.
#[test]
fn a_journal_that_was_closed_is_free_whoever_still_has_a_copy_of_its_lock() {
    let directory = directory();
    let path = directory.path().join("journal");
    let first = FileJournal::open(&path).expect("a new file");
    let copy = first._lock.0.try_clone().expect("another descriptor");
    drop(first);
    let second = FileJournal::open(&path).expect("free again");
    drop(copy);
    assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse(_))), "held by the second");
    drop(second);
}

/// A crash may leave any beginning of the last line, and nothing of it may count or stop later
/// ones. What was recorded before is there.
#[test]
fn a_line_torn_at_any_byte_is_cut() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    journal.record(&entry(1)).expect("recorded");
    let before = fs::metadata(&path).expect("there").len();
    journal.record(&entry(2)).expect("recorded");
    drop(journal);
    let whole = fs::read(&path).expect("readable");
    let before = usize::try_from(before).expect("small");
    for end in before..whole.len() {
        fs::write(&path, &whole[..end]).expect("written");
        let journal = FileJournal::open(&path).expect("a torn line is cut");
        assert_eq!(journal.unsettled().expect("readable"), [entry(1)], "cut at {end}");
        assert_eq!(fs::metadata(&path).expect("there").len(), bytes_of(before));
        journal.record(&entry(3)).expect("recorded");
        drop(journal);
        let journal = FileJournal::open(&path).expect("a whole file");
        assert_eq!(journal.unsettled().expect("readable"), [entry(1), entry(3)], "cut at {end}");
    }
}

/// The same for every kind of line: what is left is what was there after the last whole one.
#[test]
fn a_file_cut_anywhere_holds_what_its_whole_lines_say() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    let held = |journal: &FileJournal| {
        let reader = journal.reader("editor", "laptop").expect("readable");
        (journal.unsettled().expect("readable"), reader)
    };
    let length = || usize::try_from(fs::metadata(&path).expect("there").len()).expect("small");
    let mut after = vec![(0, held(&journal))];
    let steps: [&dyn Fn() -> Result<(), JournalError>; 6] = [
        &|| journal.record(&entry(1)).map(drop),
        &|| journal.record(&entry(2)).map(drop),
        &|| journal.settle("save:1", EntryState::InDoubt),
        &|| journal.save_reader(&ReaderState::new("editor", "laptop")),
        &|| journal.settle("save:2", EntryState::Applied),
        &|| journal.forget("save:1"),
    ];
    for step in steps {
        step().expect("kept");
        after.push((length(), held(&journal)));
    }
    drop(journal);
    let whole = fs::read(&path).expect("readable");
    for end in 0..=whole.len() {
        fs::write(&path, &whole[..end]).expect("written");
        let journal = FileJournal::open(&path).expect("a torn line is cut");
        let expected = after.iter().rfind(|(length, _)| *length <= end).expect("the first one");
        assert_eq!(held(&journal), expected.1, "cut at {end}");
    }
}

/// Blocks of a line may reach the disk out of order, its end before its beginning.
#[test]
fn a_last_line_with_any_wrong_byte_is_cut_and_an_earlier_one_is_damage() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    journal.record(&entry(1)).expect("recorded");
    let first = usize::try_from(fs::metadata(&path).expect("there").len()).expect("small");
    journal.record(&entry(2)).expect("recorded");
    drop(journal);
    let whole = fs::read(&path).expect("readable");
    for at in 0..whole.len() {
        let mut wrong = whole.clone();
        wrong[at] = 0;
        fs::write(&path, &wrong).expect("written");
        match FileJournal::open(&path) {
            Ok(journal) => {
                assert!(at >= first, "a wrong byte at {at} passed");
                assert_eq!(journal.unsettled().expect("readable"), [entry(1)], "at {at}");
            }
            Err(JournalError::Damaged { line: 1, .. }) => {
                assert!(at < first, "at {at}");
                assert_eq!(fs::read(&path).expect("readable"), wrong, "damage is kept as it is");
            }
            Err(error) => panic!("at {at}: {error}"),
        }
    }
}

#[test]
fn a_large_file_is_written_anew_and_holds_the_same() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    journal.record(&entry(0)).expect("recorded");
    journal.save_reader(&ReaderState::new("editor", "laptop")).expect("kept");
    let mut large = entry(1);
    large.submission.intent.arguments = vec![b' '; 100 * 1024];
    let mut longest = 0;
    for number in 1..30 {
        large.identity = entry(number).identity;
        journal.record(&large).expect("recorded");
        journal.settle(large.identity.id(), EntryState::Applied).expect("noted");
        longest = longest.max(fs::metadata(&path).expect("there").len());
    }
    assert!(longest < COMPACT_BYTES_MIN + 200 * 1024, "{longest}");
    journal.record(&entry(99)).expect("recorded after it was written anew");
    drop(journal);
    let journal = FileJournal::open(&path).expect("a whole file");
    assert_eq!(journal.unsettled().expect("readable"), [entry(0), entry(99)]);
    assert!(journal.reader("editor", "laptop").expect("readable").is_some());
    assert!(!beside(&path, ".new").exists());
}

#[test]
fn what_is_kept_is_not_denied_because_the_file_could_not_be_written_anew() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    // A directory in its place: no file can be made there.
    fs::create_dir(beside(&path, ".new")).expect("made");
    let mut large = entry(1);
    large.submission.intent.arguments = vec![b' '; 100 * 1024];
    for number in 1..30 {
        large.identity = entry(number).identity;
        journal.record(&large).expect("kept, and told so");
        journal.settle(large.identity.id(), EntryState::Applied).expect("noted");
    }
    let longest = fs::metadata(&path).expect("there").len();
    assert!(longest > COMPACT_BYTES_MIN, "{longest}: it was due to be written anew");
    fs::remove_dir(beside(&path, ".new")).expect("removed");
    journal.record(&entry(99)).expect("kept");
    assert!(fs::metadata(&path).expect("there").len() < longest, "the next line tries again");
    drop(journal);
    let journal = FileJournal::open(&path).expect("a whole file");
    assert_eq!(journal.unsettled().expect("readable"), [entry(99)]);
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let directory = directory();
    let path = directory.path().join("journal");
    let journal = FileJournal::open(&path).expect("a new file");
    journal.record(&entry(1)).expect("recorded");
    journal.record(&entry(1)).expect("the same");
    journal.settle("nobody", EntryState::Applied).expect("nothing");
    journal.forget("nobody").expect("nothing");
    journal.settle("save:1", EntryState::Recorded).expect("nothing");
    let state = ReaderState::new("editor", "laptop");
    journal.save_reader(&state).expect("kept");
    journal.save_reader(&state).expect("the same");
    assert_eq!(lines(&path), 2);
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let directory = directory();
    let missing = directory.path().join("missing").join("journal");
    let error = FileJournal::open(&missing).expect_err("no such directory");
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(error.source().is_none() || !error.to_string().is_empty());
    let error = FileJournal::open(directory.path()).expect_err("a directory");
    assert!(matches!(error, JournalError::Io { .. }), "{error}");
}
