//! `epwatch serve`: collector, detector and store in one process.

use std::process::ExitCode;

use crate::{
    all_in_one::{self, AllInOne},
    collector::Addresses,
    output,
    server_config::{Runs, ServerArgs},
    shutdown::Shutdown,
    version,
};

/// Runs collector, detector and store in one process.
///
/// Without --clickhouse the store is ClickHouse as a library, in --data-dir. Devices send to --listen
/// with the SDK; pages go to standard output and to the Alertmanagers of the config file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the addresses it listens on as one JSON document once it runs.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.server.load(Runs::Both)?;
    let mut shutdown = Shutdown::listen(config.at_hangup())?;
    let drain = config.collector.batch.drain_timeout.0;
    let has_tls = config.collector.tls.is_some();
    // Standard output holds one document then.
    config.detector.stdout &= !args.json;
    let notifiers = all_in_one::notifiers(&config.detector)?;
    version::log("serve");
    let data_dir = config.data_dir.display().to_string();
    let starting = AllInOne::start(config, notifiers);
    let Ok(stack) = shutdown.unless_requested(starting).await else {
        tracing::info!("stopped before it had started");
        return Ok(ExitCode::SUCCESS);
    };
    let stack = stack?;
    let addresses = Addresses::of(&stack.collector, &stack.store, has_tls);
    if args.json {
        output::json(&addresses)?;
    } else {
        output::notice(format_args!(
            "devices send to        {}",
            addresses.endpoint
        ));
        output::notice(format_args!(
            "metrics and health on  http://{}",
            addresses.http
        ));
        match &addresses.store {
            Some(store) => output::notice(format_args!(
                "store                  {data_dir} (other commands: --clickhouse {store})"
            )),
            None => output::notice(format_args!(
                "store                  {}",
                stack.store.target
            )),
        }
        output::notice("Ctrl-C ends it; reports that were acknowledged are safe");
    }
    tokio::select! {
        () = shutdown.requested() => {}
        error = stack.failed() => return Err(error),
    }
    shutdown.stop(stack.stop(), drain).await;
    Ok(ExitCode::SUCCESS)
}
