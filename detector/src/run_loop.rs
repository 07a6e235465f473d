//! The run loop of one detector: gain the lease, wait until a window is complete, judge it, store what was
//! found, publish the incidents to the notifiers. Only the holder of the lease judges, and obeys people's orders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::Client;
use epwatch_server::Clock;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::DetectorConfig;
use crate::evaluate::{Evaluation, Evaluator};
use crate::incident::Incident;
use crate::incident_set::IncidentSet;
use crate::lease::{Lease, LeaseState, lost};
use crate::metrics::{Delivery, Metrics};
use crate::notify::{Deliveries, Heartbeat, Notifier, deliver};
use crate::pinned_references::PinnedReferences;
use crate::settled_orders::SettledOrders;
use crate::standing_alerts;
use crate::verdict::CohortVerdict;
use crate::verdict_store::{StoredState, VerdictStore};
use crate::window_schedule::WindowSchedule;

/// Capacity of the queue of deliveries. A notifier blocks when it is full, so none is lost.
const MAX_WAITING_DELIVERIES: usize = 1024;

/// How often a window is judged again because queries failed for some of its models. Then the other models'
/// windows go on.
const MAX_JUDGE_RETRIES: u32 = 3;

/// Pause before a window that could not be judged is tried again; shorter if the next one is due before.
const JUDGE_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// How often people's orders are read.
const ORDERS_PERIOD: Duration = Duration::from_secs(2);

/// Pause between attempts to read the stored state.
const READ_RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Leader {
    evaluator: Evaluator,
    store: VerdictStore,
    lease: Lease,
    config: DetectorConfig,
    incident_set: IncidentSet,
    clock: Arc<dyn Clock>,
    published: Published,
    heartbeat: Option<Arc<Heartbeat>>,
    schedule: WindowSchedule,
    /// How often the next window was judged in part.
    n_retries: u32,
    orders: SettledOrders,
    /// Whether the last reading of orders failed.
    orders_failed: bool,
    /// Time of the incident state stored last. It grows with each state, because the store orders them by it.
    changed_at: Timestamp,
    cancel: CancellationToken,
}

