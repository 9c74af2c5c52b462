//! Policies of accounts: what is in force, what is refused, and what never moves.

use receiptd::domain::{
    audit::AuditChain,
    command::{Command, Intention, PolicyUpdated, Reply},
    delivery::{DeliveryKey, DeliveryState},
    ids::{Account, Span},
    policy::Policy,
    record::unpack_events,
    refusal::Refusal,
    settings::Setting,
};

use crate::{
    acked,
    commands::{
        account, ack, append, attempts, defer, delivery, extend, numbered, open, redrive, set,
        sweep_inbox, update_policy,
    },
    memory::Memory,
    offered, opened, refused, submitted,
};

fn updated(memory: &mut Memory, command: &Command) -> PolicyUpdated {
    match memory.run(command) {
        Ok(Reply::PolicyUpdated(updated)) => *updated,
        other => panic!("not updated: {other:?}"),
    }
}

fn set_span(memory: &mut Memory, setting: Setting, span: Span) -> Policy {
    updated(memory, &set(setting, span.0)).policy
}

/// A change of the account's policy that was told, each row with its texts.
fn trail(memory: &Memory) -> Vec<Vec<String>> {
    let chain = AuditChain::Account(account());
    let rows = memory.audit.iter().filter(|row| row.chain == chain);
    let texts = rows.map(|row| {
        assert_eq!(row.subject, "operator");
        let events = unpack_events(&row.events).expect("packed by this release");
        events.into_iter().map(|event| event.text).collect()
    });
    texts.collect()
}

#[test]
fn an_account_has_its_own_window_and_others_keep_the_default() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("before", now));
    let update = update_policy(
        [(Setting::AckWindow, Some(Span::seconds(5).0)), (Setting::AckDeadline, Some(2_000_000))]
            .into(),
        Intention::Execute,
    );
    let in_force = updated(&mut memory, &update).policy;
    assert_eq!((in_force.ack_window, in_force.ack_deadline), (Span::seconds(5), Span::seconds(2)));
    submitted(&mut memory, append("after", now));
    let mut other = append("other", now).command();
    let Command::Submit(submit) = &mut other else { panic!("a submit") };
    submit.key.account = Account::parse("other").expect("a name");
    memory.run(&other).expect("accepted");
    let expires = |key: &DeliveryKey| memory.deliveries[key].expire_time;
    let mine = |sequence| delivery("default", sequence);
    let theirs = memory.deliveries.keys().find(|key| key.inbox.account != account()).expect("one");
    assert_eq!(expires(&mine(1)), now + Span::minutes(15), "what was queued keeps its window");
    assert_eq!(expires(&mine(2)), now + Span::seconds(5));
    assert_eq!(expires(theirs), now + Span::minutes(15));
    assert_eq!(
        trail(&memory),
        [[
            "ack_window from the default (15m) to 5s",
            "ack_deadline from the default (30s) to 2s",
            "reason: as asked"
        ]]
    );
}

#[test]
fn contradictions_name_both_settings_and_leave_nothing() {
    let mut memory = Memory::new(Policy::default());
    for (setting, span, with, why) in [
        (Setting::AdmissionWindow, Span::days(30), "record_retention", "a retry could otherwise"),
        (Setting::RecordRetention, Span::hours(24), "record_retention", "a retry could otherwise"),
        (Setting::TombstoneRetention, Span::days(30), "record_retention", "a retry could"),
        (Setting::AckWindow, Span::days(30), "inbox_idle_retention", "can still be acked"),
        (Setting::AckWindow, Span::seconds(29), "ack_deadline", "no attempt lasts"),
        (Setting::BackoffFirst, Span::seconds(61), "backoff_limit", "no pause is longer"),
    ] {
        let before = memory.accounts.clone();
        let refusal = refused(&mut memory, &set(setting, span.0));
        assert_eq!(refusal.reason(), "POLICY_CONTRADICTION");
        let text = refusal.text();
        assert!(
            text.contains(setting.name()) && text.contains(with) && text.contains(why),
            "{text}"
        );
        assert_eq!(before, memory.accounts, "{setting:?}");
    }
    // Together they are good, one after the other they are not.
    let window = update_policy(
        [
            (Setting::AckWindow, Some(Span::seconds(3).0)),
            (Setting::AckDeadline, Some(Span::seconds(2).0)),
        ]
        .into(),
        Intention::Execute,
    );
    updated(&mut memory, &window);
    let back = update_policy([(Setting::AckDeadline, None)].into(), Intention::Execute);
    let refusal = refused(&mut memory, &back);
    assert_eq!(refusal.reason(), "POLICY_CONTRADICTION", "a default counts like a value");
}

