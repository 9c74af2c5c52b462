//! What the service can honestly say about an id, and what a submit under it gets: one table for
//! both (contract section 3), so that a look-up and a submit never disagree.
//!
//! What must stay true: the rules are tried top to bottom. NEVER_ACCEPTED is said only under the
//! id's own lock: every submit holds it from before it reads the account's times until its commit
//! has ended, so that one that is still on its way is met, and one that comes later reads a
//! `closed_before` that refuses it.
//!
//! Deliberately not here: how `closed_before` rises (see [`super::closing`]), and how a record becomes
//! its tombstone and goes (see [`super::retire`]).

use super::{
    advice::Advice,
    closing,
    command::{Decided, Reply},
    epoch::Loss,
    ids::{MintTime, Span, Timestamp},
    inbox::AccountRow,
    operation::{Operation, OperationKey},
    policy::Policy,
    refusal::Refusal,
    submit::ensure_account,
    world::{World, needs::Access},
};

/// What can be said about an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is a record.
    Recorded,
    /// A compact record is kept; its payload is gone.
    Compacted,
    /// No record, but one may have existed: never a licence to execute.
    EvidenceExpired,
    /// No record now; one may still arrive.
    NotAcceptedYet,
    /// Proven: never accepted, and can no longer start.
    NeverAccepted,
}

impl Standing {
    /// The word in metadata and texts.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Recorded => "RECORDED",
            Standing::Compacted => "COMPACTED",
            Standing::EvidenceExpired => "EVIDENCE_EXPIRED",
            Standing::NotAcceptedYet => "NOT_ACCEPTED_YET",
            Standing::NeverAccepted => "NEVER_ACCEPTED",
        }
    }

    /// The safe next step for a caller that asked about the id.
    pub fn advice(self) -> Advice {
        match self {
            Standing::Recorded | Standing::Compacted => Advice::Applied,
            Standing::EvidenceExpired => Advice::EvidenceGone,
            Standing::NotAcceptedYet => Advice::MayArrive,
            Standing::NeverAccepted => Advice::NeverAccepted,
        }
    }
}

/// What is kept under an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// No row.
    Nothing,
    /// A live record, in whatever state: UNKNOWN never ages.
    Record,
    /// A tombstone.
    Tombstone,
}

impl Kept {
    /// What a row is.
    pub fn of(row: Option<&Operation>) -> Self {
        match row {
            Some(row) if row.is_compacted() => Kept::Tombstone,
            Some(_) => Kept::Record,
            None => Kept::Nothing,
        }
    }
}

/// What is known of the id's lock, which every submit holds until its commit has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Nobody tried it: dear, and seldom needed.
    NotAsked,
    /// Another transaction has it: a record may still arrive.
    Held,
    /// The one who asks has it, and has looked for the record under it.
    Free,
}

/// The times that an id's mint time is held against; all of them the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// See [`AccountRow::evidence_floor`].
    pub evidence_floor: Timestamp,
    /// See [`AccountRow::closed_before`].
    pub closed_before: Timestamp,
    /// The store's clock, read after the record and the account.
    pub now: Timestamp,
    /// See [`Policy::admission_window`].
    pub window: Span,
    /// See [`Policy::max_clock_skew`].
    pub skew: Span,
}

impl Clocks {
    /// Those of an account; one that was never used has closed nothing, and of it is lost what the
    /// store may have lost.
    pub fn of(account: Option<&AccountRow>, policy: &Policy, loss: Loss, now: Timestamp) -> Self {
        Clocks {
            evidence_floor: floor_of(account, loss),
            closed_before: account.map_or(Timestamp::BEGINNING, |row| row.closed_before),
            now,
            window: policy.admission_window,
            skew: policy.max_clock_skew,
        }
    }
}

/// The evidence floor of an account, used or not.
fn floor_of(account: Option<&AccountRow>, loss: Loss) -> Timestamp {
    account.map_or(loss.evidence_floor, |row| row.evidence_floor.max(loss.evidence_floor))
}

