//! `receiptd export`: an account's operations with their receipts and trails, one JSON value a line.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    Failure,
    connection::ConnectArgs,
    failures::call_failed,
    json,
    output::{note, say},
};
use crate::proto::{ExportOperationsRequest, ExportedOperation, OperationEvent};

const EXAMPLES: &str = "\
Examples:
  receiptd export > receipts.jsonl
  receiptd export --account editors | jq -r .operation.operationId

One line for each operation, newest first: what to keep elsewhere before it ages here. Payloads are not
among it. An export that was cut is gone on with by --page-token, which it prints on the standard error.";

/// Operations of one request.
const PAGE: i32 = 100;

/// Write an account's receipts and audit trails, one JSON value a line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The account that is meant; the caller's own without it.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub account: String,
    /// Where an export that was cut goes on.
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    pub page_token: String,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
}

/// Prints every operation.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub async fn run(args: ExportArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let (account, page_size) = (args.account, PAGE);
    let mut request = ExportOperationsRequest { account, page_size, page_token: args.page_token };
    loop {
        let answer = client.export_operations(request.clone()).await;
        let page = answer.map_err(|failure| {
            if !request.page_token.is_empty() {
                note(format!("go on with --page-token {}", request.page_token));
            }
            call_failed(&failure, &args.connect.endpoint)
        })?;
        for exported in &page.operations {
            say(line(exported))?;
        }
        if page.next_page_token.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        request.page_token = page.next_page_token;
    }
}

fn line(exported: &ExportedOperation) -> serde_json::Value {
    json!({
        "operation": exported.operation.as_ref().map(json::operation),
        "deliveries": exported.deliveries.iter().map(json::delivery).collect::<Vec<_>>(),
        "events": exported.events.iter().map(event).collect::<Vec<_>>(),
    })
}

fn event(event: &OperationEvent) -> serde_json::Value {
    let hash: String = event.chain_hash.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "number": event.number,
        "part": event.part,
        "time": json::time(event.time.as_ref()),
        "kind": event.kind().as_str_name().trim_start_matches("OPERATION_EVENT_KIND_"),
        "subject": event.subject,
        "text": event.text,
        "sequence": event.sequence,
        "attempt": event.attempt,
        "chainHash": hash,
    })
}
