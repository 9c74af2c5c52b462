//! The rows in which replicas are named, and whether what one of them acknowledged is there.
//!
//! What must stay true: these statements pass while the store takes no other writes, since it is
//! they that end the wait; each may run twice. Deliberately not here: what they mean
//! ([`crate::domain::failover`]).

use super::{
    PostgresStore,
    load_statements::CLOCK,
    memory::Newest,
    rows::Fields,
    session::{Call, column, value},
};
use crate::{
    domain::{
        epoch::{Life, Server},
        failover::{Replica, ReplicaName},
        ids::{Span, Timestamp},
        record::{Unreadable, pack_replica, unpack_life, unpack_replica},
    },
    store::ReadError,
};

/// Replicas that are read at once: a name lives a minute beyond its replica, so that this is far
/// above the number of replicas of one store.
const REPLICAS_MAX: i64 = 1_000;

/// Index: store_facts_pkey.
const LIFE: &str = "SELECT f.value FROM receiptd.store_facts f
    WHERE f.bucket = 0 AND f.account = '' AND f.name = 'life'";

/// By name, from `replica:` to just before `replica;`. Index: store_facts_pkey.
const REPLICAS: &str = "SELECT f.name, f.value FROM receiptd.store_facts f
    WHERE f.bucket = 0 AND f.account = '' AND f.name >= 'replica:' AND f.name < 'replica;'
    ORDER BY f.name LIMIT $1::bigint";

/// Index: store_facts_pkey.
const WRITE_REPLICA: &str = "INSERT INTO receiptd.store_facts (bucket, account, name, value)
    VALUES (0, '', $1::text, $2::bytea)
    ON CONFLICT (bucket, account, name) DO UPDATE SET value = EXCLUDED.value";

/// Only as it was read: one that gave another sign of life stays. Index: store_facts_pkey.
const REMOVE_REPLICA: &str = "DELETE FROM receiptd.store_facts f
    WHERE f.bucket = 0 AND f.account = '' AND f.name = $1::text AND f.value = $2::bytea";

/// Index: batches_pkey.
const COUNT_BATCHES: &str = "SELECT count(*)
    FROM UNNEST($1::smallint[], $2::bytea[]) AS k(bucket, batch)
    JOIN receiptd.batches b ON b.bucket = k.bucket AND b.batch = k.batch";

/// The store and its replicas, read together.
#[derive(Debug, Clone)]
pub struct Glance {
    /// The store's own row.
    pub life: Life,
    /// Who is named.
    pub replicas: Vec<Replica>,
    /// The store's clock.
    pub now: Timestamp,
    /// The newest server that was met.
    pub server: Server,
}

impl PostgresStore {
    /// Reads the store's own row and who is named, in one flight.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn glance_at_replicas(&self) -> Result<Glance, ReadError> {
        let calls = vec![
            Call { sql: LIFE, parameters: Vec::new() },
            Call { sql: REPLICAS, parameters: vec![value(REPLICAS_MAX)] },
            Call { sql: CLOCK, parameters: vec![value(self.0.seams.clock_parameter().0)] },
        ];
        let replies = self.upkeep(calls).await?;
        let first = |index: usize, what: &'static str| {
            let row = replies.get(index).and_then(|rows| rows.first());
            row.map(|row| Fields::new(row, what)).ok_or(Unreadable { what })
        };
        let life = unpack_life(first(0, "row of the store itself")?.take()?)?;
        let now = Timestamp(first(2, "clock")?.take()?);
        let read = |row| {
            let mut fields = Fields::new(row, "row of a replica");
            let name: &str = fields.take()?;
            let name = name_of(name).ok_or(Unreadable { what: "name of a replica" })?;
            unpack_replica(name, fields.take()?)
        };
        let replicas = replies.get(1).into_iter().flatten().map(read);
        let replicas = replicas.collect::<Result<Vec<Replica>, Unreadable>>()?;
        Ok(Glance { life, replicas, now, server: self.0.guard.server() })
    }

    /// Writes a replica's row as it is now; durable on return.
    ///
    /// # Errors
    /// [`ReadError`]; then it may be written all the same.
    pub async fn write_replica(&self, replica: &Replica) -> Result<(), ReadError> {
        let parameters = vec![value(fact_of(&replica.name)), value(pack_replica(replica))];
        self.upkeep_write(Call { sql: WRITE_REPLICA, parameters }).await.map(drop)
    }

    /// Writes this replica's own sign of life, which stands for everything that it acknowledged
    /// before. Durable on return.
    ///
    /// # Errors
    /// [`ReadError`]; then it may be written all the same.
    pub async fn beat(&self, replica: &Replica) -> Result<(), ReadError> {
        let place = self.0.memory.place();
        self.write_replica(replica).await?;
        self.0.memory.beaten(replica.beats, place);
        Ok(())
    }

    /// Removes a replica's row, if it stands as it was read; durable on return.
    ///
    /// # Errors
    /// [`ReadError`]; then it may be gone all the same.
    pub async fn remove_replica(&self, replica: &Replica) -> Result<(), ReadError> {
        let parameters = vec![value(fact_of(&replica.name)), value(pack_replica(replica))];
        self.upkeep_write(Call { sql: REMOVE_REPLICA, parameters }).await.map(drop)
    }

    /// Whether everything that this process acknowledged is there, by its newest writes; `own` is
    /// its row as just read. From here on no answer from an older timeline counts.
    ///
    /// # Errors
    /// [`ReadError`]; then nothing is known.
    pub async fn holds_own(&self, own: Option<&Replica>) -> Result<bool, ReadError> {
        let Newest { batches, beats } = self.0.memory.newest(self.0.guard.server().timeline);
        if own.map_or(0, |own| own.beats) < beats {
            return Ok(false);
        }
        if batches.is_empty() {
            return Ok(true);
        }
        let parameters = vec![
            column(&batches, |(bucket, _)| *bucket),
            column(&batches, |(_, batch): &(i16, [u8; 16])| batch.to_vec()),
        ];
        let replies = self.upkeep(vec![Call { sql: COUNT_BATCHES, parameters }]).await?;
        let row = replies.first().and_then(|rows| rows.first());
        let row = row.ok_or(Unreadable { what: "count of batches" })?;
        let found: i64 = Fields::new(row, "count of batches").take()?;
        Ok(usize::try_from(found).is_ok_and(|found| found == batches.len()))
    }

    /// Forgets what was acknowledged in a life of the store that has ended.
    pub fn forget_acknowledged(&self) {
        self.0.memory.forget();
    }

    /// Says how long writes may be refused, for whoever asks meanwhile.
    pub fn set_wait(&self, wait: Option<Span>) {
        self.0.guard.set_wait(wait);
    }

    /// How long writes may be refused because a failover is judged.
    pub fn wait(&self) -> Option<Span> {
        self.0.guard.wait()
    }

    /// The server that the store's own row names, as last read.
    pub fn settled_on(&self) -> Option<Server> {
        self.0.guard.settled_on()
    }

    /// The newest server that was met.
    pub fn server(&self) -> Server {
        self.0.guard.server()
    }
}

const PREFIX: &str = "replica:";

fn fact_of(name: &ReplicaName) -> String {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digits}")
}

fn name_of(fact: &str) -> Option<ReplicaName> {
    let number = u128::from_str_radix(fact.strip_prefix(PREFIX)?, 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let name = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(name_of(&fact_of(&name)), Some(name));
        assert_eq!(name_of("replica:x"), None);
    }
}
