use std::{collections::HashMap, time::Duration};

use serde_json::json;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    super::{
        connect::ConnectOptions,
        error::{ERROR_DOMAIN, tests::refusal},
        fake_service::FakeService,
        journal::MemoryJournal,
        pauses::Growth,
        reader_state::ReaderState,
        recover::Unsent,
        retry::RetryLimits,
    },
    *,
};
use crate::proto::Origin;

/// A few quick attempts.
fn limits(attempts: u32) -> RetryLimits {
    RetryLimits { attempts, ..RetryLimits::standard() }
}

fn client_of(endpoint: &str, attempts: u32) -> Client {
    let options = ConnectOptions { limits: limits(attempts), ..ConnectOptions::plain() };
    Client::connect(endpoint, options).expect("a usable endpoint")
}

fn client(fake: &FakeService) -> Client {
    client_of(&format!("http://{}", fake.address), 3)
}

fn append(line: &str) -> Submission {
    Submission::json("document.append", "notes", &json!({ "line": line }))
}

fn unsettled(client: &Client) -> Vec<(String, EntryState)> {
    let entries = client.journal().unsettled().expect("readable");
    entries.iter().map(|entry| (entry.identity.id().to_owned(), entry.state)).collect()
}

#[tokio::test]
async fn an_answer_settles_the_journal() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let outcome = client.submit(append("a")).await.expect("an outcome");
    assert!(outcome.is_applied());
    assert_eq!(unsettled(&client), []);
    assert_eq!(fake.text(), "a\n");
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_under_the_same_id() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    fake.script(|script| script.lost_submits.push_back(Status::unavailable("lost")));
    let outcome = client.submit(append("a")).await.expect("an outcome");
    let Outcome::Known(answer) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(answer.origin, Some(Origin::Replayed));
    let id = outcome.identity().id().to_owned();
    assert_eq!(fake.asked().submits, [id.clone(), id]);
    assert_eq!((fake.text().as_str(), unsettled(&client)), ("a\n", vec![]));
}

#[tokio::test]
async fn silence_is_unknown_and_stays_in_the_journal_until_it_is_settled() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let lost = || Status::unavailable("lost");
    fake.script(|script| script.lost_submits.extend([lost(), lost(), lost()]));
    let outcome = client.submit(append("a")).await.expect("doubt is no error");
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert_eq!(outcome.next_step(), RecoveryAction::ResubmitSameId);
    let id = outcome.identity().id().to_owned();
    assert!(outcome.to_string().contains(&id), "{outcome}");
    assert_eq!(unsettled(&client), [(id, EntryState::InDoubt)]);

    let recovered = client.recover(Unsent::Resubmit).await.expect("readable");
    assert_eq!(recovered.len(), 1);
    assert!(recovered[0].finding.as_ref().is_ok_and(Outcome::is_applied));
    assert_eq!((fake.asked().submits.len(), unsettled(&client)), (3, vec![]));
    assert_eq!(fake.text(), "a\n");
}

#[tokio::test]
async fn a_refusal_is_an_error_and_leaves_nothing() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let full = refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT");
    fake.script(|script| script.refused_submits.push_back(full));
    let error = client.submit(append("a")).await.expect_err("refused");
    assert!(error.failure().is_some_and(|failure| failure.is("INBOX_FULL")), "{error}");
    assert!(error.to_string().contains(error.identity().id()), "{error}");
    assert_eq!((fake.text().as_str(), unsettled(&client)), ("", vec![]));
}

#[tokio::test]
async fn evidence_that_expired_is_neither_a_failure_nor_doubt() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let expired = || refusal(Code::FailedPrecondition, "EVIDENCE_EXPIRED", "NO_EFFECT");
    let lost = || Status::unavailable("lost");
    for before in [vec![], vec![lost()]] {
        fake.script(|script| {
            script.refused_submits.extend(before);
            script.refused_submits.push_back(expired());
        });
        let outcome = client.submit(append("a")).await.expect("an outcome");
        assert!(matches!(outcome, Outcome::Expired(_)), "{outcome:?}");
        assert_eq!(outcome.next_step(), RecoveryAction::ReadCurrentState);
        assert_eq!(unsettled(&client), []);
    }
}

