//! Many submits of one id at once: one effect, and an answer that is defined for each loser (R13).

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use receiptd::proto::{Origin, operation::State};

use crate::support::{
    answers::{answered, lines, receipt},
    background,
    client::{Caller, Refused},
    requests::{Identity, until_acked},
    server::Server,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    racing_intents_of_one_id_have_one_winner_and_named_conflicts,
    racing_submits_of_waiting_work_attach_to_it,
);

/// One server on the embedded store, two replicas on the shared one.
fn replicas(store: &TestStore) -> Vec<Server> {
    match store {
        TestStore::Sqlite(_) => vec![store.serve(&[])],
        TestStore::Postgres(..) => vec![store.serve(&[]), store.serve(&[])],
    }
}

async fn racing_intents_of_one_id_have_one_winner_and_named_conflicts(store: TestStore) {
    let servers = replicas(&store);
    let callers: Vec<Caller> = (0..16).map(|at| servers[at % servers.len()].a()).collect();
    for round in 0..10 {
        let id = Identity::fresh();
        let line = |side: usize| format!("{side} of {round}");
        let attempts: Vec<_> = callers
            .iter()
            .enumerate()
            .map(|(at, caller)| {
                // Both intents reach both replicas.
                let side = at / 2 % 2;
                let (caller, request) = (caller.clone(), id.append("d1", &line(side)));
                background(async move { (side, caller.submit(request).await) })
            })
            .collect();
        let mut origins: BTreeMap<i32, usize> = BTreeMap::new();
        let (mut winners, mut losers) = (BTreeSet::new(), BTreeSet::new());
        let mut receipts = BTreeSet::new();
        for attempt in attempts {
            match within("an answer", attempt).await.expect("no panic") {
                (side, Ok(answer)) => {
                    assert_eq!(answer.operation.as_ref().expect("one").state(), State::Applied);
                    *origins.entry(answer.origin).or_default() += 1;
                    receipts.insert(receipt(&answer).encode_to_vec());
                    winners.insert(side);
                }
                (side, Err(status)) => {
                    let refused = Refused::of(&status);
                    assert_eq!(refused.reason, "OPERATION_INTENT_MISMATCH", "{refused:?}");
                    assert_eq!(refused.value("differs"), "arguments");
                    assert_eq!(refused.value("outcome"), "NO_EFFECT");
                    losers.insert(side);
                }
            }
        }
        assert_eq!((winners.len(), losers.len(), receipts.len()), (1, 1, 1), "round {round}");
        assert!(winners.is_disjoint(&losers));
        assert_eq!(origins[&Origin::Executed.into()], 1, "{origins:?}");
        assert_eq!(origins.values().sum::<usize>(), 8, "{origins:?}");
        let text = servers[0].a().text("d1").await.0;
        let count = |sides: &BTreeSet<usize>| -> usize {
            sides.iter().map(|side| lines(&text, &line(*side))).sum()
        };
        assert_eq!((count(&winners), count(&losers)), (1, 0), "round {round}");
    }
}

async fn racing_submits_of_waiting_work_attach_to_it(store: TestStore) {
    let servers = replicas(&store);
    let caller = servers[0].a();
    caller.submitted(until_acked(Identity::fresh().append("d1", "held"))).await;
    for round in 0..5 {
        let (id, line) = (Identity::fresh(), format!("line {round}"));
        let attempts: Vec<_> = (0..12)
            .map(|at| {
                let caller = servers[at % servers.len()].a();
                let request = id.append("d1", &line);
                background(async move { caller.submitted(request).await })
            })
            .collect();
        let mut origins = Vec::new();
        for attempt in attempts {
            let answer = within("an answer", attempt).await.expect("no panic");
            let (origin, state) = answered(&answer);
            assert_eq!(state, State::Accepted, "nothing begins while the target is held");
            origins.push(origin);
        }
        origins.sort_unstable();
        let attached = vec![Origin::Attached; 11];
        assert_eq!(origins, [vec![Origin::Executed], attached].concat());
    }
    assert_eq!(caller.inbox("default").await.reserved, 5, "one slot for each id");
    assert_eq!(caller.text("d1").await, ("held\n".to_owned(), 1));
    caller.ack("default", &[1]).await.expect("acked");
    let expected: String = (0..5).map(|round| format!("line {round}\n")).collect();
    assert_eq!(caller.text("d1").await, (format!("held\n{expected}"), 6), "each once, in order");
}
