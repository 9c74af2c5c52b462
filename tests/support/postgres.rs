//! A PostgreSQL of the test run's own: one per test binary, a fresh database per test; and one of a
//! test's own for a test that stops it.
//!
//! What must stay true: no server of the machine is used or expected. The data directory is
//! temporary, the port is free, and the server ends with the test process. A server that was
//! stopped starts again on the same directory and port. Settings that make
//! commits durable stay on, since the service refuses to run without them. This file needs nothing
//! of the other support but its own child process, so that a test can take it alone.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses a part of this")]

#[path = "process.rs"]
pub mod process;

use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use process::Owned;

/// Set to `1`, an absent PostgreSQL is a failure and not a skip.
pub const REQUIRE: &str = "TESTS_REQUIRE_POSTGRES";

/// How long a server may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Postgres {
    port: u16,
    installed: Installed,
    databases: AtomicU64,
    // Never dropped, since each lives as long as the test run: the watchdog ends it and removes
    // its directory.
    process: Mutex<Owned>,
}

/// What a server is started from.
struct Installed {
    binaries: PathBuf,
    user: Option<(u32, u32)>,
    directory: PathBuf,
}

/// The URL of an empty database of the test's own; `None` where PostgreSQL is not installed.
pub async fn fresh_database() -> Option<String> {
    let server = tokio::task::block_in_place(postgres)?;
    let name = server.fresh_database().await;
    Some(server.url(&name, server.port()))
}

/// The server of this test binary; `None` where none is installed.
pub fn postgres() -> Option<&'static Postgres> {
    static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
    SERVER.get_or_init(start).as_ref()
}

/// A server for one test, which may stop it; `None` where none is installed. It lives as long as
/// the test run, as the shared one does.
pub fn own_postgres() -> Option<&'static Postgres> {
    start().map(|server| &*Box::leak(Box::new(server)))
}

impl Postgres {
    /// The server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database, reached through `port` (the server's own, or a proxy's).
    pub fn url(&self, database: &str, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    /// Makes an empty database and returns its name.
    pub async fn fresh_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("receiptd_test_{number}");
        let client = self.connect("postgres").await;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a fresh database");
        name
    }

    /// What the server has written to its log so far: deadlocks with their statements, for one.
    pub fn log(&self) -> String {
        log(&self.installed.directory)
    }

    /// Stops it as `pg_ctl stop --mode=immediate` does: sessions end in the middle of what they
    /// do, nothing is written any more. Returns when the server is gone and its port refuses.
    pub fn stop(&self) {
        let mut process = self.process();
        process.signal(Signal::QUIT);
        process.wait(PATIENCE).expect("it ends soon after SIGQUIT");
    }

    /// Stops it as `pg_ctl stop` does: whatever follows it gets everything first.
    pub fn stop_well(&self) {
        let mut process = self.process();
        process.signal(Signal::INT);
        process.wait(PATIENCE).expect("it ends soon after SIGINT");
    }

