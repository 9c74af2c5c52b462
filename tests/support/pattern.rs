//! Bytes to look for in a stream that arrives in pieces.

/// What PostgreSQL answers to a COMMIT that succeeded: CommandComplete with the tag `COMMIT`.
pub const COMMIT_DONE: &[u8] = b"C\0\0\0\x0bCOMMIT\0";
/// A COMMIT on its way to PostgreSQL: the whole query, since the word alone stands in READ
/// COMMITTED at the beginning of each transaction too.
pub const COMMIT_ASKED: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// What one piece of a stream holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The pattern begins here: so many bytes stand before it.
    At(usize),
    /// No pattern; so many bytes at the end could be its beginning.
    Not {
        /// Bytes that must wait for the next piece.
        held: usize,
    },
}

/// Looks for `pattern` in `bytes`.
pub fn find(bytes: &[u8], pattern: &[u8]) -> Found {
    if let Some(at) = bytes.windows(pattern.len()).position(|window| window == pattern) {
        return Found::At(at);
    }
    let longest = (pattern.len() - 1).min(bytes.len());
    let held = (1..=longest).rev().find(|held| bytes.ends_with(&pattern[..*held]));
    Found::Not { held: held.unwrap_or(0) }
}
