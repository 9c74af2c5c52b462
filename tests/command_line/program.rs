//! Runs the program: to its end, or as a server whose first words are read.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{BOUND, postgres::process::Owned};

/// After this many seconds `timeout` ends a command: an answer takes far less.
const SECONDS_MAX: &str = "60";

/// How a command ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Everything was said in `words`, and the exit code is this one.
    pub fn expect(&self, code: i32, words: &[&str]) -> &Self {
        let Ended { stdout, stderr, .. } = self;
        assert_eq!(self.code, Some(code), "{stdout}{stderr}");
        for word in words {
            assert!(stderr.contains(word) || stdout.contains(word), "{word}: {stdout}{stderr}");
        }
        self
    }
}

/// A command of the program, without the settings of the machine.
pub fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RECEIPTD_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs `receiptd WORDS` in a folder of its own, to its end.
pub fn receiptd(words: &[&str]) -> Ended {
    let folder = TempDir::new().expect("a temporary directory");
    receiptd_in(folder.path(), &[], words)
}

/// Runs `receiptd WORDS` in this folder with these variables, to its end.
pub fn receiptd_in(folder: &Path, variables: &[(&str, &str)], words: &[&str]) -> Ended {
    let mut command = command("timeout", folder);
    command.args([SECONDS_MAX, env!("CARGO_BIN_EXE_receiptd")]).args(words);
    ended(command.envs(variables.iter().copied()))
}

/// Runs a line of a shell to its end.
pub fn shell(folder: &Path, line: &str) -> Ended {
    ended(command("timeout", folder).args([SECONDS_MAX, "sh", "-c", line]))
}

fn ended(command: &mut Command) -> Ended {
    let output = command.output().expect("timeout is there");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A file of the tests' own certificates.
pub fn tls_file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
    folder.join(name).display().to_string()
}

/// A server in a folder of its own, with what it printed at its start.
pub struct Running {
    process: Owned,
    /// The lines up to the one that was waited for.
    pub printed: Vec<String>,
    folder: TempDir,
}

impl Running {
    /// `receiptd dev` on free ports, up to the last line of its welcome.
    pub fn dev(words: &[&str]) -> Running {
        Running::dev_with(TempDir::new().expect("a temporary directory"), &[], words)
    }

    /// The same, in a folder that is there, with these variables.
    pub fn dev_with(folder: TempDir, variables: &[(&str, &str)], words: &[&str]) -> Running {
        let mut command = command(env!("CARGO_BIN_EXE_receiptd"), folder.path());
        let log = std::fs::File::create(folder.path().join("log")).expect("a log file");
        let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        command.arg("dev").args(ports).args(words).envs(variables.iter().copied());
        let mut process = Owned::start(command.stdout(Stdio::piped()).stderr(log), "KILL", None);
        let output = process.child().stdout.take().expect("standard output is a pipe");
        let mut printed = Vec::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            printed.push(line);
            if printed.last().is_some_and(|line| line.contains("inbox stream")) {
                break;
            }
        }
        Running { process, printed, folder }
    }

    /// Where it listens, with its scheme.
    pub fn endpoint(&self) -> String {
        let line = self.printed.iter().find_map(|line| line.strip_prefix("listening on "));
        line.unwrap_or_else(|| panic!("no address in {:?}: {}", self.printed, self.log()))
            .to_owned()
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Runs a command of a caller.
    pub fn call(&self, words: &[&str]) -> Ended {
        let endpoint = self.endpoint();
        receiptd_in(self.folder.path(), &[("RECEIPTD_ENDPOINT", &endpoint)], words)
    }

    /// Sends a signal and waits for the end.
    pub fn end_by(&mut self, signal: Signal) -> ExitStatus {
        self.process.signal(signal);
        self.process.wait(BOUND).expect("it ends soon after the signal")
    }

    /// Ends it, and gives back its folder.
    pub fn stop(mut self) -> TempDir {
        self.end_by(Signal::TERM);
        self.folder
    }
}
