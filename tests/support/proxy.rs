//! A TCP proxy under the test's control: between client and server, or server and database; before
//! several servers it is a balancer.
//!
//! What must stay true: a mode applies to bytes that were not forwarded yet, on open connections
//! too; a cut resets both sides at once; a trigger is a signal the test can wait for. A cut
//! happens once: the mode is [`Mode::Forward`] afterwards, so that a retry gets through. Only
//! [`Proxy::cut_by_chance`] goes on.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
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
    chance: Mutex<Option<Chance>>,
}

/// Where connections are cut: each has a length of its own in either direction.
#[derive(Debug, Clone, Copy)]
struct Chance {
    seed: u64,
    bytes_max: u64,
}

impl Chance {
    /// The length of a connection's direction; the same for the same seed.
    fn length(self, connection: u64, direction: Direction) -> u64 {
        // SplitMix64: every bit of the number counts in every bit of the length.
        let step = 2 * connection + u64::from(direction == Direction::Down) + 1;
        let mut bits = self.seed.wrapping_add(step.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % self.bytes_max + 1
    }
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
        Proxy::balance(vec![target]).await
    }

    /// Listens on a free loopback port and forwards connections to the targets in turn; one that
    /// does not take a connection is passed over.
    pub async fn balance(targets: Vec<SocketAddr>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            up: Lane::new(),
            down: Lane::new(),
            cuts: watch::Sender::new(0),
            connections: AtomicU64::new(0),
            chance: Mutex::new(None),
        });
        let task = background(accept(listener, targets, Arc::clone(&shared)));
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

    /// Cuts every later connection somewhere in its first `bytes_max` bytes of either direction,
    /// again and again, at places that follow from `seed`; `None` ends that.
    pub fn cut_by_chance(&self, chance: Option<(u64, u64)>) {
        let chance = chance.map(|(seed, bytes_max)| Chance { seed, bytes_max });
        *self.shared.chance.lock().expect("no panic") = chance;
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

async fn accept(listener: TcpListener, mut targets: Vec<SocketAddr>, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        background(connection(client, number, targets.clone(), Arc::clone(&shared)));
        targets.rotate_left(1);
    }
}

/// The first of the targets that takes a connection.
async fn connect(targets: Vec<SocketAddr>) -> Option<TcpStream> {
    for target in targets {
        if let Ok(server) = TcpStream::connect(target).await {
            return Some(server);
        }
    }
    None
}

async fn connection(client: TcpStream, number: u64, targets: Vec<SocketAddr>, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let chance = *shared.chance.lock().expect("no panic");
    let length = |direction| chance.map_or(u64::MAX, |chance| chance.length(number, direction));
    let (up, down) = (length(Direction::Up), length(Direction::Down));
    let Some(server) = connect(targets).await else { return };
    drop(client.set_nodelay(true));
    drop(server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let silent = AtomicBool::new(false);
    let end = tokio::select! {
        end = pump(&mut from_client, &mut to_server, (shared.lane(Direction::Up), up), &silent) => end,
        end = pump(&mut from_server, &mut to_client, (shared.lane(Direction::Down), down), &silent) => end,
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

/// Forwards until one side ends, the mode says cut, or the connection has its length.
async fn pump(
    from: &mut tcp::OwnedReadHalf,
    to: &mut tcp::OwnedWriteHalf,
    (lane, length): (&Lane, u64),
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
        let left = usize::try_from(length - forwarded).unwrap_or(usize::MAX);
        if to.write_all(&waiting[..send.min(left)]).await.is_err() {
            return End::Closed;
        }
        if left <= send {
            return End::Cut;
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
