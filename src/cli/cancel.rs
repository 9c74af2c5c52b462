//! `receiptd cancel`: the only way to cancel; closing a call or a stream never does.

use std::process::ExitCode;

use clap::Args;

use super::{
    EXIT_FAILURE, Failure,
    connection::{ConnectArgs, EXIT_PENDING, IdentityArgs, OutputArgs},
    failures::change_failed,
    json,
    output::{facts, next_facts, operation_facts, say_as},
};
use crate::proto::{CancelOperationResponse, CancelOutcome};

const HELP: &str = "\
Examples:
  receiptd cancel 0197a3c2-5b7e-7c11-8a52-2f1f5d0e9a10 --reason 'typed by mistake'
  receiptd cancel 0197a3c2-5b7e-7c11-8a52-2f1f5d0e9a10 --seal

Exit codes:
  0  cancelled: no effect
  1  too late, with the receipt; or anything that has no other code
  2  wrong arguments, or the request is not valid
  5  not known: no answer came, or a submit may still arrive; look up the same id, or cancel it again
  6  asked for; the operation still runs";

/// Cancel an operation that has not begun.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct CancelArgs {
    #[command(flatten)]
    /// Which operation.
    pub identity: IdentityArgs,
    /// Why, for the audit trail.
    #[arg(long, default_value = "")]
    pub reason: String,
    /// Seal an id without a record: no submit under it can execute any more.
    #[arg(long)]
    pub seal: bool,
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
pub async fn run(args: CancelArgs) -> Result<ExitCode, Failure> {
    let identity = args.identity.identity()?;
    let client = args.connect.client()?;
    let answered = match args.seal {
        true => client.seal(&identity, &args.reason).await,
        false => client.cancel(&identity, &args.reason).await,
    };
    let response = answered.map_err(|failure| {
        let look_up = args.connect.get_command(&identity);
        let settle = format!("Look it up, or cancel it again:\n  {look_up}");
        change_failed(&failure, &args.connect.endpoint, &settle)
    })?;
    say_as(args.output.output, || json::cancelled(&response), || table(&response))?;
    Ok(match response.outcome() {
        CancelOutcome::Cancelled => ExitCode::SUCCESS,
        CancelOutcome::Requested => ExitCode::from(EXIT_PENDING),
        CancelOutcome::TooLate | CancelOutcome::Unspecified => ExitCode::from(EXIT_FAILURE),
    })
}

fn is_sealed(response: &CancelOperationResponse) -> bool {
    let receipt = response.operation.as_ref().and_then(|operation| operation.receipt.as_ref());
    receipt.is_some_and(|receipt| receipt.sealed)
}

fn table(response: &CancelOperationResponse) -> comfy_table::Table {
    let sentence = match response.outcome() {
        CancelOutcome::Cancelled if is_sealed(response) => {
            "sealed: no submit under this id can execute any more"
        }
        CancelOutcome::Cancelled => "cancelled: it had no effect",
        CancelOutcome::Requested => "asked for: the operation still runs",
        CancelOutcome::TooLate => "too late: the operation had ended before",
        CancelOutcome::Unspecified => "not known to this program",
    };
    let mut rows = vec![("cancel", sentence.to_owned())];
    if let Some(operation) = &response.operation {
        rows.extend(operation_facts(operation));
    }
    rows.extend(next_facts(response.recovery.as_ref(), None, &[]));
    facts(rows)
}
