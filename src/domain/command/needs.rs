//! What the engine must know of a command before it is decided: whose rows it touches, how much it
//! brings along, and which rows it needs.
//!
//! What must stay true: needs are what can be known beforehand; a command that finds more leads a
//! later batch with it.

use super::{Choice, Command, IfAbsent};
use crate::domain::{
    deliver,
    delivery::{DeliveryKey, InboxKey},
    ids::Account,
    lock::TargetKey,
    operation::OperationKey,
    world::needs::{Access, Body, Need},
};

/// What a command's rows weigh in the limit of a batch, in bytes.
const ROW_WEIGHT: usize = 1_024;
/// What a document's content weighs where a rule reads it, in bytes. Its size is known only to the
/// store, so this is a usual one: at this weight a full batch of 200 just fits its 8 MiB. The worst
/// case, 200 documents of the policy's largest size, is met once: how long a decision takes bounds
/// the batches behind it (see the engine's lanes).
pub(in crate::domain) const BODY_WEIGHT: usize = 38 * 1_024;

impl Command {
    /// Whose rows it touches: all rows of one command belong to one account.
    pub fn account(&self) -> &Account {
        match self {
            Command::Submit(submit) => &submit.key.account,
            Command::Cancel { key, .. }
            | Command::Probe { key, .. }
            | Command::SweepOperation { key }
            | Command::FoldReplays { key, .. } => &key.account,
            Command::Ack { account, .. }
            | Command::Redrive { account, .. }
            | Command::SweepAccount { account } => account,
            Command::Extend { attempts, .. } | Command::Defer { attempts, .. } => &attempts.account,
            Command::Open { inbox, .. }
            | Command::Reopen { inbox, .. }
            | Command::Pull { inbox, .. }
            | Command::Offer { inbox, .. }
            | Command::Close { inbox, .. }
            | Command::UpdateInbox { inbox, .. }
            | Command::DeleteInbox { inbox, .. } => &inbox.account,
            Command::UpdatePolicy(update) => &update.account,
            Command::Erase(erasure) => &erasure.key.account,
            Command::RaiseFloor(raise) => &raise.account,
            Command::ReleaseLock { target, .. } | Command::SweepLock { target } => &target.account,
            Command::SweepDelivery { key, .. } => &key.inbox.account,
            Command::SweepInbox { key } => &key.account,
        }
    }

    /// The id that must not be in another transaction's hands.
    pub fn claim(&self) -> Option<&OperationKey> {
        match self {
            Command::Submit(submit) => Some(&submit.key),
            Command::Probe { key, .. } | Command::Cancel { key, if_absent: IfAbsent::Seal, .. } => {
                Some(key)
            }
            Command::Cancel { if_absent: IfAbsent::Refuse, .. }
            | Command::Ack { .. }
            | Command::Extend { .. }
            | Command::Defer { .. }
            | Command::Redrive { .. }
            | Command::Pull { .. }
            | Command::Open { .. }
            | Command::Reopen { .. }
            | Command::Offer { .. }
            | Command::Close { .. }
            | Command::UpdateInbox { .. }
            | Command::DeleteInbox { .. }
            | Command::UpdatePolicy(_)
            | Command::RaiseFloor(_)
            | Command::Erase(_)
            | Command::ReleaseLock { .. }
            | Command::SweepDelivery { .. }
            | Command::SweepOperation { .. }
            | Command::SweepLock { .. }
            | Command::SweepInbox { .. }
            | Command::SweepAccount { .. }
            | Command::FoldReplays { .. } => None,
        }
    }

    /// Bytes it brings along, for the limit of a batch.
    pub fn weight(&self) -> usize {
        match self {
            Command::Submit(submit) => {
                let body = if submit.action.reads_content() { BODY_WEIGHT } else { 0 };
                ROW_WEIGHT + body + submit.intent.arguments.len() + submit.result_weight()
            }
            // The end of a lock reads nothing unless somebody waits for it, which few do; and what
            // starts then is bounded (release.rs). The same holds for Open and Close below.
            Command::Ack { targets, .. } | Command::Redrive { targets, .. } => {
                ROW_WEIGHT + 64 * targets.len()
            }
            Command::Extend { attempts, .. } | Command::Defer { attempts, .. } => {
                ROW_WEIGHT + 64 * attempts.targets.len()
            }
            // These are there to start waiters, which read their document.
            Command::ReleaseLock { .. }
            | Command::SweepDelivery { .. }
            | Command::SweepLock { .. } => ROW_WEIGHT + BODY_WEIGHT,
            Command::Cancel { .. }
            | Command::Probe { .. }
            | Command::Pull { .. }
            | Command::Open { .. }
            | Command::Reopen { .. }
            | Command::Offer { .. }
            | Command::Close { .. }
            | Command::UpdateInbox { .. }
            | Command::DeleteInbox { .. }
            | Command::UpdatePolicy(_)
            | Command::RaiseFloor(_)
            | Command::Erase(_)
            | Command::SweepOperation { .. }
            | Command::SweepInbox { .. }
            | Command::SweepAccount { .. }
            | Command::FoldReplays { .. } => ROW_WEIGHT,
        }
    }

