//! Connections that end: frozen peers, old ones, and streams of services that are not ours.

use std::process::{Command, Stdio};

use receiptd::client::connect::{Client, ConnectOptions};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use super::{process::Owned, *};

#[tokio::test]
async fn a_frozen_client_is_let_go() {
    let config = Config {
        keepalive_interval: Span::millis(200),
        keepalive_timeout: Span::millis(200),
        ..Config::default()
    };
    let hosted = host(Access::Local, config).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_receiptd"));
    command
        .args(["document", "watch", "d", "--endpoint", &hosted.address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut client = Owned::start(&mut command, "KILL", None);
    let watched = || !hosted.engine.wake().watched().documents.is_empty();
    until("the client to watch", watched).await;
    client.signal(Signal::STOP);
    until("the frozen client to be let go", || !watched()).await;
    // It is none the worse for it: thawed, it comes back by itself.
    client.signal(Signal::CONT);
    until("the client to come back", watched).await;
    client.kill();
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(15), waiting).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

/// An open Health.Watch and an open reflection stream; both were answered once.
async fn foreign_streams(
    channel: Channel,
) -> (impl Future<Output = tonic::Status>, impl Future<Output = tonic::Status>) {
    let request = HealthCheckRequest::default();
    let watch = HealthClient::new(channel.clone()).watch(request).await.expect("opens");
    let mut watch = watch.into_inner();
    watch.message().await.expect("answered").expect("answered");
    let (asking, questions) = tokio::sync::mpsc::channel(1);
    let question = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    asking.send(question).await.expect("room");
    let questions = tokio_stream::wrappers::ReceiverStream::new(questions);
    let mut reflection = ServerReflectionClient::new(channel);
    let answers = reflection.server_reflection_info(questions).await.expect("opens");
    let mut answers = answers.into_inner();
    answers.message().await.expect("answered").expect("answered");
    let watched = async move {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("an end without a word"),
                Err(status) => return status,
            }
        }
    };
    let answered = async move {
        let end = answers.message().await.expect_err("an end with a word");
        drop(asking);
        end
    };
    (watched, answered)
}

#[tokio::test]
async fn open_health_and_reflection_streams_end_with_the_drain() {
    let config = Config { drain_deadline: Span::seconds(20), ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let (watched, answered) = foreign_streams(channel(&hosted).await).await;
    hosted.shutdown.cancel();
    // Half of the deadline is what connections have before they are left to themselves.
    let half = Duration::from_secs(10);
    let ends = async { tokio::join!(watched, answered, hosted.serving) };
    let ended = tokio::time::timeout(half, ends).await;
    let (watched, answered, served) = ended.expect("within the drain's deadline");
    served.expect("no panic").expect("a clean end");
    assert_eq!((watched.code(), answered.code()), (Code::Unavailable, Code::Unavailable));
}

#[tokio::test]
async fn health_and_reflection_streams_do_not_outlive_their_age() {
    let config = Config { stream_age: Span::millis(500), ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let (watched, answered) = foreign_streams(channel(&hosted).await).await;
    let ends = async { tokio::join!(watched, answered) };
    let ended = tokio::time::timeout(Duration::from_secs(15), ends).await;
    let (watched, answered) = ended.expect("they end");
    assert_eq!((watched.code(), answered.code()), (Code::Unavailable, Code::Unavailable));
}

/// The kinds of frames that a peer sees which opens HTTP/2, answers pings and asks nothing.
async fn frames_until_the_end(address: &str) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: u8 = 6;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    stream.write_all(&SETTINGS).await.expect("sent");
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.expect("a whole frame");
        kinds.push(head[3]);
        if head[3] == PING && head[4] == 0 {
            head[4] = 1;
            stream.write_all(&[&head[..], &body].concat()).await.expect("sent");
        }
    }
    kinds
}

#[tokio::test]
async fn an_old_connection_is_told_to_go_away_and_no_call_fails_for_it() {
    const GOAWAY: u8 = 7;
    let config = Config { stream_age: Span::millis(300), ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let client = Client::connect(&hosted.address, ConnectOptions::plain()).expect("a URI");
    let address = hosted.address.trim_start_matches("http://");
    let calling = async {
        // A call that is made while its connection closes is never sent: the client sends it anew.
        loop {
            let list = proto::ListOperationsRequest::default();
            client.list_operations(list).await.expect("no call fails");
        }
    };
    let aging = async {
        for _ in 0..3 {
            let kinds = frames_until_the_end(address).await;
            assert!(kinds.contains(&GOAWAY), "{kinds:?}");
        }
    };
    let both = async {
        tokio::select! {
            () = aging => {}
            () = calling => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("connections end");
}

/// What a peer reads until its end.
async fn read_until_the_end(mut stream: TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut read).await;
    read
}

#[tokio::test]
async fn a_peer_that_says_nothing_to_begin_with_keeps_no_place() {
    let interval = Span::millis(300);
    let config = Config { connections_max: 4, keepalive_interval: interval, ..Config::default() };
    let hosted = host(Access::Local, config).await;
    let address = hosted.address.trim_start_matches("http://").to_owned();
    let mut silent = Vec::new();
    // More than there are places: the others wait for theirs, and lose them as well.
    for said in ["", "P", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "GET / HTTP", ""] {
        let mut stream = TcpStream::connect(&address).await.expect("connects");
        stream.write_all(said.as_bytes()).await.expect("sent");
        silent.push(stream);
    }
    // A byte now and then is no preface either.
    let mut slow = TcpStream::connect(&address).await.expect("connects");
    let speaking = async {
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM".iter().cycle() {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let client = async {
        let mut operations = OperationServiceClient::new(channel(&hosted).await);
        operations.submit_operation(append(&fresh_id(), "notes/a")).await.expect("applied")
    };
    let ends = async {
        let read = futures_util::future::join_all(silent.into_iter().map(read_until_the_end));
        tokio::join!(read, client, speaking)
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ends).await;
    let (read, applied, ()) = ended.expect("the silent end, and the client finds a place");
    assert!(read.iter().all(Vec::is_empty), "nothing is answered to silence");
    assert_eq!(applied.into_inner().origin(), proto::Origin::Executed);
}

#[tokio::test]
async fn a_peer_that_has_said_its_preface_may_be_idle() {
    const PING: u8 = 6;
    let config = Config {
        keepalive_interval: Span::millis(200),
        stream_age: Span::seconds(2),
        ..Config::default()
    };
    let hosted = host(Access::Local, config).await;
    let address = hosted.address.trim_start_matches("http://").to_owned();
    let frames = tokio::time::timeout(Duration::from_secs(30), frames_until_the_end(&address));
    let frames = frames.await.expect("the age ends it");
    // Each comes after an interval of silence: it lived for longer than a silent peer may.
    assert!(frames.iter().filter(|kind| **kind == PING).count() >= 2, "{frames:?}");
}
