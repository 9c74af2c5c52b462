//! Deliveries that callers name: more time, not now, once more, and pages without a stream.

use receiptd::domain::{
    attempts::{AttemptOutcome, Attempts},
    audit::{AuditEvent, AuditKind},
    command::{AckOutcome, Command, Reply},
    delivery::{Delivery, DeliveryState, DeliveryTarget},
    ids::{InboxName, Span},
    policy::Policy,
    record::unpack_events,
    redrive::RedriveOutcome,
    refusal::Refusal,
};

use crate::{
    acked,
    commands::{
        ack_newest, append, attempts, consumer, defer, delivery, extend, inbox, newest, numbered,
        offer, operation, pull, redrive,
    },
    memory::Memory,
    offered, opened, submitted,
};

pub(super) fn policy() -> Policy {
    Policy {
        ack_window: Span::seconds(90),
        retry_budget: 3,
        in_flight_max: 6,
        inbox_slots: 8,
        ..Policy::default()
    }
}

/// An inbox with so many results.
pub(super) fn queued(count: i64) -> Memory {
    let mut memory = Memory::new(policy());
    let now = memory.now;
    for number in 1..=count {
        submitted(&mut memory, append(&format!("o{number}"), now));
    }
    memory
}

pub(super) fn row(memory: &Memory, sequence: i64) -> Delivery {
    memory.deliveries[&delivery("default", sequence)].clone()
}

pub(super) fn attempted(memory: &mut Memory, command: &Command) -> Vec<AttemptOutcome> {
    match memory.run(command) {
        Ok(Reply::Attempted(done)) => {
            if let [attempted] = &done[..] {
                let name = attempted.target.inbox.as_str();
                let stored = memory.deliveries.get(&delivery(name, attempted.target.sequence));
                assert_eq!(attempted.delivery.as_ref(), stored, "the delivery as it is now");
            }
            done.into_iter().map(|attempted| attempted.outcome).collect()
        }
        other => panic!("not attempted: {other:?}"),
    }
}

fn redriven(memory: &mut Memory, targets: Vec<DeliveryTarget>) -> Vec<RedriveOutcome> {
    match memory.run(&redrive(targets)) {
        Ok(Reply::Redriven(done)) => {
            for redriven in &done {
                let stored = redriven.key.as_ref().and_then(|key| memory.deliveries.get(key));
                assert_eq!(redriven.delivery.as_ref(), stored, "the delivery as it is now");
            }
            done.into_iter().map(|redriven| redriven.outcome).collect()
        }
        other => panic!("not redriven: {other:?}"),
    }
}

fn pulled(memory: &mut Memory, who: &str, limit: i64) -> Vec<(i64, i32)> {
    match memory.run(&pull("default", who, limit)) {
        Ok(Reply::Offered { deliveries, .. }) => {
            deliveries.into_iter().map(|row| (row.key.sequence, row.attempt)).collect()
        }
        other => panic!("not pulled: {other:?}"),
    }
}

fn sweep(memory: &mut Memory, sequence: i64) {
    let key = delivery("default", sequence);
    let operation_id = memory.deliveries[&key].operation_id.clone();
    memory.run(&Command::SweepDelivery { key, operation_id }).expect("swept");
}

fn events(memory: &Memory, id: &str, kind: AuditKind) -> Vec<AuditEvent> {
    let rows = memory.audit.iter().filter(|row| row.operation() == Some(&operation(id)));
    let events = rows.flat_map(|row| unpack_events(&row.events).expect("packed"));
    events.filter(|event| event.kind == kind).collect()
}

pub(super) fn named(who: Option<&str>, named: &[(i64, i32)]) -> Attempts {
    attempts("default", who, named)
}

