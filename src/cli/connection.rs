//! What the commands that call a service share: where it is, who calls, which operation, and
//! which exit code an outcome has.
//!
//! What must stay true: a token is never printed; an exit code says what is known of the effect,
//! so that a script never has to read prose.

use std::{
    convert::Infallible,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::{EXIT_FAILURE, EXIT_USAGE, Failure, output::program, values::duration};
use crate::{
    client::{
        connect::{Client, ConnectOptions, Keepalive, Secret, Trust},
        identity::{IdentityError, OperationIdentity, millis_of},
        retry::RetryLimits,
    },
    proto::operation::State,
};

/// Where a service listens unless told otherwise.
const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:7070";
/// How long a call may take unless told otherwise: a person waits no longer without a word.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The operation was rejected or cancelled: no effect.
pub const EXIT_REJECTED: u8 = 3;
/// The id is bound to another intent.
pub const EXIT_CONFLICT: u8 = 4;
/// The outcome is not known.
pub const EXIT_UNKNOWN: u8 = 5;
/// The operation had not ended when the time was up.
pub const EXIT_PENDING: u8 = 6;

/// The end of every `--help` of a command whose exit code tells an outcome.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  applied (or the command did what it was asked)
  1  anything that has no other code
  2  wrong arguments, or the request is not valid
  3  rejected or cancelled: no effect
  4  the id is bound to another intent
  5  the outcome is not known: look up the same id
  6  not ended yet when the time was up";

/// What operators say with every command about an account.
#[derive(Debug, Clone, Args)]
pub struct OperatorArgs {
    /// The account that is meant; the caller's own without it.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub account: String,
    #[command(flatten)]
    /// Where the service is.
    pub connect: ConnectArgs,
    #[command(flatten)]
    /// How the answer is printed.
    pub output: OutputArgs,
}

/// Where the service is and who calls it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// Where the service listens: http://HOST:PORT, or https://HOST:PORT.
    #[arg(long, env = "RECEIPTD_ENDPOINT", default_value = DEFAULT_ENDPOINT)]
    pub endpoint: String,
    /// The bearer token. Prefer --token-file: arguments are visible to other processes.
    #[arg(long, env = "RECEIPTD_TOKEN", hide_env_values = true, conflicts_with = "token_file",
        value_parser = parse_secret)]
    pub token: Option<Secret>,
    /// A file that holds the bearer token.
    #[arg(long, env = "RECEIPTD_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// The certificate authorities to trust instead of the public ones, in PEM.
    #[arg(long, env = "RECEIPTD_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// How long a call may take, repeats and --wait included [default: 30s, --wait on top]
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
}

impl ConnectArgs {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    /// [`Failure`] when a file cannot be read or the endpoint cannot be used.
    pub fn client(&self) -> Result<Client, Failure> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(path)) => {
                let text = String::from_utf8(read_file("--token-file", path)?);
                let text = text.map_err(|_| unusable("--token-file", path, "is not text"))?;
                Some(Secret::new(text.trim()))
            }
            (None, None) => None,
        };
        let trust = match &self.ca_file {
            Some(path) => Trust::Authorities(authorities(path)?),
            None => Trust::PublicRoots,
        };
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT);
        let options = ConnectOptions {
            token,
            trust,
            certificate: None,
            keepalive: Keepalive::WhileBusy,
            connect_timeout: timeout.min(Duration::from_secs(5)),
            limits: RetryLimits {
                total: timeout,
                attempts: 20,
                per_attempt: timeout.min(Duration::from_secs(10)),
                // A person who forgot to start the service should learn it soon.
                unreachable: Duration::from_secs(3),
            },
        };
        Client::connect(&self.endpoint, options).map_err(|error| {
            Failure::new(EXIT_USAGE, format!("--endpoint (or RECEIPTD_ENDPOINT): {error}"))
        })
    }

    /// The command that asks what became of an operation, ready to paste.
    pub fn get_command(&self, identity: &OperationIdentity) -> String {
        let mut command = format!("{} get {}", program(), identity.id());
        if identity.wire_mint_time().is_some() {
            command.push_str(&format!(" --mint-time {}", identity.mint_time_ms()));
        }
        if self.endpoint != DEFAULT_ENDPOINT {
            command.push_str(&format!(" --endpoint {}", self.endpoint));
        }
        if let Some(path) = &self.token_file {
            command.push_str(&format!(" --token-file {}", path.display()));
        }
        if let Some(path) = &self.ca_file {
            command.push_str(&format!(" --ca-file {}", path.display()));
        }
        command
    }
}

/// The bytes of a file that an option names.
///
/// # Errors
/// [`Failure`] that names both.
pub fn read_file(option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => unusable(option, path, "there is no such file"),
        _ => unusable(option, path, &format!("cannot be read: {error}")),
    })
}

