//! The service as a whole, in this process, through its listener: what no inner test can say.

#[path = "service/connections.rs"]
mod connections;
#[path = "support/process.rs"]
mod process;
#[path = "service/refusals.rs"]
mod refusals;
#[path = "service/watches.rs"]
mod watches;

use std::time::Duration;

use receiptd::{
    api::auth::Access,
    config::{Config, StoreUrl},
    domain::{ids::Span, policy::Policy},
    engine::{Engine, seams::Seams},
    proto::{
        self, inbox_service_client::InboxServiceClient,
        operation_service_client::OperationServiceClient,
    },
    server::{Listeners, Server, ServerError},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, transport::Channel};
use tonic_types::StatusExt;

struct Hosted {
    engine: Engine,
    address: String,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServerError>>,
    directory: tempfile::TempDir,
}

#[expect(clippy::disallowed_methods, reason = "a test hosts the service in a task of its own")]
async fn host(access: Access, config: Config) -> Hosted {
    let directory = tempfile::tempdir().expect("a directory");
    let store = StoreUrl::sqlite(directory.path().join("receiptd.db"));
    let server = Server::open(config, &store, access, Seams::system()).await.expect("opens");
    let engine = server.engine().clone();
    let grpc = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", grpc.local_addr().expect("bound"));
    let shutdown = CancellationToken::new();
    let listeners = Listeners { grpc, admin: None };
    let serving = tokio::spawn(server.serve_on(listeners, shutdown.clone()));
    Hosted { engine, address, shutdown, serving, directory }
}

async fn channel(hosted: &Hosted) -> Channel {
    Channel::from_shared(hosted.address.clone()).expect("a URI").connect().await.expect("connects")
}

fn append(id: &str, target: &str) -> proto::SubmitOperationRequest {
    proto::SubmitOperationRequest {
        operation_id: id.to_owned(),
        intent: Some(proto::Intent {
            action: "document.append".to_owned(),
            target: target.to_owned(),
            arguments: br#"{"line":"x"}"#.to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn fresh_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn two_accounts() -> (tempfile::NamedTempFile, Access) {
    use sha2::Digest;
    let entry = |name: &str| {
        let hash = sha2::Sha256::digest(format!("rd_{name}"));
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "[[token]]\nid = '{name}'\nhash = '{hash}'\naccount = '{name}'\nsubject = '{name}'\n\
             permissions = ['submit', 'read']\n"
        )
    };
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), entry("ours") + &entry("other")).expect("written");
    let access = Access::from_file(file.path()).expect("good file");
    (file, access)
}

fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {token}").parse().expect("ASCII");
    request.metadata_mut().insert("authorization", header);
    request
}

#[tokio::test]
async fn a_drain_ends_streams_and_ignores_peers_that_never_answer() {
    let hosted = host(Access::Local, Config::default()).await;
    let silent = tokio::net::TcpStream::connect(hosted.address.trim_start_matches("http://"));
    let silent = silent.await.expect("connects");
    let channel = channel(&hosted).await;
    let mut operations = OperationServiceClient::new(channel.clone());
    let submitted = operations.submit_operation(append(&fresh_id(), "notes/a")).await;
    let delivery = submitted.expect("applied").into_inner().deliveries.remove(0);
    assert_eq!(delivery.sequence, 1);
    let mut inboxes = InboxServiceClient::new(channel);
    let opened = inboxes.stream_deliveries(proto::StreamDeliveriesRequest::default()).await;
    let mut frames = opened.expect("opens").into_inner();
    hosted.shutdown.cancel();
    let mut last = None;
    while let Some(frame) = frames.message().await.expect("a good end") {
        last = frame.frame;
    }
    let drained = matches!(last, Some(proto::stream_deliveries_response::Frame::Draining(_)));
    assert!(drained, "{last:?}");
    let ended = tokio::time::timeout(Duration::from_secs(9), hosted.serving).await;
    ended.expect("in time").expect("no panic").expect("a clean end");
    drop((silent, hosted.directory));
}

