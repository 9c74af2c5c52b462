//! Deliveries by hand: acks, more time, not now, once more, and pages without a stream.
//!
//! What must stay true: each item of a list has an outcome of its own; what is answered is durable;
//! the engine runs a command to its end, whether or not its caller stays.

use super::{
    Api,
    auth::Principal,
    convert::{
        deliveries::{self as convert, Redrive, TARGETS_MAX},
        inboxes,
    },
    deadline::AnswerBy,
    inboxes::key,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        attempts::Attempted,
        command::{Command, Reply},
        delivery::{DeliveryState, DeliveryTarget, InboxKey},
        ids::{Account, ConsumerId},
        redrive::Redriven,
        refusal::{Refusal, RefusalOutcome},
    },
    proto,
    stream::pull::{self, PullPage},
    telemetry,
};

/// Pages of an inbox in one redrive at most: together as many as a call may redrive, and as many
/// that were acked late beside them.
const REDRIVE_PAGES_MAX: usize = 10;

impl Api {
    /// Acks a list for a caller that may.
    pub(super) async fn ack(
        &self,
        caller: &Principal,
        request: proto::AckDeliveriesRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::AckDeliveriesResponse, Refused> {
        let targets = convert::ack_targets(&request.deliveries)?;
        let possible: Vec<DeliveryTarget> = targets.iter().flatten().cloned().collect();
        if !request.consumer_id.is_empty() {
            ConsumerId::parse(&request.consumer_id)?;
        }
        let command = Command::Ack {
            account: caller.account.clone(),
            targets: possible,
            subject: caller.subject.clone(),
            consumer: request.consumer_id,
        };
        match self.run_in_time(command, answer_by).await? {
            Reply::Acked(acked) => Ok(proto::AckDeliveriesResponse {
                results: convert::ack_results(&request.deliveries, &targets, &acked),
            }),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) async fn extend(
        &self,
        caller: &Principal,
        request: proto::ExtendDeliveriesRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::ExtendDeliveriesResponse, Refused> {
        let proto::ExtendDeliveriesRequest { deliveries, extension, consumer_id } = request;
        let extension = convert::extension(extension.as_ref())?;
        let (attempts, read) = convert::attempts(&caller.account, &deliveries, &consumer_id)?;
        let command = Command::Extend { attempts, extension };
        let done = self.attempted(command, answer_by).await?;
        let results = convert::extend_results(&deliveries, &read, &done);
        for result in &results {
            let outcome = result.outcome().as_str_name();
            telemetry::by_hand("extend", outcome.trim_start_matches("EXTEND_OUTCOME_"));
        }
        Ok(proto::ExtendDeliveriesResponse { results })
    }

    pub(super) async fn defer(
        &self,
        caller: &Principal,
        request: proto::DeferDeliveriesRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::DeferDeliveriesResponse, Refused> {
        let proto::DeferDeliveriesRequest { deliveries, delay, consumer_id } = request;
        let delay = convert::delay(delay.as_ref())?;
        let (attempts, read) = convert::attempts(&caller.account, &deliveries, &consumer_id)?;
        let command = Command::Defer { attempts, delay, subject: caller.subject.clone() };
        let done = self.attempted(command, answer_by).await?;
        let results = convert::defer_results(&deliveries, &read, &done);
        for result in &results {
            let outcome = result.outcome().as_str_name();
            telemetry::by_hand("defer", outcome.trim_start_matches("DEFER_OUTCOME_"));
        }
        Ok(proto::DeferDeliveriesResponse { results })
    }

    async fn attempted(
        &self,
        command: Command,
        answer_by: AnswerBy,
    ) -> Result<Vec<Attempted>, Refused> {
        match self.run_in_time(command, answer_by).await? {
            Reply::Attempted(done) => Ok(done),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) async fn redrive(
        &self,
        caller: &Principal,
        request: proto::RedriveDeliveriesRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::RedriveDeliveriesResponse, Refused> {
        let answer = match convert::redrive(&request)? {
            Redrive::Listed(read) => {
                let targets = read.iter().flatten().cloned().collect();
                let done = self.redriven(caller, targets, answer_by).await?;
                let results = convert::redrive_results(&request.deliveries, &read, &done);
                proto::RedriveDeliveriesResponse { results, more: false, last_sequence: 0 }
            }
            Redrive::Inbox { inbox, states, after } => {
                let inbox = InboxKey { account: caller.account.clone(), inbox };
                let found = self.ended(&inbox, &states, after);
                let found = answer_by.or_late(RefusalOutcome::NoEffect, found).await?;
                let done = self.redriven(caller, found.targets, answer_by).await?;
                proto::RedriveDeliveriesResponse {
                    results: convert::redriven_of_inbox(&done),
                    more: found.more,
                    last_sequence: found.last_sequence,
                }
            }
        };
        for result in &answer.results {
            let outcome = result.outcome().as_str_name();
            telemetry::by_hand("redrive", outcome.trim_start_matches("REDRIVE_OUTCOME_"));
        }
        Ok(answer)
    }

    /// What ended in an inbox without an ack, by number: as many as one call may redrive. Each is
    /// looked at again under its lock.
    async fn ended(
        &self,
        inbox: &InboxKey,
        states: &[DeliveryState],
        after: i64,
    ) -> Result<Found, Refused> {
        let store = self.engine().store();
        let after = self.live(inbox).await?.start(Some(after));
        let mut found = Found { targets: Vec::new(), more: false, last_sequence: after };
        for _ in 0..REDRIVE_PAGES_MAX {
            let left = TARGETS_MAX.saturating_sub(found.targets.len());
            let left = i64::try_from(left).unwrap_or(0);
            if left == 0 {
                break;
            }
            let page = store.list_deliveries(inbox, found.last_sequence, states, left).await?;
            let last = page.deliveries.last().map(|delivery| delivery.key.sequence);
            found.last_sequence = page.next.or(last).unwrap_or(found.last_sequence);
            let unacked = page.deliveries.into_iter().filter(|delivery| delivery.ack.is_none());
            found.targets.extend(unacked.map(|delivery| DeliveryTarget::Numbered {
                inbox: inbox.inbox.clone(),
                sequence: delivery.key.sequence,
            }));
            found.more = page.next.is_some();
            if !found.more {
                break;
            }
        }
        Ok(found)
    }

    async fn redriven(
        &self,
        caller: &Principal,
        targets: Vec<DeliveryTarget>,
        answer_by: AnswerBy,
    ) -> Result<Vec<Redriven>, Refused> {
        let (account, subject) = (caller.account.clone(), caller.subject.clone());
        let command = Command::Redrive { account, targets, subject };
        match self.run_in_time(command, answer_by).await? {
            Reply::Redriven(done) => Ok(done),
            other => Err(unexpected(&other).into()),
        }
    }

    async fn run_in_time(&self, command: Command, answer_by: AnswerBy) -> Result<Reply, Refusal> {
        answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command)).await
    }

    pub(super) async fn pull(
        &self,
        account: &Account,
        request: proto::PullDeliveriesRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::PullDeliveriesResponse, Refused> {
        let (limit, wait) = inboxes::pull(&request)?;
        let page = PullPage {
            inbox: key(account, &request.inbox)?,
            consumer: self.consumer(&request.consumer_id)?,
            limit,
        };
        let end = answer_by.end_of(wait.to_std());
        let pulling = pull::pull(self.engine(), &page, end, self.drain());
        let pulled = answer_by.or_late(RefusalOutcome::Unknown, pulling).await?;
        Ok(inboxes::pulled(pulled, &page.consumer))
    }
}

/// What a look through an inbox found to redrive.
struct Found {
    targets: Vec<DeliveryTarget>,
    more: bool,
    last_sequence: i64,
}
