//! What is refused, and with which words.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Response, Status};

use super::*;

/// The first line of the answer to an HTTP/1.1 POST with these headers.
async fn posted(hosted: &Hosted, headers: &str) -> String {
    let address = hosted.address.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let request = format!(
        "POST /receiptd.v1.OperationService/ListOperations HTTP/1.1\r\n{headers}\
         Connection: close\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_page_that_is_not_listed_reaches_no_service() {
    let hosted = host(Access::Local, Config::default()).await;
    for (headers, code) in [
        (
            "Host: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n",
            "415",
        ),
        ("Host: localhost\r\nContent-Type: text/plain\r\n", "415"),
        ("Host: localhost\r\n", "415"),
        // Without trailers there is no gRPC.
        ("Host: localhost\r\nContent-Type: application/grpc\r\n", "415"),
        ("Host: localhost\r\nOrigin: http://a\r\nContent-Type: application/grpc-web\r\n", "403"),
        ("Host: evil.example:7070\r\nContent-Type: application/grpc-web\r\n", "403"),
        ("Host: localhost:7070\r\nContent-Type: application/grpc-web\r\n", "200"),
    ] {
        let line = posted(&hosted, headers).await;
        assert!(line.contains(code), "{headers}{line}");
    }
}

/// The code, and what ErrorInfo tells.
fn told(refused: &tonic::Status) -> (Code, String, std::collections::HashMap<String, String>) {
    let info = refused.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "receiptd");
    (refused.code(), info.reason, info.metadata)
}

fn assert_no_answer_yet(refused: &tonic::Status, id: Option<&str>) {
    let (code, reason, metadata) = told(refused);
    assert_eq!((code, reason.as_str()), (Code::DeadlineExceeded, "NO_ANSWER_YET"));
    let told = |name: &str| metadata.get(name).map(String::as_str);
    assert_eq!(told("outcome"), Some("UNKNOWN"));
    assert_eq!(told("recovery"), Some("RESUBMIT_SAME_ID"));
    assert_eq!(told("operation_id"), id);
}

#[tokio::test]
async fn a_slow_store_is_told_before_the_caller_gives_up() {
    use proto::batch_submit_result::Result as Item;
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let mut inboxes = InboxServiceClient::new(channel(&hosted).await);
    let standing = stand_still(&hosted);
    let (single, in_batch, gone) = (fresh_id(), fresh_id(), fresh_id());
    let hurried = Duration::from_millis(600);
    let mut submit = Request::new(append(&single, "notes/a"));
    submit.set_timeout(hurried);
    let requests = vec![append(&in_batch, "notes/b")];
    let mut batch = Request::new(proto::BatchSubmitOperationsRequest { requests });
    batch.set_timeout(hurried);
    let cancel = proto::CancelOperationRequest { operation_id: gone.clone(), ..<_>::default() };
    let mut cancel = Request::new(cancel);
    cancel.set_timeout(hurried);
    let deliveries =
        vec![proto::AckTarget { inbox: String::new(), sequence: 1, ..Default::default() }];
    let ack = proto::AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    let mut ack = Request::new(ack);
    ack.set_timeout(hurried);
    let (mut second, mut third) = (operations.clone(), operations.clone());
    let (submitted, batched, cancelled, acked) = tokio::join!(
        operations.submit_operation(submit),
        second.batch_submit_operations(batch),
        third.cancel_operation(cancel),
        inboxes.ack_deliveries(ack),
    );
    assert_no_answer_yet(&submitted.expect_err("no answer yet"), Some(&single));
    assert_no_answer_yet(&cancelled.expect_err("no answer yet"), Some(&gone));
    assert_no_answer_yet(&acked.expect_err("no answer yet"), None);
    let item = batched.expect("in time").into_inner().results.remove(0).result;
    let Some(Item::Error(error)) = item else { panic!("{item:?}") };
    assert_eq!(error.reason, "NO_ANSWER_YET");
    assert_eq!(error.metadata.get("operation_id"), Some(&in_batch));
    // What was taken goes on.
    drop(standing);
    let mut again = append(&single, "notes/a");
    again.wait = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    let again = operations.submit_operation(again).await.expect("replayed").into_inner();
    assert_eq!(again.origin(), proto::Origin::Replayed);
}

