//! Whether a server holds everything that was acknowledged: which one is served from at all, and
//! what a promotion means.
//!
//! What must stay true: a server that is behind, or that is another one, is never served from. What
//! a promoted server holds is the beginning of what the lost one had written, as far as that
//! reached it; so whoever finds its own newest acknowledged write there knows that everything
//! before it is there too. Nobody's word counts for another's writes that came after.
//!
//! Deliberately not here: reading any of it, and carrying out what was decided.

use super::{
    epoch::{Life, Server},
    ids::{Span, Timestamp},
};

/// What a server may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything.
    Serve,
    /// Reads: whether it lost something is not known yet, or a mark is under way.
    Wait,
    /// Nothing.
    Refuse(Mismatch),
}

/// Why a server is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// It is a standby, behind its primary.
    Standby,
    /// It is not the one that the store was on, nor a physical copy of it.
    OtherSystem {
        /// The system identifier of the store's server.
        known: i64,
        /// The one that was met.
        met: i64,
    },
    /// It is on a timeline that the store has left: the primary of before a failover, come back.
    OlderTimeline {
        /// The store's timeline.
        known: i32,
        /// The one that was met.
        met: i32,
    },
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mismatch::Standby => f.write_str(
                "this PostgreSQL server is a standby, which is behind its primary: connect to the \
                 primary",
            ),
            Mismatch::OtherSystem { known, met } => write!(
                f,
                "this PostgreSQL server has system identifier {met}, and the store was on {known}: \
                 it is another server, perhaps with a restored dump; connect to the right one, or \
                 run `receiptd restore-mark` on this one while no server uses it",
            ),
            Mismatch::OlderTimeline { known, met } => write!(
                f,
                "this PostgreSQL server is on timeline {met}, and the store has gone on to \
                 timeline {known}: it is the primary of before a failover; connect to the new one, \
                 and make this one its standby",
            ),
        }
    }
}

/// What a server may be used for, by what this process met before, and by the store's own row on
/// it. `met`: none for a standby.
pub fn verdict(before: Option<Server>, met: Option<Server>, life: &Life) -> Verdict {
    let Some(met) = met else { return Verdict::Refuse(Mismatch::Standby) };
    for known in before.into_iter().chain(life.server) {
        if known.system != met.system {
            let mismatch = Mismatch::OtherSystem { known: known.system, met: met.system };
            return Verdict::Refuse(mismatch);
        }
        if known.timeline > met.timeline {
            let mismatch = Mismatch::OlderTimeline { known: known.timeline, met: met.timeline };
            return Verdict::Refuse(mismatch);
        }
    }
    let promoted = life.server.is_some_and(|known| known.timeline < met.timeline);
    match promoted || life.mark.is_some() {
        true => Verdict::Wait,
        false => Verdict::Serve,
    }
}

/// What names a replica: random, made when its process starts.
pub type ReplicaName = [u8; 16];

/// How often a replica writes a sign of life: six of them before it counts as gone.
pub const BEAT_INTERVAL: Span = Span::seconds(10);
/// A replica without a sign of life for so long, and for as long as a failover is waited for, is not
/// waited for any more: its name goes. It is longer than any commit that it may have sent is on its way; and whoever removes the name
/// writes that after everything that the replica wrote, so that where the removal is, that is too.
pub const GONE_AFTER: Span = Span::minutes(1);

/// A replica that may have acknowledged something, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Which.
    pub name: ReplicaName,
    /// When it last gave a sign of life, by the store's clock.
    pub seen: Timestamp,
    /// How many signs of life it gave.
    pub beats: i64,
    /// What it said of the last failover.
    pub word: Option<Word>,
}

/// What a replica says of a server that was promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Of which timeline.
    pub timeline: i32,
    /// Whether everything that it acknowledged is there.
    pub holds: bool,
}

/// What a failover comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// Not known yet: it is decided after so long at the latest.
    Wait(Span),
    /// Nothing was lost: the same life goes on.
    Clean,
    /// Something was lost, or nobody can say that it was not.
    Lost(Loser),
}

/// Whose word is missing, or says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loser {
    /// This one's newest write is not there.
    Missing(ReplicaName),
    /// This one did not say anything in time.
    Silent(ReplicaName),
}

/// Judges the failover to `timeline`, first seen at `since`, by the replicas that the store row
/// names.
pub fn judge(
    replicas: &[Replica],
    timeline: i32,
    since: Timestamp,
    now: Timestamp,
    wait: Span,
) -> Judgement {
    let word = |replica: &Replica| replica.word.filter(|word| word.timeline == timeline);
    let lost = replicas.iter().find(|replica| word(replica).is_some_and(|word| !word.holds));
    if let Some(lost) = lost {
        return Judgement::Lost(Loser::Missing(lost.name));
    }
    match replicas.iter().find(|replica| word(replica).is_none()) {
        None => Judgement::Clean,
        Some(silent) if now >= since + wait => Judgement::Lost(Loser::Silent(silent.name)),
        Some(_) => Judgement::Wait(since + wait - now),
    }
}

