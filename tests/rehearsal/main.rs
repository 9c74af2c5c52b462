//! `receiptd rehearse` as its users run it: the real program, its built-in session, both stores.
//!
//! What must stay true: what is read is the ending table that people see and the exit code that
//! scripts see; the negative control shows that the table would tell.

#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::HashMap,
    process::{Command, Stdio},
};

use support::stores::{TestStore, on_both_stores};

/// After this many seconds `timeout` ends a rehearsal: one takes some seconds.
const SECONDS_MAX: &str = "240";

on_both_stores!(
    cuts_and_kills_leave_one_effect_per_operation,
    the_negative_control_shows_duplicate_effects,
);

/// The ending table, by its first column.
struct Ending {
    code: Option<i32>,
    rows: HashMap<String, String>,
    /// Everything that was printed, for a test that fails.
    printed: String,
}

impl Ending {
    fn of(&self, name: &str) -> &str {
        let row = self.rows.get(name);
        row.unwrap_or_else(|| panic!("no {name} in the table:\n{}", self.printed))
    }

    fn figure(&self, name: &str) -> u64 {
        self.of(name).parse().unwrap_or_else(|_| panic!("{name} is a figure:\n{}", self.printed))
    }
}

async fn rehearse(store: &TestStore, flags: &[&str]) -> Ending {
    let mut command = Command::new("timeout");
    // Settings of the machine, and those of the test run itself, are none of the program's.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RECEIPTD_")) {
        command.env_remove(name);
    }
    command
        .args([SECONDS_MAX, env!("CARGO_BIN_EXE_receiptd"), "rehearse", "--builtin"])
        .args(["--store", &store.url()])
        .args(flags)
        .stdin(Stdio::null());
    let output = tokio::task::block_in_place(|| command.output()).expect("timeout is there");
    let table = String::from_utf8(output.stdout).expect("text");
    // Names and values are apart by at least two spaces; inside them words are apart by one.
    let rows = table.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once("  ")?;
        Some((name.to_owned(), value.trim().to_owned()))
    });
    let rows = rows.collect();
    let printed = format!("{table}{}", String::from_utf8_lossy(&output.stderr));
    Ending { code: output.status.code(), rows, printed }
}

async fn cuts_and_kills_leave_one_effect_per_operation(store: TestStore) {
    let ending = rehearse(&store, &["--cut-every", "3", "--kill-every", "14"]).await;
    assert_eq!(ending.code, Some(0), "{}", ending.printed);
    let operations = ending.figure("operations");
    assert!(operations >= 50, "the built-in session is no toy:\n{}", ending.printed);
    assert_eq!(ending.figure("kills"), operations / 14);
    // A kill may break the very connection whose cut was due.
    assert!(ending.figure("cuts") > 0, "{}", ending.printed);
    // Each cut but those before an ack, and each kill that came in time, costs one more attempt.
    assert!(ending.figure("attempts") > operations, "{}", ending.printed);
    assert!(ending.figure("replays") > 0, "{}", ending.printed);
    for each_once in ["results handed over", "effects in the store", "final revision"] {
        assert_eq!(ending.figure(each_once), operations, "{each_once}:\n{}", ending.printed);
    }
    assert_eq!(ending.figure("duplicate effects"), 0);
    assert_eq!(ending.of("final text"), "equal to the recorded one");
    assert_eq!(ending.of("verdict"), "one effect and one result per operation");
}

async fn the_negative_control_shows_duplicate_effects(store: TestStore) {
    let ending = rehearse(&store, &["--cut-every", "3", "--faulty", "fresh-id"]).await;
    assert_eq!(ending.code, Some(1), "{}", ending.printed);
    let operations = ending.figure("operations");
    let duplicates = ending.figure("duplicate effects");
    assert!(ending.figure("cuts") > 0 && duplicates > 0, "{}", ending.printed);
    assert_eq!(ending.figure("effects in the store"), operations + duplicates);
    assert_eq!(ending.of("final text"), "DIFFERENT");
    assert_eq!(ending.of("verdict"), "NOT one effect and one result per operation");
}
