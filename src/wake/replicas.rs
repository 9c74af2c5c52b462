//! Hints between replicas: what changed here is told to the others, and theirs wake readers here.
//!
//! What must stay true: a hint is sent after the commit and outside every transaction of a batch
//! (T12); losing any of them, or all, costs at most one period of the bulk re-read. After each new
//! start of listening everything that is watched is looked at, since hints were missed meanwhile.
//! Nothing here ends but by `shutdown`, and no fault of a carrier stops the service.
//!
//! Deliberately not here: what a hint looks like (`payload.rs`), and the statements or the protocol
//! that carry it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Wake, outbox::Changed, payload};
use crate::{
    engine::seams::Seams,
    store::postgres::{self, Heard, PostgresStore},
    telemetry::{self, HintFault},
};

/// Least time between two hints of one replica. PostgreSQL takes one lock for all that commit a
/// NOTIFY, so that few of them are better than many; 40 a second cost it nothing that can be
/// measured, and a reader does not notice this delay.
const HINTS_APART: Duration = Duration::from_millis(25);
/// Longest time to hand a hint over: one that is older than a period of the re-read is no use.
const SEND_PATIENCE: Duration = Duration::from_secs(2);
/// The first pause before listening again; doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest such pause. Until then the bulk re-read alone delivers.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often a listener that hears nothing is checked: a connection that was cut silently, or that
/// something in between no longer serves, is replaced within this time and the check's own.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// What carries hints from replica to replica.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// LISTEN and NOTIFY of the store's own server.
    Postgres(PostgresStore),
    /// A server of its own.
    #[cfg(feature = "nats")]
    Nats(super::nats::Nats),
}

/// An open ear; closed when dropped.
enum Listening {
    Postgres(postgres::Listening),
    #[cfg(feature = "nats")]
    Nats(super::nats::Listening),
}

/// One replica's part in telling and hearing.
#[derive(Clone, Debug)]
pub struct Replicas {
    wake: Wake,
    carrier: Carrier,
    seams: Seams,
    /// Tells this replica's hints from those of others.
    sender: Arc<str>,
}

impl Replicas {
    /// A replica with a name of its own; nothing runs yet.
    pub fn new(wake: Wake, carrier: Carrier, seams: Seams) -> Self {
        let sender = format!("{:016x}", seams.random()).into();
        Replicas { wake, carrier, seams, sender }
    }

    /// Tells other replicas what changed here, at most once per `HINTS_APART`, until `shutdown`.
    /// A hint that cannot be sent is dropped.
    pub async fn tell(self, shutdown: CancellationToken) {
        self.wake.outbox.open();
        shutdown.run_until_cancelled(self.tell_on()).await;
        self.wake.outbox.close();
    }

    async fn tell_on(&self) {
        loop {
            let changed = self.wake.outbox.take().await;
            let text = payload::encode(&self.sender, &changed);
            match tokio::time::timeout(SEND_PATIENCE, self.carrier.send(&text)).await {
                Ok(Ok(())) => telemetry::hint_sent(),
                Ok(Err(error)) => {
                    telemetry::hints_failed(HintFault::Send);
                    tracing::debug!(error, "a hint to other replicas was lost");
                }
                Err(_) => {
                    telemetry::hints_failed(HintFault::Send);
                    tracing::debug!("a hint to other replicas took too long and was lost");
                }
            }
            self.seams.sleep(HINTS_APART).await;
        }
    }

