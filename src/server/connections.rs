//! A bounded number of connections.
//!
//! What must stay true: a connection has its place before it is accepted, and gives it back when it
//! is dropped; what finds none waits in the kernel's queue, at no cost to this process.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt, stream::unfold};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::{Connected, TcpIncoming};

/// The places of one listener.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    /// So many.
    pub(super) fn new(limit: usize) -> Self {
        Places(Arc::new(Semaphore::new(limit)))
    }

    /// Waits for a place. None: there will be no more.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}

/// A connection in its place.
#[derive(Debug)]
pub(super) struct Placed<IO> {
    io: IO,
    _place: OwnedSemaphorePermit,
}

impl<IO> Placed<IO> {
    /// Keeps the place for as long as the connection lives.
    pub(super) fn new(io: IO, place: OwnedSemaphorePermit) -> Self {
        Placed { io, _place: place }
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
        Pin::new(&mut self.io).poll_read(context, buffer)
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
