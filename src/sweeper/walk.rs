//! The way of the sweeper through what is due: a round looks into every bucket once.
//!
//! What must stay true: a bucket that is behind takes one page of a round, however much is due in
//! it, so that one account's backlog never keeps the others waiting; and the pages of a bucket go
//! forward, so that rows that cannot be settled never starve those behind them. Deliberately not
//! here: reading a page, and settling a row.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::store::query::{Due, DuePage, DuePosition};

/// Where a search begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Search {
    /// In all buckets, from a position on; from the first without one.
    All(Option<DuePosition>),
    /// In one bucket that is behind.
    Bucket(i16, DuePosition),
}

impl Search {
    pub(super) fn position(&self) -> Option<&DuePosition> {
        match self {
            Search::All(position) => position.as_ref(),
            Search::Bucket(_, position) => Some(position),
        }
    }
}

/// How far the sweep of one kind has come; a pass that met its limit is continued by the next one.
#[derive(Debug)]
pub(super) struct Walk {
    /// What of the round is still to come: first the look into all buckets, then a page of each
    /// bucket that is behind.
    ahead: VecDeque<Ahead>,
    /// Buckets in which a whole page was due, and where the next page of each begins.
    behind: BTreeMap<i16, DuePosition>,
    /// Buckets that were behind and were gone through. They get a page of each round, as any other,
    /// but are not gone through again while others are behind: the walk has an end also where
    /// nothing can be settled.
    through: BTreeSet<i16>,
}

#[derive(Debug)]
enum Ahead {
    All(Option<DuePosition>),
    Bucket(i16),
}

impl Default for Walk {
    fn default() -> Self {
        Walk {
            ahead: VecDeque::from([Ahead::All(None)]),
            behind: BTreeMap::new(),
            through: BTreeSet::new(),
        }
    }
}

impl Walk {
    /// The next search; absent when a round found nobody behind. The one after that begins anew.
    pub(super) fn next(&mut self) -> Option<Search> {
        loop {
            match self.ahead.pop_front() {
                Some(Ahead::All(position)) => return Some(Search::All(position)),
                Some(Ahead::Bucket(bucket)) => {
                    if let Some(position) = self.behind.get(&bucket) {
                        return Some(Search::Bucket(bucket, position.clone()));
                    }
                }
                None => {
                    self.ahead.push_back(Ahead::All(None));
                    if self.behind.is_empty() {
                        self.through.clear();
                        return None;
                    }
                }
            }
        }
    }

    /// Whether the round is not over, or somebody is behind.
    pub(super) fn is_under_way(&self) -> bool {
        !self.behind.is_empty() || !matches!(self.ahead.front(), Some(Ahead::All(None)) | None)
    }

    /// Takes what a search found; the rows to settle now. `begin_of` is the position before
    /// everything in a bucket.
    pub(super) fn found(
        &mut self,
        search: &Search,
        page: DuePage,
        begin_of: impl Fn(i16) -> DuePosition,
    ) -> Vec<Due> {
        match search {
            Search::All(_) => self.found_in_all(page, begin_of),
            Search::Bucket(bucket, _) => self.found_behind(*bucket, page),
        }
    }

    fn found_in_all(&mut self, page: DuePage, begin_of: impl Fn(i16) -> DuePosition) -> Vec<Due> {
        let DuePage { mut rows, next } = page;
        let (first, last) = (rows.first().map(Due::bucket), rows.last().map(Due::bucket));
        // Their turn comes after the others.
        rows.retain(|due| !self.behind.contains_key(&due.bucket()));
        let (Some(next), Some(bucket)) = (next, last) else {
            self.ahead.extend(self.behind.keys().map(|bucket| Ahead::Bucket(*bucket)));
            return rows;
        };
        let whole = first == last;
        if whole && !self.through.contains(&bucket) {
            self.behind.entry(bucket).or_insert_with(|| next.clone());
        }
        let beyond = whole || self.behind.contains_key(&bucket);
        let position = if beyond { begin_of(bucket.saturating_add(1)) } else { next };
        self.ahead.push_back(Ahead::All(Some(position)));
        rows
    }

