//! The golden truth table of decisions: every rule, without a store, on exact values.

mod absence;
mod by_hand;
#[path = "../support/commands.rs"]
mod commands;
mod deferrals;
mod deliveries;
mod floor;
mod inboxes;
mod left;
mod locks;
#[path = "../support/memory.rs"]
mod memory;
mod policies;

use commands::{Instruction, ack, append, cancel, inbox, offer, open, operation, target};
use memory::Memory;
use receiptd::domain::{
    command::{AckOutcome, Command, Intention, Origin, Reply, Submitted},
    ids::{MintTime, Span, Timestamp},
    intent::{IntentPart, LockMode},
    operation::{OperationState, Outcome, PayloadKind, RejectionReason},
    policy::Policy,
    refusal::Refusal,
};

fn submitted(memory: &mut Memory, instruction: Instruction) -> Submitted {
    match memory.run(&instruction.command()) {
        Ok(Reply::Submitted(submitted)) => *submitted,
        other => panic!("not submitted: {other:?}"),
    }
}

fn refused(memory: &mut Memory, command: &Command) -> Refusal {
    let before = memory.clone();
    let refusal = memory.run(command).expect_err("a refusal");
    assert_eq!(before.operations, memory.operations, "a refusal leaves no record");
    assert_eq!(before.audit, memory.audit);
    assert_eq!(before.documents, memory.documents);
    refusal
}

fn acked(memory: &mut Memory, name: &str, sequences: &[i64]) -> Vec<AckOutcome> {
    match memory.run(&ack(name, sequences)) {
        Ok(Reply::Acked(results)) => results.into_iter().map(|result| result.outcome).collect(),
        other => panic!("not acked: {other:?}"),
    }
}

fn offered(memory: &mut Memory, who: &str, epoch: i64, limit: i64) -> Vec<(i64, i32)> {
    match memory.run(&offer("default", who, epoch, limit)) {
        Ok(Reply::Offered { deliveries, .. }) => deliveries
            .into_iter()
            .map(|delivery| (delivery.key.sequence, delivery.attempt))
            .collect(),
        other => panic!("not offered: {other:?}"),
    }
}

fn opened(memory: &mut Memory, who: &str, window: i64) -> i64 {
    match memory.run(&open("default", who, window)) {
        Ok(Reply::Opened { consumer, .. }) => consumer.epoch,
        other => panic!("not opened: {other:?}"),
    }
}

fn state(memory: &Memory, id: &str) -> OperationState {
    memory.operations[&operation(id)].state
}

fn text(memory: &Memory, path: &str) -> String {
    let content = memory.documents[&target(path)].content.clone().expect("content");
    String::from_utf8(content.to_vec()).expect("text")
}

/// One operation in each state that exists so far, on targets of their own.
fn in_every_state() -> (Memory, Timestamp) {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("applied", now).on("applied"));
    submitted(&mut memory, append("rejected", now).on("rejected").expecting(9));
    submitted(&mut memory, append("holder", now).on("locked").until_acked());
    submitted(&mut memory, append("accepted", now).on("locked"));
    submitted(&mut memory, append("cancelled", now).on("locked"));
    memory.run(&cancel("cancelled", now)).expect("cancels");
    (memory, now)
}

#[test]
fn same_id_and_intent_attaches_or_replays_in_every_state() {
    let (memory, now) = in_every_state();
    let rows = [
        ("applied", "applied", None, Origin::Replayed, OperationState::Applied),
        ("rejected", "rejected", Some(9), Origin::Replayed, OperationState::Rejected),
        ("accepted", "locked", None, Origin::Attached, OperationState::Accepted),
        ("cancelled", "locked", None, Origin::Replayed, OperationState::Cancelled),
    ];
    for (id, path, expected_revision, origin, state) in rows {
        let mut again = memory.clone();
        let instruction = Instruction { expected_revision, ..append(id, now).on(path) };
        let reply = submitted(&mut again, instruction);
        assert_eq!((reply.origin, reply.operation.state), (origin, state), "{id}");
        assert_eq!(reply.waiting_for.is_some(), state == OperationState::Accepted);
        assert_eq!(again.documents, memory.documents, "{id}: no effect");
        assert_eq!(again.audit, memory.audit, "{id}: a replay writes no audit row");
        assert_eq!(again.deferrals, 0, "{id}: the needs are known beforehand");
    }
}

