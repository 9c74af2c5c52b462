//! One of three replicas is killed under a thousand streams: everybody goes on elsewhere.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use receiptd::proto::{
    AckOutcome, StreamDeliveriesRequest, batch_submit_result, stream_deliveries_response::Frame,
};
use tonic::Code;

use crate::{
    Shared,
    support::{
        background,
        client::{Caller, Reader, sequence, sequences},
        eventually,
        proxy::Proxy,
        requests::{Identity, into_inbox},
        server::{Server, TOKEN_A},
    },
};

const STREAMS: usize = 1_000;
const STREAMS_OF_A_CONNECTION: usize = 20;
/// Results of each inbox: before the kill, at it, and after it.
const ROUNDS: usize = 3;
/// How long anything may take on a busy machine. What it did take is printed.
const PATIENCE: Duration = Duration::from_secs(60);

/// One inbox and its reader.
#[derive(Default)]
struct Told {
    shown: Mutex<BTreeSet<i64>>,
    acked: Mutex<BTreeSet<i64>>,
    /// Results that were shown after their ack was confirmed: there must be none.
    shown_again: AtomicUsize,
    /// When the last stream was lost, while none is open.
    lost: Mutex<Option<Instant>>,
    /// The longest time without a stream.
    longest: Mutex<Duration>,
}

impl Told {
    fn opened(&self) {
        if let Some(lost) = self.lost.lock().expect("no panic").take() {
            let mut longest = self.longest.lock().expect("no panic");
            *longest = (*longest).max(lost.elapsed());
        }
    }

    fn closed(&self) {
        self.lost.lock().expect("no panic").get_or_insert_with(Instant::now);
    }
}

fn inbox_of(number: usize) -> String {
    format!("editor-{number}")
}