/// 1 in flight to `c`, 2 returned after its deadline, 3 acked, 4 acked late, 5 expired, 6 and 7
/// fresh; there is no 8.
fn in_every_state() -> Memory {
    let mut memory = queued(5);
    let epoch = opened(&mut memory, "c", 9);
    assert_eq!(offered(&mut memory, "c", epoch, 2), [(1, 1), (2, 1)]);
    acked(&mut memory, "default", &[3]);
    let all = memory.now + Span::seconds(60);
    memory.run(&extend(named(None, &[(1, 1)]), Some(Span::seconds(60)))).expect("extended");
    assert_eq!(row(&memory, 1).ack_deadline, Some(all));
    memory.advance(Span::seconds(31));
    sweep(&mut memory, 2);
    for sequence in [4, 5] {
        let key = delivery("default", sequence);
        let mut row = memory.deliveries[&key].clone();
        row.expire_time = memory.now;
        row.due_time = Some(memory.now);
        memory.deliveries.insert(key, row);
        sweep(&mut memory, sequence);
    }
    assert_eq!(acked(&mut memory, "default", &[4]), [AckOutcome::AckedLate]);
    let now = memory.now;
    for number in [6, 7] {
        submitted(&mut memory, append(&format!("o{number}"), now));
    }
    memory
}

#[test]
fn who_names_another_attempt_or_another_consumers_changes_nothing() {
    use AttemptOutcome::{AlreadyAcked, Done, NoSuchDelivery, NotInFlight, NotYours};
    let rows = [
        (Some("c"), (1, 1), Done),
        (None, (1, 1), Done),
        (Some("d"), (1, 1), NotYours),
        (Some("c"), (1, 2), NotYours),
        (None, (1, 0), NotYours),
        (Some("c"), (2, 1), NotInFlight),
        (Some("c"), (2, 2), NotYours),
        (None, (3, 0), AlreadyAcked),
        (None, (4, 0), NotInFlight),
        (None, (5, 0), NotInFlight),
        (None, (6, 1), NotYours),
        (None, (8, 1), NoSuchDelivery),
        (None, (0, 1), NoSuchDelivery),
        (None, (-1, 1), NoSuchDelivery),
    ];
    let memory = in_every_state();
    for (who, target, outcome) in rows {
        let commands = [
            extend(named(who, &[target]), Some(Span::seconds(45))),
            defer(named(who, &[target]), Span::seconds(5)),
        ];
        for command in commands {
            let mut after = memory.clone();
            assert_eq!(attempted(&mut after, &command), [outcome], "{who:?} {target:?}");
            if outcome != Done {
                assert_eq!(after.deliveries, memory.deliveries, "{who:?} {target:?}");
                assert_eq!(after.audit, memory.audit);
            }
        }
    }
    let mut memory = memory;
    let both = [(1, 1), (99, 1), (1, 1)];
    let outcomes = attempted(&mut memory, &defer(named(None, &both), Span(0)));
    assert_eq!(outcomes, [Done, NoSuchDelivery, NotInFlight], "a bad one fails alone");
    let nowhere = attempts("nowhere", None, &[(1, 1)]);
    assert_eq!(attempted(&mut memory, &extend(nowhere, None)), [NoSuchDelivery]);
}

#[test]
fn a_deadline_moves_on_up_to_the_ack_window_and_never_back() {
    let mut memory = queued(1);
    let start = memory.now;
    let epoch = opened(&mut memory, "c", 5);
    offered(&mut memory, "c", epoch, 1);
    let audit = memory.audit.clone();
    let rows = [
        (0, Some(10), 30),
        (0, Some(40), 40),
        (5, None, 40),
        (15, None, 45),
        (20, Some(90), 90),
        (89, Some(60), 90),
    ];
    for (at, extension, deadline) in rows {
        memory.now = start + Span::seconds(at);
        let extension = extension.map(Span::seconds);
        let outcome = attempted(&mut memory, &extend(named(Some("c"), &[(1, 1)]), extension));
        assert_eq!(outcome, [AttemptOutcome::Done], "at {at} s");
        let row = row(&memory, 1);
        let expected = Some(start + Span::seconds(deadline));
        assert_eq!((row.ack_deadline, row.due_time), (expected, expected), "at {at} s");
        assert_eq!(memory.deferrals, 0, "the needs are known beforehand");
    }
    assert_eq!(memory.audit, audit, "an extension leaves no audit row");
    memory.now = start + Span::seconds(90);
    let late = attempted(&mut memory, &extend(named(Some("c"), &[(1, 1)]), None));
    assert_eq!(late, [AttemptOutcome::NotInFlight], "the window is over, swept or not");
}

