//! One table's rows in a batch: each as it was loaded and as it stands now.
//!
//! What must stay true: a row that exists and was not loaded for a change never changes; what was
//! loaded is kept beside what was decided, so that the save can repeat it as its precondition.

use std::collections::BTreeMap;

use super::{
    changes::{TableChanges, Update},
    needs::Access,
};

/// A table's rows in this batch.
#[derive(Debug, Clone)]
pub(super) struct Rows<K, V> {
    pub(super) rows: BTreeMap<K, Row<V>>,
}

#[derive(Debug, Clone)]
pub(super) struct Row<V> {
    pub(super) access: Access,
    pub(super) loaded: Option<V>,
    pub(super) current: Option<V>,
    pub(super) changed: bool,
}

impl<K: Ord + Clone, V: Clone> Rows<K, V> {
    pub(super) fn new() -> Self {
        Rows { rows: BTreeMap::new() }
    }

    pub(super) fn load(&mut self, key: K, access: Access, row: Option<V>) {
        self.rows.entry(key).or_insert(Row {
            access,
            current: row.clone(),
            loaded: row,
            changed: false,
        });
    }

    pub(super) fn get(&self, key: &K) -> Option<Option<&V>> {
        self.rows.get(key).map(|row| row.current.as_ref())
    }

    /// Replaces a row; returns how it stood, for the undo log. `None`: it may not change. A row
    /// that was absent needs no lock: its plain insert is guarded by the unique key.
    pub(super) fn set(&mut self, key: &K, value: Option<V>) -> Option<(Option<V>, bool)> {
        let changeable = |row: &&mut Row<V>| row.access == Access::Write || row.loaded.is_none();
        let row = self.rows.get_mut(key).filter(changeable)?;
        let before = (std::mem::replace(&mut row.current, value), row.changed);
        row.changed = true;
        Some(before)
    }

    pub(super) fn restore(&mut self, key: &K, (value, changed): (Option<V>, bool)) {
        if let Some(row) = self.rows.get_mut(key) {
            row.current = value;
            row.changed = changed;
        }
    }

    pub(super) fn into_changes(self) -> TableChanges<V> {
        let mut changes =
            TableChanges { inserts: Vec::new(), updates: Vec::new(), deletes: Vec::new() };
        for row in self.rows.into_values().filter(|row| row.changed) {
            match (row.loaded, row.current) {
                (None, Some(after)) => changes.inserts.push(after),
                (Some(before), Some(after)) => changes.updates.push(Update { before, after }),
                (Some(before), None) => changes.deletes.push(before),
                (None, None) => {}
            }
        }
        changes
    }
}
