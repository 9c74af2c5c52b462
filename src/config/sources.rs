//! Where settings come from, in order of rank, and what is said when one of them is wrong.

use std::{collections::BTreeMap, path::Path};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Value},
};
use serde::Serialize;

use super::{Config, ConfigError, told::told};
use crate::domain::{ids::Span, policy::Policy};

/// What all variables of ours begin with.
pub(super) const PREFIX: &str = "RECEIPTD_";

/// Variables that are not settings of a server: those of the client's commands and of tests, and
/// the ones that Kubernetes sets in every pod beside a service named `receiptd`.
const FOREIGN: [&str; 11] = [
    "ca_file",
    "config",
    "endpoint",
    "token",
    "token_file",
    "inbox",
    "journal",
    "test_",
    "client_",
    "port",
    "service_",
];

/// Connections that stand by beside those of the lanes, unless somebody chose the pool's size.
const SPARES: usize = 4;
/// The source of what nobody chose.
const DEFAULT: &str = "default";

/// The settings in force, and where each came from.
#[derive(Debug)]
pub struct Loaded {
    /// The settings, checked.
    pub config: Config,
    figment: Figment,
}

/// One setting, as `config show` prints it.
#[derive(Debug, PartialEq, Eq)]
pub struct ShownSetting {
    /// Its key, `policy.` before those of the policy table.
    pub key: String,
    /// Its value as TOML; secrets left out. Absent where there is none.
    pub value: Option<String>,
    /// Where it came from.
    pub source: String,
}

