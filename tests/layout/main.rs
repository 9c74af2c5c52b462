//! The arrows and habits of ARCHITECTURE.md, as tables.
//!
//! What must stay true: every file under `src/` stands in a room of this table, uses only the
//! rooms its row names, and holds no word that another room owns. An exception is a row with a
//! reason.

mod imports;
mod linked;
mod requirements;
mod source;

use std::collections::BTreeSet;

use imports::crate_paths;
use source::{Source, sources};

/// What a room may use of this crate.
enum Uses {
    /// These rooms, or parts of them.
    Only(&'static [&'static str]),
    /// Everything, since it puts the rooms together.
    Everything,
}

/// A room and its arrows; the first row whose path fits counts.
struct Room {
    path: &'static str,
    uses: Uses,
}

const ROOMS: &[Room] = &[
    Room { path: "src/domain/", uses: Uses::Only(&["domain"]) },
    Room { path: "src/verify", uses: Uses::Only(&["verify", "store", "domain"]) },
    Room { path: "src/store/", uses: Uses::Only(&["store", "domain", "engine::seams"]) },
    Room { path: "src/engine/seams.rs", uses: Uses::Only(&["domain"]) },
    Room {
        path: "src/engine/",
        uses: Uses::Only(&["engine", "store", "domain", "wake", "telemetry"]),
    },
    Room {
        path: "src/wake",
        uses: Uses::Only(&["wake", "domain", "store", "engine::seams", "telemetry"]),
    },
    Room {
        path: "src/stream",
        uses: Uses::Only(&[
            "stream",
            "engine",
            "domain",
            "wake",
            "store::query",
            "store::ReadError",
            "telemetry",
        ]),
    },
    Room {
        path: "src/sweeper",
        uses: Uses::Only(&[
            "sweeper",
            "engine",
            "domain",
            "wake",
            "store::query",
            "store::ReadError",
            "telemetry",
        ]),
    },
    Room { path: "src/epochs", uses: Uses::Only(&["epochs", "engine", "domain", "store"]) },
    Room {
        path: "src/api/",
        uses: Uses::Only(&[
            "api",
            "engine",
            "domain",
            "wake",
            "stream",
            "sweeper",
            "store::query",
            "store::ReadError",
            "verify",
            "proto",
            "telemetry",
        ]),
    },
    Room { path: "src/http", uses: Uses::Only(&["http", "engine", "domain", "telemetry"]) },
    Room { path: "src/codec.rs", uses: Uses::Only(&["codec"]) },
    Room { path: "src/client", uses: Uses::Only(&["client", "proto"]) },
    Room { path: "src/telemetry", uses: Uses::Only(&["telemetry"]) },
    Room { path: "src/config", uses: Uses::Only(&["config", "domain", "telemetry::process"]) },
    Room { path: "src/lib.rs", uses: Uses::Everything },
    Room { path: "src/main.rs", uses: Uses::Everything },
    Room { path: "src/server", uses: Uses::Everything },
    Room { path: "src/cli", uses: Uses::Everything },
];

/// Words that only some rooms may hold.
struct Owned {
    words: &'static [&'static str],
    /// Where the rule holds; empty for everywhere.
    within: &'static str,
    /// Who may, and why.
    owners: &'static [(&'static str, &'static str)],
}

