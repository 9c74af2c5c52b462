//! A service of one document and one inbox, in memory, for tests of the client through a proxy.
//!
//! What must stay true: its answers have the form of the protocol, and an effect happens once per
//! id. Deliberately not here: everything that the tests of the client do not ask for.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{BoxStream, StreamExt, unfold};
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use self::position::Position;
use super::{
    fake_data::Data,
    fake_script::{Asked, Script},
};
use crate::proto::{
    document_service_server::DocumentServiceServer,
    inbox_service_server::{InboxService, InboxServiceServer},
    operation_service_server::{OperationService, OperationServiceServer},
    *,
};

mod documents;
mod position;

/// A running fake.
pub(crate) struct FakeService {
    pub(crate) address: SocketAddr,
    store: Arc<Store>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
pub(crate) struct Store {
    data: Mutex<Data>,
    script: Mutex<Script>,
    asked: Mutex<Asked>,
    /// A call came.
    called: Notify,
    changed: Notify,
    /// Frames after which a stream ends; 0: it does not.
    frames_max: AtomicUsize,
}

impl FakeService {
    /// Listens on a free local port until it is dropped.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let store = Arc::new(Store::default());
        let serving = Server::builder()
            .add_service(OperationServiceServer::from_arc(store.clone()))
            .add_service(InboxServiceServer::new(Inboxes(store.clone())))
            .add_service(DocumentServiceServer::from_arc(store.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(serving.await) });
        FakeService { address, store, _tasks: tasks }
    }

    /// Ends every later stream after this many frames.
    pub(crate) fn end_streams_after(&self, frames: usize) {
        self.store.frames_max.store(frames, Ordering::Relaxed);
    }

    /// Changes what the next calls come to.
    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.store.script());
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.store.asked()
    }

    /// Waits for calls until what was asked is as it should be.
    pub(crate) async fn until(&self, done: impl Fn(&Asked) -> bool) {
        let waiting = async {
            loop {
                let called = self.store.called.notified();
                if done(&self.asked()) {
                    return;
                }
                called.await;
            }
        };
        timeout(Duration::from_secs(10), waiting).await.expect("the calls come");
    }

    /// The document's text.
    pub(crate) fn text(&self) -> String {
        self.store.data().text.iter().collect()
    }

    /// How many results are not acked.
    pub(crate) fn unacked(&self) -> usize {
        self.store.data().deliveries.values().filter(|delivery| !delivery.acked).count()
    }
}

impl Store {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what was asked.
    fn note(&self, note: impl FnOnce(&mut Asked)) {
        note(&mut self.asked());
        self.called.notify_waiters();
    }

    fn look_up(&self, asked: &GetOperationRequest) -> GetOperationResponse {
        let operation = self.data().operations.get(&asked.operation_id).cloned();
        let (standing, action) = match operation {
            Some(_) => (Standing::Recorded, RecoveryAction::ShowResult),
            None => (Standing::NotAcceptedYet, RecoveryAction::ResubmitSameId),
        };
        let text = format!("what is known of {}", asked.operation_id);
        GetOperationResponse {
            operation_id: asked.operation_id.clone(),
            standing: standing.into(),
            operation,
            recovery: Some(Recovery { action: action.into(), text }),
            ..GetOperationResponse::default()
        }
    }

