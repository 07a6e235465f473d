//! One evaluation: every cohort of one window, from the store to verdicts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{
    CohortEvidence, CohortKey, CohortVerdict, Incident, Installation, ModelKey, Origin, Reason,
    Severity, SpeedReference, TakenOver, VerdictClass, VersionOnChipset, WindowStatistics,
};
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::task::AbortOnDropHandle;

use crate::incident::{RecoveryWindow, to_recover};
use crate::judge::base_rates::BaseRates;
use crate::judge::baseline::Baseline;
use crate::judge::cohort_evidence::evidence_of;
use crate::judge::cv_rules;
use crate::judge::deadline;
use crate::judge::describe::{describe_modes, describe_spread};
use crate::judge::hash::HashSet;
use crate::judge::past_version::{PastVersion, drop_faulty_pasts};
use crate::judge::pasts::lacks_pasts;
use crate::judge::pinned_references::PinnedReferences;
use crate::judge::references::{baseline_of, others_of, previous_of};
use crate::judge::signals::{Controls, Limits, MIN_ELIGIBLE, PeerRatios, SignalEvidence};
use crate::judge::sybil_resistance::Senders;
use crate::judge::verdict::{CpuNodes, completeness, doubt, doubt_networks, judge, quiet};
use crate::judge::window::{CohortWindow, count_devices};
use crate::read::{
    EvaluationInputs, FoundModel, ModelWindows, Source, SourceError, Span, Succession, batches,
};
use crate::run::config::DetectorConfig;

/// From this number of installations known from earlier windows, a page must hold on them alone.
const MIN_PROVEN: u64 = 20;

/// Number of batches of apps that are processed at once: one is judged while the next is read. Each is wholly in
/// memory.
const BATCHES_AT_ONCE: usize = 2;

/// The result of one evaluation.
#[derive(Debug, Default)]
pub struct Evaluation {
    /// Verdicts, one for each cohort of the window.
    pub verdicts: Vec<CohortVerdict>,
    /// Evidence, one for each chipset of the window.
    pub evidence: Vec<CohortEvidence>,
    /// Apps and versions that are quiet, as tickets, and others that were quiet recently. They have no chipset, and are
    /// not cohort windows.
    pub quiet: Vec<CohortVerdict>,
    /// Models that could not be judged. All others were judged.
    pub failures: Vec<(ModelKey, SourceError)>,
}

/// A check for recoveries, and its verdicts.
pub(crate) type RecoveryPass = (RecoveryWindow, Vec<CohortVerdict>);

/// A cohort that was judged, but whose senders have not been checked yet.
struct Judged<'a> {
    verdict: CohortVerdict,
    page: Option<Page<'a>>,
}

/// A verdict, and the number of devices of its page that are not of an `own` key. Devices of an `own` key cannot be
/// made up.
struct WeighedVerdict {
    verdict: CohortVerdict,
    not_own: u64,
}

/// The inputs of a verdict that is a page, which must hold without some of its devices.
struct Page<'a> {
    window: Cow<'a, CohortWindow>,
    baseline: Baseline,
    statistics: WindowStatistics,
    nodes: CpuNodes,
}

/// The verdicts on a version on a chipset, and on its firmwares if it has several.
struct JudgedChipset<'a> {
    window: &'a CohortWindow,
    past: &'a PastVersion,
    whole: Judged<'a>,
    parts: Vec<Judged<'a>>,
}

/// Values that all cohorts of one evaluation share.
pub(super) struct EvaluationRun {
    config: DetectorConfig,
    shows: Shows,
    pub(super) span: Span,
    pub(super) inputs: EvaluationInputs,
    limits: Limits,
    rates: BaseRates,
    pub(super) pinned: PinnedReferences,
}

/// Judges windows. Between them it holds only the look-back that its source keeps.
#[derive(Debug, Clone)]
pub struct Evaluator {
    source: Source,
    config: DetectorConfig,
    shows: Shows,
}

/// Verdicts whose modes and evidence are shown. Both explain, and neither decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// All verdicts, with their evidence, which a store keeps.
    All,
    /// All verdicts, without evidence.
    Verdicts,
    /// Verdicts that are not healthy, without evidence.
    Findings,
    /// No modes and no evidence: a line in words has neither.
    Words,
}

