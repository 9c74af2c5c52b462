//! AdminService: what operators do.

use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::{Permission, Principal},
    caller,
    convert::{self, lists, operations},
    deadline::{AnswerBy, Call},
    inboxes::is_full,
    pages::unpack_name,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        command::{Command, Reply},
        ids::{OperationId, Target},
        lock::TargetKey,
        refusal::{Refusal, RefusalOutcome},
    },
    proto::{self, admin_service_server::AdminService},
};

#[tonic::async_trait]
impl AdminService for Api {
    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            let request = request.into_inner();
            let size = lists::page_size(request.page_size)?;
            let pages = self.pages(&caller.account, "locks", [0; 32]);
            let after = pages.open(&request.page_token)?.map(unpack_name).transpose()?;
            let after = after.unwrap_or_default();
            let found = self.engine().store().list_locks(&caller.account, &after, size).await?;
            let next = is_full(&found, size).then(|| found.last()).flatten();
            let next = next.map(|lock| lock.key.target.as_str().as_bytes());
            Ok(proto::ListLocksResponse {
                locks: found.iter().map(operations::lock).collect(),
                next_page_token: pages.seal(next),
            })
        };
        self.answer_read(call, answer).await
    }

    async fn release_lock(
        &self,
        request: Request<proto::ReleaseLockRequest>,
    ) -> Result<Response<proto::ReleaseLockResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            self.release(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }
}

impl Api {
    async fn release(
        &self,
        caller: &Principal,
        request: proto::ReleaseLockRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::ReleaseLockResponse, Refused> {
        let id = OperationId::parse(&request.operation_id)?;
        let target = Target::parse("target", &request.target)?;
        let reason = convert::reason(&request.reason).map_err(Refusal::Invalid);
        let command = Command::ReleaseLock {
            target: TargetKey { account: caller.account.clone(), target },
            operation_id: id.clone(),
            reason: reason.map_err(Refused::about(&id))?,
            subject: caller.subject.clone(),
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
