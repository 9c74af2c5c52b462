//! Every row of the model stands in a store.
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part")]

use receiptd::{
    domain::{
        audit::AuditChain,
        delivery::{Delivery, DeliveryState},
        operation::OperationKey,
    },
    store::Store,
};

use crate::{commands::account, memory::Memory};

/// Compares what the store's reads show with the tables in memory.
pub async fn compare_rows(memory: &Memory, store: &Store) {
    let keys: Vec<OperationKey> = memory.operations.keys().cloned().collect();
    for (key, found) in keys.iter().zip(store.look_up(&keys).await.expect("reads")) {
        assert_eq!(found.operation.as_ref(), memory.operations.get(key));
        compare_chain(memory, store, AuditChain::Operation(key.clone())).await;
    }
    for (account, expected) in &memory.accounts {
        assert_eq!(store.account(account).await.expect("reads").as_ref(), Some(expected));
        compare_chain(memory, store, AuditChain::Account(account.clone())).await;
    }
    for (key, expected) in &memory.documents {
        assert_eq!(store.document(key).await.expect("reads").as_ref(), Some(expected));
    }
    for (key, expected) in &memory.inboxes {
        let (inbox, account) = store.inbox_and_account(key).await.expect("reads");
        let both = (inbox.as_ref(), account.as_ref());
        assert_eq!(both, (Some(expected), memory.accounts.get(&key.account)));
        assert_eq!(store.inbox(key).await.expect("reads").as_ref(), Some(expected));
        let rows = store.list_deliveries(key, 0, &[], 1_000).await.expect("reads").deliveries;
        let expected: Vec<Delivery> = memory.deliveries_of(key).cloned().collect();
        assert_eq!(rows, expected);
        let lost = [DeliveryState::Expired, DeliveryState::Dead];
        let rows = store.list_lost(key, 0, 1_000).await.expect("reads");
        let is_lost = |row: &&Delivery| lost.contains(&row.state);
        assert_eq!(rows, expected.iter().filter(is_lost).cloned().collect::<Vec<_>>());
    }
    let locks = store.list_locks(&account(), "", 1_000).await.expect("reads");
    assert_eq!(locks, memory.locks.values().cloned().collect::<Vec<_>>());
}

async fn compare_chain(memory: &Memory, store: &Store, chain: AuditChain) {
    let rows = store.list_audit(&chain, 0, 1_000).await.expect("reads");
    let expected = memory.audit.iter().filter(|row| row.chain == chain).cloned();
    assert_eq!(rows, expected.collect::<Vec<_>>());
}