/// How long an account keeps what it knows of an id, and what it can't tell any more: told with
/// every answer about one (R44).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// See [`Policy::admission_window`]; so too the other two.
    pub admission_window: Span,
    /// See the name.
    pub record_retention: Span,
    /// See the name.
    pub tombstone_retention: Span,
    /// See [`AccountRow::evidence_floor`]; absent while nothing was deleted or lost.
    pub floor: Option<Timestamp>,
}

impl Evidence {
    /// That of an account, used or not.
    pub fn of(account: Option<&AccountRow>, policy: &Policy, loss: Loss) -> Self {
        let floor = floor_of(account, loss);
        Evidence {
            admission_window: policy.admission_window,
            record_retention: policy.record_retention,
            tombstone_retention: policy.tombstone_retention,
            floor: (floor > Timestamp::BEGINNING).then_some(floor),
        }
    }
}

/// What a submit under an id gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// What is kept is attached to or replayed, or the intent is refused.
    Replays,
    /// It executes.
    Executes,
    /// It is refused, and leaves no record.
    Refused(Refusal),
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What a look-up says.
    pub standing: Standing,
    /// What a submit gets.
    pub submit: Admission,
}

impl Answer {
    /// Nothing but that a submit may execute, or why it may not.
    ///
    /// # Errors
    /// Why the id may not be used.
    pub fn admitted(self) -> Result<(), Refusal> {
        match self.submit {
            Admission::Executes | Admission::Replays => Ok(()),
            Admission::Refused(refusal) => Err(refusal),
        }
    }
}

/// The whole table of contract section 3, top to bottom.
pub fn of(kept: Kept, mint: MintTime, clocks: &Clocks, probe: Probe) -> Answer {
    let mint = mint.to_timestamp();
    let Clocks { evidence_floor: floor, closed_before, now, window, skew } = *clocks;
    let answer = |standing, submit| Answer { standing, submit };
    let refused = |standing, refusal| answer(standing, Admission::Refused(refusal));
    match kept {
        Kept::Record => return answer(Standing::Recorded, Admission::Replays),
        Kept::Tombstone => return answer(Standing::Compacted, Admission::Replays),
        Kept::Nothing => {}
    }
    if mint <= floor {
        return refused(Standing::EvidenceExpired, Refusal::EvidenceExpired { floor });
    }
    if mint > now + skew {
        let refusal = Refusal::ClockSkew { store_time: now, limit: skew };
        return refused(Standing::NotAcceptedYet, refusal);
    }
    if mint > now - window && mint > closed_before {
        return answer(Standing::NotAcceptedYet, Admission::Executes);
    }
    let standing = match probe {
        Probe::Free if mint <= closed_before => Standing::NeverAccepted,
        Probe::Free | Probe::Held | Probe::NotAsked => Standing::NotAcceptedYet,
    };
    let closed_before = (mint > now - window).then_some(closed_before);
    let refusal = Refusal::AdmissionClosed { store_time: now, window, closed_before, standing };
    refused(standing, refusal)
}

/// Whether an id without a record may be accepted now, for one who holds its lock.
///
/// # Errors
/// EVIDENCE_EXPIRED, CLOCK_SKEW or ADMISSION_CLOSED, in this order.
pub fn admit(
    mint: MintTime,
    account: Option<&AccountRow>,
    policy: &Policy,
    loss: Loss,
    now: Timestamp,
) -> Result<(), Refusal> {
    of(Kept::Nothing, mint, &Clocks::of(account, policy, loss, now), Probe::Free).admitted()
}

