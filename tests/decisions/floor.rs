//! An evidence floor raised by hand: it only rises, and is told with its reason.

use receiptd::domain::{
    audit::{AuditChain, AuditKind},
    command::{FloorRaised, Intention, Origin, Reply},
    ids::{Span, Timestamp},
    policy::Policy,
    record::unpack_events,
    standing::Standing,
};

use crate::{
    commands::{account, append, operation, probe, raise_floor},
    memory::Memory,
    refused, submitted,
};

fn raised(memory: &mut Memory, floor: Timestamp, intention: Intention) -> FloorRaised {
    match memory.run(&raise_floor(floor, intention)) {
        Ok(Reply::FloorRaised(raised)) => raised,
        other => panic!("not raised: {other:?}"),
    }
}

fn standing(memory: &mut Memory, id: &str, mint: Timestamp) -> Standing {
    match memory.run(&probe(id, mint)) {
        Ok(Reply::Probed(answer)) => answer.standing,
        other => panic!("not probed: {other:?}"),
    }
}

/// The account's chain: who, and what is told.
fn trail(memory: &Memory) -> Vec<(String, Vec<String>)> {
    let chain = AuditChain::Account(account());
    let rows = memory.audit.iter().filter(|row| row.chain == chain);
    let told = rows.map(|row| {
        let events = unpack_events(&row.events).expect("packed by this release");
        assert!(events.iter().all(|event| event.kind == AuditKind::EvidenceFloorRaised));
        (row.subject.clone(), events.into_iter().map(|event| event.text).collect())
    });
    told.collect()
}

#[test]
fn it_rises_and_never_falls() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for (floor, before, after) in [
        (now - Span::hours(2), Timestamp::BEGINNING, now - Span::hours(2)),
        (now - Span::hours(3), now - Span::hours(2), now - Span::hours(2)),
        (now - Span::hours(2), now - Span::hours(2), now - Span::hours(2)),
        (now - Span::hours(1), now - Span::hours(2), now - Span::hours(1)),
        (now + Span::minutes(5), now - Span::hours(1), now + Span::minutes(5)),
    ] {
        let told = raised(&mut memory, floor, Intention::ValidateOnly);
        assert_eq!(told, FloorRaised { before, after }, "a trial says the same");
        assert_eq!(raised(&mut memory, floor, Intention::Execute), told);
        assert_eq!(memory.accounts[&account()].evidence_floor, after);
    }
    let trail = trail(&memory);
    assert_eq!(trail.len(), 3, "what changed nothing is not told");
    assert_eq!(
        trail[1],
        (
            "operator".to_owned(),
            vec![
                "evidence floor from 2027-01-15T06:00:00.000Z to 2027-01-15T07:00:00.000Z"
                    .to_owned(),
                "reason: records were lost".to_owned()
            ]
        )
    );
    assert!(trail[0].1[0].starts_with("evidence floor from none to "), "{:?}", trail[0]);
}

#[test]
fn it_is_not_raised_beyond_what_could_be_accepted() {
    let mut memory = Memory::new(Policy::default());
    let far = memory.now + Span::minutes(5) + Span(1);
    let refusal = refused(&mut memory, &raise_floor(far, Intention::Execute));
    assert_eq!(refusal.reason(), "INVALID_FIELD");
    assert_eq!(
        refusal.text(),
        "floor must be at most max_clock_skew (5m) ahead of the store's clock, which says \
         2027-01-15T08:00:00.000Z"
    );
    assert!(memory.accounts.is_empty(), "not even the account");
}

#[test]
fn what_has_a_record_answers_as_before_and_nothing_else_of_that_time_executes() {
    let mut memory = Memory::new(Policy::default());
    let start = memory.now;
    submitted(&mut memory, append("used", start));
    raised(&mut memory, start, Intention::Execute);
    assert_eq!(standing(&mut memory, "used", start), Standing::Recorded);
    let again = submitted(&mut memory, append("used", start));
    assert_eq!(again.origin, Origin::Replayed);
    assert_eq!(standing(&mut memory, "lost", start), Standing::EvidenceExpired);
    let refusal = refused(&mut memory, &append("lost", start).command());
    assert_eq!(refusal.reason(), "EVIDENCE_EXPIRED");
    assert!(!memory.operations.contains_key(&operation("lost")));
    // What is minted after it is as it was.
    let later = start + Span::millis(1);
    assert_eq!(standing(&mut memory, "later", later), Standing::NotAcceptedYet);
    assert_eq!(submitted(&mut memory, append("later", later)).origin, Origin::Executed);
}
