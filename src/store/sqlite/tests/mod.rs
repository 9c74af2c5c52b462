//! The promises of the embedded store that no rule depends on being told.

mod fixtures;
mod opening;
mod plans;
mod reading;
mod saving;
mod turns;
