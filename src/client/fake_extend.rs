//! ExtendDeliveries in front of the fake's inbox service, which is generated from a protocol that
//! does not name the call yet.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::{BoxFuture, FutureExt};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

use super::fake_service::Store;
use crate::proto::{ExtendDeliveriesRequest, ExtendDeliveriesResponse};

#[derive(Clone)]
pub(crate) struct WithExtend<S> {
    rest: S,
    store: Arc<Store>,
}

impl<S> WithExtend<S> {
    pub(crate) fn new(rest: S, store: Arc<Store>) -> Self {
        WithExtend { rest, store }
    }
}

impl<S: NamedService> NamedService for WithExtend<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for WithExtend<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.rest.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if !request.uri().path().ends_with("/ExtendDeliveries") {
            return self.rest.call(request).boxed();
        }
        let extend = Extend(self.store.clone());
        async move { Ok(Grpc::new(ProstCodec::default()).unary(extend, request).await) }.boxed()
    }
}

struct Extend(Arc<Store>);

impl UnaryService<ExtendDeliveriesRequest> for Extend {
    type Response = ExtendDeliveriesResponse;
    type Future = Ready<Result<Response<ExtendDeliveriesResponse>, Status>>;

    fn call(&mut self, request: Request<ExtendDeliveriesRequest>) -> Self::Future {
        ready(self.0.extend(request.into_inner()).map(Response::new))
    }
}
