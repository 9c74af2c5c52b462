//! `receiptd verify`: compares every row of a store with its audit trail and with the rows that speak
//! of it.
//!
//! What must stay true: it writes nothing, and a running server may go on meanwhile; each
//! contradiction is one line, said when it is found, so that memory stays bounded.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    EXIT_FAILURE, EXIT_USAGE, Failure,
    output::say,
    serve,
    server_args::{self, StoreArgs},
};
use crate::{
    domain::{ids::Account, verify::Contradiction},
    engine::seams::Seams,
    server,
    store::{ReadError, Store},
    telemetry,
    verify::{Counts, Limits, Place, step},
};

/// Flags of `verify`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  nothing contradicts
  1  contradictions, one on each line of standard output
  2  wrong arguments, or a store that cannot be read

Examples:
  receiptd verify --store sqlite:/var/lib/receiptd/receiptd.db
  RECEIPTD_STORE=postgres://app:secret@db/receipts receiptd verify --account acme --json")]
pub struct VerifyArgs {
    /// Settings file, TOML [env: RECEIPTD_CONFIG]
    #[arg(long, value_name = "FILE", env = "RECEIPTD_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Which store.
    #[command(flatten)]
    #[serde(flatten)]
    pub store: StoreArgs,
    /// Only this account; all if absent
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    pub account: Option<String>,
    /// Print one JSON object a line: each contradiction, then the summary
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Total {
    counts: Counts,
    contradictions: u64,
}

/// Checks the store.
pub(super) async fn run(args: VerifyArgs) -> Result<ExitCode, Failure> {
    let config = server_args::load(&args, args.config.as_ref())?.config;
    telemetry::process::start_logs(config.log_format);
    let account = args.account.as_deref().map(Account::parse).transpose();
    let account = account
        .map_err(|invalid| Failure::new(EXIT_USAGE, format!("--account {}", invalid.problem)))?;
    let url = serve::store(&config)?;
    let opened = server::open_store_to_read(&url, &config, &Seams::system()).await;
    let store = opened.map_err(|error| Failure::new(EXIT_USAGE, error))?;
    let mut total = Total::default();
    let checked = check(&store, account.as_ref(), args.json, &mut total).await;
    store.close().await;
    checked?;
    say(match args.json {
        true => summary_json(&total).to_string(),
        false => summary(&total),
    })?;
    Ok(match total.contradictions {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILURE),
    })
}

async fn check(
    store: &Store,
    only: Option<&Account>,
    as_json: bool,
    total: &mut Total,
) -> Result<(), Failure> {
    if let Some(account) = only {
        return check_account(store, account, as_json, total).await;
    }
    let mut before: Option<Account> = None;
    loop {
        let next = store.next_account(before.as_ref()).await;
        let Some(account) = next.map_err(|error| unreadable(&error))? else { return Ok(()) };
        check_account(store, &account, as_json, total).await?;
        before = Some(account);
    }
}

async fn check_account(
    store: &Store,
    account: &Account,
    as_json: bool,
    total: &mut Total,
) -> Result<(), Failure> {
    let mut place = Some(Place::start());
    while let Some(from) = place {
        let found = step(store, account, from, &Limits::ALONE).await;
        let found = found.map_err(|error| {
            Failure::new(EXIT_USAGE, format!("account {}: {error}", account.as_str()))
        })?;
        for contradiction in &found.contradictions {
            total.contradictions += 1;
            say(match as_json {
                true => contradiction_json(contradiction).to_string(),
                false => contradiction.to_string(),
            })?;
        }
        total.counts += found.counts;
        place = found.next;
    }
    Ok(())
}

fn unreadable(error: &ReadError) -> Failure {
    Failure::new(EXIT_USAGE, error)
}

fn contradiction_json(told: &Contradiction) -> Value {
    json!({
        "kind": told.kind.word(),
        "account": told.account.as_str(),
        "operation_id": told.operation_id,
        "inbox": told.inbox,
        "sequence": told.sequence,
        "target": told.target,
        "expected": told.expected,
        "found": told.found,
        "next_step": told.kind.next_step(),
    })
}

fn summary(total: &Total) -> String {
    let Counts { accounts, operations, audit_rows, deliveries, .. } = total.counts;
    let Counts { inboxes, locks, documents, payloads, .. } = total.counts;
    let found = match total.contradictions {
        0 => "nothing contradicts".to_owned(),
        1 => "1 contradiction".to_owned(),
        many => format!("{many} contradictions"),
    };
    format!(
        "{found}. Looked at: accounts {accounts}, operations {operations}, audit rows {audit_rows}, \
         deliveries {deliveries}, inboxes {inboxes}, locks {locks}, documents {documents}, \
         payloads {payloads}"
    )
}

fn summary_json(total: &Total) -> Value {
    let counts = total.counts;
    json!({
        "contradictions": total.contradictions,
        "accounts": counts.accounts,
        "operations": counts.operations,
        "audit_rows": counts.audit_rows,
        "deliveries": counts.deliveries,
        "inboxes": counts.inboxes,
        "locks": counts.locks,
        "documents": counts.documents,
        "payloads": counts.payloads,
    })
}
