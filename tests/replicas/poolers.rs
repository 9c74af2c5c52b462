//! A pooler that lends a server for one transaction: it works, or the start is refused with what
//! to change (reliability row 39, T18).

use receiptd::proto::{AckOutcome, Origin, operation::State};

use crate::{
    HINTS_ONLY, POLLS, Shared,
    hints::{caught_up, submit},
    support::{
        answers::answered,
        client::{Caller, sequences},
        pattern::{COMMIT_ASKED, COMMIT_DONE},
        pgbouncer::PgBouncer,
        proxy::{Direction, Mode, Proxy},
        requests::{Identity, into_inbox},
        server::{Refusal, Server, TOKEN_A},
        within,
    },
};

/// A database with a pooler before it.
struct Pooled {
    shared: Shared,
    pooler: PgBouncer,
}

impl Pooled {
    async fn new() -> Option<Pooled> {
        let shared = Shared::new().await?;
        let pooler = PgBouncer::in_transaction_mode(shared.postgres)?;
        Some(Pooled { shared, pooler })
    }

    fn url(&self) -> String {
        self.shared.postgres.url(&self.shared.name, self.pooler.port())
    }

    fn listen_url(&self) -> String {
        format!("--listen-url={}", self.shared.url())
    }

    fn serve_at(&self, url: &str, flags: &[&str]) -> Server {
        let listen = self.listen_url();
        let flags: Vec<&str> =
            ["--pooler=transaction", &listen].iter().chain(flags).copied().collect();
        tokio::task::block_in_place(|| Server::serve(url, &flags))
    }

    fn serve(&self, flags: &[&str]) -> Server {
        self.serve_at(&self.url(), flags)
    }
}

/// Why a server did not start.
fn refused(url: &str, flags: &[&str]) -> Refusal {
    tokio::task::block_in_place(|| Server::refused(url, flags))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_behind_a_pooler_serve_as_without() {
    let Some(pooled) = Pooled::new().await else { return };
    let (a, b) = (pooled.serve(&[HINTS_ONLY]), pooled.serve(&[HINTS_ONLY]));
    pooled.shared.listening(2, &[]).await;
    let mut reader = caught_up(&b.a(), 0).await;
    let at_a = a.a();
    // More at once than the pooler has connections, on one document and on many.
    let ids: Vec<Identity> = (0..60).map(|_| Identity::fresh()).collect();
    let request = |number: usize, id: &Identity| {
        let target =
            if number.is_multiple_of(2) { "notes".to_owned() } else { format!("note-{number}") };
        into_inbox(id.append(&target, "x"), "editor")
    };
    let all = ids.iter().enumerate().map(|(number, id)| {
        let caller = if number.is_multiple_of(3) { b.a() } else { at_a.clone() };
        let request = request(number, id);
        async move { caller.submitted(request).await }
    });
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answered(&answer), (Origin::Executed, State::Applied));
    }
    let mut numbers = sequences(&reader.results(60).await);
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=60).collect::<Vec<i64>>(), "each by a hint, since nobody polls");
    let again = b.a().submitted(request(0, &ids[0])).await;
    assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
    let other = Identity { id: ids[0].id.clone(), mint_time: None };
    let mismatch = at_a.refused(other.append("notes", "something else")).await;
    assert_eq!(mismatch.reason, "OPERATION_INTENT_MISMATCH");
    let acked = at_a.ack("editor", &numbers).await.expect("acked");
    assert!(acked.iter().all(|outcome| *outcome == AckOutcome::Acked), "{acked:?}");
    assert_eq!(at_a.text("notes").await, ("x\n".repeat(30), 30));
    drop(reader);
    assert!(caught_up_at(&a.a()).await, "what was acked does not come again");
}

