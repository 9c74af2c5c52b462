//! Locks: who excludes whom, who waits, and what ends it.

use receiptd::domain::{
    command::{AckOutcome, CancelOutcome, Command, Reply, Swept},
    delivery::DeliveryState,
    ids::Span,
    operation::OperationState,
    policy::Policy,
    refusal::Refusal,
};

use crate::{
    acked,
    commands::{Instruction, append, cancel, close, delivery, operation, target},
    memory::Memory,
    offered, opened, refused, state, submitted, text,
};

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
fn the_end_of_a_lock_that_nobody_waits_for_reads_no_document() {
    let policy = Policy { retry_budget: 1, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    for number in 0..40 {
        let path = format!("d{number}");
        submitted(&mut memory, append(&format!("op{number}"), now).on(&path).until_acked());
    }
    let sequences: Vec<i64> = (1..=10).collect();
    assert_eq!(acked(&mut memory, "default", &sequences), [AckOutcome::Acked; 10]);
    assert_eq!((memory.contents, memory.deferrals, memory.locks.len()), (0, 1, 30));
    // A stream that ends, by itself or by a takeover, ends what had its last attempt.
    let epoch = opened(&mut memory, "phone", 20);
    assert_eq!(offered(&mut memory, "phone", epoch, 10).len(), 10);
    memory.run(&close("default", "phone", epoch)).expect("closes");
    assert_eq!((memory.contents, memory.locks.len()), (0, 20));
    let epoch = opened(&mut memory, "phone", 20);
    assert_eq!(offered(&mut memory, "phone", epoch, 10).len(), 10);
    opened(&mut memory, "phone", 20);
    assert_eq!((memory.contents, memory.locks.len()), (0, 10));
    // By hand, at the lock limit, and at the end of the ack window.
    let release = Command::ReleaseLock {
        target: target("d30"),
        operation_id: operation("op30").id,
        reason: String::new(),
        subject: "operator".into(),
    };
    memory.run(&release).expect("releases");
    assert_eq!((memory.contents, memory.locks.len()), (0, 9));
    memory.advance(Policy::default().ack_window);
    memory.run(&Command::SweepLock { target: target("d31") }).expect("sweeps");
    assert_eq!((memory.contents, memory.locks.len()), (0, 8));
    let key = delivery("default", 33);
    let sweep = Command::SweepDelivery { key, operation_id: operation("op32").id };
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::Expired))));
    assert_eq!((memory.contents, memory.locks.len()), (0, 7));
}

#[test]
fn one_command_that_ends_many_locks_starts_some_waiters_and_the_rest_right_after_it() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 0..30 {
        let path = format!("d{number}");
        submitted(&mut memory, append(&format!("op{number}"), now).on(&path).until_acked());
    }
    for number in 0..30 {
        let path = format!("d{number}");
        submitted(&mut memory, append(&format!("waits{number}"), now).on(&path));
    }
    let sequences: Vec<i64> = (1..=30).collect();
    assert_eq!(acked(&mut memory, "default", &sequences), [AckOutcome::Acked; 30]);
    assert_eq!(memory.contents, 8, "no more than one command may read");
    assert!(memory.deferrals <= 5, "{}", memory.deferrals);
    assert!(memory.locks.is_empty());
    for number in 0..30 {
        assert_eq!(state(&memory, &format!("waits{number}")), OperationState::Applied);
        assert_eq!(text(&memory, &format!("d{number}")), "x\nx\n");
    }
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
    let row = memory.audit.iter().rfind(|row| row.operation() == Some(&operation("first")));
    let row = row.expect("a row");
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
