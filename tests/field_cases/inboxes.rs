//! The life of an inbox as callers see it: own limits, deletion, tokens of what is gone, and a
//! cursor older than what is kept (F34, the half by raw calls).

use std::time::Duration;

use prost_types::FieldMask;
use receiptd::proto::{
    AckOutcome, DeleteInboxRequest, Gap, GapCause, Inbox, ListDeliveriesRequest,
    ListInboxesRequest, OperationEventKind, StreamDeliveriesRequest, UpdateInboxRequest,
    delivery::State as DeliveryState, operation::State, stream_deliveries_response::Frame,
};
use tonic::{Code, Status};

use crate::support::{
    answers::state_of,
    client::{Caller, Reader, Refused, sequence, sequences},
    eventually,
    requests::{Identity, into_inbox, until_acked},
    stores::{TestStore, on_both_stores},
    within,
};

const LONG: Duration = Duration::from_secs(30);

on_both_stores!(
    an_inbox_has_limits_of_its_own,
    a_deleted_inbox_is_absent_everywhere_and_begins_anew_at_its_next_use,
    streams_of_a_deleted_inbox_end_and_say_why,
    tokens_of_what_is_gone_are_refused_with_their_reason,
    f34_a_cursor_older_than_what_is_kept_is_told_once,
    an_inbox_that_nobody_uses_goes_by_itself,
);

async fn submitted(caller: &Caller, inbox: &str) -> Identity {
    let id = Identity::fresh();
    caller.submitted(into_inbox(id.append("d1", "x"), inbox)).await;
    id
}

async fn update(caller: &Caller, limits: Inbox, paths: &[&str]) -> Result<Inbox, Status> {
    let paths = paths.iter().map(ToString::to_string).collect();
    let update_mask = Some(FieldMask { paths });
    let request = UpdateInboxRequest { inbox: Some(limits), update_mask };
    let mut client = caller.inboxes.clone();
    let answer = within("an update", client.update_inbox(request)).await?;
    Ok(answer.into_inner().inbox.expect("an inbox"))
}

async fn delete(caller: &Caller, inbox: &str, force: bool) -> Result<Inbox, Status> {
    let request = DeleteInboxRequest { inbox: inbox.to_owned(), force, generation: 0 };
    let mut client = caller.inboxes.clone();
    let answer = within("a deletion", client.delete_inbox(request)).await?;
    Ok(answer.into_inner().inbox.expect("an inbox"))
}

/// How an attempt to open a stream with a token is refused, before any frame.
async fn refused_token(caller: &Caller, inbox: &str, token: &str) -> Refused {
    let request = StreamDeliveriesRequest {
        inbox: inbox.to_owned(),
        resume_token: token.to_owned(),
        consumer_id: "installation-1".to_owned(),
        window: 0,
    };
    let status = match caller.open(request).await {
        Err(status) => status,
        Ok(mut reader) => reader.frame().await.expect_err("refused before any frame"),
    };
    Refused::of(&status)
}

async fn names(caller: &Caller) -> Vec<String> {
    let mut client = caller.inboxes.clone();
    let request = ListInboxesRequest::default();
    let answer = within("the inboxes", client.list_inboxes(request)).await.expect("a list");
    answer.into_inner().inboxes.into_iter().map(|inbox| inbox.inbox).collect()
}

