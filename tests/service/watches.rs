//! Watches whose watcher stops reading.

use std::time::Duration;

use receiptd::{
    api::auth::Access,
    config::Config,
    domain::ids::Span,
    proto::{self, document_service_client::DocumentServiceClient as Documents},
};
use tonic::{Code, transport::Channel};
use tonic_types::StatusExt;

use super::{OperationServiceClient, append, fresh_id, host};

#[tokio::test]
async fn a_watcher_of_a_document_that_takes_no_frame_for_too_long_is_let_go_with_the_reason() {
    let config = Config { write_stall: Span::millis(200), ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let channel = Channel::from_shared(hosted.address.clone()).expect("a URI");
    let small = channel
        .clone()
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .connect()
        .await
        .expect("connects");
    let request = proto::WatchDocumentRequest {
        target: "d".to_owned(),
        include_content: true,
        ..proto::WatchDocumentRequest::default()
    };
    let watch = Documents::new(small).watch_document(request).await.expect("opens");
    let mut frames = watch.into_inner();
    let mut operations = OperationServiceClient::new(channel.connect().await.expect("connects"));
    let given_up = async {
        while !hosted.engine.wake().watched().documents.is_empty() {
            let put = proto::SubmitOperationRequest {
                operation_id: fresh_id(),
                intent: Some(proto::Intent {
                    action: "document.put".to_owned(),
                    target: "d".to_owned(),
                    arguments: format!(r#"{{"content":"{:>60000}"}}"#, "x").into_bytes(),
                    ..Default::default()
                }),
                ..Default::default()
            };
            operations.submit_operation(put).await.expect("applied");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), given_up).await.expect("given up");
    let end = loop {
        let frame = tokio::time::timeout(Duration::from_secs(10), frames.message()).await;
        match frame.expect("what was sent can be read") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an end without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert_eq!(end.get_details_error_info().expect("details").reason, "SLOW_CONSUMER");
}

#[tokio::test]
async fn a_watcher_of_an_operation_that_takes_no_frame_for_too_long_is_told_so() {
    let (heartbeat, write_stall) = (Span::millis(10), Span::millis(200));
    let config = Config { heartbeat, write_stall, ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let channel = Channel::from_shared(hosted.address.clone()).expect("a URI");
    let mut operations =
        OperationServiceClient::new(channel.clone().connect().await.expect("connects"));
    let mut holder = append(&fresh_id(), "d");
    holder.intent.as_mut().expect("there is one").lock_mode = proto::LockMode::UntilAcked.into();
    operations.submit_operation(holder).await.expect("applied");
    let waiter = fresh_id();
    operations.submit_operation(append(&waiter, "d")).await.expect("waits");
    // Its first frame alone is more than this.
    let small = channel.initial_stream_window_size(64).connect().await.expect("connects");
    let request = proto::WatchOperationRequest { operation_id: waiter, mint_time: None };
    let watch = OperationServiceClient::new(small).watch_operation(request).await.expect("opens");
    let given_up = async {
        while !hosted.engine.wake().watched().operations.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), given_up).await.expect("given up");
    let mut frames = watch.into_inner();
    let end = loop {
        let frame = tokio::time::timeout(Duration::from_secs(10), frames.message()).await;
        match frame.expect("what was sent can be read") {
            Ok(frame) => assert!(frame.is_some(), "an end without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert_eq!(end.get_details_error_info().expect("details").reason, "SLOW_CONSUMER");
}
