//! All tables as text, so that tests can compare two stores row by row.
//!
//! What must stay true: what differs between two dumps differs in the stores' content. Not in
//! here: what a store is, as opposed to what it holds (its migrations and its facts).

use std::fmt::Write as _;

use rusqlite::{Connection, types::ValueRef};

use super::fault::Fault;

/// The tables that hold content, by name.
const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' \
    AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name NOT IN ('schema_migrations', 'store_facts') \
    ORDER BY name";

/// Each table with its rows in the order of the primary key. A row is `column=value` for each
/// column in the order of the schema, with `|` between: NULL as `-`, blobs in lower-case hex.
pub(super) fn tables(connection: &Connection) -> Result<Vec<(String, Vec<String>)>, Fault> {
    let mut statement = connection.prepare(TABLES)?;
    let names = statement.query_map([], |row| row.get(0))?;
    let names = names.collect::<rusqlite::Result<Vec<String>>>()?;
    names.into_iter().map(|name| Ok((name.clone(), rows(connection, &name)?))).collect()
}

/// The columns of a primary key, in its order.
const PRIMARY_KEY: &str = "SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk";

/// The rows of one table. Its name and its columns come from the schema itself.
fn rows(connection: &Connection, table: &str) -> Result<Vec<String>, Fault> {
    let mut statement = connection.prepare(PRIMARY_KEY)?;
    let key = statement.query_map([table], |row| row.get(0))?;
    let key = key.collect::<rusqlite::Result<Vec<String>>>()?.join(", ");
    let mut statement = connection.prepare(&format!("SELECT * FROM {table} ORDER BY {key}"))?;
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query([])?;
    let mut rendered = Vec::new();
    while let Some(row) = rows.next()? {
        let mut text = String::new();
        for (index, column) in columns.iter().enumerate() {
            let separator = if index == 0 { "" } else { "|" };
            text.push_str(separator);
            text.push_str(column);
            text.push('=');
            render(&mut text, row.get_ref(index)?);
        }
        rendered.push(text);
    }
    Ok(rendered)
}

fn render(text: &mut String, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => text.push('-'),
        ValueRef::Integer(number) => text.push_str(&number.to_string()),
        ValueRef::Real(number) => text.push_str(&number.to_string()),
        ValueRef::Text(bytes) => text.push_str(&String::from_utf8_lossy(bytes)),
        ValueRef::Blob(bytes) => {
            for byte in bytes {
                write!(text, "{byte:02x}").expect("a String takes everything");
            }
        }
    }
}
