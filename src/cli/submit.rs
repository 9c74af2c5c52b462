//! `receiptd submit`: one operation, its receipt, and the ack of its result.
//!
//! What must stay true: the id is known to the person before the first byte is sent; a lost answer
//! is never reported as a failure, but with the id and the exact command that looks it up.

use std::{collections::BTreeMap, io::Read, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};

use super::{
    EXIT_USAGE, Failure,
    connection::{
        ConnectArgs, EXIT_CODES, EXIT_UNKNOWN, OutputArgs, OutputFormat, exit_of_state,
        identity_of, parse_mint_time, read_file,
    },
    failures::{call_failed, told},
    json,
    output::{note, say, say_as, submitted_table},
    values::{duration, whole},
};
use crate::{
    client::{
        connect::Client,
        identity::OperationIdentity,
        retry::RetryLimits,
        send::{SendError, Submitted},
        submission::Submission,
    },
    proto::{
        AckDeliveriesRequest, AckResult, AckTarget, Delivery, DeliveryMode, Intent, LockMode,
        OnLocked, ResultKind, delivery,
    },
};

const EXAMPLES: &str = "\
Examples:
  receiptd submit document.put notes/today '{\"content\": \"hello\"}'
  receiptd submit document.append log '{\"line\": \"one\"}' --expected-revision 3
  MINTED=$(date +%s)000  # keep it with the id: every later call about the id names it
  receiptd submit --id save:42 --mint-time \"$MINTED\" --action document.put \\
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

/// What is kept of the result.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ResultArg {
    /// The document's content after the change.
    Content,
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
    /// What to do (for example document.put), what to do it to (a path), and the arguments ({}
    /// when absent); without those that an option names.
    #[arg(value_name = "ACTION TARGET ARGS", num_args = 0..=3)]
    pub words: Vec<String>,
    /// The same as ACTION.
    #[arg(long)]
    pub action: Option<String>,
    /// The same as TARGET.
    #[arg(long)]
    pub target: Option<String>,
    /// The revision the target must be at; 0: it must not exist.
    #[arg(long, value_parser = whole::<i64>)]
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
    /// How long the answer may be held back until the outcome is there; at most 60 s, and half of
    /// --timeout where that is given.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub wait: Duration,
    /// Check everything, change nothing.
    #[arg(long)]
    pub validate_only: bool,
    /// Keep this beside the receipt; `receiptd get ID --result FILE` reads it.
    #[arg(long, value_enum)]
    pub result: Option<ResultArg>,
    /// A label for lists; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// How long the operation may wait for its start.
    #[arg(long, value_parser = duration)]
    pub start_deadline: Option<Duration>,
    /// Leave the result unacked; without this it is acked once it was printed.
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
    let words = words(&args)?;
    let wait = wait(&args);
    let client = match args.connect.timeout {
        // The library grants the wait on top.
        Some(timeout) => client
            .with_limits(RetryLimits { total: timeout.saturating_sub(wait), ..client.limits() }),
        None => client,
    };
    let identity = match &args.id {
        Some(id) => identity_of(id, args.mint_time)?,
        None => client.mint(),
    };
    if args.id.is_none() {
        note(format!("operation id: {identity}"));
    }
    let submission = to_submission(&args, words, wait);
    let sending = async {
        match args.validate_only {
            true => client.validate(&identity, &submission).await,
            false => client.send(&identity, &submission).await,
        }
    };
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Err(interrupted(&args, &identity)),
        outcome = sending => outcome,
    };
    let submitted = outcome.map_err(|error| submit_failed(&args, &error))?;
    let response = &submitted.response;
    say_as(args.output.output, || json::submitted(response), || submitted_table(response))?;
    if !args.no_ack {
        ack_own(&client, &submitted, &args).await?;
    }
    if response.validated_only {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(exit_of_state(submitted.state()))
}

/// How long the answer may be held back: a call whose time is limited keeps half of it for itself.
fn wait(args: &SubmitArgs) -> Duration {
    args.connect.timeout.map_or(args.wait, |timeout| args.wait.min(timeout / 2))
}

fn to_submission(args: &SubmitArgs, words: Words, wait: Duration) -> Submission {
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
        action: words.action,
        target: words.target,
        expected_revision: args.expected_revision,
        arguments: words.arguments,
        content_type: args.content_type.clone(),
        lock_mode: lock_mode.into(),
    };
    Submission {
        intent,
        inbox: args.inbox.clone(),
        delivery: if args.no_delivery { DeliveryMode::None } else { DeliveryMode::Queue },
        on_locked,
        start_deadline: args.start_deadline,
        wait: (!wait.is_zero()).then_some(wait),
        result: match args.result {
            None => ResultKind::Unspecified,
            Some(ResultArg::Content) => ResultKind::Content,
        },
        labels: args.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
    }
}

/// What may be given by its place or by an option.
struct Words {
    action: String,
    target: String,
    arguments: Vec<u8>,
}

