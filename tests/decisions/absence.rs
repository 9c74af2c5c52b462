//! Ids without a record: what a probe proves, how an account closes, and what a seal leaves.

use receiptd::domain::{
    audit::AuditKind,
    command::{CancelOutcome, Command, Intention, OnLocked, Origin, Reply, Swept},
    ids::{Span, Timestamp},
    operation::{Operation, OperationState},
    policy::Policy,
    record::unpack_events,
    refusal::{RecoveryAction, Refusal},
    standing::{Admission, Standing},
};

use crate::{
    commands::{Instruction, account, append, cancel, operation, probe, seal},
    memory::Memory,
    refused, submitted,
};

fn probed(memory: &mut Memory, id: &str, mint: Timestamp) -> Standing {
    match memory.run(&probe(id, mint)) {
        Ok(Reply::Probed(answer)) => answer.standing,
        other => panic!("not probed: {other:?}"),
    }
}

fn swept(memory: &mut Memory) -> Swept {
    match memory.run(&Command::SweepAccount { account: account() }) {
        Ok(Reply::Swept(swept)) => swept,
        other => panic!("not swept: {other:?}"),
    }
}

fn sealed(memory: &mut Memory, id: &str, mint: Timestamp) -> (CancelOutcome, Operation) {
    match memory.run(&seal(id, mint)) {
        Ok(Reply::Cancelled { outcome, operation, delivery: None }) => (outcome, *operation),
        other => panic!("not sealed: {other:?}"),
    }
}

#[test]
fn a_probe_proves_what_is_closed_and_nothing_more() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    submitted(&mut memory, append("used", start));
    for (age, standing) in [
        (Span(0), Standing::NotAcceptedYet),
        (Span::hours(24), Standing::NotAcceptedYet),
        (Span::hours(24) + Span::seconds(59), Standing::NotAcceptedYet),
        (Span::hours(24) + Span::minutes(1), Standing::NeverAccepted),
        (Span::days(900), Standing::NeverAccepted),
    ] {
        assert_eq!(probed(&mut memory, "lost", start - age), standing, "{age:?}");
        assert_eq!(probed(&mut memory, "used", start - age), Standing::Recorded);
    }
    assert_eq!(memory.operations.len(), 1, "a probe leaves nothing");
}

#[test]
fn an_account_closes_by_a_step_in_the_sweep_and_never_opens() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    submitted(&mut memory, append("used", start));
    assert_eq!(swept(&mut memory), Swept::Nothing);
    memory.advance(Span::hours(24) + Span::minutes(2));
    assert_eq!(probed(&mut memory, "lost", start), Standing::NotAcceptedYet, "nobody swept");
    let closed = memory.accounts[&account()].closed_before;
    assert_eq!(swept(&mut memory), Swept::AccountClosed);
    assert_eq!(probed(&mut memory, "lost", start), Standing::NeverAccepted);
    assert_eq!(memory.accounts[&account()].closed_before, start + Span::minutes(1));
    assert!(memory.accounts[&account()].closed_before > closed);
    // A second look within the step writes nothing.
    let row = memory.accounts[&account()].clone();
    memory.advance(Span::minutes(59));
    assert_eq!(swept(&mut memory), Swept::Nothing);
    assert_eq!(memory.accounts[&account()], row);

    // Neither a clock that steps back nor a wider window admits what was closed.
    memory.advance(Span::hours(-20));
    memory.policy.admission_window = Span::days(10);
    assert_eq!(swept(&mut memory), Swept::Nothing);
    assert_eq!(memory.accounts[&account()].closed_before, row.closed_before);
    let late = refused(&mut memory, &append("lost", start).command());
    let Refusal::AdmissionClosed { standing, .. } = late else { panic!("{late:?}") };
    assert_eq!((standing, late.recovery()), (Standing::NeverAccepted, RecoveryAction::NewIdSafe));
    assert_eq!(probed(&mut memory, "lost", start), Standing::NeverAccepted);
}

