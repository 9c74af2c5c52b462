//! A mark that is cut: nobody is served from half of it, and it goes on where it was, once for
//! each row.

use std::sync::Arc;

use receiptd::{
    config::{Config, StoreUrl},
    domain::{
        audit::{AuditChain, AuditKind},
        command::Command,
        delivery::InboxKey,
        epoch::{MarkCause, MarkPage, MarkRequest, mark_page},
        ids::{Account, InboxName},
        policy::Policy,
        record::unpack_events,
        world::{Surroundings, World, needs::Needs},
    },
    engine::{Engine, EngineSettings, seams::Seams},
    epochs::{
        marking::{self, Marked},
        restoring::{self, Look, RestoreError, Restored},
    },
    server::{open_store, open_store_for},
    store::{BatchName, Purpose, Store, Transaction},
};

use crate::{JUMP, support::stores::TestStore};

const ACCOUNTS: [&str; 3] = ["alice", "bob", "carol"];

fn request(life: &str, store: &Store) -> MarkRequest {
    MarkRequest {
        cause: MarkCause::Restore,
        subject: "operator".to_owned(),
        reason: String::new(),
        until: None,
        jumps: 1,
        epoch: life.to_owned(),
        server: restoring::server(store),
    }
}

async fn to_mark(url: &StoreUrl, seams: &Seams) -> Store {
    open_store_for(url, &Config::default(), seams, Purpose::Mark).await.expect("opens")
}

/// One step of a mark, over these rows and no others, as if it was cut right after it.
async fn one_step(store: &Store, page: MarkPage) {
    let life = store.life().await.expect("a life");
    let mark = life.mark.clone().expect("under way");
    let mut needs = Needs::default();
    page.needs().into_iter().for_each(|need| needs.add(need));
    let decide = move |world: &mut World| mark_page(world, &life, &mark, &page).map(drop);
    let transaction = Transaction {
        batch: BatchName { bucket: 0, id: Seams::system().random_bytes(), replica: [1; 16] },
        needs,
        surroundings: Surroundings::of(Policy::default()),
        purpose: Purpose::Mark,
        decide: Box::new(move |world, _| decide(world)),
    };
    store.transact(transaction).await.expect("written").value.expect("all is loaded");
}

async fn marks_of(store: &Store, account: &Account) -> usize {
    let chain = AuditChain::Account(account.clone());
    let rows = store.list_audit(&chain, 0, 100).await.expect("rows");
    let is_mark = |kind: AuditKind| kind == AuditKind::StoreMarked;
    let marks = rows.iter().filter(|row| {
        unpack_events(&row.events).expect("events").iter().any(|event| is_mark(event.kind))
    });
    marks.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    cut_at_every_place(TestStore::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    let Some(store) = TestStore::postgres().await else { return };
    cut_at_every_place(store).await;
}

async fn cut_at_every_place(test_store: TestStore) {
    let url: StoreUrl = test_store.url().parse().expect("a store");
    let seams = Seams::system();
    let policy = Policy::default();
    let inbox = |account: &str| InboxKey {
        account: Account::parse(account).expect("valid"),
        inbox: InboxName::parse("default").expect("valid"),
    };
    let store = open_store(&url, &Config::default(), &seams).await.expect("opens");
    let engine = Engine::start(store, policy.clone(), EngineSettings { lanes: 1 }, seams.clone());
    for account in ACCOUNTS {
        let consumer = receiptd::domain::ids::ConsumerId::parse("reader").expect("valid");
        let pull = Command::Pull { inbox: inbox(account), consumer, limit: 1 };
        engine.run(pull).await.expect("made");
    }
    engine.drain().await;
    let before = engine.store().facts();
    engine.store().close().await;
    drop(engine);

    // Begun, and cut before its first page.
    let store = to_mark(&url, &seams).await;
    let life = store.life().await.expect("a life");
    let begun = marking::begin(&store, &life, &request("second", &store), &policy, &seams).await;
    let floor = begun.expect("begun").loss.evidence_floor;
    store.close().await;
    refuses_to_serve(&url, &seams).await;

    // Cut behind the first account, then behind the accounts and one inbox.
    let store = to_mark(&url, &seams).await;
    let mut accounts = store.accounts_after(None, 10).await.expect("accounts");
    assert_eq!(accounts.len(), ACCOUNTS.len());
    let rest = accounts.split_off(1);
    one_step(&store, MarkPage::Accounts(accounts)).await;
    store.close().await;
    refuses_to_serve(&url, &seams).await;
    let store = to_mark(&url, &seams).await;
    let clean = restoring::declare_clean(&store, &policy, &seams).await;
    assert!(matches!(clean, Err(RestoreError::HalfMarked)), "{clean:?}");
    one_step(&store, MarkPage::Accounts(rest)).await;
    one_step(&store, MarkPage::Accounts(vec![])).await;
    let first = store.inboxes_after(None, 1).await.expect("an inbox");
    one_step(&store, MarkPage::Inboxes(first)).await;
    store.close().await;
    refuses_to_serve(&url, &seams).await;

    // Run again, it goes on; what is asked for then counts for nothing.
    let store = to_mark(&url, &seams).await;
    let restored =
        restoring::restore(&store, &request("third", &store), Look::First, &policy, &seams).await;
    let Ok(Restored::WentOn(Marked { life, accounts, inboxes })) = restored else {
        panic!("{restored:?}")
    };
    assert_eq!((life.epoch.as_str(), accounts, inboxes), ("second", 0, ACCOUNTS.len() - 1));
    store.close().await;

    let store = open_store(&url, &Config::default(), &seams).await.expect("serves again");
    let facts = store.facts();
    assert_eq!((facts.epoch.as_str(), facts.token_key), ("second", before.token_key));
    assert_eq!(facts.loss.sequence_base, JUMP);
    for name in ACCOUNTS {
        let account = Account::parse(name).expect("valid");
        let row = store.account(&account).await.expect("read").expect("there");
        assert_eq!(row.evidence_floor, floor, "{name}");
        assert_eq!(marks_of(&store, &account).await, 1, "{name}");
        let row = store.inbox(&inbox(name)).await.expect("read").expect("there");
        assert_eq!(row.next_sequence, JUMP + 1, "{name}");
        assert_eq!(row.skipped.len(), 1, "{name}");
    }
    store.close().await;
    drop((facts, Arc::new(test_store)));
}

async fn refuses_to_serve(url: &StoreUrl, seams: &Seams) {
    let refused = open_store(url, &Config::default(), seams).await;
    let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("half way") && text.contains("restore-mark"), "{text}");
}
