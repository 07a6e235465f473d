//! Life of an incident: Inactive -> Pending -> Firing -> Resolved; Mitigated while a directive keeps
//! its devices off the NPU.
//!
//! Pure: incidents so far, one window's verdicts and the time in; incidents as they are now out. One
//! incident covers an app's model version and cause, with the cohorts (chipsets, firmwares) inside;
//! each cohort is confirmed and cleared on its own. Only windows that share no data count as two.

mod cohort;
mod mitigation;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cohort::{CohortKey, ModelKey};
use crate::reason::Reason;
use crate::verdict::{CohortVerdict, Numbers, Severity, VerdictClass};

use cohort::signed;
pub use cohort::{
    AT_ONCE_DEVICES, AT_ONCE_P, CLEAN_WINDOWS, CONFIRM_WITHIN_WINDOWS, IncidentCohort,
};
use mitigation::DirectedDevices;

/// What an incident is about: verdicts that may turn into each other are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Slower, or work moved to the CPU: a fallback may show in latency first, and on some devices in
    /// some of their runs, before anybody sees where it runs.
    Slower,
    /// The NPU does not start.
    NpuStartFailure,
    /// The NPU computes something else.
    WrongOutputs,
    /// Latency varies more.
    CvSpike,
}

impl Cause {
    /// Returns the cause behind a verdict; `None` for verdicts that open no incident.
    #[must_use]
    pub fn of(class: VerdictClass) -> Option<Cause> {
        match class {
            VerdictClass::TotalFallback
            | VerdictClass::PartialFallback
            | VerdictClass::SomeDevicesFallback
            | VerdictClass::IntermittentFallback
            | VerdictClass::SlowWithoutPlacement => Some(Cause::Slower),
            VerdictClass::NpuStartFailure => Some(Cause::NpuStartFailure),
            VerdictClass::WrongOutputs => Some(Cause::WrongOutputs),
            VerdictClass::CvSpike => Some(Cause::CvSpike),
            VerdictClass::ThermalOrLoad
            | VerdictClass::DataQuality
            | VerdictClass::NotEnoughData
            | VerdictClass::Healthy => None,
        }
    }

    /// Returns the name used in fingerprints and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Slower => "slower",
            Cause::NpuStartFailure => "npu_start_failure",
            Cause::WrongOutputs => "wrong_outputs",
            Cause::CvSpike => "cv_spike",
        }
    }

    /// Whether an incident of this cause already tells people about a verdict on the same chipset.
    #[must_use]
    pub fn explains(self, other: VerdictClass) -> bool {
        match self {
            Cause::NpuStartFailure => {
                matches!(Cause::of(other), Some(Cause::Slower | Cause::CvSpike))
            }
            Cause::Slower => other == VerdictClass::CvSpike,
            Cause::WrongOutputs | Cause::CvSpike => false,
        }
    }
}

/// What makes an incident one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IncidentKey {
    /// The model.
    pub model: ModelKey,
    /// Its version.
    pub model_version: String,
    /// The cause.
    pub cause: Cause,
}

impl IncidentKey {
    /// Returns 16 hex digits that stay the same for this key, over restarts and detectors.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let ModelKey {
            app_id,
            environment,
            model_id,
        } = &self.model;
        let mut hash = Sha256::new();
        for part in [app_id, environment, model_id, &self.model_version] {
            // Lengths keep ("ab", "c") and ("a", "bc") apart.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(self.cause.as_str());
        epwatch_proto::hex(&hash.finalize()[..8])
    }
}

/// Where an incident is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was pending and nothing came of it.
    Inactive,
    /// Seen, not yet often or surely enough.
    Pending,
    /// People are told.
    Firing,
    /// A directive took its devices off the NPU: people are told, and nothing is repaired yet.
    Mitigated,
    /// Over, and people are told.
    Resolved,
}

