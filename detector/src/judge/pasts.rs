//! Self baselines of devices, read from the store if too few devices reported their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{CohortKey, VersionOnChipset};
use jiff::{SignedDuration, Timestamp};

use crate::judge::baseline::{Baseline, BaselineLatency};
use crate::judge::evaluate::EvaluationRun;
use crate::judge::past_version::PastVersion;
use crate::judge::signals::{MIN_ELIGIBLE, MIN_HITS, PlacementChange, SignalEvidence};
use crate::judge::window::CohortWindow;
use crate::read::{BaselineRequest, BaselineVersion, ModelWindows, SourceError};

/// The store's baselines are read if less than this share of the devices has one of its own.
const SCARCE: f64 = 0.5;

/// Number of windows before the judged one that are too recent to be a baseline of their own version.
const SETTLING_WINDOWS: i64 = 2;

/// Maximum number of devices of a cohort whose baselines are read from the store if only some devices did not report
/// one.
const FEW_DEVICES: u64 = 12;

impl EvaluationRun {
    /// Fills in self baselines from the store if most devices sent none: of the version before, else of this one.
    pub(super) async fn fill_device_baselines(
        &self,
        read: &mut ModelWindows,
        pasts: &[PastVersion],
    ) -> Result<(), SourceError> {
        let own = |settled| (BaselineVersion::SameVersion, settled);
        let in_turn = [
            (BaselineVersion::PreviousVersion, false),
            own(true),
            own(false),
        ];
        for (before, is_settled) in in_turn {
            let scarce = read.cohorts.iter().enumerate();
            let scarce = scarce.filter(|(_, window)| {
                let asked = match before {
                    BaselineVersion::PreviousVersion => true,
                    // Otherwise the version's own faults would become the past of its devices.
                    BaselineVersion::SameVersion => window.n_with_past_elsewhere() < MIN_ELIGIBLE,
                };
                let lacks = window.share_with_past() < SCARCE || window.has_faulty_pasts();
                asked && lacks
            });
            // Keyed by the end of the past that counts, which for most cohorts is the start of the window.
            let mut wanted: BTreeMap<Timestamp, Vec<(usize, VersionOnChipset)>> = BTreeMap::new();
            for (at, window) in scarce {
                let past = &pasts[at];
                let (version, until) = match before {
                    BaselineVersion::PreviousVersion => {
                        let until = past.until.unwrap_or(self.span.start());
                        (past.version.clone(), until.min(self.span.start()))
                    }
                    BaselineVersion::SameVersion => {
                        let version = window.key.model_version.clone();
                        let until = match is_settled {
                            true => self.settled_until(&window.key),
                            false => self.own_past_until(&window.key),
                        };
                        (Some(version), past.own_until.unwrap_or(until).min(until))
                    }
                };
                if let Some(version) = version {
                    let key = (read.model.clone(), version, window.key.chipset.clone());
                    wanted.entry(until).or_default().push((at, key));
                }
            }
            for (until, wanted) in wanted {
                let votes = wanted
                    .iter()
                    .map(|(at, _)| read.cohorts[*at].votes.len() as u64);
                let asked = BaselineRequest {
                    before,
                    until,
                    votes: votes.sum(),
                };
                let mut keys: Vec<VersionOnChipset> =
                    wanted.iter().map(|(_, key)| key.clone()).collect();
                keys.sort();
                keys.dedup();
                let baselines = self.inputs.device_baselines(&keys, asked).await?;
                for (at, key) in wanted {
                    if let Some(baselines) = baselines.get(&key) {
                        baselines.fill(&mut read.cohorts[at]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills in the devices' usual speed on this version if it was faster than on the version before. Such a version
    /// may lose its gain, and the version before would not show it.
    pub(super) async fn fill_faster(&self, read: &mut ModelWindows) -> Result<(), SourceError> {
        for at in 0..read.cohorts.len() {
            let key = read.cohorts[at].key.clone();
            let (version, chipset) = (&key.model_version, &key.chipset);
            let has_lost = self.pinned.has_lost(&key);
            if !has_lost && !read.earlier.has_gained(version, chipset) {
                continue;
            }
            let asked = BaselineRequest {
                before: BaselineVersion::SameVersion,
                until: self.own_past_until(&key),
                votes: read.cohorts[at].votes.len() as u64,
            };
            let of = (read.model.clone(), version.clone(), chipset.clone());
            let baselines = self
                .inputs
                .device_baselines(std::slice::from_ref(&of), asked);
            let mut baselines = baselines.await?;
            let baselines = baselines.remove(&of).unwrap_or_default();
            baselines.fill_faster(&mut read.cohorts[at], has_lost);
        }
        Ok(())
    }

    /// Reads the latency of the version before on the chipset, else of this one before `own_until`.
    pub(super) async fn latency_before(
        &self,
        key: &CohortKey,
        (baseline, past_until): (&Baseline, Timestamp),
        own_until: Option<Timestamp>,
    ) -> Result<BTreeMap<Arc<str>, BaselineLatency>, SourceError> {
        let previous = baseline.previous_version.iter();
        let previous = previous.map(|version| (version, past_until));
        let own = own_until.map(|until| (&key.model_version, until));
        for (version, until) in previous.chain(own) {
            let version = (key.model.clone(), version.clone(), key.chipset.clone());
            let before = self.inputs.latency_before(&version, until).await?;
            if !before.is_empty() {
                return Ok(before);
            }
        }
        Ok(BTreeMap::new())
    }

    /// Returns the window with the pasts on `previous` of devices that reported none.
    pub(super) async fn with_pasts(
        &self,
        window: &CohortWindow,
        previous: &str,
        until: Timestamp,
    ) -> Result<CohortWindow, SourceError> {
        let CohortKey { model, chipset, .. } = &window.key;
        let version = (model.clone(), previous.to_owned(), chipset.clone());
        let asked = BaselineRequest {
            before: BaselineVersion::PreviousVersion,
            until,
            votes: window.votes.len() as u64,
        };
        let wanted = std::slice::from_ref(&version);
        let baselines = self.inputs.device_baselines(wanted, asked).await?;
        let mut filled = window.clone();
        if let Some(baselines) = baselines.get(&version) {
            baselines.fill(&mut filled);
        }
        Ok(filled)
    }

    /// Returns the end of a version's own windows that are old enough to be its past. A fault takes some windows to be
    /// confirmed, and must not become the devices' baseline in the meantime.
    pub(super) fn settled_until(&self, cohort: &CohortKey) -> Timestamp {
        let window = i64::try_from(self.span.window.as_secs()).unwrap_or(i64::MAX);
        let settled = SignedDuration::from_secs(window.saturating_mul(SETTLING_WINDOWS));
        let start = self.span.start();
        let until = start.saturating_sub(settled).unwrap_or(Timestamp::MIN);
        until.min(self.own_past_until(cohort))
    }

    /// Returns the end of a version's own past that counts: the start of the window, or of an open incident.
    pub(super) fn own_past_until(&self, cohort: &CohortKey) -> Timestamp {
        let start = self.span.start();
        self.pinned.began(cohort).unwrap_or(start).min(start)
    }
}

/// Whether the placement got worse on every device of a small cohort where it can be compared, and some devices did not
/// report their past. Each device counts in such a cohort, and a window has few of them.
pub(super) fn lacks_pasts(window: &CohortWindow, evidence: &SignalEvidence) -> bool {
    let devices = window.n_devices();
    let is_all_worse = |change: &PlacementChange| change.is_on_every_device(devices);
    (MIN_HITS..=FEW_DEVICES).contains(&devices)
        && evidence.placement.as_ref().is_some_and(is_all_worse)
        && window.share_with_past() < 1.0
}
