//! What a stream does with the store: look, offer, send a page.
//!
//! What must stay true: an offer asks for no more than the inbox row, read just before, leaves
//! free; what was put in flight is kept until it is sent, whatever fails in between.

use tokio::time::Instant;

use super::{
    Frame,
    ends::{End, Fault},
    frames,
    life::{Life, StoreWork},
    losses::lost,
    progress::{Backlog, Offered, has_fresh},
    send::Sent,
    unreadable,
};
use crate::{
    domain::{
        command::{Choice, Command, Reply},
        delivery::{Delivery, DeliveryKey, DeliveryState},
        inbox::Inbox,
        operation::OperationKey,
        refusal::Refusal,
    },
    engine::Handed,
    store::ReadError,
};

/// Deliveries of one offer: a usual window in one or two transactions, and an amount of rows that
/// is read and joined in one go.
const OFFER_MAX: i64 = 200;
/// Open deliveries in one read.
pub(super) const OWED_PAGE: i64 = 500;
/// More acked deliveries are not counted: the figure is for people.
const ACKED_MAX: i64 = 10_000;
/// The states of what may still be lost.
pub(super) const OPEN: [DeliveryState; 2] = [DeliveryState::Pending, DeliveryState::InFlight];

/// What an offer put in flight to us.
#[derive(Debug)]
pub(super) struct Page {
    deliveries: Vec<Delivery>,
    /// Up to here everything has been offered once this page is sent.
    covered: i64,
    /// Whether the backlog of the opening ends with this page.
    ends_backlog: bool,
}

impl Page {
    /// Whether a delivery is shown with this page.
    pub(super) fn holds(&self, sequence: i64) -> bool {
        self.deliveries.iter().any(|delivery| delivery.key.sequence == sequence)
    }
}

impl Life {
    /// How many after the token's position were acked elsewhere.
    pub(super) async fn count_acked_elsewhere(
        &mut self,
        position: Option<i64>,
    ) -> Result<i64, Fault> {
        if position.is_none() {
            return Ok(0);
        }
        let (store, inbox) = (self.engine.store().clone(), self.inbox.clone());
        let after = self.known.start(position);
        self.read(Box::pin(async move { store.count_acked(&inbox, after, ACKED_MAX).await })).await
    }

    /// Reads from the store, living on meanwhile.
    pub(super) async fn read<T>(
        &mut self,
        read: StoreWork<Result<T, ReadError>>,
    ) -> Result<T, Fault> {
        let read = self.attend(read).await?;
        self.same_life()?;
        Ok(read.map_err(unreadable)?)
    }

    /// Runs a command, living on meanwhile.
    async fn run_command(&mut self, command: Command) -> Result<Result<Reply, Refusal>, End> {
        let engine = self.engine.clone();
        let reply = self.attend(Box::pin(async move { engine.run(command).await })).await?;
        self.same_life()?;
        Ok(reply)
    }

    /// Ends a stream that a mark of its store has overtaken: its numbers and its position belong to
    /// the life before.
    fn same_life(&self) -> Result<(), End> {
        match self.engine.store().facts().epoch == self.epoch {
            true => Ok(()),
            false => Err(End::Refused(Box::new(Refusal::StoreEpochChanged))),
        }
    }

