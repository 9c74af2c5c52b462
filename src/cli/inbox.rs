//! `receiptd inbox`: read results as they come, ack them, and see what waits.
//!
//! What must stay true: a result is acked only after it was printed; stopping loses nothing, and
//! says how to go on. Deliberately not here: one inbox as a whole, which is in
//! [`super::inbox_admin`].

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    EXIT_FAILURE, Failure,
    by_hand::{self, InboxDeferArgs, InboxExtendArgs, InboxPullArgs, InboxRedriveArgs},
    connection::{ConnectArgs, EXIT_UNKNOWN, OutputArgs, OutputFormat},
    failures::{call_failed, change_failed, told},
    inbox_admin::{self, InboxDeleteArgs, InboxGetArgs, InboxUpdateArgs},
    json,
    output::{delivery_word, list, note, say, say_as, state_word, time},
    values::{at_least_one, whole},
};
use crate::{
    client::{
        connect::Client,
        inbox::{InboxReader, News, ReaderError, ReaderOptions, ReaderState},
        send::state_of,
    },
    proto::{
        AckDeliveriesRequest, AckOutcome, AckTarget, DeliveredResult, Delivery, Gap, Inbox,
        ListDeliveriesRequest, ListInboxesRequest,
    },
};

const EXAMPLES: &str = "\
Examples:
  receiptd inbox stream default --ack
  receiptd inbox stream default --until-caught-up -o json
  receiptd inbox ack default 17 18 19
  receiptd inbox pull default --wait 20s
  receiptd inbox redrive default 17
  receiptd inbox list
  receiptd inbox list default
  receiptd inbox get default
  receiptd inbox update default --slots 5000 --in-flight-limit 0
  receiptd inbox delete old-laptop --force

Exit codes:
  0  done
  1  anything that has no other code, also a number that the inbox never had
  2  wrong arguments, or the request is not valid
  5  it is not known whether the acks arrived: ack the same numbers again; or whether the inbox
     was changed or deleted: look at it";

/// The most rows on one page of the service.
const PAGE_MAX: usize = 1_000;

/// How long the acks of what was printed may take at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Read and ack results.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InboxArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: InboxCommand,
}

/// What to do with an inbox.
#[derive(Debug, Subcommand)]
pub enum InboxCommand {
    /// Print results as they come, oldest unacked first.
    Stream(InboxStreamArgs),
    /// The inboxes, or the deliveries of one.
    List(InboxListArgs),
    /// Ack results by their numbers.
    Ack(InboxAckArgs),
    /// Take a page of results without a stream.
    Pull(InboxPullArgs),
    /// Ask for more time for the acks of attempts.
    Extend(InboxExtendArgs),
    /// Give attempts back, to be sent again later.
    Defer(InboxDeferArgs),
    /// Make results that expired or died pending again.
    Redrive(InboxRedriveArgs),
    /// One inbox with its figures.
    Get(InboxGetArgs),
    /// Give an inbox limits of its own.
    Update(InboxUpdateArgs),
    /// Delete an inbox; its name stays usable, and its numbers go on.
    Delete(InboxDeleteArgs),
}

/// Print results as they come, oldest unacked first.
#[derive(Debug, Args)]
pub struct InboxStreamArgs {
    /// The inbox.
    #[arg(default_value = "default")]
    pub inbox: String,
    /// Who reads; a second stream of the same consumer replaces the first.
    #[arg(long, default_value = "")]
    pub consumer: String,
    /// Where to go on: the last token printed.
    #[arg(long, default_value = "")]
    pub resume_token: String,
    /// How many unacked results the stream may hold.
    #[arg(long, default_value_t = 100, value_parser = at_least_one::<i32>)]
    pub window: i32,
    /// Ack each result after it was printed.
    #[arg(long)]
    pub ack: bool,
    /// Stop after this many results.
    #[arg(long, value_parser = at_least_one::<u64>)]
    pub count: Option<u64>,
    /// Stop when everything that was there at the start has been printed.
    #[arg(long)]
    pub until_caught_up: bool,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// The inboxes, or the deliveries of one.
#[derive(Debug, Args)]
pub struct InboxListArgs {
    /// The inbox whose deliveries are listed; all inboxes when absent.
    pub inbox: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = at_least_one::<usize>)]
    pub limit: usize,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Ack results by their numbers.
