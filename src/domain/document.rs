//! Built-in documents: their row and the six actions that change them (contract section 5).
//!
//! What must stay true: a revision is never used twice for a path; an action either yields the
//! whole new content or a rejection, never a part. Deliberately not here: locks and receipts.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    ids::{Invalid, Timestamp},
    intent::{CONTENT_TYPE_BYTES_MAX, Intent, JSON},
    json,
    lock::TargetKey,
    operation::{Rejection, RejectionReason},
    patch,
};

/// Edits of one `document.splice` at most (contract section 5).
pub const EDITS_MAX: usize = 1_000;
/// The content type of text whose writer named none.
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const BINARY: &str = "application/octet-stream";

/// The names of the actions, as an unknown one is told.
pub const ACTIONS: [&str; 6] = [
    "document.put",
    "document.splice",
    "document.append",
    "document.json_patch",
    "document.merge_patch",
    "document.delete",
];

/// One document as stored. The row of a deleted document stays as a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The key.
    pub key: TargetKey,
    /// From 1; rises by one per applied operation.
    pub revision: i64,
    /// From 1; rises when a deleted document is created again.
    pub generation: i64,
    /// Whether there is a document now.
    pub exists: bool,
    /// The content's type; empty after a delete.
    pub content_type: String,
    /// Absent: not loaded, and left as it is by a save.
    pub content: Option<Bytes>,
    /// The content's size in bytes.
    pub size: i64,
    /// SHA-256 of the content; zeros after a delete.
    pub content_hash: [u8; 32],
    /// When it was created in this generation.
    pub create_time: Timestamp,
    /// When it last changed.
    pub update_time: Timestamp,
    /// Whether the lock table has a row for it.
    pub locked: bool,
}

/// What an applied operation changed (R60).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentChange {
    /// The revision before; 0 if there was no document.
    pub base_revision: i64,
    /// The revision it made.
    pub result_revision: i64,
    /// The generation of the result.
    pub generation: i64,
    /// Bytes before.
    pub size_before: i64,
    /// Bytes after.
    pub size_after: i64,
    /// SHA-256 before; empty if there was no document.
    pub hash_before: Vec<u8>,
    /// SHA-256 after; empty after a delete.
    pub hash_after: Vec<u8>,
    /// Edits of a splice, operations of a JSON patch, else one.
    pub edits: i32,
}

/// A parsed action: nothing about it can be wrong on its own.
#[derive(Debug, Clone, PartialEq)]
pub enum DocumentAction {
    /// Replaces the content.
    Put {
        /// The new content.
        content: Bytes,
        /// Its type.
        content_type: String,
    },
    /// Edits in order; positions and counts in Unicode code points.
    Splice(Vec<Edit>),
    /// Adds text at the end.
    Append(String),
    /// RFC 6902.
    JsonPatch(json_patch::Patch),
    /// RFC 7396.
    MergePatch(Value),
    /// Removes the document; its row stays as a marker.
    Delete,
}

/// One edit of a splice.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Edit(
    /// Where, in code points.
    pub u64,
    /// How many code points go.
    pub u64,
    /// What comes.
    pub String,
);

#[derive(Deserialize)]
struct PutArguments {
    content: Option<String>,
    content_base64: Option<String>,
    content_type: Option<String>,
}

#[derive(Deserialize)]
struct SpliceArguments {
    edits: Vec<Edit>,
}

#[derive(Deserialize)]
struct AppendArguments {
    text: Option<String>,
    line: Option<String>,
}

#[derive(Deserialize)]
struct JsonPatchArguments {
    patch: json_patch::Patch,
}

impl DocumentAction {
    /// Whether the action looks at the content before.
    pub fn reads_content(&self) -> bool {
        match self {
            DocumentAction::Put { .. } | DocumentAction::Delete => false,
            DocumentAction::Splice(_)
            | DocumentAction::Append(_)
            | DocumentAction::JsonPatch(_)
            | DocumentAction::MergePatch(_) => true,
        }
    }

    fn creates(&self) -> bool {
        match self {
            DocumentAction::Put { .. }
            | DocumentAction::Splice(_)
            | DocumentAction::Append(_)
            | DocumentAction::MergePatch(_) => true,
            DocumentAction::JsonPatch(_) | DocumentAction::Delete => false,
        }
    }

