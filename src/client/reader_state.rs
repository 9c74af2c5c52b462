//! What a reader of an inbox knows: its position, what it has handled, what is acked.
//!
//! What must stay true: one outcome (inbox, sequence, outcome version) is handed to the application
//! once per reader state, and never to two handlers at a time, whatever ended or came again
//! meanwhile; a handled result stays in the state until the server has answered its
//! ack, whatever happens in between; the token never runs ahead of what was taken in.
//! Deliberately not here: the network and time (see [`super::inbox`]).

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::error::Failure;
use crate::proto::{
    AckOutcome, AckResult, AckTarget, DeliveredResult, Delivery, DeliveryBatch, Gap, Opened,
    Withdrawn, WithdrawnDelivery,
};

/// The most acked results that are remembered to recognise a late copy; a copy can only be as old
/// as what was in flight, which the server bounds far below this.
const ACKED_REMEMBERED_MAX: usize = 10_000;
/// The most notices (no results) that wait for the application; later ones are only counted.
const NOTICES_MAX: usize = 1_000;
/// The most acks in one call; the server takes 1,000.
const ACK_BATCH_MAX: usize = 500;

/// One outcome in one inbox. Numbers are never used twice, so that this is who a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResultKey {
    /// The delivery's number in the inbox.
    pub sequence: i64,
    /// Which outcome of the operation.
    pub outcome_version: i32,
}

impl ResultKey {
    /// The key of a delivery.
    pub fn of(delivery: &Delivery) -> Self {
        ResultKey { sequence: delivery.sequence, outcome_version: delivery.outcome_version }
    }

    fn of_result(result: &DeliveredResult) -> Self {
        result
            .delivery
            .as_ref()
            .map_or(ResultKey { sequence: 0, outcome_version: 0 }, ResultKey::of)
    }
}

/// What a reader keeps over restarts. Save it after handling, best in the same place and at the
/// same moment as what the handling changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderState {
    /// The inbox.
    pub inbox: String,
    /// Who reads; one per client installation.
    pub consumer_id: String,
    /// The last token; empty before the first stream. Losing it costs duplicates, never results.
    pub resume_token: String,
    /// Results that were handled while their ack is not confirmed.
    pub handled_unacked: BTreeSet<ResultKey>,
}

impl ReaderState {
    /// A reader that has seen nothing yet.
    pub fn new(inbox: impl Into<String>, consumer_id: impl Into<String>) -> Self {
        ReaderState {
            inbox: inbox.into(),
            consumer_id: consumer_id.into(),
            resume_token: String::new(),
            handled_unacked: BTreeSet::new(),
        }
    }

    /// The same knowledge without a position: everything unacked comes again, and what was handled
    /// is recognised. For after RESUME_TOKEN_INVALID.
    pub fn without_token(self) -> Self {
        ReaderState { resume_token: String::new(), ..self }
    }
}

/// How far a result that came again had got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// With the application, or waiting for it.
    HandedOver,
    /// Handled; the ack is not confirmed and is sent again.
    Handled,
    /// Acked; the copy was on its way, and is acked once more.
    Acked,
}

/// A result that came again. It is not handed to the application a second time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAgain {
    /// Which.
    pub key: ResultKey,
    /// The operation.
    pub operation_id: String,
    /// The attempt that brought it again.
    pub attempt: i32,
    /// How far it had got.
    pub stage: Stage,
}

/// What a reader tells the application.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A stream is open.
    Opened(Box<Opened>),
    /// A new result. Say `handled` when it is used.
    Result(Box<DeliveredResult>),
    /// A result that was handed over before.
    AlreadySeen(SeenAgain),
    /// Everything that was there at the opening has come.
    CaughtUp,
    /// Numbers that will not come; their results are readable through a look-up.
    Gap(Gap),
    /// A result that ended elsewhere. One that was not taken yet is taken back. One that was stays
    /// known until the application says `handled`, `give_back` or `let_go`: should it be redriven
    /// meanwhile, it is not handed over a second time.
    Withdrawn(WithdrawnDelivery),
    /// The stream ended and is opened again from the last token.
    Reconnecting(Option<Box<Failure>>),
    /// An ack was refused. It stays in the state and is tried again.
    AckRefused(Box<Failure>),
    /// The server gives no more time for what is being handled: slow results come again.
    ExtensionRefused(Box<Failure>),
}

