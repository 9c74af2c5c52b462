//! A tool of an agent: the model asks for an edit and gets back, in words, what is known of it.
//!
//! The id belongs to the intended action. It is made and kept by the library, never taken from the
//! model's call: a model that is asked again makes a new call id for the same action.
//!
//! `cargo run --example agent_tool ENDPOINT JOURNAL '{"target": "notes/today", "line": "hello"}'`

use std::{env, error::Error, time::Duration};

use receiptd::client::{
    connect::Client, outcome::Outcome, recover::Unsent, submission::Submission,
};
use serde_json::{Value, json};

/// Appends a line to a document, and says what came of it, for the model to read.
pub async fn append_line(client: &Client, arguments: &Value) -> String {
    let (Some(target), Some(line)) = (arguments["target"].as_str(), arguments["line"].as_str())
    else {
        return "Nothing was done: the tool needs target and line, both as text.".to_owned();
    };
    let append = Submission::json("document.append", target, &json!({ "line": line }))
        .into_inbox("agent")
        .waiting(Duration::from_secs(20));
    match client.submit(append).await {
        Ok(outcome) => in_words(&outcome),
        Err(no_effect) => format!("Nothing was changed: {no_effect}. The call may be made again."),
    }
}

/// What the agent learns when it is started again, before it calls any tool.
pub async fn settle(client: &Client) -> Result<Vec<String>, Box<dyn Error>> {
    let mut all = Vec::new();
    for found in client.recover(Unsent::Report).await? {
        all.push(match found.finding {
            Ok(outcome) => in_words(&outcome),
            Err(no_effect) => format!("{no_effect}. The action may be asked for anew."),
        });
    }
    Ok(all)
}

/// A model that reads "failed" tries again. Doubt is said as doubt.
fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Known(_) if outcome.is_applied() => format!("Done. {outcome}"),
        Outcome::Known(_) => format!("Not applied. {outcome}"),
        Outcome::Pending(_) => format!("Accepted, not finished. Do not call again. {outcome}"),
        Outcome::Unknown(_) => format!("Not known yet. Do not call again. {outcome}"),
        Outcome::Expired(_) => format!("No longer on record. Read the document. {outcome}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, journal, arguments] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: agent_tool ENDPOINT JOURNAL ARGUMENTS".into());
    };
    let client = Client::builder(endpoint).journal_file(journal).build()?;
    for text in settle(&client).await? {
        println!("{text}");
    }
    println!("{}", append_line(&client, &serde_json::from_str(arguments)?).await);
    Ok(())
}
