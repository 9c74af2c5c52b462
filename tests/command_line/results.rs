//! `receiptd get --result`: the body of a result, whole, or nothing.

use std::fs;

use tempfile::TempDir;

use crate::{
    program::{Ended, receiptd_in},
    support::{
        requests::Identity,
        server::{Server, TOKEN_A},
        stores::{TestStore, on_both_stores},
    },
};

on_both_stores!(
    a_result_is_written_as_it_is_to_a_file_or_to_standard_output,
    a_result_that_cannot_be_had_leaves_no_file,
);

/// A server, and a folder in which its commands run.
struct Place {
    server: Server,
    folder: TempDir,
}

impl Place {
    fn on(store: &TestStore) -> Place {
        let folder = TempDir::new().expect("a temporary directory");
        Place { server: store.serve(&[]), folder }
    }

    fn call(&self, words: &[&str]) -> Ended {
        let endpoint = format!("http://{}", self.server.address());
        let variables = [("RECEIPTD_ENDPOINT", endpoint.as_str()), ("RECEIPTD_TOKEN", TOKEN_A)];
        tokio::task::block_in_place(|| receiptd_in(self.folder.path(), &variables, words))
    }

    /// Submits under a fresh id, and hands it out.
    fn submitted(&self, words: &[&str]) -> String {
        let id = Identity::fresh().id;
        self.call(&[&["submit", "--id", &id], words].concat()).expect(0, &["APPLIED"]);
        id
    }
}

async fn a_result_is_written_as_it_is_to_a_file_or_to_standard_output(store: TestStore) {
    let place = Place::on(&store);
    let file = place.folder.path().join("result");
    // More than travels with an answer, a little, and nothing; each over what was there before.
    let large = "ä line without an end ".repeat(4_500);
    for content in [large.as_str(), "no line feed", ""] {
        let arguments = serde_json::json!({ "content": content }).to_string();
        let put = ["document.put", "a", arguments.as_str(), "--result", "content"];
        let id = place.submitted(&put);
        // What the document becomes later is not what was the result then.
        place.submitted(&["document.put", "a", "{\"content\":\"later\"}"]);
        let saved = place.call(&["get", &id, "--result", "result"]);
        assert_eq!(saved.expect(0, &[]).stdout, "");
        assert!(fs::read(&file).expect("written") == content.as_bytes(), "{}", content.len());
        let printed = place.call(&["get", &id, "--result", "-"]);
        assert!(printed.expect(0, &[]).stdout == content, "{}", content.len());
    }
    assert!(!place.folder.path().join("-").exists(), "- is no file");
}

async fn a_result_that_cannot_be_had_leaves_no_file(store: TestStore) {
    let place = Place::on(&store);
    let without = place.submitted(&["document.append", "a", "{\"line\":\"x\"}"]);
    let absent = Identity::fresh().id;
    for (id, code, told) in [
        (&without, 1, &["RESULT_NOT_KEPT", "(next step: READ_CURRENT_STATE)"][..]),
        (&absent, 5, &["NO_SUCH_OPERATION", &absent]),
    ] {
        let ended = place.call(&["get", id, "--result", "result"]);
        assert_eq!(ended.expect(code, told).stdout, "");
        assert!(!place.folder.path().join("result").exists(), "{id}");
    }
    let put = ["document.put", "b", "{\"content\":\"x\"}", "--result", "content"];
    let id = place.submitted(&put);
    let ended = place.call(&["get", &id, "--result", "nowhere/result"]);
    ended.expect(1, &["the result could not be written to nowhere/result: "]);
}
