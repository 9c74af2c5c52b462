//! What operators call; see `AdminService` for what each means.
//!
//! What must stay true: as for [`super::calls`], each is harmless to repeat, and is repeated within
//! the limits while its answer is lost.

use super::{connect::Client, error::Failure};
use crate::proto::{
    ErasePayloadsRequest, ErasePayloadsResponse, ExportOperationsRequest, ExportOperationsResponse,
    GetPolicyRequest, GetPolicyResponse, GetUsageRequest, GetUsageResponse,
    RaiseEvidenceFloorRequest, RaiseEvidenceFloorResponse, RunSweepRequest, RunSweepResponse,
    UpdatePolicyRequest, UpdatePolicyResponse,
};

impl Client {
    /// Runs one pass of the sweeper.
    pub async fn run_sweep(&self, request: RunSweepRequest) -> Result<RunSweepResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.run_sweep(request).await }
        })
        .await
    }

    /// Erases payloads of ended operations, a page at a time; durable once answered, and harmless to
    /// repeat.
    pub async fn erase_payloads(
        &self,
        request: ErasePayloadsRequest,
    ) -> Result<ErasePayloadsResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.erase_payloads(request).await }
        })
        .await
    }

    /// A page of an account's operations with their receipts and trails.
    pub async fn export_operations(
        &self,
        request: ExportOperationsRequest,
    ) -> Result<ExportOperationsResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.export_operations(request).await }
        })
        .await
    }

    /// What an account has, in figures.
    pub async fn get_usage(&self, request: GetUsageRequest) -> Result<GetUsageResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.get_usage(request).await }
        })
        .await
    }

    /// The policy of an account.
    pub async fn get_policy(
        &self,
        request: GetPolicyRequest,
    ) -> Result<GetPolicyResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.get_policy(request).await }
        })
        .await
    }

    /// Gives the account settings of its own, or takes them back; durable once answered, and
    /// harmless to repeat.
    pub async fn update_policy(
        &self,
        request: UpdatePolicyRequest,
    ) -> Result<UpdatePolicyResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.update_policy(request).await }
        })
        .await
    }

    /// Raises the account's evidence floor; durable once answered, and harmless to repeat.
    pub async fn raise_evidence_floor(
        &self,
        request: RaiseEvidenceFloorRequest,
    ) -> Result<RaiseEvidenceFloorResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.administration(), self.timed(request.clone()));
            async move { service.raise_evidence_floor(request).await }
        })
        .await
    }
}
