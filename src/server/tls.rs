//! TLS in front of gRPC, with an acceptor of our own.
//!
//! What must stay true: a peer that does not finish its handshake holds a place for 10 s at most,
//! and there is a bounded number of places; HTTP/1.1 is offered beside HTTP/2. tonic's acceptor
//! promises none of these (ecosystem gotchas 4 and 34).

use std::{io, path::Path, sync::Arc, time::Duration};

use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::connections::{Place, Placed, Places};
use crate::{engine::seams::Seams, telemetry};

/// A handshake takes three round trips at most; the slowest links have seconds each.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Handshakes at once: each costs about a millisecond of CPU and some tens of KiB.
const HANDSHAKES_MAX: usize = 256;
/// After an accept that failed (no file descriptors), time for some to be freed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("{setting} {file}: {problem}")]
    File {
        /// The flag that names it; the setting is called the same.
        setting: &'static str,
        /// Which.
        file: String,
        /// Why; never content.
        problem: String,
    },
    /// Certificate and key do not fit.
    #[error(
        "the key in --tls-key {key} is not that of the first certificate in --tls-cert \
         {certificate}: name the two that were made together"
    )]
    NotAPair {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
    },
    /// The library takes neither, for some other reason.
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

type Shaken = Placed<TlsStream<TcpStream>>;
type Connections = mpsc::Sender<io::Result<Shaken>>;

/// What rustls needs; absent without a certificate.
pub(super) fn server_config(
    certificate: Option<&Path>,
    key: Option<&Path>,
) -> Result<Option<Arc<rustls::ServerConfig>>, TlsError> {
    let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(None) };
    let chain = chain(certificate)?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        let none = "holds no private key in PEM; the certificate belongs into --tls-cert";
        file_error("--tls-key", key, &error, none)
    })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::NotAPair {
                certificate: certificate.display().to_string(),
                key: key.display().to_string(),
            },
            other => TlsError::Unusable(other),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let none = "holds no certificate in PEM; the private key belongs into --tls-key";
    let chain = CertificateDer::pem_file_iter(file)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .and_then(|chain| match chain.is_empty() {
            true => Err(pem::Error::NoItemsFound),
            false => Ok(chain),
        });
    chain.map_err(|error| file_error("--tls-cert", file, &error, none))
}

fn file_error(setting: &'static str, file: &Path, error: &pem::Error, none: &str) -> TlsError {
    let problem = match error {
        pem::Error::NoItemsFound => none.to_owned(),
        pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            "there is no such file".to_owned()
        }
        other => format!("cannot be read: {other}"),
    };
    TlsError::File { setting, file: file.display().to_string(), problem }
}

/// Connections whose handshake is done, until `stop`.
pub(super) fn incoming(
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    places: Places,
    seams: &Seams,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Shaken>> {
    let (connections, accepted) = mpsc::channel(1);
    let spawner = seams.clone();
    seams.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = accept(listener, TlsAcceptor::from(config), places, spawner, connections) => {}
        }
    });
    ReceiverStream::new(accepted)
}

/// Takes both places before it accepts, for the handshake and for the connection: what finds none
/// waits in the kernel's queue.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    places: Places,
    seams: Seams,
    connections: Connections,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    while let (Some(place), Ok(handshake)) =
        (places.take().await, Arc::clone(&handshakes).acquire_owned().await)
    {
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                seams.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without it only latency suffers.
        let _ = tcp.set_nodelay(true);
        seams.spawn(shake_hands(acceptor.clone(), tcp, place, handshake, connections.clone()));
    }
}

/// A peer that fails its handshake is its own fault: nothing is logged that it could flood.
async fn shake_hands(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    place: Place,
    handshake: OwnedSemaphorePermit,
    connections: Connections,
) {
    let shaken = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(tcp)).await;
    drop(handshake);
    match shaken {
        // Not taken: the server has stopped.
        Ok(Ok(tls)) => drop(connections.send(Ok(Placed::new(tls, place))).await),
        Ok(Err(_)) | Err(_) => telemetry::tls_handshake_failed(),
    }
}
