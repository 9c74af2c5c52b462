//! Which parts of this crate a file names.

/// Every path that begins with `crate::`, as its first two names: `store::query`, or `domain`.
/// Groups are taken apart: `crate::{a::b, c}` names `a::b` and `c`.
pub fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        expand("", &code[at + "crate::".len()..], &mut paths);
    }
    paths
}

/// Reads one use-tree at the start of `code` and returns what is left behind it.
fn expand<'a>(prefix: &str, code: &'a str, paths: &mut Vec<String>) -> &'a str {
    let mut rest = code.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        rest = group.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            let after = expand(prefix, rest, paths).trim_start();
            // A rename or anything else that is not a path ends at the next comma or brace.
            let end = after.find([',', '}']).unwrap_or(after.len());
            rest = after[end..].trim_start_matches(',').trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let path = match (prefix.is_empty(), prefix.contains("::")) {
        (true, _) => name.to_owned(),
        (false, false) => format!("{prefix}::{name}"),
        (false, true) => prefix.to_owned(),
    };
    match rest.strip_prefix("::") {
        Some(deeper) => expand(&path, deeper, paths),
        None => {
            paths.push(path);
            rest
        }
    }
}

#[test]
fn groups_are_taken_apart() {
    let code = "use crate::{\n    domain::{ids::Span, inbox},\n    wake,\n};\nlet a = crate::store::query::Due::x();";
    assert_eq!(crate_paths(code), ["domain::ids", "domain::inbox", "wake", "store::query"]);
    assert_eq!(
        crate_paths("use crate::store::{self, Store as S, query};"),
        ["store::self", "store::Store", "store::query"]
    );
    assert!(crate_paths("use other_crate::store;").is_empty());
}
