//! ErasePayloads: what was sent and given back goes, and what happened stays.

use prost::Message as _;
use receiptd::{
    domain::policy::Policy,
    proto::{
        ErasePayloadsRequest, ErasePayloadsResponse, OperationEventKind, Origin, RecoveryAction,
        ResultKind, Standing, SubmitOperationRequest, operation::State,
    },
};
use tonic::{Code, Status};

use crate::{
    hosted::host,
    support::{
        answers::{answered, found, found_receipt, receipt},
        client::{Caller, Refused},
        requests::{Identity, into_inbox, until_acked},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    payloads_go_and_what_happened_stays,
    what_is_not_over_keeps_its_payloads,
    whatever_is_wrong_erases_nothing,
    a_large_account_is_erased_in_pages,
);

const SECRET: &str = "the secret of the diary";

async fn erase(
    caller: &Caller,
    request: ErasePayloadsRequest,
) -> Result<ErasePayloadsResponse, Status> {
    let mut client = caller.admin.clone();
    Ok(within("an erasure", client.erase_payloads(request)).await?.into_inner())
}

fn all() -> ErasePayloadsRequest {
    ErasePayloadsRequest { reason: "asked for".to_owned(), ..ErasePayloadsRequest::default() }
}

fn of_target(target: &str) -> ErasePayloadsRequest {
    ErasePayloadsRequest { target: target.to_owned(), ..all() }
}

fn of_operation(id: &Identity) -> ErasePayloadsRequest {
    ErasePayloadsRequest { operation_id: id.id.clone(), ..all() }
}

/// Erased, erased before, unresolved, with open news, without a record.
fn counts(told: &ErasePayloadsResponse) -> [i64; 5] {
    [told.erased, told.erased_before, told.unresolved, told.news_open, told.no_record]
}

fn secret(id: &Identity, target: &str) -> SubmitOperationRequest {
    let mut request = into_inbox(id.put(target, SECRET), "editor");
    request.result = ResultKind::Content.into();
    request.labels = [("owner".to_owned(), SECRET.to_owned())].into();
    request
}

async fn payloads_go_and_what_happened_stays(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let a = hosted.a();
    let (diary, other) = (Identity::fresh(), Identity::fresh());
    let first = a.submitted(secret(&diary, "diary")).await;
    a.submitted(secret(&other, "notes")).await;
    a.ack("editor", &[1, 2]).await.expect("acked");
    let before = a.get(&diary).await;
    let usage_before = bytes(&a).await;

    let told = erase(&a, of_target("diary")).await.expect("erased");
    assert_eq!((counts(&told), told.next_page_token.as_str()), ([1, 0, 0, 0, 0], ""));
    assert_eq!(counts(&erase(&a, of_target("diary")).await.expect("again")), [0, 1, 0, 0, 0]);
    assert!(bytes(&a).await < usage_before, "the bytes are gone");

    let read = a.get(&diary).await;
    assert_eq!(read.standing(), Standing::Compacted);
    assert_eq!(found_receipt(&read), receipt(&first), "the receipt stays as it was");
    assert!(found(&read).labels.is_empty(), "labels go");
    let text = format!("{read:?}");
    assert!(!text.contains(SECRET), "{text}");
    assert_eq!(found_receipt(&before), found_receipt(&read), "digest, revisions and times too");
    assert_eq!(a.count_events(&diary, OperationEventKind::Erased).await, 1);
    assert_eq!(a.count_events(&diary, OperationEventKind::Applied).await, 1, "the trail stays");

    // The id is answered as before, and never executes again.
    let again = a.submitted(secret(&diary, "diary")).await;
    assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
    assert_eq!(receipt(&again).encode_to_vec(), receipt(&first).encode_to_vec());
    let mismatch = a.refused(into_inbox(diary.put("diary", "another"), "editor")).await;
    assert_eq!(mismatch.reason, "OPERATION_INTENT_MISMATCH");
    assert_eq!(a.text("diary").await, (SECRET.to_owned(), 1), "a document is the present state");
    // Nobody else's.
    assert_eq!(a.get(&other).await.standing(), Standing::Recorded);
    assert_eq!(found(&a.get(&other).await).labels.len(), 1);
    let told = erase(&a, of_operation(&other)).await.expect("erased");
    assert_eq!(counts(&told), [1, 0, 0, 0, 0]);
    assert_eq!(a.get(&other).await.standing(), Standing::Compacted);
    hosted.stop().await;
}

async fn bytes(caller: &Caller) -> i64 {
    let mut client = caller.admin.clone();
    let request = receiptd::proto::GetUsageRequest::default();
    within("figures", client.get_usage(request)).await.expect("figures").into_inner().payload_bytes
}

async fn what_is_not_over_keeps_its_payloads(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let a = hosted.a();
    let (holder, waits) = (Identity::fresh(), Identity::fresh());
    a.submitted(until_acked(secret(&holder, "diary"))).await;
    let waiting = a.submitted(secret(&waits, "diary")).await;
    assert_eq!(answered(&waiting).1, State::Accepted);
    let told = erase(&a, all()).await.expect("an answer");
    assert_eq!(counts(&told), [0, 0, 1, 1, 0]);
    for id in [&holder, &waits] {
        assert_eq!(a.get(id).await.standing(), Standing::Recorded);
        assert_eq!(found(&a.get(id).await).labels.len(), 1);
    }
    // The waiting one starts with what it was sent, and both can be erased once they are read.
    a.ack("editor", &[1]).await.expect("acked");
    a.ack("editor", &[2]).await.expect("acked");
    assert_eq!(a.text("diary").await, (SECRET.to_owned(), 2));
    assert_eq!(counts(&erase(&a, all()).await.expect("erased")), [2, 0, 0, 0, 0]);
    hosted.stop().await;
}

async fn whatever_is_wrong_erases_nothing(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let id = Identity::fresh();
    a.submitted(secret(&id, "diary")).await;
    a.ack("editor", &[1]).await.expect("acked");
    let without_reason = ErasePayloadsRequest { reason: " ".to_owned(), ..all() };
    let wrong_token = ErasePayloadsRequest { page_token: "no".to_owned(), ..all() };
    let wrong_id = ErasePayloadsRequest { operation_id: "\n".to_owned(), ..all() };
    let two = ErasePayloadsRequest { target: "other".to_owned(), ..of_operation(&id) };
    for (request, field) in [
        (without_reason, "reason"),
        (wrong_token, "page_token"),
        (wrong_id, "operation_id"),
        (two, "target"),
    ] {
        let refused = Refused::of(&erase(&a, request).await.expect_err("refused"));
        assert_eq!((refused.code, refused.value("field")), (Code::InvalidArgument, field));
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
    }
    let reader = Caller::new(hosted.address, TOKEN_READS);
    let refused = Refused::of(&erase(&reader, all()).await.expect_err("no operator"));
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::PermissionDenied, "PERMISSION_MISSING")
    );
    // Another account's id is one without a record.
    let told = erase(&b, of_operation(&id)).await.expect("an answer");
    assert_eq!(counts(&told), [0, 0, 0, 0, 1]);
    assert_eq!(counts(&erase(&b, all()).await.expect("an answer")), [0; 5]);
    let read = a.get(&id).await;
    assert_eq!(read.standing(), Standing::Recorded);
    assert_eq!(read.recovery.as_ref().map(|next| next.action()), Some(RecoveryAction::ShowResult));
    hosted.stop().await;
}

async fn a_large_account_is_erased_in_pages(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let a = hosted.a();
    for batch in 0..11 {
        let submits = (0..100).map(|_| {
            let id = Identity::fresh();
            into_inbox(id.put(&format!("d/{}", id.id), "x"), "editor")
        });
        a.submitted_together(submits.collect()).await;
        let numbers: Vec<i64> = (batch * 100 + 1..=batch * 100 + 100).collect();
        a.ack("editor", &numbers).await.expect("acked");
    }
    let first = erase(&a, all()).await.expect("a page");
    assert_eq!((counts(&first), first.next_page_token.is_empty()), ([1_000, 0, 0, 0, 0], false));
    let rest = ErasePayloadsRequest { page_token: first.next_page_token, ..all() };
    let rest = erase(&a, rest).await.expect("a page");
    assert_eq!((counts(&rest), rest.next_page_token.as_str()), ([100, 0, 0, 0, 0], ""));
    hosted.stop().await;
}
