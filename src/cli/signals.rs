//! The first signal drains; the second ends at once.
//!
//! SIGHUP is one of them: a closed terminal ends a server as properly as SIGTERM does. It reads no
//! file again; a new access file or certificate needs a restart.

use std::{future::Future, pin::pin, process::ExitCode};

use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::server::ServerError;

/// What shells report for a process ended by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// The signals that end a server. From its making on none of them ends the process by itself, so
/// that one right after the start drains like any other.
#[cfg(unix)]
pub(super) struct Signals {
    terminate: Option<tokio::signal::unix::Signal>,
    interrupt: Option<tokio::signal::unix::Signal>,
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on. What the system does not allow stays with the system's own default.
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Signals {
            terminate: listen(SignalKind::terminate()),
            interrupt: listen(SignalKind::interrupt()),
            hangup: match ignores_hangup(&status) {
                true => None,
                false => listen(SignalKind::hangup()),
            },
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            () = next_of(&mut self.terminate) => {}
            () = next_of(&mut self.interrupt) => {}
            () = next_of(&mut self.hangup) => {}
        }
    }
}

#[cfg(unix)]
async fn next_of(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The interrupts of the console.
#[cfg(not(unix))]
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn listen() -> Self {
        Signals
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler the system's own default ends the process.
            std::future::pending::<()>().await;
        }
    }
}

impl Signals {
    /// Starts something, which the first signal gives up.
    pub(super) async fn start<T>(
        &mut self,
        starting: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.next() => Err(Failure::new(EXIT_INTERRUPTED, "stopped before it served")),
            started = starting => started,
        }
    }

    /// Runs `serving` until it ends by itself or is told to by `shutdown`.
    pub(super) async fn run(
        &mut self,
        serving: impl Future<Output = Result<(), ServerError>>,
        shutdown: CancellationToken,
    ) -> Result<ExitCode, Failure> {
        let mut serving = pin!(serving);
        let ended = tokio::select! {
            biased;
            ended = &mut serving => ended,
            () = self.next() => {
                shutdown.cancel();
                tokio::select! {
                    biased;
                    ended = &mut serving => ended,
                    () = self.next() => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
                }
            }
        };
        ended.map(|()| ExitCode::SUCCESS).map_err(Failure::plain)
    }
}

/// Whether the mask of ignored signals in `/proc/self/status` holds SIGHUP, the first signal.
/// Systems without this file let the signal drain. Whoever started the process, nohup for one, had
/// it ignored: a handler of ours would undo that.
#[cfg(unix)]
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        for (status, ignored) in [
            ("Name:\treceiptd\nSigIgn:\t0000000000000001\n", true),
            ("Name:\treceiptd\nSigIgn:\t0000000000001000\n", false),
            ("Name:\treceiptd\n", false),
            ("", false),
        ] {
            assert_eq!(ignores_hangup(status), ignored, "{status}");
        }
    }
}