impl Evaluator {
    /// Reads from `source`, with the windows of `config`.
    #[must_use]
    pub fn new(source: Source, config: DetectorConfig) -> Self {
        Self {
            source,
            config,
            shows: Shows::All,
        }
    }

    /// Leaves out modes and evidence that are not shown.
    #[must_use]
    pub(crate) fn showing(self, shows: Shows) -> Self {
        Self { shows, ..self }
    }

    /// Judges every cohort with data in the window that ends at `window_end`.
    ///
    /// # Errors
    /// The models could not be read. A single model that fails is in the answer instead, because it must not
    /// hide another's alert.
    pub fn evaluate(
        &self,
        window_end: Timestamp,
    ) -> BoxFuture<'_, Result<Evaluation, SourceError>> {
        self.evaluate_beside(window_end, PinnedReferences::default())
    }

    /// Judges as [`Self::evaluate`], with references that open incidents pin.
    ///
    /// # Errors
    /// Fails as [`Self::evaluate`] does.
    pub fn evaluate_beside(
        &self,
        window_end: Timestamp,
        pinned: PinnedReferences,
    ) -> BoxFuture<'_, Result<Evaluation, SourceError>> {
        Box::pin(async move {
            let span = self.span(window_end);
            let inputs = self.source.begin(&span).await?;
            let judging = self.judging(span, inputs, pinned);
            let quiet = quiet(&judging.inputs.reporting(), window_end, span.window);
            let judged = Arc::new(judging).evaluate().await;
            Ok(Evaluation { quiet, ..judged })
        })
    }

    /// Judges the models of incidents that fire or recovered over a shorter window of new runs alone, in addition to
    /// the window that ends then. `None` without such an incident, or if no check is due.
    ///
    /// # Errors
    /// The store did not answer. A model that fails is left out, and its incident stays unchanged.
    pub(crate) fn evaluate_recovery<'a>(
        &'a self,
        window_end: Timestamp,
        incidents: impl Iterator<Item = &'a Incident> + Clone,
    ) -> BoxFuture<'a, Result<Option<RecoveryPass>, SourceError>> {
        let (window, bucket) = (self.config.window.0, self.config.bucket.0);
        let models = to_recover(incidents.clone());
        let due = RecoveryWindow::looked_for(window_end, window, bucket);
        let due = due.filter(|_| !models.is_empty());
        let pinned = due.map(|_| PinnedReferences::of(incidents));
        Box::pin(async move {
            let Some((recovery, pinned)) = due.zip(pinned) else {
                return Ok(None);
            };
            let span = Span {
                window: recovery.window,
                // Earlier runs of a device may be from before the repair.
                stands_alone: true,
                ..self.span(recovery.end)
            };
            let mut inputs = self.source.begin(&span).await?;
            inputs.models.retain(|found| models.contains(&found.model));
            let judging = self.judging(span, inputs, pinned);
            Ok(Some((
                recovery,
                Arc::new(judging).evaluate().await.verdicts,
            )))
        })
    }

    /// Reads the earlier windows that the window ending at `window_end` needs, while no verdict waits for them.
    ///
    /// # Errors
    /// The store did not answer; the evaluation of that window queries again.
    pub fn look_ahead(&self, window_end: Timestamp) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move { self.source.look_ahead(&self.span(window_end)).await })
    }

    fn judging(
        &self,
        span: Span,
        inputs: EvaluationInputs,
        pinned: PinnedReferences,
    ) -> EvaluationRun {
        let cohorts: u64 = inputs.models.iter().map(|found| found.cohorts).sum();
        let windows_a_day = 86_400.0 / span.window.as_secs_f64();
        EvaluationRun {
            config: self.config.clone(),
            shows: self.shows,
            span,
            limits: Limits::for_windows_a_day(cohorts as f64 * windows_a_day),
            rates: self.source.rates(&span),
            inputs,
            pinned,
        }
    }

    fn span(&self, end: Timestamp) -> Span {
        Span {
            end,
            window: self.config.window.0,
            lookback: self.config.lookback.0,
            stands_alone: false,
        }
    }
}

