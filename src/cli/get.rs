//! `receiptd get`: what is known about an id. The safe question after any doubt.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{
    EXIT_FAILURE, Failure,
    connection::{ConnectArgs, EXIT_CODES, EXIT_UNKNOWN, IdentityArgs, OutputArgs, exit_of_state},
    failures::call_failed,
    json,
    output::{delivery_facts, facts, next_facts, operation_facts, say_as, standing_word, time},
};
use crate::{
    client::{connect::Client, identity::OperationIdentity, send::state_of},
    proto::{GetOperationResponse, Standing},
};

const EXAMPLES: &str = "\
Examples:
  receiptd get 0197a3c2-5b7e-7c11-8a52-2f1f5d0e9a10
  receiptd get save:42 --mint-time \"$MINTED\" -o json
  receiptd get 0197a3c2-5b7e-7c11-8a52-2f1f5d0e9a10 --result page.html

An id without a record has exit code 5 while a submit may still arrive or evidence is gone, and 1
when it is proven that it was never accepted.
";

/// Say what is known about an operation.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
pub struct GetArgs {
    #[command(flatten)]
    /// Which operation.
    pub identity: IdentityArgs,
    /// Write the body of the result, whole and checked, to this file instead of saying what is
    /// known; - for standard output.
    #[arg(long, value_name = "FILE")]
    pub result: Option<PathBuf>,
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
pub async fn run(args: GetArgs) -> Result<ExitCode, Failure> {
    let identity = args.identity.identity()?;
    let client = args.connect.client()?;
    if let Some(file) = &args.result {
        return save_result(&client, &identity, file, &args.connect.endpoint).await;
    }
    let response = client.look_up(&identity).await;
    let response = response.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
    say_as(args.output.output, || json::looked_up(&response), || table(&response))?;
    Ok(exit_code(&response))
}

/// Nothing is written before the body is whole and matches its receipt.
async fn save_result(
    client: &Client,
    identity: &OperationIdentity,
    file: &Path,
    endpoint: &str,
) -> Result<ExitCode, Failure> {
    let body = client.read_result(identity).await;
    let body = body.map_err(|failure| call_failed(&failure, endpoint))?;
    let written = match file == Path::new("-") {
        true => std::io::stdout().lock().write_all(&body.data),
        false => std::fs::write(file, &body.data),
    };
    written.map_err(|error| {
        let text = format!("the result could not be written to {}: {error}", file.display());
        Failure::new(EXIT_FAILURE, text)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn table(response: &GetOperationResponse) -> comfy_table::Table {
    let mut rows = Vec::new();
    if response.operation.is_none() {
        rows.push(("operation", response.operation_id.clone()));
    }
    rows.push(("standing", standing_word(response.standing()).to_owned()));
    if let Some(operation) = &response.operation {
        rows.extend(operation_facts(operation));
        rows.push(("inbox", operation.inbox.clone()));
        for (key, value) in &operation.labels {
            rows.push(("label", format!("{key}={value}")));
        }
    }
    rows.extend(delivery_facts(&response.deliveries));
    rows.extend(next_facts(
        response.recovery.as_ref(),
        response.projection.as_ref(),
        &response.remarks,
    ));
    rows.push(("store time", time(response.store_time.as_ref())));
    facts(rows)
}

fn exit_code(response: &GetOperationResponse) -> ExitCode {
    match (&response.operation, response.standing()) {
        (Some(operation), _) => exit_of_state(state_of(operation)),
        (None, Standing::NeverAccepted) => ExitCode::from(EXIT_FAILURE),
        (None, _) => ExitCode::from(EXIT_UNKNOWN),
    }
}
