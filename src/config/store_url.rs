//! Where a store is. It may hold a password, so only the store's driver sees it whole.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

/// `postgres://…` or `sqlite:PATH`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreUrl(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Sqlite(PathBuf),
    Postgres(String),
}

/// A store's URL as somebody typed it: read later, so that a mistyped one is never repeated with
/// its password.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct TypedStoreUrl(String);

impl TypedStoreUrl {
    /// The text, password and all: for the environment of a child, and for no list of processes.
    pub fn whole(&self) -> &str {
        &self.0
    }
}

impl From<String> for TypedStoreUrl {
    fn from(text: String) -> Self {
        TypedStoreUrl(text)
    }
}

impl fmt::Debug for TypedStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypedStoreUrl(…)")
    }
}

/// Which store, and what its driver needs.
#[derive(Clone, Copy)]
pub enum StoreLocation<'a> {
    /// The embedded one, in this file.
    Sqlite(&'a std::path::Path),
    /// The shared one; the URL may hold a password.
    Postgres(&'a str),
}

impl StoreUrl {
    /// The embedded store in this file.
    pub fn sqlite(path: PathBuf) -> Self {
        StoreUrl(Kind::Sqlite(path))
    }

    /// What the store's driver needs.
    pub fn location(&self) -> StoreLocation<'_> {
        match &self.0 {
            Kind::Sqlite(path) => StoreLocation::Sqlite(path),
            Kind::Postgres(url) => StoreLocation::Postgres(url),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("sqlite:")
            && !path.is_empty()
        {
            return Ok(StoreUrl(Kind::Sqlite(path.into())));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(StoreUrl(Kind::Postgres(text.to_owned())));
        }
        // Never quotes the text: it may hold a password.
        Err("must be postgres://… or sqlite:PATH".to_owned())
    }
}

impl TryFrom<String> for StoreUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<StoreUrl> for String {
    fn from(url: StoreUrl) -> String {
        match url.0 {
            Kind::Sqlite(path) => format!("sqlite:{}", path.display()),
            Kind::Postgres(url) => url,
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Kind::Postgres(url) => f.write_str(&redacted(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Where NATS is: `nats://…` or `tls://…`, several with commas between them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NatsUrl(String);

impl NatsUrl {
    /// The text, password and all: for the client.
    pub fn whole(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NatsUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let known = |url: &str| url.starts_with("nats://") || url.starts_with("tls://");
        match text.split(',').all(known) {
            true => Ok(NatsUrl(text)),
            // Never quotes the text: it may hold a password.
            false => Err("must be nats://… or tls://…, several with commas between them".into()),
        }
    }
}

impl From<NatsUrl> for String {
    fn from(url: NatsUrl) -> String {
        url.0
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.0.split(',').map(redacted_nats).collect();
        f.write_str(&urls.join(","))
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({self})")
    }
}

/// The URL without its credentials, where a name without a password is a token. What does not look
/// like a URL of NATS is not shown at all.
fn redacted_nats(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    match rest.rsplit_once('@') {
        _ if rest.contains(['?', '#', '/']) => format!("{scheme}://{HIDDEN}"),
        Some((_, place)) => format!("{scheme}://{HIDDEN}@{place}"),
        None => url.to_owned(),
    }
}

/// What stands where something may be secret.
const HIDDEN: &str = "***";

/// Parameters whose values are shown: none of them is a secret, and each of them may be why a
/// connection fails. Any other value is hidden, also that of a parameter which nobody knows.
const SHOWN_PARAMETERS: [&str; 17] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "port",
    "sslmode",
    "sslnegotiation",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// The URL without what may be secret: the password, and the values of unknown parameters.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let shown = shown_place(rest).unwrap_or_else(|| HIDDEN.to_owned());
    format!("{scheme}://{shown}")
}

/// `None` where it cannot be told which part is the password: somebody did not escape it.
fn shown_place(rest: &str) -> Option<String> {
    // The driver takes all before the first `@` for user and password, whatever it holds.
    let (credentials, rest) = match rest.split_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    let (place, parameters) = match rest.split_once('?') {
        Some((place, parameters)) => (place, Some(parameters)),
        None => (rest, None),
    };
    if credentials.is_some_and(|it| it.contains(['/', '?']))
        || parameters.is_some_and(|it| it.contains('@'))
    {
        return None;
    }
    let mut shown = String::new();
    if let Some(credentials) = credentials {
        shown.push_str(&match credentials.split_once(':') {
            Some((user, _)) => format!("{user}:{HIDDEN}@"),
            None => format!("{credentials}@"),
        });
    }
    // A password with an `@` reaches to the last one.
    shown.push_str(place.rsplit_once('@').map_or(place, |(_, place)| place));
    if let Some(parameters) = parameters {
        let parameters: Vec<String> = parameters.split('&').map(redacted_parameter).collect();
        shown.push_str(&format!("?{}", parameters.join("&")));
    }
    Some(shown)
}

fn redacted_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if SHOWN_PARAMETERS.contains(&name) => parameter.to_owned(),
        Some((name, _)) => format!("{name}={HIDDEN}"),
        None => HIDDEN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_else_is_shown() {
        for (url, shown) in [
            (
                "postgres://app:canary@db:5432/receipts?sslmode=require&connect_timeout=5",
                "postgres://app:***@db:5432/receipts?sslmode=require&connect_timeout=5",
            ),
            (
                "postgres://db/receipts?user=app&password=canary",
                "postgres://db/receipts?user=app&password=***",
            ),
            ("postgres://app@one,two/receipts", "postgres://app@one,two/receipts"),
            ("sqlite:/var/lib/a?b", "sqlite:/var/lib/a?b"),
        ] {
            let parsed: StoreUrl = url.parse().expect("valid");
            assert_eq!(parsed.to_string(), shown);
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "postgres://app:canary@db:5432/receipts",
            "postgres://app:ca@nary@db/receipts",
            "postgresql://app@db/receipts?password=canary&sslmode=require",
            "postgres://app:can#nary@db/receipts",
            "postgres://app:can@n/nary@db/receipts",
            "postgres://app@db/receipts?pass%77ord=canary",
            "postgres://app@db/receipts?canary",
            "postgres://app:can?nary@db/receipts",
            "postgres://app:can/nary@db/receipts?sslmode=require",
            "postgres://app:can@n?nary@db/receipts",
            "postgres://db/receipts?user=app&password=can@nary",
        ] {
            let parsed: StoreUrl = url.parse().expect("valid");
            for text in [parsed.to_string(), format!("{parsed:?}")] {
                assert!(!text.contains("can") && !text.contains("nary"), "{text}");
                assert!(text.contains("@db") || text.contains("://***"), "{text}");
            }
            assert_eq!(String::from(parsed), url);
        }
        let nats = "nats://a:canary@one,tls://canary@two,nats://three?canary,tls://can?nary@four";
        let nats = NatsUrl::try_from(nats.to_owned()).expect("valid");
        let shown = format!("{nats:?}");
        assert!(!shown.contains("can") && !shown.contains("nary"), "{shown}");
        assert!(shown.contains("nats://***@one,tls://***@two,nats://***,tls://***"), "{shown}");
        assert!(NatsUrl::try_from("nats://one,canary".to_owned()).is_err());
        for wrong in ["sqlite:", "mysql://canary", "canary"] {
            let problem = wrong.parse::<StoreUrl>().expect_err("not a store");
            assert!(!problem.contains("canary"));
        }
    }
}
