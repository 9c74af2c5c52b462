//! Placeholder of the first step; replaced by the engine.
#![allow(
    unused_variables,
    missing_docs,
    dead_code,
    clippy::unimplemented,
    clippy::allow_attributes
)]
pub mod seams;

use crate::{
    domain::{
        command::{Command, Reply},
        delivery::InboxKey,
        ids::ConsumerId,
        operation::OperationKey,
        policy::Policy,
        refusal::Refusal,
    },
    engine::seams::Seams,
    store::Store,
    wake::Wake,
};

/// A handle; clones share one engine.
#[derive(Clone, Debug)]
pub struct Engine;

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Lanes that commit in parallel.
    pub lanes: usize,
}

/// Deliveries handed to an attached stream right after the commit that put them in flight.
pub type Handed = Vec<(crate::domain::delivery::Delivery, crate::domain::operation::Operation)>;

impl Engine {
    pub fn start(store: Store, policy: Policy, settings: EngineSettings, seams: Seams) -> Engine {
        unimplemented!()
    }
    /// Runs one command; completes even if the caller goes away.
    pub async fn run(&self, command: Command) -> Result<Reply, Refusal> {
        unimplemented!()
    }
    pub fn store(&self) -> &Store {
        unimplemented!()
    }
    pub fn policy(&self) -> &Policy {
        unimplemented!()
    }
    pub fn seams(&self) -> &Seams {
        unimplemented!()
    }
    pub fn wake(&self) -> &Wake {
        unimplemented!()
    }
    /// Counts a replay or attach, to be folded into the row at most once a second.
    pub fn count_replay(&self, key: &OperationKey) {}
    /// Makes a stream known, so that submits can put deliveries in flight to it at once.
    pub fn attach(
        &self,
        inbox: InboxKey,
        consumer: ConsumerId,
        epoch: i64,
        room: usize,
    ) -> tokio::sync::mpsc::Receiver<Handed> {
        unimplemented!()
    }
    /// Forgets a stream.
    pub fn detach(&self, inbox: &InboxKey, consumer: &ConsumerId, epoch: i64) {}
    /// Refuses new commands with DRAINING and waits for those that run.
    pub async fn drain(&self) {}
}
