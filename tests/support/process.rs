//! A child process that never outlives its owner.
//!
//! What must stay true: the child ends when [`Owned`] is dropped, and also when the test process
//! itself is killed: a small watchdog holds the other end of a pipe that only the test process
//! keeps open.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses a part of this")]

use std::{
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Waits for the end of the pipe, ends the child, waits for it (bounded, since a child that nobody
/// reaps still counts as there), and removes its directory.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
read -r line
kill -"$2" "$1" 2>/dev/null
tries=0
while kill -0 "$1" 2>/dev/null && [ "$tries" -lt 100 ]; do
  tries=$((tries + 1))
  sleep 0.05
done
kill -KILL "$1" 2>/dev/null
if [ -n "$3" ]; then rm -rf "$3"; fi
"#;

/// A child process with its watchdog.
pub struct Owned {
    child: Child,
    watchdog: Child,
}

impl Owned {
    /// Starts `command`. When the test process ends without dropping this, the child gets the
    /// signal named `last_signal`, and `directory` is removed.
    pub fn start(command: &mut Command, last_signal: &str, directory: Option<&Path>) -> Owned {
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", command.get_program()));
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &child.id().to_string(), last_signal])
            .arg(directory.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is there on every Unix");
        Owned { child, watchdog }
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child, if it still runs.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_some() {
            return;
        }
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let sent = kill_process(id.expect("a child has a process id"), signal);
        sent.expect("the child is ours and not reaped yet");
    }

    /// How the child ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours")
    }

    /// Waits for the child's own end; `None` when it is still there after `bound`.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.ended() {
                Some(status) => return Some(status),
                None if start.elapsed() > bound => return None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Kills the child at once and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself: then there is nothing to kill, only to reap.
        drop(self.child.kill());
        self.child.wait().expect("the child is ours");
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The watchdog first: after the child is reaped its number may belong to somebody else.
        drop(self.watchdog.kill());
        drop(self.watchdog.wait());
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
