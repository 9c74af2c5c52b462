//! Source files as the layout rules see them.

use std::{fs, path::Path};

/// One file, without comments and without its tests.
pub struct Source {
    /// From the repository's root, with `/`.
    pub path: String,
    /// Its code; line numbers are kept.
    pub code: String,
}

/// All Rust files below a directory, sorted.
pub fn sources(directory: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    collect(root, &root.join(directory), &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(!found.is_empty(), "there are sources below {directory}");
    found
}

fn collect(root: &Path, directory: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("below the root");
            let text = fs::read_to_string(&path).expect("a readable file");
            let path = name.to_str().expect("a plain name").replace('\\', "/");
            found.push(Source { code: without_comments(&text), path });
        }
    }
}

/// The lines up to the test module, with comments cut off.
fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let tests = lines.peek().is_some_and(|next| next.starts_with("mod tests"));
        if line.starts_with("#[cfg(test)]") && tests {
            break;
        }
        code.push_str(without_comment(line));
        code.push('\n');
    }
    code
}

/// Cuts a line at `//`, but for the one in an address.
fn without_comment(line: &str) -> &str {
    let start = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    start.map_or(line, |(at, _)| &line[..at])
}

#[test]
fn comments_are_cut_and_addresses_are_not() {
    assert_eq!(without_comment("let a = 1; // one"), "let a = 1; ");
    assert_eq!(without_comment("let a = \"http://b\";"), "let a = \"http://b\";");
    assert_eq!(without_comments("a\n#[cfg(test)]\nmod tests {\n}\n"), "a\n");
}
