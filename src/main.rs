//! The `epwatch` command, with one file for each subcommand. It connects the crates.
//!
//! Exit codes: 0 fine, 1 a negative answer, 2 wrong use, 3 could not find out, 130 interrupted.

mod account;
mod address_file;
mod all_in_one;
mod backup;
mod calibrate;
mod client_tls;
mod collector;
mod collector_key;
mod completions;
mod config;
mod config_command;
mod config_file;
mod demo;
mod detector;
mod directive;
mod engines;
mod environment;
mod explain;
mod fault_points;
mod folder_check;
mod folder_lock;
mod gate;
mod incident_order;
mod input_file;
mod inspect;
mod ledger;
mod load;
mod logs;
mod manifest;
mod mark;
mod migrate;
mod output;
mod page;
mod part_status;
mod query;
mod release;
mod replay;
mod rollout;
mod runner;
mod runtime_telemetry;
mod serve;
mod server_config;
mod shutdown;
mod signing_key;
mod store;
mod store_args;
mod store_check;
mod store_config;
mod telemetry;
mod temp_folder;
mod test_page;
mod verify;
mod version;

use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use shutdown::until_interrupted;
use tracing::level_filters::LevelFilter;

/// Parsing a report allocates many small texts and lists; mimalloc does this faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long an interrupted command waits for its blocked threads.
const BLOCKED_THREADS_TIMEOUT: Duration = Duration::from_secs(3);

/// Finds models that silently fall back from the phone's NPU to its CPU.
///
/// Start with `epwatch demo`: everything on this machine, with a simulated fleet and real ONNX
/// Runtime and QNN sessions. Then `epwatch serve`, and link the SDK into an app.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = version::LONG.as_str(),
    propagate_version = true,
    after_help = "Exit codes: 0 fine, 1 a negative answer, 2 wrong use, 3 could not find out, 130 interrupted.\n\
                  Logs go to stderr. EPWATCH_LOG says which (warn; or info,epwatch_collector=debug), EPWATCH_LOG_FORMAT=json how."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Serve(serve::Args),
    Certificates(query::CertificatesArgs),
    Collector(collector::Args),
    Completions(completions::CompletionsArgs),
    Config(config_command::Args),
    Detector(detector::Args),
    Migrate(migrate::Args),
    Devices(query::DevicesArgs),
    Directive(directive::Args),
    Engines(engines::Args),
    Explain(explain::Args),
    Gate(Box<gate::Args>),
    Health(query::HealthArgs),
    Incident(query::IncidentArgs),
    Inspect(inspect::Args),
    Ledger(query::LedgerArgs),
    Load(load::Args),
    Logs(logs::Args),
    Man(completions::ManArgs),
    Manifest(manifest::Args),
    Mark(mark::Args),
    Orders(query::OrdersArgs),
    Page(page::Args),
    Replay(replay::Args),
    Rollout(rollout::Args),
    Run(runner::Args),
    Show(query::ModelArgs),
    Status(query::StatusArgs),
    Store(backup::Args),
    Verify(verify::Args),
    /// Becomes one phone of the demo; started by `demo`.
    #[command(hide = true)]
    DemoDevice,
    /// Makes one session of a model; started by `inspect`.
    #[command(hide = true)]
    InspectSession(inspect::session::Args),
    /// Started by `.ci/dist`.
    #[command(hide = true)]
    SignRelease(release::Args),
    /// Becomes the embedded engine's process; started by `serve` and `demo`.
    #[command(hide = true)]
    EngineChild,
}

fn main() -> ExitCode {
    let command = Cli::parse_from(runner::arguments()).command;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    if let Err(error) = environment::check(names) {
        return output::failure(&error.into());
    }
    if loads_onnx_runtime(&command)
        && let Err(error) = runtime_telemetry::turn_off()
    {
        return output::failure(&error);
    }
    if let Err(error) = telemetry::init(default_logs(&command)) {
        return output::wrong_use(&error);
    }
    match run(command) {
        Ok(code) => code,
        Err(error) => output::failure(&error),
    }
}

