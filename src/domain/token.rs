//! Opaque, authenticated tokens: where a stream or a list goes on.
//!
//! What must stay true: a token opens only with the store's key, for the purpose and the account
//! it was sealed for, and only if not one bit of it changed. Losing a token costs duplicates, never
//! results, so nothing but a position is ever put into one.
//!
//! Deliberately not here: secrecy. A caller may read what is inside; names are hashed only so that
//! tokens stay short and of fixed length.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::{
    delivery::InboxKey,
    ids::{Account, Invalid},
    refusal::{Refusal, TokenFault},
};

/// Longest token, in characters: the longest page position (a target of 512 bytes) fits, and a
/// hostile one costs little to refuse.
pub const TOKEN_LENGTH_MAX: usize = 1_024;
/// Longest token of a check, in characters: it carries what was counted so far, which is bounded to
/// two thirds of this, and a hostile one costs a hash over it.
pub const CHECK_LENGTH_MAX: usize = 128 * 1_024;

/// The form of the bytes; a new one gets a new number, and the old ones stay readable.
const VERSION: u8 = 1;
/// Separates these MACs from any other use of the key.
const LABEL: &[u8] = b"receiptd token";
/// Bytes of a SHA-256 MAC.
const MAC_BYTES: usize = 32;
/// Bytes of a hashed name: 128 bits are out of reach for whoever looks for a second name.
const NAME_HASH_BYTES: usize = 16;

/// What a token is for: part of the MAC, so that one kind never passes for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Where a stream goes on.
    Resume = 1,
    /// Where a list goes on.
    Page = 2,
    /// Where a check goes on.
    Check = 3,
}

impl Purpose {
    fn length_max(self) -> usize {
        match self {
            Purpose::Resume | Purpose::Page => TOKEN_LENGTH_MAX,
            Purpose::Check => CHECK_LENGTH_MAX,
        }
    }
}

/// The text is not a token that this key sealed for this purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a token of this service")]
pub struct Unsealed;

/// Seals a payload.
pub fn seal(key: &[u8; 32], purpose: Purpose, payload: &[u8]) -> String {
    let mac = authentication(key, purpose, payload).finalize().into_bytes();
    let mut bytes = Vec::with_capacity(1 + MAC_BYTES + payload.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&mac);
    bytes.extend_from_slice(payload);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Opens what [`seal`] made; the comparison takes the same time wherever a forgery differs.
///
/// # Errors
/// [`Unsealed`] for everything else.
pub fn open(key: &[u8; 32], purpose: Purpose, text: &str) -> Result<Vec<u8>, Unsealed> {
    if text.len() > purpose.length_max() {
        return Err(Unsealed);
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Unsealed)?;
    let (version, rest) = bytes.split_first().ok_or(Unsealed)?;
    let (mac, payload) = rest.split_at_checked(MAC_BYTES).ok_or(Unsealed)?;
    if *version != VERSION {
        return Err(Unsealed);
    }
    authentication(key, purpose, payload).verify_slice(mac).map_err(|_| Unsealed)?;
    Ok(payload.to_vec())
}

fn authentication(key: &[u8; 32], purpose: Purpose, payload: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(LABEL);
    mac.update(&[VERSION, purpose as u8]);
    mac.update(payload);
    mac
}

/// Where a stream goes on: everything after the position, plus everything before it that is still
/// unacked (contract section 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeToken {
    /// Of which inbox.
    pub inbox: InboxKey,
    /// Of which of its generations.
    pub generation: i64,
    /// Of which life of the store.
    pub store_epoch: String,
    /// Up to here numbers were shown or told.
    pub position: i64,
}

/// The fixed layout of a resume token.
const RESUME_BYTES: usize = 3 * NAME_HASH_BYTES + 2 * 8;

impl ResumeToken {
    /// As text.
    pub fn seal(&self, key: &[u8; 32]) -> String {
        let mut payload = Vec::with_capacity(RESUME_BYTES);
        payload.extend_from_slice(&name_hash(self.inbox.account.as_str()));
        payload.extend_from_slice(&name_hash(self.inbox.inbox.as_str()));
        payload.extend_from_slice(&name_hash(&self.store_epoch));
        payload.extend_from_slice(&self.generation.to_be_bytes());
        payload.extend_from_slice(&self.position.to_be_bytes());
        seal(key, Purpose::Resume, &payload)
    }

