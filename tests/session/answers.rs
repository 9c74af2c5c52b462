//! A session answers what the unary calls answer, field by field, errors too.

use std::collections::BTreeMap;

use receiptd::proto::{
    AckDeliveriesRequest, AckTarget, BatchSubmitOperationsRequest, CancelOperationRequest,
    ExtendDeliveriesRequest, PullDeliveriesRequest, SubmitError, SubmitOperationRequest,
    batch_submit_result::Result as Submitted, session_ack_result_item::Result as Acked,
    session_extend_result_item::Result as Extended,
};

use crate::{
    support::{
        client::{Caller, Refused},
        requests::{Identity, expecting, intent, into_inbox, until_acked, waiting},
        stores::{TestStore, on_both_stores},
    },
    wire::{Session, ack_of, extension_of},
};

on_both_stores! {
    submits_answer_alike,
    acks_answer_alike,
    extensions_answer_alike,
}

/// The same request of both ways, each on a target and an inbox of its own.
type Build = fn(way: &str) -> SubmitOperationRequest;

fn named(way: &str, id: &str) -> Identity {
    Identity::named(&format!("{way}-{id}"))
}

fn on(way: &str, id: &str) -> SubmitOperationRequest {
    into_inbox(named(way, id).append(&format!("{way}/{id}"), "x"), way)
}

fn submits() -> Vec<(&'static str, Build)> {
    vec![
        ("applied", |way| on(way, "applied")),
        ("replayed", |way| on(way, "applied")),
        ("rejected", |way| expecting(on(way, "rejected"), 7)),
        ("holds", |way| until_acked(on(way, "holder"))),
        ("waits for the lock", |way| {
            into_inbox(named(way, "waiter").append(&format!("{way}/holder"), "x"), way)
        }),
        ("attached, with a wait that ends", |way| {
            let request = named(way, "waiter").append(&format!("{way}/holder"), "x");
            SubmitOperationRequest {
                wait: Some(prost_types::Duration { seconds: 0, nanos: 1_000_000 }),
                ..into_inbox(request, way)
            }
        }),
        ("locked", |way| SubmitOperationRequest {
            on_locked: receiptd::proto::OnLocked::Fail.into(),
            ..into_inbox(named(way, "fails").append(&format!("{way}/holder"), "x"), way)
        }),
        ("only validated", |way| SubmitOperationRequest {
            validate_only: true,
            ..on(way, "tried")
        }),
        ("without an inbox", |way| SubmitOperationRequest {
            delivery: receiptd::proto::DeliveryMode::None.into(),
            inbox: String::new(),
            ..on(way, "silent")
        }),
        ("other intent", |way| {
            into_inbox(named(way, "applied").append(&format!("{way}/applied"), "other"), way)
        }),
        ("sealed", |way| on(way, "sealed")),
        ("no id", |_| SubmitOperationRequest::default()),
        ("no intent", |way| SubmitOperationRequest { intent: None, ..on(way, "empty") }),
        ("unknown action", |way| {
            let unknown = intent("document.burn", way, &serde_json::json!({}));
            named(way, "unknown").submit(unknown)
        }),
        ("a wait too long", |way| waiting(on(way, "long"), 61)),
        ("a bad inbox", |way| SubmitOperationRequest {
            inbox: "a/b".to_owned(),
            ..on(way, "inbox")
        }),
        ("from the future", |way| SubmitOperationRequest {
            mint_time: Some(prost_types::Timestamp { seconds: 32_503_680_000, nanos: 0 }),
            ..on(way, "future")
        }),
        ("from the past", |way| SubmitOperationRequest {
            mint_time: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
            ..on(way, "past")
        }),
    ]
}

