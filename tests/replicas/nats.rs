//! Hints over NATS: the same promises as over LISTEN.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    HINTS_ONLY, POLLS, Shared,
    hints::{caught_up, submit},
    support::{BOUND, client::sequences, eventually, postgres::process::Owned, server::Server},
};

/// Set to `1`, an absent nats-server is a failure and not a skip.
const REQUIRE: &str = "TESTS_REQUIRE_NATS";

/// A running nats-server with its page for monitoring.
struct Nats {
    port: u16,
    monitor: u16,
    process: Owned,
}

impl Nats {
    fn start(program: &PathBuf, port: u16) -> Nats {
        let monitor = free_port();
        let mut command = Command::new(program);
        command
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-m", &monitor.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Owned::start(&mut command, "KILL", None);
        Nats { port, monitor, process }
    }

    /// How many subscriptions for hints there are.
    fn subscriptions(&self) -> usize {
        let page = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.monitor)).ok()?;
            stream.set_read_timeout(Some(BOUND)).ok()?;
            let request = "GET /connz?subs=1 HTTP/1.0\r\nHost: nats\r\n\r\n";
            stream.write_all(request.as_bytes()).ok()?;
            let mut page = String::new();
            stream.read_to_string(&mut page).ok()?;
            Some(page.matches("receiptd.hints.").count())
        };
        tokio::task::block_in_place(page).unwrap_or(0)
    }

    async fn subscribed(&self, count: usize) {
        eventually("the replicas to subscribe", BOUND * 3, async || {
            (self.subscriptions() == count).then_some(())
        })
        .await;
    }
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("a bound port").port()
}

/// `None` where it is not installed, which is said aloud.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found =
        directories.map(|directory| directory.join("nats-server")).find(|program| program.exists());
    if found.is_none() {
        let text = "SKIPPED (NATS is not installed): no nats-server in PATH or /usr/sbin";
        assert!(std::env::var(REQUIRE).is_err(), "{text}");
        eprintln!("{text}");
    }
    found
}

fn serve(shared: &Shared, port: u16, interval: &str) -> Server {
    let url = format!("--nats-url=nats://127.0.0.1:{port}");
    shared.serve(&["--hints=nats", &url, interval])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_reaches_the_stream_of_another_replica_over_nats_alone() {
    let Some(program) = program() else { return };
    let Some(shared) = Shared::new().await else { return };
    let mut nats = Nats::start(&program, free_port());
    let (a, b) = (serve(&shared, nats.port, HINTS_ONLY), serve(&shared, nats.port, HINTS_ONLY));
    nats.subscribed(2).await;
    assert!(shared.listeners().await.is_empty());
    let mut reader = caught_up(&b.a(), 1).await;
    submit(&a.a(), "editor").await;
    submit(&a.a(), "editor").await;
    assert_eq!(sequences(&reader.results(1).await), [1]);
    a.a().ack("editor", &[1]).await.expect("acked");
    assert_eq!(sequences(&reader.results(1).await), [2]);
    a.a().ack("editor", &[2]).await.expect("acked");
    // Without NATS the result waits for a look: one follows as soon as NATS is back.
    nats.process.kill();
    submit(&a.a(), "editor").await;
    let again = Nats::start(&program, nats.port);
    assert_eq!(sequences(&reader.results(1).await), [3]);
    again.subscribed(2).await;
    a.a().ack("editor", &[3]).await.expect("acked");
    submit(&a.a(), "editor").await;
    assert_eq!(sequences(&reader.results(1).await), [4], "by a hint again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_nats_server_results_come_by_polling() {
    let Some(shared) = Shared::new().await else { return };
    let port = free_port();
    let (a, b) = (serve(&shared, port, POLLS), serve(&shared, port, POLLS));
    let mut reader = caught_up(&b.a(), 0).await;
    for number in 1..=5 {
        submit(&a.a(), "editor").await;
        assert_eq!(sequences(&reader.results(1).await), [number]);
    }
}
