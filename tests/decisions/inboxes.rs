//! The life of an inbox: its own limits, its end and its next generation, and what is purged.

use receiptd::domain::{
    audit::AuditKind,
    command::{AckOutcome, Command, Reply, Swept},
    delivery::{Delivery, DeliveryState},
    ids::Span,
    inbox::{Force, Inbox, InboxChange, LimitChange},
    operation::OperationState,
    policy::Policy,
    record::unpack_events,
    refusal::Refusal,
    world::{
        Attached,
        needs::{CLOSED_MAX, PURGED_MAX},
    },
};

use crate::{
    acked,
    commands::{
        append, cancel, close, consumer, delete, delivery, inbox, offer, open, operation,
        sweep_inbox,
    },
    memory::Memory,
    offered, opened, refused, state, submitted,
};

fn row(memory: &Memory) -> Inbox {
    memory.inboxes[&inbox("default")].clone()
}

fn news(memory: &Memory, sequence: i64) -> Delivery {
    memory.deliveries[&delivery("default", sequence)].clone()
}

fn with_submits(policy: Policy, count: usize) -> Memory {
    let mut memory = Memory::new(policy);
    let now = memory.now;
    for number in 1..=count {
        submitted(&mut memory, append(&format!("o{number}"), now));
    }
    memory
}

fn deleted(memory: &mut Memory, force: Force) -> Inbox {
    match memory.run(&delete("default", force, None)) {
        Ok(Reply::InboxDeleted(inbox)) => *inbox,
        other => panic!("not deleted: {other:?}"),
    }
}

fn swept(memory: &mut Memory) -> Swept {
    match memory.run(&sweep_inbox("default")) {
        Ok(Reply::Swept(swept)) => swept,
        other => panic!("not swept: {other:?}"),
    }
}

fn limits(slots: LimitChange, in_flight_limit: LimitChange) -> Command {
    let change = InboxChange { slots, in_flight_limit };
    Command::UpdateInbox { inbox: inbox("default"), change }
}

#[test]
fn an_inbox_goes_only_when_it_is_empty_or_by_force() {
    let mut memory = with_submits(Policy::default(), 2);
    let now = memory.now;
    submitted(&mut memory, append("holder", now).on("l").until_acked());
    submitted(&mut memory, append("waits", now).on("l"));
    opened(&mut memory, "c", 1);
    offered(&mut memory, "c", 1, 1);
    let full = Refusal::InboxNotEmpty { reserved: 1, pending: 2, in_flight: 1 };
    assert_eq!(refused(&mut memory, &delete("default", Force::OnlyEmpty, None)), full);
    let rows = [
        (delete("nowhere", Force::WithContent, None), Refusal::NoSuchInbox),
        (delete("default", Force::WithContent, Some(2)), Refusal::InboxRecreated),
    ];
    for (command, refusal) in rows {
        assert_eq!(refused(&mut memory, &command), refusal, "{command:?}");
    }
    memory.run(&cancel("waits", now)).expect("cancelled");
    acked(&mut memory, "default", &[1, 2, 3, 4]);
    let before = row(&memory);
    assert_eq!(deleted(&mut memory, Force::OnlyEmpty), before, "as it was");
    let marker = row(&memory);
    assert!(marker.deleted && marker.consumers.is_empty());
    assert_eq!((marker.generation, marker.next_sequence, marker.closing), (1, 5, 0));
    assert_eq!(memory.accounts[&inbox("default").account].inboxes, 0);
    for command in [
        delete("default", Force::WithContent, None),
        limits(LimitChange::To(1), LimitChange::Keep),
        offer("default", "c", 1, 1),
        offer("default", "c", 1, 0),
    ] {
        assert_eq!(refused(&mut memory, &command), Refusal::NoSuchInbox, "{command:?}");
    }
    memory.run(&close("default", "c", 1)).expect("closing what is gone is done");
    assert_eq!(
        acked(&mut memory, "default", &[1, 5]),
        [AckOutcome::AlreadyAcked, AckOutcome::NoSuchDelivery]
    );
}