#[tokio::test]
async fn an_impossible_ack_fails_alone() {
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    operations.submit_operation(append(&fresh_id(), "notes/a")).await.expect("applied");
    let mut inboxes = InboxServiceClient::new(channel(&hosted).await);
    let target = |inbox: &str, sequence| proto::AckTarget {
        inbox: inbox.to_owned(),
        sequence,
        ..Default::default()
    };
    let deliveries = vec![target("", 9), target("a/b", 1), target("", 1), target("", -1)];
    let ack = proto::AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    let results = inboxes.ack_deliveries(ack).await.expect("answers").into_inner().results;
    let outcomes: Vec<_> = results.iter().map(proto::AckResult::outcome).collect();
    let none = proto::AckOutcome::NoSuchDelivery;
    assert_eq!(outcomes, [none, none, proto::AckOutcome::Acked, none]);
}

#[tokio::test]
async fn a_refusal_names_the_operation_wherever_the_request_did() {
    use proto::batch_submit_result::Result as Item;
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    // No mint time: the id is good, the request is not.
    let id = "op-1";
    let get = proto::GetOperationRequest { operation_id: id.to_owned(), mint_time: None };
    let gets = proto::BatchGetOperationsRequest { requests: vec![get.clone()] };
    let cancel = proto::CancelOperationRequest { operation_id: id.to_owned(), ..<_>::default() };
    let watch = proto::WatchOperationRequest { operation_id: id.to_owned(), ..<_>::default() };
    let events =
        proto::ListOperationEventsRequest { operation_id: id.to_owned(), ..<_>::default() };
    for refused in [
        operations.submit_operation(append(id, "notes/a")).await.map(drop),
        operations.get_operation(get).await.map(drop),
        operations.batch_get_operations(gets).await.map(drop),
        operations.cancel_operation(cancel).await.map(drop),
        operations.watch_operation(watch).await.map(drop),
        operations.list_operation_events(events).await.map(drop),
    ] {
        let (_, reason, metadata) = told(&refused.expect_err("no mint time"));
        assert_eq!(reason, "INVALID_FIELD");
        assert_eq!(metadata.get("operation_id").map(String::as_str), Some(id), "{metadata:?}");
    }
    let batch = proto::BatchSubmitOperationsRequest { requests: vec![append(id, "notes/a")] };
    let answered = operations.batch_submit_operations(batch).await.expect("answers");
    let item = answered.into_inner().results.remove(0).result;
    let Some(Item::Error(error)) = item else { panic!("{item:?}") };
    assert_eq!(error.metadata.get("operation_id").map(String::as_str), Some(id));
}

/// The sentence for people.
fn sentence(refused: &tonic::Status) -> String {
    refused.get_details_localized_message().expect("a sentence").message
}

