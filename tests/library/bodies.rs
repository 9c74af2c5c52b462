//! What an application reads of a result's body, also over a connection that is cut again and again.

use receiptd::{
    client::{connect::Client, outcome::Outcome, submission::Submission},
    proto::{Intent, ResultKind},
};
use sha2::{Digest, Sha256};
use tonic::Code;

use crate::{
    append, client,
    support::{
        proxy::Proxy,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    a_body_is_read_whole_whatever_is_cut,
    a_body_that_is_not_there_is_refused_with_its_reason,
);

/// Several chunks, and several cuts.
const BODY_BYTES: usize = 1_000_000;
/// Every connection ends before this many bytes.
const CUT_WITHIN: u64 = 300_000;
const FLAGS: [&str; 2] = ["--arguments-bytes-max=2000000", "--document-bytes-max=2000000"];

/// A put of these bytes that keeps them as its result.
fn put(target: &str, content: &[u8]) -> Submission {
    let intent = Intent {
        action: "document.put".to_owned(),
        target: target.to_owned(),
        arguments: content.to_vec(),
        content_type: "application/octet-stream".to_owned(),
        ..Intent::default()
    };
    Submission { result: ResultKind::Content, ..Submission::new(intent) }
}

async fn submit(client: &Client, submission: Submission) -> Outcome {
    within("an outcome", client.submit(submission)).await.expect("submitted")
}

async fn a_body_is_read_whole_whatever_is_cut(store: TestStore) {
    let server = store.serve(&FLAGS);
    let proxy = Proxy::start(server.address()).await;
    proxy.cut_by_chance(Some((1, CUT_WITHIN)));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let beside = client(server.address(), &directory.path().join("beside"));
    let behind = client(proxy.address(), &directory.path().join("behind"));
    // Different from place to place, so that a chunk in the wrong place shows.
    let large: Vec<u8> =
        (0..BODY_BYTES).map(|place| ((place * 31 + place / 251) % 256) as u8).collect();
    for (target, content) in [("empty", &large[..0]), ("small", &large[..100]), ("large", &large)] {
        let Outcome::Known(answer) = submit(&beside, put(target, content)).await else {
            panic!("{target} is not settled");
        };
        for client in [&beside, &behind] {
            let read = within("a body", client.read_result(&answer.identity)).await;
            let body = read.unwrap_or_else(|failure| panic!("{target}: {failure}"));
            assert!(body.data == content, "{target} is whole and intact");
            assert_eq!(body.info.size_bytes, i64::try_from(content.len()).expect("small"));
            assert_eq!(body.info.sha256, Sha256::digest(content).to_vec());
            assert_eq!(body.info.content_type, "application/octet-stream");
        }
    }
    let connections = proxy.connections();
    assert!(connections >= BODY_BYTES as u64 / CUT_WITHIN, "resumed: {connections} connections");
}

async fn a_body_that_is_not_there_is_refused_with_its_reason(store: TestStore) {
    let server = store.serve(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let client = client(server.address(), &directory.path().join("journal"));
    let mut holder = append("held", "x");
    holder.intent.lock_mode = receiptd::proto::LockMode::UntilAcked.into();
    let Outcome::Known(without) = submit(&client, holder).await else { panic!("not settled") };
    let waiting = append("held", "y").into_inbox("other");
    let Outcome::Pending(waiting) = submit(&client, waiting).await else { panic!("not held up") };
    for (identity, code, reason) in [
        (&without.identity, Code::FailedPrecondition, "RESULT_NOT_KEPT"),
        (&waiting.identity, Code::FailedPrecondition, "RESULT_NOT_READY"),
        (&client.mint(), Code::NotFound, "NO_SUCH_OPERATION"),
    ] {
        let read = within("a refusal", client.read_result(identity)).await;
        let refused = read.expect_err(reason);
        assert_eq!((refused.code, refused.reason.as_deref()), (code, Some(reason)));
        assert!(!refused.advice.is_empty(), "the next step is told: {refused:?}");
    }
}
