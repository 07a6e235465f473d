//! `epwatch detector`: the detector alone, on a ClickHouse server that collectors write to.

use std::{process::ExitCode, sync::Arc, time::Duration};

use epwatch_detector::Detector;
use epwatch_server::{AdminPages, AdminServer, SystemClock, bind, open_metrics};
use tokio_util::sync::CancellationToken;

use crate::{
    all_in_one, calibrate, fault_points, output,
    server_config::{Runs, ServerArgs},
    shutdown::{Hangup, Shutdown},
    store::Store,
    telemetry, test_page, version,
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
    TestPage(test_page::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.task {
        Some(Task::Calibrate(args)) => return calibrate::run(args).await,
        Some(Task::TestPage(args)) => return test_page::run(args).await,
        None => {}
    }
    let config = args.server.load(Runs::Detector)?;
    if config.store.clickhouse.is_none() {
        anyhow::bail!(output::no_server_is_named());
    }
    let mut shutdown = Shutdown::listen(Hangup::NothingToRead)?;
    version::log("detector");
    let notifiers = all_in_one::notifiers(&config.detector)?;
    let opening = Store::open(&config.store, &config.data_dir);
    let Ok(store) = shutdown.unless_requested(opening).await else {
        return Ok(ExitCode::SUCCESS);
    };
    let store = store?;
    let stop = CancellationToken::new();
    let http_listen = config.detector.http_listen;
    let (listener, address) = bind(http_listen, "detector.http_listen").await?;
    let tasks = fault_points::tasks();
    let detector = Detector::start_in(
        tasks.clone(),
        config.detector,
        store.client(),
        notifiers,
        Arc::new(SystemClock),
        stop.clone(),
    )?;
    let mut registries = detector.registries();
    registries.extend([telemetry::metrics(), tasks.registry()]);
    let pages = AdminPages {
        metrics: Box::new(move || open_metrics(&registries)),
        ..detector.admin_pages()
    };
    let admin = AdminServer::start(listener, pages, stop.clone(), &tasks);
    output::notice(format_args!("metrics and health on  http://{address}"));
    output::notice("judging; Ctrl-C ends it");
    let failed = tokio::select! {
        biased;
        () = shutdown.requested() => None,
        task = tasks.failed() => Some(all_in_one::task_ended(&task)),
        never = crate::config_file::log_changes(args.server.config) => match never {},
    };
    stop.cancel();
    let stopping = async {
        detector.stopped().await;
        admin.stopped().await;
        store.stop().await;
    };
    shutdown.stop(stopping, Duration::ZERO).await;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}
