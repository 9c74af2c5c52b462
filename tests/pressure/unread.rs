//! F43: a reader that does not read, and many that vanish; also over HTTP/1.1.

use prost::Message;
use receiptd::proto::{
    ResultKind, StreamDeliveriesRequest, SubmitOperationRequest, batch_submit_result,
};

use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    size_of,
    support::{
        BOUND,
        client::{Caller, sequences},
        eventually,
        requests::{Identity, into_inbox},
        server::{Server, TOKEN_A},
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(f43_a_reader_that_does_not_read, a_page_that_does_not_read_is_let_go);

/// What waits for the reader, in MiB; 200 are the whole case (`TESTS_F43_MEBIBYTES`).
const MEBIBYTES: usize = 30;
/// Travels with its news: just below the limit of what does.
const RESULT_BYTES: usize = 60 * 1024;
/// What the server may add for a stream that is not read, whatever waits for it.
const UNREAD_BYTES_MAX: u64 = 24 << 20;
const VANISHING: usize = 1_000;
const STREAMS_OF_A_CONNECTION: usize = 50;

async fn fill(caller: &Caller, count: usize) {
    let text = "x".repeat(RESULT_BYTES);
    for page in (0..count).step_by(20) {
        let requests = (page..count.min(page + 20)).map(|number| SubmitOperationRequest {
            result: ResultKind::Content.into(),
            ..into_inbox(Identity::fresh().put(&format!("large/{}", number % 50), &text), "unread")
        });
        for outcome in caller.submit_together(requests.collect()).await {
            assert!(matches!(outcome, batch_submit_result::Result::Response(_)), "{outcome:?}");
        }
    }
}

fn of(inbox: &str, consumer: &str) -> StreamDeliveriesRequest {
    StreamDeliveriesRequest {
        inbox: inbox.into(),
        consumer_id: consumer.into(),
        window: 1_000,
        ..StreamDeliveriesRequest::default()
    }
}

/// A server on which neither the stall nor the ack of the reader that waits runs out meanwhile.
fn patient(store: &TestStore) -> Server {
    store.serve(&[
        "--write-stall=10m",
        "--consumer-lease=11m",
        "--ack-deadline=10m",
        "--ack-window=30m",
        "--inbox-slots=100000",
        "--account-streams-max=2000",
    ])
}

async fn f43_a_reader_that_does_not_read(store: TestStore) {
    let server = patient(&store);
    let caller = server.a();
    let count = size_of("TESTS_F43_MEBIBYTES", MEBIBYTES) * 1024 * 1024 / RESULT_BYTES;
    fill(&caller, count).await;
    let own = Caller::new(server.address(), TOKEN_A);
    let before = server.memory();
    let mut unread = own.open(of("unread", "sleeper")).await.expect("the stream opens");
    let connections = server.connections();
    let inbox = eventually("the window to fill", BOUND, async || {
        let inbox = caller.inbox("unread").await;
        (inbox.in_flight > 0).then_some(inbox)
    })
    .await;
    assert!(inbox.in_flight <= inbox.in_flight_limit, "{inbox:?}");

    for page in 0..VANISHING / STREAMS_OF_A_CONNECTION {
        let gone = Caller::new(server.address(), TOKEN_A);
        let mut streams = Vec::new();
        for place in 0..STREAMS_OF_A_CONNECTION {
            let inbox = format!("vanishing-{}", page * STREAMS_OF_A_CONNECTION + place);
            streams.push(gone.open(of(&inbox, "laptop")).await.expect("the stream opens"));
        }
        // Another stream is none the worse for it.
        let submitted = into_inbox(Identity::fresh().append("lines", "x"), "vanishing-0");
        caller.submitted(submitted).await;
        drop((streams, gone));
    }
    eventually("their places to be free", BOUND * 3, async || {
        let inbox = caller.inbox(&format!("vanishing-{}", VANISHING - 1)).await;
        inbox.consumers.is_empty().then_some(())
    })
    .await;
    if let Some(connections) = connections {
        assert!(connections >= 2, "of the two callers: {connections}");
        let back = async || server.connections().filter(|now| *now <= connections);
        eventually("their connections to be closed", BOUND, back).await;
    }
    if let (Some(before), Some(after)) = (before, server.memory()) {
        let rise = after.saturating_sub(before);
        println!("memory rose by {:.1} MiB", rise as f64 / 1048576.0);
        assert!(rise < UNREAD_BYTES_MAX, "from {before} to {after} bytes");
    }

    // It wakes: everything arrives, in order, each once.
    let mut seen = Vec::new();
    while seen.len() < count {
        let numbers = sequences(&unread.next_results().await);
        let outcomes = caller.ack_as("sleeper", "unread", &numbers).await.expect("acked");
        assert_eq!(outcomes.len(), numbers.len());
        seen.extend(numbers);
    }
    let all: Vec<i64> = (1..).take(count).collect();
    assert_eq!(seen, all, "in order, each once");
    let inbox = caller.inbox("unread").await;
    assert_eq!((inbox.pending, inbox.in_flight), (0, 0));
    assert_eq!(inbox.acked_total, i64::try_from(count).expect("few"));
}

/// A web page's stream, over HTTP/1.1, of which nothing is read.
async fn page_of(server: &Server, inbox: &str) -> TcpStream {
    let message = of(inbox, "page").encode_to_vec();
    let length = u32::try_from(message.len()).expect("short");
    let body = [&[0][..], &length.to_be_bytes()[..], &message].concat();
    let head = format!(
        "POST /receiptd.v1.InboxService/StreamDeliveries HTTP/1.1\r\nhost: {}\r\n\
         authorization: Bearer {TOKEN_A}\r\ncontent-type: application/grpc-web+proto\r\n\
         accept: application/grpc-web+proto\r\nx-grpc-web: 1\r\ncontent-length: {}\r\n\r\n",
        server.address(),
        body.len(),
    );
    let mut page = TcpStream::connect(server.address()).await.expect("connects");
    page.write_all(&[head.as_bytes(), &body].concat()).await.expect("sent");
    page
}

async fn a_page_that_does_not_read_is_let_go(store: TestStore) {
    // HTTP/1.1 has no pings: only that nothing can be written tells of a frozen page.
    let server = store.serve(&["--write-stall=1s", "--consumer-lease=40s", "--heartbeat=1s"]);
    let caller = server.a();
    let count = 12 * 1024 * 1024 / RESULT_BYTES;
    fill(&caller, count).await;
    let before = server.memory();
    let page = page_of(&server, "unread").await;
    let opened = eventually("the page to be there", BOUND, async || {
        let inbox = caller.inbox("unread").await;
        (inbox.in_flight > 0).then_some(inbox)
    })
    .await;
    assert_eq!(opened.consumers[0].consumer_id, "page");
    let inbox = eventually("the page to be let go", BOUND * 2, async || {
        let inbox = caller.inbox("unread").await;
        inbox.consumers.is_empty().then_some(inbox)
    })
    .await;
    assert_eq!((inbox.in_flight, inbox.dead_total), (0, 0), "what it held is there for others");
    if let (Some(before), Some(after)) = (before, server.memory()) {
        assert!(after < before + UNREAD_BYTES_MAX, "from {before} to {after} bytes");
    }
    drop(page);
}
