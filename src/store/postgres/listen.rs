//! LISTEN and NOTIFY: the server as a carrier of hints between replicas.
//!
//! What must stay true: no NOTIFY travels in a transaction that decides, because all commits that
//! notify wait for one lock of the database (T12); the one who listens has a connection of its own,
//! outside the pools, that leads to the server directly (a pooler that lends a server for one
//! transaction delivers nothing, T18) and never has a transaction open, which would fill the
//! server's queue. What a hint says is none of the store's business.

use std::time::Duration;

use super::{
    PostgresStore, errors,
    session::{Call, Session, value},
};
use crate::store::{OpenError, ReadError};

const NOTIFY: &str = "SELECT pg_notify('receiptd_hints', $1::text)";
const LISTEN: &str = "LISTEN receiptd_hints";
const LISTENS: &str = "SELECT 1 FROM pg_listening_channels() AS channel
    WHERE channel = 'receiptd_hints'";

/// What is done with what arrives. Called where the connection is read: it never waits.
pub type Heard = Box<dyn Fn(&str) + Send + Sync>;

impl PostgresStore {
    /// Says something to whoever listens, over a connection for upkeep. Nothing is durable; that it
    /// was said is no proof that it was heard. `text` stays below 8,000 bytes.
    ///
    /// # Errors
    /// [`ReadError`] if it could not be said.
    pub async fn notify(&self, text: &str) -> Result<(), ReadError> {
        let call = Call { sql: NOTIFY, parameters: vec![value(text)] };
        self.upkeep_write(call).await.map(drop)
    }

    /// Opens a connection that hears what others, and this replica itself, say from now on.
    ///
    /// # Errors
    /// [`OpenError`] if there is no connection in time.
    pub async fn listen(&self, heard: Heard) -> Result<Listening, OpenError> {
        let session = self.0.direct.connect().await?;
        session.hear(heard);
        let listening =
            Listening { session: Some(session), patience: self.0.options.flight_timeout };
        listening.ask(listening.session().run(LISTEN)).await.map_err(OpenError)?;
        Ok(listening)
    }
}

/// A connection that listens; dropped, it is closed at once.
#[derive(Debug)]
pub struct Listening {
    session: Option<Session>,
    patience: Duration,
}

impl Listening {
    /// Ends when the connection has.
    pub async fn ended(&self) {
        self.session().ended().await;
    }

    /// Asks the server whether it still knows of this listener.
    ///
    /// # Errors
    /// Why nothing is heard any more.
    pub async fn check(&self) -> Result<(), String> {
        let call = Call { sql: LISTENS, parameters: Vec::new() };
        match self.ask(self.session().query(call)).await?.is_empty() {
            false => Ok(()),
            true => Err("the server does not know of this listener: the connection for LISTEN \
                         leads through a pooler; set listen_url to the server itself"
                .to_owned()),
        }
    }

    async fn ask<T>(
        &self,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.patience, asked).await {
            Ok(answer) => answer.map_err(|error| errors::words(&error)),
            Err(_) => Err("PostgreSQL did not reply in time".to_owned()),
        }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("it has its connection until it is dropped")
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.discard();
        }
    }
}
