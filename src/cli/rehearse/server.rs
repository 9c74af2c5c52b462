//! A receiptd of our own, as a child process of this very program.
//!
//! What must stay true: the child never outlives its owner; a restart uses the same store; what the
//! child writes is read to the end, so that it never blocks on a full pipe.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinSet,
    time::timeout,
};

use super::super::Failure;
use crate::client::identity::{OperationIdentity, system_millis, system_random};
use crate::config::store_url::TypedStoreUrl;

/// A store that is recovered after a kill may take a while.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A directory that is removed with its content at the end.
#[derive(Debug)]
pub struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    /// Makes one with a name that nobody else has.
    ///
    /// # Errors
    /// When the system's directory for such things cannot be written.
    pub fn create(purpose: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("receiptd-{purpose}-{}", unique_name()));
        fs::create_dir_all(&path)
            .map_err(|error| Failure::plain(format!("{}: {error}", path.display())))?;
        Ok(TemporaryDirectory(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Where a server finds its store's URL.
const STORE_VARIABLE: &str = "RECEIPTD_STORE";

/// How the child is started, the same each time.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    arguments: Vec<String>,
    /// Told in the environment: arguments are visible to other processes.
    store: Option<TypedStoreUrl>,
    log: PathBuf,
}

impl ServerPlan {
    /// On an embedded store in a directory.
    pub fn embedded(directory: &Path) -> Self {
        let data = directory.join("data").display().to_string();
        ServerPlan {
            arguments: with_free_ports(vec!["dev".to_owned(), "--data-dir".to_owned(), data]),
            store: None,
            log: directory.join("server.log"),
        }
    }

    /// On a store of its own choice, with one token. The schema is brought up to date first.
    ///
    /// # Errors
    /// When the access file cannot be written or the store cannot be migrated.
    pub async fn on_store(
        store: &TypedStoreUrl,
        token: &str,
        directory: &Path,
    ) -> Result<Self, Failure> {
        let access = directory.join("access.toml");
        fs::write(&access, access_file(token))
            .map_err(|error| Failure::plain(format!("{}: {error}", access.display())))?;
        let migrated = Command::new(this_program()?)
            .arg("migrate")
            .env(STORE_VARIABLE, store.whole())
            .stdout(Stdio::null())
            .status()
            .await
            .map_err(|error| Failure::plain(format!("receiptd migrate: {error}")))?;
        if !migrated.success() {
            return Err(Failure::plain("the store's schema could not be brought up to date"));
        }
        let access = access.display().to_string();
        Ok(ServerPlan {
            arguments: with_free_ports(vec![
                "serve".to_owned(),
                "--access-file".to_owned(),
                access,
            ]),
            store: Some(store.clone()),
            log: directory.join("server.log"),
        })
    }
}

fn with_free_ports(mut arguments: Vec<String>) -> Vec<String> {
    let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    arguments.extend(ports.map(str::to_owned));
    arguments
}

/// A running child.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    /// Reads what the child prints after its first words.
    reading: JoinSet<()>,
}

impl Server {
    /// Starts a child and waits until it listens.
    ///
    /// # Errors
    /// When it ends before, with the end of its log.
    pub async fn start(plan: &ServerPlan) -> Result<Self, Failure> {
        let log = fs::OpenOptions::new().create(true).append(true).open(&plan.log);
        let log = log.map_err(|error| Failure::plain(format!("the server's log: {error}")))?;
        let mut child = Command::new(this_program()?)
            .args(&plan.arguments)
            .envs(plan.store.iter().map(|store| (STORE_VARIABLE, store.whole())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Failure::plain(format!("the server cannot be started: {error}")))?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::plain("no standard output"))?;
        let mut lines = BufReader::new(stdout).lines();
        let address = match timeout(START_LIMIT, read_address(&mut lines)).await {
            Ok(Some(address)) => address,
            Ok(None) | Err(_) => {
                drop(child.kill().await);
                return Err(Failure::plain(format!(
                    "the server did not start: {}",
                    end_of_log(&plan.log)
                )));
            }
        };
        let mut reading = JoinSet::new();
        reading.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Server { child, address, reading })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the child at once (SIGKILL on Unix) and waits until it is gone.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(mut self) -> Result<(), Failure> {
        self.reading.abort_all();
        self.child
            .kill()
            .await
            .map_err(|error| Failure::plain(format!("the server cannot be killed: {error}")))
    }
}

/// Reads on until the child says where it listens. None: it ended before.
async fn read_address(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<SocketAddr> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = listening_address(&line) {
            return Some(address);
        }
    }
    None
}

fn listening_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on http://")?;
    rest.split_whitespace().next()?.trim_end_matches(['/', ',', '.']).parse().ok()
}

fn end_of_log(path: &Path) -> String {
    let log = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::plain(format!("this program's own path: {error}")))
}

/// A name that nobody else has: the random end of a fresh id.
pub fn unique_name() -> String {
    let identity = OperationIdentity::mint_at(system_millis(), &system_random());
    identity.id().rsplit('-').next().unwrap_or_default().to_owned()
}

fn access_file(token: &str) -> String {
    let digest = Sha256::digest(token);
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[[token]]\nid = \"rehearse\"\nhash = \"{hash}\"\naccount = \"rehearse\"\n\
         subject = \"rehearse\"\npermissions = [\"submit\", \"read\", \"receive\", \"ack\"]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_childs_own_words() {
        let line = "receiptd: listening on http://127.0.0.1:43017 (admin http://127.0.0.1:1)";
        assert_eq!(listening_address(line).map(|address| address.port()), Some(43_017));
        assert_eq!(listening_address("listening on nothing"), None);
    }

    #[test]
    fn the_access_file_holds_a_hash_and_no_secret() {
        let file = access_file("abc");
        assert!(file.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
        assert!(!file.contains("\"abc\""));
    }
}