    /// Reads the inbox row: the truth behind a hint.
    pub(super) async fn look(&mut self) -> Result<(), Fault> {
        self.look_wanted = false;
        self.timers.looked = Instant::now();
        let row = self.row().await?;
        match row.filter(|row| row.consumer(&self.consumer.id, self.consumer.epoch).is_some()) {
            Some(row) => self.learn(row),
            // The rules say what became of us.
            None => self.renew().await?,
        }
        self.raise_to(self.progress.cursor());
        if self.ends_unseen() {
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

    /// The inbox row; the account's policy is learnt with it.
    pub(super) async fn row(&mut self) -> Result<Option<Inbox>, Fault> {
        let (store, inbox) = (self.engine.store().clone(), self.inbox.clone());
        let read = Box::pin(async move { store.inbox_and_account(&inbox).await });
        let (inbox, account) = self.read(read).await?;
        *self.policy = self.engine.policy_of(account.as_ref());
        Ok(inbox)
    }

    /// Renews the consumer's lease; one that ended begins anew.
    pub(super) async fn renew(&mut self) -> Result<(), Fault> {
        self.run_offer(0, Choice::Any).await.map(drop)
    }

    /// Puts a page in flight.
    pub(super) async fn offer(&mut self) -> Result<(), Fault> {
        let free = self.free().min(OFFER_MAX);
        let limit = free.min(self.room());
        if limit <= 0 && free > 0 {
            return self.offer_again(free).await;
        }
        if limit <= 0 {
            // An ack changes the row, and that wakes us.
            self.offer_wanted = false;
            return Ok(());
        }
        let Some(deliveries) = self.run_offer(limit, Choice::Any).await? else { return Ok(()) };
        let offered = match usize::try_from(limit) {
            Ok(limit) if deliveries.len() >= limit => Offered::Full,
            Ok(_) | Err(_) => Offered::Short,
        };
        self.offer_wanted = offered == Offered::Full;
        self.exhausted = match offered {
            Offered::Full => None,
            Offered::Short => Some(offerable(&self.known)),
        };
        // What is fresh and was not found is past its window, wherever it lies.
        self.doubtful |= offered == Offered::Short && has_fresh(&self.known);
        self.page = Some(Page {
            deliveries,
            covered: self.progress.covered(&self.known, offered),
            ends_backlog: self.progress.backlog_ends(&self.known, offered),
        });
        Ok(())
    }

    /// How many results the reader's credit covers.
    fn room(&self) -> i64 {
        self.granted.as_ref().map_or(i64::MAX, |granted| granted.credit.room())
    }

    /// Without credit for more: puts in flight what was shown here before and came back.
    async fn offer_again(&mut self, limit: i64) -> Result<(), Fault> {
        self.offer_wanted = false;
        if self.known.returned == 0 {
            // A grant wakes us. A backlog that ended without us is found by a look.
            self.look_wanted |= self.ends_unseen();
            return Ok(());
        }
        let returned = self.returned_here().await?;
        if returned.is_empty() {
            self.exhausted = Some(offerable(&self.known));
            return Ok(());
        }
        let Some(deliveries) = self.run_offer(limit, Choice::Returned(returned)).await? else {
            return Ok(());
        };
        self.exhausted = Some(offerable(&self.known));
        if !deliveries.is_empty() {
            let covered = self.progress.cursor();
            self.page = Some(Page { deliveries, covered, ends_backlog: false });
        }
        Ok(())
    }

    /// Whether nothing is left of the backlog although no page of ours ended it.
    fn ends_unseen(&self) -> bool {
        self.progress.backlog() == Backlog::Sending && self.known.pending == 0
    }

    /// What was shown here and waits to be shown again.
    async fn returned_here(&mut self) -> Result<Vec<i64>, Fault> {
        let (store, keys) = (self.engine.store().clone(), self.shown_keys());
        let rows = self.read(Box::pin(async move { store.deliveries(&keys).await })).await?;
        Ok(first_due(&rows))
    }

    pub(super) fn shown_keys(&self) -> Vec<DeliveryKey> {
        let key = |sequence| DeliveryKey { inbox: self.inbox.clone(), sequence };
        self.progress.shown().into_iter().map(key).collect()
    }

    /// None: the lease had ended, and the stream is open again.
    async fn run_offer(
        &mut self,
        limit: i64,
        choice: Choice,
    ) -> Result<Option<Vec<Delivery>>, Fault> {
        let command = Command::Offer {
            inbox: self.inbox.clone(),
            consumer: self.consumer.id.clone(),
            epoch: self.consumer.epoch,
            limit,
            choice,
        };
        let reply = self.run_command(command).await?.inspect_err(|refusal| {
            // It may have put deliveries in flight that we will never see.
            self.doubtful |= *refusal == Refusal::CommitUnknown;
        });
        let (deliveries, inbox) = match reply {
            Ok(Reply::Offered { deliveries, inbox }) => (deliveries, inbox),
            Ok(Reply::Lapsed) => return self.reopen().await.map(|()| None),
            Ok(_) => return Err(Refusal::Internal.into()),
            Err(Refusal::StreamSuperseded) => return Err(self.why_removed().await?.into()),
            Err(refusal) => return Err(refusal.into()),
        };
        if limit == 0 || !deliveries.is_empty() {
            // This renewed the lease.
            self.renewed();
        }
        self.learn(*inbox);
        Ok(Some(deliveries))
    }

    fn renewed(&mut self) {
        self.timers.renewed(self.engine.defaults().consumer_lease.to_std());
    }

    /// Opens the stream again in place: its lease ended, by a jump of the store's clock or because
    /// the store was out of reach for longer, and no newer stream took over. What it held came back
    /// and will be sent again; the client sees nothing else of it.
    async fn reopen(&mut self) -> Result<(), Fault> {
        let lapsed = self.consumer.epoch;
        let command = Command::Reopen {
            inbox: self.inbox.clone(),
            consumer: self.consumer.id.clone(),
            epoch: lapsed,
            window: self.consumer.window,
            generation: self.known.generation,
        };
        let (opened, consumer, policy) = match self.run_command(command).await? {
            Ok(Reply::Opened { inbox, consumer, policy }) => (inbox, consumer, policy),
            Ok(_) => return Err(Refusal::Internal.into()),
            Err(refusal) => return Err(not_reopened(refusal)),
        };
        tracing::debug!("a stream's lease ended; it is open again");
        self.engine.detach(&self.inbox, &self.consumer.id, lapsed);
        self.handed = None;
        self.page = None;
        self.consumer = consumer;
        self.policy = policy;
        self.exhausted = None;
        self.offer_wanted = true;
        self.renewed();
        self.learn(*opened);
        if self.progress.backlog() == Backlog::Sent {
            self.attach();
        }
        Ok(())
    }

    /// Why the inbox does not know our consumer any more.
    async fn why_removed(&mut self) -> Result<Refusal, Fault> {
        let row = self.row().await?;
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

    pub(super) fn own_in_flight(&self) -> i64 {
        let own = self.known.consumer(&self.consumer.id, self.consumer.epoch);
        own.map_or(0, |consumer| consumer.in_flight)
    }

    /// What may be put in flight, by the row as last read.
    fn free(&self) -> i64 {
        let consumer = self.known.consumer(&self.consumer.id, self.consumer.epoch);
        let (known, policy) = (&self.known, &self.policy);
        let own = consumer.map_or(0, |own| known.window_of(own, policy) - own.in_flight);
        own.min(known.in_flight_limit(policy) - known.in_flight)
    }

    /// Joins the page with its operations and sends it. Both reads come before the first frame; a
    /// failed one leaves the page as it is.
    pub(super) async fn send_page(&mut self) -> Result<(), Fault> {
        let Some(page) = &self.page else { return Ok(()) };
        let keys = operation_keys(&page.deliveries);
        let operations = match keys.is_empty() {
            true => Vec::new(),
            false => {
                let store = self.engine.store().clone();
                self.read(Box::pin(async move { store.operations(&keys).await })).await?
            }
        };
        if self.lost_told != lost(&self.known) {
            self.tell_lost().await?;
        }
        // None: the lease ended while that was told.
        let Some(page) = self.page.take() else { return Ok(()) };
        let covered = page.covered;
        let sent = self.send_results(frames::join(&page.deliveries, operations)).await?;
        if sent == Sent::TakenBack {
            return Ok(());
        }
        self.cover(covered);
        let sending = self.progress.backlog() == Backlog::Sending;
        if page.ends_backlog && sending && !self.owes_any().await? {
            self.catch_up().await?;
        }
        Ok(())
    }

    /// Whether something that was there at the opening was not shown here and is still to come: it
    /// backs off, is about to be lost, or is in flight to us by an offer whose answer was lost. A
    /// later page or its end settles that. What others have in flight is not ours to wait for.
    async fn owes_any(&mut self) -> Result<bool, Fault> {
        let start = Some(self.known.start(None));
        let mut next = start.filter(|_| self.known.pending + self.own_in_flight() > 0);
        while let Some(after) = next.filter(|after| *after < self.progress.last_at_open()) {
            let (store, inbox) = (self.engine.store().clone(), self.inbox.clone());
            let page =
                Box::pin(
                    async move { store.list_deliveries(&inbox, after, &OPEN, OWED_PAGE).await },
                );
            let page = self.read(page).await?;
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
    async fn catch_up(&mut self) -> Result<(), Fault> {
        if self.progress.position() < self.progress.cursor() {
            self.settle().await?;
        }
        self.progress.catch_up();
        self.send(Frame::CaughtUp { resume_token: self.token() }).await?;
        self.attach();
        Ok(())
    }

    fn attach(&mut self) {
        if self.granted.is_none() {
            // What is handed over has no size yet: a credit could not be kept.
            let room = usize::try_from(self.consumer.window).unwrap_or(1).max(1);
            let (inbox, consumer) = (self.inbox.clone(), self.consumer.id.clone());
            self.handed = Some(self.engine.attach(inbox, consumer, self.consumer.epoch, room));
        }
        // Whatever came between the last offer and the attaching is found by a look.
        self.look_wanted = true;
    }

    /// Sends what submits put in flight to us, together with whatever else is queued by now.
    pub(super) async fn send_handed(&mut self, first: Handed) -> Result<(), End> {
        self.same_life()?;
        let mut results = first;
        while let Some(more) = self.handed.as_mut().and_then(|handed| handed.try_recv().ok()) {
            results.extend(more);
        }
        let sequences: Vec<i64> =
            results.iter().map(|(delivery, _)| delivery.key.sequence).collect();
        let covered = sequences.iter().copied().max().unwrap_or(0);
        if self.progress.misses_any(&sequences, covered) {
            // Others got them, or they ended: the row, as last read, doesn't know of them.
            self.doubtful = true;
            self.look_wanted = true;
        }
        // What was told as lost while it was on its way is not shown any more.
        results.retain(|(delivery, _)| !self.progress.is_over(delivery.key.sequence));
        if self.send_results(results).await? == Sent::Whole {
            self.cover(covered);
        }
        Ok(())
    }

    fn cover(&mut self, covered: i64) {
        self.progress.cover(covered);
        self.raise_to(self.progress.cursor());
    }
}

/// What became of a stream that could not be opened again. A newer stream, a deleted inbox, a
/// shutdown and a store that is out of reach for now are what they always are; otherwise the client
/// opens it anew.
fn not_reopened(refusal: Refusal) -> Fault {
    let known = matches!(
        refusal,
        Refusal::StreamSuperseded
            | Refusal::NoSuchInbox
            | Refusal::InboxRecreated
            | Refusal::Draining { .. }
            | Refusal::StoreUnavailable { .. }
    );
    if known { refusal.into() } else { End::Lapsed.into() }
}

/// What decides whether an offer can find more than the last one.
fn offerable(inbox: &Inbox) -> (i64, i64, i64) {
    (inbox.last_sequence(), inbox.pending, inbox.returned)
}

/// How many deliveries of an inbox have ended.
fn ended(inbox: &Inbox) -> i64 {
    inbox.acked_total + inbox.expired_total + inbox.dead_total
}

/// The numbers of those that wait, as many as one offer takes. Those that are due first: what backs
/// off for long keeps no place of one that is due (contract section 7).
fn first_due(rows: &[Delivery]) -> Vec<i64> {
    let mut waiting: Vec<&Delivery> =
        rows.iter().filter(|row| row.state == DeliveryState::Pending).collect();
    waiting.sort_by_key(|row| row.due_since());
    let most = usize::try_from(OFFER_MAX).unwrap_or(usize::MAX);
    waiting.into_iter().map(|row| row.key.sequence).take(most).collect()
}

pub(super) fn operation_keys(deliveries: &[Delivery]) -> Vec<OperationKey> {
    let mut keys: Vec<OperationKey> = deliveries.iter().map(Delivery::operation_key).collect();
    // Two outcomes of one operation name it twice.
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::ids::Timestamp, stream::testing::delivery};

    #[test]
    fn what_backs_off_for_long_keeps_no_place_of_one_that_is_due() {
        let waiting = |sequence: i64, available: i64| Delivery {
            available_time: Some(Timestamp(available)),
            ..delivery(sequence, DeliveryState::Pending)
        };
        let mut rows: Vec<Delivery> = (1..=OFFER_MAX).map(|number| waiting(number, 900)).collect();
        rows.push(delivery(OFFER_MAX + 1, DeliveryState::InFlight));
        rows.push(waiting(OFFER_MAX + 2, 20));
        rows.push(waiting(OFFER_MAX + 3, 10));
        let chosen = first_due(&rows);
        assert_eq!(chosen[..3], [OFFER_MAX + 3, OFFER_MAX + 2, 1]);
        assert_eq!(chosen.len(), 200, "one offer takes no more");
        assert!(first_due(&[]).is_empty());
    }
}
