//! `epwatch detector`: the detector alone, on a ClickHouse server that collectors write to.

use std::{process::ExitCode, sync::Arc};

use epwatch_detector::Detector;
use epwatch_server::{AdminServer, SystemClock, bind};
use tokio_util::sync::CancellationToken;

use crate::{
    all_in_one, calibrate, output,
    server_config::{Runs, ServerArgs},
    shutdown,
    store::Store,
};

/// Judges the reports that collectors wrote to a ClickHouse server, and pages.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, clap::Subcommand)]
enum Task {
    Calibrate(calibrate::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Task::Calibrate(args)) = args.task {
        return calibrate::run(args).await;
    }
    let config = args.server.load(Runs::Detector)?;
    if config.store.clickhouse.is_none() {
        anyhow::bail!(output::no_server_is_named());
    }
    let notifiers = all_in_one::notifiers(&config.detector)?;
    let store = Store::open(&config.store, &config.data_dir).await?;
    let stop = CancellationToken::new();
    let http_listen = config.detector.http_listen;
    let (listener, address) = bind(http_listen, "detector.http_listen").await?;
    let detector = Detector::start(
        config.detector,
        store.client(),
        notifiers,
        Arc::new(SystemClock),
        stop.clone(),
    )?;
    let admin = AdminServer::start(listener, detector.admin_pages(), stop.clone());
    output::line(format_args!("metrics and health on  http://{address}"))?;
    output::line("judging; Ctrl-C ends it")?;
    shutdown::requested().await?;
    stop.cancel();
    detector.stopped().await;
    admin.stopped().await;
    store.stop().await;
    Ok(ExitCode::SUCCESS)
}
