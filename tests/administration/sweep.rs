//! RunSweep.

use std::time::Duration;

use receiptd::{
    domain::policy::Policy,
    proto::{RunSweepRequest, RunSweepResponse, SweepCounts},
};
use tonic::{Code, Status};

use crate::{
    hosted::host_without_sweeps,
    support::{
        client::{Caller, Refused},
        requests::{Identity, into_inbox, until_acked},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(one_account_is_swept_and_the_others_are_not, everything_is_swept_at_once);

const INBOX: &str = "editor";

async fn sweep(caller: &Caller, request: RunSweepRequest) -> Result<RunSweepResponse, Status> {
    let mut client = caller.admin.clone();
    Ok(within("a pass", client.run_sweep(request)).await?.into_inner())
}

fn of(account: &str) -> RunSweepRequest {
    RunSweepRequest { account: account.to_owned(), all_accounts: false }
}

fn all() -> RunSweepRequest {
    RunSweepRequest { account: String::new(), all_accounts: true }
}

/// Two results, one of which holds its target, and a submit that waits for it.
async fn busy(caller: &Caller) {
    caller.submitted(into_inbox(Identity::fresh().append("d1", "x"), INBOX)).await;
    let holds = into_inbox(Identity::fresh().append("d2", "x"), INBOX);
    caller.submitted(until_acked(holds)).await;
    caller.submitted(into_inbox(Identity::fresh().append("d2", "y"), INBOX)).await;
}

async fn one_account_is_swept_and_the_others_are_not(store: TestStore) {
    let hosted = host_without_sweeps(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    for caller in [&a, &b] {
        busy(caller).await;
    }
    let nothing = sweep(&a, of("b")).await.expect("a pass");
    assert_eq!((nothing.account.as_str(), nothing.more), ("b", false));
    assert_eq!(nothing.counts, Some(SweepCounts::default()), "nothing is due");
    hosted.advance(Duration::from_secs(16 * 60));
    let swept = sweep(&a, of("b")).await.expect("a pass");
    let counts = swept.counts.expect("counts");
    assert_eq!((counts.expired, counts.returned, counts.dead), (2, 0, 0));
    assert_eq!((swept.more, swept.refused.len(), counts.batches_removed), (false, 0, 0));
    let theirs = b.inbox(INBOX).await;
    // The expiry let go of the target, and the one that waited went on.
    assert_eq!((theirs.expired_total, theirs.pending), (2, 1));
    assert_eq!(b.text("d2").await.0, "x\ny\n");
    let ours = a.inbox(INBOX).await;
    assert_eq!((ours.expired_total, ours.pending), (0, 2), "nobody swept these");
    let again = sweep(&a, of("b")).await.expect("a pass");
    assert_eq!(again.counts, Some(SweepCounts::default()));
    let own = sweep(&a, of("")).await.expect("a pass");
    assert_eq!((own.account.as_str(), own.counts.expect("counts").expired), ("a", 2));
    assert_eq!(a.inbox(INBOX).await.expired_total, 2);
    hosted.stop().await;
}

async fn everything_is_swept_at_once(store: TestStore) {
    let hosted = host_without_sweeps(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    for caller in [&a, &b] {
        busy(caller).await;
    }
    hosted.advance(Duration::from_secs(2 * 3_600));
    let reads = Caller::new(hosted.address, TOKEN_READS);
    let both = RunSweepRequest { account: "b".to_owned(), all_accounts: true };
    for (refused, code) in [
        (sweep(&reads, all()).await, Code::PermissionDenied),
        (sweep(&reads, of("")).await, Code::PermissionDenied),
        (sweep(&a, both).await, Code::InvalidArgument),
        (sweep(&a, of("x\ny")).await, Code::InvalidArgument),
    ] {
        let refused = Refused::of(&refused.expect_err("refused"));
        assert_eq!((refused.code, refused.value("outcome")), (code, "NO_EFFECT"));
    }
    assert_eq!(a.inbox(INBOX).await.expired_total, 0, "a refusal sweeps nothing");
    let swept = sweep(&a, all()).await.expect("a pass");
    let counts = swept.counts.expect("counts");
    // Two results each; the end of the second lets go of the target, so that nobody waits any more.
    assert_eq!(swept.account, "");
    assert_eq!((counts.expired, counts.start_deadlines, counts.accounts_closed), (4, 0, 2));
    assert!(counts.batches_removed > 0, "{counts:?}");
    for caller in [&a, &b] {
        assert_eq!(caller.inbox(INBOX).await.expired_total, 2);
    }
    hosted.stop().await;
}
