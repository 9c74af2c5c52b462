//! RaiseEvidenceFloor.

use super::Named;
use crate::{
    api::{
        Api, convert,
        convert::times::{read_timestamp, timestamp},
        deadline::AnswerBy,
        status::Refused,
        unexpected,
    },
    domain::{
        command::{Command, FloorRaise, Intention, Reply},
        ids::{Invalid, Timestamp},
        refusal::{Refusal, RefusalOutcome},
        spans::format_time,
    },
    proto,
};

impl Api {
    pub(super) async fn raise_floor(
        &self,
        named: Named,
        request: proto::RaiseEvidenceFloorRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::RaiseEvidenceFloorResponse, Refused> {
        let intention = match request.validate_only {
            true => Intention::ValidateOnly,
            false => Intention::Execute,
        };
        let account = named.account.clone();
        let command = Command::RaiseFloor(Box::new(FloorRaise {
            account: named.account,
            floor: floor(request.floor.as_ref()).map_err(Refusal::Invalid)?,
            reason: stated_reason(&request.reason).map_err(Refusal::Invalid)?,
            subject: named.subject,
            intention,
        }));
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        let raised = match running.await? {
            Reply::FloorRaised(raised) => raised,
            other => return Err(unexpected(&other).into()),
        };
        let there = |floor: Timestamp| (floor > Timestamp::BEGINNING).then(|| timestamp(floor));
        Ok(proto::RaiseEvidenceFloorResponse {
            account: account.as_str().to_owned(),
            floor_before: there(raised.before),
            floor: there(raised.after),
            meaning: meaning(raised.after),
            validated_only: intention == Intention::ValidateOnly,
        })
    }
}

fn floor(asked: Option<&prost_types::Timestamp>) -> Result<Timestamp, Invalid> {
    let floor = asked.map(|asked| read_timestamp("floor", asked)).transpose()?;
    floor.filter(|floor| floor.0 > 0).ok_or_else(|| {
        Invalid::new("floor", "is needed: the time up to which records were lost, after 1970")
    })
}

/// What can't be taken back is not done without a reason.
pub(super) fn stated_reason(text: &str) -> Result<String, Invalid> {
    match text.trim().is_empty() {
        true => Err(Invalid::new("reason", "is needed: say why, for the audit trail")),
        false => convert::reason(text),
    }
}

fn meaning(floor: Timestamp) -> String {
    format!(
        "Ids minted up to {} that have no record are answered with EVIDENCE_EXPIRED and can never \
         execute. What has a record is answered as before.",
        format_time(floor)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_and_a_reason_are_needed() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        assert_eq!(floor(Some(&at(5))), Ok(Timestamp(5_000_000)));
        for wrong in [None, Some(at(0)), Some(at(-5)), Some(at(i64::MAX))] {
            assert_eq!(floor(wrong.as_ref()).expect_err("refused").field, "floor", "{wrong:?}");
        }
        assert_eq!(stated_reason("a lost disk"), Ok("a lost disk".to_owned()));
        for wrong in ["", " ", &"x".repeat(513)] {
            assert_eq!(stated_reason(wrong).expect_err("refused").field, "reason");
        }
    }
}
