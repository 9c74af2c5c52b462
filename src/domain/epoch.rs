//! The life of a store: its epoch, what it may have lost, and how a mark begins the next one.
//!
//! What must stay true: a mark is written before its first page, and until its last page nobody is
//! served, so that a store is never half of one life and half of another; each page and how far
//! the mark has come are one transaction, so that a mark which is cut goes on where it was and no
//! row is marked twice. No floor falls, and no number that the lost store can have given out is
//! given out again.
//!
//! Deliberately not here: who is asked whether something was lost (see [`super::failover`]).

use super::{
    audit::{AuditChain, AuditEvent, AuditKind, append},
    delivery::InboxKey,
    ids::{Account, Timestamp},
    inbox::{AccountRow, Inbox},
    policy::Policy,
    record,
    world::{
        World,
        needs::{Access, Need, Unloaded},
    },
};

/// By how much a mark raises the numbers of every inbox (contract section 7): an inbox that is
/// given ten thousand results a second for five days stays below it.
pub const SEQUENCE_JUMP: i64 = 1 << 32;
/// How many jumps one mark may make at most: more marks than any backup can miss, and few enough
/// that numbers stay far below 2^53, which a caller whose numbers are doubles can still read.
pub const JUMPS_MAX: i64 = 512;
/// Skipped ranges that an inbox remembers: a mark is rare, and the row is read with every batch.
/// Ranges without a number between them are one. What is older than the last sixteen is not told.
pub const SKIPPED_MAX: usize = 16;
/// Rows in one page of a mark: a few batches of the engine, so that a page is short.
pub const MARK_PAGE: i64 = 500;

/// What a store may have lost: what its rows can't tell of accounts and inboxes that it does not
/// know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The evidence floor of every account without a row.
    pub evidence_floor: Timestamp,
    /// Up to here the numbers of an inbox without a row may have been given out.
    pub sequence_base: i64,
}

impl Loss {
    /// That of a store that was never marked.
    pub const NONE: Loss = Loss { evidence_floor: Timestamp::BEGINNING, sequence_base: 0 };
}

/// Numbers of an inbox that a mark passed over, and that will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The first.
    pub first: i64,
    /// The last.
    pub last: i64,
}

/// Which PostgreSQL server a store is on; the embedded one has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// The system identifier, made by initdb; a physical copy has the same.
    pub system: i64,
    /// The timeline, which each promotion and each recovery to a point in time raises.
    pub timeline: i32,
}

/// What is the same for all rows of a store, kept in the store row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Rises with each change of the row: who reads an older one reads the past.
    pub version: i64,
    /// Changes with each mark; resume tokens are bound to it.
    pub epoch: String,
    /// See [`Loss`].
    pub loss: Loss,
    /// The server that is known to hold everything that was acknowledged.
    pub server: Option<Server>,
    /// The mark under way; nobody is served before it has ended.
    pub mark: Option<Mark>,
    /// The failover that nobody has judged yet.
    pub failover: Option<Failover>,
    /// The timeline of which an operator said that nothing was lost on the way to it.
    pub clean: Option<i32>,
}

/// A promotion under judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failover {
    /// The timeline that it led to.
    pub timeline: i32,
    /// When it was first seen, by the store's clock: from here on its end is counted.
    pub since: Timestamp,
}

/// Why a store is marked. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkCause {
    /// A backup was restored.
    Restore = 1,
    /// A failover lost what was acknowledged, or nobody could say that it did not.
    Failover = 2,
}

/// A mark under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Why.
    pub cause: MarkCause,
    /// Who, for the audit.
    pub subject: String,
    /// What is said in the audit besides; may be empty.
    pub reason: String,
    /// When it began, by the store's clock.
    pub begin_time: Timestamp,
    /// Up to when the lost store may have accepted operations.
    pub until: Timestamp,
    /// By how much each inbox is raised.
    pub jump: i64,
    /// How far it has come.
    pub place: MarkPlace,
}

