//! Answers for people.
//!
//! What must stay true: a replay never looks like a new action; what is not known is said to be
//! not known; a closed pipe is an ordinary failure, never a panic.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use serde_json::Value;

use super::{Failure, connection::OutputFormat, json};
use crate::{
    client::send::state_of,
    proto::{
        Delivery, Operation, Origin, Projection, Recovery, RecoveryAction, Standing,
        SubmitOperationResponse, delivery, operation::State,
    },
};

/// Prints a line of an answer.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    say_exactly(format!("{text}\n").as_bytes())
}

/// Prints bytes as they are, without a line feed of its own.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn say_exactly(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        // Whoever reads has enough; there is nobody to tell.
        io::ErrorKind::BrokenPipe => Failure::plain(""),
        _ => Failure::plain(format!("standard output: {error}")),
    })
}

/// This program as it was called, for commands that are ready to paste.
pub fn program() -> String {
    let called = std::env::args_os().next();
    called.map_or_else(|| "receiptd".to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Tells the person something beside the answer. A closed standard error is no reason to stop.
pub fn note(text: impl std::fmt::Display) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Prints one JSON value, over several lines.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn say_json(value: &Value) -> Result<(), Failure> {
    say(format!("{value:#}"))
}

/// Prints an answer in the form asked for.
///
/// # Errors
/// [`Failure`] when standard output is closed.
pub fn say_as(
    format: OutputFormat,
    value: impl FnOnce() -> Value,
    table: impl FnOnce() -> Table,
) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => say_json(&value()),
        OutputFormat::Table => say(table().trim_fmt()),
    }
}

/// A list with a heading for each column.
pub fn list(headings: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings.to_vec());
    table.add_rows(rows);
    table
}

/// Names and values, one a line; empty values are left out.
pub fn facts(rows: Vec<(&str, String)>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row(vec![name.to_owned(), value]);
    }
    table
}

/// The word of a state, without prefix.
pub fn state_word(state: State) -> &'static str {
    state.as_str_name().trim_start_matches("STATE_")
}

/// The word of a delivery's state, without prefix.
pub fn delivery_word(number: i32) -> String {
    delivery::State::try_from(number).map_or_else(
        |_| number.to_string(),
        |state| state.as_str_name().trim_start_matches("STATE_").to_owned(),
    )
}

/// The word of a next step, without prefix.
pub fn recovery_word(action: RecoveryAction) -> &'static str {
    action.as_str_name().trim_start_matches("RECOVERY_ACTION_")
}

/// The word of a standing, without prefix.
pub fn standing_word(standing: Standing) -> &'static str {
    standing.as_str_name().trim_start_matches("STANDING_")
}

/// A time, or nothing.
pub fn time(time: Option<&prost_types::Timestamp>) -> String {
    match json::time(time) {
        Value::String(text) => text,
        _ => String::new(),
    }
}

/// How a call was answered, in a sentence that keeps a replay apart from a new action.
pub fn origin_sentence(origin: Origin, operation: &Operation) -> String {
    let revision = operation
        .receipt
        .as_ref()
        .and_then(|receipt| receipt.document.as_ref())
        .map(|change| format!(" at revision {}", change.result_revision))
        .unwrap_or_default();
    match (origin, state_of(operation)) {
        (Origin::Executed, _) => "executed: this call caused it".to_owned(),
        (Origin::Attached, _) => {
            "attached: this operation was accepted earlier and has not ended; nothing was started \
             again"
                .to_owned()
        }
        (Origin::Replayed, State::Applied) => format!(
            "replayed: this operation completed earlier{revision}; nothing was executed again"
        ),
        (Origin::Replayed, state) => format!(
            "replayed: this operation ended earlier as {}; nothing was executed again",
            state_word(state)
        ),
        (Origin::Unspecified, _) => String::new(),
    }
}

