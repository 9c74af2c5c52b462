//! ExportOperations: receipts and trails, to be kept elsewhere.

use std::collections::BTreeSet;

use receiptd::{
    domain::policy::Policy,
    proto::{
        ExportOperationsRequest, ExportOperationsResponse, OperationEventKind, operation::State,
    },
};
use tonic::{Code, Status};

use crate::{
    hosted::host,
    support::{
        answers::receipt,
        client::{Caller, Refused},
        requests::{Identity, into_inbox},
        server::TOKEN_READS,
        stores::{TestStore, on_both_stores},
        within,
    },
};

on_both_stores!(every_operation_is_exported_once_with_its_trail, a_page_keeps_to_what_clients_take,);

async fn export(
    caller: &Caller,
    request: ExportOperationsRequest,
) -> Result<ExportOperationsResponse, Status> {
    let mut client = caller.admin.clone();
    Ok(within("a page", client.export_operations(request)).await?.into_inner())
}

fn page(account: &str, page_size: i32, page_token: &str) -> ExportOperationsRequest {
    let (account, page_token) = (account.to_owned(), page_token.to_owned());
    ExportOperationsRequest { account, page_size, page_token }
}

async fn every_operation_is_exported_once_with_its_trail(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let (a, b) = (hosted.a(), hosted.b());
    let mut ids = BTreeSet::new();
    let mut last = None;
    for number in 0..7 {
        let id = Identity::fresh();
        let content = format!("content {number}");
        let request = into_inbox(id.put(&format!("d{number}"), &content), "editor");
        last = Some(a.submitted(request).await);
        ids.insert(id.id);
    }
    a.ack("editor", &[7]).await.expect("acked");
    b.submitted(Identity::fresh().append("d1", "another account")).await;

    let (mut exported, mut token) = (Vec::new(), String::new());
    loop {
        let page = export(&b, page("a", 3, &token)).await.expect("an operator names any account");
        assert!(page.operations.len() <= 3);
        exported.extend(page.operations);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        let refused =
            export(&b, ExportOperationsRequest { page_token: token.clone(), ..page_of("b") });
        let refused = Refused::of(&refused.await.expect_err("a token of account a"));
        assert_eq!((refused.code, refused.value("field")), (Code::InvalidArgument, "page_token"));
    }
    let found: Vec<_> = exported.iter().filter_map(|one| one.operation.as_ref()).collect();
    let names: BTreeSet<String> = found.iter().map(|row| row.operation_id.clone()).collect();
    assert_eq!((found.len(), names), (7, ids), "each once");
    assert!(found.iter().all(|row| row.state() == State::Applied));
    let newest = &exported[0];
    let last = last.expect("submitted");
    assert_eq!(
        newest.operation.as_ref().and_then(|row| row.receipt.as_ref()),
        Some(receipt(&last))
    );
    let kinds: Vec<_> = newest.events.iter().map(|event| event.kind()).collect();
    use OperationEventKind::{Accepted, Acked, Applied, Queued};
    assert_eq!(kinds, [Accepted, Applied, Queued, Acked]);
    assert_eq!((newest.deliveries.len(), newest.deliveries[0].sequence), (1, 7));
    assert!(!format!("{exported:?}").contains("content 3"), "payloads are not among it");

    for wrong in [page("a", 101, ""), page("a", -1, "")] {
        let refused = Refused::of(&export(&a, wrong).await.expect_err("refused"));
        assert_eq!((refused.code, refused.value("field")), (Code::InvalidArgument, "page_size"));
    }
    let reader = Caller::new(hosted.address, TOKEN_READS);
    let refused = Refused::of(&export(&reader, page("", 0, "")).await.expect_err("no operator"));
    assert_eq!(refused.reason, "PERMISSION_MISSING");
    hosted.stop().await;
}

fn page_of(account: &str) -> ExportOperationsRequest {
    page(account, 3, "")
}

/// Operations with labels of 4 KiB each.
async fn a_page_keeps_to_what_clients_take(store: TestStore) {
    let hosted = host(store, Policy::default()).await;
    let a = hosted.a();
    for batch in 0..3 {
        let submits = (0..100).map(|number| {
            let id = Identity::fresh();
            let mut request = into_inbox(id.put(&format!("d{number}"), "x"), "editor");
            let label = |at: usize| (format!("label-{at}"), "x".repeat(250));
            request.labels = (0..15).map(label).collect();
            request.labels.insert("batch".to_owned(), batch.to_string());
            request
        });
        a.submitted_together(submits.collect()).await;
    }
    let (mut seen, mut token, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let page = export(&a, page("", 100, &token)).await.expect("a page");
        assert!(prost::Message::encoded_len(&page) < 300 * 1024);
        for one in page.operations {
            let id = one.operation.expect("there").operation_id;
            assert!(seen.insert(id), "each once");
        }
        (token, pages) = (page.next_page_token, pages + 1);
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen.len(), 300);
    assert!(pages > 3, "{pages}: a page of a hundred would be larger");
    hosted.stop().await;
}
