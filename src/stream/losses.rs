//! What a stream tells of deliveries that will not come, or that ended elsewhere, and how far its
//! position rises with it.
//!
//! What must stay true: whatever is lost is told from the token's position on, once here; a purge
//! under an open scan is a gap and not silence (T14); the position stays below everything that may
//! still be lost and was not shown here.

use tokio::time::Instant;

use super::{
    Frame, GapCause,
    ends::{End, Fault},
    gaps::GapMerger,
    life::Life,
    progress::is_straight,
    work::{OPEN, OWED_PAGE},
};
use crate::domain::{
    epoch::{Skipped, unskipped},
    inbox::Inbox,
};

/// Lost deliveries in one read.
const LOST_PAGE: i64 = 500;
/// Withdrawn deliveries in one frame: about 16 KiB.
const WITHDRAWN_MAX: usize = 200;

impl Life {
    /// Raises the position to what has been sent, where the row as last read says that nothing
    /// below can be lost untold.
    pub(super) fn raise_to(&mut self, sent: i64) {
        let all_told = self.page.is_none() && self.lost_told == lost(&self.known);
        if all_told && !self.doubtful && is_straight(&self.known, self.own_in_flight()) {
            self.progress.raise(sent);
        }
    }

    /// Tells what was lost since the position, and raises it to just below the lowest number that
    /// may still be lost and was not shown here: one that waits, backs off or is with others.
    pub(super) async fn settle(&mut self) -> Result<(), Fault> {
        let (store, inbox) = (self.engine.store().clone(), self.inbox.clone());
        let after = self.progress.position();
        // One more than was shown here holds one that was not.
        let limit = i64::try_from(self.progress.shown_count() + 1)
            .map_or(OWED_PAGE, |enough| enough.min(OWED_PAGE));
        let open =
            Box::pin(async move { store.list_deliveries(&inbox, after, &OPEN, limit).await });
        let open = self.read(open).await?;
        let reach = self.progress.reach(&open.deliveries, open.next);
        // Whatever is not open by now and was lost is found by this later read.
        self.tell_lost().await?;
        self.progress.raise(reach);
        // Until nothing is left that was not shown here.
        self.doubtful &= reach < self.progress.cursor();
        Ok(())
    }

    /// Tells what was lost after the position and was neither shown nor told here, beyond the cursor
    /// too. What was told stays told if a later read fails.
    pub(super) async fn tell_lost(&mut self) -> Result<(), Fault> {
        let counted = lost(&self.known);
        let mut merger = GapMerger::default();
        let mut after = self.progress.position();
        loop {
            after = self.progress.untold_after(after);
            let (store, inbox) = (self.engine.store().clone(), self.inbox.clone());
            let page = Box::pin(async move { store.list_lost(&inbox, after, LOST_PAGE).await });
            let page = self.read(page).await?;
            let purged = self.purged_up_to().await?;
            let told = self.purged_told.max(after);
            if purged > told {
                // The page may lack rows that were purged before it was read (T14).
                if let Some(range) = std::mem::take(&mut merger).finish() {
                    self.send_gap(range).await?;
                }
                self.tell_purged(told + 1, purged).await?;
            }
            let Some(last) = page.last().map(|delivery| delivery.key.sequence) else { break };
            for delivery in &page {
                let sequence = delivery.key.sequence;
                let comes = self.page.as_ref().is_some_and(|page| page.holds(sequence));
                if sequence <= self.purged_told || comes || !self.progress.is_untold(sequence) {
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
        self.lost_told = counted;
        self.raise_to(self.progress.cursor());
        Ok(())
    }

    /// Tells which of the shown deliveries ended elsewhere.
    pub(super) async fn tell_withdrawn(&mut self) -> Result<(), Fault> {
        // What ends while they are compared is left to the next time; so is what is still on its
        // way here, where it waits because too much was shown.
        self.ended_changed &= self.progress.is_crowded();
        let keys = self.shown_keys();
        if !keys.is_empty() {
            let store = self.engine.store().clone();
            let rows = self.read(Box::pin(async move { store.deliveries(&keys).await })).await?;
            let withdrawn = self.progress.settle(&rows, &self.consumer.id);
            for withdrawn in withdrawn.chunks(WITHDRAWN_MAX) {
                self.send(Frame::Withdrawn(withdrawn.to_vec())).await?;
            }
        }
        if self.lost_told != lost(&self.known) {
            self.tell_lost().await?;
        }
        self.withdrawals_told();
        Ok(())
    }

    /// Up to which number rows are no longer kept.
    async fn purged_up_to(&mut self) -> Result<i64, Fault> {
        let row = self.row().await?;
        Ok(row.map_or(self.known.kept_from, |row| row.kept_from) - 1)
    }

    /// Tells the numbers after the position that marks of the store passed over. There will be no
    /// more of them: a mark ends the stream.
    pub(super) async fn tell_skipped(&mut self) -> Result<(), End> {
        let position = self.progress.position();
        for Skipped { first, last } in self.known.skipped.clone() {
            if last > position {
                let first = first.max(position + 1);
                self.progress.skip(first, last);
                let cause = GapCause::Restored;
                self.send(Frame::Gap { first, last, cause, operation_ids: Vec::new() }).await?;
            }
        }
        Ok(())
    }

    /// Tells a range whose rows are gone, acked or not, but for what was shown here: that is
    /// withdrawn, unless its client acked it. What never had any rows is told already.
    async fn tell_purged(&mut self, first: i64, last: i64) -> Result<(), End> {
        self.purged_told = last;
        let cause = GapCause::Purged;
        let skipped = self.known.skipped.clone();
        let untold = self.progress.untold(first, last);
        let gone = untold.into_iter().flat_map(|(first, last)| unskipped(first, last, &skipped));
        for (first, last) in gone.collect::<Vec<_>>() {
            self.send(Frame::Gap { first, last, cause, operation_ids: Vec::new() }).await?;
        }
        Ok(())
    }
}

/// How many deliveries of an inbox were lost.
pub(super) fn lost(inbox: &Inbox) -> i64 {
    inbox.expired_total + inbox.dead_total
}
