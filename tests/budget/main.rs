//! What a batch may cost, and whom it may cost something: counted, never timed.

#[path = "../support/commands.rs"]
mod commands;
#[path = "../support/postgres.rs"]
mod postgres;

mod answers;
mod batch_rows;
mod held_ids;
mod load;
mod rows;
mod short_counts;
mod stores;
