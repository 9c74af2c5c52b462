//! Rows that speak of one another, as of one moment, and whether they agree.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{Contradiction, ContradictionKind, Differences, chain::shown};
use crate::domain::{
    audit::AuditRow,
    delivery::Delivery,
    document::Document,
    ids::{Account, ConsumerId, Timestamp},
    inbox::{AccountRow, Inbox},
    intent::{self, Intent, IntentPart, LockMode},
    lock::Lock,
    operation::{Arguments, Operation, OperationKey, Outcome, PayloadKind, Retained},
};

/// An operation, and what speaks of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationFacts {
    /// Its row.
    pub operation: Operation,
    /// The first rows of its chain, in order; the rest is read apart, since it does not change.
    pub audit: Vec<AuditRow>,
    /// Its delivery.
    pub delivery: Option<Delivery>,
    /// From which number on its inbox keeps rows; absent: there is no such inbox.
    pub kept_from: Option<i64>,
    /// Its target's document, without content.
    pub document: Option<Document>,
    /// Its target's lock.
    pub lock: Option<Lock>,
    /// The payloads that are kept under its key.
    pub payloads: Vec<PayloadKind>,
}

impl OperationFacts {
    /// Everything about it but its trail.
    pub fn check(&self) -> Vec<Contradiction> {
        let told = [self.intent(), self.delivery(), self.effect(), self.lock()];
        told.into_iter().flatten().chain(self.payloads()).collect()
    }

    fn told(
        &self,
        kind: ContradictionKind,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Contradiction {
        let key = &self.operation.key;
        Contradiction::of(kind, &key.account, expected, found).operation(key)
    }

    /// Inline arguments; those that are kept apart are compared where they are read. A tombstone has
    /// none, and no labels.
    fn intent(&self) -> Option<Contradiction> {
        let operation = &self.operation;
        match &operation.arguments {
            Arguments::Inline(bytes) if operation.retained == Retained::Whole => {
                intent_differs(operation, bytes.clone())
            }
            Arguments::Inline(bytes) if bytes.is_empty() && operation.labels.is_empty() => None,
            Arguments::Apart if operation.retained == Retained::Whole => None,
            Arguments::Inline(_) | Arguments::Apart => {
                let (expected, found) = ("no arguments and labels of a tombstone", "some");
                Some(self.told(ContradictionKind::IntentDiffers, expected, found))
            }
        }
    }

    /// A delivery whose row was purged is told by its inbox, which keeps none below a number.
    fn delivery(&self) -> Option<Contradiction> {
        let key = self.operation.delivery_key()?;
        let purged = self.kept_from.is_some_and(|kept| key.sequence < kept);
        if self.delivery.is_some() || purged {
            return None;
        }
        let missing = ContradictionKind::DeliveryMissing;
        Some(self.told(missing, "the delivery of its outcome", "none").delivery(&key))
    }

    /// The document has reached the receipt's revision; if it is still there, it is as the receipt
    /// says.
    fn effect(&self) -> Option<Contradiction> {
        let Some(Outcome::Applied(change)) = &self.operation.outcome else { return None };
        let reached = self.document.as_ref().map_or(0, |document| document.revision);
        let target = self.operation.target_key();
        if reached < change.result_revision {
            let expected = format!("revision {} or later", change.result_revision);
            let found = format!("revision {reached}");
            let kind = ContradictionKind::ReceiptWithoutEffect;
            return Some(self.told(kind, expected, found).target(&target));
        }
        let document = self.document.as_ref()?;
        if reached > change.result_revision {
            return None;
        }
        let mut differences = Differences::default();
        let exists = !change.hash_after.is_empty();
        differences.compare("exists", exists, document.exists);
        differences.compare("generation", change.generation, document.generation);
        differences.compare("size", change.size_after, document.size);
        if exists && document.exists {
            let found = shown(&document.content_hash);
            differences.compare("hash", shown(&change.hash_after), found);
        }
        let kind = ContradictionKind::DocumentDiffers;
        let told = differences.told(kind, &self.operation.key.account)?;
        Some(told.operation(&self.operation.key).target(&target))
    }

    /// Whoever waits does so for a lock, and a delivery that holds one is in its row.
    fn lock(&self) -> Option<Contradiction> {
        let target = self.operation.target_key();
        let kind = ContradictionKind::LockDiffers;
        if self.operation.wait_ticket.is_some() && self.lock.is_none() {
            let told = self.told(kind, "a lock of the target that it waits for", "none");
            return Some(told.target(&target));
        }
        let holds = self.delivery.as_ref().is_some_and(|delivery| delivery.lock_target.is_some());
        let holder = self.lock.as_ref().and_then(|lock| lock.holder.as_ref());
        let held = holder.is_some_and(|holder| holder.operation_id == self.operation.key.id);
        if holds && !held {
            let told = self.told(kind, "a lock held by this operation", "none, or another's");
            return Some(told.target(&target));
        }
        None
    }

    /// What is kept apart is there. What nobody has is found where payloads are read.
    fn payloads(&self) -> Vec<Contradiction> {
        let wanted = [PayloadKind::Arguments, PayloadKind::Result].into_iter();
        let missing = wanted.filter(|kind| has_payload(&self.operation, *kind));
        let missing = missing.filter(|kind| !self.payloads.contains(kind));
        let kind = ContradictionKind::PayloadMissing;
        missing.map(|what| self.told(kind, format!("{} bytes", name(what)), "none")).collect()
    }
}

/// Whether an operation has bytes of this kind apart from its row. A tombstone has none.
fn has_payload(operation: &Operation, kind: PayloadKind) -> bool {
    operation.retained == Retained::Whole
        && match kind {
            PayloadKind::Arguments => operation.arguments == Arguments::Apart,
            PayloadKind::Result => operation.result.as_ref().is_some_and(|result| result.kept),
        }
}

fn name(kind: PayloadKind) -> &'static str {
    match kind {
        PayloadKind::Arguments => "argument",
        PayloadKind::Result => "result",
    }
}

