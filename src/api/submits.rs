//! Submits, single and in batches: the same rules, the same answers.
//!
//! What must stay true: once the engine has answered, the record is durable, and nothing that
//! fails afterwards turns the answer into an error; items of a batch reach the engine in their
//! order.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    Api,
    auth::{Permission, Principal},
    convert::{self, operations, submit::SubmitForm},
    deadline::AnswerBy,
    shown::Shown,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        command::{Command, Intention, Origin, Reply, Submitted},
        delivery::InboxKey,
        ids::{Invalid, OperationId},
        operation::OperationKey,
        recovery,
        refusal::{Refusal, RefusalOutcome},
    },
    proto,
};

/// Submits of one batch at most: they share a call's memory and its decoding limit.
pub(super) const BATCH_MAX: usize = 100;

impl Api {
    /// Runs one submit. The caller is known; whether it may is asked after the form.
    pub(super) async fn submit(
        &self,
        caller: &Principal,
        request: proto::SubmitOperationRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::SubmitOperationResponse, Refused> {
        let named = OperationId::parse(&request.operation_id).ok();
        let SubmitForm { submit, wait } =
            convert::submit::submit(request, &caller.account, &caller.subject)
                .map_err(|refused| Refused { operation_id: named, ..refused })?;
        let key = submit.key.clone();
        caller.may(Permission::Submit).map_err(Refused::about(&key.id))?;
        let inbox = submit.inbox.clone();
        let inbox = inbox.map(|inbox| InboxKey { account: key.account.clone(), inbox });
        let running = self.engine().run(Command::Submit(Box::new(submit)));
        let refusal = match answer_by.or_late(RefusalOutcome::Unknown, running).await {
            Ok(Reply::Submitted(submitted)) => {
                let wait = wait.to_std();
                return Ok(self.submit_answer(caller, &key, *submitted, wait, answer_by).await);
            }
            Ok(other) => unexpected(&other),
            Err(refusal) => self.release_told(refusal, inbox, answer_by).await,
        };
        Err(Refused::about(&key.id)(refusal))
    }

    /// Cannot fail: the record is durable.
    async fn submit_answer(
        &self,
        caller: &Principal,
        key: &OperationKey,
        submitted: Submitted,
        wait: Duration,
        answer_by: AnswerBy,
    ) -> proto::SubmitOperationResponse {
        let (origin, intention) = (submitted.origin, submitted.intention);
        let evidence = submitted.evidence;
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
            Intention::Execute => self.complete(key, &mut shown, origin, wait, answer_by).await,
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
            result: None,
            evidence: Some(operations::evidence(&evidence)),
        }
    }

    /// Waits for the outcome if asked to, and reads what the deciding batch did not hold.
    async fn complete(
        &self,
        key: &OperationKey,
        shown: &mut Shown,
        origin: Origin,
        wait: Duration,
        answer_by: AnswerBy,
    ) {
        match origin {
            Origin::Attached | Origin::Replayed => self.engine().count_replay(key),
            Origin::Executed => {}
        }
        let waits = !wait.is_zero() && !shown.operation.state.ends_the_wait();
        // Without an answer in time, what the deciding batch held is the state in force.
        let read = match (waits, shown.lacks_something()) {
            (true, _) => answer_by.in_time(self.await_end(key, answer_by.end_of(wait))).await,
            (false, true) => answer_by.in_time(self.look_up_again(key)).await,
            (false, false) => None,
        };
        if let Some(read) = read {
            *shown = read;
        }
    }

    /// Adds to INBOX_FULL when a slot is free for certain: at the latest when the oldest open
    /// delivery expires. The rules load no delivery for a submit, so they don't know; and the
    /// refusal stands without it, where it can't be read.
    async fn release_told(
        &self,
        refusal: Refusal,
        inbox: Option<InboxKey>,
        answer_by: AnswerBy,
    ) -> Refusal {
        let (Refusal::InboxFull { limit, in_use, .. }, Some(inbox)) = (&refusal, inbox) else {
            return refusal;
        };
        let inboxes = [inbox];
        let oldest = async {
            let found = self.engine().store().oldest_open_of(&inboxes).await;
            found.unwrap_or_default().pop().flatten()
        };
        let oldest = answer_by.in_time(oldest).await;
        Refusal::InboxFull {
            limit: *limit,
            in_use: *in_use,
            earliest_release: oldest.map(|delivery| delivery.expire_time),
        }
    }

    /// Runs up to 100 submits, each with an outcome of its own.
    pub(super) async fn batch_submit(
        &self,
        caller: Arc<Principal>,
        requests: Vec<proto::SubmitOperationRequest>,
        answer_by: AnswerBy,
    ) -> Result<proto::BatchSubmitOperationsResponse, Refused> {
        if requests.len() > BATCH_MAX {
            let problem = format!("must be at most {BATCH_MAX}");
            return Err(Invalid::new("requests", problem).into());
        }
        caller.may(Permission::Submit)?;
        // Each future hands its command to the engine when it is first polled, and they are first
        // polled in their order.
        let submits = requests.into_iter().map(|request| self.submit(&caller, request, answer_by));
        let results = join_all(submits).await.into_iter().map(|outcome| self.item(outcome));
        Ok(proto::BatchSubmitOperationsResponse { results: results.collect() })
    }

    /// One outcome as it stands in a list.
    pub(super) fn item(
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
