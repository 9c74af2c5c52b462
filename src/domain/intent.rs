//! What an operation is meant to do, and the digest that binds an id to it.
//!
//! What must stay true: the digest of a stored version never changes, so that an upgrade never
//! turns a replay into a mismatch (contract section 2, T24). Fields are hashed from decoded
//! values with length prefixes, never from protobuf bytes.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    ids::{Invalid, Target},
    json,
};

/// The version of the digest's rules that this release writes.
pub const DIGEST_VERSION: i16 = 1;
/// The version that stands beside a record without intent: a sealed id.
const NO_INTENT: i16 = 0;
/// Longest action name, in bytes.
pub const ACTION_BYTES_MAX: usize = 128;
/// Longest content type, in bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;
/// The content type whose arguments are hashed in canonical form.
pub const JSON: &str = "application/json";

const LABEL: &[u8] = b"receiptd.intent.v1";

/// How long an operation excludes others from its target (contract section 6). The numbers are
/// stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Until it is final or UNKNOWN.
    UntilFinal = 1,
    /// Until its result is acked or expires, at most for the lock limit.
    UntilAcked = 2,
}

impl LockMode {
    /// Reads a stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        [LockMode::UntilFinal, LockMode::UntilAcked].into_iter().find(|mode| *mode as i16 == number)
    }
}

/// The fields that make an intent, as the caller stated them, defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The action's name.
    pub action: String,
    /// What it acts on.
    pub target: Target,
    /// Absent: any. 0: must not exist now. n: exactly n.
    pub expected_revision: Option<i64>,
    /// The content type of the arguments.
    pub content_type: String,
    /// The bytes of the first submit.
    pub arguments: Bytes,
    /// How long the target stays locked.
    pub lock_mode: LockMode,
}

/// One part of an intent, as a mismatch names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntentPart {
    /// `action`
    Action,
    /// `target`
    Target,
    /// `expected_revision`
    ExpectedRevision,
    /// `arguments`, with their content type
    Arguments,
    /// `lock_mode`
    LockMode,
    /// `mint_time`: not a part of the digest, but of the identity.
    MintTime,
}

impl IntentPart {
    /// The word in `differs`.
    pub fn word(self) -> &'static str {
        match self {
            IntentPart::Action => "action",
            IntentPart::Target => "target",
            IntentPart::ExpectedRevision => "expected_revision",
            IntentPart::Arguments => "arguments",
            IntentPart::LockMode => "lock_mode",
            IntentPart::MintTime => "mint_time",
        }
    }
}

const DIGESTED_PARTS: [IntentPart; 5] = [
    IntentPart::Action,
    IntentPart::Target,
    IntentPart::ExpectedRevision,
    IntentPart::Arguments,
    IntentPart::LockMode,
];

/// Bytes kept of each part's digest: enough to name a part that differs; the whole digest decides.
pub const PART_DIGEST_BYTES: usize = 16;

/// The digest of an intent, whole and per part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentDigest {
    /// The version of the rules.
    pub version: i16,
    /// SHA-256 over everything.
    pub whole: [u8; 32],
    /// The first 16 bytes of each part's SHA-256, in the order of the parts.
    pub parts: [u8; PART_DIGEST_BYTES * DIGESTED_PARTS.len()],
}

impl IntentDigest {
    /// Of no intent: what a sealed id has. No intent has this digest, since none has its version.
    pub const NONE: IntentDigest = IntentDigest {
        version: NO_INTENT,
        whole: [0; 32],
        parts: [0; PART_DIGEST_BYTES * DIGESTED_PARTS.len()],
    };

    /// Whether there is no intent.
    pub fn is_none(&self) -> bool {
        self.version == NO_INTENT
    }

    /// The parts in which two digests of one version differ.
    pub fn differs(&self, other: &IntentDigest) -> Vec<IntentPart> {
        let ours = self.parts.chunks(PART_DIGEST_BYTES);
        let theirs = other.parts.chunks(PART_DIGEST_BYTES);
        DIGESTED_PARTS
            .into_iter()
            .zip(ours.zip(theirs))
            .filter_map(|(part, (ours, theirs))| (ours != theirs).then_some(part))
            .collect()
    }
}

