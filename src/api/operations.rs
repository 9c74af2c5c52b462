//! OperationService: identity, effects and receipts.

use std::sync::Arc;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::{self, Permission, Principal},
    caller,
    convert::{self, Identity, operations, times},
    deadline::{AnswerBy, Call},
    places::Placed,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        command::{Command, IfAbsent, Reply},
        ids::{Account, Invalid, OperationId, Timestamp},
        inbox::AccountRow,
        intent, recovery,
        refusal::{Refusal, RefusalOutcome},
        standing::{self, Answer, Clocks, Evidence, Kept, Probe, Standing},
    },
    proto::{self, operation_service_server::OperationService},
};

/// Look-ups of one batch at most: each answers with a whole receipt.
const BATCH_MAX: usize = 100;

#[tonic::async_trait]
impl OperationService for Api {
    type WatchOperationStream =
        Placed<ReceiverStream<Result<proto::WatchOperationResponse, Status>>>;
    type ReadResultStream = Placed<ReceiverStream<Result<proto::ReadResultResponse, Status>>>;

    async fn submit_operation(
        &self,
        request: Request<proto::SubmitOperationRequest>,
    ) -> Result<Response<proto::SubmitOperationResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = auth::principal(&request)?;
            let request = request.into_inner();
            let mut answer = self.submit(&caller, request, call.answer_by).await?;
            let operation = answer.operation.as_ref().filter(|_| !answer.validated_only);
            answer.result = self.inline_body(&caller, operation, call.answer_by).await;
            Ok(answer)
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn batch_submit_operations(
        &self,
        request: Request<proto::BatchSubmitOperationsRequest>,
    ) -> Result<Response<proto::BatchSubmitOperationsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = auth::principal(&request)?;
            let request = request.into_inner();
            self.batch_submit(caller, request.requests, call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn get_operation(
        &self,
        request: Request<proto::GetOperationRequest>,
    ) -> Result<Response<proto::GetOperationResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer_by = call.answer_by;
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let request = request.into_inner();
            let identity = convert::identity(&request.operation_id, request.mint_time.as_ref())?;
            let mut results = self.get(&caller.account, vec![identity]).await?;
            let mut answer = results.pop().ok_or(Refusal::Internal)?;
            let operation = answer.operation.as_ref();
            answer.result = self.inline_body(&caller, operation, answer_by).await;
            Ok(answer)
        };
        self.answer_read(call, answer).await
    }

    async fn batch_get_operations(
        &self,
        request: Request<proto::BatchGetOperationsRequest>,
    ) -> Result<Response<proto::BatchGetOperationsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let identities = identities(&request.into_inner().requests)?;
            let results = self.get(&caller.account, identities).await?;
            Ok(proto::BatchGetOperationsResponse { results })
        };
        self.answer_read(call, answer).await
    }

    async fn list_operations(
        &self,
        request: Request<proto::ListOperationsRequest>,
    ) -> Result<Response<proto::ListOperationsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            self.list(&caller.account, request.into_inner()).await
        };
        self.answer_read(call, answer).await
    }

    async fn watch_operation(
        &self,
        request: Request<proto::WatchOperationRequest>,
    ) -> Result<Response<Self::WatchOperationStream>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let place = self.place(&caller)?;
            let request = request.into_inner();
            let identity = convert::identity(&request.operation_id, request.mint_time.as_ref())?;
            Ok(place.hold(self.watch(&caller, identity).await?))
        };
        let result = answer.await;
        self.answer_opening(call, result)
    }

    async fn cancel_operation(
        &self,
        request: Request<proto::CancelOperationRequest>,
    ) -> Result<Response<proto::CancelOperationResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = caller(&request, Permission::Submit)?;
            self.cancel(caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn list_operation_events(
        &self,
        request: Request<proto::ListOperationEventsRequest>,
    ) -> Result<Response<proto::ListOperationEventsResponse>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            self.events(&caller.account, request.into_inner()).await
        };
        self.answer_read(call, answer).await
    }

    async fn read_result(
        &self,
        request: Request<proto::ReadResultRequest>,
    ) -> Result<Response<Self::ReadResultStream>, Status> {
        let call = Call::of(&request, |asked| &asked.operation_id);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let place = self.place(&caller)?;
            Ok(place.hold(self.read_body(&caller, request.into_inner()).await?))
        };
        let result = answer.await;
        self.answer_opening(call, result)
    }

    async fn compute_intent_digest(
        &self,
        request: Request<proto::ComputeIntentDigestRequest>,
    ) -> Result<Response<proto::ComputeIntentDigestResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            caller(&request, Permission::Submit)?;
            let intent = convert::submit::intent(request.into_inner().intent)?;
            let (digest, canonical) = intent::digest(&intent)?;
            Ok(proto::ComputeIntentDigestResponse {
                intent_digest: digest.whole.to_vec(),
                digest_version: digest.version.into(),
                canonical_arguments: canonical.to_vec(),
            })
        };
        self.answer_read(call, answer).await
    }
}

fn identities(requests: &[proto::GetOperationRequest]) -> Result<Vec<Identity>, Refused> {
    if requests.len() > BATCH_MAX {
        return Err(Invalid::new("requests", format!("must be at most {BATCH_MAX}")).into());
    }
    let read = |(place, request): (usize, &proto::GetOperationRequest)| {
        convert::identity(&request.operation_id, request.mint_time.as_ref()).map_err(|invalid| {
            let field = format!("requests[{place}].{}", invalid.field);
            let operation_id = OperationId::parse(&request.operation_id).ok();
            Refused { operation_id, ..Invalid { field, ..invalid }.into() }
        })
    };
    requests.iter().enumerate().map(read).collect()
}

