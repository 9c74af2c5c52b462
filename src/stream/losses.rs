//! What a stream tells of deliveries that will not come, or that ended elsewhere.
//!
//! What must stay true: whatever is lost is told from the token's position on, once here; the
//! position stays below everything that may still be lost and was not shown here.

use tokio::time::Instant;

use super::{
    Frame,
    ends::Fault,
    gaps::GapMerger,
    life::Life,
    work::{OPEN, OWED_PAGE},
};
use crate::domain::inbox::Inbox;

/// Lost deliveries in one read.
const LOST_PAGE: i64 = 500;
/// Withdrawn deliveries in one frame: about 16 KiB.
const WITHDRAWN_MAX: usize = 200;

impl Life {
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
            let Some(last) = page.last().map(|delivery| delivery.key.sequence) else { break };
            for delivery in &page {
                if !self.progress.is_untold(delivery.key.sequence) {
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
}

/// How many deliveries of an inbox were lost.
pub(super) fn lost(inbox: &Inbox) -> i64 {
    inbox.expired_total + inbox.dead_total
}
