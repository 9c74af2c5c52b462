//! A commit whose answer is lost, for every kind of command: the reply is that of the first run,
//! and the effect is there once.
//!
//! An engine on PostgreSQL, with a proxy between them, runs in step with the model in memory,
//! which knows nothing of cuts: replies and rows must be the same.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/mod.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use commands::{
    ack, ack_newest, append, attempts, cancel, close, consumer, defer, delete, delivery, extend,
    inbox, numbered, offer, open, operation, probe, pull, raise_floor, redrive, reopen, seal, set,
    sweep_inbox,
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use memory::Memory;
use receiptd::{
    domain::{
        command::{Command, Intention, Reply},
        ids::{Span, Timestamp},
        inbox::{Force, InboxChange, LimitChange},
        policy::Policy,
        refusal::Refusal,
        settings::Setting,
    },
    engine::{Engine, EngineSettings, seams::Seams},
    store::{
        Store,
        postgres::{Migrations, PostgresOptions, PostgresStore},
    },
};
use support::{
    BOUND, eventually,
    pattern::{COMMIT_ASKED, COMMIT_DONE},
    postgres::postgres,
    proxy::{Direction, Mode, Proxy},
    within,
};
use tokio_postgres::Client;

/// Where the connection to the database is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The commit took place, and its answer is lost.
    AnswerLost,
    /// The commit never reached the database: everything runs again, in the settling transaction.
    NeverAsked,
}

/// One command with what it finds, and its reply in short.
struct Case {
    before: Vec<Step>,
    command: Command,
    reply: &'static str,
}

enum Step {
    Run(Command),
    Advance(i64),
}

