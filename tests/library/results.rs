//! F08, F11 and F34 as an application meets them: what a handler and the notices tell.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use receiptd::{
    client::{
        connect::Client,
        file_journal::FileJournal,
        inbox::ReaderError,
        pauses::Growth,
        reader_state::Stage,
        results::{Freshness, Notice, Received, Results, StreamError},
    },
    proto::GapCause,
};

use tokio::sync::Notify;

use crate::{
    append, client,
    support::{
        BOUND, eventually,
        proxy::{Direction, Mode, Proxy},
        server::Server,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    f08_replays_are_recognisable,
    f11_the_ack_never_arrived,
    f34_a_cursor_older_than_what_is_kept_is_told_and_read_on,
    whoever_is_taken_over_does_not_take_back,
    f42_a_silent_network_is_noticed_and_a_quiet_stream_is_not_cut,
);

/// Two of the client's keep-alive periods: a ping every 20 s, and 10 s for its answer.
const TWO_KEEPALIVES: Duration = Duration::from_secs(60);

/// What the application was told, by number.
#[derive(Default)]
struct Told {
    results: Mutex<Vec<(i64, String, Freshness)>>,
    again: Mutex<BTreeMap<i64, (String, Stage)>>,
    gaps: Mutex<Vec<(i64, i64, GapCause)>>,
    opened: AtomicUsize,
}

impl Told {
    fn result(&self, received: &Received) {
        let delivery = &received.delivery;
        let result = (delivery.sequence, delivery.operation_id.clone(), received.freshness);
        self.results.lock().expect("no panic").push(result);
    }

    fn results(&self) -> Vec<(i64, String, Freshness)> {
        self.results.lock().expect("no panic").clone()
    }

    fn numbers(&self) -> Vec<i64> {
        self.results().iter().map(|(number, ..)| *number).collect()
    }
}

fn results(client: &Client, told: &Arc<Told>) -> Results {
    results_of("editor", client, told)
}

fn results_of(inbox: &str, client: &Client, told: &Arc<Told>) -> Results {
    let told = told.clone();
    client.inbox(inbox).consumer("laptop").reconnect(Growth::ALONE).on_notice(move |notice| {
        match notice {
            Notice::Opened(_) => {
                told.opened.fetch_add(1, Ordering::SeqCst);
            }
            Notice::Gap(gap) => {
                let told_gap = (gap.first_sequence, gap.last_sequence, gap.cause());
                told.gaps.lock().expect("no panic").push(told_gap);
            }
            Notice::AlreadySeen(again) => {
                let seen = (again.operation_id, again.stage);
                told.again.lock().expect("no panic").insert(again.key.sequence, seen);
            }
            _ => {}
        }
    })
}

/// Queues results, and tells their operations in order.
async fn queue(server: &Server, journal: &Path, count: usize) -> Vec<String> {
    let client = client(server.address(), journal);
    let mut ids = Vec::new();
    for number in 0..count {
        let submission = append("lines/editor", &number.to_string()).into_inbox("editor");
        let outcome = client.submit(submission).await.expect("an outcome");
        assert!(outcome.is_applied());
        ids.push(outcome.identity().id().to_owned());
    }
    ids
}

/// When so many results of the inbox are acked.
async fn acked(server: &Server, count: i64) {
    let caller = server.a();
    let all = async || (caller.inbox("editor").await.acked_total == count).then_some(());
    eventually("the acks", BOUND, all).await;
}

async fn f08_replays_are_recognisable(store: TestStore) {
    let server = store.serve(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (writer, reader) = (directory.path().join("writer"), directory.path().join("reader"));
    let mut ids = queue(&server, &writer, 3).await;

    // The first ack and whatever follows it on its connection is swallowed.
    let proxy = Proxy::start(server.address()).await;
    let first = client(proxy.address(), &reader);
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        told.result(&received);
        if received.delivery.sequence == 1 {
            proxy.set(Direction::Up, Mode::silent_at("laptop"));
        }
        Ok::<(), String>(())
    };
    let journal = first.journal().clone();
    let kept = async || {
        let state = journal.reader("editor", "laptop").expect("readable")?;
        (state.handled_unacked.len() == 3).then_some(())
    };
    tokio::select! {
        ended = results(&first, &told).stream(&handler) => panic!("nothing ends it: {ended:?}"),
        () = eventually("three results to be kept as handled", BOUND, kept) => {}
    }
    assert_eq!(told.numbers(), [1, 2, 3]);
    assert_eq!(server.a().inbox("editor").await.acked_total, 0);
    drop((first, journal));

    // What was being written when the first one was dropped is written to its end.
    let free = async || FileJournal::open(&reader).ok().map(drop);
    eventually("the journal to be free", BOUND, free).await;
    let second = client(server.address(), &reader);
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        told.result(&received);
        Ok::<(), String>(())
    };
    // The fourth is queued when the first stream is no longer there to take it.
    let end = async {
        let seen = async || (told.again.lock().expect("no panic").len() == 3).then_some(());
        eventually("three results to come again", BOUND, seen).await;
        ids.extend(queue(&server, &writer, 1).await);
        acked(&server, 4).await;
    };
    let reading = results(&second, &told).stream_until(end, &handler);
    within("all to be acked", reading).await.expect("it was asked to end");
    assert_eq!(told.results(), [(4, ids[3].clone(), Freshness::New)], "nothing is shown twice");
    let again = told.again.lock().expect("no panic").clone();
    let expected: BTreeMap<i64, (String, Stage)> =
        (1..=3).zip(ids.into_iter().map(|id| (id, Stage::Handled))).collect();
    assert_eq!(again, expected, "the same numbers and operations, as already seen");
}

