//! The examples do what they say, and the README shows the editor as it is.

use std::{fs, path::Path};

use receiptd::client::connect::Client;
use serde_json::json;
use tokio::sync::mpsc::channel;

use crate::support::{client::Caller, server::Server, within};

#[path = "../../examples/agent_tool.rs"]
#[expect(dead_code, reason = "its main reads the command line")]
mod agent_tool;
#[path = "../../examples/command_line.rs"]
#[expect(dead_code, reason = "its main reads the command line")]
mod command_line;
#[path = "../../examples/editor.rs"]
#[expect(dead_code, reason = "its main reads the keyboard")]
mod editor;

#[tokio::test]
async fn the_editor_submits_what_is_typed_and_acks_what_it_showed() {
    let server = Server::dev(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let client = Client::builder(format!("http://{}", server.address()))
        .journal_file(directory.path().join("journal"))
        .build()
        .expect("a usable client");
    let (typed, keys) = channel(16);
    for (position, text) in [(0, "wörld"), (0, "hello, "), (12, "!")] {
        typed.send((position, text.to_owned())).await.expect("room");
    }
    drop(typed);
    within("the typing to end", editor::edit(&client, keys)).await.expect("it ends well");
    let caller = Caller::anonymous(server.address());
    assert_eq!(caller.text("notes/today").await, ("hello, wörld!".to_owned(), 3));
    assert!(client.journal().unsettled().expect("readable").is_empty());
    let inbox = caller.inbox("editor").await;
    let state = client.journal().reader("editor", "laptop").expect("readable").expect("kept");
    assert!(state.handled_unacked.is_empty(), "what was shown is acked");
    assert_eq!(inbox.pending + inbox.in_flight + inbox.acked_total, 3);
}

#[tokio::test]
async fn the_agents_tool_tells_a_model_what_is_known() {
    let mut server = Server::dev(&[]);
    let client = Client::builder(format!("http://{}", server.address())).build();
    let client = client.expect("a usable client");
    let append = async |arguments| agent_tool::append_line(&client, &arguments).await;
    let arguments = json!({ "target": "notes/today", "line": "hello" });
    let told = append(arguments.clone()).await;
    assert!(told.starts_with("Done. Operation ") && told.contains("notes/today"), "{told}");
    let told = append(json!({ "target": "notes/today" })).await;
    assert!(told.starts_with("Nothing was done"), "{told}");
    let told = append(json!({ "target": "../notes", "line": "x" })).await;
    assert!(told.starts_with("Nothing was changed"), "{told}");
    server.kill();
    let once = receiptd::client::retry::RetryLimits {
        unreachable: std::time::Duration::ZERO,
        ..client.limits()
    };
    let told = agent_tool::append_line(&client.with_limits(once), &arguments).await;
    assert!(!told.contains("Done"), "{told}");
    assert!(agent_tool::settle(&client).await.expect("readable").len() <= 1);
    server.start_again();
    let text = Caller::anonymous(server.address()).text("notes/today").await;
    assert_eq!(text, ("hello\n".to_owned(), 1));
}

#[tokio::test]
async fn the_command_may_be_run_again_and_again() {
    let server = Server::dev(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let journal = directory.path().join("journal");
    let journal = journal.to_str().expect("a plain name");
    let endpoint = format!("http://{}", server.address());
    let run = async |command: &[&str]| command_line::run(&endpoint, journal, command).await;
    run(&["append", "notes/today", "one"]).await.expect("it works");
    run(&["recover"]).await.expect("nothing is left");
    run(&["append", "notes/today", "two"]).await.expect("it works");
    run(&["erase"]).await.expect_err("no such command");
    let text = Caller::anonymous(server.address()).text("notes/today").await;
    assert_eq!(text, ("one\ntwo\n".to_owned(), 2));
}

#[test]
fn the_readme_shows_the_editor_as_it_is() {
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        fs::read_to_string(path).expect("a readable file")
    };
    let (readme, example) = (read("README.md"), read("examples/editor.rs"));
    let from = example.find("use std").expect("its first line");
    let to = example.find("#[tokio::main").expect("its main");
    let shown = example[from..to].trim_end();
    assert!(shown.lines().count() < 40, "the example is a small one");
    assert!(readme.contains(&format!("```rust\n{shown}\n```")), "README, From Rust:\n{shown}");
}
