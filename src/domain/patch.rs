//! JSON Patch (RFC 6902) within bounds.
//!
//! What must stay true: a patch cannot grow a document much beyond its limit, in size or depth,
//! even between two of its operations. `copy` doubles whatever it is pointed at, so that a few
//! dozen operations could otherwise exhaust memory, or nest deeper than any later walk can follow.
//! Deliberately not here: what the operations mean; that is the library's.

use std::io;

use json_patch::PatchOperation;
use serde_json::Value;

use super::{
    json::DEPTH_MAX,
    operation::{Rejection, RejectionReason},
};

/// Applies `patch` to `value`, operation by operation.
///
/// # Errors
/// PATCH_FAILED for an operation that does not apply or would nest too deep; DOCUMENT_TOO_LARGE
/// once its copies and moves add up to more than `bytes_max`.
pub(super) fn apply(
    value: &mut Value,
    patch: &json_patch::Patch,
    bytes_max: usize,
) -> Result<(), Rejection> {
    let mut budget = bytes_max;
    for (place, operation) in patch.0.iter().enumerate() {
        check_depth(value, operation, place)?;
        spend(value, operation, &mut budget)?;
        if let PatchOperation::Test(test) = operation {
            let found = value.pointer(test.path.as_str());
            if !found.is_some_and(|found| same(found, &test.value)) {
                return Err(failed(place, "finds another value than it tests for"));
            }
            continue;
        }
        json_patch::patch(value, std::slice::from_ref(operation))
            .map_err(|_| failed(place, "does not apply"))?;
    }
    Ok(())
}

/// Equal as RFC 6902 section 4.6 says: numbers by their value, whatever their spelling. Both values
/// passed the guard of the digest, so that comparing them as doubles loses nothing.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(ones), Value::Array(others)) => {
            ones.len() == others.len()
                && ones.iter().zip(others).all(|(one, other)| same(one, other))
        }
        (Value::Object(ones), Value::Object(others)) => {
            let matches = |(key, one)| others.get(key).is_some_and(|other| same(one, other));
            ones.len() == others.len() && ones.iter().all(matches)
        }
        (one, other) => one == other,
    }
}

fn failed(place: usize, what: &str) -> Rejection {
    Rejection {
        reason: RejectionReason::PatchFailed,
        text: format!("operation {place} of the patch {what}"),
        found_revision: None,
    }
}

/// What the operation would put under its path must not nest deeper than JSON is accepted.
fn check_depth(value: &Value, operation: &PatchOperation, place: usize) -> Result<(), Rejection> {
    let (path, put) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, value.pointer(copy.from.as_str())),
        PatchOperation::Move(moved) => (&moved.path, value.pointer(moved.from.as_str())),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    // An absent source fails by itself.
    let depth = path.count() + put.map_or(0, depth);
    if depth > DEPTH_MAX {
        return Err(failed(place, &format!("would nest deeper than {DEPTH_MAX} levels")));
    }
    Ok(())
}

/// Levels of arrays and objects. The walk itself is bounded: no value here is deeper than
/// [`DEPTH_MAX`], which the guard of parsing and this module see to.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Takes what a copy or move carries from the budget: what it carries is also what it costs.
fn spend(value: &Value, operation: &PatchOperation, budget: &mut usize) -> Result<(), Rejection> {
    let from = match operation {
        PatchOperation::Copy(copy) => &copy.from,
        PatchOperation::Move(moved) => &moved.from,
        PatchOperation::Add(_)
        | PatchOperation::Replace(_)
        | PatchOperation::Remove(_)
        | PatchOperation::Test(_) => return Ok(()),
    };
    let size = value.pointer(from.as_str()).map_or(0, size);
    match budget.checked_sub(size) {
        Some(rest) => {
            *budget = rest;
            Ok(())
        }
        None => Err(Rejection {
            reason: RejectionReason::DocumentTooLarge,
            text: "the patch copies and moves more than a document may hold".to_owned(),
            found_revision: None,
        }),
    }
}

/// The size of a value as text, without writing it.
fn size(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and a value parsed from JSON can be written as JSON.
    drop(serde_json::to_writer(&mut count, value));
    count.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(value: Value, patch: Value) -> Result<Value, &'static str> {
        let patch: json_patch::Patch = serde_json::from_value(patch).expect("a patch");
        let mut value = value;
        apply(&mut value, &patch, 1_000).map_err(|rejection| rejection.reason.word())?;
        Ok(value)
    }

    #[test]
    fn a_patch_means_what_the_library_says() {
        let patch = json!([
            { "op": "test", "path": "/a", "value": 1 },
            { "op": "copy", "from": "/a", "path": "/b" },
            { "op": "move", "from": "/a", "path": "/c" },
            { "op": "replace", "path": "/b", "value": [] },
            { "op": "add", "path": "/b/-", "value": 2 },
            { "op": "remove", "path": "/c" }
        ]);
        assert_eq!(patched(json!({ "a": 1 }), patch), Ok(json!({ "b": [2] })));
        let numbers = json!([{ "op": "test", "path": "/a", "value": [1.0, { "b": 2 }] }]);
        assert!(patched(json!({ "a": [1, { "b": 2.0 }] }), numbers.clone()).is_ok());
        assert_eq!(patched(json!({ "a": [1, { "b": 3 }] }), numbers), Err("PATCH_FAILED"));
        let absent = json!([{ "op": "copy", "from": "/x", "path": "/y" }]);
        assert_eq!(patched(json!({}), absent), Err("PATCH_FAILED"));
    }

    #[test]
    fn copies_that_double_stop_at_the_limit() {
        let grow =
            |number: usize| json!({ "op": "copy", "from": "", "path": format!("/k{number}") });
        let patch = Value::Array((0..200).map(grow).collect());
        assert_eq!(patched(json!({ "a": "x" }), patch), Err("DOCUMENT_TOO_LARGE"));
    }

    #[test]
    fn nesting_stops_at_the_limit() {
        let deeper = |levels: usize| {
            let path = "/a".repeat(levels);
            json!({ "op": "add", "path": path, "value": { "a": {} } })
        };
        let patch = Value::Array((1..62).map(deeper).collect());
        assert!(patched(json!({}), patch).is_ok(), "sixty-four levels are allowed");
        let patch = Value::Array((1..80).map(deeper).collect());
        assert_eq!(patched(json!({}), patch), Err("PATCH_FAILED"));
        let doubling: Vec<Value> = (0..12)
            .map(|power| {
                let path = "/a".repeat(1 << power);
                json!({ "op": "copy", "from": "", "path": path })
            })
            .collect();
        assert_eq!(patched(json!({}), Value::Array(doubling)), Err("PATCH_FAILED"));
    }
}