const OWNED: &[Owned] = &[
    Owned {
        words: &["tokio::", "tokio_util::", "tonic::", "async fn", "async move", ".await"],
        within: "src/domain/",
        owners: &[],
    },
    Owned {
        words: &["tonic::", "tonic_types::", "tonic_health::", "tonic_reflection::", "tonic_web::"],
        within: "",
        owners: &[
            ("src/api/", "the room that speaks gRPC"),
            ("src/client", "the room that calls over gRPC"),
            ("src/server", "hands the services to a listener"),
            ("src/cli", "shows the client's refusals"),
            ("src/lib.rs", "includes the generated protocol"),
            ("src/codec.rs", "how its messages are buffered"),
        ],
    },
    Owned {
        words: &["SELECT ", "INSERT INTO ", "DELETE FROM ", "ON CONFLICT", "CREATE TABLE"],
        within: "",
        owners: &[("src/store/", "all SQL stands here")],
    },
    Owned {
        words: &[
            "Status::new(",
            "Status::with_",
            "Status::internal(",
            "Status::invalid_argument(",
            "Status::unavailable(",
            "Status::unauthenticated(",
            "Status::permission_denied(",
            "Status::not_found(",
            "Status::aborted(",
            "Status::failed_precondition(",
            "Status::resource_exhausted(",
            "Status::already_exists(",
            "Status::unknown(",
            "Status::cancelled(",
            "Status::deadline_exceeded(",
        ],
        within: "",
        owners: &[
            ("src/api/status.rs", "the one file that builds a Status"),
            ("src/client", "answers its own caller"),
        ],
    },
    Owned {
        words: &["SystemTime::now", "std::time::Instant", "getrandom::"],
        within: "",
        owners: &[
            ("src/engine/seams.rs", "the seam itself"),
            ("src/client", "mints ids on the caller's clock; it never decides"),
            ("src/cli", "the caller's side of the command line"),
        ],
    },
    Owned { words: &["todo!(", "unimplemented!(", "dbg!(", "unsafe {"], within: "", owners: &[] },
    Owned {
        words: &["#[allow(", "#![allow("],
        within: "",
        owners: &[("src/lib.rs", "generated code is not ours to lint")],
    },
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// Lines of a file without its tests: in general, and with an exception or in `tests/`.
const LINES_MAX: usize = 500;
const LINES_MAX_EXCEPTION: usize = 600;
/// Files above the first limit, each with a reason.
const LONG_FILES: &[(&str, &str)] = &[];

#[test]
fn every_room_uses_only_what_its_arrows_allow() {
    let mut wrong = Vec::new();
    for Source { path, code, .. } in sources("src") {
        let Some(room) = ROOMS.iter().find(|room| path.starts_with(room.path)) else {
            wrong.push(format!("{path} stands in no room of the table"));
            continue;
        };
        let Uses::Only(allowed) = room.uses else { continue };
        let used: BTreeSet<String> = crate_paths(&code).into_iter().collect();
        let fits = |used: &str, allowed: &str| {
            used == allowed || used.starts_with(&format!("{allowed}::"))
        };
        for used in used {
            if !allowed.iter().any(|allowed| fits(&used, allowed)) {
                wrong.push(format!("{path} uses crate::{used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

#[test]
fn words_stand_only_where_they_are_owned() {
    let mut wrong = Vec::new();
    for Source { path, code, .. } in sources("src") {
        for rule in OWNED.iter().filter(|rule| path.starts_with(rule.within)) {
            if rule.owners.iter().any(|(owner, _)| path.starts_with(owner)) {
                continue;
            }
            for (number, line) in code.lines().enumerate() {
                for word in rule.words.iter().filter(|word| line.contains(**word)) {
                    wrong.push(format!("{path}:{}: {word}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "words outside their rooms:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_short_and_named_after_what_they_hold() {
    let mut wrong = Vec::new();
    for Source { path, code, .. } in sources("src").into_iter().chain(sources("tests")) {
        let exception =
            path.starts_with("tests/") || LONG_FILES.iter().any(|(long, _)| path == *long);
        let limit = if exception { LINES_MAX_EXCEPTION } else { LINES_MAX };
        let lines = code.lines().count();
        if lines > limit {
            wrong.push(format!("{path} has {lines} lines without its tests; {limit} are enough"));
        }
        let names = path.trim_end_matches(".rs").split('/');
        for name in names.filter(|name| EMPTY_NAMES.contains(name)) {
            wrong.push(format!("{path}: {name} names nothing"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_exception_is_still_needed() {
    let all = sources("src");
    for (long, _) in LONG_FILES {
        let lines = all.iter().find(|source| source.path == *long).map(|s| s.code.lines().count());
        assert!(lines.is_some_and(|lines| lines > LINES_MAX), "{long} needs no exception");
    }
}
