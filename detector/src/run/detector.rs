//! The handle of a running detector: start, state for others to watch, stop. [`Leader`] does the work, in a task that is
//! started again if it ends by itself.

use std::sync::Arc;

use clickhouse::Client;
use epwatch_model::{CohortVerdict, Incident};
use epwatch_proto::error_chain;
use epwatch_server::{AdminPages, Clock, Problems, TaskSet};
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::judge::base_rates::BaseRates;
use crate::judge::evaluate::Evaluator;
use crate::notify::{Heartbeat, Notifier, check_channels};
use crate::read::Source;
use crate::run::cohort_metrics;
use crate::run::config::DetectorConfig;
use crate::run::judging::Judging;
use crate::run::metrics::Metrics;
use crate::run::run_loop::{Leader, Published};
use crate::run::timetable::Timetable;

/// The configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the detector: {problems}")]
pub struct DetectorStartError {
    /// Every problem, with its key.
    pub problems: Problems,
}

/// A running detector.
#[derive(Debug)]
pub struct Detector {
    incidents: watch::Receiver<Arc<Vec<Incident>>>,
    verdicts: watch::Receiver<Arc<Vec<CohortVerdict>>>,
    metrics: Arc<Metrics>,
    judging: Arc<Judging>,
    max_cohort_metrics: usize,
    task: JoinHandle<()>,
}

impl Detector {
    /// Starts judging a window for every `config.step` of the wall clock until `cancel` is cancelled. The store may be down
    /// at the start: nothing is judged before the stored incidents are read.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub fn start(
        config: DetectorConfig,
        client: Client,
        notifiers: Vec<Arc<dyn Notifier>>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> Result<Detector, DetectorStartError> {
        Self::start_in(TaskSet::default(), config, client, notifiers, clock, cancel)
    }

    /// Same as [`Detector::start`], with its tasks in the set of the process, and its reasons for not being ready.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub fn start_in(
        tasks: TaskSet,
        config: DetectorConfig,
        client: Client,
        notifiers: Vec<Arc<dyn Notifier>>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> Result<Detector, DetectorStartError> {
        config
            .validate()
            .map_err(|problems| DetectorStartError { problems })?;
        let metrics = Arc::new(Metrics::default());
        let (incidents_tx, incidents) = watch::channel(Arc::default());
        let (verdicts_tx, verdicts) = watch::channel(Arc::default());
        let rates = match &config.rates_file {
            None => BaseRates::default(),
            Some(path) => BaseRates::read(path).map_err(|error| DetectorStartError {
                problems: Problems::one("rates_file", error.to_string()),
            })?,
        };
        let judging = Arc::new(Judging::new(Timetable::of(&config), clock.clone()));
        let checked = judging.clone();
        tasks.add_check(move || checked.not_ready());
        let noted = judging.clone();
        tasks.add_note(move || noted.notes());
        let published = Published {
            incidents: incidents_tx,
            verdicts: verdicts_tx,
            metrics: metrics.clone(),
            judging: judging.clone(),
            tasks: tasks.clone(),
        };
        let heartbeat = config
            .heartbeat
            .url
            .as_deref()
            .map(Heartbeat::new)
            .transpose();
        let heartbeat = heartbeat.map_err(|error| DetectorStartError {
            problems: Problems::one("heartbeat.url", error.to_string()),
        })?;
        if heartbeat.is_some() {
            metrics.begin_notifier(Heartbeat::NAME);
        }
        for notifier in &notifiers {
            metrics.begin_notifier(notifier.name());
        }
        let max_cohort_metrics = config.cohort_metrics;
        let heartbeat = heartbeat.map(Arc::new);
        let stop = cancel.clone();
        let lead = move || {
            // A new source is made, because no state of a run that panicked is used again.
            let source = Source::new(client.clone(), config.max_votes).with_rates(rates.clone());
            let leader = Leader::new(
                config.clone(),
                client.clone(),
                Evaluator::new(source, config.clone()),
                clock.clone(),
                published.clone(),
                heartbeat.clone(),
                cancel.clone(),
            );
            leader.run(notifiers.clone())
        };
        let task = tokio::spawn(tasks.restarted("detector".to_owned(), stop, lead));
        Ok(Detector {
            incidents,
            verdicts,
            metrics,
            judging,
            max_cohort_metrics,
            task,
        })
    }

    /// Checks the files that a configuration names: the secrets of channels, and the base rates.
    ///
    /// # Errors
    /// Every problem, with its key.
    pub fn check_files(config: &DetectorConfig) -> Result<(), Problems> {
        let mut problems = Problems::default();
        check_channels(&mut problems, config);
        let rates = config.rates_file.as_deref().map(BaseRates::read);
        if let Some(Err(error)) = rates {
            problems.push("rates_file", error_chain(&error));
        }
        problems.into_result()
    }

    /// Returns the incidents that are open, or over with a notification outstanding.
    #[must_use]
    pub fn incidents(&self) -> watch::Receiver<Arc<Vec<Incident>>> {
        self.incidents.clone()
    }

    /// Returns the verdicts of the last window.
    #[must_use]
    pub fn verdicts(&self) -> watch::Receiver<Arc<Vec<CohortVerdict>>> {
        self.verdicts.clone()
    }

    /// Returns the pages of the admin endpoint.
    #[must_use]
    pub fn admin_pages(&self) -> AdminPages {
        self.metrics.admin_pages()
    }

    /// Returns the metrics of this detector.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Returns what `/metrics` shows of this detector.
    #[must_use]
    pub fn registries(&self) -> Vec<Registry> {
        let mut registries = vec![self.metrics.registry(), self.judging.registry()];
        if self.max_cohort_metrics > 0 {
            let verdicts = self.verdicts.clone();
            registries.push(cohort_metrics::registry(verdicts, self.max_cohort_metrics));
        }
        registries
    }

    /// Waits until it has stopped, after its token was cancelled.
    pub fn stopped(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Err(error) = self.task.await {
                tracing::error!(%error, "the detector ended badly");
            }
        })
    }
}
