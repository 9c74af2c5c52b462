//! The lives of a store: how one ends and the next begins, and how replicas find out.
//!
//! What must stay true: nothing here decides; the rules are in [`crate::domain::epoch`] and
//! [`crate::domain::failover`], and every change is a transaction of the store. In reading order:
//! [`marking`] marks a store, page by page; [`restoring`] does so after a restore; [`replica`] is one
//! replica's part in a failover.

pub mod marking;
pub mod replica;
pub mod restoring;
