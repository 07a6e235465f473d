//! Store, collector and detector in one process, for `serve` and `demo`.

use std::sync::Arc;

use anyhow::Context;
use epwatch_collector::Collector;
use epwatch_detector::{Detector, notify::Notifier};
use epwatch_server::{SystemClock, TaskSet, bind};
use tokio_util::sync::CancellationToken;

use crate::{
    address_file::AddressFile, backup, fault_points, output, server_config::ServerConfig,
    store::Store, telemetry,
};

/// The running components.
#[derive(Debug)]
pub(crate) struct AllInOne {
    /// Dropped first, because dropping the store unlocks the folder.
    address: AddressFile,
    pub(crate) store: Store,
    pub(crate) collector: Collector,
    pub(crate) detector: Detector,
    /// All tasks of the process.
    pub(crate) tasks: TaskSet,
    stop_detector: CancellationToken,
}

impl AllInOne {
    pub(crate) async fn start(
        mut config: ServerConfig,
        notifiers: Vec<Arc<dyn Notifier>>,
    ) -> anyhow::Result<Self> {
        check_addresses(&config).await?;
        let steps = (config.detector.window, config.detector.step);
        let store = Store::open_or_wait(&config.store, &config.data_dir).await?;
        config.collector.raw_retention = store.raw_retention();
        let tasks = fault_points::tasks();
        let (client, stop, clock) = (
            store.client(),
            CancellationToken::new(),
            Arc::new(SystemClock),
        );
        let starting = Collector::start_in(tasks.clone(), config.collector, client, stop, clock);
        let collector = starting.await?;
        let stop_detector = CancellationToken::new();
        let detector = Detector::start_in(
            tasks.clone(),
            config.detector,
            store.client(),
            notifiers,
            Arc::new(SystemClock),
            stop_detector.clone(),
        )?;
        for registry in detector
            .registries()
            .into_iter()
            .chain([telemetry::metrics()])
        {
            collector.metrics().show_also(registry);
        }
        if store.embedded.is_some() {
            collector
                .metrics()
                .show_also(backup::metrics(&config.data_dir));
        }
        Ok(Self {
            address: AddressFile::write(&config.data_dir, collector.http_listen(), steps),
            store,
            collector,
            detector,
            tasks,
            stop_detector,
        })
    }

    /// Stops the device server, drains the WAL into the store while the detector finishes its window, and closes the
    /// store afterwards. Dropping the future kills the embedded engine.
    pub(crate) async fn stop(self) {
        drop(self.address);
        self.stop_detector.cancel();
        tokio::join!(self.collector.stop(), self.detector.stopped());
        self.store.stop().await;
    }

    /// Returns when a component ended by itself.
    pub(crate) async fn failed(&self) -> anyhow::Error {
        let engine_gone = async {
            match &self.store.embedded {
                Some(engine) => engine.gone().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            task = self.tasks.failed() => task_ended(&task),
            error = self.store.refused() => error,
            error = engine_gone => anyhow::Error::from(error).context("the embedded store ended"),
            () = self.collector.stopped() => anyhow::anyhow!("the collector ended; its log says why"),
        }
    }
}

/// The error of a process that cannot go on without a task.
pub(crate) fn task_ended(task: &str) -> anyhow::Error {
    anyhow::anyhow!("the task {task} ended by itself; the log says why")
}

/// Refuses addresses that are taken before an engine starts and a folder is made. The collector binds them afterwards.
pub(crate) async fn check_addresses(config: &ServerConfig) -> anyhow::Result<()> {
    let collector = &config.collector;
    let (_devices, _) = bind(collector.listen, "collector.listen, --listen").await?;
    let (_admin, _) = bind(collector.http_listen, "collector.http_listen").await?;
    Ok(())
}

/// Returns the notifiers of the config.
pub(crate) fn notifiers(
    config: &epwatch_detector::DetectorConfig,
) -> anyhow::Result<Vec<Arc<dyn Notifier>>> {
    epwatch_detector::notify::notifiers(config, output::Stdout)
        .context("failed to use the notifiers of the config")
}
