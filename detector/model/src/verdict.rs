//! The verdict on one cohort window.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::class::{Severity, VerdictClass};
use crate::cohort::CohortKey;
use crate::late_runs::LateRuns;
use crate::reason::Reason;
use crate::reference::PlacementReference;
use crate::signal::Signal;
use crate::statistics::WindowStatistics;

/// The verdict on one cohort window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CohortVerdict {
    /// The cohort that was judged.
    pub key: CohortKey,
    /// End of the window, exclusive.
    pub window_end: Timestamp,
    /// Length of the window.
    pub window: Duration,
    /// The kind of fault, if any.
    pub class: VerdictClass,
    /// How soon a person must look at it.
    pub severity: Severity,
    /// The reasons, strongest first.
    pub reasons: Vec<Reason>,
    /// Sizes and effects.
    pub numbers: VerdictNumbers,
    /// CV and modes.
    pub statistics: WindowStatistics,
    /// Op types on the CPU of the devices hit, the costliest first.
    pub cpu_ops: Vec<String>,
    /// Share of the model's MACs that those devices run on the CPU, in [0, 1].
    pub cpu_macs_share: Option<f64>,
    /// The next steps, one per line.
    pub next_step: String,
    /// All signals that could be computed.
    pub signals: Vec<Signal>,
    /// Further counts for the history of later versions.
    pub tallies: Vec<Signal>,
    /// Devices without a vote because a directive took them off the NPU.
    pub devices_directed: u64,
    /// The version before this one, if it is known.
    pub follows: Option<String>,
    /// Versions with an open incident on its chipset whose devices now have this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takes_over: Vec<TakenOver>,
    /// References of its placements, if there is a finding. An open incident pins them.
    pub references: Vec<PlacementReference>,
    /// CV rules that fired, by name.
    pub cv_rules: Vec<String>,
    /// The chance of the deciding count in a healthy cohort; 1 without a finding.
    pub p: f64,
}

impl CohortVerdict {
    /// Returns a verdict without numbers, reasons or signals; `window_end` comes with the window's length.
    #[must_use]
    pub fn new(
        key: CohortKey,
        (window_end, window): (Timestamp, Duration),
        class: VerdictClass,
        severity: Severity,
    ) -> Self {
        CohortVerdict {
            key,
            window_end,
            window,
            class,
            severity,
            reasons: Vec::new(),
            numbers: VerdictNumbers::default(),
            statistics: WindowStatistics::default(),
            cpu_ops: Vec::new(),
            cpu_macs_share: None,
            next_step: String::new(),
            signals: Vec::new(),
            tallies: Vec::new(),
            devices_directed: 0,
            follows: None,
            takes_over: Vec::new(),
            references: Vec::new(),
            cv_rules: Vec::new(),
            p: 1.0,
        }
    }

    /// Returns the sentences of the reasons, with the word for the cohort's accelerator.
    pub fn reason_texts(&self) -> impl Iterator<Item = String> + '_ {
        let reasons = self.reasons.iter();
        reasons.map(|reason| self.key.in_words(&reason.to_string()))
    }

    /// Whether devices are slower, and something other than the model slowed down as well. That points to load, which
    /// ends. If it lasts, it is a finding.
    #[must_use]
    pub fn is_load(&self) -> bool {
        let is_slower = |reason: &Reason| {
            matches!(
                reason,
                Reason::Shift { .. }
                    | Reason::MedianSlower { .. }
                    | Reason::Intermittent { .. }
                    | Reason::CohortMoved { .. }
            )
        };
        self.class == VerdictClass::ThermalOrLoad
            && self.severity == Severity::Info
            && self.reasons.iter().any(is_slower)
    }
}

/// A version with an open incident, whose devices now have another version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakenOver {
    /// The version with the incident.
    pub version: String,
    /// Its devices on the chipset, over the look-back.
    pub devices: u64,
    /// Devices of it whose last report was of the judged version.
    pub here: u64,
    /// Devices that reported the version with the incident in the window, and no other version since.
    pub left: u64,
}

/// Sizes and effects of a verdict.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictNumbers {
    /// Devices that vote.
    pub devices_seen: u64,
    /// Devices of all versions of the model on the chipset, each once: those that vote, and those that a directive
    /// holds. A device that was updated within the window votes for two versions.
    pub devices_on_chipset: u64,
    /// Devices that the deciding signal could compare.
    pub devices_eligible: u64,
    /// Devices that the deciding signal counts as hit.
    pub devices_hit: u64,
    /// Clean runs of all voting devices.
    pub runs: u64,
    /// Ratio of p50 on the devices hit to their reference; without a finding, of all devices to their
    /// own earlier p50.
    pub latency_ratio: Option<f64>,
    /// Median p50 of the devices hit, in microseconds.
    pub hit_p50_us: Option<f64>,
    /// Median p50 of their references, in microseconds.
    pub reference_p50_us: Option<f64>,
    /// Share of the work on the NPU on the devices hit, in [0, 1]; without a finding, on all devices.
    pub npu_share: Option<f64>,
    /// Share of the work on the NPU in the reference.
    pub reference_npu_share: Option<f64>,
    /// Runs beyond the model's deadline; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_runs: Option<LateRuns>,
}

impl VerdictNumbers {
    /// Returns the median of the devices hit and of their reference, in microseconds.
    #[must_use]
    pub fn medians(&self) -> Option<(f64, f64)> {
        let us = |value: Option<f64>| value.filter(|us| us.is_finite() && *us > 0.0);
        Some((us(self.hit_p50_us)?, us(self.reference_p50_us)?))
    }

    /// Returns [`Self::medians`] if most devices were hit. Then a chart of all runs shows the same medians.
    #[must_use]
    pub fn medians_of_most(&self) -> Option<(f64, f64)> {
        self.medians()
            .filter(|_| self.devices_hit.saturating_mul(2) > self.devices_seen)
    }
}
