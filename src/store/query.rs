//! Reads outside a transaction: what is shown, searched or swept. Nothing decided from them is
//! written without being loaded again under its lock.

use bytes::Bytes;

use super::{ReadError, Store};
use crate::domain::{
    audit::{AuditChain, AuditRow},
    delivery::{Delivery, DeliveryKey, DeliveryState, InboxKey},
    document::Document,
    ids::{Account, InboxName, OperationId, TARGET_BYTES_MAX, Target, Timestamp},
    inbox::{AccountRow, Inbox},
    lock::{Lock, TargetKey},
    operation::{Operation, OperationKey, PayloadKind},
};

/// What [`Store::look_up`] found for one id, all parts read in the order in which they may not
/// overtake each other: the record first, then its delivery, lock and projection.
#[derive(Debug, Clone, Default)]
pub struct LookedUp {
    /// The record.
    pub operation: Option<Operation>,
    /// Its deliveries.
    pub deliveries: Vec<Delivery>,
    /// The target's document as it is now, without content.
    pub document: Option<Document>,
    /// The lock of its target, while it waits.
    pub lock: Option<Lock>,
}

/// Where a page of operations starts: after this one, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationPosition {
    /// Its acceptance.
    pub accept_time: Timestamp,
    /// Its id.
    pub id: OperationId,
}

/// What the sweeper looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DueKind {
    /// Deliveries past their ack deadline or ack window.
    Deliveries,
    /// Operations past their start deadline.
    Operations,
    /// Locks past their limit, or with waiters to start.
    Locks,
    /// Inboxes with consumers past their lease, or whose upkeep is due.
    Inboxes,
    /// Accounts that may close for more old ids.
    Accounts,
}

/// One row that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// A delivery and its operation.
    Delivery(DeliveryKey, OperationId),
    /// An operation.
    Operation(OperationKey),
    /// A lock.
    Lock(TargetKey),
    /// An inbox.
    Inbox(InboxKey),
    /// An account.
    Account(Account),
}

/// Where the sweeper goes on within a pass: keyset, so that a stuck head never starves the tail.
/// Opaque to everything but the store that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuePosition(pub Vec<u8>);

/// A page of due rows.
#[derive(Debug, Clone)]
pub struct DuePage {
    /// The rows.
    pub rows: Vec<Due>,
    /// Where to go on; absent at the end.
    pub next: Option<DuePosition>,
}

/// How many rows one list examines: some tens of milliseconds. A state that is rare in a long
/// history, or what exists among markers of what was deleted, would otherwise be searched for as long
/// as there are rows.
pub const EXAMINED_MAX: i64 = 10_000;

/// Bytes of one slice of a payload at most: one message to a reader, with room in the 4 MiB that
/// clients decode, and little to hold for one that is slow.
pub const SLICE_BYTES_MAX: i64 = 256 * 1024;

/// A page of deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryPage {
    /// The deliveries.
    pub deliveries: Vec<Delivery>,
    /// After which number to go on; absent at the end. A page with fewer deliveries than its
    /// limit, or none, may have one.
    pub next: Option<i64>,
}

/// A text that is greater than every target with this prefix, and not greater than any other
/// target after them. UTF-8 sorts by code points, so the last character that has a next one is
/// replaced by it.
pub(in crate::store) fn end_of_prefix(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return end;
        }
    }
    // No prefix, or one of greatest characters only: beyond the longest target.
    String::from(char::MAX).repeat(TARGET_BYTES_MAX / char::MAX.len_utf8() + 1)
}

/// A page of documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentPage {
    /// The documents, without content.
    pub documents: Vec<Document>,
    /// After which target to go on; absent at the end. A page with fewer documents than its
    /// limit, or none, may have one.
    pub next: Option<Target>,
}

/// A page of inboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxPage {
    /// The inboxes.
    pub inboxes: Vec<Inbox>,
    /// After which name to go on; absent at the end. A page with fewer inboxes than its limit, or
    /// none, may have one.
    pub next: Option<InboxName>,
}

/// Along which deliveries a list walks: those that have one of the states, and as few others as
/// an index spares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Walk {
    /// All of the inbox.
    All,
    /// Those that take a slot.
    Open,
    /// EXPIRED and DEAD.
    Lost,
}

impl Walk {
    /// The shortest walk that misses none of the states.
    pub(in crate::store) fn over(states: &[DeliveryState]) -> Walk {
        let lost =
            |state: &DeliveryState| matches!(state, DeliveryState::Expired | DeliveryState::Dead);
        match states {
            [] => Walk::All,
            states if states.iter().all(|state| state.is_open()) => Walk::Open,
            states if states.iter().all(lost) => Walk::Lost,
            _ => Walk::All,
        }
    }
}

/// What a waiting reader compares: changes whenever the row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationGlimpse {
    /// The state's number.
    pub state: i16,
    /// Rises with each outcome.
    pub outcome_version: i32,
}

