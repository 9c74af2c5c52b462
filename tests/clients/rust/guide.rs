use std::{error::Error, time::Duration};

use receiptd::client::{
    connect::{Client, ConnectOptions, Secret},
    inbox::{InboxReader, ReaderOptions},
    reader_state::{News, ReaderState},
    submission::Submission,
};
use serde_json::json;

/// Submits one operation, and shows what comes into the inbox; returns what it printed.
pub async fn edit(endpoint: &str, token: Option<String>) -> Result<String, Box<dyn Error>> {
    let options = match token {
        Some(token) => ConnectOptions::with_token(Secret::new(token)),
        None => ConnectOptions::plain(),
    };
    let client = Client::connect(endpoint, options)?;
    let mut printed = String::new();

    // Once per intended action. Save the identity beside the action before the first attempt.
    let identity = client.mint();
    let line = json!({ "line": "hello" });
    let append = Submission::json("document.append", "notes/today", &line).into_inbox("editor");
    // Repeats under the same id for as long as its limits allow. What it reports then is never a
    // failure of the operation, but that its outcome is not known.
    let submitted = client.send(&identity, &append).await?;
    printed += &format!("{:?} after {} attempts\n", submitted.origin(), submitted.attempts);

    // Reconnects with its token by itself, and repeats each ack until it is answered.
    let state = ReaderState::new("editor", "my-laptop");
    let mut reader = InboxReader::start(client, state, ReaderOptions::standard());
    loop {
        match reader.next().await? {
            News::Result(result) => {
                let sequence = result.delivery.as_ref().map_or(0, |delivery| delivery.sequence);
                printed += &format!("new {sequence}\n");
                reader.handled(&result);
                // Save `reader.state()` where a restart finds it.
            }
            // An editor goes on reading.
            News::CaughtUp => break,
            // Came again, went elsewhere, or the connection is being made anew.
            _ => {}
        }
    }
    printed += &format!("acked: {}\n", reader.flush(Duration::from_secs(10)).await);
    Ok(printed)
}
