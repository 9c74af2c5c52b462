//! HTTP/2 settings and the routes of all services.
//!
//! What must stay true: every limit that a library leaves open is set here, with its reason
//! (reliability T20–T22, section 7.1). A connection is told to go away at an age with jitter, and
//! never cut for it: the grace of that is broken upstream (gotcha 8), and every stream ends itself.

use std::time::Duration;

use futures_util::{Stream, StreamExt, future::try_join_all};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::Connected},
};
use tonic_web::GrpcWebLayer;
use tower::{layer::layer_fn, util::MapRequestLayer};

use super::{
    Api,
    auth::{self, Access},
    fields,
    gate::{Gate, Hosts},
    health::Health,
    shutdown::UntilDrain,
    web::Origins,
};
use crate::proto::{
    self, admin_service_server::AdminServiceServer, document_service_server::DocumentServiceServer,
    inbox_service_server::InboxServiceServer, operation_service_server::OperationServiceServer,
    session_service_server::SessionServiceServer,
};

/// Streams of one connection: an editor needs a handful; without a limit one client holds all.
const STREAMS_MAX: u32 = 100;
/// Resets that a peer may cause by its own faults before its connection ends; tonic would leave
/// this open.
const LOCAL_RESETS_MAX: usize = 256;
/// Headers of a call: a token and a trace context fit many times.
const HEADER_LIST_BYTES_MAX: u32 = 8 * 1024;
/// One stream's window; holds ordinary arguments, and is refilled as they are read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The connection's window. Many times a stream's, so that one unread stream never starves the
/// others; and because h2 ends a connection whose unread small frames, each charged with what it
/// lacks to 256 bytes, add up to half of this (T20): a whole stream's window in frames of 8 bytes,
/// less than any ack has, stays below that. So a session slows down a peer that floods it, and
/// never cuts it.
const CONNECTION_WINDOW_BYTES: u32 = 64 * STREAM_WINDOW_BYTES;
/// A request at most: a batch of submits with ordinary arguments.
const DECODED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// An answer at most: a page of receipts.
const ENCODED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Different ages of connections: enough that those which were opened together, after a restart,
/// come back in small parts.
const AGES: u32 = 16;

/// How connections are kept.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// A silent peer is asked for a sign of life after this long,
    pub keepalive_interval: Duration,
    /// and let go when it gives none for this long.
    pub keepalive_timeout: Duration,
    /// A connection is told to go away at this age, give or take a tenth.
    pub age: Duration,
}

/// `age` ± 10 %, evenly.
fn ages(age: Duration) -> impl Iterator<Item = Duration> {
    (0..AGES).map(move |step| age * 9 / 10 + age / 5 * step / (AGES - 1))
}

/// Serves all services on what `incoming` accepts, until `stop`; returns when every connection
/// has ended.
///
/// # Errors
/// When the connections cannot be served at all.
pub async fn serve<IO, E>(
    api: Api,
    access: Access,
    origins: Origins,
    health: &Health,
    keeping: &Keeping,
    incoming: impl Stream<Item = Result<IO, E>>,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let routes = routes(api, health, keeping.age);
    let hosts = Hosts::of(&access);
    let identify = MapRequestLayer::new(move |request: http::Request<tonic::body::Body>| {
        auth::identify(&access, request)
    });
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(keeping.keepalive_interval))
        .http2_keepalive_timeout(Some(keeping.keepalive_timeout))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // gRPC-Web comes over it; and a peer that connects and sends nothing ends at once on
        // shutdown (gotcha 7).
        .accept_http1(true)
        .layer(layer_fn(move |inner| Gate::new(inner, hosts, origins.clone())))
        // Behind the gate: it answers 400 to whatever else comes over HTTP/1.1 (gotcha 3).
        .layer(GrpcWebLayer::new())
        .layer(identify)
        .layer(MapRequestLayer::new(fields::bound));
    // tonic knows one age for all connections of a server: so there is a server for each age, and
    // connections are dealt to them in turn.
    let (hands, servers): (Vec<_>, Vec<_>) = ages(keeping.age)
        .map(|age| {
            let (hand, dealt) = mpsc::channel(1);
            let server = server.clone().max_connection_age(age);
            let dealt = ReceiverStream::new(dealt);
            let stop = stop.clone().cancelled_owned();
            (hand, server.serve_with_incoming_shutdown(routes.clone(), dealt, stop))
        })
        .unzip();
    let dealing = async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = deal(incoming, hands) => {}
        }
        Ok(())
    };
    tokio::try_join!(dealing, try_join_all(servers))?;
    Ok(())
}

/// Hands what comes in to each in turn, until nothing comes or one takes nothing any more.
async fn deal<T>(incoming: impl Stream<Item = T>, hands: Vec<mpsc::Sender<T>>) {
    let mut incoming = std::pin::pin!(incoming);
    for hand in hands.iter().cycle() {
        let Some(connection) = incoming.next().await else { return };
        if hand.send(connection).await.is_err() {
            return;
        }
    }
}

fn routes(api: Api, health: &Health, age: Duration) -> Routes {
    let drain = api.drain().clone();
    Routes::new(
        OperationServiceServer::new(api.clone())
            .max_decoding_message_size(DECODED_BYTES_MAX)
            .max_encoding_message_size(ENCODED_BYTES_MAX),
    )
    .add_service(
        InboxServiceServer::new(api.clone())
            .max_decoding_message_size(DECODED_BYTES_MAX)
            .max_encoding_message_size(ENCODED_BYTES_MAX),
    )
    .add_service(
        DocumentServiceServer::new(api.clone())
            .max_decoding_message_size(DECODED_BYTES_MAX)
            .max_encoding_message_size(ENCODED_BYTES_MAX),
    )
    .add_service(
        SessionServiceServer::new(api.clone())
            .max_decoding_message_size(DECODED_BYTES_MAX)
            .max_encoding_message_size(ENCODED_BYTES_MAX),
    )
    .add_service(
        AdminServiceServer::new(api)
            .max_decoding_message_size(DECODED_BYTES_MAX)
            .max_encoding_message_size(ENCODED_BYTES_MAX),
    )
    .add_service(UntilDrain::new(health.service(), drain.clone(), age))
    .add_service(UntilDrain::new(
        reflection().build_v1().expect("the descriptors were compiled into this binary"),
        drain.clone(),
        age,
    ))
    .add_service(UntilDrain::new(
        reflection().build_v1alpha().expect("the descriptors were compiled into this binary"),
        drain,
        age,
    ))
    .prepare()
}

/// Knows google.rpc too: without it, common tools cannot show the details of our errors.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_opened_together_end_apart() {
        let half_hour = Duration::from_mins(30);
        let ages: Vec<_> = ages(half_hour).collect();
        assert_eq!(ages.first(), Some(&Duration::from_mins(27)));
        assert_eq!(ages.last(), Some(&Duration::from_mins(33)));
        assert!(ages.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(20)));
    }
}
