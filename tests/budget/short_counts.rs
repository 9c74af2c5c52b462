//! A row that does not change when it should: a bug of somebody's, which must stay with the command
//! that meets it. A trigger plays the bug.

use futures_util::future::join_all;
use receiptd::{
    domain::{command::Reply, refusal::Refusal},
    engine::Engine,
};
use tonic::Code;

use crate::{
    answers::{applied, refused},
    commands::{append, inbox, operation, target},
    stores::{on_postgres, on_sqlite},
};

const OTHERS: i64 = 50;

const POSTGRES_TRIGGER: &str = "
    CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER swallow BEFORE UPDATE ON receiptd.documents FOR EACH ROW
        WHEN (OLD.target = 'stubborn') EXECUTE FUNCTION swallow()";

const SQLITE_TRIGGER: &str = "
    CREATE TRIGGER swallow BEFORE UPDATE ON documents WHEN OLD.target = 'stubborn'
    BEGIN SELECT RAISE(IGNORE); END";

async fn append_to(engine: &Engine, id: &str, document: &str) -> Result<Reply, Refusal> {
    engine.run(append(id, engine.seams().now()).on(document).command()).await
}

/// Each document has one line; one of them does not change any more.
async fn check(engine: &Engine) {
    let submits = (0..=OTHERS).map(async |number| match number {
        20 => Some(append_to(engine, "refused", "stubborn").await),
        number => {
            applied(append_to(engine, &format!("other-{number}"), &number.to_string()).await);
            None
        }
    });
    let answers: Vec<Result<Reply, Refusal>> =
        join_all(submits).await.into_iter().flatten().collect();
    let [Err(refusal)] = answers.as_slice() else { panic!("{answers:?}") };
    let (code, reason, outcome, _) = refused(&operation("refused").id, refusal);
    assert_eq!((code, reason.as_str()), (Code::Internal, "INTERNAL"));
    assert_eq!(outcome, "NO_EFFECT");

    let record = engine.store().look_up(&[operation("refused")]).await.expect("a read");
    assert!(record[0].operation.is_none(), "no record");
    let stubborn = engine.store().document(&target("stubborn")).await.expect("a read");
    assert_eq!(stubborn.expect("as it was").revision, 1, "no effect");
    let row = engine.store().inbox(&inbox("default")).await.expect("a read").expect("a row");
    // The line that each document began with, and one more in each but the stubborn one.
    assert_eq!(row.pending, 2 * OTHERS + 1, "{row:?}");
    assert_eq!(row.reserved, 0, "no slot is lost");
    for number in (0..=OTHERS).filter(|number| *number != 20) {
        let document = engine.store().document(&target(&number.to_string())).await;
        let document = document.expect("a read").expect("it is there");
        assert_eq!(document.content.as_deref(), Some(&b"x\nx\n"[..]), "applied once");
    }
}

async fn write_first_lines(engine: &Engine) {
    let submits = (0..=OTHERS).map(async |number| {
        let document = match number {
            20 => "stubborn".to_owned(),
            number => number.to_string(),
        };
        applied(append_to(engine, &format!("first-{number}"), &document).await);
    });
    join_all(submits).await;
}

/// On one thread, as below: then all commands share the batch that fails.
#[tokio::test]
async fn a_count_made_short_fails_one_command_alone_on_postgres() {
    let Some(store) = on_postgres().await else { return };
    write_first_lines(&store.engine).await;
    store.beside.batch_execute(POSTGRES_TRIGGER).await.expect("the trigger is there");
    check(&store.engine).await;
    let drop_trigger = "DROP TRIGGER swallow ON receiptd.documents";
    store.beside.batch_execute(drop_trigger).await.expect("dropped");
    applied(append_to(&store.engine, "refused", "stubborn").await);
}

#[tokio::test]
async fn a_count_made_short_fails_one_command_alone_on_sqlite() {
    let store = on_sqlite();
    write_first_lines(&store.engine).await;
    let beside = rusqlite::Connection::open(&store.path).expect("the store is a plain file");
    beside.execute_batch(SQLITE_TRIGGER).expect("the trigger is there");
    check(&store.engine).await;
    beside.execute_batch("DROP TRIGGER swallow").expect("dropped");
    applied(append_to(&store.engine, "refused", "stubborn").await);
}
