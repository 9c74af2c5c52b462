//! Which rows a command names before any rule has looked.

use super::{Choice, Command};
use crate::domain::{
    deliver,
    delivery::{DeliveryKey, InboxKey},
    lock::TargetKey,
    operation::OperationKey,
    world::needs::{Access, Body, Need},
};

impl Command {
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
            // The account says what can be told of an id without a record.
            Command::Cancel { key, .. } => vec![
                Need::Operation(key.clone(), Access::Write),
                Need::Account(key.account.clone(), Access::Read),
            ],
            Command::SweepOperation { key } | Command::FoldReplays { key, .. } => {
                vec![Need::Operation(key.clone(), Access::Write)]
            }
            Command::Ack { account, targets, .. } => {
                targets.iter().map(|target| deliver::need(account, target, Access::Read)).collect()
            }
            Command::Redrive { account, targets, .. } => {
                targets.iter().map(|target| deliver::need(account, target, Access::Write)).collect()
            }
            Command::Extend { attempts, .. } | Command::Defer { attempts, .. } => {
                attempts.keys().map(Need::Delivery).collect()
            }
            Command::Pull { inbox, limit, .. } => vec![
                Need::Account(inbox.account.clone(), Access::Read),
                Need::Deliverable(inbox.clone(), *limit),
            ],
            Command::Open { inbox, consumer, .. } | Command::Reopen { inbox, consumer, .. } => {
                vec![
                    Need::Account(inbox.account.clone(), Access::Read),
                    Need::Held(inbox.clone(), consumer.clone()),
                ]
            }
            Command::Offer { inbox, limit: 0, .. } => vec![Need::Inbox(inbox.clone())],
            Command::Offer { inbox, limit, choice: Choice::Any, .. } => {
                vec![Need::Deliverable(inbox.clone(), *limit)]
            }
            Command::Offer { inbox, choice: Choice::Returned(sequences), .. } => {
                let key =
                    |sequence: &i64| DeliveryKey { inbox: inbox.clone(), sequence: *sequence };
                let inbox = [Need::Inbox(inbox.clone())];
                inbox.into_iter().chain(sequences.iter().map(key).map(Need::Delivery)).collect()
            }
            Command::Close { inbox, consumer, .. } => {
                vec![Need::Held(inbox.clone(), consumer.clone())]
            }
            Command::UpdateInbox { inbox, .. } => vec![Need::Inbox(inbox.clone())],
            Command::DeleteInbox { inbox, .. } => vec![
                Need::Account(inbox.account.clone(), Access::Write),
                Need::Inbox(inbox.clone()),
            ],
            Command::ReleaseLock { target, .. } | Command::SweepLock { target } => {
                vec![Need::Waiters(target.clone())]
            }
            Command::SweepDelivery { key, operation_id } => vec![
                Need::Operation(
                    OperationKey { account: key.inbox.account.clone(), id: operation_id.clone() },
                    Access::Write,
                ),
                Need::Delivery(key.clone()),
            ],
            Command::SweepInbox { key } => vec![Need::Inbox(key.clone())],
        }
    }
}
