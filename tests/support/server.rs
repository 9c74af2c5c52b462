//! receiptd as its users run it: a process on a socket, which a test may kill, pause or restart.
//!
//! What must stay true: nothing in here reaches into the process; a restart uses the same store
//! and the same port; standard error is kept and shown when a test fails.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{BOUND, client::Caller, postgres::process::Owned};

/// The token of account `a`, with every permission.
pub const TOKEN_A: &str = "token-of-account-a-0123456789abcdef";
/// The token of account `b`, with every permission.
pub const TOKEN_B: &str = "token-of-account-b-0123456789abcdef";

/// A token of account `a` that may only submit.
pub const TOKEN_SUBMITS: &str = "token-of-account-a-that-submits-0123";
/// A token of account `a` that may only receive.
pub const TOKEN_RECEIVES: &str = "token-of-account-a-that-receives-0123";
/// A token of account `a` that may only ack.
pub const TOKEN_ACKS: &str = "token-of-account-a-that-acks-0123";
/// A token of account `a` that may only read.
pub const TOKEN_READS: &str = "token-of-account-a-that-reads-0123";

/// Who may call: both accounts of the tests.
const ACCESS: &str = include_str!("access.toml");

/// Short clocks for every test; later flags of the same name win.
const CLOCKS: [&str; 2] = ["--sweep-interval=200ms", "--backoff-first=100ms"];

/// A running receiptd.
pub struct Server {
    process: Owned,
    address: SocketAddr,
    arguments: Vec<OsString>,
    directory: TempDir,
    // Keeps the pipe open and read: a process that prints more must not be stopped by it.
    _lines: mpsc::Receiver<String>,
}

impl Server {
    /// `receiptd serve` on `store`, with accounts `a` and `b` and the flags of a test.
    pub fn serve(store: &str, flags: &[&str]) -> Server {
        let directory = TempDir::with_prefix("receiptd-test-").expect("a temporary directory");
        let access = directory.path().join("access.toml");
        std::fs::write(&access, ACCESS).expect("an access file");
        let mut arguments: Vec<OsString> = vec!["serve".into(), "--store".into(), store.into()];
        arguments.extend(["--access-file".into(), access.into()]);
        Server::start(directory, arguments, flags)
    }

    /// `receiptd serve` where it must not start: how it ended, and what it said.
    pub fn refused(store: &str, flags: &[&str]) -> Refusal {
        let directory = TempDir::with_prefix("receiptd-test-").expect("a temporary directory");
        let access = directory.path().join("access.toml");
        std::fs::write(&access, ACCESS).expect("an access file");
        let mut command = program();
        command.args(["serve", "--store", store, "--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0", "--access-file"]).arg(&access).args(flags);
        let errors = File::create(directory.path().join("stderr")).expect("a log file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut process = Owned::start(&mut command, "KILL", None);
        let status = process.wait(BOUND * 3).expect("it ends by itself");
        let text = log(&directory);
        assert!(!status.success(), "it ended well:\n{text}");
        Refusal { status, text }
    }

    /// `receiptd dev` with its store in a directory of its own, account `local`.
    pub fn dev(flags: &[&str]) -> Server {
        let directory = TempDir::with_prefix("receiptd-test-").expect("a temporary directory");
        let arguments =
            vec!["dev".into(), "--data-dir".into(), directory.path().join("data").into()];
        Server::start(directory, arguments, flags)
    }

    fn start(directory: TempDir, mut arguments: Vec<OsString>, flags: &[&str]) -> Server {
        arguments.extend(["--admin-listen".into(), "127.0.0.1:0".into()]);
        arguments.extend(merged(flags).into_iter().map(OsString::from));
        let listening = launch(&directory, &arguments, "127.0.0.1:0");
        let (process, address, lines) = listening.unwrap_or_else(|text| panic!("{text}"));
        Server { process, address, arguments, directory, _lines: lines }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A caller of account `a`.
    pub fn a(&self) -> Caller {
        Caller::new(self.address, TOKEN_A)
    }

    /// A caller of account `b`.
    pub fn b(&self) -> Caller {
        Caller::new(self.address, TOKEN_B)
    }

    /// Memory in use, in bytes, where the system tells.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Open files and sockets, where the system tells.
    pub fn handles(&self) -> Option<usize> {
        Some(std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).ok()?.count())
    }

    /// Connections of callers that it holds, where the system tells.
    pub fn connections(&self) -> Option<usize> {
        const ESTABLISHED: &str = "01";
        const CLOSE_WAIT: &str = "08";
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let port = format!(":{:04X}", self.address.port());
        let held = table.lines().filter(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let own = columns.next().is_some_and(|local| local.ends_with(&port));
            own && columns.nth(1).is_some_and(|state| [ESTABLISHED, CLOSE_WAIT].contains(&state))
        });
        Some(held.count())
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same store and port.
    pub fn start_again(&mut self) {
        let listen = self.address.to_string();
        let listening = launch(&self.directory, &self.arguments, &listen);
        let (process, address, lines) = listening.unwrap_or_else(|text| panic!("{text}"));
        assert_eq!(address, self.address, "the same port");
        self.process = process;
        self._lines = lines;
    }

    /// Kills it and starts it again.
    pub fn crash_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.wait(BOUND).expect("it ends soon after SIGTERM")
    }

    /// Freezes it.
    pub fn pause(&mut self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.process.signal(Signal::CONT);
    }
}

/// A server that did not start.
pub struct Refusal {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard error.
    pub text: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("receiptd's standard error:\n{}", log(&self.directory));
        }
    }
}

/// The default clocks, except those that a test sets itself.
fn merged(flags: &[&str]) -> Vec<String> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let set: Vec<String> = flags.iter().map(|flag| name(flag)).collect();
    let defaults = CLOCKS.iter().filter(|flag| !set.contains(&name(flag)));
    defaults.chain(flags).map(|flag| (*flag).to_owned()).collect()
}

type Listening = (Owned, SocketAddr, mpsc::Receiver<String>);

/// Starts the program and waits for the line that says where it listens.
fn launch(directory: &TempDir, arguments: &[OsString], listen: &str) -> Result<Listening, String> {
    let path: PathBuf = directory.path().join("stderr");
    let errors = File::options().create(true).append(true).open(path).expect("a log file");
    let mut command = program();
    command
        .args(arguments)
        .args(["--listen", listen])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors);
    let mut process = Owned::start(&mut command, "KILL", None);
    let output = process.child().stdout.take().expect("standard output is a pipe");
    let lines = read_lines(output);
    loop {
        let Ok(line) = lines.recv_timeout(Duration::from_secs(30)) else {
            let log = log(directory);
            return Err(format!("receiptd does not say where it listens; its log:\n{log}"));
        };
        if let Some(address) = line.split("listening on http://").nth(1) {
            let address = address.trim().parse().expect("an address after `listening on`");
            return Ok((process, address, lines));
        }
    }
}

/// The program, without settings of the machine and of the test run itself.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_receiptd"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RECEIPTD_")) {
        command.env_remove(name);
    }
    command
}

fn read_lines(output: ChildStdout) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Nobody listens any more once the address is known: keep reading all the same.
            drop(send.send(line));
        }
    });
    receive
}

fn log(directory: &TempDir) -> String {
    std::fs::read_to_string(directory.path().join("stderr")).unwrap_or_default()
}