impl State {
    /// Returns the name used in the store and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Inactive => "inactive",
            State::Pending => "pending",
            State::Firing => "firing",
            State::Mitigated => "mitigated",
            State::Resolved => "resolved",
        }
    }

    /// Whether it goes on.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, State::Pending | State::Firing | State::Mitigated)
    }

    /// Whether it goes on and people know.
    #[must_use]
    pub fn is_told(self) -> bool {
        matches!(self, State::Firing | State::Mitigated)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One incident, whole: what is stored as its document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Unique: the fingerprint and the end of its first window, so that whoever judges that window
    /// gives the same.
    pub id: String,
    /// What it is about.
    pub key: IncidentKey,
    /// Where it is in its life.
    pub state: State,
    /// When its first window was judged.
    pub started_at: Timestamp,
    /// When it fired.
    pub fired_at: Option<Timestamp>,
    /// Since when it is mitigated; `None` while it is not.
    pub mitigated_at: Option<Timestamp>,
    /// When it came back after it was mitigated.
    pub returned_at: Option<Timestamp>,
    /// When it was over.
    pub resolved_at: Option<Timestamp>,
    /// The cohorts inside.
    pub cohorts: Vec<IncidentCohort>,
    /// What people were told last; frozen until there is more to tell.
    pub headline: Option<Headline>,
    /// What they were told before that.
    pub superseded: Option<Headline>,
    /// Grows with each thing to tell.
    pub news: u64,
    /// How far each notifier is, by name.
    pub delivered: BTreeMap<String, u64>,
}

/// What people are told about an incident: its labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headline {
    /// How bad.
    pub severity: Severity,
    /// The verdict of its worst cohort.
    pub class: VerdictClass,
    /// Confirmed chipsets of that severity.
    pub chipsets: BTreeSet<String>,
}

/// What a window says about a cohort of an incident.
enum Observation<'a> {
    Seen(&'a CohortVerdict),
    /// Seen, and told already: under a cause that this incident explains, or by what says less.
    Held,
    Clean,
}

/// Takes one window's verdicts into the incidents; returns those that changed.
///
/// Incidents that are over stay in `incidents` for the caller to drop once they are delivered.
pub fn advance(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    verdicts: &[CohortVerdict],
    forget_after: Duration,
    now: Timestamp,
) -> Vec<Incident> {
    let mut touched: BTreeSet<IncidentKey> = BTreeSet::new();
    let directed = DirectedDevices::of(verdicts);
    let firmwares = verdicts.iter().map(|verdict| &verdict.key);
    let judged_firmwares: HashSet<&CohortKey> =
        firmwares.filter(|key| key.firmware.is_some()).collect();
    for verdict in verdicts {
        let cause = Cause::of(verdict.class).filter(|_| verdict.severity >= Severity::Ticket);
        let explained = cause.is_some()
            && incidents
                .values()
                .any(|open| open.key.cause.explains(verdict.class) && open.confirms(verdict));
        if let Some(cause) = cause.filter(|_| !explained) {
            let key = incident_key(&verdict.key, cause);
            let incident = incidents
                .entry(key.clone())
                .or_insert_with(|| Incident::begin(key.clone(), verdict.window_end, now));
            if !incident.state.is_open() {
                *incident = Incident::begin(key.clone(), verdict.window_end, now);
            }
            let observation = match incident.says_more_than(verdict) {
                true => Observation::Held,
                false => Observation::Seen(verdict),
            };
            if incident.observe(&verdict.key, verdict, &observation) {
                touched.insert(key);
            }
        }
        for incident in incidents.values_mut().filter(|open| open.state.is_open()) {
            if incident.count_successor(verdict) {
                touched.insert(incident.key.clone());
            }
            let same_cause = cause == Some(incident.key.cause) && !explained;
            if same_cause {
                continue;
            }
            for cohort in incident.told_by(verdict, &judged_firmwares, &directed) {
                let Some(observation) = incident.without_a_sighting(&cohort, verdict, cause) else {
                    continue;
                };
                if incident.observe(&cohort, verdict, &observation) {
                    touched.insert(incident.key.clone());
                }
            }
        }
    }
    let Some(window_end) = verdicts.iter().map(|verdict| verdict.window_end).max() else {
        return Vec::new();
    };
    for incident in incidents.values_mut().filter(|open| open.state.is_open()) {
        let held = incident.hold_directed(window_end, &directed);
        if incident.forget_vanished(window_end, forget_after) || held {
            touched.insert(incident.key.clone());
        }
    }
    let mut changed = Vec::new();
    for key in touched {
        if let Some(incident) = incidents.get_mut(&key) {
            incident.settle(now);
            changed.push(incident.clone());
        }
    }
    changed
}