/// How far a mark has come: accounts first, since what a floor refuses is worse than a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkPlace {
    /// Accounts up to this one are marked.
    Accounts(Option<Account>),
    /// All accounts are, and inboxes up to this one.
    Inboxes(Option<InboxKey>),
}

/// What a mark is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkRequest {
    /// Why.
    pub cause: MarkCause,
    /// Who.
    pub subject: String,
    /// What the audit says besides.
    pub reason: String,
    /// When the lost store stopped accepting, if that is known: not after now.
    pub until: Option<Timestamp>,
    /// How many jumps: one for this mark, and one for each mark that the lost store knew and this
    /// one does not.
    pub jumps: i64,
    /// The name of the next life.
    pub epoch: String,
    /// The server that it is on.
    pub server: Option<Server>,
}

impl Life {
    /// The first one of a store.
    pub fn first(epoch: String, server: Option<Server>) -> Self {
        Life {
            version: 1,
            epoch,
            loss: Loss::NONE,
            server,
            mark: None,
            failover: None,
            clean: None,
        }
    }

    /// The next life, with its mark at the beginning.
    ///
    /// The floor lies at the time up to which the lost store may have accepted, plus the clock skew
    /// that it allowed: an id may be accepted before its mint time by that much. Nothing smaller is
    /// honest, since an id below it may have been used; nothing larger is needed, since no id above
    /// it can have been. Where nobody knows when the lost store stopped, that time is now.
    pub fn marked(&self, request: MarkRequest, policy: &Policy, now: Timestamp) -> Life {
        let until = request.until.map_or(now, |until| until.min(now));
        let jump = SEQUENCE_JUMP.saturating_mul(request.jumps.clamp(1, JUMPS_MAX));
        let floor = until + policy.max_clock_skew;
        Life {
            version: self.version + 1,
            epoch: request.epoch,
            loss: Loss {
                evidence_floor: self.loss.evidence_floor.max(floor),
                sequence_base: self.loss.sequence_base.saturating_add(jump),
            },
            server: request.server,
            mark: Some(Mark {
                cause: request.cause,
                subject: request.subject,
                reason: request.reason,
                begin_time: now,
                until,
                jump,
                place: MarkPlace::Accounts(None),
            }),
            failover: None,
            clean: None,
        }
    }

    /// The same life on a server of which an operator says that it holds everything.
    pub fn declared_clean(&self, server: Option<Server>) -> Life {
        Life { clean: server.map(|server| server.timeline), ..self.on(server) }
    }

    /// The same life with a failover that is to be judged.
    pub fn under_judgement(&self, timeline: i32, since: Timestamp) -> Life {
        let failover = Some(Failover { timeline, since });
        Life { version: self.version + 1, failover, ..self.clone() }
    }

    /// The same life on a server that is known to hold everything.
    pub fn on(&self, server: Option<Server>) -> Life {
        Life { version: self.version + 1, server, failover: None, ..self.clone() }
    }
}

/// What a page of a mark covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkPage {
    /// The next accounts by key, at most [`MARK_PAGE`]; none: there are no more.
    Accounts(Vec<Account>),
    /// The next inboxes.
    Inboxes(Vec<InboxKey>),
}

impl MarkPage {
    /// The rows that it changes.
    pub fn needs(&self) -> Vec<Need> {
        match self {
            MarkPage::Accounts(accounts) => {
                let need = |account: &Account| Need::Account(account.clone(), Access::Write);
                accounts.iter().map(need).collect()
            }
            MarkPage::Inboxes(keys) => keys.iter().cloned().map(Need::Inbox).collect(),
        }
    }
}

