//! `receiptd demo`: the story of a lost acknowledgement, told on a service of its own.
//!
//! What must stay true: everything that is told happens for real, over a socket; the store is
//! temporary; the whole story takes less than ten seconds.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use tokio::time::timeout;

use super::{
    Failure,
    output::{origin_sentence, say, state_word},
    rehearse::{
        proxy::{Cut, Proxy},
        server::{Server, ServerPlan, TemporaryDirectory},
    },
};
use crate::{
    client::{
        connect::{Client, ConnectOptions},
        identity::OperationIdentity,
        inbox::{InboxReader, News, ReaderOptions, ReaderState},
        retry::RetryLimits,
        send::SendError,
        submission::Submission,
    },
    proto::{DeliveredResult, Intent, Origin, document::Content},
};

const TARGET: &str = "notes/demo";
const INBOX: &str = "demo";
/// Nothing in the story waits longer for anything.
const STEP_LIMIT: Duration = Duration::from_secs(5);

/// Tell the story of a lost acknowledgement, on a temporary store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  receiptd demo\n  receiptd demo lost-ack")]
pub struct DemoArgs {
    /// Which story.
    #[arg(default_value = "lost-ack", value_parser = ["lost-ack"])]
    pub story: String,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the story does not go as it must.
pub async fn run(_args: DemoArgs) -> Result<ExitCode, Failure> {
    let directory = TemporaryDirectory::create("demo")?;
    let server = Server::start(&ServerPlan::embedded(directory.path())).await?;
    let proxy = Proxy::start(server.address())
        .await
        .map_err(|error| Failure::plain(format!("the proxy cannot listen: {error}")))?;
    say("A receiptd runs on a temporary store. Between it and this client stands a proxy that")?;
    say("can lose things.\n")?;
    let told = tell(&proxy).await;
    server.kill().await?;
    told.map(|()| ExitCode::SUCCESS)
}

async fn tell(proxy: &Proxy) -> Result<(), Failure> {
    let client =
        Client::connect(&proxy.endpoint(), ConnectOptions::plain()).map_err(Failure::plain)?;
    let (identity, submission) = (client.mint(), submission());
    say(format!("1. The client makes the id first: {identity}"))?;
    say("   It would save it now, before anything is sent.\n")?;
    lose_the_reply(proxy, &client, &identity, &submission).await?;
    submit_again(&client, &identity, &submission).await?;
    read_and_ack(&client).await?;
    show_the_effect(&client).await
}

fn submission() -> Submission {
    let intent = Intent {
        action: "document.append".to_owned(),
        target: TARGET.to_owned(),
        arguments: br#"{"line": "paid once"}"#.to_vec(),
        ..Intent::default()
    };
    Submission::new(intent).into_inbox(INBOX)
}

async fn lose_the_reply(
    proxy: &Proxy,
    client: &Client,
    identity: &OperationIdentity,
    submission: &Submission,
) -> Result<(), Failure> {
    say("2. It submits: append the line \"paid once\" to notes/demo.")?;
    proxy.arm(Cut::BeforeReply);
    let impatient = client.with_limits(RetryLimits::once(STEP_LIMIT));
    match impatient.send(identity, submission).await {
        Err(SendError::OutcomeUnknown { .. }) => {
            say("   The service commits and answers; the proxy swallows the answer and cuts the")?;
            say("   connection. The client does not say \"failed\". It says: the outcome is not")?;
            say("   known, look up the same id or send it again.\n")
        }
        other => Err(Failure::plain(format!("the reply was not lost: {other:?}"))),
    }
}

async fn submit_again(
    client: &Client,
    identity: &OperationIdentity,
    submission: &Submission,
) -> Result<(), Failure> {
    say("3. It connects again and sends the same submit under the same id.")?;
    let submitted = client.send(identity, submission).await.map_err(Failure::plain)?;
    let operation = submitted.operation().cloned().unwrap_or_default();
    let sentence = origin_sentence(submitted.origin(), &operation);
    say(format!("   {}, {sentence}.\n", state_word(submitted.state())))?;
    match submitted.origin() {
        Origin::Replayed => Ok(()),
        other => Err(Failure::plain(format!("a replay was expected, not {other:?}"))),
    }
}

async fn read_and_ack(client: &Client) -> Result<(), Failure> {
    say("4. It reads its inbox. The result has waited there, whoever lost which connection.")?;
    let state = ReaderState::new(INBOX, "demo-client");
    let mut reader = InboxReader::start(client.clone(), state, ReaderOptions::alone());
    let result = timeout(STEP_LIMIT, first_result(&mut reader))
        .await
        .map_err(|_| Failure::plain("no result came"))??;
    let delivery = result.delivery.clone().unwrap_or_default();
    say(format!(
        "   Result number {} of operation {} arrives.",
        delivery.sequence, delivery.operation_id
    ))?;
    reader.handled(&result);
    if !reader.flush(STEP_LIMIT).await {
        return Err(Failure::plain("the ack was not answered"));
    }
    reader.close().await;
    say("   It acks it, and the service confirms: this result will not come again.\n")
}

async fn first_result(reader: &mut InboxReader) -> Result<Box<DeliveredResult>, Failure> {
    loop {
        match reader.next().await {
            Ok(News::Result(result)) => return Ok(result),
            Ok(_) => {}
            Err(error) => return Err(Failure::plain(error)),
        }
    }
}

async fn show_the_effect(client: &Client) -> Result<(), Failure> {
    let document = client.document(TARGET).await.map_err(Failure::plain)?;
    let text = match &document.content {
        Some(Content::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let lines = text.lines().count();
    say(format!(
        "5. The document has {lines} line, at revision {}: two submits, one effect, one result.",
        document.revision
    ))?;
    if lines == 1 && document.revision == 1 {
        Ok(())
    } else {
        Err(Failure::plain(format!("one effect was expected, the document is {text:?}")))
    }
}
