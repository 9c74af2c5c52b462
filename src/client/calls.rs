//! The calls that may be repeated without thought: look-ups, lists, acks, cancels.
//!
//! What must stay true: each is idempotent on the server, so that a lost answer is asked for again
//! within the limits; the caller sees the last failure when they are reached, with an outcome that
//! is not known as soon as that of one attempt is not.
//! The one exception is the end of an inbox, which is sent once.
//! Deliberately not here: submits (their identity comes first) and delivery streams.

use std::{future::Future, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status, Streaming};

use super::{
    connect::Client,
    error::{Failure, FailureOutcome},
    identity::OperationIdentity,
    outcome::Outcome,
    retry::{Attempts, Decision, after_failed_call},
};
use crate::proto::{
    AckDeliveriesRequest, AckDeliveriesResponse, BatchGetOperationsRequest, CancelOperationRequest,
    CancelOperationResponse, DeferDeliveriesRequest, DeferDeliveriesResponse, DeleteInboxRequest,
    DeleteInboxResponse, Document, ExtendDeliveriesRequest, ExtendDeliveriesResponse,
    GetDocumentRequest, GetInboxRequest, GetOperationRequest, GetOperationResponse, Inbox,
    ListDeliveriesRequest, ListDeliveriesResponse, ListDocumentsRequest, ListDocumentsResponse,
    ListInboxesRequest, ListInboxesResponse, ListOperationsRequest, ListOperationsResponse,
    PullDeliveriesRequest, PullDeliveriesResponse, ReadResultRequest, RedriveDeliveriesRequest,
    RedriveDeliveriesResponse, ResultInfo, UpdateInboxRequest, UpdateInboxResponse,
    WatchDocumentRequest, WatchDocumentResponse, WatchOperationRequest, WatchOperationResponse,
};

/// The changes of one operation, snapshot first.
#[derive(Debug)]
pub struct Watch(Streaming<WatchOperationResponse>);

impl Watch {
    /// The next look at the operation; none after its final state. Signs of life are passed over.
    pub async fn next(&mut self) -> Result<Option<WatchOperationResponse>, Failure> {
        loop {
            match self.0.message().await? {
                Some(response) if response.heartbeat.is_some() => {}
                received => return Ok(received),
            }
        }
    }
}

/// The changes of one document, snapshot first.
#[derive(Debug)]
pub struct DocumentWatch(Streaming<WatchDocumentResponse>);

impl DocumentWatch {
    /// The next frame; none after the server's `Draining`, or when the stream ended otherwise.
    pub async fn next(&mut self) -> Result<Option<WatchDocumentResponse>, Failure> {
        self.0.message().await.map_err(Failure::from)
    }
}

/// The body of a result, whole and as its receipt describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultBody {
    /// What the receipt says of it.
    pub info: ResultInfo,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl ResultBody {
    /// The body, if size and digest are those of the receipt.
    fn checked(self) -> Result<ResultBody, Failure> {
        let whole = i64::try_from(self.data.len()) == Ok(self.info.size_bytes);
        if whole && Sha256::digest(&self.data)[..] == self.info.sha256[..] {
            return Ok(self);
        }
        let text = "the bytes of the result do not match its receipt; read it again".to_owned();
        Err(Failure {
            outcome: FailureOutcome::NoEffect,
            ..Failure::before_sending(Code::DataLoss, text)
        })
    }
}

impl Client {
    /// The body of a result, at most 16 MiB. A stream that is cut is resumed where it ended; each
    /// one that brings something begins the limits anew.
    ///
    /// # Errors
    /// RESULT_NOT_KEPT where there is no body, RESULT_NOT_READY before the operation's end, and
    /// DATA_LOSS for bytes that are not those of the receipt.
    pub async fn read_result(&self, identity: &OperationIdentity) -> Result<ResultBody, Failure> {
        let mut held = ResultBody { info: ResultInfo::default(), data: Vec::new() };
        let mut attempts = Attempts::begin(self.limits(), Duration::ZERO);
        loop {
            let before = held.data.len();
            let Err(failure) = self.read_on(identity, &mut held).await else {
                return held.checked();
            };
            if held.data.len() > before {
                attempts = Attempts::begin(self.limits(), Duration::ZERO);
            }
            let pause = match after_failed_call(&failure) {
                Decision::SameIdAgain(asked) => attempts.pause_after(&failure, asked),
                Decision::Stop => attempts.stop(),
            };
            match pause {
                Some(pause) => sleep(pause).await,
                None => return Err(failure),
            }
        }
    }

