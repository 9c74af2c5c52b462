//! GetPolicy and UpdatePolicy.

use super::Named;
use crate::{
    api::{
        Api,
        convert::{self, policies},
        deadline::AnswerBy,
        status::Refused,
        unexpected,
    },
    domain::{
        audit::AuditChain,
        command::{Command, Intention, PolicyUpdate, Reply},
        ids::Account,
        refusal::RefusalOutcome,
    },
    proto,
    store::ReadError,
};

/// Changes of a policy that an answer shows: enough to see what was done lately.
const CHANGES_SHOWN: i32 = 20;

impl Api {
    pub(super) async fn policy(
        &self,
        account: &Account,
        with_changes: bool,
    ) -> Result<proto::GetPolicyResponse, Refused> {
        let store = self.engine().store();
        let row = store.account(account).await?;
        let head = row.as_ref().map_or(0, |row| row.audit.length);
        let changes = match head {
            0 => Vec::new(),
            _ if !with_changes => Vec::new(),
            head => {
                let (chain, after) = (AuditChain::Account(account.clone()), head - CHANGES_SHOWN);
                store.list_audit(&chain, after.max(0), CHANGES_SHOWN.into()).await?
            }
        };
        let in_force = self.engine().policy_of(row.as_ref());
        policies::shown(account, row.as_ref(), &in_force, self.engine().defaults(), &changes)
            .map_err(|unreadable| ReadError::from(unreadable).into())
    }

    pub(super) async fn update_policy_of(
        &self,
        named: Named,
        request: proto::UpdatePolicyRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::UpdatePolicyResponse, Refused> {
        let intention = match request.validate_only {
            true => Intention::ValidateOnly,
            false => Intention::Execute,
        };
        let command = Command::UpdatePolicy(Box::new(PolicyUpdate {
            account: named.account,
            change: policies::change(&request)?,
            reason: convert::reason(&request.reason)?,
            subject: named.subject,
            intention,
        }));
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        match running.await? {
            Reply::PolicyUpdated(updated) => Ok(policies::updated(&updated, intention)),
            other => Err(unexpected(&other).into()),
        }
    }
}