#[tokio::test]
async fn what_no_connection_carried_was_not_sent() {
    let limits = RetryLimits { unreachable: Duration::ZERO, ..limits(3) };
    let client = client_of("http://127.0.0.1:1", 3).with_limits(limits);
    let error = client.submit(append("a")).await.expect_err("nothing listens there");
    assert!(matches!(error, SubmitError::NotSent { .. }), "{error}");
    assert_eq!(unsettled(&client), []);
}

#[tokio::test]
async fn a_wrong_clock_costs_one_refused_id() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let mut details = ErrorDetails::new();
    let metadata = [("outcome", "NO_EFFECT"), ("store_time", "2001-09-09T01:46:40Z")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    details.set_error_info("CLOCK_SKEW", ERROR_DOMAIN, HashMap::from(metadata));
    let skewed = || Status::with_error_details(Code::InvalidArgument, "text", details.clone());
    fake.script(|script| script.refused_submits.push_back(skewed()));
    let outcome = client.submit(append("a")).await.expect("an outcome");
    let minted = outcome.identity().mint_time_ms();
    assert!((1_000_000_000_000..1_000_000_060_000).contains(&minted), "{minted}");
    assert_eq!((fake.asked().submits.len(), fake.text().as_str()), (2, "a\n"));
    assert_eq!(unsettled(&client), []);
    // Never a third one.
    fake.script(|script| script.refused_submits.extend([skewed(), skewed()]));
    client.submit(append("b")).await.expect_err("refused");
    assert_eq!(fake.asked().submits.len(), 4);
}

/// A journal that watches the service at the moment of recording.
#[derive(Debug)]
struct Watching {
    inner: MemoryJournal,
    full: bool,
}

impl Journal for Watching {
    fn record(&self, entry: &JournalEntry) -> Result<Recorded, JournalError> {
        match self.full {
            true => Err(JournalError::Full("nothing at all")),
            false => self.inner.record(entry),
        }
    }
    fn settle(&self, id: &str, state: EntryState) -> Result<(), JournalError> {
        self.inner.settle(id, state)?;
        Err(JournalError::Full("the disk"))
    }
    fn unsettled(&self) -> Result<Vec<JournalEntry>, JournalError> {
        self.inner.unsettled()
    }
    fn forget(&self, id: &str) -> Result<(), JournalError> {
        self.inner.forget(id)
    }
    fn save_reader(&self, state: &ReaderState) -> Result<(), JournalError> {
        self.inner.save_reader(state)
    }
    fn reader(&self, inbox: &str, consumer: &str) -> Result<Option<ReaderState>, JournalError> {
        self.inner.reader(inbox, consumer)
    }
}

#[tokio::test]
async fn nothing_is_sent_that_the_journal_could_not_keep() {
    let fake = FakeService::start().await;
    let journal = Watching { inner: MemoryJournal::new(), full: true };
    let client = client(&fake).with_journal_in(Arc::new(journal));
    let error = client.submit(append("a")).await.expect_err("not kept");
    assert!(matches!(error, SubmitError::Journal { .. }), "{error}");
    assert!(fake.asked().submits.is_empty());
}

#[tokio::test]
async fn an_outcome_is_told_also_when_the_journal_cannot_note_it() {
    let fake = FakeService::start().await;
    let journal = Watching { inner: MemoryJournal::new(), full: false };
    let client = client(&fake).with_journal_in(Arc::new(journal));
    assert!(client.submit(append("a")).await.expect("an outcome").is_applied());
}

#[tokio::test]
async fn a_refusal_that_the_journal_cannot_note_is_doubt_since_it_may_still_be_sent() {
    let fake = FakeService::start().await;
    let journal = Watching { inner: MemoryJournal::new(), full: false };
    let client = client(&fake).with_journal_in(Arc::new(journal));
    let full = refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT");
    fake.script(|script| script.refused_submits.push_back(full));
    let outcome = client.submit(append("a")).await.expect("no promise");
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert_eq!(outcome.next_step(), RecoveryAction::ResubmitSameId);
    assert_eq!(fake.text(), "");
}

