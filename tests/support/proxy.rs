//! A TCP proxy under the test's control: between client and server, or server and database.
//!
//! What must stay true: a mode applies to bytes that were not forwarded yet, on open connections
//! too; a cut resets both sides at once; a trigger is a signal the test can wait for. A cut
//! happens once: the mode is [`Mode::Forward`] afterwards, so that a retry gets through.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
};

use super::{
    background,
    pattern::{Found, find},
    within,
};

/// What happens to bytes of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// They are forwarded.
    Forward,
    /// The next bytes are not forwarded: the connection is cut.
    CutBefore,
    /// So many more bytes of a connection are forwarded, then it is cut.
    CutAfter(u64),
    /// They are taken and dropped; the connection stays open.
    Swallow,
    /// They are forwarded later.
    Delay(Duration),
    /// From this pattern on nothing is forwarded, and the connection is cut.
    CutAt(Vec<u8>),
    /// From this pattern on the connection is silent in both directions, and neither side learns
    /// that the other one closed. As a cut, this happens to one connection.
    SilentAt(Vec<u8>),
}

impl Mode {
    /// Cuts where these bytes begin: an id in a message, or a command of a protocol.
    pub fn cut_at(pattern: impl AsRef<[u8]>) -> Mode {
        Mode::CutAt(pattern.as_ref().to_vec())
    }

    /// Goes silent where these bytes begin.
    pub fn silent_at(pattern: impl AsRef<[u8]>) -> Mode {
        Mode::SilentAt(pattern.as_ref().to_vec())
    }
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the one who connected.
    Up,
    /// To the one who connected.
    Down,
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    up: Lane,
    down: Lane,
    /// Counts the calls of `cut_all`: a connection ends when it changes.
    cuts: watch::Sender<u64>,
    connections: AtomicU64,
}

struct Lane {
    mode: watch::Sender<Mode>,
    bytes: watch::Sender<u64>,
    triggers: watch::Sender<u64>,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            mode: watch::Sender::new(Mode::Forward),
            bytes: watch::Sender::new(0),
            triggers: watch::Sender::new(0),
        }
    }
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target`.
    pub async fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            up: Lane::new(),
            down: Lane::new(),
            cuts: watch::Sender::new(0),
            connections: AtomicU64::new(0),
        });
        let task = background(accept(listener, target, Arc::clone(&shared)));
        Proxy { address, shared, task }
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens in a direction, on open connections too.
    pub fn set(&self, direction: Direction, mode: Mode) {
        self.lane(direction).mode.send_replace(mode);
    }

    /// Both directions forward again.
    pub fn heal(&self) {
        self.set(Direction::Up, Mode::Forward);
        self.set(Direction::Down, Mode::Forward);
    }

    /// Cuts every open connection.
    pub fn cut_all(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Bytes that arrived in a direction, forwarded or not.
    pub fn bytes(&self, direction: Direction) -> u64 {
        *self.lane(direction).bytes.borrow()
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until more bytes than `before` arrived in a direction.
    pub async fn bytes_beyond(&self, direction: Direction, before: u64) {
        let mut bytes = self.lane(direction).bytes.subscribe();
        let beyond = bytes.wait_for(|bytes| *bytes > before);
        within("bytes through the proxy", beyond).await.expect("the proxy runs");
    }

    /// Waits until a mode cut a connection in this direction for the `count`-th time.
    pub async fn triggered(&self, direction: Direction, count: u64) {
        let mut triggers = self.lane(direction).triggers.subscribe();
        let enough = triggers.wait_for(|triggers| *triggers >= count);
        within("the proxy to cut", enough).await.expect("the proxy runs");
    }

    fn lane(&self, direction: Direction) -> &Lane {
        self.shared.lane(direction)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut_all();
    }
}

impl Shared {
    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        background(connection(client, target, Arc::clone(&shared)));
    }
}

async fn connection(client: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(server) = TcpStream::connect(target).await else { return };
    drop(client.set_nodelay(true));
    drop(server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let silent = AtomicBool::new(false);
    let end = tokio::select! {
        end = pump(&mut from_client, &mut to_server, shared.lane(Direction::Up), &silent) => end,
        end = pump(&mut from_server, &mut to_client, shared.lane(Direction::Down), &silent) => end,
        _ = cuts.changed() => End::Cut,
    };
    if end == End::Cut {
        // A reset, so that neither side waits for what will not come.
        drop(from_client.as_ref().set_zero_linger());
        drop(from_server.as_ref().set_zero_linger());
    }
}

/// How a connection ended.
#[derive(PartialEq, Eq)]
enum End {
    /// One side closed it.
    Closed,
    /// The test cut it.
    Cut,
}

/// Forwards until one side ends or the mode says cut.
async fn pump(
    from: &mut tcp::OwnedReadHalf,
    to: &mut tcp::OwnedWriteHalf,
    lane: &Lane,
    silent: &AtomicBool,
) -> End {
    let mut piece = vec![0; 16 * 1024];
    let mut waiting: Vec<u8> = Vec::new();
    let mut forwarded: u64 = 0;
    loop {
        let read = from.read(&mut piece).await;
        if silent.load(Ordering::SeqCst) {
            match read {
                Ok(1..) => continue,
                // The other side is not told either.
                Ok(0) | Err(_) => std::future::pending::<()>().await,
            }
        }
        let Ok(size @ 1..) = read else { return End::Closed };
        lane.bytes.send_modify(|bytes| *bytes += size as u64);
        waiting.extend_from_slice(&piece[..size]);
        let mode = lane.mode.borrow().clone();
        if let Mode::Delay(time) = mode {
            tokio::time::sleep(time).await;
        }
        let (send, fate) = forwarding(&mode, &mut waiting, forwarded);
        if to.write_all(&waiting[..send]).await.is_err() {
            return End::Closed;
        }
        forwarded += send as u64;
        waiting.drain(..send);
        if fate != Fate::Open {
            lane.mode.send_replace(Mode::Forward);
            silent.store(fate == Fate::Silent, Ordering::SeqCst);
            lane.triggers.send_modify(|triggers| *triggers += 1);
        }
        if fate == Fate::Cut {
            return End::Cut;
        }
    }
}

/// What a mode does to a connection.
#[derive(PartialEq, Eq)]
enum Fate {
    Open,
    Cut,
    Silent,
}

/// How many of the waiting bytes go on now, and what becomes of their connection then.
fn forwarding(mode: &Mode, waiting: &mut Vec<u8>, forwarded: u64) -> (usize, Fate) {
    let until = |pattern: &[u8], fate| match find(waiting, pattern) {
        Found::At(at) => (at, fate),
        Found::Not { held } => (waiting.len() - held, Fate::Open),
    };
    match mode {
        Mode::Forward | Mode::Delay(_) => (waiting.len(), Fate::Open),
        Mode::CutBefore => (0, Fate::Cut),
        Mode::CutAfter(limit) => {
            let left = usize::try_from(limit.saturating_sub(forwarded)).unwrap_or(usize::MAX);
            let fate = if left <= waiting.len() { Fate::Cut } else { Fate::Open };
            (left.min(waiting.len()), fate)
        }
        Mode::Swallow => {
            waiting.clear();
            (0, Fate::Open)
        }
        Mode::CutAt(pattern) => until(pattern, Fate::Cut),
        Mode::SilentAt(pattern) => until(pattern, Fate::Silent),
    }
}
