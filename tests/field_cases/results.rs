//! Results with a body (F07): of every size up to the configured limit they are stored, delivered,
//! replayed and read intact, also by a reader that was cut in between; what is above the limit is
//! refused before any effect, or told as not kept where the effect was certain by then.

use prost::Message;
use receiptd::proto::{
    DocumentChange, Intent, Origin, ReadResultRequest, ReadResultResponse, Receipt, ResultInfo,
    ResultKind, SubmitOperationRequest, operation::State,
};
use sha2::{Digest, Sha256};
use tonic::{Code, Status};

use crate::support::{
    answers::{answered, found_receipt, receipt},
    client::{Caller, Refused},
    proxy::Proxy,
    requests::{Identity, into_inbox, until_acked},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
    within,
};

/// The configured limit of a result.
const RESULT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What travels with its news.
const INLINE_BYTES_MAX: usize = 64 * 1024;
const FLAGS: [&str; 3] =
    ["--result-bytes-max=2097152", "--arguments-bytes-max=3000000", "--document-bytes-max=3000000"];

on_both_stores!(
    results_of_every_size_arrive_intact,
    a_read_that_was_cut_is_resumed_by_offset,
    what_is_too_large_is_refused_or_told,
    a_result_that_is_not_there_says_why,
);

/// Bytes that differ from place to place, so that a chunk in the wrong place shows.
fn content(size: usize) -> Vec<u8> {
    (0..size).map(|place| ((place * 31 + place / 251) % 256) as u8).collect()
}

fn put(identity: &Identity, target: &str, content: Vec<u8>) -> SubmitOperationRequest {
    identity.submit(Intent {
        action: "document.put".to_owned(),
        target: target.to_owned(),
        arguments: content,
        content_type: "application/octet-stream".to_owned(),
        ..Intent::default()
    })
}

fn keeping(request: SubmitOperationRequest) -> SubmitOperationRequest {
    SubmitOperationRequest { result: ResultKind::Content.into(), ..request }
}

fn info(receipt: &Receipt) -> ResultInfo {
    receipt.result.clone().expect("a result")
}

fn described(content: &[u8]) -> ResultInfo {
    ResultInfo {
        size_bytes: i64::try_from(content.len()).expect("small"),
        sha256: Sha256::digest(content).to_vec(),
        content_type: "application/octet-stream".to_owned(),
        kept: true,
    }
}

fn read(identity: &Identity, offset: usize, chunk_bytes: i32) -> ReadResultRequest {
    ReadResultRequest {
        operation_id: identity.id.clone(),
        mint_time: identity.mint_time,
        offset: i64::try_from(offset).expect("small"),
        chunk_bytes,
    }
}

