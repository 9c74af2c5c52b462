//! Who calls: the account comes from credentials alone (R3).
//!
//! What must stay true: a handler gets its account from [`principal`] and nowhere else; a missing
//! permission is told before anything about the data; a secret is never kept, compared in a time
//! that depends on it, or shown. Deliberately not here: target patterns, JWT and mTLS.

use std::{collections::BTreeSet, fmt, path::Path, sync::Arc};

use figment::{
    Figment,
    providers::{Format, Toml},
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::admin::OF_ACCOUNT;
use crate::domain::{ids::Account, refusal::Refusal};

/// What a principal may do (contract section 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Submit and cancel operations.
    Submit,
    /// Look at operations, documents and inboxes.
    Read,
    /// Receive results.
    Receive,
    /// Ack results.
    Ack,
    /// Lease and report work; allows nothing yet.
    Execute,
    /// Settle unknown outcomes; allows nothing yet.
    Reconcile,
    /// What operators do: in AdminService for any account of the store.
    Admin,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Permission; 7] = [
        Permission::Submit,
        Permission::Read,
        Permission::Receive,
        Permission::Ack,
        Permission::Execute,
        Permission::Reconcile,
        Permission::Admin,
    ];

    /// The word in access files and metadata.
    pub fn word(self) -> &'static str {
        match self {
            Permission::Submit => "submit",
            Permission::Read => "read",
            Permission::Receive => "receive",
            Permission::Ack => "ack",
            Permission::Execute => "execute",
            Permission::Reconcile => "reconcile",
            Permission::Admin => "admin",
        }
    }

    /// Whether a call of today needs it. The others have their names already (contract section
    /// 10), so that access files need not change when their calls come.
    fn allows_something(self) -> bool {
        match self {
            Permission::Submit
            | Permission::Read
            | Permission::Receive
            | Permission::Ack
            | Permission::Admin => true,
            Permission::Execute | Permission::Reconcile => false,
        }
    }

    /// Reads the word of an access file.
    ///
    /// # Errors
    /// One sentence that names those that exist, apart from those that allow nothing yet.
    fn parse(word: &str) -> Result<Self, String> {
        if let Some(known) = Permission::ALL.into_iter().find(|known| known.word() == word) {
            return Ok(known);
        }
        let words = |known: Vec<Permission>| {
            known.into_iter().map(Permission::word).collect::<Vec<_>>().join(", ")
        };
        let (today, later) = Permission::ALL.into_iter().partition(|it| it.allows_something());
        Err(format!(
            "permission {word:?} is not known; there are {}. ({} are taken too, and allow \
             nothing yet.)",
            words(today),
            words(later)
        ))
    }
}

/// A verified caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Whose data.
    pub account: Account,
    /// Who, for the audit trail.
    pub subject: String,
    /// What it may do.
    pub permissions: BTreeSet<Permission>,
}

impl Principal {
    /// Checks a permission.
    ///
    /// # Errors
    /// PERMISSION_MISSING; never depends on what exists.
    pub fn may(&self, permission: Permission) -> Result<(), Refusal> {
        match self.permissions.contains(&permission) {
            true => Ok(()),
            false => Err(Refusal::PermissionMissing { permission: permission.word() }),
        }
    }
}

/// Who may call.
#[derive(Debug, Clone)]
pub enum Access {
    /// Everybody who reaches the listener: `dev`, on loopback only.
    Local,
    /// Holders of a token.
    Tokens(Arc<Tokens>),
}

/// The tokens of an access file.
pub struct Tokens(Vec<Token>);

/// How many; a hash is shown to nobody, because a short secret can be guessed from it.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

struct Token {
    hash: [u8; 32],
    principal: Arc<Principal>,
}

/// Why an access file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("access file {file}: {problem}")]
pub struct AccessFileError {
    file: String,
    problem: String,
}