    fn edits(&self) -> i32 {
        let count = match self {
            DocumentAction::Splice(edits) => edits.len(),
            DocumentAction::JsonPatch(patch) => patch.0.len(),
            DocumentAction::Put { .. }
            | DocumentAction::Append(_)
            | DocumentAction::MergePatch(_)
            | DocumentAction::Delete => 1,
        };
        i32::try_from(count).unwrap_or(i32::MAX)
    }
}

/// Parses the action of an intent from its arguments as they were hashed, so that spellings with
/// one digest have one meaning. `None` for an action that is not one of the six.
///
/// Members of the arguments that the action does not know are ignored by it, and bound by the
/// digest like all others.
///
/// # Errors
/// [`Invalid`] for whatever can be seen from the request alone.
pub fn parse(intent: &Intent, hashed: &Bytes) -> Option<Result<DocumentAction, Invalid>> {
    Some(match intent.action.as_str() {
        "document.put" if intent.content_type != JSON => Ok(DocumentAction::Put {
            content: hashed.clone(),
            content_type: intent.content_type.clone(),
        }),
        "document.put" => read::<PutArguments>(intent, hashed).and_then(put),
        "document.splice" => read::<SpliceArguments>(intent, hashed).and_then(splice),
        "document.append" => read::<AppendArguments>(intent, hashed).and_then(append),
        "document.json_patch" => json_patch_action(intent, hashed),
        "document.merge_patch" => read::<Value>(intent, hashed).and_then(merge_patch),
        "document.delete" => read::<Value>(intent, hashed).and_then(|arguments| match arguments {
            Value::Object(_) => Ok(DocumentAction::Delete),
            _ => Err(wrong("must be an object; document.delete takes {}")),
        }),
        _ => return None,
    })
}

fn wrong(problem: impl Into<String>) -> Invalid {
    Invalid::new("intent.arguments", problem)
}

fn read<T: serde::de::DeserializeOwned>(intent: &Intent, hashed: &[u8]) -> Result<T, Invalid> {
    if intent.content_type != JSON {
        return Err(Invalid::new(
            "intent.content_type",
            format!("{} takes {JSON} only", intent.action),
        ));
    }
    // serde would also take an array for a struct, by the order of its fields.
    if hashed.first() != Some(&b'{') {
        return Err(wrong(format!("must be a JSON object for {}", intent.action)));
    }
    serde_json::from_slice(hashed).map_err(|_| {
        // The library's message may quote a value; what fits is said instead.
        let shape = match intent.action.as_str() {
            "document.put" => r#"{"content": "text"} or {"content_base64": "…"}"#,
            "document.splice" => r#"{"edits": [[position, delete_count, "text"], …]}"#,
            "document.append" => r#"{"text": "…"} or {"line": "…"}"#,
            "document.json_patch" => r#"{"patch": […]} (RFC 6902)"#,
            "document.merge_patch" => r#"{"patch": …} (RFC 7396)"#,
            _ => "{}",
        };
        wrong(format!("do not fit {}; it takes {shape}", intent.action))
    })
}

fn put(arguments: PutArguments) -> Result<DocumentAction, Invalid> {
    let content_type = arguments.content_type;
    if content_type.as_deref().is_some_and(|kind| !is_content_type(kind)) {
        return Err(wrong(format!(
            "content_type must be 1 to {CONTENT_TYPE_BYTES_MAX} bytes of printable ASCII"
        )));
    }
    let (content, default) = match (arguments.content, arguments.content_base64) {
        (Some(text), None) => (Bytes::from(text), PLAIN_TEXT),
        (None, Some(encoded)) => (
            Bytes::from(
                STANDARD
                    .decode(encoded)
                    .map_err(|_| wrong("content_base64 is not standard base64 with padding"))?,
            ),
            BINARY,
        ),
        _ => return Err(wrong("need exactly one of content and content_base64")),
    };
    let content_type = content_type.unwrap_or_else(|| default.to_owned());
    Ok(DocumentAction::Put { content, content_type })
}

