//! Tools that strangers bring: buf and an old grpcurl against `receiptd dev`, without any file of
//! the protocol at hand. Skipped aloud where the tools are not there; tests/run fetches them.

#[path = "../support/mod.rs"]
mod support;

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use support::{requests::Identity, server::Server};

/// Arguments as protobuf's JSON wants bytes: base64 of `{"line":"x"}`.
const ARGUMENTS: &str = "eyJsaW5lIjoieCJ9";

const SERVICES: [&str; 5] = [
    "receiptd.v1.AdminService",
    "receiptd.v1.DocumentService",
    "receiptd.v1.InboxService",
    "receiptd.v1.OperationService",
    "receiptd.v1.SessionService",
];

/// The tool's path, from the variable that tests/run sets.
fn tool(variable: &str) -> Option<String> {
    let path = std::env::var(variable).ok();
    if path.is_none() {
        eprintln!("SKIPPED ({variable} is not set): tests/run fetches the tool and sets it");
    }
    path
}

/// Runs a tool for at most half a minute; it must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["30", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("timeout is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}:\n{text}\n{errors}");
    text
}

fn submit_body(id: &str) -> String {
    let intent = json!({ "action": "document.append", "target": "d1", "arguments": ARGUMENTS });
    json!({ "operationId": id, "intent": intent }).to_string()
}

/// A session of one submit; the end of the frames ends it.
fn session_body() -> String {
    let request: Value = serde_json::from_str(&submit_body(&Identity::fresh().id)).expect("JSON");
    json!({ "submit": { "items": [{ "tag": "1", "request": request }] } }).to_string()
}

fn applied(answer: &str) -> Value {
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    assert_eq!(answer["operation"]["state"], "STATE_APPLIED");
    answer
}

#[test]
fn buf_lists_describes_and_calls() {
    let Some(buf) = tool("RECEIPTD_TEST_BUF") else { return };
    let server = Server::dev(&[]);
    let url = |path: &str| format!("http://{}{path}", server.address());
    let curl = |arguments: &[&str]| {
        run(&buf, &[&["curl", "--protocol", "grpc", "--http2-prior-knowledge"], arguments].concat())
    };
    let listed = curl(&["--list-services", &url("")]);
    for service in SERVICES.iter().chain(&["grpc.health.v1.Health"]) {
        assert!(listed.contains(service), "{service} in {listed}");
    }
    let methods = curl(&["--list-methods", &url("")]);
    assert!(methods.contains("receiptd.v1.OperationService/SubmitOperation"), "{methods}");

    let id = Identity::fresh().id;
    let path = url("/receiptd.v1.OperationService/SubmitOperation");
    let first = applied(&curl(&["--data", &submit_body(&id), &path]));
    let again = applied(&curl(&["--data", &submit_body(&id), &path]));
    assert_eq!(first["origin"], "ORIGIN_EXECUTED");
    assert_eq!(again["origin"], "ORIGIN_REPLAYED");
    assert_eq!(first["operation"]["receipt"], again["operation"]["receipt"]);
    let path = url("/receiptd.v1.SessionService/Connect");
    let session = curl(&["--data", &session_body(), &path]);
    assert!(session.contains("ORIGIN_EXECUTED"), "{session}");
}

#[test]
fn an_old_grpcurl_lists_describes_and_calls() {
    let Some(grpcurl) = tool("RECEIPTD_TEST_GRPCURL") else { return };
    let server = Server::dev(&[]);
    let address: SocketAddr = server.address();
    let address = address.to_string();
    let listed = run(&grpcurl, &["-plaintext", &address, "list"]);
    for service in SERVICES {
        assert!(listed.contains(service), "{service} in {listed}");
    }
    let described =
        run(&grpcurl, &["-plaintext", &address, "describe", "receiptd.v1.OperationService"]);
    assert!(described.contains("rpc SubmitOperation"), "{described}");

    let id = Identity::fresh().id;
    let call = |method: &str, body: &str| {
        run(&grpcurl, &["-plaintext", "-max-time", "20", "-d", body, &address, method])
    };
    let submit = "receiptd.v1.OperationService/SubmitOperation";
    assert_eq!(applied(&call(submit, &submit_body(&id)))["origin"], "ORIGIN_EXECUTED");
    let look_up = json!({ "operationId": id }).to_string();
    let read = applied(&call("receiptd.v1.OperationService/GetOperation", &look_up));
    assert_eq!(read["standing"], "STANDING_RECORDED");
    let ack = json!({ "deliveries": [{ "inbox": "default", "sequence": "1" }] }).to_string();
    let acked = call("receiptd.v1.InboxService/AckDeliveries", &ack);
    assert!(acked.contains("ACK_OUTCOME_ACKED"), "{acked}");
    let session = call("receiptd.v1.SessionService/Connect", &session_body());
    assert!(session.contains("ORIGIN_EXECUTED"), "{session}");
}
