//! The calls that may be repeated without thought: look-ups, lists, acks, cancels.
//!
//! What must stay true: each is idempotent on the server, so that a lost answer is asked for again
//! within the limits; the caller sees the last failure when they are reached, with an outcome that
//! is not known as soon as that of one attempt is not.
//! The one exception is the end of an inbox, which is sent once.
//! Deliberately not here: submits (their identity comes first) and delivery streams.

use std::{future::Future, time::Duration};

use tokio::time::{sleep, timeout};
use tonic::{Response, Status, Streaming};

use super::{
    connect::Client,
    error::{Failure, FailureOutcome},
    identity::OperationIdentity,
    retry::{Attempts, Decision, after_failed_call},
};
use crate::proto::{
    AckDeliveriesRequest, AckDeliveriesResponse, CancelOperationRequest, CancelOperationResponse,
    DeleteInboxRequest, DeleteInboxResponse, Document, GetDocumentRequest, GetInboxRequest,
    GetOperationRequest, GetOperationResponse, Inbox, ListDeliveriesRequest,
    ListDeliveriesResponse, ListDocumentsRequest, ListDocumentsResponse, ListInboxesRequest,
    ListInboxesResponse, ListOperationsRequest, ListOperationsResponse, UpdateInboxRequest,
    UpdateInboxResponse, WatchOperationRequest, WatchOperationResponse,
};

/// The changes of one operation, snapshot first.
#[derive(Debug)]
pub struct Watch(Streaming<WatchOperationResponse>);

impl Watch {
    /// The next look at the operation; none after its final state.
    pub async fn next(&mut self) -> Result<Option<WatchOperationResponse>, Failure> {
        self.0.message().await.map_err(Failure::from)
    }
}

