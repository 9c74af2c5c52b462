//! Brings the schema up to date, and reads what the store is.
//!
//! What must stay true: migrations only add, so that the previous release runs on the new schema;
//! one process migrates at a time, under an advisory lock that ends with its transaction; all or
//! nothing is applied. A schema made by a newer release, or by other files than ours, is refused.

use sha2::{Digest, Sha256};
use tokio_postgres::error::SqlState;

use super::{
    PostgresOptions, errors,
    pool::Connector,
    session::{Call, Session, value},
};
use crate::{
    domain::{
        epoch::Life,
        ids::Timestamp,
        record::{pack_life, unpack_life},
    },
    engine::seams::Seams,
    store::{OpenError, StoreFacts},
};

/// One numbered file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    pub(super) number: i32,
    pub(super) sql: &'static str,
}

/// All files, by number, without gaps from 1.
pub(super) const MIGRATIONS: &[Migration] =
    &[Migration { number: 1, sql: include_str!("schema/0001.sql") }];

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// The numbers that were applied now.
    pub applied: Vec<i32>,
    /// The number that the schema has now.
    pub current: i32,
}

/// Applies the migrations that are missing. When it returns, they and the store's facts are
/// durable; an error leaves the schema as it was. `url` leads to the server itself.
///
/// # Errors
/// [`OpenError`] if the server cannot be used, if another process holds the schema for too long,
/// or if the schema is newer than this release or was made by other files.
pub async fn migrate(
    url: &str,
    seams: &Seams,
    options: &PostgresOptions,
) -> Result<MigrationReport, OpenError> {
    let session = Connector::new(url, seams, options)?.connect().await?;
    apply(&session, seams, MIGRATIONS).await
}

/// How long one try waits for the schema, and how many tries there are: half a minute covers a
/// migration by another replica, and no ALTER queues behind a long transaction for longer.
const LOCK_TRIES: usize = 6;
const SET_LOCK_TIMEOUT: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
    SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = 0";

/// Applies what is missing of `migrations`.
pub(super) async fn apply(
    session: &Session,
    seams: &Seams,
    migrations: &[Migration],
) -> Result<MigrationReport, OpenError> {
    for _ in 0..LOCK_TRIES {
        match attempt(session, seams, migrations).await {
            Ok(report) => return Ok(report),
            Err(Stop::Refused(error)) => {
                // The transaction is left behind; the connection ends right after this.
                session.run("ROLLBACK").await.ok();
                return Err(error);
            }
            Err(Stop::Statement(error)) => {
                session.run("ROLLBACK").await.ok();
                if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
                    return Err(cannot(&error));
                }
            }
        }
    }
    Err(OpenError(
        "another process holds the schema of PostgreSQL: try again when its migration or its \
         long transaction has ended"
            .into(),
    ))
}