/// How much a verdict of being slower says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvidenceStrength {
    /// Some runs are slower.
    Runs,
    /// Devices are slower.
    Devices,
    /// What runs on the CPU, and is slower for it.
    Placement,
    /// That nothing is left on the NPU.
    Total,
}

fn evidence(class: VerdictClass) -> EvidenceStrength {
    match class {
        VerdictClass::TotalFallback => EvidenceStrength::Total,
        VerdictClass::PartialFallback | VerdictClass::SomeDevicesFallback => {
            EvidenceStrength::Placement
        }
        VerdictClass::SlowWithoutPlacement => EvidenceStrength::Devices,
        _ => EvidenceStrength::Runs,
    }
}

fn incident_key(cohort: &CohortKey, cause: Cause) -> IncidentKey {
    IncidentKey {
        model: cohort.model.clone(),
        model_version: cohort.model_version.clone(),
        cause,
    }
}

impl Incident {
    fn begin(key: IncidentKey, window_end: Timestamp, now: Timestamp) -> Self {
        Incident {
            id: format!("{}-{}", key.fingerprint(), window_end.as_millisecond()),
            key,
            state: State::Pending,
            started_at: now,
            fired_at: None,
            mitigated_at: None,
            returned_at: None,
            resolved_at: None,
            cohorts: Vec::new(),
            headline: None,
            superseded: None,
            news: 0,
            delivered: BTreeMap::new(),
        }
    }

    /// Returns the cohort that speaks for the incident: confirmed, says most, most devices hit.
    #[must_use]
    pub fn lead(&self) -> Option<&CohortVerdict> {
        let worst = self.cohorts.iter().max_by_key(|cohort| {
            let whole_chipset = cohort.verdict.key.firmware.is_none();
            (
                cohort.confirmed,
                evidence(cohort.verdict.class),
                whole_chipset,
                cohort.verdict.numbers.devices_hit,
            )
        });
        worst.map(|cohort| &cohort.verdict)
    }

    /// Returns the severity: of what people were told, else what it would be.
    #[must_use]
    pub fn severity(&self) -> Severity {
        let told = self.headline.as_ref().map(|headline| headline.severity);
        told.or(self.lead().map(|lead| lead.severity))
            .unwrap_or(Severity::None)
    }

    /// Returns its chipsets: those people were told of, else those seen.
    #[must_use]
    pub fn chipsets(&self) -> Vec<String> {
        let seen = || {
            self.cohorts
                .iter()
                .map(|cohort| cohort.verdict.key.chipset.clone())
                .collect()
        };
        let told = self
            .headline
            .as_ref()
            .map(|headline| headline.chipsets.clone());
        told.unwrap_or_else(seen).into_iter().collect()
    }

