//! The golden truth table of decisions: every rule, without a store, on exact values.

#[path = "support/commands.rs"]
mod commands;
#[path = "support/memory.rs"]
mod memory;

use commands::{
    Instruction, ack, append, cancel, close, consumer, delivery, inbox, offer, open, operation,
    target,
};
use memory::Memory;
use receiptd::domain::{
    command::{AckOutcome, CancelOutcome, Command, Intention, Origin, Reply, Submitted, Swept},
    delivery::DeliveryState,
    ids::{MintTime, Span, Timestamp},
    intent::{IntentPart, LockMode},
    operation::{OperationState, Outcome, RejectionReason},
    policy::Policy,
    refusal::Refusal,
    world::Attached,
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
fn a_lock_until_acked_makes_others_wait_in_order_and_the_ack_starts_them() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("first", now).until_acked());
    for id in ["b", "a", "c"] {
        let line = Instruction { arguments: format!(r#"{{"line":"{id}"}}"#), ..append(id, now) };
        let reply = submitted(&mut memory, line);
        assert_eq!(reply.operation.state, OperationState::Accepted);
        let holder = reply.waiting_for.expect("a lock").holder.expect("a holder");
        assert_eq!(holder.operation_id.as_str(), "first");
        assert_eq!(holder.release_time, now + Policy::default().ack_window);
    }
    assert_eq!(acked(&mut memory, "default", &[1]), [AckOutcome::Acked]);
    assert!(memory.deferrals <= 5, "{}", memory.deferrals);
    assert_eq!(text(&memory, "d"), "x\nb\na\nc\n", "in order of acceptance");
    assert!(memory.locks.is_empty());
    for (id, sequence) in [("b", 2), ("a", 3), ("c", 4)] {
        assert_eq!(state(&memory, id), OperationState::Applied);
        let row = &memory.deliveries[&delivery("default", sequence)];
        assert_eq!(row.operation_id.as_str(), id);
    }
}

#[test]
fn a_long_queue_starts_sixteen_at_a_time_and_the_rest_at_once() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("first", now).until_acked());
    for number in 0..40 {
        submitted(&mut memory, append(&format!("w{number:02}"), now));
    }
    assert_eq!(acked(&mut memory, "default", &[1]), [AckOutcome::Acked]);
    assert_eq!(text(&memory, "d"), "x\n".repeat(41));
    assert!(memory.locks.is_empty());
    let order: Vec<String> = (2..=41)
        .map(|sequence| memory.deliveries[&delivery("default", sequence)].operation_id.to_string())
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_waiter_that_holds_until_acked_stops_the_chain() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("first", now).until_acked());
    submitted(&mut memory, append("second", now).until_acked());
    submitted(&mut memory, append("third", now));
    acked(&mut memory, "default", &[1]);
    assert_eq!(state(&memory, "second"), OperationState::Applied);
    assert_eq!(state(&memory, "third"), OperationState::Accepted);
    let lock = &memory.locks[&target("d")];
    assert_eq!(lock.holder.as_ref().expect("held").operation_id.as_str(), "second");
    assert_eq!(lock.waiting, 1);
    acked(&mut memory, "default", &[2]);
    assert_eq!(state(&memory, "third"), OperationState::Applied);
}

#[test]
fn a_lock_ends_at_its_limit_and_its_delivery_goes_on() {
    let policy = Policy { lock_limit: Span::seconds(60), ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    submitted(&mut memory, append("first", now).until_acked());
    submitted(&mut memory, append("second", now));
    let sweep = Command::SweepLock { target: target("d") };
    memory.advance(Span::seconds(59));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Nothing))));
    memory.advance(Span::seconds(1));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::LockReleased))));
    assert_eq!(state(&memory, "second"), OperationState::Applied);
    assert_eq!(memory.deliveries[&delivery("default", 1)].state, DeliveryState::Pending);
    assert_eq!(acked(&mut memory, "default", &[1, 2]), [AckOutcome::Acked, AckOutcome::Acked]);
    assert!(memory.locks.is_empty());
}

#[test]
fn a_lock_is_released_by_hand_only_from_its_holder() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("first", now).until_acked());
    submitted(&mut memory, append("second", now));
    let release = |id: &str| Command::ReleaseLock {
        target: target("d"),
        operation_id: operation(id).id,
        reason: "stuck".into(),
        subject: "operator".into(),
    };
    assert_eq!(refused(&mut memory, &release("second")), Refusal::NoSuchLock);
    let Ok(Reply::Released(lock)) = memory.run(&release("first")) else { panic!("released") };
    assert_eq!(lock.waiting, 1);
    assert!(memory.deferrals <= 5);
    assert_eq!(state(&memory, "second"), OperationState::Applied);
    let row = memory.audit.iter().rfind(|row| row.key == operation("first")).expect("a row");
    assert_eq!(row.subject, "operator");
    assert_eq!(refused(&mut memory, &release("first")), Refusal::NoSuchLock);
}

