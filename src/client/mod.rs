//! What an editor links: the typed client of receiptd.
//!
//! What it is for: to submit an instruction so that a lost connection never makes it happen twice,
//! and to receive the results so that a restart never loses one.
//!
//! What must stay true:
//! - The identity of an operation exists, and is kept, before its first byte is sent; every retry
//!   carries it. [`connect::Client::submit`] makes it and keeps it in the [`journal`]; whoever
//!   sends without one ([`connect::Client::send`]) keeps [`identity::OperationIdentity`] himself.
//! - A missing answer is never reported as a failure. When the limits of retrying are reached, the
//!   answer is [`outcome::Outcome::Unknown`], which names the id and the one safe next step; an
//!   error of a submit means that it had no effect and never will.
//! - A result is handed to the application once per life of the process; what comes again is
//!   recognised, also after a restart, and acked again until the server has answered.
//! - No task outlives its owner: a reader's tasks live in a set that ends with the reader.
//!
//! What is deliberately not here: anything of the server (domain, engine, stores), any use of a
//! model's call id, a session id or a transport's request id as identity, and any decision to send
//! an instruction again under another id.
//!
//! Modules in reading order: [`connect`] and [`builder`]; [`identity`], [`submission`],
//! [`outcome`]; [`submit`], [`journal`], [`file_journal`], [`recover`]; [`results`]. Below them:
//! [`error`], [`pauses`], [`retry`], [`send`], [`calls`], [`administration`], [`reader_state`], [`inbox`].
//!
//! ```no_run
//! use receiptd::client::{
//!     connect::Client, outcome::Outcome, recover::Unsent, results::Received,
//!     submission::Submission,
//! };
//! use serde_json::json;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client =
//!     Client::builder("http://127.0.0.1:7070").journal_file("editor.journal").build()?;
//!
//! // First whatever an earlier life of this program left unsettled.
//! for found in client.recover(Unsent::Resubmit).await? {
//!     println!("{}: {:?}", found.entry.identity, found.finding);
//! }
//!
//! // The identity is made and kept, then the submission is sent.
//! let line = json!({ "line": "hello" });
//! let append = Submission::json("document.append", "notes/today", &line).into_inbox("editor");
//! match client.submit(append).await? {
//!     Outcome::Known(answer) => println!("ended: {:?}", answer.state()),
//!     Outcome::Pending(_) => println!("accepted; the result comes to the inbox"),
//!     Outcome::Unknown(doubt) => println!("{}", doubt.text),
//!     Outcome::Expired(lapsed) => println!("{}", lapsed.text),
//! }
//!
//! // Results arrive apart from the submit, also after a restart. Ok means used: then it is acked.
//! let show = async |result: Received| {
//!     println!("{:?} {}", result.freshness, result.delivery.operation_id);
//!     Ok::<(), std::io::Error>(())
//! };
//! client.inbox("editor").consumer("laptop").stream(show).await?;
//! # Ok(())
//! # }
//! ```

pub mod connect;

pub mod builder;

pub mod identity;

pub mod submission;

pub mod outcome;

pub mod submit;

pub mod journal;

pub mod file_journal;

pub mod recover;

pub mod results;

pub mod error;

pub mod pauses;

pub mod retry;

pub mod send;

pub mod calls;

pub mod administration;

pub mod reader_state;

mod extend;

pub mod inbox;

#[cfg(test)]
mod fake_data;
#[cfg(test)]
mod fake_script;
#[cfg(test)]
pub(crate) mod fake_service;
