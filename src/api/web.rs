//! Web pages: which of them may call, and what their browsers are told (CORS).
//!
//! What must stay true: a page of an origin that is not listed gets no answer of any service, and
//! no header that would let it read one. Credentials are tokens in `authorization`; cookies are
//! never asked for.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{self, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
};
use tonic::body::Body;

/// What a page may read of an answer beside its body.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("grpc-status, grpc-message, grpc-status-details-bin");
/// What the clients for browsers send.
const ALLOWED: HeaderValue =
    HeaderValue::from_static("content-type, x-grpc-web, x-user-agent, grpc-timeout, authorization");
/// gRPC-Web has no other.
const METHODS: HeaderValue = HeaderValue::from_static("POST");
/// How long a browser may keep the answer to a preflight, in seconds: what the strictest of the
/// common browsers keeps at most.
const PREFLIGHT_AGE_S: HeaderValue = HeaderValue::from_static("7200");
/// Caches must not give one page the headers of another.
const VARY: HeaderValue = HeaderValue::from_static("origin");

/// The pages that may call, by exact origin.
#[derive(Clone, Debug, Default)]
pub struct Origins(std::sync::Arc<[HeaderValue]>);

impl Origins {
    /// These; one that no header can hold is left out, since no browser sends it.
    pub fn new(listed: &[String]) -> Self {
        Origins(listed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// The page that calls, if one does and may.
    ///
    /// # Errors
    /// FORBIDDEN for a page that is not listed.
    pub(super) fn page(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, StatusCode> {
        let mut named = headers.get_all(ORIGIN).iter();
        match (named.next(), named.next()) {
            (None, _) => Ok(None),
            (Some(origin), None) if self.0.contains(origin) => Ok(Some(origin.clone())),
            (Some(_), _) => Err(StatusCode::FORBIDDEN),
        }
    }
}

/// Whether a browser asks what a page may do.
pub(super) fn is_preflight<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight of a page that may call.
pub(super) fn preflight(page: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE_S);
    let_read(headers, page);
    response
}

/// Lets a page read the answer.
pub(super) fn let_read(headers: &mut HeaderMap, page: HeaderValue) {
    let told: [(HeaderName, HeaderValue); 2] = [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, page),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED),
    ];
    headers.extend(told);
    headers.append(header::VARY, VARY);
}
