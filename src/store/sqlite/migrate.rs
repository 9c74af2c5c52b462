//! The schema and its history: numbered files, applied forward only, all in one transaction.
//!
//! What must stay true: a file that was applied anywhere is never changed (its checksum is kept);
//! a store that a newer release has migrated is refused; a store either has the whole schema and
//! its facts, or is as it was. Deliberately not here: undoing a migration.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use sha2::{Digest, Sha256};

use super::{Options, connection};
use crate::{
    domain::{
        epoch::Life,
        ids::Timestamp,
        record::{pack_life, unpack_life},
    },
    engine::seams::{FileLock, Seams},
    store::{OpenError, StoreFacts},
};

/// The schema, one file per step; the number of a file is its place, from 1.
pub(super) const MIGRATIONS: [&str; 1] = [include_str!("schema/0001.sql")];

/// Brings the schema of a store up to this release, and creates the store where there is none.
/// Durable on return; on an error the store is as it was. Returns the number of the schema.
///
/// # Errors
/// [`OpenError`] if another process uses the store, if a newer release has migrated it, if a
/// migration that it has differs from this release's, or if the file cannot be used.
pub fn migrate(path: &Path, seams: &Seams, options: &Options) -> Result<usize, OpenError> {
    connection::create(path)?;
    let path = &connection::resolve(path)?;
    let _lock = match seams.store_file_lock() {
        FileLock::Exclusive => Some(connection::lock_file(path)?),
        FileLock::Shared => None,
    };
    let mut writer = connection::open_writer(path, options)?;
    prepare(&mut writer, path, seams, &MIGRATIONS)?;
    Ok(MIGRATIONS.len())
}

/// Applies what is missing of `migrations`, and makes the store's facts if there are none. One
/// transaction, so that two processes that create a store make one of it.
///
/// # Errors
/// [`OpenError`], as [`migrate`].
pub(super) fn prepare(
    writer: &mut Connection,
    path: &Path,
    seams: &Seams,
    migrations: &[&str],
) -> Result<(StoreFacts, Life), OpenError> {
    let describe = |error: rusqlite::Error| connection::describe(path, &error);
    let transaction =
        writer.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(describe)?;
    let applied = history(&transaction, path)?;
    check(&applied, migrations, path)?;
    let now = seams.now();
    for (number, text) in (1_i64..).zip(migrations).skip(applied.len()) {
        transaction.execute_batch(text).map_err(describe)?;
        record(&transaction, number, text, now).map_err(describe)?;
    }
    let facts = facts(&transaction, path, seams)?;
    transaction.commit().map_err(describe)?;
    Ok(facts)
}

/// What a store is, without a change of it.
///
/// # Errors
/// [`OpenError`] if it is none, or if its schema is not this release's.
pub(super) fn inspect(reader: &Connection, path: &Path) -> Result<StoreFacts, OpenError> {
    let describe = |error: rusqlite::Error| connection::describe(path, &error);
    let unreadable =
        |what: &str| OpenError(format!("the {what} of the store {} is unreadable", path.display()));
    let tables = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (_, ours): (i64, i64) = reader.query_row(COUNT_TABLES, [], tables).map_err(describe)?;
    if ours == 0 {
        return Err(OpenError(format!("{} is no store: name another file", path.display())));
    }
    let applied = read_history(reader).map_err(describe)?;
    check(&applied, &MIGRATIONS, path)?;
    if applied.len() < MIGRATIONS.len() {
        return Err(OpenError(format!(
            "the store {} has schema {} of {}: run `receiptd migrate` first",
            path.display(),
            applied.len(),
            MIGRATIONS.len()
        )));
    }
    let fact = |name: &str| {
        let value: Option<Vec<u8>> =
            reader.query_row(FACT, [name], |row| row.get(0)).optional().map_err(describe)?;
        value.ok_or_else(|| OpenError(format!("the store {} has no {name}", path.display())))
    };
    let life = unpack_life(&fact("life")?).map_err(|_| unreadable("own row"))?;
    let token_key = fact("token_key")?.try_into().map_err(|_| unreadable("token key"))?;
    Ok(StoreFacts { epoch: life.epoch, token_key, loss: life.loss })
}