/// What a call about an id without a record is refused with; nobody tried its lock.
pub fn refuse_absent(
    mint: MintTime,
    account: Option<&AccountRow>,
    policy: &Policy,
    loss: Loss,
    now: Timestamp,
) -> Refusal {
    let clocks = Clocks::of(account, policy, loss, now);
    let Answer { standing, submit } = of(Kept::Nothing, mint, &clocks, Probe::NotAsked);
    match submit {
        // The id may have been used: "no such" would say too much.
        Admission::Refused(expired @ Refusal::EvidenceExpired { .. }) => expired,
        Admission::Refused(closed) => {
            Refusal::NoSuchOperation { standing, closed: Some(Box::new(closed)) }
        }
        Admission::Executes | Admission::Replays => {
            Refusal::NoSuchOperation { standing, closed: None }
        }
    }
}

/// Whether a try of the id's lock could prove that an id without a record was never accepted. An
/// account that was never used has no row that could say what is closed; the probe makes it.
pub fn worth_a_probe(
    mint: MintTime,
    account: Option<&AccountRow>,
    policy: &Policy,
    loss: Loss,
    now: Timestamp,
) -> bool {
    let clocks = Clocks::of(account, policy, loss, now);
    let closed_before = match account {
        Some(_) => clocks.closed_before,
        None => closing::limit(policy, now),
    };
    let clocks = Clocks { closed_before, ..clocks };
    of(Kept::Nothing, mint, &clocks, Probe::Free).standing == Standing::NeverAccepted
}

