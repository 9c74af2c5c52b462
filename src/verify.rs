//! The check of a store: page by page through all rows of an account, each compared with those that
//! speak of it.
//!
//! What must stay true: each page is one moment of the store, so that a server may go on beside the
//! check; what it remembers from page to page is bounded, and can be put into a token. The rules are
//! in [`crate::domain::verify`]. Deliberately not here: what is done about a contradiction.

mod place;

use std::ops::AddAssign;

use self::place::Count;
pub use self::place::{Phase, Place};
use crate::{
    domain::{
        audit::{AuditChain, AuditHead, AuditKind},
        ids::{Account, Timestamp},
        operation::Retained,
        record::unpack_events,
        verify::{
            Contradiction, ContradictionKind,
            chain::{self, Followed},
            effects::{Effects, Owned},
            rows::OperationFacts,
            story::Story,
        },
    },
    store::{ReadError, Store, query::OperationPosition},
};

/// How much one step may read and remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one page.
    pub rows: i64,
    /// Documents whose effects are counted in one walk over the account's operations.
    pub documents: i64,
    /// What may be remembered of them; see [`Effects::size`]. Beyond, half of them wait for the
    /// next walk.
    pub remembered: usize,
}

impl Limits {
    /// For a command of its own: some tens of megabytes, and few walks.
    pub const ALONE: Limits = Limits { rows: 200, documents: 50_000, remembered: 500_000 };
    /// Beside callers: pages of some milliseconds, and a token of some tens of kilobytes.
    pub const ONLINE: Limits = Limits { rows: 100, documents: 100, remembered: 1_000 };
}

/// Rows of one page of a chain that is longer than what comes with its operation, and of receipts,
/// of which little is looked at.
const LIST_PAGE: i64 = 1_000;

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accounts.
    pub accounts: u64,
    /// Operations.
    pub operations: u64,
    /// Audit rows.
    pub audit_rows: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Inboxes.
    pub inboxes: u64,
    /// Locks.
    pub locks: u64,
    /// Documents.
    pub documents: u64,
    /// Payloads.
    pub payloads: u64,
    /// Receipts that were counted against revisions; each once for each walk.
    pub receipts: u64,
}

impl Counts {
    /// Everything that was read, as a measure of work.
    pub fn rows(&self) -> u64 {
        self.accounts
            + self.operations
            + self.audit_rows
            + self.deliveries
            + self.inboxes
            + self.locks
            + self.documents
            + self.payloads
            + self.receipts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.accounts += other.accounts;
        self.operations += other.operations;
        self.audit_rows += other.audit_rows;
        self.deliveries += other.deliveries;
        self.inboxes += other.inboxes;
        self.locks += other.locks;
        self.documents += other.documents;
        self.payloads += other.payloads;
        self.receipts += other.receipts;
    }
}

/// What one step found.
#[derive(Debug, Default)]
pub struct Step {
    /// What cannot be; at most a few for each row of a page.
    pub contradictions: Vec<Contradiction>,
    /// How much was looked at.
    pub counts: Counts,
    /// Where to go on; absent at the end of the account.
    pub next: Option<Place>,
}

/// Checks one page of an account, from [`Place::start`] on.
///
/// # Errors
/// [`ReadError`]: the store is away, or a row can not be read by this release.
pub async fn step(
    store: &Store,
    account: &Account,
    place: Place,
    limits: &Limits,
) -> Result<Step, ReadError> {
    let mut step = Step::default();
    let next = match place.phase {
        Phase::Account => {
            check_account(store, account, &mut step).await?;
            None
        }
        Phase::Chains => check_chains(store, account, &place, &mut step).await?,
        Phase::Operations => check_operations(store, account, &place, limits, &mut step).await?,
        Phase::Deliveries => check_deliveries(store, account, &place, limits, &mut step).await?,
        Phase::Inboxes => check_inboxes(store, account, &place, limits, &mut step).await?,
        Phase::Locks => check_locks(store, account, &place, limits, &mut step).await?,
        Phase::Documents => check_documents(store, account, &place, limits, &mut step).await?,
        Phase::Payloads => check_payloads(store, account, &place, limits, &mut step).await?,
        Phase::Effects => count_effects(store, account, place.clone(), limits, &mut step).await?,
    };
    step.next = next.or_else(|| place.phase.next().map(Place::at));
    Ok(step)
}

async fn check_account(store: &Store, account: &Account, step: &mut Step) -> Result<(), ReadError> {
    let facts = store.account_facts(account).await?;
    step.counts.accounts += 1;
    step.contradictions.extend(facts.check());
    let chain = AuditChain::Account(account.clone());
    let head = facts.row.map_or(AuditHead::default(), |row| row.audit);
    let mut followed = Followed::default();
    let broken = follow(store, &chain, head, &mut followed, None, step).await?;
    if broken.is_some() {
        step.contradictions.extend(broken);
        return Ok(());
    }
    // A row behind the head was written meanwhile, and then has a head by now; or it has none.
    let later = store.list_audit(&chain, head.length, 1).await?;
    let head_now = store.account(account).await?.map_or(0, |row| row.audit.length);
    if let Some(row) = later.first().filter(|row| row.number > head_now) {
        followed = Followed(AuditHead { length: row.number, hash: row.hash });
    }
    step.contradictions.extend(followed.end(&chain, head));
    Ok(())
}

