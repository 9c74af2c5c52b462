//! What stands before every service: who may reach them over HTTP at all, and what the framework
//! says on its own.
//!
//! What must stay true: a request that a web page can make without asking the server first (a
//! form, `fetch` with a plain content type, a name that points at loopback) reaches no service;
//! no error leaves without an ErrorInfo.

use std::{
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, StatusCode, header, uri::Authority};
use tonic::body::Body;
use tower::Service;

use super::{auth::Access, status::explain};

/// Every content type of gRPC begins so; a page cannot send one unasked.
const CONTENT_TYPE: &[u8] = b"application/grpc";

/// Which names of this server a request may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Any: the credentials decide.
    Any,
    /// Those of loopback: without credentials, a foreign name that was pointed here is a web page
    /// at work.
    Loopback,
}

impl Hosts {
    /// What this kind of access needs.
    pub fn of(access: &Access) -> Self {
        match access {
            Access::Local => Hosts::Loopback,
            Access::Tokens(_) => Hosts::Any,
        }
    }
}

/// A service behind the gate.
#[derive(Clone, Debug)]
pub struct Gate<S> {
    inner: S,
    hosts: Hosts,
}

impl<S> Gate<S> {
    /// Puts a service behind the gate.
    pub fn new(inner: S, hosts: Hosts) -> Self {
        Gate { inner, hosts }
    }
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if let Err(code) = admit(&request, self.hosts) {
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = code;
            return Box::pin(async { Ok(refused) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            explain(response.headers_mut());
            Ok(response)
        })
    }
}

/// Whether a request may go on.
///
/// # Errors
/// The HTTP status that answers it.
fn admit<B>(request: &Request<B>, hosts: Hosts) -> Result<(), StatusCode> {
    let headers = request.headers();
    let content_type = headers.get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    if !content_type.is_some_and(|content_type| content_type.starts_with(CONTENT_TYPE)) {
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let named = match hosts {
        Hosts::Any => true,
        Hosts::Loopback => {
            request.uri().authority().is_none_or(is_loopback) && names_loopback(headers)
        }
    };
    match named && !headers.contains_key(header::ORIGIN) {
        true => Ok(()),
        false => Err(StatusCode::FORBIDDEN),
    }
}

/// Every `Host` header; HTTP/2 says the same in `:authority`.
fn names_loopback(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::HOST)
        .iter()
        .all(|host| Authority::try_from(host.as_bytes()).is_ok_and(|host| is_loopback(&host)))
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    const GRPC: (&str, &str) = ("content-type", "application/grpc");

    #[test]
    fn only_what_speaks_grpc_goes_on() {
        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            let asked = request("/s/m", &[("content-type", content_type)]);
            assert_eq!(admit(&asked, Hosts::Any), Ok(()), "{content_type}");
        }
        for headers in [vec![], vec![("content-type", "text/plain")], vec![("content-type", "")]] {
            let asked = request("/s/m", &headers);
            assert_eq!(admit(&asked, Hosts::Any), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        for hosts in [Hosts::Any, Hosts::Loopback] {
            let asked = request("/s/m", &[GRPC, ("origin", "http://localhost")]);
            assert_eq!(admit(&asked, hosts), Err(StatusCode::FORBIDDEN), "a browser");
        }
    }

    #[test]
    fn without_credentials_only_names_of_loopback_are_served() {
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070"] {
            let uri = format!("http://{host}/s/m");
            assert_eq!(admit(&request(&uri, &[GRPC]), Hosts::Loopback), Ok(()), "{host}");
            let asked = request("/s/m", &[GRPC, ("host", host)]);
            assert_eq!(admit(&asked, Hosts::Loopback), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:7070", "192.168.1.1", "127.0.0.1.x"] {
            let uri = format!("http://{host}/s/m");
            let refused = Err(StatusCode::FORBIDDEN);
            assert_eq!(admit(&request(&uri, &[GRPC]), Hosts::Loopback), refused, "{host}");
            let asked = request("/s/m", &[GRPC, ("host", host)]);
            assert_eq!(admit(&asked, Hosts::Loopback), refused, "{host}");
            assert_eq!(admit(&asked, Hosts::Any), Ok(()), "{host}");
        }
    }
}
