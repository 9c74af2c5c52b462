//! `receiptd list`: the account's operations, newest first.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::{
    Failure,
    connection::{ConnectArgs, OutputArgs},
    failures::call_failed,
    json,
    output::{delivery_word, list, note, say_as, state_word, time},
    values::at_least_one,
};
use crate::{
    client::send::state_of,
    proto::{ListOperationsRequest, ListedOperation, operation::State},
};

const EXAMPLES: &str = "\
Examples:
  receiptd list --unresolved
  receiptd list --state applied --target notes/today --limit 20
  receiptd list --label ticket=42 -o json
";

/// The most operations on one page of the service.
const PAGE_MAX: usize = 1_000;

/// A state of operations.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum StateArg {
    /// Durable, no effect yet.
    Accepted,
    /// An effect is possible.
    Running,
    /// The effect is complete.
    Applied,
    /// Refused before execution.
    Rejected,
    /// Ended with no effect or a part of it.
    Failed,
    /// Cancelled without effect.
    Cancelled,
    /// Not known.
    Unknown,
}

/// List operations, newest first.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Only in this state; may be given several times.
    #[arg(long = "state", value_enum)]
    pub states: Vec<StateArg>,
    /// Only what is not final.
    #[arg(long)]
    pub unresolved: bool,
    /// Only on exactly this target.
    #[arg(long, default_value = "")]
    pub target: String,
    /// Only of this action.
    #[arg(long, default_value = "")]
    pub action: String,
    /// Only with this label; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = super::submit::parse_label)]
    pub labels: Vec<(String, String)>,
    /// How many at most.
    #[arg(long, default_value_t = 50, value_parser = at_least_one::<usize>)]
    pub limit: usize,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the service does not answer.
pub async fn run(args: ListArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let mut operations: Vec<ListedOperation> = Vec::new();
    let mut page_token = String::new();
    loop {
        let left = args.limit.saturating_sub(operations.len());
        let page_size = i32::try_from(left.min(PAGE_MAX)).unwrap_or(1);
        if page_size == 0 {
            break;
        }
        let request = to_request(&args, page_size, page_token);
        let page = client.list_operations(request).await;
        let page = page.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
        operations.extend(page.operations);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    say_as(
        args.output.output,
        || json!({ "operations": operations.iter().map(json::listed).collect::<Vec<_>>() }),
        || table(&operations),
    )?;
    if !page_token.is_empty() {
        note(format!("there are more; --limit {} was reached", args.limit));
    }
    Ok(ExitCode::SUCCESS)
}

fn to_request(args: &ListArgs, page_size: i32, page_token: String) -> ListOperationsRequest {
    let states = args.states.iter().map(|state| {
        i32::from(match state {
            StateArg::Accepted => State::Accepted,
            StateArg::Running => State::Running,
            StateArg::Applied => State::Applied,
            StateArg::Rejected => State::Rejected,
            StateArg::Failed => State::Failed,
            StateArg::Cancelled => State::Cancelled,
            StateArg::Unknown => State::Unknown,
        })
    });
    ListOperationsRequest {
        page_size,
        page_token,
        states: states.collect(),
        target: args.target.clone(),
        action: args.action.clone(),
        labels: args.labels.iter().cloned().collect(),
        unresolved_only: args.unresolved,
        ..ListOperationsRequest::default()
    }
}

fn table(operations: &[ListedOperation]) -> comfy_table::Table {
    let rows = operations.iter().map(|listed| {
        let operation = listed.operation.clone().unwrap_or_default();
        let receipt = operation.receipt.clone().unwrap_or_default();
        let revision = receipt.document.as_ref().map(|it| it.result_revision.to_string());
        let deliveries: Vec<String> = listed
            .deliveries
            .iter()
            .map(|delivery| {
                let state = delivery_word(delivery.state);
                format!("{} #{} {state}", delivery.inbox, delivery.sequence)
            })
            .collect();
        vec![
            operation.operation_id.clone(),
            state_word(state_of(&operation)).to_owned(),
            receipt.action.clone(),
            receipt.target.clone(),
            revision.unwrap_or_default(),
            deliveries.join(", "),
            time(receipt.accept_time.as_ref()),
        ]
    });
    list(
        &["OPERATION", "STATE", "ACTION", "TARGET", "REVISION", "DELIVERY", "ACCEPTED"],
        rows.collect(),
    )
}
