//! Stands in for `domain::token` until that room has its page tokens; same two signatures.
//!
//! What must stay true: a token is good for one list of one account with one filter only.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::domain::ids::{Account, Invalid};

const TAG_BYTES: usize = 32;
/// Longer texts are not ours: positions are a time, a name or a target.
const TOKEN_BYTES_MAX: usize = 2_048;

/// Seals a position.
pub fn seal_page(
    key: &[u8; 32],
    account: &Account,
    list: &str,
    filter_hash: &[u8; 32],
    position: &[u8],
) -> String {
    let mut sealed = tag(key, account, list, filter_hash, position).to_vec();
    sealed.extend_from_slice(position);
    URL_SAFE_NO_PAD.encode(sealed)
}

/// Opens what [`seal_page`] sealed for the same list.
///
/// # Errors
/// [`Invalid`] with field `page_token`, the same for garbage and for another account's token.
pub fn open_page(
    key: &[u8; 32],
    account: &Account,
    list: &str,
    filter_hash: &[u8; 32],
    text: &str,
) -> Result<Vec<u8>, Invalid> {
    let invalid = || Invalid::new("page_token", "is not a token of this list with these filters");
    if text.len() > TOKEN_BYTES_MAX {
        return Err(invalid());
    }
    let sealed = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    let (stated, position) = sealed.split_at_checked(TAG_BYTES).ok_or_else(invalid)?;
    let computed = tag(key, account, list, filter_hash, position);
    match bool::from(subtle::ConstantTimeEq::ct_eq(stated, computed.as_slice())) {
        true => Ok(position.to_vec()),
        false => Err(invalid()),
    }
}

fn tag(
    key: &[u8; 32],
    account: &Account,
    list: &str,
    filter_hash: &[u8; 32],
    position: &[u8],
) -> [u8; TAG_BYTES] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for piece in [b"receiptd.page.v1", account.as_str().as_bytes(), list.as_bytes(), filter_hash] {
        let length = u64::try_from(piece.len()).expect("a length fits 64 bits");
        mac.update(&length.to_be_bytes());
        mac.update(piece);
    }
    mac.update(position);
    mac.finalize().into_bytes().into()
}
