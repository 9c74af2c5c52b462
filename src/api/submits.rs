//! Submits, single and in batches: the same rules, the same answers.
//!
//! What must stay true: once the engine has answered, the record is durable, and nothing that
//! fails afterwards turns the answer into an error; items of a batch reach the engine in their
//! order.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tonic::metadata::MetadataMap;

use super::{
    Api,
    auth::{Permission, Principal},
    convert::{self, operations, submit::SubmitForm},
    deadline::patience,
    shown::Shown,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        command::{Command, Intention, Origin, Reply, Submitted},
        ids::Invalid,
        operation::OperationKey,
        recovery,
    },
    proto,
};

/// Submits of one batch at most: they share a call's memory and its decoding limit.
const BATCH_MAX: usize = 100;

impl Api {
    /// Runs one submit. The caller is known; whether it may is asked after the form.
    pub(super) async fn submit(
        &self,
        caller: &Principal,
        request: proto::SubmitOperationRequest,
        metadata: &MetadataMap,
    ) -> Result<proto::SubmitOperationResponse, Refused> {
        let policy = self.engine().policy();
        let SubmitForm { submit, wait } =
            convert::submit::submit(request, &caller.account, &caller.subject, policy)?;
        let key = submit.key.clone();
        caller.may(Permission::Submit).map_err(Refused::about(&key.id))?;
        let reply = self.engine().run(Command::Submit(Box::new(submit))).await;
        let submitted = match reply.map_err(Refused::about(&key.id))? {
            Reply::Submitted(submitted) => *submitted,
            other => return Err(Refused::about(&key.id)(unexpected(&other))),
        };
        let wait = patience(metadata, wait.to_std());
        Ok(self.submit_answer(caller, &key, submitted, wait).await)
    }

    /// Cannot fail: the record is durable.
    async fn submit_answer(
        &self,
        caller: &Principal,
        key: &OperationKey,
        submitted: Submitted,
        wait: Duration,
    ) -> proto::SubmitOperationResponse {
        let (origin, intention) = (submitted.origin, submitted.intention);
        let remarks = submitted
            .other_inbox
            .as_ref()
            .map(|inbox| {
                format!(
                    "this submit named the inbox {}; the first one stays in place",
                    inbox.as_str()
                )
            })
            .into_iter()
            .collect();
        let mut shown = Shown::of_submitted(submitted);
        match intention {
            Intention::Execute => self.complete(key, &mut shown, origin, wait).await,
            Intention::ValidateOnly => {}
        }
        if caller.may(Permission::Read).is_err() {
            shown.projected = None;
        }
        let recovery = match (intention, origin) {
            (Intention::ValidateOnly, Origin::Executed) => {
                operations::recovery(recovery::of_trial(&shown.operation))
            }
            (Intention::ValidateOnly, Origin::Attached | Origin::Replayed)
            | (Intention::Execute, _) => shown.recovery(Some(origin)),
        };
        proto::SubmitOperationResponse {
            operation: Some(shown.operation()),
            origin: operations::origin(origin).into(),
            deliveries: shown.deliveries(),
            recovery: Some(recovery),
            projection: shown.projection(),
            remarks,
            validated_only: intention == Intention::ValidateOnly,
        }
    }

    /// Waits for the outcome if asked to, and reads what the deciding batch did not hold.
    async fn complete(
        &self,
        key: &OperationKey,
        shown: &mut Shown,
        origin: Origin,
        wait: Duration,
    ) {
        match origin {
            Origin::Attached | Origin::Replayed => self.engine().count_replay(key),
            Origin::Executed => {}
        }
        let waits = !wait.is_zero() && !shown.operation.state.ends_the_wait();
        let read = match (waits, shown.lacks_something()) {
            (true, _) => self.await_end(key, wait).await,
            (false, true) => self.look_up_again(key).await,
            (false, false) => None,
        };
        if let Some(read) = read {
            *shown = read;
        }
    }

    /// Runs up to 100 submits, each with an outcome of its own.
    pub(super) async fn batch_submit(
        &self,
        caller: Arc<Principal>,
        requests: Vec<proto::SubmitOperationRequest>,
        metadata: &MetadataMap,
    ) -> Result<proto::BatchSubmitOperationsResponse, Refused> {
        if requests.len() > BATCH_MAX {
            let problem = format!("must be at most {BATCH_MAX}");
            return Err(Invalid::new("requests", problem).into());
        }
        caller.may(Permission::Submit)?;
        // Each future hands its command to the engine when it is first polled, and they are first
        // polled in their order.
        let submits = requests.into_iter().map(|request| self.submit(&caller, request, metadata));
        let results = join_all(submits).await.into_iter().map(|outcome| self.item(outcome));
        Ok(proto::BatchSubmitOperationsResponse { results: results.collect() })
    }

    fn item(
        &self,
        outcome: Result<proto::SubmitOperationResponse, Refused>,
    ) -> proto::BatchSubmitResult {
        use proto::batch_submit_result::Result as Item;
        let item = match outcome {
            Ok(response) => Item::Response(response),
            Err(refused) => Item::Error(refused.into_submit_error(self.engine().seams().now())),
        };
        proto::BatchSubmitResult { result: Some(item) }
    }
}