/// Each word takes the first place that no option has taken.
fn words(args: &SubmitArgs) -> Result<Words, Failure> {
    let mut places = args.words.iter();
    let mut word = |by_name: &Option<String>| by_name.as_ref().or_else(|| places.next()).cloned();
    let (action, target) = (word(&args.action), word(&args.target));
    let arguments = match args.args_file {
        Some(_) => String::new(),
        None => word(&args.args).unwrap_or_default(),
    };
    if let Some(over) = places.next() {
        let text = format!("{over:?} is one word too many: an option names what stands there");
        return Err(Failure::new(EXIT_USAGE, text));
    }
    let needed = |word: Option<String>, name: &str| {
        let text = format!("{name} is missing; see receiptd submit --help");
        word.ok_or_else(|| Failure::new(EXIT_USAGE, text))
    };
    Ok(Words {
        action: needed(action, "ACTION")?,
        target: needed(target, "TARGET")?,
        arguments: read_arguments(args, arguments)?,
    })
}

fn read_arguments(args: &SubmitArgs, given: String) -> Result<Vec<u8>, Failure> {
    let Some(path) = &args.args_file else {
        return Ok(if given.is_empty() { b"{}".to_vec() } else { given.into_bytes() });
    };
    if path.as_os_str() != "-" {
        return read_file("--args-file", path);
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| Failure::new(EXIT_USAGE, format!("standard input: {error}")))?;
    Ok(bytes)
}

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label has the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The result has been printed: its ack is sent, and told as part of what people read. When it is
/// lost, the result stays in the inbox, which is harmless and said.
async fn ack_own(client: &Client, submitted: &Submitted, args: &SubmitArgs) -> Result<(), Failure> {
    let open = |delivery: &&Delivery| {
        matches!(delivery.state(), delivery::State::Pending | delivery::State::InFlight)
    };
    let deliveries: Vec<AckTarget> = submitted
        .response
        .deliveries
        .iter()
        .filter(open)
        .map(|delivery| AckTarget {
            inbox: delivery.inbox.clone(),
            sequence: delivery.sequence,
            ..AckTarget::default()
        })
        .collect();
    if deliveries.is_empty() {
        return Ok(());
    }
    let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    match (client.ack(request).await, args.output.output) {
        (Ok(answer), OutputFormat::Table) => {
            answer.results.iter().try_for_each(|result| say(ack_sentence(result)))
        }
        // The answer of this command is one JSON value.
        (Ok(_), OutputFormat::Json) => Ok(()),
        (Err(failure), _) => {
            let told = told(&failure, &args.connect.endpoint);
            note(format!("the result was not acked and stays in its inbox: {told}"));
            Ok(())
        }
    }
}

fn ack_sentence(result: &AckResult) -> String {
    let outcome = result.outcome().as_str_name().trim_start_matches("ACK_OUTCOME_");
    format!("{outcome}: {} #{}, by this command", result.inbox, result.sequence)
}

fn submit_failed(args: &SubmitArgs, error: &SendError) -> Failure {
    match error {
        SendError::Refused { failure, .. } => call_failed(failure, &args.connect.endpoint),
        SendError::NotSent { identity, failure } => {
            let told = told(failure, &args.connect.endpoint);
            Failure::plain(format!("operation {identity} was not sent: {told}"))
        }
        SendError::OutcomeUnknown { identity, last, .. } => Failure::new(
            EXIT_UNKNOWN,
            format!(
                "no answer came for operation {identity}: its outcome is not known (last: {}).{}",
                told(last, &args.connect.endpoint),
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
        let words = words(&args).expect("no file is read");
        let request = to_submission(&args, words, wait(&args)).to_request(&identity);
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
        let words = words(&args).expect("no file is read");
        let submission = to_submission(&args, words, wait(&args));
        assert_eq!(submission.intent.action, "document.put");
        assert_eq!(submission.intent.target, "a/b");
        assert_eq!(submission.intent.arguments, b"{\"content\":\"\"}");
    }

    #[test]
    fn doubt_names_the_id_and_the_look_up() {
        let args = parse(&["receiptd", "submit", "--action", "a", "--target", "t"]);
        let identity = OperationIdentity::mint_at(1, &[0; 10]);
        let text = interrupted(&args, &identity).to_string();
        assert!(text.contains("not known"), "{text}");
        assert!(text.contains(&format!(" get {identity}")), "{text}");
    }

    #[test]
    fn a_limited_call_waits_for_half_of_its_time_at_most() {
        let seconds = |line: &[&str]| {
            wait(&parse(&[&["receiptd", "submit", "a", "b"], line].concat())).as_secs_f64()
        };
        assert_eq!(seconds(&[]), 10.0);
        assert_eq!(seconds(&["--timeout", "5s"]), 2.5);
        assert_eq!(seconds(&["--timeout", "5s", "--wait", "1s"]), 1.0);
        assert_eq!(seconds(&["--wait", "60s"]), 60.0);
    }

    #[test]
    fn each_word_takes_the_first_place_that_no_option_has_taken() {
        let given = |line: &[&str]| {
            let read = words(&parse(&[&["receiptd", "submit"], line].concat()));
            read.map(|words| (words.action, words.target, words.arguments))
        };
        let whole = ("x".to_owned(), "y".to_owned(), b"{}".to_vec());
        for line in [
            &["x", "y", "{}"][..],
            &["--action", "x", "--target", "y", "{}"],
            &["--target", "y", "x", "{}"],
            &["--action", "x", "y", "--args", "{}"],
            &["x", "y"],
        ] {
            assert_eq!(given(line).ok(), Some(whole.clone()), "{line:?}");
        }
        for line in [&["x"][..], &[], &["--args", "{}", "x", "y", "{}"]] {
            let failure = given(line).expect_err("refused");
            assert_eq!(failure.exit_code(), ExitCode::from(EXIT_USAGE), "{line:?}");
        }
    }
}