#[tokio::test]
async fn a_read_that_is_refused_is_not_said_to_have_no_effect() {
    use proto::{
        admin_service_client::AdminServiceClient, document_service_client::DocumentServiceClient,
    };
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let mut inboxes = InboxServiceClient::new(channel(&hosted).await);
    let mut documents = DocumentServiceClient::new(channel(&hosted).await);
    let mut admin = AdminServiceClient::new(channel(&hosted).await);
    let no_mint_time = || "op-1".to_owned();
    let get = proto::GetOperationRequest { operation_id: no_mint_time(), mint_time: None };
    let gets = proto::BatchGetOperationsRequest { requests: vec![get.clone()] };
    let watch = proto::WatchOperationRequest { operation_id: no_mint_time(), mint_time: None };
    let absent = proto::WatchOperationRequest { operation_id: fresh_id(), mint_time: None };
    let events =
        proto::ListOperationEventsRequest { operation_id: no_mint_time(), ..<_>::default() };
    let list = proto::ListOperationsRequest { page_size: -1, ..<_>::default() };
    let digest = proto::ComputeIntentDigestRequest { intent: None };
    let stream = proto::StreamDeliveriesRequest { window: -1, ..<_>::default() };
    let deliveries = proto::ListDeliveriesRequest { inbox: "absent".into(), ..<_>::default() };
    let inbox = proto::GetInboxRequest { inbox: "absent".into() };
    let list_inboxes = proto::ListInboxesRequest { page_size: -1, ..<_>::default() };
    let document = proto::GetDocumentRequest { target: "absent".into() };
    let list_documents = proto::ListDocumentsRequest { page_size: -1, ..<_>::default() };
    let watch_document = proto::WatchDocumentRequest { known_revision: -1, ..<_>::default() };
    let policy = proto::GetPolicyRequest { account: "no\nname".into() };
    let verify = proto::VerifyInvariantsRequest { page_token: "no".into(), ..<_>::default() };
    let locks = proto::ListLocksRequest { page_size: -1, ..<_>::default() };
    for (read, asked) in [
        ("GetOperation", operations.get_operation(get).await.map(drop)),
        ("BatchGetOperations", operations.batch_get_operations(gets).await.map(drop)),
        ("WatchOperation", operations.watch_operation(watch).await.map(drop)),
        ("WatchOperation, absent", operations.watch_operation(absent).await.map(drop)),
        ("ListOperationEvents", operations.list_operation_events(events).await.map(drop)),
        ("ListOperations", operations.list_operations(list).await.map(drop)),
        ("ComputeIntentDigest", operations.compute_intent_digest(digest).await.map(drop)),
        ("StreamDeliveries", inboxes.stream_deliveries(stream).await.map(drop)),
        ("ListDeliveries", inboxes.list_deliveries(deliveries).await.map(drop)),
        ("GetInbox", inboxes.get_inbox(inbox).await.map(drop)),
        ("ListInboxes", inboxes.list_inboxes(list_inboxes).await.map(drop)),
        ("GetDocument", documents.get_document(document).await.map(drop)),
        ("ListDocuments", documents.list_documents(list_documents).await.map(drop)),
        ("WatchDocument", documents.watch_document(watch_document).await.map(drop)),
        ("ListLocks", admin.list_locks(locks).await.map(drop)),
        ("GetPolicy", admin.get_policy(policy).await.map(drop)),
        ("VerifyInvariants", admin.verify_invariants(verify).await.map(drop)),
    ] {
        let sentence = sentence(&asked.expect_err(read));
        let begins = [
            "The call has no answer: ",
            "Nothing was found: ",
            "Nothing can be told of operation ",
        ];
        assert!(begins.iter().any(|begin| sentence.starts_with(begin)), "{read}: {sentence}");
        assert!(!sentence.contains("effect"), "{read}: {sentence}");
    }
    let change = operations.submit_operation(append("op-1", "notes/a")).await;
    let change = sentence(&change.expect_err("no mint time"));
    assert!(change.starts_with("Operation op-1 had no effect through this call: "), "{change}");
}

#[tokio::test]
async fn a_stream_that_ends_says_so() {
    let hosted = host(Access::Local, Config::default()).await;
    let mut inboxes = InboxServiceClient::new(channel(&hosted).await);
    let open = proto::StreamDeliveriesRequest { consumer_id: "one".into(), ..<_>::default() };
    let first = inboxes.stream_deliveries(open.clone()).await.expect("opens");
    let mut first = first.into_inner();
    first.message().await.expect("a frame").expect("opened");
    let _second = inboxes.stream_deliveries(open).await.expect("opens");
    let ended = loop {
        match first.message().await {
            Ok(frame) => assert!(frame.is_some(), "the first stream ends with an error"),
            Err(ended) => break ended,
        }
    };
    let sentence = sentence(&ended);
    assert!(sentence.starts_with("The stream has ended: a newer stream of the same"), "{sentence}");
    assert!(!sentence.contains("effect"), "{sentence}");
}