#[tokio::test]
async fn an_id_of_another_account_answers_like_an_unused_one() {
    let (file, access) = two_accounts();
    let hosted = host(access, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let (used, unused) = (fresh_id(), fresh_id());
    let submit = with_token("rd_ours", append(&used, "notes/a"));
    operations.submit_operation(submit).await.expect("applied");
    let mut answers = Vec::new();
    for id in [&used, &unused] {
        let get = proto::GetOperationRequest { operation_id: id.clone(), mint_time: None };
        let found = operations.get_operation(with_token("rd_other", get)).await.expect("OK");
        let mut found = found.into_inner();
        assert_eq!(found.standing(), proto::Standing::NotAcceptedYet);
        found.store_time = None;
        answers.push(format!("{found:?}").replace(id.as_str(), "ID"));
        let cancel = proto::CancelOperationRequest { operation_id: id.clone(), ..<_>::default() };
        let refused = operations.cancel_operation(with_token("rd_other", cancel)).await;
        let refused = refused.expect_err("no record");
        assert_eq!(refused.code(), Code::NotFound);
        let details = format!("{:?}{:?}", refused.message(), refused.get_details_error_info());
        let details = details.replace(id.as_str(), "ID");
        assert!(details.contains("NO_SUCH_OPERATION") && details.contains("NOT_ACCEPTED_YET"));
    }
    assert_eq!(answers[0], answers[1]);
    drop(file);
}

#[tokio::test]
async fn a_batch_answers_each_item_and_a_bad_one_fails_alone() {
    use proto::batch_submit_result::Result as Item;
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let id = fresh_id();
    let mut requests: Vec<_> = (0..40).map(|_| append(&fresh_id(), "notes/a")).collect();
    requests.push(append("not an id", "notes/a"));
    requests.push(append(&id, "notes/b"));
    requests.push(append(&id, "notes/b"));
    requests.push(append(&id, "notes/c"));
    let batch = proto::BatchSubmitOperationsRequest { requests };
    let answered = operations.batch_submit_operations(batch).await.expect("answers");
    let results: Vec<_> =
        answered.into_inner().results.into_iter().map(|item| item.result).collect();
    for (place, result) in results[..40].iter().enumerate() {
        let Some(Item::Response(response)) = result else { panic!("{result:?}") };
        let receipt = response.operation.as_ref().and_then(|done| done.receipt.as_ref());
        let change = receipt.and_then(|receipt| receipt.document.as_ref()).expect("a change");
        assert_eq!(change.result_revision, place as i64 + 1, "in order");
    }
    let reason = |result: &Option<Item>| match result {
        Some(Item::Error(error)) => error.reason.clone(),
        Some(Item::Response(response)) => format!("{:?}", response.origin()),
        None => String::new(),
    };
    let told: Vec<_> = results[40..].iter().map(reason).collect();
    assert_eq!(told, ["INVALID_FIELD", "Executed", "Replayed", "OPERATION_INTENT_MISMATCH"]);
}

#[tokio::test]
async fn a_wait_is_answered_before_the_caller_gives_up() {
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let mut holder = append(&fresh_id(), "notes/a");
    let intent = holder.intent.as_mut().expect("there is one");
    intent.lock_mode = proto::LockMode::UntilAcked.into();
    let held = operations.submit_operation(holder).await.expect("applied").into_inner();
    let mut waiter = append(&fresh_id(), "notes/a");
    waiter.wait = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    let mut request = Request::new(waiter.clone());
    request.set_timeout(Duration::from_millis(700));
    let state = operations.submit_operation(request).await.expect("in time").into_inner();
    let operation = state.operation.expect("an operation");
    assert_eq!(operation.state(), proto::operation::State::Accepted);
    assert_eq!(
        operation.waiting_for.map(|lock| lock.operation_id),
        held.operation.map(|operation| operation.operation_id)
    );
    // The ack releases the lock, and the waiter's held-back answer comes at once.
    let mut inboxes = InboxServiceClient::new(channel(&hosted).await);
    let ack = proto::AckTarget {
        inbox: String::new(),
        sequence: held.deliveries[0].sequence,
        ..Default::default()
    };
    let acks = proto::AckDeliveriesRequest { deliveries: vec![ack], consumer_id: String::new() };
    let waiting = operations.submit_operation(waiter);
    let acking = async {
        // Held back: it waits for the operation by now.
        while hosted.engine.wake().watched().operations.is_empty() {
            tokio::task::yield_now().await;
        }
        inboxes.ack_deliveries(acks).await
    };
    let (waited, acked) = tokio::join!(waiting, acking);
    assert_eq!(acked.expect("acked").into_inner().results[0].outcome(), proto::AckOutcome::Acked);
    let waited = waited.expect("ends").into_inner();
    assert_eq!(waited.origin(), proto::Origin::Attached);
    let state = waited.operation.expect("an operation").state();
    assert_eq!(state, proto::operation::State::Applied);
}

/// A queue that stands still: another writer holds the embedded store until this is dropped.
fn stand_still(hosted: &Hosted) -> rusqlite::Connection {
    let writer = rusqlite::Connection::open(hosted.directory.path().join("receiptd.db"));
    let writer = writer.expect("the store's file");
    writer.busy_timeout(Duration::from_secs(5)).expect("a number");
    writer.execute_batch("BEGIN IMMEDIATE").expect("the one writer");
    writer
}

#[tokio::test]
async fn time_in_the_queue_counts_against_the_callers_own() {
    use proto::batch_submit_result::Result as Item;
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let mut holder = append(&fresh_id(), "notes/a");
    let intent = holder.intent.as_mut().expect("there is one");
    intent.lock_mode = proto::LockMode::UntilAcked.into();
    operations.submit_operation(holder).await.expect("applied");
    let waiter = |patience: Duration| {
        let mut waiter = append(&fresh_id(), "notes/a");
        waiter.wait = Some(prost_types::Duration { seconds: 30, nanos: 0 });
        let batch = proto::BatchSubmitOperationsRequest { requests: vec![waiter.clone()] };
        let (mut single, mut batch) = (Request::new(waiter), Request::new(batch));
        single.set_timeout(patience);
        batch.set_timeout(patience);
        (single, batch)
    };
    let (single, batch) = waiter(Duration::from_millis(2_000));
    let mut in_batch = operations.clone();
    let standing = stand_still(&hosted);
    let released = async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        drop(standing);
    };
    let (single, batch, ()) = tokio::join!(
        operations.submit_operation(single),
        in_batch.batch_submit_operations(batch),
        released
    );
    let accepted = proto::operation::State::Accepted;
    let state = |answer: proto::SubmitOperationResponse| answer.operation.expect("there").state();
    assert_eq!(state(single.expect("in time").into_inner()), accepted);
    let item = batch.expect("in time").into_inner().results.remove(0).result;
    let Some(Item::Response(response)) = item else { panic!("{item:?}") };
    assert_eq!(state(response), accepted);
}

