//! The guides in `docs/clients`: what they show is what runs.

use std::{fs, path::Path};

use crate::{
    program::{Language, Programs, root},
    support::{
        proxy::{Direction, Mode, Proxy},
        server::{Server, TOKEN_A},
        stores::TestStore,
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
    let server: Server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Direction::Down, Mode::cut_at("notes/today"));
    let variables =
        [("RECEIPTD_ADDRESS", proxy.address().to_string()), ("RECEIPTD_TOKEN", TOKEN_A.to_owned())];
    let printed = tokio::task::block_in_place(|| programs.play("guide", &variables));
    let expected = "ORIGIN_REPLAYED STATE_APPLIED\nnew 1 STATE_APPLIED\nACK_OUTCOME_ACKED\n";
    assert_eq!(printed, expected);
    proxy.triggered(Direction::Down, 1).await;
    assert_eq!(server.a().text("notes/today").await, ("hello\n".to_owned(), 1));
    let inbox = server.a().inbox("editor").await;
    assert_eq!((inbox.acked_total, inbox.pending + inbox.in_flight), (1, 0));
}
