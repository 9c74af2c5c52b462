//! Policies: what is in force, what is an account's own, and changes of it.

use std::collections::BTreeMap;

use prost_types::FieldMask;

use super::{
    inboxes::policy as in_force,
    times::{read_duration, timestamp},
};
use crate::{
    domain::{
        audit::AuditRow,
        command::{Intention, PolicyUpdated},
        ids::{Account, Invalid, Span},
        inbox::AccountRow,
        policy::{Policy, SPAN_LIMIT},
        record::{Unreadable, unpack_events},
        settings::{OwnSettings, Setting, SettingsChange},
    },
    proto,
};

/// A policy with its newest changes.
///
/// # Errors
/// [`Unreadable`] for a row of the trail that this release cannot read.
pub fn shown(
    account: &Account,
    row: Option<&AccountRow>,
    policy: &Policy,
    defaults: &Policy,
    changes: &[AuditRow],
) -> Result<proto::GetPolicyResponse, Unreadable> {
    Ok(proto::GetPolicyResponse {
        account: account.as_str().to_owned(),
        policy: Some(in_force(policy)),
        own_mask: Some(row.map_or_else(FieldMask::default, |row| mask(&row.own))),
        defaults: Some(in_force(defaults)),
        contradiction: policy.check().err().map(|fault| fault.to_string()).unwrap_or_default(),
        changes: changes.iter().map(change_of_trail).collect::<Result<_, _>>()?,
    })
}

fn change_of_trail(row: &AuditRow) -> Result<proto::PolicyChange, Unreadable> {
    let texts = unpack_events(&row.events)?.into_iter().map(|event| event.text).collect();
    Ok(proto::PolicyChange {
        number: row.number.into(),
        time: Some(timestamp(row.time)),
        subject: row.subject.clone(),
        texts,
        chain_hash: row.hash.to_vec(),
    })
}

/// The answer to a change.
pub fn updated(updated: &PolicyUpdated, intention: Intention) -> proto::UpdatePolicyResponse {
    proto::UpdatePolicyResponse {
        account: updated.row.account.as_str().to_owned(),
        policy: Some(in_force(&updated.policy)),
        own_mask: Some(mask(&updated.row.own)),
        validated_only: intention == Intention::ValidateOnly,
    }
}

fn mask(own: &OwnSettings) -> FieldMask {
    FieldMask { paths: own.named().map(|setting| setting.field().to_owned()).collect() }
}

/// Reads what becomes of which setting.
///
/// # Errors
/// [`Invalid`] for masks that are empty, name something else or the same twice, and for a value
/// that is absent or that no policy could have. What contradicts what, the rules say.
pub fn change(request: &proto::UpdatePolicyRequest) -> Result<SettingsChange, Invalid> {
    let asked = request.policy.unwrap_or_default();
    let mut change = BTreeMap::new();
    for (mask, paths) in [
        ("update_mask", paths(request.update_mask.as_ref())),
        ("reset_mask", paths(request.reset_mask.as_ref())),
    ] {
        for path in paths {
            let setting = Setting::ALL.into_iter().find(|setting| setting.field() == path);
            let setting = setting.ok_or_else(|| {
                Invalid::new(
                    mask,
                    format!("names something that is no setting; there are {}", all()),
                )
            })?;
            let value = match mask {
                "update_mask" => Some(value(setting, &asked)?),
                _ => None,
            };
            if change.insert(setting, value).is_some() {
                let problem = format!("names {path}, which was named before");
                return Err(Invalid::new(mask, problem));
            }
        }
    }
    match change.is_empty() {
        true => Err(Invalid::new("update_mask", format!("must name what changes: {}", all()))),
        false => Ok(SettingsChange(change)),
    }
}

fn paths(mask: Option<&FieldMask>) -> &[String] {
    mask.map_or(&[], |mask| &mask.paths)
}

fn all() -> String {
    Setting::ALL.map(Setting::field).join(", ")
}