async fn an_inbox_has_limits_of_its_own(store: TestStore) {
    let server = store.serve(&["--inbox-slots=2", "--in-flight-max=5"]);
    let caller = server.a();
    let limits = |slots, in_flight_limit| Inbox {
        inbox: "editor".to_owned(),
        slots,
        in_flight_limit,
        ..Inbox::default()
    };
    let absent = update(&caller, limits(3, 0), &["slots"]).await.expect_err("none is created");
    assert_eq!(Refused::of(&absent).reason, "NO_SUCH_INBOX");
    submitted(&caller, "editor").await;
    let unknown = update(&caller, limits(3, 0), &["pending"]).await.expect_err("not changeable");
    let unknown = Refused::of(&unknown);
    assert_eq!((unknown.reason.as_str(), unknown.value("field")), ("INVALID_FIELD", "update_mask"));
    assert!(unknown.message.contains("slots, in_flight_limit"), "{}", unknown.message);

    let paths = ["slots", "in_flight_limit"];
    let updated = update(&caller, limits(3, 2), &paths).await.expect("updated");
    assert_eq!((updated.slots, updated.in_flight_limit), (3, 2));
    submitted(&caller, "editor").await;
    submitted(&caller, "editor").await;
    let request = into_inbox(Identity::fresh().append("d1", "x"), "editor");
    let full = caller.refused(request).await;
    assert_eq!((full.reason.as_str(), full.value("limit")), ("INBOX_FULL", "3"));
    let mut reader = caller.reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&reader.results(2).await), [1, 2], "two in flight, whatever the window");
    let updated = update(&caller, limits(1, 0), &paths).await.expect("updated");
    assert_eq!((updated.slots, updated.in_flight_limit), (1, 5), "the account's default again");
    caller.ack("editor", &[1]).await.expect("acked");
    assert_eq!(sequences(&reader.results(1).await), [3]);
    let request = into_inbox(Identity::fresh().append("d1", "x"), "editor");
    let full = caller.refused(request).await;
    assert_eq!((full.value("limit"), full.value("in_use")), ("1", "2"), "lowered below its use");
    let inbox = caller.inbox("editor").await;
    assert_eq!((inbox.slots, inbox.in_flight_limit, inbox.in_flight), (1, 5, 2));
}

async fn a_deleted_inbox_is_absent_everywhere_and_begins_anew_at_its_next_use(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    let first = submitted(&caller, "editor").await;
    let holder = Identity::fresh();
    let request = until_acked(holder.append("held", "x"));
    caller.submitted(into_inbox(request, "editor")).await;
    let waits = Identity::fresh();
    caller.submitted(into_inbox(waits.append("held", "y"), "editor")).await;
    submitted(&caller, "other").await;

    let refused = Refused::of(&delete(&caller, "editor", false).await.expect_err("not empty"));
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "INBOX_NOT_EMPTY")
    );
    let figures = ["reserved", "pending", "in_flight"].map(|name| refused.value(name));
    assert_eq!(figures, ["1", "2", "0"]);
    assert!(refused.message.contains("force"), "it says how to go on: {}", refused.message);

    let before = delete(&caller, "editor", true).await.expect("deleted");
    assert_eq!((before.generation, before.reserved, before.pending), (1, 1, 2));
    for id in [&first, &holder] {
        let read = caller.get(id).await;
        assert_eq!(read.deliveries[0].state(), DeliveryState::Expired);
        let events = caller.events(id).await;
        let end = events.iter().find(|event| event.kind() == OperationEventKind::Expired);
        assert_eq!(end.expect("its end").text, "its inbox was deleted");
    }
    // The waiter got the lock, and its result made the inbox again at that moment.
    assert_eq!(state_of(&caller.get(&waits).await), Some(State::Applied));
    let again = caller.inbox("editor").await;
    assert_eq!((again.generation, again.first_sequence, again.last_sequence), (2, 3, 3));
    assert_eq!((again.pending, again.expired_total, again.oldest_sequence), (1, 0, 3));
    let mut client = caller.inboxes.clone();
    let request = ListDeliveriesRequest { inbox: "editor".into(), ..<_>::default() };
    let listed = within("a list", client.list_deliveries(request)).await.expect("a list");
    let listed: Vec<i64> =
        listed.into_inner().deliveries.iter().map(|delivery| delivery.sequence).collect();
    assert_eq!(listed, [3], "this generation only");
    let old = caller.ack("editor", &[1, 2, 3, 4]).await.expect("acked");
    let late = AckOutcome::AckedLate;
    assert_eq!(old, [late, late, AckOutcome::Acked, AckOutcome::NoSuchDelivery]);

    let wrong = DeleteInboxRequest { inbox: "editor".into(), force: true, generation: 1 };
    let wrong = within("a deletion", client.delete_inbox(wrong)).await.expect_err("another one");
    assert_eq!(Refused::of(&wrong).reason, "INBOX_RECREATED");
    delete(&caller, "editor", false).await.expect("empty now");
    let gone = Refused::of(&delete(&caller, "editor", true).await.expect_err("gone"));
    assert_eq!((gone.code, gone.reason.as_str()), (Code::NotFound, "NO_SUCH_INBOX"));
    let request = receiptd::proto::GetInboxRequest { inbox: "editor".into() };
    let gone = within("an inbox", client.get_inbox(request)).await.expect_err("gone");
    assert_eq!(Refused::of(&gone).reason, "NO_SUCH_INBOX");
    assert_eq!(names(&caller).await, ["other"]);
    submitted(&caller, "editor").await;
    let anew = caller.inbox("editor").await;
    assert_eq!((anew.generation, anew.first_sequence, anew.last_sequence), (3, 4, 4));
    assert_eq!(names(&caller).await, ["editor", "other"]);
    assert_eq!(names(&server.b()).await, Vec::<String>::new());
}

