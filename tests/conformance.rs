//! One meaning: both stores give the replies of the model, hold its rows, and dump alike.
//!
//! The same steps run through the engine on SQLite, on PostgreSQL, and in memory, on one stopped
//! clock. There are no exceptions per store.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/pgbouncer.rs"]
mod pgbouncer;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/steps.rs"]
mod steps;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use commands::{
    Instruction, ack, append, cancel, delete, inbox, offer, offer_again, open, operation, probe,
    seal, sweep_inbox, target,
};
use pgbouncer::PgBouncer;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use receiptd::{
    domain::{
        command::{Command, Intention},
        delivery::InboxKey,
        ids::{MintTime, Span, Timestamp},
        inbox::{Force, InboxChange, LimitChange},
    },
    engine::{Engine, EngineSettings, seams::Seams},
    store::{
        Store,
        postgres::{DirectUrl, Migrations, Pooler, PostgresOptions, PostgresStore},
        query::{Due, DueKind},
        sqlite::{Options, SqliteStore},
    },
};
use steps::{Model, Step, policy, step};

/// A store with an engine on it, on a clock of its own that stands still.
struct Subject {
    engine: Engine,
    seams: Seams,
}

impl Subject {
    fn seams(start: Timestamp) -> Seams {
        // Small numbers: unique ids for batches, and no jitter in the upper half.
        let counter = Arc::new(AtomicU64::new(1));
        let seams =
            Seams::simulated(|| Timestamp(0), move || counter.fetch_add(1, Ordering::SeqCst));
        seams.stop_clock(start);
        seams
    }

    fn new(store: Store, seams: Seams) -> Self {
        let settings = EngineSettings { lanes: 1 };
        let engine = Engine::start(store, policy(), settings, seams.clone());
        Subject { engine, seams }
    }

    async fn run(&self, command: Command) -> String {
        format!("{:?}", self.engine.run(command).await)
    }

    /// Waits until what a deleted inbox held has ended: the steps that end it miss rows at first, so
    /// that the next command could overtake them.
    async fn closed(&self, inbox: &InboxKey) {
        let closing = async || {
            let row = self.engine.store().inbox(inbox).await.expect("reads");
            row.is_some_and(|row| row.closing > 0)
        };
        while closing().await {
            tokio::task::yield_now().await;
        }
    }

