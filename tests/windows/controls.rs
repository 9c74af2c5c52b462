//! The negative controls W18: what a service without receiptd's two rules would show. The same
//! server, proxy, caller and count that find one effect everywhere else find two here.

use std::collections::BTreeSet;

use receiptd::proto::{Origin, Standing, operation::State};
use rusqlite::Connection;

use crate::support::{
    BOUND,
    answers::{answered, lines, state_of},
    client::Caller,
    eventually,
    proxy::{Direction, Mode, Proxy},
    requests::Identity,
    server::{Server, TOKEN_A},
    stores::{TestStore, on_both_stores},
};

on_both_stores!(w18_a_fresh_id_per_retry_is_a_second_effect, w18_a_split_commit_is_a_second_effect,);

/// Submits a line whose answer is cut off after the commit, and waits until the effect is there.
async fn submit_and_lose_the_answer(server: &Server, id: &Identity, target: &str) {
    let proxy = Proxy::start(server.address()).await;
    let cut_off = Caller::new(proxy.address(), TOKEN_A);
    cut_off.get(id).await;
    proxy.set(Direction::Down, Mode::cut_at(&id.id));
    cut_off.submit(id.append(target, "x")).await.expect_err("the answer is cut");
    proxy.triggered(Direction::Down, 1).await;
    let caller = server.a();
    eventually("the effect", BOUND, async || {
        (state_of(&caller.get(id).await) == Some(State::Applied)).then_some(())
    })
    .await;
    assert_eq!(lines(&caller.text(target).await.0, "x"), 1);
}

/// A caller that retries under its id has one effect; one that makes a new id for each attempt has
/// as many as attempts.
async fn w18_a_fresh_id_per_retry_is_a_second_effect(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    for (target, fresh, expected) in [("kept", false, 1), ("fresh", true, 4)] {
        let first = Identity::fresh();
        submit_and_lose_the_answer(&server, &first, target).await;
        let mut ids = BTreeSet::from([first.id.clone()]);
        for _ in 0..3 {
            let id = if fresh { Identity::fresh() } else { first.clone() };
            ids.insert(id.id.clone());
            let retry = caller.submitted(id.append(target, "x")).await;
            let origin = if fresh { Origin::Executed } else { Origin::Replayed };
            assert_eq!(answered(&retry), (origin, State::Applied));
        }
        let (text, revision) = caller.text(target).await;
        assert_eq!(lines(&text, "x"), expected, "effects of {} ids", ids.len());
        assert_eq!(usize::try_from(revision), Ok(expected));
        assert_eq!(ids.len(), expected);
    }
}

/// A service that commits the effect first and its receipt in a second transaction leaves, if it
/// dies in between, exactly this: the changed document, and no trace of the operation.
async fn w18_a_split_commit_is_a_second_effect(store: TestStore) {
    let mut server = store.serve(&[]);
    server.a().submitted(Identity::fresh().append("other", "y")).await;
    for (name, split, origin, effects) in
        [("whole", false, Origin::Replayed, 1), ("split", true, Origin::Executed, 2)]
    {
        let id = Identity::named(name);
        submit_and_lose_the_answer(&server, &id, name).await;
        server.kill();
        if split {
            take_receipt_away(&store, &id).await;
        }
        server.start_again();

        let caller = server.a();
        let standing = if split { Standing::NotAcceptedYet } else { Standing::Recorded };
        assert_eq!(caller.get(&id).await.standing(), standing, "{name}");
        assert_eq!(lines(&caller.text(name).await.0, "x"), 1, "{name}: the effect is there");
        let retry = caller.submitted(id.append(name, "x")).await;
        assert_eq!(answered(&retry), (origin, State::Applied), "{name}");
        assert_eq!(lines(&caller.text(name).await.0, "x"), effects, "{name}: the count tells");
    }
}

/// Undoes the half of an operation's commit that is not its effect: the record, its delivery with
/// its number, its trail.
async fn take_receipt_away(store: &TestStore, id: &Identity) {
    let hex: String = id.id.bytes().map(|byte| format!("{byte:02x}")).collect();
    let (schema, bytes) = match store {
        TestStore::Sqlite(_) => ("", format!("X'{hex}'")),
        TestStore::Postgres(..) => ("receiptd.", format!("'\\x{hex}'::bytea")),
    };
    let deletes = ["operations", "deliveries", "audit"].map(|table| {
        format!("DELETE FROM {schema}{table} WHERE account = 'a' AND operation_id = {bytes};")
    });
    let counters = format!(
        "UPDATE {schema}inboxes SET next_sequence = next_sequence - 1, pending = pending - 1
        WHERE account = 'a' AND inbox = 'default';"
    );
    let text = format!("BEGIN; {} {counters} COMMIT", deletes.join(" "));
    match store {
        TestStore::Sqlite(directory) => {
            let path = directory.path().join("receiptd.db");
            let file = Connection::open(path).expect("the store is a plain file");
            file.execute_batch(&text).expect("the receipt goes");
        }
        TestStore::Postgres(server, database) => {
            let client = server.connect(database).await;
            client.batch_execute(&text).await.expect("the receipt goes");
        }
    }
}
