//! Page tokens of lists, and the positions inside them.
//!
//! What must stay true: a token continues the list, account and filter it was made for, and
//! nothing else; its content is opaque to callers.

use crate::{
    domain::{
        ids::{Account, Invalid, OperationId, Timestamp},
        refusal::Refusal,
        token::{open_page, seal_page},
    },
    store::query::OperationPosition,
};

/// One list of one account with one filter.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// The store's key.
    pub key: [u8; 32],
    /// Whose list.
    pub account: &'a Account,
    /// Which list.
    pub list: &'static str,
    /// Of what.
    pub filter_hash: [u8; 32],
}

impl Pages<'_> {
    /// The position inside a token; absent for the first page.
    ///
    /// # Errors
    /// INVALID_FIELD for a token of anything else.
    pub fn open(&self, token: &str) -> Result<Option<Vec<u8>>, Refusal> {
        match token {
            "" => Ok(None),
            token => {
                open_page(&self.key, token, self.account, self.list, &self.filter_hash).map(Some)
            }
        }
    }

    /// The token of a position; empty at the end.
    pub fn seal(&self, position: Option<&[u8]>) -> String {
        position.map_or_else(String::new, |position| {
            seal_page(&self.key, self.account, self.list, &self.filter_hash, position)
        })
    }
}

/// A position that cannot be read: its seal was right, so another release made it.
pub fn unreadable() -> Refusal {
    Refusal::Invalid(Invalid::new("page_token", "is of another release; start the list again"))
}

/// A position in a list of operations.
pub fn pack_operation(position: &OperationPosition) -> Vec<u8> {
    let mut packed = position.accept_time.0.to_be_bytes().to_vec();
    packed.extend(position.id.to_stored());
    packed
}

/// Reads what [`pack_operation`] wrote.
///
/// # Errors
/// INVALID_FIELD.
pub fn unpack_operation(packed: &[u8]) -> Result<OperationPosition, Refusal> {
    let (time, id) = packed.split_first_chunk::<8>().ok_or_else(unreadable)?;
    let id = OperationId::from_stored(id).ok_or_else(unreadable)?;
    Ok(OperationPosition { accept_time: Timestamp(i64::from_be_bytes(*time)), id })
}

/// Reads a position that is a number.
///
/// # Errors
/// INVALID_FIELD.
pub fn unpack_number(packed: &[u8]) -> Result<i64, Refusal> {
    let packed = <[u8; 8]>::try_from(packed).map_err(|_| unreadable())?;
    Ok(i64::from_be_bytes(packed))
}

/// Reads a position that is a name.
///
/// # Errors
/// INVALID_FIELD.
pub fn unpack_name(packed: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(packed).map_err(|_| unreadable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_continues_its_own_list_only() {
        let (ours, other) = (Account::from_stored("a"), Account::from_stored("b"));
        let key = [7; 32];
        let pages = Pages { key, account: &ours, list: "locks", filter_hash: [0; 32] };
        let token = pages.seal(Some(b"notes/a"));
        assert_eq!(pages.open(&token), Ok(Some(b"notes/a".to_vec())));
        assert_eq!((pages.open(""), pages.seal(None)), (Ok(None), String::new()));
        let mut mangled = token.clone();
        mangled.replace_range(3..4, if &token[3..4] == "A" { "B" } else { "A" });
        for (pages, token) in [
            (Pages { account: &other, ..pages }, token.as_str()),
            (Pages { list: "inboxes", ..pages }, &token),
            (Pages { filter_hash: [1; 32], ..pages }, &token),
            (Pages { key: [8; 32], ..pages }, &token),
            (pages, "garbage"),
            (pages, &mangled),
        ] {
            assert!(pages.open(token).is_err());
        }
    }

    #[test]
    fn positions_survive_both_ways() {
        let position = OperationPosition {
            accept_time: Timestamp(-5),
            id: OperationId::parse("0190163d-8694-739b-aea5-966c26f8ad91").expect("valid"),
        };
        assert_eq!(unpack_operation(&pack_operation(&position)), Ok(position));
        assert!(unpack_operation(b"short").is_err() && unpack_number(b"short").is_err());
    }
}
