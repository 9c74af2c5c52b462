//! A chain of audit rows: numbers without holes, and hashes that follow from the rows (I15).

use super::{Contradiction, ContradictionKind};
use crate::domain::audit::{AuditChain, AuditHead, AuditRow, row_hash};

/// How far a chain was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Followed(pub AuditHead);

impl Followed {
    /// Takes the next row, in order of their numbers.
    ///
    /// # Errors
    /// Why it does not follow; the rest of the chain then says nothing more.
    pub fn take(&mut self, row: &AuditRow) -> Result<(), Box<Contradiction>> {
        let Followed(before) = *self;
        let number = before.length.saturating_add(1);
        if row.number != number {
            let (expected, found) = (format!("audit row {number}"), format!("row {}", row.number));
            return Err(Box::new(about(ContradictionKind::ChainCut, &row.chain, expected, found)));
        }
        let hash = row_hash(&before.hash, number, row.time, &row.subject, &row.events);
        if row.hash != hash {
            let expected = format!("audit row {number} with hash {}", shown(&hash));
            let found = format!("hash {}", shown(&row.hash));
            let kind = ContradictionKind::ChainRowChanged;
            return Err(Box::new(about(kind, &row.chain, expected, found)));
        }
        self.0 = AuditHead { length: number, hash };
        Ok(())
    }

    /// Begins in the middle of a chain whose rows up to there are no longer kept: nothing tells what
    /// the hash of the first one that is left follows from.
    pub fn from(first: &AuditRow) -> Self {
        Followed(AuditHead { length: first.number, hash: first.hash })
    }

    /// Whether the chain ends where the row says that has its head.
    pub fn end(self, chain: &AuditChain, head: AuditHead) -> Option<Contradiction> {
        let Followed(end) = self;
        if end == head {
            return None;
        }
        let told = |head: AuditHead| format!("row {} with hash {}", head.length, shown(&head.hash));
        let expected = format!("a chain that ends at {}", told(head));
        Some(about(ContradictionKind::ChainEnd, chain, expected, told(end)))
    }
}

/// A contradiction about a chain.
pub fn about(
    kind: ContradictionKind,
    chain: &AuditChain,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Contradiction {
    let told = Contradiction::of(kind, chain.account(), expected, found);
    match chain {
        AuditChain::Operation(key) => told.operation(key),
        AuditChain::Account(_) => told,
    }
}

/// The first bytes of a hash, in hexadecimal: enough to tell two of them apart.
pub(super) fn shown(hash: &[u8]) -> String {
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        audit::append,
        ids::{Account, Timestamp},
    };

    fn rows(count: i32) -> (Vec<AuditRow>, AuditHead) {
        let chain = AuditChain::Account(Account::parse("a").expect("valid"));
        let mut head = AuditHead::default();
        let rows = (0..count).map(|number| {
            let time = Timestamp(i64::from(number));
            let (row, after) = append(head, &chain, time, "who", vec![1]);
            head = after;
            row
        });
        (rows.collect(), head)
    }

    /// What is said of a chain of these rows under this head.
    fn kind(rows: &[AuditRow], head: AuditHead) -> Option<ContradictionKind> {
        let mut followed = Followed::default();
        let broken = rows.iter().find_map(|row| followed.take(row).err()).map(|told| *told);
        let chain = AuditChain::Account(Account::parse("a").expect("valid"));
        broken.or_else(|| followed.end(&chain, head)).map(|told| told.kind)
    }

    #[test]
    fn each_way_to_break_a_chain_has_its_name() {
        use ContradictionKind::{ChainCut, ChainEnd, ChainRowChanged};
        type Break = fn(&mut Vec<AuditRow>, &mut AuditHead);
        let table: [(Break, Option<ContradictionKind>); 9] = [
            (|_, _| {}, None),
            (|rows, _| rows[1].subject.push('!'), Some(ChainRowChanged)),
            (|rows, _| rows[1].time.0 += 1, Some(ChainRowChanged)),
            (|rows, _| rows[2].events.push(0), Some(ChainRowChanged)),
            (|rows, _| drop(rows.remove(0)), Some(ChainCut)),
            (|rows, _| drop(rows.remove(1)), Some(ChainCut)),
            (|rows, _| drop(rows.pop()), Some(ChainEnd)),
            (|rows, _| rows.clear(), Some(ChainEnd)),
            (|_, head| head.hash[0] ^= 1, Some(ChainEnd)),
        ];
        for (number, (change, expected)) in table.into_iter().enumerate() {
            let (mut rows, mut head) = rows(4);
            change(&mut rows, &mut head);
            assert_eq!(kind(&rows, head), expected, "case {number}");
        }
    }

    #[test]
    fn a_row_in_the_place_of_another_is_found() {
        let (mut chain, head) = rows(3);
        chain.swap(1, 2);
        (chain[1].number, chain[2].number) = (2, 3);
        assert_eq!(kind(&chain, head), Some(ContradictionKind::ChainRowChanged));
        let (short, _) = rows(2);
        assert_eq!(kind(&short, head), Some(ContradictionKind::ChainEnd));
    }
}
