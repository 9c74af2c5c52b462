//! What callers name by hand, where an inbox was deleted or purged meanwhile, or has limits of its
//! own.

use receiptd::domain::{
    attempts::AttemptOutcome,
    command::{AckOutcome, Command, Reply, Swept},
    delivery::DeliveryState,
    ids::Span,
    inbox::{Force, InboxChange, LimitChange},
    policy::Policy,
    redrive::RedriveOutcome,
    refusal::Refusal,
};

use crate::{
    acked,
    commands::{
        ack_newest, append, attempts, defer, delete, delivery, extend, inbox, newest, numbered,
        offer_again, pull, redrive, reopen, sweep_inbox,
    },
    memory::Memory,
    offered, opened, refused, submitted,
};

fn with_submits(policy: Policy, count: usize) -> Memory {
    let mut memory = Memory::new(policy);
    let now = memory.now;
    for number in 1..=count {
        submitted(&mut memory, append(&format!("o{number}"), now));
    }
    memory
}

fn swept(memory: &mut Memory) -> Swept {
    match memory.run(&sweep_inbox("default")) {
        Ok(Reply::Swept(swept)) => swept,
        other => panic!("not swept: {other:?}"),
    }
}

fn attempted(memory: &mut Memory, command: &Command) -> Vec<AttemptOutcome> {
    match memory.run(command) {
        Ok(Reply::Attempted(done)) => done.into_iter().map(|each| each.outcome).collect(),
        other => panic!("not attempted: {other:?}"),
    }
}

fn redriven(memory: &mut Memory, sequences: &[i64]) -> Vec<RedriveOutcome> {
    match memory.run(&redrive(numbered("default", sequences))) {
        Ok(Reply::Redriven(done)) => done.into_iter().map(|each| each.outcome).collect(),
        other => panic!("not redriven: {other:?}"),
    }
}

fn pulled(memory: &mut Memory, limit: i64) -> Vec<i64> {
    match memory.run(&pull("default", "p", limit)) {
        Ok(Reply::Offered { deliveries, .. }) => {
            deliveries.into_iter().map(|row| row.key.sequence).collect()
        }
        other => panic!("not pulled: {other:?}"),
    }
}

fn expire(memory: &mut Memory, sequence: i64) {
    let key = delivery("default", sequence);
    let operation_id = memory.deliveries[&key].operation_id.clone();
    memory.run(&Command::SweepDelivery { key, operation_id }).expect("swept");
}

#[test]
fn what_is_no_longer_kept_is_retired() {
    let policy = Policy {
        ack_window: Span::hours(1),
        record_retention: Span::hours(100),
        ..Policy::default()
    };
    let mut memory = with_submits(policy, 3);
    acked(&mut memory, "default", &[1]);
    memory.advance(Span::hours(2));
    expire(&mut memory, 2);
    expire(&mut memory, 3);
    assert_eq!(redriven(&mut memory, &[3]), [RedriveOutcome::Redriven], "open, it stays");
    memory.advance(Span::hours(100));
    assert_eq!(swept(&mut memory), Swept::Purged(2));
    let named = attempts("default", None, &[(1, 1), (2, 0)]);
    let retired = [AttemptOutcome::Retired; 2];
    assert_eq!(attempted(&mut memory, &extend(named.clone(), None)), retired);
    assert_eq!(attempted(&mut memory, &defer(named, Span(0))), retired);
    assert_eq!(
        redriven(&mut memory, &[1, 2, 3, 4]),
        [
            RedriveOutcome::Retired,
            RedriveOutcome::Retired,
            RedriveOutcome::NotEnded,
            RedriveOutcome::NoSuchDelivery,
        ]
    );
    match memory.run(&ack_newest("o2")) {
        Ok(Reply::Acked(done)) => {
            assert_eq!(done[0].outcome, AckOutcome::Retired);
            assert_eq!(done[0].key, Some(delivery("default", 2)));
        }
        other => panic!("not acked: {other:?}"),
    }
}

#[test]
fn what_a_deleted_inbox_left_comes_back_to_nobody() {
    let mut memory = with_submits(Policy::default(), 2);
    assert_eq!(pulled(&mut memory, 1), [1]);
    // Before the sweep has ended it, and in the next generation as well.
    memory.follow_ups_kept = Some(Vec::new());
    memory.run(&delete("default", Force::WithContent, None)).expect("deleted");
    memory.follow_ups_kept = None;
    let named = attempts("default", Some("p"), &[(1, 1)]);
    let ended = [AttemptOutcome::NotInFlight];
    for _ in 0..2 {
        let before = memory.deliveries.clone();
        assert_eq!(attempted(&mut memory, &extend(named.clone(), None)), ended);
        assert_eq!(attempted(&mut memory, &defer(named.clone(), Span(0))), ended);
        assert_eq!(redriven(&mut memory, &[1]), [RedriveOutcome::NotEnded]);
        assert_eq!(before, memory.deliveries, "all that was left is as it was");
        assert!(pulled(&mut memory, 10).is_empty());
    }
    assert_eq!(memory.inboxes[&inbox("default")].generation, 2, "a pull is a use");
    assert_eq!(swept(&mut memory), Swept::Closed(2));
    assert_eq!(redriven(&mut memory, &[1, 2]), [RedriveOutcome::Retired; 2]);
    match memory.run(&redrive(vec![newest("o1")])) {
        Ok(Reply::Redriven(done)) => assert_eq!(done[0].outcome, RedriveOutcome::Retired),
        other => panic!("not redriven: {other:?}"),
    }
    assert_eq!(acked(&mut memory, "default", &[1]), [AckOutcome::AckedLate], "an ack still counts");
}

