//! `receiptd document watch`: a document now, then each change of it, until it is stopped.
//!
//! What must stay true: a lost stream is opened again from what was printed last; nothing is
//! printed twice.

use std::time::Duration;

use clap::Args;

use super::{
    Failure,
    connection::{ConnectArgs, OutputArgs, OutputFormat},
    document::document_facts,
    failures::call_failed,
    json,
    output::{facts, note, say},
};
use crate::{
    client::{
        connect::Client,
        retry::{Decision, after_failed_call},
    },
    proto::{
        WatchDocumentRequest, document,
        watch_document_response::{Change, Frame},
    },
};

/// Before a stream that broke is opened again.
const PAUSE: Duration = Duration::from_millis(500);

/// One document and its changes.
#[derive(Debug, Args)]
pub struct WatchDocumentArgs {
    /// Its path; it need not exist yet.
    pub target: String,
    /// Print the content with each change.
    #[arg(long)]
    pub content: bool,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Runs the command until it is stopped.
///
/// # Errors
/// [`Failure`] when the document cannot be watched.
pub async fn run(args: &WatchDocumentArgs) -> Result<(), Failure> {
    let client = args.connect.client()?;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            note("stopped watching");
            Ok(())
        }
        end = follow(&client, args) => end,
    }
}

/// Prints changes over as many streams as it takes.
async fn follow(client: &Client, args: &WatchDocumentArgs) -> Result<(), Failure> {
    let mut request = WatchDocumentRequest {
        target: args.target.clone(),
        include_content: args.content,
        ..WatchDocumentRequest::default()
    };
    let mut printed = false;
    loop {
        let opened = client.watch_document(request.clone()).await;
        let mut watch = opened.map_err(|failure| call_failed(&failure, &args.connect.endpoint))?;
        let mut pause = PAUSE;
        loop {
            let frame = match watch.next().await {
                Ok(Some(response)) => response.frame,
                Ok(None) => break,
                Err(failure) if after_failed_call(&failure) == Decision::Stop => {
                    return Err(call_failed(&failure, &args.connect.endpoint));
                }
                Err(_) => break,
            };
            match frame {
                Some(Frame::Change(change)) => {
                    let known = (request.known_revision, request.known_generation);
                    if let Some(document) = &change.document {
                        request.known_revision = document.revision;
                        request.known_generation = document.generation;
                    }
                    // The snapshot of a later stream may be what was printed already.
                    let now = (request.known_revision, request.known_generation);
                    if !printed || now != known {
                        print(args.output.output, &change)?;
                    }
                    printed = true;
                }
                Some(Frame::Draining(draining)) => {
                    let asked = draining.retry_delay.and_then(|delay| delay.try_into().ok());
                    pause = asked.unwrap_or(PAUSE);
                }
                // A sign of life, or a frame that is newer than this program.
                Some(Frame::Heartbeat(_)) | None => {}
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn print(format: OutputFormat, change: &Change) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => say(json::document_watched(change)),
        OutputFormat::Table => {
            let document = change.document.clone().unwrap_or_default();
            let mut rows = vec![("state", state(change).to_owned())];
            rows.extend(document_facts(&document));
            say(format!("{}\n", facts(rows).trim_fmt()))?;
            match &document.content {
                Some(document::Content::Text(text)) => say(format!("{text}\n")),
                Some(document::Content::Data(_)) | None => Ok(()),
            }
        }
    }
}

fn state(change: &Change) -> &'static str {
    let revision = change.document.as_ref().map_or(0, |document| document.revision);
    match (change.exists, change.snapshot, revision) {
        (false, _, 0) => "there is no document yet",
        (false, _, _) => "deleted",
        (true, true, _) => "as it is now",
        (true, false, _) => "changed",
    }
}