#[test]
fn a_missed_deadline_that_was_not_swept_yet_can_still_be_moved() {
    let mut memory = queued(1);
    let epoch = opened(&mut memory, "c", 5);
    offered(&mut memory, "c", epoch, 1);
    memory.advance(Span::seconds(31));
    let outcome = attempted(&mut memory, &extend(named(Some("c"), &[(1, 1)]), None));
    assert_eq!(outcome, [AttemptOutcome::Done]);
    sweep(&mut memory, 1);
    assert_eq!(row(&memory, 1).state, DeliveryState::InFlight);
}

#[test]
fn a_deferred_attempt_counts_and_comes_after_its_delay() {
    let mut memory = queued(2);
    let start = memory.now;
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 1), (2, 1)]);
    let outcome = attempted(&mut memory, &defer(named(Some("c"), &[(1, 1)]), Span::seconds(7)));
    assert_eq!(outcome, [AttemptOutcome::Done]);
    let returned = row(&memory, 1);
    assert_eq!(returned.state, DeliveryState::Pending);
    assert_eq!(returned.available_time, Some(start + Span::seconds(7)));
    assert_eq!((returned.attempt, returned.last_failure_time), (1, Some(start)));
    let trail = events(&memory, "o1", AuditKind::Returned);
    assert_eq!((trail.len(), trail[0].text.as_str()), (1, "deferred by its consumer"));
    assert_eq!(memory.audit.last().expect("a row").subject, "tester");
    memory.advance(Span::seconds(6));
    assert!(offered(&mut memory, "c", epoch, 5).is_empty(), "not before its delay");
    memory.advance(Span::seconds(1));
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 2)]);
    // At once, then past the budget.
    attempted(&mut memory, &defer(named(None, &[(1, 2)]), Span(0)));
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 3)]);
    let last = attempted(&mut memory, &defer(named(None, &[(1, 3)]), Span(0)));
    assert_eq!(last, [AttemptOutcome::Done], "DEFERRED");
    assert_eq!(row(&memory, 1).state, DeliveryState::Dead, "and dead: its budget is spent");
    assert_eq!(memory.inboxes[&inbox("default")].dead_total, 1);
}

#[test]
fn the_last_attempt_that_is_deferred_releases_the_lock() {
    let mut memory = Memory::new(Policy { retry_budget: 1, ..policy() });
    let now = memory.now;
    submitted(&mut memory, append("o1", now).until_acked());
    submitted(&mut memory, append("o2", now).into_inbox("other"));
    let epoch = opened(&mut memory, "c", 5);
    offered(&mut memory, "c", epoch, 1);
    attempted(&mut memory, &defer(named(Some("c"), &[(1, 1)]), Span::seconds(1)));
    assert!(memory.locks.is_empty());
    assert!(memory.deliveries.contains_key(&delivery("other", 1)), "the waiter went on");
}

