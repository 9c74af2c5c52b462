//! ListLocks and ReleaseLock.

use super::Named;
use crate::{
    api::{
        Api,
        convert::{self, lists, operations},
        deadline::AnswerBy,
        inboxes::is_full,
        pages::unpack_name,
        status::Refused,
        unexpected,
    },
    domain::{
        command::{Command, Reply},
        ids::{Account, OperationId, Target},
        lock::TargetKey,
        refusal::{Refusal, RefusalOutcome},
    },
    proto,
};

impl Api {
    pub(super) async fn locks(
        &self,
        account: &Account,
        request: proto::ListLocksRequest,
    ) -> Result<proto::ListLocksResponse, Refused> {
        let size = lists::page_size(request.page_size)?;
        let pages = self.pages(account, "locks", [0; 32]);
        let after = pages.open(&request.page_token)?.map(unpack_name).transpose()?;
        let after = after.unwrap_or_default();
        let found = self.engine().store().list_locks(account, &after, size).await?;
        let next = is_full(&found, size).then(|| found.last()).flatten();
        let next = next.map(|lock| lock.key.target.as_str().as_bytes());
        Ok(proto::ListLocksResponse {
            locks: found.iter().map(operations::lock).collect(),
            next_page_token: pages.seal(next),
        })
    }

    pub(super) async fn release(
        &self,
        named: Named,
        request: proto::ReleaseLockRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::ReleaseLockResponse, Refused> {
        let id = OperationId::parse(&request.operation_id)?;
        let target = Target::parse("target", &request.target)?;
        let reason = convert::reason(&request.reason).map_err(Refusal::Invalid);
        let command = Command::ReleaseLock {
            target: TargetKey { account: named.account, target },
            operation_id: id.clone(),
            reason: reason.map_err(Refused::about(&id))?,
            subject: named.subject,
        };
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        match running.await.map_err(Refused::about(&id))? {
            Reply::Released(lock) => {
                Ok(proto::ReleaseLockResponse { lock: Some(operations::lock(&lock)) })
            }
            other => Err(Refused::about(&id)(unexpected(&other))),
        }
    }
}