/// Whether the intent has another digest than its record says. A version of the digest that is not
/// known is left alone.
fn intent_differs(operation: &Operation, arguments: Bytes) -> Option<Contradiction> {
    if operation.is_sealed() || operation.digest.version != intent::DIGEST_VERSION {
        return None;
    }
    let intent = Intent {
        action: operation.action.clone(),
        target: operation.target.clone(),
        expected_revision: operation.expected_revision,
        content_type: operation.content_type.clone(),
        arguments,
        lock_mode: operation.lock_mode,
    };
    let differs = match intent::digest(&intent) {
        Ok((digest, _)) if digest.whole == operation.digest.whole => return None,
        Ok((digest, _)) => digest.differs(&operation.digest),
        Err(_) => vec![IntentPart::Arguments],
    };
    let apart = operation.arguments == Arguments::Apart;
    let kind = match differs.as_slice() {
        [IntentPart::Arguments] if apart => ContradictionKind::PayloadDiffers,
        _ => ContradictionKind::IntentDiffers,
    };
    let expected = format!("an intent with digest {}", shown(&operation.digest.whole));
    let parts = differs.iter().map(|part| part.word()).collect::<Vec<_>>().join(", ");
    let found = match parts.is_empty() {
        true => "another one".to_owned(),
        false => format!("another one in {parts}"),
    };
    let told = Contradiction::of(kind, &operation.key.account, expected, found);
    Some(told.operation(&operation.key))
}

/// Bytes that are kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFacts {
    /// Whose.
    pub key: OperationKey,
    /// Which.
    pub kind: PayloadKind,
    /// The bytes.
    pub body: Bytes,
    /// The operation.
    pub operation: Option<Operation>,
}

