//! `receiptd config`: what is in force, and whether it is right; for a server that is to start, and
//! for an account of one that runs.

use std::process::ExitCode;

use super::{
    EXIT_USAGE, Failure,
    floor::{self, FloorArgs},
    policy::{self, PolicyAction},
    serve::ServeArgs,
    server_args,
};
use crate::{api::auth::Access, config::Loaded};

/// What to do with the settings.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// Check or show; or the policy of an account.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ConfigAction {
    /// Say whether settings are known, in range and free of contradictions; the store and the
    /// certificate are looked at only when a server starts
    #[command(after_help = CHECK_EXAMPLE)]
    Check(ServeArgs),
    /// Print every setting in force with its source, as a settings file; *** stands where the
    /// store's URL holds a password
    #[command(after_help = SHOW_EXAMPLE)]
    Show(ServeArgs),
    /// Show or change the clocks and limits of an account, at a running service
    Policy {
        /// What to do.
        #[command(subcommand)]
        action: Box<PolicyAction>,
    },
    /// Raise the evidence floor of an account, at a running service: ids minted up to it that have
    /// no record answer EVIDENCE_EXPIRED from then on, and never execute; nothing takes it back
    #[command(after_help = FLOOR_EXAMPLE)]
    EvidenceFloor(FloorArgs),
}

const CHECK_EXAMPLE: &str = "\
Example:
  receiptd config check --config /etc/receiptd/receiptd.toml";
const SHOW_EXAMPLE: &str = "\
Examples:
  receiptd config show
  RECEIPTD_ACK_WINDOW=1h receiptd config show --config receiptd.toml > whole.toml";

const FLOOR_EXAMPLE: &str = "\
Example:
  receiptd config evidence-floor 2026-03-01T12:00:00Z --account editors \\
    --reason 'restored from the copy of 11:00' --dry-run";

/// Runs the action.
pub(super) async fn run(args: &ConfigArgs) -> Result<ExitCode, Failure> {
    match &args.action {
        ConfigAction::Check(args) => {
            let loaded = server_args::load(args, args.server.config.as_ref())?;
            if let Some(file) = &loaded.config.access_file {
                Access::from_file(file).map_err(|error| Failure::new(EXIT_USAGE, error))?;
            }
            println!("the settings are good");
        }
        ConfigAction::Show(args) => {
            print!("{}", shown(&server_args::load(args, args.server.config.as_ref())?));
        }
        ConfigAction::Policy { action } => return policy::run(action).await,
        ConfigAction::EvidenceFloor(args) => return floor::run(args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings as a file, each with its source; those without a value as comments.
fn shown(loaded: &Loaded) -> String {
    let mut text = String::new();
    let mut in_policy = false;
    for setting in loaded.shown() {
        let (name, source) = (setting.key.trim_start_matches("policy."), &setting.source);
        if setting.key.starts_with("policy.") && !in_policy {
            in_policy = true;
            text.push_str("\n[policy]\n");
        }
        text.push_str(&match setting.value {
            Some(value) => format!("{name} = {value}  # {source}\n"),
            None => format!("# {name} is not set\n"),
        });
    }
    text
}
