//! `receiptd rehearse`: a recorded editing session, replayed through lost connections and killed
//! servers against a real service over a real socket.
//!
//! What must stay true: everything is lost on purpose and counted; it succeeds only when the store
//! shows exactly one effect per operation and the text is the recorded one; the negative control
//! shows that the figures would tell.

pub mod player;
pub mod proxy;
mod report;
pub mod server;
pub mod trace;

use std::{
    fs,
    io::{IsTerminal, stderr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use self::{
    player::{Losses, Parts, Retries, Stage, play},
    proxy::Proxy,
    server::{Server, ServerPlan, TemporaryDirectory, unique_name},
    trace::{Trace, builtin, parse},
};
use super::{
    EXIT_FAILURE, EXIT_USAGE, Failure,
    connection::OutputArgs,
    output::{note, say_as},
    values::whole,
};
use crate::{
    client::{
        connect::{Client, ConnectOptions, Secret},
        retry::RetryLimits,
    },
    config::{StoreUrl, store_url::TypedStoreUrl},
};

const HELP: &str = "\
Examples:
  receiptd rehearse
  receiptd rehearse --trace session.json.gz --cut-every 50 --kill-every 5000
  receiptd rehearse --trace session.json.gz --cut-every 50 --store postgres://localhost/receiptd
  receiptd rehearse --cut-every 5 --faulty fresh-id

A session is JSON, packed with gzip or plain: startContent, endContent, and txns, each with patches
of [position, deleted code points, inserted text]. The connection is cut at each boundary in turn:
before the request leaves, right after it left, before the reply arrives, and before the ack.

Negative control: --faulty fresh-id answers every lost reply with a new id and expects no revision,
which is the mistake this service exists to prevent. The figures then show duplicate effects, and
the exit code is 1.

Exit codes:
  0  the text is equal, and there was one effect and one result per operation
  1  anything else
  2  the session cannot be replayed";

/// A mistake made on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Faulty {
    /// A fresh id for each retry.
    FreshId,
}

/// Replay a recorded editing session through lost connections and killed servers.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct RehearseArgs {
    /// The recorded session; a short built-in one when absent.
    #[arg(long, value_name = "FILE", conflicts_with = "builtin")]
    pub trace: Option<PathBuf>,
    /// Replay the short built-in session.
    #[arg(long)]
    pub builtin: bool,
    /// Cut the connection with each n-th operation; 0 never.
    #[arg(long, value_name = "N", value_parser = whole::<u64>, default_value_t = 5)]
    pub cut_every: u64,
    /// Kill the server with each n-th operation; 0 never.
    #[arg(long, value_name = "N", value_parser = whole::<u64>, default_value_t = 0)]
    pub kill_every: u64,
    /// Rehearse on this store instead of a temporary embedded one; never on one in use.
    ///
    /// Stays in the store: its schema, and in account `rehearse` a document, an inbox and an
    /// operation for each step, under names of this run.
    #[arg(long, value_name = "URL")]
    pub store: Option<TypedStoreUrl>,
    /// Negative control: make this mistake on purpose.
    #[arg(long, value_enum, hide_short_help = true)]
    pub faulty: Option<Faulty>,
    #[command(flatten)]
    /// How the figures are printed.
    pub output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the session cannot be replayed or an operation does not end as it must.
pub async fn run(args: RehearseArgs) -> Result<ExitCode, Failure> {
    let trace = read_trace(&args)?;
    let rehearsal = rehearse(&args, &trace);
    let report = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Err(Failure::plain("stopped")),
        report = rehearsal => report?,
    };
    say_as(args.output.output, || report.json(), || report.table())?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURE) })
}

fn read_trace(args: &RehearseArgs) -> Result<Trace, Failure> {
    let Some(path) = &args.trace else { return Ok(builtin()) };
    let usage = |error: &dyn std::fmt::Display| {
        Failure::new(EXIT_USAGE, format!("{} {error}", path.display()))
    };
    let bytes = fs::read(path).map_err(|error| usage(&format!("cannot be read: {error}")))?;
    parse(&bytes).map_err(|error| usage(&error))
}

async fn rehearse(args: &RehearseArgs, trace: &Trace) -> Result<report::Report, Failure> {
    let directory = TemporaryDirectory::create("rehearsal")?;
    let (plan, token, suffix) = match &args.store {
        None => (ServerPlan::embedded(directory.path()), None, String::new()),
        Some(store) => {
            let known: Result<StoreUrl, String> = store.whole().parse();
            known.map_err(|problem| Failure::new(EXIT_USAGE, format!("--store {problem}")))?;
            // The store may hold earlier rehearsals: this one has names of its own.
            let token = unique_name() + &unique_name() + &unique_name();
            let plan = ServerPlan::on_store(store, &token, directory.path()).await?;
            (plan, Some(token), format!("-{}", unique_name()))
        }
    };
    let losses = Losses {
        cut_every: args.cut_every,
        kill_every: args.kill_every,
        retries: match args.faulty {
            None => Retries::SameId,
            Some(Faulty::FreshId) => Retries::FreshId,
        },
    };
    let mut stage = set_stage(plan).await?;
    let parts = Parts {
        submit: client(&stage.submit_proxy, token.as_deref(), submit_limits(losses.retries))?,
        delivery: client(&stage.delivery_proxy, token.as_deref(), patient())?,
        target: format!("rehearsal/document{suffix}"),
        inbox: format!("rehearse{suffix}"),
    };
    let bar = progress_bar(trace);
    let played = play(trace, losses, &mut stage, &parts, &|done| bar.set_position(done)).await;
    bar.finish_and_clear();
    if let Some(server) = stage.server.take() {
        server.kill().await?;
    }
    if played.is_err() {
        note("the rehearsal ended early");
    }
    played
}

async fn set_stage(plan: ServerPlan) -> Result<Stage, Failure> {
    let server = Server::start(&plan).await?;
    let proxy = async || {
        Proxy::start(server.address())
            .await
            .map_err(|error| Failure::plain(format!("the proxy cannot listen: {error}")))
    };
    Ok(Stage {
        submit_proxy: proxy().await?,
        delivery_proxy: proxy().await?,
        server: Some(server),
        plan: Some(plan),
    })
}

fn client(proxy: &Proxy, token: Option<&str>, limits: RetryLimits) -> Result<Client, Failure> {
    let options =
        ConnectOptions { token: token.map(Secret::new), limits, ..ConnectOptions::plain() };
    Client::connect(&proxy.endpoint(), options).map_err(Failure::plain)
}

/// A killed server may take a while to come back.
fn patient() -> RetryLimits {
    RetryLimits {
        total: Duration::from_secs(120),
        attempts: 1_000,
        per_attempt: Duration::from_secs(20),
        unreachable: Duration::from_secs(90),
    }
}

fn submit_limits(retries: Retries) -> RetryLimits {
    match retries {
        Retries::SameId => patient(),
        Retries::FreshId => RetryLimits::once(Duration::from_secs(20)),
    }
}

/// A bar for people at a terminal, nothing for logs.
fn progress_bar(trace: &Trace) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let put = u64::from(!trace.start.is_empty());
    let total = u64::try_from(trace.transactions.len()).unwrap_or(0) + put;
    let bar = ProgressBar::new(total);
    let form = "{bar:40} {pos}/{len} operations, {per_sec}, {eta} left";
    match ProgressStyle::with_template(form) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