#[test]
fn force_ends_what_is_open_and_frees_slots_and_locks() {
    let mut memory = with_submits(Policy::default(), 3);
    let now = memory.now;
    submitted(&mut memory, append("holder", now).on("l").until_acked());
    submitted(&mut memory, append("waits", now).on("l"));
    opened(&mut memory, "c", 2);
    assert_eq!(offered(&mut memory, "c", 1, 2), [(1, 1), (2, 1)]);
    let before = deleted(&mut memory, Force::WithContent);
    assert_eq!((before.reserved, before.pending, before.in_flight), (1, 2, 2));
    for sequence in 1..=4 {
        let ended = news(&memory, sequence);
        assert_eq!((ended.state, ended.end_time), (DeliveryState::Expired, Some(now)));
        let trail =
            memory.audit.iter().rfind(|row| row.operation() == Some(&ended.operation_key()));
        let trail = trail.expect("a row");
        let events = unpack_events(&trail.events).expect("readable");
        let event = events.iter().find(|event| event.kind == AuditKind::Expired).expect("its end");
        assert_eq!(event.text, "its inbox was deleted");
        assert_eq!((event.sequence, trail.subject.as_str()), (sequence, "receiptd"));
    }
    // The lock went on to the waiter, whose result made the inbox again at that moment.
    assert!(memory.locks.is_empty());
    assert_eq!(state(&memory, "waits"), OperationState::Applied);
    let again = row(&memory);
    assert_eq!((again.deleted, again.generation, again.first_sequence), (false, 2, 5));
    assert_eq!((again.reserved, again.pending, again.in_flight, again.closing), (0, 1, 0, 0));
    assert_eq!((again.expired_total, again.next_sequence), (0, 6));
    assert_eq!(news(&memory, 5).operation_id, operation("waits").id);
    assert_eq!(acked(&mut memory, "default", &[1, 5]), [AckOutcome::AckedLate, AckOutcome::Acked]);
}

#[test]
fn a_large_inbox_ends_in_bounded_steps_and_is_usable_meanwhile() {
    let count = usize::try_from(CLOSED_MAX).expect("small") + 20;
    let mut memory = with_submits(Policy::default(), count);
    let now = memory.now;
    opened(&mut memory, "c", 10);
    offered(&mut memory, "c", 1, 10);
    // Between the step that marks and the one that ends the rest, somebody uses the name again.
    memory.follow_ups_kept = Some(Vec::new());
    deleted(&mut memory, Force::WithContent);
    assert_eq!(row(&memory).closing, CLOSED_MAX + 20);
    assert_eq!(swept(&mut memory), Swept::Closed(CLOSED_MAX));
    assert_eq!(row(&memory).closing, 20);
    submitted(&mut memory, append("new", now));
    assert_eq!(opened(&mut memory, "c", 10), 3, "the deletion took an epoch");
    let number = i64::try_from(count).expect("small") + 1;
    assert_eq!(offered(&mut memory, "c", 3, 10), [(number, 1)], "nothing of the old generation");
    let slots = row(&memory);
    assert_eq!((slots.slots_used(), slots.closing, slots.generation), (1, 20, 2));
    // One of those that are left is acked, the others end.
    assert_eq!(acked(&mut memory, "default", &[number - 1]), [AckOutcome::Acked]);
    memory.follow_ups_kept = None;
    assert_eq!(swept(&mut memory), Swept::Closed(19));
    let after = row(&memory);
    assert_eq!((after.closing, after.acked_total, after.expired_total), (0, 0, 0));
    let open = memory.deliveries.values().filter(|row| row.state.is_open()).count();
    assert_eq!(open, 1);
}

#[test]
fn what_a_deleted_inbox_left_in_flight_is_not_returned_to_anybody() {
    let policy = Policy { in_flight_max: 1_000, ..Policy::default() };
    let mut memory = with_submits(policy, usize::try_from(CLOSED_MAX).expect("small") + 2);
    opened(&mut memory, "c", 1_000);
    offered(&mut memory, "c", 1, 1_000);
    memory.follow_ups_kept = Some(Vec::new());
    deleted(&mut memory, Force::WithContent);
    assert_eq!(swept(&mut memory), Swept::Closed(CLOSED_MAX));
    memory.follow_ups_kept = None;
    assert_eq!(row(&memory).closing, 2);
    memory.advance(Span::seconds(30));
    let key = delivery("default", CLOSED_MAX + 1);
    let operation_id = news(&memory, CLOSED_MAX + 1).operation_id;
    let missed = memory.run(&Command::SweepDelivery { key, operation_id });
    assert!(matches!(missed, Ok(Reply::Swept(Swept::Expired))), "{missed:?}");
    let epoch = opened(&mut memory, "c", 1_000);
    assert_eq!(offered(&mut memory, "c", epoch, 1_000), [], "no takeover");
    assert_eq!((row(&memory).closing, row(&memory).pending, row(&memory).in_flight), (1, 0, 0));
    assert_eq!(swept(&mut memory), Swept::Closed(1));
    assert_eq!(news(&memory, CLOSED_MAX + 2).state, DeliveryState::Expired);
    assert_eq!((row(&memory).closing, row(&memory).pending), (0, 0));
}

