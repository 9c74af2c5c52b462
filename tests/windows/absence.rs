//! Honest absence: W13 and W17 without a deletion (see `aging` for those), and sealing.
//!
//! The floor is raised beside the service; everything else comes through the listener. Windows of seconds, on a clock that the test moves.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use prost::Message;
use receiptd::{
    domain::{
        ids::{Account, OperationId, Span, Timestamp},
        operation::OperationKey,
        policy::Policy,
    },
    proto::{
        BatchGetOperationsRequest, CancelOperationRequest, CancelOperationResponse, CancelOutcome,
        OperationEventKind, Origin, RecoveryAction, Standing, batch_submit_result,
        operation::State,
    },
    store::postgres::claim_hash,
};
use tonic::{Code, Status};

use crate::{
    hosted::{Hosted, host},
    support::{
        BOUND,
        answers::{answered, lines, receipt},
        background,
        client::{Caller, Refused},
        eventually,
        postgres::Postgres,
        requests::Identity,
        server::{TOKEN_READS, TOKEN_SUBMITS},
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(
    w13_expired_evidence_is_told_and_nothing_executes,
    w17_an_id_whose_time_is_over_is_never_accepted_and_never_executes,
    an_account_that_was_never_used_settles_its_old_ids_too,
    a_sealed_id_replays_for_every_submit,
    a_seal_that_races_submits_wins_or_loses_for_all,
);

const WINDOW: Span = Span::seconds(30);

/// Clocks of seconds; an account closes a minute after the window.
fn policy() -> Policy {
    Policy {
        admission_window: WINDOW,
        record_retention: Span::hours(1),
        tombstone_retention: Span::hours(2),
        ..Policy::default()
    }
}

/// A way to the store beside the service.
enum Beside {
    Sqlite(PathBuf),
    Postgres(&'static Postgres, String),
}

impl Beside {
    fn of(store: &TestStore) -> Beside {
        match store {
            TestStore::Sqlite(directory) => Beside::Sqlite(directory.path().join("receiptd.db")),
            TestStore::Postgres(server, database) => Beside::Postgres(server, database.clone()),
        }
    }

    /// Raises the floor of every account, as the deletion of a record does.
    async fn raise_floor(&self, floor: Timestamp) {
        match self {
            Beside::Sqlite(path) => {
                let other = rusqlite::Connection::open(path).expect("a plain file");
                other.busy_timeout(BOUND).expect("a setting");
                let raise = "UPDATE accounts SET evidence_floor = ?1";
                assert_eq!(other.execute(raise, [floor.0]).expect("raised"), 1);
            }
            Beside::Postgres(server, database) => {
                let client = server.connect(database).await;
                let raise = "UPDATE receiptd.accounts SET evidence_floor = $1";
                assert_eq!(client.execute(raise, &[&floor.0]).await.expect("raised"), 1);
            }
        }
    }
}

fn next(recovery: Option<receiptd::proto::Recovery>) -> RecoveryAction {
    recovery.expect("a next step").action()
}

/// The standing of an id and the next step.
async fn told(caller: &Caller, id: &Identity) -> (Standing, RecoveryAction) {
    let answer = caller.get(id).await;
    (answer.standing(), next(answer.recovery))
}

async fn cancel(
    caller: &Caller,
    id: &Identity,
    seal: bool,
) -> Result<CancelOperationResponse, Status> {
    let request = CancelOperationRequest {
        operation_id: id.id.clone(),
        mint_time: id.mint_time,
        reason: "never mind".to_owned(),
        seal,
    };
    let mut client = caller.operations.clone();
    Ok(within("a cancel", client.cancel_operation(request)).await?.into_inner())
}

async fn sealed(caller: &Caller, id: &Identity) -> CancelOperationResponse {
    cancel(caller, id, true).await.expect("sealed")
}

async fn refused_seal(caller: &Caller, id: &Identity) -> Refused {
    Refused::of(&cancel(caller, id, true).await.expect_err("not sealed"))
}

/// Reason, standing and next step of a refusal, which had no effect.
fn reasons(refused: &Refused) -> (&str, &str, &str) {
    assert_eq!(refused.value("outcome"), "NO_EFFECT", "{refused:?}");
    (&refused.reason, refused.value("standing"), refused.value("recovery"))
}

/// Waits until the sweep has closed the account for an id.
async fn never_accepted(caller: &Caller, id: &Identity) {
    eventually("the account to close", BOUND, async || {
        let told = told(caller, id).await;
        if told.0 == Standing::NotAcceptedYet {
            assert_eq!(told.1, RecoveryAction::Wait, "not before it is proven");
            return None;
        }
        assert_eq!(told, (Standing::NeverAccepted, RecoveryAction::NewIdSafe));
        Some(())
    })
    .await;
}

/// A service on which account `a` was used, and one id that never arrived.
async fn with_a_lost_id(store: TestStore) -> (Hosted, Identity, Identity) {
    let hosted = host(store, policy()).await;
    let (used, lost) = (Identity::named("used"), Identity::named("lost"));
    hosted.a().submitted(used.append("d1", "used")).await;
    let told = told(&hosted.a(), &lost).await;
    assert_eq!(told, (Standing::NotAcceptedYet, RecoveryAction::ResubmitSameId));
    (hosted, used, lost)
}

async fn w13_expired_evidence_is_told_and_nothing_executes(store: TestStore) {
    let beside = Beside::of(&store);
    let (hosted, used, lost) = with_a_lost_id(store).await;
    let caller = hosted.a();
    beside.raise_floor(hosted.seams.now() + Span::minutes(1)).await;

    let expired = (Standing::EvidenceExpired, RecoveryAction::ReadCurrentState);
    assert_eq!(told(&caller, &lost).await, expired);
    let recorded = told(&caller, &used).await;
    assert_eq!(recorded, (Standing::Recorded, RecoveryAction::ShowResult), "a record comes first");
    let expected = ("EVIDENCE_EXPIRED", "EVIDENCE_EXPIRED", "READ_CURRENT_STATE");
    assert_eq!(reasons(&caller.refused(lost.append("d1", "lost")).await), expected);
    assert_eq!(reasons(&refused_seal(&caller, &lost).await), expected);
    assert_eq!(caller.text("d1").await, ("used\n".to_owned(), 1));
    hosted.stop().await;
}

async fn w17_an_id_whose_time_is_over_is_never_accepted_and_never_executes(store: TestStore) {
    let beside = Beside::of(&store);
    let (hosted, used, lost) = with_a_lost_id(store).await;
    let caller = hosted.a();
    hosted.advance(Duration::from_secs(45));
    let waits = (Standing::NotAcceptedYet, RecoveryAction::Wait);
    assert_eq!(told(&caller, &lost).await, waits, "refused, and not yet proven");
    let expected = ("ADMISSION_CLOSED", "NOT_ACCEPTED_YET", "WAIT");
    assert_eq!(reasons(&caller.refused(lost.append("d1", "lost")).await), expected);

    hosted.advance(Duration::from_secs(60));
    never_accepted(&caller, &lost).await;
    if let Beside::Postgres(server, database) = &beside {
        held_by_an_open_transaction(&caller, &lost, server, database).await;
    }

    let expected = ("ADMISSION_CLOSED", "NEVER_ACCEPTED", "NEW_ID_SAFE");
    assert_eq!(reasons(&caller.refused(lost.append("d1", "lost")).await), expected);
    assert_eq!(reasons(&refused_seal(&caller, &lost).await), expected);
    let item = caller.submit_together(vec![lost.append("d1", "lost")]).await.remove(0);
    let batch_submit_result::Result::Error(error) = item else { panic!("{item:?}") };
    assert_eq!(reasons(&Refused::of_item(&error)), expected);

    let requests = vec![used.look_up(), lost.look_up(), Identity::fresh().look_up()];
    let mut client = caller.operations.clone();
    let both =
        within("a batch", client.batch_get_operations(BatchGetOperationsRequest { requests }));
    let both = both.await.expect("answered").into_inner().results;
    assert_eq!(both[0].standing(), Standing::Recorded);
    assert_eq!(both[1].standing(), Standing::NeverAccepted);
    assert!(both[1].operation.is_none() && both[1].store_time.is_some());

    // Neither a clock that steps back nor anything else opens it again.
    hosted.seams.move_clock(Span::seconds(-100));
    assert_eq!(told(&caller, &lost).await.0, Standing::NeverAccepted);
    assert_eq!(reasons(&caller.refused(lost.append("d1", "lost")).await), expected);
    assert_eq!(caller.text("d1").await, ("used\n".to_owned(), 1));
    hosted.stop().await;
}

/// On the embedded store there is no such transaction: a turn of its one writer is the lock.
async fn held_by_an_open_transaction(
    caller: &Caller,
    lost: &Identity,
    server: &Postgres,
    database: &str,
) {
    let key = OperationKey {
        account: Account::parse("a").expect("valid"),
        id: OperationId::parse(&lost.id).expect("valid"),
    };
    let other = server.connect(database).await;
    let hold = format!("BEGIN; SELECT pg_advisory_xact_lock({})", claim_hash(&key));
    other.batch_execute(&hold).await.expect("held");
    let waits = (Standing::NotAcceptedYet, RecoveryAction::Wait);
    assert_eq!(told(caller, lost).await, waits, "a submit may be on its way");
    let held = caller.refused(lost.append("d1", "lost")).await;
    assert_eq!((held.reason.as_str(), held.value("recovery")), ("IDENTITY_HELD", "WAIT"));
    other.batch_execute("COMMIT").await.expect("released");
    let never = (Standing::NeverAccepted, RecoveryAction::NewIdSafe);
    assert_eq!(told(caller, lost).await, never);
}

async fn an_account_that_was_never_used_settles_its_old_ids_too(store: TestStore) {
    let hosted = host(store, policy()).await;
    let (lost, caller) = (Identity::named("lost"), hosted.b());
    hosted.advance(Duration::from_secs(45));
    let waits = (Standing::NotAcceptedYet, RecoveryAction::Wait);
    assert_eq!(told(&caller, &lost).await, waits);
    hosted.advance(Duration::from_secs(60));
    // The look-up itself leaves the row that closes the account.
    assert_eq!(told(&caller, &lost).await.0, Standing::NeverAccepted);
    let refused = caller.refused(lost.append("d1", "lost")).await;
    assert_eq!(refused.reason, "ADMISSION_CLOSED");
    hosted.stop().await;
}

async fn a_sealed_id_replays_for_every_submit(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let id = Identity::named("sealed");
    let plain = Refused::of(&cancel(&caller, &id, false).await.expect_err("no record"));
    assert_eq!(plain.reason, "NO_SUCH_OPERATION", "only a seal seals");

    let first = sealed(&caller, &id).await;
    assert_eq!(first.outcome(), CancelOutcome::Cancelled);
    assert_eq!(next(first.recovery), RecoveryAction::NewIdSafe);
    let operation = first.operation.expect("a record");
    assert_eq!((operation.state(), first.deliveries.len()), (State::Cancelled, 0));
    let sealed_receipt = operation.receipt.expect("a receipt");
    assert!(sealed_receipt.sealed && sealed_receipt.intent_digest.is_empty());
    assert_eq!(sealed_receipt.cancel_reason, "never mind");

    // Whatever the intent, alone and in a batch; and a second seal.
    for submit in [id.append("d1", "late"), id.put("d2", "other")] {
        let late = caller.submitted(submit.clone()).await;
        assert_eq!(answered(&late), (Origin::Replayed, State::Cancelled));
        assert_eq!(*receipt(&late), sealed_receipt);
        assert!(late.deliveries.is_empty() && late.projection.is_none());
        assert!(late.remarks.is_empty(), "{:?}", late.remarks);
        assert_eq!(next(late.recovery), RecoveryAction::NewIdSafe);
        let together = caller.submitted_together(vec![submit]).await;
        assert_eq!(*receipt(&together[0]), sealed_receipt);
    }
    let again = sealed(&caller, &id).await.operation.and_then(|operation| operation.receipt);
    assert_eq!(again, Some(sealed_receipt.clone()));
    let found = caller.get(&id).await;
    assert_eq!(
        (found.standing(), next(found.recovery)),
        (Standing::Recorded, RecoveryAction::NewIdSafe)
    );
    assert_eq!(found.projection, None);
    let kinds: Vec<_> = caller.events(&id).await.iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [OperationEventKind::Sealed, OperationEventKind::Cancelled]);
    let trail = caller.events(&id).await;
    assert_eq!((trail[0].number, trail[0].subject.as_str()), (1, trail[1].subject.as_str()));
    assert_eq!((caller.document("d1").await, caller.document("d2").await), (None, None));

    // The mint time is identity, not intent.
    let other = Identity { mint_time: Some(prost_types::Timestamp::default()), ..id.clone() };
    assert_eq!(caller.refused(other.append("d1", "late")).await.value("differs"), "mint_time");
    let bare = Identity { id: "bare".to_owned(), mint_time: None };
    assert_eq!(refused_seal(&caller, &bare).await.reason, "INVALID_FIELD");
    let old = Identity { mint_time: Some(prost_types::Timestamp::default()), ..bare };
    assert_eq!(refused_seal(&caller, &old).await.reason, "ADMISSION_CLOSED");
    let reading = Caller::new(server.address(), TOKEN_READS);
    let refused = refused_seal(&reading, &Identity::fresh()).await;
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::PermissionDenied, "PERMISSION_MISSING")
    );
    let submitting = Caller::new(server.address(), TOKEN_SUBMITS);
    assert_eq!(sealed(&submitting, &Identity::fresh()).await.outcome(), CancelOutcome::Cancelled);

    // Where there is a record, a seal is a cancel.
    let done = Identity::fresh();
    caller.submitted(done.append("d3", "done")).await;
    assert_eq!(sealed(&caller, &done).await.outcome(), CancelOutcome::TooLate);
    assert_eq!(caller.text("d3").await, ("done\n".to_owned(), 1));
}

