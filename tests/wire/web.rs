//! gRPC-Web as browsers speak it: HTTP/1.1 by hand, and the rules of CORS.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost::Message;
use receiptd::proto::{
    GetDocumentRequest, GetDocumentResponse, WatchDocumentRequest, WatchDocumentResponse,
    watch_document_response::Frame,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{client::Caller, requests::Identity, server::Server, within};

const PAGE: &str = "http://localhost:5173";
const BINARY: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";
const GET: &str = "/receiptd.v1.DocumentService/GetDocument";
const WATCH: &str = "/receiptd.v1.DocumentService/WatchDocument";

struct Answer {
    code: u16,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// What stands in the details of an error, as far as it is text.
    fn details(&self) -> String {
        let details = self.header("grpc-status-details-bin");
        let padding = "=".repeat(details.len().wrapping_neg() % 4);
        let details = STANDARD.decode(details.to_owned() + &padding);
        String::from_utf8_lossy(&details.expect("base64")).into_owned()
    }
}

/// A framed message.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
    [&[0], &length[..], &bytes].concat()
}

/// The frames of a body: flag and payload.
fn frames(mut body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [flag, a, b, c, d, rest @ ..] = body {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if rest.len() < length {
            break;
        }
        let (payload, next) = rest.split_at(length);
        frames.push((*flag, payload.to_vec()));
        body = next;
    }
    frames
}

/// What a chunked body says, as far as it is there.
fn unchunked(mut raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = raw.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&raw[..end]).expect("a size");
        let size = usize::from_str_radix(size.trim(), 16).expect("a size");
        let Some(data) = raw.get(end + 2..end + 2 + size) else { break };
        body.extend_from_slice(data);
        raw = raw.get(end + 4 + size..).unwrap_or_default();
    }
    body
}

/// Sends a request and reads until `enough` holds or the answer ends.
async fn send(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    enough: impl Fn(&Answer) -> bool,
) -> Answer {
    let mut socket = TcpStream::connect(server.address()).await.expect("connects");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", server.address());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    socket.write_all(&[head.as_bytes(), body].concat()).await.expect("sent");
    let mut raw = Vec::new();
    loop {
        let count = within("an answer", socket.read_buf(&mut raw)).await.expect("read");
        let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") else {
            assert_ne!(count, 0, "no answer");
            continue;
        };
        let head = String::from_utf8(raw[..end].to_vec()).expect("text");
        let mut lines = head.lines();
        let code = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
        let headers: HashMap<_, _> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let body = match headers.get("transfer-encoding").map(String::as_str) {
            Some("chunked") => unchunked(&raw[end + 4..]),
            _ => raw[end + 4..].to_vec(),
        };
        let answer = Answer { code: code.parse().expect("a number"), headers, body };
        if count == 0 || enough(&answer) {
            return answer;
        }
    }
}

async fn call(server: &Server, path: &str, kind: &str, origin: &str, body: &[u8]) -> Answer {
    let mut headers = vec![("content-type", kind), ("accept", kind), ("x-grpc-web", "1")];
    headers.extend((!origin.is_empty()).then_some(("origin", origin)));
    send(server, "POST", path, &headers, body, |_| false).await
}

async fn preflight(server: &Server, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type,x-grpc-web"),
    ];
    send(server, "OPTIONS", GET, &headers, b"", |_| false).await
}

fn get(target: &str) -> Vec<u8> {
    framed(&GetDocumentRequest { target: target.to_owned() })
}

fn serve(flags: &[&str]) -> Server {
    tokio::task::block_in_place(|| Server::dev(flags))
}

