//! Who an operation is, before anything about it is sent.
//!
//! What must stay true: an identity is made once per intended action, by this library or by the
//! calling program, before the first byte leaves; every retry, reconnect and restart carries the
//! same one. A deliberate second action gets a second identity.
//!
//! Deliberately not here: a model's call id, a session id, a connection's or a transport's request
//! id. They change when a model is asked again, a page is reloaded or a connection is made anew,
//! while the intended action stays the same; used as identity they would turn one uncertain action
//! into two.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid, Variant};

/// The most characters an id may have.
const ID_LENGTH_MAX: usize = 64;

/// An operation's id and the time it was made; both together are the identity.
///
/// Keep it where a restart finds it *before* the first submit. Never build it from an LLM call id,
/// a session id or a transport request id: those name an attempt, not the intended action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationIdentity {
    id: String,
    mint_time_ms: i64,
}

/// Why an id cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Empty, too long, or with a character outside `A-Z a-z 0-9 . _ : ~ -`.
    #[error("an operation id has 1 to 64 characters of A-Z a-z 0-9 . _ : ~ -")]
    Characters,
    /// Only a UUIDv7 carries its own mint time.
    #[error("an id that is not a UUIDv7 needs the time it was made (mint time)")]
    MintTimeMissing,
    /// A UUIDv7 carries another time.
    #[error("the UUIDv7 carries another mint time than the one given")]
    MintTimeDiffers,
}

impl OperationIdentity {
    /// A new identity from a time in milliseconds since 1970 and ten random bytes.
    pub fn mint_at(unix_ms: i64, random: &[u8; 10]) -> Self {
        let millis = u64::try_from(unix_ms).unwrap_or(0);
        let id = Builder::from_unix_timestamp_millis(millis, random).into_uuid();
        OperationIdentity { id: id.to_string(), mint_time_ms: unix_ms.max(0) }
    }

    /// A caller's own id with the time the caller made it.
    pub fn from_caller(id: &str, mint_time_ms: i64) -> Result<Self, IdentityError> {
        OperationIdentity::from_parts(id, Some(mint_time_ms))
    }

    /// An id with the time it was made, which only a UUIDv7 may leave out.
    pub fn from_parts(id: &str, mint_time_ms: Option<i64>) -> Result<Self, IdentityError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:~-".contains(&byte);
        if id.is_empty() || id.len() > ID_LENGTH_MAX || !id.bytes().all(allowed) {
            return Err(IdentityError::Characters);
        }
        let mint_time_ms = match (uuid_v7_time(id), mint_time_ms) {
            (Some(carried), Some(given)) if carried != given => {
                return Err(IdentityError::MintTimeDiffers);
            }
            (Some(carried), _) => carried,
            (None, Some(given)) => given,
            (None, None) => return Err(IdentityError::MintTimeMissing),
        };
        Ok(OperationIdentity { id: id.to_owned(), mint_time_ms })
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// When the id was made, in milliseconds since 1970.
    pub fn mint_time_ms(&self) -> i64 {
        self.mint_time_ms
    }

    /// The mint time as it goes over the wire: absent where the id carries it.
    pub fn wire_mint_time(&self) -> Option<Timestamp> {
        match uuid_v7_time(&self.id) {
            Some(_) => None,
            None => Some(timestamp_of(self.mint_time_ms)),
        }
    }
}

impl fmt::Display for OperationIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

/// A time on the wire from milliseconds since 1970.
pub fn timestamp_of(unix_ms: i64) -> Timestamp {
    let nanos = i32::try_from(unix_ms.rem_euclid(1_000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: unix_ms.div_euclid(1_000), nanos }
}

/// Milliseconds since 1970 from a time on the wire; finer digits are cut.
pub fn millis_of(time: &Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000).saturating_add(i64::from(time.nanos) / 1_000_000)
}

/// The time inside a UUIDv7 (36 characters, version 7, variant 10), if the id is one.
fn uuid_v7_time(id: &str) -> Option<i64> {
    let uuid = (id.len() == 36).then(|| Uuid::try_parse(id).ok()).flatten()?;
    if uuid.get_version_num() != 7 || uuid.get_variant() != Variant::RFC4122 {
        return None;
    }
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&uuid.as_bytes()[..6]);
    Some(i64::from_be_bytes(millis))
}

/// This machine's clock, in milliseconds since 1970. It only dates new ids.
#[expect(clippy::disallowed_methods, reason = "the client library mints ids on its own machine")]
pub(crate) fn system_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Ten random bytes for an id.
#[expect(clippy::disallowed_methods, reason = "the client library mints ids on its own machine")]
pub(crate) fn system_random() -> [u8; 10] {
    let mut bytes = [0; 10];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness once it has started");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_id_is_a_uuid_v7_that_carries_its_time() {
        let identity = OperationIdentity::mint_at(1_700_000_000_123, &[0xff; 10]);
        assert_eq!(identity.id().len(), 36);
        assert_eq!(uuid_v7_time(identity.id()), Some(1_700_000_000_123));
        assert_eq!(identity.wire_mint_time(), None);
    }

    #[test]
    fn two_mints_of_one_millisecond_differ() {
        let first = OperationIdentity::mint_at(1, &system_random());
        assert_ne!(first, OperationIdentity::mint_at(1, &system_random()));
    }

    #[test]
    fn a_callers_own_id_needs_its_time() {
        let id = "save:42";
        assert_eq!(OperationIdentity::from_parts(id, None), Err(IdentityError::MintTimeMissing));
        let identity = OperationIdentity::from_caller(id, 1_500).expect("a valid identity");
        let wire = identity.wire_mint_time().expect("the id does not carry it");
        assert_eq!((wire.seconds, wire.nanos), (1, 500_000_000));
        assert_eq!(millis_of(&wire), 1_500);
    }

    #[test]
    fn a_differing_time_beside_a_uuid_v7_is_refused() {
        let id = OperationIdentity::mint_at(7, &[1; 10]).id().to_owned();
        assert_eq!(OperationIdentity::from_caller(&id, 8), Err(IdentityError::MintTimeDiffers));
        assert_eq!(OperationIdentity::from_parts(&id, None).map(|it| it.mint_time_ms()), Ok(7));
    }

    #[test]
    fn ids_outside_the_alphabet_are_refused() {
        for id in ["", "a b", "ä", "a/b", &"x".repeat(65)] {
            assert_eq!(
                OperationIdentity::from_caller(id, 1),
                Err(IdentityError::Characters),
                "{id:?}"
            );
        }
    }
}
