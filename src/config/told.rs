//! What is said of a setting that cannot be used: which one, where it stands, and what is right.
//!
//! What must stay true: no line of a settings file is repeated, because it may hold a password.

use figment::error::{Actual, Kind};

use super::{
    Config, ConfigError,
    sources::{PREFIX, file_of},
};

/// How an address is written, for whoever wrote something else.
pub const ADDRESS_WANTED: &str = "must be IP:PORT, such as 127.0.0.1:7070 or [::1]:7070; names \
                                  of machines are not taken";

/// The first problem, in our words for the sources.
pub(super) fn told(error: &figment::Error) -> ConfigError {
    let key = error.path.join(".");
    let source = error.metadata.as_ref();
    let file = source.and_then(file_of).map(|path| path.display().to_string());
    if key.is_empty()
        && let (Some(file), Kind::Message(text)) = (&file, &error.kind)
    {
        return ConfigError(format!("file {file} is not TOML: {}", syntax_problem(text)));
    }
    let name = key.trim_start_matches("policy.");
    let place = match (file, source.map(|source| source.name.as_ref())) {
        (Some(file), _) => format!(" in file {file}"),
        (None, Some("environment")) => format!(" in environment {}", variable(name)),
        (None, Some("flag")) => format!(" in flag --{}", name.replace('_', "-")),
        (None, Some(other)) => format!(" in {other}"),
        (None, None) => String::new(),
    };
    ConfigError(format!("setting {key}{place}: {}", problem(error)))
}

fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase())
}

/// Where the text is not TOML and why, without the line itself, which is shown behind a `|`.
fn syntax_problem(text: &str) -> String {
    let told = text.lines().filter(|line| !line.is_empty() && !line.contains('|'));
    told.collect::<Vec<_>>().join(", ").replace("TOML parse error at ", "at ")
}

fn problem(error: &figment::Error) -> String {
    if matches!(error.path.first().map(String::as_str), Some("listen" | "admin_listen")) {
        return ADDRESS_WANTED.to_owned();
    }
    match &error.kind {
        Kind::UnknownField(key, _) => misplaced(error, key).unwrap_or_else(|| unknown(error, key)),
        Kind::InvalidType(actual, wanted) | Kind::InvalidValue(actual, wanted) => {
            format!("must be {}, not {}", in_words(wanted), shown(actual))
        }
        Kind::UnknownVariant(actual, known) => {
            format!("must be one of {}, not {actual:?}", known.join(", "))
        }
        Kind::Message(text) => text.clone(),
        other => other.to_string().replace('`', ""),
    }
}

/// The types of our settings as people call them.
fn in_words(wanted: &str) -> String {
    match wanted {
        "i32" | "i64" => "a whole number".to_owned(),
        "usize" | "u64" => "a whole number from 0 on".to_owned(),
        "struct Policy" => "a table".to_owned(),
        other => other.replace('`', ""),
    }
}

fn shown(actual: &Actual) -> String {
    match actual {
        Actual::Str(text) => format!("{text:?}"),
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(value) => value.to_string(),
        Actual::Signed(value) => value.to_string(),
        Actual::Float(value) => value.to_string(),
        other => other.to_string().replace('`', ""),
    }
}

/// Every key, with its table before it.
fn keys() -> Vec<String> {
    let settings = serde_json::to_value(Config::default()).expect("settings are plain values");
    let mut keys = Vec::new();
    super::sources::collect("", &settings, &mut |key, _| keys.push(key));
    keys
}

/// The next step for a key that is known, but in the other one of the two tables.
fn misplaced(error: &figment::Error, key: &str) -> Option<String> {
    let is_known = |wanted: &str| keys().iter().any(|known| known == wanted);
    match error.path.first().map(String::as_str) {
        Some("policy") => is_known(key).then(|| {
            "does not stand in the [policy] table: put it above the line `[policy]`".to_owned()
        }),
        Some(_) | None => is_known(&format!("policy.{key}"))
            .then(|| "stands in the [policy] table: put it below a line `[policy]`".to_owned()),
    }
}

