//! An incident as it is stored and shown: what it is about, where it is in its life, and its cohorts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cohort::ModelKey;
use crate::verdict::{CohortVerdict, Severity, VerdictClass, VerdictNumbers};

use super::cohort::IncidentCohort;

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
    pub model: ModelKey,
    pub model_version: String,
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
    pub severity: Severity,
    /// The verdict of its worst cohort.
    pub class: VerdictClass,
    /// Confirmed chipsets of that severity.
    pub chipsets: BTreeSet<String>,
}

/// How much a verdict of being slower says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvidenceStrength {
    /// Some runs are slower.
    Runs,
    /// Devices are slower.
    Devices,
    /// What runs on the CPU, and is slower for it.
    Placement,
    /// That nothing is left on the NPU.
    Total,
}

pub(super) fn evidence(class: VerdictClass) -> EvidenceStrength {
    match class {
        VerdictClass::TotalFallback => EvidenceStrength::Total,
        VerdictClass::PartialFallback | VerdictClass::SomeDevicesFallback => {
            EvidenceStrength::Placement
        }
        VerdictClass::SlowWithoutPlacement => EvidenceStrength::Devices,
        _ => EvidenceStrength::Runs,
    }
}

impl Incident {
    pub(super) fn begin(key: IncidentKey, window_end: Timestamp, now: Timestamp) -> Self {
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

    fn added(&self, count: impl Fn(&VerdictNumbers) -> u64) -> u64 {
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
}
