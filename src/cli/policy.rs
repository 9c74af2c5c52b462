//! `receiptd config policy get` and `set`: the clocks and limits of an account, at a running
//! service.
//!
//! What must stay true: settings are named and written as in a settings file; whoever is left in
//! doubt about a change is told what to look at.

use std::{collections::BTreeMap, process::ExitCode};

use clap::Args;
use prost_types::FieldMask;
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{OperatorArgs, OutputArgs, OutputFormat},
    failures::{call_failed, change_failed},
    output::{list, say, say_json, time},
};
use crate::{
    domain::{
        ids::Span,
        policy,
        settings::{Setting, Slot},
        spans::{format_span, parse_span},
    },
    proto::{
        GetPolicyRequest, GetPolicyResponse, Policy, UpdatePolicyRequest, UpdatePolicyResponse,
    },
};

/// Show the policy, or change it.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum PolicyAction {
    /// Print what is in force for the account, what of it is its own, and how it was changed
    #[command(after_help = GET_EXAMPLE)]
    Get(PolicyGetArgs),
    /// Give the account settings of its own, all at once or none
    #[command(after_help = SET_EXAMPLE)]
    Set(PolicySetArgs),
}

const GET_EXAMPLE: &str = "\
Example:
  receiptd config policy get";
const SET_EXAMPLE: &str = "\
Examples:
  receiptd config policy set ack_window=5m ack_deadline=20s --reason 'slow phones'
  receiptd config policy set ack_window=default --dry-run";

/// The policy of an account.
#[derive(Debug, Clone, Args)]
pub struct PolicyGetArgs {
    #[command(flatten)]
    /// Whose account, where the service is, and how the answer is printed.
    pub on: OperatorArgs,
}

/// A change of it.
#[derive(Debug, Clone, Args)]
pub struct PolicySetArgs {
    /// Settings with their values, as in the policy table of a settings file; `default` takes one
    /// back to what the server says.
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = parse_change)]
    pub changes: Vec<Change>,
    /// Why, for the audit trail.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Only check the change.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    /// Whose account, where the service is, and how the answer is printed.
    pub on: OperatorArgs,
}

/// One setting, and its value; none: the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change(Setting, Option<i64>);

fn parse_change(text: &str) -> Result<Change, String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    let known = Setting::ALL.into_iter().find(|setting| setting.name() == name);
    let setting = known.ok_or_else(|| {
        format!(
            "{name} is no setting of an account; there are {}",
            Setting::ALL.map(Setting::name).join(", ")
        )
    })?;
    if value == "default" {
        return Ok(Change(setting, None));
    }
    let value = match setting.slot(&mut policy::Policy::default()) {
        Slot::Span(_) => parse_span(value).map(|Span(micros)| micros),
        Slot::Small(_) => whole(value)
            .and_then(|count| i32::try_from(count).map(i64::from).ok())
            .ok_or_else(wanted),
        Slot::Count(_) | Slot::Bytes(_) => whole(value).ok_or_else(wanted),
    };
    value.map(|value| Change(setting, Some(value))).map_err(|problem| format!("{name} {problem}"))
}

fn whole(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|count| *count >= 0)
}

fn wanted() -> String {
    "must be a whole number".to_owned()
}

/// Runs the action.
///
/// # Errors
/// [`Failure`] when the service does not answer, or refuses.
pub(super) async fn run(action: &PolicyAction) -> Result<ExitCode, Failure> {
    match action {
        PolicyAction::Get(args) => get(args).await,
        PolicyAction::Set(args) => set(args).await,
    }
}

