//! `epwatch serve`: collector, detector and store in one process.

use std::{net::SocketAddr, process::ExitCode};

use epwatch_server::ENDING;
use serde::Serialize;

use crate::{
    all_in_one::{self, AllInOne},
    collector::Addresses,
    output,
    page::RunningPage,
    part_status,
    server_config::{ListenArgs, Runs, ServerArgs},
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
    #[command(flatten)]
    listening: ListenArgs,
    /// Print the addresses it listens on as one JSON document once it runs.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    args.server.listen = args.listening.listen;
    let mut config = args.server.load(Runs::Both)?;
    let mut shutdown = Shutdown::listen(config.at_hangup())?;
    let drain = config.collector.batch.drain_timeout.0;
    let has_tls = config.collector.tls.is_some();
    // With `--json` standard output has only that document, so the detector does not print to it.
    config.detector.stdout &= !args.json;
    let notifiers = all_in_one::notifiers(&config.detector)?;
    version::log("serve");
    let data_dir = config.data_dir.display().to_string();
    let (page_config, detector_config) = (config.page.clone(), config.detector.clone());
    // An address in use is refused before the engine starts. The page binds it afterwards.
    let _ = epwatch_server::bind(config.page.listen, "page.listen").await?;
    let starting = AllInOne::start(config, notifiers);
    let Ok(stack) = shutdown.unless_requested(starting).await else {
        tracing::info!("stopped before it had started");
        return Ok(ExitCode::SUCCESS);
    };
    let stack = stack?;
    let store = match &stack.store.embedded {
        Some(_) => format!("ClickHouse, embedded, in {data_dir},"),
        None => "ClickHouse, the server of store.clickhouse,".to_owned(),
    };
    let facts = part_status::of_this_process(&stack, store, &detector_config);
    let (tasks, client) = (stack.tasks.clone(), stack.store.client());
    let page = RunningPage::start(tasks, &page_config, client, facts).await?;
    let addresses = Addresses::of(&stack.collector, &stack.store, has_tls);
    if args.json {
        output::json(&ServeAddresses {
            addresses: &addresses,
            page: page.address(),
        })?;
    } else {
        output::notice(format_args!("page                   {}", page.url()));
        output::notice(format_args!(
            "devices send to        {}",
            addresses.endpoint
        ));
        if let Some(warning) = &addresses.endpoint_warning {
            output::notice(format_args!("                       {warning}"));
        }
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
    let failed = tokio::select! {
        biased;
        () = shutdown.requested() => None,
        // The other tasks still stop in order. The lease is given back, so that another detector leads at once.
        task = stack.tasks.failed() => Some(all_in_one::task_ended(&task)),
        error = stack.failed() => return Err(error),
        never = crate::config_file::log_changes(args.server.config) => match never {},
    };
    if failed.is_some() {
        stack.tasks.held_back(ENDING).await;
    }
    let stopping = async {
        page.stop().await;
        stack.stop().await;
    };
    shutdown.stop(stopping, drain).await;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// The addresses of `--json`.
#[derive(Debug, Serialize)]
struct ServeAddresses<'a> {
    #[serde(flatten)]
    addresses: &'a Addresses,
    /// Browsers connect here.
    page: SocketAddr,
}
