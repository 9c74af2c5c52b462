//! `receiptd config evidence-floor`: up to when the evidence of an account is gone.
//!
//! What must stay true: whoever is left in doubt about the raise is told what to look at.

use std::process::ExitCode;

use clap::Args;
use prost_types::Timestamp;
use serde_json::json;

use super::{
    Failure,
    connection::OperatorArgs,
    failures::change_failed,
    json,
    output::{facts, say_as, time},
    values::moment,
};
use crate::proto::{RaiseEvidenceFloorRequest, RaiseEvidenceFloorResponse};

/// A raise of the floor.
#[derive(Debug, Clone, Args)]
pub struct FloorArgs {
    /// The floor, such as 2026-03-01T12:00:00Z; one below that in force changes nothing.
    #[arg(value_name = "TIME", value_parser = moment)]
    pub floor: Timestamp,
    /// Why, for the audit trail.
    #[arg(long)]
    pub reason: String,
    /// Only check the raise.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    /// Whose account, where the service is, and how the answer is printed.
    pub on: OperatorArgs,
}

/// Raises the floor and prints what it was and is.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub(super) async fn run(args: &FloorArgs) -> Result<ExitCode, Failure> {
    let client = args.on.connect.client()?;
    let request = RaiseEvidenceFloorRequest {
        account: args.on.account.clone(),
        floor: Some(args.floor),
        reason: args.reason.clone(),
        validate_only: args.dry_run,
    };
    let again = "Run the same command again: a raise may be repeated.";
    let answer = client.raise_evidence_floor(request).await;
    let answer =
        answer.map_err(|failure| change_failed(&failure, &args.on.connect.endpoint, again))?;
    say_as(
        args.on.output.output,
        || {
            json!({
                "account": answer.account,
                "floorBefore": json::time(answer.floor_before.as_ref()),
                "floor": json::time(answer.floor.as_ref()),
                "meaning": answer.meaning,
                "validatedOnly": answer.validated_only,
            })
        },
        || facts(told(&answer)),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn told(answer: &RaiseEvidenceFloorResponse) -> Vec<(&'static str, String)> {
    let before = match answer.floor_before {
        Some(before) => time(Some(&before)),
        None => "none".to_owned(),
    };
    let floor = match answer.validated_only {
        true => "the floor would be",
        false => "evidence floor",
    };
    vec![
        ("account", answer.account.clone()),
        ("floor before", before),
        (floor, time(answer.floor.as_ref())),
        ("meaning", answer.meaning.clone()),
    ]
}