impl Api {
    /// What is known about each id, in the order asked. Records are read before the account's
    /// times and the clock: a record that was not there when it was read may only arrive if these
    /// still admit it.
    async fn get(
        &self,
        account: &Account,
        identities: Vec<Identity>,
    ) -> Result<Vec<proto::GetOperationResponse>, Refused> {
        let store = self.engine().store();
        let keys: Vec<_> = identities.iter().map(|identity| identity.key(account)).collect();
        let found = store.look_up(&keys).await?;
        let (row, now) = store.account_and_now(account).await?;
        let answer = |(identity, found): (Identity, _)| {
            let row = row.as_ref();
            async move {
                let answer = match super::shown::Shown::of_look_up(found) {
                    Some(shown) => recorded(&identity, &shown, now),
                    None => self.absent_now(account, &identity, row, now).await?,
                };
                let loss = self.engine().store().facts().loss;
                let evidence = Evidence::of(row, &self.engine().policy_of(row), loss);
                Ok(proto::GetOperationResponse {
                    evidence: Some(operations::evidence(&evidence)),
                    ..answer
                })
            }
        };
        // Probes are handed to the engine together, so that they share their batches.
        let answers = futures_util::future::join_all(identities.into_iter().zip(found).map(answer));
        answers.await.into_iter().collect()
    }

    /// What is known about an id whose record was not there. Its lock is tried only where that can
    /// prove something, which for an id within the admission window it never can.
    async fn absent_now(
        &self,
        account: &Account,
        identity: &Identity,
        row: Option<&AccountRow>,
        now: Timestamp,
    ) -> Result<proto::GetOperationResponse, Refused> {
        let policy = &self.engine().policy_of(row);
        let loss = self.engine().store().facts().loss;
        let mint = identity.mint_time;
        let unproven =
            |probe| standing::of(Kept::Nothing, mint, &Clocks::of(row, policy, loss, now), probe);
        if !standing::worth_a_probe(mint, row, policy, loss, now) {
            return Ok(absent(identity, &unproven(Probe::NotAsked), now));
        }
        let key = identity.key(account);
        let command = Command::Probe { key: key.clone(), mint_time: mint };
        match self.engine().run(command).await {
            Ok(Reply::Probed(answer))
                if matches!(answer.standing, Standing::Recorded | Standing::Compacted) =>
            {
                // It arrived between the look-up and the probe.
                let shown = self.look_up(&key).await?.ok_or(Refusal::Internal)?;
                Ok(recorded(identity, &shown, now))
            }
            Ok(Reply::Probed(answer)) => Ok(absent(identity, &answer, now)),
            Ok(other) => Err(Refused::about(&key.id)(unexpected(&other))),
            // Held, or the lock could not be tried now: nothing is proven, and that is an answer.
            Err(_) => Ok(absent(identity, &unproven(Probe::Held), now)),
        }
    }

    async fn cancel(
        &self,
        caller: Arc<Principal>,
        request: proto::CancelOperationRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::CancelOperationResponse, Refused> {
        let identity = convert::identity(&request.operation_id, request.mint_time.as_ref())?;
        let key = identity.key(&caller.account);
        let reason = convert::reason(&request.reason).map_err(Refusal::Invalid);
        let command = Command::Cancel {
            key: key.clone(),
            mint_time: identity.mint_time,
            reason: reason.map_err(Refused::about(&key.id))?,
            subject: caller.subject.clone(),
            if_absent: if request.seal { IfAbsent::Seal } else { IfAbsent::Refuse },
        };
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        let reply = running.await.map_err(Refused::about(&key.id))?;
        let (outcome, operation, delivery) = match reply {
            Reply::Cancelled { outcome, operation, delivery } => (outcome, operation, delivery),
            other => return Err(Refused::about(&key.id)(unexpected(&other))),
        };
        let mut shown = super::shown::Shown {
            operation: *operation,
            deliveries: delivery.map(|delivery| *delivery).into_iter().collect(),
            projected: None,
            waiting_for: None,
        };
        if shown.lacks_something()
            && let Some(read) = answer_by.in_time(self.look_up_again(&key)).await
        {
            shown = read;
        }
        Ok(proto::CancelOperationResponse {
            outcome: operations::cancel_outcome(outcome).into(),
            operation: Some(shown.operation()),
            deliveries: shown.deliveries(),
            recovery: Some(shown.recovery(None)),
        })
    }
}

fn recorded(
    asked: &Identity,
    shown: &super::shown::Shown,
    now: Timestamp,
) -> proto::GetOperationResponse {
    let stored = shown.operation.mint_time;
    let remarks = (stored != asked.mint_time).then(|| {
        format!(
            "the id is recorded with another mint time: {}",
            times::timestamp(stored.to_timestamp())
        )
    });
    proto::GetOperationResponse {
        operation_id: asked.id.to_string(),
        standing: operations::standing(shown.standing()).into(),
        operation: Some(shown.operation()),
        deliveries: shown.deliveries(),
        recovery: Some(shown.recovery(None)),
        projection: shown.projection(),
        store_time: Some(times::timestamp(now)),
        remarks: remarks.into_iter().collect(),
        ..proto::GetOperationResponse::default()
    }
}

fn absent(asked: &Identity, answer: &Answer, now: Timestamp) -> proto::GetOperationResponse {
    proto::GetOperationResponse {
        operation_id: asked.id.to_string(),
        standing: operations::standing(answer.standing).into(),
        recovery: Some(operations::recovery(recovery::of_absent(&asked.id, answer))),
        store_time: Some(times::timestamp(now)),
        ..Default::default()
    }
}
