//! `receiptd inbox pull | extend | defer | redrive`: results and attempts by hand.
//!
//! What must stay true: each named result is answered for itself; a script sees by the exit code
//! whether all of them are where it wanted them.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::{
    EXIT_FAILURE, Failure,
    connection::{ConnectArgs, OutputArgs},
    failures::change_failed,
    json,
    output::{delivery_word, list, note, say_as, state_word},
    values::{at_least_one, duration, whole},
};
use crate::{
    client::{connect::Client, send::state_of},
    proto::{
        AttemptTarget, DeferDeliveriesRequest, DeferOutcome, DeliveredResult, DeliveryTarget,
        ExtendDeliveriesRequest, ExtendOutcome, PullDeliveriesRequest, RedriveDeliveriesRequest,
        RedriveOutcome, RedriveResult, delivery,
    },
};

const PULL_EXAMPLES: &str = "\
Examples:
  receiptd inbox pull default --wait 20s
  receiptd inbox pull default --consumer nightly --max 10 -o json

Each result that is not acked before its deadline comes again.";

const EXTEND_EXAMPLES: &str = "\
Example, the second attempt of number 17 and the first of 18:
  receiptd inbox extend default 17:2 18:1 --by 1m

Exit codes: 0 extended or acked already; 1 anything else; 5 not known";

const DEFER_EXAMPLES: &str = "\
Example, the second attempt of number 17:
  receiptd inbox defer default 17:2 --delay 30s

WINDOW_ENDS: after the delay, less than one ack deadline of the ack window would be left; nothing
changed. Defer for less, or ack it.

Exit codes: 0 deferred or acked already; 1 anything else; 5 not known";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  receiptd inbox redrive default 17 18
  receiptd inbox redrive default --all
  receiptd inbox redrive default --all --state dead -o json

Exit codes: 0 pending again, or not in need of it; 1 anything else, also a full inbox; 5 not known";

/// The longest that the service waits in one call.
const PULL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two calls of one wait: a service that is shutting down answers at once.
const PULL_PAUSE: Duration = Duration::from_millis(100);

/// Take a page of results without a stream.
#[derive(Debug, Args)]
#[command(after_help = PULL_EXAMPLES)]
pub struct InboxPullArgs {
    /// The inbox.
    #[arg(default_value = "default")]
    pub inbox: String,
    /// Who reads; a name for this call only when absent.
    #[arg(long, default_value = "")]
    pub consumer: String,
    /// How many results at most.
    #[arg(long, value_parser = at_least_one::<i32>, default_value_t = 100)]
    pub max: i32,
    /// How long to wait for a first result, for example 20s.
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub wait: Duration,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Which attempts a command is about, and where.
#[derive(Debug, Args)]
pub struct AttemptArgs {
    /// The inbox.
    pub inbox: String,
    /// The attempts, each as NUMBER:ATTEMPT.
    #[arg(required = true, value_parser = number_and_attempt)]
    pub attempts: Vec<(i64, i32)>,
    /// The consumer that must hold them.
    #[arg(long, default_value = "")]
    pub consumer: String,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

impl AttemptArgs {
    fn targets(&self) -> Vec<AttemptTarget> {
        let target = |&(sequence, attempt): &(i64, i32)| {
            let inbox = self.inbox.clone();
            AttemptTarget { inbox, sequence, attempt }
        };
        self.attempts.iter().map(target).collect()
    }
}

/// Ask for more time for the acks of attempts.
#[derive(Debug, Args)]
#[command(after_help = EXTEND_EXAMPLES)]
pub struct InboxExtendArgs {
    /// How long from now; as long as a new attempt when absent.
    #[arg(long, value_parser = duration)]
    pub by: Option<Duration>,
    #[command(flatten)]
    /// Which attempts.
    pub named: AttemptArgs,
}

/// Give attempts back, to be sent again later.
#[derive(Debug, Args)]
#[command(after_help = DEFER_EXAMPLES)]
pub struct InboxDeferArgs {
    /// When they may be sent again, from now.
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub delay: Duration,
    #[command(flatten)]
    /// Which attempts.
    pub named: AttemptArgs,
}

/// Make results that expired or died pending again.
#[derive(Debug, Args)]
#[command(after_help = REDRIVE_EXAMPLES)]
pub struct InboxRedriveArgs {
    /// The inbox.
    pub inbox: String,
    /// The numbers.
    #[arg(value_parser = whole::<i64>, required_unless_present = "all", conflicts_with = "all")]
    pub sequences: Vec<i64>,
    /// Everything in the inbox that ended without an ack.
    #[arg(long)]
    pub all: bool,
    /// Of everything only what ended like this.
    #[arg(long, requires = "all")]
    pub state: Option<EndedState>,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// How a result ended without an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EndedState {
    /// Its ack window passed.
    Expired,
    /// Its retry budget was spent.
    Dead,
}

fn number_and_attempt(text: &str) -> Result<(i64, i32), String> {
    let parsed = text.split_once(':').and_then(|(number, attempt)| {
        Some((number.parse::<i64>().ok()?, attempt.parse::<i32>().ok()?))
    });
    parsed.ok_or_else(|| "must be NUMBER:ATTEMPT, for example 17:2".to_owned())
}

fn exit(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURE) }
}

