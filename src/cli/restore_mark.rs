//! `receiptd restore-mark`: tells a store that it was restored, so that it does not answer as if it
//! knew what it has lost.

use std::{path::PathBuf, process::ExitCode, time::SystemTime};

use serde::Serialize;

use super::{
    EXIT_USAGE, Failure,
    output::{note, say},
    serve,
    server_args::{self, StoreArgs},
    values::whole,
};
use crate::{
    config::{StoreUrl, store_url::StoreLocation},
    domain::{
        epoch::{JUMPS_MAX, Life, MarkCause, MarkRequest},
        ids::{Span, Timestamp},
        policy::Policy,
        spans::parse_span,
    },
    engine::seams::Seams,
    epochs::{
        marking::Marked,
        restoring::{self, Look, Restored},
    },
    server,
    store::{Purpose, Store},
    telemetry,
};

/// Longest reason, in characters: it is kept once for each account.
const REASON_MAX: usize = 500;
/// Longest name of a person, in characters.
const NAME_MAX: usize = 100;

/// Flags of `restore-mark`.
#[derive(Debug, Clone, Serialize, clap::Args)]
#[command(after_help = "\
Examples:
  receiptd restore-mark --store sqlite:/var/lib/receiptd/receiptd.db --reason 'disk failed'
  RECEIPTD_STORE=postgres://app:secret@db/receipts receiptd restore-mark \\
    --since 2026-03-01T02:00:00Z --until 2026-03-01T09:30:00Z --reason 'restored last night'
  receiptd restore-mark --store postgres://app@db/receipts --clean

Run it after a backup was restored, before any server starts on it. Every id that the lost store may
have used answers EVIDENCE_EXPIRED from then on and never executes; inboxes go on with numbers that
were never given out; old resume tokens answer STORE_EPOCH_CHANGED. If it is cut, run it again.")]
pub struct RestoreMarkArgs {
    /// Settings file, TOML [env: RECEIPTD_CONFIG]
    #[arg(long, value_name = "FILE", env = "RECEIPTD_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Which store.
    #[command(flatten)]
    #[serde(flatten)]
    pub store: StoreArgs,
    /// How much was lost, back from --until: kept in the audit
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "since")]
    #[serde(skip)]
    pub lost: Option<Span>,
    /// From when on things were lost, the time of the backup: kept in the audit
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(skip)]
    pub since: Option<Timestamp>,
    /// When the lost store stopped serving; unless it is known, now
    ///
    /// Ids minted up to this time and the allowed clock skew (max_clock_skew, 5m) may have been
    /// used, so they answer EVIDENCE_EXPIRED. Without it, ids that are new now do so too until the
    /// skew has passed.
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(skip)]
    pub until: Option<Timestamp>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    #[serde(skip)]
    pub reason: String,
    /// Who, for the audit
    #[arg(long, value_name = "NAME", default_value = "operator")]
    #[serde(skip)]
    pub by: String,
    /// How often numbers jump: one more for each mark that the lost store had and the backup lacks
    #[arg(long, value_name = "COUNT", value_parser = whole::<i64>, default_value_t = 1)]
    #[serde(skip)]
    pub jumps: i64,
    /// Nothing was lost: take over the server that the store is on now, and change nothing else
    ///
    /// For a failover that lost nothing though a replica can't say so, and for a move to another
    /// PostgreSQL server. It may be run while servers wait for the failover to be judged.
    #[arg(long, conflicts_with_all = ["lost", "since", "until", "jumps"])]
    #[serde(skip)]
    pub clean: bool,
    /// Mark it though a replica seems to be at work on it: what that one does meanwhile may be lost
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// Marks the store, or takes it over as it is.
pub(super) async fn run(args: RestoreMarkArgs) -> Result<ExitCode, Failure> {
    check(&args)?;
    let config = server_args::load(&args, args.config.as_ref())?.config;
    telemetry::process::start_logs(config.log_format);
    let url = serve::store(&config)?;
    if let StoreLocation::Sqlite(path) = url.location()
        && !path.exists()
    {
        let text =
            format!("there is no store {url}: restore the backup first, or correct the path");
        return Err(Failure::new(EXIT_USAGE, text));
    }
    let seams = Seams::system();
    let store = server::open_store_for(&url, &config, &seams, Purpose::Mark).await;
    let store = store.map_err(Failure::plain)?;
    let done = marked(&args, &url, &store, &config.policy, &seams).await;
    store.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

fn check(args: &RestoreMarkArgs) -> Result<(), Failure> {
    let usage = |text: String| Err(Failure::new(EXIT_USAGE, text));
    if !(1..=JUMPS_MAX).contains(&args.jumps) {
        return usage(format!("--jumps must be 1 to {JUMPS_MAX}"));
    }
    for (flag, text, most) in [("reason", &args.reason, REASON_MAX), ("by", &args.by, NAME_MAX)] {
        if text.chars().count() > most || text.chars().any(char::is_control) {
            return usage(format!("--{flag} must be one line of at most {most} characters"));
        }
    }
    match (args.since, args.until) {
        (Some(since), Some(until)) if since > until => {
            usage("--since must not be after --until: nothing would be lost".to_owned())
        }
        _ => Ok(()),
    }
}

async fn marked(
    args: &RestoreMarkArgs,
    url: &StoreUrl,
    store: &Store,
    policy: &Policy,
    seams: &Seams,
) -> Result<(), Failure> {
    if store.is_new() {
        return Err(Failure::plain(format!(
            "there was no store in {url}: nothing to mark; restore the backup first"
        )));
    }
    if args.clean {
        let life = restoring::declare_clean(store, policy, seams).await.map_err(Failure::plain)?;
        return say(format!(
            "store {url}: taken over as it is; epoch {} goes on, nothing else changed",
            life.epoch
        ));
    }
    let now = store.now().await.map_err(Failure::plain)?;
    for (flag, time) in [("since", args.since), ("until", args.until)] {
        if time.is_some_and(|time| time > now) {
            let text =
                format!("--{flag} must not be in the store's future; its clock says {}", told(now));
            return Err(Failure::new(EXIT_USAGE, text));
        }
    }
    let epoch = uuid::Builder::from_random_bytes(seams.random_bytes()).into_uuid();
    let request = MarkRequest {
        cause: MarkCause::Restore,
        subject: args.by.clone(),
        reason: reason(args, now),
        until: args.until,
        jumps: args.jumps,
        epoch: epoch.to_string(),
        server: restoring::server(store),
    };
    let look = match args.force {
        true => Look::Never,
        false => Look::First,
    };
    let restored = restoring::restore(store, &request, look, policy, seams).await;
    match restored.map_err(Failure::plain)? {
        Restored::Marked(marked) => say_marked(url, &marked, "marked"),
        Restored::WentOn(marked) => {
            note("a mark that was cut went on where it was; what was asked for now was not used");
            say_marked(url, &marked, "marked to the end")
        }
    }?;
    let floor = store.life().await.map_err(Failure::plain)?.loss.evidence_floor;
    if floor > now {
        note(format!(
            "new ids are accepted from {} on; --until says when the lost store stopped, if that is \
             known to be earlier",
            told(floor)
        ));
    }
    Ok(())
}

/// What is kept with each account besides the times that the mark itself tells.
fn reason(args: &RestoreMarkArgs, now: Timestamp) -> String {
    let until = args.until.unwrap_or(now);
    let since = args.since.or(args.lost.map(|lost| until - lost));
    let since = since.map(|since| format!("lost from {} on", told(since)));
    let reason = Some(args.reason.clone()).filter(|reason| !reason.is_empty());
    since.into_iter().chain(reason).collect::<Vec<String>>().join("; ")
}

fn say_marked(url: &StoreUrl, marked: &Marked, word: &str) -> Result<(), Failure> {
    let Marked { life, accounts, inboxes } = marked;
    let Life { epoch, loss, .. } = life;
    say(format!("store {url}: {word}; epoch {epoch}"))?;
    say(format!(
        "evidence floor {} for {accounts} accounts and every other; {inboxes} inboxes raised, new \
         ones begin above {}",
        told(loss.evidence_floor),
        loss.sequence_base
    ))
}

fn told(time: Timestamp) -> String {
    let since = (time - Timestamp(0)).to_std();
    humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + since).to_string()
}