impl PayloadFacts {
    /// Whether an operation has these bytes, and says them.
    pub fn check(&self) -> Option<Contradiction> {
        let has = |row: &&Operation| has_payload(row, self.kind);
        let Some(operation) = self.operation.as_ref().filter(has) else {
            let (expected, found) = ("an operation that has them", name(self.kind));
            let kind = ContradictionKind::PayloadWithoutOperation;
            let found = format!("{found} bytes of none");
            let told = Contradiction::of(kind, &self.key.account, expected, found);
            return Some(told.operation(&self.key));
        };
        match self.kind {
            PayloadKind::Arguments => intent_differs(operation, self.body.clone()),
            PayloadKind::Result => {
                let result = operation.result.as_ref()?;
                let mut differences = Differences::default();
                let digest = Sha256::digest(&self.body);
                let size = i64::try_from(self.body.len()).unwrap_or(i64::MAX);
                differences.compare("size of the result", result.size, size);
                differences.compare("its digest", shown(&result.sha256), shown(&digest));
                let told = differences.told(ContradictionKind::PayloadDiffers, &self.key.account);
                told.map(|told| told.operation(&self.key))
            }
        }
    }
}

/// A delivery, and the operation that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFacts {
    /// Its row.
    pub delivery: Delivery,
    /// The operation.
    pub operation: Option<Operation>,
}

impl DeliveryFacts {
    /// Whether there is an operation that has this delivery. What the row says is compared with the
    /// operation's trail, where that is read. Once records of the account were deleted, `floor` has
    /// risen, and what has ended may have lost its operation with them.
    pub fn check(&self, floor: Timestamp) -> Option<Contradiction> {
        let key = &self.delivery.key;
        let ended = !self.delivery.state.is_open();
        if ended && self.operation.is_none() && floor > Timestamp::BEGINNING {
            return None;
        }
        let found = match self.operation.as_ref().map(Operation::delivery_key) {
            Some(Some(found)) if found == *key => return None,
            Some(Some(other)) => {
                format!("one with delivery {} of {}", other.sequence, other.inbox.inbox.as_str())
            }
            Some(None) => "one without a delivery".to_owned(),
            None => "none".to_owned(),
        };
        let kind = ContradictionKind::DeliveryWithoutOperation;
        let expected = "an operation with this delivery";
        let told = Contradiction::of(kind, &key.inbox.account, expected, found);
        Some(told.operation(&self.delivery.operation_key()).delivery(key))
    }
}

/// An inbox, and what a recount of its rows gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxFacts {
    /// Its row.
    pub inbox: Inbox,
    /// PENDING deliveries of this generation.
    pub pending: i64,
    /// How many of them came back.
    pub returned: i64,
    /// IN_FLIGHT deliveries of this generation.
    pub in_flight: i64,
    /// Open deliveries of deleted generations.
    pub closing: i64,
    /// Operations that have not ended and will queue their news here.
    pub reserved: i64,
    /// Deliveries in flight by consumer and stream.
    pub held: Vec<(ConsumerId, i64, i64)>,
    /// The highest number of a row; 0 if there is none.
    pub last: i64,
}

impl InboxFacts {
    /// Whether the counters are what was counted (I13).
    pub fn check(&self) -> Option<Contradiction> {
        let inbox = &self.inbox;
        let mut differences = Differences::default();
        differences.compare("pending", self.pending, inbox.pending);
        differences.compare("returned", self.returned, inbox.returned);
        differences.compare("in flight", self.in_flight, inbox.in_flight);
        differences.compare("closing", self.closing, inbox.closing);
        differences.compare("reserved", self.reserved, inbox.reserved);
        for consumer in &inbox.consumers {
            let held =
                |held: &&(ConsumerId, i64, i64)| held.0 == consumer.id && held.1 == consumer.epoch;
            let held = self.held.iter().find(held).map_or(0, |held| held.2);
            differences.compare("in flight to a consumer", held, consumer.in_flight);
        }
        let last = self.last.max(inbox.last_sequence());
        differences.compare("highest number", last, inbox.last_sequence());
        let told = differences.told(ContradictionKind::InboxCounter, &inbox.key.account);
        told.map(|told| told.inbox(&inbox.key))
    }
}

