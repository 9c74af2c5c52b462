//! VerifyInvariants over a real socket: the same check, in parts, for the caller's account alone.

use std::collections::BTreeSet;

use receiptd::proto::{VerifyInvariantsRequest, VerifyInvariantsResponse, contradiction::Kind};
use tonic::{Code, Status};

use crate::{
    history,
    places::{close, engine, run},
    support::{
        client::{Caller, Refused},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(an_account_is_checked_in_parts_by_operators_alone);

async fn verify(
    caller: &Caller,
    account: &str,
    page_token: &str,
) -> Result<VerifyInvariantsResponse, Status> {
    let mut admin = caller.admin.clone();
    let (account, page_token) = (account.to_owned(), page_token.to_owned());
    let request = VerifyInvariantsRequest { account, page_token };
    Ok(within("a check", admin.verify_invariants(request)).await?.into_inner())
}

/// Every part of a check.
async fn all(caller: &Caller) -> Vec<VerifyInvariantsResponse> {
    let mut parts: Vec<VerifyInvariantsResponse> = Vec::new();
    loop {
        let token = parts.last().map_or("", |part| &part.next_page_token);
        let part = verify(caller, "", token).await.expect("a check");
        let ended = part.next_page_token.is_empty();
        parts.push(part);
        if ended {
            return parts;
        }
    }
}

async fn an_account_is_checked_in_parts_by_operators_alone(store: TestStore) {
    let (running, seams) = engine(&store).await;
    history::make(&running, &seams, 1_200).await;
    close(running).await;
    run(
        &store,
        "UPDATE receiptd.inboxes SET returned = returned + 1 WHERE inbox = 'i2';
         UPDATE receiptd.documents SET revision = revision + 2 WHERE target = 'notes/4'",
    )
    .await;
    // Nothing is swept meanwhile: what the history left due stays as it is.
    let server = store.serve(&["--sweep-interval=1h"]);
    let (a, b) = (server.a(), server.b());
    let parts = all(&a).await;
    assert!(parts.len() > 1, "some thousand rows are more than one call looks at");
    let looked_at: i64 =
        parts.iter().filter_map(|part| part.looked_at).map(|it| it.operations).sum();
    assert!(looked_at >= 1_200, "{looked_at}");
    let told: Vec<_> = parts.iter().flat_map(|part| &part.contradictions).collect();
    let kinds: BTreeSet<Kind> = told.iter().map(|told| told.kind()).collect();
    assert_eq!(kinds, BTreeSet::from([Kind::InboxCounter, Kind::EffectWithoutReceipt]), "{told:?}");
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[0].inbox.as_str(), told[1].target.as_str()), ("i2", "notes/4"));
    assert!(told.iter().all(|told| !told.next_step.is_empty() && told.expected != told.found));

    let other = all(&b).await;
    assert!(other.iter().all(|part| part.contradictions.is_empty()), "{other:?}");
    let token = &parts[0].next_page_token;
    let refused = Refused::of(&verify(&b, "", token).await.expect_err("a token of account a"));
    assert_eq!((refused.code, refused.reason.as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
    let named = verify(&a, "b", "").await.expect("an operator names any account");
    assert_eq!(named, verify(&b, "", "").await.expect("its own"));
    let reader = Caller::new(server.address(), TOKEN_READS);
    for account in ["", "a", "b"] {
        let refused = verify(&reader, account, "").await.expect_err("no operator");
        let refused = Refused::of(&refused);
        assert_eq!(refused.code, Code::PermissionDenied);
        assert_eq!(refused.reason, "PERMISSION_MISSING");
    }
}
