//! The loop of a stream: what ends it, what it waits for, and in which order it works.
//!
//! What must stay true: every wait ends on shutdown and when the receiver is gone, and whatever the
//! store is asked is such a wait; once `Opened` and what was lost before it are told, a failing
//! store never ends a stream and never stops or delays its heartbeats. Before that it ends the
//! stream: nobody relies on it yet, and the caller opens again. A stream that has nothing to do
//! costs little: whatever is more than a wait has a future of its own on the heap, and is gone when
//! it is done.

use std::pin::Pin;

use futures_util::future::BoxFuture;
use tokio::{
    sync::mpsc::{self, OwnedPermit},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Frame, Granted, Item, StreamSettings,
    ends::{End, Fault, close},
    gaps::GapRange,
    losses,
    pace::{self, StoreClock},
    progress::Progress,
    timers::{TICK, Timers},
    work::Page,
};
use crate::{
    domain::{
        delivery::InboxKey,
        inbox::{Consumer, Inbox},
        policy::Policy,
        refusal::Refusal,
        token::ResumeToken,
    },
    engine::{Engine, Handed},
    telemetry,
    wake::Watch,
};

/// Something that the store is asked.
pub(super) type StoreWork<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What an opening yields.
pub(super) struct Start {
    /// The token's position; absent without a token.
    pub(super) position: Option<i64>,
    /// Which life of the store this is.
    pub(super) epoch: String,
    /// The inbox as it was then.
    pub(super) opened: Inbox,
    /// The consumer with its epoch.
    pub(super) consumer: Consumer,
    /// The policy of its account.
    pub(super) policy: Box<Policy>,
    /// What its reader grants.
    pub(super) granted: Option<Granted>,
    /// When it ends at the latest, unless at an age of its own.
    pub(super) end: Option<Instant>,
}

/// What the next turn has to do with the store.
#[derive(Debug, Clone, Copy)]
enum Work {
    Page,
    Renew,
    Withdraw,
    Refresh,
    Offer,
    Look,
}

/// What a wait ended with.
enum Event {
    Shutdown,
    Gone,
    Timer,
    Handed(Option<Handed>),
    Granted,
    Changed,
}

/// A running stream.
pub(super) struct Life {
    pub(super) engine: Engine,
    pub(super) inbox: InboxKey,
    /// The life of the store that it began in, and ends with.
    pub(super) epoch: String,
    pub(super) consumer: Consumer,
    settings: StreamSettings,
    shutdown: CancellationToken,
    watch: Watch,
    sender: mpsc::Sender<Item>,
    /// What the reader lets us send; without it the window alone bounds us.
    pub(super) granted: Option<Granted>,
    /// The inbox row as last read.
    pub(super) known: Inbox,
    /// The policy of its account as last read.
    pub(super) policy: Box<Policy>,
    pub(super) progress: Progress,
    /// In flight to us, and not sent yet.
    pub(super) page: Option<Page>,
    /// Deliveries that submits put in flight themselves; attached once the backlog is sent.
    pub(super) handed: Option<mpsc::Receiver<Handed>>,
    pub(super) look_wanted: bool,
    pub(super) offer_wanted: bool,
    withdrawals_wanted: bool,
    /// Some delivery of the inbox ended since the shown ones were compared.
    pub(super) ended_changed: bool,
    /// Up to here, rows that are purged need no word: they were told, or this stream began
    /// without a position that lies before them.
    pub(super) purged_told: i64,
    /// How many lost deliveries the inbox had when the last of them were told.
    pub(super) lost_told: i64,
    /// Something below the cursor may be open that was not shown here, though the inbox row doesn't
    /// say so.
    pub(super) doubtful: bool,
    /// What the inbox had to offer when an offer last came back short: another one is worth its
    /// transaction only when this changed, or time passed.
    pub(super) exhausted: Option<(i64, i64, i64)>,
    pub(super) timers: Timers,
    store_clock: StoreClock,
}

impl Life {
    pub(super) fn new(
        engine: Engine,
        start: Start,
        settings: StreamSettings,
        shutdown: CancellationToken,
        watch: Watch,
        sender: mpsc::Sender<Item>,
    ) -> Self {
        let Start { position, epoch, opened, consumer, policy, granted, end } = start;
        let now = Instant::now();
        let age = end.unwrap_or_else(|| now + settings.age(engine.seams().random()));
        let lease = engine.defaults().consumer_lease.to_std();
        Life {
            inbox: opened.key.clone(),
            epoch,
            progress: Progress::new(opened.start(position), &opened, consumer.window),
            store_clock: StoreClock::read(consumer.open_time),
            consumer,
            settings,
            shutdown,
            watch,
            sender,
            granted,
            page: None,
            handed: None,
            look_wanted: false,
            offer_wanted: true,
            withdrawals_wanted: false,
            ended_changed: false,
            // Without a token the reader says nothing of what it has seen: what is no longer kept
            // may be anything, and there would be a gap at each first opening.
            purged_told: position.map_or(opened.kept_from - 1, |_| 0),
            lost_told: losses::lost(&opened),
            doubtful: false,
            known: opened,
            policy,
            exhausted: None,
            timers: Timers::new(now, age, lease),
            engine,
        }
    }