#[test]
fn an_ack_by_operation_acks_its_newest_result() {
    let mut memory = queued(2);
    let now = memory.now;
    let ack = |memory: &mut Memory, target: DeliveryTarget| {
        let Command::Ack { account, subject, consumer, .. } = ack_newest("x") else {
            unreachable!("an ack")
        };
        let targets = vec![target];
        match memory.run(&Command::Ack { account, targets, subject, consumer }) {
            Ok(Reply::Acked(done)) => (done[0].outcome, done[0].key.clone()),
            other => panic!("not acked: {other:?}"),
        }
    };
    let inbox = |name: &str| Some(InboxName::parse(name).expect("valid"));
    let within = |id: &str, name| DeliveryTarget::Newest {
        operation_id: operation(id).id,
        inbox: inbox(name),
    };
    use AckOutcome::{Acked, AlreadyAcked, NoSuchDelivery};
    assert_eq!(ack(&mut memory, within("o2", "other")), (NoSuchDelivery, None));
    let second = Some(delivery("default", 2));
    assert_eq!(ack(&mut memory, newest("o2")), (Acked, second.clone()));
    assert_eq!(memory.deferrals, 1, "the number is known after the operation's row");
    assert_eq!(ack(&mut memory, within("o2", "default")), (AlreadyAcked, second));
    assert_eq!(ack(&mut memory, newest("nobody")), (NoSuchDelivery, None));
    submitted(&mut memory, append("holder", now).on("locked").until_acked());
    submitted(&mut memory, append("waits", now).on("locked").into_inbox("other"));
    assert_eq!(ack(&mut memory, newest("waits")), (NoSuchDelivery, None), "not ended");
    // The longest way: operation, delivery, its lock, the lock's waiters, their rows.
    assert_eq!(ack(&mut memory, newest("holder")), (Acked, Some(delivery("default", 3))));
    assert!(memory.deferrals <= 5, "{}", memory.deferrals);
    assert!(memory.locks.is_empty());
}

#[test]
fn only_what_ended_without_an_ack_is_redriven() {
    use RedriveOutcome::{AlreadyAcked, NoSuchDelivery, NotEnded, Redriven};
    let rows = [
        (1, NotEnded),
        (2, NotEnded),
        (3, AlreadyAcked),
        (4, AlreadyAcked),
        (5, Redriven),
        (6, NotEnded),
        (8, NoSuchDelivery),
        (0, NoSuchDelivery),
    ];
    let memory = in_every_state();
    for (sequence, outcome) in rows {
        let mut after = memory.clone();
        assert_eq!(redriven(&mut after, numbered("default", &[sequence])), [outcome]);
        if outcome != Redriven {
            assert_eq!(after.deliveries, memory.deliveries, "{sequence}");
            assert_eq!(after.audit, memory.audit);
        }
        assert!(after.deferrals <= 1, "one more batch brings the operation");
    }
    let mut memory = memory;
    let twice = vec![newest("o5"), newest("o5"), newest("nobody")];
    assert_eq!(redriven(&mut memory, twice), [Redriven, NotEnded, NoSuchDelivery]);
    let row = row(&memory, 5);
    assert_eq!(row.expire_time, memory.now + Span::seconds(90), "a new window");
    assert_eq!((row.available_time, row.end_time), (Some(memory.now), None));
    let trail = events(&memory, "o5", AuditKind::Redriven);
    assert_eq!((trail.len(), trail[0].sequence), (1, 5));
    assert_eq!(memory.inboxes[&inbox("default")].expired_total, 2, "a history");
    assert_eq!(redriven(&mut memory, numbered("nowhere", &[1])), [NoSuchDelivery]);
}

