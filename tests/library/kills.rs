//! F47: the id is fixed before the first byte, whoever is killed when.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{ChildStdout, Command, Stdio},
};

use receiptd::{
    client::{identity::OperationIdentity, journal::EntryState, outcome::Outcome, recover::Unsent},
    proto::{ListOperationsRequest, Origin},
};

use crate::{
    append, client, client_of,
    support::{
        BOUND, eventually,
        postgres::process::Owned,
        proxy::{Direction, Mode, Proxy},
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(f47_the_id_is_fixed_before_the_first_send, f47_automatic_retries_keep_the_id);

/// When the client is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The journal has it, and nothing could be sent.
    Recorded,
    /// The server has executed it, and no answer came back.
    Sent,
    /// The answer was shown.
    Replied,
}

async fn f47_the_id_is_fixed_before_the_first_send(store: TestStore) {
    let server = store.serve(&[]);
    for moment in [Moment::Recorded, Moment::Sent, Moment::Replied] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let journal = directory.path().join("journal");
        let target = format!("lines/{moment:?}");
        let proxy = Proxy::start(server.address()).await;
        let endpoint = match moment {
            // Nothing listens there.
            Moment::Recorded => "http://127.0.0.1:1".to_owned(),
            Moment::Sent | Moment::Replied => format!("http://{}", proxy.address()),
        };
        if moment == Moment::Sent {
            proxy.set(Direction::Down, Mode::Swallow);
        }
        let mut editor = Editor::start(&endpoint, &journal, &target);
        match moment {
            Moment::Recorded => {
                let kept = async || fs::metadata(&journal).ok().filter(|kept| kept.len() > 0);
                eventually("the journal to keep the submission", BOUND, kept).await;
            }
            Moment::Sent => {
                let caller = server.a();
                let applied = async || caller.document(&target).await;
                eventually("the server to execute it", BOUND, applied).await;
            }
            Moment::Replied => editor.shows("applied: true"),
        }
        editor.process.kill();

        let client = client(server.address(), &journal);
        let left = client.journal().unsettled().expect("a whole journal");
        let ids: Vec<OperationIdentity> = left.iter().map(|it| it.identity.clone()).collect();
        assert_eq!(ids.len(), usize::from(moment != Moment::Replied), "{moment:?}");
        assert!(left.iter().all(|entry| entry.state == EntryState::Recorded));
        let recovered = client.recover(Unsent::Resubmit).await.expect("readable");
        let again: Vec<OperationIdentity> =
            recovered.iter().map(|it| it.entry.identity.clone()).collect();
        assert_eq!(again, ids, "{moment:?}");
        let applied = recovered.iter().all(|it| it.finding.as_ref().is_ok_and(Outcome::is_applied));
        assert!(applied, "{moment:?}: {recovered:?}");
        let more = client.recover(Unsent::Resubmit).await.expect("readable");
        assert!(more.is_empty(), "{more:?}");
        assert_eq!(server.a().text(&target).await, ("line\n".to_owned(), 1), "{moment:?}");

        // A deliberate second action has an id of its own, and is executed.
        let second = client.submit(append(&target, "line")).await.expect("an outcome");
        assert!(second.is_applied());
        assert_eq!(server.a().text(&target).await, ("line\nline\n".to_owned(), 2));
        let list = ListOperationsRequest { target, ..ListOperationsRequest::default() };
        let listed = client.list_operations(list).await.expect("answered").operations;
        assert_eq!(listed.len(), 2, "one id for each intended action");
    }
}

async fn f47_automatic_retries_keep_the_id(store: TestStore) {
    let server = store.serve(&[]);
    let proxy = Proxy::start(server.address()).await;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let client = client(proxy.address(), &directory.path().join("journal"));
    proxy.set(Direction::Up, Mode::cut_at("\"line\""));
    let before = client.submit(append("lines/before", "line")).await.expect("an outcome");
    proxy.triggered(Direction::Up, 1).await;
    proxy.set(Direction::Down, Mode::CutBefore);
    let after = client.submit(append("lines/after", "line")).await.expect("an outcome");
    proxy.triggered(Direction::Down, 1).await;
    for (outcome, target) in [(&before, "lines/before"), (&after, "lines/after")] {
        assert!(outcome.is_applied(), "{outcome:?}");
        assert_eq!(server.a().text(target).await, ("line\n".to_owned(), 1));
    }
    let Outcome::Known(before) = before else { panic!("{before:?}") };
    assert_eq!(before.origin, Some(Origin::Executed), "the first attempt never arrived");
    assert!(client.journal().unsettled().expect("readable").is_empty());
}

/// A process of its own that submits one line with a journal, shows the outcome, and stays.
struct Editor {
    process: Owned,
    output: BufReader<ChildStdout>,
}

impl Editor {
    fn start(endpoint: &str, journal: &Path, target: &str) -> Editor {
        let mut command = Command::new(env::current_exe().expect("this test's own program"));
        command
            .args(["kills::a_process_of_its_own", "--exact", "--nocapture"])
            .env("LIBRARY_TEST_ENDPOINT", endpoint)
            .env("LIBRARY_TEST_JOURNAL", journal)
            .env("LIBRARY_TEST_TARGET", target)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Owned::start(&mut command, "KILL", None);
        let output = process.child().stdout.take().expect("standard output is a pipe");
        Editor { process, output: BufReader::new(output) }
    }

    /// Reads until a line holds this text.
    fn shows(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let read = self.output.read_line(&mut line).expect("a pipe of text");
            assert!(read > 0, "it ended without showing {text:?}");
        }
    }
}

/// Does nothing but in the process that [`Editor`] starts.
#[tokio::test]
async fn a_process_of_its_own() {
    let variable = |name: &str| env::var(format!("LIBRARY_TEST_{name}")).ok();
    let Some(endpoint) = variable("ENDPOINT") else { return };
    let journal = variable("JOURNAL").expect("set by the one who started this");
    let target = variable("TARGET").expect("set by the one who started this");
    let client = client_of(&endpoint, Path::new(&journal));
    let outcome = client.submit(append(&target, "line")).await;
    println!("applied: {}", outcome.is_ok_and(|outcome| outcome.is_applied()));
    // Until it is killed.
    std::future::pending::<()>().await;
}