/// A setting's value as it is stored.
fn value(setting: Setting, asked: &proto::Policy) -> Result<i64, Invalid> {
    let field = format!("policy.{}", setting.field());
    let span = |asked: Option<&prost_types::Duration>| {
        let asked = asked.ok_or_else(|| {
            Invalid::new(&field, "is named, and has no value; reset_mask goes back to the default")
        })?;
        Ok(read_duration(&field, asked, Span(0), SPAN_LIMIT)?.0)
    };
    let count = |asked: i64| match asked {
        0.. => Ok(asked),
        _ => Err(Invalid::new(&field, "must not be negative")),
    };
    match setting {
        Setting::AdmissionWindow => span(asked.admission_window.as_ref()),
        Setting::RecordRetention => span(asked.record_retention.as_ref()),
        Setting::TombstoneRetention => span(asked.tombstone_retention.as_ref()),
        Setting::AckWindow => span(asked.ack_window.as_ref()),
        Setting::AckDeadline => span(asked.ack_deadline.as_ref()),
        Setting::RetryBudget => count(asked.retry_budget.into()),
        Setting::BackoffFirst => span(asked.backoff_first.as_ref()),
        Setting::BackoffLimit => span(asked.backoff_limit.as_ref()),
        Setting::LockLimit => span(asked.lock_limit.as_ref()),
        Setting::StartDeadline => span(asked.start_deadline.as_ref()),
        Setting::MaxClockSkew => span(asked.max_clock_skew.as_ref()),
        Setting::InboxIdleRetention => span(asked.inbox_idle_retention.as_ref()),
        Setting::InboxSlots => count(asked.inbox_slots),
        Setting::InboxesMax => count(asked.inboxes_limit),
        Setting::InFlightMax => count(asked.in_flight_limit),
        Setting::ArgumentsBytesMax => count(asked.arguments_limit_bytes),
        Setting::DocumentBytesMax => count(asked.document_limit_bytes),
        Setting::ResultBytesMax => count(asked.result_limit_bytes),
        Setting::InlinePayloadBytesMax => count(asked.inline_payload_limit_bytes),
        Setting::AuditRetention => span(asked.audit_retention.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(update: &[&str], reset: &[&str]) -> proto::UpdatePolicyRequest {
        let mask = |paths: &[&str]| {
            Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
        };
        let different = Policy { ack_window: Span::seconds(5), ..Policy::default() };
        proto::UpdatePolicyRequest {
            policy: Some(in_force(&different)),
            update_mask: mask(update),
            reset_mask: mask(reset),
            ..Default::default()
        }
    }

    #[test]
    fn every_setting_is_read_as_it_is_shown() {
        let mut wanted = Policy::default();
        for (place, setting) in (1_i64..).zip(Setting::ALL) {
            setting.slot(&mut wanted).put(place * 1_000);
        }
        let fields: Vec<&str> = Setting::ALL.into_iter().map(Setting::field).collect();
        let asked =
            proto::UpdatePolicyRequest { policy: Some(in_force(&wanted)), ..request(&fields, &[]) };
        let own = OwnSettings::default().changed(&change(&asked).expect("good values"));
        assert_eq!(own.over(&Policy::default()), wanted);
        assert_eq!(mask(&own).paths, fields);
    }

    #[test]
    fn masks_say_what_changes() {
        let both = change(&request(&["ack_window"], &["lock_limit"])).expect("a good request");
        let wanted = [(Setting::AckWindow, Some(5_000_000)), (Setting::LockLimit, None)];
        assert_eq!(both.0.into_iter().collect::<Vec<_>>(), wanted);
        for (update, reset, field) in [
            (&[][..], &[][..], "update_mask"),
            (&["consumer_lease"], &[], "update_mask"),
            (&["ack_window", "ack_window"], &[], "update_mask"),
            (&[], &["ackWindow"], "reset_mask"),
            (&["ack_window"], &["ack_window"], "reset_mask"),
        ] {
            let invalid = change(&request(update, reset)).expect_err("refused");
            assert_eq!(invalid.field, field, "{update:?} {reset:?}");
        }
        let mut absent = request(&["lock_limit"], &[]);
        absent.policy = None;
        assert_eq!(change(&absent).expect_err("refused").field, "policy.lock_limit");
        let mut negative = request(&["inbox_slots"], &[]);
        negative.policy = Some(proto::Policy { inbox_slots: -1, ..Default::default() });
        assert_eq!(change(&negative).expect_err("refused").field, "policy.inbox_slots");
    }
}
