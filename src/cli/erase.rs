//! `receiptd erase`: payloads go, receipts and trails stay.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    Failure,
    connection::OperatorArgs,
    failures::change_failed,
    output::{facts, note, say_as},
};
use crate::proto::{ErasePayloadsRequest, ErasePayloadsResponse};

const EXAMPLES: &str = "\
Examples:
  receiptd erase --target notes/diary --reason 'asked for by its owner'
  receiptd erase --account editors --all --reason 'the contract ended'
  receiptd erase --operation 01939bd0-0000-7000-8000-000000000000 --reason 'a password in it'

Arguments, bodies of results and labels go; states, digests, revisions and audit trails stay, and no id
executes again. Documents stay as they are: delete or overwrite them by an operation.";

/// Erase what operations were sent and gave back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct EraseArgs {
    /// Only this operation's.
    #[arg(long, value_name = "ID", group = "which")]
    pub operation: Option<String>,
    /// Those of all operations on exactly this target.
    #[arg(long, group = "which")]
    pub target: Option<String>,
    /// Those of all operations of the account.
    #[arg(long, group = "which")]
    pub all: bool,
    /// Why, for the audit trails.
    #[arg(long)]
    pub reason: String,
    #[command(flatten)]
    /// Whose account, where the service is, and how the answer is printed.
    pub on: OperatorArgs,
}

/// Erases page by page, and prints what that came to.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub async fn run(args: EraseArgs) -> Result<ExitCode, Failure> {
    let client = args.on.connect.client()?;
    let mut request = ErasePayloadsRequest {
        account: args.on.account,
        operation_id: args.operation.unwrap_or_default(),
        target: args.target.unwrap_or_default(),
        reason: args.reason,
        page_token: String::new(),
    };
    let again = "Run the same command again: what was erased stays so.";
    let mut total = ErasePayloadsResponse::default();
    loop {
        let answer = client.erase_payloads(request.clone()).await;
        let page =
            answer.map_err(|failure| change_failed(&failure, &args.on.connect.endpoint, again))?;
        total.account = page.account;
        total.erased += page.erased;
        total.erased_before += page.erased_before;
        total.unresolved += page.unresolved;
        total.news_open += page.news_open;
        total.no_record += page.no_record;
        total.refused.extend(page.refused);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let counted = [
        ("erased", "erased", total.erased),
        ("erasedBefore", "erased before", total.erased_before),
        ("unresolved", "left: not ended or not known", total.unresolved),
        ("newsOpen", "left: news open", total.news_open),
        ("noRecord", "without a record", total.no_record),
        ("refused", "left: refused", total.refused.iter().map(|left| left.rows).sum()),
    ];
    let json = || {
        let mut told = json!({ "account": total.account });
        for (name, _, count) in counted {
            told[name] = json!(count);
        }
        told
    };
    let table = || {
        let mut rows = vec![("account", total.account.clone())];
        rows.extend(counted.map(|(_, name, count)| (name, count.to_string())));
        facts(rows)
    };
    say_as(args.on.output.output, json, table)?;
    if total.news_open > 0 {
        note("some news is open: ack it or let it expire, then run this again");
    }
    for left in &total.refused {
        note(format!("{} were left by {}: run this again", left.rows, left.reason));
    }
    Ok(ExitCode::SUCCESS)
}