#[test]
fn a_result_of_unfinished_work_makes_the_inbox_again_beyond_the_quota() {
    let policy = Policy { inboxes_max: 1, ..Policy::default() };
    let mut memory = Memory::new(policy);
    let now = memory.now;
    submitted(&mut memory, append("holder", now).until_acked());
    submitted(&mut memory, append("waits", now).until_acked());
    acked(&mut memory, "default", &[1]);
    submitted(&mut memory, append("third", now));
    assert_eq!(row(&memory).reserved, 1);
    deleted(&mut memory, Force::WithContent);
    // The end of 2 started the third at once; its result is in the next generation.
    assert_eq!((row(&memory).generation, row(&memory).pending), (2, 1));
    acked(&mut memory, "default", &[3]);
    deleted(&mut memory, Force::OnlyEmpty);
    submitted(&mut memory, append("elsewhere", now).into_inbox("other"));
    let quota = Refusal::AccountQuota { what: "inboxes", limit: 1 };
    assert_eq!(refused(&mut memory, &append("n", now).command()), quota);
    assert_eq!(refused(&mut memory, &open("default", "c", 1)), quota, "a marker is no way around");
}

#[test]
fn numbers_go_on_over_generations_and_limits_do_not() {
    let mut memory = with_submits(Policy::default(), 2);
    memory.run(&limits(LimitChange::To(7), LimitChange::To(3))).expect("updated");
    let created = row(&memory).create_time;
    for generation in 2..5 {
        memory.advance(Span::seconds(1));
        deleted(&mut memory, Force::WithContent);
        let now = memory.now;
        submitted(&mut memory, append(&format!("g{generation}"), now));
        let inbox = row(&memory);
        assert_eq!((inbox.generation, inbox.last_sequence()), (generation, generation + 1));
        assert_eq!(inbox.first_sequence, inbox.last_sequence());
        assert_eq!((inbox.slots_limit, inbox.in_flight_limit), (None, None));
        assert!(inbox.create_time > created);
    }
}

#[test]
fn another_limit_in_flight_counts_for_open_streams() {
    let mut memory = with_submits(Policy { in_flight_max: 2, ..Policy::default() }, 9);
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 100).len(), 2);
    for (limit, acks, more, why) in [
        (4, &[][..], 2, "raised"),
        (100, &[], 1, "the window bounds it again"),
        (3, &[1], 0, "lowered below what is used"),
        (3, &[2, 3], 1, "until it is met"),
    ] {
        memory.run(&limits(LimitChange::Keep, LimitChange::To(limit))).expect("updated");
        acked(&mut memory, "default", acks);
        assert_eq!(offered(&mut memory, "c", epoch, 100).len(), more, "{limit}: {why}");
    }
    // What a submit hands over keeps to the limit in force too.
    acked(&mut memory, "default", &[4, 5, 6, 7, 8, 9]);
    let attached = Attached { consumer: consumer("c"), epoch, room: 10 };
    memory.attached.insert(inbox("default"), attached);
    memory.run(&limits(LimitChange::Keep, LimitChange::To(1))).expect("updated");
    for id in ["n1", "n2"] {
        let now = memory.now;
        submitted(&mut memory, append(id, now));
        assert_eq!(memory.inboxes[&inbox("default")].in_flight, 1);
    }
}

#[test]
fn an_inbox_has_limits_of_its_own() {
    let policy = Policy { inbox_slots: 2, in_flight_max: 2, ..Policy::default() };
    let mut memory = with_submits(policy, 2);
    let now = memory.now;
    let full = |limit, in_use| Refusal::InboxFull { limit, in_use, earliest_release: None };
    assert_eq!(refused(&mut memory, &append("n", now).command()), full(2, 2));
    memory.run(&limits(LimitChange::To(4), LimitChange::To(3))).expect("updated");
    submitted(&mut memory, append("o3", now));
    submitted(&mut memory, append("o4", now));
    assert_eq!(opened(&mut memory, "c", 100), 1);
    assert_eq!(row(&memory).consumers[0].window, 100, "as asked: the limit may change");
    assert_eq!(row(&memory).window_of(&row(&memory).consumers[0], &memory.policy), 3);
    assert_eq!(offered(&mut memory, "c", 1, 100).len(), 3);
    // Lowered below what is used: refused until it is met again.
    memory.run(&limits(LimitChange::To(1), LimitChange::Default)).expect("updated");
    assert_eq!(refused(&mut memory, &append("n", now).command()), full(1, 4));
    acked(&mut memory, "default", &[1]);
    assert!(offered(&mut memory, "c", 1, 100).is_empty(), "two are in flight, and no more may be");
    acked(&mut memory, "default", &[2, 3, 4]);
    submitted(&mut memory, append("o5", now));
    memory.run(&limits(LimitChange::Default, LimitChange::Keep)).expect("updated");
    assert_eq!((row(&memory).slots_limit, row(&memory).in_flight_limit), (None, None));
    let other = Command::UpdateInbox {
        inbox: inbox("nowhere"),
        change: InboxChange { slots: LimitChange::To(1), in_flight_limit: LimitChange::Keep },
    };
    assert_eq!(refused(&mut memory, &other), Refusal::NoSuchInbox, "an update creates nothing");
}