#[tokio::test]
async fn an_absent_id_outside_admission_is_never_told_to_be_sent_again() {
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let now = hosted.engine.seams().now().0;
    let days = Span::days(2).0;
    let at = |micros: i64| prost_types::Timestamp { seconds: micros / 1_000_000, nanos: 0 };
    for (time, next) in
        [(now, "RESUBMIT_SAME_ID"), (now - days, "WAIT"), (now + days, "FIX_REQUEST")]
    {
        let (operation_id, mint_time) = ("op-1".to_owned(), Some(at(time)));
        let cancel = proto::CancelOperationRequest {
            operation_id: operation_id.clone(),
            mint_time,
            ..<_>::default()
        };
        let watch = proto::WatchOperationRequest { operation_id: operation_id.clone(), mint_time };
        let events =
            proto::ListOperationEventsRequest { operation_id, mint_time, ..<_>::default() };
        for refused in [
            operations.cancel_operation(cancel).await.map(drop),
            operations.watch_operation(watch).await.map(drop),
            operations.list_operation_events(events).await.map(drop),
        ] {
            let (_, reason, metadata) = told(&refused.expect_err("no record"));
            assert_eq!(reason, "NO_SUCH_OPERATION");
            assert_eq!(metadata.get("recovery").map(String::as_str), Some(next));
        }
    }
}

/// What a call of `path` is refused with, when it carries `message`.
async fn refused_by_the_framework<T>(hosted: &Hosted, path: &str, message: Request<T>) -> Status
where
    T: prost::Message + 'static,
{
    let mut raw = tonic::client::Grpc::new(channel(hosted).await);
    raw.ready().await.expect("connects");
    let codec = tonic_prost::ProstCodec::<T, ()>::default();
    let path = path.parse().expect("a path");
    let answered: Result<Response<()>, _> = raw.unary(message, path, codec).await;
    answered.map(drop).expect_err("refused")
}