/// Follows a chain from where it was followed to, up to its head; what was written behind it
/// meanwhile is left alone. Returns what breaks it.
async fn follow(
    store: &Store,
    chain: &AuditChain,
    head: AuditHead,
    followed: &mut Followed,
    mut story: Option<&mut Story>,
    step: &mut Step,
) -> Result<Option<Contradiction>, ReadError> {
    while followed.0.length < head.length {
        let rows = store.list_audit(chain, followed.0.length, LIST_PAGE).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows.iter().take_while(|row| row.number <= head.length) {
            step.counts.audit_rows += 1;
            if let Err(broken) = followed.take(row) {
                return Ok(Some(*broken));
            }
            let possible = match &mut story {
                Some(story) => story.take(row),
                None => of_account(&row.events),
            };
            if let Err((expected, found)) = possible {
                let kind = ContradictionKind::ImpossibleHistory;
                return Ok(Some(chain::about(kind, chain, expected, found)));
            }
        }
    }
    Ok(None)
}

/// An account's own chain tells of its policy and its floor.
fn of_account(events: &[u8]) -> Result<(), (String, String)> {
    let own = |kind| {
        use AuditKind::{EvidenceFloorRaised, PolicyChanged, StoreMarked};
        matches!(kind, PolicyChanged | EvidenceFloorRaised | StoreMarked)
    };
    let other = match unpack_events(events) {
        Ok(events) => events.into_iter().find(|event| !own(event.kind)),
        Err(unreadable) => return Err(("events of an account".to_owned(), unreadable.to_string())),
    };
    other.map_or(Ok(()), |other| {
        Err(("events of an account".to_owned(), format!("{:?}", other.kind)))
    })
}

async fn check_chains(
    store: &Store,
    account: &Account,
    place: &Place,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let page = store.orphaned_chains(account, &place.id).await?;
    for chain in &page.orphans {
        let kind = ContradictionKind::ChainWithoutOperation;
        step.contradictions.push(chain::about(kind, chain, "an operation of this chain", "none"));
    }
    Ok(page.next.map(|id| Place { id, ..Place::at(Phase::Chains) }))
}

async fn check_operations(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let page = store.operation_facts(account, &place.id, limits.rows).await?;
    for facts in &page {
        step.counts.operations += 1;
        check_trail(store, facts, step).await?;
        step.contradictions.extend(facts.check());
    }
    let last = page.last().filter(|_| is_full(&page, limits.rows));
    Ok(last.map(|facts| {
        let id = facts.operation.key.id.to_stored();
        Place { id, ..Place::at(Phase::Operations) }
    }))
}

/// Follows the chain, replays it, and compares. What does not follow is told, and nothing else of
/// the trail.
async fn check_trail(
    store: &Store,
    facts: &OperationFacts,
    step: &mut Step,
) -> Result<(), ReadError> {
    let operation = &facts.operation;
    let chain = AuditChain::Operation(operation.key.clone());
    if operation.retained == Retained::WithoutTrail {
        return check_rest(store, facts, &chain, step).await;
    }
    let (mut followed, mut story) = (Followed::default(), Story::default());
    let mut broken = None;
    for row in &facts.audit {
        step.counts.audit_rows += 1;
        broken = followed.take(row).err().map(|told| *told).or_else(|| {
            let impossible = story.take(row).err();
            let kind = ContradictionKind::ImpossibleHistory;
            impossible.map(|(expected, found)| chain::about(kind, &chain, expected, found))
        });
        if broken.is_some() {
            break;
        }
    }
    if broken.is_none() {
        let head = operation.audit;
        broken = follow(store, &chain, head, &mut followed, Some(&mut story), step).await?;
    }
    let broken = broken.or_else(|| followed.end(&chain, operation.audit));
    if broken.is_some() {
        step.contradictions.extend(broken);
        return Ok(());
    }
    step.contradictions.extend(story.operation(operation));
    let delivery = facts.delivery.as_ref();
    let delivery = delivery.filter(|delivery| delivery.operation_id == operation.key.id);
    step.contradictions.extend(delivery.and_then(|row| story.delivery(operation, row)));
    Ok(())
}

