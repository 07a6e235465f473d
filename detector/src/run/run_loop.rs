//! The run loop of one detector. It gains the lease, waits until a window is due by the wall clock, and judges it. Then
//! it stores the findings, and publishes the incidents to the notifiers. The newest window comes first; windows that
//! were left out before it are judged when no newer one is due. Only the holder of the lease judges, and obeys people's
//! orders.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::Client;
use epwatch_model::{CohortEvidence, CohortVerdict, Incident, IncidentKey, ModelKey};
use epwatch_server::{Clock, TaskSet};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::incident::set::IncidentSet;
use crate::incident::settled_orders::SettledOrders;
use crate::judge::evaluate::{Evaluation, Evaluator};
use crate::judge::pinned_references::PinnedReferences;
use crate::notify::alert_reconciler;
use crate::notify::{Deliveries, Heartbeat, Notifier, deliver};
use crate::read::SourceError;
use crate::run::config::DetectorConfig;
use crate::run::judging::{Judging, WaitsFor};
use crate::run::lease::{Lease, LeaseState, lost};
use crate::run::metrics::{Delivery, Metrics};
use crate::run::unwritten::UnwrittenWindows;
use crate::run::verdict_store::{JudgedWindow, StoreError, StoredState, VerdictStore};
use crate::run::window_schedule::WindowSchedule;

/// Capacity of the queue of deliveries. A notifier blocks when it is full, so none is lost.
const MAX_WAITING_DELIVERIES: usize = 1024;

/// Maximum number of times that a window is judged again because queries failed for some of its models. After that, the window is
/// done, so that the other models' windows go on.
const MAX_JUDGE_RETRIES: u32 = 3;

/// Pause before a window that could not be judged is tried again; shorter if the next one is due before.
const JUDGE_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Longest pause between two readings of the wall clock, because the clock may be set.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Longest pause between two queries of a standby for the windows that the leader judged.
const STANDBY_LOOK: Duration = Duration::from_secs(30);

/// Interval at which people's orders are read.
const ORDERS_PERIOD: Duration = Duration::from_secs(2);

/// Longest time that channels wait for the store to have an incident. The query of its model's file may take as long.
const STORED_FIRST: Duration = Duration::from_secs(5);

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
    unwritten: UnwrittenWindows,
    /// Incidents of another version, whose alerts stay.
    unreadable: Arc<BTreeSet<String>>,
    /// Number of times that the next window was judged only in part.
    n_retries: u32,
    orders: SettledOrders,
    /// Whether the last reading of orders failed.
    orders_failed: bool,
    /// Time of the incident state stored last. It grows with each state, because the store orders them by it.
    changed_at: Timestamp,
    cancel: CancellationToken,
}

/// The state that a [`Leader`] publishes.
#[derive(Clone)]
pub(crate) struct Published {
    pub(crate) incidents: watch::Sender<Arc<Vec<Incident>>>,
    pub(crate) verdicts: watch::Sender<Arc<Vec<CohortVerdict>>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) judging: Arc<Judging>,
    /// Supervises the tasks of the detector.
    pub(crate) tasks: TaskSet,
}

impl Leader {
    /// Takes part in the lease of the store behind `client`; judges nothing before [`Self::run`].
    pub(crate) fn new(
        config: DetectorConfig,
        client: Client,
        evaluator: Evaluator,
        clock: Arc<dyn Clock>,
        published: Published,
        heartbeat: Option<Arc<Heartbeat>>,
        cancel: CancellationToken,
    ) -> Self {
        // Without this setting the detector may not read back its own and people's writes; see docs/cluster.md,
        // "Replicas that lag".
        let client = client.with_setting("select_sequential_consistency", "1");
        Self {
            evaluator,
            lease: Lease::take_part(client.clone(), config.lease.0, &published.tasks),
            store: VerdictStore::new(client),
            config,
            incident_set: IncidentSet::default(),
            clock,
            published,
            heartbeat,
            schedule: WindowSchedule::default(),
            unwritten: UnwrittenWindows::default(),
            unreadable: Arc::default(),
            n_retries: 0,
            orders: SettledOrders::default(),
            orders_failed: false,
            changed_at: Timestamp::UNIX_EPOCH,
            cancel,
        }
    }