#[derive(Debug, Args)]
pub struct InboxAckArgs {
    /// The inbox.
    pub inbox: String,
    /// The numbers.
    #[arg(required = true, value_parser = whole::<i64>)]
    pub sequences: Vec<i64>,
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
/// [`Failure`] when the service does not answer or refuses.
pub async fn run(args: InboxArgs) -> Result<ExitCode, Failure> {
    match args.command {
        InboxCommand::Stream(args) => stream(&args).await,
        InboxCommand::List(args) => list_any(&args).await,
        InboxCommand::Ack(args) => ack(&args).await,
        InboxCommand::Pull(args) => by_hand::pull(&args).await,
        InboxCommand::Extend(args) => by_hand::extend(&args).await,
        InboxCommand::Defer(args) => by_hand::defer(&args).await,
        InboxCommand::Redrive(args) => by_hand::redrive(&args).await,
        InboxCommand::Get(args) => inbox_admin::get(&args).await,
        InboxCommand::Update(args) => inbox_admin::update(&args).await,
        InboxCommand::Delete(args) => inbox_admin::delete(&args).await,
    }
}

async fn stream(args: &InboxStreamArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let mut state = ReaderState::new(&args.inbox, &args.consumer);
    state.resume_token.clone_from(&args.resume_token);
    let options = ReaderOptions { window: args.window, ..ReaderOptions::alone() };
    let mut reader = InboxReader::start(client, state, options);
    let end = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => End::AsAsked,
        end = print_news(&mut reader, args) => end,
    };
    let acked = !args.ack || reader.flush(FLUSH_LIMIT).await;
    if !acked {
        note(
            "it is not known whether the acks of some printed results arrived; they may come again",
        );
    }
    let state = reader.close().await;
    if !state.resume_token.is_empty() && end.may_go_on() {
        note(format!("go on with: --resume-token {}", state.resume_token));
    }
    match end {
        End::AsAsked if acked => Ok(ExitCode::SUCCESS),
        End::AsAsked => Ok(ExitCode::from(EXIT_UNKNOWN)),
        End::Unprinted(failure) => Err(failure),
        End::Refused(error) => Err(reader_failed(&error, &args.connect.endpoint)),
    }
}

/// Why a stream is not printed any further.
enum End {
    AsAsked,
    /// Standard output is closed.
    Unprinted(Failure),
    Refused(ReaderError),
}

impl End {
    /// Whether the last token is still good for anything.
    fn may_go_on(&self) -> bool {
        match self {
            End::AsAsked | End::Unprinted(_) => true,
            End::Refused(error) => match error {
                ReaderError::ResumeTokenInvalid(_)
                | ReaderError::InboxRecreated(_)
                | ReaderError::StoreEpochChanged(_) => false,
                ReaderError::Superseded(_) | ReaderError::Refused(_) => true,
            },
        }
    }
}

/// Prints until the end that was asked for.
async fn print_news(reader: &mut InboxReader, args: &InboxStreamArgs) -> End {
    let mut printed = 0;
    loop {
        if args.count.is_some_and(|count| printed >= count) {
            return End::AsAsked;
        }
        let news = match reader.next().await {
            Ok(news) => news,
            Err(error) => return End::Refused(error),
        };
        let printed_now = match args.output.output {
            OutputFormat::Json => say(news_json(&news)),
            OutputFormat::Table => print_sentence(&news, &args.connect.endpoint),
        };
        if let Err(failure) = printed_now {
            return End::Unprinted(failure);
        }
        match news {
            News::Result(result) => {
                printed += 1;
                if args.ack {
                    reader.handled(&result);
                }
            }
            // It was printed, and is printed again if it is redriven.
            News::Withdrawn(withdrawn) => reader.let_go(&withdrawn),
            News::CaughtUp if args.until_caught_up => return End::AsAsked,
            _ => {}
        }
    }
}

fn news_json(news: &News) -> Value {
    match news {
        News::Opened(opened) => json!({ "opened": json::opened(opened) }),
        News::Result(result) => json!({ "result": json::result(result) }),
        News::AlreadySeen(again) => json!({ "alreadySeen": {
            "sequence": again.key.sequence,
            "outcomeVersion": again.key.outcome_version,
            "operationId": again.operation_id,
            "attempt": again.attempt,
        }}),
        News::CaughtUp => json!({ "caughtUp": {} }),
        News::Gap(gap) => json!({ "gap": json::gap(gap) }),
        News::Withdrawn(withdrawn) => json!({ "withdrawn": json::withdrawn(withdrawn) }),
        News::Reconnecting(failure) => {
            json!({ "reconnecting": { "text": failure.as_ref().map(ToString::to_string) } })
        }
        News::AckRefused(failure) => json!({ "ackRefused": { "text": failure.to_string() } }),
        News::ExtensionRefused(failure) => {
            json!({ "extensionRefused": { "text": failure.to_string() } })
        }
    }
}