async fn f34_a_cursor_older_than_what_is_kept_is_told_and_read_on(store: TestStore) {
    let flags = ["--admission-window=5s", "--record-retention=6s", "--tombstone-retention=7s"];
    let server = store.serve(&flags);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (writer, reader) = (directory.path().join("writer"), directory.path().join("reader"));
    queue(&server, &writer, 1).await;
    let read_until = async |told: &Arc<Told>, count: i64| {
        let client = client(server.address(), &reader);
        let handler = async |received: Received| {
            told.result(&received);
            Ok::<(), String>(())
        };
        let caller = server.a();
        let end = async {
            let all = async || {
                let inbox = caller.inbox("editor").await;
                (inbox.acked_total == count && inbox.in_flight == 0).then_some(())
            };
            eventually("the acks", BOUND, all).await;
        };
        results(&client, told).stream_until(end, &handler).await.expect("it was asked to end");
    };
    let told = Arc::new(Told::default());
    read_until(&told, 1).await;
    assert_eq!(told.numbers(), [1]);

    // What comes while nobody reads is acked by another, and its rows go.
    queue(&server, &writer, 50).await;
    let caller = server.a();
    caller.ack("editor", &(2..=51).collect::<Vec<i64>>()).await.expect("acked");
    let purged = async || (caller.inbox("editor").await.kept_from_sequence == 52).then_some(());
    eventually("everything to be purged", BOUND * 3, purged).await;
    let live = queue(&server, &writer, 1).await.remove(0);

    let told = Arc::new(Told::default());
    read_until(&told, 52).await;
    assert_eq!(told.results(), [(52, live, Freshness::New)], "and then it streams");
    assert_eq!(*told.gaps.lock().expect("no panic"), [(2, 51, GapCause::Purged)], "told once");
    assert_eq!(told.opened.load(Ordering::SeqCst), 1, "nothing was opened anew for it");
}