    /// Leads whenever it holds the lease, until it is cancelled. If it returns earlier, its lease has ended.
    pub(crate) async fn run(mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        // Publishes the incidents of an earlier run that ended by itself.
        self.publish();
        while self.stand_by().await {
            self.lead(notifiers.clone()).await;
        }
        self.lease.release().await;
    }

    /// Waits for the lease, and in the meantime notes the windows that the leader judges. Returns whether it leads.
    async fn stand_by(&mut self) -> bool {
        self.published.judging.waits_for(WaitsFor::Lease);
        self.published.judging.is_behind(0);
        let period = (self.config.step.0 / 4).clamp(LONGEST_LOOK, STANDBY_LOOK);
        let (store, config) = (&self.store, &self.config);
        let (judging, clock) = (&self.published.judging, &self.clock);
        let watching = async {
            loop {
                sleep(period).await;
                let now = clock.now();
                let since = before(now, config.lookback.0);
                let window = config.window.0.as_secs_f64();
                // An error is ignored here: if the store does not answer, the judgement becomes late, which is
                // reported.
                if let Ok(judged) = store.judged_windows(window, since, now).await
                    && let Some(end) = judged.last()
                {
                    judging.judged(*end);
                }
                judging.log_lateness();
            }
        };
        tokio::select! {
            gained = self.lease.gained(&self.cancel) => gained,
            () = watching => false,
        }
    }

    /// Judges and notifies until it is cancelled or another detector leads.
    async fn lead(&mut self, notifiers: Vec<Arc<dyn Notifier>>) {
        let Some(stored) = self.stored_state().await else {
            return;
        };
        let term = self.cancel.child_token();
        // A panic here must not leave notifiers and the watchdog behind.
        let _ends = term.clone().drop_guard();
        let mut lease_state = self.lease.watch();
        let names = notifiers
            .iter()
            .map(|n| (n.name().to_owned(), n.audience()));
        self.schedule = WindowSchedule::after(&stored.judged, &self.config);
        if let Some(end) = stored.judged.last() {
            self.published.judging.judged(*end);
        }
        self.unwritten = UnwrittenWindows::default();
        self.unreadable = Arc::new(stored.unreadable);
        self.published
            .metrics
            .set_unreadable_incidents(self.unreadable.len());
        self.changed_at = stored.changed_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let names = names.collect::<BTreeMap<_, _>>();
        self.incident_set = IncidentSet::new(names, stored.incidents);
        self.publish();

        for notifier in &notifiers {
            if notifier.held_alerts().is_some() && notifier.repeat_every().is_some() {
                self.reconcile_alerts(notifier, &term);
            }
        }
        let (deliveries, mut delivered) = mpsc::channel(MAX_WAITING_DELIVERIES);
        let channels = self.start_notifiers(notifiers, &deliveries, &term);
        drop(deliveries);

        let mut next_look = tokio::time::Instant::now();
        let mut order_ticks = interval(ORDERS_PERIOD);
        order_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => break,
                () = lost(&mut lease_state) => {
                    tracing::warn!("another detector leads, or the task of the lease has ended");
                    // The other detector read the store and notifies from there, so its states are newer than ours.
                    self.incident_set = IncidentSet::default();
                    self.published.verdicts.send_replace(Arc::default());
                    self.publish();
                    term.cancel();
                    for channel in channels {
                        channel.abort();
                    }
                    return;
                }
                () = sleep_until(next_look) => {
                    next_look = tokio::time::Instant::now() + self.look().await;
                }
                _ = order_ticks.tick() => self.apply_orders().await,
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
        self.write_windows().await;
        self.publish();
    }