/// More tokens than this want a directory service: each call compares with all of them.
const TOKENS_MAX: usize = 1_000;
/// The account and subject of `dev`.
pub const LOCAL: &str = "local";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    id: String,
    hash: String,
    account: String,
    subject: String,
    permissions: Vec<String>,
}

impl Access {
    /// Reads the tokens of a file: `[[token]]` tables with `id`, `hash` (hexadecimal SHA-256 of
    /// the secret, as `printf %s SECRET | sha256sum` prints it), `account`, `subject` and
    /// `permissions`.
    ///
    /// # Errors
    /// [`AccessFileError`], also for a file without a token.
    pub fn from_file(path: &Path) -> Result<Self, AccessFileError> {
        let failed =
            |problem: String| AccessFileError { file: path.display().to_string(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| {
            failed(match error.kind() {
                std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
                std::io::ErrorKind::InvalidData => "is not text".to_owned(),
                _ => format!("cannot be read: {error}"),
            })
        })?;
        Self::from_text(&text).map_err(failed)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let figment = Figment::from(Toml::string(text));
        let file: AccessFile =
            figment.extract().map_err(|error| problem_with_entry(&figment, &error))?;
        if file.token.is_empty() {
            return Err("holds no [[token]]; without credentials nobody could call".to_owned());
        }
        if file.token.len() > TOKENS_MAX {
            return Err(format!("holds more than {TOKENS_MAX} tokens"));
        }
        let mut ids = BTreeSet::new();
        let mut hashes = BTreeSet::new();
        let mut tokens = Vec::new();
        for entry in file.token {
            let named = |problem: &str| format!("token {:?}: {problem}", entry.id);
            let hash = hash_of_hex(&entry.hash)
                .ok_or_else(|| named("hash must be 64 hexadecimal digits"))?;
            if !ids.insert(entry.id.clone()) || !hashes.insert(hash) {
                return Err(named("its id or its hash is there twice"));
            }
            let account = Account::parse(&entry.account)
                .map_err(|invalid| named(&format!("{} {}", invalid.field, invalid.problem)))?;
            if entry.subject.is_empty() || entry.subject.chars().any(char::is_control) {
                return Err(named("subject must not be empty or hold control characters"));
            }
            // The trail tells of an operator of another account in this form (admin/named.rs).
            if entry.subject.contains(OF_ACCOUNT) {
                return Err(named(&format!("subject must not hold {OF_ACCOUNT:?}")));
            }
            let permissions = entry.permissions.iter().map(|word| Permission::parse(word));
            let permissions: Result<_, _> = permissions.collect();
            let permissions = permissions.map_err(|problem| named(&problem))?;
            let principal = Principal { account, subject: entry.subject, permissions };
            tokens.push(Token { hash, principal: Arc::new(principal) });
        }
        Ok(Access::Tokens(Arc::new(Tokens(tokens))))
    }

    /// Who presents this `authorization` header.
    ///
    /// # Errors
    /// CREDENTIALS_MISSING without one, CREDENTIALS_INVALID for one that is not known.
    pub fn verify(&self, header: Option<&http::HeaderValue>) -> Result<Arc<Principal>, Refusal> {
        match self {
            Access::Local => Ok(Arc::new(Principal {
                account: Account::from_stored(LOCAL),
                subject: LOCAL.to_owned(),
                permissions: Permission::ALL.into(),
            })),
            Access::Tokens(tokens) => {
                let header = header.ok_or(Refusal::CredentialsMissing)?;
                let secret = bearer(header.as_bytes()).ok_or(Refusal::CredentialsInvalid)?;
                tokens.find(secret).ok_or(Refusal::CredentialsInvalid)
            }
        }
    }
}

/// What is wrong with the file's form, and with which token. Never a line of the file: it may
/// hold a secret that somebody put there by mistake.
fn problem_with_entry(figment: &Figment, error: &figment::Error) -> String {
    let path: Vec<&str> = error.path.iter().map(String::as_str).collect();
    let kind = error.kind.to_string().replace('`', "");
    match path.as_slice() {
        // The line stands behind a `|`.
        [] => {
            let told = kind.lines().filter(|line| !line.is_empty() && !line.contains('|'));
            let told = told.collect::<Vec<_>>().join(", ");
            format!("is not as it must be: {}", told.replace("TOML parse error at ", "at "))
        }
        ["token", place, field @ ..] => {
            let field = field.iter().map(|field| format!("{field}: ")).collect::<String>();
            format!("{}: {field}{kind}", token_name(figment, place))
        }
        other => format!("{}: {kind}", other.join(".")),
    }
}

/// A token by its id, or by its place in the file where it has none.
fn token_name(figment: &Figment, place: &str) -> String {
    let tokens = figment.find_value("token").ok();
    let id = place.parse::<usize>().ok().and_then(|place| {
        let entry = tokens.as_ref()?.as_array()?.get(place)?;
        Some(format!("token {:?}", entry.as_dict()?.get("id")?.as_str()?))
    });
    let number = place.parse::<usize>().map_or(1, |place| place.saturating_add(1));
    id.unwrap_or_else(|| format!("token number {number}"))
}

impl Tokens {
    /// Compares with all tokens, so that the time tells nothing about which one is near.
    fn find(&self, secret: &[u8]) -> Option<Arc<Principal>> {
        let hash: [u8; 32] = Sha256::digest(secret).into();
        let mut found = u32::MAX;
        for (index, token) in self.0.iter().enumerate() {
            let index = u32::try_from(index).expect("tokens are bounded");
            found.conditional_assign(&index, hash.ct_eq(&token.hash));
        }
        let token = self.0.get(usize::try_from(found).ok()?)?;
        Some(Arc::clone(&token.principal))
    }
}

/// The secret behind `Bearer `, whose letters may be of either case (RFC 9110).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked("bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !secret.is_empty()).then_some(secret)
}

