//! A hint as text, as it travels between replicas.
//!
//! What must stay true: a hint is shorter than every carrier allows; one that cannot be read, as of
//! another release, means "look at everything" and is never an error. Reading it is all that is
//! done with it: no decision, no frame comes from a hint.
//!
//! The first line names the form and the sender. Each further line holds a letter for the kind, an
//! account and names of its keys, with tabs between them (no name holds a control character). A
//! line with a star stands for everything.

use std::collections::BTreeSet;

use super::{Key, outbox::Changed};
use crate::domain::{
    delivery::InboxKey,
    ids::{Account, InboxName, OperationId, Target},
    lock::TargetKey,
    operation::OperationKey,
};

/// Longest hint in bytes: NOTIFY takes less than 8,000.
pub(super) const HINT_BYTES_MAX: usize = 7_900;

const FORM: &str = "1";
const EVERYTHING: &str = "*";

/// Writes a hint.
pub(super) fn encode(sender: &str, changed: &Changed) -> String {
    let head = format!("{FORM} {sender}\n");
    let everything = format!("{head}{EVERYTHING}");
    let Changed::Keys(keys) = changed else { return everything };
    let mut text = head;
    let mut line: Option<(char, &Account)> = None;
    for key in keys {
        let (kind, account, name) = parts(key);
        if line != Some((kind, account)) {
            if line.is_some() {
                text.push('\n');
            }
            text.push(kind);
            text.push_str(account.as_str());
            line = Some((kind, account));
        }
        text.push('\t');
        text.push_str(name);
        if text.len() > HINT_BYTES_MAX {
            return everything;
        }
    }
    text
}

fn parts(key: &Key) -> (char, &Account, &str) {
    match key {
        Key::Inbox(InboxKey { account, inbox }) => ('i', account, inbox.as_str()),
        Key::Operation(OperationKey { account, id }) => ('o', account, id.as_str()),
        Key::Document(TargetKey { account, target }) => ('d', account, target.as_str()),
    }
}

/// Reads a hint: who sent it, if that can be read, and what changed.
pub(super) fn decode(text: &str) -> (Option<&str>, Changed) {
    let mut lines = text.lines();
    let sender = lines.next().and_then(|head| head.strip_prefix(FORM)?.strip_prefix(' '));
    if sender.is_none() || text.len() > HINT_BYTES_MAX {
        return (sender, Changed::Everything);
    }
    let mut all = BTreeSet::new();
    for line in lines {
        match keys(line) {
            Some(keys) => all.extend(keys),
            None => return (sender, Changed::Everything),
        }
    }
    (sender, Changed::Keys(all))
}

/// The keys of one line; `None` if it cannot be read.
fn keys(line: &str) -> Option<Vec<Key>> {
    let mut words = line.split('\t');
    let mut first = words.next()?.chars();
    let kind = first.next()?;
    let account = Account::parse(first.as_str()).ok()?;
    let mut words = words.peekable();
    words.peek()?;
    words
        .map(|name| {
            let account = account.clone();
            match kind {
                'i' if !name.is_empty() => {
                    let inbox = InboxName::parse(name).ok()?;
                    Some(Key::Inbox(InboxKey { account, inbox }))
                }
                'o' => {
                    let id = OperationId::parse(name).ok()?;
                    Some(Key::Operation(OperationKey { account, id }))
                }
                'd' => {
                    let target = Target::parse("target", name).ok()?;
                    Some(Key::Document(TargetKey { account, target }))
                }
                _ => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(account: &str, name: &str) -> Key {
        let account = Account::parse(account).expect("valid");
        Key::Inbox(InboxKey { account, inbox: InboxName::parse(name).expect("valid") })
    }

    fn operation(account: &str, id: &str) -> Key {
        let account = Account::parse(account).expect("valid");
        Key::Operation(OperationKey { account, id: OperationId::parse(id).expect("valid") })
    }

    fn document(account: &str, target: &str) -> Key {
        let account = Account::parse(account).expect("valid");
        Key::Document(TargetKey {
            account,
            target: Target::parse("target", target).expect("valid"),
        })
    }

    #[test]
    fn what_was_written_is_read() {
        let keys = [
            inbox("local", "a"),
            inbox("local", "b"),
            inbox("Büro & Söhne", "a"),
            document("local", "notes/Größe"),
            operation("local", "a"),
            operation("local", "0198c0de-0000-7000-8000-000000000001"),
        ];
        let changed = Changed::Keys(keys.into());
        let text = encode("me", &changed);
        assert_eq!(decode(&text), (Some("me"), changed));
        assert_eq!(text.matches("local").count(), 3, "an account once for each kind: {text:?}");
        let text = encode("me", &Changed::Everything);
        assert_eq!(decode(&text), (Some("me"), Changed::Everything));
    }

    #[test]
    fn what_does_not_fit_is_everything() {
        let names = |count| (0..count).map(|n| inbox(&"ä".repeat(64), &format!("{n:064}")));
        let fitting = Changed::Keys(names(100).collect());
        let text = encode("me", &fitting);
        assert!(text.len() <= HINT_BYTES_MAX, "{}", text.len());
        assert_eq!(decode(&text).1, fitting);
        for count in 101..200 {
            let text = encode("me", &Changed::Keys(names(count).collect()));
            assert!(text.len() <= HINT_BYTES_MAX, "{count}: {}", text.len());
        }
        let text = encode("me", &Changed::Keys(names(200).collect()));
        assert_eq!(decode(&text).1, Changed::Everything);
    }

    #[test]
    fn what_cannot_be_read_is_everything() {
        for text in ["", "*", "2 me\nnews", "me", "\n\n"] {
            assert_eq!(decode(text), (None, Changed::Everything), "{text:?}");
        }
        for text in [
            "1 me\n*",
            "1 me\nxlocal\ta",
            "1 me\ni\ta",
            "1 me\nilocal\t",
            "1 me\n\n",
            "1 me\nolocal\ta b",
            "1 me\nilocal\ta\nnews",
        ] {
            assert_eq!(decode(text), (Some("me"), Changed::Everything), "{text:?}");
        }
        let long = format!("1 me\nilocal{}", "\ta".repeat(HINT_BYTES_MAX));
        assert_eq!(decode(&long), (Some("me"), Changed::Everything));
    }
}