/// Results go to standard output, everything about the stream to standard error.
fn print_sentence(news: &News, endpoint: &str) -> Result<(), Failure> {
    match news {
        News::Result(result) => return say(result_sentence(result)),
        News::Opened(opened) => note(format!(
            "reading {} as {}: {} unacked",
            opened.inbox, opened.consumer_id, opened.depth
        )),
        News::AlreadySeen(again) => note(format!(
            "#{} {} again (attempt {}): already shown",
            again.key.sequence, again.operation_id, again.attempt
        )),
        News::CaughtUp => note("caught up"),
        News::Gap(gap) => note(gap_sentence(gap)),
        News::Withdrawn(withdrawn) => note(format!(
            "#{} {} ended elsewhere: {}",
            withdrawn.sequence,
            withdrawn.operation_id,
            delivery_word(withdrawn.state)
        )),
        News::Reconnecting(failure) => note(match failure {
            Some(failure) => format!("connecting again: {}", told(failure, endpoint)),
            None => "connecting again".to_owned(),
        }),
        News::AckRefused(failure) => {
            note(format!("an ack was refused: {}", told(failure, endpoint)));
        }
        News::ExtensionRefused(failure) => {
            note(format!("no more time was given: {}", told(failure, endpoint)));
        }
    }
    Ok(())
}

/// What will not come, with the ids to look up.
fn gap_sentence(gap: &Gap) -> String {
    let cause = gap.cause().as_str_name().trim_start_matches("GAP_CAUSE_");
    let (first, last) = (gap.first_sequence, gap.last_sequence);
    let which = if first == last { format!("#{first}") } else { format!("#{first} to #{last}") };
    match gap.operation_ids.is_empty() {
        true => format!("{which} will not come ({cause}): look at `receiptd list`"),
        false => format!(
            "{which} will not come ({cause}): look them up with `receiptd get`: {}",
            gap.operation_ids.join(" ")
        ),
    }
}

fn result_sentence(result: &DeliveredResult) -> String {
    let delivery = result.delivery.clone().unwrap_or_default();
    let operation = result.operation.clone().unwrap_or_default();
    let receipt = operation.receipt.clone().unwrap_or_default();
    let revision = receipt
        .document
        .as_ref()
        .map(|change| format!(" revision {}", change.result_revision))
        .unwrap_or_default();
    let again = if result.redelivered { " (sent before)" } else { "" };
    format!(
        "#{} {} {} {} {}{revision}{again}",
        delivery.sequence,
        operation.operation_id,
        state_word(state_of(&operation)),
        receipt.action,
        receipt.target
    )
}

/// The service's own sentence says what became of the stream and what to do.
fn reader_failed(error: &ReaderError, endpoint: &str) -> Failure {
    match error {
        ReaderError::ResumeTokenInvalid(failure)
        | ReaderError::InboxRecreated(failure)
        | ReaderError::StoreEpochChanged(failure)
        | ReaderError::Superseded(failure)
        | ReaderError::Refused(failure) => call_failed(failure, endpoint),
    }
}