async fn put(server: &Server, content: &str) {
    Caller::anonymous(server.address()).submitted(Identity::fresh().put("d", content)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_listed_calls_and_reads_the_answer() {
    let server = serve(&["--web-origins=http://localhost:5173"]);
    put(&server, "one").await;
    for kind in [BINARY, TEXT] {
        let text = kind == TEXT;
        let sent = if text { STANDARD.encode(get("d")).into_bytes() } else { get("d") };
        let answer = call(&server, GET, kind, PAGE, &sent).await;
        assert_eq!(answer.code, 200);
        assert!(answer.header("content-type").starts_with(kind), "{:?}", answer.headers);
        assert_eq!(answer.header("access-control-allow-origin"), PAGE);
        assert!(answer.header("access-control-expose-headers").contains("grpc-status-details-bin"));
        assert!(answer.header("vary").contains("origin"));
        // Each piece of the text form is padded by itself.
        let body = if text { decode_pieces(&answer.body) } else { answer.body.clone() };
        let frames = frames(&body);
        let document = GetDocumentResponse::decode(&frames[0].1[..]).expect("an answer").document;
        assert_eq!(document.expect("there").revision, 1);
        let trailers = String::from_utf8_lossy(&frames[1].1).into_owned();
        assert_eq!((frames[1].0, trailers.contains("grpc-status:0")), (0x80, true), "{trailers}");
    }
    let refused = call(&server, GET, BINARY, PAGE, &get("absent")).await;
    assert_eq!((refused.code, refused.header("grpc-status")), (200, "5"));
    let details = refused.details();
    assert!(details.contains("NO_SUCH_DOCUMENT"), "{details}");
    assert_eq!(refused.header("access-control-allow-origin"), PAGE, "errors can be read too");
}

/// Base64 in pieces, each with its own padding.
fn decode_pieces(text: &[u8]) -> Vec<u8> {
    let fours = text.chunks(4).map(|four| STANDARD.decode(four).expect("base64"));
    fours.collect::<Vec<_>>().concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_watches_a_document() {
    let server = serve(&["--web-origins=http://localhost:5173", "--heartbeat=50ms"]);
    put(&server, "one").await;
    let request = WatchDocumentRequest { target: "d".to_owned(), ..<_>::default() };
    let headers = [("content-type", BINARY), ("origin", PAGE)];
    let enough = |answer: &Answer| frames(&answer.body).len() >= 2;
    let answer = send(&server, "POST", WATCH, &headers, &framed(&request), enough).await;
    assert_eq!(answer.code, 200);
    let frames = frames(&answer.body);
    let frame = |number: usize| {
        let message = WatchDocumentResponse::decode(&frames[number].1[..]);
        message.expect("a frame").frame.expect("a known kind")
    };
    let Frame::Change(change) = frame(0) else { panic!("{:?}", frame(0)) };
    assert_eq!(change.document.expect("there").revision, 1);
    assert!(matches!(frame(1), Frame::Heartbeat(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_told_what_a_listed_page_may_do_and_no_other() {
    let server = serve(&["--web-origins=http://localhost:5173"]);
    let allowed = preflight(&server, PAGE).await;
    assert_eq!(allowed.code, 204);
    assert_eq!(allowed.header("access-control-allow-origin"), PAGE);
    assert_eq!(allowed.header("access-control-allow-methods"), "POST");
    for name in ["content-type", "x-grpc-web", "x-user-agent", "grpc-timeout", "authorization"] {
        assert!(allowed.header("access-control-allow-headers").contains(name), "{name}");
    }
    for origin in ["http://localhost:5174", "https://evil.example", "null"] {
        for refused in
            [preflight(&server, origin).await, call(&server, GET, BINARY, origin, &get("d")).await]
        {
            assert_eq!(refused.code, 403, "{origin}");
            assert_eq!(refused.header("access-control-allow-origin"), "");
        }
    }
    let closed = serve(&[]);
    assert_eq!(preflight(&closed, PAGE).await.code, 403, "none is listed");
    assert_eq!(call(&closed, GET, BINARY, PAGE, &get("d")).await.code, 403);
    assert_eq!(call(&closed, GET, BINARY, "", &get("d")).await.header("grpc-status"), "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_requests_over_http_1_get_sane_answers() {
    let server = serve(&["--web-origins=http://localhost:5173"]);
    for (method, kind, code) in [
        ("GET", "", 415),
        ("OPTIONS", "", 415),
        ("POST", "application/json", 415),
        ("POST", "application/grpc", 415),
        ("GET", BINARY, 405),
    ] {
        let headers = [("content-type", kind)];
        let headers = if kind.is_empty() { &[][..] } else { &headers[..] };
        let answer = send(&server, method, GET, headers, b"", |_| false).await;
        assert_eq!(answer.code, code, "{method} {kind}");
    }
    let unknown = call(&server, "/receiptd.v1.None/Such", BINARY, "", &get("d")).await;
    assert_eq!((unknown.code, unknown.header("grpc-status")), (200, "12"));
    let details = unknown.details();
    assert!(details.contains("UNIMPLEMENTED") && details.contains("did not begin"), "{details}");
}
