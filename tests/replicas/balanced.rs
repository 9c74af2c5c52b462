//! W4, W5 and W6 with two and three replicas behind a balancer that cuts every connection at a
//! byte of its own: an editor that links the client library sees one effect and one result each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use receiptd::{
    client::{
        connect::{Client, Secret},
        results::Received,
        submission::Submission,
    },
    proto::{OperationEventKind, StreamDeliveriesRequest, operation::State},
};
use serde_json::json;

use crate::{
    Shared,
    support::{
        answers::{answered, lines, state_of},
        background,
        client::Caller,
        eventually,
        proxy::Proxy,
        requests::{Identity, into_inbox, until_acked},
        server::{Server, TOKEN_A},
    },
};

/// Operations of the editor under fire.
const EDITS: usize = 60;
/// A connection lives for half of this many bytes on the average: too short for an editor's work.
const CONNECTION_BYTES_MAX: u64 = 16 * 1024;
/// What the editor holds unacked. A frame carries no more, so that one arrives on most connections:
/// what never arrives spends its attempts.
const WINDOW: i32 = 4;
/// How long all of it may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// What no replica may add, whatever the storm.
const MEMORY_RISE_MAX: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_works_through_a_balancer_that_cuts_before_two_replicas() {
    under_fire(2, 0x5EED_0002).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_works_through_a_balancer_that_cuts_before_three_replicas() {
    under_fire(3, 0x5EED_0003).await;
}

/// What the application was handed: how often each operation's result.
type Handed = Arc<Mutex<BTreeMap<String, usize>>>;

async fn under_fire(replicas: usize, seed: u64) {
    let Some(shared) = Shared::new().await else { return };
    let flags = [
        "--ack-deadline=2s",
        "--retry-budget=12",
        "--backoff-limit=200ms",
        "--heartbeat=1s",
        "--consumer-lease=4s",
    ];
    let servers: Vec<Server> = (0..replicas).map(|_| shared.serve(&flags)).collect();
    let balancer = Proxy::balance(servers.iter().map(Server::address).collect()).await;
    let memory: Vec<Option<u64>> = servers.iter().map(Server::memory).collect();
    balancer.cut_by_chance(Some((seed, CONNECTION_BYTES_MAX)));

    let client = Client::builder(format!("http://{}", balancer.address()))
        .token(Secret::new(TOKEN_A))
        .build()
        .expect("a usable client");
    let handed = Handed::default();
    let reading = background(read(client.clone(), handed.clone()));
    let beside = servers[0].a();
    let never_acks = background(read_and_never_ack(balancer.address()));
    let holder = Identity::fresh();
    let held = into_inbox(until_acked(holder.append("held", "first")), "abandoned");
    beside.submitted(held).await;
    let waiter = Identity::fresh();
    let waiting = beside.submitted(into_inbox(waiter.append("held", "second"), "other")).await;
    assert_eq!(answered(&waiting).1, State::Accepted);

    for number in 0..EDITS {
        let line = json!({ "line": format!("line {number}") });
        let edit = Submission::json("document.append", "notes", &line).into_inbox("editor");
        assert!(client.submit(edit).await.expect("an outcome").is_applied(), "line {number}");
    }
    // W5: what nobody acks lets go, and later work proceeds.
    eventually("the lock to be released", PATIENCE, async || {
        (state_of(&beside.get(&waiter).await) == Some(State::Applied)).then_some(())
    })
    .await;
    eventually("every result", PATIENCE, async || {
        (handed.lock().expect("no panic").len() >= EDITS).then_some(())
    })
    .await;
    let connections = balancer.connections();
    assert!(connections > 10, "the balancer cut: {connections} connections");
    balancer.cut_by_chance(None);

    // W4: every duplicate was recognised, and every effect and ack happened once.
    let inbox = eventually("every ack", PATIENCE, async || {
        let inbox = beside.inbox("editor").await;
        (inbox.pending + inbox.in_flight == 0).then_some(inbox)
    })
    .await;
    assert_eq!((inbox.acked_total, inbox.expired_total, inbox.dead_total), (EDITS as i64, 0, 0));
    let text = beside.text("notes").await.0;
    for number in 0..EDITS {
        assert_eq!(lines(&text, &format!("line {number}")), 1, "line {number}");
    }
    let handed: Vec<usize> = handed.lock().expect("no panic").values().copied().collect();
    assert_eq!(handed, vec![1; EDITS], "each is handed over once");
    let abandoned = beside.inbox("abandoned").await;
    assert_eq!((abandoned.acked_total, abandoned.dead_total), (0, 1));
    for kind in [OperationEventKind::Dead, OperationEventKind::LockReleased] {
        assert_eq!(beside.count_events(&holder, kind).await, 1, "{kind:?} in the audit trail");
    }

    // W6: the storm left nothing behind.
    assert!(inbox.consumers.len() <= 1, "one installation is one consumer: {inbox:?}");
    for (server, before) in servers.iter().zip(memory) {
        if let (Some(before), Some(after)) = (before, server.memory()) {
            assert!(after < before + MEMORY_RISE_MAX, "from {before} to {after} bytes");
        }
    }
    assert!(!reading.is_finished(), "the reader has not given up");
    reading.abort();
    never_acks.abort();
}

async fn read(client: Client, handed: Handed) {
    let handler = async |received: Received| {
        let id = received.delivery.operation_id.clone();
        *handed.lock().expect("no panic").entry(id).or_default() += 1;
        Ok::<(), String>(())
    };
    drop(client.inbox("editor").consumer("laptop").window(WINDOW).stream(&handler).await);
}

/// Reads the abandoned inbox again and again, and acks nothing.
async fn read_and_never_ack(balancer: std::net::SocketAddr) {
    let caller = Caller::new(balancer, TOKEN_A);
    let mut token = String::new();
    loop {
        let request = StreamDeliveriesRequest {
            inbox: "abandoned".into(),
            consumer_id: "forgetful".into(),
            resume_token: token.clone(),
            ..StreamDeliveriesRequest::default()
        };
        if let Ok(mut reader) = caller.open(request).await {
            while reader.frame().await.is_ok() {}
            token = reader.token;
        }
        // As a client that backs off little.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
