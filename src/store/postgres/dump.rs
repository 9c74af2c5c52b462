//! All rows of all tables as text, to be compared across stores after the same scenario.
//!
//! What must stay true: the format is the embedded store's, byte for byte.

use super::{PostgresStore, errors, rows::Fields};
use crate::store::ReadError;

/// Tables with their columns in schema order, each `name:type`, and those of the primary key in
/// its order. Reads the catalog.
const TABLES: &str = "SELECT c.relname::text,
        (SELECT array_agg(a.attname || ':' || format_type(a.atttypid, NULL) ORDER BY a.attnum)
         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum))
         FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
         WHERE i.indrelid = c.oid AND i.indisprimary)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'receiptd' AND c.relkind = 'r'
        AND c.relname NOT IN ('schema_migrations', 'store_facts')
    ORDER BY c.relname COLLATE \"C\"";

impl PostgresStore {
    /// Every table of the schema by name, with its rows in key order, each as
    /// `column=value|column=value`: NULL as `-`, bytes as lower-case hex. For tests; reads all.
    ///
    /// # Errors
    /// [`ReadError`] if a table cannot be read.
    pub async fn dump_tables(&self) -> Result<Vec<(String, Vec<String>)>, ReadError> {
        let lease = self.0.reads.borrow().await.map_err(ReadError::Unavailable)?;
        let failed = |error: tokio_postgres::Error| ReadError::Unavailable(errors::words(&error));
        let mut dump = Vec::new();
        for row in lease.query_text(TABLES).await.map_err(failed)? {
            let mut fields = Fields::new(&row, "catalog");
            let table: String = fields.take()?;
            let sql =
                select(&table, &fields.take::<Vec<String>>()?, &fields.take::<Vec<String>>()?);
            let rows = lease.query_text(&sql).await.map_err(failed)?;
            let lines = rows.iter().map(|row| Fields::new(row, "dump").take());
            dump.push((table, lines.collect::<Result<_, _>>()?));
        }
        lease.give_back();
        Ok(dump)
    }
}

fn select(table: &str, columns: &[String], key: &[String]) -> String {
    let values = columns.iter().map(|column| {
        let (name, kind) = column.split_once(':').unwrap_or((column, ""));
        let value = match kind {
            "bytea" => format!("encode(\"{name}\", 'hex')"),
            _ => format!("\"{name}\"::text"),
        };
        format!("'{name}=' || coalesce({value}, '-')")
    });
    let values: Vec<String> = values.collect();
    let key: Vec<String> = key.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        "SELECT {} FROM receiptd.\"{table}\" ORDER BY {}",
        values.join(" || '|' || "),
        key.join(", ")
    )
}