async fn caught_up_at(caller: &Caller) -> bool {
    caller.reader("editor", "laptop", "").await.backlog().await.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_is_settled_through_a_pooler() {
    let Some(pooled) = Pooled::new().await else { return };
    let proxy = Proxy::start(([127, 0, 0, 1], pooled.pooler.port()).into()).await;
    let url = pooled.shared.postgres.url(&pooled.shared.name, proxy.address().port());
    let server = pooled.serve_at(&url, &["--sweep-interval=10m"]);
    let caller = Caller::new(server.address(), TOKEN_A);
    submit(&caller, "editor").await;
    let mut cuts = [0, 0];
    for round in 1..=3 {
        for (direction, pattern) in [(Direction::Down, COMMIT_DONE), (Direction::Up, COMMIT_ASKED)]
        {
            let id = Identity::fresh();
            let target = format!("{direction:?}-{round}");
            proxy.set(direction, Mode::cut_at(pattern));
            let answer = caller.submitted(id.append(&target, "x")).await;
            assert_eq!(answered(&answer), (Origin::Executed, State::Applied));
            let cut = &mut cuts[usize::from(direction == Direction::Up)];
            *cut += 1;
            within("the cut", proxy.triggered(direction, *cut)).await;
            assert_eq!(caller.text(&target).await, ("x\n".to_owned(), 1), "one effect");
            let again = caller.submitted(id.append(&target, "x")).await;
            assert_eq!(answered(&again), (Origin::Replayed, State::Applied));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_leaves_set_makes_no_commit_less_durable() {
    let Some(pooled) = Pooled::new().await else { return };
    let server = pooled.serve(&[POLLS]);
    // Every transaction that writes leaves here what held for it.
    let watch = "CREATE TABLE seen (synchronous_commit text, lock_timeout text);
        CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO public.seen SELECT current_setting('synchronous_commit'),
                current_setting('lock_timeout');
            RETURN NEW; END $$;
        CREATE TRIGGER see BEFORE INSERT ON receiptd.batches FOR EACH ROW EXECUTE FUNCTION see()";
    pooled.shared.beside.batch_execute(watch).await.expect("a trigger");
    // All the servers that the pooler lends: each of these holds one while it sets.
    let port = pooled.pooler.port();
    let leaving = (0..3).map(|_| async {
        let beside = pooled.shared.postgres.connect_through(port, &pooled.shared.name).await;
        beside.batch_execute("BEGIN").await.expect("a server");
        beside
    });
    let clients = futures_util::future::join_all(leaving).await;
    for client in &clients {
        let set = "SET synchronous_commit = off; SET default_transaction_read_only = on;
            SET lock_timeout = 1; COMMIT";
        client.batch_execute(set).await.expect("set");
    }
    let mut reader = caught_up(&server.a(), 0).await;
    for number in 1..=10 {
        submit(&server.a(), "editor").await;
        assert_eq!(sequences(&reader.results(1).await), [number]);
    }
    let rows = pooled.shared.beside.query("SELECT DISTINCT * FROM seen", &[]).await;
    let rows = rows.expect("what was seen");
    let seen: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(seen, [("on", "250ms")]);
    let leak = clients[0].query_typed("SELECT current_setting('synchronous_commit')", &[]).await;
    assert_eq!(leak.expect("a setting")[0].get::<_, &str>(0), "off", "it did leak");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mismatch_is_refused_at_the_start_with_the_next_step() {
    let Some(pooled) = Pooled::new().await else { return };
    let (through, direct) = (pooled.url(), pooled.shared.url());
    let listen = |url: &str| format!("--listen-url={url}");
    let refusal = refused(&through, &[]);
    assert!(refusal.text.contains("set pooler = \"transaction\""), "{}", refusal.text);
    let refusal = refused(&through, &[&listen(&direct)]);
    assert!(refusal.text.contains("set pooler = \"transaction\""), "{}", refusal.text);
    let refusal = refused(&through, &["--pooler=transaction"]);
    assert!(refusal.text.contains("needs listen_url"), "{}", refusal.text);
    let refusal = refused(&through, &["--pooler=transaction", &listen(&through)]);
    assert!(refusal.text.contains("let listen_url name the"), "{}", refusal.text);
    let elsewhere = pooled.shared.postgres.fresh_database().await;
    let elsewhere = pooled.shared.postgres.url(&elsewhere, pooled.shared.postgres.port());
    let refusal = refused(&through, &["--pooler=transaction", &listen(&elsewhere)]);
    assert!(refusal.text.contains("different databases"), "{}", refusal.text);
    // Without hints nobody listens: everything goes through the pooler, the schema too.
    let flags = ["--pooler=transaction", "--hints=none", POLLS];
    let server = tokio::task::block_in_place(|| Server::serve(&through, &flags));
    submit(&server.a(), "editor").await;
    let mut reader = server.a().reader("editor", "laptop", "").await;
    assert_eq!(sequences(&reader.backlog().await), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_is_like_none() {
    let Some(shared) = Shared::new().await else { return };
    let Some(pooler) = PgBouncer::in_session_mode(shared.postgres) else { return };
    let url = shared.postgres.url(&shared.name, pooler.port());
    let start = || tokio::task::block_in_place(|| Server::serve(&url, &[HINTS_ONLY]));
    let (a, b) = (start(), start());
    shared.listening(2, &[]).await;
    let mut reader = caught_up(&b.a(), 0).await;
    submit(&a.a(), "editor").await;
    assert_eq!(sequences(&reader.results(1).await), [1]);
}
