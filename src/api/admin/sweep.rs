//! RunSweep.

use super::Named;
use crate::{
    api::{Api, deadline::AnswerBy, status::Refused},
    domain::{
        ids::{Invalid, Span},
        refusal::{Refusal, RefusalOutcome},
    },
    proto,
    sweeper::{AskedSweep, Scope, SweepCounts, run_asked},
};

/// When to come back while another one's pass runs: most take less.
const RETRY_BUSY: Span = Span::seconds(1);

impl Api {
    pub(super) async fn sweep(
        &self,
        named: Named,
        request: &proto::RunSweepRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::RunSweepResponse, Refused> {
        let scope = match (request.all_accounts, request.account.is_empty()) {
            (false, _) => Scope::Account(named.account),
            (true, true) => Scope::All,
            (true, false) => {
                let problem = "must be empty where all_accounts is set";
                return Err(Refusal::Invalid(Invalid::new("account", problem)).into());
            }
        };
        let busy = |_| Refusal::RateLimited { retry: RETRY_BUSY };
        let _turn = self.asked_sweeps().try_acquire().map_err(busy)?;
        let pass = async { Ok::<_, Refusal>(run_asked(self.engine(), &scope).await) };
        let swept = answer_by.or_late(RefusalOutcome::Unknown, pass).await?;
        Ok(told(&scope, swept))
    }
}

fn told(scope: &Scope, swept: AskedSweep) -> proto::RunSweepResponse {
    let account = match scope {
        Scope::All => String::new(),
        Scope::Account(account) => account.as_str().to_owned(),
    };
    let refused = swept
        .refused
        .into_iter()
        .map(|(reason, rows)| proto::SweepRefusal { reason: reason.to_owned(), rows: count(rows) });
    proto::RunSweepResponse {
        account,
        counts: Some(counts(&swept.counts)),
        refused: refused.collect(),
        more: swept.more,
    }
}

fn counts(counts: &SweepCounts) -> proto::SweepCounts {
    proto::SweepCounts {
        returned: count(counts.returned),
        expired: count(counts.expired),
        dead: count(counts.dead),
        start_deadlines: count(counts.start_deadlines),
        locks_released: count(counts.locks_released),
        consumers_removed: count(counts.consumers_removed),
        closed: count(counts.closed),
        purged: count(counts.purged),
        inboxes_retired: count(counts.inboxes_retired),
        accounts_closed: count(counts.accounts_closed),
        batches_removed: count(counts.batches_removed),
        compacted: count(counts.compacted),
        trails_removed: count(counts.trails_removed),
        forgotten: count(counts.forgotten),
    }
}

fn count(rows: u64) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
