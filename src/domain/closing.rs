//! How an account closes for old ids: `closed_before` rises behind the admission window.
//!
//! What must stay true: it only rises, whatever becomes of the window or the clock; an id that it
//! has passed can never be accepted again, which is what NEVER_ACCEPTED rests on (contract section
//! 3). The sweep raises it in steps, so that an account costs a write now and then and not each
//! second.

use super::{
    command::{Decided, Reply, Swept},
    ids::{Account, Span, Timestamp},
    inbox::AccountRow,
    policy::Policy,
    world::World,
};

/// How far behind the admission window an account is closed. What was admitted at the window's edge
/// has ended by then (a transaction that stands still is ended after seconds, a lost commit is
/// settled within 20 s), so that a look-up seldom meets one; and as long as clocks of servers that
/// take over differ by less, or step back by less, nobody within the window is refused.
pub const MARGIN: Span = Span::minutes(1);
/// By which part of the admission window an account closes at a time: with the default window each
/// account costs one write in an hour, and an id is settled at most so much later.
const STEPS_OF_A_WINDOW: i64 = 24;
/// The shortest step: the usual period of the sweep.
const STEP_MIN: Span = Span::seconds(1);

/// Up to which mint time ids can be closed now.
pub fn limit(policy: &Policy, now: Timestamp) -> Timestamp {
    now - policy.admission_window - MARGIN
}

/// By how much `closed_before` rises at least.
pub fn step(policy: &Policy) -> Span {
    Span(policy.admission_window.0 / STEPS_OF_A_WINDOW).max(STEP_MIN)
}

/// When an account that is closed up to `closed_before` can be closed by a step further.
pub fn due(policy: &Policy, closed_before: Timestamp) -> Timestamp {
    closed_before + policy.admission_window + MARGIN + step(policy)
}

/// The account after a look of the sweep; `None`: nothing to write. Where the window was widened,
/// or the clock stepped back, only the time of the next look moves, once.
fn closed(row: &AccountRow, policy: &Policy, now: Timestamp) -> Option<AccountRow> {
    if row.due_time > now {
        return None;
    }
    let limit = limit(policy, now);
    let rises = limit >= row.closed_before + step(policy);
    let closed_before = if rises { limit } else { row.closed_before };
    let due_time = due(policy, closed_before);
    let after = AccountRow { closed_before, due_time, ..row.clone() };
    (after != *row).then_some(after)
}

/// An account that may close by a step.
pub(super) fn sweep(world: &mut World, account: &Account) -> Decided<Reply> {
    let row = world.account_to_change(account)?;
    let after = row.and_then(|row| {
        let after = closed(row, &row.own.over(world.defaults()), world.now())?;
        Some((after.closed_before > row.closed_before, after))
    });
    let Some((rises, after)) = after else { return Ok(Reply::Swept(Swept::Nothing)) };
    world.put_account(after)?;
    Ok(Reply::Swept(if rises { Swept::AccountClosed } else { Swept::Nothing }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::epoch::Loss;

    const START: Timestamp = Timestamp(1_700_000_000_000_000);

    fn first(policy: &Policy) -> AccountRow {
        AccountRow::new(Account::from_stored("a"), policy, Loss::NONE, START)
    }

    #[test]
    fn an_account_closes_in_steps_behind_the_window() {
        let policy = Policy::default();
        let row = first(&policy);
        assert_eq!(row.closed_before, START - Span::hours(24) - Span::minutes(1));
        assert_eq!(row.evidence_floor, Timestamp::BEGINNING, "nothing was deleted");
        let hour = Span::hours(1);
        assert_eq!(closed(&row, &policy, START + hour + Span(-1)), None, "less than a step");
        let after = closed(&row, &policy, START + hour).expect("a step");
        assert_eq!(after.closed_before, row.closed_before + hour);
        assert_eq!(after.due_time, START + hour + hour);
        // After an outage it is one write, however long that was.
        let late = closed(&row, &policy, START + Span::days(9)).expect("many steps");
        assert_eq!(late.closed_before, START + Span::days(9) - Span::hours(24) - MARGIN);
    }

    #[test]
    fn nothing_lowers_what_is_closed() {
        let policy = Policy::default();
        let row = first(&policy);
        for (name, policy, now) in [
            ("a clock that steps back", policy.clone(), START - Span::days(3)),
            (
                "a window that was widened",
                Policy { admission_window: Span::days(7), ..policy.clone() },
                START + Span::hours(1),
            ),
        ] {
            let after = closed(&row, &policy, now).unwrap_or_else(|| row.clone());
            assert_eq!(after.closed_before, row.closed_before, "{name}");
            // It is looked at again when it can rise, and not in every pass until then.
            assert!(after.due_time > now, "{name}");
            assert_eq!(closed(&after, &policy, now), None, "{name}");
            let then = closed(&after, &policy, after.due_time).expect("rises");
            assert!(then.closed_before > row.closed_before, "{name}");
        }
    }

    #[test]
    fn a_narrowed_window_closes_at_the_next_look() {
        let policy = Policy::default();
        let row = first(&policy);
        let narrow = Policy { admission_window: Span::hours(1), ..policy };
        let after = closed(&row, &narrow, row.due_time).expect("rises");
        assert_eq!(after.closed_before, row.due_time - Span::hours(1) - MARGIN);
        assert_eq!(after.due_time, row.due_time + step(&narrow));
    }

    #[test]
    fn windows_of_seconds_close_with_every_pass() {
        let policy = Policy { admission_window: Span::seconds(5), ..Policy::default() };
        assert_eq!(step(&policy), Span::seconds(1));
        let row =
            AccountRow { closed_before: Timestamp::BEGINNING, due_time: START, ..first(&policy) };
        let after = closed(&row, &policy, START).expect("rises");
        assert_eq!(after.closed_before, START - Span::seconds(65));
    }
}
