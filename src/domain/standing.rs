//! What the service can honestly say about an id (contract section 3).
//!
//! Deliberately not here yet: tombstones and the key probe. Nothing is deleted, so an id without
//! a record is NOT_ACCEPTED_YET; whether it may still start is decided by admission alone.

use super::{
    ids::{MintTime, Timestamp},
    inbox::AccountRow,
    policy::Policy,
    refusal::{RecoveryAction, Refusal},
};

/// What can be said about an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is a record.
    Recorded,
    /// No record now; one may still arrive.
    NotAcceptedYet,
}

impl Standing {
    /// The word in metadata and texts.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Recorded => "RECORDED",
            Standing::NotAcceptedYet => "NOT_ACCEPTED_YET",
        }
    }

    /// The safe next step for a caller that asked about the id.
    pub fn recovery(self) -> RecoveryAction {
        match self {
            Standing::Recorded => RecoveryAction::ShowResult,
            Standing::NotAcceptedYet => RecoveryAction::ResubmitSameId,
        }
    }
}

/// Whether an id without a record may be accepted now. First failure wins.
///
/// # Errors
/// EVIDENCE_EXPIRED, CLOCK_SKEW or ADMISSION_CLOSED, in this order.
pub fn admit(
    mint: MintTime,
    account: Option<&AccountRow>,
    policy: &Policy,
    now: Timestamp,
) -> Result<(), Refusal> {
    let mint = mint.to_timestamp();
    if let Some(account) = account
        && mint <= account.evidence_floor
    {
        return Err(Refusal::EvidenceExpired { floor: account.evidence_floor });
    }
    if mint > now + policy.max_clock_skew {
        return Err(Refusal::ClockSkew { store_time: now, limit: policy.max_clock_skew });
    }
    let closed = account.is_some_and(|account| mint <= account.closed_before);
    if closed || mint <= now - policy.admission_window {
        return Err(Refusal::AdmissionClosed { store_time: now, window: policy.admission_window });
    }
    Ok(())
}

/// What a call about an id without a record is refused with.
pub fn refuse_absent(
    mint: MintTime,
    account: Option<&AccountRow>,
    policy: &Policy,
    now: Timestamp,
) -> Refusal {
    match admit(mint, account, policy, now) {
        // The id may have been used: "no such" would say too much.
        Err(expired @ Refusal::EvidenceExpired { .. }) => expired,
        admitted => Refusal::NoSuchOperation {
            standing: Standing::NotAcceptedYet,
            closed: admitted.err().map(Box::new),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{Account, Span};

    #[test]
    fn admission_has_exact_edges() {
        let policy = Policy::default();
        let now = Timestamp(1_700_000_000_000_000);
        let at = |offset: Span| MintTime::from_timestamp(now + offset);
        let reason = |mint| admit(mint, None, &policy, now).map_err(|refusal| refusal.reason());
        assert_eq!(reason(at(Span(0))), Ok(()));
        assert_eq!(reason(at(policy.max_clock_skew)), Ok(()));
        assert_eq!(reason(at(policy.max_clock_skew + Span::millis(1))), Err("CLOCK_SKEW"));
        let window = Span(-policy.admission_window.0);
        assert_eq!(reason(at(window)), Err("ADMISSION_CLOSED"));
        assert_eq!(reason(at(window + Span::millis(1))), Ok(()));
    }

    #[test]
    fn the_floor_comes_before_everything() {
        let now = Timestamp(1_700_000_000_000_000);
        let row = AccountRow {
            closed_before: now,
            evidence_floor: now,
            ..AccountRow::new(Account::from_stored("a"), now)
        };
        let mint = MintTime::from_timestamp(now);
        let refusal = admit(mint, Some(&row), &Policy::default(), now).expect_err("closed");
        assert_eq!(refusal.reason(), "EVIDENCE_EXPIRED");
        let row = AccountRow { evidence_floor: Timestamp::BEGINNING, ..row };
        let refusal = admit(mint, Some(&row), &Policy::default(), now).expect_err("closed");
        assert_eq!(refusal.reason(), "ADMISSION_CLOSED");
    }

    #[test]
    fn where_nothing_was_deleted_no_evidence_has_expired() {
        let policy = Policy::default();
        let now = Timestamp(1_700_000_000_000_000);
        let row = AccountRow::new(Account::from_stored("a"), now);
        // The year 1, before 1970, 1970 itself, and a moment after it.
        for millis in [-62_135_596_800_000, -1, 0, 1] {
            let mint = MintTime::from_millis(millis);
            for account in [None, Some(&row)] {
                let refusal = admit(mint, account, &policy, now).expect_err("too old");
                assert_eq!(refusal.reason(), "ADMISSION_CLOSED", "{millis}");
                let refusal = refuse_absent(mint, account, &policy, now);
                let Refusal::NoSuchOperation { standing, closed } = refusal else {
                    panic!("{refusal:?}")
                };
                assert_eq!(standing, Standing::NotAcceptedYet);
                assert_eq!(closed.expect("closed").reason(), "ADMISSION_CLOSED");
            }
        }
    }

    #[test]
    fn an_absent_id_leads_to_what_would_not_be_refused() {
        let policy = Policy::default();
        let now = Timestamp(1_700_000_000_000_000);
        let row = AccountRow {
            closed_before: Timestamp::BEGINNING,
            evidence_floor: now - Span::days(60),
            ..AccountRow::new(Account::from_stored("a"), now)
        };
        for (age, reason, recovery) in [
            (Span(0), "NO_SUCH_OPERATION", RecoveryAction::ResubmitSameId),
            (Span::hours(25), "NO_SUCH_OPERATION", RecoveryAction::ReadCurrentState),
            (Span::hours(-1), "NO_SUCH_OPERATION", RecoveryAction::FixRequest),
            (Span::days(61), "EVIDENCE_EXPIRED", RecoveryAction::ReadCurrentState),
        ] {
            let mint = MintTime::from_timestamp(now - age);
            let refusal = refuse_absent(mint, Some(&row), &policy, now);
            assert_eq!((refusal.reason(), refusal.recovery()), (reason, recovery));
        }
    }
}
