//! `receiptd watch`: an operation now, then each change of it, to its end.
//!
//! What must stay true: a lost stream is opened again; stopping to watch never cancels.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{
    Failure,
    connection::{
        ConnectArgs, EXIT_CODES, EXIT_PENDING, IdentityArgs, OutputArgs, OutputFormat,
        exit_of_state,
    },
    failures::call_failed,
    json,
    output::{facts, next_facts, note, operation_facts, say},
};
use crate::{
    client::{
        connect::Client,
        error as client_error,
        identity::OperationIdentity,
        retry::{Decision, after_failed_call},
        send::state_of,
    },
    proto::{WatchOperationResponse, operation::State},
};

const EXAMPLES: &str = "\
Examples:
  receiptd watch 0197a3c2-5b7e-7c11-8a52-2f1f5d0e9a10
  receiptd watch save:42 --mint-time \"$MINTED\" -o json

An id without a record has exit code 5: a submit may still arrive.
Stopping to watch never cancels an operation.
";

/// Follow an operation to its end.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
pub struct WatchArgs {
    #[command(flatten)]
    /// Which operation.
    pub identity: IdentityArgs,
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
/// [`Failure`] when the operation cannot be watched.
pub async fn run(args: WatchArgs) -> Result<ExitCode, Failure> {
    let identity = args.identity.identity()?;
    let client = args.connect.client()?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            note("stopped watching; the operation goes on");
            Ok(ExitCode::from(EXIT_PENDING))
        }
        end = follow(&client, &identity, &args) => end.map(exit_of_state),
    }
}

/// Prints looks until a final state, over as many streams as it takes.
async fn follow(
    client: &Client,
    identity: &OperationIdentity,
    args: &WatchArgs,
) -> Result<State, Failure> {
    let failed = |it: client_error::Failure| call_failed(&it, &args.connect.endpoint);
    let mut last: Option<Value> = None;
    let mut state = State::Unknown;
    loop {
        let mut watch = client.watch(identity).await.map_err(failed)?;
        loop {
            let look = match watch.next().await {
                Ok(Some(look)) => look,
                Ok(None) => break,
                Err(failure) if after_failed_call(&failure) == Decision::Stop => {
                    return Err(failed(failure));
                }
                Err(_) => break,
            };
            state = look.operation.as_ref().map_or(State::Unknown, state_of);
            let value = json::watched(&look);
            // The snapshot of a later stream may be what was printed already.
            if last.as_ref().map(|printed| &printed["operation"]) != Some(&value["operation"]) {
                print(args.output.output, &look, &value)?;
            }
            last = Some(value);
        }
        let is_final =
            matches!(state, State::Applied | State::Rejected | State::Failed | State::Cancelled);
        if is_final {
            return Ok(state);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn print(
    format: OutputFormat,
    look: &WatchOperationResponse,
    value: &Value,
) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => say(value),
        OutputFormat::Table => {
            let mut rows = look.operation.as_ref().map(operation_facts).unwrap_or_default();
            rows.extend(next_facts(look.recovery.as_ref(), None, &[]));
            say(format!("{}\n", facts(rows).trim_fmt()))
        }
    }
}
