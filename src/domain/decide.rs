//! Placeholder of the first step; replaced by the rules.
#![allow(unused_variables, missing_docs, clippy::unimplemented, clippy::allow_attributes)]
use super::{
    command::{Command, Decided, Reply},
    world::World,
};

/// Decides one command. On `Err` the world is as before.
pub fn decide(world: &mut World, command: &Command) -> Decided<Reply> {
    unimplemented!()
}
