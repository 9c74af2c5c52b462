//! Policies of accounts over a real socket, on both stores: what changes for whom, what is refused,
//! and what clients and operators are told.

#[path = "support/hosted.rs"]
mod hosted;
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use hosted::host;
use prost_types::FieldMask;
use receiptd::{
    domain::{ids::Span, policy::Policy as Defaults},
    proto::{
        GetPolicyRequest, GetPolicyResponse, ListLocksRequest, LockMode, OperationEventKind,
        Policy, ReleaseLockRequest, UpdatePolicyRequest, UpdatePolicyResponse,
        stream_deliveries_response::Frame,
    },
};
use support::{
    BOUND,
    client::{Caller, Refused, sequences},
    eventually,
    requests::{Identity, into_inbox, seconds},
    server::{TOKEN_READS, TOKEN_RECEIVES},
    stores::{TestStore, on_both_stores},
    within,
};
use tonic::{Code, Status};

on_both_stores!(
    one_account_has_a_window_of_seconds_and_the_other_keeps_the_default,
    contradictions_and_trials_change_nothing,
    an_open_stream_follows_at_its_next_look,
    what_is_own_stays_where_the_defaults_change,
    only_an_admin_sees_and_changes_a_policy,
    an_admin_names_another_account,
);

const INBOX: &str = "editor";

fn mask(paths: &[&str]) -> Option<FieldMask> {
    Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
}

/// A window of seconds, with a deadline that fits.
fn short() -> UpdatePolicyRequest {
    UpdatePolicyRequest {
        policy: Some(Policy {
            ack_window: Some(seconds(5)),
            ack_deadline: Some(seconds(2)),
            ..Policy::default()
        }),
        update_mask: mask(&["ack_window", "ack_deadline"]),
        reason: "tests".to_owned(),
        ..UpdatePolicyRequest::default()
    }
}

async fn update(
    caller: &Caller,
    request: UpdatePolicyRequest,
) -> Result<UpdatePolicyResponse, Status> {
    let mut client = caller.admin.clone();
    Ok(within("a change", client.update_policy(request)).await?.into_inner())
}

async fn get(caller: &Caller, account: &str) -> Result<GetPolicyResponse, Status> {
    let mut client = caller.admin.clone();
    let request = GetPolicyRequest { account: account.to_owned() };
    Ok(within("a policy", client.get_policy(request)).await?.into_inner())
}

fn window(policy: Option<&Policy>) -> i64 {
    policy.and_then(|policy| policy.ack_window.as_ref()).expect("a window").seconds
}

/// The policy that a reader of the account is told.
async fn opened(caller: &Caller) -> Policy {
    let mut reader = caller.reader(INBOX, "installation", "").await;
    let Frame::Opened(opened) = reader.frame().await.expect("a frame") else {
        panic!("the first frame is another one");
    };
    opened.policy.expect("a policy")
}

async fn one_account_has_a_window_of_seconds_and_the_other_keeps_the_default(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let answer = update(&a, short()).await.expect("changed");
    assert_eq!((answer.account.as_str(), answer.validated_only), ("a", false));
    assert_eq!(window(answer.policy.as_ref()), 5);
    assert_eq!(answer.own_mask, mask(&["ack_window", "ack_deadline"]));
    for caller in [&a, &b] {
        caller.submitted(into_inbox(Identity::fresh().append("d1", "x"), INBOX)).await;
    }
    hosted.advance(Duration::from_secs(6));
    eventually("the end of the window of a", BOUND, async || {
        Some(a.inbox(INBOX).await).filter(|inbox| inbox.expired_total == 1)
    })
    .await;
    let theirs = b.inbox(INBOX).await;
    assert_eq!((theirs.pending, theirs.expired_total), (1, 0), "b keeps its result");
    // What clients read (R44), also those that may only receive.
    assert_eq!(window(Some(&opened(&a).await)), 5);
    let receives = Caller::new(hosted.address, TOKEN_RECEIVES);
    assert_eq!(window(Some(&opened(&receives).await)), 5);
    assert_eq!(window(Some(&opened(&b).await)), 900);
    // What operators read.
    let shown = get(&a, "a").await.expect("a policy");
    assert_eq!((window(shown.policy.as_ref()), window(shown.defaults.as_ref())), (5, 900));
    assert_eq!(shown.own_mask, mask(&["ack_window", "ack_deadline"]));
    assert_eq!(shown.contradiction, "");
    let [change] = shown.changes.as_slice() else { panic!("{:?}", shown.changes) };
    assert_eq!((change.number, change.subject.as_str()), (1, "tests-a"));
    assert_eq!(change.chain_hash.len(), 32);
    assert_eq!(
        change.texts,
        [
            "ack_window from the default (15m) to 5s",
            "ack_deadline from the default (30s) to 2s",
            "reason: tests"
        ]
    );
    let others = get(&b, "").await.expect("a policy");
    assert_eq!((others.own_mask, others.changes.len()), (mask(&[]), 0));
    hosted.stop().await;
}