    async fn due(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for kind in [
            DueKind::Deliveries,
            DueKind::Operations,
            DueKind::Locks,
            DueKind::Inboxes,
            DueKind::Accounts,
            DueKind::Records,
        ] {
            let mut after = None;
            loop {
                let page = self.engine.store().due(kind, after.as_ref(), 3).await.expect("reads");
                found.extend(page.rows.iter().map(|row| format!("{row:?}")));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        found
    }
}

fn as_due(command: &Command) -> Due {
    match command {
        Command::SweepDelivery { key, operation_id } => {
            Due::Delivery(key.clone(), operation_id.clone())
        }
        Command::SweepOperation { key } => Due::Operation(key.clone()),
        Command::SweepLock { target } => Due::Lock(target.clone()),
        Command::SweepInbox { key } => Due::Inbox(key.clone()),
        Command::SweepAccount { account } => Due::Account(account.clone()),
        other => panic!("not a sweep: {other:?}"),
    }
}

/// Runs one command everywhere and compares the replies.
async fn everywhere(model: &mut Model, subjects: &[Subject], command: Command) {
    let mut expected = format!("{:?}", model.memory.run(&command));
    for subject in subjects {
        let found = subject.run(command.clone()).await;
        assert_eq!(found, expected, "{command:?}");
        expected = found;
        if let Command::DeleteInbox { inbox, .. } = &command {
            subject.closed(inbox).await;
        }
    }
}

/// Follow-ups run right after the reply, and this command behind them: neither the clock nor a look
/// at what is due may overtake what the model did at once.
async fn settle(model: &mut Model, subjects: &[Subject]) {
    let behind = Command::FoldReplays { key: operation("nobody"), count: 0 };
    everywhere(model, subjects, behind).await;
}

async fn take(model: &mut Model, subjects: &[Subject], step: &Step) {
    match step {
        Step::Advance { seconds } => {
            settle(model, subjects).await;
            model.memory.advance(Span::seconds(*seconds));
            subjects.iter().for_each(|subject| subject.seams.move_clock(Span::seconds(*seconds)));
        }
        Step::Sweep => {
            settle(model, subjects).await;
            let commands = model.due();
            let expected: BTreeSet<String> =
                commands.iter().map(|command| format!("{:?}", as_due(command))).collect();
            for subject in subjects {
                assert_eq!(subject.due().await, expected, "what is due");
            }
            for command in commands {
                everywhere(model, subjects, command).await;
            }
        }
        // Streams attach to an engine by a channel; the model's way has a test of its own.
        Step::Open { attach: true, inbox, consumer, window } => {
            let step =
                Step::Open { attach: false, inbox: *inbox, consumer: *consumer, window: *window };
            let command = model.command(&step).expect("a command");
            everywhere(model, subjects, command).await;
        }
        other => {
            if let Some(command) = model.command(other) {
                everywhere(model, subjects, command).await;
            }
        }
    }
}

/// Every row of the model stands in the stores, and the stores dump alike.
async fn compare(model: &Model, subjects: &[Subject]) {
    for subject in subjects {
        rows::compare_rows(&model.memory, subject.engine.store()).await;
    }
    let mut dumps = Vec::new();
    for subject in subjects {
        let mut tables = subject.engine.store().dump_tables().await.expect("reads");
        // Batch rows name transactions, and each store has its own.
        tables.retain(|(table, _)| table != "batches");
        dumps.push(tables);
    }
    assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "table dumps differ");
}

/// The options of a store that is reached through a pooler in transaction mode, and its URL.
async fn through_pooler() -> Option<(String, PostgresOptions)> {
    static POOLER: OnceLock<Option<PgBouncer>> = OnceLock::new();
    let server = postgres::postgres()?;
    let pooler = tokio::task::block_in_place(|| {
        POOLER.get_or_init(|| PgBouncer::in_transaction_mode(server)).as_ref()
    })?;
    let name = server.fresh_database().await;
    let options = PostgresOptions {
        pooler: Pooler::Transaction,
        direct_url: Some(DirectUrl(server.url(&name, server.port()))),
        ..PostgresOptions::usual(Migrations::Apply)
    };
    Some((server.url(&name, pooler.port()), options))
}

/// Both stores, PostgreSQL also through a pooler; SQLite alone where PostgreSQL is not installed
/// (said loudly).
async fn subjects(start: Timestamp, folder: &std::path::Path) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let seams = Subject::seams(start);
    let path = folder.join("receiptd.db");
    let store = SqliteStore::open(&path, &seams, &Options::default());
    subjects.push(Subject::new(Store::Sqlite(store.expect("opens")), seams));
    if let Some(url) = postgres::fresh_database().await {
        let seams = Subject::seams(start);
        let store = PostgresStore::open(&url, &seams, PostgresOptions::usual(Migrations::Apply));
        subjects.push(Subject::new(Store::Postgres(store.await.expect("opens")), seams));
    }
    if let Some((url, options)) = through_pooler().await {
        let seams = Subject::seams(start);
        let store = PostgresStore::open(&url, &seams, options).await.expect("opens");
        subjects.push(Subject::new(Store::Postgres(store), seams));
    }
    subjects
}