    /// Another server on a copy of the directory of this one, which does not run: a backup.
    pub fn copied(&self) -> &'static Postgres {
        let installed = self.installed.beside();
        let output = Command::new("cp")
            .arg("-a")
            .arg(self.installed.directory.join("data"))
            .arg(&installed.directory)
            .output()
            .expect("cp is there on every Unix");
        assert!(output.status.success(), "{output:?}");
        serve(installed)
    }

    /// A standby that follows this one. Returns when it takes connections that read.
    pub fn standby(&self) -> &'static Postgres {
        let installed = self.installed.beside();
        let url = self.url("postgres", self.port);
        let output = command(&installed.binaries.join("pg_basebackup"), installed.user)
            .args(["-d", &url, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"])
            .arg(installed.directory.join("data"))
            .current_dir(&installed.directory)
            .stdin(Stdio::null())
            .output()
            .expect("pg_basebackup starts");
        assert!(output.status.success(), "{output:?}");
        serve(installed)
    }

    /// Promotes a standby. Returns when it takes writes.
    pub fn promote(&self) {
        let Installed { binaries, user, directory } = &self.installed;
        let output = command(&binaries.join("pg_ctl"), *user)
            .args(["promote", "-w", "-D"])
            .arg(directory.join("data"))
            .current_dir(directory)
            .stdin(Stdio::null())
            .output()
            .expect("pg_ctl starts");
        assert!(output.status.success(), "{output:?}");
    }

    /// Copies a schema with everything in it into a database of another server, as a dump does.
    pub fn dump_into(&self, name: &str, other: &Postgres, other_name: &str) {
        let program = |name: &str| self.installed.binaries.join(name);
        let file = other.installed.directory.join(format!("{other_name}.sql"));
        let dump = command(&program("pg_dump"), None)
            .args(["-d", &self.url(name, self.port), "-f"])
            .arg(&file)
            .output()
            .expect("pg_dump starts");
        assert!(dump.status.success(), "{dump:?}");
        let load = command(&program("psql"), None)
            .args(["-q", "-v", "ON_ERROR_STOP=1", "-d", &other.url(other_name, other.port), "-f"])
            .arg(&file)
            .output()
            .expect("psql starts");
        assert!(load.status.success(), "{load:?}");
    }

    /// Starts it again with what it had made durable. Returns when it takes connections.
    pub fn start_again(&self) {
        let start = Instant::now();
        loop {
            // A connection that somebody makes may have the port for a moment.
            match launch(&self.installed, self.port) {
                Some(process) => {
                    *self.process() = process;
                    return;
                }
                None if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                None => panic!("PostgreSQL does not start again:\n{}", self.log()),
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Owned> {
        // A test that failed while it held the process leaves it as it is.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of the test's own.
    pub async fn connect(&self, database: &str) -> Client {
        self.connect_through(self.port, database).await
    }

    /// A connection of the test's own through something that listens on `port`.
    #[expect(clippy::disallowed_methods, reason = "a test's own task, not the service's")]
    pub async fn connect_through(&self, port: u16, database: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(database, port), NoTls)
            .await
            .expect("the server of the test run answers");
        tokio::spawn(connection);
        client
    }
}

fn start() -> Option<Postgres> {
    let Some(binaries) = binaries() else {
        let text = "SKIPPED (PostgreSQL is not installed): no initdb below \
                    /usr/lib/postgresql/*/bin or in `pg_config --bindir`";
        assert!(std::env::var(REQUIRE).is_err(), "{text}");
        eprintln!("{text}");
        return None;
    };
    let user = unprivileged();
    let installed = Installed::in_a_new_directory(binaries, user);
    initialise(&installed);
    Some(serve_on_a_free_port(installed))
}

impl Installed {
    fn in_a_new_directory(binaries: PathBuf, user: Option<(u32, u32)>) -> Installed {
        let directory = TempDir::with_prefix("receiptd-postgres-").expect("a temporary directory");
        if let Some((uid, gid)) = user {
            chown(directory.path(), Some(uid), Some(gid)).expect("root may change an owner");
        }
        Installed { binaries, user, directory: directory.keep() }
    }

    /// The same with an empty directory.
    fn beside(&self) -> Installed {
        Installed::in_a_new_directory(self.binaries.clone(), self.user)
    }
}

/// A server for one test on a directory that is there.
fn serve(installed: Installed) -> &'static Postgres {
    Box::leak(Box::new(serve_on_a_free_port(installed)))
}

fn serve_on_a_free_port(installed: Installed) -> Postgres {
    // The port is free now; another process could still take it before the server does.
    for _ in 0..5 {
        let port = free_port();
        if let Some(process) = launch(&installed, port) {
            let (databases, process) = (AtomicU64::new(0), Mutex::new(process));
            return Postgres { port, installed, databases, process };
        }
    }
    panic!("PostgreSQL does not start:\n{}", log(&installed.directory));
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("a bound port").port()
}

/// The newest installation's binaries.
fn binaries() -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, path)| path.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path).or_else(configured)
}

fn configured() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.join("initdb").exists().then_some(path)
}

/// PostgreSQL refuses to run as root: then it runs as `postgres`, or else as `nobody`.
pub fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("a list of users");
    let ids = |name: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (user, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
            (user == name).then(|| Some((uid.parse().ok()?, gid.parse().ok()?)))?
        })
    };
    ids("postgres").or_else(|| ids("nobody"))
}

/// `program`, run as `user` without forking, so that the process id is the program's own.
pub fn command(program: &Path, user: Option<(u32, u32)>) -> Command {
    let Some((uid, gid)) = user else {
        return Command::new(program);
    };
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()])
        .arg(program);
    command
}

fn initialise(installed: &Installed) {
    let Installed { binaries, user, directory } = installed;
    let output = command(&binaries.join("initdb"), *user)
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .args(["--no-sync", "--pgdata"])
        .arg(directory.join("data"))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .expect("initdb starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "initdb failed:\n{text}");
}

/// Starts the server and waits until it takes connections; `None` when it ends instead.
fn launch(installed: &Installed, port: u16) -> Option<Owned> {
    let Installed { binaries, user, directory } = installed;
    let output = File::create(directory.join("log")).expect("a log file");
    let mut command = command(&binaries.join("postgres"), *user);
    command
        .arg("-D")
        .arg(directory.join("data"))
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
        .args(["-c", &format!("port={port}"), "-c", "max_connections=200"])
        .args(["-c", "shared_buffers=32MB", "-c", "max_prepared_transactions=0"])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    let mut process = Owned::start(&mut command, "QUIT", Some(directory));
    let start = Instant::now();
    while process.ended().is_none() {
        assert!(start.elapsed() < PATIENCE, "PostgreSQL does not answer:\n{}", log(directory));
        if TcpStream::connect(("127.0.0.1", port)).is_ok()
            && log(directory).contains("ready to accept")
        {
            return Some(process);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}
