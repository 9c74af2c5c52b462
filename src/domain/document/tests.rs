//! The actions as tables: what each makes of a document, and what it refuses.

use super::*;
use crate::domain::{
    ids::{Account, Target},
    intent::LockMode,
};

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn key() -> TargetKey {
    TargetKey { account: Account::from_stored("a"), target: Target::from_stored("d") }
}

fn intent(action: &str, content_type: &str, arguments: &str) -> Intent {
    Intent {
        action: action.to_owned(),
        target: key().target,
        expected_revision: None,
        content_type: content_type.to_owned(),
        arguments: Bytes::from(arguments.to_owned()),
        lock_mode: LockMode::UntilFinal,
    }
}

fn parsed(intent: &Intent) -> Option<Result<DocumentAction, Invalid>> {
    match crate::domain::intent::digest(intent) {
        Ok((_, hashed)) => parse(intent, &hashed),
        Err(invalid) => Some(Err(invalid)),
    }
}

fn action(name: &str, arguments: &str) -> DocumentAction {
    let parsed = parsed(&intent(name, JSON, arguments)).expect("a known action");
    parsed.unwrap_or_else(|invalid| panic!("{arguments}: {}", invalid.problem))
}

fn invalid(name: &str, arguments: &str) -> String {
    let parsed = parsed(&intent(name, JSON, arguments)).expect("a known action");
    parsed.expect_err("invalid").problem
}

fn document(content_type: &str, content: &[u8]) -> Document {
    let put = DocumentAction::Put {
        content: Bytes::copy_from_slice(content),
        content_type: content_type.to_owned(),
    };
    apply(&key(), None, &put, None, 1 << 20, NOW).expect("applies").0
}

/// The text after, or the reason.
fn after(before: Option<&Document>, action: &DocumentAction) -> Result<String, &'static str> {
    match apply(&key(), before, action, None, 64, NOW) {
        Ok((document, _)) => {
            let content = document.content.expect("content");
            Ok(String::from_utf8(content.to_vec()).expect("text"))
        }
        Err(rejection) => Err(rejection.reason.word()),
    }
}