    /// Runs until the end, says why, and gives back what it holds.
    pub(super) async fn run(mut self, position: Option<i64>, last_word: OwnedPermit<Item>) {
        telemetry::stream_began();
        let end = match Box::pin(self.begin(position)).await {
            Ok(()) => self.follow().await,
            Err(Fault::End(end)) => end,
            Err(Fault::Retry(refusal)) => End::Refused(refusal),
        };
        telemetry::stream_ended(end.cause());
        if let Some(word) = self.last_word(&end) {
            last_word.send(Box::new(word));
        }
        let Life { engine, inbox, consumer, sender, handed, .. } = self;
        drop(handed);
        match end {
            // Whoever asked for the end is told when all is given back.
            End::Gone => {
                Box::pin(close(&engine, &inbox, &consumer, &end)).await;
                drop(sender);
            }
            // The client sees the end at once, whatever giving back takes.
            End::Shutdown | End::Aged | End::Lapsed | End::Stalled | End::Refused(_) => {
                drop(sender);
                Box::pin(close(&engine, &inbox, &consumer, &end)).await;
            }
        }
    }

    /// The first frames: `Opened`, then what was lost since the token.
    async fn begin(&mut self, position: Option<i64>) -> Result<(), Fault> {
        let acked_elsewhere = self.count_acked_elsewhere(position).await?;
        let opened = Frame::Opened {
            resume_token: self.token(),
            inbox: Box::new(self.known.clone()),
            consumer: self.consumer.clone(),
            policy: self.policy.clone(),
            acked_elsewhere,
            heartbeat: self.settings.heartbeat,
        };
        self.send(opened).await?;
        self.timers.next_heartbeat(Instant::now(), self.settings.heartbeat.to_std());
        self.tell_skipped().await?;
        self.settle().await
    }

    async fn follow(&mut self) -> End {
        loop {
            if let Err(end) = self.turn().await {
                return end;
            }
        }
    }