/// Asks again while another replica holds the id.
async fn settled<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, Status>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(status) => assert_eq!(Refused::of(&status).reason, "IDENTITY_HELD", "{status:?}"),
        }
    }
}

async fn a_seal_that_races_submits_wins_or_loses_for_all(store: TestStore) {
    let replicas = if let TestStore::Postgres(..) = store { 2 } else { 1 };
    let servers: Vec<_> = (0..replicas).map(|_| store.serve(&[])).collect();
    for round in 0..15 {
        let id = Identity::fresh();
        let attempts: Vec<_> = (0..8)
            .map(|at| {
                let caller = servers[at % servers.len()].a();
                let (id, seals) = (id.clone(), (at + round) / 2 % 2 == 0);
                background(async move {
                    if seals {
                        let answer = settled(|| cancel(&caller, &id, true)).await;
                        (Some(answer.outcome()), answer.operation.and_then(|done| done.receipt))
                    } else {
                        let answer = settled(|| caller.submit(id.append("d1", &id.id))).await;
                        (None, Some(receipt(&answer).clone()))
                    }
                })
            })
            .collect();
        let (mut receipts, mut outcomes) = (BTreeSet::new(), Vec::new());
        let mut is_sealed = false;
        for attempt in attempts {
            let (outcome, receipt) = within("an answer", attempt).await.expect("no panic");
            let receipt = receipt.expect("a receipt");
            is_sealed = receipt.sealed;
            receipts.insert(receipt.encode_to_vec());
            outcomes.extend(outcome);
        }
        assert_eq!(receipts.len(), 1, "all agree in round {round}");
        let expected = if is_sealed { CancelOutcome::Cancelled } else { CancelOutcome::TooLate };
        assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
        let text = servers[0].a().text("d1").await.0;
        assert_eq!(lines(&text, &id.id), usize::from(!is_sealed), "round {round}");
    }
}