    /// The position in `text`, if it is a token of this inbox as it is now.
    ///
    /// # Errors
    /// The first that applies: RESUME_TOKEN_INVALID for a mangled token, another account's or
    /// another inbox's; STORE_EPOCH_CHANGED; INBOX_RECREATED; RESUME_TOKEN_INVALID for a position
    /// above `last_sequence`.
    pub fn open(
        key: &[u8; 32],
        text: &str,
        inbox: &InboxKey,
        generation: i64,
        store_epoch: &str,
        last_sequence: i64,
    ) -> Result<i64, Refusal> {
        let invalid = |fault| Err(Refusal::ResumeTokenInvalid(fault));
        let Some(sealed) = open(key, Purpose::Resume, text).ok().and_then(ResumePayload::read)
        else {
            return invalid(TokenFault::Unreadable);
        };
        if sealed.account != name_hash(inbox.account.as_str()) {
            return invalid(TokenFault::Unreadable);
        }
        if sealed.inbox != name_hash(inbox.inbox.as_str()) {
            return invalid(TokenFault::OtherInbox);
        }
        if sealed.store_epoch != name_hash(store_epoch) {
            return Err(Refusal::StoreEpochChanged);
        }
        if sealed.generation < generation {
            return Err(Refusal::InboxRecreated);
        }
        if sealed.generation > generation || sealed.position > last_sequence {
            return invalid(TokenFault::FuturePosition);
        }
        Ok(sealed.position)
    }
}

/// What a resume token carries.
struct ResumePayload {
    account: [u8; NAME_HASH_BYTES],
    inbox: [u8; NAME_HASH_BYTES],
    store_epoch: [u8; NAME_HASH_BYTES],
    generation: i64,
    position: i64,
}

