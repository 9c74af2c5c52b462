//! Protocol to domain and back: each direction exists once.
//!
//! What must stay true: whatever gets past here cannot be wrong on its own; an enum number that
//! this release does not know is refused, never guessed. Deliberately not here: status codes, and
//! anything that needs a store.

pub mod deliveries;
pub mod inboxes;
pub mod lists;
pub mod operations;
pub mod policies;
pub mod sessions;
pub mod submit;
pub mod times;
pub mod verify;

use crate::domain::{
    ids::{Invalid, MintTime, OperationId},
    operation::OperationKey,
};

/// Longest reason of a cancel or a release, in bytes.
const REASON_BYTES_MAX: usize = 512;

/// An id with the time at which it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id.
    pub id: OperationId,
    /// When it was made.
    pub mint_time: MintTime,
}

impl Identity {
    /// The key of this id in an account.
    pub fn key(&self, account: &crate::domain::ids::Account) -> OperationKey {
        OperationKey { account: account.clone(), id: self.id.clone() }
    }
}

/// Reads an id and its mint time, which a UUIDv7 carries (contract section 2).
///
/// # Errors
/// [`Invalid`] with field `operation_id` or `mint_time`.
pub fn identity(id: &str, mint_time: Option<&prost_types::Timestamp>) -> Result<Identity, Invalid> {
    let id = OperationId::parse(id)?;
    let stated = match mint_time {
        Some(time) => Some(MintTime::from_timestamp(times::read_timestamp("mint_time", time)?)),
        None => None,
    };
    let mint_time = match (id.uuid_v7_time(), stated) {
        (Some(carried), Some(stated)) if carried != stated => {
            return Err(Invalid::new(
                "mint_time",
                "differs from the time inside the UUIDv7; leave it out, or send the same",
            ));
        }
        (Some(carried), _) => carried,
        (None, Some(stated)) => stated,
        (None, None) => {
            return Err(Invalid::new(
                "mint_time",
                "is needed, because the id is not a UUIDv7: send when the id was made",
            ));
        }
    };
    Ok(Identity { id, mint_time })
}

/// Reads an enum of the protocol; 0 and unknown numbers are for the caller to tell apart.
fn known<T: TryFrom<i32>>(field: &str, number: i32) -> Result<T, Invalid> {
    T::try_from(number)
        .map_err(|_| Invalid::new(field, "is a number that this release does not know"))
}

/// Reads why something is done.
///
/// # Errors
/// [`Invalid`] for a text that is too long or holds a NUL.
pub fn reason(text: &str) -> Result<String, Invalid> {
    if text.len() > REASON_BYTES_MAX || text.contains('\0') {
        return Err(Invalid::new(
            "reason",
            format!("must be at most {REASON_BYTES_MAX} bytes without NUL"),
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

    fn at(millis: i64) -> prost_types::Timestamp {
        times::timestamp(MintTime::from_millis(millis).to_timestamp())
    }

    #[test]
    fn a_mint_time_is_carried_or_stated_and_never_both_ways() {
        let carried = 0x0190_163d_8694;
        let mint = |id, time: Option<prost_types::Timestamp>| {
            identity(id, time.as_ref()).map(|identity| identity.mint_time.millis())
        };
        assert_eq!(mint(V7, None), Ok(carried));
        assert_eq!(mint(V7, Some(at(carried))), Ok(carried));
        let mut finer = at(carried);
        finer.nanos += 999_999;
        assert_eq!(mint(V7, Some(finer)), Ok(carried), "finer digits are cut");
        assert_eq!(mint("op-1", Some(at(5))), Ok(5));
        for (id, time) in [(V7, Some(at(carried + 1))), ("op-1", None)] {
            assert_eq!(mint(id, time).expect_err("refused").field, "mint_time");
        }
        assert_eq!(mint("op 1", None).expect_err("refused").field, "operation_id");
    }
}
