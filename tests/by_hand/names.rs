//! Results that are named by their operations.

use receiptd::proto::{
    AckDeliveriesRequest, AckOutcome, AckTarget, delivery::State as DeliveryState,
};

use crate::{
    INBOX,
    hosted::host,
    policy, queue,
    support::{
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(an_operation_names_its_result);

async fn an_operation_names_its_result(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    let ids = queue(&caller, 2).await;
    let named = |inbox: &str, operation_id: &str| AckTarget {
        inbox: inbox.to_owned(),
        sequence: 0,
        operation_id: operation_id.to_owned(),
    };
    let deliveries = vec![
        named("", &ids[1].id),
        named(INBOX, &ids[0].id),
        named("other", &ids[0].id),
        named("", &ids[1].id),
        named("", "nobody"),
        named("", "no such id"),
    ];
    let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
    let mut client = caller.inboxes.clone();
    let answer = within("the acks", client.ack_deliveries(request.clone())).await;
    let results = answer.expect("answered").into_inner().results;
    let told: Vec<_> = results
        .iter()
        .map(|result| (result.inbox.as_str(), result.sequence, result.outcome()))
        .collect();
    use AckOutcome::{Acked, AlreadyAcked, NoSuchDelivery};
    assert_eq!(
        told,
        [
            (INBOX, 2, Acked),
            (INBOX, 1, Acked),
            ("other", 0, NoSuchDelivery),
            (INBOX, 2, AlreadyAcked),
            ("", 0, NoSuchDelivery),
            ("", 0, NoSuchDelivery),
        ]
    );
    assert_eq!(results[0].operation_id, ids[1].id);
    assert_eq!(results[0].delivery.as_ref().expect("the row").state(), DeliveryState::Acked);
    let mut strange = hosted.b().inboxes;
    let answer = within("the acks", strange.ack_deliveries(request)).await;
    let results = answer.expect("answered").into_inner().results;
    assert!(results.iter().all(|result| result.outcome() == NoSuchDelivery), "another account");
    hosted.stop().await;
}
