//! Failure windows W1–W13, W15, W17 and W18 of the requirements: each forces the cut where the window
//! says, over a real socket, and checks the effect and the information returned.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/hosted.rs"]
mod hosted;

mod absence;
mod aging;
mod commit;
mod controls;
mod delivery;
mod identity;
mod races;
mod submit;
mod told;
