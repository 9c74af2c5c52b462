//! What an editor links with the client alone.

use std::{collections::BTreeSet, env, path::Path, process::Command};

/// Crates of a server or of a store, by the beginning of their names.
const SERVERS_OWN: [&str; 14] = [
    "axum",
    "clap",
    "deadpool",
    "figment",
    "libsqlite3-sys",
    "matchit",
    "metrics",
    "postgres",
    "ropey",
    "rusqlite",
    "tokio-postgres",
    "tonic-health",
    "tonic-reflection",
    "tower-http",
];

/// Features that bring a server into a crate which both sides use.
const SERVERS_FEATURES: [(&str, &[&str]); 3] = [
    ("tonic", &["router", "server", "transport"]),
    ("hyper", &["server"]),
    ("tokio", &["process", "signal"]),
];

#[test]
fn the_client_alone_links_no_server_and_no_store() {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--no-default-features", "--features", "client"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}|{f}"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .expect("cargo runs, as it runs this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    let tree = String::from_utf8(output.stdout).expect("names are text");
    let linked: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let (package, features) = line.split_once('|')?;
            Some((package.split(' ').next()?, features))
        })
        .collect();
    assert!(linked.iter().any(|(name, _)| *name == "tonic"), "the tree was read: {tree}");
    for (name, features) in &linked {
        let servers_own = SERVERS_OWN.iter().any(|own| name.starts_with(own));
        assert!(!servers_own, "{name} is linked by the client alone");
        let wrong = SERVERS_FEATURES.iter().filter(|(owner, _)| owner == name);
        for wrong in wrong.flat_map(|(_, wrong)| *wrong) {
            let set = features.split([',', ' ']).any(|feature| feature == *wrong);
            assert!(!set, "{name} has its feature {wrong} in the client alone");
        }
    }
}
