//! A store that hangs: it answers nothing, and closes nothing.

use receiptd::{
    domain::{ids::Span, policy::Policy, refusal::Refusal},
    engine::{Engine, EngineSettings, seams::Seams},
    store::{
        Store,
        postgres::{Migrations, PostgresOptions, PostgresStore},
    },
    stream::{self, Frame, OpenStream, StreamSettings},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Frames,
    commands::{append, consumer, inbox},
    opened, results, settings,
    support::{
        postgres::postgres,
        proxy::{Direction, Mode, Proxy},
        within,
    },
};

/// A stream that is caught up, and the proxy before its store.
struct Hanging {
    engine: Engine,
    proxy: Proxy,
    shutdown: CancellationToken,
    frames: Frames,
}

async fn caught_up() -> Option<Hanging> {
    let server = tokio::task::block_in_place(postgres)?;
    let database = server.fresh_database().await;
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let url = server.url(&database, proxy.address().port());
    let seams = Seams::system();
    let options = PostgresOptions::usual(Migrations::Apply);
    let store = PostgresStore::open(&url, &seams, options).await.expect("opens");
    let engine = EngineSettings { lanes: 1 };
    let engine = Engine::start(Store::Postgres(store), Policy::default(), engine, seams);
    let now = engine.store().now().await.expect("a clock");
    engine.run(append("op-1", now).command()).await.expect("applied");
    let request = OpenStream {
        inbox: inbox("default"),
        consumer: consumer("me"),
        window: 10,
        resume_token: String::new(),
        credit: None,
        end: None,
    };
    let shutdown = CancellationToken::new();
    let settings = StreamSettings { heartbeat: Span::millis(100), ..settings() };
    let mut frames =
        stream::open(&engine, request, settings, shutdown.clone()).await.expect("opens");
    opened(&mut frames).await;
    assert_eq!(results(&mut frames, 1).await.0, [(1, 1)]);
    Some(Hanging { engine, proxy, shutdown, frames })
}

impl Hanging {
    /// From here on the store is silent, and a hint has the stream ask it.
    async fn hang(&self) {
        let before = self.proxy.bytes(Direction::Up);
        self.proxy.set(Direction::Up, Mode::Swallow);
        self.engine.wake().inbox_changed(&inbox("default"));
        self.proxy.bytes_beyond(Direction::Up, before).await;
    }

    async fn heartbeats(&mut self, count: usize) {
        let mut beats = 0;
        while beats < count {
            match self.frames.recv().await.expect("not ended") {
                Ok(Frame::Heartbeat { .. }) => beats += 1,
                Ok(Frame::CaughtUp { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_go_on_while_the_store_hangs() {
    let Some(mut hanging) = caught_up().await else { return };
    hanging.hang().await;
    // What asks the store later than the stream did is still without an answer.
    let (engine, key) = (hanging.engine.clone(), inbox("default"));
    tokio::select! {
        biased;
        () = hanging.heartbeats(20) => {}
        read = engine.store().inbox(&key) => panic!("{read:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_a_stream_whose_store_hangs() {
    let Some(mut hanging) = caught_up().await else { return };
    hanging.hang().await;
    hanging.shutdown.cancel();
    let (engine, key) = (hanging.engine.clone(), inbox("default"));
    let ending = async {
        loop {
            match hanging.frames.recv().await.expect("a last word") {
                Ok(Frame::Draining { .. }) => return,
                Ok(Frame::Heartbeat { .. } | Frame::CaughtUp { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::select! {
        biased;
        () = within("the end", ending) => {}
        read = engine.store().inbox(&key) => panic!("{read:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_outage_takes_over_nothing() {
    let Some(mut hanging) = caught_up().await else { return };
    hanging.hang().await;
    hanging.heartbeats(5).await;
    // The lease ends meanwhile, as does the one before the outage.
    hanging.engine.seams().move_clock(Span::seconds(61));
    hanging.proxy.cut_all();
    hanging.proxy.heal();
    let sweep = receiptd::domain::command::Command::SweepInbox { key: inbox("default") };
    let sweeping = async {
        while hanging.engine.run(sweep.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within("the store again", sweeping).await;
    let going_on = async {
        let now = hanging.engine.store().now().await.expect("a clock");
        let reply = hanging.engine.run(append("op-2", now).command()).await;
        assert!(!matches!(reply, Err(Refusal::InboxFull { .. })), "{reply:?}");
        let mut seen = false;
        while !seen {
            match hanging.frames.recv().await.expect("not ended") {
                Ok(Frame::Deliveries { results, .. }) => {
                    seen = results.iter().any(|sent| sent.delivery.key.sequence == 2);
                }
                Ok(Frame::Heartbeat { .. } | Frame::CaughtUp { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    within("the second result on the same stream", going_on).await;
}
