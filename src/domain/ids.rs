//! Names and times that cannot be wrong: parsed once at the edge, trusted after that.
//!
//! What must stay true: two different ids never compare equal, in Rust or in a store. Ids are
//! compared byte for byte and never normalised (contract section 2).

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest operation id, inbox name and consumer id, in characters (contract section 2).
pub const NAME_LENGTH_MAX: usize = 64;
/// Longest target, in bytes (contract section 5).
pub const TARGET_BYTES_MAX: usize = 512;
/// Longest account name, in bytes: it leads every key, and keys stay below 1 KiB (scale rule 18).
pub const ACCOUNT_BYTES_MAX: usize = 128;
/// Number of buckets, for ever: 10 bits of the account's SHA-256 (architecture section 4).
pub const BUCKETS: u16 = 1024;

/// Why a piece of input cannot be what it should be. Never quotes the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The field, by its path in the request.
    pub field: String,
    /// What is wrong and what would be right, with the limit.
    pub problem: String,
}

impl Invalid {
    /// States what is wrong with `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Invalid { field: field.into(), problem: problem.into() }
    }
}

/// Who owns everything under a key; comes from credentials alone (R3).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account(Arc<str>);

impl Account {
    /// 1 to 128 bytes without control characters.
    ///
    /// # Errors
    /// [`Invalid`] with field `account`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let good = !text.is_empty()
            && text.len() <= ACCOUNT_BYTES_MAX
            && !text.chars().any(char::is_control);
        if !good {
            return Err(Invalid::new(
                "account",
                "must be 1 to 128 bytes of UTF-8 without control characters",
            ));
        }
        Ok(Account(text.into()))
    }

    /// Reads what [`Account::as_str`] stored.
    pub fn from_stored(text: &str) -> Self {
        Account(text.into())
    }

    /// The name as stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket that leads every key of this account. Pinned by a golden test: a change would
    /// lose every record.
    pub fn bucket(&self) -> i16 {
        let hash = Sha256::digest(self.0.as_bytes());
        let bits = u16::from_be_bytes([hash[0], hash[1]]) % BUCKETS;
        i16::try_from(bits).expect("a bucket is below 1,024")
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Account names stay out of logs (style 35).
        write!(f, "Account(bucket {})", self.bucket())
    }
}

/// Whether `text` is 1–64 characters of `A-Z a-z 0-9 . _ : ~ -`.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:~-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_LENGTH_MAX && text.bytes().all(allowed)
}

fn parse_name(field: &str, text: &str) -> Result<Arc<str>, Invalid> {
    if is_name(text) {
        return Ok(text.into());
    }
    Err(Invalid::new(
        field,
        format!(
            "must be 1 to {NAME_LENGTH_MAX} characters of A-Z a-z 0-9 . _ : ~ - (got {} bytes)",
            text.len()
        ),
    ))
}

/// One intended action, named by its caller before the first attempt (R1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

impl OperationId {
    /// 1–64 characters of `A-Z a-z 0-9 . _ : ~ -`; never normalised.
    ///
    /// # Errors
    /// [`Invalid`] with field `operation_id`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        parse_name("operation_id", text).map(OperationId)
    }

    /// The id as its caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The time inside a UUIDv7 (36 characters, version 7, variant 10; either case), if it is one.
    pub fn uuid_v7_time(&self) -> Option<MintTime> {
        let raw = uuid_bytes(&self.0)?;
        if raw[6] >> 4 != 7 || raw[8] >> 6 != 0b10 {
            return None;
        }
        let millis = raw[..6].iter().fold(0_i64, |time, byte| (time << 8) | i64::from(*byte));
        Some(MintTime::from_millis(millis))
    }

    /// The id as stored: a lower-case UUIDv7 is packed into its 16 bytes (its ninth byte is 0x80
    /// or more, so that it equals no ASCII id); every other id is its own ASCII bytes.
    pub fn to_stored(&self) -> Vec<u8> {
        let lower = !self.0.bytes().any(|byte| byte.is_ascii_uppercase());
        match (lower, self.uuid_v7_time(), uuid_bytes(&self.0)) {
            (true, Some(_), Some(raw)) => raw.to_vec(),
            _ => self.0.as_bytes().to_vec(),
        }
    }

    /// Reads what [`OperationId::to_stored`] wrote. `None` for bytes it never writes.
    pub fn from_stored(stored: &[u8]) -> Option<Self> {
        if let Ok(raw) = <[u8; 16]>::try_from(stored)
            && raw[8] >= 0x80
        {
            return Some(OperationId(uuid::Uuid::from_bytes(raw).to_string().into()));
        }
        let text = std::str::from_utf8(stored).ok()?;
        is_name(text).then(|| OperationId(text.into()))
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bytes of a hyphenated UUID of 36 characters.
fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    if text.len() != 36 {
        return None;
    }
    uuid::Uuid::try_parse(text).ok().map(uuid::Uuid::into_bytes)
}

/// Where results queue up; 1–64 characters of the id alphabet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InboxName(Arc<str>);