/// Counts since the reader started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// New results taken in.
    pub new: u64,
    /// Results that came again.
    pub already_seen: u64,
    /// Results left with the server because the application was behind; they come again.
    pub left_for_later: u64,
    /// Acks that were answered.
    pub acked: u64,
    /// Streams that were opened again.
    pub reconnects: u64,
    /// Notices that were counted only, because the application was behind.
    pub notices_dropped: u64,
}

/// The state of a running reader.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) state: ReaderState,
    pub(crate) totals: Totals,
    handed_over: BTreeSet<ResultKey>,
    /// Those of `handed_over` that ended elsewhere, and were not shown again since: there is no
    /// attempt that needs more time.
    withdrawn: BTreeSet<ResultKey>,
    /// Handled results whose ack may be sent now. What a restored state brings along waits until
    /// it was delivered again or the stream has caught up, so that the copy is recognised.
    due: BTreeSet<ResultKey>,
    acked: BTreeSet<ResultKey>,
    news: VecDeque<News>,
    results_waiting: usize,
    results_waiting_max: usize,
}

impl Book {
    pub(crate) fn new(state: ReaderState, results_waiting_max: usize) -> Self {
        Book {
            state,
            totals: Totals::default(),
            handed_over: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            due: BTreeSet::new(),
            acked: BTreeSet::new(),
            news: VecDeque::new(),
            results_waiting: 0,
            results_waiting_max,
        }
    }

    /// The next piece of news for the application.
    pub(crate) fn take_news(&mut self) -> Option<News> {
        let news = self.news.pop_front()?;
        if matches!(news, News::Result(_)) {
            self.results_waiting -= 1;
        }
        Some(news)
    }

    /// The next notice, past the results that wait. `CaughtUp` keeps its place: it speaks of them.
    pub(crate) fn take_notice(&mut self) -> Option<News> {
        let is_notice = |news: &News| !matches!(news, News::Result(_) | News::CaughtUp);
        let at = self.news.iter().position(is_notice)?;
        self.news.remove(at)
    }

    /// A position that the server named. An empty one says nothing.
    pub(crate) fn keep_token(&mut self, token: &str) {
        if !token.is_empty() {
            token.clone_into(&mut self.state.resume_token);
        }
    }

    /// Takes in results, then their token.
    pub(crate) fn take_in(&mut self, batch: DeliveryBatch) {
        for result in batch.results {
            self.take_in_one(result);
        }
        self.keep_token(&batch.resume_token);
    }

    fn take_in_one(&mut self, result: DeliveredResult) {
        let key = ResultKey::of_result(&result);
        if let Some(stage) = self.stage(key) {
            self.totals.already_seen += 1;
            if stage == Stage::Acked {
                self.state.handled_unacked.insert(key);
                self.acked.remove(&key);
            }
            if stage != Stage::HandedOver {
                self.due.insert(key);
            }
            self.withdrawn.remove(&key);
            let delivery = result.delivery.unwrap_or_default();
            self.notice(News::AlreadySeen(SeenAgain {
                key,
                operation_id: delivery.operation_id,
                attempt: delivery.attempt,
                stage,
            }));
        } else if self.results_waiting >= self.results_waiting_max {
            // It is unacked, so that the server sends it again, whatever token we hold.
            self.totals.left_for_later += 1;
        } else {
            self.totals.new += 1;
            self.handed_over.insert(key);
            self.results_waiting += 1;
            self.news.push_back(News::Result(Box::new(result)));
        }
    }

    fn stage(&self, key: ResultKey) -> Option<Stage> {
        if self.state.handled_unacked.contains(&key) {
            Some(Stage::Handled)
        } else if self.handed_over.contains(&key) {
            Some(Stage::HandedOver)
        } else if self.acked.contains(&key) {
            Some(Stage::Acked)
        } else {
            None
        }
    }