    /// Keeps the watchdog of a channel and ends its strays, until `term` is cancelled.
    fn reconcile_alerts(&self, notifier: &Arc<dyn Notifier>, term: &CancellationToken) {
        let name = format!("watchdog:{}", notifier.name());
        let (notifier, store) = (notifier.clone(), self.store.clone());
        let (incidents, clock) = (self.published.incidents.clone(), self.clock.clone());
        let (judging, unreadable) = (self.published.judging.clone(), self.unreadable.clone());
        let stop = term.clone();
        let keep = move || {
            alert_reconciler::keep(
                notifier.clone(),
                store.clone(),
                (incidents.subscribe(), unreadable.clone()),
                clock.clone(),
                judging.clone(),
                stop.clone(),
            )
        };
        let tasks = self.published.tasks.clone();
        tokio::spawn(tasks.restarted(name, term.clone(), keep));
    }

    fn start_notifiers(
        &self,
        notifiers: Vec<Arc<dyn Notifier>>,
        deliveries: &Deliveries,
        term: &CancellationToken,
    ) -> Vec<JoinHandle<()>> {
        let start = |notifier: Arc<dyn Notifier>| {
            let name = format!("notifier:{}", notifier.name());
            let (incidents, metrics) = (
                self.published.incidents.clone(),
                self.published.metrics.clone(),
            );
            let (deliveries, clock, stop) = (deliveries.clone(), self.clock.clone(), term.clone());
            let run = move || {
                deliver(
                    notifier.clone(),
                    incidents.subscribe(),
                    deliveries.clone(),
                    clock.clone(),
                    metrics.clone(),
                    stop.clone(),
                )
            };
            let tasks = self.published.tasks.clone();
            tokio::spawn(tasks.restarted(name, term.clone(), run))
        };
        notifiers.into_iter().map(start).collect()
    }

    /// Reads the stored state, and retries until the store answers; `None` if cancelled before.
    async fn stored_state(&self) -> Option<StoredState> {
        self.published.judging.waits_for(WaitsFor::Incidents);
        let window = self.config.window.0.as_secs_f64();
        loop {
            let now = self.clock.now();
            let since = before(now, self.config.lookback.0);
            match self.store.read_state(window, since, now).await {
                Ok(stored) => return Some(stored),
                Err(error) => warn("the detector waits for the store", &error),
            }
            tokio::select! {
                () = self.cancel.cancelled() => return None,
                () = tokio::time::sleep(READ_RETRY_PAUSE) => {}
            }
        }
    }

    /// Judges the newest window if it is due, else the oldest window that was left out. Returns the pause until the
    /// next call.
    async fn look(&mut self) -> Duration {
        self.save().await;
        self.write_windows().await;
        let judging = self.published.judging.clone();
        judging.log_lateness();
        let now = self.clock.now();
        let newest = judging.timetable().newest_due(now);
        let newest = newest.filter(|end| self.schedule.is_due(*end));
        let Some(end) = newest.or(self.schedule.earlier()) else {
            judging.waits_for(WaitsFor::Reports);
            let until_due = judging.timetable().until_next(now);
            return until_due.clamp(Duration::from_millis(10), LONGEST_LOOK);
        };
        self.apply_orders().await;
        let may_judge = self.lease.state() == LeaseState::Leads && !self.cancel.is_cancelled();
        judging.waits_for(WaitsFor::Evaluation);
        let is_done = match newest {
            _ if !may_judge => false,
            Some(_) => self.judge(end).await,
            None => self.judge_earlier(end).await,
        };
        judging.is_behind(self.schedule.n_behind());
        if !is_done {
            judging.waits_for(WaitsFor::Retry);
            return JUDGE_RETRY_PAUSE.min(self.config.step.0);
        }
        Duration::ZERO
    }

