//! Failure windows W1–W12, W15 and W18 of the requirements: each forces the cut where the window
//! says, over a real socket, and checks the effect and the information returned.

#[path = "../support/mod.rs"]
mod support;

mod commit;
mod controls;
mod delivery;
mod identity;
mod races;
mod submit;
mod told;
