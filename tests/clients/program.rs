//! A client program: what it needs, how it is built from the published protocol, and how it runs.
//!
//! What must stay true: nothing generated is kept from one run to the next, so that a program
//! always speaks the protocol of this tree; each run has a bound.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, Weak},
};

use tempfile::TempDir;

/// After this many seconds `timeout` ends a step: the longest takes far less on a busy machine.
const SECONDS_MAX: &str = "90";

/// An ecosystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// grpcio.
    Python,
    /// TypeScript on Node, over @grpc/grpc-js with @grpc/proto-loader.
    Node,
    /// A page in a browser, over gRPC-Web with Connect's client; Node stands in for the browser.
    Web,
}

/// The page's origin.
const ORIGIN: &str = "https://editor.example";

impl Language {
    /// All of them.
    pub const ALL: [Language; 3] = [Language::Python, Language::Node, Language::Web];

    /// The files that its guide shows.
    pub fn shown(self) -> &'static [&'static str] {
        match self {
            Language::Python => &["requirements.txt", "generate.sh", "guide.py"],
            Language::Node => &["package.json", "status.proto", "generate.sh", "guide.ts"],
            Language::Web => {
                &["package.json", "status.proto", "buf.gen.yaml", "generate.sh", "guide.ts"]
            }
        }
    }

    /// Whether it can send a stream of requests.
    pub fn has_sessions(self) -> bool {
        match self {
            Language::Python | Language::Node => true,
            // No browser sends a request before it has ended.
            Language::Web => false,
        }
    }

    /// The code of a call whose connection was lost.
    pub fn lost(self) -> &'static str {
        match self {
            Language::Python | Language::Node => "UNAVAILABLE",
            // A page does not learn why it has no answer.
            Language::Web => "UNKNOWN",
        }
    }

    /// What its guide prints when the answer of its submit was lost once.
    pub fn printed(self) -> &'static str {
        match self {
            Language::Python | Language::Node => {
                "ORIGIN_REPLAYED STATE_APPLIED\nnew 1 STATE_APPLIED\nACK_OUTCOME_ACKED\n"
            }
            Language::Web => "REPLAYED APPLIED\nnew 1 APPLIED\nACKED\n",
        }
    }

    /// What the server needs to be told.
    pub fn flags(self) -> Vec<String> {
        match self {
            Language::Python | Language::Node => Vec::new(),
            Language::Web => vec![format!("--web-origins={ORIGIN}")],
        }
    }

    /// The name of its folder, and of its guide.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
            Language::Web => "web",
        }
    }

    /// What says where tests/run has installed its packages.
    fn variable(self) -> &'static str {
        match self {
            Language::Python => "RECEIPTD_TEST_PYTHON_CLIENTS",
            Language::Node => "RECEIPTD_TEST_NODE_CLIENTS",
            Language::Web => "RECEIPTD_TEST_WEB_CLIENTS",
        }
    }

    fn command(self, program: &str) -> Vec<String> {
        match self {
            Language::Python => vec!["python".to_owned(), format!("{program}.py")],
            Language::Node => vec!["node".to_owned(), format!("built/{program}.js")],
            // The guide is a page's; something has to open it.
            Language::Web if program == "guide" => self.command("page"),
            Language::Web => vec!["node".to_owned(), format!("built/{program}.js")],
        }
    }
}

/// The root of this tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A language's programs, generated and built in a directory of their own.
pub struct Programs {
    language: Language,
    packages: PathBuf,
    directory: TempDir,
}

impl Programs {
    /// Those of a test that still runs, or built now; `None`, aloud, where the packages are not
    /// there.
    pub fn of(language: Language) -> Option<Arc<Programs>> {
        static BUILT: Mutex<BTreeMap<Language, Weak<Programs>>> = Mutex::new(BTreeMap::new());
        let mut built = BUILT.lock().expect("a build that failed fails the others");
        let shared = built.get(&language).and_then(Weak::upgrade);
        let programs = shared.or_else(|| Programs::build(language).map(Arc::new))?;
        built.insert(language, Arc::downgrade(&programs));
        Some(programs)
    }

    fn build(language: Language) -> Option<Programs> {
        if language == Language::Web && !server_takes_pages() {
            skipped("this server has no setting for web origins yet");
            return None;
        }
        let variable = language.variable();
        let Some(packages) = std::env::var_os(variable) else {
            skipped(&format!("{variable} is not set: tests/run fetches the packages"));
            return None;
        };
        let directory = TempDir::with_prefix("receiptd-client-").expect("a temporary directory");
        let here = directory.path();
        let sources = root().join("tests/clients").join(language.name());
        for entry in fs::read_dir(sources).expect("the programs of a language") {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a file has a name");
            fs::copy(&path, here.join(name)).expect("a copy of a program");
        }
        symlink(root().join("proto"), here.join("proto")).expect("a link to the protocol");
        let packages = PathBuf::from(packages);
        if language != Language::Python {
            let modules = packages.join("node_modules");
            symlink(modules, here.join("node_modules")).expect("a link to the packages");
        }
        let programs = Programs { language, packages, directory };
        programs.run(&["sh".to_owned(), "-e".to_owned(), "generate.sh".to_owned()], &[]);
        Some(programs)
    }

    /// Runs a program to its end, which must be a good one; what it printed.
    pub fn play(&self, program: &str, variables: &[(&str, String)]) -> String {
        self.run(&self.language.command(program), variables)
    }

    fn run(&self, words: &[String], variables: &[(&str, String)]) -> String {
        let mut command = Command::new("timeout");
        command.arg(SECONDS_MAX).args(words).current_dir(self.directory.path());
        command.stdin(Stdio::null()).env("PATH", self.path());
        match self.language {
            Language::Python => {
                command.env("PYTHONPATH", "generated").env("PYTHONDONTWRITEBYTECODE", "1");
            }
            Language::Node => {}
            Language::Web => {
                command.env("RECEIPTD_ORIGIN", ORIGIN);
            }
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = command.output().expect("timeout is there");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{text}\n{errors}", output.status);
        text
    }

    /// The packages' own programs first.
    fn path(&self) -> OsString {
        let bin = match self.language {
            Language::Python => self.packages.join("bin"),
            Language::Node | Language::Web => self.packages.join("node_modules/.bin"),
        };
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(bin).chain(std::env::split_paths(&others));
        std::env::join_paths(all).expect("no colon in a path of this tree")
    }
}

/// Says why nothing is checked, past the test harness, which keeps what a passing test prints to
/// itself; on a line of its own, after the harness's dots.
pub fn skipped(why: &str) {
    drop(std::io::stderr().write_all(format!("\nSKIPPED ({why})\n").as_bytes()));
}

/// Whether web pages can be let in at all.
fn server_takes_pages() -> bool {
    let mut help = Command::new(env!("CARGO_BIN_EXE_receiptd"));
    let output = help.args(["serve", "--help"]).output().expect("the server's help");
    String::from_utf8_lossy(&output.stdout).contains("--web-origins")
}
