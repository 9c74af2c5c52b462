//! The harness under test: a fault that it fails to make would let every other test pass.

#[path = "../support/mod.rs"]
mod support;

use std::io::ErrorKind;

use support::{
    background,
    pattern::{COMMIT_ASKED, COMMIT_DONE, Found, find},
    postgres::{own_postgres, postgres},
    proxy::{Direction, Mode, Proxy},
    within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_postgres::NoTls;

/// Answers each byte with the same byte.
async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound port");
    background(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            background(async move {
                let (mut read, mut write) = socket.split();
                // A cut connection ends the copy with an error: that is the test's own doing.
                drop(tokio::io::copy(&mut read, &mut write).await);
            });
        }
    });
    address
}

#[test]
fn a_pattern_is_found_across_pieces() {
    assert_eq!(find(b"xxCOMMIT", b"COMMIT"), Found::At(2));
    assert_eq!(find(b"xxCOM", b"COMMIT"), Found::Not { held: 3 });
    assert_eq!(find(b"xx", b"COMMIT"), Found::Not { held: 0 });
    assert_eq!(find(b"", b"COMMIT"), Found::Not { held: 0 });
}

/// A cut at the beginning of a transaction would leave nothing to settle.
#[test]
fn the_beginning_of_a_transaction_is_not_taken_for_its_commit() {
    let begin = b"Q\0\0\0\x35BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE\0";
    assert_eq!(find(begin, COMMIT_ASKED), Found::Not { held: 0 });
    assert_eq!(find(b"S\0\0\0\x04Q\0\0\0\x0bCOMMIT\0", COMMIT_ASKED), Found::At(5));
}

#[tokio::test]
async fn the_proxy_forwards_swallows_and_cuts() {
    let proxy = Proxy::start(echo().await).await;
    let mut socket = TcpStream::connect(proxy.address()).await.expect("the proxy accepts");
    let mut answer = [0; 4];

    socket.write_all(b"ping").await.expect("open");
    within("an echo", socket.read_exact(&mut answer)).await.expect("forwarded");
    assert_eq!(&answer, b"ping");
    assert_eq!(proxy.bytes(Direction::Down), 4);

    proxy.set(Direction::Down, Mode::Swallow);
    socket.write_all(b"lost").await.expect("open");
    proxy.bytes_beyond(Direction::Down, 4).await;

    proxy.heal();
    socket.write_all(b"here").await.expect("open");
    within("an echo", socket.read_exact(&mut answer)).await.expect("forwarded");
    assert_eq!(&answer, b"here", "what was swallowed never comes");

    proxy.set(Direction::Up, Mode::CutBefore);
    socket.write_all(b"gone").await.expect("open");
    proxy.triggered(Direction::Up, 1).await;
    let end = within("the cut", socket.read(&mut answer)).await;
    assert!(!matches!(end, Ok(1..)), "nothing comes after a cut");
    assert_eq!(proxy.bytes(Direction::Down), 12, "what was cut never reached the other side");

    let mut socket = TcpStream::connect(proxy.address()).await.expect("the proxy accepts");
    proxy.set(Direction::Down, Mode::CutAfter(2));
    socket.write_all(b"ping").await.expect("open");
    let mut all = Vec::new();
    // A reset after the two bytes is an error of the read; the bytes before it count.
    drop(within("the cut", socket.read_to_end(&mut all)).await);
    assert!(all.len() <= 2, "at most two bytes came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_there() {
    let Some(server) = tokio::task::block_in_place(postgres) else { return };
    let database = server.fresh_database().await;
    let own = server.connect(&database).await;
    own.batch_execute("CREATE TABLE effect (id int)").await.expect("a table");

    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let url = server.url(&database, proxy.address().port());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("through");
    background(connection);
    proxy.set(Direction::Down, Mode::cut_at(COMMIT_DONE));
    let lost = client.batch_execute("BEGIN; INSERT INTO effect VALUES (1); COMMIT").await;
    assert!(lost.is_err(), "the answer is lost");
    proxy.triggered(Direction::Down, 1).await;
    let count: i64 =
        own.query_one("SELECT count(*) FROM effect", &[]).await.expect("a count").get(0);
    assert_eq!(count, 1, "and the effect is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_stopped_refuses_and_comes_back_with_what_was_durable() {
    let Some(server) = tokio::task::block_in_place(own_postgres) else { return };
    let database = server.fresh_database().await;
    let before = server.connect(&database).await;
    before.batch_execute("CREATE TABLE effect AS SELECT 1").await.expect("a table");
    before.batch_execute("BEGIN; INSERT INTO effect SELECT 2").await.expect("not committed");

    tokio::task::block_in_place(|| server.stop());
    before.batch_execute("COMMIT").await.expect_err("the session is gone");
    let refused = TcpStream::connect(("127.0.0.1", server.port())).await;
    assert_eq!(refused.expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);

    tokio::task::block_in_place(|| server.start_again());
    let after = server.connect(&database).await;
    let count: i64 =
        after.query_one("SELECT count(*) FROM effect", &[]).await.expect("a count").get(0);
    assert_eq!(count, 1, "what was committed, and nothing else");
}
