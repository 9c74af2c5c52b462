//! PostgreSQL is promoted under running replicas: they say whether it lost anything, and a server
//! that is behind is never served from.

use std::time::Duration;

use receiptd::proto::{GapCause, Standing};

use crate::{
    JUMP, SKEW, epoch, gaps, is_lost, marked, new_append,
    support::{
        BOUND,
        client::{Caller, Refused, sequences},
        eventually,
        postgres::{Postgres, own_postgres},
        requests::Identity,
        server::Server,
    },
    token_is_refused,
};

/// Long beside the time of a test: what is judged before it is judged by words.
const LONG_WAIT: &str = "--failover-wait=10m";
/// A replica that says nothing is waited for so long.
const SHORT_WAIT: &str = "--failover-wait=2s";

/// A primary with its standby, and a database.
struct Pair {
    primary: &'static Postgres,
    standby: &'static Postgres,
    database: String,
}

impl Pair {
    /// The standby has followed up to now.
    async fn new() -> Option<Pair> {
        let primary = tokio::task::block_in_place(own_postgres)?;
        let database = primary.fresh_database().await;
        let standby = tokio::task::block_in_place(|| primary.standby());
        Some(Pair { primary, standby, database })
    }

    /// Leads to whichever takes writes.
    fn url(&self) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{}", self.database)
    }

    fn serve(&self, wait: &str) -> Server {
        let url = self.url();
        tokio::task::block_in_place(|| Server::serve(&url, &[SKEW, wait]))
    }

    /// Waits until the standby has everything that was written.
    async fn followed(&self) {
        let client = self.primary.connect("postgres").await;
        let written = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await;
        let written: String = written.expect("a place in the log").get(0);
        let standby = self.standby.connect("postgres").await;
        eventually("the standby to follow", BOUND, async || {
            let text = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
            let row = standby.query_one(text, &[&written]).await.expect("a place in the log");
            row.get::<_, bool>(0).then_some(())
        })
        .await;
    }

    /// The primary goes, and the standby takes its place.
    fn fail_over(&self) {
        tokio::task::block_in_place(|| {
            self.primary.stop();
            self.standby.promote();
        });
    }

    /// How many replicas the store row names, on the server that takes writes now.
    async fn named(&self, postgres: &Postgres) -> i64 {
        let client = postgres.connect(&self.database).await;
        let text = "SELECT count(*) FROM receiptd.store_facts WHERE name LIKE 'replica:%'";
        client.query_one(text, &[]).await.expect("a count").get(0)
    }
}

/// Submits until writes are taken again. Every refusal until then had no effect, and says when to
/// come back.
async fn append_when_taken(caller: &Caller, id: &Identity, target: &str, line: &str) {
    eventually("writes to be taken", BOUND * 3, async || {
        match caller.submit(id.append(target, line)).await {
            Ok(_) => Some(()),
            Err(status) => {
                let refused = Refused::of(&status);
                assert_eq!(refused.reason, "STORE_UNAVAILABLE", "{status:?}");
                None
            }
        }
    })
    .await;
}