#[test]
fn another_intent_under_an_id_is_refused_in_every_state_and_names_the_part() {
    let (mut memory, now) = in_every_state();
    let rows = [
        ("applied", "applied", None),
        ("rejected", "rejected", Some(9)),
        ("accepted", "locked", None),
        ("cancelled", "locked", None),
    ];
    for (id, path, expected_revision) in rows {
        let base = Instruction { expected_revision, ..append(id, now).on(path) };
        let later = MintTime::from_timestamp(now + Span::millis(1));
        let others = [
            (IntentPart::Target, base.clone().on("other")),
            (IntentPart::ExpectedRevision, base.clone().expecting(5)),
            (
                IntentPart::Arguments,
                Instruction { arguments: r#"{"line":"y"}"#.into(), ..base.clone() },
            ),
            (IntentPart::LockMode, Instruction { lock_mode: LockMode::UntilAcked, ..base.clone() }),
            (IntentPart::MintTime, Instruction { mint: later, ..base.clone() }),
        ];
        for (part, other) in others {
            let refusal = refused(&mut memory, &other.command());
            assert_eq!(refusal, Refusal::IntentMismatch { differs: vec![part] }, "{id}");
        }
    }
}

#[test]
fn another_action_alone_is_named() {
    let mut memory = Memory::new(Policy::default());
    // These arguments fit both actions: an action ignores members that it does not know.
    let arguments = r#"{"text":"x","content":"x"}"#.to_owned();
    let both = Instruction { arguments, ..append("op", memory.now) };
    submitted(&mut memory, both.clone());
    let put = Instruction { action: "document.put".into(), ..both };
    let refusal = refused(&mut memory, &put.command());
    assert_eq!(refusal, Refusal::IntentMismatch { differs: vec![IntentPart::Action] });
}

#[test]
fn the_first_failing_check_wins() {
    let policy = Policy { inbox_slots: 1, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    submitted(&mut memory, append("holder", now).until_acked());
    let old = MintTime::from_timestamp(now - Span::hours(25));
    let ahead = MintTime::from_timestamp(now + Span::minutes(6));
    let rows: [(Instruction, &str); 6] = [
        // A record is found before anything else is looked at.
        (
            Instruction { mint: ahead, ..append("holder", now).until_acked() },
            "OPERATION_INTENT_MISMATCH",
        ),
        // Full inbox, locked target, wrong revision: the time comes first.
        (Instruction { mint: ahead, ..append("n", now).or_fail().expecting(7) }, "CLOCK_SKEW"),
        (Instruction { mint: old, ..append("n", now).or_fail().expecting(7) }, "ADMISSION_CLOSED"),
        // Then the slot.
        (append("n", now).or_fail().expecting(7), "INBOX_FULL"),
        // Then the lock.
        (append("n", now).or_fail().expecting(7).into_inbox("other"), "TARGET_LOCKED"),
        (append("n", now).or_fail().into_inbox("other"), "TARGET_LOCKED"),
    ];
    for (instruction, reason) in rows {
        assert_eq!(refused(&mut memory, &instruction.command()).reason(), reason);
    }
    // From here on the id is spent: a wrong revision is recorded.
    let rejected =
        submitted(&mut memory, append("n", now).on("e").expecting(7).into_inbox("other"));
    let Some(Outcome::Rejected(rejection)) = rejected.operation.outcome else { panic!("rejected") };
    assert_eq!(rejection.reason, RejectionReason::RevisionMismatch);
    assert_eq!(rejection.found_revision, Some(0));
}

#[test]
fn expected_revisions_are_exact() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let rows = [
        ("missing-0", Some(0), OperationState::Applied, "x\n"),
        ("exists-0", Some(0), OperationState::Rejected, "x\n"),
        ("exists-1", Some(1), OperationState::Applied, "x\nx\n"),
        ("exists-1-again", Some(1), OperationState::Rejected, "x\nx\n"),
        ("any", None, OperationState::Applied, "x\nx\nx\n"),
    ];
    for (id, expected_revision, expected, content) in rows {
        let instruction = Instruction { expected_revision, ..append(id, now) };
        let reply = submitted(&mut memory, instruction);
        assert_eq!(reply.operation.state, expected, "{id}");
        assert_eq!(text(&memory, "d"), content, "{id}");
        assert_eq!(reply.origin, Origin::Executed);
    }
    assert_eq!(memory.documents[&target("d")].revision, 3);
}

#[test]
fn a_deleted_document_leaves_a_marker_and_its_revisions_are_never_used_again() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let delete = |id: &str| Instruction {
        action: "document.delete".into(),
        arguments: "{}".into(),
        ..append(id, now)
    };
    submitted(&mut memory, append("1", now));
    submitted(&mut memory, delete("2"));
    let missing = submitted(&mut memory, delete("3"));
    let Some(Outcome::Rejected(rejection)) = missing.operation.outcome else { panic!("rejected") };
    assert_eq!(rejection.reason, RejectionReason::DocumentMissing);
    let again = submitted(&mut memory, append("4", now).expecting(0));
    let Some(Outcome::Applied(change)) = again.operation.outcome else { panic!("applied") };
    assert_eq!((change.base_revision, change.result_revision, change.generation), (0, 3, 2));
    assert_eq!(text(&memory, "d"), "x\n");
}

#[test]
fn a_record_answers_long_after_its_id_could_be_accepted() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let first = submitted(&mut memory, append("first", now));
    memory.advance(Span::days(29));
    let replay = submitted(&mut memory, append("first", now));
    assert_eq!((replay.origin, &replay.operation), (Origin::Replayed, &first.operation));
    let late = refused(&mut memory, &append("second", now).command());
    assert!(matches!(late, Refusal::AdmissionClosed { .. }), "{late:?}");
    assert_eq!(text(&memory, "d"), "x\n");
}