#[tokio::test]
async fn what_the_framework_refuses_is_explained() {
    const GET: &str = "/receiptd.v1.OperationService/GetOperation";
    const SUBMIT: &str = "/receiptd.v1.OperationService/SubmitOperation";
    const UNKNOWN_METHOD: &str = "/receiptd.v1.OperationService/Burn";
    const UNKNOWN_SERVICE: &str = "/receiptd.v1.FireService/Burn";
    let hosted = host(Access::Local, Config::default()).await;
    let id = fresh_id();
    let submit = append(&id, "notes/a");
    let mut large = submit.clone();
    large.intent.as_mut().expect("there is one").arguments = vec![b' '; 5 * 1024 * 1024];
    let large = Request::new(large);
    // Field 1 of both is a text; here it is a number.
    let wrong = || Request::new(1_u32);
    let mut compressed = Request::new(submit);
    compressed.metadata_mut().insert("grpc-encoding", "gzip".parse().expect("ASCII"));
    let absent = "this server has no such service or method. Correct the name";
    for (refused, expected, told) in [
        (
            refused_by_the_framework(&hosted, SUBMIT, large).await,
            (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"),
            &["the request is too large (", "4194304 bytes", "). Send less in one request."][..],
        ),
        (
            refused_by_the_framework(&hosted, GET, wrong()).await,
            (Code::InvalidArgument, "INVALID_FIELD"),
            &["the request cannot be decoded (", "operation_id", "). Correct the request."],
        ),
        (
            refused_by_the_framework(&hosted, SUBMIT, wrong()).await,
            (Code::InvalidArgument, "INVALID_FIELD"),
            &["the request cannot be decoded (", "). Correct the request."],
        ),
        (
            refused_by_the_framework(&hosted, UNKNOWN_METHOD, Request::new(())).await,
            (Code::Unimplemented, "UNIMPLEMENTED"),
            &[absent],
        ),
        (
            refused_by_the_framework(&hosted, UNKNOWN_SERVICE, Request::new(())).await,
            (Code::Unimplemented, "UNIMPLEMENTED"),
            &[absent],
        ),
        (
            refused_by_the_framework(&hosted, SUBMIT, compressed).await,
            (Code::Unimplemented, "UNIMPLEMENTED"),
            &["how the request is compressed (", "gzip", "). Send it without compression."],
        ),
    ] {
        let (code, reason, metadata) = self::told(&refused);
        assert_eq!((code, reason.as_str()), expected);
        assert_eq!(metadata.get("outcome").map(String::as_str), Some("NO_EFFECT"));
        assert_eq!(metadata.get("recovery").map(String::as_str), Some("FIX_REQUEST"));
        let sentence = sentence(&refused);
        assert!(sentence.starts_with("The call did not begin: "), "{sentence}");
        for part in told {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
    }
    // NO_EFFECT is true.
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let get = proto::GetOperationRequest { operation_id: id, mint_time: None };
    let looked_up = operations.get_operation(get).await.expect("answers").into_inner();
    assert_eq!(looked_up.standing(), proto::Standing::NotAcceptedYet);
}

/// Two bytes on the wire for each of some hundred in memory: refused before that memory is taken.
#[tokio::test]
async fn a_request_of_too_many_fields_is_never_decoded() {
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let id = fresh_id();
    let mut requests = vec![append(&id, "notes/a")];
    requests.resize(2_000_000, <_>::default());
    let submits = proto::BatchSubmitOperationsRequest { requests };
    let refused = operations.batch_submit_operations(submits).await.expect_err("refused");
    let (code, reason, metadata) = told(&refused);
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
    let value = |name: &str| metadata.get(name).map(String::as_str);
    assert_eq!((value("field"), value("outcome")), (Some("request"), Some("NO_EFFECT")));
    assert_eq!(value("recovery"), Some("FIX_REQUEST"));
    let sentence = sentence(&refused);
    assert!(
        sentence.starts_with("The call had no effect: request has more than 10000"),
        "{sentence}"
    );
    let get = proto::GetOperationRequest { operation_id: id, ..<_>::default() };
    let answer = operations.get_operation(get).await.expect("the connection is still there");
    assert!(answer.into_inner().operation.is_none(), "nothing of it was done");
    // What is one too many for the service, and not for this limit, is refused by the service.
    let requests = vec![<_>::default(); 101];
    let submits = proto::BatchSubmitOperationsRequest { requests };
    let refused = operations.batch_submit_operations(submits).await.expect_err("refused");
    let (_, _, metadata) = told(&refused);
    assert_eq!(metadata.get("field").map(String::as_str), Some("requests"));
}

#[tokio::test]
async fn a_store_that_takes_no_writes_is_not_ready() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let hosted = host(Access::Local, Config::default()).await;
    let mut operations = OperationServiceClient::new(channel(&hosted).await);
    let health = HealthClient::new(channel(&hosted).await);
    let becomes = async |status: &str| {
        let asked = async {
            loop {
                let service = "receiptd.v1.OperationService".to_owned();
                let mut health = health.clone();
                let told = health.check(HealthCheckRequest { service }).await.expect("answers");
                if told.get_ref().status().as_str_name() == status {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let bound = Duration::from_secs(20);
        tokio::time::timeout(bound, asked).await.unwrap_or_else(|_| panic!("never {status}"));
    };
    becomes("SERVING").await;
    let standing = stand_still(&hosted);
    let refused = operations.submit_operation(append(&fresh_id(), "notes/a")).await;
    let (_, reason, _) = told(&refused.expect_err("another writer holds the store"));
    assert_eq!(reason, "STORE_UNAVAILABLE");
    becomes("NOT_SERVING").await;
    drop(standing);
    becomes("SERVING").await;
}
