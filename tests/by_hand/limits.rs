//! Another limit of an inbox, while its streams are open.

use prost_types::FieldMask;
use receiptd::proto::{
    Inbox, StreamDeliveriesRequest, UpdateInboxRequest, stream_deliveries_response::Frame,
};

use crate::{
    INBOX,
    hosted::host,
    policy, queue,
    support::{
        client::{Caller, sequences},
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(what_may_be_in_flight_changes_for_a_stream_that_is_open);

/// Returns the windows of the inbox's consumers, as the update's answer tells them.
async fn limited(caller: &Caller, in_flight_limit: i64) -> Vec<i32> {
    let inbox = Inbox { inbox: INBOX.to_owned(), in_flight_limit, ..Inbox::default() };
    let paths = vec!["in_flight_limit".to_owned()];
    let request = UpdateInboxRequest { inbox: Some(inbox), update_mask: Some(FieldMask { paths }) };
    let mut client = caller.inboxes.clone();
    let answer = within("an update", client.update_inbox(request)).await.expect("updated");
    let inbox = answer.into_inner().inbox.expect("an inbox");
    assert_eq!(inbox.in_flight_limit, in_flight_limit);
    inbox.consumers.iter().map(|consumer| consumer.window).collect()
}

async fn what_may_be_in_flight_changes_for_a_stream_that_is_open(store: TestStore) {
    let hosted = host(store, policy()).await;
    let caller = hosted.a();
    queue(&caller, 9).await;
    assert_eq!(limited(&caller, 2).await, [0; 0]);
    let open = StreamDeliveriesRequest {
        inbox: INBOX.to_owned(),
        consumer_id: "c".to_owned(),
        window: 5,
        ..StreamDeliveriesRequest::default()
    };
    let mut reader = caller.open(open).await.expect("opens");
    match reader.frame().await.expect("a frame") {
        Frame::Opened(opened) => assert_eq!(opened.window, 2, "the one in force"),
        other => panic!("{other:?}"),
    }
    assert_eq!(sequences(&reader.results(2).await), [1, 2]);
    assert_eq!(limited(&caller, 4).await, [4]);
    assert_eq!(sequences(&reader.results(2).await), [3, 4], "raised");
    assert_eq!(limited(&caller, 1_000).await, [5], "as it asked");
    assert_eq!(sequences(&reader.results(1).await), [5]);
    assert_eq!(limited(&caller, 3).await, [3]);
    caller.ack(INBOX, &[1, 2]).await.expect("acked");
    caller.ack(INBOX, &[3]).await.expect("acked");
    assert_eq!(sequences(&reader.next_results().await), [6], "lowered: three in flight again");
    assert_eq!(caller.inbox(INBOX).await.in_flight, 3);
    hosted.stop().await;
}
