//! Placeholder of the first step; replaced by the sweeper.
#![allow(unused_variables, missing_docs, clippy::unimplemented, clippy::allow_attributes)]
use crate::engine::Engine;
use tokio_util::sync::CancellationToken;

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepCounts {
    pub returned: u64,
    pub expired: u64,
    pub dead: u64,
    pub start_deadlines: u64,
    pub locks_released: u64,
    pub consumers_removed: u64,
    pub batches_removed: u64,
}

/// One pass over everything that is due now.
pub async fn run_once(engine: &Engine) -> SweepCounts {
    unimplemented!()
}

/// Passes every `period` with jitter until `shutdown`.
pub async fn run(engine: Engine, period: std::time::Duration, shutdown: CancellationToken) {}
