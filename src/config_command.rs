//! `epwatch config`: checks a config without a start, and prints the one in effect.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use toml::{Table, Value};

use crate::output;
use crate::server_config::{Runs, ServerArgs};

/// Checks a config file, or prints the config in effect.
///
/// Both read the file, the environment (EPWATCH_COLLECTOR__LISTEN and the like) and the defaults as the servers do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    Check(ConfigCheckArgs),
    Show(ConfigShowArgs),
}

/// Checks a config as a server would at its start, files that it names included. Starts nothing.
///
/// Exit code 2: it cannot be used; each problem is named with its key and source.
#[derive(Debug, clap::Args)]
struct ConfigCheckArgs {
    /// Config file (TOML) [default: none].
    #[arg(value_name = "FILE", env = "EPWATCH_CONFIG")]
    file: Option<PathBuf>,
    /// Server whose sections are checked.
    #[arg(long = "for", value_enum, default_value = "serve")]
    server: Server,
}

/// Prints each key with its value in effect, as TOML. Secrets are hidden.
#[derive(Debug, clap::Args)]
struct ConfigShowArgs {
    /// Config file (TOML) [default: none].
    #[arg(value_name = "FILE", env = "EPWATCH_CONFIG")]
    file: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Server {
    Serve,
    Collector,
    Detector,
}

fn server_args(config: Option<PathBuf>) -> ServerArgs {
    ServerArgs {
        config,
        ..ServerArgs::default()
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Check(args) => {
            let runs = match args.server {
                Server::Serve => Runs::Both,
                Server::Collector => Runs::Collector,
                Server::Detector => Runs::Detector,
            };
            server_args(args.file).load(runs)?;
            output::line("the config can be used")?;
        }
        ConfigCommand::Show(args) => {
            let (config, _) = server_args(args.file).read()?;
            let mut table = Table::try_from(&config)?;
            hide_secrets(&mut table);
            if args.json {
                output::json(&table)?;
            } else {
                output::line(toml::to_string_pretty(&table)?.trim_end())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces hashes of keys, and the user and password in URLs. Other secrets are in files, whose names stay.
fn hide_secrets(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        hide(key, value);
    }
}

fn hide(key: &str, value: &mut Value) {
    match value {
        Value::Table(table) => hide_secrets(table),
        Value::Array(list) => list.iter_mut().for_each(|value| hide(key, value)),
        Value::String(text) if key == "sha256" => "***".clone_into(text),
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://")
                && let Some((_, host)) = rest.rsplit_once('@')
            {
                *text = format!("{scheme}://***@{host}");
            }
        }
        _ => {}
    }
}