    /// Adds a notice; when too many wait, those that only inform are counted instead.
    pub(crate) fn notice(&mut self, news: News) {
        let informs_only = match news {
            News::AlreadySeen(_)
            | News::Reconnecting(_)
            | News::AckRefused(_)
            | News::ExtensionRefused(_) => true,
            News::Opened(_)
            | News::Result(_)
            | News::CaughtUp
            | News::Gap(_)
            | News::Withdrawn(_) => false,
        };
        if informs_only && self.news.len() - self.results_waiting >= NOTICES_MAX {
            self.totals.notices_dropped += 1;
        } else {
            self.news.push_back(news);
        }
    }

    /// The backlog has come: whatever the state brought along may be acked.
    pub(crate) fn caught_up(&mut self, token: &str) {
        self.keep_token(token);
        self.release_acks();
        self.notice(News::CaughtUp);
    }

    /// Every handled result may be acked now.
    pub(crate) fn release_acks(&mut self) {
        self.due = self.state.handled_unacked.clone();
    }

    /// Results that ended elsewhere: what the application has not taken yet is taken back. What it
    /// has taken may be in work still: it stays known, so that a redrive hands it to nobody else.
    pub(crate) fn withdraw(&mut self, withdrawn: Withdrawn) {
        for delivery in withdrawn.deliveries {
            let mut taken_back = Vec::new();
            self.news.retain(|news| match news {
                News::Result(result) => {
                    let key = ResultKey::of_result(result);
                    let gone = key.sequence == delivery.sequence;
                    taken_back.extend(gone.then_some(key));
                    !gone
                }
                _ => true,
            });
            self.results_waiting -= taken_back.len();
            self.handed_over.retain(|key| !taken_back.contains(key));
            let taken = self.handed_over.iter().filter(|key| key.sequence == delivery.sequence);
            self.withdrawn.extend(taken);
            self.notice(News::Withdrawn(delivery));
        }
    }

    /// The application does nothing more for a withdrawn result that it has taken.
    pub(crate) fn let_go(&mut self, sequence: i64) {
        self.withdrawn.retain(|key| {
            let gone = key.sequence == sequence;
            if gone {
                self.handed_over.remove(key);
            }
            !gone
        });
    }

    /// The application has used a result.
    pub(crate) fn handled(&mut self, key: ResultKey) {
        self.note_handled(key);
        self.due.insert(key);
    }

    /// The same, for an application that keeps the state before the ack leaves.
    pub(crate) fn note_handled(&mut self, key: ResultKey) {
        self.give_back(key);
        self.state.handled_unacked.insert(key);
    }

    /// The ack of a handled result may leave now.
    pub(crate) fn release_ack(&mut self, key: ResultKey) {
        if self.state.handled_unacked.contains(&key) {
            self.due.insert(key);
        }
    }

    /// Whether an attempt that was shown is with the application, or waits for it.
    pub(crate) fn holds(&self, key: ResultKey) -> bool {
        self.handed_over.contains(&key) && !self.withdrawn.contains(&key)
    }

    /// The application could not use a result: its next delivery counts as new.
    pub(crate) fn give_back(&mut self, key: ResultKey) {
        self.handed_over.remove(&key);
        self.withdrawn.remove(&key);
    }

    /// The acks to send now.
    pub(crate) fn acks_due(&self) -> Vec<AckTarget> {
        let target = |key: &ResultKey| AckTarget {
            inbox: self.state.inbox.clone(),
            sequence: key.sequence,
            ..AckTarget::default()
        };
        self.due.iter().take(ACK_BATCH_MAX).map(target).collect()
    }

    /// Takes in the answers to acks and tells how many settled one. Every known outcome means:
    /// stop retrying.
    pub(crate) fn acks_answered(&mut self, results: &[AckResult]) -> usize {
        let before = self.due.len();
        for result in results {
            let Ok(outcome) = AckOutcome::try_from(result.outcome) else { continue };
            if outcome == AckOutcome::Unspecified {
                continue;
            }
            let answered = |key: &&ResultKey| key.sequence == result.sequence;
            let Some(key) = self.due.iter().find(answered).copied() else { continue };
            self.due.remove(&key);
            self.state.handled_unacked.remove(&key);
            self.acked.insert(key);
            self.totals.acked += 1;
        }
        while self.acked.len() > ACKED_REMEMBERED_MAX {
            self.acked.pop_first();
        }
        before - self.due.len()
    }
}

#[cfg(test)]
#[path = "reader_state_tests.rs"]
mod tests;
