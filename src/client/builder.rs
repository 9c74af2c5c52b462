//! A client with its choices, one by one.
//!
//! What must stay true: whatever is not chosen has the value that [`ConnectOptions::plain`] names;
//! nothing is read or sent before [`ClientBuilder::build`].
//! Deliberately not here: what the choices do (see [`super::connect`]).

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use super::{
    connect::{Client, ClientCertificate, ConnectError, ConnectOptions, Keepalive, Secret, Trust},
    error::Failure,
    file_journal::FileJournal,
    journal::{Journal, JournalError},
    retry::RetryLimits,
};

/// A client to be.
#[derive(Debug)]
pub struct ClientBuilder {
    endpoint: String,
    options: ConnectOptions,
    authorities: Option<PathBuf>,
    journal: Option<Kept>,
}

/// Where the journal is.
#[derive(Debug)]
enum Kept {
    InFile(PathBuf),
    Own(Arc<dyn Journal>),
}

/// Why a client could not be built. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The endpoint, the credentials or the settings of TLS cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of certificates cannot be read.
    #[error("{path} cannot be read")]
    Certificates {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service was asked for what it keeps, and did not answer.
    #[error("the service does not say how long it admits an id")]
    NoAnswer(#[source] Failure),
    /// The retries may go on longer than the service admits an id: the last of them would be refused,
    /// and whether an earlier one arrived could not be told.
    #[error(
        "retries may go on for {total:?}, and the service admits an id for {window:?}: set \
         RetryLimits::total to less"
    )]
    RetriesTooLong {
        /// See [`RetryLimits::total`].
        total: Duration,
        /// The account's admission window.
        window: Duration,
    },
}

impl Client {
    /// A client of the service at this address, such as `http://127.0.0.1:7070`.
    pub fn builder(endpoint: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            endpoint: endpoint.into(),
            options: ConnectOptions::plain(),
            authorities: None,
            journal: None,
        }
    }
}

impl ClientBuilder {
    /// Sends this bearer token with every call; the account comes from it alone.
    pub fn token(mut self, token: Secret) -> Self {
        self.options.token = Some(token);
        self
    }

    /// Trusts only the authorities in this file (PEM) behind `https`, instead of the public ones.
    pub fn authorities_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authorities = Some(path.into());
        self
    }

    /// Shows this certificate to a server that asks for one.
    pub fn certificate(mut self, certificate: ClientCertificate) -> Self {
        self.options.certificate = Some(certificate);
        self
    }

    /// How long one try to connect may take; 5 s unless chosen.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.options.connect_timeout = time;
        self
    }

    /// How long one attempt of a call may wait for its answer, beyond the `wait` it asks for; 10 s
    /// unless chosen.
    pub fn call_deadline(mut self, time: Duration) -> Self {
        self.options.limits.per_attempt = time;
        self
    }

    /// The limits of repeating, the deadline of one attempt among them.
    pub fn limits(mut self, limits: RetryLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// When the connection is pinged; while busy unless chosen.
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.options.keepalive = keepalive;
        self
    }

    /// Keeps the journal in this file, for one process at a time. Without a journal of any kind it
    /// is kept in memory and ends with the process.
    pub fn journal_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(Kept::InFile(path.into()));
        self
    }

    /// Keeps the journal in a store of your own.
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(Kept::Own(journal));
        self
    }

    /// The client; its connection is made at the first call. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`BuildError`]; nothing was sent.
    pub fn build(self) -> Result<Client, BuildError> {
        let mut options = self.options;
        if let Some(path) = self.authorities {
            let pem = fs::read(&path);
            let pem = pem.map_err(|source| BuildError::Certificates { path, source })?;
            options.trust = Trust::Authorities(pem);
        }
        let client = Client::connect(&self.endpoint, options)?;
        Ok(match self.journal {
            None => client,
            Some(Kept::Own(journal)) => client.with_journal_in(journal),
            Some(Kept::InFile(path)) => client.with_journal_in(Arc::new(FileJournal::open(path)?)),
        })
    }
}

impl ClientBuilder {
    /// As [`ClientBuilder::build`], and asks the service for how long it admits an id: retries that
    /// may go on longer are refused. Needs the permission `read`.
    ///
    /// # Errors
    /// [`BuildError`]; nothing was changed.
    pub async fn connect(self) -> Result<Client, BuildError> {
        let client = self.build()?;
        let answer = client.look_up(&client.mint()).await.map_err(BuildError::NoAnswer)?;
        let window = answer.evidence.and_then(|evidence| evidence.admission_window);
        // A service of an earlier release does not say it.
        let window = window.and_then(|window| Duration::try_from(window).ok());
        let total = client.limits().total;
        match window {
            Some(window) if total >= window => Err(BuildError::RetriesTooLong { total, window }),
            Some(_) | None => Ok(client),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn choices_that_cannot_be_used_are_named() {
        let local = || Client::builder("http://127.0.0.1:1");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let missing = directory.path().join("missing.pem");
        let error = local().authorities_file(&missing).build().expect_err("no such file");
        assert!(error.to_string().contains("missing.pem"), "{error}");
        let error = Client::builder("not an address").build().expect_err("no address");
        assert!(matches!(error, BuildError::Connect(ConnectError::Address { .. })), "{error}");
        let journal = directory.path().join("journal");
        let client = local().journal_file(&journal).build().expect("a usable client");
        let error = local().journal_file(&journal).build().expect_err("in use");
        assert!(matches!(error, BuildError::Journal(JournalError::InUse(_))), "{error}");
        drop(client);
        local().journal_file(&journal).build().expect("free again");
    }

    #[tokio::test]
    async fn secrets_never_show() {
        let certificate =
            ClientCertificate { chain: b"chain".to_vec(), key: Secret::new("key-canary") };
        let builder = Client::builder("http://127.0.0.1:1")
            .token(Secret::new("token-canary"))
            .certificate(certificate);
        let shown = format!("{builder:?} {:?}", builder.options);
        assert!(!shown.contains("canary"), "{shown}");
    }
}
