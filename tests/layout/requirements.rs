//! The table of requirements names tests that exist.

use std::{collections::BTreeSet, fs, path::Path};

use super::source::sources;

/// Names in a cell: the last part of each path, where it has the form of a test's name.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    cell.split(move |c: char| !is_part(c)).filter_map(|word| {
        let name = word.rsplit("::").next()?;
        let case = name.starts_with(['w', 'f'])
            && name[1..].starts_with(|c: char| c.is_ascii_digit())
            && name.len() > 1;
        (case || name.contains('_')).then_some(name)
    })
}

#[test]
fn every_requirement_names_tests_that_exist() {
    let mut tests = BTreeSet::new();
    for source in sources("tests").into_iter().chain(sources("src")) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&source.path);
        let text = fs::read_to_string(path).expect("a readable file");
        let functions = text.split("fn ").skip(1);
        tests.extend(functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
    }
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.md");
    let table = fs::read_to_string(table).expect("the table");
    let mut wrong = Vec::new();
    let rows = table.lines().filter(|line| line.starts_with("| R") || line.starts_with("| W"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (requirement, cell) = (cells[0], cells[cells.len() - 1]);
        if cell.is_empty() {
            wrong.push(format!("{requirement} names no test"));
        }
        for name in names(cell) {
            let whole = |test: &&String| {
                test.strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || is_boundary(name, rest))
            };
            if !tests.iter().any(|test| whole(&test)) {
                wrong.push(format!("{requirement} names {name}, which is no test"));
            }
        }
    }
    assert!(wrong.is_empty(), "tests/requirements.md:\n{}", wrong.join("\n"));
}

/// `w1` stands for `w1_cut…`, never for `w10_…`.
fn is_boundary(name: &str, rest: &str) -> bool {
    name.ends_with('_') || rest.starts_with('_')
}