/// Every kind of command, on names of its own.
fn cases(name: &str, now: Timestamp) -> Vec<Case> {
    let submit =
        |id: &str| append(&format!("{name}-{id}"), now).into_inbox(&format!("{name}-{id}"));
    let path = |id: &str| format!("{name}-{id}");
    let holder = |id: &str| submit(id).on(&path(id)).until_acked().command();
    let waiter = |id: &str| append(&format!("{name}-{id}-waits"), now).on(&path(id)).command();
    let run = Step::Run;
    let opened =
        |id: &str| vec![run(submit(id).on(&path(id)).command()), run(open(&path(id), "c", 3))];
    let offered = |id: &str| {
        let mut steps = opened(id);
        steps.push(run(offer(&path(id), "c", 1, 5)));
        steps
    };
    let case = |before, command, reply| Case { before, command, reply };
    let release = |id: &str| Command::ReleaseLock {
        target: commands::target(&path(id)),
        operation_id: operation(&path(id)).id,
        reason: String::new(),
        subject: "operator".to_owned(),
    };
    let due_delivery = |id: &str| Command::SweepDelivery {
        key: delivery(&path(id), 1),
        operation_id: operation(&path(id)).id,
    };
    let attempt = |id: &str| attempts(&path(id), Some("c"), &[(1, 1)]);
    let expired = |id: &str| {
        let mut steps = with_pause(opened(id), 62);
        steps.push(run(due_delivery(id)));
        steps
    };
    let late = |id: &str, seconds| vec![run(holder(id)), run(waiter(id)), Step::Advance(seconds)];
    let acked = ack(&path("purge"), &[1]);
    let update = |id: &str| Command::UpdateInbox {
        inbox: inbox(&path(id)),
        change: InboxChange { slots: LimitChange::To(5), in_flight_limit: LimitChange::Keep },
    };
    let queue = |id: &str| vec![run(holder(id)), run(waiter(id))];
    let waits = |id: &str| operation(&format!("{name}-{id}-waits"));
    vec![
        // The first one: a probe writes nothing but the row of an account that has none.
        case(vec![], probe(&path("probe"), now - Span::days(2)), "NeverAccepted"),
        case(vec![], seal(&path("seal"), now), "Cancelled Cancelled"),
        case(vec![], submit("submit").on(&path("submit")).command(), "Executed Applied"),
        case(vec![run(holder("wait"))], waiter("wait"), "Executed Accepted"),
        case(queue("cancel"), cancel(waits("cancel").id.as_str(), now), "Cancelled Cancelled"),
        case(queue("ack"), ack(&path("ack"), &[1, 9]), "Acked NoSuchDelivery"),
        case(queue("named"), ack_newest(&path("named")), "Acked"),
        case(offered("extend"), extend(attempt("extend"), Some(Span::seconds(50))), "Done"),
        case(offered("defer"), defer(attempt("defer"), Span::seconds(5)), "Done"),
        case(
            expired("redrive"),
            redrive(numbered(&path("redrive"), &[1, 9])),
            "Redriven NoSuchDelivery",
        ),
        case(queue("pull"), pull(&path("pull"), "c", 5), "Offered 1 in attempt 1"),
        case(offered("open"), open(&path("open"), "c", 3), "Opened as 2"),
        case(offered("reopen"), reopen(&path("reopen"), "c", (1, 1), 3), "Opened as 2"),
        case(opened("offer"), offer(&path("offer"), "c", 1, 5), "Offered 1 in attempt 1"),
        case(offered("close"), close(&path("close"), "c", 1), "Closed"),
        case(queue("release"), release("release"), "Released"),
        case(opened("update"), update("update"), "Updated to Some(5)"),
        case(vec![], set(Setting::AckWindow, 50_000_000), "In force Span(50000000)"),
        case(vec![], raise_floor(now - Span::days(3), Intention::Execute), "Raised from none"),
        case(
            vec![run(submit("erase").on(&path("erase")).command()), run(ack(&path("erase"), &[1]))],
            commands::erase(&path("erase")),
            "Erased: Now",
        ),
        // Empty: what it held would end in a batch of its own.
        case(
            vec![
                run(submit("delete").on(&path("delete")).command()),
                run(ack(&path("delete"), &[1])),
            ],
            delete(&path("delete"), Force::OnlyEmpty, Some(1)),
            "Deleted generation 1",
        ),
        case(vec![], Command::FoldReplays { key: operation(&path("submit")), count: 3 }, "Folded"),
        case(
            late("operation", 12),
            Command::SweepOperation { key: waits("operation") },
            "StartDeadline",
        ),
        case(
            late("lock", 22),
            Command::SweepLock { target: commands::target(&path("lock")) },
            "LockReleased",
        ),
        case(with_pause(offered("attempt"), 32), due_delivery("attempt"), "Returned"),
        case(with_pause(opened("expire"), 62), due_delivery("expire"), "Expired"),
        case(
            with_pause(opened("inbox"), 42),
            Command::SweepInbox { key: inbox(&path("inbox")) },
            "ConsumerRemoved",
        ),
        case(
            with_pause(vec![run(submit("purge").on(&path("purge")).command()), run(acked)], 72),
            sweep_inbox(&path("purge")),
            "Purged(1)",
        ),
        case(
            with_pause(vec![], 3_700),
            Command::SweepAccount { account: commands::account() },
            "AccountClosed",
        ),
    ]
}

fn with_pause(mut steps: Vec<Step>, seconds: i64) -> Vec<Step> {
    steps.push(Step::Advance(seconds));
    steps
}

fn policy() -> Policy {
    Policy {
        start_deadline: Span::seconds(10),
        lock_limit: Span::seconds(20),
        ack_deadline: Span::seconds(30),
        consumer_lease: Span::seconds(40),
        ack_window: Span::seconds(60),
        admission_window: Span::seconds(65),
        record_retention: Span::seconds(70),
        ..Policy::default()
    }
}

/// An engine behind a proxy, in step with the model.
struct Pair {
    model: Memory,
    engine: Engine,
    seams: Seams,
    proxy: Proxy,
    cuts: [u64; 2],
    client: Client,
}

