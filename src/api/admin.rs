//! AdminService: what operators do, for whichever account they name.

mod erase;
mod export;
mod floor;
mod locks;
mod named;
mod policies;
mod sweep;
mod usage;

use futures_util::future::BoxFuture;
use tonic::{Request, Response, Status};

use self::named::Named;
pub(super) use self::named::OF_ACCOUNT;
use super::{Api, deadline::Call};
use crate::proto::{self, admin_service_server::AdminService};

// Each call is boxed: the compiler bounds how deep futures nest in one another.
#[tonic::async_trait]
impl AdminService for Api {
    async fn get_policy(
        &self,
        request: Request<proto::GetPolicyRequest>,
    ) -> Result<Response<proto::GetPolicyResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let (named, is_admin) = Named::by_reader(&request, |asked| &asked.account)?;
            let shown: BoxFuture<'_, _> = Box::pin(self.policy(&named.account, is_admin));
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
            let named = Named::by(&request, |asked| &asked.account)?;
            let running: BoxFuture<'_, _> =
                Box::pin(self.update_policy_of(named, request.into_inner(), call.answer_by));
            running.await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn raise_evidence_floor(
        &self,
        request: Request<proto::RaiseEvidenceFloorRequest>,
    ) -> Result<Response<proto::RaiseEvidenceFloorResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let running: BoxFuture<'_, _> =
                Box::pin(self.raise_floor(named, request.into_inner(), call.answer_by));
            running.await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn run_sweep(
        &self,
        request: Request<proto::RunSweepRequest>,
    ) -> Result<Response<proto::RunSweepResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let pass: BoxFuture<'_, _> =
                Box::pin(self.sweep(named, request.get_ref(), call.answer_by));
            pass.await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn get_usage(
        &self,
        request: Request<proto::GetUsageRequest>,
    ) -> Result<Response<proto::GetUsageResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let usage: BoxFuture<'_, _> = Box::pin(self.usage(&named.account));
            usage.await
        };
        self.answer_read(call, answer).await
    }

    async fn erase_payloads(
        &self,
        request: Request<proto::ErasePayloadsRequest>,
    ) -> Result<Response<proto::ErasePayloadsResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let running: BoxFuture<'_, _> =
                Box::pin(self.erase(named, request.into_inner(), call.answer_by));
            running.await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn export_operations(
        &self,
        request: Request<proto::ExportOperationsRequest>,
    ) -> Result<Response<proto::ExportOperationsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let page: BoxFuture<'_, _> =
                Box::pin(self.export(&named.account, request.into_inner()));
            page.await
        };
        self.answer_read(call, answer).await
    }

    async fn verify_invariants(
        &self,
        request: Request<proto::VerifyInvariantsRequest>,
    ) -> Result<Response<proto::VerifyInvariantsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let page: BoxFuture<'_, _> =
                Box::pin(self.verify(&named.account, &request.get_ref().page_token));
            page.await
        };
        self.answer_read(call, answer).await
    }

    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let page: BoxFuture<'_, _> = Box::pin(self.locks(&named.account, request.into_inner()));
            page.await
        };
        self.answer_read(call, answer).await
    }

    async fn release_lock(
        &self,
        request: Request<proto::ReleaseLockRequest>,
    ) -> Result<Response<proto::ReleaseLockResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let named = Named::by(&request, |asked| &asked.account)?;
            let running: BoxFuture<'_, _> =
                Box::pin(self.release(named, request.into_inner(), call.answer_by));
            running.await
        };
        let result = answer.await;
        self.answer(call, result)
    }
}
