//! Same meaning, other spelling: F27.

use receiptd::proto::{ComputeIntentDigestRequest, Intent, Origin, operation::State};

use crate::support::{
    answers::{answered, receipt},
    client::Caller,
    requests::{Identity, raw_intent},
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(f27_same_meaning_other_spelling);

/// Members that the action does not know are bound by the digest like all others.
fn append(arguments: &str) -> Intent {
    raw_intent("document.append", "d1", arguments)
}

async fn digest(caller: &Caller, intent: Intent) -> Vec<u8> {
    let mut client = caller.operations.clone();
    let request = ComputeIntentDigestRequest { intent: Some(intent) };
    let answer = within("a digest", client.compute_intent_digest(request)).await;
    answer.expect("a digest without a submit").into_inner().intent_digest
}

async fn f27_same_meaning_other_spelling(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let id = Identity::named("op-spelling");
    let original = append(r#"{"line":"é","n":10,"o":{"a":1,"b":null},"list":[1,2]}"#);
    let first = caller.submitted(id.submit(original.clone())).await;
    assert_eq!(answered(&first), (Origin::Executed, State::Applied));
    assert_eq!(digest(&caller, original).await, receipt(&first).intent_digest);

    let same = [
        r#"{"list":[1,2],"o":{"b":null,"a":1},"n":10,"line":"é"}"#,
        " {\n \"line\" : \"é\", \"n\":10, \"o\":{\"a\":1 , \"b\":null}, \"list\": [ 1, 2 ] }\t",
        r#"{"line":"\u00e9","n":10,"o":{"a":1,"b":null},"list":[1,2]}"#,
        r#"{"line":"é","n":1e1,"o":{"a":1.0,"b":null},"list":[1,2]}"#,
    ];
    for arguments in same {
        let replay = caller.submitted(id.submit(append(arguments))).await;
        assert_eq!(answered(&replay), (Origin::Replayed, State::Applied), "{arguments}");
        assert_eq!(receipt(&replay), receipt(&first));
        assert_eq!(digest(&caller, append(arguments)).await, receipt(&first).intent_digest);
    }
    let other = [
        r#"{"line":"é","n":10,"o":{"a":1},"list":[1,2]}"#,
        r#"{"line":"é","n":10,"o":{"a":1,"b":null},"list":[2,1]}"#,
        r#"{"line":"é","n":"10","o":{"a":1,"b":null},"list":[1,2]}"#,
        "{\"line\":\"e\u{301}\",\"n\":10,\"o\":{\"a\":1,\"b\":null},\"list\":[1,2]}",
    ];
    for arguments in other {
        let refused = caller.refused(id.submit(append(arguments))).await;
        assert_eq!(refused.reason, "OPERATION_INTENT_MISMATCH", "{arguments}");
        assert_eq!(refused.value("differs"), "arguments");
        assert_ne!(digest(&caller, append(arguments)).await, receipt(&first).intent_digest);
    }
    let blurred = [
        r#"{"line":"x","n":1,"n":2}"#,
        r#"{"line":"x","n":9007199254740993}"#,
        r#"{"line":"x","n":"\ud800"}"#,
    ];
    for arguments in blurred {
        let refused = caller.refused(Identity::fresh().submit(append(arguments))).await;
        assert_eq!(refused.reason, "INVALID_FIELD", "{arguments}");
    }
    assert_eq!(caller.text("d1").await, ("é\n".to_owned(), 1));
}
