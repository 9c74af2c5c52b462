//! Raw clients of the generated protocol: what any caller in any language could send.
//!
//! What must stay true: no retries and no memory of its own; a test sees every answer as sent.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use receiptd::proto::{
    AckDeliveriesRequest, AckOutcome, AckTarget, BatchSubmitOperationsRequest, DeliveredResult,
    DeliveryTarget, Document, GetDocumentRequest, GetInboxRequest, GetOperationResponse, Inbox,
    ListOperationEventsRequest, OperationEvent, OperationEventKind, RedriveDeliveriesRequest,
    RedriveOutcome, StreamDeliveriesRequest, StreamDeliveriesResponse, SubmitError,
    SubmitOperationRequest, SubmitOperationResponse, admin_service_client::AdminServiceClient,
    batch_submit_result, document_service_client::DocumentServiceClient,
    inbox_service_client::InboxServiceClient, operation_service_client::OperationServiceClient,
    session_service_client::SessionServiceClient, stream_deliveries_response::Frame,
};
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

use super::{requests::Identity, within};

/// Sends the caller's token with every call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl Bearer {
    fn of(token: &str) -> Bearer {
        Bearer(Some(format!("Bearer {token}").parse().expect("a token of plain characters")))
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

type Authorized = InterceptedService<Channel, Bearer>;

/// One caller with one connection, which reconnects by itself on the next call.
#[derive(Clone)]
pub struct Caller {
    /// Operations.
    pub operations: OperationServiceClient<Authorized>,
    /// Inboxes.
    pub inboxes: InboxServiceClient<Authorized>,
    /// Documents.
    pub documents: DocumentServiceClient<Authorized>,
    /// Administration.
    pub admin: AdminServiceClient<Authorized>,
    /// Sessions.
    pub sessions: SessionServiceClient<Authorized>,
}

impl Caller {
    /// A caller with a token.
    pub fn new(address: SocketAddr, token: &str) -> Caller {
        Caller::over(endpoint(address), Bearer::of(token))
    }

    /// A caller whose connection has the windows that HTTP/2 begins with: 64 KiB.
    pub fn with_small_windows(address: SocketAddr, token: &str) -> Caller {
        let endpoint = endpoint(address)
            .initial_connection_window_size(65_535)
            .initial_stream_window_size(65_535);
        Caller::over(endpoint, Bearer::of(token))
    }

    /// A caller without credentials.
    pub fn anonymous(address: SocketAddr) -> Caller {
        Caller::over(endpoint(address), Bearer(None))
    }

    fn over(endpoint: Endpoint, bearer: Bearer) -> Caller {
        let channel = endpoint.connect_lazy();
        let authorized = || InterceptedService::new(channel.clone(), bearer.clone());
        Caller {
            operations: OperationServiceClient::new(authorized()),
            inboxes: InboxServiceClient::new(authorized()),
            documents: DocumentServiceClient::new(authorized()),
            admin: AdminServiceClient::new(authorized()),
            sessions: SessionServiceClient::new(authorized()),
        }
    }

    /// Submits once.
    pub async fn submit(
        &self,
        request: SubmitOperationRequest,
    ) -> Result<SubmitOperationResponse, Status> {
        let mut client = self.operations.clone();
        let answer = within("the answer of a submit", client.submit_operation(request)).await?;
        Ok(answer.into_inner())
    }

    /// Submits once; must be answered.
    pub async fn submitted(&self, request: SubmitOperationRequest) -> SubmitOperationResponse {
        self.submit(request).await.expect("the submit is answered")
    }

    /// Submits a batch of at most a hundred; each must be answered.
    pub async fn submitted_together(
        &self,
        requests: Vec<SubmitOperationRequest>,
    ) -> Vec<SubmitOperationResponse> {
        let outcomes = self.submit_together(requests).await;
        let answered = outcomes.into_iter().map(|item| match item {
            batch_submit_result::Result::Response(response) => response,
            other => panic!("a submit of the batch failed: {other:?}"),
        });
        answered.collect()
    }

    /// Submits a batch of at most a hundred, each with an outcome of its own.
    pub async fn submit_together(
        &self,
        requests: Vec<SubmitOperationRequest>,
    ) -> Vec<batch_submit_result::Result> {
        let mut client = self.operations.clone();
        let batch = BatchSubmitOperationsRequest { requests };
        let answer = within("a batch", client.batch_submit_operations(batch)).await;
        let results = answer.expect("the batch is answered").into_inner().results;
        results.into_iter().map(|item| item.result.expect("an outcome")).collect()
    }

    /// Submits once; must be refused.
    pub async fn refused(&self, request: SubmitOperationRequest) -> Refused {
        Refused::of(&self.submit(request).await.expect_err("the submit is refused"))
    }

    /// Looks an id up.
    pub async fn get(&self, identity: &Identity) -> GetOperationResponse {
        let mut client = self.operations.clone();
        let answer = within("a look-up", client.get_operation(identity.look_up())).await;
        answer.expect("a look-up always answers").into_inner()
    }

    /// The kinds of an operation's audit trail, oldest first, with all entries.
    pub async fn events(&self, identity: &Identity) -> Vec<OperationEvent> {
        let request = ListOperationEventsRequest {
            operation_id: identity.id.clone(),
            mint_time: identity.mint_time,
            page_size: 1_000,
            page_token: String::new(),
        };
        let mut client = self.operations.clone();
        let answer = within("the audit trail", client.list_operation_events(request)).await;
        answer.expect("the trail is there").into_inner().events
    }

    /// How often something of a kind stands in an operation's audit trail.
    pub async fn count_events(&self, identity: &Identity, kind: OperationEventKind) -> usize {
        self.events(identity).await.iter().filter(|event| event.kind() == kind).count()
    }

    /// A document as it is now, if there is one.
    pub async fn document(&self, target: &str) -> Option<Document> {
        let request = GetDocumentRequest { target: target.to_owned() };
        let mut client = self.documents.clone();
        match within("a document", client.get_document(request)).await {
            Ok(answer) => answer.into_inner().document,
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => panic!("the document cannot be read: {status:?}"),
        }
    }

    /// A document's text and revision; the text is empty and the revision 0 if there is none.
    pub async fn text(&self, target: &str) -> (String, i64) {
        use receiptd::proto::document::Content;
        match self.document(target).await {
            Some(Document { content: Some(Content::Text(text)), revision, .. }) => (text, revision),
            Some(Document { revision, .. }) => (String::new(), revision),
            None => (String::new(), 0),
        }
    }

    /// An inbox's figures.
    pub async fn inbox(&self, inbox: &str) -> Inbox {
        let mut client = self.inboxes.clone();
        let request = GetInboxRequest { inbox: inbox.to_owned() };
        let answer = within("an inbox", client.get_inbox(request)).await;
        answer.expect("the inbox is there").into_inner().inbox.expect("an inbox in the answer")
    }

    /// Acks numbers of one inbox and returns how each ended.
    pub async fn ack(&self, inbox: &str, sequences: &[i64]) -> Result<Vec<AckOutcome>, Status> {
        self.ack_as("", inbox, sequences).await
    }

    /// The same as the consumer of a stream, which then need not be told of these acks.
    pub async fn ack_as(
        &self,
        consumer: &str,
        inbox: &str,
        sequences: &[i64],
    ) -> Result<Vec<AckOutcome>, Status> {
        let deliveries = sequences
            .iter()
            .map(|sequence| AckTarget {
                inbox: inbox.to_owned(),
                sequence: *sequence,
                ..AckTarget::default()
            })
            .collect();
        let request = AckDeliveriesRequest { deliveries, consumer_id: consumer.to_owned() };
        let mut client = self.inboxes.clone();
        let answer = within("the answer of an ack", client.ack_deliveries(request)).await?;
        Ok(answer.into_inner().results.iter().map(|result| result.outcome()).collect())
    }

    /// Redrives numbers of one inbox and returns how each ended.
    pub async fn redrive(&self, inbox: &str, sequences: &[i64]) -> Vec<RedriveOutcome> {
        let target = |sequence: &i64| DeliveryTarget {
            inbox: inbox.to_owned(),
            sequence: *sequence,
            operation_id: String::new(),
        };
        let deliveries = sequences.iter().map(target).collect();
        let request = RedriveDeliveriesRequest { deliveries, ..Default::default() };
        let mut client = self.inboxes.clone();
        let answer = within("a redrive", client.redrive_deliveries(request)).await;
        let results = answer.expect("the redrive is answered").into_inner().results;
        results.iter().map(|result| result.outcome()).collect()
    }

    /// Opens a stream of an inbox's results.
    pub async fn open(&self, request: StreamDeliveriesRequest) -> Result<Reader, Status> {
        let mut client = self.inboxes.clone();
        let stream = within("a stream to open", client.stream_deliveries(request)).await?;
        Ok(Reader { stream: stream.into_inner(), token: String::new(), others: Vec::new() })
    }

    /// Opens a stream; the first frame must come.
    pub async fn reader(&self, inbox: &str, consumer: &str, token: &str) -> Reader {
        let request = StreamDeliveriesRequest {
            inbox: inbox.to_owned(),
            resume_token: token.to_owned(),
            consumer_id: consumer.to_owned(),
            window: 0,
        };
        self.open(request).await.expect("the stream opens")
    }
}

/// An open stream.
pub struct Reader {
    stream: Streaming<StreamDeliveriesResponse>,
    /// The last resume token that was sent.
    pub token: String,
    /// Frames that were neither results nor signs of life, in order.
    pub others: Vec<Frame>,
}

impl Reader {
    /// The next frame of any kind, or how the stream ended.
    pub async fn frame(&mut self) -> Result<Frame, Status> {
        let received = within("a frame", self.stream.message()).await?;
        let received = received.ok_or_else(|| Status::ok("the stream ended"))?;
        let frame = received.frame.expect("a frame of a kind that this test knows");
        let token = match &frame {
            Frame::Opened(opened) => Some(&opened.resume_token),
            Frame::Deliveries(batch) => Some(&batch.resume_token),
            Frame::CaughtUp(caught_up) => Some(&caught_up.resume_token),
            Frame::Heartbeat(heartbeat) => Some(&heartbeat.resume_token),
            Frame::Draining(draining) => Some(&draining.resume_token),
            Frame::Gap(_) | Frame::Withdrawn(_) => None,
        };
        if let Some(token) = token {
            self.token.clone_from(token);
        }
        Ok(frame)
    }

    /// Reads until `count` results came.
    pub async fn results(&mut self, count: usize) -> Vec<DeliveredResult> {
        let mut results = Vec::new();
        let reading = async {
            while results.len() < count {
                match self.frame().await.expect("the stream stays open") {
                    Frame::Deliveries(batch) => results.extend(batch.results),
                    Frame::Heartbeat(_) => {}
                    other => self.others.push(other),
                }
            }
        };
        within("results", reading).await;
        assert_eq!(results.len(), count, "more results than expected: {results:?}");
        results
    }

    /// The results of the next frame that has any.
    pub async fn next_results(&mut self) -> Vec<DeliveredResult> {
        loop {
            match self.frame().await.expect("the stream stays open") {
                Frame::Deliveries(batch) => return batch.results,
                Frame::Heartbeat(_) => {}
                other => self.others.push(other),
            }
        }
    }

    /// Reads up to `CaughtUp` and returns the results before it.
    pub async fn backlog(&mut self) -> Vec<DeliveredResult> {
        let mut results = Vec::new();
        let reading = async {
            loop {
                match self.frame().await.expect("the stream stays open") {
                    Frame::Deliveries(batch) => results.extend(batch.results),
                    Frame::CaughtUp(_) => return,
                    Frame::Heartbeat(_) => {}
                    other => self.others.push(other),
                }
            }
        };
        within("the end of the backlog", reading).await;
        results
    }

    /// Reads until the stream ends, and returns how.
    pub async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.frame().await {
                return status;
            }
        }
    }
}

