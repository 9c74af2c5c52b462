//! The service in this process, through its listener, with a store's clock that the test moves.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use receiptd::{
    api::auth::Access,
    config::{Config, StoreUrl},
    domain::{
        ids::{Span, Timestamp},
        policy::Policy,
    },
    engine::{Engine, seams::Seams},
    server::{Listeners, Server, ServerError},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::support::{
    background,
    client::Caller,
    requests::Identity,
    server::{TOKEN_A, TOKEN_B},
    stores::TestStore,
    wall_clock, within,
};

const OFTEN: Span = Span::millis(50);

/// A service that the test can see and whose clock stands still.
pub struct Hosted {
    pub address: SocketAddr,
    pub engine: Engine,
    pub seams: Seams,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServerError>>,
    // The embedded store's folder lives as long as its servers.
    store: Arc<TestStore>,
}

/// Serves `store` under `policy`, with accounts `a` and `b`. The store's clock stands at now.
pub async fn host(store: TestStore, policy: Policy) -> Hosted {
    host_sweeping(store, policy, OFTEN).await
}

/// As [`host`], and nothing is swept by itself after the pass of the start.
pub async fn host_without_sweeps(store: TestStore, policy: Policy) -> Hosted {
    host_sweeping(store, policy, Span::minutes(10)).await
}

async fn host_sweeping(store: TestStore, policy: Policy, sweep_interval: Span) -> Hosted {
    let seams = Seams::system();
    let now = wall_clock().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    seams.stop_clock(Timestamp(i64::try_from(now.as_micros()).expect("fits for ages")));
    serve(Arc::new(store), policy, seams, sweep_interval).await
}

/// As [`host`], with so many replicas, and a clock that runs and can be moved besides.
pub async fn host_replicas(store: TestStore, policy: Policy, count: usize) -> Vec<Hosted> {
    let (store, seams) = (Arc::new(store), Seams::system());
    let mut replicas = Vec::new();
    for _ in 0..count {
        replicas.push(serve(Arc::clone(&store), policy.clone(), seams.clone(), OFTEN).await);
    }
    replicas
}

async fn serve(
    store: Arc<TestStore>,
    policy: Policy,
    seams: Seams,
    sweep_interval: Span,
) -> Hosted {
    let access = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/access.toml");
    let access = Access::from_file(&access).expect("a good file");
    let config = Config { policy, sweep_interval, ..Config::default() };
    let url: StoreUrl = store.url().parse().expect("a store");
    let server = Server::open(config, &url, access, seams.clone()).await.expect("opens");
    let engine = server.engine().clone();
    let grpc = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = grpc.local_addr().expect("bound");
    let shutdown = CancellationToken::new();
    let listeners = Listeners { grpc, admin: None };
    let serving = background(server.serve_on(listeners, shutdown.clone()));
    Hosted { address, engine, seams, shutdown, serving, store }
}

impl Hosted {
    /// A caller of account `a` with a connection of its own.
    pub fn a(&self) -> Caller {
        Caller::new(self.address, TOKEN_A)
    }

    /// A caller of account `b`.
    pub fn b(&self) -> Caller {
        Caller::new(self.address, TOKEN_B)
    }

    /// The store that it serves, which may be taken away.
    pub fn store(&self) -> &TestStore {
        &self.store
    }

    /// An id that is made now, by the clock of the store, in whole seconds.
    pub fn minted_now(&self, id: &str) -> (Timestamp, Identity) {
        let seconds = self.seams.now().0 / 1_000_000;
        let mint_time = Some(prost_types::Timestamp { seconds, nanos: 0 });
        (Timestamp(seconds * 1_000_000), Identity { id: id.to_owned(), mint_time })
    }

    /// Moves the store's clock.
    pub fn advance(&self, by: Duration) {
        self.seams.move_clock(Span(i64::try_from(by.as_micros()).expect("small")));
    }

    /// Ends the service well.
    pub async fn stop(self) {
        self.shutdown.cancel();
        within("the service to end", self.serving).await.expect("no panic").expect("ends well");
    }

    /// Ends the service well, and keeps the store for another one.
    pub async fn stop_and_keep(self) -> TestStore {
        self.shutdown.cancel();
        within("the service to end", self.serving).await.expect("no panic").expect("ends well");
        Arc::into_inner(self.store).expect("the last replica on it")
    }
}
