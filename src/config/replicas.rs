//! The settings that matter when several replicas share a store.

use serde::{Deserialize, Serialize};

use super::{Config, store_url::StoreLocation};

/// What carries hints between replicas. Nothing is lost with any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Hints {
    /// LISTEN and NOTIFY of the store's server.
    Postgres,
    /// A NATS server at `nats_url`; needs a build with the feature `nats`.
    Nats,
    /// Nothing: changes of other replicas are found by the re-read.
    None,
}

/// What stands between the service and its PostgreSQL server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// Nothing, or a pooler in session mode.
    None,
    /// A pooler in transaction mode, such as PgBouncer.
    Transaction,
}

/// Checks what belongs together.
///
/// # Errors
/// One sentence that names the settings.
pub(super) fn check(config: &Config) -> Result<(), String> {
    let postgres = |url: &super::StoreUrl| matches!(url.location(), StoreLocation::Postgres(_));
    if config.listen_url.as_ref().is_some_and(|url| !postgres(url)) {
        return Err("listen_url must be postgres://…: the PostgreSQL server itself".to_owned());
    }
    let on_sqlite = config.store.as_ref().is_some_and(|url| !postgres(url));
    if config.listen_url.is_some() && on_sqlite {
        return Err("listen_url goes with a store on PostgreSQL only: leave it out".to_owned());
    }
    if config.pooler == Pooler::Transaction && on_sqlite {
        return Err("pooler goes with a store on PostgreSQL only: leave it out".to_owned());
    }
    if config.hints == Hints::Nats && !cfg!(feature = "nats") {
        return Err("hints = nats needs a build with the feature nats (cargo build --features \
                    nats); or set hints = postgres"
            .to_owned());
    }
    if (config.hints == Hints::Nats) != config.nats_url.is_some() {
        return Err("hints = nats and nats_url come together".to_owned());
    }
    let listens = config.hints == Hints::Postgres;
    if config.pooler == Pooler::Transaction && config.listen_url.is_none() && listens {
        return Err("pooler = transaction needs listen_url, the URL of the PostgreSQL server \
                    itself: LISTEN hears nothing through such a pooler; or set hints = none"
            .to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(store: &str, listen_url: Option<&str>, pooler: Pooler, hints: Hints) -> Config {
        let url = |text: &str| text.parse().expect("a store");
        let (store, listen_url) = (Some(url(store)), listen_url.map(url));
        Config { store, listen_url, pooler, hints, ..Config::default() }
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let (postgres, sqlite) = ("postgres://app@pooler/receipts", "sqlite:x.db");
        let direct = Some("postgres://app@server/receipts");
        let nats = "nats://nats".to_owned().try_into().expect("a URL");
        let without = config(postgres, None, Pooler::None, Hints::Postgres);
        let refused = [
            (Config { nats_url: Some(nats), ..without }, "hints = nats"),
            (config(postgres, None, Pooler::None, Hints::Nats), "hints = nats"),
            (config(postgres, None, Pooler::Transaction, Hints::Postgres), "listen_url"),
            (config(postgres, Some(sqlite), Pooler::None, Hints::Postgres), "postgres://"),
            (config(sqlite, direct, Pooler::None, Hints::Postgres), "leave it out"),
            (config(sqlite, None, Pooler::Transaction, Hints::None), "leave it out"),
        ];
        for (config, word) in refused {
            let problem = config.check().expect_err(word);
            assert!(problem.contains(word), "{problem}");
        }
        for config in [
            config(postgres, direct, Pooler::Transaction, Hints::Postgres),
            config(postgres, None, Pooler::Transaction, Hints::None),
            config(postgres, direct, Pooler::None, Hints::Postgres),
            config(sqlite, None, Pooler::None, Hints::Postgres),
        ] {
            assert_eq!(config.check(), Ok(()));
        }
    }
}