#[test]
fn a_probe_of_an_account_without_a_row_makes_what_it_says_hold() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    assert_eq!(probed(&mut memory, "lost", start), Standing::NotAcceptedYet);
    assert!(memory.accounts.is_empty(), "nothing is proven, so nothing is written");
    let old = start - Span::days(2);
    assert_eq!(probed(&mut memory, "lost", old), Standing::NeverAccepted);
    assert!(memory.accounts[&account()].closed_before > old);
    memory.policy.admission_window = Span::days(3);
    refused(&mut memory, &append("lost", old).command());
}

#[test]
fn a_look_up_and_a_submit_never_disagree() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    submitted(&mut memory, append("used", start));
    memory.accounts.get_mut(&account()).expect("used").evidence_floor = start - Span::days(3);
    let hours = [-1, 0, 23, 24, 25, 48, 71, 72, 73];
    for (number, hours) in hours.into_iter().enumerate() {
        let (id, mint) = (format!("id{number}"), start - Span::hours(hours));
        let Ok(Reply::Probed(answer)) = memory.run(&probe(&id, mint)) else { panic!("probed") };
        let submit = memory.run(&append(&id, mint).command());
        match (answer.submit, submit) {
            (Admission::Executes, Ok(_)) => {}
            (Admission::Refused(told), Err(refusal)) => assert_eq!(told, refusal),
            other => panic!("{hours} hours: {other:?}"),
        }
    }
}

#[test]
fn a_seal_is_a_record_without_intent_and_replays_for_every_submit() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    assert!(matches!(
        refused(&mut memory, &cancel("late", start)),
        Refusal::NoSuchOperation { .. }
    ));
    let (outcome, record) = sealed(&mut memory, "late", start);
    assert_eq!((outcome, record.state), (CancelOutcome::Cancelled, OperationState::Cancelled));
    assert!(record.is_sealed() && record.inbox.is_none() && record.end_time == Some(start));
    let variants: [fn(Instruction) -> Instruction; 5] = [
        |submit| submit,
        |submit| submit.on("elsewhere").into_inbox("another"),
        |submit| submit.until_acked().expecting(7),
        |submit| Instruction { on_locked: OnLocked::Fail, ..submit },
        |submit| Instruction { intention: Intention::ValidateOnly, ..submit },
    ];
    for variant in variants {
        let reply = submitted(&mut memory, variant(append("late", start)));
        assert_eq!((reply.origin, &reply.operation), (Origin::Replayed, &record));
        assert_eq!((reply.other_inbox, reply.delivery), (None, None));
    }
    let other_time = append("late", start + Span::seconds(1)).command();
    assert!(matches!(refused(&mut memory, &other_time), Refusal::IntentMismatch { .. }));
    assert_eq!(sealed(&mut memory, "late", start), (CancelOutcome::Cancelled, record.clone()));
    assert!(memory.documents.is_empty() && memory.inboxes.is_empty());
    assert!(memory.deliveries.is_empty());
    let events: Vec<_> = memory.audit.iter().map(|row| unpack_events(&row.events)).collect();
    let [Ok(events)] = events.as_slice() else { panic!("one row: {events:?}") };
    let kinds: Vec<AuditKind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [AuditKind::Sealed, AuditKind::Cancelled]);
    assert_eq!(probed(&mut memory, "late", start), Standing::Recorded);
    // And where there is a record, it is a cancel.
    submitted(&mut memory, append("done", start));
    assert_eq!(sealed_outcome(&mut memory, "done", start), CancelOutcome::TooLate);
    assert_eq!(memory.operations[&operation("done")].state, OperationState::Applied);
}

fn sealed_outcome(memory: &mut Memory, id: &str, mint: Timestamp) -> CancelOutcome {
    sealed(memory, id, mint).0
}

#[test]
fn a_seal_is_admitted_like_a_submit() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    submitted(&mut memory, append("used", start));
    memory.accounts.get_mut(&account()).expect("used").evidence_floor = start - Span::days(3);
    for (age, reason) in [
        (Span::hours(-1), "CLOCK_SKEW"),
        (Span::hours(24), "ADMISSION_CLOSED"),
        (Span::days(3), "EVIDENCE_EXPIRED"),
    ] {
        let seals = refused(&mut memory, &seal("late", start - age));
        let submits = refused(&mut memory, &append("late", start - age).command());
        assert_eq!((seals.reason(), &seals), (reason, &submits));
    }
}