#[test]
fn ranges_are_told_by_the_field() {
    let mut memory = Memory::new(Policy::default());
    for (setting, value, field) in [
        (Setting::AckWindow, 0, "policy.ack_window"),
        (Setting::LockLimit, Span::days(36_501).0, "policy.lock_limit"),
        (Setting::RetryBudget, 0, "policy.retry_budget"),
        (Setting::InFlightMax, 1_001, "policy.in_flight_limit"),
        (Setting::ArgumentsBytesMax, 4 * 1024 * 1024, "policy.arguments_limit_bytes"),
        (Setting::InboxesMax, 0, "policy.inboxes_limit"),
    ] {
        match refused(&mut memory, &set(setting, value)) {
            Refusal::Invalid(invalid) => assert_eq!(invalid.field, field),
            other => panic!("{setting:?}: {other:?}"),
        }
    }
    assert!(memory.accounts.is_empty());
}

#[test]
fn a_trial_and_a_change_of_nothing_write_nothing() {
    let mut memory = Memory::new(Policy::default());
    let change = || [(Setting::LockLimit, Some(Span::seconds(5).0))].into();
    let trial = updated(&mut memory, &update_policy(change(), Intention::ValidateOnly));
    assert_eq!(trial.policy.lock_limit, Span::seconds(5), "what would be in force");
    assert!(memory.accounts.is_empty() && memory.audit.is_empty());
    let meant = update_policy(change(), Intention::Execute);
    let first = updated(&mut memory, &meant);
    let again = updated(&mut memory, &meant);
    assert_eq!((first.row.audit.length, again.row.audit.length), (1, 1));
    let back = update_policy([(Setting::LockLimit, None)].into(), Intention::Execute);
    let after = updated(&mut memory, &back);
    assert_eq!(after.policy, Policy::default());
    assert!(after.row.own.is_empty());
    let told = ["lock_limit from 5s to the default (1h)", "reason: as asked"];
    assert_eq!(trail(&memory)[1], told);
}

#[test]
fn a_wider_window_opens_nothing_that_was_closed() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    submitted(&mut memory, append("used", now));
    let (closed, floor) = (now - Span::hours(25), now - Span::days(3));
    let row = memory.accounts.get_mut(&account()).expect("a row");
    (row.closed_before, row.evidence_floor) = (closed, floor);
    let minted = |age: Span| append("old", now - age).command();
    let ages = [
        (Span::hours(24), "ADMISSION_CLOSED"),
        (Span::hours(25), "ADMISSION_CLOSED"),
        (Span::days(3), "EVIDENCE_EXPIRED"),
    ];
    for (age, reason) in ages {
        assert_eq!(refused(&mut memory, &minted(age)).reason(), reason);
    }
    let wide = set_span(&mut memory, Setting::AdmissionWindow, Span::days(20));
    assert_eq!(wide.admission_window, Span::days(20));
    let row = &memory.accounts[&account()];
    assert_eq!((row.closed_before, row.evidence_floor), (closed, floor), "neither falls");
    for (age, reason) in &ages[1..] {
        assert_eq!(refused(&mut memory, &minted(*age)).reason(), *reason, "still closed");
    }
    let told = refused(&mut memory, &minted(Span::hours(25)));
    assert!(
        matches!(&told, Refusal::AdmissionClosed { closed_before: Some(at), .. } if *at == closed),
        "it is not older than the window of now: {told:?}"
    );
    assert!(told.text().contains("were closed before"), "{}", told.text());
    memory.run(&minted(Span::hours(24))).expect("what was never closed is open now");
    // And narrower again.
    set_span(&mut memory, Setting::AdmissionWindow, Span::hours(1));
    let row = &memory.accounts[&account()];
    assert_eq!((row.closed_before, row.evidence_floor), (closed, floor));
}