#[tokio::test]
async fn one_id_never_stands_for_two_submissions() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let identity = client.mint();
    let lost = || Status::unavailable("lost");
    fake.script(|script| script.refused_submits.extend([lost(), lost(), lost()]));
    let outcome = client.submit_as(identity.clone(), append("a")).await.expect("doubt");
    assert!(matches!(outcome, Outcome::Unknown(_)));
    let other = client.submit_as(identity.clone(), append("b")).await.expect_err("refused");
    assert!(matches!(other, SubmitError::Journal { .. }), "{other}");
    // A refusal now says nothing about the attempts before.
    let full = refusal(Code::ResourceExhausted, "INBOX_FULL", "NO_EFFECT");
    fake.script(|script| script.refused_submits.push_back(full));
    let again = client.submit_as(identity.clone(), append("a")).await.expect("doubt");
    assert!(matches!(again, Outcome::Unknown(_)), "{again:?}");
    let again = client.submit_as(identity, append("a")).await.expect("an outcome");
    assert!(again.is_applied());
    assert_eq!(fake.text(), "a\n");
}

/// What a process that was killed before it sent left behind.
fn leave(client: &Client, line: &str) -> OperationIdentity {
    let identity = client.mint();
    let entry = JournalEntry {
        identity: identity.clone(),
        submission: append(line),
        recorded_ms: 0,
        state: EntryState::Recorded,
    };
    client.journal().record(&entry).expect("kept");
    identity
}

#[tokio::test]
async fn recover_reports_or_sends_what_the_service_does_not_know() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let identity = leave(&client, "a");
    let recovered = client.recover(Unsent::Report).await.expect("readable");
    let outcome = recovered[0].finding.as_ref().expect("an outcome");
    assert_eq!(outcome.next_step(), RecoveryAction::ResubmitSameId);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert!(fake.asked().submits.is_empty());
    assert_eq!(unsettled(&client), [(identity.id().to_owned(), EntryState::InDoubt)]);

    let recovered = client.recover(Unsent::Resubmit).await.expect("readable");
    assert!(recovered[0].finding.as_ref().is_ok_and(Outcome::is_applied));
    assert_eq!(fake.asked().submits, [identity.id()]);
    assert!(client.recover(Unsent::Resubmit).await.expect("readable").is_empty());
    assert_eq!(fake.text(), "a\n");
}

#[tokio::test]
async fn recover_asks_in_pages_and_leaves_what_was_not_answered_in_doubt() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let all: Vec<_> = (0..150).map(|number| leave(&client, &number.to_string())).collect();
    let denied = refusal(Code::PermissionDenied, "PERMISSION_MISSING", "NO_EFFECT");
    fake.script(|script| script.refused_look_ups.push_back(denied));
    let recovered = client.recover(Unsent::Resubmit).await.expect("readable");
    assert_eq!(fake.asked().look_ups, [100, 50]);
    let order: Vec<_> = recovered.iter().map(|it| it.entry.identity.clone()).collect();
    assert_eq!(order, all, "oldest first");
    for (number, recovered) in recovered.iter().enumerate() {
        let outcome = recovered.finding.as_ref().expect("an outcome");
        match number < 100 {
            true => assert!(matches!(outcome, Outcome::Unknown(_)), "{number}"),
            false => assert!(outcome.is_applied(), "{number}"),
        }
    }
    let again = client.recover(Unsent::Resubmit).await.expect("readable");
    assert_eq!(again.len(), 100);
    assert_eq!((fake.text().lines().count(), unsettled(&client)), (150, vec![]));
}

/// A result that was handled says what became of its operation.
#[tokio::test]
async fn a_handled_result_settles_the_journal() {
    let fake = FakeService::start().await;
    let client = client(&fake);
    let lost = || Status::unavailable("lost");
    fake.script(|script| script.lost_submits.extend([lost(), lost(), lost()]));
    client.submit(append("a")).await.expect("doubt");
    assert_eq!(unsettled(&client).len(), 1);
    let handled = tokio::sync::Notify::new();
    let handler = async |_| {
        handled.notify_one();
        Ok::<(), String>(())
    };
    let results = client.inbox("default").consumer("laptop").reconnect(Growth::ALONE);
    let reading = results.stream_until(handled.notified(), &handler);
    let ended = tokio::time::timeout(Duration::from_secs(10), reading).await;
    ended.expect("a result comes").expect("it was asked to end");
    assert_eq!(unsettled(&client), []);
}