impl Pair {
    async fn start() -> Option<Pair> {
        let server = tokio::task::block_in_place(postgres)?;
        let database = server.fresh_database().await;
        let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
        let mut model = Memory::new(policy());
        model.jitter = 0;
        let counter = Arc::new(AtomicU64::new(1));
        let seams =
            Seams::simulated(|| Timestamp(0), move || counter.fetch_add(1, Ordering::SeqCst));
        seams.stop_clock(model.now);
        // The test holds a row for a moment; nothing here is about the wait for it.
        let options =
            PostgresOptions { lock_timeout: BOUND, ..PostgresOptions::usual(Migrations::Apply) };
        let url = server.url(&database, proxy.address().port());
        let store = PostgresStore::open(&url, &seams, options).await.expect("opens");
        let settings = EngineSettings { lanes: 1 };
        let engine = Engine::start(Store::Postgres(store), policy(), settings, seams.clone());
        let client = server.connect(&database).await;
        Some(Pair { model, engine, seams, proxy, cuts: [0, 0], client })
    }

    async fn prepare(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Run(command) => {
                    let expected = format!("{:?}", self.model.run(&command));
                    let found = format!("{:?}", self.engine.run(command.clone()).await);
                    assert_eq!(found, expected, "{command:?}");
                }
                Step::Advance(seconds) => {
                    self.model.advance(Span::seconds(seconds));
                    self.seams.move_clock(Span::seconds(seconds));
                }
            }
        }
    }

    /// From now on the next commit is cut.
    fn set(&mut self, cut: Cut) {
        let (direction, pattern, number) = match cut {
            Cut::AnswerLost => (Direction::Down, COMMIT_DONE, 0),
            Cut::NeverAsked => (Direction::Up, COMMIT_ASKED, 1),
        };
        self.cuts[number] += 1;
        self.proxy.set(direction, Mode::cut_at(pattern));
    }

    /// Batches that committed, and those of them that were settled: what the cut really did.
    async fn batches(&self) -> (i64, i64) {
        let text = "SELECT count(*), coalesce(sum(settled), 0)::bigint FROM receiptd.batches";
        let row = self.client.query_one(text, &[]).await.expect("counts");
        (row.get(0), row.get(1))
    }

    /// Waits until the cut has taken place, and compares everything.
    async fn check(&self, cut: Cut, before: (i64, i64), what: &str) {
        self.proxy.triggered(Direction::Down, self.cuts[0]).await;
        self.proxy.triggered(Direction::Up, self.cuts[1]).await;
        let settled = i64::from(cut == Cut::AnswerLost);
        let (batches, settled_now) = self.batches().await;
        assert_eq!(settled_now, before.1 + settled, "{what}: settled");
        // A lost transaction that has not come to its batch's row yet still holds its ids: settling
        // then writes the row alone, which ends the lost one, and the command has a batch of its own.
        let most = if cut == Cut::AnswerLost { 1 } else { 2 };
        assert!((1..=most).contains(&(batches - before.0)), "{what}: {before:?} to {batches}");
        rows::compare_rows(&self.model, self.engine.store()).await;
    }

    async fn stop(self) {
        within("the engine to drain", self.engine.drain()).await;
        self.engine.store().close().await;
    }
}