/// The facts of an operation.
pub fn operation_facts(operation: &Operation) -> Vec<(&'static str, String)> {
    let state = state_of(operation);
    let certainty = operation.effect_certainty().as_str_name();
    let certainty = certainty.trim_start_matches("EFFECT_CERTAINTY_").to_lowercase();
    let mut rows = vec![
        ("operation", operation.operation_id.clone()),
        ("state", format!("{} (effect: {certainty})", state_word(state))),
    ];
    if let Some(receipt) = &operation.receipt {
        if receipt.sealed {
            rows.push(("sealed", "no submit under this id can execute".to_owned()));
        } else {
            rows.push(("action", receipt.action.clone()));
            rows.push(("target", receipt.target.clone()));
        }
        if let Some(change) = &receipt.document {
            let verb = match (change.created, change.deleted) {
                (true, _) => ", created",
                (false, true) => ", deleted",
                (false, false) => "",
            };
            rows.push((
                "changed",
                format!(
                    "revision {} -> {}{verb}, {} -> {} bytes, {} edit(s)",
                    change.base_revision,
                    change.result_revision,
                    change.size_before,
                    change.size_after,
                    change.edits
                ),
            ));
        }
        if let Some(rejection) = &receipt.rejection {
            let reason = rejection.reason().as_str_name();
            let reason = reason.trim_start_matches("REJECTION_REASON_");
            rows.push(("rejected", format!("{reason}: {}", rejection.text)));
        }
        rows.push(("cancelled", receipt.cancel_reason.clone()));
        rows.push(("accepted", time(receipt.accept_time.as_ref())));
        rows.push(("ended", time(receipt.end_time.as_ref())));
    }
    if let Some(lock) = &operation.waiting_for {
        let until = time(lock.release_time.as_ref());
        rows.push(("waits for", format!("{} until at most {until}", lock.operation_id)));
    }
    if operation.replay_count > 0 {
        rows.push(("replays", operation.replay_count.to_string()));
    }
    rows
}

/// Deliveries, one a line.
pub fn delivery_facts(deliveries: &[Delivery]) -> Vec<(&'static str, String)> {
    deliveries
        .iter()
        .map(|delivery| {
            let state = delivery_word(delivery.state);
            ("delivery", format!("{} #{} {state}", delivery.inbox, delivery.sequence))
        })
        .collect()
}

/// The next step and the target as it is now.
pub fn next_facts(
    recovery: Option<&Recovery>,
    projection: Option<&Projection>,
    remarks: &[String],
) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(now) = projection {
        let exists = if now.exists { "" } else { " (no document there now)" };
        rows.push(("target now", format!("revision {}{exists}", now.revision)));
    }
    rows.extend(remarks.iter().map(|remark| ("remark", remark.clone())));
    if let Some(recovery) = recovery {
        let word = recovery_word(recovery.action());
        rows.push(("next", format!("{word}: {}", recovery.text)));
    }
    rows
}

/// The answer to a submit.
pub fn submitted_table(response: &SubmitOperationResponse) -> Table {
    let mut rows = Vec::new();
    if response.validated_only {
        rows.push(("checked only", "nothing was changed; this is what would happen".to_owned()));
    }
    if let Some(operation) = &response.operation {
        let facts = operation_facts(operation);
        rows.extend(facts.into_iter().take(2));
        if !response.validated_only {
            rows.push(("answer", origin_sentence(response.origin(), operation)));
        }
        rows.extend(operation_facts(operation).into_iter().skip(2));
    }
    rows.extend(delivery_facts(&response.deliveries));
    rows.extend(next_facts(
        response.recovery.as_ref(),
        response.projection.as_ref(),
        &response.remarks,
    ));
    facts(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{DocumentChange, Receipt};

    fn applied() -> Operation {
        let document = DocumentChange { result_revision: 13, ..DocumentChange::default() };
        Operation {
            operation_id: "save:1".to_owned(),
            state: State::Applied.into(),
            receipt: Some(Receipt { document: Some(document), ..Receipt::default() }),
            ..Operation::default()
        }
    }

    #[test]
    fn a_replay_does_not_look_like_a_new_action() {
        assert_eq!(
            origin_sentence(Origin::Replayed, &applied()),
            "replayed: this operation completed earlier at revision 13; nothing was executed again"
        );
        assert!(!origin_sentence(Origin::Executed, &applied()).contains("earlier"));
    }

    #[test]
    fn an_answer_names_the_operation_and_what_changed() {
        let response = SubmitOperationResponse {
            operation: Some(applied()),
            origin: Origin::Executed.into(),
            ..SubmitOperationResponse::default()
        };
        let text = submitted_table(&response).trim_fmt();
        assert!(text.contains("save:1"), "{text}");
        assert!(text.contains("revision 0 -> 13"), "{text}");
    }
}