    /// One turn: timers and handed deliveries first, then one piece of work, or a wait.
    async fn turn(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if self.shutdown.is_cancelled() {
            return Err(End::Shutdown);
        }
        if now >= self.timers.age {
            return Err(End::Aged);
        }
        self.run_timers(now).await?;
        let rests = self.timers.rests(now);
        let crowded = self.progress.is_crowded();
        self.withdrawals_wanted |= crowded;
        // Too much was shown to show more before it is compared.
        if (!crowded || rests)
            && let Some(handed) = self.handed.as_mut().and_then(|handed| handed.try_recv().ok())
        {
            return Box::pin(self.send_handed(handed)).await;
        }
        if rests {
            return self.wait().await;
        }
        let Some(work) = self.next_work(now) else { return self.wait().await };
        let step: BoxFuture<'_, Result<(), Fault>> = match work {
            Work::Page => Box::pin(self.send_page()),
            Work::Renew => Box::pin(self.renew()),
            Work::Withdraw => Box::pin(self.tell_withdrawn()),
            Work::Refresh => Box::pin(self.refresh()),
            Work::Offer => Box::pin(self.offer()),
            Work::Look => Box::pin(self.look()),
        };
        match step.await {
            Ok(()) => self.timers.recover(),
            Err(Fault::End(end)) => return Err(end),
            Err(Fault::Retry(refusal)) => self.rest(&refusal),
        }
        Ok(())
    }

    fn next_work(&self, now: Instant) -> Option<Work> {
        if self.page.is_some() {
            Some(Work::Page)
        } else if now >= self.timers.renew {
            Some(Work::Renew)
        } else if self.withdrawals_wanted {
            Some(Work::Withdraw)
        } else if now >= self.timers.refresh {
            Some(Work::Refresh)
        } else if self.offer_wanted {
            Some(Work::Offer)
        } else if self.look_wanted && self.timers.looks(now) {
            Some(Work::Look)
        } else {
            None
        }
    }

    async fn run_timers(&mut self, now: Instant) -> Result<(), End> {
        if now >= self.timers.tick {
            self.timers.tick = now + TICK;
            if self.known.pending > 0 {
                // A backoff may have ended.
                self.exhausted = None;
                self.look_wanted = true;
            }
            self.withdrawals_wanted |= self.ended_changed;
        }
        if now >= self.timers.heartbeat {
            Box::pin(self.beat(now)).await?;
        }
        Ok(())
    }

    async fn beat(&mut self, now: Instant) -> Result<(), End> {
        self.timers.next_heartbeat(now, self.settings.heartbeat.to_std());
        let now = self.store_clock.shown();
        self.send(Frame::Heartbeat { resume_token: self.token(), now }).await
    }

    /// Awaits what the store is asked, and lives on meanwhile: heartbeats go out, and whatever ends
    /// a stream ends it. Dropping the work leaves a command that was taken to complete by itself.
    /// The work is boxed: the stream's own future would otherwise hold room for all kinds of it.
    pub(super) async fn attend<T>(&mut self, mut work: StoreWork<T>) -> Result<T, End> {
        loop {
            let timer = self.timers.heartbeat.min(self.timers.age);
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Err(End::Shutdown),
                () = self.sender.closed() => return Err(End::Gone),
                done = &mut work => return Ok(done),
                () = tokio::time::sleep_until(timer) => {}
            }
            let now = Instant::now();
            if now >= self.timers.age {
                return Err(End::Aged);
            }
            if now >= self.timers.heartbeat {
                self.beat(now).await?;
            }
        }
    }

    /// Waits for a hint, a handed delivery, a timer or the end.
    async fn wait(&mut self) -> Result<(), End> {
        let timer = self.timers.next(self.look_wanted);
        let hints_wanted = !self.look_wanted;
        let Life { shutdown, sender, handed, watch, granted, .. } = self;
        let event = tokio::select! {
            biased;
            () = shutdown.cancelled() => Event::Shutdown,
            () = sender.closed() => Event::Gone,
            handed = receive(handed) => Event::Handed(handed),
            () = raised(granted.as_ref()) => Event::Granted,
            () = watch.changed(), if hints_wanted => Event::Changed,
            () = tokio::time::sleep_until(timer) => Event::Timer,
        };
        match event {
            Event::Shutdown => Err(End::Shutdown),
            Event::Gone => Err(End::Gone),
            Event::Timer => Ok(()),
            Event::Handed(Some(handed)) => Box::pin(self.send_handed(handed)).await,
            Event::Handed(None) => {
                // The engine forgot us: the inbox row says why.
                self.handed = None;
                self.look_wanted = true;
                Ok(())
            }
            Event::Granted => {
                // What the last offer found is no measure any more.
                self.exhausted = None;
                self.look_wanted = true;
                Ok(())
            }
            Event::Changed => {
                self.look_wanted = true;
                Ok(())
            }
        }
    }

    /// Puts a frame into the channel; a client that takes none for too long is given up.
    pub(super) async fn send(&mut self, frame: Frame) -> Result<(), End> {
        let stall = self.settings.write_stall_max.to_std();
        tokio::select! {
            biased;
            permit = timeout(stall, self.sender.reserve()) => match permit {
                Ok(Ok(permit)) => {
                    permit.send(Box::new(Ok(frame)));
                    Ok(())
                }
                Ok(Err(_)) => Err(End::Gone),
                Err(_) => Err(End::Stalled),
            },
            () = self.shutdown.cancelled() => Err(End::Shutdown),
        }
    }

    pub(super) async fn send_gap(&mut self, range: GapRange) -> Result<(), End> {
        self.progress.told(&range);
        self.send(range.into_frame()).await
    }

    pub(super) fn token(&self) -> String {
        let facts = self.engine.store().facts();
        let token = ResumeToken {
            inbox: self.inbox.clone(),
            generation: self.known.generation,
            store_epoch: self.epoch.clone(),
            position: self.progress.position(),
        };
        token.seal(&facts.token_key)
    }

    /// Reads what the next heartbeat tells: the store's clock, and how far the position may rise.
    async fn refresh(&mut self) -> Result<(), Fault> {
        self.timers.refresh = self.timers.heartbeat + self.settings.heartbeat.to_std();
        let engine = self.engine.clone();
        let read = Box::pin(async move { StoreClock::ask(&engine).await });
        if let Some(clock) = self.attend(read).await? {
            self.store_clock = clock;
        }
        if self.progress.position() < self.progress.cursor() {
            self.settle().await?;
        }
        Ok(())
    }

    pub(super) fn withdrawals_told(&mut self) {
        self.withdrawals_wanted = false;
    }

    fn rest(&mut self, refusal: &Refusal) {
        if self.timers.rest(self.engine.seams().random()) {
            tracing::debug!(reason = refusal.reason(), "a stream waits for the store");
        }
        // Whatever failed may have happened all the same: the row is read again.
        self.look_wanted = true;
    }

    fn last_word(&self, end: &End) -> Option<Result<Frame, Refusal>> {
        let draining = |reason: &str| {
            Ok(Frame::Draining {
                reason: reason.to_owned(),
                retry: pace::retry(self.engine.seams().random()),
                resume_token: self.token(),
            })
        };
        match end {
            End::Gone => None,
            End::Shutdown => Some(draining(pace::SHUTTING_DOWN)),
            End::Aged => Some(draining(pace::AGED)),
            End::Lapsed => Some(draining("the stream's lease ended")),
            End::Stalled => Some(Err(Refusal::SlowConsumer)),
            End::Refused(refusal) => Some(Err((**refusal).clone())),
        }
    }
}

/// The next handed deliveries; never ends while the stream is not attached.
async fn receive(handed: &mut Option<mpsc::Receiver<Handed>>) -> Option<Handed> {
    match handed {
        Some(handed) => handed.recv().await,
        None => std::future::pending().await,
    }
}

/// More credit; never ends for a stream that needs none.
async fn raised(granted: Option<&Granted>) {
    match granted {
        Some(granted) => granted.credit.granted().await,
        None => std::future::pending().await,
    }
}