impl ResumePayload {
    fn read(payload: Vec<u8>) -> Option<Self> {
        let (account, rest) = payload.split_first_chunk()?;
        let (inbox, rest) = rest.split_first_chunk()?;
        let (store_epoch, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let read = ResumePayload {
            account: *account,
            inbox: *inbox,
            store_epoch: *store_epoch,
            generation: i64::from_be_bytes(*generation),
            position: i64::from_be_bytes(*position),
        };
        (rest.is_empty() && read.position >= 0).then_some(read)
    }
}

/// Seals where a list goes on. `list` names the RPC, `filter` is whatever the request filtered by
/// in bytes of one fixed form, and `position` means something to that list alone.
///
/// The position must leave the token within [`TOKEN_LENGTH_MAX`]; up to 700 bytes do.
pub fn seal_page(
    key: &[u8; 32],
    account: &Account,
    list: &str,
    filter: &[u8],
    position: &[u8],
) -> String {
    let mut payload = Vec::with_capacity(2 * NAME_HASH_BYTES + position.len());
    payload.extend_from_slice(&name_hash(account.as_str()));
    payload.extend_from_slice(&list_hash(list, filter));
    payload.extend_from_slice(position);
    let token = seal(key, Purpose::Page, &payload);
    debug_assert!(token.len() <= TOKEN_LENGTH_MAX, "a page position of {} bytes", position.len());
    token
}

/// The position in a page token of this account, list and filter.
///
/// # Errors
/// INVALID_FIELD for `page_token`.
pub fn open_page(
    key: &[u8; 32],
    text: &str,
    account: &Account,
    list: &str,
    filter: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let refuse = |problem: &str| Refusal::Invalid(Invalid::new("page_token", problem));
    let unreadable =
        || refuse("is not a page token of this service; start without one for the first page");
    let payload = open(key, Purpose::Page, text).map_err(|_| unreadable())?;
    let (owner, rest) = payload.split_first_chunk().ok_or_else(unreadable)?;
    if *owner != name_hash(account.as_str()) {
        return Err(unreadable());
    }
    let (sealed_list, position) = rest.split_first_chunk().ok_or_else(unreadable)?;
    if *sealed_list != list_hash(list, filter) {
        return Err(refuse(
            "belongs to another list or filter; repeat the request that it came from",
        ));
    }
    Ok(position.to_vec())
}

/// Seals where a check of an account goes on.
pub fn seal_check(key: &[u8; 32], account: &Account, place: &[u8]) -> String {
    let mut payload = Vec::with_capacity(NAME_HASH_BYTES + place.len());
    payload.extend_from_slice(&name_hash(account.as_str()));
    payload.extend_from_slice(place);
    let token = seal(key, Purpose::Check, &payload);
    debug_assert!(token.len() <= CHECK_LENGTH_MAX, "a place of {} bytes", place.len());
    token
}

/// The place in a token of a check of this account.
///
/// # Errors
/// INVALID_FIELD for `page_token`.
pub fn open_check(key: &[u8; 32], text: &str, account: &Account) -> Result<Vec<u8>, Refusal> {
    let unreadable = || {
        let problem = "is not a token of a check of this account; start without one";
        Refusal::Invalid(Invalid::new("page_token", problem))
    };
    let payload = open(key, Purpose::Check, text).map_err(|_| unreadable())?;
    let (owner, place) = payload.split_first_chunk().ok_or_else(unreadable)?;
    match *owner == name_hash(account.as_str()) {
        true => Ok(place.to_vec()),
        false => Err(unreadable()),
    }
}

fn list_hash(list: &str, filter: &[u8]) -> [u8; NAME_HASH_BYTES] {
    let mut hash = Sha256::new();
    // The length stands first, so that no filter reads as a part of the name.
    hash.update((list.len() as u64).to_be_bytes());
    hash.update(list.as_bytes());
    hash.update(filter);
    shortened(hash)
}

fn name_hash(name: &str) -> [u8; NAME_HASH_BYTES] {
    shortened(Sha256::new_with_prefix(name.as_bytes()))
}

fn shortened(hash: Sha256) -> [u8; NAME_HASH_BYTES] {
    let mut short = [0; NAME_HASH_BYTES];
    short.copy_from_slice(&hash.finalize()[..NAME_HASH_BYTES]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::InboxName;

    const KEY: [u8; 32] = [7; 32];

    fn inbox(account: &str, name: &str) -> InboxKey {
        InboxKey {
            account: Account::parse(account).expect("valid"),
            inbox: InboxName::parse(name).expect("valid"),
        }
    }

    fn token(position: i64) -> String {
        ResumeToken {
            inbox: inbox("local", "work"),
            generation: 2,
            store_epoch: "first".to_owned(),
            position,
        }
        .seal(&KEY)
    }

    #[test]
    fn a_token_opens_for_what_it_was_sealed_for_and_names_every_other_fault() {
        let text = token(41);
        let faulty = |fault| Err(Refusal::ResumeTokenInvalid(fault));
        let here = inbox("local", "work");
        let cases = [
            (KEY, here.clone(), 2, "first", 41, Ok(41)),
            (KEY, here.clone(), 2, "first", 99, Ok(41)),
            (KEY, here.clone(), 2, "first", 40, faulty(TokenFault::FuturePosition)),
            (KEY, here.clone(), 1, "first", 99, faulty(TokenFault::FuturePosition)),
            (KEY, here.clone(), 3, "first", 99, Err(Refusal::InboxRecreated)),
            (KEY, here.clone(), 3, "second", 99, Err(Refusal::StoreEpochChanged)),
            (KEY, inbox("local", "other"), 3, "second", 1, faulty(TokenFault::OtherInbox)),
            (KEY, inbox("stranger", "work"), 2, "first", 99, faulty(TokenFault::Unreadable)),
            ([8; 32], here, 2, "first", 99, faulty(TokenFault::Unreadable)),
        ];
        for (key, inbox, generation, epoch, last, expected) in cases {
            let opened = ResumeToken::open(&key, &text, &inbox, generation, epoch, last);
            assert_eq!(opened, expected, "{inbox:?} {generation} {epoch} {last}");
        }
    }

    #[test]
    fn every_flipped_byte_is_refused() {
        let text = token(41);
        for index in 0..text.len() {
            for flip in 1..=u8::MAX {
                let mut bytes = text.clone().into_bytes();
                bytes[index] ^= flip;
                let Ok(mangled) = String::from_utf8(bytes) else { continue };
                assert_eq!(open(&KEY, Purpose::Resume, &mangled), Err(Unsealed), "{index} {flip}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_the_sealed_bytes_is_refused() {
        let bytes = URL_SAFE_NO_PAD.decode(token(41)).expect("base64");
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut mangled = bytes.clone();
                mangled[index] ^= 1 << bit;
                let mangled = URL_SAFE_NO_PAD.encode(mangled);
                assert_eq!(open(&KEY, Purpose::Resume, &mangled), Err(Unsealed), "{index} {bit}");
            }
        }
    }

    #[test]
    fn shortened_lengthened_and_foreign_texts_are_refused() {
        let text = token(41);
        for length in 0..text.len() {
            assert_eq!(open(&KEY, Purpose::Resume, &text[..length]), Err(Unsealed), "{length}");
        }
        let long = "A".repeat(TOKEN_LENGTH_MAX + 1);
        let more = format!("{text}A");
        let padded = format!("{text}=");
        let short = seal(&KEY, Purpose::Resume, b"short");
        let negative = token(-1);
        for bad in ["", "A", "token", "ö", &long, &more, &padded, &short, &negative] {
            let opened = ResumeToken::open(&KEY, bad, &inbox("local", "work"), 2, "first", 99);
            assert_eq!(opened, Err(Refusal::ResumeTokenInvalid(TokenFault::Unreadable)), "{bad}");
        }
    }

    #[test]
    fn one_purpose_never_passes_for_another() {
        let text = token(41);
        assert!(open(&KEY, Purpose::Resume, &text).is_ok());
        assert_eq!(open(&KEY, Purpose::Page, &text), Err(Unsealed));
    }

    #[test]
    fn a_page_token_belongs_to_its_account_list_and_filter() {
        let account = Account::parse("local").expect("valid");
        let stranger = Account::parse("stranger").expect("valid");
        let position = [9; 700];
        let text = seal_page(&KEY, &account, "ListOperations", b"state=1", &position);
        let opened = open_page(&KEY, &text, &account, "ListOperations", b"state=1");
        assert_eq!(opened, Ok(position.to_vec()));
        let cases: [(&Account, &str, &[u8]); 4] = [
            (&stranger, "ListOperations", b"state=1"),
            (&account, "ListInboxes", b"state=1"),
            (&account, "ListOperations", b"state=2"),
            (&account, "ListOperation", b"sstate=1"),
        ];
        for (account, list, filter) in cases {
            let refused = open_page(&KEY, &text, account, list, filter);
            let Err(Refusal::Invalid(invalid)) = refused else {
                panic!("{list} was opened");
            };
            assert_eq!(invalid.field, "page_token");
        }
        let resume = open_page(&KEY, &token(41), &account, "ListOperations", b"");
        assert!(matches!(resume, Err(Refusal::Invalid(_))));
    }

    #[test]
    fn a_token_of_a_check_belongs_to_its_account_and_may_be_long() {
        let account = Account::parse("local").expect("valid");
        let stranger = Account::parse("stranger").expect("valid");
        let place = vec![9; 80_000];
        let text = seal_check(&KEY, &account, &place);
        assert_eq!(open_check(&KEY, &text, &account), Ok(place));
        let long = "A".repeat(CHECK_LENGTH_MAX + 1);
        let page = seal_page(&KEY, &account, "ListLocks", b"", b"d");
        for (text, account) in [(&text, &stranger), (&long, &account), (&page, &account)] {
            let refused = open_check(&KEY, text, account);
            let Err(Refusal::Invalid(invalid)) = refused else { panic!("it was opened") };
            assert_eq!(invalid.field, "page_token");
        }
    }
}
