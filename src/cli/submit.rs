//! `receiptd submit`: one operation, its receipt, and the ack of its result.
//!
//! What must stay true: the id is known to the person before the first byte is sent; a lost answer
//! is never reported as a failure, but with the id and the exact command that looks it up.

use std::{collections::BTreeMap, fs, io::Read, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};

use super::{
    EXIT_USAGE, Failure,
    connection::{
        ConnectArgs, EXIT_CODES, EXIT_UNKNOWN, OutputArgs, call_failed, exit_of_state,
        parse_mint_time,
    },
    json,
    output::{note, say_as, submitted_table},
};
use crate::{
    client::{
        connect::Client,
        identity::OperationIdentity,
        submit::{Submission, SubmitError, Submitted},
    },
    proto::{
        AckDeliveriesRequest, AckTarget, Delivery, DeliveryMode, Intent, LockMode, OnLocked,
        delivery,
    },
};

const EXAMPLES: &str = "\
Examples:
  receiptd submit document.put notes/today '{\"content\": \"hello\"}'
  receiptd submit document.append log '{\"line\": \"one\"}' --expected-revision 3
  receiptd submit --id save:42 --mint-time 2026-01-31T10:00:00Z --action document.put \\
      --target a.png --content-type image/png --args-file a.png

The id is printed before anything is sent. When no answer comes, run the same command with that id
again, or look it up; never use a new id for an action whose outcome you do not know.
";

/// How long the target stays locked.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LockModeArg {
    /// Until the operation has ended.
    UntilFinal,
    /// Until its result is acked or expires.
    UntilAcked,
}

/// What happens when the target is locked.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OnLockedArg {
    /// The operation waits for its turn.
    Wait,
    /// The submit is refused.
    Fail,
}

