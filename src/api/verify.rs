//! VerifyInvariants: the check of one account, in parts.

use super::{Api, convert, pages::unreadable, status::Refused};
use crate::{
    domain::{
        ids::Account,
        token::{open_check, seal_check},
    },
    proto,
    verify::{Counts, Limits, Place, step},
};

/// Rows that one call looks at, or a page more: some tenths of a second of one reader.
const ROWS_MAX: u64 = 5_000;
/// Pages of one call: those of documents and payloads are bounded by their bytes, 4 MiB each.
const PAGES_MAX: usize = 100;
/// Contradictions of one call, or those of a page more: whoever has so many needs no longer list to
/// begin with.
const CONTRADICTIONS_MAX: usize = 100;

impl Api {
    pub(super) async fn verify(
        &self,
        account: &Account,
        page_token: &str,
    ) -> Result<proto::VerifyInvariantsResponse, Refused> {
        let key = &self.engine().store().facts().token_key;
        let place = match page_token {
            "" => Place::start(),
            token => {
                let packed = open_check(key, token, account)?;
                Place::unpack(&packed).ok_or_else(unreadable)?
            }
        };
        let (mut place, mut counts, mut told) = (Some(place), Counts::default(), Vec::new());
        for _ in 0..PAGES_MAX {
            let Some(from) = place.take() else { break };
            let store = self.engine().store();
            let found = step(store, account, from, &Limits::ONLINE).await?;
            counts += found.counts;
            told.extend(found.contradictions.iter().map(convert::verify::contradiction));
            place = found.next;
            if counts.rows() >= ROWS_MAX || told.len() >= CONTRADICTIONS_MAX {
                break;
            }
        }
        Ok(proto::VerifyInvariantsResponse {
            contradictions: told,
            looked_at: Some(convert::verify::rows(&counts)),
            next_page_token: place
                .map_or_else(String::new, |place| seal_check(key, account, &place.pack())),
        })
    }
}
