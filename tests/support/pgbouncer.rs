//! A PgBouncer in transaction mode before the test run's PostgreSQL: one per value, any version.
//!
//! What must stay true: it has fewer connections to the server than the service has to it, so that
//! a transaction often runs on another server than the one before. Absent, it is said aloud.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses a part of this")]

use std::{
    net::{TcpListener, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::postgres::{self, Postgres, process::Owned};

/// Set to `1`, an absent PgBouncer is a failure and not a skip.
pub const REQUIRE: &str = "TESTS_REQUIRE_PGBOUNCER";

/// A running pooler.
pub struct PgBouncer {
    port: u16,
    _process: Owned,
    _directory: TempDir,
}

impl PgBouncer {
    /// Starts one that lends a server for one transaction; `None` where it is not installed.
    pub fn in_transaction_mode(server: &Postgres) -> Option<PgBouncer> {
        PgBouncer::start(server, "transaction")
    }

    /// Starts one that lends a server for a session.
    pub fn in_session_mode(server: &Postgres) -> Option<PgBouncer> {
        PgBouncer::start(server, "session")
    }

    /// Where it listens on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn start(server: &Postgres, mode: &str) -> Option<PgBouncer> {
        let Some(program) = program() else {
            let text = "SKIPPED (PgBouncer is not installed): no pgbouncer in PATH or /usr/sbin";
            assert!(std::env::var(REQUIRE).is_err(), "{text}");
            eprintln!("{text}");
            return None;
        };
        // The port is free now; another process could still take it before the pooler does.
        (0..5)
            .find_map(|_| launch(&program, server, mode))
            .or_else(|| panic!("PgBouncer does not start"))
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    directories.map(|directory| directory.join("pgbouncer")).find(|program| program.exists())
}

fn launch(program: &Path, server: &Postgres, mode: &str) -> Option<PgBouncer> {
    let directory = TempDir::with_prefix("receiptd-pgbouncer-").expect("a temporary directory");
    let user = postgres::unprivileged();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("a bound port").port();
    drop(free);
    let size = if mode == "transaction" { 3 } else { 50 };
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = users\npool_mode = {mode}\n\
         default_pool_size = {size}\nmax_client_conn = 300\n",
        server.port()
    );
    let files = [("settings", settings), ("users", "\"postgres\" \"\"\n".to_owned())];
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).expect("a file");
    }
    if let Some((uid, gid)) = user {
        chown(directory.path(), Some(uid), Some(gid)).expect("root may change an owner");
    }
    let log = std::fs::File::create(directory.path().join("log")).expect("a log file");
    let mut command = postgres::command(program, user);
    command
        .arg("settings")
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let mut process = Owned::start(&mut command, "KILL", Some(directory.path()));
    let start = Instant::now();
    while process.ended().is_none() {
        assert!(start.elapsed() < Duration::from_secs(30), "PgBouncer does not answer");
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(PgBouncer { port, _process: process, _directory: directory });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    eprintln!("PgBouncer ended:\n{log}");
    None
}
