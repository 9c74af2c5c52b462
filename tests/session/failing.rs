//! A result that its reader cannot finish holds back no other of its session (contract section 7).

use std::time::Duration;

use receiptd::{
    domain::{ids::Span, policy::Policy},
    proto::{DeliveredResult, SessionOpen},
};

use crate::{
    hosted::host,
    support::{
        BOUND,
        client::{attempt, sequence},
        eventually,
        requests::{Identity, into_inbox},
        stores::{TestStore, on_both_stores},
    },
    wire::{Session, ack_of, opening},
};

/// Results in each inbox.
const RESULTS: i64 = 5;

on_both_stores!(a_result_that_is_never_acked_holds_back_no_other_of_its_session);

fn shown(results: &[DeliveredResult]) -> Vec<(i64, i32)> {
    results.iter().map(|result| (sequence(result), attempt(result))).collect()
}

async fn a_result_that_is_never_acked_holds_back_no_other_of_its_session(store: TestStore) {
    let policy =
        Policy { ack_window: Span::hours(2), lock_limit: Span::hours(4), ..Policy::default() };
    let hosted = host(store, policy).await;
    let caller = hosted.a();
    for inbox in ["editor", "other"] {
        for _ in 0..RESULTS {
            caller.submitted(into_inbox(Identity::fresh().put("notes", "x"), inbox)).await;
        }
    }
    let one = |inbox: &str, credit| SessionOpen {
        window: 1,
        credit_messages: credit,
        ..opening(inbox, "me")
    };
    let mut session = Session::connect(&caller).await;
    session.open(one("editor", Some(1))).await;
    assert_eq!(shown(&session.results("editor", 1).await), [(1, 1)]);
    hosted.advance(Duration::from_secs(31));
    eventually("the result to come back", BOUND, async || {
        (caller.inbox("editor").await.in_flight == 0).then_some(())
    })
    .await;
    session.open(one("other", None)).await;
    // It backs off: the credit goes to the next. From here on it is due, and waits its turn.
    session.credit("editor", 1, 0).await;
    for number in 1..RESULTS {
        assert_eq!(shown(&session.results("editor", 1).await), [(number + 1, 1)]);
        assert_eq!(shown(&session.results("other", 1).await), [(number, 1)]);
        hosted.advance(Duration::from_secs(2));
        // The credit comes before the room, so that what is fresh competes with what is due again.
        session.credit("editor", 1, 0).await;
        session.ack(number, ack_of("editor", &[number + 1], "me")).await;
        session.ack(-number, ack_of("other", &[number], "me")).await;
        session.ack_results(2).await;
    }
    assert_eq!(shown(&session.results("editor", 1).await), [(1, 2)]);
    assert_eq!(shown(&session.results("other", 1).await), [(RESULTS, 1)]);
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 1, RESULTS - 1));
    hosted.stop().await;
}
