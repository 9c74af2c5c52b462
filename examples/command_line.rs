//! A command that may be interrupted at any moment and run again.
//!
//! `cargo run --example command_line ENDPOINT JOURNAL append notes/today hello`
//! `cargo run --example command_line ENDPOINT JOURNAL recover`

use std::{env, error::Error};

use receiptd::client::{
    connect::Client, outcome::Outcome, recover::Unsent, submission::Submission, submit::SubmitError,
};
use serde_json::json;

/// Runs one command. What an earlier run left unsettled is settled first.
pub async fn run(endpoint: &str, journal: &str, command: &[&str]) -> Result<(), Box<dyn Error>> {
    let client = Client::builder(endpoint).journal_file(journal).build()?;
    for found in client.recover(Unsent::Resubmit).await? {
        show("earlier", found.finding);
    }
    match command {
        ["recover"] => {}
        ["append", target, line] => {
            let append = Submission::json("document.append", target, &json!({ "line": line }));
            show("now", client.submit(append).await);
        }
        _ => return Err("commands: append TARGET LINE, recover".into()),
    }
    Ok(())
}

fn show(when: &str, finding: Result<Outcome, SubmitError>) {
    match finding {
        Ok(outcome @ Outcome::Known(_)) => println!("{when}: known: {outcome}"),
        Ok(outcome @ Outcome::Pending(_)) => println!("{when}: pending: {outcome}"),
        Ok(outcome @ Outcome::Unknown(_)) => println!("{when}: unknown: {outcome}"),
        Ok(outcome @ Outcome::Expired(_)) => println!("{when}: expired: {outcome}"),
        Err(no_effect) => println!("{when}: no effect: {no_effect}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [endpoint, journal, command @ ..] = &arguments[..] else {
        return Err("usage: command_line ENDPOINT JOURNAL COMMAND".into());
    };
    run(endpoint, journal, command).await
}
