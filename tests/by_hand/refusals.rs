//! What is refused as a whole, without an effect.

use receiptd::proto::{AckDeliveriesRequest, AckTarget, RedriveDeliveriesRequest};
use tonic::{Code, Status};

use crate::{
    INBOX, defer, extend,
    hosted::host,
    page, policy, pull, pulled, queue, redrive,
    support::{
        client::Refused,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(requests_that_say_nothing_are_refused_by_their_field);

async fn requests_that_say_nothing_are_refused_by_their_field(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 1).await;
    assert_eq!(pulled(&caller, "c", 1).await, [(1, 1)]);
    let invalid = |status: Status, field: &str| {
        let refused = Refused::of(&status);
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::InvalidArgument, "INVALID_FIELD")
        );
        assert_eq!(refused.value("outcome"), "NO_EFFECT");
        assert!(refused.message.contains(field), "{field} in {}", refused.message);
    };
    for extension in [0, -1, 91] {
        let refused = extend(&caller, "c", &[(1, 1)], extension).await;
        invalid(refused.expect_err("refused"), "extension");
    }
    for delay in [-1, 91] {
        let refused = defer(&caller, "c", &[(1, 1)], delay).await;
        invalid(refused.expect_err("refused"), "delay");
    }
    let refused = extend(&caller, "not a consumer", &[(1, 1)], 1).await;
    invalid(refused.expect_err("refused"), "consumer_id");
    let many = vec![(1, 1); 1_001];
    invalid(extend(&caller, "c", &many, 1).await.expect_err("refused"), "deliveries");
    let refused = redrive(&caller, RedriveDeliveriesRequest::default()).await;
    invalid(refused.expect_err("refused"), "inbox");
    let mut client = caller.inboxes.clone();
    for (sequence, operation_id, field) in [(0, "", "sequence"), (1, "op-1", "operation_id")] {
        let (inbox, operation_id) = (INBOX.to_owned(), operation_id.to_owned());
        let deliveries = vec![AckTarget { inbox, sequence, operation_id }];
        let request = AckDeliveriesRequest { deliveries, consumer_id: String::new() };
        let refused = within("a refusal", client.ack_deliveries(request)).await;
        invalid(refused.expect_err("refused"), &format!("deliveries[0].{field}"));
    }
    let refused = pull(&caller, page("c", -1, 0)).await.expect_err("refused");
    invalid(refused, "max_deliveries");
    invalid(pull(&caller, page("c", 1, 61)).await.expect_err("refused"), "wait");
    let row = caller.inbox(INBOX).await;
    assert_eq!((row.pending, row.in_flight), (0, 1), "nothing happened");
    hosted.stop().await;
}
