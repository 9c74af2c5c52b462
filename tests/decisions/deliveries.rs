//! Deliveries and consumers: every way in which news is sent, ends, or comes back.

use receiptd::domain::{
    command::{AckOutcome, Command, Reply, Swept},
    delivery::DeliveryState,
    ids::Span,
    operation::OperationState,
    policy::Policy,
    refusal::Refusal,
    world::Attached,
};

use crate::{
    acked,
    commands::{append, close, consumer, delivery, inbox, offer, offer_again, operation, reopen},
    memory::Memory,
    offered, opened, state, submitted,
};

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
fn what_failed_goes_behind_all_that_waited_before_its_pause_ended() {
    let mut memory = Memory::new(Policy { ack_window: Span::hours(2), ..Policy::default() });
    let now = memory.now;
    for number in 1..=4 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    let epoch = opened(&mut memory, "c", 10);
    assert_eq!(offered(&mut memory, "c", epoch, 2), [(1, 1), (2, 1)]);
    memory.advance(Span::seconds(30));
    let sweep = |number: i64| Command::SweepDelivery {
        key: delivery("default", number),
        operation_id: operation(&number.to_string()).id,
    };
    assert!(matches!(memory.run(&sweep(1)), Ok(Reply::Swept(Swept::Returned))));
    memory.advance(Span::minutes(2));
    let later = memory.now;
    submitted(&mut memory, append("5", later));
    assert_eq!(offered(&mut memory, "c", epoch, 1), [(3, 1)]);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 3, "the cursor passes no fresh one");
    // 4 waits since the beginning, 1 since its pause ended, 5 since now.
    assert_eq!(offered(&mut memory, "c", epoch, 9), [(4, 1), (1, 2), (5, 1)]);
    assert_eq!(memory.inboxes[&inbox("default")].offered, 5);
    // What came back with the stream of its first attempt is due since it was queued; 1 failed before.
    opened(&mut memory, "d", 10);
    memory.advance(Span::seconds(1));
    memory.run(&close("default", "c", epoch)).expect("closes");
    let epoch = opened(&mut memory, "e", 10);
    let order = offered(&mut memory, "e", epoch, 9);
    assert_eq!(order, [(2, 2), (3, 2), (4, 2), (5, 2), (1, 3)], "by number after a reconnect");
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
fn a_stream_without_credit_gets_only_what_it_names_and_what_came_back() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 1..=4 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    let epoch = opened(&mut memory, "c", 3);
    assert_eq!(offered(&mut memory, "c", epoch, 3), [(1, 1), (2, 1), (3, 1)]);
    let again = |memory: &mut Memory, limit, sequences: &[i64]| {
        let before = memory.inboxes[&inbox("default")].offered;
        match memory.run(&offer_again("default", "c", epoch, limit, sequences)) {
            Ok(Reply::Offered { deliveries, inbox: after }) => {
                assert_eq!(after.offered, before, "it never passes what is fresh");
                let told = deliveries.iter().map(|row| (row.key.sequence, row.attempt));
                told.collect::<Vec<_>>()
            }
            other => panic!("not offered: {other:?}"),
        }
    };
    assert_eq!(again(&mut memory, 9, &[1, 2, 3, 4]), [], "all in flight, and one fresh");
    memory.advance(Span::seconds(30));
    for number in 1..=3 {
        let key = delivery("default", number);
        let operation_id = memory.deliveries[&key].operation_id.clone();
        memory.run(&Command::SweepDelivery { key, operation_id }).expect("returns");
    }
    assert_eq!(again(&mut memory, 9, &[1, 2, 3, 4]), [], "they back off");
    memory.advance(Span::seconds(2));
    assert_eq!(again(&mut memory, 9, &[2, 4, 77, 2]), [(2, 2)], "once; never sent, or none at all");
    assert_eq!(again(&mut memory, 1, &[1, 2, 3]), [(1, 2)], "the limit");
    assert_eq!(again(&mut memory, 0, &[3]), [], "a lease alone");
    memory.advance(Span::hours(1));
    assert_eq!(again(&mut memory, 9, &[3]), [], "past its window");
}

#[test]
fn what_is_named_comes_again_in_the_order_of_sending() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for number in 1..=2 {
        submitted(&mut memory, append(&number.to_string(), now));
    }
    let epoch = opened(&mut memory, "c", 2);
    assert_eq!(offered(&mut memory, "c", epoch, 2), [(1, 1), (2, 1)]);
    memory.advance(Span::seconds(30));
    for number in [2, 1] {
        let key = delivery("default", number);
        let operation_id = operation(&number.to_string()).id;
        memory.run(&Command::SweepDelivery { key, operation_id }).expect("returns");
        memory.advance(Span::seconds(2));
    }
    let Ok(Reply::Offered { deliveries, .. }) =
        memory.run(&offer_again("default", "c", epoch, 2, &[1, 2]))
    else {
        panic!("not offered");
    };
    let numbers: Vec<i64> = deliveries.iter().map(|row| row.key.sequence).collect();
    assert_eq!(numbers, [2, 1], "2 was due first");
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
    assert!(row.consumers.is_empty() && row.due_time == row.upkeep_time);
    assert_eq!((row.pending, row.in_flight), (1, 0));
}

#[test]
fn a_lapsed_stream_opens_again_and_only_a_newer_one_supersedes() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("1", now));
    let first = opened(&mut memory, "c", 5);
    let other = opened(&mut memory, "other", 5);
    assert_eq!(offered(&mut memory, "c", first, 5), [(1, 1)]);
    memory.advance(Span::seconds(61));
    let sweep = Command::SweepInbox { key: inbox("default") };
    assert!(matches!(memory.run(&sweep), Ok(Reply::Swept(Swept::ConsumerRemoved))));
    assert!(memory.inboxes[&inbox("default")].consumers.is_empty());
    for limit in [0, 5] {
        let reply = memory.run(&offer("default", "c", first, limit));
        assert!(matches!(reply, Ok(Reply::Lapsed)), "{reply:?}");
    }
    let before = memory.inboxes[&inbox("default")].clone();
    assert_eq!((before.pending, before.returned, before.in_flight), (1, 1, 0));
    let again = memory.run(&reopen("default", "c", (first, 1), 5));
    let Ok(Reply::Opened { consumer: again, inbox: row, .. }) = again else { panic!("{again:?}") };
    assert!(again.epoch > first && again.window == 5, "{again:?}");
    assert_eq!(row.consumers, std::slice::from_ref(&again));
    assert_eq!(offered(&mut memory, "c", again.epoch, 5), [(1, 2)], "what it held comes again");
    // The other consumer's stream lapsed too, and a newer one of it took its place.
    let newer = opened(&mut memory, "other", 5);
    for command in [offer("default", "other", other, 0), reopen("default", "other", (other, 1), 5)]
    {
        let refusal = memory.run(&command).expect_err("a newer one is open");
        assert_eq!(refusal, Refusal::StreamSuperseded);
    }
    let epochs: Vec<i64> =
        memory.inboxes[&inbox("default")].consumers.iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, [again.epoch, newer], "nothing changed");
    let refusal = memory.run(&offer("absent", "c", 1, 0)).expect_err("no such inbox");
    assert_eq!(refusal, Refusal::NoSuchInbox);
}
