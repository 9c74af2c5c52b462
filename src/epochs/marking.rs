//! Marks a store: the next life, a floor for every account, a jump for every inbox.
//!
//! What must stay true: what was written counts, whoever wrote it: the store's own row is read
//! before each step, and each step states that row as it was read, so that a mark which was cut, or
//! that two carry out, comes out the same. On return everything is durable.

use std::time::Duration;

use crate::{
    domain::{
        epoch::{Life, MARK_PAGE, Mark, MarkPage, MarkPlace, MarkRequest, mark_page},
        ids::Timestamp,
        policy::Policy,
        world::{Surroundings, World, needs::Needs},
    },
    engine::seams::Seams,
    store::{BatchName, Purpose, ReadError, Store, TransactError, Transaction},
};

/// Steps that may fail one after the other before a mark is given up: with the pauses between them
/// about ten seconds, which outlast a lock or a short outage. It goes on when it is run again.
const TRIES_MAX: u32 = 10;
/// The first pause; grows by as much each time.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a mark did not end. What it wrote stays; run again, it goes on where it was.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// The store cannot be read.
    #[error("the store cannot be read: {0}")]
    Read(#[from] ReadError),
    /// A step cannot be written.
    #[error("the store cannot be written: {0}")]
    Write(String),
}

/// What a mark did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The life that it led to.
    pub life: Life,
    /// Accounts that were marked now.
    pub accounts: usize,
    /// Inboxes that were raised now.
    pub inboxes: usize,
}

/// Begins the next life of a store, after the one whose row is `life`. Returns the row, durable:
/// nobody is served any more before [`go_on`] has come to its end. If that row was changed
/// meanwhile, nothing is done, and the changed one is returned.
///
/// # Errors
/// [`MarkError`]; whether the mark was begun is then to be seen in the store's row.
pub async fn begin(
    store: &Store,
    life: &Life,
    request: &MarkRequest,
    policy: &Policy,
    seams: &Seams,
) -> Result<Life, MarkError> {
    let (request, version) = (request.clone(), life.version);
    let step = Step { store, policy, seams };
    let changed = |life: &Life| life.version != version;
    change(&step, changed, |life, policy, now| life.marked(request.clone(), policy, now)).await
}

/// Writes another row of the store itself, unless it is as wanted already. Returns it, durable.
///
/// # Errors
/// [`MarkError`].
pub async fn change_life(
    store: &Store,
    policy: &Policy,
    seams: &Seams,
    wanted: impl Fn(&Life) -> bool,
    next: impl Fn(&Life) -> Life,
) -> Result<Life, MarkError> {
    change(&Step { store, policy, seams }, wanted, |life, _, _| next(life)).await
}

/// Carries a mark to its end, from wherever it is.
///
/// # Errors
/// [`MarkError`].
pub async fn go_on(store: &Store, policy: &Policy, seams: &Seams) -> Result<Marked, MarkError> {
    let step = Step { store, policy, seams };
    let (mut accounts, mut inboxes, mut tries) = (0, 0, 0);
    loop {
        let life = store.life().await?;
        let Some(mark) = life.mark.clone() else { return Ok(Marked { life, accounts, inboxes }) };
        let page = page(store, &mark).await?;
        let count = match &page {
            MarkPage::Accounts(page) => (page.len(), 0),
            MarkPage::Inboxes(page) => (0, page.len()),
        };
        let mut needs = Needs::default();
        page.needs().into_iter().for_each(|need| needs.add(need));
        let decide = move |world: &mut World| mark_page(world, &life, &mark, &page).map(drop);
        match step.run(needs, decide).await {
            Ok(Ok(())) => {
                accounts += count.0;
                inboxes += count.1;
                tries = 0;
            }
            // All rows were named; should one be missing, it is a fault of ours.
            Ok(Err(_)) => return Err(MarkError::Write("a page lacks a row of its own".into())),
            Err(text) => tries = rest(tries, text, seams).await?,
        }
    }
}

async fn page(store: &Store, mark: &Mark) -> Result<MarkPage, ReadError> {
    Ok(match &mark.place {
        MarkPlace::Accounts(after) => {
            MarkPage::Accounts(store.accounts_after(after.as_ref(), MARK_PAGE).await?)
        }
        MarkPlace::Inboxes(after) => {
            MarkPage::Inboxes(store.inboxes_after(after.as_ref(), MARK_PAGE).await?)
        }
    })
}

async fn change(
    step: &Step<'_>,
    wanted: impl Fn(&Life) -> bool,
    next: impl Fn(&Life, &Policy, Timestamp) -> Life,
) -> Result<Life, MarkError> {
    let mut tries = 0;
    loop {
        let life = step.store.life().await?;
        if wanted(&life) {
            return Ok(life);
        }
        let now = step.store.now().await?;
        let after = next(&life, step.policy, now);
        if after == life {
            return Ok(life);
        }
        let written = after.clone();
        let decide = move |world: &mut World| world.change_life(life, written);
        match step.run(Needs::default(), decide).await {
            Ok(()) => return Ok(after),
            Err(text) => tries = rest(tries, text, step.seams).await?,
        }
    }
}

/// Whatever happened to a step is seen in the store's row at the next look.
async fn rest(tries: u32, text: String, seams: &Seams) -> Result<u32, MarkError> {
    if tries >= TRIES_MAX {
        return Err(MarkError::Write(text));
    }
    seams.sleep(PAUSE * (tries + 1)).await;
    Ok(tries + 1)
}

/// What the steps of a mark share.
struct Step<'a> {
    store: &'a Store,
    policy: &'a Policy,
    seams: &'a Seams,
}

impl Step<'_> {
    /// One transaction. An error says why it may not have been written.
    async fn run<R: Send + 'static>(
        &self,
        needs: Needs,
        decide: impl FnOnce(&mut World) -> R + Send + 'static,
    ) -> Result<R, String> {
        let (id, replica) = (self.seams.random_bytes(), self.seams.random_bytes());
        let transaction = Transaction {
            batch: BatchName { bucket: 0, id, replica },
            needs,
            surroundings: Surroundings::of(self.policy.clone()),
            purpose: Purpose::Mark,
            decide: Box::new(move |world, _| decide(world)),
        };
        match self.store.transact(transaction).await {
            Ok(committed) => Ok(committed.value),
            Err(TransactError::Ambiguous(_)) => Err("the answer to a commit was lost".into()),
            Err(
                TransactError::Conflict(text)
                | TransactError::Failed(text)
                | TransactError::CountShort(text)
                | TransactError::Unavailable(text)
                | TransactError::Fatal(text),
            ) => Err(text),
        }
    }
}