/// Those that have been silent for so long that they are not waited for any more. Not while a
/// failover is judged: then everybody is silent until it is over.
pub fn gone<'a>(
    replicas: &'a [Replica],
    own: &ReplicaName,
    now: Timestamp,
    wait: Span,
) -> Vec<&'a Replica> {
    let is_gone =
        |replica: &&Replica| replica.name != *own && replica.seen + GONE_AFTER + wait <= now;
    replicas.iter().filter(is_gone).collect()
}

/// Whether a replica gave a sign of life so lately that it may be at work.
pub fn may_live(replica: &Replica, now: Timestamp) -> bool {
    replica.seen + BEAT_INTERVAL + BEAT_INTERVAL + BEAT_INTERVAL > now
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
    const WAIT: Span = Span::minutes(1);

    fn server(system: i64, timeline: i32) -> Option<Server> {
        Some(Server { system, timeline })
    }

    fn life(server: Option<Server>) -> Life {
        Life::first("e".to_owned(), server)
    }

    #[test]
    fn a_server_that_is_behind_or_another_is_never_used() {
        let other = |known, met| Verdict::Refuse(Mismatch::OtherSystem { known, met });
        let older = |known, met| Verdict::Refuse(Mismatch::OlderTimeline { known, met });
        let standby = Verdict::Refuse(Mismatch::Standby);
        for (name, before, met, row, expected) in [
            ("a new store", None, server(7, 1), None, Verdict::Serve),
            ("the same server", server(7, 1), server(7, 1), server(7, 1), Verdict::Serve),
            ("first met, as it was left", None, server(7, 3), server(7, 3), Verdict::Serve),
            ("a standby", server(7, 1), None, server(7, 1), standby),
            ("promoted", server(7, 1), server(7, 2), server(7, 1), Verdict::Wait),
            ("promoted, met by a fresh process", None, server(7, 2), server(7, 1), Verdict::Wait),
            ("judged by another", server(7, 1), server(7, 2), server(7, 2), Verdict::Serve),
            ("the old primary", server(7, 2), server(7, 1), server(7, 1), older(2, 1)),
            ("a row from later on", None, server(7, 1), server(7, 2), older(2, 1)),
            ("another server", server(7, 1), server(8, 1), server(8, 1), other(7, 8)),
            ("a dump restored elsewhere", None, server(8, 1), server(7, 1), other(7, 8)),
        ] {
            assert_eq!(verdict(before, met, &life(row)), expected, "{name}");
        }
    }

    #[test]
    fn a_failover_is_clean_only_by_the_word_of_everybody() {
        let replica = |name: u8, word: Option<(i32, bool)>| Replica {
            name: [name; 16],
            seen: NOW,
            beats: 1,
            word: word.map(|(timeline, holds)| Word { timeline, holds }),
        };
        let (yes, no, old) = (Some((2, true)), Some((2, false)), Some((1, true)));
        let missing = |name: u8| Judgement::Lost(Loser::Missing([name; 16]));
        let silent = |name: u8| Judgement::Lost(Loser::Silent([name; 16]));
        let left = |left: Span| Judgement::Wait(left);
        for (name, words, age, expected) in [
            ("nobody acknowledged", vec![], Span(0), Judgement::Clean),
            ("one vouches", vec![yes], Span(0), Judgement::Clean),
            ("all vouch", vec![yes, yes], Span::minutes(9), Judgement::Clean),
            ("one is awaited", vec![yes, None], Span::seconds(20), left(Span::seconds(40))),
            ("a word about another", vec![yes, old], Span(0), left(WAIT)),
            ("until the last moment", vec![None], WAIT + Span(-1), left(Span(1))),
            ("one stays silent", vec![yes, None], WAIT, silent(2)),
            ("one lost something", vec![None, no], Span(0), missing(2)),
            ("all said, one lost", vec![no, yes], WAIT, missing(1)),
        ] {
            let named = (1_u8..).zip(words).map(|(name, word)| replica(name, word));
            let replicas: Vec<Replica> = named.collect();
            let judged = judge(&replicas, 2, NOW - age, NOW, WAIT);
            assert_eq!(judged, expected, "{name}");
        }
    }

    #[test]
    fn a_name_goes_when_its_replica_is_gone_and_never_by_itself() {
        let seen = |name: u8, age: Span| Replica {
            name: [name; 16],
            seen: NOW - age,
            beats: 1,
            word: None,
        };
        let long = GONE_AFTER + WAIT;
        let replicas = [seen(1, long), seen(2, long + Span(-1)), seen(3, long)];
        let names: Vec<ReplicaName> =
            gone(&replicas, &[3; 16], NOW, WAIT).iter().map(|replica| replica.name).collect();
        assert_eq!(names, [[1; 16]]);
        assert!(may_live(&seen(4, Span::seconds(29)), NOW));
        assert!(!may_live(&seen(4, Span::seconds(30)), NOW));
    }
}
