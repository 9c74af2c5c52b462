//! Memory of an idle stream, and of an idle inbox in a session.
//!
//! Figures of an optimised server: `cargo test --release --test pressure idle -- --nocapture`.

use receiptd::proto::{
    ConnectRequest, ConnectResponse, SessionOpen, connect_request, connect_response::Frame,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::support::{
    client::{Caller, Reader},
    server::{Server, TOKEN_A},
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    an_idle_stream_costs_little_on_a_connection_of_its_own,
    an_idle_inbox_costs_little_in_a_session,
);

/// On a connection of its own, in bytes; the stack's floor is 32 KiB. The futures of a build that is
/// not optimised are larger.
const STREAM_BYTES_MAX: u64 = if cfg!(debug_assertions) { 56 * 1024 } else { 48 * 1024 };
const STREAMS: usize = 400;
/// Multiplexed, in bytes; the floor is 11 KiB.
const INBOX_BYTES_MAX: u64 = 18 * 1024;
const SESSIONS: usize = 100;
const INBOXES_OF_A_SESSION: usize = 100;
/// What is opened before the first figure: pools, caches and tables grow to their size.
const WARM_UP: usize = 20;

async fn idle_stream(server: &Server, number: usize) -> (Caller, Reader) {
    let caller = Caller::new(server.address(), TOKEN_A);
    let mut reader = caller.reader(&format!("idle-{number}"), "editor", "").await;
    assert!(reader.backlog().await.is_empty());
    (caller, reader)
}

async fn an_idle_stream_costs_little_on_a_connection_of_its_own(store: TestStore) {
    let server = store.serve(&[]);
    let mut kept = Vec::new();
    for number in 0..WARM_UP {
        kept.push(idle_stream(&server, number).await);
    }
    let Some(before) = server.memory() else { return };
    for number in 0..STREAMS {
        kept.push(idle_stream(&server, WARM_UP + number).await);
    }
    let after = server.memory().expect("as before");
    let each = after.saturating_sub(before) / STREAMS as u64;
    println!("an idle stream on its own connection: {:.1} KiB", each as f64 / 1024.0);
    assert!(each <= STREAM_BYTES_MAX, "{each} bytes");
    drop(kept);
}

/// A session that follows many inboxes, each of which is caught up.
async fn idle_session(server: &Server, number: usize) -> Session {
    let caller = Caller::new(server.address(), TOKEN_A);
    let (up, frames) = mpsc::channel(INBOXES_OF_A_SESSION);
    let mut client = caller.sessions.clone();
    let down = within("a session", client.connect(ReceiverStream::new(frames))).await;
    let mut down = down.expect("the session opens").into_inner();
    for inbox in 0..INBOXES_OF_A_SESSION {
        let open = SessionOpen {
            inbox: format!("idle-{number}-{inbox}"),
            consumer_id: "editor".into(),
            ..SessionOpen::default()
        };
        let frame = Some(connect_request::Frame::Open(open));
        up.send(ConnectRequest { frame }).await.expect("the session is open");
    }
    let mut caught_up = 0;
    while caught_up < INBOXES_OF_A_SESSION {
        let frame = within("a frame", down.message()).await.expect("good").expect("open");
        match frame.frame.expect("a frame") {
            Frame::Opened(_) | Frame::Heartbeat(_) => {}
            Frame::CaughtUp(_) => caught_up += 1,
            other => panic!("{other:?}"),
        }
    }
    Session { _caller: caller, _up: up, _down: down }
}

/// Open for as long as it is kept.
struct Session {
    _caller: Caller,
    _up: mpsc::Sender<ConnectRequest>,
    _down: Streaming<ConnectResponse>,
}

async fn an_idle_inbox_costs_little_in_a_session(store: TestStore) {
    let server = store.serve(&["--inboxes-max=20000", "--account-streams-max=20000"]);
    let mut kept = Vec::new();
    for number in 0..WARM_UP / 4 {
        kept.push(idle_session(&server, SESSIONS + number).await);
    }
    let Some(before) = server.memory() else { return };
    for number in 0..SESSIONS {
        kept.push(idle_session(&server, number).await);
    }
    let after = server.memory().expect("as before");
    let each = after.saturating_sub(before) / (SESSIONS * INBOXES_OF_A_SESSION) as u64;
    println!("an idle inbox in a session: {:.1} KiB", each as f64 / 1024.0);
    assert!(each <= INBOX_BYTES_MAX, "{each} bytes");
    drop(kept);
}
