//! A peer that floods small frames is slowed down and served, not cut (T20).

use std::time::Duration;

use receiptd::proto::{
    ConnectRequest, SessionAck, SessionExtend, SessionSubmit, SessionSubmitItem,
    connect_request::Frame as Asks, connect_response::Frame,
};

use crate::{
    support::{
        background,
        requests::Identity,
        stores::{TestStore, on_both_stores},
    },
    wire::{ack_of, extension_of},
};

on_both_stores! {
    tiny_frames_are_all_served,
}

/// Every fourth frame is a submit that is refused for its form, as small as frames are, and another
/// one extends what is not in flight; the others ack the one result.
fn tiny(tag: i64) -> ConnectRequest {
    let frame = match tag % 4 {
        0 => {
            let items = vec![SessionSubmitItem { tag, request: None }];
            Asks::Submit(SessionSubmit { items })
        }
        1 => {
            let request = Some(extension_of("", &[(1, 1)], ""));
            Asks::Extend(SessionExtend { tag, request })
        }
        _ => Asks::Ack(SessionAck { tag, request: Some(ack_of("", &[1], "")) }),
    };
    ConnectRequest { frame: Some(frame) }
}

async fn tiny_frames_are_all_served(store: TestStore) {
    const FRAMES: i64 = 50_000;
    let server = store.serve(&[]);
    let caller = server.a();
    caller.submitted(Identity::fresh().append("d", "x")).await;
    // Each frame is flushed alone: the connection finds nothing more whenever it looks.
    let frames = futures_util::stream::unfold(1, |tag| async move {
        tokio::task::yield_now().await;
        (tag <= FRAMES).then(|| (tiny(tag), tag + 1))
    });
    let mut client = caller.sessions.clone();
    let mut down = client.connect(frames).await.expect("the session opens").into_inner();
    let reading = background(async move {
        let mut answered = vec![false; usize::try_from(FRAMES).expect("small") + 1];
        let mut messages = 0;
        while let Some(frame) = down.message().await.expect("the session is not cut") {
            messages += 1;
            let tags: Vec<i64> = match frame.frame {
                Some(Frame::SubmitResult(packed)) => {
                    packed.results.iter().map(|item| item.tag).collect()
                }
                Some(Frame::AckResult(packed)) => {
                    packed.results.iter().map(|item| item.tag).collect()
                }
                Some(Frame::ExtendResult(packed)) => {
                    packed.results.iter().map(|item| item.tag).collect()
                }
                Some(Frame::Heartbeat(_)) => Vec::new(),
                other => panic!("{other:?}"),
            };
            for tag in tags {
                let place = usize::try_from(tag).expect("positive");
                assert!(!std::mem::replace(&mut answered[place], true), "{tag} twice");
            }
        }
        (answered.iter().filter(|answered| **answered).count(), messages)
    });
    let ended = tokio::time::timeout(Duration::from_secs(120), reading).await;
    let (answered, messages) = ended.expect("in time").expect("no panic");
    assert_eq!(answered, usize::try_from(FRAMES).expect("small"));
    assert!(messages < FRAMES / 2, "answers are packed: {messages} messages");
    assert_eq!(caller.inbox("default").await.acked_total, 1);
    assert_eq!(caller.text("d").await.1, 1, "no effect but the first");
}
