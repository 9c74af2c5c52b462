//! A policy that is changed on one replica is in force on all of them.

use prost_types::FieldMask;
use receiptd::proto::{Policy, UpdatePolicyRequest};

use crate::{
    Shared,
    support::{
        answers::delivery,
        requests::{Identity, into_inbox, seconds},
        within,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_in_force_on_every_replica_with_its_answer() {
    let Some(shared) = Shared::new().await else { return };
    let servers = [shared.serve(&[]), shared.serve(&[])];
    let callers = [servers[0].a(), servers[1].a()];
    for window in [300, 60, 600] {
        let request = UpdatePolicyRequest {
            policy: Some(Policy { ack_window: Some(seconds(window)), ..Policy::default() }),
            update_mask: Some(FieldMask { paths: vec!["ack_window".to_owned()] }),
            ..UpdatePolicyRequest::default()
        };
        let mut admin = callers[0].admin.clone();
        within("a change", admin.update_policy(request)).await.expect("changed");
        for caller in &callers {
            let submit = into_inbox(Identity::fresh().append("notes", "x"), "editor");
            let answer = caller.submitted(submit).await;
            let queued = delivery(&answer);
            let seconds = |time: &Option<prost_types::Timestamp>| time.expect("a time").seconds;
            let span = seconds(&queued.expire_time) - seconds(&queued.queue_time);
            assert_eq!(span, window, "from the very next submit on");
        }
    }
}
