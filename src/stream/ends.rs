//! Why a stream is over, and giving back what it holds.
//!
//! What must stay true: a store that is out of reach is no end. What can't be given back is swept
//! when the consumer's lease ends.

use std::time::Duration;

use crate::{
    domain::{command::Command, delivery::InboxKey, inbox::Consumer, refusal::Refusal},
    engine::Engine,
};

/// Tries to give back what an ended stream holds; the lease does it otherwise.
const CLOSE_TRIES: u32 = 3;
/// The pause before a further try; grows with each.
const CLOSE_PAUSE: Duration = Duration::from_millis(400);

/// Why a stream ended.
#[derive(Debug)]
pub(super) enum End {
    /// The receiver was dropped.
    Gone,
    /// The server is shutting down.
    Shutdown,
    /// It reached its maximum age.
    Aged,
    /// Its lease ended, and whether it could be opened again is not known.
    Lapsed,
    /// A frame waited too long.
    Stalled,
    /// The rules say so.
    Refused(Box<Refusal>),
}

impl End {
    /// The word in metrics.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            End::Gone => "GONE",
            End::Shutdown => "SHUTDOWN",
            End::Aged => "AGED",
            End::Lapsed => "LAPSED",
            End::Stalled => "STALLED",
            End::Refused(refusal) => refusal.reason(),
        }
    }
}

/// Why a step failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The stream is over.
    End(End),
    /// The store is out of reach for now.
    Retry(Box<Refusal>),
}

impl From<End> for Fault {
    fn from(end: End) -> Self {
        Fault::End(end)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::StoreUnavailable { .. }
            | Refusal::CommitUnknown
            | Refusal::NoAnswerYet { .. }
            | Refusal::RateLimited { .. }
            | Refusal::IdentityHeld { .. } => Fault::Retry(Box::new(refusal)),
            Refusal::Draining { .. } => Fault::End(End::Shutdown),
            Refusal::Invalid(_)
            | Refusal::UnknownAction { .. }
            | Refusal::PayloadTooLarge { .. }
            | Refusal::IntentMismatch { .. }
            | Refusal::ClockSkew { .. }
            | Refusal::AdmissionClosed { .. }
            | Refusal::EvidenceExpired { .. }
            | Refusal::InboxFull { .. }
            | Refusal::InboxNotEmpty { .. }
            | Refusal::AccountQuota { .. }
            | Refusal::TargetLocked { .. }
            | Refusal::NoSuchOperation { .. }
            | Refusal::ResultNotKept { .. }
            | Refusal::ResultNotReady { .. }
            | Refusal::PolicyContradiction { .. }
            | Refusal::NoSuchInbox
            | Refusal::NoSuchDocument
            | Refusal::NoSuchLock
            | Refusal::StreamSuperseded
            | Refusal::SlowConsumer
            | Refusal::StreamAged { .. }
            | Refusal::ResumeTokenInvalid(_)
            | Refusal::InboxRecreated
            | Refusal::StoreEpochChanged
            | Refusal::Internal
            | Refusal::CredentialsMissing
            | Refusal::CredentialsInvalid
            | Refusal::NotBegun { .. }
            | Refusal::PermissionMissing { .. } => Fault::End(End::Refused(Box::new(refusal))),
        }
    }
}

/// Gives back what the stream holds. The engine follows up by itself where that is more than one
/// command may return.
pub(super) async fn close(engine: &Engine, inbox: &InboxKey, consumer: &Consumer, end: &End) {
    engine.detach(inbox, &consumer.id, consumer.epoch);
    if let End::Refused(refusal) = end
        && **refusal == Refusal::StreamSuperseded
    {
        // The newer stream took everything over.
        return;
    }
    for failures in 1..=CLOSE_TRIES {
        let command = Command::Close {
            inbox: inbox.clone(),
            consumer: consumer.id.clone(),
            epoch: consumer.epoch,
        };
        match engine.run(command).await.map_err(Fault::from) {
            // Done, or nothing of this stream is left, or the server takes no more commands.
            Ok(_) | Err(Fault::End(_)) => return,
            Err(Fault::Retry(_)) => tokio::time::sleep(CLOSE_PAUSE * failures).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Span;

    #[test]
    fn only_what_passes_is_retried() {
        let retry = Span::seconds(1);
        let passing = [Refusal::StoreUnavailable { retry }, Refusal::CommitUnknown];
        for refusal in passing {
            assert!(matches!(Fault::from(refusal), Fault::Retry(_)));
        }
        let ends = [Refusal::StreamSuperseded, Refusal::NoSuchInbox, Refusal::Internal];
        for refusal in ends {
            assert!(matches!(Fault::from(refusal), Fault::End(End::Refused(_))));
        }
        let draining = Fault::from(Refusal::Draining { retry });
        assert!(matches!(draining, Fault::End(End::Shutdown)));
    }
}