    /// Listens to other replicas until `shutdown`; listens again, with growing pauses, whenever
    /// that ends.
    pub async fn hear(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.hear_on()).await;
        telemetry::listens(false);
    }

    async fn hear_on(&self) {
        let mut pause = PAUSE_FIRST;
        loop {
            let start = Instant::now();
            let error = self.listen_once().await;
            telemetry::hints_failed(HintFault::Listen);
            telemetry::listens(false);
            if start.elapsed() > PAUSE_MAX {
                pause = PAUSE_FIRST;
            }
            if pause == PAUSE_FIRST {
                tracing::warn!(error, "no hints of other replicas: results come by polling now");
            } else {
                tracing::debug!(error, "still no hints of other replicas");
            }
            // All replicas lose their server at the same moment: half of the pause is by chance.
            let chance = u64::try_from(pause.as_millis() / 2).unwrap_or(1).max(1);
            let jitter = Duration::from_millis(self.seams.random() % chance);
            self.seams.sleep(pause / 2 + jitter).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Listens until that ends, and says why it did.
    async fn listen_once(&self) -> String {
        let listening = match self.carrier.listen(self.heard()).await {
            Ok(listening) => listening,
            Err(error) => return error,
        };
        telemetry::listens(true);
        tracing::debug!("listening to other replicas");
        // Whatever they said until now was missed.
        self.wake.look_soon();
        loop {
            tokio::select! {
                biased;
                () = listening.ended() => return "the connection ended".to_owned(),
                () = self.seams.sleep(CHECK_INTERVAL) => {}
            }
            if let Err(error) = listening.check().await {
                return error;
            }
        }
    }

    fn heard(&self) -> Heard {
        let (wake, sender) = (self.wake.clone(), self.sender.clone());
        Box::new(move |text| hear(&wake, &sender, text))
    }
}

/// Takes a hint: wakes whoever waits for what it names.
fn hear(wake: &Wake, me: &str, text: &str) {
    let (sender, changed) = payload::decode(text);
    if sender == Some(me) {
        return;
    }
    telemetry::hint_received();
    match changed {
        Changed::Keys(keys) => keys.iter().for_each(|key| wake.raise(key)),
        Changed::Everything => wake.look_soon(),
    }
}

impl Carrier {
    async fn send(&self, text: &str) -> Result<(), String> {
        match self {
            Carrier::Postgres(store) => store.notify(text).await.map_err(|error| error.to_string()),
            #[cfg(feature = "nats")]
            Carrier::Nats(nats) => nats.send(text).await,
        }
    }

    async fn listen(&self, heard: Heard) -> Result<Listening, String> {
        match self {
            Carrier::Postgres(store) => {
                let listening = store.listen(heard).await.map_err(|error| error.to_string())?;
                Ok(Listening::Postgres(listening))
            }
            #[cfg(feature = "nats")]
            Carrier::Nats(nats) => nats.listen(heard).await.map(Listening::Nats),
        }
    }
}

impl Listening {
    /// Ends when nothing is heard any more.
    async fn ended(&self) {
        match self {
            Listening::Postgres(listening) => listening.ended().await,
            #[cfg(feature = "nats")]
            Listening::Nats(listening) => listening.ended().await,
        }
    }

    /// Whether something can still be heard.
    async fn check(&self) -> Result<(), String> {
        match self {
            Listening::Postgres(listening) => listening.check().await,
            #[cfg(feature = "nats")]
            Listening::Nats(listening) => listening.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::{super::tests::inbox, *};
    use crate::wake::Key;

    fn hint(sender: &str, name: &str) -> String {
        payload::encode(sender, &Changed::Keys([Key::Inbox(inbox(name))].into()))
    }

    #[test]
    fn a_hint_wakes_who_waits_for_its_keys_and_nobody_else() {
        let wake = Wake::default();
        wake.outbox.open();
        let (a, b) = (wake.watch_inbox(inbox("a")), wake.watch_inbox(inbox("b")));
        hear(&wake, "me", &hint("other", "a"));
        assert!(a.changed().now_or_never().is_some());
        assert!(b.changed().now_or_never().is_none());
        assert!(wake.look.notified().now_or_never().is_none());
        assert!(wake.outbox.take().now_or_never().is_none(), "a hint is not sent on");
    }

    #[test]
    fn a_replica_ignores_its_own_hints() {
        let wake = Wake::default();
        let a = wake.watch_inbox(inbox("a"));
        hear(&wake, "me", &hint("me", "a"));
        hear(&wake, "me", &payload::encode("me", &Changed::Everything));
        assert!(a.changed().now_or_never().is_none());
        assert!(wake.look.notified().now_or_never().is_none());
    }

    #[test]
    fn a_hint_without_names_asks_for_a_look() {
        for text in [payload::encode("other", &Changed::Everything), "of another release".into()] {
            let wake = Wake::default();
            let a = wake.watch_inbox(inbox("a"));
            hear(&wake, "me", &text);
            assert!(a.changed().now_or_never().is_none(), "only a look tells who is concerned");
            assert!(wake.look.notified().now_or_never().is_some());
        }
    }

    #[test]
    fn a_commit_wakes_here_and_leaves_word_for_others() {
        let wake = Wake::default();
        wake.outbox.open();
        let a = wake.watch_inbox(inbox("a"));
        wake.inbox_changed(&inbox("a"));
        assert!(a.changed().now_or_never().is_some());
        let changed = Changed::Keys([Key::Inbox(inbox("a"))].into());
        assert_eq!(wake.outbox.take().now_or_never(), Some(changed));
    }
}
