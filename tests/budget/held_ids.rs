//! An id that another transaction holds: who waits for it, and who does not. On the embedded store
//! there is no such transaction: it has one writer.

use std::{pin::pin, time::Duration};

use futures_util::{FutureExt, future::join_all};
use receiptd::{
    domain::{
        command::{Origin, Reply},
        ids::Timestamp,
        refusal::Refusal,
    },
    engine::Engine,
    store::postgres::claim_hash,
};
use tonic::Code;

use crate::{
    answers::{applied, refused},
    commands::{append, operation},
    stores::on_postgres,
};

const OTHERS: usize = 150;

/// Every attempt under an id tells the same time of its making.
async fn submit(engine: &Engine, id: &str, made: Timestamp) -> Result<Reply, Refusal> {
    engine.run(append(id, made).on(id).command()).await
}

/// On one thread, so that everything that is submitted at once waits when the lane looks.
#[tokio::test]
async fn an_id_held_elsewhere_delays_no_other_command() {
    let Some(store) = on_postgres().await else { return };
    let engine = &store.engine;
    let made = engine.seams().now();
    let hash = claim_hash(&operation("held"));
    let hold = format!("BEGIN; SELECT pg_advisory_xact_lock({hash})");
    store.beside.batch_execute(&hold).await.expect("held");

    let mut held = pin!(submit(engine, "held", made));
    assert!(held.as_mut().now_or_never().is_none(), "it waits");
    let others = (0..OTHERS).map(|number| async move {
        applied(submit(engine, &format!("other-{number}"), made).await);
    });
    join_all(others).await;
    assert_eq!(engine.totals().batches, 1, "the batch in which the id was found held");

    for number in 0..10 {
        let before = engine.totals().batches;
        applied(submit(engine, &format!("later-{number}"), made).await);
        let batches = engine.totals().batches - before;
        assert!(batches <= 2, "one of its own, and one that tries the held id: {batches}");
    }

    let answer = tokio::time::timeout(Duration::from_secs(10), held).await.expect("in time");
    let refusal = answer.expect_err("nobody waits for ever");
    let (code, reason, outcome, recovery) = refused(&operation("held").id, &refusal);
    assert_eq!((code, reason.as_str()), (Code::Unavailable, "IDENTITY_HELD"));
    assert_eq!((outcome.as_str(), recovery.as_str()), ("NO_EFFECT", "WAIT"));
    let record = engine.store().look_up(&[operation("held")]).await.expect("a read");
    assert!(record[0].operation.is_none(), "no record");

    store.beside.batch_execute("COMMIT").await.expect("released");
    assert_eq!(applied(submit(engine, "held", made).await), Origin::Executed);
    assert_eq!(applied(submit(engine, "held", made).await), Origin::Replayed);
}
