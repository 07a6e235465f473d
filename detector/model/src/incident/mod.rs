//! An incident as it is stored and shown: its key, its state, its headline and its cohorts.

mod cohort;
mod end;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::class::{Severity, VerdictClass};
use crate::cohort::ModelKey;
use crate::document_version::DocumentVersion;
use crate::named;
use crate::verdict::{CohortVerdict, VerdictNumbers};

pub use cohort::{CLEAN_WINDOWS, IncidentCohort, MovedTo, signed, start_of};
pub use order::{HeldEffect, Hold, Order, OrderKind, OrderNews, Orders};

/// The cause of an incident. Classes that may turn into each other have the same cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Devices are slower, or work moved to the CPU. A fallback may show first in latency, or in some runs of some
    /// devices, before a placement shows it.
    Slower,
    /// The NPU does not start.
    NpuStartFailure,
    /// The compiled model was made for other devices.
    CompiledModel,
    /// The NPU computes wrong results.
    WrongOutputs,
    /// Latency varies more.
    CvSpike,
    /// Almost no devices report.
    DataQuality,
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
            VerdictClass::CompiledForAnother => Some(Cause::CompiledModel),
            VerdictClass::WrongOutputs | VerdictClass::QuantisationLoss => {
                Some(Cause::WrongOutputs)
            }
            VerdictClass::CvSpike => Some(Cause::CvSpike),
            VerdictClass::DataQuality => Some(Cause::DataQuality),
            VerdictClass::ThermalOrLoad | VerdictClass::NotEnoughData | VerdictClass::Healthy => {
                None
            }
        }
    }

    /// Returns the name of its alert.
    #[must_use]
    pub fn alert_name(self) -> &'static str {
        match self {
            Cause::Slower => "EpwatchFallback",
            Cause::NpuStartFailure => "EpwatchNpuStartFailure",
            Cause::CompiledModel => "EpwatchCompiledModel",
            Cause::WrongOutputs => "EpwatchWrongOutputs",
            Cause::CvSpike => "EpwatchCvSpike",
            Cause::DataQuality => "EpwatchDataQuality",
        }
    }

    /// Returns the name used in fingerprints and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Slower => "slower",
            Cause::NpuStartFailure => "npu_start_failure",
            Cause::CompiledModel => "compiled_model",
            Cause::WrongOutputs => "wrong_outputs",
            Cause::CvSpike => "cv_spike",
            Cause::DataQuality => "data_quality",
        }
    }

    /// Whether an incident of this cause explains a verdict on the same chipset, so that it opens no other.
    #[must_use]
    pub fn explains(self, other: VerdictClass) -> bool {
        match self {
            Cause::NpuStartFailure => {
                matches!(
                    Cause::of(other),
                    Some(Cause::Slower | Cause::CompiledModel | Cause::CvSpike)
                )
            }
            Cause::Slower => other == VerdictClass::CvSpike,
            Cause::CompiledModel | Cause::WrongOutputs | Cause::CvSpike | Cause::DataQuality => {
                false
            }
        }
    }
}

/// Identifies an open incident: there is one for each model version and cause.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncidentKey {
    /// The model in its app and environment.
    pub model: ModelKey,
    /// The model version as the app names it.
    pub model_version: String,
    /// The cause, which its verdicts share.
    pub cause: Cause,
}

impl IncidentKey {
    /// Returns 16 hex digits that are the same for this key after restarts and in every detector.
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

named! {
    /// The state of an incident.
    pub enum State {
        /// The fault was pending and was never confirmed.
        Inactive = "inactive",
        /// The fault was seen, but is not confirmed yet.
        Pending = "pending",
        /// Confirmed, and people are notified.
        Firing = "firing",
        /// A directive took its devices off the NPU: people are notified, and nothing is repaired yet.
        Mitigated = "mitigated",
        /// Over, and people are notified.
        Resolved = "resolved",
    }
}

impl State {
    /// Whether the incident is not over.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, State::Pending | State::Firing | State::Mitigated)
    }

    /// Whether the incident is not over and people were notified of it.
    #[must_use]
    pub fn is_notified(self) -> bool {
        matches!(self, State::Firing | State::Mitigated)
    }
}