async fn list_any(args: &InboxListArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let format = args.output.output;
    match &args.inbox {
        Some(inbox) => {
            let deliveries = all_deliveries(&client, inbox, args).await?;
            say_as(
                format,
                || {
                    let all: Vec<Value> = deliveries.iter().map(json::delivery).collect();
                    json!({ "deliveries": all })
                },
                || deliveries_table(&deliveries),
            )?;
        }
        None => {
            let inboxes = all_inboxes(&client, args).await?;
            say_as(
                format,
                || json!({ "inboxes": inboxes.iter().map(json::inbox).collect::<Vec<_>>() }),
                || inboxes_table(&inboxes),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn all_inboxes(client: &Client, args: &InboxListArgs) -> Result<Vec<Inbox>, Failure> {
    let limit = args.limit;
    let mut inboxes = Vec::new();
    let mut page_token = String::new();
    while let Some(page_size) = page_size(limit, inboxes.len()) {
        let request = ListInboxesRequest { page_size, page_token };
        let page = client.list_inboxes(request).await;
        let page = page.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
        inboxes.extend(page.inboxes);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(inboxes);
        }
    }
    note(format!("there are more; --limit {limit} was reached"));
    Ok(inboxes)
}

async fn all_deliveries(
    client: &Client,
    inbox: &str,
    args: &InboxListArgs,
) -> Result<Vec<Delivery>, Failure> {
    let limit = args.limit;
    let mut deliveries = Vec::new();
    let mut request =
        ListDeliveriesRequest { inbox: inbox.to_owned(), ..ListDeliveriesRequest::default() };
    while let Some(page_size) = page_size(limit, deliveries.len()) {
        request.page_size = page_size;
        let page = client.list_deliveries(request.clone()).await;
        let page = page.map_err(|it| call_failed(&it, &args.connect.endpoint))?;
        deliveries.extend(page.deliveries);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(deliveries);
        }
    }
    note(format!("there are more; --limit {limit} was reached"));
    Ok(deliveries)
}

/// How many the next page may have; none when there are enough.
fn page_size(limit: usize, found: usize) -> Option<i32> {
    let left = limit.saturating_sub(found).min(PAGE_MAX);
    i32::try_from(left).ok().filter(|left| *left > 0)
}

fn deliveries_table(deliveries: &[Delivery]) -> comfy_table::Table {
    let row = |delivery: &Delivery| {
        vec![
            delivery.sequence.to_string(),
            delivery.operation_id.clone(),
            delivery_word(delivery.state),
            delivery.attempt.to_string(),
            time(delivery.queue_time.as_ref()),
            time(delivery.expire_time.as_ref()),
        ]
    };
    let headings = ["NUMBER", "OPERATION", "STATE", "ATTEMPT", "QUEUED", "EXPIRES"];
    list(&headings, deliveries.iter().map(row).collect())
}

fn inboxes_table(inboxes: &[Inbox]) -> comfy_table::Table {
    let row = |inbox: &Inbox| {
        vec![
            inbox.inbox.clone(),
            format!("{}/{}", inbox.reserved + inbox.pending + inbox.in_flight, inbox.slots),
            inbox.pending.to_string(),
            inbox.in_flight.to_string(),
            inbox.consumers.len().to_string(),
            time(inbox.oldest_queue_time.as_ref()),
        ]
    };
    let headings = ["INBOX", "SLOTS", "PENDING", "IN FLIGHT", "CONSUMERS", "OLDEST"];
    list(&headings, inboxes.iter().map(row).collect())
}

async fn ack(args: &InboxAckArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let deliveries = args
        .sequences
        .iter()
        .map(|sequence| AckTarget {
            inbox: args.inbox.clone(),
            sequence: *sequence,
            ..AckTarget::default()
        })
        .collect();
    let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    let again = "Run the same command again: an ack may be repeated.";
    let answer = client.ack(request).await;
    let answer = answer.map_err(|it| change_failed(&it, &args.connect.endpoint, again))?;
    let rows = answer.results.iter().map(|result| {
        let word = result.outcome().as_str_name().trim_start_matches("ACK_OUTCOME_");
        vec![result.sequence.to_string(), word.to_owned()]
    });
    say_as(
        args.output.output,
        || json!({ "results": answer.results.iter().map(json::acked).collect::<Vec<_>>() }),
        || list(&["NUMBER", "OUTCOME"], rows.collect()),
    )?;
    let missing =
        answer.results.iter().any(|result| result.outcome() == AckOutcome::NoSuchDelivery);
    Ok(if missing { ExitCode::from(EXIT_FAILURE) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::GapCause;

    #[test]
    fn a_gap_names_the_operations_to_look_up() {
        let mut gap = Gap { first_sequence: 3, last_sequence: 5, ..Gap::default() };
        gap.set_cause(GapCause::Expired);
        gap.operation_ids = vec!["save:3".to_owned(), "save:5".to_owned()];
        assert_eq!(
            gap_sentence(&gap),
            "#3 to #5 will not come (EXPIRED): look them up with `receiptd get`: save:3 save:5"
        );
    }

    #[test]
    fn a_long_list_comes_in_pages() {
        assert_eq!(page_size(2_500, 0), Some(1_000));
        assert_eq!(page_size(2_500, 2_000), Some(500));
        assert_eq!(page_size(2_500, 2_500), None);
    }
}
