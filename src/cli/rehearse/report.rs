//! What a rehearsal showed.
//!
//! What must stay true: it passes only when the text, the revision, the number of effects and the
//! number of results are exactly what one effect per operation gives.

use comfy_table::Table;
use serde_json::{Value, json};

use super::super::output::facts;

/// The figures of one rehearsal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Operations of the session.
    pub operations: u64,
    /// Submits that left, retries included.
    pub attempts: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Servers that were killed.
    pub kills: u64,
    /// Answers that were not the first: attached or replayed.
    pub replays: u64,
    /// Results that came again and were recognised.
    pub duplicates_seen: u64,
    /// Results that were handed over, each once.
    pub results: u64,
    /// Operations that the store lists as applied.
    pub effects: u64,
    /// The document's revision at the end.
    pub final_revision: i64,
    /// The document's text is the recorded one.
    pub text_equal: bool,
    /// How long it took.
    pub seconds: f64,
}

impl Report {
    /// Effects beyond one per operation.
    pub fn duplicate_effects(&self) -> u64 {
        let revision = u64::try_from(self.final_revision).unwrap_or(0);
        self.effects.max(revision).saturating_sub(self.operations)
    }

    /// Whether there was exactly one effect and one result per operation.
    pub fn passed(&self) -> bool {
        self.text_equal
            && u64::try_from(self.final_revision) == Ok(self.operations)
            && self.effects == self.operations
            && self.results == self.operations
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "operations": self.operations,
            "attempts": self.attempts,
            "cuts": self.cuts,
            "kills": self.kills,
            "replays": self.replays,
            "duplicatesSeenByTheClient": self.duplicates_seen,
            "resultsHandedOver": self.results,
            "effectsInTheStore": self.effects,
            "duplicateEffects": self.duplicate_effects(),
            "finalRevision": self.final_revision,
            "finalTextEqual": self.text_equal,
            "seconds": self.seconds,
            "passed": self.passed(),
        })
    }

    /// For people.
    pub fn table(&self) -> Table {
        let text = if self.text_equal { "equal to the recorded one" } else { "DIFFERENT" };
        let verdict = if self.passed() {
            "one effect and one result per operation"
        } else {
            "NOT one effect and one result per operation"
        };
        facts(vec![
            ("operations", self.operations.to_string()),
            ("attempts", self.attempts.to_string()),
            ("cuts", self.cuts.to_string()),
            ("kills", self.kills.to_string()),
            ("replays", self.replays.to_string()),
            ("duplicates seen by the client", self.duplicates_seen.to_string()),
            ("results handed over", self.results.to_string()),
            ("effects in the store", self.effects.to_string()),
            ("duplicate effects", self.duplicate_effects().to_string()),
            ("final revision", self.final_revision.to_string()),
            ("final text", text.to_owned()),
            ("time", format!("{:.1} s", self.seconds)),
            ("verdict", verdict.to_owned()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Report = Report {
        operations: 10,
        attempts: 13,
        cuts: 3,
        kills: 0,
        replays: 2,
        duplicates_seen: 1,
        results: 10,
        effects: 10,
        final_revision: 10,
        text_equal: true,
        seconds: 1.0,
    };

    #[test]
    fn it_passes_with_exactly_one_effect_per_operation() {
        assert!(GOOD.passed());
        assert_eq!(GOOD.duplicate_effects(), 0);
        assert!(!Report { text_equal: false, ..GOOD }.passed());
        assert!(!Report { effects: 11, ..GOOD }.passed());
        assert!(!Report { final_revision: 9, ..GOOD }.passed());
        assert!(!Report { results: 9, ..GOOD }.passed());
        assert_eq!(Report { effects: 12, final_revision: 12, ..GOOD }.duplicate_effects(), 2);
    }
}
