//! The store's own row, packed; as [`super`], whose rules hold here.

use prost::Message;

use super::Unreadable;
use crate::domain::{
    delivery::InboxKey,
    epoch::{Failover, Life, Loss, Mark, MarkCause, MarkPlace, Server},
    failover::{Replica, ReplicaName, Word},
    ids::{Account, InboxName, Timestamp},
};

#[derive(Clone, PartialEq, Message)]
struct LifeRecord {
    #[prost(string, tag = "1")]
    epoch: String,
    #[prost(int64, tag = "2")]
    evidence_floor: i64,
    #[prost(int64, tag = "3")]
    sequence_base: i64,
    #[prost(message, optional, tag = "4")]
    server: Option<ServerRecord>,
    #[prost(message, optional, tag = "5")]
    mark: Option<MarkRecord>,
    #[prost(message, optional, tag = "6")]
    failover: Option<FailoverRecord>,
    #[prost(int64, tag = "7")]
    version: i64,
    #[prost(int32, optional, tag = "8")]
    clean: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ServerRecord {
    #[prost(int64, tag = "1")]
    system: i64,
    #[prost(int32, tag = "2")]
    timeline: i32,
}

#[derive(Clone, PartialEq, Message)]
struct FailoverRecord {
    #[prost(int32, tag = "1")]
    timeline: i32,
    #[prost(int64, tag = "2")]
    since: i64,
}

#[derive(Clone, PartialEq, Message)]
struct MarkRecord {
    #[prost(int32, tag = "1")]
    cause: i32,
    #[prost(string, tag = "2")]
    subject: String,
    #[prost(string, tag = "3")]
    reason: String,
    #[prost(int64, tag = "4")]
    begin_time: i64,
    #[prost(int64, tag = "5")]
    until: i64,
    #[prost(int64, tag = "6")]
    jump: i64,
    /// The row up to which it has come: an account, and with the stage of inboxes an inbox.
    #[prost(bool, tag = "7")]
    at_inboxes: bool,
    #[prost(string, optional, tag = "8")]
    account: Option<String>,
    #[prost(string, optional, tag = "9")]
    inbox: Option<String>,
}

/// Packs the store's own row.
pub fn pack_life(life: &Life) -> Vec<u8> {
    let record = LifeRecord {
        version: life.version,
        clean: life.clean,
        epoch: life.epoch.clone(),
        evidence_floor: life.loss.evidence_floor.0,
        sequence_base: life.loss.sequence_base,
        server: life.server.map(|Server { system, timeline }| ServerRecord { system, timeline }),
        mark: life.mark.as_ref().map(mark_record),
        failover: life.failover.map(|failover| FailoverRecord {
            timeline: failover.timeline,
            since: failover.since.0,
        }),
    };
    record.encode_to_vec()
}

/// Unpacks it.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_life`] did not write.
pub fn unpack_life(bytes: &[u8]) -> Result<Life, Unreadable> {
    let record = LifeRecord::decode(bytes).map_err(|_| unreadable())?;
    Ok(Life {
        version: record.version,
        clean: record.clean,
        epoch: record.epoch,
        loss: Loss {
            evidence_floor: Timestamp(record.evidence_floor),
            sequence_base: record.sequence_base,
        },
        server: record.server.map(|ServerRecord { system, timeline }| Server { system, timeline }),
        mark: record.mark.map(mark).transpose()?,
        failover: record.failover.map(|failover| Failover {
            timeline: failover.timeline,
            since: Timestamp(failover.since),
        }),
    })
}

#[derive(Clone, PartialEq, Message)]
struct ReplicaRecord {
    #[prost(int64, tag = "1")]
    seen: i64,
    #[prost(int64, tag = "2")]
    beats: i64,
    #[prost(message, optional, tag = "3")]
    word: Option<WordRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct WordRecord {
    #[prost(int32, tag = "1")]
    timeline: i32,
    #[prost(bool, tag = "2")]
    holds: bool,
}

/// Packs what the store keeps of a replica, besides its name.
pub fn pack_replica(replica: &Replica) -> Vec<u8> {
    let record = ReplicaRecord {
        seen: replica.seen.0,
        beats: replica.beats,
        word: replica.word.map(|word| WordRecord { timeline: word.timeline, holds: word.holds }),
    };
    record.encode_to_vec()
}

/// Unpacks it.
///
/// # Errors
/// [`Unreadable`] for bytes that [`pack_replica`] did not write.
pub fn unpack_replica(name: ReplicaName, bytes: &[u8]) -> Result<Replica, Unreadable> {
    let record =
        ReplicaRecord::decode(bytes).map_err(|_| Unreadable { what: "row of a replica" })?;
    Ok(Replica {
        name,
        seen: Timestamp(record.seen),
        beats: record.beats,
        word: record.word.map(|word| Word { timeline: word.timeline, holds: word.holds }),
    })
}

fn unreadable() -> Unreadable {
    Unreadable { what: "row of the store itself" }
}

fn mark_record(mark: &Mark) -> MarkRecord {
    let (at_inboxes, account, inbox) = match &mark.place {
        MarkPlace::Accounts(account) => (false, account.as_ref(), None),
        MarkPlace::Inboxes(None) => (true, None, None),
        MarkPlace::Inboxes(Some(key)) => (true, Some(&key.account), Some(&key.inbox)),
    };
    MarkRecord {
        cause: mark.cause as i32,
        subject: mark.subject.clone(),
        reason: mark.reason.clone(),
        begin_time: mark.begin_time.0,
        until: mark.until.0,
        jump: mark.jump,
        at_inboxes,
        account: account.map(|account| account.as_str().to_owned()),
        inbox: inbox.map(|inbox| inbox.as_str().to_owned()),
    }
}

fn mark(record: MarkRecord) -> Result<Mark, Unreadable> {
    let cause = [MarkCause::Restore, MarkCause::Failover]
        .into_iter()
        .find(|cause| *cause as i32 == record.cause)
        .ok_or_else(unreadable)?;
    let account = record.account.map(|account| Account::from_stored(&account));
    let inbox = record.inbox.map(|inbox| InboxName::from_stored(&inbox));
    let place = match (record.at_inboxes, account, inbox) {
        (false, account, None) => MarkPlace::Accounts(account),
        (true, None, None) => MarkPlace::Inboxes(None),
        (true, Some(account), Some(inbox)) => MarkPlace::Inboxes(Some(InboxKey { account, inbox })),
        _ => return Err(unreadable()),
    };
    Ok(Mark {
        cause,
        subject: record.subject,
        reason: record.reason,
        begin_time: Timestamp(record.begin_time),
        until: Timestamp(record.until),
        jump: record.jump,
        place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::epoch::SEQUENCE_JUMP;

    #[test]
    fn a_life_is_read_as_it_was_written_at_every_place_of_a_mark() {
        let account = Account::from_stored("a");
        let key = InboxKey { account: account.clone(), inbox: InboxName::from_stored("i") };
        let whole = Life {
            version: 6,
            clean: Some(3),
            epoch: "e".to_owned(),
            loss: Loss { evidence_floor: Timestamp(7), sequence_base: 9 },
            server: Some(Server { system: -5, timeline: 3 }),
            mark: None,
            failover: Some(Failover { timeline: 4, since: Timestamp(11) }),
        };
        assert_eq!(unpack_life(&pack_life(&whole)).expect("a life"), whole);
        let first = Life::first("f".to_owned(), None);
        assert_eq!(unpack_life(&pack_life(&first)).expect("a life"), first);
        for place in [
            MarkPlace::Accounts(None),
            MarkPlace::Accounts(Some(account)),
            MarkPlace::Inboxes(None),
            MarkPlace::Inboxes(Some(key)),
        ] {
            let mark = Mark {
                cause: MarkCause::Failover,
                subject: "s".to_owned(),
                reason: "r".to_owned(),
                begin_time: Timestamp(1),
                until: Timestamp(2),
                jump: SEQUENCE_JUMP,
                place,
            };
            let life = Life { mark: Some(mark), ..whole.clone() };
            assert_eq!(unpack_life(&pack_life(&life)).expect("a life"), life);
        }
        assert!(unpack_life(&[255]).is_err());
    }
}
