//! F41: everybody comes back at once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use receiptd::client::{
    connect::{Client, Secret},
    results::{Notice, Received, StreamError},
};

use crate::{
    append,
    support::{
        background, eventually,
        proxy::Proxy,
        server::TOKEN_A,
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(f41_everybody_comes_back_at_once);

/// Streams, several on each connection: as many editors with several inboxes have them.
const STREAMS: usize = 500;
const STREAMS_OF_A_CONNECTION: usize = 5;
/// How long everybody may take to come back.
const RESUME_LIMIT: Duration = Duration::from_secs(60);
const DROPS: usize = 20;

/// What one stream was told.
#[derive(Default)]
struct Told {
    /// Whether the last stream caught up, and when it was opened.
    caught_up: Mutex<Option<Instant>>,
    results: AtomicUsize,
}

impl Told {
    fn take(&self, notice: Notice) {
        match notice {
            Notice::CaughtUp => *self.caught_up.lock().expect("no panic") = Some(Instant::now()),
            Notice::Reconnecting(_) => *self.caught_up.lock().expect("no panic") = None,
            _ => {}
        }
    }
}

async fn read(client: Client, number: usize, told: Arc<Told>) -> Result<(), StreamError> {
    let noted = told.clone();
    let results = client.inbox(format!("inbox-{number}")).consumer(format!("editor-{number}"));
    let handler = async |_: Received| {
        told.results.fetch_add(1, Ordering::SeqCst);
        Ok::<(), String>(())
    };
    results.on_notice(move |notice| noted.take(notice)).stream(&handler).await
}

/// When each stream caught up, once all have.
async fn all_caught_up(all: &[Arc<Told>]) -> Vec<Instant> {
    let caught_up = async || {
        let times = all.iter().map(|told| *told.caught_up.lock().expect("no panic"));
        times.collect::<Option<Vec<Instant>>>()
    };
    eventually("every stream to catch up", RESUME_LIMIT, caught_up).await
}

async fn f41_everybody_comes_back_at_once(store: TestStore) {
    let mut server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let client = || {
        let builder = Client::builder(format!("http://{}", proxy.address()));
        builder.token(Secret::new(TOKEN_A)).build().expect("a usable client")
    };
    let all: Vec<Arc<Told>> = (0..STREAMS).map(|_| Arc::default()).collect();
    let mut tasks = Vec::new();
    for (page, told) in all.chunks(STREAMS_OF_A_CONNECTION).enumerate() {
        let client = client();
        for (place, told) in told.iter().enumerate() {
            let number = page * STREAMS_OF_A_CONNECTION + place;
            tasks.push(background(read(client.clone(), number, told.clone())));
        }
    }
    all_caught_up(&all).await;
    let (handles, memory) = (server.handles(), server.memory());

    server.kill();
    proxy.cut_all();
    let gone = async || {
        let open = |told: &Arc<Told>| told.caught_up.lock().expect("no panic").is_some();
        (!all.iter().any(open)).then_some(())
    };
    eventually("every stream to be gone", RESUME_LIMIT, gone).await;
    server.start_again();
    let mut times = all_caught_up(&all).await;
    times.sort_unstable();
    // Half of them are not back before the other half: nobody waits for a common moment.
    let spread = times[STREAMS * 9 / 10] - times[STREAMS / 10];
    assert!(spread >= Duration::from_secs(1), "{spread:?}");

    for _ in 0..DROPS {
        let before = proxy.connections();
        proxy.cut_all();
        let somebody = async || (proxy.connections() > before).then_some(());
        eventually("somebody to come back", RESUME_LIMIT, somebody).await;
    }
    all_caught_up(&all).await;
    let writer = client();
    for number in (0..STREAMS).step_by(50) {
        let submission = append("lines/storm", "line").into_inbox(format!("inbox-{number}"));
        assert!(writer.submit(submission).await.expect("an outcome").is_applied());
    }
    let shown = async || {
        let count: usize = all.iter().map(|told| told.results.load(Ordering::SeqCst)).sum();
        (count >= STREAMS / 50).then_some(count)
    };
    let count = eventually("the results", RESUME_LIMIT, shown).await;
    assert_eq!(count, STREAMS / 50, "each is shown once");
    // The storm left nothing behind: as many streams cost what they cost before it.
    if let (Some(handles), Some(memory)) = (handles, memory) {
        let back = async || server.handles().filter(|now| *now <= handles + handles / 10);
        eventually("its handles to be closed", RESUME_LIMIT, back).await;
        let now = server.memory().expect("as before");
        assert!(now <= memory + memory / 10, "from {memory} to {now} bytes");
    }
    assert!(tasks.iter().all(|task| !task.is_finished()), "no stream has given up");
    tasks.iter().for_each(|task| task.abort());
}
