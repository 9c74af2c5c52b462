//! The row budget, and how many commands share a commit.

use std::{net::SocketAddr, time::Duration};

use receiptd::{
    api::auth::Access,
    config::{Config, StoreUrl},
    engine::{Engine, seams::Seams},
    server::{Listeners, Server},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    load::{Cost, Load},
    postgres::fresh_database,
};

/// The service in this process, with all that it does in the background.
struct Hosted {
    engine: Engine,
    admin: SocketAddr,
    _shutdown: DropGuard,
}

async fn host(store: &StoreUrl) -> Hosted {
    let server = Server::open(Config::default(), store, Access::Local, Seams::system());
    let server = server.await.expect("the server opens");
    let engine = server.engine().clone();
    let grpc = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let admin = listener.local_addr().expect("bound");
    let shutdown = CancellationToken::new();
    let listeners = Listeners { grpc, admin: Some(listener) };
    let serving = server.serve_on(listeners, shutdown.clone());
    engine.seams().spawn(async move { serving.await.expect("a clean end") });
    Hosted { engine, admin, _shutdown: shutdown.drop_guard() }
}

/// `None` where PostgreSQL is not installed.
async fn host_on_postgres() -> Option<Hosted> {
    let url = fresh_database().await?;
    Some(host(&url.parse().expect("a good address")).await)
}

/// Rows loaded and saved for a cycle at 64 submits in flight. It takes about 9; one more if results
/// were not put in flight by the submit itself; 15 if every command had a batch of its own.
const ROWS_MAX: f64 = 9.8;

/// Runs a load once to prepare every statement, then measures.
async fn measured(callers: usize, each: usize) -> Option<Cost> {
    let hosted = host_on_postgres().await?;
    let mut load = Load::attach(&hosted.engine).await;
    load.cycles(callers, 10).await;
    Some(load.cycles(callers, each).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_stays_within_its_row_budget() {
    let Some(cost) = measured(64, 50).await else { return };
    let touches = cost.touches_per_cycle();
    assert!(touches <= ROWS_MAX, "{touches:.1} rows are touched for a cycle: {cost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_two_round_trips() {
    let Some(hosted) = host_on_postgres().await else { return };
    let mut load = Load::attach(&hosted.engine).await;
    let mut cost = load.cycles(64, 10).await;
    // A connection asks once more for each statement that it does not know yet.
    for _ in 0..5 {
        cost = load.cycles(64, 5).await;
        if cost.totals.touches.round_trips == 2 * cost.totals.batches {
            return;
        }
    }
    panic!("not two round trips for each batch: {cost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_operations_share_a_commit() {
    let Some(cost) = measured(256, 16).await else { return };
    let commits = cost.commits_per_operation();
    assert!(commits < 0.1, "{commits:.3} commits for an operation: {cost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metric_shows_how_many_commands_share_a_commit() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let hosted = host(&StoreUrl::sqlite(folder.path().join("receiptd.db"))).await;
    // Answered once the metrics are recorded.
    page(hosted.admin, "/metrics").await;
    Load::attach(&hosted.engine).await.cycles(64, 4).await;
    let metrics = page(hosted.admin, "/metrics").await;
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("{name} is missing from:\n{metrics}"));
        value.parse::<f64>().expect("a number")
    };
    let (batches, commands) =
        (value("receiptd_batch_commands_count"), value("receiptd_batch_commands_sum"));
    assert!(commands >= 256.0 && commands / batches > 2.0, "{commands} in {batches} batches");
    assert!(value(r#"receiptd_batch_commands_bucket{le="200"}"#) <= batches);
    assert!(value("receiptd_commits_total") > 0.0);
    // Effects, not answers (R59).
    let submits = value(r#"receiptd_submits_total{origin="executed"}"#);
    assert!(submits >= 256.0 && value("receiptd_effects_total") >= 256.0, "{submits}");
    assert!(value("receiptd_duplicates_prevented_total") <= submits);
    // What the store has that is not over is looked at by itself.
    let shown = ["\nreceiptd_operations_unresolved ", "\nreceiptd_oldest_unacked_seconds "];
    let looked_at = async {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        let mut metrics = String::new();
        while !shown.iter().all(|line| metrics.contains(line)) {
            pause.tick().await;
            metrics = page(hosted.admin, "/metrics").await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looked_at).await.expect("a first look");
}

async fn page(address: SocketAddr, path: &str) -> String {
    let mut connection = TcpStream::connect(address).await.expect("the admin listener answers");
    let request = format!("GET {path} HTTP/1.1\r\nHost: receiptd\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}