    /// The rows it will need, as far as they can be known beforehand.
    pub fn needs(&self) -> Vec<Need> {
        match self {
            Command::Submit(submit) => {
                let body = match submit.action.reads_content() {
                    true => Body::Load,
                    false => Body::Omit,
                };
                let account = submit.key.account.clone();
                let target =
                    TargetKey { account: account.clone(), target: submit.intent.target.clone() };
                let mut needs = vec![
                    Need::Operation(submit.key.clone(), Access::Read),
                    Need::Account(account.clone(), Access::Read),
                    Need::Document(target, body),
                ];
                let inbox = submit.inbox.clone();
                needs.extend(inbox.map(|inbox| Need::Inbox(InboxKey { account, inbox })));
                needs
            }
            // The account says what can be told of an id without a record, and what is in force;
            // so too below, wherever a rule asks for its policy.
            Command::Cancel { key, .. } | Command::SweepOperation { key } => {
                vec![Need::Operation(key.clone(), Access::Write), looks_at(&key.account)]
            }
            Command::Erase(erasure) => {
                let key = erasure.key.clone();
                vec![looks_at(&key.account), Need::Operation(key, Access::Write)]
            }
            Command::Probe { key, .. } => {
                vec![Need::Operation(key.clone(), Access::Read), looks_at(&key.account)]
            }
            Command::SweepAccount { account } => {
                vec![Need::Account(account.clone(), Access::Write)]
            }
            Command::RaiseFloor(raise) => {
                vec![Need::Account(raise.account.clone(), Access::Write)]
            }
            Command::FoldReplays { key, .. } => {
                vec![Need::Operation(key.clone(), Access::Write)]
            }
            // No ack asks for a policy, unless it starts a waiter (release.rs).
            Command::Ack { account, targets, .. } => {
                targets.iter().map(|target| deliver::need(account, target, Access::Read)).collect()
            }
            Command::Redrive { account, targets, .. } => {
                let each = targets.iter();
                let rows = each.map(|target| deliver::need(account, target, Access::Write));
                rows.chain([looks_at(account)]).collect()
            }
            Command::Extend { attempts, .. } | Command::Defer { attempts, .. } => {
                attempts.keys().map(Need::Delivery).chain([looks_at(&attempts.account)]).collect()
            }
            Command::Pull { inbox, limit, .. } => {
                vec![looks_at(&inbox.account), Need::Deliverable(inbox.clone(), *limit)]
            }
            Command::Open { inbox, consumer, .. }
            | Command::Reopen { inbox, consumer, .. }
            | Command::Close { inbox, consumer, .. } => {
                vec![looks_at(&inbox.account), Need::Held(inbox.clone(), consumer.clone())]
            }
            // The lease is the server's own.
            Command::Offer { inbox, limit: 0, .. } => vec![Need::Inbox(inbox.clone())],
            Command::Offer { inbox, limit, choice: Choice::Any, .. } => {
                vec![looks_at(&inbox.account), Need::Deliverable(inbox.clone(), *limit)]
            }
            Command::Offer { inbox, choice: Choice::Returned(sequences), .. } => {
                let key =
                    |sequence: &i64| DeliveryKey { inbox: inbox.clone(), sequence: *sequence };
                let first = [looks_at(&inbox.account), Need::Inbox(inbox.clone())];
                first.into_iter().chain(sequences.iter().map(key).map(Need::Delivery)).collect()
            }
            Command::UpdateInbox { inbox, .. } => vec![Need::Inbox(inbox.clone())],
            Command::DeleteInbox { inbox, .. } => vec![
                Need::Account(inbox.account.clone(), Access::Write),
                Need::Inbox(inbox.clone()),
            ],
            Command::UpdatePolicy(update) => {
                vec![Need::Account(update.account.clone(), Access::Write)]
            }
            Command::ReleaseLock { target, .. } | Command::SweepLock { target } => {
                vec![looks_at(&target.account), Need::Waiters(target.clone())]
            }
            Command::SweepDelivery { key, operation_id } => vec![
                Need::Operation(
                    OperationKey { account: key.inbox.account.clone(), id: operation_id.clone() },
                    Access::Write,
                ),
                looks_at(&key.inbox.account),
                Need::Delivery(key.clone()),
            ],
            Command::SweepInbox { key } => {
                vec![looks_at(&key.account), Need::Inbox(key.clone())]
            }
        }
    }
}

fn looks_at(account: &Account) -> Need {
    Need::Account(account.clone(), Access::Read)
}
