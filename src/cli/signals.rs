//! The first signal drains; the second ends at once.

use std::{future::Future, pin::pin, process::ExitCode};

use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::server::ServerError;

/// What shells report for a process ended by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs `serving` until it ends by itself or is told to by `shutdown`.
pub(super) async fn run_until_signalled(
    serving: impl Future<Output = Result<(), ServerError>>,
    shutdown: CancellationToken,
) -> Result<ExitCode, Failure> {
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        biased;
        ended = &mut serving => ended,
        () = signal() => {
            shutdown.cancel();
            tokio::select! {
                biased;
                ended = &mut serving => ended,
                () = signal() => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
            }
        }
    };
    ended.map(|()| ExitCode::SUCCESS).map_err(Failure::plain)
}

/// The next SIGTERM or SIGINT.
#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return interrupted().await;
    };
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        () = interrupted() => {}
    }
}

/// The next interrupt of the console.
#[cfg(not(unix))]
async fn signal() {
    interrupted().await;
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the system's own default ends the process.
        std::future::pending::<()>().await;
    }
}