/// A reply in short, as a caller tells it apart from that of a second run.
fn short(reply: &Result<Reply, Refusal>) -> String {
    let words = |each: Vec<String>| each.join(" ");
    match reply {
        Ok(Reply::Submitted(submitted)) => {
            format!("{:?} {:?}", submitted.origin, submitted.operation.state)
        }
        Ok(Reply::Cancelled { outcome, operation, .. }) => {
            format!("{outcome:?} {:?}", operation.state)
        }
        Ok(Reply::Acked(each)) => {
            words(each.iter().map(|acked| format!("{:?}", acked.outcome)).collect())
        }
        Ok(Reply::Attempted(each)) => {
            words(each.iter().map(|attempted| format!("{:?}", attempted.outcome)).collect())
        }
        Ok(Reply::Redriven(each)) => {
            words(each.iter().map(|redriven| format!("{:?}", redriven.outcome)).collect())
        }
        Ok(Reply::Opened { consumer, .. }) => format!("Opened as {}", consumer.epoch),
        Ok(Reply::Offered { deliveries, .. }) => {
            let each = deliveries
                .iter()
                .map(|row| format!("Offered {} in attempt {}", row.key.sequence, row.attempt));
            words(each.collect())
        }
        Ok(Reply::Lapsed) => "Lapsed".to_owned(),
        Ok(Reply::Closed) => "Closed".to_owned(),
        Ok(Reply::InboxUpdated(inbox)) => format!("Updated to {:?}", inbox.slots_limit),
        Ok(Reply::InboxDeleted(inbox)) => format!("Deleted generation {}", inbox.generation),
        Ok(Reply::PolicyUpdated(updated)) => format!("In force {:?}", updated.policy.ack_window),
        Ok(Reply::FloorRaised(raised)) => match raised.before {
            Timestamp::BEGINNING => "Raised from none".to_owned(),
            before => format!("Raised from {before:?}"),
        },
        Ok(Reply::Erased(erased)) => format!("Erased: {erased:?}"),
        Ok(Reply::Released(_)) => "Released".to_owned(),
        Ok(Reply::Swept(swept)) => format!("{swept:?}"),
        Ok(Reply::Probed(answer)) => format!("{:?}", answer.standing),
        Ok(Reply::Folded) => "Folded".to_owned(),
        Err(refusal) => refusal.reason().to_owned(),
    }
}

