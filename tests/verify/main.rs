//! `receiptd verify` and the check behind it: nothing is found on stores with a history of everything
//! that can happen, and each planted corruption is found by its name, alone.

#[path = "../support/commands.rs"]
mod commands;
#[path = "../support/mod.rs"]
mod support;

mod clean;
mod corruptions;
mod history;
mod online;
mod places;
mod program;
