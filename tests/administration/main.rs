//! What operators do, over a real socket and on both stores: the effect, and what is told.

#[path = "../support/hosted.rs"]
mod hosted;
#[path = "../support/mod.rs"]
mod support;

mod erase;
mod export;
mod floor;
mod sweep;
mod usage;