#[tokio::test]
async fn a_full_inbox_tells_its_limit_and_when_a_slot_is_free() {
    use proto::batch_submit_result::Result as Item;
    let policy = Policy { inbox_slots: 1, ack_window: Span::seconds(40), ..Policy::default() };
    let hosted = host(Access::Local, Config { policy, ..Config::default() }).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let first = operations.submit_operation(append(&fresh_id(), "notes/a")).await;
    let first = first.expect("applied").into_inner().deliveries.remove(0);
    // Told in milliseconds.
    let expires = first.expire_time.expect("a time").to_string()[..23].to_owned() + "Z";
    let refused = operations.submit_operation(append(&fresh_id(), "notes/a")).await;
    let refused = refused.expect_err("no slot");
    let info = refused.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.reason, "INBOX_FULL");
    let told = |name: &str| info.metadata.get(name).map(String::as_str);
    assert_eq!((told("limit"), told("in_use")), (Some("1"), Some("1")));
    assert_eq!(told("earliest_release"), Some(expires.as_str()));
    let retry = refused.get_details_retry_info().and_then(|info| info.retry_delay);
    let soon = Duration::from_secs(1)..=Duration::from_secs(40);
    assert!(retry.is_some_and(|retry| soon.contains(&retry)), "{retry:?}");
    let batch = vec![append(&fresh_id(), "notes/a")];
    let batch = proto::BatchSubmitOperationsRequest { requests: batch };
    let answered = operations.batch_submit_operations(batch).await.expect("answers");
    let item = answered.into_inner().results.remove(0).result;
    let Some(Item::Error(error)) = item else { panic!("{item:?}") };
    assert_eq!(error.metadata.get("earliest_release"), Some(&expires));
    assert!(error.retry_delay.is_some());
}

