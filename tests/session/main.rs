//! Sessions: one stream for everything that an editor does, with the answers of the unary calls.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/hosted.rs"]
mod hosted;

mod answers;
mod credit;
mod ends;
mod failing;
mod flood;
mod frames;
mod wire;
