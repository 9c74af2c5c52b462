//! The command line: one file per command, each with its arguments and one `run`.
//!
//! What must stay true: a command prints its answer to standard output and everything else to
//! standard error; it returns its exit code, and never exits by itself.

pub mod config;
pub mod dev;
pub mod migrate;
pub mod serve;
pub mod server_args;
mod signals;

use std::process::ExitCode;

/// receiptd: durable operation receipts with resumable result delivery, over gRPC.
#[derive(Debug, clap::Parser)]
#[command(name = "receiptd", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command; those that run the service first, those that call it after.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run the service on this machine: embedded store, no credentials, loopback only.
    Dev(dev::DevArgs),
    /// Run the service in production: refuses to start without credentials.
    Serve(serve::ServeArgs),
    /// Bring a store's schema up to date, then stop.
    Migrate(migrate::MigrateArgs),
    /// Check or show the settings in force.
    Config(config::ConfigArgs),
}

/// Why a command failed: one sentence, and the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    text: String,
    code: u8,
}

/// The exit code of a failure that has no other.
pub const EXIT_FAILURE: u8 = 1;
/// The exit code of wrong arguments or settings, as clap uses it.
pub const EXIT_USAGE: u8 = 2;

impl Failure {
    /// A failure with an exit code of its own.
    pub fn new(code: u8, text: impl std::fmt::Display) -> Self {
        Failure { text: text.to_string(), code }
    }

    /// A failure without one.
    pub fn plain(text: impl std::fmt::Display) -> Self {
        Failure::new(EXIT_FAILURE, text)
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// Runs one command.
///
/// # Errors
/// [`Failure`], to be printed once by the caller.
pub async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Config(args) => config::run(&args),
    }
}
