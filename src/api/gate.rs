//! What stands before every service: who may reach them over HTTP at all, and what the framework
//! says on its own.
//!
//! What must stay true: a request that a web page can make without asking the server first (a
//! form, `fetch` with a plain content type, a name that points at loopback) reaches no service,
//! and neither does one of a page whose origin is not listed; no error leaves without an
//! ErrorInfo.

use std::{
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header, uri::Authority,
};
use tonic::body::Body;
use tower::Service;

use super::{
    auth::Access,
    status::explain,
    web::{self, Origins},
};

/// Every content type of gRPC begins so; a page cannot send one unasked.
const CONTENT_TYPE: &[u8] = b"application/grpc";
/// The content types of gRPC-Web begin so, and these are all of them.
const WEB_CONTENT_TYPE: &[u8] = b"application/grpc-web";
const WEB_CONTENT_TYPES: [&[u8]; 4] = [
    b"application/grpc-web",
    b"application/grpc-web+proto",
    b"application/grpc-web-text",
    b"application/grpc-web-text+proto",
];

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
    origins: Origins,
}

impl<S> Gate<S> {
    /// Puts a service behind the gate.
    pub fn new(inner: S, hosts: Hosts, origins: Origins) -> Self {
        Gate { inner, hosts, origins }
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
        let page = match admit(&request, self.hosts, &self.origins) {
            Ok(Admitted::Call(page)) => page,
            Ok(Admitted::Preflight(page)) => {
                return Box::pin(async { Ok(web::preflight(page)) });
            }
            Err(code) => {
                let mut refused = Response::new(Body::empty());
                *refused.status_mut() = code;
                return Box::pin(async { Ok(refused) });
            }
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            explain(response.headers_mut());
            if let Some(page) = page {
                web::let_read(response.headers_mut(), page);
            }
            Ok(response)
        })
    }
}

/// What may go on.
#[derive(Debug, PartialEq, Eq)]
enum Admitted {
    /// A call, and the page that makes it, if one does.
    Call(Option<HeaderValue>),
    /// A browser's question what this page may do.
    Preflight(HeaderValue),
}