#[test]
fn waiting_ends_by_cancel_and_by_the_start_deadline() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("holder", now).until_acked());
    submitted(&mut memory, append("waits", now));
    let short = Some(Span::seconds(5));
    submitted(&mut memory, Instruction { start_deadline: short, ..append("late", now) });
    let Ok(Reply::Cancelled { outcome, operation: cancelled, delivery: told }) =
        memory.run(&cancel("waits", now))
    else {
        panic!("cancelled")
    };
    assert_eq!(outcome, CancelOutcome::Cancelled);
    assert_eq!(cancelled.state, OperationState::Cancelled);
    assert_eq!(told.expect("its news").key.sequence, 2);
    memory.advance(Span::seconds(5));
    let sweep = Command::SweepOperation { key: operation("late") };
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::StartDeadline))));
    assert_eq!(state(&memory, "late"), OperationState::Rejected);
    assert_eq!(text(&memory, "d"), "x\n", "no effect");
    assert_eq!(memory.locks[&target("d")].waiting, 0);
    for (id, expected) in [("holder", CancelOutcome::TooLate), ("waits", CancelOutcome::Cancelled)]
    {
        let Ok(Reply::Cancelled { outcome, .. }) = memory.run(&cancel(id, now)) else {
            panic!("answered")
        };
        assert_eq!(outcome, expected, "{id}");
    }
    let absent = refused(&mut memory, &cancel("nobody", now));
    assert_eq!(absent.reason(), "NO_SUCH_OPERATION");
}

#[test]
fn an_ack_has_an_outcome_for_every_state() {
    let policy = Policy { retry_budget: 1, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    for number in 1..=4 {
        submitted(&mut memory, append(&format!("{number}"), now));
    }
    let epoch = opened(&mut memory, "c", 2);
    assert_eq!(offered(&mut memory, "c", epoch, 2), [(1, 1), (2, 1)]);
    memory.advance(Span::seconds(30));
    let sweep = |sequence| Command::SweepDelivery {
        key: delivery("default", sequence),
        operation_id: operation(&sequence.to_string()).id,
    };
    assert!(matches!(memory.run(&sweep(2)), Ok(Reply::Swept(Swept::Dead))));
    memory.advance(Span::minutes(15));
    assert!(matches!(memory.run(&sweep(3)), Ok(Reply::Swept(Swept::Expired))));
    let outcomes = acked(&mut memory, "default", &[1, 1, 2, 3, 4, 999, 0, -1]);
    assert_eq!(
        outcomes,
        [
            AckOutcome::Acked,
            AckOutcome::AlreadyAcked,
            AckOutcome::AckedLate,
            AckOutcome::AckedLate,
            AckOutcome::Acked,
            AckOutcome::NoSuchDelivery,
            AckOutcome::NoSuchDelivery,
            AckOutcome::NoSuchDelivery,
        ]
    );
    let rows = memory.audit.len();
    assert_eq!(acked(&mut memory, "default", &[2]), [AckOutcome::AckedLate]);
    assert_eq!(memory.audit.len(), rows, "a late ack is noted once");
    assert_eq!(memory.deliveries[&delivery("default", 2)].state, DeliveryState::Dead);
    assert_eq!(acked(&mut memory, "nowhere", &[1]), [AckOutcome::NoSuchDelivery]);
    let states = [OperationState::Applied; 4];
    let now_in: Vec<_> = (1..=4).map(|number| state(&memory, &number.to_string())).collect();
    assert_eq!(now_in, states, "a delivery never changes an operation's state");
}

#[test]
fn retries_back_off_up_to_the_budget_and_hold_back_nothing_behind_them() {
    let policy = Policy { retry_budget: 3, ack_window: Span::hours(1), ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    submitted(&mut memory, append("1", now));
    submitted(&mut memory, append("2", now));
    let epoch = opened(&mut memory, "c", 1);
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 1)], "the window is one");
    let sweep =
        Command::SweepDelivery { key: delivery("default", 1), operation_id: operation("1").id };
    let mut pauses = Vec::new();
    for attempt in 1..3 {
        memory.advance(Span::seconds(30));
        assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Returned))));
        let row = &memory.deliveries[&delivery("default", 1)];
        let pause = row.available_time.expect("backs off") - memory.now;
        pauses.push(pause);
        if attempt == 1 {
            assert_eq!(offered(&mut memory, "c", epoch, 5), [(2, 1)], "nothing is held back");
            assert_eq!(acked(&mut memory, "default", &[2]), [AckOutcome::Acked]);
        }
        memory.advance(pause);
        assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, attempt + 1)]);
    }
    assert!(pauses[0] < pauses[1], "{pauses:?}");
    memory.advance(Span::seconds(30));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Dead))));
    let row = &memory.inboxes[&inbox("default")];
    assert_eq!((row.slots_used(), row.dead_total), (0, 1));
}

