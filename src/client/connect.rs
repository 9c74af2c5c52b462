//! One lazy connection to a receiptd, with the settings that keep it honest.
//!
//! What must stay true: nothing is sent before the first call; a dead peer is noticed within 30 s
//! while a stream is open, and an idle connection sends no pings (servers of other makers close
//! it otherwise); a token never shows in a debug print.
//! Deliberately not here: retries. The channel reconnects by itself, but it never repeats a call.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use prost_types::Timestamp;
use tonic::{
    Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};

use super::{
    identity::{OperationIdentity, millis_of, system_millis, system_random},
    journal::{Journal, MemoryJournal},
    retry::RetryLimits,
};
use crate::proto::{
    admin_service_client::AdminServiceClient, document_service_client::DocumentServiceClient,
    inbox_service_client::InboxServiceClient, operation_service_client::OperationServiceClient,
};

/// Small unread frames are charged against half of the connection's window (some h2 versions close
/// the connection when it is spent), so the windows are well above the 64 KiB of the protocol.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Four streams' worth, so that one stream that is read late does not starve the acks beside it.
const CONNECTION_WINDOW_BYTES: u32 = 4 * STREAM_WINDOW_BYTES;
/// How often an open stream is pinged; with the answer's limit, a dead peer is noticed in 30 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a ping may stay unanswered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A page of 1,000 operations with long targets stays below this.
const MESSAGE_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// How a certificate in PEM begins.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// A secret that never shows in a debug print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Secret(secret.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Whom to trust behind an `https` endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The public certificate authorities.
    PublicRoots,
    /// Only these authorities, in PEM.
    Authorities(Vec<u8>),
}

/// How a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Sent as `authorization: Bearer …`; the account comes from it alone.
    pub token: Option<Secret>,
    /// Used when the endpoint is `https`.
    pub trust: Trust,
    /// How long one try to connect may take.
    pub connect_timeout: Duration,
    /// This client's own certificate, shown to a server that asks for one.
    pub certificate: Option<ClientCertificate>,
    /// When the connection is pinged.
    pub keepalive: Keepalive,
    /// The limits of repeating.
    pub limits: RetryLimits,
}

/// A client's own certificate with its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate and those between it and the authority.
    pub chain: Vec<u8>,
    /// Its key.
    pub key: Secret,
}

/// When a connection is pinged, every 20 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keepalive {
    /// While a call or a stream is open: what any server and proxy takes.
    WhileBusy,
    /// Always, so that a quiet connection is not forgotten on its way. receiptd takes it; servers
    /// and proxies of other makers may close a connection that is pinged without a call.
    Always,
}

impl ConnectOptions {
    /// Without a token, for a server on the same machine.
    pub fn plain() -> Self {
        ConnectOptions {
            token: None,
            trust: Trust::PublicRoots,
            certificate: None,
            keepalive: Keepalive::WhileBusy,
            connect_timeout: Duration::from_secs(5),
            limits: RetryLimits::standard(),
        }
    }

    /// The same with a bearer token.
    pub fn with_token(token: Secret) -> Self {
        ConnectOptions { token: Some(token), ..ConnectOptions::plain() }
    }
}

/// Why a client could not be made. No connection was tried yet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not an address that can be called. Trying again changes nothing.
    #[error(
        "{endpoint:?} is not an address to call: write http://HOST:PORT, or https://HOST:PORT \
         where the server has a certificate"
    )]
    Address {
        /// What was given.
        endpoint: String,
    },
    /// The endpoint or its TLS settings are not usable.
    #[error("the endpoint {endpoint} cannot be used: {source}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// What should name the trusted authorities names none.
    #[error("there is no certificate in the PEM text of the authorities")]
    Authorities,
    /// The token cannot travel in a header.
    #[error("the token holds characters that cannot be sent in a header")]
    Token,
}

/// A client of one receiptd, cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    channel: InterceptedService<Channel, Credentials>,
    limits: RetryLimits,
    journal: Arc<dyn Journal>,
    /// How far the store's clock is ahead of this machine's, once the store has told.
    clock_offset_ms: Arc<AtomicI64>,
}

impl Client {
    /// Prepares a connection to `http://HOST:PORT` or `https://HOST:PORT`, which is made at the
    /// first call, with a journal in memory. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ConnectError`] for what no call could ever use; none of it is worth another try.
    pub fn connect(endpoint: &str, options: ConnectOptions) -> Result<Self, ConnectError> {
        if !can_be_called(endpoint) {
            return Err(ConnectError::Address { endpoint: endpoint.to_owned() });
        }
        let unusable = |source| ConnectError::Endpoint { endpoint: endpoint.to_owned(), source };
        let mut prepared = Endpoint::from_shared(endpoint.to_owned())
            .map_err(unusable)?
            .connect_timeout(options.connect_timeout)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(options.keepalive == Keepalive::Always);
        if prepared.uri().scheme_str() == Some("https") {
            let tls = match options.trust {
                Trust::PublicRoots => ClientTlsConfig::new().with_webpki_roots(),
                Trust::Authorities(pem) => {
                    if !String::from_utf8_lossy(&pem).contains(CERTIFICATE) {
                        return Err(ConnectError::Authorities);
                    }
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
                }
            };
            let tls = match options.certificate {
                None => tls,
                Some(own) => tls.identity(Identity::from_pem(own.chain, own.key.0)),
            };
            prepared = prepared.tls_config(tls).map_err(unusable)?;
        }
        let credentials = Credentials::new(options.token)?;
        Ok(Client {
            channel: InterceptedService::new(prepared.connect_lazy(), credentials),
            limits: options.limits,
            journal: Arc::new(MemoryJournal::new()),
            clock_offset_ms: Arc::new(AtomicI64::new(0)),
        })
    }