/// A lock, and those it speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFacts {
    /// Its row.
    pub lock: Lock,
    /// The operation that holds it.
    pub holder: Option<Operation>,
    /// That operation's delivery.
    pub delivery: Option<Delivery>,
    /// How many operations wait for the target.
    pub waiting: i64,
    /// Whether there is a row of the document.
    pub document: bool,
}

impl LockFacts {
    /// Whether its holder holds it, and its waiters wait.
    pub fn check(&self) -> Option<Contradiction> {
        self.without_holder().or_else(|| {
            let mut differences = Differences::default();
            differences.compare("waiting", self.waiting, self.lock.waiting);
            differences.compare("of a document", true, self.document);
            let kind = ContradictionKind::LockDiffers;
            let told = differences.told(kind, &self.lock.key.account);
            told.map(|told| told.target(&self.lock.key))
        })
    }

    fn without_holder(&self) -> Option<Contradiction> {
        let holder = self.lock.holder.as_ref()?;
        let holds = self.holder.as_ref().is_some_and(|row| {
            row.lock_mode == LockMode::UntilAcked && row.target == self.lock.key.target
        });
        let open = self.delivery.as_ref().is_some_and(|delivery| {
            delivery.state.is_open() && delivery.lock_target.as_ref() == Some(&self.lock.key.target)
        });
        if holds && open {
            return None;
        }
        let account = &self.lock.key.account;
        let expected = "a holder whose delivery is open and holds it";
        let found = match (&self.holder, &self.delivery) {
            (None, _) => "no such operation",
            (Some(_), None) => "an operation without a delivery",
            (Some(_), Some(_)) => "one that holds no lock of this target",
        };
        let kind = ContradictionKind::LockWithoutHolder;
        let told = Contradiction::of(kind, account, expected, found).target(&self.lock.key);
        Some(
            told.operation(&OperationKey {
                account: account.clone(),
                id: holder.operation_id.clone(),
            }),
        )
    }
}

/// A document with its content, and whether there is a lock of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentFacts {
    /// Its row.
    pub document: Document,
    /// Whether the table of locks has a row of it.
    pub has_lock: bool,
}

impl DocumentFacts {
    /// Whether the content is what the row says of it.
    pub fn check(&self) -> Vec<Contradiction> {
        let document = &self.document;
        let content = document.content.clone().unwrap_or_default();
        let hash: [u8; 32] = match document.exists {
            true => Sha256::digest(&content).into(),
            false => [0; 32],
        };
        let size = i64::try_from(content.len()).unwrap_or(i64::MAX);
        let mut content = Differences::default();
        content.compare("size", size, document.size);
        content.compare("hash", shown(&hash), shown(&document.content_hash));
        let mut lock = Differences::default();
        lock.compare("locked", self.has_lock, document.locked);
        let account = &document.key.account;
        let told = [
            content.told(ContradictionKind::DocumentDiffers, account),
            lock.told(ContradictionKind::LockDiffers, account),
        ];
        told.into_iter().flatten().map(|told| told.target(&document.key)).collect()
    }
}

/// An account, and what a recount of its rows gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountFacts {
    /// Whose.
    pub account: Account,
    /// Its row.
    pub row: Option<AccountRow>,
    /// How many inboxes it has that are not deleted.
    pub inboxes: i64,
    /// Whether rows of other tables are this account's: then there is a row of its own.
    pub used: bool,
}

impl AccountFacts {
    /// Whether there is a row, with the right count.
    pub fn check(&self) -> Option<Contradiction> {
        let mut differences = Differences::default();
        differences.compare("row", self.used || self.row.is_some(), self.row.is_some());
        let inboxes = self.row.as_ref().map_or(self.inboxes, |row| row.inboxes);
        differences.compare("inboxes", self.inboxes, inboxes);
        differences.told(ContradictionKind::AccountDiffers, &self.account)
    }
}