/// Why an attempt ended.
enum Stop {
    Refused(OpenError),
    Statement(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Stop {
    fn from(error: tokio_postgres::Error) -> Self {
        Stop::Statement(error)
    }
}

impl From<OpenError> for Stop {
    fn from(error: OpenError) -> Self {
        Stop::Refused(error)
    }
}

fn cannot(error: &tokio_postgres::Error) -> OpenError {
    OpenError(format!(
        "the schema of PostgreSQL cannot be read or migrated: {}",
        errors::words(error)
    ))
}

const MIGRATION_LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext('receiptd'), 1)";

const CREATE_SCHEMA: &str = "CREATE SCHEMA IF NOT EXISTS receiptd;
    CREATE TABLE receiptd.schema_migrations (
        number   INTEGER NOT NULL PRIMARY KEY,
        checksum BYTEA NOT NULL,
        time     BIGINT NOT NULL
    )";

const RECORD_MIGRATION: &str = "INSERT INTO receiptd.schema_migrations (number, checksum, time)
    VALUES ($1::integer, $2::bytea, $3::bigint)";

async fn attempt(
    session: &Session,
    seams: &Seams,
    migrations: &[Migration],
) -> Result<MigrationReport, Stop> {
    session.run(SET_LOCK_TIMEOUT).await?;
    session.query(Call { sql: MIGRATION_LOCK, parameters: Vec::new() }).await?;
    if !exists(session).await? {
        session.run(CREATE_SCHEMA).await?;
    }
    let known = applied(session).await?;
    compare(&known, migrations)?;
    let mut report = MigrationReport { applied: Vec::new(), current: newest(&known) };
    for migration in migrations.iter().filter(|migration| migration.number > newest(&known)) {
        session.run(migration.sql).await?;
        let Timestamp(now) = seams.now();
        let parameters = vec![value(migration.number), value(checksum(migration)), value(now)];
        session.query(Call { sql: RECORD_MIGRATION, parameters }).await?;
        report.applied.push(migration.number);
        report.current = migration.number;
    }
    make_facts(session, seams).await?;
    session.run("COMMIT").await?;
    // No ANALYZE here: the planner takes a table that was never analyzed for ten pages and plans
    // by its keys; one that was found empty it would read from end to end.
    Ok(report)
}

/// Checks that nothing is missing, without changing anything.
///
/// # Errors
/// [`OpenError`] that says to migrate first, or as [`migrate`].
pub(super) async fn demand_current(session: &Session) -> Result<(), OpenError> {
    let found = match exists(session).await {
        Ok(true) => applied(session).await.map_err(|error| cannot(&error))?,
        Ok(false) => Vec::new(),
        Err(error) => return Err(cannot(&error)),
    };
    compare(&found, MIGRATIONS)?;
    let wanted = MIGRATIONS.last().map_or(0, |migration| migration.number);
    if newest(&found) < wanted {
        return Err(OpenError(format!(
            "the schema of PostgreSQL has migration {} of {wanted}: run the migrate command first",
            newest(&found)
        )));
    }
    Ok(())
}

const EXISTS: &str = "SELECT to_regclass('receiptd.schema_migrations') IS NOT NULL";

async fn exists(session: &Session) -> Result<bool, tokio_postgres::Error> {
    let rows = session.query(Call { sql: EXISTS, parameters: Vec::new() }).await?;
    rows.first().map_or(Ok(false), |row| row.try_get(0))
}

const APPLIED: &str = "SELECT number, checksum FROM receiptd.schema_migrations ORDER BY number";

async fn applied(session: &Session) -> Result<Vec<(i32, Vec<u8>)>, tokio_postgres::Error> {
    let rows = session.query(Call { sql: APPLIED, parameters: Vec::new() }).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

fn newest(applied: &[(i32, Vec<u8>)]) -> i32 {
    applied.last().map_or(0, |(number, _)| *number)
}

fn checksum(migration: &Migration) -> Vec<u8> {
    Sha256::digest(migration.sql.as_bytes()).to_vec()
}

/// Refuses a schema that other files made.
fn compare(applied: &[(i32, Vec<u8>)], migrations: &[Migration]) -> Result<(), OpenError> {
    for (number, stored) in applied {
        let Some(migration) = migrations.iter().find(|known| known.number == *number) else {
            return Err(OpenError(format!(
                "the schema of PostgreSQL has migration {number}, which this release does not \
                 know: run the newer release that made it"
            )));
        };
        if checksum(migration) != *stored {
            return Err(OpenError(format!(
                "migration {number} of the schema was made by another file than this release's: \
                 run an unchanged release, or restore the database from its backup"
            )));
        }
    }
    Ok(())
}

const MAKE_FACTS: &str = "INSERT INTO receiptd.store_facts (bucket, account, name, value)
    VALUES (0, '', 'life', $1::bytea), (0, '', 'token_key', $2::bytea)
    ON CONFLICT DO NOTHING";

async fn make_facts(session: &Session, seams: &Seams) -> Result<(), tokio_postgres::Error> {
    let epoch = uuid::Builder::from_random_bytes(seams.random_bytes()).into_uuid().to_string();
    let token_key: [u8; 32] = seams.random_bytes();
    let life = pack_life(&Life::first(epoch, session.server()));
    let parameters = vec![value(life), value(token_key.to_vec())];
    session.query(Call { sql: MAKE_FACTS, parameters }).await.map(drop)
}

const FACTS: &str = "SELECT name, value FROM receiptd.store_facts WHERE bucket = 0 AND account = ''
     AND name IN ('life', 'token_key')";

/// Reads what the store is.
///
/// # Errors
/// [`OpenError`] if that cannot be read.
pub(super) async fn facts(session: &Session) -> Result<(StoreFacts, Life), OpenError> {
    let rows = session.query(Call { sql: FACTS, parameters: Vec::new() }).await;
    let rows = rows.map_err(|error| cannot(&error))?;
    let fact = |name: &str| {
        rows.iter()
            .find(|row| row.try_get::<_, &str>(0).is_ok_and(|found| found == name))
            .and_then(|row| row.try_get::<_, Vec<u8>>(1).ok())
            .ok_or_else(|| OpenError(format!("receiptd.store_facts has no {name}")))
    };
    let unreadable = |name: &str| OpenError(format!("{name} in receiptd.store_facts is damaged"));
    let life = unpack_life(&fact("life")?).map_err(|_| unreadable("life"))?;
    let facts = StoreFacts {
        epoch: life.epoch.clone(),
        token_key: fact("token_key")?.try_into().map_err(|_| unreadable("token_key"))?,
        loss: life.loss,
    };
    Ok((facts, life))
}
