//! Sessions: one stream for everything that an editor does, with the answers of the unary calls.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod credit;
mod ends;
mod flood;
mod frames;
mod wire;
