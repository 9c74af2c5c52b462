//! A store in memory goes back to a copy of before, and is marked.

use std::ops::Bound;

use receiptd::domain::{
    epoch::{Life, MarkCause, MarkPage, MarkPlace, MarkRequest, mark_page},
    world::needs::Needs,
};

use super::Memory;

/// Rows of one page of a mark, so few that there are several.
const PAGE: usize = 2;

impl Memory {
    /// Puts a copy of before in the place of these tables, and marks it; the clock goes on.
    pub fn restore(&mut self, copy: &Memory) {
        let now = self.now;
        *self = Memory { now, attached: std::collections::BTreeMap::new(), ..copy.clone() };
        let version = self.life.version;
        let request = MarkRequest {
            cause: MarkCause::Restore,
            subject: "operator".to_owned(),
            reason: "a test".to_owned(),
            until: None,
            jumps: 1,
            epoch: format!("epoch {version} at {}", now.0),
            server: None,
        };
        self.life = self.life.marked(request, &self.policy, now);
        while let Some(mark) = self.life.mark.clone() {
            let page = self.page(&mark.place);
            let mut needs = Needs::default();
            page.needs().into_iter().for_each(|need| needs.add(need));
            let mut world = self.load(&needs);
            let life: Life = self.life.clone();
            self.life = mark_page(&mut world, &life, &mark, &page).expect("every row was named");
            self.save(world);
        }
        self.check();
    }

    fn page(&self, place: &MarkPlace) -> MarkPage {
        fn after<T>(last: Option<&T>) -> (Bound<&T>, Bound<&T>) {
            (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
        }
        match place {
            MarkPlace::Accounts(last) => {
                let rows = self.accounts.range(after(last.as_ref()));
                MarkPage::Accounts(rows.take(PAGE).map(|(key, _)| key.clone()).collect())
            }
            MarkPlace::Inboxes(last) => {
                let rows = self.inboxes.range(after(last.as_ref()));
                MarkPage::Inboxes(rows.take(PAGE).map(|(key, _)| key.clone()).collect())
            }
        }
    }
}
