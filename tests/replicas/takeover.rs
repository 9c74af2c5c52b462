//! A consumer that moves from replica to replica while its results flow.

use std::collections::BTreeSet;

use receiptd::proto::{AckOutcome, StreamDeliveriesRequest, stream_deliveries_response::Frame};

use crate::{
    Shared,
    support::{
        background,
        client::{Caller, Reader, Refused, sequences},
        requests::{Identity, into_inbox},
        server::TOKEN_A,
    },
};

const RESULTS: i64 = 240;
/// How often it moves.
const MOVES: usize = 12;

async fn open(caller: &Caller, token: &str) -> Reader {
    let request = StreamDeliveriesRequest {
        inbox: "editor".into(),
        consumer_id: "laptop".into(),
        resume_token: token.into(),
        window: 8,
    };
    caller.open(request).await.expect("the stream opens")
}

/// Reads to the end of a stream that was taken over; what it shows counts as shown.
async fn to_its_end(mut reader: Reader, shown: &mut BTreeSet<i64>) -> Refused {
    loop {
        match reader.frame().await {
            Ok(Frame::Deliveries(batch)) => shown.extend(sequences(&batch.results)),
            Ok(_) => {}
            Err(status) => return Refused::of(&status),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_takes_over_from_itself_across_replicas_under_fire() {
    let Some(shared) = Shared::new().await else { return };
    let flags = ["--heartbeat=1s", "--retry-budget=100"];
    let servers = [shared.serve(&flags), shared.serve(&flags)];
    let callers = [servers[0].a(), servers[1].a()];
    let writer = Caller::new(servers[0].address(), TOKEN_A);
    let writing = background(async move {
        for number in 0..RESULTS {
            let request = Identity::fresh().append("notes", &number.to_string());
            writer.submitted(into_inbox(request, "editor")).await;
        }
    });
    let (mut shown, mut acked, mut shown_again) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut reader = open(&callers[0], "").await;
    for turn in 1..=MOVES {
        // A few results on this stream; all but the last of a page are acked.
        for _ in 0..2 {
            let results = reader.next_results().await;
            let numbers = sequences(&results);
            shown_again += numbers.iter().filter(|number| acked.contains(*number)).count();
            shown.extend(&numbers);
            let but_last = &numbers[..numbers.len() - 1];
            if !but_last.is_empty() {
                let caller = &callers[turn % 2];
                let outcomes = caller.ack("editor", but_last).await.expect("acked");
                assert!(outcomes.iter().all(|outcome| *outcome == AckOutcome::Acked));
                acked.extend(but_last);
            }
        }
        let old = std::mem::replace(&mut reader, open(&callers[turn % 2], "").await);
        let first = reader.frame().await.expect("the first frame");
        assert!(matches!(first, Frame::Opened(_)), "{first:?}");
        let inbox = callers[0].inbox("editor").await;
        assert_eq!(inbox.consumers.len(), 1, "what is in flight is in flight to one stream");
        let end = to_its_end(old, &mut shown).await;
        assert_eq!(end.reason, "STREAM_SUPERSEDED", "{end:?}");
    }
    writing.await.expect("all are written");
    while acked.len() < usize::try_from(RESULTS).expect("few") {
        let numbers = sequences(&reader.next_results().await);
        shown_again += numbers.iter().filter(|number| acked.contains(*number)).count();
        shown.extend(&numbers);
        let outcomes = callers[0].ack("editor", &numbers).await.expect("acked");
        assert!(outcomes.iter().all(|outcome| *outcome == AckOutcome::Acked), "{outcomes:?}");
        acked.extend(numbers);
    }
    assert_eq!(shown, (1..=RESULTS).collect::<BTreeSet<i64>>(), "none is lost");
    assert_eq!(shown_again, 0, "none comes again after its ack");
    let inbox = callers[0].inbox("editor").await;
    assert_eq!((inbox.acked_total, inbox.pending, inbox.in_flight), (RESULTS, 0, 0));
    assert_eq!((inbox.expired_total, inbox.dead_total), (0, 0));
}
