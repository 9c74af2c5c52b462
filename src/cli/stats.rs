//! `receiptd stats`: what an account has, and what submits came to.

use std::process::ExitCode;

use clap::Args;
use prost_types::Timestamp;
use serde_json::{Value, json};

use super::{
    Failure,
    connection::OperatorArgs,
    failures::call_failed,
    output::{facts, note, say_as},
};
use crate::proto::{GetUsageRequest, GetUsageResponse};

const EXAMPLES: &str = "\
Examples:
  receiptd stats
  receiptd stats --account editors -o json";

/// Effects, replays, and what waits and since when.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    #[command(flatten)]
    /// Whose account, where the service is, and how the answer is printed.
    pub on: OperatorArgs,
}

/// Prints the figures.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub async fn run(args: StatsArgs) -> Result<ExitCode, Failure> {
    let client = args.on.connect.client()?;
    let answer = client.get_usage(GetUsageRequest { account: args.on.account }).await;
    let usage = answer.map_err(|failure| call_failed(&failure, &args.on.connect.endpoint))?;
    say_as(args.on.output.output, || to_json(&usage), || facts(to_facts(&usage)))?;
    if usage.at_least {
        note("there is more than was counted: the figures are at least these");
    }
    Ok(ExitCode::SUCCESS)
}

/// Seconds from a time to that of the figures.
fn age(usage: &GetUsageResponse, since: Option<&Timestamp>) -> Option<f64> {
    let micros = |time: &Timestamp| time.seconds as f64 + f64::from(time.nanos) / 1e9;
    Some((micros(usage.time.as_ref()?) - micros(since?)).max(0.0))
}

fn to_json(usage: &GetUsageResponse) -> Value {
    let states = usage.operations.iter().map(|of| {
        json!({
            "state": of.state().as_str_name().trim_start_matches("STATE_"),
            "count": of.count, "compacted": of.compacted, "replays": of.replays,
        })
    });
    let replica = usage.replica.unwrap_or_default();
    json!({
        "account": usage.account,
        "operations": states.collect::<Vec<_>>(),
        "effects": usage.effects,
        "duplicatesPrevented": usage.duplicates_prevented,
        "unresolved": usage.unresolved,
        "oldestUnresolvedSeconds": age(usage, usage.oldest_unresolved.as_ref()),
        "documents": usage.documents,
        "documentBytes": usage.document_bytes,
        "payloadBytes": usage.payload_bytes,
        "inboxes": usage.inboxes,
        "reserved": usage.reserved,
        "pending": usage.pending,
        "inFlight": usage.in_flight,
        "ackedTotal": usage.acked_total,
        "expiredTotal": usage.expired_total,
        "deadTotal": usage.dead_total,
        "oldestUnackedSeconds": age(usage, usage.oldest_unacked.as_ref()),
        "oldestOverdueSeconds": age(usage, usage.oldest_overdue.as_ref()),
        "atLeast": usage.at_least,
        "replica": {
            "executed": replica.executed,
            "attached": replica.attached,
            "replayed": replica.replayed,
            "mismatched": replica.mismatched,
            "effects": replica.effects,
        },
    })
}

fn to_facts(usage: &GetUsageResponse) -> Vec<(&'static str, String)> {
    let since = |time: Option<&Timestamp>| match age(usage, time) {
        Some(seconds) => format!("{seconds:.1} s"),
        None => "none".to_owned(),
    };
    let total: i64 = usage.operations.iter().map(|of| of.count).sum();
    let states = usage.operations.iter().map(|of| {
        format!("{} {}", of.count, of.state().as_str_name().trim_start_matches("STATE_"))
    });
    let states = states.collect::<Vec<_>>().join(", ");
    let replica = usage.replica.unwrap_or_default();
    vec![
        ("account", usage.account.clone()),
        (
            "operations",
            if states.is_empty() { "0".to_owned() } else { format!("{total} ({states})") },
        ),
        ("effects", usage.effects.to_string()),
        ("duplicates prevented", usage.duplicates_prevented.to_string()),
        ("unresolved", usage.unresolved.to_string()),
        ("oldest unresolved", since(usage.oldest_unresolved.as_ref())),
        ("oldest unacked", since(usage.oldest_unacked.as_ref())),
        ("oldest overdue", since(usage.oldest_overdue.as_ref())),
        ("inboxes", usage.inboxes.to_string()),
        (
            "results",
            format!(
                "{} pending, {} in flight, {} reserved",
                usage.pending, usage.in_flight, usage.reserved
            ),
        ),
        (
            "results ended",
            format!(
                "{} acked, {} expired, {} dead",
                usage.acked_total, usage.expired_total, usage.dead_total
            ),
        ),
        ("documents", format!("{} of {} bytes", usage.documents, usage.document_bytes)),
        ("payloads", format!("{} bytes", usage.payload_bytes)),
        (
            "this replica, all accounts",
            format!(
                "{} executed, {} attached, {} replayed, {} mismatched, {} effects",
                replica.executed,
                replica.attached,
                replica.replayed,
                replica.mismatched,
                replica.effects
            ),
        ),
    ]
}