/// Reads and acks for ever; a lost stream is opened again with the last token.
async fn read(caller: Caller, number: usize, told: Arc<Told>) {
    let mut token = String::new();
    told.closed();
    loop {
        let request = StreamDeliveriesRequest {
            inbox: inbox_of(number),
            consumer_id: "laptop".into(),
            resume_token: token.clone(),
            ..StreamDeliveriesRequest::default()
        };
        match caller.open(request).await {
            Ok(mut reader) => {
                let end = follow(&caller, number, &mut reader, &told).await;
                assert!(
                    matches!(
                        end,
                        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
                    ),
                    "{end:?}"
                );
                token = reader.token;
            }
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
        told.closed();
        // Nobody comes back at the same moment as all others.
        tokio::time::sleep(Duration::from_millis(50 + number as u64 % 200)).await;
    }
}

async fn follow(caller: &Caller, number: usize, reader: &mut Reader, told: &Told) -> Code {
    loop {
        let frame = match reader.frame().await {
            Ok(frame) => frame,
            Err(status) => return status.code(),
        };
        let batch = match frame {
            Frame::Opened(_) => {
                told.opened();
                continue;
            }
            Frame::Deliveries(batch) => batch,
            Frame::Gap(gap) => panic!("nothing is lost: {gap:?}"),
            _ => continue,
        };
        for result in &batch.results {
            let acked = told.acked.lock().expect("no panic").contains(&sequence(result));
            told.shown_again.fetch_add(usize::from(acked), Ordering::SeqCst);
            told.shown.lock().expect("no panic").insert(sequence(result));
        }
        let numbers = sequences(&batch.results);
        // An ack whose answer was lost may have counted: it is repeated until it is confirmed.
        let outcomes = loop {
            match caller.ack(&inbox_of(number), &numbers).await {
                Ok(outcomes) => break outcomes,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let good =
            |outcome: &AckOutcome| matches!(outcome, AckOutcome::Acked | AckOutcome::AlreadyAcked);
        assert!(outcomes.iter().all(good), "{outcomes:?}");
        told.acked.lock().expect("no panic").extend(numbers);
    }
}

/// One result into every inbox, by a replica that lives.
async fn submit_round(caller: &Caller, round: usize) {
    for page in 0..STREAMS / 100 {
        let requests = (page * 100..(page + 1) * 100).map(|number| {
            let target = format!("notes/{number}");
            into_inbox(Identity::fresh().append(&target, &round.to_string()), &inbox_of(number))
        });
        for outcome in caller.submit_together(requests.collect()).await {
            assert!(matches!(outcome, batch_submit_result::Result::Response(_)), "{outcome:?}");
        }
    }
}

async fn all(told: &[Arc<Told>], what: &str, is_so: impl Fn(&Told) -> bool) {
    eventually(what, PATIENCE, async || told.iter().all(|one| is_so(one)).then_some(())).await;
}

fn has(set: &Mutex<BTreeSet<i64>>, count: usize) -> bool {
    set.lock().expect("no panic").len() >= count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_outlive_one_of_three_replicas() {
    let Some(shared) = Shared::new().await else { return };
    let flags = ["--heartbeat=2s", "--ack-deadline=20s", "--account-streams-max=2000"];
    let mut servers: Vec<Server> = (0..3).map(|_| shared.serve(&flags)).collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(Server::address).collect();
    let balancer = Proxy::balance(addresses).await;
    let beside = servers[0].a();
    let told: Vec<Arc<Told>> = (0..STREAMS).map(|_| Arc::default()).collect();
    let mut tasks = Vec::new();
    for (page, streams) in told.chunks(STREAMS_OF_A_CONNECTION).enumerate() {
        let caller = Caller::new(balancer.address(), TOKEN_A);
        for (place, told) in streams.iter().enumerate() {
            let number = page * STREAMS_OF_A_CONNECTION + place;
            tasks.push(background(read(caller.clone(), number, told.clone())));
        }
    }
    let is_open = |one: &Told| one.lost.lock().expect("no panic").is_none();
    all(&told, "every stream to open", is_open).await;
    submit_round(&beside, 1).await;
    all(&told, "the first results to be acked", |one| has(&one.acked, 1)).await;
    told.iter().for_each(|one| *one.longest.lock().expect("no panic") = Duration::ZERO);

    // Results are under way to all of them when it dies.
    let (_, ()) = tokio::join!(submit_round(&beside, 2), async {
        all(&told, "somebody to be shown", |_| told.iter().any(|one| has(&one.shown, 2))).await;
        servers[2].kill();
    });
    let hit = || told.iter().filter(|one| !one.longest.lock().expect("no panic").is_zero()).count();
    eventually("a third to notice", PATIENCE, async || {
        let away = told.iter().filter(|one| !is_open(one)).count();
        (away + hit() >= STREAMS / 4).then_some(())
    })
    .await;
    all(&told, "every stream to resume elsewhere", is_open).await;
    submit_round(&beside, 3).await;
    all(&told, "every result to be acked", |one| has(&one.acked, ROUNDS)).await;

    let longest = told.iter().map(|one| *one.longest.lock().expect("no panic")).max();
    println!("{} of {STREAMS} streams resumed within {:?}", hit(), longest.expect("a thousand"));
    assert!(hit() >= STREAMS / 4, "a third was on the one that died");
    for (number, one) in told.iter().enumerate() {
        let shown = one.shown.lock().expect("no panic").clone();
        assert_eq!(shown, (1..=ROUNDS as i64).collect(), "stream {number}");
        assert_eq!(one.shown_again.load(Ordering::SeqCst), 0, "stream {number}");
    }
    for number in (0..STREAMS).step_by(97) {
        let inbox = beside.inbox(&inbox_of(number)).await;
        assert_eq!((inbox.acked_total, inbox.pending, inbox.in_flight), (ROUNDS as i64, 0, 0));
    }
    assert!(tasks.iter().all(|task| !task.is_finished()), "no reader has given up");
    tasks.iter().for_each(|task| task.abort());
}
