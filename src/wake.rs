//! Placeholder of the first step; replaced by the hints.
#![allow(unused_variables, missing_docs, clippy::unimplemented, clippy::allow_attributes)]
use crate::domain::{delivery::InboxKey, operation::OperationKey};

/// Hints in this process: who waits for what. Clones share one registry.
#[derive(Clone, Debug, Default)]
pub struct Wake;

/// One registered reader; deregisters when dropped.
#[derive(Debug)]
pub struct Watch;

impl Watch {
    /// Ends when something changed since the last call (a change in between is not lost).
    pub async fn changed(&self) {}
}

impl Wake {
    pub fn watch_operation(&self, key: OperationKey) -> Watch {
        unimplemented!()
    }
    pub fn watch_inbox(&self, key: InboxKey) -> Watch {
        unimplemented!()
    }
    pub fn operation_changed(&self, key: &OperationKey) {}
    pub fn inbox_changed(&self, key: &InboxKey) {}
    /// Everything somebody waits for, for the bulk re-read.
    pub fn watched(&self) -> (Vec<OperationKey>, Vec<InboxKey>) {
        unimplemented!()
    }
}
