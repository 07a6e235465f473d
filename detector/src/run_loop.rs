//! The loop: wait for a window to be complete, judge it, keep what was found, tell people. Of several
//! detectors on one store, the one that holds the lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::Client;
use epwatch_server::{AdminPages, Clock, Problems};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::base_rates::BaseRates;
use crate::config::DetectorConfig;
use crate::evaluate::{Evaluation, Evaluator};
use crate::incident::Incident;
use crate::incident_set::IncidentSet;
use crate::judged::Judged;
use crate::lease::{Lease, LeaseState, lost};
use crate::metrics::Metrics;
use crate::notify::{Deliveries, Notifier, deliver};
use crate::pinned_references::PinnedReferences;
use crate::read::Source;
use crate::verdict::CohortVerdict;
use crate::verdict_store::{StoredState, VerdictStore};

/// Deliveries that may wait to be noted. Each notifier waits when it is full, so none is lost.
const MAX_WAITING_DELIVERIES: usize = 1024;

/// How often a window is judged again because the store did not answer for some of its models; then
/// the others' windows go on.
const MAX_AGAIN: u32 = 3;

/// When a window that could not be judged is tried again, unless the next one is due before.
const JUDGE_AGAIN: Duration = Duration::from_secs(30);

/// Pause after the store did not answer.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the detector: {problems}")]
pub struct StartError {
    /// All mistakes.
    pub problems: Problems,
}

/// A running detector.
#[derive(Debug)]
pub struct Detector {
    incidents: watch::Receiver<Arc<Vec<Incident>>>,
    verdicts: watch::Receiver<Arc<Vec<CohortVerdict>>>,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
}

impl Detector {
    /// Starts judging windows every `config.step` until `cancel` is cancelled. The store may be down
    /// at the start: nothing is judged before earlier incidents are read back.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub fn start(
        config: DetectorConfig,
        client: Client,
        notifiers: Vec<Arc<dyn Notifier>>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> Result<Detector, StartError> {
        config
            .validate()
            .map_err(|problems| StartError { problems })?;
        let metrics = Arc::new(Metrics::default());
        let (incidents_tx, incidents) = watch::channel(Arc::default());
        let (verdicts_tx, verdicts) = watch::channel(Arc::default());
        let rates = match &config.rates_file {
            None => BaseRates::default(),
            Some(path) => BaseRates::read(path).map_err(|error| StartError {
                problems: Problems::one("rates_file", error.to_string()),
            })?,
        };
        let source = Source::new(client.clone(), config.max_votes).with_rates(rates);
        let run = Leader {
            evaluator: Evaluator::new(source, config.clone()),
            lease: Lease::take_part(client.clone()),
            store: VerdictStore::new(client),
            config,
            incident_set: IncidentSet::default(),
            clock,
            metrics: metrics.clone(),
            incidents: incidents_tx,
            verdicts: verdicts_tx,
            judged: Judged::default(),
            again: 0,
            changed_at: Timestamp::UNIX_EPOCH,
            cancel,
        };
        for notifier in &notifiers {
            metrics.begin_notifier(notifier.name());
        }
        let task = tokio::spawn(run.run(notifiers));
        Ok(Detector {
            incidents,
            verdicts,
            metrics,
            task,
        })
    }

    /// Incidents that are open, or over and not told everywhere.
    #[must_use]
    pub fn incidents(&self) -> watch::Receiver<Arc<Vec<Incident>>> {
        self.incidents.clone()
    }

    /// Verdicts of the last window.
    #[must_use]
    pub fn verdicts(&self) -> watch::Receiver<Arc<Vec<CohortVerdict>>> {
        self.verdicts.clone()
    }