/// Whether `text` can be a content type: printable ASCII of a bounded length.
pub fn is_content_type(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= CONTENT_TYPE_BYTES_MAX
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn splice(arguments: SpliceArguments) -> Result<DocumentAction, Invalid> {
    match arguments.edits.len() {
        0 => Err(wrong("edits must not be empty")),
        count if count > EDITS_MAX => {
            Err(wrong(format!("holds {count} edits; at most {EDITS_MAX} are allowed")))
        }
        _ => Ok(DocumentAction::Splice(arguments.edits)),
    }
}

fn append(arguments: AppendArguments) -> Result<DocumentAction, Invalid> {
    match (arguments.text, arguments.line) {
        (Some(text), None) => Ok(DocumentAction::Append(text)),
        (None, Some(line)) => Ok(DocumentAction::Append(line + "\n")),
        _ => Err(wrong("need exactly one of text and line")),
    }
}

fn json_patch_action(intent: &Intent, hashed: &[u8]) -> Result<DocumentAction, Invalid> {
    let JsonPatchArguments { patch } = read(intent, hashed)?;
    match patch.0.len() {
        0 => Err(wrong("patch must not be empty")),
        count if count > EDITS_MAX => {
            Err(wrong(format!("holds {count} operations; at most {EDITS_MAX} are allowed")))
        }
        _ => Ok(DocumentAction::JsonPatch(patch)),
    }
}

fn merge_patch(arguments: Value) -> Result<DocumentAction, Invalid> {
    match arguments {
        Value::Object(mut members) => match members.remove("patch") {
            Some(patch) => Ok(DocumentAction::MergePatch(patch)),
            None => Err(wrong(r#"need the member "patch""#)),
        },
        _ => Err(wrong(r#"must be an object with the member "patch""#)),
    }
}

/// Whether content of this type is edited as text.
pub fn is_text(content_type: &str, content: &[u8]) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let textual = kind.starts_with("text/") || kind == JSON || kind.ends_with("+json");
    textual && std::str::from_utf8(content).is_ok()
}

fn rejected(reason: RejectionReason, text: impl Into<String>) -> Rejection {
    Rejection { reason, text: text.into(), found_revision: None }
}

/// Applies `action` to the document as it is. The caller has loaded the content if
/// [`DocumentAction::reads_content`] says so; an absent row is a path that was never used.
///
/// Returns the row after and what changed.
///
/// # Errors
/// The [`Rejection`] to record.
pub fn apply(
    key: &TargetKey,
    before: Option<&Document>,
    action: &DocumentAction,
    expected_revision: Option<i64>,
    size_max: usize,
    now: Timestamp,
) -> Result<(Document, DocumentChange), Rejection> {
    let live = before.filter(|document| document.exists);
    check_revision(live, expected_revision)?;
    if live.is_none() && !action.creates() {
        return Err(rejected(
            RejectionReason::DocumentMissing,
            "there is no document at the target, and this action creates none",
        ));
    }
    let content = new_content(live, action, size_max)?;
    let revision = before.map_or(1, |document| document.revision + 1);
    let generation = match (before, live) {
        (None, _) => 1,
        (Some(marker), None) => marker.generation + 1,
        (Some(_), Some(document)) => document.generation,
    };
    let (exists, content_type, content) = match content {
        Some((content_type, content)) => (true, content_type, content),
        None => (false, String::new(), Bytes::new()),
    };
    let hash: [u8; 32] = if exists { Sha256::digest(&content).into() } else { [0; 32] };
    let size = i64::try_from(content.len()).unwrap_or(i64::MAX);
    let change = DocumentChange {
        base_revision: live.map_or(0, |document| document.revision),
        result_revision: revision,
        generation,
        size_before: live.map_or(0, |document| document.size),
        size_after: size,
        hash_before: live.map_or_else(Vec::new, |document| document.content_hash.to_vec()),
        hash_after: if exists { hash.to_vec() } else { Vec::new() },
        edits: action.edits(),
    };
    let after = Document {
        key: key.clone(),
        revision,
        generation,
        exists,
        content_type,
        content: Some(content),
        size,
        content_hash: hash,
        create_time: live.map_or(now, |document| document.create_time),
        update_time: now,
        locked: before.is_some_and(|document| document.locked),
    };
    Ok((after, change))
}

fn check_revision(live: Option<&Document>, expected: Option<i64>) -> Result<(), Rejection> {
    let found = live.map_or(0, |document| document.revision);
    match expected {
        None => Ok(()),
        Some(expected) if expected == found => Ok(()),
        Some(expected) => {
            let is = match found {
                0 => "does not exist".to_owned(),
                found => format!("is at revision {found}"),
            };
            let wanted = match expected {
                0 => "no document".to_owned(),
                expected => format!("revision {expected}"),
            };
            Err(Rejection {
                reason: RejectionReason::RevisionMismatch,
                text: format!("the document {is}; the operation expected {wanted}"),
                found_revision: Some(found),
            })
        }
    }
}

/// The content after; `None` after a delete.
fn new_content(
    live: Option<&Document>,
    action: &DocumentAction,
    size_max: usize,
) -> Result<Option<(String, Bytes)>, Rejection> {
    let old_type = || live.map_or_else(|| PLAIN_TEXT.to_owned(), |doc| doc.content_type.clone());
    let (content_type, content) = match action {
        DocumentAction::Delete => return Ok(None),
        DocumentAction::Put { content, content_type } => (content_type.clone(), content.clone()),
        DocumentAction::Append(text) => {
            (old_type(), Bytes::from(old_text(live)?.to_owned() + text))
        }
        DocumentAction::Splice(edits) => {
            (old_type(), Bytes::from(spliced(old_text(live)?, edits, size_max)?))
        }
        DocumentAction::JsonPatch(patch) => {
            let mut value = old_json(live)?;
            patch::apply(&mut value, patch, size_max)?;
            (old_type(), Bytes::from(value.to_string()))
        }
        DocumentAction::MergePatch(patch) => {
            let mut value = old_json(live)?;
            json_patch::merge(&mut value, patch);
            let kind = if live.is_some() { old_type() } else { JSON.to_owned() };
            (kind, Bytes::from(value.to_string()))
        }
    };
    if content.len() > size_max {
        return Err(too_large(content.len(), size_max));
    }
    Ok(Some((content_type, content)))
}

fn too_large(size: usize, size_max: usize) -> Rejection {
    rejected(
        RejectionReason::DocumentTooLarge,
        format!("the document would have {size} bytes; at most {size_max} are allowed"),
    )
}

fn content_of(document: &Document) -> &[u8] {
    document.content.as_deref().expect("an action that reads content declares the body")
}

fn old_text(live: Option<&Document>) -> Result<&str, Rejection> {
    let Some(document) = live else { return Ok("") };
    let content = content_of(document);
    if !is_text(&document.content_type, content) {
        return Err(rejected(
            RejectionReason::ContentKind,
            format!("the document is {}, not text", document.content_type),
        ));
    }
    Ok(std::str::from_utf8(content).expect("is_text checked it"))
}

fn old_json(live: Option<&Document>) -> Result<Value, Rejection> {
    if live.is_none() {
        return Ok(Value::Null);
    }
    let text = old_text(live)?;
    // The guard of the digest holds for content too: a patch must not blur what it does not touch.
    json::checked(text.as_bytes()).map_err(|problem| {
        rejected(RejectionReason::ContentKind, format!("the document's content {problem}"))
    })
}

/// Edits in order on a rope: a thousand edits cost no thousand copies of the text.
fn spliced(text: &str, edits: &[Edit], size_max: usize) -> Result<String, Rejection> {
    let mut rope = ropey::Rope::from_str(text);
    for (index, Edit(position, count, inserted)) in edits.iter().enumerate() {
        let length = rope.len_chars();
        let from = usize::try_from(*position).ok().filter(|from| *from <= length);
        let to = usize::try_from(*count)
            .ok()
            .and_then(|count| from?.checked_add(count))
            .filter(|to| *to <= length);
        let (Some(from), Some(to)) = (from, to) else {
            return Err(rejected(
                RejectionReason::EditOutOfRange,
                format!(
                    "edit {index} (position {position}, delete {count}) points outside the text \
                     of {length} code points"
                ),
            ));
        };
        rope.remove(from..to);
        rope.insert(from, inserted);
        if rope.len_bytes() > size_max.saturating_mul(2) {
            return Err(too_large(rope.len_bytes(), size_max));
        }
    }
    Ok(rope.to_string())
}

#[cfg(test)]
mod tests;
