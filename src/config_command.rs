//! `epwatch config`: checks a config without starting a server, and prints the one in effect.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use epwatch_engines::Engine;
use epwatch_server::Problems;
use jiff::Timestamp;
use toml::{Table, Value};

use crate::all_in_one;
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
/// Exit code 2: the config cannot be used, or no device would accept its certificate; each problem is named with its
/// key and source. Exit code 1: a channel would not take a page (--online).
#[derive(Debug, clap::Args)]
struct ConfigCheckArgs {
    /// Config file (TOML) [default: none].
    #[arg(value_name = "FILE", env = "EPWATCH_CONFIG")]
    file: Option<PathBuf>,
    /// Server whose sections are checked.
    #[arg(long = "for", value_enum, default_value = "serve")]
    server: Server,
    /// Also ask each channel whether it would take a page. No page is sent, and a webhook gets no request.
    #[arg(long)]
    online: bool,
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

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Check(args) => {
            let runs = match args.server {
                Server::Serve => Runs::Both,
                Server::Collector => Runs::Collector,
                Server::Detector => Runs::Detector,
            };
            return check(&server_args(args.file), runs, args.online).await;
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

async fn check(args: &ServerArgs, runs: Runs, online: bool) -> anyhow::Result<ExitCode> {
    let (config, sources) = args.read()?;
    config.check(runs, &sources)?;
    let mut problems = Problems::default();
    if matches!(runs, Runs::Both | Runs::Collector)
        && let Some(tls) = &config.collector.tls
        && let Some((problem, is_now)) = tls.validity_problem(Timestamp::now())
    {
        match is_now {
            true => problems.push("collector.tls.cert_file", problem),
            false => output::line(format_args!("collector.tls.cert_file: {problem}"))?,
        }
    }
    sources.refuse(&problems)?;
    for (key, warning) in config.warnings(runs) {
        output::line(format_args!("{key}: {warning}"))?;
    }
    if runs == Runs::Both && config.store.server()?.is_none() {
        let engines = epwatch_engines::list().into_iter();
        let mut missing = engines.filter(|status| {
            status.engine == Engine::Chdb && status.state != epwatch_engines::CacheState::Ready
        });
        if let Some(status) = missing.next() {
            output::line(format_args!(
                "{status}\nserve fetches it at its start; `epwatch engines fetch libchdb` does so now"
            ))?;
        }
    }
    output::line("the config can be used")?;
    if !online || runs == Runs::Collector {
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for notifier in all_in_one::notifiers(&config.detector)? {
        let name = notifier.name();
        match notifier.probe(Timestamp::now()).await {
            None => output::line(format_args!(
                "{name}: not asked; `epwatch detector test-page --channel {name}` sends a test"
            ))?,
            Some(Ok(())) => output::line(format_args!("{name}: would take a page"))?,
            Some(Err(error)) => {
                code = ExitCode::from(output::NO);
                let error = format!("{:#}", anyhow::Error::from(error));
                output::line(format_args!("{name}: {error}"))?;
            }
        }
    }
    Ok(code)
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
