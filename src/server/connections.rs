//! A bounded number of connections.
//!
//! What must stay true: a connection has its place before it is accepted, and gives it back when it
//! is dropped; what finds none waits in the kernel's queue, at no cost to this process. A peer that
//! says nothing at the beginning keeps no place: the library's own limits begin with the first
//! request, and none of them counts before the preface is whole.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream::unfold};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpIncoming};

/// What every peer says first, in bytes: the preface of HTTP/2 (RFC 9113 section 3.4). No request of
/// HTTP/1.1 that names a host is shorter.
const PREFACE_BYTES: usize = 24;

/// The places of one listener.
#[derive(Clone, Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    patience: Duration,
}

/// One of them, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    /// How long a peer may keep it before it has said its preface.
    patience: Duration,
}

impl Places {
    /// So many, each lost by a peer that has not said its preface within `patience`.
    pub(super) fn new(limit: usize, patience: Duration) -> Self {
        Places { free: Arc::new(Semaphore::new(limit)), patience }
    }

    /// Waits for a place. None: there will be no more.
    pub(super) async fn take(&self) -> Option<Place> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(Place { _permit: permit, patience: self.patience })
    }
}

/// A connection in its place.
#[derive(Debug)]
pub(super) struct Placed<IO> {
    io: IO,
    _place: Place,
    /// None: the peer has said enough to be a peer.
    opening: Option<Opening>,
}

/// A peer that has not said its preface.
#[derive(Debug)]
struct Opening {
    missing: usize,
    end: Pin<Box<Sleep>>,
}

impl<IO> Placed<IO> {
    /// Keeps the place for as long as the connection lives. From its patience on it reads as timed
    /// out while its peer has not said its preface, however slowly it speaks.
    pub(super) fn new(io: IO, place: Place) -> Self {
        let opening = Opening { missing: PREFACE_BYTES, end: Box::pin(sleep(place.patience)) };
        Placed { io, _place: place, opening: Some(opening) }
    }
}

/// Accepts when there is a place.
pub(super) fn incoming(
    listener: TcpIncoming,
    places: Places,
) -> impl Stream<Item = io::Result<Placed<TcpStream>>> {
    unfold((listener, places), async |(mut listener, places)| {
        let place = places.take().await?;
        let accepted = listener.next().await?;
        Some((accepted.map(|io| Placed::new(io, place)), (listener, places)))
    })
}

impl<IO: Connected> Connected for Placed<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Placed<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Placed { io, opening, .. } = &mut *self;
        let Some(waiting) = opening else { return Pin::new(io).poll_read(context, buffer) };
        let before = buffer.filled().len();
        match Pin::new(io).poll_read(context, buffer) {
            Poll::Ready(read) => {
                waiting.missing =
                    waiting.missing.saturating_sub(buffer.filled().len().saturating_sub(before));
                if waiting.missing == 0 {
                    *opening = None;
                }
                Poll::Ready(read)
            }
            Poll::Pending => {
                ready!(waiting.end.as_mut().poll(context));
                let silent = "the peer said nothing that begins a connection";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, silent)))
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Placed<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
