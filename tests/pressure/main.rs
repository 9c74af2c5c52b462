//! What a peer costs that is idle, greedy, or does not read: memory and handles of a real process.
//!
//! What must stay true: the figures are those of the server's process alone, taken when a signal
//! says that it is at rest; limits are those of the requirements, and what was measured is printed.

#[path = "../support/mod.rs"]
mod support;

mod greedy;
mod idle;
mod unread;

/// A setting of a test run, where the usual size is only a part of the case.
fn size_of(variable: &str, usual: usize) -> usize {
    let named = std::env::var(variable).ok();
    named.map_or(usual, |text| text.parse().expect("a whole number"))
}