#[test]
fn validate_only_changes_nothing() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let try_it = Instruction { intention: Intention::ValidateOnly, ..append("v", now) };
    let reply = submitted(&mut memory, try_it);
    assert_eq!(reply.operation.state, OperationState::Applied, "says what would happen");
    assert!(memory.operations.is_empty() && memory.documents.is_empty());
    assert!(memory.deliveries.is_empty() && memory.inboxes.is_empty() && memory.audit.is_empty());
    assert_eq!(submitted(&mut memory, append("v", now)).origin, Origin::Executed);
}

#[test]
fn commands_of_one_batch_fold_in_order() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let commands: Vec<Command> = (1..=50)
        .map(|number: i64| append(&format!("{number}"), now).expecting(number - 1).command())
        .chain([append("7", now).expecting(6).command()])
        .collect();
    let replies = memory.run_batch(&commands);
    let origins: Vec<Origin> = replies
        .into_iter()
        .map(|reply| match reply {
            Ok(Reply::Submitted(submitted)) => submitted.origin,
            other => panic!("not submitted: {other:?}"),
        })
        .collect();
    assert!(origins[..50].iter().all(|origin| *origin == Origin::Executed));
    assert_eq!(origins[50], Origin::Replayed, "a duplicate in the same batch");
    assert_eq!(memory.documents[&target("d")].revision, 50);
    assert_eq!(memory.inboxes[&inbox("default")].last_sequence(), 50);
}

#[test]
fn quotas_refuse_before_the_id_is_spent() {
    let policy = Policy { inboxes_max: 1, inbox_slots: 2, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    submitted(&mut memory, append("1", now));
    let refusal = refused(&mut memory, &append("n", now).into_inbox("second").command());
    assert_eq!(refusal, Refusal::AccountQuota { what: "inboxes", limit: 1 });
    submitted(&mut memory, append("2", now));
    let refusal = refused(&mut memory, &append("n", now).command());
    let full = Refusal::InboxFull { limit: 2, in_use: 2, earliest_release: None };
    assert_eq!(refusal, full);
    acked(&mut memory, "default", &[1]);
    assert_eq!(submitted(&mut memory, append("n", now)).origin, Origin::Executed);
    let none = Instruction { inbox: None, ..append("none", now) };
    assert!(submitted(&mut memory, none).delivery.is_none(), "no slot is needed without news");
}

#[test]
fn a_limit_that_was_lowered_does_not_hide_a_receipt() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("before", now));
    memory.policy.arguments_bytes_max = 4;
    assert_eq!(submitted(&mut memory, append("before", now)).origin, Origin::Replayed);
    let refusal = refused(&mut memory, &append("after", now).command());
    let large = Refusal::PayloadTooLarge { field: "intent.arguments", size: 12, limit: 4 };
    assert_eq!(refusal, large);
}

#[test]
fn a_result_is_kept_described_or_refused() {
    let mut memory = Memory::new(Policy { result_bytes_max: 4, ..Policy::default() });
    let now = memory.now;
    let put = |id: &str, content: &str| Instruction {
        action: "document.put".to_owned(),
        arguments: format!(r#"{{"content":"{content}"}}"#),
        ..append(id, now).keeping_content()
    };
    let kept = submitted(&mut memory, put("kept", "four")).operation.result.expect("a result");
    assert_eq!((kept.size, kept.kept), (4, true));
    let body = memory.payloads.get(&(operation("kept"), PayloadKind::Result));
    assert_eq!(body.map(|body| &body[..]), Some(b"four".as_slice()));
    // What the request alone tells comes before any effect.
    let refusal = refused(&mut memory, &put("large", "fives").command());
    assert_eq!(refusal, Refusal::PayloadTooLarge { field: "result", size: 5, limit: 4 });
    // What only the document tells comes after it.
    let grown = submitted(&mut memory, append("grown", now).keeping_content()).operation;
    assert_eq!(grown.state, OperationState::Applied);
    let told = grown.result.expect("described");
    assert_eq!((told.size, told.kept), (6, false));
    // The first submit's choice stays, either way; a limit that fell hides no receipt.
    memory.policy.result_bytes_max = 1;
    let again = submitted(&mut memory, put("kept", "four"));
    assert_eq!((again.origin, again.operation.result), (Origin::Replayed, Some(kept)));
    submitted(&mut memory, append("plain", now));
    let again = submitted(&mut memory, append("plain", now).keeping_content());
    assert_eq!((again.origin, again.operation.result), (Origin::Replayed, None));
    // Tried only: described, and nothing is kept.
    memory.policy.result_bytes_max = 99;
    let trial = Instruction {
        intention: Intention::ValidateOnly,
        ..append("trial", now).keeping_content()
    };
    assert!(submitted(&mut memory, trial).operation.result.is_some_and(|result| result.kept));
    let kept = memory.payloads.keys().filter(|(_, kind)| *kind == PayloadKind::Result);
    assert_eq!(kept.count(), 1);
}