impl Client {
    /// What is known about an id. This is the safe question after any doubt.
    pub async fn look_up(
        &self,
        identity: &OperationIdentity,
    ) -> Result<GetOperationResponse, Failure> {
        let request = GetOperationRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
        };
        self.repeat(|| {
            let (mut service, request) = (self.operations(), self.timed(request.clone()));
            async move { service.get_operation(request).await }
        })
        .await
    }

    /// A page of the account's operations, newest first.
    pub async fn list_operations(
        &self,
        request: ListOperationsRequest,
    ) -> Result<ListOperationsResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.operations(), self.timed(request.clone()));
            async move { service.list_operations(request).await }
        })
        .await
    }

    /// The operation now, then its changes. A lost stream is opened again by the caller.
    pub async fn watch(&self, identity: &OperationIdentity) -> Result<Watch, Failure> {
        let request = WatchOperationRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
        };
        self.repeat(|| {
            let (mut service, request) = (self.operations(), request.clone());
            async move { service.watch_operation(request).await }
        })
        .await
        .map(Watch)
    }

    /// Cancels what has not begun; the answer is the state in force.
    pub async fn cancel(
        &self,
        identity: &OperationIdentity,
        reason: &str,
    ) -> Result<CancelOperationResponse, Failure> {
        let request = CancelOperationRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
            reason: reason.to_owned(),
        };
        self.repeat(|| {
            let (mut service, request) = (self.operations(), self.timed(request.clone()));
            async move { service.cancel_operation(request).await }
        })
        .await
    }

    /// Acks results; durable once answered, and harmless to repeat.
    pub async fn ack(
        &self,
        request: AckDeliveriesRequest,
    ) -> Result<AckDeliveriesResponse, Failure> {
        self.repeat(|| self.ack_once(request.clone())).await
    }

    /// One attempt of an ack, for callers that repeat by themselves.
    pub(crate) async fn ack_once(
        &self,
        request: AckDeliveriesRequest,
    ) -> Result<Response<AckDeliveriesResponse>, Status> {
        let request = self.timed(request);
        self.inboxes().ack_deliveries(request).await
    }

    /// A page of an inbox's deliveries, by number.
    pub async fn list_deliveries(
        &self,
        request: ListDeliveriesRequest,
    ) -> Result<ListDeliveriesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.list_deliveries(request).await }
        })
        .await
    }

    /// One inbox with its figures.
    pub async fn inbox(&self, inbox: &str) -> Result<Inbox, Failure> {
        let request = GetInboxRequest { inbox: inbox.to_owned() };
        let answer = self
            .repeat(|| {
                let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
                async move { service.get_inbox(request).await }
            })
            .await?;
        Ok(answer.inbox.unwrap_or_default())
    }

    /// A page of the account's inboxes, by name.
    pub async fn list_inboxes(
        &self,
        request: ListInboxesRequest,
    ) -> Result<ListInboxesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.list_inboxes(request).await }
        })
        .await
    }

    /// Gives an inbox limits of its own, or takes them back; durable once answered, and harmless
    /// to repeat.
    pub async fn update_inbox(
        &self,
        request: UpdateInboxRequest,
    ) -> Result<UpdateInboxResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.update_inbox(request).await }
        })
        .await
    }

    /// Deletes an inbox; durable once answered. Sent once: if the answer is lost, a second attempt
    /// could meet what somebody began anew under the name.
    pub async fn delete_inbox(
        &self,
        request: DeleteInboxRequest,
    ) -> Result<DeleteInboxResponse, Failure> {
        let request = self.timed(request);
        let answer = self.inboxes().delete_inbox(request).await;
        answer.map(Response::into_inner).map_err(|status| Failure::from_status(&status))
    }

    /// A document as it is now.
    pub async fn document(&self, target: &str) -> Result<Document, Failure> {
        let request = GetDocumentRequest { target: target.to_owned() };
        let answer = self
            .repeat(|| {
                let (mut service, request) = (self.documents(), self.timed(request.clone()));
                async move { service.get_document(request).await }
            })
            .await?;
        Ok(answer.document.unwrap_or_default())
    }

    /// A page of the account's documents, by target, without content.
    pub async fn list_documents(
        &self,
        request: ListDocumentsRequest,
    ) -> Result<ListDocumentsResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.documents(), self.timed(request.clone()));
            async move { service.list_documents(request).await }
        })
        .await
    }

    /// A request with the deadline of one attempt.
    fn timed<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.limits().per_attempt);
        request
    }

    /// Repeats an idempotent call within the limits.
    async fn repeat<T, F, A>(&self, attempt: F) -> Result<T, Failure>
    where
        F: Fn() -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let limits = self.limits();
        let deadline = limits.per_attempt + Duration::from_millis(500);
        let mut attempts = Attempts::begin(limits, Duration::ZERO);
        let mut doubt = false;
        loop {
            let mut failure = match timeout(deadline, attempt()).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => Failure::from(status),
                Err(_) => Failure::gave_up_waiting(limits.per_attempt),
            };
            doubt |= failure.outcome == FailureOutcome::Unknown;
            let pause = match after_failed_call(&failure) {
                Decision::SameIdAgain(asked) => attempts.pause_after(&failure, asked),
                Decision::Stop => attempts.stop(),
            };
            match pause {
                Some(pause) => sleep(pause).await,
                None => {
                    // A later refusal does not undo what an earlier attempt may have done.
                    if doubt {
                        failure.outcome = FailureOutcome::Unknown;
                    }
                    return Err(failure);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonic::Code;

    use super::{
        super::{connect::ConnectOptions, error::tests::refusal},
        *,
    };

    #[tokio::test]
    async fn a_later_refusal_does_not_hide_an_earlier_doubt() {
        let client = Client::connect("http://127.0.0.1:1", ConnectOptions::plain());
        let client = client.expect("a usable endpoint");
        let last_outcome = async |statuses: [Status; 2]| {
            let calls = Cell::new(0);
            let attempt = || {
                let status = statuses[calls.replace(1)].clone();
                async move { Err::<Response<()>, _>(status) }
            };
            client.repeat(attempt).await.expect_err("the last one is not repeated").outcome
        };
        let refused = || refusal(Code::PermissionDenied, "PERMISSION_MISSING", "NO_EFFECT");
        let busy = || refusal(Code::Unavailable, "STORE_UNAVAILABLE", "NO_EFFECT");
        let lost = Status::unavailable("gone");
        assert_eq!(last_outcome([lost, refused()]).await, FailureOutcome::Unknown);
        assert_eq!(last_outcome([busy(), refused()]).await, FailureOutcome::NoEffect);
    }
}
