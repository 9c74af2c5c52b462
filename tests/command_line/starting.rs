//! How a server starts, or says why it does not.

use std::net::TcpListener;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::program::{Running, receiptd, receiptd_in};

const ACCESS: &str = include_str!("../support/access.toml");

#[test]
fn the_store_in_use_is_named_and_whether_it_is_new() {
    let first = Running::dev(&["--data-dir", "data"]);
    let store = |server: &Running| {
        let line = server.printed.iter().find(|line| line.starts_with("store "));
        line.cloned().unwrap_or_else(|| panic!("{:?}", server.printed))
    };
    assert_eq!(store(&first), "store sqlite:data/receiptd.db (new)");
    let folder = first.stop();
    let second = Running::dev_with(folder, &[], &["--data-dir", "data"]);
    assert_eq!(store(&second), "store sqlite:data/receiptd.db");
}

#[test]
fn a_store_in_a_folder_that_is_not_there_is_refused() {
    let folder = TempDir::new().expect("a temporary directory");
    std::fs::write(folder.path().join("access.toml"), ACCESS).expect("an access file");
    for words in [
        &["serve", "--access-file", "access.toml", "--store", "sqlite:nowhere/s.db"][..],
        &["migrate", "--store", "sqlite:nowhere/s.db"],
    ] {
        let ended = receiptd_in(folder.path(), &[], words);
        ended.expect(2, &["sqlite:nowhere/s.db", "--store", "there is no folder nowhere"]);
        assert!(!folder.path().join("nowhere").exists(), "nothing was created");
    }
    let migrated = receiptd_in(folder.path(), &[], &["migrate", "--store", "sqlite:s.db"]);
    migrated.expect(0, &["store sqlite:s.db (new): the schema is up to date"]);
}

#[test]
fn a_taken_port_is_named_by_its_setting_and_leaves_no_store() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let folder = TempDir::new().expect("a temporary directory");
    for (flag, other, setting) in [
        ("--listen", "--admin-listen", "setting listen"),
        ("--admin-listen", "--listen", "setting admin_listen"),
    ] {
        let words = ["dev", "--data-dir", "data", flag, &address, other, "127.0.0.1:0"];
        let ended = receiptd_in(folder.path(), &[], &words);
        ended.expect(1, &[&address, "in use", &format!("name another with {flag} ("), setting]);
        assert!(!folder.path().join("data").exists(), "{flag}: a store was created");
    }
}

#[test]
fn what_dev_has_no_use_for_is_said_in_the_log() {
    let folder = TempDir::new().expect("a temporary directory");
    let variables = [("RECEIPTD_STORE", "sqlite:/x/y.db"), ("RECEIPTD_ACCESS_FILE", "tokens")];
    let server = Running::dev_with(folder, &variables, &[]);
    for variable in ["RECEIPTD_STORE", "RECEIPTD_ACCESS_FILE"] {
        let log = server.log();
        let told = log.lines().any(|line| line.contains(variable) && line.contains("ignored"));
        assert!(told, "{variable}: {log}");
    }
}

#[test]
fn a_hangup_drains() {
    let mut server = Running::dev(&[]);
    let status = server.end_by(Signal::HUP);
    assert!(status.success(), "{status}: {}", server.log());
    assert!(server.log().contains("drained"), "{}", server.log());
}

#[test]
fn the_lines_to_try_work_as_they_are_printed() {
    let server = Running::dev(&[]);
    let line = server.printed.iter().find(|line| line.contains(" submit ")).expect("a line");
    crate::program::shell(&server.folder(), line).expect(0, &["APPLIED", "ACKED: default #1"]);
}

#[test]
fn an_access_file_that_is_not_there_ends_both_commands_alike() {
    let told = ["access file nowhere.toml: there is no such file"];
    receiptd(&["config", "check", "--access-file", "nowhere.toml"]).expect(2, &told);
    let serve = ["serve", "--store", "sqlite:s.db", "--access-file", "nowhere.toml"];
    receiptd(&serve).expect(2, &told);
}

#[test]
fn help_names_the_variables_and_shows_an_example_of_its_own() {
    for command in ["serve", "dev"] {
        receiptd(&[command, "--help"]).expect(0, &["RECEIPTD_ACK_WINDOW", "receiptd "]);
    }
    for action in ["show", "check"] {
        let help = receiptd(&["config", action, "--help"]);
        help.expect(0, &[&format!("receiptd config {action}")]);
        assert!(!help.stdout.contains("receiptd serve"), "{}", help.stdout);
    }
}