async fn contradictions_and_trials_change_nothing(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let a = hosted.a();
    let alone = UpdatePolicyRequest { update_mask: mask(&["ack_window"]), ..short() };
    let refused = Refused::of(&update(&a, alone).await.expect_err("refused"));
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "POLICY_CONTRADICTION")
    );
    assert_eq!(refused.value("settings"), "ack_deadline,ack_window");
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    assert_eq!(refused.value("recovery"), "FIX_REQUEST");
    assert_eq!(
        refused.message,
        "the policy contradicts itself: ack_deadline must not be longer than ack_window: no \
         attempt lasts beyond that"
    );
    for (request, field) in [
        (UpdatePolicyRequest { update_mask: None, ..short() }, "update_mask"),
        (UpdatePolicyRequest { update_mask: mask(&["lanes"]), ..short() }, "update_mask"),
        (UpdatePolicyRequest { reset_mask: mask(&["ack_window"]), ..short() }, "reset_mask"),
        (
            UpdatePolicyRequest { update_mask: mask(&["lock_limit"]), ..short() },
            "policy.lock_limit",
        ),
        (
            UpdatePolicyRequest { update_mask: mask(&["inbox_slots"]), ..short() },
            "policy.inbox_slots",
        ),
        (UpdatePolicyRequest { reason: "x".repeat(513), ..short() }, "reason"),
    ] {
        let refused = Refused::of(&update(&a, request).await.expect_err("refused"));
        assert_eq!((refused.code, refused.value("field")), (Code::InvalidArgument, field));
    }
    let trial = UpdatePolicyRequest { validate_only: true, ..short() };
    let tried = update(&a, trial).await.expect("a good change");
    assert!(tried.validated_only && window(tried.policy.as_ref()) == 5, "{tried:?}");
    let shown = get(&a, "").await.expect("a policy");
    assert_eq!((window(shown.policy.as_ref()), shown.changes.len()), (900, 0));
    // Repeated, it is one change; taken back, all is as before.
    for _ in 0..2 {
        update(&a, short()).await.expect("changed");
    }
    let back = UpdatePolicyRequest {
        reset_mask: mask(&["ack_window", "ack_deadline"]),
        ..UpdatePolicyRequest::default()
    };
    let after = update(&a, back).await.expect("changed");
    assert_eq!((window(after.policy.as_ref()), after.own_mask), (900, mask(&[])));
    let changes = get(&a, "").await.expect("a policy").changes;
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[1].texts[0], "ack_window from 5s to the default (15m)");
    hosted.stop().await;
}

async fn an_open_stream_follows_at_its_next_look(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let a = hosted.a();
    let mut reader = a.reader(INBOX, "installation", "").await;
    assert!(reader.backlog().await.is_empty());
    let limit = |limit| UpdatePolicyRequest {
        policy: Some(Policy { in_flight_limit: limit, ..Policy::default() }),
        update_mask: mask(&["in_flight_limit"]),
        ..UpdatePolicyRequest::default()
    };
    update(&a, limit(1)).await.expect("changed");
    for _ in 0..3 {
        a.submitted(into_inbox(Identity::fresh().append("d1", "x"), INBOX)).await;
    }
    assert_eq!(sequences(&reader.results(1).await), [1]);
    let inbox = a.inbox(INBOX).await;
    assert_eq!((inbox.in_flight, inbox.pending, inbox.in_flight_limit), (1, 2, 1));
    update(&a, limit(10)).await.expect("changed");
    assert_eq!(sequences(&reader.results(2).await), [2, 3], "without a new stream");
    assert_eq!(a.inbox(INBOX).await.in_flight_limit, 10);
    hosted.stop().await;
}