impl InboxName {
    /// Parses a name; an empty one means `default` (contract section 6).
    ///
    /// # Errors
    /// [`Invalid`] with field `inbox`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        parse_name("inbox", if text.is_empty() { "default" } else { text }).map(InboxName)
    }

    /// Reads what [`InboxName::as_str`] stored.
    pub fn from_stored(text: &str) -> Self {
        InboxName(text.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One client installation that reads an inbox; 1–64 characters of the id alphabet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(Arc<str>);

impl ConsumerId {
    /// Parses an id.
    ///
    /// # Errors
    /// [`Invalid`] with field `consumer_id`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        parse_name("consumer_id", text).map(ConsumerId)
    }

    /// Reads what [`ConsumerId::as_str`] stored.
    pub fn from_stored(text: &str) -> Self {
        ConsumerId(text.into())
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What an operation acts on: a path, compared byte for byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target(Arc<str>);

impl Target {
    /// 1–512 bytes of UTF-8, no control characters, no empty, `.` or `..` segment.
    ///
    /// # Errors
    /// [`Invalid`] with the field given.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > TARGET_BYTES_MAX {
            return Err(Invalid::new(
                field,
                format!("must be 1 to {TARGET_BYTES_MAX} bytes (got {})", text.len()),
            ));
        }
        if text.chars().any(char::is_control) {
            return Err(Invalid::new(field, "must not contain control characters"));
        }
        if text.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(Invalid::new(
                field,
                "must not contain an empty, '.' or '..' segment between slashes",
            ));
        }
        Ok(Target(text.into()))
    }

    /// Reads what [`Target::as_str`] stored.
    pub fn from_stored(text: &str) -> Self {
        Target(text.into())
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A point on the store's clock, in microseconds since 1970.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

/// A span of time, in microseconds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Span(pub i64);

impl Span {
    /// Whole seconds.
    pub const fn seconds(seconds: i64) -> Self {
        Span(seconds * 1_000_000)
    }

    /// Milliseconds.
    pub const fn millis(millis: i64) -> Self {
        Span(millis * 1_000)
    }

    /// Minutes.
    pub const fn minutes(minutes: i64) -> Self {
        Span::seconds(minutes * 60)
    }

    /// Hours.
    pub const fn hours(hours: i64) -> Self {
        Span::minutes(hours * 60)
    }

    /// Days of 24 hours.
    pub const fn days(days: i64) -> Self {
        Span::hours(days * 24)
    }

    /// As the standard library's duration; a negative span is zero.
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(u64::try_from(self.0).unwrap_or(0))
    }
}

impl Timestamp {
    /// Before every time that anything can have: what a time that only rises begins with.
    pub const BEGINNING: Timestamp = Timestamp(i64::MIN);
}

impl std::ops::Add<Span> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }
}

impl std::ops::Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub<Span> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }
}

impl std::ops::Sub<Timestamp> for Timestamp {
    type Output = Span;
    fn sub(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// When an id was made, in whole milliseconds (finer input is truncated everywhere).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MintTime(i64);

impl MintTime {
    /// From milliseconds since 1970.
    pub fn from_millis(millis: i64) -> Self {
        MintTime(millis)
    }

    /// From a point in time; finer digits are cut towards the past.
    pub fn from_timestamp(time: Timestamp) -> Self {
        MintTime(time.0.div_euclid(1_000))
    }

    /// Milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// On the store's scale.
    pub fn to_timestamp(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

    #[test]
    fn only_a_lower_case_uuid_v7_is_packed() {
        let v7 = OperationId::parse(V7).expect("valid");
        assert_eq!(v7.to_stored().len(), 16);
        assert_eq!(v7.uuid_v7_time(), Some(MintTime::from_millis(0x0190_163d_8694)));
        let upper = OperationId::parse(&V7.to_uppercase()).expect("valid");
        assert_eq!(upper.to_stored().len(), 36, "upper case is another id");
        assert_eq!(upper.uuid_v7_time(), v7.uuid_v7_time(), "and carries its time all the same");
        let v4 = OperationId::parse("0190163d-8694-439b-aea5-966c26f8ad91").expect("valid");
        assert_eq!((v4.to_stored().len(), v4.uuid_v7_time()), (36, None));
        let other_variant = OperationId::parse("0190163d-8694-739b-cea5-966c26f8ad91").expect("ok");
        assert_eq!((other_variant.to_stored().len(), other_variant.uuid_v7_time()), (36, None));
        let sixteen = OperationId::parse("sixteen.chars-id").expect("valid");
        assert_eq!(sixteen.to_stored(), b"sixteen.chars-id");
        for id in [v7, upper, v4, other_variant, sixteen] {
            assert_eq!(OperationId::from_stored(&id.to_stored()), Some(id));
        }
    }

    #[test]
    fn a_bad_id_is_refused_and_never_repaired() {
        let long = "x".repeat(65);
        for bad in ["", " op", "op ", "op\n", "op/1", "ö", "a b", &long] {
            assert!(OperationId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(OperationId::parse(&"x".repeat(64)).is_ok());
    }

    #[test]
    fn buckets_are_pinned() {
        let bucket = |name: &str| Account::parse(name).expect("valid").bucket();
        // A change here would lose every record: the values are part of the schema.
        assert_eq!(bucket("local"), golden_bucket("local"));
        assert_eq!([bucket("local"), bucket("a"), bucket("b")], [447, 663, 547]);
    }

    /// The published definition: the first two bytes of SHA-256, big endian, modulo 1,024.
    fn golden_bucket(name: &str) -> i16 {
        let hash = Sha256::digest(name.as_bytes());
        i16::from_be_bytes([hash[0] & 0b11, hash[1]])
    }

    #[test]
    fn targets_have_no_empty_or_relative_segment() {
        for good in ["a", "a/b.txt", "ä/ö", "a b"] {
            assert!(Target::parse("intent.target", good).is_ok(), "{good:?}");
        }
        let long = "x".repeat(513);
        for bad in ["", "/a", "a/", "a//b", "./a", "a/../b", "a\0", "a\n", &long] {
            assert!(Target::parse("intent.target", bad).is_err(), "{bad:?}");
        }
    }
}
