//! ErasePayloads.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use sha2::{Digest, Sha256};

use super::{Named, floor::stated_reason};
use crate::{
    api::{
        Api,
        deadline::AnswerBy,
        operation_lists::position,
        pages::{pack_operation, unpack_operation},
        status::Refused,
        unexpected,
    },
    domain::{
        command::{Command, Erased, Erasure, Reply},
        ids::{Account, Invalid, OperationId},
        operation::{Operation, OperationKey},
        refusal::{Refusal, RefusalOutcome},
    },
    proto,
};

/// Operations that one call examines: about a second of work.
const EXAMINED_MAX: i64 = 1_000;
/// Erasures of one call that wait at once: a quarter of a batch of the engine, as for the sweep.
const CONCURRENCY: usize = 50;

/// What is erased, why and by whom.
struct Wanted {
    named: Named,
    reason: String,
}

impl Api {
    pub(super) async fn erase(
        &self,
        named: Named,
        request: proto::ErasePayloadsRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::ErasePayloadsResponse, Refused> {
        let reason = stated_reason(&request.reason).map_err(Refusal::Invalid)?;
        let wanted = Wanted { named, reason };
        let account = wanted.named.account.clone();
        let (keys, next_page_token) = match request.operation_id.as_str() {
            "" => self.page_to_erase(&account, &request).await?,
            id => {
                for (field, text) in
                    [("target", &request.target), ("page_token", &request.page_token)]
                {
                    if !text.is_empty() {
                        let problem = "must be empty where operation_id is set";
                        return Err(Refusal::Invalid(Invalid::new(field, problem)).into());
                    }
                }
                let id = OperationId::parse(id).map_err(Refusal::Invalid)?;
                (vec![OperationKey { account: account.clone(), id }], String::new())
            }
        };
        let erasing = async {
            let mut erasures = futures_util::stream::iter(keys)
                .map(|key| self.erase_one(&wanted, key))
                .buffer_unordered(CONCURRENCY);
            let mut counted = Counted::default();
            while let Some(erased) = erasures.next().await {
                counted.add(erased);
            }
            Ok::<_, Refusal>(counted)
        };
        let counted = answer_by.or_late(RefusalOutcome::Unknown, erasing).await?;
        let account = account.as_str().to_owned();
        Ok(proto::ErasePayloadsResponse { account, next_page_token, ..counted.told() })
    }

    /// The next operations, and where to go on.
    async fn page_to_erase(
        &self,
        account: &Account,
        request: &proto::ErasePayloadsRequest,
    ) -> Result<(Vec<OperationKey>, String), Refused> {
        let filter = Sha256::digest(&request.target);
        let pages = self.pages(account, "erasures", filter.into());
        let after = pages.open(&request.page_token)?;
        let after = after.map(|packed| unpack_operation(&packed)).transpose()?;
        let store = self.engine().store();
        let rows = store.list_operations(account, after.as_ref(), EXAMINED_MAX).await?;
        let full = i64::try_from(rows.len()).is_ok_and(|count| count >= EXAMINED_MAX);
        let next = rows.last().filter(|_| full).map(position);
        let wanted =
            |row: &Operation| request.target.is_empty() || row.target.as_str() == request.target;
        let keys = rows.into_iter().filter(wanted).map(|row| row.key).collect();
        let next = next.as_ref().map(pack_operation);
        Ok((keys, pages.seal(next.as_deref())))
    }

    async fn erase_one(&self, wanted: &Wanted, key: OperationKey) -> Result<Erased, Refusal> {
        let erasure =
            Erasure { key, reason: wanted.reason.clone(), subject: wanted.named.subject.clone() };
        match self.engine().run(Command::Erase(Box::new(erasure))).await? {
            Reply::Erased(erased) => Ok(erased),
            other => Err(unexpected(&other)),
        }
    }
}

/// What one call came to. One refusal does not hide what the others did.
#[derive(Default)]
struct Counted {
    each: Vec<Erased>,
    refused: BTreeMap<&'static str, i64>,
}

impl Counted {
    fn add(&mut self, erased: Result<Erased, Refusal>) {
        match erased {
            Ok(erased) => self.each.push(erased),
            Err(refusal) => *self.refused.entry(refusal.reason()).or_default() += 1,
        }
    }

    fn told(self) -> proto::ErasePayloadsResponse {
        let count = |wanted: Erased| {
            let found = self.each.iter().filter(|erased| **erased == wanted).count();
            i64::try_from(found).unwrap_or(i64::MAX)
        };
        proto::ErasePayloadsResponse {
            erased: count(Erased::Now),
            erased_before: count(Erased::Before),
            unresolved: count(Erased::Unresolved),
            news_open: count(Erased::NewsOpen),
            no_record: count(Erased::NoRecord),
            refused: self
                .refused
                .into_iter()
                .map(|(reason, rows)| proto::SweepRefusal { reason: reason.to_owned(), rows })
                .collect(),
            ..proto::ErasePayloadsResponse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Span;

    #[test]
    fn one_refusal_does_not_hide_what_the_others_did() {
        let mut counted = Counted::default();
        let busy = || Refusal::IdentityHeld { retry: Span::seconds(1) };
        for erased in [Ok(Erased::Now), Err(busy()), Ok(Erased::NewsOpen), Err(busy())] {
            counted.add(erased);
        }
        let told = counted.told();
        assert_eq!((told.erased, told.news_open, told.unresolved), (1, 1, 0));
        let refused: Vec<_> =
            told.refused.iter().map(|left| (left.reason.as_str(), left.rows)).collect();
        assert_eq!(refused, [("IDENTITY_HELD", 2)]);
    }
}