async fn finish(subjects: Vec<Subject>) {
    for subject in subjects {
        subject.engine.drain().await;
        subject.engine.store().close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_mean_the_same_everywhere() {
    let config = Config { failure_persistence: None, ..Config::default() };
    for seed in 0..12_u8 {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        let steps = prop::collection::vec(step(), 60..120);
        let steps = steps.new_tree(&mut runner).expect("a sequence").current();
        let mut model = Model::new();
        model.memory.jitter = 0;
        let folder = tempfile::tempdir().expect("a folder");
        let subjects = subjects(model.start, folder.path()).await;
        for step in &steps {
            take(&mut model, &subjects, step).await;
        }
        compare(&model, &subjects).await;
        finish(subjects).await;
    }
}

/// The scenarios that chance alone seldom reaches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripted_scenarios_mean_the_same_everywhere() {
    let mut model = Model::new();
    model.memory.jitter = 0;
    model.memory.policy.inbox_slots = 8;
    let folder = tempfile::tempdir().expect("a folder");
    let subjects = subjects(model.start, folder.path()).await;
    let now = model.start;
    let large = format!(r#"{{"line":"{}"}}"#, "é".repeat(700));
    let small = |id: &str, arguments: &str| Instruction {
        arguments: arguments.to_owned(),
        ..append(id, now)
    };
    let patch = r#"{"patch":{"a":[1,2.5,null],"b":"\u00e9"}}"#;
    let action = |id: &str, action: &str, arguments: &str| Instruction {
        action: action.to_owned(),
        ..small(id, arguments).on(id)
    };
    let uuid = "0190163d-8694-739b-aea5-966c26f8ad91";
    let uuid_time = MintTime::from_millis(0x0190_163d_8694);
    let old = now - Span::hours(25);
    let scenario: Vec<Command> = vec![
        // Large arguments wait apart from their row, and are read back when they start.
        append("holder", now).until_acked().command(),
        Instruction { arguments: large.clone(), ..append("large-waits", now) }.command(),
        Instruction { arguments: large.clone(), ..append("large-waits", now) }.command(),
        Instruction { arguments: large, ..append("large-now", now).on("e") }.command(),
        ack("default", &[1]),
        // Every action, text and bytes.
        action("put", "document.put", r#"{"content_base64":"AP8="}"#).command(),
        action("merge", "document.merge_patch", patch).command(),
        action("put2", "document.put", r#"{"content":""}"#).command(),
        action("delete-missing", "document.delete", "{}").command(),
        Instruction { id: "delete".into(), ..action("put2", "document.delete", "{}") }.command(),
        Instruction { id: "again".into(), ..append("put2", now).on("put2") }.command(),
        // A packed id, and the same one in upper case: another id.
        Instruction { mint: uuid_time, ..append(uuid, now) }.command(),
        append(&uuid.to_uppercase(), now).on("upper").into_inbox("Upper").command(),
        // Refusals of every kind leave no row.
        append("late", old).command(),
        append("put", now).command(),
        Instruction { intention: Intention::ValidateOnly, ..append("v", now) }.command(),
        append("full", now).command(),
        cancel("nobody", now),
        // Sealed ids replay for whatever submit, and only once; old ones are probed.
        seal("sealed", now),
        seal("sealed", now),
        append("sealed", now).command(),
        append("sealed", old).command(),
        cancel("sealed", now),
        probe("sealed", now),
        seal("put", now),
        seal("late", old),
        probe("late", old),
        probe("fresh", now),
        // No news at all.
        Instruction { inbox: None, ..append("silent", now).on("f") }.command(),
        open("default", "c", 3),
        offer("default", "c", 1, 10),
        ack("default", &[2, 2, 99]),
        offer("default", "c", 1, 10),
        offer("default", "c", 1, 0),
        open("default", "c", 3),
        offer("default", "c", 1, 10),
        offer_again("default", "c", 2, 1, &[2, 3, 99]),
        offer_again("default", "c", 2, 10, &[2, 3, 4]),
        offer("default", "c", 2, 10),
        Command::Close { inbox: inbox("default"), consumer: commands::consumer("c"), epoch: 2 },
        Command::ReleaseLock {
            target: target("d"),
            operation_id: operation("holder").id,
            reason: String::new(),
            subject: "operator".into(),
        },
        Command::FoldReplays { key: operation("holder"), count: 3 },
    ];
    for command in scenario {
        everywhere(&mut model, &subjects, command).await;
    }
    // A queue longer than one release starts.
    for number in 0..20 {
        let id = format!("q{number:02}");
        let instruction = match number {
            0 => append(&id, now).on("q").until_acked().into_inbox("q0"),
            _ => Instruction { inbox: None, ..append(&id, now).on("q") },
        };
        everywhere(&mut model, &subjects, instruction.command()).await;
    }
    everywhere(&mut model, &subjects, ack("q0", &[1])).await;
    // The life of an inbox.
    let change = |slots, in_flight_limit| Command::UpdateInbox {
        inbox: inbox("life"),
        change: InboxChange { slots, in_flight_limit },
    };
    let submit = |id: &str| append(id, now).on("life").into_inbox("life").command();
    let life = vec![
        change(LimitChange::To(2), LimitChange::Keep),
        submit("l1"),
        change(LimitChange::To(2), LimitChange::To(1)),
        submit("l2"),
        submit("l3"),
        delete("life", Force::OnlyEmpty, None),
        delete("life", Force::WithContent, Some(7)),
        open("life", "c", 5),
        offer("life", "c", 1, 5),
        delete("life", Force::WithContent, Some(1)),
        delete("life", Force::WithContent, None),
        offer("life", "c", 1, 5),
        ack("life", &[1, 3]),
        submit("l4"),
        ack("life", &[3]),
        delete("life", Force::OnlyEmpty, Some(2)),
        sweep_inbox("life"),
    ];
    for command in life {
        everywhere(&mut model, &subjects, command).await;
    }
    take(&mut model, &subjects, &Step::Advance { seconds: 100 }).await;
    take(&mut model, &subjects, &Step::Sweep).await;
    // Everything has ended and is purged, and unused inboxes become markers.
    for _ in 0..8 {
        take(&mut model, &subjects, &Step::Advance { seconds: 300 }).await;
        take(&mut model, &subjects, &Step::Sweep).await;
    }
    assert!(model.memory.deliveries.is_empty() && model.memory.inboxes.len() > 3);
    assert!(model.memory.inboxes.values().all(|inbox| inbox.deleted));
    compare(&model, &subjects).await;
    finish(subjects).await;
}

/// Commands of one account that find more than they named share batches instead of taking one
/// each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_cancels_and_acks_of_one_account_come_through_in_few_batches() {
    const MANY: usize = 40;
    let start = Model::new().start;
    let folder = tempfile::tempdir().expect("a folder");
    let subjects = subjects(start, folder.path()).await;
    for subject in &subjects {
        let together = async |commands: Vec<Command>| {
            let before = subject.engine.totals().batches;
            let replies = commands.into_iter().map(|command| subject.engine.run(command));
            for reply in futures_util::future::join_all(replies).await {
                reply.expect("a good reply");
            }
            subject.engine.totals().batches - before
        };
        let path = |number: usize| format!("d{number}");
        let hold = |number: usize| {
            let id = format!("holds{number}");
            append(&id, start).on(&path(number)).until_acked().into_inbox(&id).command()
        };
        let wait = |number: usize| {
            let id = format!("waits{number}");
            append(&id, start).on(&path(number)).into_inbox(&id).command()
        };
        together((0..MANY).map(hold).collect()).await;
        together((0..MANY).map(wait).collect()).await;
        let cancels = (0..MANY).step_by(2).map(|number| cancel(&format!("waits{number}"), start));
        let batches = together(cancels.collect()).await;
        // The first command may leave alone before the others have come.
        assert!(batches <= 8, "{batches} batches of cancels");
        let acks = (0..MANY).map(|number| ack(&format!("holds{number}"), &[1]));
        let batches = together(acks.collect()).await;
        assert!(batches <= 16, "{batches} batches of acks");
        let started = subject.engine.store().look_up(&[operation("waits1")]).await.expect("reads");
        let state = started[0].operation.as_ref().map(|row| row.state);
        assert_eq!(state, Some(receiptd::domain::operation::OperationState::Applied));
    }
    finish(subjects).await;
}

/// Edits that take long to compute commit in as many batches as that takes: no server waits for
/// one of them longer than it lets a transaction stand still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_that_compute_for_long_are_put_off_and_all_commit() {
    const PATCHES: usize = 60;
    let start = Model::new().start;
    let folder = tempfile::tempdir().expect("a folder");
    let stopped = || {
        let seams = Seams::system();
        seams.stop_clock(start);
        seams
    };
    let seams = stopped();
    let store = SqliteStore::open(&folder.path().join("a.db"), &seams, &Options::default());
    let mut subjects = vec![Subject::new(Store::Sqlite(store.expect("opens")), seams)];
    if let Some(url) = postgres::fresh_database().await {
        let seams = stopped();
        let options = PostgresOptions {
            // Shorter than all of them take together, and longer than some.
            idle_in_transaction_timeout: std::time::Duration::from_secs(1),
            ..PostgresOptions::usual(Migrations::Apply)
        };
        let store = PostgresStore::open(&url, &seams, options).await.expect("opens");
        subjects.push(Subject::new(Store::Postgres(store), seams));
    }
    let numbers: Vec<String> = (0..12_000).map(|number| number.to_string()).collect();
    let content = format!(r#"{{"patch":{{"n":0,"list":[{}]}}}}"#, numbers.join(","));
    for subject in &subjects {
        let put = Instruction {
            action: "document.merge_patch".into(),
            arguments: content.clone(),
            inbox: None,
            ..append("put", start)
        };
        subject.engine.run(put.command()).await.expect("a document");
        let before = subject.engine.totals().batches;
        let patch = |number: usize| {
            let id = format!("patch{number}");
            let arguments =
                format!(r#"{{"patch":[{{"op":"replace","path":"/n","value":{number}}}]}}"#);
            let action = "document.json_patch".into();
            let patch = Instruction { action, arguments, inbox: None, ..append(&id, start) };
            subject.engine.run(patch.command())
        };
        let replies = futures_util::future::join_all((0..PATCHES).map(patch)).await;
        assert!(replies.iter().all(Result::is_ok), "{:?}", replies.iter().find(|it| it.is_err()));
        assert!(subject.engine.totals().batches - before > 2, "put off to later batches");
        let read = subject.engine.store().document(&target("d")).await.expect("reads");
        let document = read.expect("a document");
        assert_eq!(document.revision, 1 + i64::try_from(PATCHES).expect("small"));
        let text = String::from_utf8(document.content.expect("content").to_vec()).expect("text");
        assert!(text.ends_with(&format!(r#""n":{}}}"#, PATCHES - 1)), "in order");
    }
    finish(subjects).await;
}