    /// Returns its firmwares, where some of a chipset's were judged alone.
    #[must_use]
    pub fn firmwares(&self) -> Vec<String> {
        let firmwares = self
            .cohorts
            .iter()
            .filter_map(|c| c.verdict.key.firmware.clone());
        firmwares.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns devices hit and devices seen, over its chipsets; of a chipset where only single firmwares
    /// show it, those of the firmwares.
    #[must_use]
    pub fn devices(&self) -> (u64, u64) {
        (
            self.added(|numbers| numbers.devices_hit),
            self.added(|numbers| numbers.devices_seen),
        )
    }

    /// Returns how many of those seen could be compared.
    #[must_use]
    pub fn devices_compared(&self) -> u64 {
        self.added(|numbers| numbers.devices_eligible)
    }

    fn added(&self, count: impl Fn(&Numbers) -> u64) -> u64 {
        let chipsets = self.chipsets();
        let verdicts = || self.cohorts.iter().map(|cohort| &cohort.verdict);
        let whole = |verdict: &&CohortVerdict| verdict.key.firmware.is_none();
        let whole: BTreeSet<&str> = verdicts()
            .filter(whole)
            .map(|verdict| &*verdict.key.chipset)
            .collect();
        let told = verdicts().filter(|verdict| {
            let key = &verdict.key;
            let counts = key.firmware.is_none() || !whole.contains(&*key.chipset);
            counts && chipsets.contains(&key.chipset)
        });
        told.map(|verdict| count(&verdict.numbers)).sum()
    }

    /// Whether a notifier still has to tell people something.
    #[must_use]
    pub fn has_news_for(&self, notifier: &str) -> bool {
        self.delivered.get(notifier).copied().unwrap_or(0) < self.news
    }

    /// Whether people know that this verdict's chipset, or the same firmware of it, is as bad as this.
    fn confirms(&self, verdict: &CohortVerdict) -> bool {
        let (model, cohort) = (&self.key.model, &verdict.key);
        let same_version = *model == cohort.model && self.key.model_version == cohort.model_version;
        let tells = |watched: &IncidentCohort| {
            let told = &watched.verdict.key;
            let same_firmware = told.firmware.is_none()
                || cohort.firmware.is_none()
                || told.firmware == cohort.firmware;
            told.chipset == cohort.chipset
                && same_firmware
                && watched.confirmed >= verdict.severity
                && watched.confirmed > Severity::None
        };
        same_version && self.state.is_told() && self.cohorts.iter().any(tells)
    }

    /// Whether what is confirmed of a cohort tells people more than this verdict: what a repair leaves,
    /// or the devices whose placement did not come, hide no ops.
    fn says_more_than(&self, verdict: &CohortVerdict) -> bool {
        let cohort = self.watched(&verdict.key);
        cohort.is_some_and(|cohort| {
            cohort.confirmed > Severity::None
                && cohort.confirmed >= verdict.severity
                && evidence(cohort.verdict.class).min(EvidenceStrength::Placement)
                    > evidence(verdict.class)
        })
    }

    fn watched(&self, key: &CohortKey) -> Option<&IncidentCohort> {
        let same_model = self.key.model == key.model && self.key.model_version == key.model_version;
        self.cohorts
            .iter()
            .find(|cohort| same_model && cohort.verdict.key == *key)
    }

    /// Returns the cohorts that a verdict tells about: its own, and firmwares of its chipset that have too
    /// few devices left to be judged apart. Not those that a directive covers: what is left of them looks
    /// clean.
    fn told_by(
        &self,
        verdict: &CohortVerdict,
        judged_firmwares: &HashSet<&CohortKey>,
        directed: &DirectedDevices<'_>,
    ) -> Vec<CohortKey> {
        let told = |cohort: &&IncidentCohort| {
            let key = &cohort.verdict.key;
            let of_chipset = CohortKey {
                firmware: None,
                ..key.clone()
            };
            *key == verdict.key || (of_chipset == verdict.key && !judged_firmwares.contains(key))
        };
        let told = self.cohorts.iter().filter(told);
        let told = told.filter(|cohort| !directed.covers(cohort));
        told.map(|cohort| cohort.verdict.key.clone()).collect()
    }

    /// Returns what a window without a sighting of this cause says about a cohort; `None`: nothing.
    fn without_a_sighting(
        &self,
        cohort: &CohortKey,
        verdict: &CohortVerdict,
        cause: Option<Cause>,
    ) -> Option<Observation<'static>> {
        if cause.is_some() {
            return Some(match self.key.cause.explains(verdict.class) {
                true => Observation::Held,
                false => Observation::Clean,
            });
        }
        match verdict.class {
            VerdictClass::Healthy => Some(Observation::Clean),
            _ if verdict.reasons.iter().any(Reason::is_as_before) => Some(Observation::Clean),
            VerdictClass::NotEnoughData => Some(match self.watched(cohort)?.lasts(verdict)? {
                true => Observation::Held,
                false => Observation::Clean,
            }),
            _ => None,
        }
    }

