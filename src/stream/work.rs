//! What a stream does with the store: look, offer, send a page, tell what was lost or withdrawn.
//!
//! What must stay true: an offer asks for no more than the inbox row, read just before, leaves
//! free; what was put in flight is kept until it is sent, whatever fails in between.

use tokio::time::Instant;

use super::{
    Frame, GapCause,
    ends::{End, Fault},
    frames,
    gaps::GapMerger,
    life::Life,
    progress::{Backlog, Offered, has_fresh},
    unreadable,
};
use crate::{
    domain::{
        command::{Command, Reply},
        delivery::{Delivery, DeliveryKey, DeliveryState},
        inbox::Inbox,
        operation::OperationKey,
        refusal::Refusal,
    },
    engine::Handed,
    telemetry,
};

/// Deliveries of one offer: a usual window in one or two transactions, and an amount of rows that
/// is read and joined in one go.
const OFFER_MAX: i64 = 200;
/// Lost deliveries in one read.
const LOST_PAGE: i64 = 500;
/// Open deliveries in one read.
const OWED_PAGE: i64 = 500;
/// More acked deliveries are not counted: the figure is for people.
const ACKED_MAX: i64 = 10_000;
/// Withdrawn deliveries in one frame: about 16 KiB.
const WITHDRAWN_MAX: usize = 200;

/// What an offer put in flight to us.
#[derive(Debug)]
pub(super) struct Page {
    deliveries: Vec<Delivery>,
    /// Up to here everything has been offered once this page is sent.
    covered: i64,
    /// Whether the backlog of the opening ends with this page.
    ends_backlog: bool,
}

impl Life {
    /// How many after the token's position were acked elsewhere.
    pub(super) async fn count_acked_elsewhere(&self, position: Option<i64>) -> Result<i64, Fault> {
        match position {
            Some(position) => {
                let after = self.known.start(Some(position));
                let counted = self.engine.store().count_acked(&self.inbox, after, ACKED_MAX);
                Ok(counted.await.map_err(unreadable)?)
            }
            None => Ok(0),
        }
    }

    /// Reads the inbox row: the truth behind a hint.
    pub(super) async fn look(&mut self) -> Result<(), Fault> {
        self.look_wanted = false;
        self.timers.looked = Instant::now();
        let row = self.engine.store().inbox(&self.inbox).await.map_err(unreadable)?;
        match row.filter(|row| row.consumer(&self.consumer.id, self.consumer.epoch).is_some()) {
            Some(row) => self.learn(row),
            // The rules say what became of us.
            None => self.renew().await?,
        }
        if self.progress.backlog() == Backlog::Sending && self.known.pending == 0 {
            // What was left has ended or is with others: there will be no page that ends it.
            self.page = Some(Page {
                deliveries: Vec::new(),
                covered: self.progress.covered(&self.known, Offered::Short),
                ends_backlog: true,
            });
        }
        let worthwhile = self.exhausted != Some(offerable(&self.known));
        if self.known.pending > 0 && worthwhile && self.free() > 0 {
            self.offer_wanted = true;
        }
        Ok(())
    }

    /// Renews the consumer's lease.
    pub(super) async fn renew(&mut self) -> Result<(), Fault> {
        self.run_offer(0).await.map(drop)
    }

    /// Puts a page in flight.
    pub(super) async fn offer(&mut self) -> Result<(), Fault> {
        let limit = self.free().min(OFFER_MAX);
        if limit <= 0 {
            // An ack changes the row, and that wakes us.
            self.offer_wanted = false;
            return Ok(());
        }
        let deliveries = self.run_offer(limit).await?;
        let offered = match usize::try_from(limit) {
            Ok(limit) if deliveries.len() >= limit => Offered::Full,
            Ok(_) | Err(_) => Offered::Short,
        };
        self.offer_wanted = offered == Offered::Full;
        self.exhausted = match offered {
            Offered::Full => None,
            Offered::Short => Some(offerable(&self.known)),
        };
        self.page = Some(Page {
            deliveries,
            covered: self.progress.covered(&self.known, offered),
            ends_backlog: self.progress.backlog_ends(&self.known, offered),
        });
        Ok(())
    }

    async fn run_offer(&mut self, limit: i64) -> Result<Vec<Delivery>, Fault> {
        let command = Command::Offer {
            inbox: self.inbox.clone(),
            consumer: self.consumer.id.clone(),
            epoch: self.consumer.epoch,
            limit,
        };
        let (deliveries, inbox) = match self.engine.run(command).await {
            Ok(Reply::Offered { deliveries, inbox }) => (deliveries, inbox),
            Ok(_) => return Err(Refusal::Internal.into()),
            Err(Refusal::StreamSuperseded) => return Err(self.why_removed().await?.into()),
            Err(refusal) => return Err(refusal.into()),
        };
        if limit == 0 || !deliveries.is_empty() {
            // This renewed the lease; a third of it leaves two more tries.
            self.timers.renew = Instant::now() + self.engine.policy().consumer_lease.to_std() / 3;
        }
        self.learn(*inbox);
        Ok(deliveries)
    }

