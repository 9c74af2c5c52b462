//! What an account has of its own among the settings of [`Policy`] (contract section 8).
//!
//! What must stay true: only what was changed is kept; everything else is as the server says at the
//! time. Numbers are stored, so a setting keeps its number for ever; one that this release does not
//! know has no effect here, and stays.
//!
//! Deliberately not here: the lease of a consumer. It goes with the heartbeat of the replicas.

use std::collections::BTreeMap;

use super::{ids::Span, policy::Policy, spans::format_span};

/// A setting that an account may have of its own. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// See [`Policy::admission_window`]; so too the others.
    AdmissionWindow = 1,
    /// See the name.
    RecordRetention = 2,
    /// See the name.
    TombstoneRetention = 3,
    /// See the name.
    AckWindow = 4,
    /// See the name.
    AckDeadline = 5,
    /// See the name.
    RetryBudget = 6,
    /// See the name.
    BackoffFirst = 7,
    /// See the name.
    BackoffLimit = 8,
    /// See the name.
    LockLimit = 9,
    /// See the name.
    StartDeadline = 10,
    /// See the name.
    MaxClockSkew = 11,
    /// See the name.
    InboxIdleRetention = 12,
    /// See the name.
    InboxSlots = 13,
    /// See the name.
    InboxesMax = 14,
    /// See the name.
    InFlightMax = 15,
    /// See the name.
    ArgumentsBytesMax = 16,
    /// See the name.
    DocumentBytesMax = 17,
    /// See the name.
    ResultBytesMax = 18,
    /// See the name.
    InlinePayloadBytesMax = 19,
    /// See the name.
    AuditRetention = 20,
}

