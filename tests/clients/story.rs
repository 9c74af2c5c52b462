//! What a client of any language goes through, as rows: a step, a place in the line of JSON that
//! the program prints for it, and what must stand there.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::{Value, json};

use crate::{
    program::{Language, Programs},
    support::{
        answers::found_receipt,
        client::Caller,
        proxy::{Direction, Mode, Proxy},
        requests::Identity,
        server::TOKEN_A,
        stores::TestStore,
    },
};

/// The steps that one stream of results and acks consists of: two results that nobody acked come
/// again under the token, and an ack is as good the second time.
fn shown(attempt: i64) -> Value {
    let result = |sequence: i64, target: &str| {
        json!({
            "sequence": sequence,
            "target": target,
            "attempt": attempt,
            "redelivered": attempt > 1,
        })
    };
    json!([result(1, "notes/cut"), result(2, "notes/silent")])
}

/// What every language must see.
fn rows(language: Language) -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("cut", "/code", json!(language.lost())),
        ("cut", "/reason", json!("")),
        ("again", "/origin", json!("ORIGIN_REPLAYED")),
        ("again", "/state", json!("STATE_APPLIED")),
        ("looked_up", "/standing", json!("STANDING_RECORDED")),
        ("mismatch", "/code", json!("ALREADY_EXISTS")),
        ("mismatch", "/reason", json!("OPERATION_INTENT_MISMATCH")),
        ("mismatch", "/outcome", json!("NO_EFFECT")),
        ("mismatch", "/differs", json!("arguments")),
        // The connection is silent: the deadline ends the call on the client's side alone.
        ("silent", "/code", json!("DEADLINE_EXCEEDED")),
        ("silent", "/reason", json!("")),
        ("silent", "/standing", json!("STANDING_RECORDED")),
        ("stream", "/first", json!("opened")),
        ("stream", "/results", shown(1)),
        ("resumed", "/first", json!("opened")),
        ("resumed", "/results", shown(2)),
        ("acked", "/outcomes", json!(["ACK_OUTCOME_ACKED", "ACK_OUTCOME_ACKED"])),
        (
            "acked_again",
            "/outcomes",
            json!(["ACK_OUTCOME_ALREADY_ACKED", "ACK_OUTCOME_ALREADY_ACKED"]),
        ),
        ("after_acks", "/results", json!([])),
        // The service answers shortly before the deadline: with the state in force.
        ("deadline", "/origin", json!("ORIGIN_EXECUTED")),
        ("deadline", "/state", json!("STATE_ACCEPTED")),
        ("deadline", "/waits_for_holder", json!(true)),
        ("deadline", "/next", json!("RECOVERY_ACTION_WAIT")),
        ("stream_cancelled", "/snapshot", json!(true)),
        ("stream_cancelled", "/code", json!("CANCELLED")),
        ("stream_cancelled", "/state", json!("STATE_ACCEPTED")),
        ("channel_closed", "/code", json!("CANCELLED")),
        ("channel_closed", "/state", json!("STATE_ACCEPTED")),
        ("released", "/watched", json!("STATE_APPLIED")),
        ("released", "/origin", json!("ORIGIN_REPLAYED")),
    ]
}

/// What those see that can send a stream.
fn session_rows() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("session", "/first", json!("opened")),
        ("session", "/submit_tag", json!(7)),
        ("session", "/origin", json!("ORIGIN_EXECUTED")),
        ("session", "/ack_tag", json!(8)),
        ("session", "/outcome", json!("ACK_OUTCOME_ACKED")),
        ("session", "/code", json!("OK")),
    ]
}

/// What a page sees whose origin the server does not list: that there is no answer.
fn foreign_rows() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("foreign", "/code", json!("UNKNOWN")),
        ("foreign", "/reason", json!("")),
        ("foreign", "/standing", json!("STANDING_NOT_ACCEPTED_YET")),
    ]
}

/// Plays a language's program on a fresh server and checks what it saw and what it did.
pub async fn play(language: Language, store: &TestStore) {
    let Some(programs) = tokio::task::block_in_place(|| Programs::of(language)) else { return };
    let flags = language.flags();
    let server = store.serve(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let cut = Proxy::start(server.address()).await;
    // A target stands in the answer's receipt: there the answer is lost.
    cut.set(Direction::Down, Mode::cut_at("notes/cut"));
    let silent = Proxy::start(server.address()).await;
    silent.set(Direction::Down, Mode::silent_at("notes/silent"));
    let variables = [
        ("RECEIPTD_ADDRESS", server.address().to_string()),
        ("RECEIPTD_CUT", cut.address().to_string()),
        ("RECEIPTD_SILENT", silent.address().to_string()),
        ("RECEIPTD_TOKEN", TOKEN_A.to_owned()),
    ];
    let printed = tokio::task::block_in_place(|| programs.play("scenario", &variables));
    let steps = steps(&printed);
    let mut rows = rows(language);
    rows.extend(if language.has_sessions() { session_rows() } else { foreign_rows() });
    for (step, pointer, expected) in rows {
        let line = steps.get(step).unwrap_or_else(|| panic!("no {step} in:\n{printed}"));
        assert_eq!(line.pointer(pointer), Some(&expected), "{step} {pointer} in {line:#}");
    }
    receipts_are_equal(&server.a(), &steps).await;
    effects_happened_once(&server.a(), language).await;
}

/// The lines that a program printed, by the step they are about.
fn steps(printed: &str) -> BTreeMap<String, Value> {
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| {
            panic!("{line:?} is no JSON: {error}");
        });
        (value["step"].as_str().expect("a step's name").to_owned(), value)
    };
    printed.lines().map(line).collect()
}

/// The replayed receipt, the one looked up and the one that another caller sees: byte for byte.
async fn receipts_are_equal(caller: &Caller, steps: &BTreeMap<String, Value>) {
    let id = steps["cut"]["id"].as_str().expect("an id").to_owned();
    let found = caller.get(&Identity { id, mint_time: None }).await;
    let bytes = found_receipt(&found).encode_to_vec();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(steps["again"]["receipt"], hex, "the receipt of the replay");
    assert_eq!(steps["looked_up"]["receipt"], hex, "the receipt of the look-up");
}

/// What the store holds at the end.
async fn effects_happened_once(caller: &Caller, language: Language) {
    let mut documents = vec![
        ("notes/cut", "once\n", 1),
        ("notes/silent", "once\n", 1),
        ("notes/held", "holder\nwaiter\nclosed\n", 3),
    ];
    let mut inboxes = vec![("editor", 2, 0), ("locks", 1, 2)];
    if language.has_sessions() {
        documents.push(("notes/session", "once\n", 1));
        inboxes.push(("session", 1, 0));
    }
    for (target, text, revision) in documents {
        assert_eq!(caller.text(target).await, (text.to_owned(), revision), "{target}");
    }
    for (name, acked, unacked) in inboxes {
        let inbox = caller.inbox(name).await;
        let figures = (inbox.acked_total, inbox.pending + inbox.in_flight);
        assert_eq!(figures, (acked, unacked), "{name}");
    }
}
