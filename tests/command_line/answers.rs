//! What the client's commands say.

use crate::program::{Running, receiptd, receiptd_in};

#[test]
fn an_address_that_cannot_be_called_is_refused_by_every_command() {
    for command in [
        &["submit", "document.append", "a", "{\"line\":\"x\"}"][..],
        &["get", "01939bd0-0000-7000-8000-000000000000"],
        &["watch", "01939bd0-0000-7000-8000-000000000000"],
        &["cancel", "01939bd0-0000-7000-8000-000000000000"],
        &["list"],
        &["inbox", "stream"],
        &["inbox", "list"],
        &["inbox", "ack", "default", "1"],
        &["document", "get", "a"],
        &["document", "list"],
    ] {
        let ended = receiptd(&[command, &["--endpoint", "127.0.0.1:7070"]].concat());
        ended.expect(2, &["--endpoint", "\"127.0.0.1:7070\"", "http://HOST:PORT"]);
        assert!(!ended.stderr.contains("not known"), "{}", ended.stderr);
    }
}

#[test]
fn whoever_finds_nobody_is_told_where_and_what_to_do() {
    // A port that was free a moment ago: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    for command in [&["document", "list"][..], &["submit", "document.delete", "a"]] {
        let words = [command, &["--endpoint", &endpoint, "--timeout", "1s"]].concat();
        receiptd(&words).expect(1, &[&endpoint, "receiptd dev", "--endpoint"]);
    }
}

#[test]
fn a_submit_says_that_it_acked_its_result() {
    let server = Running::dev(&[]);
    let put = ["submit", "document.put", "a", "{\"content\":\"x\"}"];
    server.call(&put).expect(0, &["default #1 PENDING", "ACKED: default #1, by this command"]);
    let kept = server.call(&[&put[..], &["--no-ack"]].concat());
    assert!(!kept.expect(0, &["default #2 PENDING"]).stdout.contains("ACKED"));
    let listed = server.call(&["inbox", "list", "default"]);
    listed.expect(0, &["ACKED", "PENDING"]);
    // One JSON value, and nothing beside it.
    let json = server.call(&[&put[..], &["-o", "json"]].concat());
    serde_json::from_str::<serde_json::Value>(&json.stdout).expect("one value");
}