    /// Returns what its admin endpoint shows.
    #[must_use]
    pub fn admin_pages(&self) -> AdminPages {
        self.metrics.admin_pages()
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
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

struct Leader {
    evaluator: Evaluator,
    store: VerdictStore,
    lease: Lease,
    config: DetectorConfig,
    incident_set: IncidentSet,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    incidents: watch::Sender<Arc<Vec<Incident>>>,
    verdicts: watch::Sender<Arc<Vec<CohortVerdict>>>,
    judged: Judged,
    /// How often the window that is next was judged in part.
    again: u32,
    /// Of the incident state stored last: the store tells states apart by it.
    changed_at: Timestamp,
    cancel: CancellationToken,
}

impl Leader {
    async fn run(mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        while self.lease.gained(&self.cancel).await {
            self.lead(notifiers.clone()).await;
        }
        self.lease.release().await;
    }

    /// Judges and tells until it is cancelled or another detector does.
    async fn lead(&mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        let Some(remembered) = self.remembered().await else {
            return;
        };
        let term = self.cancel.child_token();
        let mut standing = self.lease.watch();
        let names = notifiers
            .iter()
            .map(|n| (n.name().to_owned(), n.min_severity()));
        self.judged = Judged::until(remembered.judged_until);
        self.changed_at = remembered.changed_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let names = names.collect::<BTreeMap<_, _>>();
        self.incident_set = IncidentSet::new(names, remembered.incidents);
        self.publish();

        let (deliveries, mut delivered) = mpsc::channel(MAX_WAITING_DELIVERIES);
        let channels = self.start_notifiers(notifiers, &deliveries, &term);
        drop(deliveries);

        let mut ticks = interval(self.config.step.0);
        // A slow evaluation is followed by one, not by all it missed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => break,
                () = lost(&mut standing) => {
                    tracing::warn!("another detector leads");
                    // It read the store and tells what was not told; what it stored is newer than ours.
                    self.incident_set = IncidentSet::default();
                    self.publish();
                    term.cancel();
                    for channel in channels {
                        channel.abort();
                    }
                    return;
                }
                _ = ticks.tick() => {
                    if !self.tick().await {
                        ticks.reset_after(JUDGE_AGAIN.min(self.config.step.0));
                    }
                }
                Some(done) = delivered.recv() => {
                    self.incident_set.delivered(&done.incident_id, &done.notifier, done.news);
                    // Others that wait are stored with it.
                    while let Ok(done) = delivered.try_recv() {
                        self.incident_set.delivered(&done.incident_id, &done.notifier, done.news);
                    }
                    self.save().await;
                    self.publish();
                }
            }
        }
        // Notifiers end after a last round; what they told is kept.
        while let Some(done) = delivered.recv().await {
            self.incident_set
                .delivered(&done.incident_id, &done.notifier, done.news);
        }
        for channel in channels {
            if let Err(error) = channel.await {
                tracing::error!(%error, "a notifier ended badly");
            }
        }
        self.save().await;
        self.publish();
    }

    fn start_notifiers(
        &self,
        notifiers: Vec<Arc<dyn Notifier>>,
        deliveries: &Deliveries,
        term: &CancellationToken,
    ) -> Vec<JoinHandle<()>> {
        let start = |notifier| {
            tokio::spawn(deliver(
                notifier,
                self.incidents.subscribe(),
                deliveries.clone(),
                self.clock.clone(),
                self.metrics.clone(),
                term.clone(),
            ))
        };
        notifiers.into_iter().map(start).collect()
    }

    /// Reads back earlier incidents, however long the store takes; `None` if cancelled before.
    async fn remembered(&self) -> Option<StoredState> {
        loop {
            match self
                .store
                .remembered(self.config.window.0.as_secs_f64(), self.clock.now())
                .await
            {
                Ok(remembered) => return Some(remembered),
                Err(error) => warn("the detector waits for the store", &error),
            }
            tokio::select! {
                () = self.cancel.cancelled() => return None,
                () = tokio::time::sleep(STORE_PAUSE) => {}
            }
        }
    }

    /// Judges what is due; says whether all of it is done.
    async fn tick(&mut self) -> bool {
        self.save().await;
        let Some(end) = complete_until(self.clock.now(), &self.config) else {
            return true;
        };
        for end in self.judged.to_judge(end, &self.config) {
            let may = self.lease.standing() == LeaseState::Leads && !self.cancel.is_cancelled();
            if !may || !self.judge(end).await {
                return false;
            }
            self.judged.note(end);
            // Asked for again where it fails, by whoever needs it.
            if let Err(error) = self.evaluator.look_ahead(end + self.config.step.0).await {
                warn("earlier windows were not read ahead", &error);
            }
        }
        true
    }