    /// Evaluates a window; `None` if the store did not answer.
    async fn evaluate(&mut self, end: Timestamp) -> Option<Evaluation> {
        self.published.tasks.held_back("evaluation").await;
        let pinned = PinnedReferences::of(self.incident_set.in_mind());
        let evaluation = match self.evaluator.evaluate_beside(end, pinned).await {
            Ok(evaluation) => evaluation,
            Err(error) => {
                self.published.metrics.failed(1);
                warn("a window could not be judged", &error);
                return None;
            }
        };
        self.published
            .metrics
            .failed(evaluation.failures.len() as u64);
        for (model, error) in &evaluation.failures {
            let model = &model.model_id;
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(model, %error, cause, "a model could not be judged");
        }
        Some(evaluation)
    }

    /// Whether a window with these failures need not be judged again.
    fn is_done(&mut self, failures: &[(ModelKey, SourceError)]) -> bool {
        let in_part = failures.iter().any(|(_, error)| error.is_of_the_store());
        self.n_retries = if in_part { self.n_retries + 1 } else { 0 };
        let is_done = !in_part || self.n_retries > MAX_JUDGE_RETRIES;
        if is_done {
            self.n_retries = 0;
        }
        is_done
    }

    /// Judges the newest window. Returns whether it is done and need not be tried again.
    async fn judge(&mut self, end: Timestamp) -> bool {
        let began = Instant::now();
        let Some(evaluation) = self.evaluate(end).await else {
            return false;
        };
        let in_mind = self.incident_set.in_mind();
        let recovery = self.evaluator.evaluate_recovery(end, in_mind).await;
        let recovery = recovery.unwrap_or_else(|error| {
            // If the check for recoveries fails, incidents still end after three clean windows.
            warn("recoveries were not looked for", &error);
            None
        });
        if self.lease.state() != LeaseState::Leads {
            // The lease was lost, and the detector that leads now judges the window.
            return false;
        }
        let Evaluation {
            mut verdicts,
            evidence,
            quiet,
            failures,
        } = evaluation;
        let now = self.clock.now();
        for verdict in &verdicts {
            self.published.metrics.judged(verdict.class);
        }
        let is_done = self.is_done(&failures);
        let before = self.incident_set.firing();
        let n_cohorts = verdicts.len();
        verdicts.extend(quiet);
        self.incident_set
            .advance(&verdicts, self.config.lookback.0, now);
        verdicts.truncate(n_cohorts);
        if let Some((recovery, verdicts)) = recovery {
            self.incident_set.recover(&verdicts, recovery, now);
        }
        self.tell(&before, end).await;
        if is_done {
            self.keep(end, verdicts.clone(), evidence, now).await;
        }
        self.published.verdicts.send_replace(Arc::new(verdicts));
        let seconds = began.elapsed().as_secs_f64();
        self.published
            .metrics
            .evaluated(seconds, end.as_second() as f64);
        if is_done {
            self.schedule.note(end, &self.config);
            self.published.judging.judged(end);
            self.published.judging.took(seconds);
            self.beat();
            // Only a prefetch: the evaluation queries again if it failed.
            let next = self.published.judging.timetable().after(end);
            if let Err(error) = self.evaluator.look_ahead(next).await {
                warn("earlier windows were not read ahead", &error);
            }
        }
        is_done
    }

    /// Judges a window that was left out. Returns whether it is done.
    async fn judge_earlier(&mut self, end: Timestamp) -> bool {
        let began = Instant::now();
        let Some(evaluation) = self.evaluate(end).await else {
            return false;
        };
        if self.lease.state() != LeaseState::Leads {
            return false;
        }
        let Evaluation {
            verdicts,
            mut evidence,
            failures,
            // Quiet apps are a matter of the present, not of an earlier window.
            quiet: _,
        } = evaluation;
        let now = self.clock.now();
        for verdict in &verdicts {
            self.published.metrics.judged(verdict.class);
        }
        let is_done = self.is_done(&failures);
        let before = self.incident_set.firing();
        self.incident_set
            .look_back(&verdicts, self.config.lookback.0, now);
        self.tell(&before, end).await;
        if is_done {
            // Evidence without a finding is dropped, because each cohort's latest evidence is from the newest window.
            evidence.retain(CohortEvidence::is_kept);
            self.keep(end, verdicts, evidence, now).await;
            self.schedule.note_earlier(end);
        }
        self.published.metrics.took(began.elapsed().as_secs_f64());
        is_done
    }