/// Whether a command loads ONNX Runtime into its own process.
fn loads_onnx_runtime(command: &Command) -> bool {
    match command {
        Command::DemoDevice | Command::InspectSession(_) | Command::Run(_) => true,
        Command::Gate(args) => args.loads_onnx_runtime(),
        _ => false,
    }
}

/// Commands that draw on the terminal log only warnings and errors.
fn default_logs(command: &Command) -> LevelFilter {
    match command {
        Command::Demo(_)
        | Command::DemoDevice
        | Command::Certificates(_)
        | Command::Gate(_)
        | Command::Health(_)
        | Command::Incident(_)
        | Command::Inspect(_)
        | Command::InspectSession(_)
        | Command::Ledger(_)
        | Command::Load(_)
        | Command::Mark(_)
        | Command::Orders(_)
        | Command::Rollout(_)
        | Command::Run(_)
        | Command::Show(_)
        | Command::Status(_) => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    block_on(match command {
        Command::Demo(args) => Box::pin(demo::run(args)),
        Command::Serve(args) => Box::pin(serve::run(args)),
        Command::Collector(args) => match args.command {
            Some(command) => return command.run(),
            None => Box::pin(collector::run(args)),
        },
        Command::Config(args) => Box::pin(config_command::run(args)),
        Command::Certificates(args) => Box::pin(until_interrupted(query::certificates(args))),
        Command::Devices(args) => Box::pin(until_interrupted(query::devices(args))),
        Command::Incident(args) => Box::pin(until_interrupted(query::incident(args))),
        Command::Health(args) => Box::pin(until_interrupted(query::health(args))),
        Command::Ledger(args) => Box::pin(until_interrupted(query::ledger(args))),
        Command::Orders(args) => Box::pin(until_interrupted(query::orders(args))),
        Command::Mark(args) => Box::pin(until_interrupted(mark::run(args))),
        Command::Rollout(args) => Box::pin(until_interrupted(rollout::run(args))),
        Command::Show(args) => Box::pin(until_interrupted(query::show(args))),
        Command::Status(args) => Box::pin(until_interrupted(query::status(args))),
        Command::Detector(args) => Box::pin(detector::run(args)),
        Command::Directive(args) => Box::pin(directive::run(args)),
        Command::Migrate(args) => Box::pin(migrate::run(args)),
        Command::Engines(args) => Box::pin(until_interrupted(engines::run(args))),
        Command::Gate(args) => Box::pin(gate::run(*args)),
        Command::Inspect(args) => Box::pin(until_interrupted(inspect::run(args))),
        Command::Page(args) => Box::pin(page::run(args)),
        Command::Load(args) => Box::pin(load::run(args)),
        Command::Manifest(args) => return manifest::run(&args),
        Command::Completions(args) => return completions::completions(&args, Cli::command()),
        Command::Man(args) => return completions::man(&args, Cli::command()),
        Command::Verify(args) => return verify::run(&args),
        Command::SignRelease(args) => return release::sign(&args),
        Command::Explain(args) => return explain::run(&args),
        Command::Logs(args) => return logs::run(&args),
        Command::InspectSession(args) => return inspect::session::run(&args),
        Command::Run(args) => return runner::run(args),
        Command::Store(args) => Box::pin(until_interrupted(backup::run(args))),
        Command::Replay(args) => Box::pin(replay::run(args)),
        Command::DemoDevice => return demo::device::run(),
        // The engine runs its own threads and ends the process itself, so there is no runtime around it.
        Command::EngineChild => return Ok(epwatch_store::embedded::run_engine_child()),
    })
}

/// Runs a command to its end.
///
/// The future is a trait object, like the futures of async functions that crates export (`BoxFuture`). An `async fn` is
/// compiled again wherever it is awaited, with everything that it awaits itself. A boxed future is compiled once, in
/// its own crate.
fn block_on(
    command: Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(command);
    // Threads of an interrupted command may still be removing their temporary files.
    runtime.shutdown_timeout(BLOCKED_THREADS_TIMEOUT);
    done
}
