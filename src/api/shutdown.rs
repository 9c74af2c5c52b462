//! Ends the streams of services that are not ours (health, reflection): on shutdown, and at an age.
//!
//! What must stay true: an open Health.Watch alone never holds the process (ecosystem gotcha 6), nor
//! a connection that was told to go away (gotcha 8); its caller is told UNAVAILABLE, not silence.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, server::NamedService};
use tower::Service;

use super::status::draining_trailers;

/// A service whose answers end when the token is cancelled, or when they are too old.
#[derive(Clone, Debug)]
pub struct UntilDrain<S> {
    inner: S,
    drain: CancellationToken,
    age_max: Duration,
}

impl<S> UntilDrain<S> {
    /// Wraps a service.
    pub fn new(inner: S, drain: CancellationToken, age_max: Duration) -> Self {
        UntilDrain { inner, drain, age_max }
    }
}

impl<S: NamedService> NamedService for UntilDrain<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for UntilDrain<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.inner.call(request);
        let (drain, age_max) = (self.drain.clone(), self.age_max);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|inner| {
                let over = Box::pin(async move {
                    // Whichever it was, its caller comes back.
                    let _ = tokio::time::timeout(age_max, drain.cancelled_owned()).await;
                });
                Body::new(EndingBody { inner, over, ended: false })
            }))
        })
    }
}

/// A body that ends with trailers of its own once it is over.
struct EndingBody {
    inner: Body,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
}

impl http_body::Body for EndingBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // What is ready comes first, so that an answer on its way is not cut.
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            return Poll::Ready(frame);
        }
        match self.over.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.ended = true;
                Poll::Ready(Some(Ok(Frame::trailers(draining_trailers()))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }
}