/// The number of a delivered result.
pub fn sequence(result: &DeliveredResult) -> i64 {
    result.delivery.as_ref().expect("a result has a delivery").sequence
}

/// Which attempt a delivered result is.
pub fn attempt(result: &DeliveredResult) -> i32 {
    result.delivery.as_ref().expect("a result has a delivery").attempt
}

/// The numbers of delivered results.
pub fn sequences(results: &[DeliveredResult]) -> Vec<i64> {
    results.iter().map(sequence).collect()
}

/// A refusal as programs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The gRPC code.
    pub code: Code,
    /// The stable reason; empty where the answer carried no details.
    pub reason: String,
    /// `operation_id`, `outcome`, `recovery` and more.
    pub metadata: HashMap<String, String>,
    /// When to come back, where the answer says so.
    pub retry_delay: Option<Duration>,
    /// For people.
    pub message: String,
}

impl Refused {
    /// Reads the details of a failed call.
    pub fn of(status: &Status) -> Refused {
        let info = status.get_details_error_info();
        let ours = info.filter(|info| info.domain == "receiptd");
        let (reason, metadata) = ours.map(|info| (info.reason, info.metadata)).unwrap_or_default();
        let retry_delay = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
        let message = status.message().to_owned();
        Refused { code: status.code(), reason, metadata, retry_delay, message }
    }

    /// The refusal of one item of a batch.
    pub fn of_item(error: &SubmitError) -> Refused {
        let retry_delay = error.retry_delay.and_then(|delay| Duration::try_from(delay).ok());
        Refused {
            code: Code::from_i32(error.code),
            reason: error.reason.clone(),
            metadata: error.metadata.clone().into_iter().collect(),
            retry_delay,
            message: error.message.clone(),
        }
    }

    /// One value of the metadata; empty where it is absent.
    pub fn value(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }
}