    fn found_behind(&mut self, bucket: i16, page: DuePage) -> Vec<Due> {
        let DuePage { mut rows, next } = page;
        let found = rows.len();
        rows.retain(|due| due.bucket() == bucket);
        match next.filter(|_| rows.len() == found) {
            Some(next) => self.behind.insert(bucket, next),
            None => {
                self.through.insert(bucket);
                self.behind.remove(&bucket)
            }
        };
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::domain::{
        ids::{Account, OperationId},
        operation::OperationKey,
    };

    const PAGE: usize = 10;

    /// Due rows as `(bucket, number)`, in order, none of which can be settled.
    struct Rows {
        accounts: BTreeMap<i16, Account>,
        rows: Vec<(i16, usize)>,
    }

    impl Rows {
        /// So many rows of each account.
        fn of(counts: &[(&str, usize)]) -> Rows {
            let accounts = counts.iter().map(|(name, _)| Account::parse(name).expect("valid"));
            let accounts = accounts.map(|account| (account.bucket(), account)).collect();
            let rows = counts.iter().flat_map(|(name, count)| {
                let bucket = Account::parse(name).expect("valid").bucket();
                (1..=*count).map(move |number| (bucket, number))
            });
            let mut rows: Vec<_> = rows.collect();
            rows.sort();
            Rows { accounts, rows }
        }

        fn page(&self, after: Option<&DuePosition>) -> DuePage {
            let after = after.map_or((0, 0), read);
            let found = self.rows.iter().filter(|row| **row > after).take(PAGE);
            let found: Vec<_> = found.copied().collect();
            let next = found.last().filter(|_| found.len() == PAGE).map(|last| written(*last));
            let due = found.into_iter().map(|(bucket, number)| {
                let account = self.accounts[&bucket].clone();
                let id = OperationId::parse(&format!("op-{number}")).expect("valid");
                Due::Operation(OperationKey { account, id })
            });
            DuePage { rows: due.collect(), next }
        }
    }

    fn written((bucket, number): (i16, usize)) -> DuePosition {
        DuePosition(format!("{bucket} {number}").into_bytes())
    }

    fn read(position: &DuePosition) -> (i16, usize) {
        let text = str::from_utf8(&position.0).expect("as written");
        let (bucket, number) = text.split_once(' ').expect("as written");
        (bucket.parse().expect("a bucket"), number.parse().expect("a number"))
    }

    /// The rows that each search of a walk gives, until it says that nobody is behind.
    fn walked(walk: &mut Walk, rows: &Rows, searches: usize) -> Vec<Vec<Due>> {
        let mut all = Vec::new();
        while all.len() < searches
            && let Some(search) = walk.next()
        {
            let page = rows.page(search.position());
            all.push(walk.found(&search, page, |bucket| written((bucket, 0))));
        }
        all
    }

    fn seen(pages: &[Vec<Due>], bucket: i16) -> Vec<&Due> {
        pages.iter().flatten().filter(|due| due.bucket() == bucket).collect()
    }

    #[test]
    fn every_row_is_met_though_none_can_be_settled() {
        // In the order of their buckets: "local" 447, "b" 547, "a" 663.
        for counts in [
            vec![],
            vec![("a", 1)],
            vec![("a", PAGE)],
            vec![("local", 3), ("b", 57), ("a", 4)],
            vec![("local", PAGE), ("b", PAGE), ("a", PAGE)],
            vec![("local", 95), ("b", 12), ("a", 200)],
        ] {
            let (rows, mut walk) = (Rows::of(&counts), Walk::default());
            let pages = walked(&mut walk, &rows, 1_000);
            assert!(!walk.is_under_way(), "{counts:?}");
            for (name, count) in &counts {
                let bucket = Account::parse(name).expect("valid").bucket();
                let mut met: Vec<String> =
                    seen(&pages, bucket).iter().map(|due| format!("{due:?}")).collect();
                met.sort();
                met.dedup();
                assert_eq!(met.len(), *count, "{name} of {counts:?}");
            }
        }
    }

    #[test]
    fn a_backlog_takes_one_page_of_a_round() {
        let (a, b) = (Account::parse("a").expect("valid"), Account::parse("b").expect("valid"));
        let (rows, mut walk) = (Rows::of(&[("a", 1_000), ("b", 3)]), Walk::default());
        let pages = walked(&mut walk, &rows, 60);
        assert_eq!(pages.len(), 60);
        assert!(walk.is_under_way());
        let of_a = seen(&pages, a.bucket()).len();
        let of_b = seen(&pages, b.bucket()).len();
        // Three searches are a round: two that look into all buckets, and the backlog's turn.
        assert!((19 * PAGE..=21 * PAGE).contains(&of_a), "{of_a}");
        assert!((3 * 18..=3 * 20).contains(&of_b), "{of_b}");
        for pages in pages.windows(4) {
            assert!(!seen(pages, b.bucket()).is_empty(), "never more than a round apart");
        }
    }

    #[test]
    fn the_next_pass_goes_on_where_the_last_one_stopped() {
        let (rows, mut walk) = (Rows::of(&[("local", 15), ("b", 15), ("a", 15)]), Walk::default());
        let (mut met, mut passes) = (Vec::new(), 0);
        while passes == 0 || walk.is_under_way() {
            met.extend(walked(&mut walk, &rows, 2).into_iter().flatten());
            passes += 1;
        }
        let mut met: Vec<String> = met.iter().map(|due| format!("{due:?}")).collect();
        met.sort();
        met.dedup();
        assert_eq!((met.len(), passes > 1), (45, true));
    }

    #[test]
    fn a_backlog_that_is_settled_is_left() {
        let mut rows = Rows::of(&[("a", 25), ("b", 1)]);
        let mut walk = Walk::default();
        let mut searches = 0;
        while let Some(search) = walk.next() {
            searches += 1;
            assert!(searches < 100, "it ends");
            let page = rows.page(search.position());
            let settled = walk.found(&search, page, |bucket| written((bucket, 0)));
            for due in &settled {
                let Due::Operation(key) = due else { panic!("{due:?}") };
                let number = key.id.as_str().trim_start_matches("op-").parse().expect("ours");
                rows.rows.retain(|row| *row != (due.bucket(), number));
            }
        }
        assert_eq!(rows.rows, [], "everything was settled");
    }
}