#[test]
fn what_expired_unsent_and_was_redriven_is_found_once_wherever_the_cursor_is() {
    let mut memory = queued(3);
    memory.advance(Span::seconds(90));
    [1, 2, 3].into_iter().for_each(|sequence| sweep(&mut memory, sequence));
    let now = memory.now;
    // The cursor is behind 1 to 3 by now; 4 is fresh after it.
    submitted(&mut memory, append("o4", now));
    let all = redriven(&mut memory, numbered("default", &[3, 1]));
    assert_eq!(all, [RedriveOutcome::Redriven; 2]);
    let epoch = opened(&mut memory, "c", 6);
    assert_eq!(offered(&mut memory, "c", epoch, 6), [(1, 1), (3, 1), (4, 1)]);
    assert!(offered(&mut memory, "c", epoch, 6).is_empty(), "each once");
    // And before the cursor passed them: 5 and 6 expire while it stands at 4.
    submitted(&mut memory, append("o5", now));
    submitted(&mut memory, append("o6", now));
    let mut early = memory.deliveries[&delivery("default", 5)].clone();
    (early.expire_time, early.due_time) = (now, Some(now));
    memory.deliveries.insert(delivery("default", 5), early);
    sweep(&mut memory, 5);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 4);
    assert_eq!(redriven(&mut memory, vec![newest("o5")]), [RedriveOutcome::Redriven]);
    assert_eq!(offered(&mut memory, "c", epoch, 1), [(5, 1)]);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 4, "6 is still fresh");
    assert_eq!(offered(&mut memory, "c", epoch, 6), [(6, 1)]);
}

#[test]
fn a_redriven_delivery_has_a_new_budget_and_numbers_go_on() {
    let mut memory = Memory::new(Policy { ack_window: Span::minutes(15), ..policy() });
    memory.jitter = 0;
    let now = memory.now;
    submitted(&mut memory, append("o1", now));
    let mut number = 0;
    for round in 1..=3 {
        let mut pauses = Vec::new();
        for _ in 0..3 {
            number += 1;
            assert_eq!(pulled(&mut memory, "p", 5), [(1, number)]);
            memory.advance(Span::seconds(30));
            let failed = memory.now;
            sweep(&mut memory, 1);
            if let Some(available) = row(&memory, 1).available_time {
                pauses.push((available - failed).0 / 100_000);
                memory.now = available;
            }
        }
        assert_eq!(row(&memory, 1).state, DeliveryState::Dead, "round {round}");
        assert!((8..=10).contains(&pauses[0]) && (16..=20).contains(&pauses[1]), "{pauses:?}");
        let again = redriven(&mut memory, numbered("default", &[1]));
        assert_eq!(again, [RedriveOutcome::Redriven]);
        let row = row(&memory, 1);
        assert_eq!((row.attempt, row.attempts_before, row.returns), (number, number, 0));
    }
    assert_eq!(memory.inboxes[&inbox("default")].dead_total, 3, "each death counts");
    // A stream that ends gives it back at once: the first time since the redrive.
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 5), [(1, 10)]);
    opened(&mut memory, "c", 5);
    let returned = row(&memory, 1);
    assert_eq!(returned.available_time, Some(returned.queue_time), "due since it was queued");
    acked(&mut memory, "default", &[1]);
}

#[test]
fn a_redrive_takes_a_slot_and_a_full_inbox_refuses_each_alone() {
    let mut memory = queued(8);
    memory.advance(Span::seconds(90));
    (1..=8).for_each(|sequence| sweep(&mut memory, sequence));
    let now = memory.now;
    for number in 11..=16 {
        submitted(&mut memory, append(&format!("o{number}"), now));
    }
    use RedriveOutcome::{InboxFull, Redriven};
    let outcomes = redriven(&mut memory, numbered("default", &[1, 2, 3, 4]));
    assert_eq!(outcomes, [Redriven, Redriven, InboxFull, InboxFull]);
    assert_eq!(memory.inboxes[&inbox("default")].slots_used(), 8);
    let refusal = memory.run(&append("full", now).command()).expect_err("full");
    assert!(matches!(refusal, Refusal::InboxFull { in_use: 8, .. }), "{refusal:?}");
    acked(&mut memory, "default", &[9]);
    assert_eq!(redriven(&mut memory, numbered("default", &[3, 4])), [Redriven, InboxFull]);
}

