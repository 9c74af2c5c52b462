//! The guides in `docs/clients`: what they show is what runs.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    program::{Language, Programs, root, skipped},
    rust,
    support::{
        proxy::{Direction, Mode, Proxy},
        server::TOKEN_A,
        stores::TestStore,
        within,
    },
};

/// A block of a guide whose first line names a file of this tree.
struct Block {
    guide: String,
    file: String,
    text: String,
}

/// The blocks that name a file.
fn blocks(path: &Path) -> Vec<Block> {
    let guide = path.display().to_string();
    let text = fs::read_to_string(path).expect("a guide");
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(opening) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some((_, file)) = opening.split_once(' ') {
            let text = body.iter().map(|line| format!("{line}\n")).collect();
            blocks.push(Block { guide: guide.clone(), file: file.to_owned(), text });
        }
    }
    blocks
}

#[test]
fn guides_show_the_code_that_runs_here() {
    let mut all = Vec::new();
    for entry in fs::read_dir(root().join("docs/clients")).expect("the guides") {
        all.extend(blocks(&entry.expect("a guide").path()));
    }
    for Block { guide, file, text } in &all {
        let there = fs::read_to_string(root().join(file)).unwrap_or_default();
        assert_eq!(&there, text, "{guide} shows {file} as it is");
    }
    for path in ["tests/clients/grpcurl/guide.sh", "tests/clients/rust/guide.rs"] {
        assert!(all.iter().any(|block| block.file == path), "no guide shows {path}");
    }
    for language in Language::ALL {
        for file in language.shown() {
            let path = format!("tests/clients/{}/{file}", language.name());
            assert!(all.iter().any(|block| block.file == path), "no guide shows {path}");
        }
    }
}

/// Runs a guide's program over a connection that loses the answer of its submit.
pub async fn run(language: Language) {
    let Some(programs) = tokio::task::block_in_place(|| Programs::of(language)) else { return };
    let store = TestStore::sqlite();
    let flags = language.flags();
    let server = store.serve(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Direction::Down, Mode::cut_at("notes/today"));
    let variables =
        [("RECEIPTD_ADDRESS", proxy.address().to_string()), ("RECEIPTD_TOKEN", TOKEN_A.to_owned())];
    let printed = tokio::task::block_in_place(|| programs.play("guide", &variables));
    assert_eq!(printed, language.printed());
    proxy.triggered(Direction::Down, 1).await;
    assert_eq!(server.a().text("notes/today").await, ("hello\n".to_owned(), 1));
    let inbox = server.a().inbox("editor").await;
    assert_eq!((inbox.acked_total, inbox.pending + inbox.in_flight), (1, 0));
}

/// The script of grpcurl's guide, over a connection that loses the answer of its submit.
#[tokio::test(flavor = "multi_thread")]
async fn the_script_of_grpcurl_submits_retries_reads_and_acks() {
    let Ok(grpcurl) = std::env::var("RECEIPTD_TEST_GRPCURL") else {
        return skipped("RECEIPTD_TEST_GRPCURL is not set: tests/run fetches the tool");
    };
    let store = TestStore::sqlite();
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Direction::Down, Mode::cut_at("notes/today"));
    let folder = Path::new(&grpcurl).parent().expect("a program stands in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-e"]).arg(root().join("tests/clients/grpcurl/guide.sh"));
    command.env("PATH", format!("{}:{path}", folder.display())).stdin(Stdio::null());
    command.env("RECEIPTD_ADDRESS", proxy.address().to_string()).env("RECEIPTD_TOKEN", TOKEN_A);
    let output = tokio::task::block_in_place(|| command.output()).expect("timeout is there");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{errors}");
    let words = [
        "\"origin\": \"ORIGIN_REPLAYED\"",
        "\"standing\": \"STANDING_RECORDED\"",
        "\"caughtUp\"",
        "\"outcome\": \"ACK_OUTCOME_ACKED\"",
    ];
    for word in words {
        assert!(printed.contains(word), "no {word} in:\n{printed}\n{errors}");
    }
    proxy.triggered(Direction::Down, 1).await;
    assert_eq!(server.a().text("notes/today").await, ("hello\n".to_owned(), 1));
    assert_eq!(server.a().inbox("editor").await.acked_total, 1);
}

/// The guide in Rust, over the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_in_rust_submits_retries_reads_and_acks() {
    let store = TestStore::sqlite();
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Direction::Down, Mode::cut_at("notes/today"));
    let endpoint = format!("http://{}", proxy.address());
    let editing = rust::edit(&endpoint, Some(TOKEN_A.to_owned()));
    let printed = within("the guide's end", editing).await.expect("the guide's program");
    assert_eq!(printed, "Replayed after 2 attempts\nnew 1\nacked: true\n");
    proxy.triggered(Direction::Down, 1).await;
    assert_eq!(server.a().text("notes/today").await, ("hello\n".to_owned(), 1));
    assert_eq!(server.a().inbox("editor").await.acked_total, 1);
}