/// Where a setting stands in a policy; its type is its unit.
#[derive(Debug)]
pub enum Slot<'a> {
    /// A span of time.
    Span(&'a mut Span),
    /// A small count.
    Small(&'a mut i32),
    /// A count.
    Count(&'a mut i64),
    /// A size in bytes.
    Bytes(&'a mut usize),
}

impl Slot<'_> {
    /// The value as it is stored: microseconds, a count, or bytes.
    pub fn value(&self) -> i64 {
        match self {
            Slot::Span(span) => span.0,
            Slot::Small(count) => (**count).into(),
            Slot::Count(count) => **count,
            Slot::Bytes(size) => i64::try_from(**size).unwrap_or(i64::MAX),
        }
    }

    /// Puts a stored value here. One that the type can't hold becomes its nearest, which
    /// [`Policy::check`] refuses.
    pub fn put(self, value: i64) {
        match self {
            Slot::Span(span) => *span = Span(value),
            Slot::Small(count) => {
                *count =
                    i32::try_from(value).unwrap_or(if value < 0 { i32::MIN } else { i32::MAX });
            }
            Slot::Count(count) => *count = value,
            Slot::Bytes(size) => {
                *size = usize::try_from(value).unwrap_or(if value < 0 { 0 } else { usize::MAX });
            }
        }
    }

    /// The value for people.
    fn shown(&self) -> String {
        match self {
            Slot::Span(span) => format_span(**span),
            Slot::Small(_) | Slot::Count(_) | Slot::Bytes(_) => self.value().to_string(),
        }
    }
}

impl Setting {
    /// Every setting.
    pub const ALL: [Setting; 20] = [
        Setting::AdmissionWindow,
        Setting::RecordRetention,
        Setting::TombstoneRetention,
        Setting::AckWindow,
        Setting::AckDeadline,
        Setting::RetryBudget,
        Setting::BackoffFirst,
        Setting::BackoffLimit,
        Setting::LockLimit,
        Setting::StartDeadline,
        Setting::MaxClockSkew,
        Setting::InboxIdleRetention,
        Setting::InboxSlots,
        Setting::InboxesMax,
        Setting::InFlightMax,
        Setting::ArgumentsBytesMax,
        Setting::DocumentBytesMax,
        Setting::ResultBytesMax,
        Setting::InlinePayloadBytesMax,
        Setting::AuditRetention,
    ];

    /// Its name, as in the policy table of the settings.
    pub fn name(self) -> &'static str {
        match self {
            Setting::AdmissionWindow => "admission_window",
            Setting::RecordRetention => "record_retention",
            Setting::TombstoneRetention => "tombstone_retention",
            Setting::AckWindow => "ack_window",
            Setting::AckDeadline => "ack_deadline",
            Setting::RetryBudget => "retry_budget",
            Setting::BackoffFirst => "backoff_first",
            Setting::BackoffLimit => "backoff_limit",
            Setting::LockLimit => "lock_limit",
            Setting::StartDeadline => "start_deadline",
            Setting::MaxClockSkew => "max_clock_skew",
            Setting::InboxIdleRetention => "inbox_idle_retention",
            Setting::InboxSlots => "inbox_slots",
            Setting::InboxesMax => "inboxes_max",
            Setting::InFlightMax => "in_flight_max",
            Setting::ArgumentsBytesMax => "arguments_bytes_max",
            Setting::DocumentBytesMax => "document_bytes_max",
            Setting::ResultBytesMax => "result_bytes_max",
            Setting::InlinePayloadBytesMax => "inline_payload_bytes_max",
            Setting::AuditRetention => "audit_retention",
        }
    }

    /// Its field on the wire.
    pub fn field(self) -> &'static str {
        match self {
            Setting::InboxesMax => "inboxes_limit",
            Setting::InFlightMax => "in_flight_limit",
            Setting::ArgumentsBytesMax => "arguments_limit_bytes",
            Setting::DocumentBytesMax => "document_limit_bytes",
            Setting::ResultBytesMax => "result_limit_bytes",
            Setting::InlinePayloadBytesMax => "inline_payload_limit_bytes",
            Setting::AdmissionWindow
            | Setting::RecordRetention
            | Setting::TombstoneRetention
            | Setting::AckWindow
            | Setting::AckDeadline
            | Setting::RetryBudget
            | Setting::BackoffFirst
            | Setting::BackoffLimit
            | Setting::LockLimit
            | Setting::StartDeadline
            | Setting::MaxClockSkew
            | Setting::InboxIdleRetention
            | Setting::InboxSlots
            | Setting::AuditRetention => self.name(),
        }
    }

    /// Its place in a policy.
    pub fn slot(self, policy: &mut Policy) -> Slot<'_> {
        match self {
            Setting::AdmissionWindow => Slot::Span(&mut policy.admission_window),
            Setting::RecordRetention => Slot::Span(&mut policy.record_retention),
            Setting::TombstoneRetention => Slot::Span(&mut policy.tombstone_retention),
            Setting::AckWindow => Slot::Span(&mut policy.ack_window),
            Setting::AckDeadline => Slot::Span(&mut policy.ack_deadline),
            Setting::RetryBudget => Slot::Small(&mut policy.retry_budget),
            Setting::BackoffFirst => Slot::Span(&mut policy.backoff_first),
            Setting::BackoffLimit => Slot::Span(&mut policy.backoff_limit),
            Setting::LockLimit => Slot::Span(&mut policy.lock_limit),
            Setting::StartDeadline => Slot::Span(&mut policy.start_deadline),
            Setting::MaxClockSkew => Slot::Span(&mut policy.max_clock_skew),
            Setting::InboxIdleRetention => Slot::Span(&mut policy.inbox_idle_retention),
            Setting::InboxSlots => Slot::Count(&mut policy.inbox_slots),
            Setting::InboxesMax => Slot::Count(&mut policy.inboxes_max),
            Setting::InFlightMax => Slot::Count(&mut policy.in_flight_max),
            Setting::ArgumentsBytesMax => Slot::Bytes(&mut policy.arguments_bytes_max),
            Setting::DocumentBytesMax => Slot::Bytes(&mut policy.document_bytes_max),
            Setting::ResultBytesMax => Slot::Bytes(&mut policy.result_bytes_max),
            Setting::InlinePayloadBytesMax => Slot::Bytes(&mut policy.inline_payload_bytes_max),
            Setting::AuditRetention => Slot::Span(&mut policy.audit_retention),
        }
    }

    /// Its value in a policy, for people.
    pub fn shown(self, policy: &Policy) -> String {
        self.slot(&mut policy.clone()).shown()
    }
}

/// The settings of one account: what it has of its own, by stored number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnSettings(BTreeMap<i32, i64>);

impl OwnSettings {
    /// As they were stored: number and value of each.
    pub fn from_stored(pairs: impl IntoIterator<Item = (i32, i64)>) -> Self {
        OwnSettings(pairs.into_iter().collect())
    }