#[tokio::test]
async fn an_account_has_a_bounded_number_of_streams_and_watches() {
    let config = Config { account_streams_max: 1, ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let channel = channel(&hosted).await;
    let mut operations = OperationServiceClient::new(channel.clone());
    let mut inboxes = InboxServiceClient::new(channel);
    let id = fresh_id();
    operations.submit_operation(append(&id, "notes/a")).await.expect("applied");
    let stream = |inbox: &str| proto::StreamDeliveriesRequest {
        inbox: inbox.to_owned(),
        ..Default::default()
    };
    let first = inboxes.stream_deliveries(stream("default")).await.expect("opens");
    let watch = proto::WatchOperationRequest { operation_id: id, ..Default::default() };
    let watched = operations.watch_operation(watch).await.map(drop);
    let streamed = inboxes.stream_deliveries(stream("other")).await.map(drop);
    for refused in [watched, streamed] {
        let refused = refused.expect_err("no place");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let info = refused.get_details_error_info().expect("an ErrorInfo");
        assert_eq!((info.reason.as_str(), info.metadata["limit"].as_str()), ("ACCOUNT_QUOTA", "1"));
    }
    let inbox = proto::GetInboxRequest { inbox: "other".to_owned() };
    let absent = inboxes.get_inbox(inbox).await.expect_err("nothing was opened");
    assert_eq!(absent.code(), Code::NotFound);
    drop(first);
    // The server learns of the end a little later.
    let opens = async {
        while inboxes.stream_deliveries(stream("other")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), opens).await.expect("the place is free again");
}

#[tokio::test]
async fn what_finds_no_place_among_the_connections_waits_for_one() {
    let config = Config { connections_max: 1, ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let first = channel(&hosted).await;
    let mut operations = OperationServiceClient::new(first.clone());
    operations.submit_operation(append(&fresh_id(), "notes/a")).await.expect("applied");
    let mut second = OperationServiceClient::new(channel(&hosted).await);
    let mut waiting = std::pin::pin!(second.submit_operation(append(&fresh_id(), "notes/a")));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "there is one place");
    drop((first, operations));
    let late = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    late.expect("the place is free again").expect("applied");
}

#[tokio::test]
async fn a_reopened_store_keeps_every_receipt() {
    let config = Config { drain_deadline: Span::seconds(5), ..Config::default() };
    let hosted = host(Access::Local, config.clone()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let submit = append(&fresh_id(), "notes/a");
    let first = operations.submit_operation(submit.clone()).await.expect("applied").into_inner();
    hosted.shutdown.cancel();
    hosted.serving.await.expect("no panic").expect("a clean end");
    let store = StoreUrl::sqlite(hosted.directory.path().join("receiptd.db"));
    let server = Server::open(config, &store, Access::Local, Seams::system()).await;
    let server = server.expect("the file is free again");
    let grpc = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", grpc.local_addr().expect("bound"));
    let shutdown = CancellationToken::new();
    let serving = server.serve_on(Listeners { grpc, admin: None }, shutdown.clone());
    let asking = async {
        let channel = Channel::from_shared(address).expect("a URI").connect().await;
        let mut operations = OperationServiceClient::new(channel.expect("connects"));
        let second = operations.submit_operation(submit).await.expect("replayed").into_inner();
        shutdown.cancel();
        second
    };
    let (served, second) = tokio::join!(serving, asking);
    served.expect("a clean end");
    assert_eq!(second.origin(), proto::Origin::Replayed);
    let receipt = |answer: proto::SubmitOperationResponse| {
        answer.operation.and_then(|operation| operation.receipt)
    };
    assert_eq!(receipt(first), receipt(second));
}
