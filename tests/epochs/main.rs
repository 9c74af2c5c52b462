//! The lives of a store: a restored backup is marked, a failover is judged, and a server that is
//! behind is never served from. Real processes and real PostgreSQL servers; the clock skew that is
//! allowed is small, so that new ids are accepted soon after a mark.

#[path = "../support/mod.rs"]
mod support;

mod cut;
mod failover;
mod restore;

use std::process::{Command, Output};

use receiptd::proto::{Gap, GapCause, Standing, stream_deliveries_response::Frame};

use support::{
    BOUND,
    client::{Caller, Reader, Refused},
    eventually,
    requests::Identity,
};

/// So little that a test can wait for it.
const SKEW: &str = "--max-clock-skew=500ms";
/// What a mark adds to every number.
const JUMP: i64 = 1 << 32;

/// `receiptd restore-mark` on a store.
fn restore_mark(store: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_receiptd"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RECEIPTD_")) {
        command.env_remove(name);
    }
    command.env("RECEIPTD_MAX_CLOCK_SKEW", "500ms");
    command.args(["restore-mark", "--store", store]).args(flags);
    command.output().expect("the program runs")
}

/// The same where it has to end well: what it printed.
fn marked(store: &str, flags: &[&str]) -> String {
    let output = tokio::task::block_in_place(|| restore_mark(store, flags));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The same where it has to be refused: what it said.
fn refused_mark(store: &str, flags: &[&str]) -> String {
    let output = tokio::task::block_in_place(|| restore_mark(store, flags));
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// An id of the lost window: it may have been used, and never executes again.
async fn is_lost(caller: &Caller, id: &Identity, target: &str) {
    let read = caller.get(id).await;
    assert_eq!(read.standing(), Standing::EvidenceExpired);
    // Told as the account's floor, also where the copy does not know the account.
    assert!(read.evidence.is_some_and(|evidence| evidence.evidence_floor.is_some()), "{id:?}");
    let refused = caller.refused(id.append(target, "lost")).await;
    assert_eq!(refused.reason, "EVIDENCE_EXPIRED", "{refused:?}");
    assert_eq!(refused.value("outcome"), "NO_EFFECT");
    assert_eq!(refused.value("recovery"), "READ_CURRENT_STATE");
}

/// Submits an append under an id that is new, as soon as those are accepted again.
async fn new_append(caller: &Caller, target: &str, line: &str) -> Identity {
    eventually("new ids to be accepted", BOUND * 2, async || {
        let id = Identity::fresh();
        match caller.submit(id.append(target, line)).await {
            Ok(_) => Some(id),
            Err(status) => {
                let refused = Refused::of(&status);
                let expected = ["EVIDENCE_EXPIRED", "STORE_UNAVAILABLE"];
                assert!(expected.contains(&refused.reason.as_str()), "{refused:?}");
                assert_eq!(refused.value("outcome"), "NO_EFFECT");
                None
            }
        }
    })
    .await
}

/// A token of a life that has ended.
async fn token_is_refused(caller: &Caller, inbox: &str, token: &str) {
    let request = receiptd::proto::StreamDeliveriesRequest {
        inbox: inbox.to_owned(),
        resume_token: token.to_owned(),
        consumer_id: "reader".to_owned(),
        window: 0,
    };
    let Err(status) = caller.open(request).await else { panic!("an old token was taken") };
    assert_eq!(Refused::of(&status).reason, "STORE_EPOCH_CHANGED");
}

/// The gaps that a stream has told.
fn gaps(reader: &Reader) -> Vec<(i64, i64, GapCause)> {
    let gap = |frame: &Frame| match frame {
        Frame::Gap(gap) => {
            let Gap { first_sequence, last_sequence, .. } = gap;
            Some((*first_sequence, *last_sequence, gap.cause()))
        }
        _ => None,
    };
    reader.others.iter().filter_map(gap).collect()
}

/// The epoch that a stream was opened in.
fn epoch(reader: &Reader) -> String {
    let opened = |frame: &Frame| match frame {
        Frame::Opened(opened) => Some(opened.store_epoch.clone()),
        _ => None,
    };
    reader.others.iter().find_map(opened).expect("the first frame")
}