    /// Judges one window; says whether that is done.
    async fn judge(&mut self, end: Timestamp) -> bool {
        let began = Instant::now();
        let frozen = PinnedReferences::of(self.incident_set.open());
        let evaluation = self.evaluator.evaluate_beside(end, frozen).await;
        let Evaluation { verdicts, failures } = match evaluation {
            Ok(evaluation) => evaluation,
            Err(error) => {
                self.metrics.failed(1);
                warn("a window could not be judged", &error);
                return false;
            }
        };
        self.metrics.failed(failures.len() as u64);
        for (model, error) in &failures {
            let model = &model.model_id;
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(model, %error, cause, "a model could not be judged");
        }
        if self.lease.standing() != LeaseState::Leads {
            // Whoever leads now judges it.
            return false;
        }
        let now = self.clock.now();
        for verdict in &verdicts {
            self.metrics.judged(verdict.class);
        }
        let in_part = failures.iter().any(|(_, error)| error.is_of_the_store());
        self.again = if in_part { self.again + 1 } else { 0 };
        let is_done = !in_part || self.again > MAX_AGAIN;
        let before = self.incident_set.firing();
        self.incident_set
            .advance(&verdicts, self.config.lookback.0, now);
        for incident in self.incident_set.firing().difference(&before) {
            tracing::info!(incident, "incident fires");
        }
        // People first: a store that is down delays no page.
        self.publish();
        self.save().await;
        // A stored window says that all of it was judged and its incidents are stored: whoever reads it
        // goes on after it.
        if is_done
            && self.incident_set.unsaved().is_empty()
            && let Err(error) = self.store.add_windows(&verdicts, now).await
        {
            warn("verdicts were not stored", &error);
        }
        self.verdicts.send_replace(Arc::new(verdicts));
        self.metrics
            .evaluated(began.elapsed().as_secs_f64(), end.as_second() as f64);
        if is_done {
            self.again = 0;
        }
        is_done
    }

    /// Stores what the store does not know; what it does not take is tried again with the next.
    async fn save(&mut self) {
        let unsaved = self.incident_set.unsaved();
        if unsaved.is_empty() {
            return;
        }
        let next = self.changed_at + SignedDuration::from_millis(1);
        self.changed_at = self.clock.now().max(next);
        match self.store.add_incidents(&unsaved, self.changed_at).await {
            Ok(()) => self.incident_set.saved(&unsaved),
            Err(error) => warn("incidents were not stored", &error),
        }
    }

    fn publish(&self) {
        self.metrics.set_open_incidents(self.incident_set.n_open());
        self.incidents
            .send_replace(Arc::new(self.incident_set.snapshot()));
    }
}

fn warn(what: &str, error: &(dyn std::error::Error + 'static)) {
    let cause = error.source().map(ToString::to_string);
    tracing::warn!(%error, cause, "{what}");
}

/// Returns the end of the last bucket that is in the store for sure.
fn complete_until(now: Timestamp, config: &DetectorConfig) -> Option<Timestamp> {
    let delay = i64::try_from(config.ingest_delay.0.as_millis()).ok()?;
    let bucket = i64::try_from(config.bucket.0.as_millis()).ok()?;
    let settled = now.as_millisecond().checked_sub(delay)?;
    Timestamp::from_millisecond(settled.div_euclid(bucket) * bucket).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_window_ends_where_every_report_has_arrived() {
        let config = DetectorConfig::for_demo();
        let now = Timestamp::from_millisecond(1_000_900).unwrap();
        assert_eq!(complete_until(now, &config), Some(at(998)));
        let hourly = DetectorConfig::default();
        assert_eq!(complete_until(at(7_200 + 119), &hourly), Some(at(3_600)));
        assert_eq!(complete_until(at(7_200 + 120), &hourly), Some(at(7_200)));
    }
}
