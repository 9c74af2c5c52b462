//! Tools that strangers bring: buf and an old grpcurl against `receiptd dev`, without any file of
//! the protocol at hand. Skipped aloud where the tools are not there; tests/run fetches them.
//!
//! What must stay true: both play the same table, and the table has a row for each method that the
//! server's reflection lists, and no other.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod tool;

use std::collections::BTreeSet;

use calls::{Call, calls};
use serde_json::Value;
use support::server::Server;
use tool::{Kind, Tool};

/// Lists, compares with the table both ways, and plays it.
fn lists_and_calls(tool: &Tool) {
    let services = tool.services();
    assert!(services.contains("grpc.health.v1.Health"), "{services:?}");
    let calls = calls();
    let rows: BTreeSet<String> = calls.iter().map(|call| call.method.to_owned()).collect();
    let listed = tool.methods();
    let without_row: Vec<_> = listed.difference(&rows).collect();
    let not_listed: Vec<_> = rows.difference(&listed).collect();
    assert!(
        without_row.is_empty() && not_listed.is_empty(),
        "methods without a row in tests/tools/calls.rs: {without_row:?}; rows of methods that \
         reflection does not list: {not_listed:?}"
    );
    for Call { method, request, ends, found } in calls {
        let messages = Value::Array(tool.call(method, &request, ends));
        for (pointer, expected) in found {
            let there = messages.pointer(pointer);
            assert_eq!(there, Some(&expected), "{method} {pointer} in {messages:#}");
        }
    }
}

#[test]
fn buf_lists_and_calls_every_method() {
    let server = Server::dev(&[]);
    if let Some(buf) = Tool::find(Kind::Buf, server.address()) {
        lists_and_calls(&buf);
    }
}

#[test]
fn an_old_grpcurl_lists_describes_and_calls_every_method() {
    let server = Server::dev(&[]);
    let Some(grpcurl) = Tool::find(Kind::Grpcurl, server.address()) else { return };
    lists_and_calls(&grpcurl);
    for method in grpcurl.methods() {
        let (_, name) = method.split_once('/').expect("package.Service/Method");
        let described = grpcurl.describe(&method.replace('/', "."));
        let signature = described.lines().find(|line| line.starts_with(&format!("rpc {name} (")));
        let signature = signature.unwrap_or_else(|| panic!("{method}: {described}"));
        for message in signature.split(['(', ')']).skip(1).step_by(2) {
            let message = message.trim().trim_start_matches("stream ").trim_start_matches('.');
            let described = grpcurl.describe(message);
            assert!(described.contains(&format!("{message} is a message")), "{described}");
        }
    }
}