/// Marks the rows of a page, and returns the life after it: with the mark's new place, or without
/// the mark if that was all.
pub fn mark_page(
    world: &mut World,
    life: &Life,
    mark: &Mark,
    page: &MarkPage,
) -> Result<Life, Unloaded> {
    let place = match page {
        MarkPage::Accounts(accounts) => {
            for account in accounts {
                if let Some(row) = world.account_to_change(account)?.cloned() {
                    mark_account(world, row, life, mark)?;
                }
            }
            match accounts.last() {
                Some(last) => Some(MarkPlace::Accounts(Some(last.clone()))),
                None => Some(MarkPlace::Inboxes(None)),
            }
        }
        MarkPage::Inboxes(keys) => {
            for key in keys {
                if let Some(inbox) = world.inbox(key)?.cloned() {
                    world.put_inbox(raised(inbox, mark.jump))?;
                }
            }
            keys.last().map(|last| MarkPlace::Inboxes(Some(last.clone())))
        }
    };
    let mark = place.map(|place| Mark { place, ..mark.clone() });
    let after = Life { version: life.version + 1, mark, ..life.clone() };
    world.change_life(life.clone(), after.clone());
    Ok(after)
}

fn mark_account(
    world: &mut World,
    row: AccountRow,
    life: &Life,
    mark: &Mark,
) -> Result<(), Unloaded> {
    // The account may have allowed more skew than the server does, or did so when it was lost.
    let skew = row.own.over(world.defaults()).max_clock_skew;
    let evidence_floor = row.evidence_floor.max(life.loss.evidence_floor).max(mark.until + skew);
    let mut events = vec![event(match mark.cause {
        MarkCause::Restore => "the store was restored from a backup".to_owned(),
        MarkCause::Failover => "a failover may have lost what was acknowledged".to_owned(),
    })];
    events.push(event(format!(
        "what was accepted up to {} (microseconds since 1970) may be lost; the evidence floor \
         rose to {}; the epoch is {}",
        mark.until.0, evidence_floor.0, life.epoch
    )));
    if !mark.reason.is_empty() {
        events.push(event(format!("reason: {}", mark.reason)));
    }
    let chain = AuditChain::Account(row.account.clone());
    let packed = record::pack_events(&events);
    let (audit_row, audit) = append(row.audit, &chain, world.now(), &mark.subject, packed);
    world.add_audit(audit_row);
    world.put_account(AccountRow { evidence_floor, audit, ..row })
}

fn event(text: String) -> AuditEvent {
    AuditEvent { text, ..AuditEvent::plain(AuditKind::StoreMarked) }
}

/// An inbox whose next number lies above everything that the lost store can have given out. What
/// waits in it keeps its numbers; a stream tells the skipped ones as a gap. A deleted inbox has no
/// reader to tell: its next generation begins above.
fn raised(inbox: Inbox, jump: i64) -> Inbox {
    let next_sequence = inbox.next_sequence.saturating_add(jump);
    let skip = Skipped { first: inbox.next_sequence, last: next_sequence - 1 };
    let last = inbox.last_sequence();
    // What covered all numbers covers those too that will not come.
    let over = |number: i64, all: i64, above: i64| if number >= all { above } else { number };
    let mut skipped = inbox.skipped.clone();
    let first_sequence = match inbox.deleted {
        true => next_sequence,
        false => {
            add_skipped(&mut skipped, skip);
            inbox.first_sequence
        }
    };
    Inbox {
        next_sequence,
        offered: over(inbox.offered, last, skip.last),
        kept_from: over(inbox.kept_from, inbox.next_sequence, next_sequence),
        first_sequence,
        skipped,
        ..inbox
    }
}

/// Adds a range above all others.
fn add_skipped(skipped: &mut Vec<Skipped>, range: Skipped) {
    match skipped.last_mut() {
        Some(before) if before.last + 1 == range.first => before.last = range.last,
        Some(_) | None => skipped.push(range),
    }
    if skipped.len() > SKIPPED_MAX {
        skipped.remove(0);
    }
}

