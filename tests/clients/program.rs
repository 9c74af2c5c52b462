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
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 2] = [Language::Python, Language::Node];

    /// The files that its guide shows.
    pub fn shown(self) -> &'static [&'static str] {
        match self {
            Language::Python => &["requirements.txt", "generate.sh", "guide.py"],
            Language::Node => &["package.json", "status.proto", "generate.sh", "guide.ts"],
        }
    }

    /// Whether it can send a stream of requests.
    pub fn has_sessions(self) -> bool {
        match self {
            Language::Python | Language::Node => true,
        }
    }

    /// The name of its folder, and of its guide.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
        }
    }

    /// What says where tests/run has installed its packages.
    fn variable(self) -> &'static str {
        match self {
            Language::Python => "RECEIPTD_TEST_PYTHON_CLIENTS",
            Language::Node => "RECEIPTD_TEST_NODE_CLIENTS",
        }
    }

    fn command(self, program: &str) -> Vec<String> {
        match self {
            Language::Python => vec!["python".to_owned(), format!("{program}.py")],
            Language::Node => vec!["node".to_owned(), format!("built/{program}.js")],
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
        let variable = language.variable();
        let Some(packages) = std::env::var_os(variable) else {
            // Past the test harness, which keeps what a passing test prints to itself.
            let text = format!("SKIPPED ({variable} is not set): tests/run fetches the packages\n");
            drop(std::io::stderr().write_all(text.as_bytes()));
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
        if language == Language::Node {
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
            Language::Node => self.packages.join("node_modules/.bin"),
        };
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(bin).chain(std::env::split_paths(&others));
        std::env::join_paths(all).expect("no colon in a path of this tree")
    }
}
