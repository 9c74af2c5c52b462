//! Field cases: what happens to callers, results and queues when things go wrong in the field.
//! Each test is named after its case; the effect is counted at the target, never from replies.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/hosted.rs"]
mod hosted;

mod accounts;
mod acks;
mod answers;
mod failing;
mod identity;
mod inboxes;
mod outages;
mod overdue;
mod queues;
mod results;
mod resume;
mod retention;
mod shared;
mod slow;
mod spelling;
mod stores;
mod sweeping;
