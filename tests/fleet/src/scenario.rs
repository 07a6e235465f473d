//! The description of a fleet: its devices, the roll-outs of its model's versions, and its faults.
//!
//! A fault only changes the placement that a device gets. That a device is slow follows from its placement
//! (`fallback`), never from a script.

use crate::chance::Chance;
use crate::chipsets::Chipset;
use std::time::Duration;

/// A simulated fleet. Start from `Scenario::new` and change fields; `Fleet::new` validates.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Equal seeds give equal fleets.
    pub seed: u64,
    /// App id, as in the app keys of the collector.
    pub app_id: String,
    /// App version that the devices report.
    pub app_version: String,
    /// For example `production`.
    pub environment: String,
    /// Model id as the app calls it.
    pub model_id: String,
    /// Version that every device runs at time zero.
    pub first_version: String,
    /// Later versions, in order of time.
    pub rollouts: Vec<Rollout>,
    /// Chipsets by weight.
    pub chipsets: Vec<ChipsetShare>,
    /// Devices in all.
    pub n_devices: usize,
    /// Runs per second of the median device; devices differ with a heavy tail.
    pub runs_per_second: f64,
    /// Time between a device's reports.
    pub report_interval: Duration,
    pub faults: Vec<PlacementFault>,
    /// Share of devices that have always run every version wholly on the CPU.
    pub always_fell_back: f64,
}

/// A chipset and its weight in the fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChipsetShare {
    pub chipset: Chipset,
    /// Its weight; weights need not add up to 1.
    pub share: f64,
}

/// The move of a share of the devices to another model version.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// The new version.
    pub version: String,
    /// The moment at which the first device gets it.
    pub starts: Duration,
    /// Time until the last device has it; they get it uniformly in between.
    pub takes: Duration,
    /// Share of devices that get it, 0 to 1.
    pub share: f64,
}

/// A fault: the placement that a share of a chipset's devices gets.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementFault {
    pub chipset: Chipset,
    /// The only version that has it.
    pub version: String,
    /// Share of the chipset's devices, 0 to 1. Below 1 the fault is a fallback on some devices.
    pub share: f64,
    pub placed: Placed,
}

/// A device's placement of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// The version's placement on this chipset.
    As(Chipset),
    /// Every node is on the CPU, and the session reports success.
    OnCpu,
}

/// A scenario that cannot be simulated: the field and its bounds.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ScenarioError {
    /// A field is out of bounds.
    #[error("failed to set up the fleet: {field} must be {expected}")]
    OutOfBounds {
        field: &'static str,
        /// The condition that it must meet.
        expected: &'static str,
    },
    /// There is no placement of this version on this chipset.
    #[error("failed to set up the fleet: no placement of version {version} on {chipset}")]
    NoPlacement {
        version: String,
        chipset: &'static str,
    },
}

impl Scenario {
    /// Returns a healthy fleet of `n_devices` on five chipsets that all keep running `first_version`. Each device runs
    /// a text transformer twice a second, and makes a report every two seconds.
    #[must_use]
    pub fn new(app_id: &str, model_id: &str, first_version: &str, n_devices: usize) -> Self {
        let share = |chipset, share| ChipsetShare { chipset, share };
        Self {
            seed: 1,
            app_id: app_id.to_owned(),
            app_version: "1.0".to_owned(),
            environment: "production".to_owned(),
            model_id: model_id.to_owned(),
            first_version: first_version.to_owned(),
            rollouts: Vec::new(),
            chipsets: vec![
                share(Chipset::Sm8650, 0.28),
                share(Chipset::Sm8635, 0.24),
                share(Chipset::Sm8550, 0.20),
                share(Chipset::Sm8750, 0.18),
                share(Chipset::Sm7550, 0.10),
            ],
            n_devices,
            runs_per_second: 4.0,
            report_interval: Duration::from_secs(2),
            faults: Vec::new(),
            always_fell_back: 0.01,
        }
    }

