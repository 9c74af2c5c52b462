//! Two replicas on one PostgreSQL, everything at once: no deadlock, nobody waits for ever, and
//! what is left adds up.
//!
//! What must stay true: both replicas use the same documents and inboxes in opposite orders, with
//! holders, waiters, cancels, acks, streams and sweeps on clocks of a few seconds. No caller sees
//! anything but the refusals that its own command can mean. Afterwards everything is counted again
//! from the rows. `RECEIPTD_HUNT_SECONDS` sets how long (120), and `RECEIPTD_HUNT_FIGURES`, set to
//! anything, has the figures printed.

#[path = "../support/commands.rs"]
mod commands;
#[path = "../support/postgres.rs"]
mod postgres;

mod callers;
mod hunt;
mod recount;

use std::{collections::BTreeMap, time::Duration};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use receiptd::{
    domain::{ids::Span, policy::Policy},
    engine::{Engine, EngineSettings, seams::Seams},
    store::{
        Store,
        postgres::{Migrations, PostgresOptions, PostgresStore},
    },
    sweeper, telemetry, wake,
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use callers::Worker;
use hunt::Hunt;
use postgres::Postgres;

/// Callers of each replica: enough that batches form while others commit.
const WORKERS: u64 = 8;
/// How long what is left may take to end: several times the longest clock.
const SETTLE: Duration = Duration::from_secs(60);

/// Reasons that some command of the hunt can honestly get.
const BUSINESS: [&str; 10] = [
    "OK",
    "INBOX_FULL",
    "TARGET_LOCKED",
    "NO_SUCH_OPERATION",
    "INBOX_NOT_EMPTY",
    "INBOX_RECREATED",
    "NO_SUCH_LOCK",
    "NO_SUCH_INBOX",
    "STREAM_SUPERSEDED",
    // Only where ids race, which the callers check.
    "IDENTITY_HELD",
];

fn policy() -> Policy {
    Policy {
        ack_window: Span::seconds(4),
        ack_deadline: Span::seconds(1),
        retry_budget: 4,
        backoff_first: Span::millis(100),
        backoff_limit: Span::millis(500),
        lock_limit: Span::seconds(3),
        start_deadline: Span::seconds(3),
        consumer_lease: Span::seconds(2),
        inbox_slots: 60,
        in_flight_max: 16,
        ..Policy::default()
    }
}

/// One replica: an engine with a store of its own, its sweeper and its re-reads.
struct Replica {
    engine: Engine,
    background: CancellationToken,
    streams: CancellationToken,
}

impl Replica {
    async fn start(url: &str) -> Replica {
        let seams = Seams::system();
        let options = PostgresOptions::usual(Migrations::Apply);
        let store = PostgresStore::open(url, &seams, options).await.expect("opens");
        let settings = EngineSettings { lanes: 2 };
        let engine = Engine::start(Store::Postgres(store), policy(), settings, seams.clone());
        let background = CancellationToken::new();
        let period = Duration::from_millis(200);
        seams.spawn(sweeper::run(engine.clone(), period, background.clone()));
        let period = Duration::from_millis(500);
        seams.spawn(wake::reread(
            engine.store().clone(),
            engine.wake().clone(),
            period,
            background.clone(),
        ));
        Replica { engine, background, streams: CancellationToken::new() }
    }

    async fn stop(self) {
        self.background.cancel();
        self.engine.drain().await;
        self.engine.store().close().await;
        self.engine.seams().join().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_never_deadlock_and_everything_adds_up() {
    let Some(server) = tokio::task::block_in_place(postgres::postgres) else { return };
    let database = server.fresh_database().await;
    // A wait for a row ends after 250 ms: the server has to look for a cycle before that, or a
    // deadlock would pass for a slow neighbour.
    let early = format!("ALTER DATABASE {database} SET deadlock_timeout = '50ms'");
    let client = server.connect("postgres").await;
    client.batch_execute(&early).await.expect("a setting of the database");
    let url = server.url(&database, server.port());
    let recorder = PrometheusBuilder::new().install_recorder().expect("the only recorder");
    let replicas = [Replica::start(&url).await, Replica::start(&url).await];
    let hunt = Hunt::begin(replicas[0].engine.store().now().await.expect("a clock"));

    run_workers(&hunt, &replicas).await;
    let client = server.connect(&database).await;
    let left = recount::wait_until_ended(&client, SETTLE).await;
    assert!(left.is_empty(), "still unfinished after {SETTLE:?}: {left:?}\n{}", hunt.figures());
    for replica in replicas {
        tokio::time::timeout(SETTLE, replica.stop()).await.expect("a replica stops");
    }

    let figures = format!("{}\n{}", hunt.figures(), metrics_of_interest(&recorder));
    let mut wrong = hunt.take_faults();
    wrong.extend(unexpected_reasons(&recorder));
    wrong.extend(deadlocks(server));
    wrong.extend(recount::check(&client, &hunt.take_answers()).await);
    let count = wrong.len();
    wrong.truncate(20);
    assert!(wrong.is_empty(), "{count} faults:\n{}\n{figures}", wrong.join("\n"));
    if std::env::var_os("RECEIPTD_HUNT_FIGURES").is_some() {
        eprintln!("{figures}{}", recount::figures(&client).await);
    }
}

/// Lets all callers of both replicas run to the end of the hunt, then ends the streams.
async fn run_workers(hunt: &Hunt, replicas: &[Replica]) {
    let seconds = std::env::var("RECEIPTD_HUNT_SECONDS")
        .map_or(120, |text| text.parse().expect("RECEIPTD_HUNT_SECONDS is a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut workers = JoinSet::new();
    for (number, replica) in replicas.iter().enumerate() {
        for index in 0..WORKERS {
            let engine = replica.engine.clone();
            let streams = replica.streams.clone();
            let worker = Worker::new(hunt.clone(), engine, number, index, streams);
            workers.spawn(worker.run(end));
        }
    }
    let all = async { while workers.join_next().await.transpose().expect("no panic").is_some() {} };
    let limit = Duration::from_secs(seconds) + SETTLE;
    tokio::time::timeout(limit, all).await.expect("every call is answered");
    replicas.iter().for_each(|replica| replica.streams.cancel());
}

/// Answers to commands by reason, over both replicas, streams and sweepers included.
fn replies(recorder: &PrometheusHandle) -> BTreeMap<String, u64> {
    let text = recorder.render();
    let named = |name: &str| -> Vec<(String, u64)> {
        let start = format!("{name}{{reason=\"");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
        let parts = lines.filter_map(|line| line.split_once("\"} "));
        parts.map(|(reason, count)| (reason.to_owned(), count.parse().expect("a count"))).collect()
    };
    let mut found = BTreeMap::new();
    for name in [telemetry::REPLIES_TOTAL, telemetry::SWEEP_REFUSALS_TOTAL] {
        for (reason, count) in named(name) {
            *found.entry(reason).or_default() += count;
        }
    }
    found
}

fn unexpected_reasons(recorder: &PrometheusHandle) -> Vec<String> {
    let replies = replies(recorder);
    assert!(replies.contains_key("OK"), "the metric is read: {replies:?}");
    let unexpected = replies.iter().filter(|(reason, _)| !BUSINESS.contains(&reason.as_str()));
    unexpected.map(|(reason, count)| format!("{count} commands ended with {reason}")).collect()
}

/// What PostgreSQL itself says about deadlocks, with the statements that met.
fn deadlocks(server: &Postgres) -> Vec<String> {
    let log = server.log();
    let places = log.match_indices("deadlock detected").map(|(at, _)| at);
    places.map(|at| log[at..].chars().take(2_000).collect()).collect()
}

fn metrics_of_interest(recorder: &PrometheusHandle) -> String {
    let names = [
        telemetry::REPLIES_TOTAL,
        telemetry::BATCHES_RERUN_TOTAL,
        telemetry::BATCHES_HALVED_TOTAL,
        telemetry::COMMITS_TOTAL,
        telemetry::COMMITS_AMBIGUOUS_TOTAL,
        telemetry::HELD_IDS_TOTAL,
        telemetry::DEFERRALS_TOTAL,
        telemetry::SWEPT_TOTAL,
        telemetry::SWEEP_REFUSALS_TOTAL,
        telemetry::SWEEP_FAILURES_TOTAL,
    ];
    let text = recorder.render();
    let wanted = |line: &&str| names.iter().any(|name| line.starts_with(name));
    text.lines().filter(wanted).collect::<Vec<_>>().join("\n")
}