/// What was written after the trail had gone follows from one row to the next, up to the head.
async fn check_rest(
    store: &Store,
    facts: &OperationFacts,
    chain: &AuditChain,
    step: &mut Step,
) -> Result<(), ReadError> {
    let Some((first, rest)) = facts.audit.split_first() else { return Ok(()) };
    let head = facts.operation.audit;
    let mut followed = Followed::from(first);
    step.counts.audit_rows += u64::try_from(facts.audit.len()).unwrap_or(0);
    let mut broken = rest.iter().find_map(|row| followed.take(row).err()).map(|told| *told);
    while broken.is_none() && followed.0.length < head.length {
        let rows = store.list_audit(chain, followed.0.length, LIST_PAGE).await?;
        if rows.is_empty() {
            break;
        }
        step.counts.audit_rows += u64::try_from(rows.len()).unwrap_or(0);
        broken = rows.iter().find_map(|row| followed.take(row).err()).map(|told| *told);
    }
    step.contradictions.extend(broken.or_else(|| followed.end(chain, head)));
    Ok(())
}

async fn check_deliveries(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let after = (place.name.as_str(), place.number);
    let page = store.delivery_facts(account, after, limits.rows).await?;
    // Read after the page: it only rises, and what went before the page was read is below it.
    let row = store.account(account).await?;
    let floor = row.map_or(Timestamp::BEGINNING, |row| row.evidence_floor);
    for facts in &page {
        step.counts.deliveries += 1;
        step.contradictions.extend(facts.check(floor));
    }
    let last = page.last().filter(|_| is_full(&page, limits.rows));
    Ok(last.map(|facts| {
        let key = &facts.delivery.key;
        let name = key.inbox.inbox.as_str().to_owned();
        Place { name, number: key.sequence, ..Place::at(Phase::Deliveries) }
    }))
}

async fn check_inboxes(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let page = store.inbox_facts(account, &place.name, limits.rows).await?;
    for facts in &page {
        step.counts.inboxes += 1;
        step.contradictions.extend(facts.check());
    }
    let last = page.last().filter(|_| is_full(&page, limits.rows));
    Ok(last.map(|facts| Place::after(Phase::Inboxes, facts.inbox.key.inbox.as_str())))
}

async fn check_locks(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let page = store.lock_facts(account, &place.name, limits.rows).await?;
    for facts in &page {
        step.counts.locks += 1;
        step.contradictions.extend(facts.check());
    }
    let last = page.last().filter(|_| is_full(&page, limits.rows));
    Ok(last.map(|facts| Place::after(Phase::Locks, facts.lock.key.target.as_str())))
}

async fn check_documents(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let page = store.document_facts_of(account, &place.name, limits.rows).await?;
    for facts in &page {
        step.counts.documents += 1;
        step.contradictions.extend(facts.check());
    }
    // A page may end early for the bytes on it; only an empty one is the last.
    Ok(page.last().map(|facts| Place::after(Phase::Documents, facts.document.key.target.as_str())))
}

async fn check_payloads(
    store: &Store,
    account: &Account,
    place: &Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let kind = i16::try_from(place.number).unwrap_or(0);
    let page = store.payload_facts(account, (&place.id, kind), limits.rows).await?;
    for facts in &page {
        step.counts.payloads += 1;
        step.contradictions.extend(facts.check());
    }
    Ok(page.last().map(|facts| Place {
        id: facts.key.id.to_stored(),
        number: i64::from(facts.kind as i16),
        ..Place::at(Phase::Payloads)
    }))
}

/// Takes the next documents, or walks on over the receipts of those that are being counted.
async fn count_effects(
    store: &Store,
    account: &Account,
    place: Place,
    limits: &Limits,
    step: &mut Step,
) -> Result<Option<Place>, ReadError> {
    let Some(mut count) = place.count else {
        let page = store.revisions(account, &place.name, limits.documents).await?;
        let Some((last, _)) = page.last().cloned() else { return Ok(None) };
        let mut effects = Effects::default();
        for (target, revision) in page {
            effects.expect(target, Owned { revision, spans: Vec::new() });
        }
        let next = Place::after(Phase::Effects, last.as_str());
        return Ok(Some(Place { count: Some(Count { effects, after: None }), ..next }));
    };
    let after = count.after.as_ref();
    let page = store.list_operations(account, after, LIST_PAGE).await?;
    for operation in &page {
        step.counts.receipts += 1;
        step.contradictions.extend(count.effects.receipt(operation));
    }
    let mut next = Place::after(Phase::Effects, &place.name);
    while count.effects.size() > limits.remembered
        && count.effects.documents().nth(1).is_some()
        && let Some(last) = count.effects.halve()
    {
        next = Place::after(Phase::Effects, last.as_str());
    }
    let last = page.last().filter(|_| is_full(&page, LIST_PAGE));
    match last {
        Some(last) => {
            let (accept_time, id) = (last.accept_time, last.key.id.clone());
            count.after = Some(OperationPosition { accept_time, id });
            next.count = Some(count);
        }
        None => {
            let row = store.account(account).await?;
            let floor = row.map_or(Timestamp::BEGINNING, |row| row.evidence_floor);
            step.contradictions.extend(count.effects.missing(account, floor));
        }
    }
    Ok(Some(next))
}

/// Whether a page may be followed by another.
fn is_full<T>(page: &[T], limit: i64) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found >= limit)
}