/// Submit one operation and print its receipt.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
pub struct SubmitArgs {
    /// The operation's id; minted and printed to standard error when absent.
    #[arg(long)]
    pub id: Option<String>,
    /// When the id was made: RFC 3339 or milliseconds since 1970. Needed unless it is a UUIDv7.
    #[arg(long, value_parser = parse_mint_time, requires = "id")]
    pub mint_time: Option<i64>,
    /// What to do, for example document.put.
    #[arg(value_name = "ACTION", required_unless_present = "action", conflicts_with = "action")]
    pub action_first: Option<String>,
    /// What to do it to: a path.
    #[arg(value_name = "TARGET", required_unless_present = "target", conflicts_with = "target")]
    pub target_second: Option<String>,
    /// The arguments; {} when absent.
    #[arg(value_name = "ARGS", conflicts_with_all = ["args", "args_file"])]
    pub args_third: Option<String>,
    /// The same as ACTION.
    #[arg(long)]
    pub action: Option<String>,
    /// The same as TARGET.
    #[arg(long)]
    pub target: Option<String>,
    /// The revision the target must be at; 0: it must not exist.
    #[arg(long)]
    pub expected_revision: Option<i64>,
    /// The same as ARGS.
    #[arg(long, conflicts_with = "args_file", value_name = "JSON")]
    pub args: Option<String>,
    /// A file that holds the arguments; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub args_file: Option<PathBuf>,
    /// The content type of the arguments.
    #[arg(long, default_value = "application/json")]
    pub content_type: String,
    /// How long the target stays locked.
    #[arg(long, value_enum)]
    pub lock_mode: Option<LockModeArg>,
    /// What happens when the target is locked.
    #[arg(long, value_enum)]
    pub on_locked: Option<OnLockedArg>,
    /// The inbox of the result.
    #[arg(long, default_value = "default")]
    pub inbox: String,
    /// Record the outcome without queueing it into an inbox.
    #[arg(long)]
    pub no_delivery: bool,
    /// How long the answer may be held back until the outcome is there; at most 60 s.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub wait: Duration,
    /// Check everything, change nothing.
    #[arg(long)]
    pub validate_only: bool,
    /// A label for lists; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// How long the operation may wait for its start.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub start_deadline: Option<Duration>,
    /// Leave the result unacked.
    #[arg(long)]
    pub no_ack: bool,
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
/// [`Failure`] with the exit code of what is known.
pub async fn run(args: SubmitArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let arguments = read_arguments(&args)?;
    let identity = match &args.id {
        Some(id) => OperationIdentity::from_parts(id, args.mint_time)
            .map_err(|error| Failure::new(EXIT_USAGE, error))?,
        None => client.mint(),
    };
    if args.id.is_none() {
        note(format!("operation id: {identity}"));
    }
    let submission = to_submission(&args, identity, arguments);
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Err(interrupted(&args, &submission.identity)),
        outcome = client.submit(&submission) => outcome,
    };
    let submitted = outcome.map_err(|error| submit_failed(&args, &error))?;
    let response = &submitted.response;
    say_as(args.output.output, || json::submitted(response), || submitted_table(response))?;
    if !args.no_ack {
        ack_own(&client, &submitted).await;
    }
    if response.validated_only {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(exit_of_state(submitted.state()))
}

fn to_submission(args: &SubmitArgs, identity: OperationIdentity, arguments: Vec<u8>) -> Submission {
    let lock_mode = match args.lock_mode {
        None => LockMode::Unspecified,
        Some(LockModeArg::UntilFinal) => LockMode::UntilFinal,
        Some(LockModeArg::UntilAcked) => LockMode::UntilAcked,
    };
    let on_locked = match args.on_locked {
        None => OnLocked::Unspecified,
        Some(OnLockedArg::Wait) => OnLocked::Wait,
        Some(OnLockedArg::Fail) => OnLocked::Fail,
    };
    let intent = Intent {
        action: either(&args.action_first, &args.action),
        target: either(&args.target_second, &args.target),
        expected_revision: args.expected_revision,
        arguments,
        content_type: args.content_type.clone(),
        lock_mode: lock_mode.into(),
    };
    Submission {
        identity,
        intent,
        inbox: args.inbox.clone(),
        delivery: if args.no_delivery { DeliveryMode::None } else { DeliveryMode::Queue },
        on_locked,
        start_deadline: args.start_deadline,
        wait: (!args.wait.is_zero()).then_some(args.wait),
        validate_only: args.validate_only,
        labels: args.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
    }
}

/// A word that may be given by its place or by its name; clap sees to it that one of them is.
fn either(by_place: &Option<String>, by_name: &Option<String>) -> String {
    by_place.as_ref().or(by_name.as_ref()).cloned().unwrap_or_default()
}

fn read_arguments(args: &SubmitArgs) -> Result<Vec<u8>, Failure> {
    let Some(path) = &args.args_file else {
        let given = either(&args.args_third, &args.args);
        return Ok(if given.is_empty() { b"{}".to_vec() } else { given.into_bytes() });
    };
    let read = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    read.map_err(|error| Failure::new(EXIT_USAGE, format!("{}: {error}", path.display())))
}

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label has the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The result has been printed: its ack is sent. When that is lost, the result stays in the inbox,
/// which is harmless and said.
async fn ack_own(client: &Client, submitted: &Submitted) {
    let open = |delivery: &&Delivery| {
        matches!(delivery.state(), delivery::State::Pending | delivery::State::InFlight)
    };
    let deliveries: Vec<AckTarget> = submitted
        .response
        .deliveries
        .iter()
        .filter(open)
        .map(|delivery| AckTarget { inbox: delivery.inbox.clone(), sequence: delivery.sequence })
        .collect();
    if deliveries.is_empty() {
        return;
    }
    let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    if let Err(failure) = client.ack(request).await {
        note(format!("the result was not acked and stays in its inbox: {failure}"));
    }
}

fn submit_failed(args: &SubmitArgs, error: &SubmitError) -> Failure {
    match error {
        SubmitError::Refused { failure, .. } => call_failed(failure),
        SubmitError::NotSent { .. } => Failure::plain(error),
        SubmitError::OutcomeUnknown { identity, last, .. } => Failure::new(
            EXIT_UNKNOWN,
            format!(
                "no answer came for operation {identity}: its outcome is not known (last: {last}).\
                 {}",
                what_next(args, identity)
            ),
        ),
    }
}

fn interrupted(args: &SubmitArgs, identity: &OperationIdentity) -> Failure {
    Failure::new(
        EXIT_UNKNOWN,
        format!(
            "interrupted: the outcome of operation {identity} is not known; stopping here does not \
             cancel it.{}",
            what_next(args, identity)
        ),
    )
}

fn what_next(args: &SubmitArgs, identity: &OperationIdentity) -> String {
    format!(
        "\nIt may have been applied, or may still be. Look it up:\n  {}\nor run the same command \
         with --id {identity} again. Do not use a new id for it.",
        args.connect.get_command(identity)
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{super::Cli, *};

    fn parse(line: &[&str]) -> SubmitArgs {
        let cli = Cli::try_parse_from(line).expect("valid arguments");
        match cli.command {
            super::super::Command::Submit(args) => *args,
            other => panic!("another command: {other:?}"),
        }
    }

    #[test]
    fn arguments_become_a_submission() {
        let args = parse(&[
            "receiptd",
            "submit",
            "--id",
            "save:1",
            "--mint-time",
            "5",
            "--action",
            "a",
            "--target",
            "t",
            "--label",
            "k=v=w",
            "--no-delivery",
            "--lock-mode",
            "until-acked",
            "--on-locked",
            "fail",
            "--wait",
            "0s",
            "--start-deadline",
            "5m",
        ]);
        let identity = OperationIdentity::from_caller("save:1", 5).expect("a valid identity");
        let arguments = read_arguments(&args).expect("no file is read");
        let request = to_submission(&args, identity, arguments).to_request();
        assert_eq!(request.labels.get("k").map(String::as_str), Some("v=w"));
        assert_eq!(request.delivery(), DeliveryMode::None);
        assert_eq!(request.on_locked(), OnLocked::Fail);
        assert_eq!(request.wait, None);
        assert_eq!(request.start_deadline.map(|time| time.seconds), Some(300));
        let intent = request.intent.expect("an intent is always sent");
        assert_eq!((intent.arguments, intent.lock_mode), (b"{}".to_vec(), 2));
    }

    #[test]
    fn action_target_and_arguments_may_be_given_by_their_place() {
        let args = parse(&["receiptd", "submit", "document.put", "a/b", "{\"content\":\"\"}"]);
        let submission = to_submission(
            &args,
            OperationIdentity::mint_at(1, &[0; 10]),
            read_arguments(&args).expect("no file is read"),
        );
        assert_eq!(submission.intent.action, "document.put");
        assert_eq!(submission.intent.target, "a/b");
        assert_eq!(submission.intent.arguments, b"{\"content\":\"\"}");
        assert!(Cli::try_parse_from(["receiptd", "submit", "document.put"]).is_err());
    }

    #[test]
    fn doubt_names_the_id_and_the_look_up() {
        let args = parse(&["receiptd", "submit", "--action", "a", "--target", "t"]);
        let identity = OperationIdentity::mint_at(1, &[0; 10]);
        let text = interrupted(&args, &identity).to_string();
        assert!(text.contains("not known"), "{text}");
        assert!(text.contains(&format!("receiptd get {identity}")), "{text}");
    }
}
