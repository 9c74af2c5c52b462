//! The client library as an editor links it: over real servers, proxies, restarts and kills.

#[path = "../support/hosted.rs"]
mod hosted;
#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod examples;
mod kills;
mod results;
mod slow;
mod storm;

use std::{net::SocketAddr, path::Path};

use receiptd::client::{
    connect::{Client, Secret},
    submission::Submission,
};
use serde_json::json;
use support::server::TOKEN_A;

/// A client of account `a` with its journal in a file.
fn client(address: SocketAddr, journal: &Path) -> Client {
    client_of(&format!("http://{address}"), journal)
}

fn client_of(endpoint: &str, journal: &Path) -> Client {
    let builder = Client::builder(endpoint).token(Secret::new(TOKEN_A)).journal_file(journal);
    builder.build().expect("a usable client")
}

/// Deliberately not idempotent, so that a duplicate is a second line.
fn append(target: &str, line: &str) -> Submission {
    Submission::json("document.append", target, &json!({ "line": line }))
}