fn span(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// Runs `inbox pull`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses.
pub async fn pull(args: &InboxPullArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let wait = args.connect.timeout.map_or(args.wait, |timeout| args.wait.min(timeout));
    let end = Instant::now() + wait;
    let mut request = PullDeliveriesRequest {
        inbox: args.inbox.clone(),
        consumer_id: args.consumer.clone(),
        max_deliveries: args.max,
        wait: span(wait.min(PULL_WAIT_MAX)),
    };
    let again = "Pull again: what was taken comes again after its ack deadline.";
    let page = loop {
        let answer = client.pull(request.clone()).await;
        let page =
            answer.map_err(|failure| change_failed(&failure, &args.connect.endpoint, again))?;
        // The service answers before the time limit of one call, which may be shorter than the wait.
        let left = end.saturating_duration_since(Instant::now());
        if !page.results.is_empty() || left.is_zero() {
            break page;
        }
        request.consumer_id.clone_from(&page.consumer_id);
        request.wait = span(left.min(PULL_WAIT_MAX));
        tokio::time::sleep(PULL_PAUSE).await;
    };
    say_as(
        args.output.output,
        || {
            json!({
                "results": page.results.iter().map(json::result).collect::<Vec<_>>(),
                "consumerId": page.consumer_id,
                "pending": page.pending,
            })
        },
        || {
            let rows = page.results.iter().map(result_row).collect();
            list(&["NUMBER", "ATTEMPT", "OPERATION", "STATE", "TARGET"], rows)
        },
    )?;
    note(format!("in flight to {}; {} more wait", page.consumer_id, page.pending));
    Ok(ExitCode::SUCCESS)
}

fn result_row(result: &DeliveredResult) -> Vec<String> {
    let delivery = result.delivery.clone().unwrap_or_default();
    let operation = result.operation.clone().unwrap_or_default();
    let state = state_word(state_of(&operation));
    vec![
        delivery.sequence.to_string(),
        delivery.attempt.to_string(),
        delivery.operation_id,
        state.to_string(),
        operation.receipt.unwrap_or_default().target,
    ]
}

/// Runs `inbox extend`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses.
pub async fn extend(args: &InboxExtendArgs) -> Result<ExitCode, Failure> {
    let named = &args.named;
    let client = named.connect.client()?;
    let request = ExtendDeliveriesRequest {
        deliveries: named.targets(),
        extension: args.by.and_then(span),
        consumer_id: named.consumer.clone(),
    };
    let again = "Run the same command again: a deadline is never moved back.";
    let answer = client
        .extend(request)
        .await
        .map_err(|failure| change_failed(&failure, &named.connect.endpoint, again))?;
    let rows = answer.results.iter().map(|result| {
        let word = result.outcome().as_str_name().trim_start_matches("EXTEND_OUTCOME_");
        vec![result.sequence.to_string(), word.to_owned()]
    });
    say_as(
        named.output.output,
        || json!({ "results": answer.results.iter().map(json::extended).collect::<Vec<_>>() }),
        || list(&["NUMBER", "OUTCOME"], rows.collect()),
    )?;
    let good = [ExtendOutcome::Extended, ExtendOutcome::AlreadyAcked];
    Ok(exit(answer.results.iter().all(|result| good.contains(&result.outcome()))))
}

/// Runs `inbox defer`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses.
pub async fn defer(args: &InboxDeferArgs) -> Result<ExitCode, Failure> {
    let named = &args.named;
    let client = named.connect.client()?;
    let request = DeferDeliveriesRequest {
        deliveries: named.targets(),
        delay: span(args.delay),
        consumer_id: named.consumer.clone(),
    };
    let again = "Run the same command again: NOT_IN_FLIGHT then means that it did.";
    let answer = client
        .defer(request)
        .await
        .map_err(|failure| change_failed(&failure, &named.connect.endpoint, again))?;
    let rows = answer.results.iter().map(|result| {
        let word = result.outcome().as_str_name().trim_start_matches("DEFER_OUTCOME_");
        let state = result.delivery.as_ref().map_or_else(String::new, |it| delivery_word(it.state));
        vec![result.sequence.to_string(), word.to_owned(), state]
    });
    say_as(
        named.output.output,
        || json!({ "results": answer.results.iter().map(json::deferred).collect::<Vec<_>>() }),
        || list(&["NUMBER", "OUTCOME", "STATE"], rows.collect()),
    )?;
    let good = [DeferOutcome::Deferred, DeferOutcome::AlreadyAcked];
    Ok(exit(answer.results.iter().all(|result| good.contains(&result.outcome()))))
}

/// Runs `inbox redrive`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses.
pub async fn redrive(args: &InboxRedriveArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let results = if args.all {
        redrive_all(&client, args).await?
    } else {
        let target = |sequence: &i64| DeliveryTarget {
            inbox: args.inbox.clone(),
            sequence: *sequence,
            operation_id: String::new(),
        };
        let deliveries = args.sequences.iter().map(target).collect();
        let request =
            RedriveDeliveriesRequest { deliveries, ..RedriveDeliveriesRequest::default() };
        let answer = client.redrive(request).await;
        answer
            .map_err(|failure| change_failed(&failure, &args.connect.endpoint, REDRIVE_AGAIN))?
            .results
    };
    let rows = results.iter().map(|result| {
        let word = result.outcome().as_str_name().trim_start_matches("REDRIVE_OUTCOME_");
        vec![result.sequence.to_string(), word.to_owned()]
    });
    say_as(
        args.output.output,
        || json!({ "results": results.iter().map(json::redriven).collect::<Vec<_>>() }),
        || list(&["NUMBER", "OUTCOME"], rows.collect()),
    )?;
    let good = [RedriveOutcome::Redriven, RedriveOutcome::NotEnded, RedriveOutcome::AlreadyAcked];
    Ok(exit(results.iter().all(|result| good.contains(&result.outcome()))))
}

const REDRIVE_AGAIN: &str = "Run the same command again: what is pending again stays as it is.";

/// Page by page, until the inbox has no more that ended, or no more room.
async fn redrive_all(
    client: &Client,
    args: &InboxRedriveArgs,
) -> Result<Vec<RedriveResult>, Failure> {
    let state = args.state.map(|state| match state {
        EndedState::Expired => delivery::State::Expired.into(),
        EndedState::Dead => delivery::State::Dead.into(),
    });
    let mut request = RedriveDeliveriesRequest {
        inbox: args.inbox.clone(),
        states: state.into_iter().collect(),
        ..RedriveDeliveriesRequest::default()
    };
    let mut results = Vec::new();
    loop {
        let answer = client.redrive(request.clone()).await;
        let page = answer
            .map_err(|failure| change_failed(&failure, &args.connect.endpoint, REDRIVE_AGAIN))?;
        let full = page.results.iter().any(|it| it.outcome() == RedriveOutcome::InboxFull);
        results.extend(page.results);
        if full {
            note("the inbox is full: ack some of its results, then run the same command again");
        }
        if full || !page.more {
            return Ok(results);
        }
        request.after_sequence = page.last_sequence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_named_by_two_numbers() {
        assert_eq!(number_and_attempt("17:2"), Ok((17, 2)));
        for wrong in ["17", "17:", ":2", "17:2:3", "a:b", ""] {
            number_and_attempt(wrong).expect_err(wrong);
        }
    }
}