/// Whether a request may go on.
///
/// # Errors
/// The HTTP status that answers it.
fn admit<B>(request: &Request<B>, hosts: Hosts, origins: &Origins) -> Result<Admitted, StatusCode> {
    let headers = request.headers();
    let is_preflight = web::is_preflight(request);
    if !is_preflight && !speaks_grpc(request) {
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let named = match hosts {
        Hosts::Any => true,
        Hosts::Loopback => {
            request.uri().authority().is_none_or(is_loopback) && names_loopback(headers)
        }
    };
    match (named, origins.page(headers)?) {
        (false, _) => Err(StatusCode::FORBIDDEN),
        (true, Some(page)) if is_preflight => Ok(Admitted::Preflight(page)),
        (true, page) => Ok(Admitted::Call(page)),
    }
}

/// gRPC needs HTTP/2; gRPC-Web does not.
fn speaks_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|content_type| match content_type.starts_with(WEB_CONTENT_TYPE) {
        true => WEB_CONTENT_TYPES.contains(&content_type),
        false => content_type.starts_with(CONTENT_TYPE) && request.version() == Version::HTTP_2,
    })
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
        let mut request = Request::builder().uri(uri).version(Version::HTTP_2);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    fn origins() -> Origins {
        Origins::new(&["https://app.example".to_owned(), "http://localhost:5173".to_owned()])
    }

    const GRPC: (&str, &str) = ("content-type", "application/grpc");
    const CALL: Result<Admitted, StatusCode> = Ok(Admitted::Call(None));

    #[test]
    fn only_what_speaks_grpc_goes_on() {
        let none = Origins::default();
        let admitted = |version, content_type: Option<&str>| {
            let headers = content_type.map(|content_type| ("content-type", content_type));
            let mut asked = request("/s/m", headers.as_slice());
            *asked.version_mut() = version;
            admit(&asked, Hosts::Any, &none)
        };
        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            assert_eq!(admitted(Version::HTTP_2, Some(content_type)), CALL, "{content_type}");
            let refused = Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
            assert_eq!(admitted(Version::HTTP_11, Some(content_type)), refused, "{content_type}");
        }
        for content_type in WEB_CONTENT_TYPES {
            let content_type = std::str::from_utf8(content_type).expect("text");
            assert_eq!(admitted(Version::HTTP_11, Some(content_type)), CALL, "{content_type}");
            assert_eq!(admitted(Version::HTTP_2, Some(content_type)), CALL, "{content_type}");
        }
        for content_type in [None, Some("text/plain"), Some(""), Some("application/grpc-web+json")]
        {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let refused = Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
                assert_eq!(admitted(version, content_type), refused, "{content_type:?}");
            }
        }
    }

    #[test]
    fn only_pages_that_are_listed_call() {
        let forbidden = Err(StatusCode::FORBIDDEN);
        for hosts in [Hosts::Any, Hosts::Loopback] {
            for content_type in ["application/grpc", "application/grpc-web+proto"] {
                let call = |origins: &Origins, named: &[&str]| {
                    let mut headers = vec![("content-type", content_type)];
                    headers.extend(named.iter().map(|origin| ("origin", *origin)));
                    admit(&request("/s/m", &headers), hosts, origins)
                };
                let page = HeaderValue::from_static("https://app.example");
                assert_eq!(
                    call(&origins(), &["https://app.example"]),
                    Ok(Admitted::Call(Some(page)))
                );
                for named in [
                    &["https://evil.example"][..],
                    &["null"],
                    &["http://app.example"],
                    &["https://app.example:8443"],
                    &["https://app.example.evil.example"],
                    &["https://app.example", "https://evil.example"],
                    &["https://app.example", "https://app.example"],
                ] {
                    assert_eq!(call(&origins(), named), forbidden, "{named:?}");
                }
                let nobody = Origins::default();
                assert_eq!(call(&nobody, &["http://localhost"]), forbidden, "none is listed");
            }
            let preflight = |origin: &str| {
                let asked = [("origin", origin), ("access-control-request-method", "POST")];
                let mut asked = request("/s/m", &asked);
                *asked.method_mut() = http::Method::OPTIONS;
                admit(&asked, hosts, &origins())
            };
            let page = HeaderValue::from_static("http://localhost:5173");
            assert_eq!(preflight("http://localhost:5173"), Ok(Admitted::Preflight(page)));
            assert_eq!(preflight("http://localhost:5174"), forbidden);
        }
        let headers = [GRPC, ("origin", "https://app.example"), ("host", "evil.example")];
        let rebound = request("/s/m", &headers);
        assert_eq!(admit(&rebound, Hosts::Loopback, &origins()), forbidden, "a foreign name");
    }

    #[test]
    fn without_credentials_only_names_of_loopback_are_served() {
        let none = Origins::default();
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070"] {
            let uri = format!("http://{host}/s/m");
            assert_eq!(admit(&request(&uri, &[GRPC]), Hosts::Loopback, &none), CALL, "{host}");
            let asked = request("/s/m", &[GRPC, ("host", host)]);
            assert_eq!(admit(&asked, Hosts::Loopback, &none), CALL, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:7070", "192.168.1.1", "127.0.0.1.x"] {
            let uri = format!("http://{host}/s/m");
            let refused = Err(StatusCode::FORBIDDEN);
            assert_eq!(admit(&request(&uri, &[GRPC]), Hosts::Loopback, &none), refused, "{host}");
            let asked = request("/s/m", &[GRPC, ("host", host)]);
            assert_eq!(admit(&asked, Hosts::Loopback, &none), refused, "{host}");
            assert_eq!(admit(&asked, Hosts::Any, &none), CALL, "{host}");
        }
    }
}
