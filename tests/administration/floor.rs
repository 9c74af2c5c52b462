//! RaiseEvidenceFloor.

use prost_types::Timestamp;
use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{
        GetPolicyRequest, Origin, RaiseEvidenceFloorRequest, RaiseEvidenceFloorResponse, Standing,
    },
};
use tonic::{Code, Status};

use crate::{
    hosted::host,
    support::{
        client::{Caller, Refused},
        requests::{Identity, milliseconds_now},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(a_floor_is_raised_and_told, what_cannot_be_a_floor_changes_nothing);

async fn raise(
    caller: &Caller,
    request: RaiseEvidenceFloorRequest,
) -> Result<RaiseEvidenceFloorResponse, Status> {
    let mut client = caller.admin.clone();
    Ok(within("a raise", client.raise_evidence_floor(request)).await?.into_inner())
}

fn to(floor: Timestamp) -> RaiseEvidenceFloorRequest {
    RaiseEvidenceFloorRequest {
        floor: Some(floor),
        reason: "a disk was lost".to_owned(),
        ..RaiseEvidenceFloorRequest::default()
    }
}

async fn changes(caller: &Caller, account: &str) -> Vec<(String, Vec<String>)> {
    let request = GetPolicyRequest { account: account.to_owned() };
    let mut client = caller.admin.clone();
    let told = within("a policy", client.get_policy(request)).await.expect("told").into_inner();
    told.changes.into_iter().map(|change| (change.subject, change.texts)).collect()
}

async fn a_floor_is_raised_and_told(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let (used, lost) = (Identity::named("used"), Identity::named("lost"));
    b.submitted(used.append("d1", "x")).await;
    let floor = milliseconds_now();
    let trial =
        RaiseEvidenceFloorRequest { account: "b".to_owned(), validate_only: true, ..to(floor) };
    let tried = raise(&a, trial.clone()).await.expect("a good raise");
    assert!(tried.validated_only);
    assert!(changes(&a, "b").await.is_empty());
    let meant = RaiseEvidenceFloorRequest { validate_only: false, ..trial };
    let told = raise(&a, meant.clone()).await.expect("raised");
    assert_eq!((told.account.as_str(), told.validated_only), ("b", false));
    assert_eq!((told.floor_before, told.floor), (None, Some(floor)));
    assert!(told.meaning.contains("EVIDENCE_EXPIRED"), "{}", told.meaning);
    // Repeated, or with an earlier time, it stays.
    let earlier = Timestamp { seconds: floor.seconds - 60, ..floor };
    for again in [meant.clone(), RaiseEvidenceFloorRequest { floor: Some(earlier), ..meant }] {
        let told = raise(&a, again).await.expect("answered");
        assert_eq!((told.floor_before, told.floor), (Some(floor), Some(floor)));
    }
    let trail = changes(&b, "").await;
    let [(subject, texts)] = trail.as_slice() else { panic!("{trail:?}") };
    assert_eq!(subject, "tests-a of account a");
    assert!(texts[0].starts_with("evidence floor from none to 2"), "{texts:?}");
    assert_eq!(texts[1], "reason: a disk was lost");
    // The effect.
    let again = b.submitted(used.append("d1", "x")).await;
    assert_eq!(again.origin(), Origin::Replayed);
    let refused = b.refused(lost.append("d1", "x")).await;
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "EVIDENCE_EXPIRED")
    );
    assert_eq!(b.get(&lost).await.standing(), Standing::EvidenceExpired);
    assert_eq!(b.get(&used).await.standing(), Standing::Recorded);
    assert_eq!(a.get(&lost).await.standing(), Standing::NotAcceptedYet, "another account");
    hosted.stop().await;
}

async fn what_cannot_be_a_floor_changes_nothing(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let a = hosted.a();
    let now = milliseconds_now();
    let skew = Policy::default().max_clock_skew + Span::minutes(1);
    let far = Timestamp { seconds: now.seconds + skew.0 / 1_000_000, ..now };
    for (request, field) in [
        (to(far), "floor"),
        (RaiseEvidenceFloorRequest { floor: None, ..to(now) }, "floor"),
        (to(Timestamp { seconds: -1, nanos: 0 }), "floor"),
        (RaiseEvidenceFloorRequest { reason: String::new(), ..to(now) }, "reason"),
        (RaiseEvidenceFloorRequest { reason: "x".repeat(513), ..to(now) }, "reason"),
        (RaiseEvidenceFloorRequest { account: "x\ny".to_owned(), ..to(now) }, "account"),
    ] {
        let refused = Refused::of(&raise(&a, request).await.expect_err("refused"));
        assert_eq!((refused.code, refused.value("field")), (Code::InvalidArgument, field));
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
    }
    let reads = Caller::new(hosted.address, TOKEN_READS);
    let refused = Refused::of(&raise(&reads, to(now)).await.expect_err("refused"));
    assert_eq!((refused.code, refused.value("permission")), (Code::PermissionDenied, "admin"));
    assert!(changes(&a, "").await.is_empty());
    let untouched = Identity::named("untouched");
    assert_eq!(a.get(&untouched).await.standing(), Standing::NotAcceptedYet);
    hosted.stop().await;
}