impl EvaluationRun {
    async fn evaluate(self: Arc<Self>) -> Evaluation {
        let parts = batches(&self.inputs.models).into_iter().map(|models| {
            let judging = self.clone();
            let names: Vec<ModelKey> = models.iter().map(|found| found.model.clone()).collect();
            let judged = async move { judging.evaluate_batch(models).await };
            async move { (names, AbortOnDropHandle::new(tokio::spawn(judged)).await) }
        });
        // One is judged while the next is read.
        let mut parts = futures::stream::iter(parts).buffered(BATCHES_AT_ONCE);
        let mut evaluation = Evaluation::default();
        while let Some((names, part)) = parts.next().await {
            // A panic fails only its own apps. Otherwise it would repeat at each try, and no other model would be
            // judged.
            let part = part.unwrap_or_else(|_panic| {
                let failed = |model: ModelKey| {
                    let name = model.model_id.clone();
                    (model, SourceError::Panicked { model: name })
                };
                Evaluation {
                    failures: names.into_iter().map(failed).collect(),
                    ..Evaluation::default()
                }
            });
            evaluation.verdicts.extend(part.verdicts);
            evaluation.evidence.extend(part.evidence);
            evaluation.failures.extend(part.failures);
        }
        evaluation
    }

    /// Judges some apps that are read at once.
    async fn evaluate_batch(&self, models: Vec<FoundModel>) -> Evaluation {
        let mut evaluation = Evaluation::default();
        let mut found = match self.inputs.windows(&models).await {
            Ok(found) => found,
            Err(error) => {
                let failures = models.into_iter().map(|found| found.model);
                evaluation.failures = failures.zip(error.for_each_model()).collect();
                return evaluation;
            }
        };
        let mut by_app: BTreeMap<(String, String), Vec<ModelWindows>> = BTreeMap::new();
        for FoundModel { model, .. } in models {
            match found.remove(&model) {
                Some(Ok(windows)) => {
                    let app = (model.app_id, model.environment);
                    by_app.entry(app).or_default().push(windows);
                }
                Some(Err(error)) => evaluation.failures.push((model, error)),
                None => {}
            }
        }
        for windows in by_app.into_values() {
            self.evaluate_app(windows, &mut evaluation).await;
        }
        evaluation
    }

    /// Judges the models of one app, which are each other's controls.
    async fn evaluate_app(&self, models: Vec<ModelWindows>, evaluation: &mut Evaluation) {
        let mut windows = Vec::new();
        let mut peers = PeerRatios::default();
        for mut read in models {
            for window in &mut read.cohorts {
                drop_faulty_pasts(window, &self.pinned);
            }
            // Baselines from the store replace the names of the versions at fault.
            let cohorts = read.cohorts.iter();
            let pasts = cohorts.map(|window| PastVersion::of(window, &read.versions, &self.pinned));
            let pasts: Vec<PastVersion> = pasts.collect();
            if let Err(error) = self.fill_device_baselines(&mut read, &pasts).await {
                evaluation.failures.push((read.model, error));
                continue;
            }
            if let Err(error) = self.fill_faster(&mut read).await {
                evaluation.failures.push((read.model, error));
                continue;
            }
            for cohort in &mut read.cohorts {
                cohort.let_runs_go();
                peers.add(&cohort.key, &cohort.votes);
            }
            windows.push((read, pasts));
        }
        for (read, pasts) in &windows {
            match self.judge_model(read, pasts, &peers).await {
                Ok((verdicts, evidence)) => {
                    evaluation.verdicts.extend(verdicts);
                    evaluation.evidence.extend(evidence);
                }
                Err(error) => evaluation.failures.push((read.model.clone(), error)),
            }
        }
    }