/// One incident, as its stored document holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    /// Version of the document.
    pub version: DocumentVersion,
    /// The fingerprint and the end of its first window, so that every detector that judges this window makes
    /// the same id.
    pub id: String,
    /// Identifies it while it is open.
    pub key: IncidentKey,
    /// Its state.
    pub state: State,
    /// Start of the first window that shows it. The fault may have begun at any time in that window.
    pub started_at: Timestamp,
    /// When that window was judged.
    pub detected_at: Option<Timestamp>,
    /// Time at which enough windows had confirmed the incident; people are notified from then on.
    pub fired_at: Option<Timestamp>,
    /// Time since which the incident is mitigated; `None` while it is not.
    pub mitigated_at: Option<Timestamp>,
    /// When it came back after it was mitigated.
    pub returned_at: Option<Timestamp>,
    /// When it was over.
    pub resolved_at: Option<Timestamp>,
    /// The cohorts that show it.
    pub cohorts: Vec<IncidentCohort>,
    /// SHA-256 in hex of the model file that most sessions loaded; `None` if no device sent it.
    pub model_sha256: Option<String>,
    /// The headline that people were sent last; unchanged until there is news.
    pub headline: Option<Headline>,
    /// The headline before that.
    pub superseded: Option<Headline>,
    /// Id of the incident that this one is a part of. Both have one cause, and only the other one is sent.
    pub part_of: Option<String>,
    /// Model and version of the incidents that are or were parts of it.
    pub parts: BTreeSet<String>,
    /// Number of news so far; notifiers deliver up to it.
    pub news: u64,
    /// The last news that each notifier delivered or gave up, by name.
    pub delivered: BTreeMap<String, u64>,
    /// The last news that each notifier gave up, by its name, because the receiver refused it until the incident was
    /// over for a day. It is in `delivered` too, so that it is not sent again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, u64>,
    /// Failed attempts of each notifier since the last success, by the notifier's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failing: BTreeMap<String, FailedAttempts>,
    /// People's orders.
    pub orders: Orders,
}

/// Attempts to deliver an incident that failed one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedAttempts {
    /// Time of the first failed attempt that was recorded.
    pub since: Timestamp,
    /// Their number.
    pub times: u64,
    /// The receiver's last answer, in a few words.
    pub answer: String,
}

/// The labels of an incident in notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headline {
    /// The severity that was confirmed.
    pub severity: Severity,
    /// The verdict of its worst cohort.
    pub class: VerdictClass,
    /// Chipsets confirmed at that severity.
    pub chipsets: BTreeSet<String>,
}

/// How strong the evidence of a class is, among those with cause [`Cause::Slower`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvidenceStrength {
    /// Some runs are slower.
    Runs,
    /// Devices are slower.
    Devices,
    /// Devices are slower, and their placement shows the op types on the CPU.
    Placement,
    /// Devices are slower, and nothing of the model is left on the NPU.
    Total,
}

impl EvidenceStrength {
    /// Returns the strength of a class.
    #[must_use]
    pub fn of(class: VerdictClass) -> Self {
        match class {
            VerdictClass::TotalFallback => Self::Total,
            VerdictClass::PartialFallback | VerdictClass::SomeDevicesFallback => Self::Placement,
            VerdictClass::SlowWithoutPlacement => Self::Devices,
            _ => Self::Runs,
        }
    }
}

impl Incident {
    /// App id of a test page; real ones have no blank.
    pub const TEST_APP: &'static str = "epwatch test";

    /// Returns the incident of a first window, which is not confirmed yet.
    #[must_use]
    pub fn begin(
        key: IncidentKey,
        (window_end, window): (Timestamp, Duration),
        now: Timestamp,
    ) -> Self {
        Incident {
            version: DocumentVersion,
            id: format!("{}-{}", key.fingerprint(), window_end.as_millisecond()),
            key,
            state: State::Pending,
            started_at: start_of(window_end, window),
            detected_at: Some(now),
            fired_at: None,
            mitigated_at: None,
            returned_at: None,
            resolved_at: None,
            cohorts: Vec::new(),
            model_sha256: None,
            headline: None,
            superseded: None,
            part_of: None,
            parts: BTreeSet::new(),
            news: 0,
            delivered: BTreeMap::new(),
            refused: BTreeMap::new(),
            failing: BTreeMap::new(),
            orders: Orders::default(),
        }
    }

    /// Returns the verdict of the worst cohort: confirmed first, then by strength of evidence and devices hit.
    #[must_use]
    pub fn lead(&self) -> Option<&CohortVerdict> {
        let worst = self.cohorts.iter().max_by_key(|cohort| {
            let whole_chipset = cohort.verdict.key.firmware.is_none();
            (
                cohort.confirmed,
                EvidenceStrength::of(cohort.verdict.class),
                whole_chipset,
                cohort.verdict.numbers.devices_hit,
            )
        });
        worst.map(|cohort| &cohort.verdict)
    }