    /// Takes one cohort's window in, which its own verdict tells or its chipset's; says whether anything
    /// changed.
    fn observe(
        &mut self,
        key: &CohortKey,
        verdict: &CohortVerdict,
        observation: &Observation<'_>,
    ) -> bool {
        let at = self
            .cohorts
            .iter()
            .position(|cohort| cohort.verdict.key == *key);
        let at = match (at, observation) {
            (Some(at), _) => at,
            (None, Observation::Seen(verdict)) => {
                self.cohorts.push(IncidentCohort::new(verdict));
                self.cohorts.len() - 1
            }
            (None, _) => return false,
        };
        let cohort = &mut self.cohorts[at];
        if verdict.window_end < cohort.counted_until {
            cohort.go_back(verdict.window_end);
        }
        match observation {
            Observation::Seen(verdict) => cohort.see(verdict),
            Observation::Held => {
                cohort.clean_windows = 0;
                cohort.counted_until = verdict.window_end;
            }
            Observation::Clean => {
                if !cohort.count_clean(verdict.window_end, verdict.window) {
                    return false;
                }
            }
        }
        true
    }

    fn forget_vanished(&mut self, window_end: Timestamp, forget_after: Duration) -> bool {
        let before = self.cohorts.len();
        let limit = signed(forget_after);
        for cohort in &mut self.cohorts {
            if window_end.duration_since(cohort.counted_until) >= limit {
                cohort.clean_windows = CLEAN_WINDOWS;
            }
        }
        self.cohorts.iter().any(|cohort| cohort.is_cleared()) && before > 0
    }

    /// Draws the consequences for the incident as a whole.
    fn settle(&mut self, now: Timestamp) {
        let still = self.cohorts.iter().any(|cohort| !cohort.is_cleared());
        if !still {
            if self.state.is_told() {
                self.state = State::Resolved;
                self.resolved_at = Some(now);
                self.news += 1;
            } else {
                self.state = State::Inactive;
            }
            return;
        }
        self.cohorts.retain(|cohort| !cohort.is_cleared());
        let Some(headline) = self.current_headline() else {
            return;
        };
        let more = match &self.headline {
            None => true,
            Some(told) => {
                let more_chipsets = !headline.chipsets.is_subset(&told.chipsets);
                let found = evidence(headline.class);
                let says_more =
                    found >= EvidenceStrength::Placement && found > evidence(told.class);
                headline.severity > told.severity
                    || (headline.severity == told.severity && (more_chipsets || says_more))
            }
        };
        if more {
            if self.state == State::Pending {
                self.state = State::Firing;
                self.fired_at = Some(now);
            }
            self.superseded = self.headline.replace(headline);
            self.news += 1;
        }
        self.settle_mitigation(now);
    }

    fn current_headline(&self) -> Option<Headline> {
        let severity = self.cohorts.iter().map(|cohort| cohort.confirmed).max()?;
        if severity == Severity::None {
            return None;
        }
        let confirmed = self
            .cohorts
            .iter()
            .filter(|cohort| cohort.confirmed == severity);
        let mut chipsets: BTreeSet<String> = confirmed
            .map(|cohort| cohort.verdict.key.chipset.clone())
            .collect();
        // A chipset that cleared is still part of what people were told.
        if let Some(told) = self
            .headline
            .as_ref()
            .filter(|told| told.severity == severity)
        {
            chipsets.extend(told.chipsets.iter().cloned());
        }
        Some(Headline {
            severity,
            class: self.lead()?.class,
            chipsets,
        })
    }
}

#[cfg(test)]
mod tests;
