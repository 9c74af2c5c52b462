//! NATS as a carrier of hints: one subject for each store.
//!
//! What must stay true: what NATS forgets is found by the bulk re-read, so nothing is stored there
//! and nothing waits for it. A client that lost its server is dropped, and the supervisor makes a
//! new one, as for every carrier.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subscriber, connection::State};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::store::postgres::Heard;

/// Longest time to make a connection, as for PostgreSQL.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How often a silent server is asked whether it is there; two answers missed end the connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Hints that wait to be read here: a second's worth of a dozen busy replicas. What comes on top is
/// lost, and found by the re-read.
const WAITING_MAX: usize = 512;

/// Where NATS is. Clones share the connection.
#[derive(Clone)]
pub struct Nats {
    servers: Arc<[ServerAddr]>,
    subject: Arc<str>,
    client: Arc<Mutex<Option<Client>>>,
}

impl Nats {
    /// Reads the URL, or several with commas between them. `epoch` names the store: replicas of
    /// another one, or of another life of this one, are not heard.
    ///
    /// # Errors
    /// What is wrong with the URL; never quotes it, since it may hold a password.
    pub fn new(url: &str, epoch: &str) -> Result<Nats, String> {
        let servers: Result<Vec<ServerAddr>, _> = url.split(',').map(str::parse).collect();
        let servers = servers.map_err(|_| "nats_url is not valid: nats://host:4222".to_owned())?;
        let subject = format!("receiptd.hints.{epoch}").into();
        Ok(Nats { servers: servers.into(), subject, client: Arc::default() })
    }

    /// Hands a hint to the server.
    pub(super) async fn send(&self, text: &str) -> Result<(), String> {
        let client = self.client().clone().ok_or("there is no connection to NATS")?;
        let sent = client.publish(self.subject.to_string(), text.to_owned().into()).await;
        sent.map_err(|error| error.to_string())?;
        client.flush().await.map_err(|error| error.to_string())
    }

    /// Connects and subscribes.
    pub(super) async fn listen(&self, heard: Heard) -> Result<Listening, String> {
        let lost = CancellationToken::new();
        let seen = lost.clone();
        let options = ConnectOptions::new()
            .name("receiptd")
            .no_echo()
            .max_reconnects(1)
            .connection_timeout(CONNECT_PATIENCE)
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(WAITING_MAX)
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    seen.cancel();
                }
                std::future::ready(())
            });
        let client = options.connect(&self.servers[..]).await.map_err(|error| error.to_string())?;
        let subscribed = client.subscribe(self.subject.to_string()).await;
        let subscriber = tokio::sync::Mutex::new(subscribed.map_err(|error| error.to_string())?);
        // What is said from now on is heard once the server has taken the subscription.
        client.flush().await.map_err(|error| error.to_string())?;
        *self.client() = Some(client.clone());
        Ok(Listening { nats: self.clone(), client, subscriber, heard, lost })
    }

    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        // Nothing that panics runs under the lock.
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Nats").field("subject", &self.subject).finish_non_exhaustive()
    }
}

/// A subscription; dropped, its connection is closed.
pub(super) struct Listening {
    nats: Nats,
    client: Client,
    subscriber: tokio::sync::Mutex<Subscriber>,
    heard: Heard,
    lost: CancellationToken,
}

impl Listening {
    /// Hands on what is heard, until the connection is lost.
    pub(super) async fn ended(&self) {
        let hearing = async {
            let mut subscriber = self.subscriber.lock().await;
            while let Some(message) = subscriber.next().await {
                // What is no text is no hint of ours: it asks for a look as any other.
                (self.heard)(std::str::from_utf8(&message.payload).unwrap_or_default());
            }
        };
        tokio::select! {
            () = self.lost.cancelled() => {}
            () = hearing => {}
        }
    }

    /// Whether the connection is there: its pings tell.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err("NATS does not answer".to_owned()),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        *self.nats.client() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_never_shown() {
        let nats = Nats::new("nats://app:canary@one:4222,nats://two", "e").expect("valid");
        assert_eq!((nats.servers.len(), &*nats.subject), (2, "receiptd.hints.e"));
        assert!(!format!("{nats:?}").contains("canary"));
        let problem = Nats::new("canary://x y", "e").expect_err("not valid");
        assert!(!problem.contains("canary"), "{problem}");
    }
}