#[test]
fn operators_see_effects_replays_and_what_the_sweep_did() {
    let server = Running::dev(&[]);
    let put =
        ["submit", "document.put", "a", "{\"content\":\"x\"}", "--id", "save:1", "--mint-time"];
    let now = humantime::format_rfc3339_seconds(crate::support::wall_clock()).to_string();
    for _ in 0..2 {
        server.call(&[&put[..], &[now.as_str(), "--no-ack"]].concat()).expect(0, &["APPLIED"]);
    }
    let said = server.call(&["stats"]);
    said.expect(0, &["1 (1 APPLIED)", "1 pending", "1 executed, 0 attached, 1 replayed"]);
    let json = server.call(&["stats", "-o", "json"]);
    let figures: serde_json::Value = serde_json::from_str(&json.stdout).expect("one value");
    assert_eq!((&figures["effects"], &figures["account"]), (&1.into(), &"local".into()));
    assert_eq!(figures["replica"]["replayed"], 1);
    assert!(figures["oldestUnackedSeconds"].as_f64().is_some_and(|age| age >= 0.0), "{figures}");
    assert!(figures["oldestOverdueSeconds"].is_null(), "{figures}");
    let exported = server.call(&["export"]);
    let lines: Vec<&str> = exported.stdout.lines().collect();
    let [line] = lines.as_slice() else { panic!("{}", exported.stdout) };
    let exported: serde_json::Value = serde_json::from_str(line).expect("one value a line");
    assert_eq!(exported["operation"]["operationId"], "save:1");
    assert_eq!(exported["events"][0]["kind"], "ACCEPTED");
    server.call(&["erase", "--all"]).expect(2, &["--reason"]);
    server.call(&["erase", "--reason", "asked for"]).expect(2, &["--target", "--all"]);
    let erase = ["erase", "--all", "--reason", "asked for"];
    server.call(&erase).expect(0, &["left: news open", "run this again"]);
    server.call(&["inbox", "ack", "default", "1"]).expect(0, &["ACKED"]);
    let json = server.call(&[&erase[..], &["-o", "json"]].concat());
    let erased: serde_json::Value = serde_json::from_str(&json.stdout).expect("one value");
    assert_eq!((&erased["erased"], &erased["newsOpen"]), (&1.into(), &0.into()));
    let json = server.call(&["sweep", "-o", "json"]);
    let swept: serde_json::Value = serde_json::from_str(&json.stdout).expect("one value");
    assert_eq!(
        (&swept["counts"]["expired"], &swept["counts"]["compacted"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn a_document_is_printed_as_it_is() {
    let server = Running::dev(&[]);
    let put = ["submit", "document.put", "a", "{\"content\":\"no line feed\"}"];
    server.call(&put).expect(0, &[]);
    assert!(server.call(&["document", "get", "a"]).stdout.ends_with("\n\nno line feed"));
    assert_eq!(server.call(&["document", "get", "a", "--content"]).stdout, "no line feed");
}

#[test]
fn mint_times_are_asked_for_by_their_option_and_told_as_people_write_them() {
    let server = Running::dev(&[]);
    for command in [
        &["get", "save:1"][..],
        &["cancel", "save:1"],
        &["watch", "save:1"],
        &["submit", "document.delete", "a", "--id", "save:1"],
    ] {
        server.call(command).expect(2, &["--mint-time", "RFC 3339"]);
    }
    let now = humantime_now();
    let put = ["submit", "document.put", "a", "{\"content\":\"\"}", "--id", "save:1"];
    server.call(&[&put[..], &["--mint-time", &now]].concat()).expect(0, &[]);
    let other = server.call(&["get", "save:1", "--mint-time", "5"]);
    other.expect(0, &[&format!("recorded with another mint time: {now}")]);
}

/// This second, in RFC 3339.
fn humantime_now() -> String {
    let now = crate::support::wall_clock().duration_since(std::time::UNIX_EPOCH);
    let seconds = i64::try_from(now.expect("after 1970").as_secs()).expect("a small number");
    prost_types::Timestamp { seconds, nanos: 0 }.to_string()
}

#[test]
fn a_refused_token_is_not_proposed_again_and_the_sentence_comes_once() {
    let server = Running::dev(&[]);
    let put = ["submit", "document.put", "a", "{\"content\":\"\"}"];
    server.call(&put).expect(0, &[]);
    let ended = server.call(&["inbox", "stream", "--resume-token", "bm9uc2Vuc2U"]);
    ended.expect(2, &["RESUME_TOKEN_INVALID", "without a token", "FIX_REQUEST"]);
    assert!(!ended.stderr.contains("go on with"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("not valid here").count(), 1, "{}", ended.stderr);
    let read = server.call(&["inbox", "stream", "--until-caught-up"]);
    read.expect(0, &["go on with: --resume-token "]);
}

#[test]
fn refusals_are_told_in_the_services_sentence_with_the_next_step() {
    let server = Running::dev(&["--inbox-slots", "1"]);
    let put = ["submit", "document.put", "a", "{\"content\":\"\"}", "--no-ack"];
    let first = server.call(&[&put[..], &["--lock-mode", "until-acked"]].concat());
    let holder = first.expect(0, &[]).stderr.trim().rsplit(' ').next().expect("an id").to_owned();
    let full = server.call(&[&put[..], &["--on-locked", "fail"]].concat());
    full.expect(1, &["INBOX_FULL", "had no effect through this call", "(next step: SLOW_DOWN)"]);
    let elsewhere = [&put[..], &["--on-locked", "fail", "--inbox", "other"]].concat();
    server.call(&elsewhere).expect(1, &["TARGET_LOCKED", &holder, "at the latest"]);
    server.call(&["document", "get", "b"]).expect(1, &["NO_SUCH_DOCUMENT", "(next step: "]);
}

#[test]
fn attempts_are_extended_and_given_back_by_their_holder() {
    let server = Running::dev(&[]);
    let put = ["submit", "document.put", "a", "{\"content\":\"\"}", "--no-ack"];
    server.call(&put).expect(0, &["default #1 PENDING"]);
    server.call(&["inbox", "pull", "default", "--consumer", "me"]).expect(0, &["in flight to me"]);
    for (words, code, told) in [
        (&["extend", "default", "1", "--by", "20s"][..], 2, "NUMBER:ATTEMPT, for example 17:2"),
        (&["extend", "default", "--by", "20s"], 2, "<ATTEMPTS>"),
        (&["extend", "default", "1:1", "--by", "20s", "--consumer", "you"], 1, "NOT_YOURS"),
        (&["extend", "default", "1:1", "--by", "20s", "--consumer", "me"], 0, "EXTENDED"),
        (&["defer", "default", "1:1", "--consumer", "you"], 1, "NOT_YOURS"),
        (&["defer", "default", "1:1", "--delay", "20s", "--consumer", "me"], 0, "DEFERRED"),
        (&["defer", "default", "1:1", "9:1", "--delay", "20s"], 1, "NO_SUCH_DELIVERY"),
    ] {
        server.call(&[&["inbox"], words].concat()).expect(code, &[told]);
    }
    server.call(&["inbox", "list", "default"]).expect(0, &["PENDING"]);
}

#[test]
fn a_sealed_id_is_told_by_every_command() {
    let server = Running::dev(&[]);
    let id = ["save:1", "--mint-time", &humantime_now()];
    let cancel = [&["cancel"], &id[..]].concat();
    server.call(&cancel).expect(5, &["NO_SUCH_OPERATION"]);
    let seal = [&cancel[..], &["--seal"]].concat();
    let sealed = server.call(&seal).expect(0, &["sealed: no submit", "NEW_ID_SAFE"]).stdout.clone();
    assert!(!sealed.contains("target"), "{sealed}");
    let put = ["submit", "document.put", "a", "{\"content\":\"\"}", "--id"];
    server.call(&[&put[..], &id[..]].concat()).expect(3, &["CANCELLED", "NEW_ID_SAFE"]);
    server.call(&[&["get"], &id[..]].concat()).expect(3, &["RECORDED", "was sealed"]);
    server.call(&["document", "get", "a"]).expect(1, &["NO_SUCH_DOCUMENT"]);
}

#[test]
fn a_rehearsals_store_is_checked_by_the_name_of_its_flag() {
    let ended = receiptd(&["rehearse", "--store", "foo:canary"]);
    ended.expect(2, &["--store must be postgres://… or sqlite:PATH"]);
    assert!(!ended.stderr.contains("RECEIPTD_STORE") && !ended.stderr.contains("canary"));
}

#[test]
fn a_password_in_a_file_that_is_not_toml_never_shows() {
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let line = "store = postgres://app:canary@db/receipts\n";
    std::fs::write(folder.path().join("receiptd.toml"), line).expect("written");
    let ended = receiptd_in(folder.path(), &[], &["config", "check", "--config", "receiptd.toml"]);
    ended.expect(2, &["file receiptd.toml is not TOML: at line 1, column 9"]);
    assert!(!ended.stderr.contains("canary"), "{}", ended.stderr);
}