/// The server's defaults may change under an account's own settings: it is told, and the next
/// change has to settle it.
async fn what_is_own_stays_where_the_defaults_change(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let a = hosted.a();
    let long = UpdatePolicyRequest {
        policy: Some(Policy { ack_window: Some(seconds(20 * 86_400)), ..Policy::default() }),
        update_mask: mask(&["ack_window"]),
        ..UpdatePolicyRequest::default()
    };
    update(&a, long).await.expect("changed");
    let store = hosted.stop_and_keep().await;
    let idle = Defaults { inbox_idle_retention: Span::days(10), ..Defaults::default() };
    let hosted = host(store, idle).await;
    let a = hosted.a();
    let shown = get(&a, "").await.expect("a policy");
    assert_eq!(window(shown.policy.as_ref()), 20 * 86_400, "its own stays");
    assert!(
        shown.contradiction.starts_with("inbox_idle_retention must be longer than ack_window"),
        "{}",
        shown.contradiction
    );
    a.submitted(into_inbox(Identity::fresh().append("d1", "x"), INBOX)).await;
    let lock = UpdatePolicyRequest {
        policy: Some(Policy { lock_limit: Some(seconds(9)), ..Policy::default() }),
        update_mask: mask(&["lock_limit"]),
        ..UpdatePolicyRequest::default()
    };
    let refused = Refused::of(&update(&a, lock.clone()).await.expect_err("refused"));
    assert_eq!(refused.reason, "POLICY_CONTRADICTION");
    let settled = UpdatePolicyRequest { reset_mask: mask(&["ack_window"]), ..lock };
    update(&a, settled).await.expect("good as a whole");
    assert_eq!(get(&a, "").await.expect("a policy").contradiction, "");
    hosted.stop().await;
}

async fn only_an_admin_sees_and_changes_a_policy(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let reads = Caller::new(hosted.address, TOKEN_READS);
    let other = UpdatePolicyRequest { account: "b".to_owned(), ..short() };
    update(&hosted.a(), short()).await.expect("changed");
    let own = get(&reads, "").await.expect("the policy of its own account");
    assert_eq!((window(own.policy.as_ref()), own.changes.len()), (5, 0), "without the changes");
    assert_eq!(get(&reads, "a").await.expect("named"), own);
    for refused in [
        update(&reads, short()).await.map(drop),
        // Whether or not the account exists.
        get(&reads, "b").await.map(drop),
        get(&reads, "nobody").await.map(drop),
        update(&reads, other).await.map(drop),
    ] {
        let refused = Refused::of(&refused.expect_err("refused"));
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::PermissionDenied, "PERMISSION_MISSING")
        );
    }
    for (account, length, changes) in [("a", 5, 1), ("b", 900, 0)] {
        let shown = get(&hosted.a(), account).await.expect("a policy");
        assert_eq!((window(shown.policy.as_ref()), shown.changes.len()), (length, changes));
    }
    hosted.stop().await;
}

/// Contract section 2: AdminService may name an account; its trail says whose operator it was.
async fn an_admin_names_another_account(store: TestStore) {
    let hosted = host(store, Defaults::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let other = UpdatePolicyRequest { account: "b".to_owned(), ..short() };
    let answer = update(&a, other).await.expect("changed");
    assert_eq!((answer.account.as_str(), window(answer.policy.as_ref())), ("b", 5));
    let told = get(&b, "").await.expect("a policy");
    assert_eq!(told, get(&a, "b").await.expect("the same"), "whoever asks");
    assert_eq!((window(told.policy.as_ref()), told.changes.len()), (5, 1));
    assert_eq!(told.changes[0].subject, "tests-a of account a");
    assert_eq!(window(get(&a, "").await.expect("a policy").policy.as_ref()), 900);
    let wrong = Refused::of(&get(&a, "x\ny").await.expect_err("no name"));
    assert_eq!((wrong.code, wrong.value("field")), (Code::InvalidArgument, "account"));
    // Its locks, too.
    let held = Identity::fresh();
    let mut submit = into_inbox(held.append("d1", "x"), INBOX);
    if let Some(intent) = submit.intent.as_mut() {
        intent.lock_mode = LockMode::UntilAcked.into();
    }
    b.submitted(submit).await;
    let mut admin = a.admin.clone();
    let list = |account: &str| ListLocksRequest {
        account: account.to_owned(),
        ..ListLocksRequest::default()
    };
    let locks = within("locks", admin.list_locks(list("b"))).await.expect("locks").into_inner();
    assert_eq!(locks.locks.len(), 1);
    assert_eq!(locks.locks[0].operation_id, held.id);
    let own = within("locks", admin.list_locks(list(""))).await.expect("locks").into_inner();
    assert!(own.locks.is_empty());
    let release = ReleaseLockRequest {
        target: "d1".to_owned(),
        operation_id: held.id.clone(),
        reason: "tests".to_owned(),
        account: "b".to_owned(),
    };
    within("a release", admin.release_lock(release)).await.expect("released");
    let events = b.events(&held).await;
    let released = events.iter().find(|event| event.kind() == OperationEventKind::LockReleased);
    let released = released.expect("an event");
    assert_eq!(released.subject, "tests-a of account a");
    assert!(released.text.contains("tests"), "{released:?}");
    hosted.stop().await;
}