/// The digest of `intent`, with the arguments in the form in which they were hashed.
///
/// # Errors
/// [`Invalid`] with field `intent.arguments` if JSON arguments cannot be hashed exactly.
pub fn digest(intent: &Intent) -> Result<(IntentDigest, Bytes), Invalid> {
    let canonical = if intent.content_type == JSON {
        let (_, canonical) = json::canonical(&intent.arguments)
            .map_err(|problem| Invalid::new("intent.arguments", problem))?;
        Bytes::from(canonical)
    } else {
        intent.arguments.clone()
    };
    let fields: [Vec<u8>; 5] = [
        prefixed(&[intent.action.as_bytes()]),
        prefixed(&[intent.target.as_str().as_bytes()]),
        match intent.expected_revision {
            None => prefixed(&[]),
            Some(revision) => prefixed(&[&revision.to_be_bytes()]),
        },
        prefixed(&[intent.content_type.as_bytes(), &canonical]),
        prefixed(&[match intent.lock_mode {
            LockMode::UntilFinal => b"UNTIL_FINAL".as_slice(),
            LockMode::UntilAcked => b"UNTIL_ACKED".as_slice(),
        }]),
    ];
    let mut whole = Sha256::new();
    whole.update(prefixed(&[LABEL]));
    let mut parts = [0; PART_DIGEST_BYTES * DIGESTED_PARTS.len()];
    for (field, slot) in fields.iter().zip(parts.chunks_mut(PART_DIGEST_BYTES)) {
        whole.update(prefixed(&[field]));
        slot.copy_from_slice(&Sha256::digest(field)[..PART_DIGEST_BYTES]);
    }
    let digest = IntentDigest { version: DIGEST_VERSION, whole: whole.finalize().into(), parts };
    Ok((digest, canonical))
}

/// The number of pieces, then each piece behind its length: no two lists share one form.
fn prefixed(pieces: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(pieces.len()).expect("a field has at most two pieces")];
    for piece in pieces {
        let length = u64::try_from(piece.len()).expect("a length fits 64 bits");
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(piece);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(arguments: &str) -> Intent {
        Intent {
            action: "document.append".to_owned(),
            target: Target::parse("intent.target", "notes/a").expect("valid"),
            expected_revision: Some(1),
            content_type: JSON.to_owned(),
            arguments: Bytes::from(arguments.to_owned()),
            lock_mode: LockMode::UntilFinal,
        }
    }

    fn of(intent: &Intent) -> IntentDigest {
        digest(intent).expect("valid").0
    }

    #[test]
    fn the_digest_is_pinned() {
        // Part of every stored record: a change here would turn replays into mismatches.
        let whole = of(&intent(r#"{"line":"x"}"#)).whole;
        let hex: String = whole.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "2ae02411c16158572280c2e6f1bdaae1f6ee1c964698c7175a0763efb1b462c1");
    }

    #[test]
    fn each_part_is_named_alone() {
        let base = intent(r#"{"line":"x"}"#);
        let mut action = base.clone();
        action.action = "document.put".to_owned();
        let mut target = base.clone();
        target.target = Target::parse("intent.target", "notes/b").expect("valid");
        let mut revision = base.clone();
        revision.expected_revision = None;
        let mut zero = base.clone();
        zero.expected_revision = Some(0);
        let mut kind = base.clone();
        kind.content_type = "text/plain".to_owned();
        let mut mode = base.clone();
        mode.lock_mode = LockMode::UntilAcked;
        for (other, part) in [
            (action, IntentPart::Action),
            (target, IntentPart::Target),
            (revision, IntentPart::ExpectedRevision),
            (zero, IntentPart::ExpectedRevision),
            (intent(r#"{"line":"y"}"#), IntentPart::Arguments),
            (kind, IntentPart::Arguments),
            (mode, IntentPart::LockMode),
        ] {
            assert_ne!(of(&base).whole, of(&other).whole);
            assert_eq!(of(&base).differs(&of(&other)), vec![part]);
        }
        assert_eq!(of(&base), of(&intent(r#" {"line" : "\u0078"} "#)));
    }

    #[test]
    fn pieces_cannot_slide_into_each_other() {
        assert_ne!(prefixed(&[b"ab", b"c"]), prefixed(&[b"a", b"bc"]));
        assert_ne!(prefixed(&[b""]), prefixed(&[]));
    }
}