/// Reads a document when the server answers again.
async fn text(caller: &Caller, target: &str) -> String {
    eventually("reads to be answered", BOUND * 3, async || {
        let request = receiptd::proto::GetDocumentRequest { target: target.to_owned() };
        caller.documents.clone().get_document(request).await.ok().map(|_| ())
    })
    .await;
    caller.text(target).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_failover_costs_nobody_anything() {
    let Some(pair) = Pair::new().await else { return };
    let (mut one, mut two) = (pair.serve(LONG_WAIT), pair.serve(LONG_WAIT));
    let (a, other) = (one.a(), two.a());
    let before = Identity::fresh();
    a.submitted(before.append("d1", "before")).await;
    other.submitted(Identity::fresh().append("d1", "beside")).await;
    let mut reader = a.reader("default", "reader", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1, 2]);
    let (token, life) = (reader.token.clone(), epoch(&reader));
    drop(reader);
    pair.followed().await;
    pair.fail_over();

    let after = Identity::fresh();
    append_when_taken(&a, &after, "d1", "after").await;
    let again = Identity::fresh();
    append_when_taken(&other, &again, "d1", "again").await;
    assert_eq!(a.get(&before).await.standing(), Standing::Recorded);
    assert_eq!(text(&a, "d1").await, "before\nbeside\nafter\nagain\n");
    let mut reader = a.reader("default", "reader", &token).await;
    assert_eq!(sequences(&reader.backlog().await), [1, 2, 3, 4]);
    assert_eq!((gaps(&reader), epoch(&reader)), (vec![], life));
    drop((a, other, reader));
    tokio::task::block_in_place(|| (one.stop(), two.stop()));
    assert_eq!(pair.named(pair.standby).await, 0, "who ends well takes its name out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_an_acknowledged_write_begins_another_life() {
    let Some(pair) = Pair::new().await else { return };
    let mut server = pair.serve(LONG_WAIT);
    let a = server.a();
    let known = Identity::fresh();
    a.submitted(known.append("d1", "known")).await;
    let mut reader = a.reader("default", "reader", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1]);
    pair.followed().await;
    tokio::task::block_in_place(|| pair.standby.stop());
    let lost = Identity::fresh();
    a.submitted(lost.append("d1", "lost")).await;
    let token = reader.token.clone();
    tokio::task::block_in_place(|| {
        pair.primary.stop();
        pair.standby.start_again();
        pair.standby.promote();
    });

    let again = new_append(&a, "d1", "again").await;
    is_lost(&a, &lost, "d1").await;
    assert_eq!(a.get(&known).await.standing(), Standing::Recorded);
    assert_eq!(a.get(&again).await.standing(), Standing::Recorded);
    assert_eq!(text(&a, "d1").await, "known\nagain\n");
    assert_eq!(Refused::of(&reader.end().await).reason, "STORE_EPOCH_CHANGED");
    token_is_refused(&a, "default", &token).await;
    let mut reader = a.reader("default", "reader", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1, JUMP + 2]);
    assert_eq!(gaps(&reader), [(2, JUMP + 1, GapCause::Restored)]);
    drop((a, reader));
    tokio::task::block_in_place(|| server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_cannot_vouch() {
    let Some(pair) = Pair::new().await else { return };
    let (mut one, mut two) = (pair.serve(SHORT_WAIT), pair.serve(SHORT_WAIT));
    let a = one.a();
    let known = Identity::fresh();
    a.submitted(known.append("d1", "known")).await;
    two.a().submitted(Identity::fresh().append("d1", "beside")).await;
    let mut reader = a.reader("default", "reader", "").await;
    reader.backlog().await;
    let token = reader.token.clone();
    drop(reader);
    tokio::task::block_in_place(|| two.kill());
    pair.followed().await;
    pair.fail_over();

    new_append(&a, "d1", "on").await;
    token_is_refused(&a, "default", &token).await;
    assert_eq!(a.get(&known).await.standing(), Standing::Recorded, "nothing was lost after all");
    // The dead one is named no more: the next failover does not wait for it.
    eventually("one name", BOUND, async || (pair.named(pair.standby).await == 1).then_some(()))
        .await;
    drop(a);
    tokio::task::block_in_place(|| one.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn submits_wait_for_a_silent_replica_until_an_operator_says_that_it_was_clean() {
    let Some(pair) = Pair::new().await else { return };
    let (mut one, mut two) = (pair.serve(LONG_WAIT), pair.serve(LONG_WAIT));
    let a = one.a();
    let known = Identity::fresh();
    a.submitted(known.append("d1", "known")).await;
    let mut reader = a.reader("default", "reader", "").await;
    reader.backlog().await;
    let (token, life) = (reader.token.clone(), epoch(&reader));
    drop(reader);
    tokio::task::block_in_place(|| two.kill());
    pair.followed().await;
    pair.fail_over();

    // Reads answer; a submit is refused without effect, and told how long that may take.
    assert_eq!(text(&a, "d1").await, "known\n");
    let held = Identity::fresh();
    eventually("a refusal that knows the wait", BOUND * 3, async || {
        let status = a.submit(held.append("d1", "held")).await.expect_err("nothing is taken");
        let refused = Refused::of(&status);
        assert_eq!(refused.reason, "STORE_UNAVAILABLE", "{status:?}");
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
        let retry = refused.retry_delay.unwrap_or_default();
        (retry > Duration::from_secs(60) && retry <= Duration::from_secs(600)).then_some(())
    })
    .await;
    assert_eq!(a.get(&held).await.standing(), Standing::NotAcceptedYet);

    let said = marked(&pair.url(), &["--clean"]);
    assert!(said.contains(&life), "{said}");
    append_when_taken(&a, &held, "d1", "held").await;
    assert_eq!(text(&a, "d1").await, "known\nheld\n");
    let mut reader = a.reader("default", "reader", &token).await;
    reader.backlog().await;
    assert_eq!((gaps(&reader), epoch(&reader)), (vec![], life));
    drop((a, reader));
    tokio::task::block_in_place(|| one.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_after_the_failover_has_nothing_to_vouch_for() {
    let Some(pair) = Pair::new().await else { return };
    let mut first = pair.serve(LONG_WAIT);
    let a = first.a();
    a.submitted(Identity::fresh().append("d1", "known")).await;
    drop(a);
    tokio::task::block_in_place(|| first.stop());
    pair.followed().await;
    pair.fail_over();
    let mut second = pair.serve(LONG_WAIT);
    let a = second.a();
    append_when_taken(&a, &Identity::fresh(), "d1", "on").await;
    assert_eq!(text(&a, "d1").await, "known\non\n");
    drop(a);
    tokio::task::block_in_place(|| second.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_primary_that_comes_back_is_never_served_from() {
    let Some(pair) = Pair::new().await else { return };
    let mut server = pair.serve(LONG_WAIT);
    let a = server.a();
    a.submitted(Identity::fresh().append("d1", "known")).await;
    pair.followed().await;
    pair.fail_over();
    let after = Identity::fresh();
    append_when_taken(&a, &after, "d1", "after").await;

    // The URL leads to the old one first, and the sessions with the new one end.
    tokio::task::block_in_place(|| {
        pair.primary.start_again();
        pair.standby.stop();
    });
    eventually("the old primary to be met and refused", BOUND * 3, async || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        let beside = pair.primary.connect("postgres").await;
        let row = beside.query_one(sessions, &[&pair.database]).await.expect("a count");
        for id in [Identity::fresh(), after.clone()] {
            let refused = caller_refusal(&a, &id).await;
            assert_eq!(refused.reason, "STORE_UNAVAILABLE", "{refused:?}");
            assert_eq!(refused.value("outcome"), "NO_EFFECT");
        }
        let mut documents = a.documents.clone();
        let read =
            documents.get_document(receiptd::proto::GetDocumentRequest { target: "d1".to_owned() });
        let status = read.await.expect_err("an answer would be one of the past");
        assert_eq!(Refused::of(&status).reason, "STORE_UNAVAILABLE");
        // Connections are made and refused at once: it is met, and none stays.
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;

    tokio::task::block_in_place(|| {
        pair.primary.stop();
        pair.standby.start_again();
    });
    append_when_taken(&a, &Identity::fresh(), "d1", "on").await;
    assert_eq!(text(&a, "d1").await, "known\nafter\non\n");
    drop(a);
    tokio::task::block_in_place(|| server.stop());
}

async fn caller_refusal(caller: &Caller, id: &Identity) -> Refused {
    let status = caller.submit(id.append("d1", "never")).await;
    Refused::of(&status.expect_err("the past takes no submits"))
}
