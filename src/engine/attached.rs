//! The streams that are known on this replica, and how deliveries reach them right after the
//! commit that put them in flight.
//!
//! What must stay true: a stream is offered to a batch only if it is the only one of this replica
//! on its inbox, with the room that its channel has then. All commands of an account run in one
//! lane, so nobody else fills the channel meanwhile. Nothing here is the truth: a stream that is
//! gone when the commit ends loses nothing, because closing it returns what it held.
//!
//! Deliberately not here: the life of a stream, and whether a delivery may go to it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use crate::{
    domain::{
        delivery::{Delivery, InboxKey},
        ids::ConsumerId,
        operation::Operation,
        world::Attached,
    },
    engine::Handed,
    telemetry,
};

/// One stream.
#[derive(Debug)]
struct Stream {
    consumer: ConsumerId,
    epoch: i64,
    sender: mpsc::Sender<Handed>,
}

/// The streams of this replica, by inbox.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<InboxKey, Vec<Stream>>>);

impl Streams {
    /// Makes a stream known; its channel takes `room` deliveries, at least one.
    pub(super) fn attach(
        &self,
        inbox: InboxKey,
        consumer: ConsumerId,
        epoch: i64,
        room: usize,
    ) -> mpsc::Receiver<Handed> {
        let (sender, receiver) = mpsc::channel(room.max(1));
        self.lock().entry(inbox).or_default().push(Stream { consumer, epoch, sender });
        receiver
    }

    /// Forgets a stream.
    pub(super) fn detach(&self, inbox: &InboxKey, consumer: &ConsumerId, epoch: i64) {
        let mut streams = self.lock();
        let Some(readers) = streams.get_mut(inbox) else { return };
        readers.retain(|stream| stream.consumer != *consumer || stream.epoch != epoch);
        if readers.is_empty() {
            streams.remove(inbox);
        }
    }

    /// Of these inboxes those that exactly one stream reads here, with its room right now.
    pub(super) fn of(
        &self,
        inboxes: impl Iterator<Item = InboxKey>,
    ) -> BTreeMap<InboxKey, Attached> {
        let mut streams = self.lock();
        let mut attached = BTreeMap::new();
        for inbox in inboxes {
            let Some(readers) = streams.get_mut(&inbox) else { continue };
            // A reader that vanished without a word.
            readers.retain(|stream| !stream.sender.is_closed());
            if let [stream] = readers.as_slice() {
                let Stream { consumer, epoch, sender } = stream;
                let room = sender.capacity();
                let known = Attached { consumer: consumer.clone(), epoch: *epoch, room };
                attached.insert(inbox, known);
            }
        }
        attached
    }

    /// Hands over what a commit put in flight, each to the stream that it went to, in order.
    pub(super) fn hand(&self, handed: Vec<(Delivery, Operation)>) {
        let streams = self.lock();
        for (delivery, operation) in handed {
            let stream = streams.get(&delivery.key.inbox).and_then(|readers| {
                readers.iter().find(|stream| {
                    delivery
                        .consumer
                        .as_ref()
                        .is_some_and(|(id, epoch)| *id == stream.consumer && *epoch == stream.epoch)
                })
            });
            let taken = stream
                .is_some_and(|stream| stream.sender.try_send(vec![(delivery, operation)]).is_ok());
            telemetry::handed(match taken {
                true => telemetry::HandOver::Taken,
                false => telemetry::HandOver::Gone,
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InboxKey, Vec<Stream>>> {
        // Each change is a single step, so that a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