async fn submits_answer_alike(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let mut session = Session::connect(&caller).await;
    // The mint time is part of the identity: one for all repeats of an id.
    let minted = crate::support::requests::milliseconds_now();
    let fixed = |mut request: SubmitOperationRequest| {
        if request.mint_time.is_some_and(|time| time.seconds > 1 && time.seconds < 1 << 33) {
            request.mint_time = Some(minted);
        }
        request
    };
    for way in ["wayone", "waytwo"] {
        let request = CancelOperationRequest {
            operation_id: named(way, "sealed").id,
            mint_time: Some(minted),
            seal: true,
            ..CancelOperationRequest::default()
        };
        caller.operations.clone().cancel_operation(request).await.expect("sealed");
    }
    for (what, build) in submits() {
        let unary = unary(&caller, fixed(build("wayone"))).await;
        session.submit(vec![(3, fixed(build("waytwo")))]).await;
        let answer = session.submit_results(1).await.remove(&3).expect("its tag");
        assert_eq!(plain(&unary), plain(&answer), "{what}");
    }
    // In one frame, in their order: each sees the revision that the one before left.
    let items = (1..=50).map(|tag| {
        let request = named("order", &tag.to_string()).append("order", &tag.to_string());
        (tag, request)
    });
    session.submit(items.collect()).await;
    let answers = session.submit_results(50).await;
    for (tag, answer) in answers {
        let Submitted::Response(response) = answer else { panic!("{tag}: {answer:?}") };
        let delivery = &response.deliveries[0];
        assert_eq!(delivery.sequence, tag, "numbered in the order of the frame");
    }
}

async fn unary(caller: &Caller, request: SubmitOperationRequest) -> Submitted {
    let mut client = caller.operations.clone();
    let batch = BatchSubmitOperationsRequest { requests: vec![request] };
    let answer = client.batch_submit_operations(batch).await.expect("answered").into_inner();
    let result = answer.results.into_iter().next().expect("one result");
    result.result.expect("an answer")
}

/// An answer without what differs between two submits by nature: times and the names of the ways.
fn plain(answer: &impl std::fmt::Debug) -> String {
    let text = format!("{answer:#?}").replace("wayone", "way").replace("waytwo", "way");
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let differs = line.contains("digest: [");
        if line.trim_end().ends_with("Timestamp {") || line.trim_end().ends_with("Duration {") {
            for line in lines.by_ref() {
                if line.trim() == "}," || line.trim() == "}" {
                    break;
                }
            }
            kept.push("a time");
        } else if differs {
            for line in lines.by_ref() {
                if line.trim() == "]," {
                    break;
                }
            }
            kept.push("a digest");
        } else if !line.contains("_time\": \"") && !line.contains("_time_ms\": \"") {
            kept.push(line);
        }
    }
    kept.join("\n")
}

async fn acks_answer_alike(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    for way in ["wayone", "waytwo"] {
        for number in 1..=3 {
            let request = named(way, &number.to_string()).append(&format!("{way}/{number}"), "x");
            caller.submitted(into_inbox(request, way)).await;
        }
    }
    let mut session = Session::connect(&caller).await;
    let target = |inbox: &str, sequence| AckTarget {
        inbox: inbox.to_owned(),
        sequence,
        ..AckTarget::default()
    };
    type Build = fn(way: &str) -> AckDeliveriesRequest;
    let rows: [(&str, Build); 8] = [
        ("one", |way| ack_of(way, &[1], "me")),
        ("again, another, and none", |way| ack_of(way, &[1, 2, 99, -1], "me")),
        ("neither a number nor an operation", |way| ack_of(way, &[3, 0], "me")),
        ("none at all", |way| ack_of(way, &[], "")),
        ("an inbox that is not there", |_| ack_of("nowhere", &[1], "")),
        ("a bad inbox", |_| ack_of("a/b", &[1], "")),
        ("a bad consumer", |way| ack_of(way, &[3], "a b")),
        ("too many", |way| AckDeliveriesRequest {
            deliveries: vec![
                AckTarget {
                    inbox: way.to_owned(),
                    sequence: 3,
                    ..AckTarget::default()
                };
                1_001
            ],
            consumer_id: String::new(),
        }),
    ];
    for (what, build) in rows {
        let mut client = caller.inboxes.clone();
        let unary = client.ack_deliveries(build("wayone")).await;
        session.ack(9, build("waytwo")).await;
        let answer = session.ack_results(1).await.remove(&9).expect("its tag");
        match (unary, answer) {
            (Ok(unary), Acked::Response(answer)) => {
                assert_eq!(plain(&unary.into_inner()), plain(&answer), "{what}");
            }
            (Err(status), Acked::Error(error)) => assert_alike(&status, &error, what),
            (unary, answer) => panic!("{what}: {unary:?} and {answer:?}"),
        }
    }
    let both = AckDeliveriesRequest {
        deliveries: vec![target("wayone", 3), target("waytwo", 3)],
        consumer_id: String::new(),
    };
    session.ack(1, both).await;
    session.ack_results(1).await;
    for way in ["wayone", "waytwo"] {
        assert_eq!(caller.inbox(way).await.acked_total, 3, "{way}");
    }
}