#[test]
fn a_second_stream_of_a_consumer_takes_over_at_once() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 1..=3 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    let first = opened(&mut memory, "c", 10);
    assert_eq!(offered(&mut memory, "c", first, 10), [(1, 1), (2, 1), (3, 1)]);
    let second = opened(&mut memory, "c", 10);
    assert!(second > first);
    let refusal = memory.run(&offer("default", "c", first, 10)).expect_err("replaced");
    assert_eq!(refusal, Refusal::StreamSuperseded);
    assert_eq!(offered(&mut memory, "c", second, 10), [(1, 2), (2, 2), (3, 2)]);
    // Closing the old stream must not touch what the new one holds.
    memory.run(&close("default", "c", first)).expect("closes");
    assert_eq!(memory.inboxes[&inbox("default")].in_flight, 3);
    memory.run(&close("default", "c", second)).expect("closes");
    let row = &memory.deliveries[&delivery("default", 1)];
    let pause = row.available_time.expect("returned") - memory.now;
    assert!(pause > Span(0), "from the second return on it backs off");
}

#[test]
fn the_window_and_the_server_bound_what_is_in_flight() {
    let policy = Policy { in_flight_max: 3, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    for number in 1..=9 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    let one = opened(&mut memory, "one", 2);
    assert_eq!(offered(&mut memory, "one", one, 100).len(), 2);
    assert_eq!(offered(&mut memory, "one", one, 100).len(), 0);
    let two = opened(&mut memory, "two", 100);
    assert_eq!(offered(&mut memory, "two", two, 100), [(3, 1)], "the server's maximum");
    assert_eq!(acked(&mut memory, "default", &[2]), [AckOutcome::Acked]);
    assert_eq!(offered(&mut memory, "one", one, 100), [(4, 1)], "an ack refills the window");
}

#[test]
fn a_result_goes_straight_to_the_one_stream_that_waits_for_it() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let epoch = opened(&mut memory, "c", 2);
    let room = |room| Attached { consumer: consumer("c"), epoch, room };
    memory.attached.insert(inbox("default"), room(10));
    for (id, handed) in [("1", 1), ("2", 1), ("3", 0)] {
        submitted(&mut memory, append(id, now));
        assert_eq!(memory.handed.len(), handed, "{id}: within the window only");
    }
    assert_eq!(memory.inboxes[&inbox("default")].in_flight, 2);
    acked(&mut memory, "default", &[1]);
    submitted(&mut memory, append("4", now));
    assert!(memory.handed.is_empty(), "3 waits: nothing overtakes it");
    assert_eq!(offered(&mut memory, "c", epoch, 1), [(3, 1)]);
    acked(&mut memory, "default", &[2, 3]);
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(4, 1)]);
    memory.attached.insert(inbox("default"), room(0));
    submitted(&mut memory, append("5", now));
    assert!(memory.handed.is_empty(), "the stream is full");
    let other = opened(&mut memory, "other", 5);
    memory.attached.insert(inbox("default"), room(10));
    assert_eq!(offered(&mut memory, "other", other, 5), [(5, 1)]);
    submitted(&mut memory, append("6", now));
    assert!(memory.handed.is_empty(), "two consumers share: an offer decides");
}

#[test]
fn no_lock_is_held_where_no_document_row_guards_it() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    let delete = Instruction {
        action: "document.delete".into(),
        arguments: "{}".into(),
        ..append("delete", now).until_acked()
    };
    let rejected = submitted(&mut memory, delete);
    assert_eq!(rejected.operation.state, OperationState::Rejected);
    assert!(memory.locks.is_empty() && memory.documents.is_empty());
    // A rejection on a document that exists does hold its target until it is acked.
    submitted(&mut memory, append("create", now));
    submitted(&mut memory, append("stale", now).until_acked().expecting(7));
    assert_eq!(
        memory.locks[&target("d")].holder.as_ref().expect("held").operation_id.as_str(),
        "stale"
    );
}

#[test]
fn acks_without_a_stream_leave_no_history_to_walk() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 1..=5 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    acked(&mut memory, "default", &[1, 2, 3, 4]);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 0, "5 is still fresh");
    acked(&mut memory, "default", &[5]);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 5);
    let epoch = opened(&mut memory, "c", 5);
    memory.attached.insert(inbox("default"), Attached { consumer: consumer("c"), epoch, room: 5 });
    submitted(&mut memory, append("6", now));
    assert_eq!(memory.handed.len(), 1, "and results go straight to a stream at once");
}

#[test]
fn a_consumer_without_a_sign_of_life_is_removed() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("1", now));
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 1)]);
    let sweep = Command::SweepInbox { key: inbox("default") };
    memory.advance(Span::seconds(59));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Nothing))));
    assert!(offered(&mut memory, "c", epoch, 0).is_empty(), "a sign of life");
    memory.advance(Span::seconds(59));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Nothing))));
    memory.advance(Span::seconds(1));
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::ConsumerRemoved))));
    let row = &memory.inboxes[&inbox("default")];
    assert!(row.consumers.is_empty() && row.due_time.is_none());
    assert_eq!((row.pending, row.in_flight), (1, 0));
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