/// The count of what deleted generations left is planted: with nothing left, with too much and with
/// too little of it, while the inbox is deleted, and after it was used again.
#[test]
fn a_wrong_count_of_what_was_left_is_repaired_once() {
    for (counted, found, used_again) in
        [(3, 0, false), (3, 0, true), (5, 2, false), (1, 2, true), (-1, 2, false), (-1, 0, true)]
    {
        let mut memory = with_submits(Policy::default(), 2);
        if found == 0 {
            acked(&mut memory, "default", &[1, 2]);
        }
        memory.follow_ups_kept = Some(Vec::new());
        memory.run(&delete("default", Force::WithContent, None)).expect("deleted");
        memory.follow_ups_kept = None;
        if used_again {
            let now = memory.now;
            submitted(&mut memory, append("o3", now));
        }
        memory.inboxes.get_mut(&inbox("default")).expect("a row").closing = counted;
        assert_eq!(swept(&mut memory), Swept::Recounted { counted, found });
        // What there was to end has followed; nothing is left to repair, or to look for.
        assert_eq!(memory.inboxes[&inbox("default")].closing, 0);
        for number in 1..=found {
            let state = memory.deliveries[&delivery("default", number)].state;
            assert_eq!(state, DeliveryState::Expired, "{counted}: {number}");
        }
        assert_eq!(swept(&mut memory), Swept::Nothing);
        let pending = memory.inboxes[&inbox("default")].pending;
        assert_eq!(pending, i64::from(used_again), "the next generation is untouched");
    }
}

#[test]
fn a_stream_opens_again_in_its_own_generation_alone() {
    let mut memory = with_submits(Policy::default(), 2);
    let epoch = opened(&mut memory, "c", 5);
    assert_eq!(offered(&mut memory, "c", epoch, 5).len(), 2);
    memory.run(&delete("default", Force::WithContent, None)).expect("deleted");
    let again = reopen("default", "c", (epoch, 1), 5);
    assert_eq!(refused(&mut memory, &again), Refusal::NoSuchInbox);
    assert!(memory.inboxes[&inbox("default")].deleted, "a refused one begins nothing");
    let now = memory.now;
    submitted(&mut memory, append("o3", now));
    assert_eq!(refused(&mut memory, &again), Refusal::InboxRecreated);
    let lapsed = memory.run(&offer_again("default", "c", epoch, 5, &[1, 2, 3]));
    assert!(matches!(lapsed, Ok(Reply::Lapsed)), "{lapsed:?}");
    let next = opened(&mut memory, "c", 5);
    assert!(next > epoch, "epochs go on");
    assert_eq!(refused(&mut memory, &again), Refusal::InboxRecreated, "whoever is newer");
    let other = reopen("nowhere", "c", (1, 1), 5);
    assert_eq!(refused(&mut memory, &other), Refusal::NoSuchInbox);
    let state = memory.deliveries[&delivery("default", 3)].state;
    assert_eq!(state, DeliveryState::Pending);
}

#[test]
fn pulls_and_redrives_ask_the_inbox_for_its_limits() {
    let policy = Policy {
        ack_window: Span::hours(1),
        inbox_slots: 5,
        in_flight_max: 2,
        ..Policy::default()
    };
    let mut memory = with_submits(policy, 5);
    let limits = |slots, in_flight_limit| Command::UpdateInbox {
        inbox: inbox("default"),
        change: InboxChange {
            slots: LimitChange::To(slots),
            in_flight_limit: LimitChange::To(in_flight_limit),
        },
    };
    memory.run(&limits(5, 3)).expect("updated");
    assert_eq!(pulled(&mut memory, 100), [1, 2, 3]);
    memory.run(&limits(4, 3)).expect("updated");
    memory.advance(Span::hours(2));
    (1..=5).for_each(|sequence| expire(&mut memory, sequence));
    let outcomes = redriven(&mut memory, &[1, 2, 3, 4, 5]);
    assert_eq!(outcomes[..4], [RedriveOutcome::Redriven; 4]);
    assert_eq!(outcomes[4], RedriveOutcome::InboxFull);
}

#[test]
fn an_inbox_that_is_pulled_in_vain_is_in_use() {
    let idle = Span::days(30);
    let policy =
        Policy { record_retention: Span::days(1), inbox_idle_retention: idle, ..Policy::default() };
    let mut memory = with_submits(policy, 1);
    acked(&mut memory, "default", &[1]);
    let active = |memory: &Memory| memory.inboxes[&inbox("default")].active_time;
    let first = active(&memory);
    memory.advance(Span::days(14));
    assert!(pulled(&mut memory, 5).is_empty());
    assert_eq!(active(&memory), first, "most looks write nothing");
    memory.advance(Span::days(6));
    assert!(pulled(&mut memory, 5).is_empty());
    assert_eq!(active(&memory), memory.now);
    memory.advance(Span::days(11));
    swept(&mut memory);
    swept(&mut memory);
    assert!(!memory.inboxes[&inbox("default")].deleted);
    memory.advance(idle);
    assert_eq!(swept(&mut memory), Swept::InboxRetired);
}