    async fn judge_model(
        &self,
        read: &ModelWindows,
        pasts: &[PastVersion],
        peers: &PeerRatios,
    ) -> Result<(Vec<CohortVerdict>, Vec<CohortEvidence>), SourceError> {
        let mut judged = Vec::new();
        for (window, past) in read.cohorts.iter().zip(pasts) {
            judged.push(self.judge_chipset(window, past, read, peers).await?);
        }
        let senders = self.senders_of_pages(&read.model, &judged).await?;
        let present = devices_by_chipset(read);
        let mut verdicts = Vec::new();
        let mut evidence = Vec::new();
        let mut successions = BTreeMap::new();
        for JudgedChipset {
            window,
            past,
            whole,
            parts,
        } in judged
        {
            let previous = previous_of(window, read, self.control_version(&window.key, past));
            let others = others_of(window, read);
            let controls = Controls {
                previous,
                peers,
                chipsets: &others,
            };
            let mut whole = self.weighed(whole, controls, &senders);
            whole.verdict.takes_over = self.taken_over_by(&window.key, &mut successions);
            let key = &window.key;
            let usual = read.earlier.devices.get(&*key.chipset).copied();
            let now = present.get(&*key.chipset).copied().unwrap_or_default();
            completeness::doubt(&mut whole.verdict, now, usual);
            completeness::doubt_crowd(&mut whole.verdict, whole.not_own, now, usual);
            let mut whole = whole.verdict;
            whole.numbers.devices_on_chipset = now;
            let deadline_ms = self.config.deadline_ms(&key.model);
            let late_on = |firmware: Option<&str>| {
                deadline::late_runs(deadline_ms?, window, firmware, previous, &others)
            };
            deadline::add_to_verdict(late_on(None), &mut whole);
            let previous_name = past.version.as_deref();
            let earlier = &read.earlier;
            let cv = earlier.cv_of(&key.model_version, previous_name, &key.chipset);
            let was_shown = self.is_shown(&whole);
            cv_rules::apply(&self.config.cv_rules, &mut whole, cv.map(|usual| usual.all));
            if !was_shown && self.is_shown(&whole) {
                self.describe_modes(window, &mut whole)?;
            }
            let is_about_newcomers =
                |reason: &Reason| matches!(reason, Reason::NewcomersOnly { .. });
            let is_doubted = whole.reasons.iter().any(is_about_newcomers);
            if self.shows == Shows::All {
                let shape = evidence_of(window, previous, &whole);
                evidence.push(shape.map_err(SourceError::histogram(&read.model))?);
            }
            verdicts.push(whole);
            for part in parts {
                // If the firmware has too few known devices, its chipset's known devices decide.
                let page = part.page.as_ref().filter(|_| is_doubted);
                let page = page.filter(|page| page.window.has_newcomers());
                let known = page.map(|page| {
                    let proven = page.window.proven().n_devices();
                    (proven, page.window.voteless.unproven > 0)
                });
                let mut part = self.weighed(part, controls, &senders);
                if let Some((proven, is_flood)) = known
                    && proven < MIN_PROVEN
                    && part.verdict.severity == Severity::Page
                {
                    doubt(&mut part.verdict, proven, is_flood);
                }
                completeness::doubt_crowd(&mut part.verdict, part.not_own, now, usual);
                let mut part = part.verdict;
                part.numbers.devices_on_chipset = now;
                let firmware = part.key.firmware.clone();
                deadline::add_to_verdict(late_on(firmware.as_deref()), &mut part);
                verdicts.push(part);
            }
        }
        Ok((verdicts, evidence))
    }

