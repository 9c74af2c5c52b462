//! WatchDocument: how things stand, then each change, with what came between folded.

use receiptd::proto::{
    Document, WatchDocumentRequest, WatchDocumentResponse,
    document::Content,
    watch_document_response::{Change, Draining, Frame},
};
use serde_json::json;
use tonic::{Code, Status, Streaming};

use crate::support::{
    background,
    client::{Caller, Refused},
    requests::{Identity, intent},
    server::TOKEN_A,
    stores::{TestStore, on_both_stores},
    within,
};

on_both_stores!(
    a_watch_shows_how_things_stand_and_each_change,
    what_the_caller_has_is_not_sent_again,
    what_a_slow_watcher_missed_is_folded,
    a_watch_shows_signs_of_life_and_ends_by_age_and_drain,
    a_watch_outlives_a_restart_of_what_it_watches,
    another_account_watches_a_document_of_its_own,
);

struct Watched(Streaming<WatchDocumentResponse>);

impl Watched {
    async fn open(caller: &Caller, request: WatchDocumentRequest) -> Result<Watched, Status> {
        let mut client = caller.documents.clone();
        let opened = within("a watch to open", client.watch_document(request)).await?;
        Ok(Watched(opened.into_inner()))
    }

    async fn frame(&mut self) -> Result<Option<Frame>, Status> {
        let received = within("a frame", self.0.message()).await?;
        Ok(received.map(|received| received.frame.expect("a frame of a known kind")))
    }

    async fn change(&mut self) -> Change {
        loop {
            match self.frame().await.expect("the watch goes on").expect("the watch goes on") {
                Frame::Change(change) => return change,
                Frame::Heartbeat(_) => {}
                Frame::Draining(draining) => panic!("{draining:?}"),
            }
        }
    }

    async fn draining(&mut self) -> Draining {
        loop {
            match self.frame().await.expect("a good end").expect("a word before the end") {
                Frame::Draining(draining) => return draining,
                Frame::Change(_) | Frame::Heartbeat(_) => {}
            }
        }
    }
}

fn plain(target: &str) -> WatchDocumentRequest {
    WatchDocumentRequest { target: target.to_owned(), ..WatchDocumentRequest::default() }
}

fn with_content(target: &str) -> WatchDocumentRequest {
    WatchDocumentRequest { include_content: true, ..plain(target) }
}

fn of(change: &Change) -> &Document {
    change.document.as_ref().expect("every change names its document")
}

/// Exists, snapshot, revision, generation, revision before.
fn seen(change: &Change) -> (bool, bool, i64, i64, i64) {
    let document = of(change);
    (
        change.exists,
        change.snapshot,
        document.revision,
        document.generation,
        change.previous_revision,
    )
}

fn text(change: &Change) -> Option<&str> {
    match &of(change).content {
        Some(Content::Text(text)) => Some(text),
        Some(Content::Data(data)) => panic!("{data:?}"),
        None => None,
    }
}

async fn delete(caller: &Caller, target: &str) {
    let request = Identity::fresh().submit(intent("document.delete", target, &json!({})));
    caller.submitted(request).await;
}

async fn put(caller: &Caller, target: &str, content: &str) {
    caller.submitted(Identity::fresh().put(target, content)).await;
}

async fn a_watch_shows_how_things_stand_and_each_change(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let mut bare = Watched::open(&caller, plain("d")).await.expect("opens");
    let mut full = Watched::open(&caller, with_content("d")).await.expect("opens");
    for watch in [&mut bare, &mut full] {
        let first = watch.change().await;
        assert_eq!(seen(&first), (false, true, 0, 0, 0), "never created, and no error");
        assert_eq!((of(&first).target.as_str(), text(&first)), ("d", None));
    }
    put(&caller, "d", "one").await;
    let created = full.change().await;
    assert_eq!((seen(&created), text(&created)), ((true, false, 1, 1, 0), Some("one")));
    assert_eq!(Some(of(&created)), caller.document("d").await.as_ref(), "as GetDocument shows it");
    let created = bare.change().await;
    assert_eq!((seen(&created), text(&created)), ((true, false, 1, 1, 0), None));
    assert_eq!(of(&created).size_bytes, 3);

    delete(&caller, "d").await;
    for watch in [&mut bare, &mut full] {
        let deleted = watch.change().await;
        assert_eq!((seen(&deleted), text(&deleted)), ((false, false, 2, 1, 1), None));
        assert_eq!(of(&deleted).content_hash, Vec::<u8>::new());
    }
    put(&caller, "other", "x").await;
    put(&caller, "d", "two").await;
    let again = full.change().await;
    assert_eq!((seen(&again), text(&again)), ((true, false, 3, 2, 2), Some("two")));
    assert_eq!(seen(&bare.change().await), (true, false, 3, 2, 2), "and none of the other one");
}