async fn every_kind_is_answered_as_by_its_first_run(cut: Cut, name: &str) {
    let Some(mut pair) = Pair::start().await else { return };
    let count = cases(name, pair.model.now).len();
    for number in 0..count {
        let case = cases(name, pair.model.now).remove(number);
        pair.prepare(case.before).await;
        let before = pair.batches().await;
        let expected = pair.model.run(&case.command);
        pair.set(cut);
        let found = within("a reply", pair.engine.run(case.command.clone())).await;
        assert_eq!(short(&found), case.reply, "{:?}", case.command);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{:?}", case.command);
        pair.check(cut, before, case.reply).await;
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_answered_as_by_its_first_run() {
    every_kind_is_answered_as_by_its_first_run(Cut::AnswerLost, "lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_never_arrived_runs_again_and_is_answered_as_by_its_first_run() {
    every_kind_is_answered_as_by_its_first_run(Cut::NeverAsked, "never").await;
}

/// Several commands of one batch: a cancel that changes nothing waits for a row, and what comes
/// meanwhile shares the next transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_several_commands_is_answered_as_by_its_first_run() {
    let Some(mut pair) = Pair::start().await else { return };
    for cut in [Cut::AnswerLost, Cut::NeverAsked] {
        let (now, name) = (pair.model.now, format!("{cut:?}"));
        let ended = append(&format!("{name}-ended"), now).on("ended").until_acked().command();
        let sequence = pair.model.inboxes.get(&inbox("default")).map_or(1, |row| row.next_sequence);
        pair.prepare(vec![Step::Run(ended)]).await;
        let before = pair.batches().await;
        let blocker = cancel(&format!("{name}-ended"), now);
        let commands = vec![
            append(&format!("{name}-waits"), now).on("ended").command(),
            append(&format!("{name}-one"), now).on("batch").command(),
            append(&format!("{name}-two"), now).on("batch").command(),
            open("default", &format!("c-{name}"), 5),
            cancel(&format!("{name}-one"), now),
            ack("default", &[sequence + 1]),
            append(&format!("{name}-one"), now).on("batch").command(),
        ];
        let replies = run_together(&mut pair, cut, blocker, commands.clone()).await;
        let expected = pair.model.run_batch(&commands);
        let short: Vec<String> = replies.iter().map(short).collect();
        let opened = if cut == Cut::AnswerLost { "Opened as 1" } else { "Opened as 2" };
        let words = ["Executed Accepted", "Executed Applied", "Executed Applied", opened];
        assert_eq!(short[..4], words);
        assert_eq!(short[4..], ["TooLate Applied", "Acked", "Replayed Applied"]);
        assert_eq!(format!("{replies:?}"), format!("{expected:?}"));
        pair.check(cut, before, "a batch").await;
        let release = ack("default", &[sequence]);
        pair.prepare(vec![Step::Run(release)]).await;
    }
    let consumers = pair.model.inboxes[&inbox("default")].consumers.clone();
    assert_eq!(consumers.len(), 2);
    assert_eq!(consumers[0].id, consumer("c-AnswerLost"));
    pair.stop().await;
}

/// Queues `commands` while `blocker` waits for its row, then cuts their commit.
async fn run_together(
    pair: &mut Pair,
    cut: Cut,
    blocker: Command,
    commands: Vec<Command>,
) -> Vec<Result<Reply, Refusal>> {
    let Command::Cancel { key, .. } = &blocker else { unreachable!("a cancel") };
    pair.client.batch_execute("BEGIN").await.expect("begins");
    let lock = "SELECT 1 FROM receiptd.operations WHERE operation_id = $1 FOR UPDATE";
    pair.client.query(lock, &[&key.id.to_stored()]).await.expect("locks");
    let engine = pair.engine.clone();
    let mut waiting: BoxFuture<'_, _> = engine.run(blocker).boxed();
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits");
    eventually("the engine to wait for the row", BOUND, async || {
        let text = "SELECT count(*) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let count: i64 = pair.client.query_one(text, &[]).await.expect("counts").get(0);
        (count > 0).then_some(())
    })
    .await;
    let mut rest = join_all(commands.into_iter().map(|command| engine.run(command))).boxed();
    assert!(rest.as_mut().now_or_never().is_none(), "they wait behind it");
    pair.set(cut);
    pair.client.batch_execute("ROLLBACK").await.expect("lets go");
    let blocked = within("the blocker", waiting).await;
    assert_eq!(short(&blocked), "TooLate Applied");
    tokio::time::timeout(BOUND + Duration::from_secs(20), rest).await.expect("replies")
}

/// One connection goes silent around its COMMIT, and neither side is told: the rows that it locked
/// and the lane that waits for it are free again soon.
async fn one_silent_connection_holds_nobody_up(cut: Cut) {
    let Some(server) = tokio::task::block_in_place(postgres) else { return };
    let database = server.fresh_database().await;
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let url = server.url(&database, proxy.address().port());
    let (seams, options) = (Seams::system(), PostgresOptions::usual(Migrations::Apply));
    let store = PostgresStore::open(&url, &seams, options).await.expect("opens");
    let now = store.now().await.expect("reads the clock");
    let settings = EngineSettings { lanes: 2 };
    let engine = Engine::start(Store::Postgres(store), policy(), settings, seams);
    let direction = match cut {
        Cut::AnswerLost => Direction::Down,
        Cut::NeverAsked => Direction::Up,
    };
    let pattern = if cut == Cut::AnswerLost { COMMIT_DONE } else { COMMIT_ASKED };
    let (first, rest) = (engine.clone(), engine.clone());
    proxy.set(direction, Mode::silent_at(pattern));
    let swallowed = within("the swallowed one", first.run(append("swallowed", now).command()));
    let others = async {
        proxy.triggered(direction, 1).await;
        let same = (0..9).map(|number| append(&format!("same-{number}"), now));
        let beside = (0..9).map(|number| append(&format!("beside-{number}"), now).on("beside"));
        let all = same.chain(beside).map(|each| rest.run(each.command()));
        within("the others", join_all(all)).await
    };
    let (swallowed, others) = tokio::join!(swallowed, others);
    for reply in others.iter().chain([&swallowed]) {
        assert_eq!(short(reply), "Executed Applied", "{cut:?}");
    }
    let again = within("a repeat", engine.run(append("swallowed", now).command())).await;
    assert_eq!(short(&again), "Replayed Applied");
    within("the engine to drain", engine.drain()).await;
    engine.store().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_silent_after_its_commit_holds_nobody_up() {
    one_silent_connection_holds_nobody_up(Cut::AnswerLost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_silent_before_its_commit_holds_nobody_up() {
    one_silent_connection_holds_nobody_up(Cut::NeverAsked).await;
}