#[test]
fn what_is_decided_after_a_change_follows_it() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for id in ["one", "two", "three"] {
        submitted(&mut memory, append(id, now));
    }
    let epoch = opened(&mut memory, "c", 10);
    updated(&mut memory, &set(Setting::InFlightMax, 2));
    assert_eq!(offered(&mut memory, "c", epoch, 10), [(1, 1), (2, 1)], "its own limit in flight");
    set_span(&mut memory, Setting::AckDeadline, Span::seconds(7));
    memory.run(&extend(attempts("default", None, &[(1, 1)]), None)).expect("extended");
    // A deadline is never moved back.
    assert_eq!(
        memory.deliveries[&delivery("default", 1)].ack_deadline,
        Some(now + Span(30_000_000))
    );
    set_span(&mut memory, Setting::AckWindow, Span::seconds(50));
    for wrong in [
        extend(attempts("default", None, &[(1, 1)]), Some(Span::seconds(51))),
        defer(attempts("default", None, &[(1, 1)]), Span::seconds(51)),
    ] {
        let refusal = refused(&mut memory, &wrong);
        assert!(refusal.text().ends_with("to 50s"), "{}", refusal.text());
    }
    updated(&mut memory, &set(Setting::RetryBudget, 1));
    memory.run(&defer(attempts("default", None, &[(2, 1)]), Span(0))).expect("given back");
    let dead = &memory.deliveries[&delivery("default", 2)];
    assert_eq!(dead.state, DeliveryState::Dead, "one attempt is all");
    updated(&mut memory, &set(Setting::InboxSlots, 2));
    let full = refused(&mut memory, &append("four", now).command());
    assert_eq!(full.reason(), "INBOX_FULL");
    memory.run(&ack("default", &[3])).expect("acked");
    memory.run(&redrive(numbered("default", &[2]))).expect("redriven");
    let again = &memory.deliveries[&delivery("default", 2)];
    assert_eq!(again.expire_time, memory.now + Span::seconds(50), "a new window of its own");
}

#[test]
fn a_start_may_be_awaited_for_as_long_as_its_record_is_kept() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    set_span(&mut memory, Setting::RecordRetention, Span::days(2));
    for (days, good) in [(1, true), (2, true), (3, false)] {
        let mut command = append(&format!("d{days}"), now).command();
        let Command::Submit(submit) = &mut command else { panic!("a submit") };
        submit.start_deadline = Some(Span::days(days));
        match memory.run(&command) {
            Ok(_) => assert!(good),
            Err(Refusal::Invalid(invalid)) => {
                assert_eq!((invalid.field.as_str(), good), ("start_deadline", false));
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_opening_tells_the_policy_of_its_account() {
    let mut memory = Memory::new(Policy::default());
    let wanted = set_span(&mut memory, Setting::LockLimit, Span::seconds(33));
    let Ok(Reply::Opened { policy, .. }) = memory.run(&open("default", "c", 10)) else {
        panic!("not opened")
    };
    assert_eq!(*policy, wanted);
}

#[test]
fn an_inbox_is_swept_by_the_policy_of_its_account() {
    let mut memory = Memory::new(Policy::default());
    let now = memory.now;
    for (setting, span) in [
        (Setting::AdmissionWindow, Span::seconds(50)),
        (Setting::StartDeadline, Span::seconds(50)),
        (Setting::RecordRetention, Span::seconds(60)),
    ] {
        set_span(&mut memory, setting, span);
    }
    submitted(&mut memory, append("one", now));
    acked(&mut memory, "default", &[1]);
    memory.advance(Span::seconds(61));
    memory.run(&sweep_inbox("default")).expect("swept");
    assert!(memory.deliveries.is_empty(), "its own retention passed");
}