#[test]
fn what_ended_is_purged_from_the_lowest_number_on_after_its_retention() {
    let policy = Policy {
        record_retention: Span::hours(100),
        ack_window: Span::hours(200),
        ..Policy::default()
    };
    let mut memory = with_submits(policy, 5);
    acked(&mut memory, "default", &[1]);
    memory.advance(Span::hours(50));
    acked(&mut memory, "default", &[2, 4]);
    assert_eq!(swept(&mut memory), Swept::Nothing, "not due");
    memory.advance(Span::hours(50));
    assert_eq!(swept(&mut memory), Swept::Purged(1));
    assert_eq!((row(&memory).kept_from, row(&memory).acked_total), (2, 3));
    assert_eq!(row(&memory).due_time, Some(memory.now + Span::hours(50)), "when 2 is over");
    memory.advance(Span::hours(50));
    assert_eq!(swept(&mut memory), Swept::Purged(1));
    assert_eq!(row(&memory).kept_from, 3, "3 is open, and 4 behind it stays");
    assert_eq!(
        acked(&mut memory, "default", &[1, 2, 3, 4, 9]),
        [
            AckOutcome::Retired,
            AckOutcome::Retired,
            AckOutcome::Acked,
            AckOutcome::AlreadyAcked,
            AckOutcome::NoSuchDelivery,
        ]
    );
    assert!(memory.operations.contains_key(&operation("o1")), "the operation stays");
}

#[test]
fn a_long_purge_goes_on_in_following_steps() {
    let step = usize::try_from(PURGED_MAX).expect("small");
    let policy = Policy { ack_window: Span::hours(1), inbox_slots: 2_000, ..Policy::default() };
    let mut memory = with_submits(policy, 2 * step + 3);
    let all: Vec<i64> = (1..).take(2 * step + 3).collect();
    acked(&mut memory, "default", &all);
    memory.advance(Span::days(30));
    assert_eq!(swept(&mut memory), Swept::Purged(PURGED_MAX));
    assert!(memory.deliveries.is_empty(), "the rest followed");
    assert!(row(&memory).keeps_nothing());
}

/// A use of the inbox.
type Use = fn(&mut Memory);

#[test]
fn an_idle_inbox_becomes_a_marker_and_one_in_use_never_does() {
    let policy = Policy { inbox_idle_retention: Span::days(40), ..Policy::default() };
    let used: [(&str, Use); 3] = [
        ("a reader", |memory| {
            opened(memory, "c", 1);
        }),
        ("an update", |memory| {
            memory.run(&limits(LimitChange::To(5), LimitChange::Keep)).expect("updated");
        }),
        ("a submit", |memory| {
            let now = memory.now;
            submitted(memory, append("late", now));
        }),
    ];
    let mut idle = with_submits(policy, 1);
    acked(&mut idle, "default", &[1]);
    idle.advance(Span::days(30));
    assert_eq!(swept(&mut idle), Swept::Purged(1));
    idle.advance(Span::days(9));
    for (name, use_it) in used {
        let mut memory = idle.clone();
        use_it(&mut memory);
        memory.advance(Span::days(1));
        assert!(!matches!(swept(&mut memory), Swept::InboxRetired), "{name}");
        assert!(!row(&memory).deleted, "{name}");
    }
    assert_eq!(swept(&mut idle), Swept::Nothing, "a day is missing");
    idle.advance(Span::days(1));
    assert_eq!(swept(&mut idle), Swept::InboxRetired);
    let marker = row(&idle);
    assert!(marker.deleted && marker.due_time.is_none(), "nothing is looked at any more");
    assert_eq!(idle.accounts[&inbox("default").account].inboxes, 0);
    // The first use that lost the race begins the next generation.
    let now = idle.now;
    submitted(&mut idle, append("later", now));
    assert_eq!((row(&idle).generation, row(&idle).last_sequence()), (2, 2));
}

#[test]
fn rows_of_a_deleted_inbox_are_purged_too() {
    let mut memory = with_submits(Policy::default(), 3);
    deleted(&mut memory, Force::WithContent);
    assert_eq!(swept(&mut memory), Swept::Nothing);
    let look = row(&memory).due_time.expect("rows are kept");
    memory.advance(look - memory.now);
    assert_eq!(swept(&mut memory), Swept::Purged(3));
    assert_eq!(row(&memory).due_time, None);
    assert_eq!(acked(&mut memory, "default", &[1]), [AckOutcome::Retired]);
}
