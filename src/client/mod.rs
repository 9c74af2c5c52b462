//! What an editor links: the typed client of receiptd.
//!
//! What it is for: to submit an instruction so that a lost connection never makes it happen twice,
//! and to receive the results so that a restart never loses one.
//!
//! What must stay true:
//! - The identity of an operation exists before its first byte is sent, and every retry carries it.
//!   Keep [`identity::OperationIdentity`] where a restart finds it (it is serialisable), and submit
//!   only after that.
//! - A missing answer is never reported as a failure. When the limits of retrying are reached, the
//!   answer is [`submit::SubmitError::OutcomeUnknown`], which names the id and the one safe next
//!   step: look up the same id.
//! - A result is handed to the application once per reader state; what comes again is reported as
//!   already seen and acked again until the server has answered.
//! - No task outlives its owner: the reader's tasks live in a set that ends with the reader.
//!
//! What is deliberately not here: anything of the server (domain, engine, stores), any use of a
//! model's call id, a session id or a transport's request id as identity, and any decision to send
//! an instruction again under another id.
//!
//! Modules in reading order: [`connect`], [`identity`], [`error`], [`retry`], [`submit`],
//! [`calls`], [`reader_state`], [`inbox`].
//!
//! ```no_run
//! use receiptd::client::{
//!     connect::{Client, ConnectOptions},
//!     inbox::{InboxReader, News, ReaderOptions},
//!     reader_state::ReaderState,
//!     submit::Submission,
//! };
//! use receiptd::proto;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7070", ConnectOptions::plain())?;
//!
//! // The identity comes first. Save it beside the instruction, then send.
//! let identity = client.mint();
//! let intent = proto::Intent {
//!     action: "document.append".to_owned(),
//!     target: "notes/today".to_owned(),
//!     arguments: br#"{"line": "hello"}"#.to_vec(),
//!     ..proto::Intent::default()
//! };
//! let mut submission = Submission::new(identity, intent);
//! submission.inbox = "editor".to_owned();
//! let submitted = client.submit(&submission).await?;
//! println!("{:?}", submitted.origin());
//!
//! // Results arrive apart from the submit, also after a restart with the saved state.
//! let state = ReaderState::new("editor", "installation-1");
//! let mut reader = InboxReader::start(client, state, ReaderOptions::standard());
//! loop {
//!     if let News::Result(result) = reader.next().await? {
//!         // Use the result, then say so. The ack is sent and repeated by the reader.
//!         reader.handled(&result);
//!         // Save `reader.state()` where a restart finds it.
//!     }
//! }
//! # }
//! ```

pub mod connect;

pub mod builder;

pub mod identity;

pub mod submission;

pub mod error;

pub mod pauses;

pub mod retry;

pub mod send;

pub mod outcome;

pub mod journal;

pub mod file_journal;

pub mod submit;

pub mod recover;

pub mod calls;

pub mod reader_state;

mod extend;

pub mod inbox;

pub mod results;

#[cfg(test)]
mod fake_extend;
#[cfg(test)]
pub(crate) mod fake_service;
