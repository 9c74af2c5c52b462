//! The next steps: one table of everything that a caller can be told to do (R10). Answers and
//! refusals take their sentences from here, and docs/recovery.md shows the same rows.
//!
//! What must stay true: whoever is in doubt about an old id is never sent to a new one. A row says
//! what is certain about the effect, and only rows in which nothing is in doubt speak of a new id.

use super::refusal::RecoveryAction;

/// How much of the effect is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// What happened is known, and does not change any more.
    Settled,
    /// It may have happened, or may still happen.
    Doubt,
    /// No effect was asked for, or none was possible.
    NoEffect,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// How the caller recognises it: standing, state, reason.
    pub told: &'static str,
    /// What is certain.
    pub certainty: Certainty,
    /// The step, for programs.
    pub action: RecoveryAction,
    /// The step, for people.
    pub next: &'static str,
}

macro_rules! advice {
    ($($(#[doc = $doc:literal])* $name:ident: $told:literal, $certainty:ident, $action:ident, $next:literal;)*) => {
        /// What to do next, and why: a row of the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Advice {
            $($(#[doc = $doc])* $name,)*
        }

        impl Advice {
            /// Every row, in the order of the page.
            pub const ALL: &'static [Advice] = &[$(Advice::$name,)*];

            /// The row.
            pub fn row(self) -> Row {
                match self {
                    $(Advice::$name => Row {
                        told: $told,
                        certainty: Certainty::$certainty,
                        action: RecoveryAction::$action,
                        next: $next,
                    },)*
                }
            }
        }
    };
}

advice! {
    /// The effect is complete.
    Applied: "RECORDED or COMPACTED, APPLIED", Settled, ShowResult, "Show the result.";
    /// The effect is complete, and the body of its result is gone (R48).
    BodyGone: "COMPACTED, APPLIED, the result had a body", Settled, ReadCurrentState,
        "Read the target as it is now, then decide.";
    /// Refused for what the target was.
    RejectedStale: "REJECTED: REVISION_MISMATCH, EDIT_OUT_OF_RANGE", Settled, ReadCurrentState,
        "Read the target as it is now; a corrected instruction takes a new id.";
    /// Refused for what the instruction is.
    RejectedWrong: "REJECTED: DOCUMENT_MISSING, PATCH_FAILED, DOCUMENT_TOO_LARGE, CONTENT_KIND",
        Settled, NewIdSafe, "A corrected instruction takes a new id.";
    /// Nobody started it in time.
    RejectedLate: "REJECTED: START_DEADLINE", Settled, NewIdSafe,
        "The same instruction may be sent again with a new id.";
    /// Cancelled before it began, or sealed before any submit.
    Cancelled: "CANCELLED", Settled, NewIdSafe, "A new instruction may take a new id.";
    /// Recorded, and not ended.
    Unfinished: "ACCEPTED, RUNNING", Doubt, Wait, "Wait, then look up the same id.";
    /// No retry can tell what happened.
    NotKnown: "UNKNOWN", Doubt, Reconcile,
        "Settle it by evidence; do not send it again under a new id.";
    /// Ended without effect.
    FailedWithoutEffect: "FAILED, effect NONE", Settled, NewIdSafe,
        "A new instruction may take a new id.";
    /// Ended with a part of the effect.
    FailedInPart: "FAILED, effect PARTIAL", Doubt, AskHuman, "Ask a person to decide what follows.";
    /// A record that can't be shown: a fault of the service.
    Unreadable: "ended, without an outcome", Doubt, AskHuman, "Ask a person.";
    /// Proven: no submit under the id was accepted, and none can be.
    NeverAccepted: "NEVER_ACCEPTED", Settled, NewIdSafe, "A new instruction may take a new id.";
    /// Records of that time are gone.
    EvidenceGone: "EVIDENCE_EXPIRED", Doubt, ReadCurrentState,
        "Read the target as it is now, then decide.";
    /// The id's time is ahead of the store's.
    Ahead: "CLOCK_SKEW", NoEffect, FixRequest, "Mint ids from the store's time.";
    /// Refused by now, and a submit may still be on its way.
    ClosedNotProven: "NOT_ACCEPTED_YET with ADMISSION_CLOSED", Doubt, Wait,
        "Wait, then look up the same id.";
    /// There is no record, and a submit still executes.
    MayArrive: "NOT_ACCEPTED_YET", Doubt, ResubmitSameId,
        "Send the same submit with the same id: it executes at most once.";
    /// A trial that would be accepted.
    TrialGood: "`validate_only`, would be accepted", NoEffect, ResubmitSameId,
        "Send the same submit with the same id, without validate_only.";
    /// A trial that would be refused for what the target is.
    TrialStale: "`validate_only`, would be REJECTED for the target", NoEffect, ReadCurrentState,
        "Do not send it; correct it first.";
    /// A trial that would be refused for what the instruction is.
    TrialWrong: "`validate_only`, would be REJECTED for the instruction", NoEffect, FixRequest,
        "Do not send it; correct it first.";
    /// Something is in the way of a submit for a while.
    InTheWay: "TARGET_LOCKED, IDENTITY_HELD", NoEffect, Wait, "Wait, then send the same id again.";
    /// What was asked for is not there yet.
    NotYet: "RESULT_NOT_READY", NoEffect, Wait, "Wait, then ask again.";
    /// A change whose answer is not there: with and without effect alike, since the id is the same.
    LookUp: "no answer; COMMIT_UNKNOWN, NO_ANSWER_YET, STORE_UNAVAILABLE, DRAINING, INTERNAL \
             to a submit", Doubt, ResubmitSameId,
        "Look it up, or send the same submit with the same id again.";
    /// The same for a call that names no operation, or only reads.
    CallAgain: "the same to any other call", NoEffect, ResubmitSameId, "Send the same call again.";
    /// The same for a stream.
    OpenAgain: "the same on a stream", NoEffect, ResubmitSameId, "Open it again.";
    /// A newer stream of the same consumer took over.
    Superseded: "STREAM_SUPERSEDED", NoEffect, FixRequest,
        "Leave it to the newer stream, or open one with a consumer id of its own.";
    /// The store was restored; the token is of the time before.
    OtherEpoch: "STORE_EPOCH_CHANGED", NoEffect, FixRequest, "Open the stream without a token.";
    /// There is no document.
    NothingThere: "NO_SUCH_DOCUMENT", NoEffect, ReadCurrentState,
        "That is its current state; decide by it.";
    /// The body of a result is gone, or never was.
    NoBody: "RESULT_NOT_KEPT", NoEffect, ReadCurrentState,
        "Read the target as it is now, then decide.";
    /// What the caller sent is at fault.
    Correct: "INVALID_FIELD, UNKNOWN_ACTION, OPERATION_INTENT_MISMATCH, POLICY_CONTRADICTION, \
              RESUME_TOKEN_INVALID, INBOX_RECREATED, INBOX_NOT_EMPTY, NO_SUCH_INBOX, NO_SUCH_LOCK",
        NoEffect, FixRequest, "Correct the request.";
    /// More than one request may have.
    SendLess: "PAYLOAD_TOO_LARGE", NoEffect, FixRequest, "Send less in one request.";
    /// No such method here.
    OtherName: "UNIMPLEMENTED", NoEffect, FixRequest,
        "Correct the name, or ask a server of a newer release.";
    /// Compressed in a way that is not known.
    Uncompressed: "UNIMPLEMENTED, compressed", NoEffect, FixRequest, "Send it without compression.";
    /// A permission is missing.
    Access: "CREDENTIALS_MISSING, CREDENTIALS_INVALID, PERMISSION_MISSING", NoEffect, RequestAccess,
        "Ask for access.";
    /// A limit of how much.
    SlowDown: "INBOX_FULL, ACCOUNT_QUOTA, RATE_LIMITED, SLOW_CONSUMER", NoEffect, SlowDown,
        "Send less, or later.";
}

impl Advice {
    /// The step, for programs.
    pub fn action(self) -> RecoveryAction {
        self.row().action
    }

    /// The step, for people.
    pub fn next(self) -> &'static str {
        self.row().next
    }
}

impl Certainty {
    /// The words on the page.
    pub fn word(self) -> &'static str {
        match self {
            Certainty::Settled => "settled",
            Certainty::Doubt => "in doubt",
            Certainty::NoEffect => "no effect",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/recovery.md");

    /// Whether a sentence sends to a new id.
    fn advises_a_new_id(sentence: &str) -> bool {
        let warns = sentence.contains("do not send it again under a new id");
        sentence.contains("new id") && !warns
    }

    #[test]
    fn doubt_about_an_old_id_never_leads_to_a_new_one() {
        for advice in Advice::ALL {
            let Row { certainty, action, next, .. } = advice.row();
            let new_id = advises_a_new_id(next) || action == RecoveryAction::NewIdSafe;
            assert!(!new_id || certainty == Certainty::Settled, "{advice:?}: {next}");
        }
        assert!(advises_a_new_id("Try a new id."), "the check can fail");
    }

    /// The errors that the README lists, and nothing else, are led on from by the page.
    #[test]
    fn the_page_leads_on_from_every_reason() {
        let readme = include_str!("../../README.md");
        let begin = readme.find("| code | reasons |").expect("the table of errors");
        let table = readme[begin..].split("\n\n").next().expect("a table");
        let reasons = table.lines().skip(2).filter_map(|line| line.split('|').nth(2));
        let reasons: Vec<&str> = reasons.flat_map(|cell| cell.split(", ")).map(str::trim).collect();
        assert!(reasons.len() > 30, "{reasons:?}");
        for reason in reasons {
            assert!(PAGE.contains(reason), "docs/recovery.md does not lead on from {reason}");
        }
    }

    #[test]
    fn the_page_shows_every_row_and_no_other() {
        let cells = |row: Row| {
            let Row { told, certainty, action, next } = row;
            format!("| {told} | {} | {} | {next} |", certainty.word(), action.word())
        };
        let expected: Vec<String> = Advice::ALL.iter().map(|advice| cells(advice.row())).collect();
        let begin = PAGE.find("| you were told |").expect("the table");
        let table = PAGE[begin..].split("\n\n").next().expect("a table");
        let found: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(found, expected, "docs/recovery.md");
    }
}