async fn streams_of_a_deleted_inbox_end_and_say_why(store: TestStore) {
    let server = store.serve(&["--heartbeat=500ms"]);
    let caller = server.a();
    submitted(&caller, "editor").await;
    let mut reader = caller.reader("editor", "installation-1", "").await;
    reader.backlog().await;
    delete(&caller, "editor", true).await.expect("deleted");
    let end = Refused::of(&reader.end().await);
    assert_eq!((end.code, end.reason.as_str()), (Code::NotFound, "NO_SUCH_INBOX"));

    let mut reader = caller.reader("editor", "installation-1", "").await;
    assert!(reader.backlog().await.is_empty(), "the old generation is over");
    assert!(!reader.others.iter().any(|frame| matches!(frame, Frame::Gap(_))));
    delete(&caller, "editor", true).await.expect("deleted");
    // Used again before the stream looks, or after: both are honest.
    submitted(&caller, "editor").await;
    let end = Refused::of(&reader.end().await);
    assert!(["NO_SUCH_INBOX", "INBOX_RECREATED"].contains(&end.reason.as_str()), "{end:?}");
    let mut reader = caller.reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&reader.backlog().await), [2]);
}

async fn tokens_of_what_is_gone_are_refused_with_their_reason(store: TestStore) {
    let server = store.serve(&[]);
    let caller = server.a();
    submitted(&caller, "editor").await;
    submitted(&caller, "other").await;
    let mut reader = caller.reader("editor", "installation-1", "").await;
    reader.backlog().await;
    let token = reader.token.clone();
    drop(reader);
    let mut reader = caller.reader("other", "installation-1", "").await;
    reader.backlog().await;
    let other = reader.token.clone();
    drop(reader);
    delete(&caller, "editor", true).await.expect("deleted");

    let mut mangled = token.clone();
    let last = mangled.pop().expect("a token has characters");
    mangled.push(if last == 'A' { 'B' } else { 'A' });
    let cases = [
        (&other, "RESUME_TOKEN_INVALID", "OTHER_INBOX"),
        (&mangled, "RESUME_TOKEN_INVALID", "UNREADABLE"),
        // The marker: this very opening would begin the next generation.
        (&token, "INBOX_RECREATED", ""),
    ];
    for (token, reason, cause) in cases {
        let refused = refused_token(&caller, "editor", token).await;
        assert_eq!((refused.reason.as_str(), refused.value("cause")), (reason, cause));
    }
    let foreign = refused_token(&server.b(), "editor", &token).await;
    assert_eq!(foreign.value("cause"), "UNREADABLE");
    assert_eq!(names(&caller).await, ["other"], "a refused token creates nothing");
    submitted(&caller, "editor").await;
    let refused = refused_token(&caller, "editor", &token).await;
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert_eq!(refused.reason, "INBOX_RECREATED");
    let mut reader = caller.reader("editor", "installation-1", "").await;
    assert_eq!(sequences(&reader.backlog().await), [2], "without a token it goes on");
    let again = reader.token.clone();
    drop(reader);
    let mut reader = caller.reader("editor", "installation-1", &again).await;
    assert!(matches!(reader.frame().await, Ok(Frame::Opened(_))), "a token of this generation");
}

