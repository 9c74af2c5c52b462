//! The settings that matter when several replicas share a store.

use serde::{Deserialize, Serialize};

use super::{Config, store_url::StoreLocation};

/// What carries hints between replicas. Nothing is lost with any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Hints {
    /// LISTEN and NOTIFY of the store's server.
    Postgres,
    /// Nothing: changes of other replicas are found by the re-read.
    None,
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
    if config.listen_url.is_some() && config.store.as_ref().is_some_and(|url| !postgres(url)) {
        return Err("listen_url goes with a store on PostgreSQL only: leave it out".to_owned());
    }
    Ok(())
}