    /// Judges a chipset and its firmwares. The senders of the devices of pages are not checked yet.
    async fn judge_chipset<'a>(
        &self,
        window: &'a CohortWindow,
        past: &'a PastVersion,
        read: &'a ModelWindows,
        peers: &PeerRatios,
    ) -> Result<JudgedChipset<'a>, SourceError> {
        let mut baseline = baseline_of(window, read, past, &self.span);
        baseline.no_controls = self.with_shared_fault(window, read);
        baseline.rates.clone_from(&self.rates);
        baseline.expects_npu = self.config.expects_npu(&read.model);
        let cohort = (
            &read.model,
            &*window.key.model_version,
            &*window.key.chipset,
        );
        let before = baseline
            .passed_over
            .iter()
            .chain(&baseline.previous_version);
        let before = before.map(String::as_str);
        baseline.placements = self.pinned.applied(baseline.placements, cohort, before);
        let control = self.control_version(&window.key, past);
        let previous = previous_of(window, read, control);
        let others = others_of(window, read);
        let controls = Controls {
            previous,
            peers,
            chipsets: &others,
        };
        let start = self.span.start();
        let past_until = past.until.unwrap_or(start).min(start);
        let until = (past_until, self.own_past_until(&window.key));
        let window_of_all = Cow::Borrowed(window);
        let whole = self.judge_cohort(window_of_all, controls, &mut baseline, until);
        let whole = whole.await?;
        let mut parts = Vec::new();
        let firmwares = window.firmwares();
        let several = firmwares.iter().filter(|_| firmwares.len() > 1);
        for firmware in several.filter(|firmware| !firmware.is_empty()) {
            let part = window.of_firmware(firmware);
            if count_devices(part.votes.iter()) < MIN_ELIGIBLE {
                // A firmware with too few devices is judged with its chipset.
                continue;
            }
            let part = Cow::Owned(part);
            let judged = self.judge_cohort(part, controls, &mut baseline, until);
            parts.push(judged.await?);
        }
        Ok(JudgedChipset {
            window,
            past,
            whole,
            parts,
        })
    }

    /// Judges a cohort. The senders of its devices are not checked yet.
    async fn judge_cohort<'a>(
        &self,
        mut window: Cow<'a, CohortWindow>,
        controls: Controls<'_>,
        baseline: &mut Baseline,
        (past_until, own_until): (Timestamp, Timestamp),
    ) -> Result<Judged<'a>, SourceError> {
        let mut evidence = SignalEvidence::gather(&window, controls, baseline, &self.limits);
        if lacks_pasts(&window, &evidence)
            && let Some(previous) = &baseline.previous_version
        {
            window = Cow::Owned(self.with_pasts(&window, previous, past_until).await?);
            evidence = SignalEvidence::gather(&window, controls, baseline, &self.limits);
        }
        let model = &window.key.model;
        let moved = evidence.placement.as_ref();
        let by_past = evidence.slower_and_moved.as_ref();
        let by_past = by_past.filter(|found| found.reference != SpeedReference::Certified);
        let moved = moved.filter(|change| change.signal.fires && by_past.is_none());
        if let Some(change) = moved {
            let own_past_speaks = change.origin == Origin::SameVersion;
            let own_until = own_past_speaks.then_some(own_until);
            let before = self.latency_before(&window.key, (baseline, past_until), own_until);
            baseline.latency = before.await?;
            evidence = SignalEvidence::gather(&window, controls, baseline, &self.limits);
        }
        let drift = evidence.certificate.as_ref().map(|drift| &drift.change);
        let changes = evidence.placement.iter().chain(drift);
        let hit = changes.flat_map(|change| &change.hit_placements);
        let fingerprints: Vec<u64> = hit.map(|hit| hit.placement.fingerprint).collect();
        let nodes = if fingerprints.is_empty() {
            CpuNodes::new()
        } else {
            let version = &window.key.model_version;
            self.inputs.cpu_nodes(model, version, &fingerprints).await?
        };
        let statistics = describe_spread(&window).map_err(SourceError::histogram(model))?;
        let mut verdict = judge(&window, baseline, &evidence, statistics, &nodes);
        if self.is_shown(&verdict) {
            self.describe_modes(&window, &mut verdict)?;
        }
        let statistics = verdict.statistics.clone();
        if verdict.severity == Severity::Page && window.has_newcomers() {
            let proven = window.proven();
            let devices = proven.n_devices();
            // In a flood every newcomer is doubtful, however few devices are known.
            if devices >= MIN_PROVEN || window.voteless.unproven > 0 {
                let evidence = SignalEvidence::gather(&proven, controls, baseline, &self.limits);
                let held = judge(&proven, baseline, &evidence, statistics.clone(), &nodes);
                if held.severity < Severity::Page {
                    doubt(&mut verdict, devices, window.voteless.unproven > 0);
                }
            }
        }
        let page = (verdict.severity == Severity::Page).then(|| Page {
            window,
            baseline: baseline.clone(),
            statistics,
            nodes,
        });
        Ok(Judged { verdict, page })
    }

    /// Whether the modes of a verdict are shown.
    fn is_shown(&self, verdict: &CohortVerdict) -> bool {
        match self.shows {
            Shows::All | Shows::Verdicts => true,
            Shows::Findings => verdict.class != VerdictClass::Healthy,
            Shows::Words => false,
        }
    }

    fn describe_modes(
        &self,
        window: &CohortWindow,
        verdict: &mut CohortVerdict,
    ) -> Result<(), SourceError> {
        let described = describe_modes(window, &mut verdict.statistics);
        described.map_err(SourceError::histogram(&window.key.model))
    }

    /// Returns the senders of the devices of a model's pages, which are read at once.
    async fn senders_of_pages(
        &self,
        model: &ModelKey,
        judged: &[JudgedChipset<'_>],
    ) -> Result<Senders, SourceError> {
        let judged = judged.iter();
        let cohorts = judged.flat_map(|chipset| chipset.parts.iter().chain([&chipset.whole]));
        let pages = cohorts.filter_map(|judged| judged.page.as_ref());
        let devices = pages.flat_map(|page| page.window.installations());
        let devices: HashSet<Installation> = devices.collect();
        if devices.is_empty() {
            return Ok(Senders::default());
        }
        self.inputs.senders(model, &devices).await
    }

    /// Returns the verdict, as a page only if it also holds without the devices that [`Senders::weigh`] leaves out.
    fn weighed(
        &self,
        judged: Judged<'_>,
        controls: Controls<'_>,
        senders: &Senders,
    ) -> WeighedVerdict {
        let Judged { mut verdict, page } = judged;
        let Some(page) = page else {
            return WeighedVerdict {
                verdict,
                not_own: 0,
            };
        };
        let weighed = senders.weigh(page.window.installations());
        let holds = weighed.left_out.is_empty() || {
            let rest = page.window.without(&weighed.left_out);
            let evidence = SignalEvidence::gather(&rest, controls, &page.baseline, &self.limits);
            let held = judge(
                &rest,
                &page.baseline,
                &evidence,
                page.statistics,
                &page.nodes,
            );
            held.severity == Severity::Page
        };
        doubt_networks(&mut verdict, &weighed, holds, senders.app_is_new());
        WeighedVerdict {
            verdict,
            not_own: weighed.not_own,
        }
    }

    /// Returns the version before a cohort's if it can be a control. A version with an open incident cannot, because it
    /// is slow anyway.
    fn control_version<'a>(&self, key: &CohortKey, past: &'a PastVersion) -> Option<&'a str> {
        let version = past.version.as_deref()?;
        let began = self.pinned.version_began(key, version);
        began.is_none().then_some(version)
    }

    /// Returns the versions with an open incident whose devices now have a cohort's version.
    fn taken_over_by(
        &self,
        key: &CohortKey,
        known: &mut BTreeMap<VersionOnChipset, Succession>,
    ) -> Vec<TakenOver> {
        let mut taken = Vec::new();
        for version in self.pinned.versions_at_fault(key) {
            if version == key.model_version {
                continue;
            }
            let of = (key.model.clone(), version.clone(), key.chipset.clone());
            let succession = known
                .entry(of)
                .or_insert_with_key(|of| self.inputs.succession(of));
            let here = succession.by_version.get(&key.model_version);
            taken.extend(here.map(|here| TakenOver {
                version: version.clone(),
                devices: succession.devices,
                here: *here,
                left: succession.left,
            }));
        }
        taken
    }

    /// Returns the versions on a cohort's chipset that have an open incident, or may share the cohort's incident.
    fn with_shared_fault(&self, window: &CohortWindow, read: &ModelWindows) -> Vec<String> {
        let key = &window.key;
        let has_incident = |version: &str| self.pinned.version_began(key, version).is_some();
        let is_at_fault = has_incident(&key.model_version);
        let others = read.cohorts.iter().map(|other| &other.key).filter(|other| {
            other.chipset == key.chipset && other.model_version != key.model_version
        });
        let shared = others.filter(|other| is_at_fault || has_incident(&other.model_version));
        shared.map(|other| other.model_version.clone()).collect()
    }
}

/// Returns the number of devices of each chipset in a model's window, over all versions that they ran.
fn devices_by_chipset(read: &ModelWindows) -> BTreeMap<&str, u64> {
    let mut devices: BTreeMap<&str, HashSet<Installation>> = BTreeMap::new();
    for window in &read.cohorts {
        let of_chipset = devices.entry(&window.key.chipset).or_default();
        of_chipset.extend(window.present());
    }
    let counted = devices.into_iter();
    counted
        .map(|(chipset, devices)| (chipset, devices.len() as u64))
        .collect()
}