    /// Why the inbox does not know our consumer any more.
    async fn why_removed(&self) -> Result<Refusal, Fault> {
        let row = self.engine.store().inbox(&self.inbox).await.map_err(unreadable)?;
        Ok(match row {
            Some(row) if row.next_generation() == self.known.generation => {
                Refusal::StreamSuperseded
            }
            Some(row) if !row.deleted => Refusal::InboxRecreated,
            Some(_) | None => Refusal::NoSuchInbox,
        })
    }

    fn learn(&mut self, inbox: Inbox) {
        self.ended_changed |= ended(&inbox) != ended(&self.known);
        self.known = inbox;
    }

    /// What may be put in flight, by the row as last read.
    fn free(&self) -> i64 {
        let consumer = self.known.consumer(&self.consumer.id, self.consumer.epoch);
        let own = consumer.map_or(0, |consumer| consumer.window - consumer.in_flight);
        own.min(self.known.in_flight_limit(self.engine.policy()) - self.known.in_flight)
    }

    /// Joins the page with its operations and sends it. Both reads come before the first frame; a
    /// failed one leaves the page as it is.
    pub(super) async fn send_page(&mut self) -> Result<(), Fault> {
        let Some(page) = &self.page else { return Ok(()) };
        let operations = match page.deliveries.is_empty() {
            true => Vec::new(),
            false => {
                let keys = operation_keys(&page.deliveries);
                self.engine.store().operations(&keys).await.map_err(unreadable)?
            }
        };
        let covered = page.covered;
        if self.progress.misses_any(&sequences(&page.deliveries), covered) {
            self.tell_lost(self.progress.cursor(), covered).await?;
        }
        let Some(page) = self.page.take() else { return Ok(()) };
        self.send_results(frames::join(&page.deliveries, operations)).await?;
        self.progress.cover(covered, &self.known);
        let sending = self.progress.backlog() == Backlog::Sending;
        if page.ends_backlog && sending && !self.owes_any().await? {
            self.catch_up().await?;
        }
        Ok(())
    }

    /// Whether something that was there at the opening was not shown here and is still to come: it
    /// backs off, is about to be lost, or is in flight to us by an offer whose answer was lost. A
    /// later page or its end settles that. What others have in flight is not ours to wait for.
    async fn owes_any(&self) -> Result<bool, Fault> {
        let own = self.known.consumer(&self.consumer.id, self.consumer.epoch);
        let own_in_flight = own.map_or(0, |consumer| consumer.in_flight);
        let open = [DeliveryState::Pending, DeliveryState::InFlight];
        let mut next =
            Some(self.known.start(None)).filter(|_| self.known.pending + own_in_flight > 0);
        while let Some(after) = next.filter(|after| *after < self.progress.last_at_open()) {
            let store = self.engine.store();
            let page = store.list_deliveries(&self.inbox, after, &open, OWED_PAGE).await;
            let page = page.map_err(unreadable)?;
            if page.deliveries.iter().any(|delivery| self.owes(delivery)) {
                return Ok(true);
            }
            next = page.next;
        }
        Ok(false)
    }

    fn owes(&self, open: &Delivery) -> bool {
        let (holder, us) = (open.consumer.as_ref(), (&self.consumer.id, self.consumer.epoch));
        let elsewhere = holder.is_some_and(|(id, epoch)| (id, *epoch) != us);
        let comes = open.state == DeliveryState::Pending || !elsewhere;
        comes && self.progress.is_owed(open.key.sequence)
    }

    /// Says that the backlog is sent. From now on the cursor is at the end, and submits may put
    /// deliveries in flight to us themselves.
    async fn catch_up(&mut self) -> Result<(), End> {
        self.progress.catch_up();
        self.send(Frame::CaughtUp { resume_token: self.token() }).await?;
        let room = usize::try_from(self.consumer.window).unwrap_or(1).max(1);
        let (inbox, consumer) = (self.inbox.clone(), self.consumer.id.clone());
        self.handed = Some(self.engine.attach(inbox, consumer, self.consumer.epoch, room));
        // Whatever came between the last offer and the attaching is found by a look.
        self.look_wanted = true;
        Ok(())
    }

    /// Sends what submits put in flight to us, together with whatever else is queued by now.
    pub(super) async fn send_handed(&mut self, first: Handed) -> Result<(), End> {
        let mut results = first;
        while let Some(more) = self.handed.as_mut().and_then(|handed| handed.try_recv().ok()) {
            results.extend(more);
        }
        let sequences: Vec<i64> =
            results.iter().map(|(delivery, _)| delivery.key.sequence).collect();
        let covered = sequences.iter().copied().max().unwrap_or(0);
        let mut told = Ok(());
        if self.progress.misses_any(&sequences, covered) {
            told = self.tell_lost(self.progress.cursor(), covered).await;
        }
        self.send_results(results).await?;
        match told {
            Ok(()) => self.progress.cover(covered, &self.known),
            Err(Fault::End(end)) => return Err(end),
            // The cursor stays: the next page tells what was lost before it.
            Err(Fault::Retry(_)) => {}
        }
        Ok(())
    }

