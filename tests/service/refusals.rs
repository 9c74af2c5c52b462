//! What is refused, and with which words.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// The first line of the answer to an HTTP/1.1 POST with these headers.
async fn posted(hosted: &Hosted, headers: &str) -> String {
    let address = hosted.address.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let request = format!(
        "POST /receiptd.v1.OperationService/ListOperations HTTP/1.1\r\n{headers}\
         Connection: close\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_web_page_reaches_no_service() {
    let hosted = host(Access::Local, Config::default()).await;
    for (headers, code) in [
        (
            "Host: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n",
            "415",
        ),
        ("Host: localhost\r\nContent-Type: text/plain\r\n", "415"),
        ("Host: localhost\r\n", "415"),
        ("Host: localhost\r\nOrigin: http://a\r\nContent-Type: application/grpc\r\n", "403"),
        ("Host: evil.example:7070\r\nContent-Type: application/grpc\r\n", "403"),
        ("Host: localhost:7070\r\nContent-Type: application/grpc\r\n", "200"),
    ] {
        let line = posted(&hosted, headers).await;
        assert!(line.contains(code), "{headers}{line}");
    }
}