async fn what_the_caller_has_is_not_sent_again(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    put(&caller, "d", "one").await;
    let known = |revision, generation| WatchDocumentRequest {
        known_revision: revision,
        known_generation: generation,
        ..with_content("d")
    };
    let mut same = Watched::open(&caller, known(1, 1)).await.expect("opens");
    let first = same.change().await;
    assert_eq!((seen(&first), first.unchanged), ((true, true, 1, 1, 1), true));
    assert_eq!(text(&first), None);
    for (revision, generation) in [(1, 2), (2, 1), (1, 0)] {
        let mut other = Watched::open(&caller, known(revision, generation)).await.expect("opens");
        let first = other.change().await;
        assert_eq!((seen(&first), first.unchanged), ((true, true, 1, 1, revision), false));
        assert_eq!(text(&first), Some("one"));
    }
    put(&caller, "d", "two").await;
    let next = same.change().await;
    assert_eq!((seen(&next), text(&next)), ((true, false, 2, 1, 1), Some("two")));
    delete(&caller, "d").await;
    let mut gone = Watched::open(&caller, known(3, 1)).await.expect("opens");
    let first = gone.change().await;
    assert_eq!((seen(&first), first.unchanged), ((false, true, 3, 1, 3), true), "known as deleted");

    for (request, field) in [
        (known(-1, 0), "known_revision"),
        (known(0, -1), "known_generation"),
        (plain("a//b"), "target"),
    ] {
        let refused = Watched::open(&caller, request).await.map(drop).expect_err(field);
        let refused = Refused::of(&refused);
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "INVALID_FIELD")
        );
        assert_eq!(refused.value("field"), field);
    }
}

async fn what_a_slow_watcher_missed_is_folded(store: TestStore) {
    const VERSIONS: i64 = 30;
    let server = store.serve(&[]);
    let writer = server.a();
    let slow = Caller::with_small_windows(server.address(), TOKEN_A);
    let mut watch = Watched::open(&slow, with_content("d")).await.expect("opens");
    for number in 1..=VERSIONS {
        put(&writer, "d", &format!("{number:>60000}")).await;
    }
    let mut told = vec![watch.change().await];
    while told.last().is_some_and(|last| of(last).revision < VERSIONS) {
        told.push(watch.change().await);
    }
    for pair in told.windows(2) {
        assert_eq!(pair[1].previous_revision, of(&pair[0]).revision, "no step is missing");
    }
    let count = i64::try_from(told.len()).expect("few");
    assert!(count < VERSIONS / 2, "what nobody read was folded: {count} frames");
}

async fn a_watch_shows_signs_of_life_and_ends_by_age_and_drain(store: TestStore) {
    let mut server = store.serve(&["--heartbeat=50ms", "--stream-age=1s"]);
    let mut aged = Watched::open(&server.a(), plain("d")).await.expect("opens");
    aged.change().await;
    let Some(Frame::Heartbeat(life)) = aged.frame().await.expect("alive") else {
        panic!("no sign of life")
    };
    assert!(life.store_time.is_some());
    let draining = aged.draining().await;
    assert_eq!(draining.reason, "the stream reached its maximum age");
    let delay = draining.retry_delay.expect("when to come back");
    assert!((1..=3).contains(&delay.seconds), "{delay:?}");
    assert!(aged.frame().await.expect("a good end").is_none());

    let mut drained = Watched::open(&server.a(), plain("d")).await.expect("opens");
    drained.change().await;
    let reading = background(async move { (drained.draining().await, drained) });
    let status = tokio::task::block_in_place(|| server.stop());
    assert!(status.success());
    let (draining, mut drained) = within("the last frame", reading).await.expect("no panic");
    // Which of the two comes first is chance; both are the server's word.
    let reasons = ["the server is shutting down", "the stream reached its maximum age"];
    assert!(reasons.contains(&draining.reason.as_str()), "{draining:?}");
    assert!(draining.retry_delay.is_some());
    assert!(drained.frame().await.expect("a good end").is_none());
}

async fn a_watch_outlives_a_restart_of_what_it_watches(store: TestStore) {
    let mut server = store.serve(&[]);
    put(&server.a(), "d", "one").await;
    let mut watch = Watched::open(&server.a(), plain("d")).await.expect("opens");
    let first = watch.change().await;
    server.crash_and_restart();
    watch.frame().await.expect_err("cut");
    put(&server.a(), "d", "two").await;
    let known = WatchDocumentRequest {
        known_revision: of(&first).revision,
        known_generation: of(&first).generation,
        ..with_content("d")
    };
    let mut watch = Watched::open(&server.a(), known).await.expect("opens");
    let missed = watch.change().await;
    assert_eq!((seen(&missed), text(&missed)), ((true, true, 2, 1, 1), Some("two")));
}

async fn another_account_watches_a_document_of_its_own(store: TestStore) {
    let server = store.serve(&[]);
    put(&server.a(), "d", "secret").await;
    let mut other = Watched::open(&server.b(), with_content("d")).await.expect("opens");
    assert_eq!(seen(&other.change().await), (false, true, 0, 0, 0), "as one that never was");
    put(&server.a(), "d", "more").await;
    put(&server.b(), "d", "own").await;
    let own = other.change().await;
    assert_eq!((seen(&own), text(&own)), ((true, false, 1, 1, 0), Some("own")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_on_one_replica_is_seen_on_the_other() {
    let Some(store) = TestStore::postgres().await else { return };
    let (one, two) = (store.serve(&[]), store.serve(&[]));
    let mut watch = Watched::open(&two.a(), with_content("d")).await.expect("opens");
    assert_eq!(seen(&watch.change().await), (false, true, 0, 0, 0));
    put(&one.a(), "d", "one").await;
    let created = watch.change().await;
    assert_eq!((seen(&created), text(&created)), ((true, false, 1, 1, 0), Some("one")));
    delete(&one.a(), "d").await;
    assert_eq!(seen(&watch.change().await), (false, false, 2, 1, 1));
    put(&one.a(), "d", "two").await;
    let again = watch.change().await;
    assert_eq!((seen(&again), text(&again)), ((true, false, 3, 2, 2), Some("two")));
}
