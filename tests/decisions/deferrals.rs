//! How long an attempt may be put off.

use receiptd::domain::{
    attempts::AttemptOutcome, delivery::DeliveryState, ids::Span, policy::Policy,
};

use crate::{
    by_hand::{attempted, named, policy, queued, row},
    commands::{append, defer, extend},
    memory::Memory,
    offered, opened, submitted,
};

#[test]
fn a_deferral_leaves_an_ack_deadline_of_the_window_or_changes_nothing() {
    use AttemptOutcome::{Done, WindowEnds};
    // The window is 90 s, an ack deadline 30 s.
    let rows = [
        (0, Span::seconds(60), Done),
        (0, Span(Span::seconds(60).0 + 1), WindowEnds),
        (0, Span::seconds(90), WindowEnds),
        (25, Span::seconds(35), Done),
        (25, Span::seconds(36), WindowEnds),
        (70, Span(1), WindowEnds),
        (70, Span(0), Done),
    ];
    for (at, delay, expected) in rows {
        let mut memory = queued(1);
        let epoch = opened(&mut memory, "c", 5);
        offered(&mut memory, "c", epoch, 1);
        memory.run(&extend(named(None, &[(1, 1)]), Some(Span::seconds(90)))).expect("extended");
        memory.advance(Span::seconds(at));
        let before = memory.clone();
        let outcome = attempted(&mut memory, &defer(named(Some("c"), &[(1, 1)]), delay));
        assert_eq!(outcome, [expected], "after {at} s for {delay:?}");
        if expected == WindowEnds {
            assert_eq!(memory.deliveries, before.deliveries, "it is still in flight");
            assert_eq!((memory.audit, memory.deferrals), (before.audit, before.deferrals));
        } else {
            assert_eq!(row(&memory, 1).available_time, Some(memory.now + delay));
        }
    }
    // A last attempt has none after it that would need time.
    let mut memory = Memory::new(Policy { retry_budget: 1, ..policy() });
    let now = memory.now;
    submitted(&mut memory, append("o1", now));
    let epoch = opened(&mut memory, "c", 5);
    offered(&mut memory, "c", epoch, 1);
    let last = attempted(&mut memory, &defer(named(None, &[(1, 1)]), Span::seconds(90)));
    assert_eq!((last, row(&memory, 1).state), (vec![Done], DeliveryState::Dead));
}