#[test]
fn splices_count_code_points() {
    // One code point each: a letter beyond ASCII, an emoji outside the basic plane, a joiner
    // and a combining accent. Bytes, UTF-16 units and graphemes would all count otherwise.
    let before = document(PLAIN_TEXT, "aé👩\u{200d}💻e\u{301}z".as_bytes());
    let rows = [
        (r#"{"edits":[[8,0,"!"]]}"#, Ok("aé👩\u{200d}💻e\u{301}z!")),
        (r#"{"edits":[[2,3,""]]}"#, Ok("aée\u{301}z")),
        (r#"{"edits":[[2,1,"x"],[3,1,"y"]]}"#, Ok("aéxy💻e\u{301}z")),
        (r#"{"edits":[[6,1,""]]}"#, Ok("aé👩\u{200d}💻ez")),
        (r#"{"edits":[[8,1,""]]}"#, Err("EDIT_OUT_OF_RANGE")),
        (r#"{"edits":[[9,0,"x"]]}"#, Err("EDIT_OUT_OF_RANGE")),
        (r#"{"edits":[[0,9007199254740992,""]]}"#, Err("EDIT_OUT_OF_RANGE")),
        (r#"{"edits":[[0,8,""],[0,0,"new"]]}"#, Ok("new")),
        // Spellings of one number are one number.
        (r#"{"edits":[[8.0,0e0,"!"]]}"#, Ok("aé👩\u{200d}💻e\u{301}z!")),
    ];
    for (arguments, expected) in rows {
        let found = after(Some(&before), &action("document.splice", arguments));
        assert_eq!(found.as_deref().map_err(|reason| *reason), expected, "{arguments}");
    }
    let from_nothing = after(None, &action("document.splice", r#"{"edits":[[0,0,"x"]]}"#));
    assert_eq!(from_nothing.as_deref(), Ok("x"));
}

#[test]
fn each_action_creates_or_not() {
    let rows = [
        ("document.put", r#"{"content":"t"}"#, Ok("t")),
        ("document.put", r#"{"content_base64":"dA=="}"#, Ok("t")),
        ("document.append", r#"{"text":"t"}"#, Ok("t")),
        ("document.append", r#"{"line":"t"}"#, Ok("t\n")),
        ("document.merge_patch", r#"{"patch":{"a":1,"b":null}}"#, Ok(r#"{"a":1}"#)),
        ("document.json_patch", r#"{"patch":[{"op":"add","path":"/a","value":1}]}"#, Err(())),
        ("document.delete", "{}", Err(())),
    ];
    for (name, arguments, expected) in rows {
        let found = after(None, &action(name, arguments));
        let expected = expected.map(str::to_owned).map_err(|()| "DOCUMENT_MISSING");
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn patches_apply_to_json_text_only() {
    let json = document("application/json", br#"{"z":1,"a":[1,2]}"#);
    let patch = action(
        "document.json_patch",
        r#"{"patch":[{"op":"test","path":"/z","value":1},{"op":"add","path":"/a/-","value":3}]}"#,
    );
    assert_eq!(after(Some(&json), &patch).as_deref(), Ok(r#"{"z":1,"a":[1,2,3]}"#));
    let fails =
        r#"{"patch":[{"op":"add","path":"/b","value":1},{"op":"test","path":"/z","value":2}]}"#;
    let failing = action("document.json_patch", fails);
    assert_eq!(after(Some(&json), &failing), Err("PATCH_FAILED"));
    let merge = action("document.merge_patch", r#"{"patch":{"z":null}}"#);
    assert_eq!(after(Some(&json), &merge).as_deref(), Ok(r#"{"a":[1,2]}"#));
    for content in [&b"plain"[..], b"{\"a\":1,\"a\":2}", b"{\"a\":9007199254740993}"] {
        let other = document(PLAIN_TEXT, content);
        assert_eq!(after(Some(&other), &merge), Err("CONTENT_KIND"), "{content:?}");
    }
    let binary = document("application/octet-stream", b"text");
    for name in ["document.append", "document.splice", "document.merge_patch"] {
        let arguments = r#"{"text":"x","edits":[[0,0,"x"]],"patch":{}}"#;
        assert_eq!(after(Some(&binary), &action(name, arguments)), Err("CONTENT_KIND"));
    }
}

#[test]
fn a_document_has_a_largest_size() {
    let before = document(PLAIN_TEXT, "x".repeat(60).as_bytes());
    assert!(after(Some(&before), &action("document.append", r#"{"text":"1234"}"#)).is_ok());
    for (name, arguments) in [
        ("document.append", r#"{"text":"12345"}"#),
        ("document.splice", r#"{"edits":[[0,0,"12345"]]}"#),
    ] {
        let found = after(Some(&before), &action(name, arguments));
        assert_eq!(found, Err("DOCUMENT_TOO_LARGE"), "{name}");
    }
    let large = format!(r#"{{"content":"{}"}}"#, "x".repeat(65));
    assert_eq!(after(None, &action("document.put", &large)), Err("DOCUMENT_TOO_LARGE"));
}

#[test]
fn what_the_request_alone_shows_is_invalid() {
    let edits = format!(r#"{{"edits":[{}]}}"#, vec![r#"[0,0,""]"#; 1_001].join(","));
    for (name, arguments) in [
        ("document.put", "{}"),
        ("document.put", r#"{"content":"a","content_base64":"YQ=="}"#),
        ("document.put", r#"{"content_base64":"?"}"#),
        ("document.put", r#"{"content":"a","content_type":""}"#),
        ("document.put", "[]"),
        ("document.splice", "{}"),
        ("document.splice", r#"{"edits":[]}"#),
        ("document.splice", r#"{"edits":[[-1,0,""]]}"#),
        ("document.splice", r#"{"edits":[[1.5,0,""]]}"#),
        ("document.splice", r#"{"edits":[["0",0,""]]}"#),
        ("document.splice", &edits),
        ("document.append", r#"{"text":"a","line":"b"}"#),
        ("document.append", "{}"),
        ("document.append", r#"{"line":7}"#),
        ("document.json_patch", r#"{"patch":[{"op":"jump","path":""}]}"#),
        ("document.json_patch", r#"{"patch":[]}"#),
        ("document.merge_patch", "{}"),
        ("document.delete", "[]"),
        ("document.splice", r#"[[[0,0,"x"]]]"#),
        ("document.put", r#"["x",null,null]"#),
        ("document.append", r#"["x",null]"#),
    ] {
        assert!(!invalid(name, arguments).is_empty(), "{name} {arguments}");
    }
    assert!(
        !invalid("document.append", r#"{"line":"secret-7"}"#.replace(':', "").as_str())
            .contains("secret-7"),
        "a problem never quotes an argument"
    );
    assert!(parsed(&intent("document.move", JSON, "{}")).is_none());
    let plain = parsed(&intent("document.append", "text/plain", "x")).expect("known");
    assert_eq!(plain.expect_err("takes JSON only").field, "intent.content_type");
}

#[test]
fn other_content_types_are_the_content_of_a_put() {
    let raw = parsed(&intent("document.put", "text/markdown", "# t")).expect("known");
    let (document, change) =
        apply(&key(), None, &raw.expect("valid"), Some(0), 64, NOW).expect("applies");
    assert_eq!(document.content_type, "text/markdown");
    assert_eq!((change.base_revision, change.result_revision, change.size_after), (0, 1, 3));
    assert_eq!(change.hash_after, Sha256::digest(b"# t").to_vec());
    assert!(change.hash_before.is_empty());
}
