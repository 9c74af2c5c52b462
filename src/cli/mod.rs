//! The command line: one file per command, each with its arguments and one `run`.
//!
//! What must stay true: a command prints its answer to standard output and everything else to
//! standard error; it returns its exit code, and never exits by itself.

pub mod by_hand;
pub mod cancel;
pub mod config;
pub mod connection;
pub mod demo;
pub mod dev;
pub mod document;
mod erase;
mod export;
pub mod failures;
mod floor;
pub mod get;
pub mod inbox;
pub mod inbox_admin;
mod json;
pub mod list;
pub mod migrate;
pub mod output;
pub mod policy;
pub mod rehearse;
pub mod restore_mark;
pub mod serve;
pub mod server_args;
mod signals;
mod stats;
pub mod submit;
mod sweep;
pub mod values;
pub mod verify;
pub mod watch;
mod watch_document;

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
    /// Compare a store with its audit trail, and print each contradiction.
    Verify(verify::VerifyArgs),
    /// Tell a store that it was restored from a backup: run it before any server starts.
    RestoreMark(Box<restore_mark::RestoreMarkArgs>),
    /// Check or show the settings in force, and change those of an account.
    Config(config::ConfigArgs),
    /// Submit one operation and print its receipt.
    Submit(Box<submit::SubmitArgs>),
    /// Say what is known about an operation.
    Get(get::GetArgs),
    /// List operations, newest first.
    List(list::ListArgs),
    /// Follow an operation to its end.
    Watch(watch::WatchArgs),
    /// Cancel an operation that has not begun.
    Cancel(cancel::CancelArgs),
    /// Read and ack results.
    Inbox(inbox::InboxArgs),
    /// Read documents.
    Document(document::DocumentArgs),
    /// Write an account's receipts and audit trails, one JSON value a line.
    Export(export::ExportArgs),
    /// Erase what operations were sent and gave back; receipts and trails stay.
    Erase(erase::EraseArgs),
    /// Show what an account has: effects, replays, what waits and since when.
    Stats(stats::StatsArgs),
    /// End what is overdue now.
    Sweep(sweep::SweepArgs),
    /// Replay a recorded editing session through lost connections and killed servers.
    Rehearse(rehearse::RehearseArgs),
    /// Tell the story of a lost acknowledgement.
    Demo(demo::DemoArgs),
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
        Command::Verify(args) => verify::run(args).await,
        Command::RestoreMark(args) => restore_mark::run(*args).await,
        Command::Config(args) => config::run(&args).await,
        Command::Submit(args) => submit::run(*args).await,
        Command::Get(args) => get::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Watch(args) => watch::run(args).await,
        Command::Cancel(args) => cancel::run(args).await,
        Command::Inbox(args) => inbox::run(args).await,
        Command::Document(args) => document::run(args).await,
        Command::Export(args) => export::run(args).await,
        Command::Erase(args) => erase::run(args).await,
        Command::Stats(args) => stats::run(args).await,
        Command::Sweep(args) => sweep::run(args).await,
        Command::Rehearse(args) => rehearse::run(args).await,
        Command::Demo(args) => demo::run(args).await,
    }
}