    /// As they are stored.
    pub fn to_stored(&self) -> impl Iterator<Item = (i32, i64)> + '_ {
        self.0.iter().map(|(number, value)| (*number, *value))
    }

    /// Whether everything is as the server says.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a setting is one of them.
    pub fn has(&self, setting: Setting) -> bool {
        self.0.contains_key(&(setting as i32))
    }

    /// Which settings these are, those that this release knows.
    pub fn named(&self) -> impl Iterator<Item = Setting> + '_ {
        Setting::ALL.into_iter().filter(|setting| self.has(*setting))
    }

    /// The policy of the account: its own settings, over what the server says.
    #[must_use]
    pub fn over(&self, defaults: &Policy) -> Policy {
        let mut policy = defaults.clone();
        for setting in self.named() {
            if let Some(value) = self.0.get(&(setting as i32)) {
                setting.slot(&mut policy).put(*value);
            }
        }
        policy
    }

    /// These settings after a change.
    #[must_use]
    pub fn changed(mut self, change: &SettingsChange) -> Self {
        for (setting, value) in &change.0 {
            match value {
                Some(value) => drop(self.0.insert(*setting as i32, *value)),
                None => drop(self.0.remove(&(*setting as i32))),
            }
        }
        self
    }
}

/// What becomes of settings: the stored value of each that gets one of its own, and nothing for one
/// that goes back to what the server says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingsChange(pub BTreeMap<Setting, Option<i64>>);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_setting_has_a_number_a_name_and_a_place_of_its_own() {
        let defaults = Policy::default();
        let mut numbers = BTreeSet::new();
        let mut policies = Vec::new();
        for (place, setting) in Setting::ALL.into_iter().enumerate() {
            assert!(numbers.insert((setting as i32, setting.name())));
            assert_eq!(setting as usize, place + 1, "stored numbers stay");
            let mut policy = defaults.clone();
            setting.slot(&mut policy).put(77);
            assert_eq!(setting.slot(&mut policy).value(), 77, "{setting:?}");
            assert!(!policies.contains(&policy), "{setting:?} has the place of another");
            policies.push(policy);
        }
        let named = serde_json::to_value(&defaults).expect("a table");
        let mut names: BTreeSet<&str> =
            named.as_object().expect("a table").keys().map(String::as_str).collect();
        // The one that belongs to the replicas.
        assert!(names.remove("consumer_lease"));
        assert_eq!(names, Setting::ALL.into_iter().map(Setting::name).collect());
    }

    #[test]
    fn only_what_was_changed_differs_from_what_the_server_says() {
        let change = |setting, value| SettingsChange([(setting, value)].into());
        let own = OwnSettings::default().changed(&change(Setting::AckWindow, Some(5_000_000)));
        let defaults = Policy { lock_limit: Span::hours(2), ..Policy::default() };
        let wanted = Policy { ack_window: Span::seconds(5), ..defaults.clone() };
        assert_eq!(own.over(&defaults), wanted);
        assert_eq!(Setting::AckWindow.shown(&wanted), "5s");
        assert_eq!(own.named().collect::<Vec<_>>(), [Setting::AckWindow]);
        let back = own.changed(&change(Setting::AckWindow, None));
        assert!(back.is_empty());
        assert_eq!(back.over(&defaults), defaults);
    }

    #[test]
    fn a_setting_of_a_later_release_stays_and_has_no_effect() {
        let own = OwnSettings::from_stored([(4, 5_000_000), (4_711, 1)]);
        let change = SettingsChange([(Setting::AckWindow, None)].into());
        let after = own.changed(&change);
        assert_eq!(after.over(&Policy::default()), Policy::default());
        assert_eq!(after.to_stored().collect::<Vec<_>>(), [(4_711, 1)]);
    }

    #[test]
    fn what_a_type_cannot_hold_is_refused_and_never_wrapped() {
        for value in [i64::MIN, i64::MAX] {
            for setting in Setting::ALL {
                let mut policy = Policy::default();
                setting.slot(&mut policy).put(value);
                // Bodies that never travel along; and counts that nothing bounds.
                let good = match setting {
                    Setting::InlinePayloadBytesMax => value < 0,
                    Setting::RetryBudget | Setting::InboxesMax => value > 0,
                    _ => false,
                };
                assert_eq!(policy.check().is_ok(), good, "{setting:?} {value}");
            }
        }
    }
}
