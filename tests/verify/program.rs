//! What `receiptd verify` prints, and how it ends.

use std::process::{Command, Output};

use serde_json::Value;

use crate::{
    commands::append,
    places::{close, engine, run},
    support::stores::{TestStore, on_both_stores},
};

on_both_stores!(the_program_says_what_it_found_and_ends_accordingly);

fn verify(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_receiptd"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RECEIPTD_")) {
        command.env_remove(name);
    }
    tokio::task::block_in_place(|| command.arg("verify").args(words).output().expect("runs"))
}

fn said(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

async fn the_program_says_what_it_found_and_ends_accordingly(store: TestStore) {
    let (running, seams) = engine(&store).await;
    running.run(append("op", seams.now()).command()).await.expect("applied");
    close(running).await;
    let url = store.url();
    let clean = verify(&["--store", &url]);
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    assert_eq!(
        said(&clean),
        ["nothing contradicts. Looked at: accounts 1, operations 1, audit rows 1, deliveries 1, \
          inboxes 1, locks 0, documents 1, payloads 0"]
    );
    run(&store, "UPDATE receiptd.inboxes SET pending = 5").await;
    let wrong = verify(&["--store", &url, "--account", "a"]);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let lines = said(&wrong);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(
        "INBOX_COUNTER account a, inbox default: expected pending 1, found pending 5. Next: "
    ));
    assert!(lines[1].starts_with("1 contradiction. "), "{lines:?}");
    let as_json = verify(&["--store", &url, "--json"]);
    assert_eq!(as_json.status.code(), Some(1), "{as_json:?}");
    let values: Vec<Value> = said(&as_json)
        .iter()
        .map(|line| serde_json::from_str(line).expect("one object on each line"))
        .collect();
    assert_eq!((values[0]["kind"].as_str(), values[0]["inbox"].as_str()), {
        (Some("INBOX_COUNTER"), Some("default"))
    });
    assert_eq!((values[1]["contradictions"].as_u64(), values[1]["operations"].as_u64()), {
        (Some(1), Some(1))
    });
    let other = verify(&["--store", &url, "--account", "b"]);
    assert_eq!(other.status.code(), Some(0), "never used: {other:?}");
    for words in [&["--store", "sqlite:/nowhere/receiptd.db"][..], &["--account", ""], &[]] {
        let refused = verify(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {refused:?}");
        assert!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{refused:?}");
    }
}