async fn extensions_answer_alike(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    for way in ["wayone", "waytwo"] {
        for number in 1..=3 {
            let request = named(way, &number.to_string()).append(&format!("{way}/{number}"), "x");
            caller.submitted(into_inbox(request, way)).await;
        }
        let (inbox, consumer_id) = (way.to_owned(), "me".to_owned());
        let pull =
            PullDeliveriesRequest { inbox, consumer_id, max_deliveries: 2, ..Default::default() };
        caller.inboxes.clone().pull_deliveries(pull).await.expect("pulled");
        caller.ack(way, &[2]).await.expect("acked");
    }
    let mut session = Session::connect(&caller).await;
    type Build = fn(way: &str) -> ExtendDeliveriesRequest;
    let rows: [(&str, Build); 8] = [
        ("every outcome", |way| {
            extension_of(way, &[(1, 1), (1, 2), (2, 1), (3, 0), (99, 1), (-1, 1)], "me")
        }),
        ("another's", |way| extension_of(way, &[(1, 1)], "other")),
        ("none at all", |way| extension_of(way, &[], "")),
        ("an inbox that is not there", |_| extension_of("nowhere", &[(1, 1)], "")),
        ("a bad inbox", |_| extension_of("a/b", &[(1, 1)], "")),
        ("a bad consumer", |way| extension_of(way, &[(1, 1)], "a b")),
        ("too many", |way| extension_of(way, &[(1, 1); 1_001], "")),
        ("no time at all", |way| ExtendDeliveriesRequest {
            extension: Some(prost_types::Duration { seconds: 0, nanos: 0 }),
            ..extension_of(way, &[(1, 1)], "")
        }),
    ];
    for (what, build) in rows {
        let unary = caller.inboxes.clone().extend_deliveries(build("wayone")).await;
        session.extend(9, build("waytwo")).await;
        let answer = session.extend_results(1).await.remove(&9).expect("its tag");
        match (unary, answer) {
            (Ok(unary), Extended::Response(answer)) => {
                assert_eq!(plain(&unary.into_inner()), plain(&answer), "{what}");
            }
            (Err(status), Extended::Error(error)) => assert_alike(&status, &error, what),
            (unary, answer) => panic!("{what}: {unary:?} and {answer:?}"),
        }
    }
}

/// A call's failure and the answer to a frame say the same.
fn assert_alike(status: &tonic::Status, error: &SubmitError, what: &str) {
    let refused = Refused::of(status);
    assert_eq!(refused.code as i32, error.code, "{what}");
    assert_eq!(refused.reason, error.reason, "{what}");
    assert_eq!(refused.message, error.message, "{what}");
    let metadata: BTreeMap<_, _> = refused.metadata.into_iter().collect();
    assert_eq!(metadata, error.metadata, "{what}");
}
