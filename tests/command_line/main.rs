//! The command line as its users see it: the real program, its words and its exit codes.
//!
//! What must stay true: whoever gets something wrong is told what, by the name they would change,
//! and what to do next, before anything was started or sent.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod encryption;
mod program;
mod results;
mod starting;