const CREATE_HISTORY: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (\
    number INTEGER NOT NULL PRIMARY KEY, checksum TEXT NOT NULL, time INTEGER NOT NULL) STRICT";

/// Whether the file holds tables of anybody.
const COUNT_TABLES: &str = "SELECT count(*), count(*) FILTER (WHERE name = 'schema_migrations') \
    FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'";

/// Index: the primary key.
const HISTORY: &str = "SELECT number, checksum FROM schema_migrations ORDER BY number";

/// The migrations that the store has.
fn history(connection: &Connection, path: &Path) -> Result<Vec<(i64, String)>, OpenError> {
    let read = || {
        let (tables, ours): (i64, i64) =
            connection.query_row(COUNT_TABLES, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if tables > 0 && ours == 0 {
            return Ok(None);
        }
        connection.execute(CREATE_HISTORY, [])?;
        read_history(connection).map(Some)
    };
    let history = read().map_err(|error| connection::describe(path, &error))?;
    history.ok_or_else(|| {
        OpenError(format!(
            "{} is the database of another program: name another file",
            path.display()
        ))
    })
}

fn read_history(connection: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let mut statement = connection.prepare(HISTORY)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Compares what the store has with what this release knows.
fn check(applied: &[(i64, String)], migrations: &[&str], path: &Path) -> Result<(), OpenError> {
    let path = path.display();
    let last = applied.last().map_or(0, |(number, _)| *number);
    if usize::try_from(last).is_ok_and(|last| last > migrations.len()) {
        return Err(OpenError(format!(
            "the store {path} has schema {last}, and this release knows {} only: use the release \
             that migrated it, or a newer one",
            migrations.len()
        )));
    }
    for ((expected, text), (number, stored)) in (1_i64..).zip(migrations).zip(applied) {
        if *number != expected || *stored != checksum(text) {
            return Err(OpenError(format!(
                "migration {expected} of the store {path} differs from this release's: the store \
                 was made by a changed build; restore a backup or use that build"
            )));
        }
    }
    Ok(())
}

const RECORD: &str = "INSERT INTO schema_migrations (number, checksum, time) VALUES (?1, ?2, ?3)";

fn record(
    connection: &Connection,
    number: i64,
    text: &str,
    now: Timestamp,
) -> rusqlite::Result<usize> {
    connection.execute(RECORD, (number, checksum(text), now.0))
}

/// The SHA-256 of a migration, as an operator can compute it from the file.
fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The store's facts, made at the first opening.
fn facts(
    connection: &Connection,
    path: &Path,
    seams: &Seams,
) -> Result<(StoreFacts, Life), OpenError> {
    let describe = |error: rusqlite::Error| connection::describe(path, &error);
    let unreadable =
        |what: &str| OpenError(format!("the {what} of the store {} is unreadable", path.display()));
    let epoch = || {
        let id = uuid::Builder::from_random_bytes(seams.random_bytes()).into_uuid();
        pack_life(&Life::first(id.to_string(), None))
    };
    let life = fact(connection, "life", epoch).map_err(describe)?;
    let life = unpack_life(&life).map_err(|_| unreadable("own row"))?;
    let token_key = || seams.random_bytes::<32>().to_vec();
    let token_key = fact(connection, "token_key", token_key).map_err(describe)?;
    let facts = StoreFacts {
        epoch: life.epoch.clone(),
        token_key: token_key.try_into().map_err(|_| unreadable("token key"))?,
        loss: life.loss,
    };
    Ok((facts, life))
}

/// Index: the primary key.
const FACT: &str = "SELECT value FROM store_facts WHERE bucket = 0 AND account = '' AND name = ?1";

/// One fact; made by `make` if there is none.
fn fact(
    connection: &Connection,
    name: &str,
    make: impl FnOnce() -> Vec<u8>,
) -> rusqlite::Result<Vec<u8>> {
    if let Some(value) = connection.query_row(FACT, [name], |row| row.get(0)).optional()? {
        return Ok(value);
    }
    let value = make();
    insert_fact(connection, name, &value)?;
    Ok(value)
}

const INSERT_FACT: &str =
    "INSERT INTO store_facts (bucket, account, name, value) VALUES (0, '', ?1, ?2)";

fn insert_fact(connection: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<usize> {
    connection.execute(INSERT_FACT, (name, value))
}