async fn chunks(
    caller: &Caller,
    request: ReadResultRequest,
) -> Result<Vec<ReadResultResponse>, Status> {
    let mut operations = caller.operations.clone();
    let mut stream = within("a result", operations.read_result(request)).await?.into_inner();
    let mut chunks = Vec::new();
    while let Some(chunk) = within("a chunk", stream.message()).await? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// The bytes of chunks that follow each other from `offset` to the end.
fn joined(chunks: &[ReadResultResponse], offset: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for (number, chunk) in chunks.iter().enumerate() {
        assert_eq!(usize::try_from(chunk.offset), Ok(offset + data.len()), "nothing is skipped");
        assert_eq!(chunk.last, number + 1 == chunks.len());
        assert_eq!(chunk.result.is_some(), number == 0);
        data.extend_from_slice(&chunk.data);
    }
    assert!(!chunks.is_empty(), "at least one chunk");
    data
}

async fn results_of_every_size_arrive_intact(store: TestStore) {
    let mut server = store.serve(&FLAGS);
    let caller = server.a();
    let sizes =
        [0, 100, 9_000, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 1_000_000, RESULT_BYTES_MAX];
    let mut receipts = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        let (identity, content) = (Identity::fresh(), content(size));
        let request = keeping(put(&identity, &format!("sizes/{number}"), content.clone()));
        let inline = (size <= INLINE_BYTES_MAX).then(|| content.clone());
        let first = caller.submitted(request.clone()).await;
        assert_eq!(answered(&first), (Origin::Executed, State::Applied), "{size}");
        assert_eq!(info(receipt(&first)), described(&content), "{size}");
        assert_eq!(first.result, inline, "{size}");
        // The first submit's choice stays, and so does its receipt.
        let replay = SubmitOperationRequest { result: ResultKind::Unspecified.into(), ..request };
        let replayed = caller.submitted(replay).await;
        assert_eq!(answered(&replayed), (Origin::Replayed, State::Applied));
        assert_eq!(receipt(&replayed).encode_to_vec(), receipt(&first).encode_to_vec());
        assert_eq!(replayed.result, inline);
        receipts.push((identity, content, inline, receipt(&first).encode_to_vec()));
    }
    server.crash_and_restart();
    let mut reader = caller.reader("default", "editor", "").await;
    let delivered = reader.results(sizes.len()).await;
    for ((identity, content, inline, receipt), delivered) in receipts.iter().zip(&delivered) {
        let told = delivered.operation.as_ref().and_then(|operation| operation.receipt.as_ref());
        assert_eq!(told.map(Message::encode_to_vec).as_ref(), Some(receipt));
        assert_eq!(&delivered.payload, inline, "{}", content.len());
        let got = caller.get(identity).await;
        assert_eq!(&found_receipt(&got).encode_to_vec(), receipt);
        assert_eq!(&got.result, inline);
        let read = chunks(&caller, read(identity, 0, 0)).await.expect("read");
        assert!(joined(&read, 0) == *content, "{} bytes are intact", content.len());
        assert_eq!(read[0].result, Some(described(content)));
    }
    // What is handed over by the submit itself brings its body too.
    let bytes = content(5_000);
    caller.submitted(keeping(put(&Identity::fresh(), "sizes/handed", bytes.clone()))).await;
    assert_eq!(reader.results(1).await[0].payload, Some(bytes));
}

async fn a_read_that_was_cut_is_resumed_by_offset(store: TestStore) {
    let server = store.serve(&FLAGS);
    let proxy = Proxy::start(server.address()).await;
    let caller = Caller::with_small_windows(proxy.address(), TOKEN_A);
    let (identity, content) = (Identity::fresh(), content(RESULT_BYTES_MAX));
    server.a().submitted(keeping(put(&identity, "cut", content.clone()))).await;
    let mut operations = caller.operations.clone();
    let opened = within("a result", operations.read_result(read(&identity, 0, 10_000))).await;
    let mut stream = opened.expect("opened").into_inner();
    let mut held = Vec::new();
    while held.len() < 300_000 {
        let chunk = within("a chunk", stream.message()).await.expect("read").expect("more");
        assert_eq!(usize::try_from(chunk.offset), Ok(held.len()));
        held.extend(chunk.data);
    }
    proxy.cut_all();
    let cut = loop {
        match within("the cut", stream.message()).await {
            Ok(Some(chunk)) => held.extend(chunk.data),
            Ok(None) => panic!("a cut is not an end"),
            Err(status) => break status,
        }
    };
    assert_ne!(cut.code(), Code::Ok);
    assert!(held.len() < content.len(), "cut in the middle");
    // The connection is gone, and whoever comes back has another one.
    let caller = Caller::new(proxy.address(), TOKEN_A);
    let rest = chunks(&caller, read(&identity, held.len(), 262_144)).await.expect("resumed");
    held.extend(joined(&rest, held.len()));
    assert!(held == content, "whole and intact");
    // All of it is held: one empty last chunk.
    let nothing = chunks(&caller, read(&identity, content.len(), 0)).await.expect("read");
    assert_eq!((nothing.len(), joined(&nothing, content.len()).len()), (1, 0));
    for (offset, chunk, field) in
        [(content.len() + 1, 0, "offset"), (0, -1, "chunk_bytes"), (0, 262_145, "chunk_bytes")]
    {
        let refused = chunks(&caller, read(&identity, offset, chunk)).await.expect_err("refused");
        let refused = Refused::of(&refused);
        assert_eq!((refused.reason.as_str(), refused.value("field")), ("INVALID_FIELD", field));
    }
}