/// Reads, extracts and checks.
pub(super) fn load(
    flags: &impl Serialize,
    variables: impl Iterator<Item = (String, String)>,
    file: Option<&Path>,
) -> Result<Loaded, ConfigError> {
    let mut figment = Figment::from(Defaults);
    if let Some(path) = file {
        if !path.is_file() {
            return Err(ConfigError(format!("there is no file {}", path.display())));
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    figment = figment.merge(Environment(variables.filter_map(ours).collect()));
    figment = figment.merge(Flags(Serialized::defaults(flags)));
    let mut config: Config = figment.extract().map_err(|error| told(&error))?;
    give_way(&mut config, |key| source_of(&figment, key) == DEFAULT);
    config.check().map_err(|problem| ConfigError(with_sources(&figment, &problem)))?;
    Ok(Loaded { config, figment })
}

/// A default gives way where it would contradict a setting that somebody chose: `--ack-window 6s`
/// alone is enough.
fn give_way(config: &mut Config, is_default: impl Fn(&str) -> bool) {
    let policy = &mut config.policy;
    if is_default("policy.ack_deadline") {
        policy.ack_deadline = policy.ack_deadline.min(policy.ack_window);
    }
    if is_default("policy.backoff_first") {
        policy.backoff_first = policy.backoff_first.min(policy.backoff_limit);
    }
    if is_default("policy.backoff_limit") {
        policy.backoff_limit = policy.backoff_limit.max(policy.backoff_first);
    }
    if is_default("policy.inbox_idle_retention") {
        let longer = policy.ack_window + policy.ack_window;
        policy.inbox_idle_retention = policy.inbox_idle_retention.max(longer);
    }
    if is_default("heartbeat") {
        config.heartbeat = config.heartbeat.min(Span(policy.consumer_lease.0 / 2));
    }
    if is_default("write_stall") {
        config.write_stall = config.write_stall.min(Span(policy.consumer_lease.0 / 2));
    }
    if is_default("policy.consumer_lease") {
        let least = config.heartbeat.max(config.write_stall);
        policy.consumer_lease = policy.consumer_lease.max(least + least);
    }
    if is_default("pool_size") {
        config.pool_size = config.pool_size.max(config.lanes.saturating_add(SPARES));
    }
}

impl Loaded {
    /// Every setting in force with its source, for people and for a file.
    pub fn shown(&self) -> Vec<ShownSetting> {
        let settings = serde_json::to_value(&self.config).expect("settings are plain values");
        let mut shown = Vec::new();
        collect("", &settings, &mut |key, value| {
            let value = match (key.as_str(), value) {
                (_, serde_json::Value::Null) => None,
                ("store", _) => self.config.store.as_ref().map(|url| quoted(&url.to_string())),
                ("listen_url", _) => {
                    self.config.listen_url.as_ref().map(|url| quoted(&url.to_string()))
                }
                ("nats_url", _) => {
                    self.config.nats_url.as_ref().map(|url| quoted(&url.to_string()))
                }
                (_, serde_json::Value::String(text)) => Some(quoted(text)),
                (_, other) => Some(other.to_string()),
            };
            let source = source_of(&self.figment, &key);
            shown.push(ShownSetting { key, value, source });
        });
        shown
    }
}

/// A JSON string is a TOML string as well.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn collect(
    prefix: &str,
    value: &serde_json::Value,
    found: &mut impl FnMut(String, &serde_json::Value),
) {
    match value {
        serde_json::Value::Object(members) => {
            for (name, value) in members {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                collect(&key, value, found);
            }
        }
        other => found(prefix.to_owned(), other),
    }
}

fn source_of(figment: &Figment, key: &str) -> String {
    let Some(metadata) = figment.find_metadata(key) else {
        return DEFAULT.to_owned();
    };
    let name = key.trim_start_matches("policy.");
    match (file_of(metadata), metadata.name.as_ref()) {
        (Some(path), _) => format!("file {}", path.display()),
        (None, "environment") => format!("environment {PREFIX}{}", name.to_uppercase()),
        (None, "flag") => format!("flag --{}", name.replace('_', "-")),
        (None, other) => other.to_owned(),
    }
}

pub(super) fn file_of(metadata: &Metadata) -> Option<&Path> {
    metadata.source.as_ref()?.file_path()
}

/// A problem names its settings: adds where each of them came from.
fn with_sources(figment: &Figment, problem: &str) -> String {
    let words: Vec<&str> =
        problem.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').collect();
    let settings = serde_json::to_value(Config::default()).expect("settings are plain values");
    let mut sources = Vec::new();
    collect("", &settings, &mut |key, _| {
        let name = key.trim_start_matches("policy.");
        if words.contains(&name) {
            sources.push(format!("{name} from {}", source_of(figment, &key)));
        }
    });
    match sources.is_empty() {
        true => problem.to_owned(),
        false => format!("{problem} ({})", sources.join(", ")),
    }
}

/// The key of one of our variables; `None` for a variable of somebody else.
fn ours((name, value): (String, String)) -> Option<(String, String)> {
    let key = name.strip_prefix(PREFIX)?.to_ascii_lowercase();
    let is_foreign = FOREIGN.into_iter().any(|foreign| match foreign.ends_with('_') {
        true => key.starts_with(foreign),
        false => key == foreign || key.starts_with(&format!("{foreign}_")),
    });
    (!is_foreign).then_some((key, value))
}

struct Defaults;

impl Provider for Defaults {
    fn metadata(&self) -> Metadata {
        Metadata::named(DEFAULT)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::defaults(Config::default()).data()
    }
}

struct Flags<T>(Serialized<T>);

impl<T: Serialize> Provider for Flags<T> {
    fn metadata(&self) -> Metadata {
        Metadata::named("flag")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.0.data()
    }
}

/// Variables by key; those of the policy are named without its table.
struct Environment(BTreeMap<String, String>);

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let policy_keys =
            serde_json::to_value(Policy::default()).expect("settings are plain values");
        let mut top = Dict::new();
        let mut policy = Dict::new();
        for (key, text) in &self.0 {
            let value: Value = text.parse().unwrap_or_else(|never| match never {});
            match policy_keys.get(key).is_some() {
                true => policy.insert(key.clone(), value),
                false => top.insert(key.clone(), value),
            };
        }
        if !policy.is_empty() {
            top.insert("policy".to_owned(), Value::from(policy));
        }
        Ok(Profile::Default.collect(top))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::domain::spans::{format_span, parse_span};

    pub fn variables(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
        let owned: Vec<_> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        owned.into_iter()
    }

    pub fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() {
        let written = file("lanes = 3\npool_size = 9\n[policy]\nack_window = '1m'\n");
        let environment = [("RECEIPTD_POOL_SIZE", "10"), ("RECEIPTD_ACK_WINDOW", "2m")];
        let flags = json!({"policy": {"ack_window": "3m"}});
        let loaded =
            load(&flags, variables(&environment), Some(written.path())).expect("good settings");
        assert_eq!(loaded.config.lanes, 3);
        assert_eq!(loaded.config.pool_size, 10);
        assert_eq!(loaded.config.policy.ack_window, Span::minutes(3));
        assert_eq!(loaded.config.policy.ack_deadline, Span::seconds(30));
        let shown = loaded.shown();
        let source = |key: &str| {
            shown.iter().find(|setting| setting.key == key).map(|setting| setting.source.as_str())
        };
        assert_eq!(source("policy.ack_window"), Some("flag --ack-window"));
        assert_eq!(source("pool_size"), Some("environment RECEIPTD_POOL_SIZE"));
        assert!(source("lanes").is_some_and(|source| source.starts_with("file ")));
        assert_eq!(source("policy.ack_deadline"), Some("default"));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_source() {
        let written = file("[policy]\nack_windw = '1m'\n");
        let error = load(&json!({}), variables(&[]), Some(written.path())).expect_err("unknown");
        assert!(error.0.contains("ack_windw") && error.0.contains("in file"), "{error}");
        let environment = [("RECEIPTD_LANE", "2")];
        let error = load(&json!({}), variables(&environment), None).expect_err("unknown");
        assert!(error.0.contains("RECEIPTD_LANE"), "{error}");
    }

    #[test]
    fn a_key_in_the_wrong_table_is_told_where_it_stands() {
        for (text, key, next) in [
            ("ack_window = '1m'\n", "setting ack_window", "put it below a line `[policy]`"),
            ("[policy]\nlanes = 3\n", "setting policy.lanes", "put it above the line `[policy]`"),
        ] {
            let written = file(text);
            let error = load(&json!({}), variables(&[]), Some(written.path())).expect_err(key);
            assert!(error.0.starts_with(key) && error.0.contains("in file"), "{error}");
            assert!(error.0.ends_with(next), "{error}");
        }
    }

    #[test]
    fn the_sample_settings_hold_every_key_at_its_default() {
        let sample = include_str!("../../deploy/receiptd.toml");
        let as_it_is = file(sample);
        let loaded = load(&json!({}), variables(&[]), Some(as_it_is.path())).expect("good");
        assert_eq!(loaded.config, Config::default(), "everything is a comment");
        // A setting follows its # at once; words for people come after a space.
        let uncommented: Vec<&str> = sample
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
            .map(|setting| setting.unwrap_or_default())
            .collect();
        // Two of the examples go with another store and other hints than the default ones.
        let uncommented = uncommented.join("\n").replace("\"sqlite:/", "\"postgres://db/");
        let nats = "nats_url = \"nats://USER:PASSWORD@HOST:4222\"\n";
        assert!(uncommented.contains(nats));
        let uncommented = file(&uncommented.replace(nats, ""));
        let loaded = load(&json!({}), variables(&[]), Some(uncommented.path())).expect("good");
        for ShownSetting { key, source, .. } in loaded.shown() {
            assert!(source.starts_with("file ") || key == "nats_url", "{key} is missing");
        }
        let read = loaded.config.clone();
        let Config { store, listen_url, access_file, tls_cert, tls_key, .. } = read;
        assert!(store.is_some() && listen_url.is_some());
        assert!(access_file.is_some() && tls_cert.is_some());
        let files = Config { access_file, tls_cert, tls_key, ..Config::default() };
        assert_eq!(loaded.config, Config { store, listen_url, ..files });
    }

    /// Keys with their defaults as the tables of a document show them, `policy.` before those
    /// below the heading that names its table.
    fn documented(text: &str) -> BTreeMap<String, String> {
        let mut prefix = "";
        let mut found = BTreeMap::new();
        for line in text.lines() {
            if line.starts_with('#') {
                prefix = if line.contains("[policy]") { "policy." } else { "" };
            }
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            if let [key, default, _] = cells.as_slice()
                && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
            {
                // 24h is written as well as 1d.
                let value = parse_span(default).map(format_span);
                let value = value.unwrap_or_else(|_| (*default).to_owned());
                found.insert(format!("{prefix}{key}"), value);
            }
        }
        found
    }

    #[test]
    fn the_documents_tables_are_the_settings() {
        let defaults = load(&json!({}), variables(&[]), None).expect("good settings").shown();
        let defaults: BTreeMap<String, String> = defaults
            .into_iter()
            .map(|shown| {
                let value = shown.value.unwrap_or_else(|| "none".to_owned());
                (shown.key, value.trim_matches('"').to_owned())
            })
            .collect();
        assert_eq!(documented(include_str!("../../docs/operating.md")), defaults);
        let readme = documented(include_str!("../../README.md"));
        let flags = readme.iter().filter_map(|(key, value)| Some((key.strip_prefix("--")?, value)));
        let mut count = 0;
        for (flag, value) in flags {
            let key = flag.replace('-', "_");
            let default = defaults.get(&key).or_else(|| defaults.get(&format!("policy.{key}")));
            assert_eq!(default, Some(value), "README: --{flag}");
            count += 1;
        }
        assert!(count > 5, "the README shows some settings");
    }

    #[test]
    fn the_systemd_unit_sets_what_is_there() {
        let unit = include_str!("../../deploy/receiptd.service");
        let of = |name: &str| -> Vec<&str> {
            let lines = unit.lines().map(|line| line.trim_start_matches('#'));
            lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
        };
        let pairs: Vec<_> =
            of("Environment").iter().filter_map(|pair| pair.split_once('=')).collect();
        assert!(pairs.iter().any(|(name, _)| *name == "RECEIPTD_ACCESS_FILE"));
        load(&json!({}), variables(&pairs), None).expect("known settings");
        let credentials = of("LoadCredential");
        for (name, value) in pairs {
            let shown = value.strip_prefix("%d/").expect("a file that the service may read");
            let loads = |it: &&str| it.starts_with(&format!("{shown}:/etc/receiptd/"));
            assert!(credentials.iter().any(loads), "{name}: {shown} is not loaded");
        }
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        let environment = [
            ("RECEIPTD_PORT", "tcp://10.0.0.1:7070"),
            ("RECEIPTD_PORT_7070_TCP", "tcp://10.0.0.1:7070"),
            ("RECEIPTD_SERVICE_HOST", "10.0.0.1"),
            ("RECEIPTD_TOKEN", "canary"),
            ("RECEIPTD_TEST_POSTGRES", "postgres://x"),
            ("HOME", "/"),
        ];
        let loaded = load(&json!({}), variables(&environment), None).expect("good settings");
        assert_eq!(loaded.config, Config::default());
    }

    #[test]
    fn a_contradiction_is_named_with_its_source() {
        let environment = [("RECEIPTD_ADMISSION_WINDOW", "31d")];
        let error = load(&json!({}), variables(&environment), None).expect_err("contradiction");
        assert!(error.0.contains("record_retention"), "{error}");
        let environment = [("RECEIPTD_LANES", "0")];
        let error = load(&json!({}), variables(&environment), None).expect_err("out of range");
        assert!(error.0.contains("environment RECEIPTD_LANES"), "{error}");
        let flags = json!({"policy": {"ack_window": "6s", "ack_deadline": "7s"}});
        let error = load(&flags, variables(&[]), None).expect_err("contradiction");
        assert!(error.0.contains("ack_deadline from flag --ack-deadline"), "{error}");
        let environment = [("RECEIPTD_ACK_WINDOW", "6")];
        let error = load(&json!({}), variables(&environment), None).expect_err("not a span");
        assert!(error.0.contains("ack_window") && error.0.contains("RECEIPTD_ACK_WINDOW"));
    }

    #[test]
    fn a_default_gives_way_to_what_somebody_chose() {
        let flags = json!({
            "lanes": 16,
            "policy": {"ack_window": "6s", "backoff_limit": "100ms", "consumer_lease": "2s"},
        });
        let config = load(&flags, variables(&[]), None).expect("good settings").config;
        assert_eq!(config.policy.ack_deadline, Span::seconds(6));
        assert_eq!(config.policy.backoff_first, Span::millis(100));
        assert_eq!((config.heartbeat, config.pool_size), (Span::seconds(1), 20));
        assert_eq!(config.write_stall, Span::seconds(1));
        let config = load(&json!({"heartbeat": "1m"}), variables(&[]), None).expect("good").config;
        assert_eq!(config.policy.consumer_lease, Span::minutes(2));
        let config =
            load(&json!({"write_stall": "2m"}), variables(&[]), None).expect("good").config;
        assert_eq!(config.policy.consumer_lease, Span::minutes(4));
        let flags = json!({"write_stall": "30s", "policy": {"consumer_lease": "30s"}});
        let error = load(&flags, variables(&[]), None).expect_err("a contradiction");
        assert!(error.0.contains("consumer_lease") && error.0.contains("write_stall"), "{error}");
        let flags = json!({"policy": {"ack_window": "20d"}});
        let config = load(&flags, variables(&[]), None).expect("good settings").config;
        assert_eq!(config.policy.inbox_idle_retention, Span::days(40));
    }

    #[test]
    fn the_dump_shows_no_password() {
        let flags = json!({
            "store": "postgres://app:canary@db/receipts",
            "listen_url": "postgres://app:canary@db/receipts",
        });
        let loaded = load(&flags, variables(&[]), None).expect("good settings");
        assert!(!format!("{:?}", loaded.shown()).contains("canary"));
        assert!(!format!("{:?}", loaded.config).contains("canary"));
    }
}