/// What an open stream compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxGlimpse {
    /// The highest number used.
    pub last_sequence: i64,
    /// Deliveries that wait.
    pub pending: i64,
    /// How many of them came back: one that was taken and returned between two looks shows here.
    pub returned: i64,
    /// Everything up to here was offered: one taken for the first time and returned shows here.
    pub offered: i64,
    /// Deliveries in flight.
    pub in_flight: i64,
    /// Deliveries that ended.
    pub ended: i64,
    /// The highest epoch given to a consumer: a takeover shows here.
    pub consumer_epoch: i64,
}

/// What somebody who watches a document compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentGlimpse {
    /// The revision.
    pub revision: i64,
    /// The generation.
    pub generation: i64,
    /// Whether there is a document.
    pub exists: bool,
}

/// Calls the same function of whichever store it is.
macro_rules! read {
    ($store:expr, $function:ident ( $($argument:expr),* )) => {
        match $store {
            Store::Sqlite(store) => store.$function($($argument),*).await,
            Store::Postgres(store) => store.$function($($argument),*).await,
        }
    };
}

impl Store {
    /// The store's clock, for the server's own upkeep: no load of callers holds it up, so no call
    /// may ask for it.
    ///
    /// # Errors
    /// [`ReadError`], as all functions here.
    pub async fn now(&self) -> Result<Timestamp, ReadError> {
        read!(self, now())
    }

    /// What there is under each key, in order.
    pub async fn look_up(&self, keys: &[OperationKey]) -> Result<Vec<LookedUp>, ReadError> {
        read!(self, look_up(keys))
    }

    /// An account's row.
    pub async fn account(&self, account: &Account) -> Result<Option<AccountRow>, ReadError> {
        read!(self, account(account))
    }

    /// An account's row, and the store's clock, read after it: how an answer to a caller learns
    /// the time.
    pub async fn account_and_now(
        &self,
        account: &Account,
    ) -> Result<(Option<AccountRow>, Timestamp), ReadError> {
        read!(self, account_and_now(account))
    }

    /// Operations of an account, newest first, without filter: at most `limit`.
    pub async fn list_operations(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        read!(self, list_operations(account, after, limit))
    }

    /// Operations of an account that are not final, newest first: at most `limit`. Uses an index
    /// of its own, so that history costs nothing.
    pub async fn list_unresolved(
        &self,
        account: &Account,
        after: Option<&OperationPosition>,
        limit: i64,
    ) -> Result<Vec<Operation>, ReadError> {
        read!(self, list_unresolved(account, after, limit))
    }

    /// The audit rows of a chain after a number, in order: at most `limit`.
    pub async fn list_audit(
        &self,
        chain: &AuditChain,
        after: i32,
        limit: i64,
    ) -> Result<Vec<AuditRow>, ReadError> {
        read!(self, list_audit(chain, after, limit))
    }

    /// A document with its content.
    pub async fn document(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        read!(self, document(key))
    }

    /// A document without its content.
    pub async fn document_facts(&self, key: &TargetKey) -> Result<Option<Document>, ReadError> {
        read!(self, document_facts(key))
    }

    /// Documents that exist, by target in byte order, without content: at most `limit`, and fewer
    /// where more rows than [`EXAMINED_MAX`] would have to be examined.
    pub async fn list_documents(
        &self,
        account: &Account,
        prefix: &str,
        after: Option<&Target>,
        limit: i64,
    ) -> Result<DocumentPage, ReadError> {
        read!(self, list_documents(account, prefix, after, limit))
    }

    /// An inbox.
    pub async fn inbox(&self, key: &InboxKey) -> Result<Option<Inbox>, ReadError> {
        read!(self, inbox(key))
    }

    /// An inbox, and the row of its account, which says what policy holds for it.
    pub async fn inbox_and_account(
        &self,
        key: &InboxKey,
    ) -> Result<(Option<Inbox>, Option<AccountRow>), ReadError> {
        read!(self, inbox_and_account(key))
    }

