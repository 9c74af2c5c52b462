//! Parses the arguments, calls one function, prints one error.

use std::{io::Write, process::ExitCode};

use clap::Parser;
use receiptd::cli::{self, Cli};

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(Cli::parse()).await {
        Ok(code) => code,
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                // A closed standard error changes nothing about the exit code.
                drop(writeln!(std::io::stderr(), "receiptd: {text}"));
            }
            failure.exit_code()
        }
    }
}
