//! `receiptd inbox get`, `update` and `delete`: one inbox as a whole.
//!
//! What must stay true: whoever is left in doubt about a change is told what to look at.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    Failure,
    connection::{ConnectArgs, OutputArgs},
    failures::{call_failed, change_failed},
    json,
    output::{facts, say_as, time},
};
use crate::proto::{DeleteInboxRequest, Inbox, UpdateInboxRequest};

/// One inbox with its figures.
#[derive(Debug, Args)]
pub struct InboxGetArgs {
    /// The inbox.
    #[arg(default_value = "default")]
    pub inbox: String,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Give an inbox limits of its own.
#[derive(Debug, Args)]
#[group(id = "limits", multiple = true, required = true, args = ["slots", "in_flight_limit"])]
pub struct InboxUpdateArgs {
    /// The inbox.
    pub inbox: String,
    /// Its slots, 1 to 1000000; 0 for the account's default.
    #[arg(long, value_name = "COUNT")]
    pub slots: Option<i64>,
    /// How many results may be in flight, 1 to 1000; 0 for the account's default.
    #[arg(long, value_name = "COUNT")]
    pub in_flight_limit: Option<i64>,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Delete an inbox.
#[derive(Debug, Args)]
pub struct InboxDeleteArgs {
    /// The inbox.
    pub inbox: String,
    /// Delete it with what is in it: open deliveries end as EXPIRED.
    #[arg(long)]
    pub force: bool,
    /// Only this generation of it.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub generation: i64,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Prints an inbox.
///
/// # Errors
/// [`Failure`] when the service does not answer or there is no such inbox; so too all functions
/// here.
pub(super) async fn get(args: &InboxGetArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let inbox = client
        .get_inbox(&args.inbox)
        .await
        .map_err(|failure| call_failed(&failure, &args.connect.endpoint))?;
    print(&args.output, &inbox)
}

/// Changes limits and prints the inbox as it is then.
pub(super) async fn update(args: &InboxUpdateArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let again = "Run the same command again: an update may be repeated.";
    let answer = client.update_inbox(update_request(args)).await;
    let answer =
        answer.map_err(|failure| change_failed(&failure, &args.connect.endpoint, again))?;
    print(&args.output, &answer.inbox.unwrap_or_default())
}

fn update_request(args: &InboxUpdateArgs) -> UpdateInboxRequest {
    let limits = [("slots", args.slots), ("in_flight_limit", args.in_flight_limit)];
    let named = limits.into_iter().filter(|(_, limit)| limit.is_some());
    let paths = named.map(|(path, _)| path.to_owned()).collect();
    let inbox = Inbox {
        inbox: args.inbox.clone(),
        slots: args.slots.unwrap_or(0),
        in_flight_limit: args.in_flight_limit.unwrap_or(0),
        ..Inbox::default()
    };
    let update_mask = Some(prost_types::FieldMask { paths });
    UpdateInboxRequest { inbox: Some(inbox), update_mask }
}

/// Deletes an inbox and prints it as it was.
pub(super) async fn delete(args: &InboxDeleteArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let request = DeleteInboxRequest {
        inbox: args.inbox.clone(),
        force: args.force,
        generation: args.generation,
    };
    let look = format!("See with: receiptd inbox get {}", args.inbox);
    let answer = client.delete_inbox(request).await;
    let answer =
        answer.map_err(|failure| change_failed(&failure, &args.connect.endpoint, &look))?;
    print(&args.output, &answer.inbox.unwrap_or_default())
}

fn print(output: &OutputArgs, inbox: &Inbox) -> Result<ExitCode, Failure> {
    say_as(output.output, || json!({ "inbox": json::inbox(inbox) }), || facts(inbox_facts(inbox)))?;
    Ok(ExitCode::SUCCESS)
}

fn inbox_facts(inbox: &Inbox) -> Vec<(&'static str, String)> {
    let used = inbox.reserved + inbox.pending + inbox.in_flight;
    vec![
        ("inbox", inbox.inbox.clone()),
        ("generation", inbox.generation.to_string()),
        ("slots used", format!("{used} of {}", inbox.slots)),
        ("reserved", inbox.reserved.to_string()),
        ("pending", inbox.pending.to_string()),
        ("in flight", format!("{} of {}", inbox.in_flight, inbox.in_flight_limit)),
        ("acked", inbox.acked_total.to_string()),
        ("expired", inbox.expired_total.to_string()),
        ("dead", inbox.dead_total.to_string()),
        ("numbers", format!("{} to {}", inbox.first_sequence, inbox.last_sequence)),
        ("kept from", inbox.kept_from_sequence.to_string()),
        ("consumers", inbox.consumers.len().to_string()),
        ("oldest", time(inbox.oldest_queue_time.as_ref())),
        ("created", time(inbox.create_time.as_ref())),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, inbox::InboxCommand};

    #[test]
    fn only_limits_that_are_given_change() {
        let request = |line: &[&str]| {
            let line = [&["receiptd", "inbox", "update", "a"], line].concat();
            let cli = Cli::try_parse_from(line)?;
            let Command::Inbox(args) = cli.command else { panic!("an inbox command") };
            let InboxCommand::Update(args) = args.command else { panic!("an update") };
            Ok::<_, clap::Error>(update_request(&args))
        };
        let told = request(&["--slots", "5"]).expect("good arguments");
        assert_eq!(told.update_mask.expect("a mask").paths, ["slots"]);
        assert_eq!(told.inbox.expect("an inbox").slots, 5);
        let told = request(&["--slots", "5", "--in-flight-limit", "0"]).expect("good arguments");
        assert_eq!(told.update_mask.expect("a mask").paths, ["slots", "in_flight_limit"]);
        assert!(request(&[]).is_err(), "nothing to change");
    }
}