    /// Every extension is granted, unless the script refuses all.
    fn extend(&self, request: ExtendDeliveriesRequest) -> Result<ExtendDeliveriesResponse, Status> {
        let asked = request.deliveries.iter().map(|target| (target.sequence, target.attempt));
        self.note(|all| all.extensions.extend(asked));
        if let Some(refused) = self.script().refused_extensions.clone() {
            return Err(refused);
        }
        let extended = |target: AttemptTarget| ExtendResult {
            sequence: target.sequence,
            outcome: ExtendOutcome::Extended.into(),
            ..ExtendResult::default()
        };
        let results = request.deliveries.into_iter().map(extended).collect();
        Ok(ExtendDeliveriesResponse { results })
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl OperationService for Store {
    type WatchOperationStream = BoxStream<'static, Result<WatchOperationResponse, Status>>;
    type ReadResultStream = BoxStream<'static, Result<crate::proto::ReadResultResponse, Status>>;

    async fn submit_operation(
        &self,
        request: Request<SubmitOperationRequest>,
    ) -> Result<Response<SubmitOperationResponse>, Status> {
        let request = request.into_inner();
        self.note(|asked| asked.submits.push(request.operation_id.clone()));
        if let Some(refused) = self.script().refused_submits.pop_front() {
            return Err(refused);
        }
        let mut data = self.data();
        let (operation, origin) = match data.operations.get(&request.operation_id) {
            Some(operation) => (operation.clone(), Origin::Replayed),
            None => (data.apply(&request), Origin::Executed),
        };
        drop(data);
        self.changed.notify_waiters();
        if let Some(lost) = self.script().lost_submits.pop_front() {
            return Err(lost);
        }
        Ok(Response::new(SubmitOperationResponse {
            operation: Some(operation),
            origin: origin.into(),
            ..SubmitOperationResponse::default()
        }))
    }

    async fn list_operations(
        &self,
        _request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        let is_applied = |operation: &&Operation| operation.state() == operation::State::Applied;
        let listed = |operation: &Operation| ListedOperation {
            operation: Some(operation.clone()),
            deliveries: Vec::new(),
        };
        let data = self.data();
        let operations = data.operations.values().filter(is_applied).map(listed).collect();
        Ok(Response::new(ListOperationsResponse { operations, next_page_token: String::new() }))
    }

    async fn batch_submit_operations(
        &self,
        _request: Request<BatchSubmitOperationsRequest>,
    ) -> Result<Response<BatchSubmitOperationsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<GetOperationResponse>, Status> {
        Ok(Response::new(self.look_up(request.get_ref())))
    }

    async fn batch_get_operations(
        &self,
        request: Request<BatchGetOperationsRequest>,
    ) -> Result<Response<BatchGetOperationsResponse>, Status> {
        let requests = request.into_inner().requests;
        self.note(|asked| asked.look_ups.push(requests.len()));
        if let Some(refused) = self.script().refused_look_ups.pop_front() {
            return Err(refused);
        }
        let results = requests.iter().map(|request| self.look_up(request)).collect();
        Ok(Response::new(BatchGetOperationsResponse { results }))
    }

    async fn watch_operation(
        &self,
        _request: Request<WatchOperationRequest>,
    ) -> Result<Response<Self::WatchOperationStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn read_result(
        &self,
        _request: Request<crate::proto::ReadResultRequest>,
    ) -> Result<Response<Self::ReadResultStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn cancel_operation(
        &self,
        _request: Request<CancelOperationRequest>,
    ) -> Result<Response<CancelOperationResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_operation_events(
        &self,
        _request: Request<ListOperationEventsRequest>,
    ) -> Result<Response<ListOperationEventsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn compute_intent_digest(
        &self,
        _request: Request<ComputeIntentDigestRequest>,
    ) -> Result<Response<ComputeIntentDigestResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// A stream keeps the store alive, so that this service holds it by a shared pointer.
struct Inboxes(Arc<Store>);

#[tonic::async_trait]
impl InboxService for Inboxes {
    type StreamDeliveriesStream = BoxStream<'static, Result<StreamDeliveriesResponse, Status>>;

    async fn stream_deliveries(
        &self,
        request: Request<StreamDeliveriesRequest>,
    ) -> Result<Response<Self::StreamDeliveriesStream>, Status> {
        let store = self.0.clone();
        store.note(|asked| asked.tokens.push(request.into_inner().resume_token));
        if let Some(refused) = store.script().refused_streams.pop_front() {
            return Err(refused);
        }
        let frames_max = match store.frames_max.load(Ordering::Relaxed) {
            0 => usize::MAX,
            chosen => chosen,
        };
        let start = Position::new(store);
        Ok(Response::new(unfold(start, Position::next_frame).take(frames_max).boxed()))
    }

    async fn ack_deliveries(
        &self,
        request: Request<AckDeliveriesRequest>,
    ) -> Result<Response<AckDeliveriesResponse>, Status> {
        if let Some(refused) = self.0.script().refused_acks.clone() {
            return Err(refused);
        }
        let mut data = self.0.data();
        let results = request.into_inner().deliveries.into_iter().map(|target| {
            let outcome = match data.deliveries.get_mut(&target.sequence) {
                None => AckOutcome::NoSuchDelivery,
                Some(delivery) if delivery.acked => AckOutcome::AlreadyAcked,
                Some(delivery) => {
                    delivery.acked = true;
                    AckOutcome::Acked
                }
            };
            AckResult { sequence: target.sequence, outcome: outcome.into(), ..AckResult::default() }
        });
        let results = results.collect();
        Ok(Response::new(AckDeliveriesResponse { results }))
    }

    async fn extend_deliveries(
        &self,
        request: Request<ExtendDeliveriesRequest>,
    ) -> Result<Response<ExtendDeliveriesResponse>, Status> {
        self.0.extend(request.into_inner()).map(Response::new)
    }

    async fn defer_deliveries(
        &self,
        _request: Request<DeferDeliveriesRequest>,
    ) -> Result<Response<DeferDeliveriesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn redrive_deliveries(
        &self,
        _request: Request<RedriveDeliveriesRequest>,
    ) -> Result<Response<RedriveDeliveriesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn pull_deliveries(
        &self,
        _request: Request<PullDeliveriesRequest>,
    ) -> Result<Response<PullDeliveriesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_deliveries(
        &self,
        _request: Request<ListDeliveriesRequest>,
    ) -> Result<Response<ListDeliveriesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_inbox(
        &self,
        _request: Request<GetInboxRequest>,
    ) -> Result<Response<GetInboxResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_inboxes(
        &self,
        _request: Request<ListInboxesRequest>,
    ) -> Result<Response<ListInboxesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn update_inbox(
        &self,
        _request: Request<UpdateInboxRequest>,
    ) -> Result<Response<UpdateInboxResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn delete_inbox(
        &self,
        _request: Request<DeleteInboxRequest>,
    ) -> Result<Response<DeleteInboxResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