    /// Stores and publishes the incidents after a window, with the model's file of incidents that fire now.
    async fn tell(&mut self, before: &BTreeMap<String, IncidentKey>, end: Timestamp) {
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
        // The row is stored first, because an order of the person who was paged needs it. If the process ends in
        // between, the next leader reads news that no channel has, and sends it. A store that does not answer delays a
        // page only for this time.
        let Some((unsaved, changed_at)) = self.next_change() else {
            return self.publish();
        };
        let written = {
            let mut writing = pin!(self.store.add_incidents(&unsaved, changed_at));
            let in_time = timeout(STORED_FIRST, &mut writing).await;
            self.publish();
            match in_time {
                Ok(written) => written,
                Err(_) => {
                    tracing::warn!("incidents are published before the store has them: it is slow");
                    writing.await
                }
            }
        };
        self.note_saved(&unsaved, written);
    }

    /// Stores a judged window, or keeps it until the store takes it.
    async fn keep(
        &mut self,
        end: Timestamp,
        verdicts: Vec<CohortVerdict>,
        evidence: Vec<CohortEvidence>,
        judged_at: Timestamp,
    ) {
        self.unwritten.push(JudgedWindow {
            end,
            window_seconds: self.config.window.0.as_secs_f64(),
            step_seconds: self.config.step.0.as_secs_f64(),
            verdicts,
            evidence,
            judged_at,
        });
        self.write_windows().await;
    }

    /// Writes the windows that wait for the store. A window is stored only after its incidents, because a restart
    /// continues after the last stored window.
    async fn write_windows(&mut self) {
        if !self.incident_set.unsaved().is_empty() {
            return;
        }
        if let Err(error) = self.unwritten.write(&self.store).await {
            warn("judged windows wait for the store", &error);
        }
    }

    /// Obeys people's orders to the incidents that this detector holds.
    async fn apply_orders(&mut self) {
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
                // A lasting failure is logged once, because orders are read every other second.
                if !std::mem::replace(&mut self.orders_failed, true) {
                    warn("orders were not read", &error);
                }
                Vec::new()
            }
        };
        if self.lease.state() != LeaseState::Leads {
            // The reading took so long that another detector leads now and obeys the orders.
            return;
        }
        if self.incident_set.apply_orders(&orders, self.clock.now()) {
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

    /// Stores the unsaved incidents. Incidents that the store refuses are tried again with the next call.
    async fn save(&mut self) {
        if let Some((unsaved, changed_at)) = self.next_change() {
            let written = self.store.add_incidents(&unsaved, changed_at).await;
            self.note_saved(&unsaved, written);
        }
    }

    /// Returns the incidents that the store lacks, and the time of their change: later than any before, whatever the clock.
    fn next_change(&mut self) -> Option<(Vec<Incident>, Timestamp)> {
        let unsaved = self.incident_set.unsaved();
        if unsaved.is_empty() {
            return None;
        }
        let next = self.changed_at + SignedDuration::from_millis(1);
        self.changed_at = self.clock.now().max(next);
        Some((unsaved, self.changed_at))
    }

    fn note_saved(&mut self, unsaved: &[Incident], written: Result<(), StoreError>) {
        match written {
            Ok(()) => self.incident_set.saved(unsaved),
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

/// Returns the start of a look-back.
fn before(now: Timestamp, lookback: Duration) -> Timestamp {
    let lookback = SignedDuration::try_from(lookback).unwrap_or(SignedDuration::MAX);
    now.checked_sub(lookback).unwrap_or(Timestamp::MIN)
}
