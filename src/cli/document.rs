//! `receiptd document`: documents as they are now. Writing happens only through operations.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    Failure,
    connection::{ConnectArgs, OutputArgs, OutputFormat},
    failures::call_failed,
    json,
    output::{facts, list, note, say_as, say_exactly, say_json, time},
    values::at_least_one,
    watch_document::{self, WatchDocumentArgs},
};
use crate::{
    client::connect::Client,
    proto::{Document, ListDocumentsRequest, document::Content},
};

const EXAMPLES: &str = "\
Examples:
  receiptd document get notes/today
  receiptd document get notes/today --content > today.txt
  receiptd document list --prefix notes/
  receiptd document watch notes/today
  receiptd document watch notes/today --content -o json
";

/// Read documents.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DocumentArgs {
    /// What to read.
    #[command(subcommand)]
    pub command: DocumentCommand,
}

/// What to read.
#[derive(Debug, Subcommand)]
pub enum DocumentCommand {
    /// One document with its revision.
    Get(DocumentGetArgs),
    /// The documents, by path.
    List(DocumentListArgs),
    /// One document now, then each change of it, until you stop.
    Watch(WatchDocumentArgs),
}

/// One document with its revision.
#[derive(Debug, Args)]
pub struct DocumentGetArgs {
    /// Its path.
    pub target: String,
    /// Print the content alone, byte for byte.
    #[arg(long, conflicts_with = "output")]
    pub content: bool,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// The documents, by path.
#[derive(Debug, Args)]
pub struct DocumentListArgs {
    /// Only paths that start with this.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = at_least_one::<usize>)]
    pub limit: usize,
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
/// [`Failure`] when the service does not answer or there is no such document.
pub async fn run(args: DocumentArgs) -> Result<ExitCode, Failure> {
    match args.command {
        DocumentCommand::Get(args) => get(&args).await?,
        DocumentCommand::List(args) => list_all(&args).await?,
        DocumentCommand::Watch(args) => watch_document::run(&args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(args: &DocumentGetArgs) -> Result<(), Failure> {
    let client = args.connect.client()?;
    let document = client.document(&args.target).await;
    let document = document.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
    if args.content {
        return say_exactly(content(&document));
    }
    match args.output.output {
        OutputFormat::Json => say_json(&json::document(&document)),
        OutputFormat::Table => {
            super::output::say(facts(document_facts(&document)).trim_fmt())?;
            match &document.content {
                Some(Content::Text(text)) => say_exactly(format!("\n{text}").as_bytes()),
                _ => Ok(()),
            }
        }
    }
}

fn content(document: &Document) -> &[u8] {
    match &document.content {
        Some(Content::Text(text)) => text.as_bytes(),
        Some(Content::Data(data)) => data,
        None => &[],
    }
}

pub(super) fn document_facts(document: &Document) -> Vec<(&'static str, String)> {
    vec![
        ("target", document.target.clone()),
        ("revision", document.revision.to_string()),
        ("generation", document.generation.to_string()),
        ("content type", document.content_type.clone()),
        ("size", format!("{} bytes", document.size_bytes)),
        ("created", time(document.create_time.as_ref())),
        ("updated", time(document.update_time.as_ref())),
    ]
}

async fn list_all(args: &DocumentListArgs) -> Result<(), Failure> {
    let client = args.connect.client()?;
    let (documents, more) = pages(&client, args).await?;
    let row = |document: &Document| {
        vec![
            document.target.clone(),
            document.revision.to_string(),
            document.size_bytes.to_string(),
            document.content_type.clone(),
            time(document.update_time.as_ref()),
        ]
    };
    say_as(
        args.output.output,
        || json!({ "documents": documents.iter().map(json::document).collect::<Vec<_>>() }),
        || {
            let headings = ["TARGET", "REVISION", "BYTES", "CONTENT TYPE", "UPDATED"];
            list(&headings, documents.iter().map(row).collect())
        },
    )?;
    if more {
        note(format!("there are more; --limit {} was reached", args.limit));
    }
    Ok(())
}

async fn pages(client: &Client, args: &DocumentListArgs) -> Result<(Vec<Document>, bool), Failure> {
    let mut documents = Vec::new();
    let mut page_token = String::new();
    loop {
        let left = args.limit.saturating_sub(documents.len()).min(1_000);
        if left == 0 {
            return Ok((documents, !page_token.is_empty()));
        }
        let request = ListDocumentsRequest {
            target_prefix: args.prefix.clone(),
            page_size: i32::try_from(left).unwrap_or(1),
            page_token,
        };
        let page = client.list_documents(request).await;
        let page = page.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
        documents.extend(page.documents);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok((documents, false));
        }
    }
}