/// Decides a probe: its batch holds the id's lock, and the record was read under it.
pub(super) fn probe(world: &mut World, key: &OperationKey, mint: MintTime) -> Decided<Reply> {
    let kept = Kept::of(world.operation(key, Access::Read)?);
    let account = world.account(&key.account)?.cloned();
    let (policy, loss, now) = (world.policy(&key.account)?, world.loss(), world.now());
    let account = match account {
        None if kept == Kept::Nothing && worth_a_probe(mint, None, &policy, loss, now) => {
            Some(ensure_account(world, &key.account)?)
        }
        account => account,
    };
    let clocks = Clocks::of(account.as_ref(), &policy, loss, now);
    Ok(Reply::Probed(Box::new(of(kept, mint, &clocks, Probe::Free))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        ids::{Account, OperationId},
        operation::OperationState,
        refusal::RecoveryAction,
        sample,
    };

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    /// The points on the clock that the table speaks of, in order: a floor of long ago, what was
    /// closed in time, the edge of the window, what a clock that stepped back (or a window that
    /// was widened) has left closed, a floor raised by hand, now, and now with the skew.
    fn points() -> [Timestamp; 7] {
        let policy = Policy::default();
        [
            NOW - Span::days(30),
            NOW - Span::hours(25),
            NOW - policy.admission_window,
            NOW - Span::hours(12),
            NOW - Span::hours(1),
            NOW,
            NOW + policy.max_clock_skew,
        ]
    }

    /// A UUIDv7 made at `millis`, and an opaque id, each with the mint time that it has.
    fn identities(millis: i64) -> [(OperationId, MintTime); 2] {
        let text = format!("{:08x}-{:04x}-7000-8000-000000000000", millis >> 16, millis & 0xffff);
        let uuid = OperationId::parse(&text).expect("valid");
        let time = uuid.uuid_v7_time().expect("a UUIDv7");
        let opaque = OperationId::parse("opaque").expect("valid");
        assert_eq!((time, opaque.uuid_v7_time()), (MintTime::from_millis(millis), None));
        [(uuid, time), (opaque, MintTime::from_millis(millis))]
    }

    /// The standing and the submit of an answer, as the letters of the golden table.
    fn letter(answer: &Answer) -> char {
        use Admission::{Executes, Refused, Replays};
        match (answer.standing, &answer.submit) {
            (Standing::Recorded, Replays) => 'R',
            (Standing::Compacted, Replays) => 'T',
            (Standing::EvidenceExpired, Refused(Refusal::EvidenceExpired { .. })) => 'e',
            (Standing::NotAcceptedYet, Refused(Refusal::ClockSkew { .. })) => 's',
            (Standing::NotAcceptedYet, Executes) => 'x',
            (Standing::NeverAccepted, Refused(closed)) if closed.reason() == "ADMISSION_CLOSED" => {
                'n'
            }
            (Standing::NotAcceptedYet, Refused(closed))
                if closed.reason() == "ADMISSION_CLOSED" =>
            {
                'w'
            }
            other => panic!("no row of the table: {other:?}"),
        }
    }

    /// One line of the golden table: every point a millisecond before, at and after it.
    fn line(kept: Kept, floor: Timestamp, closed_before: Timestamp, probe: Probe) -> String {
        let policy = Policy::default();
        let account = AccountRow {
            evidence_floor: floor,
            closed_before,
            ..AccountRow::new(Account::from_stored("a"), &policy, Loss::NONE, NOW)
        };
        let clocks = Clocks::of(Some(&account), &policy, Loss::NONE, NOW);
        let mut line = String::new();
        for point in points() {
            if !line.is_empty() {
                line.push(' ');
            }
            for offset in [-1, 0, 1] {
                let [(_, uuid), (_, opaque)] = identities(point.0 / 1_000 + offset);
                let answer = of(kept, uuid, &clocks, probe);
                assert_eq!(answer, of(kept, opaque, &clocks, probe), "whatever kind of id it is");
                if kept == Kept::Nothing {
                    // Who submits has the lock: the same row, whatever a look-up could prove.
                    let admitted = admit(uuid, Some(&account), &policy, Loss::NONE, NOW);
                    let reason =
                        |admitted: Result<(), Refusal>| admitted.err().map(|no| no.reason());
                    assert_eq!(reason(admitted), reason(answer.clone().admitted()));
                }
                line.push(letter(&answer));
            }
        }
        line
    }

    #[test]
    fn the_table_of_standings_is_exhaustive() {
        let [old_floor, closed, _, closed_late, new_floor, ..] = points();
        let never = Timestamp::BEGINNING;
        // Beside each floor and `closed_before`: what a free lock proves, and what is said without.
        #[rustfmt::skip]
        let golden = [
            (never, never,           "www www wwx xxx xxx xxx xxs", "www www wwx xxx xxx xxx xxs"),
            (never, closed,          "nnn nnw wwx xxx xxx xxx xxs", "www www wwx xxx xxx xxx xxs"),
            (never, closed_late,     "nnn nnn nnn nnx xxx xxx xxs", "www www www wwx xxx xxx xxs"),
            (old_floor, never,       "eew www wwx xxx xxx xxx xxs", "eew www wwx xxx xxx xxx xxs"),
            (old_floor, closed,      "een nnw wwx xxx xxx xxx xxs", "eew www wwx xxx xxx xxx xxs"),
            (old_floor, closed_late, "een nnn nnn nnx xxx xxx xxs", "eew www www wwx xxx xxx xxs"),
            (new_floor, never,       "eee eee eee eee eex xxx xxs", "eee eee eee eee eex xxx xxs"),
            (new_floor, closed,      "eee eee eee eee eex xxx xxs", "eee eee eee eee eex xxx xxs"),
            (new_floor, closed_late, "eee eee eee eee eex xxx xxs", "eee eee eee eee eex xxx xxs"),
        ];
        let live = sample::operation("op-1");
        let unknown = Operation { state: OperationState::Unknown, ..live.clone() };
        for (floor, closed_before, free, unproven) in golden {
            for probe in [Probe::Free, Probe::Held, Probe::NotAsked] {
                let expected = if probe == Probe::Free { free } else { unproven };
                let found = line(Kept::of(None), floor, closed_before, probe);
                assert_eq!(found, expected, "{floor:?} {closed_before:?} {probe:?}");
                let all = |letter: char| expected.replace(|c| c != ' ', &letter.to_string());
                for row in [&live, &unknown] {
                    let found = line(Kept::of(Some(row)), floor, closed_before, probe);
                    assert_eq!(found, all('R'), "a record never ages by these times");
                }
                assert_eq!(line(Kept::Tombstone, floor, closed_before, probe), all('T'));
            }
        }
    }

    #[test]
    fn every_standing_has_its_next_step() {
        for (standing, word, recovery) in [
            (Standing::Recorded, "RECORDED", RecoveryAction::ShowResult),
            (Standing::Compacted, "COMPACTED", RecoveryAction::ShowResult),
            (Standing::EvidenceExpired, "EVIDENCE_EXPIRED", RecoveryAction::ReadCurrentState),
            (Standing::NotAcceptedYet, "NOT_ACCEPTED_YET", RecoveryAction::ResubmitSameId),
            (Standing::NeverAccepted, "NEVER_ACCEPTED", RecoveryAction::NewIdSafe),
        ] {
            assert_eq!((standing.word(), standing.advice().action()), (word, recovery));
        }
    }

    #[test]
    fn where_nothing_was_deleted_no_evidence_has_expired() {
        let policy = Policy::default();
        let row = AccountRow::new(Account::from_stored("a"), &policy, Loss::NONE, NOW);
        // The year 1, before 1970, 1970 itself, and a moment after it.
        for millis in [-62_135_596_800_000, -1, 0, 1] {
            let mint = MintTime::from_millis(millis);
            for account in [None, Some(&row)] {
                let refusal = admit(mint, account, &policy, Loss::NONE, NOW).expect_err("too old");
                assert_eq!(refusal.reason(), "ADMISSION_CLOSED", "{millis}");
                let refusal = refuse_absent(mint, account, &policy, Loss::NONE, NOW);
                let Refusal::NoSuchOperation { standing, closed } = refusal else {
                    panic!("{refusal:?}")
                };
                assert_eq!(standing, Standing::NotAcceptedYet, "nobody tried the lock");
                assert_eq!(closed.expect("closed").reason(), "ADMISSION_CLOSED");
                assert!(worth_a_probe(mint, account, &policy, Loss::NONE, NOW));
            }
        }
    }

    #[test]
    fn a_lock_is_tried_only_where_it_can_prove_something() {
        let policy = Policy::default();
        let row = AccountRow {
            evidence_floor: NOW - Span::days(60),
            ..AccountRow::new(Account::from_stored("a"), &policy, Loss::NONE, NOW)
        };
        let limit = policy.admission_window + closing::MARGIN;
        for (age, worth) in [
            (Span(0), false),
            (Span::hours(-1), false),
            (policy.admission_window, false),
            (limit + Span::millis(-1), false),
            (limit, true),
            (Span::days(60) + Span::millis(-1), true),
        ] {
            let mint = MintTime::from_timestamp(NOW - age);
            for account in [None, Some(&row)] {
                assert_eq!(
                    worth_a_probe(mint, account, &policy, Loss::NONE, NOW),
                    worth,
                    "{age:?}"
                );
            }
        }
        let below_the_floor = MintTime::from_timestamp(NOW - Span::days(60));
        assert!(!worth_a_probe(below_the_floor, Some(&row), &policy, Loss::NONE, NOW));
    }

    #[test]
    fn an_absent_id_leads_to_what_would_not_be_refused() {
        let policy = Policy::default();
        let row = AccountRow {
            closed_before: Timestamp::BEGINNING,
            evidence_floor: NOW - Span::days(60),
            ..AccountRow::new(Account::from_stored("a"), &policy, Loss::NONE, NOW)
        };
        for (age, reason, recovery) in [
            (Span(0), "NO_SUCH_OPERATION", RecoveryAction::ResubmitSameId),
            (Span::hours(25), "NO_SUCH_OPERATION", RecoveryAction::Wait),
            (Span::hours(-1), "NO_SUCH_OPERATION", RecoveryAction::FixRequest),
            (Span::days(61), "EVIDENCE_EXPIRED", RecoveryAction::ReadCurrentState),
        ] {
            let mint = MintTime::from_timestamp(NOW - age);
            let refusal = refuse_absent(mint, Some(&row), &policy, Loss::NONE, NOW);
            assert_eq!((refusal.reason(), refusal.recovery()), (reason, recovery));
        }
    }
}