    /// Inboxes of an account that are not deleted, by name in byte order: at most `limit`, and
    /// fewer where more rows than [`EXAMINED_MAX`] would have to be examined.
    pub async fn list_inboxes(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<InboxPage, ReadError> {
        read!(self, list_inboxes(account, after, limit))
    }

    /// The oldest delivery of each inbox that is PENDING or IN_FLIGHT, in the order asked. Costs
    /// nothing for what has ended or is in other inboxes.
    pub async fn oldest_open_of(
        &self,
        inboxes: &[InboxKey],
    ) -> Result<Vec<Option<Delivery>>, ReadError> {
        read!(self, oldest_open_of(inboxes))
    }

    /// Deliveries of an inbox after a number and in one of the states (all if empty), in order:
    /// at most `limit`, and fewer where more rows than [`EXAMINED_MAX`] would have to be examined.
    pub async fn list_deliveries(
        &self,
        key: &InboxKey,
        after: i64,
        states: &[DeliveryState],
        limit: i64,
    ) -> Result<DeliveryPage, ReadError> {
        read!(self, list_deliveries(key, after, states, limit))
    }

    /// EXPIRED and DEAD deliveries after a number, in order: at most `limit`. Uses an index of
    /// its own.
    pub async fn list_lost(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, ReadError> {
        read!(self, list_lost(key, after, limit))
    }

    /// How many of the [`EXAMINED_MAX`] deliveries after `after` are ACKED; counts at most
    /// `limit`.
    pub async fn count_acked(
        &self,
        key: &InboxKey,
        after: i64,
        limit: i64,
    ) -> Result<i64, ReadError> {
        read!(self, count_acked(key, after, limit))
    }

    /// Deliveries by key, those that exist, in the order asked.
    pub async fn deliveries(&self, keys: &[DeliveryKey]) -> Result<Vec<Delivery>, ReadError> {
        read!(self, deliveries(keys))
    }

    /// Operations by key, those that exist, in the order asked, in one statement.
    pub async fn operations(&self, keys: &[OperationKey]) -> Result<Vec<Operation>, ReadError> {
        read!(self, operations(keys))
    }

    /// Payloads of one kind, each whole, in the order asked; none where there is none. The caller
    /// bounds how much that is: the sizes stand in the operations.
    pub async fn payloads(
        &self,
        keys: &[OperationKey],
        kind: PayloadKind,
    ) -> Result<Vec<Option<Bytes>>, ReadError> {
        read!(self, payloads(keys, kind))
    }

    /// Bytes of one payload from an offset on, at most `length` and never more than
    /// [`SLICE_BYTES_MAX`]; fewer at its end, none where there is no such payload.
    pub async fn read_payload(
        &self,
        key: &OperationKey,
        kind: PayloadKind,
        offset: i64,
        length: i64,
    ) -> Result<Option<Bytes>, ReadError> {
        let length = length.clamp(0, SLICE_BYTES_MAX);
        // Stores count bytes in 32 bits.
        let offset = offset.clamp(0, i64::from(i32::MAX) - SLICE_BYTES_MAX);
        read!(self, read_payload(key, kind, offset, length))
    }

    /// Locks of an account, by target in byte order: at most `limit`.
    pub async fn list_locks(
        &self,
        account: &Account,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Lock>, ReadError> {
        read!(self, list_locks(account, after, limit))
    }

    /// Rows whose `due_time` has come, at most `limit`, from `after` on.
    pub async fn due(
        &self,
        kind: DueKind,
        after: Option<&DuePosition>,
        limit: i64,
    ) -> Result<DuePage, ReadError> {
        read!(self, due(kind, after, limit))
    }

    /// The position before everything in a bucket, for [`Store::due`].
    pub fn due_from(&self, bucket: i16) -> DuePosition {
        match self {
            Store::Sqlite(_) => super::sqlite::due_from(bucket),
            Store::Postgres(_) => super::postgres::due_from(bucket),
        }
    }

    /// What waiting readers compare, in one read each; absent rows give `None`.
    pub async fn glimpse(
        &self,
        operations: &[OperationKey],
        inboxes: &[InboxKey],
    ) -> Result<(Vec<Option<OperationGlimpse>>, Vec<Option<InboxGlimpse>>), ReadError> {
        read!(self, glimpse(operations, inboxes))
    }

    /// What those who watch documents compare, in one read; absent rows give `None`.
    pub async fn glimpse_documents(
        &self,
        keys: &[TargetKey],
    ) -> Result<Vec<Option<DocumentGlimpse>>, ReadError> {
        read!(self, glimpse_documents(keys))
    }

    /// Every table but the migrations and the facts, by name; each row in the order of its key as
    /// `column=value|…`: absent as `-`, bytes in hexadecimal. Equal on both stores after the same
    /// commands on the same clock, but for the table of batches. For tests and support; reads
    /// everything.
    pub async fn dump_tables(&self) -> Result<Vec<(String, Vec<String>)>, ReadError> {
        read!(self, dump_tables())
    }

    /// Deletes batch rows older than `age`, except each replica's newest: at most `limit`.
    /// Returns how many went.
    pub async fn sweep_batches(
        &self,
        age: crate::domain::ids::Span,
        limit: i64,
    ) -> Result<u64, ReadError> {
        read!(self, sweep_batches(age, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::end_of_prefix;

    #[test]
    fn the_end_of_a_prefix_is_right_behind_it() {
        assert_eq!(end_of_prefix("a/"), "a0");
        assert_eq!(end_of_prefix("\u{D7FF}"), "\u{E000}");
        assert_eq!(end_of_prefix("a\u{10FFFF}"), "b");
        assert!(end_of_prefix("").as_str() > "\u{10FFFF}".repeat(128).as_str());
    }
}