fn unusable(option: &str, path: &Path, problem: &str) -> Failure {
    Failure::new(EXIT_USAGE, format!("{option} {}: {problem}", path.display()))
}

/// The file's bytes, once it is known that each certificate in it can be used.
fn authorities(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |problem: &str| unusable("--ca-file", path, problem);
    let bytes = read_file("--ca-file", path)?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate =
            certificate.map_err(|error| failed(&format!("cannot be read as PEM: {error}")))?;
        roots.add(certificate).map_err(|_| failed("holds something that is no certificate"))?;
    }
    if roots.is_empty() {
        return Err(failed("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(bytes)
}

fn parse_secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text.trim()))
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Table,
    /// For programs: the field names of the protocol's JSON, numbers as numbers.
    Json,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// How the answer is printed.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: OutputFormat,
}

/// Which operation.
#[derive(Debug, Clone, Args)]
pub struct IdentityArgs {
    /// The operation's id.
    pub id: String,
    /// When the id was made: RFC 3339 or milliseconds since 1970. Needed unless it is a UUIDv7.
    #[arg(long, value_parser = parse_mint_time)]
    pub mint_time: Option<i64>,
}

impl IdentityArgs {
    /// The identity.
    ///
    /// # Errors
    /// [`Failure`] when the id is not valid or its mint time is missing.
    pub fn identity(&self) -> Result<OperationIdentity, Failure> {
        identity_of(&self.id, self.mint_time)
    }
}

/// The identity of an id and the time it was made.
///
/// # Errors
/// [`Failure`] when the id is not valid or its mint time is missing.
pub fn identity_of(id: &str, mint_time: Option<i64>) -> Result<OperationIdentity, Failure> {
    OperationIdentity::from_parts(id, mint_time).map_err(|error| match error {
        IdentityError::MintTimeMissing => Failure::new(
            EXIT_USAGE,
            format!(
                "{error}: give the one it was submitted with, as --mint-time (RFC 3339, or \
                 milliseconds since 1970)"
            ),
        ),
        IdentityError::MintTimeDiffers => Failure::new(
            EXIT_USAGE,
            format!("{error}: leave --mint-time out, or correct one of them"),
        ),
        IdentityError::Characters => Failure::new(EXIT_USAGE, error),
    })
}

/// Reads a mint time, in milliseconds since 1970.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn parse_mint_time(text: &str) -> Result<i64, String> {
    if let Ok(millis) = text.parse::<i64>() {
        return Ok(millis);
    }
    text.parse::<prost_types::Timestamp>()
        .map(|time| millis_of(&time))
        .map_err(|_| "neither RFC 3339 nor milliseconds since 1970".to_owned())
}

/// The exit code of a state.
pub fn exit_of_state(state: State) -> ExitCode {
    ExitCode::from(match state {
        State::Applied => 0,
        State::Rejected | State::Cancelled => EXIT_REJECTED,
        State::Failed => EXIT_FAILURE,
        State::Unknown | State::Unspecified => EXIT_UNKNOWN,
        State::Accepted | State::Running => EXIT_PENDING,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(endpoint: &str) -> ConnectArgs {
        ConnectArgs {
            endpoint: endpoint.to_owned(),
            token: None,
            token_file: None,
            ca_file: None,
            timeout: Some(Duration::from_secs(1)),
        }
    }

    #[test]
    fn a_token_never_shows() {
        use clap::Parser;
        for line in ["get", "cancel", "watch"] {
            let line = ["receiptd", line, "a", "--mint-time", "5", "--token", "canary"];
            let parsed = super::super::Cli::try_parse_from(line).expect("good arguments");
            assert!(!format!("{parsed:?}").contains("canary"));
        }
        let mut with_token = connection(DEFAULT_ENDPOINT);
        with_token.token = Some(Secret::new("canary"));
        let identity = OperationIdentity::mint_at(1, &[0; 10]);
        assert!(!with_token.get_command(&identity).contains("canary"));
    }

    #[test]
    fn the_look_up_is_ready_to_paste() {
        let identity = OperationIdentity::from_caller("save:1", 5).expect("a valid identity");
        assert_eq!(
            connection("http://other:1").get_command(&identity),
            format!("{} get save:1 --mint-time 5 --endpoint http://other:1", program())
        );
        let minted = OperationIdentity::mint_at(1, &[0; 10]);
        assert_eq!(
            connection(DEFAULT_ENDPOINT).get_command(&minted),
            format!("{} get {minted}", program())
        );
    }

    #[test]
    fn mint_times_are_read_in_both_forms() {
        assert_eq!(parse_mint_time("1500"), Ok(1_500));
        assert_eq!(parse_mint_time("1970-01-01T00:00:01.5Z"), Ok(1_500));
        assert!(parse_mint_time("yesterday").is_err());
    }
}
