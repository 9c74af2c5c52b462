//! Lists of operations, and the story of one.
//!
//! What must stay true: a call looks at a bounded number of rows, whatever the filter; a page may
//! be short while more follow.

use std::collections::BTreeMap;

use sha2::Digest;

use super::{
    Api,
    convert::{
        self, lists,
        operations::{self, StoryEvent},
    },
    pages::{pack_operation, unpack_number, unpack_operation},
    status::Refused,
};
use crate::{
    domain::{
        audit::{AuditChain, AuditEvent, AuditKind, AuditRow},
        delivery::Delivery,
        filter::{OperationFilter, Scope},
        ids::{Account, OperationId},
        operation::{Operation, OperationKey},
        record::unpack_events,
    },
    proto,
    store::{ReadError, query::OperationPosition},
};

/// Rows that one call looks at: some tens of milliseconds of the store's time.
const SCANNED_MAX: i64 = 5_000;
/// Rows of one read: large enough that a filter which admits little needs few reads.
const READ_ROWS: i64 = 500;
/// Audit rows of one operation that are told: its attempts are bounded far below this.
const STORY_ROWS_MAX: i64 = 10_000;

struct Page {
    operations: Vec<proto::ListedOperation>,
    next: Option<OperationPosition>,
}

impl Api {
    /// The account's operations, newest first.
    pub(super) async fn list(
        &self,
        account: &Account,
        request: proto::ListOperationsRequest,
    ) -> Result<proto::ListOperationsResponse, Refused> {
        let size = lists::page_size(request.page_size)?;
        let filter = lists::operation_filter(&request)?;
        let pages = self.pages(account, "operations", filter.hash());
        let after = pages.open(&request.page_token)?;
        let after = after.map(|packed| unpack_operation(&packed)).transpose()?;
        let page = self.scan(account, &filter, after, size).await?;
        let next = page.next.as_ref().map(pack_operation);
        Ok(proto::ListOperationsResponse {
            operations: page.operations,
            next_page_token: pages.seal(next.as_deref()),
        })
    }

    async fn scan(
        &self,
        account: &Account,
        filter: &OperationFilter,
        mut after: Option<OperationPosition>,
        size: i64,
    ) -> Result<Page, ReadError> {
        let mut page = Page { operations: Vec::new(), next: None };
        let mut scanned = 0;
        while scanned < SCANNED_MAX {
            let rows = self.read(account, filter.scope, after.as_ref()).await?;
            let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            let mut deliveries = self.deliveries_of(&rows, filter).await?;
            for row in rows {
                if filter.ends_at(&row) {
                    return Ok(Page { next: None, ..page });
                }
                after = Some(position(&row));
                let delivery = deliveries.remove(&row.key.id);
                let delivery = delivery.as_slice();
                if !filter.admits(&row) || !filter.admits_deliveries(delivery) {
                    continue;
                }
                page.operations.push(proto::ListedOperation {
                    operation: Some(operations::operation(&row, None)),
                    deliveries: delivery.iter().map(operations::delivery).collect(),
                });
                if i64::try_from(page.operations.len()).is_ok_and(|length| length >= size) {
                    return Ok(Page { next: after, ..page });
                }
            }
            if count < READ_ROWS {
                return Ok(page);
            }
            scanned += count;
        }
        Ok(Page { next: after, ..page })
    }

    async fn read(
        &self,
        account: &Account,
        scope: Scope,
        after: Option<&OperationPosition>,
    ) -> Result<Vec<Operation>, ReadError> {
        let store = self.engine().store();
        match scope {
            Scope::All => store.list_operations(account, after, READ_ROWS).await,
            Scope::Unresolved => store.list_unresolved(account, after, READ_ROWS).await,
        }
    }

    /// The deliveries of those rows that pass by themselves.
    async fn deliveries_of(
        &self,
        rows: &[Operation],
        filter: &OperationFilter,
    ) -> Result<BTreeMap<OperationId, Delivery>, ReadError> {
        let keys: Vec<_> = rows
            .iter()
            .filter(|row| filter.admits(row))
            .filter_map(Operation::delivery_key)
            .collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let found = self.engine().store().deliveries(&keys).await?;
        Ok(found.into_iter().map(|delivery| (delivery.operation_id.clone(), delivery)).collect())
    }

