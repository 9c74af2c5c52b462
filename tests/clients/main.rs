//! Clients that strangers generate from the published protocol, each in the usual way of its
//! ecosystem, against `receiptd serve`. Skipped aloud where a toolchain is not there; tests/run
//! fetches them.
//!
//! What must stay true: every language plays the one story of `story.rs` and is held to the same
//! answers; the effect is counted in the store; and the code that a guide in `docs/clients` shows
//! is the code that runs here.

#[path = "../support/mod.rs"]
mod support;

mod guides;
mod program;
#[path = "rust/guide.rs"]
mod rust;
mod story;

use program::Language;
use support::stores::TestStore;

/// One language: its story on both stores, and its guide.
macro_rules! language {
    ($name:ident, $language:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn plays_the_story_on_sqlite() {
                story::play($language, &TestStore::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn plays_the_story_on_postgres() {
                let Some(store) = TestStore::postgres().await else { return };
                story::play($language, &store).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn guide_submits_retries_reads_and_acks() {
                guides::run($language).await;
            }
        }
    };
}

language!(python, Language::Python);
language!(node, Language::Node);
language!(web, Language::Web);