async fn get(args: &PolicyGetArgs) -> Result<ExitCode, Failure> {
    let client = args.on.connect.client()?;
    let request = GetPolicyRequest { account: args.on.account.clone() };
    let answer = client.get_policy(request).await;
    let answer = answer.map_err(|failure| call_failed(&failure, &args.on.connect.endpoint))?;
    print(&args.on.output, || got_json(&answer), || got_text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

async fn set(args: &PolicySetArgs) -> Result<ExitCode, Failure> {
    let client = args.on.connect.client()?;
    let answer = client.update_policy(request(args)).await;
    let look = "See with: receiptd config policy get";
    let answer =
        answer.map_err(|failure| change_failed(&failure, &args.on.connect.endpoint, look))?;
    print(&args.on.output, || updated_json(&answer), || updated_text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    output: &OutputArgs,
    value: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match output.output {
        OutputFormat::Json => say_json(&value()),
        OutputFormat::Table => say(text()),
    }
}

fn request(args: &PolicySetArgs) -> UpdatePolicyRequest {
    let mut policy = Policy::default();
    let (mut update, mut reset) = (Vec::new(), Vec::new());
    for Change(setting, value) in &args.changes {
        match value {
            Some(value) => {
                put(&mut policy, *setting, *value);
                update.push(setting.field().to_owned());
            }
            None => reset.push(setting.field().to_owned()),
        }
    }
    UpdatePolicyRequest {
        account: args.on.account.clone(),
        policy: Some(policy),
        update_mask: Some(FieldMask { paths: update }),
        reset_mask: Some(FieldMask { paths: reset }),
        reason: args.reason.clone(),
        validate_only: args.dry_run,
    }
}

/// A field of a policy on the wire.
enum Field<'a> {
    Span(&'a mut Option<prost_types::Duration>),
    Small(&'a mut i32),
    Count(&'a mut i64),
}

fn field(policy: &mut Policy, setting: Setting) -> Field<'_> {
    match setting {
        Setting::AdmissionWindow => Field::Span(&mut policy.admission_window),
        Setting::RecordRetention => Field::Span(&mut policy.record_retention),
        Setting::TombstoneRetention => Field::Span(&mut policy.tombstone_retention),
        Setting::AuditRetention => Field::Span(&mut policy.audit_retention),
        Setting::AckWindow => Field::Span(&mut policy.ack_window),
        Setting::AckDeadline => Field::Span(&mut policy.ack_deadline),
        Setting::RetryBudget => Field::Small(&mut policy.retry_budget),
        Setting::BackoffFirst => Field::Span(&mut policy.backoff_first),
        Setting::BackoffLimit => Field::Span(&mut policy.backoff_limit),
        Setting::LockLimit => Field::Span(&mut policy.lock_limit),
        Setting::StartDeadline => Field::Span(&mut policy.start_deadline),
        Setting::MaxClockSkew => Field::Span(&mut policy.max_clock_skew),
        Setting::InboxIdleRetention => Field::Span(&mut policy.inbox_idle_retention),
        Setting::InboxSlots => Field::Count(&mut policy.inbox_slots),
        Setting::InboxesMax => Field::Count(&mut policy.inboxes_limit),
        Setting::InFlightMax => Field::Count(&mut policy.in_flight_limit),
        Setting::ArgumentsBytesMax => Field::Count(&mut policy.arguments_limit_bytes),
        Setting::DocumentBytesMax => Field::Count(&mut policy.document_limit_bytes),
        Setting::ResultBytesMax => Field::Count(&mut policy.result_limit_bytes),
        Setting::InlinePayloadBytesMax => Field::Count(&mut policy.inline_payload_limit_bytes),
    }
}

fn put(policy: &mut Policy, setting: Setting, value: i64) {
    match field(policy, setting) {
        Field::Span(span) => {
            let nanos = i32::try_from(value % 1_000_000 * 1_000).unwrap_or(0);
            *span = Some(prost_types::Duration { seconds: value / 1_000_000, nanos });
        }
        // A small one was read as such.
        Field::Small(count) => *count = i32::try_from(value).unwrap_or(i32::MAX),
        Field::Count(count) => *count = value,
    }
}

/// A value as in a settings file.
fn shown(policy: &Policy, setting: Setting) -> String {
    match field(&mut { *policy }, setting) {
        Field::Span(span) => {
            let span = span.unwrap_or_default();
            let micros =
                span.seconds.saturating_mul(1_000_000).saturating_add((span.nanos / 1_000).into());
            format_span(Span(micros))
        }
        Field::Small(count) => count.to_string(),
        Field::Count(count) => count.to_string(),
    }
}

fn is_own(mask: Option<&FieldMask>, setting: Setting) -> bool {
    mask.is_some_and(|mask| mask.paths.iter().any(|path| path == setting.field()))
}

fn settings_text(policy: &Policy, mask: Option<&FieldMask>) -> String {
    let line = |setting: Setting| {
        let source = if is_own(mask, setting) { "its own" } else { "the server's" };
        vec![setting.name().to_owned(), shown(policy, setting), source.to_owned()]
    };
    let rows = Setting::ALL.into_iter().map(line).collect();
    list(&["setting", "value", "whose"], rows).trim_fmt()
}

fn settings_json(policy: &Policy, mask: Option<&FieldMask>) -> Value {
    let entry = |setting: Setting| {
        let value = json!({ "value": shown(policy, setting), "own": is_own(mask, setting) });
        (setting.name(), value)
    };
    json!(Setting::ALL.into_iter().map(entry).collect::<BTreeMap<_, _>>())
}

fn got_text(answer: &GetPolicyResponse) -> String {
    let policy = answer.policy.unwrap_or_default();
    let mut text = format!("account {}\n", answer.account);
    text.push_str(&settings_text(&policy, answer.own_mask.as_ref()));
    if !answer.contradiction.is_empty() {
        text.push_str(&format!("\nit contradicts itself: {}\n", answer.contradiction));
    }
    for change in &answer.changes {
        let when = time(change.time.as_ref());
        text.push_str(&format!("\n{when}  {}: {}", change.subject, change.texts.join("; ")));
    }
    text
}

fn got_json(answer: &GetPolicyResponse) -> Value {
    let policy = answer.policy.unwrap_or_default();
    let change = |change: &crate::proto::PolicyChange| {
        json!({
            "number": change.number,
            "time": time(change.time.as_ref()),
            "subject": change.subject,
            "texts": change.texts,
        })
    };
    json!({
        "account": answer.account,
        "policy": settings_json(&policy, answer.own_mask.as_ref()),
        "contradiction": answer.contradiction,
        "changes": answer.changes.iter().map(change).collect::<Vec<_>>(),
    })
}

fn updated_text(answer: &UpdatePolicyResponse) -> String {
    let policy = answer.policy.unwrap_or_default();
    let what = match answer.validated_only {
        true => "would be in force; nothing was changed",
        false => "in force",
    };
    let settings = settings_text(&policy, answer.own_mask.as_ref());
    format!("account {}: {what}\n{settings}", answer.account)
}

fn updated_json(answer: &UpdatePolicyResponse) -> Value {
    let policy = answer.policy.unwrap_or_default();
    json!({
        "account": answer.account,
        "policy": settings_json(&policy, answer.own_mask.as_ref()),
        "validatedOnly": answer.validated_only,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, config::ConfigAction};

    fn asked(line: &[&str]) -> Result<UpdatePolicyRequest, clap::Error> {
        let line = [&["receiptd", "config", "policy", "set"], line].concat();
        let Command::Config(args) = Cli::try_parse_from(line)?.command else { panic!("config") };
        let ConfigAction::Policy { action } = args.action else { panic!("a policy") };
        let PolicyAction::Set(args) = *action else { panic!("a change") };
        Ok(request(&args))
    }

    #[test]
    fn settings_are_written_as_in_a_file() {
        let told = asked(&["ack_window=5m", "in_flight_max=3", "lock_limit=default", "--dry-run"]);
        let told = told.expect("good arguments");
        let policy = told.policy.expect("values");
        assert_eq!(policy.ack_window.map(|span| span.seconds), Some(300));
        assert_eq!(policy.in_flight_limit, 3);
        assert_eq!(told.update_mask.expect("a mask").paths, ["ack_window", "in_flight_limit"]);
        assert_eq!(told.reset_mask.expect("a mask").paths, ["lock_limit"]);
        assert!(told.validate_only);
        for wrong in
            ["ack_window", "ack_window=5", "retry_budget=many", "inbox_slots=-1", "lanes=3"]
        {
            assert!(asked(&[wrong]).is_err(), "{wrong}");
        }
        assert!(asked(&[]).is_err(), "nothing to change");
    }

    #[test]
    fn every_setting_is_shown_as_it_is_written() {
        for setting in Setting::ALL {
            let mut policy = Policy::default();
            put(&mut policy, setting, 7);
            let text = format!("{}={}", setting.name(), shown(&policy, setting));
            assert_eq!(parse_change(&text), Ok(Change(setting, Some(7))), "{text}");
        }
    }
}
