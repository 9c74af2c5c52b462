//! What an application reads of a result's body, also over a connection that is cut again and again.

use std::time::Duration;

use receiptd::{
    client::{
        builder::BuildError,
        connect::{Client, Secret},
        outcome::Outcome,
        retry::RetryLimits,
        submission::Submission,
    },
    proto::{Intent, ResultKind},
};
use sha2::{Digest, Sha256};
use tonic::Code;

use crate::{
    append, client,
    support::{
        proxy::Proxy,
        server::TOKEN_A,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    a_body_is_read_whole_whatever_is_cut,
    a_body_that_is_not_there_is_refused_with_its_reason,
    f29_retries_that_go_on_longer_than_an_id_is_admitted_are_refused,
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

/// The last sentence of F29: refused at the start, not found out when an answer is missing.
async fn f29_retries_that_go_on_longer_than_an_id_is_admitted_are_refused(store: TestStore) {
    let server = store.serve(&["--admission-window=20s"]);
    let builder = || {
        let endpoint = format!("http://{}", server.address());
        Client::builder(endpoint).token(Secret::new(TOKEN_A))
    };
    let refused = within("an answer", builder().connect()).await.expect_err("half a minute");
    assert!(
        matches!(refused, BuildError::RetriesTooLong { total, window }
            if total == Duration::from_secs(30) && window == Duration::from_secs(20)),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("RetryLimits::total"), "{refused}");
    let limits = RetryLimits { total: Duration::from_secs(19), ..RetryLimits::standard() };
    let client = within("an answer", builder().limits(limits).connect()).await.expect("shorter");
    let Outcome::Known(_) = submit(&client, append("d1", "x")).await else { panic!("settled") };
    let wrong = builder().token(Secret::new("nobody's")).connect();
    let refused = within("an answer", wrong).await.expect_err("unknown");
    assert!(matches!(refused, BuildError::NoAnswer(_)), "{refused:?}");
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
