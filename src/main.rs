//! Parses the arguments, calls one function, prints one error.

use std::process::ExitCode;

use clap::Parser;
use receiptd::cli::{self, Cli};

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(Cli::parse()).await {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("receiptd: {failure}");
            failure.exit_code()
        }
    }
}