/// Where a [`Leader`] publishes its state.
pub(crate) struct Published {
    pub(crate) incidents: watch::Sender<Arc<Vec<Incident>>>,
    pub(crate) verdicts: watch::Sender<Arc<Vec<CohortVerdict>>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Leader {
    /// Takes part in the lease of the store behind `client`; judges nothing before [`Self::run`].
    pub(crate) fn new(
        config: DetectorConfig,
        client: Client,
        evaluator: Evaluator,
        clock: Arc<dyn Clock>,
        published: Published,
        heartbeat: Option<Heartbeat>,
        cancel: CancellationToken,
    ) -> Self {
        // What it reads back of its own and of people's writes; see docs/operations.md, "Replicas that lag".
        let client = client.with_setting("select_sequential_consistency", "1");
        Self {
            evaluator,
            lease: Lease::take_part(client.clone(), config.lease.0),
            store: VerdictStore::new(client),
            config,
            incident_set: IncidentSet::default(),
            clock,
            published,
            heartbeat: heartbeat.map(Arc::new),
            schedule: WindowSchedule::default(),
            n_retries: 0,
            orders: SettledOrders::default(),
            orders_failed: false,
            changed_at: Timestamp::UNIX_EPOCH,
            cancel,
        }
    }

    /// Leads whenever it holds the lease, until it is cancelled.
    pub(crate) async fn run(mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        while self.lease.gained(&self.cancel).await {
            self.lead(notifiers.clone()).await;
        }
        self.lease.release().await;
    }

    /// Judges and notifies until it is cancelled or another detector leads.
    async fn lead(&mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        let Some(stored) = self.stored_state().await else {
            return;
        };
        let term = self.cancel.child_token();
        let mut lease_state = self.lease.watch();
        let names = notifiers
            .iter()
            .map(|n| (n.name().to_owned(), n.audience()));
        self.schedule = WindowSchedule::until(stored.judged_until);
        self.changed_at = stored.changed_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let names = names.collect::<BTreeMap<_, _>>();
        self.incident_set = IncidentSet::new(names, stored.incidents);
        self.publish();

        for notifier in &notifiers {
            tokio::spawn(standing_alerts::keep(
                notifier.clone(),
                self.store.clone(),
                self.published.incidents.subscribe(),
                self.clock.clone(),
                term.clone(),
            ));
        }
        let (deliveries, mut delivered) = mpsc::channel(MAX_WAITING_DELIVERIES);
        let channels = self.start_notifiers(notifiers, &deliveries, &term);
        drop(deliveries);

        let mut ticks = interval(self.config.step.0);
        // A slow evaluation is followed by one, not by all it missed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut order_ticks = interval(ORDERS_PERIOD);
        order_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => break,
                () = lost(&mut lease_state) => {
                    tracing::warn!("another detector leads");
                    // The other one read the store and notifies from there; its states are newer than ours.
                    self.incident_set = IncidentSet::default();
                    self.published.verdicts.send_replace(Arc::default());
                    self.publish();
                    term.cancel();
                    for channel in channels {
                        channel.abort();
                    }
                    return;
                }
                _ = ticks.tick() => {
                    if !self.tick().await {
                        ticks.reset_after(JUDGE_RETRY_PAUSE.min(self.config.step.0));
                    }
                }
                _ = order_ticks.tick() => self.obey().await,
                Some(done) = delivered.recv() => {
                    self.incident_set.delivered(done);
                    // One write stores all deliveries that are queued.
                    while let Ok(done) = delivered.try_recv() {
                        self.incident_set.delivered(done);
                    }
                    self.save().await;
                    self.publish();
                }
            }
        }
        // Notifiers end after a last round, whose deliveries are stored too.
        while let Some(done) = delivered.recv().await {
            self.incident_set.delivered(done);
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
                self.published.incidents.subscribe(),
                deliveries.clone(),
                self.clock.clone(),
                self.published.metrics.clone(),
                term.clone(),
            ))
        };
        notifiers.into_iter().map(start).collect()
    }

    /// Reads the stored state, and retries until the store answers; `None` if cancelled before.
    async fn stored_state(&self) -> Option<StoredState> {
        loop {
            match self
                .store
                .read_state(self.config.window.0.as_secs_f64(), self.clock.now())
                .await
            {
                Ok(stored) => return Some(stored),
                Err(error) => warn("the detector waits for the store", &error),
            }
            tokio::select! {
                () = self.cancel.cancelled() => return None,
                () = tokio::time::sleep(READ_RETRY_PAUSE) => {}
            }
        }
    }

    /// Judges the windows that are due. Returns whether all of them are done.
    async fn tick(&mut self) -> bool {
        self.save().await;
        let Some(end) = complete_until(self.clock.now(), &self.config) else {
            return true;
        };
        for end in self.schedule.to_judge(end, &self.config) {
            // A detector that catches up judges many windows in a row.
            self.obey().await;
            let may_judge = self.lease.state() == LeaseState::Leads && !self.cancel.is_cancelled();
            if !may_judge || !self.judge(end).await {
                return false;
            }
            self.schedule.note(end);
            // Only a prefetch: the evaluation queries again if it failed.
            if let Err(error) = self.evaluator.look_ahead(end + self.config.step.0).await {
                warn("earlier windows were not read ahead", &error);
            }
        }
        true
    }

    /// Judges one window. Returns whether it is done, so that it need not be tried again.
    async fn judge(&mut self, end: Timestamp) -> bool {
        let began = Instant::now();
        let pinned = PinnedReferences::of(self.incident_set.in_mind());
        let evaluation = self.evaluator.evaluate_beside(end, pinned).await;
        let Evaluation {
            mut verdicts,
            evidence,
            quiet,
            failures,
        } = match evaluation {
            Ok(evaluation) => evaluation,
            Err(error) => {
                self.published.metrics.failed(1);
                warn("a window could not be judged", &error);
                return false;
            }
        };
        self.published.metrics.failed(failures.len() as u64);
        for (model, error) in &failures {
            let model = &model.model_id;
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(model, %error, cause, "a model could not be judged");
        }
        let in_mind = self.incident_set.in_mind();
        let recovery = self.evaluator.evaluate_recovery(end, in_mind).await;
        let recovery = recovery.unwrap_or_else(|error| {
            // Incidents end after three clean windows then.
            warn("recoveries were not looked for", &error);
            None
        });
        if self.lease.state() != LeaseState::Leads {
            // The detector that leads now judges it.
            return false;
        }
        let now = self.clock.now();
        for verdict in &verdicts {
            self.published.metrics.judged(verdict.class);
        }
        let in_part = failures.iter().any(|(_, error)| error.is_of_the_store());
        self.n_retries = if in_part { self.n_retries + 1 } else { 0 };
        let is_done = !in_part || self.n_retries > MAX_JUDGE_RETRIES;
        let before = self.incident_set.firing();
        let n_cohorts = verdicts.len();
        verdicts.extend(quiet);
        self.incident_set
            .advance(&verdicts, self.config.lookback.0, now);
        verdicts.truncate(n_cohorts);
        if let Some((recovery, verdicts)) = recovery {
            self.incident_set.recover(&verdicts, recovery, now);
        }
        let firing = self.incident_set.firing();
        for (incident, key) in firing.iter().filter(|(id, _)| !before.contains_key(*id)) {
            tracing::info!(incident, "incident fires");
            let from = end - self.config.window.0;
            match self.store.model_file(key, from).await {
                Ok(Some(sha256)) => self.incident_set.set_model_file(incident, sha256),
                Ok(None) => {}
                Err(error) => warn("the page lacks the hash of the model's file", &error),
            }
        }
        // Notifiers first, so that a store that is down delays no page.
        self.publish();
        self.save().await;
        // A stored window means that all of it was judged and that its incidents are stored: after a
        // restart, judging goes on behind the last stored window.
        if is_done && self.incident_set.unsaved().is_empty() {
            // Pages are read again when a window is stored, so its evidence is there before.
            if let Err(error) = self.store.add_evidence(&evidence, now).await {
                warn("the evidence of a window was not stored", &error);
            }
            if let Err(error) = self.store.add_windows(&verdicts, now).await {
                warn("verdicts were not stored", &error);
            }
        }
        self.published.verdicts.send_replace(Arc::new(verdicts));
        self.published
            .metrics
            .evaluated(began.elapsed().as_secs_f64(), end.as_second() as f64);
        if is_done {
            self.n_retries = 0;
            self.beat();
        }
        is_done
    }

    /// Does what people ordered of the incidents at hand.
    async fn obey(&mut self) {
        if self.lease.state() != LeaseState::Leads {
            return;
        }
        let after = self.incident_set.to_be_ordered();
        let orders = self.orders.read(&self.store, &after).await;
        let orders = match orders {
            Ok(orders) => {
                self.orders_failed = false;
                orders
            }
            Err(error) => {
                // One line a failure: orders are read every other second.
                if !std::mem::replace(&mut self.orders_failed, true) {
                    warn("orders were not read", &error);
                }
                Vec::new()
            }
        };
        if self.incident_set.obey(&orders, self.clock.now()) {
            self.publish();
            self.save().await;
        }
    }

    /// Posts the heartbeat in the background: a slow service must not delay a window.
    fn beat(&self) {
        let Some(heartbeat) = self.heartbeat.clone() else {
            return;
        };
        let metrics = self.published.metrics.clone();
        tokio::spawn(async move {
            let result = match heartbeat.beat().await {
                Ok(()) => Delivery::Delivered,
                Err(error) => {
                    warn("the heartbeat was not posted", &error);
                    Delivery::Failed
                }
            };
            metrics.notified(Heartbeat::NAME, result);
        });
    }

    /// Stores the unsaved incidents. What the store refuses is tried again with the next call.
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
        self.published
            .metrics
            .set_open_incidents(self.incident_set.n_open());
        self.published
            .metrics
            .set_failing(&self.incident_set.failing());
        self.published
            .incidents
            .send_replace(Arc::new(self.incident_set.snapshot()));
    }
}

fn warn(text: &str, error: &(dyn std::error::Error + 'static)) {
    let cause = error.source().map(ToString::to_string);
    tracing::warn!(%error, cause, "{text}");
}

/// Returns the end of the last bucket whose reports have surely arrived in the store.
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
        let now = Timestamp::from_millisecond(1_002_900).unwrap();
        assert_eq!(complete_until(now, &config), Some(at(1_000)));
        let hourly = DetectorConfig::default();
        assert_eq!(complete_until(at(7_200 + 119), &hourly), Some(at(3_600)));
        assert_eq!(complete_until(at(7_200 + 120), &hourly), Some(at(7_200)));
    }
}