/// Reads the gaps up to the first results, and those results.
async fn gaps_and_results(reader: &mut Reader) -> (Vec<Gap>, Vec<i64>) {
    let results = reader.backlog().await;
    let gaps = reader.others.iter().filter_map(|frame| match frame {
        Frame::Gap(gap) => Some(gap.clone()),
        _ => None,
    });
    (gaps.collect(), results.iter().map(sequence).collect())
}

async fn f34_a_cursor_older_than_what_is_kept_is_told_once(store: TestStore) {
    let flags = ["--admission-window=5s", "--record-retention=6s", "--tombstone-retention=7s"];
    let server = store.serve(&flags);
    let caller = server.a();
    submitted(&caller, "editor").await;
    let mut reader = caller.reader("editor", "installation-1", "").await;
    reader.backlog().await;
    let token = reader.token.clone();
    drop(reader);
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(submitted(&caller, "editor").await);
    }
    let numbers: Vec<i64> = (1..=51).collect();
    caller.ack("editor", &numbers).await.expect("acked");
    eventually("everything to be purged", LONG, async || {
        (caller.inbox("editor").await.kept_from_sequence == 52).then_some(())
    })
    .await;
    let live = submitted(&caller, "editor").await;

    let mut reader = caller.reader("editor", "installation-1", &token).await;
    let (gaps, results) = gaps_and_results(&mut reader).await;
    assert_eq!(gaps.len(), 1, "one explicit answer: {gaps:?}");
    let gap = &gaps[0];
    assert_eq!(gap.cause(), GapCause::Purged);
    assert_eq!((gap.first_sequence, gap.last_sequence), (2, 51));
    assert!(gap.operation_ids.is_empty());
    assert_eq!(results, [52], "and then it streams");
    // The call that the gap names finds the operations.
    let list = gap.list_operations.as_deref().expect("how to list them").clone();
    assert_eq!(list.inbox, "editor");
    let mut client = caller.operations.clone();
    let listed = within("the list", client.list_operations(list)).await.expect("a list");
    let listed: Vec<String> = listed
        .into_inner()
        .operations
        .into_iter()
        .map(|listed| listed.operation.expect("an operation").operation_id)
        .collect();
    assert_eq!(listed.len(), 52);
    assert_eq!((&listed[0], &listed[50]), (&live.id, &ids[0].id), "newest first");
    let read = caller.get(&ids[0]).await;
    assert_eq!((state_of(&read), read.deliveries.len()), (Some(State::Applied), 0));
    assert_eq!(caller.ack("editor", &[2]).await.expect("acked"), [AckOutcome::Retired]);
    let next = submitted(&caller, "editor").await;
    let results = reader.results(1).await;
    assert_eq!(results[0].operation.as_ref().expect("an operation").operation_id, next.id);
    let token = reader.token.clone();
    drop(reader);
    let mut reader = caller.reader("editor", "installation-1", &token).await;
    let (gaps, _) = gaps_and_results(&mut reader).await;
    assert!(gaps.is_empty(), "told once: {gaps:?}");
    drop(reader);
    let mut reader = caller.reader("editor", "installation-2", "").await;
    let (gaps, _) = gaps_and_results(&mut reader).await;
    assert!(gaps.is_empty(), "without a token there is nothing to miss: {gaps:?}");
}

async fn an_inbox_that_nobody_uses_goes_by_itself(store: TestStore) {
    let flags = [
        "--admission-window=2s",
        "--record-retention=3s",
        "--tombstone-retention=4s",
        "--ack-window=2s",
        "--inbox-idle-retention=3s",
    ];
    let server = store.serve(&flags);
    let caller = server.a();
    submitted(&caller, "idle").await;
    caller.ack("idle", &[1]).await.expect("acked");
    let _reader = caller.reader("read", "installation-1", "").await;
    eventually("the unused inbox to go", LONG, async || {
        (names(&caller).await == ["read"]).then_some(())
    })
    .await;
    submitted(&caller, "idle").await;
    let anew = caller.inbox("idle").await;
    assert_eq!((anew.generation, anew.last_sequence), (2, 2));
}
