//! GetUsage: what was done is counted in the store and in the answers of a replica (R59).

use std::time::Duration;

use receiptd::{
    domain::policy::Policy,
    proto::{GetUsageRequest, GetUsageResponse, OperationUsage, ReplicaTotals, operation::State},
};
use tonic::{Code, Status};

use crate::{
    hosted::{Hosted, host_without_sweeps},
    support::{
        BOUND,
        answers::answered,
        client::{Caller, Refused},
        eventually,
        requests::{Identity, into_inbox, until_acked},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(effects_are_counted_and_not_answers, only_operators_see_figures);

const INBOX: &str = "editor";

async fn usage(caller: &Caller, account: &str) -> Result<GetUsageResponse, Status> {
    let mut client = caller.admin.clone();
    let request = GetUsageRequest { account: account.to_owned() };
    Ok(within("figures", client.get_usage(request)).await?.into_inner())
}

fn of(usage: &GetUsageResponse, state: State) -> OperationUsage {
    usage.operations.iter().find(|of| of.state() == state).copied().unwrap_or_default()
}

async fn effects_are_counted_and_not_answers(store: TestStore) {
    let hosted = host_without_sweeps(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let nothing = usage(&a, "").await.expect("figures");
    assert_eq!((nothing.effects, nothing.operations.len(), nothing.inboxes), (0, 0, 0));
    assert_eq!((nothing.oldest_unacked, nothing.oldest_overdue), (None, None));

    let first = Identity::fresh();
    a.submitted(into_inbox(first.put("d1", "four"), INBOX)).await;
    // The same again, three times: no effect, and no other record.
    for _ in 0..3 {
        a.submitted(into_inbox(first.put("d1", "four"), INBOX)).await;
    }
    let mismatch = a.refused(into_inbox(first.put("d1", "five"), INBOX)).await;
    assert_eq!(mismatch.reason, "OPERATION_INTENT_MISMATCH");
    hosted.advance(Duration::from_secs(5));
    let holder = Identity::fresh();
    a.submitted(until_acked(into_inbox(holder.append("d2", "x"), INBOX))).await;
    let waits = Identity::fresh();
    let waiting = a.submitted(into_inbox(waits.append("d2", "y"), INBOX)).await;
    assert_eq!(answered(&waiting).1, State::Accepted);
    let attached = a.submitted(into_inbox(waits.append("d2", "y"), INBOX)).await;
    assert_eq!(answered(&attached).1, State::Accepted);
    let mut stale = into_inbox(Identity::fresh().append("d1", "z"), INBOX);
    if let Some(intent) = stale.intent.as_mut() {
        intent.expected_revision = Some(9);
    }
    a.submitted(stale).await;
    b.submitted(Identity::fresh().append("d1", "another account")).await;

    let told = eventually("the replays to be folded into their rows", BOUND, async || {
        let told = usage(&a, "").await.expect("figures");
        (told.duplicates_prevented == 4).then_some(told)
    })
    .await;
    assert_eq!((told.account.as_str(), told.effects, told.at_least), ("a", 2, false));
    let states = [State::Accepted, State::Applied, State::Rejected].map(|state| of(&told, state));
    assert_eq!(
        states.map(|of| (of.count, of.compacted, of.replays)),
        [(1, 0, 1), (2, 0, 3), (1, 0, 0)]
    );
    assert_eq!((told.documents, told.document_bytes, told.payload_bytes), (2, 4 + 2, 0));
    assert_eq!((told.inboxes, told.pending, told.in_flight, told.reserved), (1, 3, 0, 1));
    assert_eq!(told.unresolved, 1);
    let seconds = |time: Option<prost_types::Timestamp>| time.expect("a time").seconds;
    assert_eq!(seconds(told.time) - seconds(told.oldest_unacked), 5, "the first one's news");
    assert_eq!(seconds(told.time) - seconds(told.oldest_unresolved), 0);
    assert_eq!(told.oldest_overdue, None);
    // The replica counts what all accounts did.
    assert_eq!(
        told.replica,
        Some(ReplicaTotals { executed: 5, attached: 1, replayed: 3, mismatched: 1, effects: 3 })
    );

    // Nobody acks, and nobody sweeps: it is overdue, for as long as it was.
    hosted.advance(Duration::from_secs(16 * 60));
    let overdue = usage(&a, "").await.expect("figures");
    let since = seconds(overdue.time) - seconds(overdue.oldest_overdue);
    assert_eq!(since, 16 * 60 + 5 - 15 * 60, "since the first one's window passed");
    ack_all(&hosted).await;
    let acked = usage(&a, "").await.expect("figures");
    assert_eq!((acked.effects, acked.unresolved, acked.acked_total), (3, 0, 3));
    assert_eq!(acked.replica.expect("totals").effects, 4, "whoever caused it");
    hosted.stop().await;
}

/// The ack of the second one lets the one that waits start.
async fn ack_all(hosted: &Hosted) {
    hosted.a().ack(INBOX, &[1, 2, 3]).await.expect("acked");
}

async fn only_operators_see_figures(store: TestStore) {
    let hosted = host_without_sweeps(store, Policy::default()).await;
    let reader = Caller::new(hosted.address, TOKEN_READS);
    for account in ["", "a", "b"] {
        let refused = Refused::of(&usage(&reader, account).await.expect_err("no operator"));
        assert_eq!(refused.code, Code::PermissionDenied);
        assert_eq!(refused.reason, "PERMISSION_MISSING");
    }
    let a = hosted.a();
    a.submitted(Identity::fresh().append("d1", "x")).await;
    let named = usage(&hosted.b(), "a").await.expect("an operator names any account");
    assert_eq!((named.account.as_str(), named.effects), ("a", 1));
    let unknown = usage(&a, "nobody").await.expect("an account that was never used");
    assert_eq!((unknown.account.as_str(), unknown.effects), ("nobody", 0));
    hosted.stop().await;
}