/// What of a range no mark skipped, in order.
pub fn unskipped(first: i64, last: i64, skipped: &[Skipped]) -> Vec<(i64, i64)> {
    let mut left = Vec::new();
    let mut next = first;
    for range in skipped.iter().filter(|range| range.last >= first && range.first <= last) {
        if range.first > next {
            left.push((next, range.first - 1));
        }
        next = next.max(range.last + 1);
    }
    if next <= last {
        left.push((next, last));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        ids::{InboxName, Span},
        record::unpack_events,
        settings::OwnSettings,
        world::Surroundings,
    };

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    fn request(until: Option<Timestamp>, jumps: i64) -> MarkRequest {
        MarkRequest {
            cause: MarkCause::Restore,
            subject: "operator".to_owned(),
            reason: "disk".to_owned(),
            until,
            jumps,
            epoch: "second".to_owned(),
            server: None,
        }
    }

    fn inbox() -> Inbox {
        let key = InboxKey {
            account: Account::from_stored("a"),
            inbox: InboxName::from_stored("default"),
        };
        Inbox::new(key, 0, NOW)
    }

    #[test]
    fn the_floor_covers_what_may_have_been_used_and_nothing_above() {
        let policy = Policy::default();
        let skew = policy.max_clock_skew;
        let hour = Span::hours(1);
        let high = Loss { evidence_floor: NOW + hour, sequence_base: 0 };
        for (name, before, until, floor) in [
            ("nobody knows when it stopped", Loss::NONE, None, NOW + skew),
            ("it stopped an hour ago", Loss::NONE, Some(NOW - hour), NOW - hour + skew),
            ("it can't have stopped later", Loss::NONE, Some(NOW + hour), NOW + skew),
            ("a floor never falls", high, Some(NOW - hour), NOW + hour),
        ] {
            let life = Life { loss: before, ..Life::first("first".to_owned(), None) };
            let marked = life.marked(request(until, 1), &policy, NOW);
            assert_eq!(marked.loss.evidence_floor, floor, "{name}");
            assert_eq!(marked.loss.sequence_base, SEQUENCE_JUMP, "{name}");
            assert!(marked.version > life.version, "{name}");
        }
        let twice = Life::first("first".to_owned(), None).marked(request(None, 2), &policy, NOW);
        assert_eq!(twice.loss.sequence_base, 2 * SEQUENCE_JUMP);
    }

    #[test]
    fn an_inbox_goes_on_above_everything_that_was_given_out() {
        let used = Inbox { next_sequence: 11, offered: 10, kept_from: 4, ..inbox() };
        let after = raised(used.clone(), SEQUENCE_JUMP);
        let last = SEQUENCE_JUMP + 10;
        assert_eq!(after.next_sequence, last + 1);
        assert_eq!((after.offered, after.kept_from, after.first_sequence), (last, 4, 1));
        assert_eq!(after.skipped, [Skipped { first: 11, last }]);
        // What waits below was not offered yet, and still is to be.
        let waits = raised(Inbox { offered: 7, kept_from: 11, ..used.clone() }, SEQUENCE_JUMP);
        assert_eq!((waits.offered, waits.kept_from), (7, last + 1));
        // Nothing came in between: it is one range.
        let again = raised(after, SEQUENCE_JUMP);
        assert_eq!(again.skipped, [Skipped { first: 11, last: last + SEQUENCE_JUMP }]);
        // A marker tells nobody, and its next generation begins above.
        let marker = raised(Inbox { deleted: true, ..used }, SEQUENCE_JUMP);
        assert!(marker.skipped.is_empty());
        let revived = marker.revived(NOW);
        assert_eq!((revived.first_sequence, revived.next_sequence), (last + 1, last + 1));
    }

    #[test]
    fn an_inbox_that_nobody_knows_begins_above_the_base() {
        let key = inbox().key;
        let first = Inbox::new(key, SEQUENCE_JUMP, NOW);
        assert_eq!(first.next_sequence, SEQUENCE_JUMP + 1);
        assert_eq!(first.skipped, [Skipped { first: 1, last: SEQUENCE_JUMP }]);
        assert!(first.keeps_nothing());
        assert_eq!(raised(first, SEQUENCE_JUMP).skipped[0].last, 2 * SEQUENCE_JUMP);
    }

    #[test]
    fn the_oldest_of_too_many_ranges_is_forgotten() {
        let mut inbox = inbox();
        for _ in 0..SKIPPED_MAX + 4 {
            inbox = raised(inbox, 10);
            inbox.next_sequence += 1;
        }
        assert_eq!(inbox.skipped.len(), SKIPPED_MAX);
        assert_eq!(inbox.skipped[0].first, 45);
    }

    #[test]
    fn what_was_skipped_is_not_told_again_as_purged() {
        let skipped = [Skipped { first: 5, last: 9 }, Skipped { first: 20, last: 29 }];
        for (first, last, left) in [
            (1, 4, vec![(1, 4)]),
            (1, 7, vec![(1, 4)]),
            (1, 30, vec![(1, 4), (10, 19), (30, 30)]),
            (5, 9, vec![]),
            (8, 12, vec![(10, 12)]),
            (25, 40, vec![(30, 40)]),
            (31, 40, vec![(31, 40)]),
        ] {
            assert_eq!(unskipped(first, last, &skipped), left, "{first} to {last}");
        }
    }

    #[test]
    fn an_account_is_marked_once_with_its_own_skew_and_an_entry_in_its_chain() {
        let policy = Policy::default();
        let life = Life::first("first".to_owned(), None).marked(request(None, 1), &policy, NOW);
        let mark = life.mark.clone().expect("under way");
        let account = |name: &str| Account::from_stored(name);
        let row = |name: &str| AccountRow::new(account(name), &policy, Loss::NONE, NOW);
        let wide = (crate::domain::settings::Setting::MaxClockSkew as i32, 600_000_000);
        let mut world = World::new(Surroundings { now: NOW, ..Surroundings::of(policy.clone()) });
        let own = OwnSettings::from_stored([wide]);
        for row in [row("a"), AccountRow { own, ..row("b") }] {
            world.load_account(row.account.clone(), Access::Write, Some(row));
        }
        let page = MarkPage::Accounts(vec![account("a"), account("b")]);
        let after = mark_page(&mut world, &life, &mark, &page).expect("all is loaded");
        let place = after.mark.clone().map(|mark| mark.place);
        assert_eq!(place, Some(MarkPlace::Accounts(Some(account("b")))));
        let changes = world.into_changes();
        let floors: Vec<Span> =
            changes.accounts.updates.iter().map(|row| row.after.evidence_floor - NOW).collect();
        assert_eq!(floors, [Span::minutes(5), Span::minutes(10)]);
        assert_eq!(changes.audit.len(), 2);
        assert_eq!(changes.audit[0].subject, "operator");
        let events = unpack_events(&changes.audit[0].events).expect("events");
        assert!(events.iter().all(|event| event.kind == AuditKind::StoreMarked));
        assert!(events.iter().any(|event| event.text == "reason: disk"), "{events:?}");
        assert!(changes.life.is_some_and(|change| change.after == after));
    }

    #[test]
    fn a_mark_ends_behind_its_last_page() {
        let life = Life::first("first".to_owned(), None);
        let mut life = life.marked(request(None, 1), &Policy::default(), NOW);
        for (page, place) in [
            (MarkPage::Accounts(vec![]), Some(MarkPlace::Inboxes(None))),
            (MarkPage::Inboxes(vec![]), None),
        ] {
            let mark = life.mark.clone().expect("under way");
            let mut world = World::new(Surroundings::of(Policy::default()));
            life = mark_page(&mut world, &life, &mark, &page).expect("nothing is needed");
            assert_eq!(life.mark.as_ref().map(|mark| mark.place.clone()), place);
        }
    }
}
