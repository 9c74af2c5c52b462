//! Finds out at the start whether a pooler stands where the settings say that none does.
//!
//! What must stay true: a store that would fail now and then does not open. Behind a pooler that
//! lends a server for one transaction a statement's name is looked for at a server that never saw
//! it, what one client sets holds for others, and LISTEN hears nothing, without any error (T18).

use tokio_postgres::Error;

use super::{
    Pooler, PostgresOptions, errors, migrate,
    pool::Connector,
    session::{Call, Session},
};
use crate::store::{OpenError, StoreFacts};

const PROCESS: &str = "SELECT pg_backend_pid()";

/// How often two connections are compared. A pooler hands out the server that was given back last,
/// or the next in turn: either shows within two rounds, unless others take part.
const ROUNDS: usize = 3;

/// Compares the settings with what is there. `session` leads to the server itself.
///
/// # Errors
/// What to change.
pub(super) async fn refuse_mismatch(
    session: &Session,
    direct: &Connector,
    connector: &Connector,
    options: &PostgresOptions,
) -> Result<(), OpenError> {
    if options.direct_url.is_some() && lends(session, &direct.connect().await?).await? {
        return Err(OpenError(
            "listen_url leads through a pooler that lends a server for one transaction only, \
             where LISTEN hears nothing: let listen_url name the PostgreSQL server itself"
                .into(),
        ));
    }
    let lent = match (options.pooler, &options.direct_url) {
        (Pooler::Transaction, _) => false,
        (Pooler::None, None) => lends(session, &direct.connect().await?).await?,
        (Pooler::None, Some(_)) => {
            lends(&connector.connect().await?, &connector.connect().await?).await?
        }
    };
    match lent {
        false => Ok(()),
        true => Err(OpenError(
            "store leads through a pooler that lends a server for one transaction only: set \
             pooler = \"transaction\", and listen_url to the PostgreSQL server itself"
                .into(),
        )),
    }
}

/// Refuses two URLs that lead to two stores: one would be migrated, and the other one used.
///
/// # Errors
/// What to change.
pub(super) async fn refuse_other_store(
    facts: &StoreFacts,
    connector: &Connector,
) -> Result<(), OpenError> {
    let session = connector.connect().await?;
    match migrate::facts(&session).await {
        Ok((found, _)) if found == *facts => Ok(()),
        Ok(_) | Err(_) => Err(OpenError(
            "store and listen_url lead to different databases: let both name the same one".into(),
        )),
    }
}

/// Whether one server serves two connections, or two servers one connection.
async fn lends(one: &Session, other: &Session) -> Result<bool, OpenError> {
    let compared = async {
        for _ in 0..ROUNDS {
            one.run("BEGIN").await?;
            let first = process(one).await?;
            one.run("COMMIT").await?;
            other.run("BEGIN").await?;
            // While the other one has this server, the first one would be given a second.
            let lends = process(other).await? == first || process(one).await? != first;
            other.run("COMMIT").await?;
            if lends {
                return Ok(true);
            }
        }
        Ok(false)
    };
    compared.await.map_err(|error: Error| {
        OpenError(format!("cannot tell what leads to PostgreSQL: {}", errors::words(&error)))
    })
}

async fn process(session: &Session) -> Result<Option<i32>, Error> {
    let rows = session.query(Call { sql: PROCESS, parameters: Vec::new() }).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}