    async fn send_results(&mut self, results: Vec<frames::Joined>) -> Result<(), End> {
        for results in frames::split(results) {
            for (delivery, _) in &results {
                self.progress.show(delivery, &self.known);
            }
            telemetry::results_sent(results.len());
            let resume_token = self.token();
            self.send(Frame::Deliveries { results, resume_token }).await?;
        }
        Ok(())
    }

    /// Tells what was lost after a number, up to another. What was told stays told if a later read
    /// fails.
    pub(super) async fn tell_lost(&mut self, after: i64, up_to: i64) -> Result<(), Fault> {
        let mut merger = GapMerger::default();
        let mut after = after;
        while after < up_to {
            let lost = self.engine.store().list_lost(&self.inbox, after, LOST_PAGE).await;
            let lost = lost.map_err(unreadable)?;
            let purged = self.purged_up_to().await?.min(up_to);
            let told = self.purged_told.max(after);
            if purged > told {
                // The page may lack rows that were purged before it was read (T14).
                if let Some(range) = std::mem::take(&mut merger).finish() {
                    self.send_gap(range).await?;
                }
                self.tell_purged(told + 1, purged).await?;
            }
            let Some(last) = lost.last().map(|delivery| delivery.key.sequence) else { break };
            for delivery in lost.iter().take_while(|delivery| delivery.key.sequence <= up_to) {
                let sequence = delivery.key.sequence;
                if sequence <= self.purged_told || !self.progress.is_untold(sequence) {
                    continue;
                }
                if let Some(range) = merger.push(delivery) {
                    self.send_gap(range).await?;
                }
            }
            after = last;
            if Instant::now() >= self.timers.renew {
                // A client that reads slowly must not cost us the lease.
                self.renew().await?;
            }
        }
        if let Some(range) = merger.finish() {
            self.send_gap(range).await?;
        }
        Ok(())
    }

    /// Up to which number rows are no longer kept.
    async fn purged_up_to(&self) -> Result<i64, Fault> {
        let row = self.engine.store().inbox(&self.inbox).await.map_err(unreadable)?;
        Ok(row.map_or(self.known.kept_from, |row| row.kept_from) - 1)
    }

    /// Tells a range whose rows are gone, acked or not.
    async fn tell_purged(&mut self, first: i64, last: i64) -> Result<(), End> {
        self.purged_told = last;
        let cause = GapCause::Purged;
        self.send(Frame::Gap { first, last, cause, operation_ids: Vec::new() }).await
    }

    /// Tells which of the shown deliveries ended elsewhere.
    pub(super) async fn tell_withdrawn(&mut self) -> Result<(), Fault> {
        let keys: Vec<DeliveryKey> = self
            .progress
            .shown()
            .into_iter()
            .map(|sequence| DeliveryKey { inbox: self.inbox.clone(), sequence })
            .collect();
        if !keys.is_empty() {
            let rows = self.engine.store().deliveries(&keys).await.map_err(unreadable)?;
            let withdrawn = self.progress.settle(&rows, &self.consumer.id);
            for withdrawn in withdrawn.chunks(WITHDRAWN_MAX) {
                self.send(Frame::Withdrawn(withdrawn.to_vec())).await?;
            }
        }
        if self.lost_told != lost(&self.known) && !has_fresh(&self.known) {
            self.tell_lost_at_the_end().await?;
        }
        self.withdrawals_told();
        Ok(())
    }

    /// Tells what was lost behind the cursor while nothing could be sent: no page will come that
    /// would tell it.
    async fn tell_lost_at_the_end(&mut self) -> Result<(), Fault> {
        let last = self.known.last_sequence();
        if self.progress.cursor() < last {
            self.tell_lost(self.progress.cursor(), last).await?;
            self.progress.cover(last, &self.known);
        }
        self.lost_told = lost(&self.known);
        Ok(())
    }
}

/// What decides whether an offer can find more than the last one.
fn offerable(inbox: &Inbox) -> (i64, i64, i64) {
    (inbox.last_sequence(), inbox.pending, inbox.returned)
}

/// How many deliveries of an inbox have ended.
fn ended(inbox: &Inbox) -> i64 {
    inbox.acked_total + inbox.expired_total + inbox.dead_total
}

/// How many deliveries of an inbox were lost.
pub(super) fn lost(inbox: &Inbox) -> i64 {
    inbox.expired_total + inbox.dead_total
}

fn sequences(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(|delivery| delivery.key.sequence).collect()
}

fn operation_keys(deliveries: &[Delivery]) -> Vec<OperationKey> {
    let mut keys: Vec<OperationKey> = deliveries.iter().map(Delivery::operation_key).collect();
    // Two outcomes of one operation name it twice.
    keys.sort();
    keys.dedup();
    keys
}
