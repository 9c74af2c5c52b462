//! Recorded editing sessions: reading them, and applying them in this process as the reference.
//!
//! What must stay true: positions and counts are Unicode code points; the patches of a transaction
//! apply in order. Deliberately not here: sessions of several writers, whose positions only mean
//! something in each writer's own view.

use std::io::Read;

use flate2::read::GzDecoder;
use ropey::Rope;
use serde::Deserialize;
use serde_json::{Value, json};

/// One edit: position, how many code points go, what comes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Edit(pub usize, pub usize, pub String);

/// A recorded session of one writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The text before.
    pub start: String,
    /// The text after.
    pub end: String,
    /// The edits, by transaction.
    pub transactions: Vec<Vec<Edit>>,
}

/// Why a session cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Not gzip.
    #[error("cannot be unpacked: {0}")]
    Unpack(#[from] std::io::Error),
    /// Not the form of the collection.
    #[error("is not a recorded session: {0}")]
    Form(#[from] serde_json::Error),
    /// Several writers.
    #[error(
        "is a session of several writers (its transactions have parents); only sessions of one \
         writer can be replayed one operation after the other"
    )]
    Concurrent,
    /// An edit outside the text.
    #[error("transaction {transaction} edits outside the text")]
    OutOfRange {
        /// Which, from 0.
        transaction: usize,
    },
}

#[derive(Deserialize)]
struct File {
    kind: Option<String>,
    #[serde(default, rename = "startContent")]
    start: String,
    #[serde(rename = "endContent")]
    end: String,
    txns: Vec<Transaction>,
}

#[derive(Deserialize)]
struct Transaction {
    parents: Option<Value>,
    patches: Vec<Edit>,
}

/// Reads a recorded session, packed with gzip or plain.
///
/// # Errors
/// [`TraceError`] when it cannot be replayed.
pub fn parse(bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut unpacked = Vec::new();
    let text = if bytes.starts_with(&[0x1f, 0x8b]) {
        GzDecoder::new(bytes).read_to_end(&mut unpacked)?;
        &unpacked[..]
    } else {
        bytes
    };
    // The kind is looked at first: the patches of several writers have another form.
    let head: Value = serde_json::from_slice(text)?;
    let parents = head.pointer("/txns/0/parents").is_some();
    if parents || head.get("kind").and_then(Value::as_str) == Some("concurrent") {
        return Err(TraceError::Concurrent);
    }
    drop(head);
    let file: File = serde_json::from_slice(text)?;
    let several = file.txns.iter().any(|transaction| transaction.parents.is_some());
    if several || file.kind.as_deref() == Some("concurrent") {
        return Err(TraceError::Concurrent);
    }
    let patches = file.txns.into_iter().map(|transaction| transaction.patches);
    let transactions = patches.filter(|edits| !edits.is_empty()).collect();
    Ok(Trace { start: file.start, end: file.end, transactions })
}

/// Applies a session in this process.
///
/// # Errors
/// [`TraceError::OutOfRange`] when an edit points outside the text.
pub fn apply(trace: &Trace) -> Result<String, TraceError> {
    let mut text = Rope::from_str(&trace.start);
    for (transaction, edits) in trace.transactions.iter().enumerate() {
        for Edit(position, count, inserted) in edits {
            let end = position.checked_add(*count).filter(|end| *end <= text.len_chars());
            let end = end.ok_or(TraceError::OutOfRange { transaction })?;
            text.remove(*position..end);
            text.insert(*position, inserted);
        }
    }
    Ok(text.to_string())
}

/// The arguments of `document.splice` for one transaction.
pub fn splice_arguments(edits: &[Edit]) -> Vec<u8> {
    let edits: Vec<Value> = edits
        .iter()
        .map(|Edit(position, count, inserted)| json!([position, count, inserted]))
        .collect();
    json!({ "edits": edits }).to_string().into_bytes()
}

/// A short session with characters outside the basic plane, with combining marks and joiners: a
/// service that counts bytes or UTF-16 units ends with another text.
pub fn builtin() -> Trace {
    let step = |position: usize, count: usize, text: &str| Edit(position, count, text.to_owned());
    let mut transactions = vec![
        vec![step(0, 0, "a😀b")],
        vec![step(2, 0, "e\u{301}")],
        vec![step(1, 1, "👩\u{200d}🚀")],
        vec![step(4, 2, ""), step(0, 0, "𝄞")],
        vec![step(0, 1, "漢字"), step(2, 0, "\u{1F1E9}\u{1F1EA}")],
    ];
    // Enough small steps at both ends to meet every boundary several times.
    for number in 0..40 {
        transactions.push(vec![step(number % 5, 0, if number % 2 == 0 { "🙂" } else { "ö" })]);
        if number % 4 == 3 {
            transactions.push(vec![step(number % 3, 2, "")]);
        }
    }
    let start = "“start”\n".to_owned();
    let mut trace = Trace { start, end: String::new(), transactions };
    trace.end = apply(&trace).expect("the built-in session edits inside its text");
    trace
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    /// A recorded session, or a loud word that it is not here.
    fn recorded(name: &str) -> Option<Vec<u8>> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/traces").join(name);
        let read = fs::read(&path);
        if read.is_err() {
            eprintln!("SKIPPED: {} is not here", path.display());
        }
        read.ok()
    }

    #[test]
    fn recorded_sessions_end_as_recorded() {
        let rows = [
            ("sveltecomponent.json.gz", 18_335),
            ("rustcode.json.gz", 36_981),
            ("friendsforever_flat.json.gz", 26_078),
            ("clownschool_flat.json.gz", 23_136),
        ];
        for (name, transactions) in rows {
            let Some(bytes) = recorded(name) else { continue };
            let trace = parse(&bytes).expect(name);
            assert_eq!(trace.transactions.len(), transactions, "{name}");
            assert!(apply(&trace).expect(name) == trace.end, "{name} ends otherwise");
        }
    }

    #[test]
    fn a_session_of_several_writers_is_refused() {
        let Some(bytes) = recorded("clownschool.concurrent.json.gz") else { return };
        let refused = parse(&bytes).expect_err("positions are of each writer's own view");
        assert!(matches!(refused, TraceError::Concurrent), "{refused}");
    }

    #[test]
    fn positions_are_code_points() {
        let trace = Trace {
            start: "😀é".to_owned(),
            end: String::new(),
            transactions: vec![vec![Edit(1, 1, "x".to_owned())]],
        };
        assert_eq!(apply(&trace).expect("inside the text"), "😀x");
        let outside = Trace { transactions: vec![vec![Edit(2, 1, String::new())]], ..trace };
        assert!(matches!(apply(&outside), Err(TraceError::OutOfRange { transaction: 0 })));
    }

    #[test]
    fn the_built_in_session_leaves_the_basic_plane() {
        let trace = builtin();
        assert!(trace.end.chars().any(|character| u32::from(character) > 0xffff));
        assert!(trace.transactions.len() > 40);
    }

    #[test]
    fn arguments_are_the_documented_form() {
        let arguments = splice_arguments(&[Edit(3, 1, "ä\"".to_owned())]);
        assert_eq!(arguments, "{\"edits\":[[3,1,\"ä\\\"\"]]}".as_bytes());
    }
}
