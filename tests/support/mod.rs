//! What the black-box tests share: stores, servers, a proxy and raw clients.
//!
//! What must stay true: every wait has a bound, every process that is started ends with its test
//! at the latest with the test run, and nothing in here knows an inner type of the service.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::allow_attributes,
    reason = "each test binary uses a part of this"
)]

pub mod answers;
pub mod client;
pub mod pattern;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod requests;
pub mod server;
pub mod stores;

use std::{future::Future, time::Duration};

/// How long a test waits for anything, unless it says otherwise.
pub const BOUND: Duration = Duration::from_secs(10);

/// Awaits `future` for at most [`BOUND`]; `what` is named when that was not enough.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {} s in vain for: {what}", BOUND.as_secs()),
    }
}

/// Asks again and again until there is an answer, for at most `bound`.
pub async fn eventually<T, F>(what: &str, bound: Duration, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    match tokio::time::timeout(bound, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited {bound:?} in vain for: {what}"),
    }
}

/// Starts a task of the test's own.
#[expect(clippy::disallowed_methods, reason = "a test's own task, not the service's")]
pub fn background<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// The test's own clock.
#[expect(clippy::disallowed_methods, reason = "the caller's clock mints ids")]
pub fn wall_clock() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
