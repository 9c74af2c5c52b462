//! `receiptd sweep`: one pass of a running service's sweeper, now.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Failure,
    connection::{ConnectArgs, OutputArgs},
    failures::change_failed,
    output::{facts, note, say_as},
};
use crate::proto::{RunSweepRequest, RunSweepResponse, SweepCounts};

const EXAMPLES: &str = "\
Examples:
  receiptd sweep
  receiptd sweep --account editors -o json
  receiptd sweep --all";

/// End what is overdue now, for one account or for all.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// The account that is meant; the caller's own without it.
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "all")]
    pub account: String,
    /// Every account.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Runs the pass and prints what it did.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub async fn run(args: SweepArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let request = RunSweepRequest { account: args.account, all_accounts: args.all };
    let again = "Run the same command again: a pass may be repeated.";
    let answer = client.run_sweep(request).await;
    let answer =
        answer.map_err(|failure| change_failed(&failure, &args.connect.endpoint, again))?;
    say_as(args.output.output, || to_json(&answer), || facts(to_facts(&answer)))?;
    if answer.more {
        note("there is more: run it again");
    }
    Ok(ExitCode::SUCCESS)
}

/// What a pass did, each with its name in JSON and for people.
fn counted(counts: &SweepCounts) -> [(&'static str, &'static str, i64); 14] {
    [
        ("returned", "returned", counts.returned),
        ("expired", "expired", counts.expired),
        ("dead", "dead", counts.dead),
        ("startDeadlines", "start deadlines", counts.start_deadlines),
        ("locksReleased", "locks released", counts.locks_released),
        ("consumersRemoved", "consumers removed", counts.consumers_removed),
        ("closed", "closed", counts.closed),
        ("purged", "purged", counts.purged),
        ("inboxesRetired", "inboxes retired", counts.inboxes_retired),
        ("accountsClosed", "accounts closed", counts.accounts_closed),
        ("compacted", "records compacted", counts.compacted),
        ("trailsRemoved", "trails removed", counts.trails_removed),
        ("forgotten", "tombstones removed", counts.forgotten),
        ("batchesRemoved", "batches removed", counts.batches_removed),
    ]
}

fn to_json(answer: &RunSweepResponse) -> Value {
    let counts = answer.counts.unwrap_or_default();
    let counts = counted(&counts).into_iter().map(|(name, _, rows)| (name.to_owned(), json!(rows)));
    let refused = answer.refused.iter();
    let refused = refused.map(|left| json!({ "reason": left.reason, "rows": left.rows }));
    json!({
        "account": answer.account,
        "counts": counts.collect::<Map<_, _>>(),
        "refused": refused.collect::<Vec<_>>(),
        "more": answer.more,
    })
}

fn to_facts(answer: &RunSweepResponse) -> Vec<(&'static str, String)> {
    let whose = match answer.account.as_str() {
        "" => "all",
        account => account,
    };
    let mut rows = vec![("account", whose.to_owned())];
    let counts = answer.counts.unwrap_or_default();
    rows.extend(counted(&counts).map(|(_, name, count)| (name, count.to_string())));
    for left in &answer.refused {
        rows.push(("left", format!("{} ({})", left.rows, left.reason)));
    }
    rows
}