    /// Reads from the end of what is held until the last chunk.
    async fn read_on(
        &self,
        identity: &OperationIdentity,
        held: &mut ResultBody,
    ) -> Result<(), Failure> {
        let request = ReadResultRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
            offset: i64::try_from(held.data.len()).unwrap_or(i64::MAX),
            chunk_bytes: 0,
        };
        let patience = self.limits().per_attempt;
        let late = |_| Failure::gave_up_waiting(patience);
        let mut service = self.operations();
        let opened = timeout(patience, service.read_result(request)).await.map_err(late)?;
        let mut chunks = opened?.into_inner();
        while let Some(chunk) = timeout(patience, chunks.message()).await.map_err(late)?? {
            if let Some(info) = chunk.result {
                held.info = info;
            }
            if i64::try_from(held.data.len()) != Ok(chunk.offset) {
                return Err(Status::data_loss("a chunk of the result is missing").into());
            }
            held.data.extend(chunk.data);
            if chunk.last {
                return Ok(());
            }
        }
        Err(Status::unavailable("the result ended before its last chunk").into())
    }

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

    /// What is known about an id, as an outcome.
    pub async fn outcome_of(&self, identity: &OperationIdentity) -> Result<Outcome, Failure> {
        let response = self.look_up(identity).await?;
        Ok(Outcome::of_look_up(identity, response))
    }

    /// What is known about up to 100 ids, in the order asked.
    pub async fn look_up_all(
        &self,
        requests: Vec<GetOperationRequest>,
    ) -> Result<Vec<GetOperationResponse>, Failure> {
        let request = BatchGetOperationsRequest { requests };
        let answer = self
            .repeat(|| {
                let (mut service, request) = (self.operations(), self.timed(request.clone()));
                async move { service.batch_get_operations(request).await }
            })
            .await?;
        Ok(answer.results)
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
            seal: false,
        };
        self.cancel_with(request).await
    }

    /// As [`Client::cancel`], and seals an id that has no record: no submit under it can execute any
    /// more, also one that is still on its way. Durable once answered, and harmless to repeat. An id
    /// that is too old or too new for a submit is refused like one.
    pub async fn seal(
        &self,
        identity: &OperationIdentity,
        reason: &str,
    ) -> Result<CancelOperationResponse, Failure> {
        let request = CancelOperationRequest {
            operation_id: identity.id().to_owned(),
            mint_time: identity.wire_mint_time(),
            reason: reason.to_owned(),
            seal: true,
        };
        self.cancel_with(request).await
    }

    async fn cancel_with(
        &self,
        request: CancelOperationRequest,
    ) -> Result<CancelOperationResponse, Failure> {
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

    /// Gives attempts more time; durable once answered, and harmless to repeat.
    pub async fn extend(
        &self,
        request: ExtendDeliveriesRequest,
    ) -> Result<ExtendDeliveriesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.extend_deliveries(request).await }
        })
        .await
    }

    /// Gives attempts back; durable once answered. A repeat finds them no longer in flight.
    pub async fn defer(
        &self,
        request: DeferDeliveriesRequest,
    ) -> Result<DeferDeliveriesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.defer_deliveries(request).await }
        })
        .await
    }

    /// Makes ended results pending again; durable once answered. A repeat finds them pending.
    pub async fn redrive(
        &self,
        request: RedriveDeliveriesRequest,
    ) -> Result<RedriveDeliveriesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.redrive_deliveries(request).await }
        })
        .await
    }

    /// A page of results without a stream. What was taken by an attempt whose answer was lost comes
    /// again after its ack deadline. One attempt waits no longer than its own deadline: an empty page
    /// may come before the time asked for.
    pub async fn pull(
        &self,
        request: PullDeliveriesRequest,
    ) -> Result<PullDeliveriesResponse, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.inboxes(), self.timed(request.clone()));
            async move { service.pull_deliveries(request).await }
        })
        .await
    }

    /// One try of [`Client::extend`], for a reader that asks again in time by itself.
    pub(crate) async fn extend_once(
        &self,
        request: ExtendDeliveriesRequest,
    ) -> Result<Response<ExtendDeliveriesResponse>, Status> {
        self.inboxes().extend_deliveries(self.timed(request)).await
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
    pub async fn get_inbox(&self, inbox: &str) -> Result<Inbox, Failure> {
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

    /// A document now, then its changes. A lost stream is opened again by the caller, from the
    /// revision and generation that it has.
    pub async fn watch_document(
        &self,
        request: WatchDocumentRequest,
    ) -> Result<DocumentWatch, Failure> {
        self.repeat(|| {
            let (mut service, request) = (self.documents(), request.clone());
            async move { service.watch_document(request).await }
        })
        .await
        .map(DocumentWatch)
    }

    /// A request with the deadline of one attempt.
    pub(super) fn timed<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.limits().per_attempt);
        request
    }

    /// Repeats an idempotent call within the limits.
    pub(super) async fn repeat<T, F, A>(&self, attempt: F) -> Result<T, Failure>
    where
        F: Fn() -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let limits = self.limits();
        let deadline = limits.per_attempt + Duration::from_millis(500);
        let mut attempts = Attempts::begin(limits, Duration::ZERO);
        let mut doubt = false;
        let mut before: Option<Failure> = None;
        loop {
            let left = deadline.min(attempts.left());
            let mut failure = match (timeout(left, attempt()).await, before) {
                (Ok(Ok(response)), _) => return Ok(response.into_inner()),
                (Ok(Err(status)), _) => Failure::from(status),
                // That the time was too short for one more says less than why the last one failed.
                (Err(_), Some(told)) if left < deadline => {
                    Failure { outcome: FailureOutcome::Unknown, ..told }
                }
                (Err(_), _) => Failure::gave_up_waiting(left.min(limits.per_attempt)),
            };
            doubt |= failure.outcome == FailureOutcome::Unknown;
            let pause = match after_failed_call(&failure) {
                Decision::SameIdAgain(asked) => attempts.pause_after(&failure, asked),
                Decision::Stop => attempts.stop(),
            };
            match pause {
                Some(pause) => {
                    before = Some(failure);
                    sleep(pause).await;
                }
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
        super::{connect::ConnectOptions, error::tests::refusal, retry::RetryLimits},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn all_attempts_together_keep_to_the_limit() {
        let client = Client::connect("http://127.0.0.1:1", ConnectOptions::plain());
        let total = Duration::from_secs(5);
        let client = client.expect("a usable endpoint").with_limits(RetryLimits {
            total,
            attempts: 20,
            per_attempt: Duration::from_secs(3),
            unreachable: total,
        });
        let start = tokio::time::Instant::now();
        // Answers never; the second attempt is cut short.
        let silent = std::future::pending::<Result<Response<()>, Status>>;
        let failure = client.repeat(silent).await.expect_err("no answer");
        assert_eq!(failure.code, Code::DeadlineExceeded);
        assert!(start.elapsed() <= total, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_cut_short_hides_no_failure_before_it() {
        let client = Client::connect("http://127.0.0.1:1", ConnectOptions::plain());
        let total = Duration::from_secs(5);
        let client = client.expect("a usable endpoint").with_limits(RetryLimits {
            total,
            attempts: 20,
            per_attempt: Duration::from_secs(4),
            unreachable: total,
        });
        let calls = Cell::new(0);
        let attempt = async || {
            if calls.replace(calls.get() + 1) > 0 {
                std::future::pending::<()>().await;
            }
            Err::<Response<()>, _>(Status::unavailable("the authority is not one"))
        };
        let failure = client.repeat(attempt).await.expect_err("no answer");
        // The second one had its time, and says so; the third had not.
        assert_eq!((calls.get(), failure.code), (3, Code::DeadlineExceeded));
        calls.set(0);
        let short = RetryLimits { per_attempt: total, ..client.limits() };
        let failure = client.with_limits(short).repeat(attempt).await.expect_err("no answer");
        assert_eq!((calls.get(), failure.code), (2, Code::Unavailable));
        assert_eq!(failure.text, "the authority is not one");
        assert_eq!(failure.outcome, FailureOutcome::Unknown, "it may have been sent");
    }

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