    /// Returns the chipset of a device, by a low-discrepancy sequence. Every stretch of devices has the fleet's mix,
    /// with shares exact to a device or two.
    pub(crate) fn chipset_of(&self, device: usize) -> Chipset {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        #[expect(
            clippy::cast_precision_loss,
            reason = "fleets have far fewer than 2^52 devices"
        )]
        let position = (0.5 + GOLDEN * device as f64).fract();
        let total: f64 = self.chipsets.iter().map(|entry| entry.share).sum();
        let mut reached = 0.0;
        for entry in &self.chipsets {
            reached += entry.share / total;
            if position < reached {
                return entry.chipset;
            }
        }
        self.chipsets[self.chipsets.len() - 1].chipset
    }

    /// Returns the versions that a device moves to, with their times, in order of time.
    pub(crate) fn updates_of(&self, device: u64) -> Vec<(Duration, String)> {
        let mut updates = Vec::new();
        for (index, rollout) in self.rollouts.iter().enumerate() {
            let mut chance = Chance::split(self.seed, "rollout", (device << 8) | index as u64);
            let (gets_it, when) = (chance.happens(rollout.share), chance.unit());
            if gets_it {
                let at = rollout.starts + rollout.takes.mul_f64(when);
                updates.push((at, rollout.version.clone()));
            }
        }
        updates.sort_by_key(|(at, _)| *at);
        updates
    }

    /// The placement that a device gets for a version.
    pub(crate) fn placed(&self, device: u64, chipset: Chipset, version: &str) -> Placed {
        let draw = |label| Chance::split(self.seed, label, device).unit();
        if draw("always fell back") < self.always_fell_back {
            return Placed::OnCpu;
        }
        // One draw for all faults: devices hit by the smaller share are also hit by the larger one.
        let fault_draw = draw("fault");
        let hits = |fault: &&PlacementFault| {
            fault.chipset == chipset && fault.version == version && fault_draw < fault.share
        };
        let fault = self.faults.iter().find(hits);
        fault.map_or(Placed::As(chipset), |fault| fault.placed)
    }

    /// All versions, the first one first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.first_version.as_str())
            .chain(self.rollouts.iter().map(|rollout| rollout.version.as_str()))
    }

    /// Checks everything that can be checked without placements.
    pub(crate) fn validate(&self) -> Result<(), ScenarioError> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let text = |text: &str, max_bytes: usize| {
            !text.is_empty() && text.len() <= max_bytes && !text.chars().any(char::is_control)
        };
        let texts = [
            ("app_id", "1 to 128 bytes of text", &self.app_id, 128),
            (
                "environment",
                "1 to 32 bytes of text",
                &self.environment,
                32,
            ),
            ("model_id", "1 to 128 bytes of text", &self.model_id, 128),
        ];
        let texts =
            texts.map(|(field, expected, value, bytes)| (field, expected, text(value, bytes)));
        let of_rollouts = self.rollouts.iter().map(|rollout| rollout.share);
        let of_faults = self.faults.iter().map(|fault| fault.share);
        let mut shares = of_rollouts.chain(of_faults).chain([self.always_fell_back]);
        let mut versions: Vec<&str> = self.versions().collect();
        versions.sort_unstable();
        let are_unique = versions.windows(2).all(|pair| pair[0] != pair[1]);
        let weigh_something = self.chipsets.iter().all(|entry| positive(entry.share));
        let checks = [
            (
                "versions",
                "at most 256, each once, with 1 to 64 bytes of text",
                versions.len() <= 256 && are_unique && versions.iter().all(|v| text(v, 64)),
            ),
            ("n_devices", "at least 1", self.n_devices > 0),
            (
                "chipsets",
                "at least one, with positive shares",
                !self.chipsets.is_empty() && weigh_something,
            ),
            ("runs_per_second", "above 0", positive(self.runs_per_second)),
            (
                "report_interval",
                "at least 10 ms",
                self.report_interval >= Duration::from_millis(10),
            ),
            (
                "all shares",
                "between 0 and 1",
                shares.all(|share| (0.0..=1.0).contains(&share)),
            ),
        ];
        let checks = texts.into_iter().chain(checks);
        for (field, expected, holds) in checks {
            if !holds {
                return Err(ScenarioError::OutOfBounds { field, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let mut scenario = Scenario::new("app", "model", "1", 1_000);
        scenario.rollouts.push(Rollout {
            version: "2".to_owned(),
            starts: Duration::from_secs(10),
            takes: Duration::from_secs(5),
            share: 0.8,
        });
        scenario
    }

    #[test]
    fn chipsets_come_in_their_shares() {
        let scenario = scenario();
        for entry in &scenario.chipsets {
            let n = (0..1_000)
                .filter(|i| scenario.chipset_of(*i) == entry.chipset)
                .count();
            assert!(
                (n as f64 - 1_000.0 * entry.share).abs() < 10.0,
                "{entry:?}: {n}"
            );
        }
    }

    #[test]
    fn a_rollout_reaches_its_share_within_its_time() {
        let scenario = scenario();
        let updates: Vec<_> = (0..1_000).flat_map(|i| scenario.updates_of(i)).collect();
        assert!((760..840).contains(&updates.len()), "{}", updates.len());
        let within = Duration::from_secs(10)..Duration::from_secs(15);
        assert!(
            updates
                .iter()
                .all(|(at, version)| within.contains(at) && version == "2")
        );
    }

    #[test]
    fn a_fault_hits_its_share_of_one_chipset_and_version() {
        let mut scenario = scenario();
        scenario.always_fell_back = 0.0;
        scenario.faults.push(PlacementFault {
            chipset: Chipset::Sm8635,
            version: "2".to_owned(),
            share: 0.3,
            placed: Placed::OnCpu,
        });
        let hit = |chipset, version| {
            (0..1_000)
                .filter(|i| scenario.placed(*i, chipset, version) == Placed::OnCpu)
                .count()
        };
        assert!((250..350).contains(&hit(Chipset::Sm8635, "2")));
        assert_eq!(hit(Chipset::Sm8635, "1"), 0);
        assert_eq!(hit(Chipset::Sm8650, "2"), 0);
    }

    #[test]
    fn what_cannot_be_simulated_is_named() {
        let mut scenario = scenario();
        scenario.runs_per_second = f64::NAN;
        let refused = scenario.validate().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "failed to set up the fleet: runs_per_second must be above 0"
        );
        scenario.runs_per_second = 1.0;
        scenario.app_id.clear();
        assert!(scenario.validate().is_err());
        scenario.app_id.push('a');
        assert_eq!(scenario.validate(), Ok(()));
        scenario.rollouts[0].version = "1".to_owned();
        assert!(scenario.validate().is_err());
    }
}
