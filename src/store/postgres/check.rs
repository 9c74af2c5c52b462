//! Refuses a server that would lose acknowledged commits, or mangle text.
//!
//! What must stay true: every connection is checked, because a setting can differ per role and
//! database, and a failover can lead to another server. There is no switch to accept data loss.
//! Behind a pooler a connection tells what other clients left set, so that synchronous_commit is
//! not asked for there: every transaction sees to it by itself.

use super::{
    errors,
    guard::timeline,
    session::{Call, Session, Statements},
};
use crate::{domain::epoch::Server, store::OpenError};

/// The oldest server that works: contract of the schema and of its statements.
const VERSION_MIN: i32 = 150_000;

const SETTINGS: &str = concat!(
    "SELECT current_setting('server_version_num')::int,
    current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'), pg_is_in_recovery(),
    current_setting('server_encoding'),
    (SELECT system_identifier FROM pg_control_system()), ",
    timeline!()
);

/// Asks for everything that matters in one statement; tells which server it is.
///
/// # Errors
/// What to change.
pub(super) async fn settings(session: &Session, how: Statements) -> Result<Server, OpenError> {
    let unknown = |error: &tokio_postgres::Error| {
        OpenError(format!("cannot check PostgreSQL's settings: {}", errors::words(error)))
    };
    let call = Call { sql: SETTINGS, parameters: Vec::new() };
    let rows = session.query(call).await.map_err(|error| unknown(&error))?;
    let row = rows.first().ok_or_else(|| OpenError("PostgreSQL told no settings".into()))?;
    let text = |index: usize| row.try_get::<_, String>(index).map_err(|error| unknown(&error));
    let version: i32 = row.try_get(0).map_err(|error| unknown(&error))?;
    let in_recovery: bool = row.try_get(4).map_err(|error| unknown(&error))?;
    let synchronous_commit = match how {
        Statements::Named => text(3)?,
        Statements::Unnamed => "on".to_owned(),
    };
    match refusal(version, &text(1)?, &text(2)?, &synchronous_commit, in_recovery, &text(5)?) {
        Some(refusal) => Err(OpenError(refusal)),
        None => Ok(Server {
            system: row.try_get(6).map_err(|error| unknown(&error))?,
            timeline: row.try_get(7).map_err(|error| unknown(&error))?,
        }),
    }
}

fn refusal(
    version: i32,
    fsync: &str,
    full_page_writes: &str,
    synchronous_commit: &str,
    in_recovery: bool,
    encoding: &str,
) -> Option<String> {
    if version < VERSION_MIN {
        return Some(format!(
            "PostgreSQL 15 or newer is needed; this server is {}.{}: upgrade it",
            version / 10_000,
            version % 10_000
        ));
    }
    if fsync == "off" {
        return Some(
            "PostgreSQL runs with fsync=off and loses acknowledged commits in a crash: \
             set fsync = on in postgresql.conf and restart the server"
                .into(),
        );
    }
    if full_page_writes == "off" {
        return Some(
            "PostgreSQL runs with full_page_writes=off, which can damage tables in a \
             crash: set full_page_writes = on in postgresql.conf and reload the server"
                .into(),
        );
    }
    if synchronous_commit == "off" {
        return Some(
            "synchronous_commit is off for this role and database, so that acknowledged \
             commits are lost in a crash: remove it with ALTER ROLE … RESET synchronous_commit \
             and ALTER DATABASE … RESET synchronous_commit, or set it to on in postgresql.conf"
                .into(),
        );
    }
    if in_recovery {
        return Some(
            "this PostgreSQL server is a standby, which is behind its primary: connect \
             to the primary"
                .into(),
        );
    }
    if encoding != "UTF8" {
        return Some(format!(
            "the database's encoding is {encoding}: make one with ENCODING 'UTF8' and \
             TEMPLATE template0"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn every_unsafe_setting_is_refused_by_name() {
        assert_eq!(refusal(150_000, "on", "on", "on", false, "UTF8"), None);
        assert_eq!(refusal(170_002, "on", "on", "remote_apply", false, "UTF8"), None);
        for (found, word) in [
            (refusal(140_011, "on", "on", "on", false, "UTF8"), "14.11"),
            (refusal(150_000, "off", "on", "on", false, "UTF8"), "fsync = on"),
            (refusal(150_000, "on", "off", "on", false, "UTF8"), "full_page_writes = on"),
            (refusal(150_000, "on", "on", "off", false, "UTF8"), "RESET synchronous_commit"),
            (refusal(150_000, "on", "on", "on", true, "UTF8"), "primary"),
            (refusal(150_000, "on", "on", "on", false, "LATIN1"), "LATIN1"),
        ] {
            assert!(found.as_ref().is_some_and(|text| text.contains(word)), "{found:?}");
        }
    }
}
