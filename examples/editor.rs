//! An editor: every edit gets an id that outlives a crash, and results come on a stream.
//! Type `POSITION TEXT`, for example `0 hello`: cargo run --example editor ENDPOINT JOURNAL

use std::{convert::Infallible, error::Error};

use receiptd::client::{
    connect::Client, recover::Unsent, results::Received, submission::Submission,
};
use serde_json::json;
use tokio::sync::mpsc::Receiver;

/// Where it was typed, in code points, and what.
pub type Keystroke = (usize, String);

/// Submits what is typed and shows results, until the typing ends.
pub async fn edit(client: &Client, mut keys: Receiver<Keystroke>) -> Result<(), Box<dyn Error>> {
    for found in client.recover(Unsent::Resubmit).await? {
        println!("before the restart: {:?}", found.finding.map(|outcome| outcome.to_string()));
    }
    let typing = async {
        while let Some((position, text)) = keys.recv().await {
            let edits = json!({ "edits": [[position, 0, text]] });
            let splice = Submission::json("document.splice", "notes/today", &edits);
            match client.submit(splice.into_inbox("editor")).await {
                Ok(outcome) => println!("{outcome}"), // known, pending, unknown or expired
                Err(no_effect) => println!("{no_effect}"), // the same may be typed again
            }
        }
    };
    let show = async |result: Received| {
        println!("{:?}: {} {:?}", result.freshness, result.receipt().target, result.state());
        Ok::<(), Infallible>(()) // now it is acked
    };
    Ok(client.inbox("editor").consumer("laptop").stream_until(typing, show).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, journal] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: editor ENDPOINT JOURNAL".into());
    };
    let (typed, keys) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let Some((position, text)) = line.split_once(' ') else { continue };
            let Ok(position) = position.parse() else { continue };
            if typed.blocking_send((position, text.to_owned())).is_err() {
                return;
            }
        }
    });
    edit(&Client::builder(endpoint).journal_file(journal).build()?, keys).await
}