    /// The audit trail of one operation, oldest first.
    pub(super) async fn events(
        &self,
        account: &Account,
        request: proto::ListOperationEventsRequest,
    ) -> Result<proto::ListOperationEventsResponse, Refused> {
        let size = lists::page_size(request.page_size)?;
        let identity = convert::identity(&request.operation_id, request.mint_time.as_ref())?;
        let key = identity.key(account);
        let mut filter = [0; 32];
        filter.copy_from_slice(&sha2::Sha256::digest(key.id.as_str()));
        let pages = self.pages(account, "events", filter);
        let after = pages.open(&request.page_token)?;
        let after = after.map(|packed| unpack_number(&packed)).transpose()?.unwrap_or(0);
        let Some(shown) = self.look_up(&key).await? else {
            return Err(self.absent(&identity, account).await);
        };
        let rows = self.audit_rows(&key).await?;
        let story = story(&rows, &shown.deliveries)?;
        let start = usize::try_from(after).unwrap_or(usize::MAX).min(story.len());
        let end = start.saturating_add(usize::try_from(size).unwrap_or(0)).min(story.len());
        let next =
            (end < story.len()).then(|| i64::try_from(end).unwrap_or(i64::MAX).to_be_bytes());
        Ok(proto::ListOperationEventsResponse {
            events: story[start..end].iter().map(operations::event).collect(),
            next_page_token: pages.seal(next.as_ref().map(<[u8; 8]>::as_slice)),
        })
    }

    /// The rows of an operation's trail, oldest first.
    pub(super) async fn audit_rows(&self, key: &OperationKey) -> Result<Vec<AuditRow>, ReadError> {
        let chain = AuditChain::Operation(key.clone());
        let mut rows: Vec<AuditRow> = Vec::new();
        while i64::try_from(rows.len()).is_ok_and(|length| length < STORY_ROWS_MAX) {
            let after = rows.last().map_or(0, |row| row.number);
            let read = self.engine().store().list_audit(&chain, after, READ_ROWS).await?;
            let count = i64::try_from(read.len()).unwrap_or(i64::MAX);
            rows.extend(read);
            if count < READ_ROWS {
                break;
            }
        }
        Ok(rows)
    }
}

/// Where a list goes on after an operation.
pub(super) fn position(operation: &Operation) -> OperationPosition {
    OperationPosition { accept_time: operation.accept_time, id: operation.key.id.clone() }
}