async fn what_is_too_large_is_refused_or_told(store: TestStore) {
    let server = store.serve(&FLAGS);
    let caller = server.a();
    let (identity, large) = (Identity::fresh(), content(RESULT_BYTES_MAX + 1));
    let refused = caller.refused(keeping(put(&identity, "large", large.clone()))).await;
    assert_eq!(refused.reason, "PAYLOAD_TOO_LARGE");
    assert_eq!(refused.value("field"), "result");
    assert_eq!(refused.value("limit"), RESULT_BYTES_MAX.to_string());
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    assert!(caller.document("large").await.is_none(), "no effect");
    assert!(caller.get(&identity).await.operation.is_none(), "no record");
    // The same id without the result is free.
    caller.submitted(put(&identity, "large", large)).await;

    // Only the document decides how large the result of an append is.
    let base = "x".repeat(RESULT_BYTES_MAX - 1);
    caller.submitted(Identity::fresh().put("grown", &base)).await;
    let grown = Identity::fresh();
    let answer = caller.submitted(keeping(grown.append("grown", "y"))).await;
    assert_eq!(answered(&answer), (Origin::Executed, State::Applied), "the outcome is certain");
    let told = info(receipt(&answer));
    let whole = format!("{base}y\n");
    assert_eq!((told.kept, told.size_bytes), (false, RESULT_BYTES_MAX as i64 + 1));
    assert_eq!(told.sha256, Sha256::digest(whole.as_bytes()).to_vec());
    assert_eq!(answer.result, None);
    assert_eq!(caller.text("grown").await.0.len(), whole.len(), "the effect is there");
    let refused = chunks(&caller, read(&grown, 0, 0)).await.expect_err("not kept");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let refused = Refused::of(&refused);
    assert_eq!(refused.reason, "RESULT_NOT_KEPT");
    assert_eq!(refused.value("state"), "APPLIED");
    assert_eq!(refused.value("size"), (RESULT_BYTES_MAX + 1).to_string());
}

async fn a_result_that_is_not_there_says_why(store: TestStore) {
    let server = store.serve(&FLAGS);
    let caller = server.a();
    let holder = Identity::fresh();
    let first = caller.submitted(until_acked(holder.append("held", "x"))).await;
    let waiting = Identity::fresh();
    caller.submitted(keeping(into_inbox(waiting.append("held", "y"), "other"))).await;
    let rejected = Identity::fresh();
    let patch = crate::support::requests::intent(
        "document.json_patch",
        "nothing",
        &serde_json::json!({ "patch": [{ "op": "remove", "path": "/a" }] }),
    );
    caller.submitted(keeping(rejected.submit(patch))).await;
    let deleted = Identity::fresh();
    caller.submitted(Identity::fresh().put("gone", "x")).await;
    let delete =
        crate::support::requests::intent("document.delete", "gone", &serde_json::json!({}));
    let answer = caller.submitted(keeping(deleted.submit(delete))).await;
    assert_eq!(receipt(&answer).result, None);
    assert!(matches!(&receipt(&answer).document, Some(DocumentChange { deleted: true, .. })));
    for (identity, reason, state) in [
        (&holder, "RESULT_NOT_KEPT", "APPLIED"),
        (&waiting, "RESULT_NOT_READY", "ACCEPTED"),
        (&rejected, "RESULT_NOT_KEPT", "REJECTED"),
        (&deleted, "RESULT_NOT_KEPT", "APPLIED"),
    ] {
        let refused = chunks(&caller, read(identity, 0, 0)).await.expect_err("no body");
        let refused = Refused::of(&refused);
        assert_eq!((refused.reason.as_str(), refused.value("state")), (reason, state));
    }
    let absent = chunks(&caller, read(&Identity::fresh(), 0, 0)).await.expect_err("absent");
    assert_eq!(Refused::of(&absent).reason, "NO_SUCH_OPERATION");
    let foreign = chunks(&server.b(), read(&holder, 0, 0)).await.expect_err("another account");
    assert_eq!(Refused::of(&foreign).reason, "NO_SUCH_OPERATION");
    // Started by the ack of the holder, it keeps what its submit chose.
    let sequence = first.deliveries[0].sequence;
    caller.ack("default", &[sequence]).await.expect("acked");
    let read = chunks(&caller, read(&waiting, 0, 0)).await.expect("read");
    assert_eq!(joined(&read, 0), b"x\ny\n");
}
