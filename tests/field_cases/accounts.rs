//! Accounts and callers: F31, F32.

use std::collections::BTreeMap;

use receiptd::proto::{Origin, operation::State};
use tonic::Code;

use crate::support::{
    answers::{answered, found_receipt, operation, receipt, state_of},
    background,
    client::{Caller, Refused},
    proxy::Proxy,
    requests::{Identity, into_inbox},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
};

on_both_stores!(
    f31_two_accounts_choose_the_same_id,
    f32_two_conversations_of_one_account_never_cross,
    callers_without_credentials_learn_nothing,
);

async fn f31_two_accounts_choose_the_same_id(store: TestStore) {
    let server = store.serve(&[]);
    let (a, b) = (server.a(), server.b());
    let one = Identity::named("op-1");
    let first = a.submitted(one.append("d1", "a's")).await;
    assert_eq!(state_of(&b.get(&one).await), None);
    let same = b.submitted(one.append("d1", "a's")).await;
    assert_eq!(answered(&same), (Origin::Executed, State::Applied), "B's own");
    let other = b.refused(one.append("d1", "other")).await;
    assert_eq!(other.reason, "OPERATION_INTENT_MISMATCH", "with B's own record");

    for number in 2..=9 {
        let id = Identity::named(&format!("op-{number}"));
        b.submitted(id.append("d2", "b's")).await;
        let own = a.submitted(id.append("d2", &format!("a's {number}"))).await;
        assert_eq!(answered(&own), (Origin::Executed, State::Applied), "no conflict");
    }
    assert_eq!(found_receipt(&a.get(&one).await), receipt(&first));
    assert_eq!(a.text("d1").await, ("a's\n".to_owned(), 1));
    assert_eq!(a.text("d2").await.1, 8);
    assert_eq!(b.text("d1").await, ("a's\n".to_owned(), 1));
    assert_eq!(b.inbox("default").await.last_sequence, 9, "and only B's results in B's inbox");
}

async fn f32_two_conversations_of_one_account_never_cross(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let shared = Caller::new(proxy.address(), TOKEN_A);
    let mut conversations = Vec::new();
    for name in ["first", "second"] {
        let caller = shared.clone();
        conversations.push(background(async move {
            let mut digests = BTreeMap::new();
            for number in 1..=200 {
                let id = Identity::named(&format!("{name}-{number}"));
                let request = into_inbox(id.append(name, &number.to_string()), name);
                let answer = caller.submitted(request).await;
                assert_eq!(operation(&answer).operation_id, id.id, "the answer to this very ask");
                assert_eq!(receipt(&answer).target, name);
                digests.insert(id.id, receipt(&answer).intent_digest.clone());
            }
            (name, digests)
        }));
    }
    for conversation in conversations {
        let (name, digests) = conversation.await.expect("no panic");
        let mut reader = server.a().reader(name, name, "").await;
        let mut delivered = BTreeMap::new();
        while delivered.len() < 200 {
            for result in reader.next_results().await {
                let sequence = result.delivery.expect("a delivery").sequence;
                let operation = result.operation.expect("an operation");
                let receipt = operation.receipt.expect("a receipt");
                assert_eq!(receipt.target, name, "no result of the other conversation");
                delivered.insert(operation.operation_id, receipt.intent_digest);
                server.a().ack(name, &[sequence]).await.expect("acked");
            }
        }
        assert_eq!(delivered, digests);
    }
}

async fn callers_without_credentials_learn_nothing(store: TestStore) {
    let server = store.serve(&[]);
    let id = Identity::named("op-1");
    server.a().submitted(id.append("d1", "x")).await;
    let strangers = [
        (Caller::anonymous(server.address()), "CREDENTIALS_MISSING"),
        (Caller::new(server.address(), "not-a-token"), "CREDENTIALS_INVALID"),
    ];
    for (stranger, reason) in strangers {
        let refused = stranger.refused(id.append("d1", "x")).await;
        assert_eq!((refused.code, refused.reason.as_str()), (Code::Unauthenticated, reason));
        let status = stranger.operations.clone().get_operation(id.look_up()).await;
        let refused = Refused::of(&status.expect_err("refused"));
        assert_eq!(refused.reason, reason);
    }
    assert_eq!(server.a().text("d1").await, ("x\n".to_owned(), 1));
}
