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
        let urls: Vec<String> = self.0.split(',').map(redacted).collect();
        f.write_str(&urls.join(","))
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({self})")
    }
}

/// The URL without its password, and without its parameters, which may hold one too.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let place = match rest.rsplit_once('@') {
        Some((user, place)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{user}@{place}")
        }
        None => rest.to_owned(),
    };
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "postgres://app:canary@db:5432/receipts",
            "postgres://app:ca@nary@db/receipts",
            "postgresql://app@db/receipts?password=canary&sslmode=require",
        ] {
            let parsed: StoreUrl = url.parse().expect("valid");
            for text in [parsed.to_string(), format!("{parsed:?}")] {
                assert!(!text.contains("nary") && text.contains("@db"), "{text}");
            }
            assert_eq!(String::from(parsed), url);
        }
        let nats = NatsUrl::try_from("nats://a:canary@one,tls://canary@two".to_owned());
        let shown = format!("{:?}", nats.expect("valid"));
        assert!(shown.contains("@one") && !shown.contains("canary@one"), "{shown}");
        assert!(NatsUrl::try_from("nats://one,canary".to_owned()).is_err());
        for wrong in ["sqlite:", "mysql://canary", "canary"] {
            let problem = wrong.parse::<StoreUrl>().expect_err("not a store");
            assert!(!problem.contains("canary"));
        }
    }
}
