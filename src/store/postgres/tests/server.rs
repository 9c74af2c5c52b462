//! A PostgreSQL server for the tests of this process, on a free port of the loopback.
//!
//! What must stay true: the server ends with the process, however that ends: a shell waits for
//! the pipe that only this process holds, stops the server by its process id, at once because
//! nothing in it is kept, waits for it and removes its directory. One database per test; no
//! server installed: the tests say so and skip.

use std::{
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_postgres::{Client, NoTls};

use super::super::{Migrations, PostgresOptions, PostgresStore};
use crate::engine::seams::Seams;

const SCRIPT: &str = r#"set -e
directory=$(mktemp -d /tmp/receiptd-postgres.XXXXXX)
"$1/initdb" -D "$directory/data" -U receiptd -A trust -E UTF8 --locale=C >/dev/null
"$1/postgres" -D "$directory/data" -p "$2" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories="$directory" -c max_connections=300 >"$directory/log" 2>&1 &
server=$!
cat >/dev/null || true
kill -QUIT $server
wait $server || true
rm -rf "$directory"
"#;

/// A server that runs as long as this value is there, or the process.
pub(super) struct Server {
    port: u16,
    /// Holds the pipe that keeps the server running.
    _shell: Child,
}

/// A database of a test's own.
pub(super) struct Database {
    port: u16,
    pub(super) name: String,
    pub(super) seams: Seams,
}

fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(start).as_ref()
}

fn binaries() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let debian = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let configured = Command::new("pg_config").arg("--bindir").output().ok();
    let configured = configured
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
    let mut found: Vec<PathBuf> =
        debian.chain(configured).filter(|path| path.join("initdb").exists()).collect();
    found.sort();
    found.pop()
}

pub(super) fn start() -> Option<Server> {
    let binaries = binaries()?;
    let port =
        TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("it").port();
    let root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    let mut command = if root {
        // The server refuses to run as root.
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    let shell = command
        .args(["-c", SCRIPT, "sh"])
        .arg(binaries)
        .arg(port.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell for the server");
    Some(Server { port, _shell: shell })
}

impl Database {
    /// Makes a database. `None`: there is no server to be had, which is said aloud.
    pub(super) async fn new() -> Option<Database> {
        let Some(server) = server() else {
            eprintln!("SKIPPED: PostgreSQL is not installed");
            return None;
        };
        Some(Database::on(server).await)
    }

    pub(super) async fn on(server: &Server) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let database = Database { port: server.port, name, seams: Seams::system() };
        let admin = database.connect_to("postgres").await;
        let text = format!("CREATE DATABASE {}", database.name);
        admin.batch_execute(&text).await.expect("a new database");
        database
    }

    pub(super) fn url(&self) -> String {
        let (port, name) = (self.port, &self.name);
        format!("postgres://receiptd:a-password@127.0.0.1:{port}/{name}?sslmode=disable")
    }

    pub(super) async fn open(&self) -> PostgresStore {
        self.open_with(|_| {}).await
    }

    pub(super) async fn open_with(&self, change: impl Fn(&mut PostgresOptions)) -> PostgresStore {
        let mut options = PostgresOptions::usual(Migrations::Apply);
        change(&mut options);
        PostgresStore::open(&self.url(), &self.seams, options).await.expect("the store opens")
    }

    /// A connection of its own, apart from any store.
    pub(super) async fn client(&self) -> Client {
        self.connect_to(&self.name).await
    }

    async fn connect_to(&self, name: &str) -> Client {
        let port = self.port;
        let url = format!("postgres://receiptd@127.0.0.1:{port}/{name}?sslmode=disable");
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            match tokio_postgres::connect(&url, NoTls).await {
                Ok((client, connection)) => {
                    self.seams.spawn(async move { drop(connection.await) });
                    return client;
                }
                Err(error) => {
                    assert!(Instant::now() < patience, "the server does not start: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}