async fn f11_the_ack_never_arrived(store: TestStore) {
    let server = store.serve(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ids = queue(&server, &directory.path().join("writer"), 1).await;
    let proxy = Proxy::start(server.address()).await;
    let client = client(proxy.address(), &directory.path().join("reader"));
    let told = Arc::new(Told::default());
    let handler = async |received: Received| {
        told.result(&received);
        proxy.set(Direction::Up, Mode::cut_at("laptop"));
        Ok::<(), String>(())
    };
    let reading = results(&client, &told).stream_until(acked(&server, 1), &handler);
    within("it to be acked again", reading).await.expect("it was asked to end");
    proxy.triggered(Direction::Up, 1).await;
    assert_eq!(told.results(), [(1, ids[0].clone(), Freshness::New)], "the handler ran once");
    let inbox = server.a().inbox("editor").await;
    assert_eq!((inbox.pending, inbox.in_flight, inbox.acked_total), (0, 0, 1));
}

/// Two programs with one consumer id: the newer one goes on, and the older one ends.
async fn whoever_is_taken_over_does_not_take_back(store: TestStore) {
    let server = store.serve(&[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (older, newer) = (Arc::new(Told::default()), Arc::new(Told::default()));
    let (first, second) = (
        client(server.address(), &directory.path().join("older")),
        client(server.address(), &directory.path().join("newer")),
    );
    let opened = async |told: &Told| {
        let open = async || (told.opened.load(Ordering::SeqCst) > 0).then_some(());
        eventually("the stream to open", BOUND, open).await;
    };
    let note = |told: &Arc<Told>| {
        let told = told.clone();
        move |received: Received| {
            told.result(&received);
            std::future::ready(Ok::<(), String>(()))
        }
    };
    let (ended, was_over) = (results(&first, &older).stream(note(&older)), Notify::new());
    let taking_over = async {
        opened(&older).await;
        let end = async {
            within("the older one to end", was_over.notified()).await;
            queue(&server, &directory.path().join("writer"), 1).await;
            acked(&server, 1).await;
        };
        results(&second, &newer).stream_until(end, note(&newer)).await
    };
    let ending = async {
        let ended = ended.await;
        was_over.notify_one();
        ended
    };
    let (ended, went_on) = tokio::join!(ending, taking_over);
    let superseded = matches!(ended, Err(StreamError::Reader(ReaderError::Superseded(_))));
    assert!(superseded, "{ended:?}");
    went_on.expect("it was asked to end");
    assert_eq!((older.numbers(), newer.numbers()), (vec![], vec![1]));
    let openings = [&older, &newer].map(|told| told.opened.load(Ordering::SeqCst));
    assert_eq!(openings, [1, 1], "neither is opened again");
}

async fn f42_a_silent_network_is_noticed_and_a_quiet_stream_is_not_cut(store: TestStore) {
    let server = store.serve(&["--heartbeat=1s"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let proxy = Proxy::start(server.address()).await;
    let behind = client(proxy.address(), &directory.path().join("behind"));
    let beside = client(server.address(), &directory.path().join("beside"));
    let (told, quiet) = (Arc::new(Told::default()), Arc::new(Told::default()));
    let note = |told: &Arc<Told>| {
        let told = told.clone();
        move |received: Received| {
            told.result(&received);
            std::future::ready(Ok::<(), String>(()))
        }
    };
    // From the first result on, nothing passes on this connection, and nobody closes it.
    let end = async {
        let opened = async |told: &Told| {
            let open = async || (told.opened.load(Ordering::SeqCst) > 0).then_some(());
            eventually("the stream to open", BOUND, open).await;
        };
        opened(&told).await;
        opened(&quiet).await;
        proxy.set(Direction::Down, Mode::silent_at("lines/editor"));
        queue(&server, &directory.path().join("writer"), 1).await;
        proxy.triggered(Direction::Down, 1).await;
        let shown = async || (!told.numbers().is_empty()).then_some(());
        eventually("the result on another connection", TWO_KEEPALIVES, shown).await;
    };
    tokio::select! {
        ended = results(&behind, &told).stream_until(end, note(&told)) => ended.expect("the end"),
        ended = results_of("quiet", &beside, &quiet).stream(note(&quiet)) => panic!("cut: {ended:?}"),
    }
    assert_eq!(told.numbers(), [1]);
    assert_eq!(quiet.opened.load(Ordering::SeqCst), 1, "a quiet stream is never cut for that");
    assert_eq!(server.a().inbox("editor").await.acked_total, 1);
}