fn hash_of_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(hash)
}

/// What the layer found, in the request's extensions.
#[derive(Debug, Clone)]
struct Caller(Result<Arc<Principal>, Refusal>);

/// Verifies the credentials of a request; services that need none do not look at the result.
pub fn identify<B>(access: &Access, mut request: http::Request<B>) -> http::Request<B> {
    let mut headers = request.headers().get_all(http::header::AUTHORIZATION).iter();
    let caller = match (headers.next(), headers.next()) {
        // A proxy in between may have checked the other one.
        (_, Some(_)) => Err(Refusal::CredentialsInvalid),
        (header, None) => access.verify(header),
    };
    request.extensions_mut().insert(Caller(caller));
    request
}

/// The verified caller of a request.
///
/// # Errors
/// CREDENTIALS_MISSING or CREDENTIALS_INVALID.
pub fn principal<T>(request: &tonic::Request<T>) -> Result<Arc<Principal>, Refusal> {
    match request.extensions().get::<Caller>() {
        Some(Caller(caller)) => caller.clone(),
        None => Err(Refusal::CredentialsMissing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SHA-256 of `rd_secret`.
    const HASH: &str = "d3acc0ae8ad5e15aaad83a8f0abf5ebd7a8f4bc5ac9dc6ca86ec16dbc4bfd3b4";

    fn hash_text(secret: &str) -> String {
        Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn file(hash: &str) -> String {
        format!(
            "[[token]]\nid = 'editor'\nhash = '{hash}'\naccount = 'acme'\nsubject = 'editor'\n\
             permissions = ['submit', 'read']\n"
        )
    }

    fn request(header: Option<&str>) -> tonic::Request<()> {
        let access = Access::from_text(&file(&hash_text("rd_secret"))).expect("good file");
        let mut request = http::Request::new(());
        if let Some(header) = header {
            let value = header.parse().expect("a header");
            request.headers_mut().insert(http::header::AUTHORIZATION, value);
        }
        tonic::Request::from_http(identify(&access, request))
    }

    #[test]
    fn only_the_holder_of_the_secret_is_known() {
        let known = principal(&request(Some("bearer rd_secret"))).expect("known");
        assert_eq!((known.account.as_str(), known.subject.as_str()), ("acme", "editor"));
        assert_eq!(known.may(Permission::Submit), Ok(()));
        assert_eq!(
            known.may(Permission::Admin),
            Err(Refusal::PermissionMissing { permission: "admin" })
        );
        assert_eq!(principal(&request(None)), Err(Refusal::CredentialsMissing));
        let hash = hash_text("rd_secret");
        for wrong in ["Bearer rd_secre", "Bearer rd_secret ", "Bearer ", "Basic x", "x", &hash] {
            assert_eq!(principal(&request(Some(wrong))), Err(Refusal::CredentialsInvalid));
        }
        assert_eq!(principal(&tonic::Request::new(())), Err(Refusal::CredentialsMissing));
    }

    #[test]
    fn two_credentials_are_none() {
        let access = Access::from_text(&file(&hash_text("rd_secret"))).expect("good file");
        let mut twice = http::Request::new(());
        for _ in 0..2 {
            let value = "Bearer rd_secret".parse().expect("a header");
            twice.headers_mut().append(http::header::AUTHORIZATION, value);
        }
        let twice = tonic::Request::from_http(identify(&access, twice));
        assert_eq!(principal(&twice), Err(Refusal::CredentialsInvalid));
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let short = file("abc");
        let twice = file(HASH) + &file(HASH);
        let unknown = file(HASH) + "colour = 'red'\n";
        let permission = file(HASH).replace("'read'", "'everything'");
        let account = file(HASH).replace("'acme'", "''");
        for (text, problem) in [
            ("", "no [[token]]"),
            (short.as_str(), "64 hexadecimal"),
            (&twice, "twice"),
            (&unknown, "colour"),
            (&permission, "everything"),
            (&account, "account"),
        ] {
            let error = Access::from_text(text).expect_err("not whole");
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_wrong_entry_is_named_by_its_id() {
        let good = file(HASH);
        for (text, told) in [
            (good.replace("'acme'", "5"), "token \"editor\": account: "),
            (good.replace("subject = 'editor'\n", ""), "token \"editor\": missing field subject"),
            (
                good.replace("permissions = [", "permissions = 'read' # ["),
                "\"editor\": permissions: ",
            ),
            (good.replace("id = 'editor'\n", ""), "token number 1: missing field id"),
            (good.clone() + "secret = 'canary'\n", "token \"editor\": secret: unknown field"),
            (format!("{good}secret = canary\n"), "is not as it must be: at line 7, column 10"),
        ] {
            let error = Access::from_text(&text).map(|_| ()).expect_err(told);
            assert!(error.contains(told), "{error}");
            assert!(!error.contains('`') && !error.contains("canary"), "{error}");
        }
        let missing = Access::from_file(Path::new("/nowhere/tokens.toml")).expect_err("missing");
        assert_eq!(missing.to_string(), "access file /nowhere/tokens.toml: there is no such file");
    }

    #[test]
    fn an_unknown_permission_is_told_which_there_are() {
        let unknown = file(HASH).replace("'read'", "'everything'");
        let error = Access::from_text(&unknown).expect_err("unknown");
        assert!(error.starts_with("token \"editor\": permission \"everything\""), "{error}");
        let (today, later) = error.split_once(". (").expect("two sentences");
        assert!(today.ends_with("there are submit, read, receive, ack, admin"), "{error}");
        assert!(later.starts_with("execute, reconcile are taken too"), "{error}");
        let later = file(HASH).replace("'read'", "'execute', 'reconcile'");
        assert!(Access::from_text(&later).is_ok());
    }

    #[test]
    fn secrets_are_not_shown() {
        let access = Access::from_text(&file(HASH)).expect("good file");
        let shown = format!("{access:?}");
        assert!(!shown.contains("acme") && !shown.contains("rd_"));
    }
}
