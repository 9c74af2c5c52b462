//! AdminService: what operators do.

use futures_util::future::BoxFuture;
use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::{Permission, Principal},
    caller,
    convert::{self, lists, operations, policies},
    deadline::{AnswerBy, Call},
    inboxes::is_full,
    pages::unpack_name,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        audit::AuditChain,
        command::{Command, Intention, PolicyUpdate, Reply},
        ids::{Account, OperationId, Target},
        lock::TargetKey,
        refusal::{Refusal, RefusalOutcome},
    },
    proto::{self, admin_service_server::AdminService},
    store::ReadError,
};

#[tonic::async_trait]
impl AdminService for Api {
    async fn get_policy(
        &self,
        request: Request<proto::GetPolicyRequest>,
    ) -> Result<Response<proto::GetPolicyResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            own_account(&caller, &request.into_inner().account)?;
            // Boxed: the compiler bounds how deep futures nest in one another.
            let shown: BoxFuture<'_, _> = Box::pin(self.policy(&caller.account));
            shown.await
        };
        self.answer_read(call, answer).await
    }

    async fn update_policy(
        &self,
        request: Request<proto::UpdatePolicyRequest>,
    ) -> Result<Response<proto::UpdatePolicyResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            let request = request.into_inner();
            own_account(&caller, &request.account)?;
            self.update_policy_of(&caller, request, call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn verify_invariants(
        &self,
        request: Request<proto::VerifyInvariantsRequest>,
    ) -> Result<Response<proto::VerifyInvariantsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            let request = request.into_inner();
            own_account(&caller, &request.account)?;
            self.verify(&caller, &request.page_token).await
        };
        self.answer_read(call, answer).await
    }

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

/// Changes of a policy that an answer shows: enough to see what was done lately.
const CHANGES_SHOWN: i32 = 20;

/// A caller speaks for one account; naming it guards against the wrong credentials. `admin` of one
/// account is nothing in another.
fn own_account(caller: &Principal, named: &str) -> Result<(), Refusal> {
    match named.is_empty() || named == caller.account.as_str() {
        true => Ok(()),
        false => Err(Refusal::PermissionMissing { permission: "admin of that account" }),
    }
}

impl Api {
    async fn policy(&self, account: &Account) -> Result<proto::GetPolicyResponse, Refused> {
        let store = self.engine().store();
        let row = store.account(account).await?;
        let head = row.as_ref().map_or(0, |row| row.audit.length);
        let changes = match head {
            0 => Vec::new(),
            head => {
                let (chain, after) = (AuditChain::Account(account.clone()), head - CHANGES_SHOWN);
                store.list_audit(&chain, after.max(0), CHANGES_SHOWN.into()).await?
            }
        };
        let in_force = self.engine().policy_of(row.as_ref());
        policies::shown(account, row.as_ref(), &in_force, self.engine().defaults(), &changes)
            .map_err(|unreadable| ReadError::from(unreadable).into())
    }

    async fn update_policy_of(
        &self,
        caller: &Principal,
        request: proto::UpdatePolicyRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::UpdatePolicyResponse, Refused> {
        let intention = match request.validate_only {
            true => Intention::ValidateOnly,
            false => Intention::Execute,
        };
        let command = Command::UpdatePolicy(Box::new(PolicyUpdate {
            account: caller.account.clone(),
            change: policies::change(&request)?,
            reason: convert::reason(&request.reason)?,
            subject: caller.subject.clone(),
            intention,
        }));
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        match running.await? {
            Reply::PolicyUpdated(updated) => Ok(policies::updated(&updated, intention)),
            other => Err(unexpected(&other).into()),
        }
    }

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