    /// A new identity from this machine's clock, set right by what the store has told of its own.
    /// Make one per intended action, and keep it before anything is sent.
    pub fn mint(&self) -> OperationIdentity {
        let now = system_millis() + self.clock_offset_ms.load(Ordering::Relaxed);
        OperationIdentity::mint_at(now, &system_random())
    }

    /// The limits of repeating.
    pub fn limits(&self) -> RetryLimits {
        self.limits
    }

    /// The same connection with other limits.
    pub fn with_limits(&self, limits: RetryLimits) -> Self {
        Client { limits, ..self.clone() }
    }

    /// The same connection with another journal.
    pub fn with_journal_in(&self, journal: Arc<dyn Journal>) -> Self {
        Client { journal, ..self.clone() }
    }

    /// What a restart of this program must find.
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }

    /// Later identities are minted by the store's clock.
    pub(crate) fn learn_store_time(&self, store_time: &Timestamp) {
        self.clock_offset_ms.store(millis_of(store_time) - system_millis(), Ordering::Relaxed);
    }

    pub(crate) fn operations(&self) -> OperationServiceClient<ClientChannel> {
        OperationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
    }

    pub(crate) fn inboxes(&self) -> InboxServiceClient<ClientChannel> {
        InboxServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT_BYTES)
    }

    pub(crate) fn administration(&self) -> AdminServiceClient<ClientChannel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) fn documents(&self) -> DocumentServiceClient<ClientChannel> {
        DocumentServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
    }
}

/// A scheme, a host, and nothing that a call would ignore.
fn can_be_called(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<Uri>() else { return false };
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && is_bare
}

/// The channel under the generated clients.
pub(crate) type ClientChannel = InterceptedService<Channel, Credentials>;

/// Adds the bearer token to every call.
#[derive(Clone)]
pub(crate) struct Credentials {
    header: Option<MetadataValue<Ascii>>,
}

impl Credentials {
    fn new(token: Option<Secret>) -> Result<Self, ConnectError> {
        let Some(token) = token else { return Ok(Credentials { header: None }) };
        let mut header: MetadataValue<Ascii> =
            format!("Bearer {}", token.0).parse().map_err(|_| ConnectError::Token)?;
        // Keeps the value out of header compression tables and debug prints.
        header.set_sensitive(true);
        Ok(Credentials { header: Some(header) })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("present", &self.header.is_some()).finish()
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        if let Some(header) = &self.header {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_never_shows() {
        let options = ConnectOptions::with_token(Secret::new("very-secret"));
        let client =
            Client::connect("http://127.0.0.1:1", options.clone()).expect("a usable endpoint");
        let shown = format!("{options:?} {client:?}");
        assert!(!shown.contains("very-secret"), "{shown}");
    }

    #[tokio::test]
    async fn what_no_call_could_use_is_refused_at_once() {
        let connect = |endpoint: &str| Client::connect(endpoint, ConnectOptions::plain());
        for wrong in [
            "127.0.0.1:7070",
            "localhost:7070",
            "localhost",
            "",
            "http://",
            "http:// a",
            "ftp://127.0.0.1:7070",
            "grpc://127.0.0.1:7070",
            "http://127.0.0.1:7070/receiptd",
            "http://127.0.0.1:7070?a=b",
        ] {
            let error = connect(wrong).expect_err(wrong);
            assert!(matches!(error, ConnectError::Address { .. }), "{wrong}: {error:?}");
            let text = error.to_string();
            assert!(text.contains(wrong) && text.contains("http://HOST:PORT"), "{text}");
        }
        for right in
            ["http://127.0.0.1:7070", "http://[::1]:7070/", "https://db.example", "HTTPS://a:1"]
        {
            assert!(connect(right).is_ok(), "{right}");
        }
        let trust = Trust::Authorities(b"not a certificate".to_vec());
        let options = ConnectOptions { trust, ..ConnectOptions::plain() };
        let made = Client::connect("https://127.0.0.1:1", options);
        assert!(matches!(made, Err(ConnectError::Authorities)), "{made:?}");
    }

    #[tokio::test]
    async fn an_unusable_token_is_refused_before_any_call() {
        let options = ConnectOptions::with_token(Secret::new("line\nfeed"));
        let made = Client::connect("http://127.0.0.1:1", options);
        assert!(matches!(made, Err(ConnectError::Token)));
    }

    #[tokio::test]
    async fn later_ids_are_minted_by_the_stores_clock() {
        let client = Client::connect("http://127.0.0.1:1", ConnectOptions::plain())
            .expect("a usable endpoint");
        client.learn_store_time(&Timestamp { seconds: 1_000_000, nanos: 0 });
        let minted = client.mint().mint_time_ms();
        assert!((1_000_000_000..1_000_060_000).contains(&minted), "{minted}");
    }
}