#[test]
fn a_redriven_delivery_never_takes_its_lock_again() {
    let mut memory = Memory::new(policy());
    let now = memory.now;
    submitted(&mut memory, append("o1", now).until_acked());
    memory.advance(Span::seconds(90));
    sweep(&mut memory, 1);
    assert_eq!(redriven(&mut memory, vec![newest("o1")]), [RedriveOutcome::Redriven]);
    assert!(memory.locks.is_empty() && row(&memory, 1).lock_target.is_none());
    acked(&mut memory, "default", &[1]);
}

#[test]
fn a_pull_holds_without_a_stream_and_its_deadline_brings_it_back() {
    let mut memory = queued(8);
    assert_eq!(pulled(&mut memory, "p", 2), [(1, 1), (2, 1)]);
    let inbox_row = |memory: &Memory| memory.inboxes[&inbox("default")].clone();
    let row_after = inbox_row(&memory);
    assert!(row_after.consumers.is_empty(), "no lease");
    assert_eq!(row_after.due_time, row_after.upkeep_time);
    assert_eq!((row_after.pending, row_after.in_flight), (6, 2));
    assert_eq!(row(&memory, 1).consumer, Some((consumer("p"), 0)));
    assert_eq!(pulled(&mut memory, "q", 100).len(), 4, "the inbox's maximum of six");
    assert!(pulled(&mut memory, "q", 100).is_empty());
    assert_eq!(acked(&mut memory, "default", &[1]), [AckOutcome::Acked]);
    memory.advance(Span::seconds(30));
    sweep(&mut memory, 2);
    assert_eq!(row(&memory, 2).state, DeliveryState::Pending);
    memory.advance(Span::seconds(1));
    assert_eq!(pulled(&mut memory, "q", 1), [(7, 1)], "it waited before 2 came back");
    assert_eq!(acked(&mut memory, "default", &[7]), [AckOutcome::Acked]);
    assert_eq!(pulled(&mut memory, "q", 1), [(8, 1)]);
    assert_eq!(acked(&mut memory, "default", &[8]), [AckOutcome::Acked]);
    assert_eq!(pulled(&mut memory, "q", 1), [(2, 2)]);
    let nothing = memory.inboxes.clone();
    assert!(pulled(&mut memory, "r", 1).is_empty());
    assert_eq!(memory.inboxes, nothing, "a look that finds nothing writes nothing");
    assert_eq!(memory.run(&pull("new", "p", 1)).map(|_| ()), Ok(()), "made at first use");
    assert!(memory.inboxes.contains_key(&inbox("new")));
}

#[test]
fn pages_of_one_batch_are_pages_of_their_own() {
    let mut memory = queued(8);
    let replies = memory.run_batch(&[pull("default", "p", 2), pull("default", "q", 2)]);
    let numbers = replies.into_iter().map(|reply| match reply {
        Ok(Reply::Offered { deliveries, .. }) => {
            deliveries.into_iter().map(|row| row.key.sequence).collect::<Vec<i64>>()
        }
        other => panic!("not pulled: {other:?}"),
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [[1, 2], [3, 4]]);
}

#[test]
fn a_stream_takes_over_what_its_consumer_pulled_and_both_may_go_on() {
    let mut memory = queued(4);
    assert_eq!(pulled(&mut memory, "c", 1), [(1, 1)]);
    assert_eq!(pulled(&mut memory, "other", 1), [(2, 1)]);
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 1), [(1, 2)], "taken over, at once");
    assert_eq!(pulled(&mut memory, "c", 1), [(3, 1)], "beside its own stream");
    let close = Command::Close { inbox: inbox("default"), consumer: consumer("c"), epoch };
    memory.run(&close).expect("closed");
    assert_eq!(row(&memory, 1).state, DeliveryState::Pending);
    assert_eq!(row(&memory, 3).consumer, Some((consumer("c"), 0)), "the stream's end is not its");
    let closed = memory.run(&offer("default", "c", epoch, 1));
    assert!(matches!(closed, Ok(Reply::Lapsed)), "no stream, and none that took over: {closed:?}");
}