/// The nearest name there is, as its source would write it.
fn unknown(error: &figment::Error, key: &str) -> String {
    let names = keys();
    let names = names.iter().map(|known| known.trim_start_matches("policy.")).chain(["policy"]);
    let near = names.map(|name| (distance(name, key), name)).min();
    let is_environment = error.metadata.as_ref().is_some_and(|it| it.name == "environment");
    match near.filter(|(distance, name)| *distance <= name.len() / 3) {
        Some((_, name)) if is_environment => {
            format!("is not known; did you mean {}?", variable(name))
        }
        Some((_, name)) => format!("is not known; did you mean {name}?"),
        None => "is not known; `receiptd config show` prints those that are".to_owned(),
    }
}

/// How many letters have to be added, removed or changed (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, left) in one.bytes().enumerate() {
        let mut diagonal = line;
        row[0] = line + 1;
        for (column, right) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sources::{
        load,
        tests::{file, variables},
    };

    #[test]
    fn a_wrong_value_is_told_what_would_be_right() {
        for (text, told) in [
            (
                "lanes = 'x'\n",
                "setting lanes in file F: must be a whole number from 0 on, not \"x\"",
            ),
            ("lanes = -1\n", "setting lanes in file F: must be a whole number from 0 on, not -1"),
            (
                "lanes = true\n",
                "setting lanes in file F: must be a whole number from 0 on, not true",
            ),
            ("log_format = 'x'\n", "must be one of auto, json, pretty, not \"x\""),
            ("listen = 'localhost:7070'\n", "setting listen in file F: must be IP:PORT, such as"),
            ("[policy]\nack_window = 5\n", "must be a span of time such as 500ms"),
            ("policy = 3\n", "setting policy in file F: must be a table, not 3"),
            ("store = 'foo:canary'\n", "must be postgres://… or sqlite:PATH"),
        ] {
            let written = file(text);
            let error = load(&json!({}), variables(&[]), Some(written.path())).expect_err(text);
            let shown = error.0.replace(&written.path().display().to_string(), "F");
            assert!(shown.contains(told), "{shown}");
            assert!(!shown.contains('`') && !shown.contains("canary"), "{shown}");
        }
        let flags = json!({"store": "foo:canary"});
        let error = load(&flags, variables(&[]), None).expect_err("not a store");
        assert_eq!(error.0, "setting store in flag --store: must be postgres://… or sqlite:PATH");
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest_one() {
        for (name, told) in [
            ("RECEIPTD_ACK_WINDW", "did you mean RECEIPTD_ACK_WINDOW?"),
            ("RECEIPTD_LANE", "did you mean RECEIPTD_LANES?"),
            ("RECEIPTD_COLOUR", "`receiptd config show` prints those that are"),
        ] {
            let error = load(&json!({}), variables(&[(name, "1s")]), None).expect_err(name);
            assert!(error.0.contains(name) && error.0.ends_with(told), "{error}");
        }
        for (text, told) in [
            ("[policy]\nack_windw = '3m'\n", "did you mean ack_window?"),
            ("[polcy]\nack_window = '3m'\n", "did you mean policy?"),
        ] {
            let written = file(text);
            let error = load(&json!({}), variables(&[]), Some(written.path())).expect_err(text);
            assert!(error.0.ends_with(told), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_told_where_without_its_line() {
        for (text, told) in [
            ("store = postgres://a:canary@db\n", "at line 1, column 9, invalid string"),
            ("lanes = 1\nlanes = 2\n", "at line 2, column 1, duplicate key"),
        ] {
            let written = file(text);
            let error = load(&json!({}), variables(&[]), Some(written.path())).expect_err(text);
            let place = format!("file {} is not TOML: {told}", written.path().display());
            assert!(error.0.starts_with(&place), "{error}");
            assert!(!error.0.contains("canary") && !error.0.contains('\n'), "{error}");
        }
    }
}
