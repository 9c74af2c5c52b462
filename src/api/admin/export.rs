//! ExportOperations.

use prost::Message as _;

use crate::{
    api::{
        Api,
        convert::operations,
        operation_lists::{position, story},
        pages::{pack_operation, unpack_operation},
        status::Refused,
    },
    domain::{
        delivery::Delivery,
        ids::{Account, Invalid},
        operation::Operation,
        refusal::Refusal,
    },
    proto,
};

/// Operations of one page at most: their trails are read one by one, and a page stays within the 4 MiB
/// that clients take.
const PAGE_SIZE_MAX: i64 = 100;
/// Bytes of one page, or one operation more: a small part of what clients take.
const PAGE_BYTES_MAX: usize = 256 * 1024;
/// Without a wish.
const PAGE_SIZE_DEFAULT: i64 = 50;
/// Nothing is filtered.
const ALL: [u8; 32] = [0; 32];

impl Api {
    pub(super) async fn export(
        &self,
        account: &Account,
        request: proto::ExportOperationsRequest,
    ) -> Result<proto::ExportOperationsResponse, Refused> {
        let size = match i64::from(request.page_size) {
            0 => PAGE_SIZE_DEFAULT,
            size if (1..=PAGE_SIZE_MAX).contains(&size) => size,
            _ => {
                let problem = format!("must be 0 to {PAGE_SIZE_MAX}");
                return Err(Refusal::Invalid(Invalid::new("page_size", problem)).into());
            }
        };
        let pages = self.pages(account, "export", ALL);
        let after = pages.open(&request.page_token)?;
        let after = after.map(|packed| unpack_operation(&packed)).transpose()?;
        let store = self.engine().store();
        let rows = store.list_operations(account, after.as_ref(), size).await?;
        let full = i64::try_from(rows.len()).is_ok_and(|count| count >= size);
        let mut next = rows.last().filter(|_| full).map(position);
        let keys: Vec<_> = rows.iter().filter_map(Operation::delivery_key).collect();
        let deliveries = match keys.is_empty() {
            true => Vec::new(),
            false => store.deliveries(&keys).await?,
        };
        let (mut exported, mut bytes) = (Vec::with_capacity(rows.len()), 0);
        let mut last = None;
        for row in rows {
            if bytes >= PAGE_BYTES_MAX {
                next = last;
                break;
            }
            last = Some(position(&row));
            let of = |delivery: &&Delivery| delivery.operation_id == row.key.id;
            let own: Vec<Delivery> = deliveries.iter().filter(of).cloned().collect();
            let trail = self.audit_rows(&row.key).await?;
            let events = story(&trail, &own)?;
            let one = proto::ExportedOperation {
                operation: Some(operations::operation(&row, None)),
                deliveries: own.iter().map(operations::delivery).collect(),
                events: events.iter().map(operations::event).collect(),
            };
            bytes += one.encoded_len();
            exported.push(one);
        }
        let next = next.as_ref().map(pack_operation);
        Ok(proto::ExportOperationsResponse {
            operations: exported,
            next_page_token: pages.seal(next.as_deref()),
        })
    }
}