    /// Returns the incident's version, and each version of its model that is or was a part of the incident.
    #[must_use]
    pub fn versions(&self) -> Vec<&str> {
        let of_model = format!("{} ", self.key.model.model_id);
        let parts = self.parts.iter();
        let parts = parts.filter_map(|part| part.strip_prefix(&of_model));
        std::iter::once(&*self.key.model_version)
            .chain(parts)
            .collect()
    }

    /// Returns the clean versions that its devices now have, by chipset; `None` if no device left its version.
    #[must_use]
    pub fn moved(&self) -> Option<String> {
        let mut chipsets: Vec<String> = Vec::new();
        for cohort in &self.cohorts {
            let key = &cohort.verdict.key;
            let told = cohort.moved_to.iter().map(|moved| {
                let (devices, of) = (moved.devices, moved.of);
                format!(
                    "{devices} of its {of} devices run {} now, healthy",
                    moved.version
                )
            });
            let told: Vec<String> = told.collect();
            if !told.is_empty() && key.firmware.is_none() {
                chipsets.push(format!("{}: {}", key.chipset, told.join(", ")));
            }
        }
        (!chipsets.is_empty()).then(|| chipsets.join("; "))
    }

    /// Whether all confirmed cohorts show only load that lasts.
    #[must_use]
    pub fn is_of_load(&self) -> bool {
        let confirmed = self.cohorts.iter();
        let mut confirmed = confirmed.filter(|cohort| cohort.confirmed > Severity::None);
        confirmed.all(|cohort| cohort.verdict.is_load())
    }

    /// Whether it is a test page instead of a fault.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.key.model.app_id == Self::TEST_APP
    }

    /// Returns the verdict of the headline, else of the worst cohort.
    #[must_use]
    pub fn class(&self) -> Option<VerdictClass> {
        let sent = self.headline.as_ref().map(|headline| headline.class);
        sent.or(self.lead().map(|lead| lead.class))
    }

    /// Returns the severity of the headline, else of the worst cohort.
    #[must_use]
    pub fn severity(&self) -> Severity {
        let sent = self.headline.as_ref().map(|headline| headline.severity);
        sent.or(self.lead().map(|lead| lead.severity))
            .unwrap_or(Severity::None)
    }

    /// Returns the chipsets of the headline, else those seen.
    #[must_use]
    pub fn chipsets(&self) -> Vec<String> {
        let seen = || {
            self.cohorts
                .iter()
                .map(|cohort| cohort.verdict.key.chipset.clone())
                .collect()
        };
        let sent = self
            .headline
            .as_ref()
            .map(|headline| headline.chipsets.clone());
        let chipsets = sent.unwrap_or_else(seen).into_iter();
        // An incident about all chipsets names none.
        chipsets.filter(|chipset| !chipset.is_empty()).collect()
    }

    /// Returns the firmwares that were judged apart from their chipset.
    #[must_use]
    pub fn firmwares(&self) -> Vec<String> {
        let firmwares = self
            .cohorts
            .iter()
            .filter_map(|c| c.verdict.key.firmware.clone());
        firmwares.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns devices hit and devices seen, over its chipsets. If only single firmwares of a chipset are at
    /// fault, their devices are counted.
    #[must_use]
    pub fn devices(&self) -> (u64, u64) {
        (
            self.added(|numbers| numbers.devices_hit),
            self.added(|numbers| numbers.devices_seen),
        )
    }

    /// Returns the number of devices seen that could be compared.
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
        let counted = verdicts().filter(|verdict| {
            let key = &verdict.key;
            let counts = key.firmware.is_none() || !whole.contains(&*key.chipset);
            counts && (key.chipset.is_empty() || chipsets.contains(&key.chipset))
        });
        counted.map(|verdict| count(&verdict.numbers)).sum()
    }

    /// Whether a notifier has news to deliver.
    #[must_use]
    pub fn has_news_for(&self, notifier: &str) -> bool {
        self.delivered.get(notifier).copied().unwrap_or(0) < self.news
    }
    /// Whether a person or a repair ended the incident, and its fault does not notify for now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.orders.hold.is_some()
    }

    /// Returns the time from which a recovered fault notifies again; `None` if it is not quiet.
    #[must_use]
    pub fn quiet_until(&self) -> Option<Timestamp> {
        self.orders.hold.as_ref()?.until
    }
}