/// Reads a time such as `2026-03-01T02:00:00Z`.
fn time(text: &str) -> Result<Timestamp, String> {
    let read = humantime::parse_rfc3339(text).ok();
    let since = read.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let micros = since.and_then(|since| i64::try_from(since.as_micros()).ok());
    micros.map(Timestamp).ok_or_else(|| "must be a time such as 2026-03-01T02:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn args(line: &str) -> Result<RestoreMarkArgs, String> {
        let words = ["receiptd", "restore-mark"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::RestoreMark(args) => Ok(*args),
            _ => Err("another command".to_owned()),
        }
    }

    #[test]
    fn what_was_lost_is_told_in_one_line() {
        let now = time("2026-03-01T10:00:00Z").expect("a time");
        for (line, expected) in [
            ("", ""),
            ("--lost 2h", "lost from 2026-03-01T08:00:00.000Z on"),
            ("--lost 1h --until 2026-03-01T09:00:00Z", "lost from 2026-03-01T08:00:00.000Z on"),
            (
                "--since 2026-03-01T02:00:00Z --reason fire",
                "lost from 2026-03-01T02:00:00.000Z on; fire",
            ),
        ] {
            assert_eq!(reason(&args(line).expect("good flags"), now), expected, "{line}");
        }
    }

    #[test]
    fn wrong_flags_are_refused_before_anything_is_opened() {
        for (line, told) in [
            ("--since yesterday", "must be a time such as"),
            ("--lost 2h --since 2026-03-01T02:00:00Z", "cannot be used with"),
            ("--clean --lost 2h", "cannot be used with"),
        ] {
            let error = args(line).expect_err(line);
            assert!(error.contains(told), "{error}");
        }
        for (line, told) in [
            ("--jumps 0", "--jumps must be 1 to 512"),
            ("--jumps 513", "--jumps must be 1 to 512"),
            ("--since 2026-03-02T00:00:00Z --until 2026-03-01T00:00:00Z", "after --until"),
        ] {
            let error = check(&args(line).expect("good words")).expect_err(line);
            assert!(error.to_string().contains(told), "{error}");
        }
        let long = RestoreMarkArgs { by: "x".repeat(101), ..args("").expect("good") };
        assert!(check(&long).is_err());
    }
}
