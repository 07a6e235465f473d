//! The windows of one model, and counts of healthy devices from its past.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{ModelKey, SignalId};

use crate::judge::base_rates::MIN_WINDOWS;
use crate::judge::baseline::{HealthyHistory, PlacementCount, VersionSeen};
use crate::judge::certified::CertifiedPlacement;
use crate::judge::tally::Tally;
use crate::judge::window::CohortWindow;

use super::history::{EarlierWindows, VersionHistory};
use super::span::Span;

/// A model with reports in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// App, environment and model id.
    pub model: ModelKey,
    /// Number of pairs of version and chipset.
    pub cohorts: u64,
    /// Sessions in reports of the window, as a measure of the rows to read.
    pub sessions: u64,
}

/// Everything read about one model for one window.
#[derive(Debug)]
pub struct ModelWindows {
    /// App, environment and model id.
    pub model: ModelKey,
    /// One window for each version and chipset.
    pub cohorts: Vec<CohortWindow>,
    /// Placements of the look-back, window included.
    pub census: Vec<PlacementCount>,
    /// Versions with the time they were first seen.
    pub versions: Vec<VersionSeen>,
    /// Placements that labs certified, the latest first.
    pub certified: Vec<CertifiedPlacement>,
    /// Sums of verdicts of earlier windows.
    pub earlier: Arc<EarlierWindows>,
}

impl ModelWindows {
    /// Returns the counts of each signal on a chipset while devices were healthy. They are from other versions. The counts
    /// of `Shift` are also from this version, once it is `MIN_WINDOWS` windows old.
    ///
    /// `Shift` compares a device's p10, which moves little from window to window. After a week the version's own
    /// windows show its usual counts, so a fault that comes without a new version stands out. Before that, a fault of
    /// the version would count as usual. Slow runs come and go with a device's other work, so the other signals use
    /// only other versions.
    #[must_use]
    pub fn history(&self, model_version: &str, chipset: &str, span: &Span) -> HealthyHistory {
        let mut history: BTreeMap<SignalId, Tally> = BTreeMap::new();
        let age_s = span.window.as_secs().saturating_mul(MIN_WINDOWS);
        let old_since_s = span.end_s().saturating_sub_unsigned(age_s);
        let speaks = |row: &&VersionHistory| {
            let is_settled =
                matches!(row.signal, SignalId::ShiftBeyond(_)) && row.since_s <= old_since_s;
            *row.chipset == *chipset && (*row.model_version != *model_version || is_settled)
        };
        for row in self.earlier.signals.iter().filter(speaks) {
            let is_own = *row.model_version == *model_version;
            let times = if is_own { own_weight(row.tally) } else { 1 };
            let slot = history.entry(row.signal).or_default();
            slot.hits += row.tally.hits * times;
            slot.devices += row.tally.devices * times;
        }
        HealthyHistory(history)
    }
}

/// Largest weight of a cohort's own past, in devices. More calm windows do not make the next one surer.
const MOST_OWN_DEVICES: u64 = 1_000;

/// Weight of each of a cohort's own devices. Another version's devices count once, like new devices. A cohort's own
/// past has the same devices as the judged window, and at least [`MIN_WINDOWS`] windows agree on them.
fn own_weight(tally: Tally) -> u64 {
    (MOST_OWN_DEVICES / tally.devices.max(1)).clamp(1, MIN_WINDOWS)
}
