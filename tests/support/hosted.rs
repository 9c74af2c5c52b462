//! The service in this process, through its listener, with a store's clock that the test moves.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use std::{net::SocketAddr, path::Path, time::Duration};

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
    server::{TOKEN_A, TOKEN_B},
    stores::TestStore,
    wall_clock, within,
};

/// A service that the test can see and whose clock stands still.
pub struct Hosted {
    pub address: SocketAddr,
    pub engine: Engine,
    pub seams: Seams,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServerError>>,
    // The embedded store's folder lives as long as its server.
    store: TestStore,
}

/// Serves `store` under `policy`, with accounts `a` and `b`. The store's clock stands at now.
pub async fn host(store: TestStore, policy: Policy) -> Hosted {
    host_sweeping(store, policy, Span::millis(50)).await
}

/// As [`host`], and nothing is swept by itself after the pass of the start.
pub async fn host_without_sweeps(store: TestStore, policy: Policy) -> Hosted {
    host_sweeping(store, policy, Span::minutes(10)).await
}

async fn host_sweeping(store: TestStore, policy: Policy, sweep_interval: Span) -> Hosted {
    let access = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/access.toml");
    let access = Access::from_file(&access).expect("a good file");
    let seams = Seams::system();
    let now = wall_clock().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let now = Timestamp(i64::try_from(now.as_micros()).expect("fits for ages"));
    seams.stop_clock(now);
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

    /// Moves the store's clock.
    pub fn advance(&self, by: Duration) {
        self.seams.move_clock(Span(i64::try_from(by.as_micros()).expect("small")));
    }

    /// Ends the service well.
    pub async fn stop(self) {
        self.stop_and_keep().await;
    }

    /// Ends the service well, and keeps the store for another one.
    pub async fn stop_and_keep(self) -> TestStore {
        self.shutdown.cancel();
        within("the service to end", self.serving).await.expect("no panic").expect("ends well");
        self.store
    }
}
