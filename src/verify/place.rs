//! Where a check goes on, and how that is put into a token.

use prost::Message;

use crate::{
    domain::{
        ids::{OperationId, Target, Timestamp},
        verify::effects::{Effects, Owned},
    },
    store::query::OperationPosition,
};

/// What is checked, in this order. The numbers are in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The account's row and its own chain.
    Account = 1,
    /// Chains without operation.
    Chains = 2,
    /// Operations, each with its chain, its delivery, its document and its lock.
    Operations = 3,
    /// Deliveries without operation.
    Deliveries = 4,
    /// Counters of inboxes.
    Inboxes = 5,
    /// Locks.
    Locks = 6,
    /// Contents of documents.
    Documents = 7,
    /// Payloads.
    Payloads = 8,
    /// Revisions of documents against receipts.
    Effects = 9,
}

impl Phase {
    const ALL: [Phase; 9] = [
        Phase::Account,
        Phase::Chains,
        Phase::Operations,
        Phase::Deliveries,
        Phase::Inboxes,
        Phase::Locks,
        Phase::Documents,
        Phase::Payloads,
        Phase::Effects,
    ];

    /// What comes after it.
    pub fn next(self) -> Option<Phase> {
        Self::ALL.into_iter().skip_while(|phase| *phase != self).nth(1)
    }
}

/// Where a check goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub(super) phase: Phase,
    /// After which inbox or target.
    pub(super) name: String,
    /// After which operation, as its id is stored.
    pub(super) id: Vec<u8>,
    /// After which number in an inbox, or which kind of payload.
    pub(super) number: i64,
    /// The effects that are being counted.
    pub(super) count: Option<Count>,
}

/// A count under way, and how far it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) effects: Effects,
    pub(super) after: Option<OperationPosition>,
}

impl Place {
    /// The beginning of an account.
    pub fn start() -> Self {
        Place::at(Phase::Account)
    }

    /// The beginning of a phase.
    pub(super) fn at(phase: Phase) -> Self {
        Place { phase, name: String::new(), id: Vec::new(), number: 0, count: None }
    }

    /// Within a phase, after a name.
    pub(super) fn after(phase: Phase, name: &str) -> Self {
        Place { name: name.to_owned(), ..Place::at(phase) }
    }

    /// As bytes, for a token.
    pub fn pack(&self) -> Vec<u8> {
        let count = self.count.as_ref().map(|count| CountRecord {
            documents: count.effects.documents().map(document).collect(),
            accept_time: count.after.as_ref().map(|after| after.accept_time.0),
            operation_id: count.after.as_ref().map_or_else(Vec::new, |after| after.id.to_stored()),
        });
        let record = PlaceRecord {
            phase: self.phase as i32,
            name: self.name.clone(),
            id: self.id.clone(),
            number: self.number,
            count,
        };
        record.encode_to_vec()
    }

    /// Reads what [`Place::pack`] wrote; `None` for bytes that it never writes.
    pub fn unpack(bytes: &[u8]) -> Option<Place> {
        let record = PlaceRecord::decode(bytes).ok()?;
        let phase = Phase::ALL.into_iter().find(|phase| *phase as i32 == record.phase)?;
        let count = match record.count {
            Some(count) => Some(count.unpack()?),
            None => None,
        };
        Some(Place { phase, name: record.name, id: record.id, number: record.number, count })
    }
}

fn document((target, owned): (&Target, &Owned)) -> DocumentRecord {
    DocumentRecord {
        target: target.as_str().to_owned(),
        revision: owned.revision,
        spans: owned.spans.iter().flat_map(|(first, last)| [*first, *last]).collect(),
    }
}

impl CountRecord {
    fn unpack(self) -> Option<Count> {
        let mut effects = Effects::default();
        for document in self.documents {
            let spans = document.spans.chunks(2).map(|span| match span {
                [first, last] => Some((*first, *last)),
                _ => None,
            });
            let spans = spans.collect::<Option<Vec<_>>>()?;
            let owned = Owned { revision: document.revision, spans };
            effects.expect(Target::from_stored(&document.target), owned);
        }
        let after = match self.accept_time {
            Some(time) => Some(OperationPosition {
                accept_time: Timestamp(time),
                id: OperationId::from_stored(&self.operation_id)?,
            }),
            None => None,
        };
        Some(Count { effects, after })
    }
}

#[derive(Clone, PartialEq, Message)]
struct PlaceRecord {
    #[prost(int32, tag = "1")]
    phase: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(bytes = "vec", tag = "3")]
    id: Vec<u8>,
    #[prost(int64, tag = "4")]
    number: i64,
    #[prost(message, optional, tag = "5")]
    count: Option<CountRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct CountRecord {
    #[prost(message, repeated, tag = "1")]
    documents: Vec<DocumentRecord>,
    #[prost(int64, optional, tag = "2")]
    accept_time: Option<i64>,
    #[prost(bytes = "vec", tag = "3")]
    operation_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DocumentRecord {
    #[prost(string, tag = "1")]
    target: String,
    #[prost(int64, tag = "2")]
    revision: i64,
    #[prost(int64, repeated, tag = "3")]
    spans: Vec<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_behind_a_token() {
        let mut effects = Effects::default();
        let owned = Owned { revision: 9, spans: vec![(1, 3), (5, 5)] };
        effects.expect(Target::from_stored("notes/a"), owned);
        effects.expect(Target::from_stored("notes/b"), Owned::default());
        let id = OperationId::parse("op-1").expect("valid");
        let after = Some(OperationPosition { accept_time: Timestamp(7), id });
        let places = [
            Place::start(),
            Place { number: 4, ..Place::after(Phase::Deliveries, "default") },
            Place { id: b"op".to_vec(), number: 2, ..Place::at(Phase::Payloads) },
            Place { count: Some(Count { effects, after }), ..Place::at(Phase::Effects) },
        ];
        for place in places {
            assert_eq!(Place::unpack(&place.pack()), Some(place));
        }
        assert_eq!(Place::unpack(b"\xff"), None);
        assert_eq!(Place::unpack(&[]), None);
    }

    #[test]
    fn every_phase_comes_once() {
        let phases = std::iter::successors(Some(Phase::Account), |phase| phase.next());
        assert!(phases.eq(Phase::ALL));
    }
}