/// One story from the chained rows and from the evidence of acks that stands in the deliveries: in
/// the order of the chain, whatever a clock said; an ack without a row of its own comes right
/// after the row that queued its delivery.
pub(super) fn story(
    rows: &[AuditRow],
    deliveries: &[Delivery],
) -> Result<Vec<StoryEvent>, ReadError> {
    let mut chained = Vec::new();
    for row in rows {
        for (part, event) in (1..).zip(unpack_events(&row.events)?) {
            chained.push((row, part, event));
        }
    }
    let told = |sequence: i64| {
        chained.iter().any(|(_, _, event)| {
            event.sequence == sequence
                && matches!(event.kind, AuditKind::Acked | AuditKind::AckedLate)
        })
    };
    let queued_by = |sequence: i64| {
        let mut queued = chained.iter().filter(|(_, _, event)| event.kind == AuditKind::Queued);
        let row = queued.find(|(_, _, event)| event.sequence == sequence);
        row.map_or(i32::MAX, |(row, _, _)| row.number)
    };
    let mut acks = Vec::new();
    for delivery in deliveries {
        let sequence = delivery.key.sequence;
        if let Some(ack) = delivery.ack.as_ref().filter(|_| !told(sequence)) {
            let attempt = ack.attempt;
            let event = AuditEvent { sequence, attempt, ..AuditEvent::plain(AuditKind::Acked) };
            let ack = StoryEvent {
                number: 0,
                part: 0,
                time: ack.time,
                subject: ack.subject.clone(),
                event,
                hash: ack.hash,
            };
            acks.push((queued_by(sequence), ack));
        }
    }
    let mut story: Vec<(i32, StoryEvent)> = chained
        .into_iter()
        .map(|(row, part, event)| {
            let (number, time) = (row.number, row.time);
            let (subject, hash) = (row.subject.clone(), row.hash);
            (number, StoryEvent { number, part, time, subject, event, hash })
        })
        .collect();
    story.extend(acks);
    // Stable: the events of one row stay in their order, and the acks come after them.
    story.sort_by_key(|(place, _)| *place);
    Ok(story.into_iter().map(|(_, event)| event).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        audit::{AuditHead, append},
        delivery::AckEvidence,
        ids::Timestamp,
        record::pack_events,
        sample,
    };

    fn row(number: i32, time: i64, kinds: &[AuditKind]) -> AuditRow {
        let events: Vec<_> = kinds
            .iter()
            .map(|kind| AuditEvent { sequence: 1, ..AuditEvent::plain(*kind) })
            .collect();
        let head = AuditHead { length: number - 1, hash: [0; 32] };
        let chain = AuditChain::Operation(sample::operation("op-1").key);
        append(head, &chain, Timestamp(time), "editor", pack_events(&events)).0
    }

    fn kinds(rows: &[AuditRow], delivery: Delivery) -> Vec<(i32, i32, AuditKind)> {
        let story = story(rows, &[delivery]).expect("readable");
        story.iter().map(|event| (event.number, event.part, event.event.kind)).collect()
    }

    #[test]
    fn an_ack_without_a_row_of_its_own_is_part_of_the_story() {
        let ack = AckEvidence {
            time: Timestamp(20),
            attempt: 1,
            subject: "editor".to_owned(),
            consumer: String::new(),
            hash: [1; 32],
        };
        let acked = Delivery { ack: Some(ack), ..sample::delivery("op-1", 1) };
        let rows = [
            row(1, 10, &[AuditKind::Accepted, AuditKind::Applied, AuditKind::Queued]),
            row(2, 20, &[AuditKind::LockReleased]),
        ];
        assert_eq!(
            kinds(&rows, acked.clone()),
            [
                (1, 1, AuditKind::Accepted),
                (1, 2, AuditKind::Applied),
                (1, 3, AuditKind::Queued),
                (0, 0, AuditKind::Acked),
                (2, 1, AuditKind::LockReleased),
            ]
        );
        let rows = [row(1, 10, &[AuditKind::Accepted]), row(2, 20, &[AuditKind::Acked])];
        assert_eq!(
            kinds(&rows, acked),
            [(1, 1, AuditKind::Accepted), (2, 1, AuditKind::Acked)],
            "and is not told twice"
        );
    }

    #[test]
    fn a_clock_that_steps_back_changes_no_order() {
        let ack = AckEvidence {
            time: Timestamp(5),
            attempt: 1,
            subject: "editor".to_owned(),
            consumer: String::new(),
            hash: [1; 32],
        };
        let acked = Delivery { ack: Some(ack), ..sample::delivery("op-1", 1) };
        let rows = [
            row(1, 30, &[AuditKind::Accepted, AuditKind::Waiting]),
            row(2, 20, &[AuditKind::Applied, AuditKind::Queued]),
            row(3, 10, &[AuditKind::LockReleased]),
        ];
        let expected = [
            (1, 1, AuditKind::Accepted),
            (1, 2, AuditKind::Waiting),
            (2, 1, AuditKind::Applied),
            (2, 2, AuditKind::Queued),
            (0, 0, AuditKind::Acked),
            (3, 1, AuditKind::LockReleased),
        ];
        assert_eq!(kinds(&rows, acked.clone()), expected);
        // Where the row that queued it cannot be told, the ack comes last.
        let expected =
            [(1, 1, AuditKind::Accepted), (1, 2, AuditKind::Waiting), (0, 0, AuditKind::Acked)];
        assert_eq!(kinds(&rows[..1], acked), expected);
    }
}
