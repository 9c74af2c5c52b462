//! A TCP proxy that loses exactly what it is told to lose.
//!
//! What must stay true: it looks at HTTP/2 frame headers only, to know where a request or a reply
//! begins and ends; what it does not cut it passes on unchanged; each armed cut fires once.
//! Deliberately not here: TLS, and any knowledge of receiptd.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

/// What both sides send at once fits; more comes with the next read.
const CHUNK_BYTES: usize = 64 * 1024;
/// The fixed words with which a client begins HTTP/2.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
const FRAME_DATA: u8 = 0;
const FRAME_HEADERS: u8 = 1;
const FLAG_END_STREAM: u8 = 1;

/// Where a connection is cut, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The next request is not passed on.
    BeforeRequest,
    /// The next request is passed on whole; then the connection ends on both sides at once.
    AfterRequest,
    /// The next reply is swallowed: the service has answered, and nobody hears it.
    BeforeReply,
}

/// A proxy in front of one service.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    armed: Mutex<Option<Cut>>,
    fired: AtomicU64,
    end_all: Notify,
}

impl Proxy {
    /// Listens on a free local port.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            armed: Mutex::new(None),
            fired: AtomicU64::new(0),
            end_all: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared.clone()));
        Ok(Proxy { address, shared, tasks })
    }

    /// Where clients connect.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Later connections go to this service.
    pub fn redirect(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// Arms a cut, in place of one that has not fired yet.
    pub fn arm(&self, cut: Cut) {
        *lock(&self.shared.armed) = Some(cut);
    }

    /// How many armed cuts have fired.
    pub fn fired(&self) -> u64 {
        self.shared.fired.load(Ordering::SeqCst)
    }

    /// Ends every connection that is open now.
    pub fn cut_all(&self) {
        self.shared.end_all.notify_waiters();
    }

    /// Ends the proxy and its connections.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

impl Shared {
    /// Whether a cut of this direction fires in this chunk, and after how many bytes of it.
    fn cut_in(&self, direction: Direction, marks: &[Mark]) -> Option<usize> {
        let mut armed = lock(&self.armed);
        let at = match ((*armed)?, direction) {
            (Cut::BeforeRequest, Direction::Up) | (Cut::BeforeReply, Direction::Down) => {
                marks.iter().find_map(|mark| mark.headers_begin())
            }
            (Cut::AfterRequest, Direction::Up) => marks.iter().find_map(|mark| mark.stream_ends()),
            _ => None,
        }?;
        *armed = None;
        self.fired.fetch_add(1, Ordering::SeqCst);
        Some(at)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                let shared = shared.clone();
                connections.spawn(async move {
                    // A connection that breaks is what this proxy is for.
                    drop(pass(client, &shared).await);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Passes bytes on until one side closes or a cut fires.
async fn pass(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let upstream = *lock(&shared.upstream);
    let mut service = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    service.set_nodelay(true)?;
    let (mut from_client, mut from_service) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut up = FrameScanner::after_preface(PREFACE_BYTES);
    let mut down = FrameScanner::after_preface(0);
    loop {
        let (direction, count) = tokio::select! {
            biased;
            () = shared.end_all.notified() => return Ok(()),
            read = service.read(&mut from_service) => (Direction::Down, read?),
            read = client.read(&mut from_client) => (Direction::Up, read?),
        };
        if count == 0 {
            return Ok(());
        }
        let (chunk, scanner, to) = match direction {
            Direction::Up => (&from_client[..count], &mut up, &mut service),
            Direction::Down => (&from_service[..count], &mut down, &mut client),
        };
        let marks = scanner.scan(chunk);
        match shared.cut_in(direction, &marks) {
            Some(at) => return to.write_all(&chunk[..at]).await,
            None => to.write_all(chunk).await?,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Something about a frame that this chunk showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// A frame's header is complete; the frame begins here (0 if it began in an earlier chunk).
    Begins { kind: u8, at: usize },
    /// A frame's last byte is before this place.
    Ends { kind: u8, flags: u8, at: usize },
}

impl Mark {
    fn headers_begin(&self) -> Option<usize> {
        match self {
            Mark::Begins { kind: FRAME_HEADERS, at } => Some(*at),
            _ => None,
        }
    }

    fn stream_ends(&self) -> Option<usize> {
        match self {
            Mark::Ends { kind: FRAME_DATA | FRAME_HEADERS, flags, at }
                if flags & FLAG_END_STREAM != 0 =>
            {
                Some(*at)
            }
            _ => None,
        }
    }
}

/// Follows the frames of one direction over chunks of any size.
#[derive(Debug)]
struct FrameScanner {
    preface_left: usize,
    header: VecDeque<u8>,
    payload_left: usize,
    kind: u8,
    flags: u8,
}

impl FrameScanner {
    fn after_preface(preface_left: usize) -> Self {
        FrameScanner { preface_left, header: VecDeque::new(), payload_left: 0, kind: 0, flags: 0 }
    }

    fn scan(&mut self, chunk: &[u8]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut place = self.preface_left.min(chunk.len());
        self.preface_left -= place;
        while place < chunk.len() {
            if self.payload_left > 0 {
                let step = self.payload_left.min(chunk.len() - place);
                self.payload_left -= step;
                place += step;
                self.mark_end(&mut marks, place);
                continue;
            }
            self.header.push_back(chunk[place]);
            place += 1;
            if self.header.len() == FRAME_HEADER_BYTES {
                self.begin_frame();
                let at = place.saturating_sub(FRAME_HEADER_BYTES);
                marks.push(Mark::Begins { kind: self.kind, at });
                self.mark_end(&mut marks, place);
            }
        }
        marks
    }

    fn begin_frame(&mut self) {
        let byte = |index: usize| usize::from(self.header[index]);
        self.payload_left = byte(0) << 16 | byte(1) << 8 | byte(2);
        self.kind = self.header[3];
        self.flags = self.header[4];
        self.header.clear();
    }

    fn mark_end(&self, marks: &mut Vec<Mark>, at: usize) {
        if self.payload_left == 0 {
            marks.push(Mark::Ends { kind: self.kind, flags: self.flags, at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).expect("short payloads only");
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.extend(vec![0xaa; payload]);
        bytes
    }

    /// Preface, settings, a request of two frames.
    fn request() -> Vec<u8> {
        let mut bytes = vec![b'P'; PREFACE_BYTES];
        bytes.extend(frame(4, 0, 6));
        bytes.extend(frame(FRAME_HEADERS, 4, 20));
        bytes.extend(frame(FRAME_DATA, FLAG_END_STREAM, 5));
        bytes
    }

    #[test]
    fn frames_are_found_in_chunks_of_any_size() {
        let bytes = request();
        for size in [1, 2, 7, 9, 10, 24, 1_000] {
            let mut scanner = FrameScanner::after_preface(PREFACE_BYTES);
            let mut begins = Vec::new();
            let mut ends = Vec::new();
            for (number, chunk) in bytes.chunks(size).enumerate() {
                for mark in scanner.scan(chunk) {
                    match mark {
                        Mark::Begins { kind, .. } => begins.push(kind),
                        Mark::Ends { at, .. } => ends.push(number * size + at),
                    }
                }
            }
            assert_eq!(begins, [4, FRAME_HEADERS, FRAME_DATA], "chunks of {size}");
            assert_eq!(ends, [39, 68, 82], "chunks of {size}");
        }
    }

    /// What the service got and what the client got when this cut was armed.
    async fn exchange(cut: Cut) -> (usize, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let upstream = listener.local_addr().expect("a bound listener");
        let proxy = Proxy::start(upstream).await.expect("a free port");
        proxy.arm(cut);
        let service = async {
            let (mut stream, _) = listener.accept().await.expect("the proxy connects");
            let mut got = 0;
            let mut buffer = vec![0; 1_000];
            loop {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => return got,
                    Ok(count) => got += count,
                }
                if got == request().len() {
                    let mut reply = frame(4, 0, 0);
                    reply.extend(frame(FRAME_HEADERS, 4, 10));
                    drop(stream.write_all(&reply).await);
                }
            }
        };
        let client = async {
            let mut stream = TcpStream::connect(proxy.address).await.expect("the proxy listens");
            stream.write_all(&request()).await.expect("the proxy reads");
            let mut got = Vec::new();
            // A reset counts as the end.
            drop(stream.read_to_end(&mut got).await);
            got.len()
        };
        let seen = tokio::join!(service, client);
        assert_eq!(proxy.fired(), 1);
        proxy.stop().await;
        seen
    }

    #[tokio::test]
    async fn each_cut_loses_what_it_names() {
        // The preface and the settings come through, the request does not.
        assert_eq!(exchange(Cut::BeforeRequest).await, (39, 0));
        assert_eq!(exchange(Cut::AfterRequest).await, (82, 0));
        // The service's own settings come through, the reply does not.
        assert_eq!(exchange(Cut::BeforeReply).await, (82, 9));
    }
}
