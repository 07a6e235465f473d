//! The baseline of a cohort: the version before it, a certified placement, other chipsets, and past healthy cohorts'
//! share of devices hit. `read` fills it; the signals compare with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use epwatch_model::{Origin, Placement, PlacementMethod, PlacementReference, SignalId, WorkUnit};
use epwatch_proto::accelerator::is_same_accelerator;

use crate::judge::base_rates::BaseRates;
use crate::judge::tally::{Tally, surprise};
use crate::judge::window::{CohortWindow, DeviceVote, count_devices};

/// Other chipsets needed before their median replaces an earlier version as the reference.
pub(crate) const MIN_OTHER_CHIPSETS: usize = 2;

/// Minimum share of the devices for which a runtime counts as the runtime of the whole cohort.
const NEW_ON: f64 = 0.9;

/// The references of one cohort window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Baseline {
    /// The version before the version of the cohort. Versions with an open incident on the chipset are skipped.
    pub previous_version: Option<String>,
    /// Versions between the two that have an open incident on the chipset, the latest first.
    pub passed_over: Vec<String>,
    /// The version with an open incident that the devices came back from. Their own past with the cohort's version ends
    /// before that incident.
    pub came_back_from: Option<String>,
    /// Versions of the model that are not a control of the chipset's load, because they share an incident with the
    /// cohort.
    pub no_controls: Vec<String>,
    /// Reference placements, best first; the first that is comparable counts.
    pub placements: Vec<PlacementReference>,
    /// Certificates of the version on the chipset, the latest first.
    pub certificates: Vec<Certificate>,
    /// Runtimes of the previous version on the chipset, readable placements or not.
    pub runtimes: BTreeSet<Arc<str>>,
    /// Clean latency on the same chipset before the window, by input shape: of the previous version if
    /// there is one, else of this version.
    pub latency: BTreeMap<Arc<str>, BaselineLatency>,
    /// Devices hit in healthy windows of earlier versions of the same cohort, and of its own.
    pub history: HealthyHistory,
    /// Share of healthy devices hit in the whole fleet, by signal.
    pub rates: BaseRates,
    /// Whether the config names the model as one that belongs on the NPU.
    pub expects_npu: bool,
    /// Coefficient of variation within a device in earlier windows of the cohort; `None` if there are none.
    pub cv_within: Option<f64>,
}

impl Baseline {
    /// Returns the chance of at least as many hits in a healthy cohort. `built_in` is the signal's rate if the fleet
    /// has none of its own.
    pub(crate) fn chance(&self, signal: SignalId, built_in: f64, found: Tally) -> f64 {
        let fleet = self.rates.of(signal, built_in);
        surprise(found, fleet, self.history.of(signal))
    }

    /// Returns the runtimes of a window's devices if most of them have one that the previous version never had on the
    /// chipset; none otherwise.
    pub(crate) fn runtimes_new_to(&self, window: &CohortWindow) -> Vec<String> {
        let is_new = |vote: &&DeviceVote| {
            let runtime = &*vote.placement.runtime;
            !runtime.is_empty() && !self.runtimes.contains(runtime)
        };
        let with_new = || window.votes.iter().filter(is_new);
        let all = window.n_devices();
        if self.runtimes.is_empty() || (count_devices(with_new()) as f64) < NEW_ON * all as f64 {
            return Vec::new();
        }
        let runtimes: BTreeSet<&str> = with_new().map(|vote| &*vote.placement.runtime).collect();
        runtimes.into_iter().map(str::to_owned).collect()
    }

    /// Returns the latest certified latency.
    pub(crate) fn certified_latency(&self) -> Option<&BaselineLatency> {
        self.certificates
            .iter()
            .find_map(|one| one.latency.as_ref())
    }

    /// Returns the healthy history of a signal, with the previous version in the same window added.
    pub(crate) fn past(&self, signal: SignalId, previous: Option<Tally>) -> Tally {
        let mut past = self.history.of(signal);
        past += previous.unwrap_or_default();
        past
    }
}

/// A placement that a lab or a pipeline certified for a version on a chipset.
#[derive(Debug, Clone, PartialEq)]
pub struct Certificate {
    /// The certifier, for example a CI run.
    pub certified_by: String,
    /// Hash of the firmware that it was measured on; empty if none is known, as for an emulator.
    pub firmware: String,
    /// Where it runs.
    pub placement: Placement,
    /// Run times of measured launches.
    pub latency: Option<BaselineLatency>,
}

impl Certificate {
    /// Returns the certificate with the vote's method and runtime whose firmware is nearest: the device's own, else
    /// none, else any other. Of several equally near ones, the first counts, which is the latest.
    pub(crate) fn nearest<'a>(
        certificates: &'a [Certificate],
        vote: &DeviceVote,
    ) -> Option<&'a Certificate> {
        let placement = &vote.placement;
        if !placement.method.is_readable() {
            return None;
        }
        // A certificate from a file may leave its runtime out.
        let of_runtime =
            |runtime: &str| runtime == placement.runtime || matches!(runtime, "" | "/");
        let is_comparable = |one: &&Certificate| {
            one.placement.method == placement.method && of_runtime(&one.placement.runtime)
        };
        let distance = |one: &&Certificate| match &*one.firmware {
            own if *own == *vote.firmware => 0,
            "" => 1,
            _ => 2,
        };
        let comparable = certificates.iter().filter(is_comparable);
        comparable.min_by_key(distance)
    }
}

/// Merged clean latency of a version on a chipset, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BaselineLatency {
    pub n: u64,
    pub p50_us: f64,
    /// Quantile 0.95.
    pub p95_us: f64,
}

/// Devices hit and devices counted, by signal, over earlier healthy windows. A device counts once for each
/// version, since its windows are not independent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HealthyHistory(pub BTreeMap<SignalId, Tally>);

impl HealthyHistory {
    /// Returns the tally of one signal; empty if it was never counted.
    #[must_use]
    pub fn of(&self, signal: SignalId) -> Tally {
        self.0.get(&signal).copied().unwrap_or_default()
    }
}

/// One row of the placement census: the number of devices with one placement.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementCount {
    pub model_version: String,
    pub chipset: String,
    /// Where it ran.
    pub placement: Placement,
    /// Devices over the look-back, including the window.
    pub devices: u64,
    /// Devices over the look-back without the window.
    pub devices_before: u64,
}

/// Returns the reference placements of a cohort, best origin first. The first is the commonest placement of the
/// previous version on this chipset for each method, then the certified one. The median of the version's other chipsets
/// follows. Its own commonest placement before the window is last.
#[must_use]
pub(crate) fn placement_references(
    census: &[PlacementCount],
    model_version: &str,
    chipset: &str,
    previous_version: Option<&str>,
    certified: &[&Placement],
) -> Vec<PlacementReference> {
    let from = |origin| {
        move |placement: &Placement| PlacementReference::Placement {
            origin,
            placement: placement.clone(),
        }
    };
    let previous = previous_version.map(|previous| commonest(census, previous, chipset));
    let previous = previous.into_iter().flatten();
    let mut references: Vec<PlacementReference> =
        previous.map(from(Origin::PreviousVersion)).collect();
    references.extend(certified.iter().copied().map(from(Origin::Certified)));
    references.extend(median_of_others(census, model_version, chipset));
    let before: Vec<PlacementCount> = census
        .iter()
        .filter(|row| row.devices_before > 0)
        .map(|row| PlacementCount {
            devices: row.devices_before,
            ..row.clone()
        })
        .collect();
    let own = commonest(&before, model_version, chipset).into_iter();
    references.extend(own.map(from(Origin::SameVersion)));
    references
}

/// Returns the runtimes that a version's devices have on a chipset.
pub(crate) fn runtimes_of(
    census: &[PlacementCount],
    version: &str,
    chipset: &str,
) -> BTreeSet<Arc<str>> {
    let rows = census
        .iter()
        .filter(|row| row.model_version == version && row.chipset == chipset);
    let runtimes = rows.map(|row| row.placement.runtime.as_str());
    runtimes
        .filter(|runtime| !runtime.is_empty())
        .map(Arc::from)
        .collect()
}

/// Returns the commonest placement of a version on a chipset, for each method. Between equally common ones
/// the larger share on the NPU wins, because the model can reach it.
fn commonest<'a>(census: &'a [PlacementCount], version: &str, chipset: &str) -> Vec<&'a Placement> {
    let mut best: BTreeMap<&PlacementMethod, &PlacementCount> = BTreeMap::new();
    let rows = census
        .iter()
        .filter(|row| row.model_version == version && row.chipset == chipset)
        .filter(|row| row.placement.method.is_readable());
    for row in rows {
        let share = |row: &PlacementCount| row.placement.npu_share().map_or(-1.0, |(s, _)| s);
        let slot = best.entry(&row.placement.method).or_insert(row);
        let commoner = row.devices > slot.devices;
        if commoner || (row.devices == slot.devices && share(row) > share(slot)) {
            *slot = row;
        }
    }
    best.into_values().map(|row| &row.placement).collect()
}

fn median_of_others(
    census: &[PlacementCount],
    version: &str,
    chipset: &str,
) -> Vec<PlacementReference> {
    let mut others: Vec<&str> = census
        .iter()
        .filter(|row| row.model_version == version && row.chipset != chipset)
        .filter(|row| is_same_accelerator(&row.chipset, chipset))
        .map(|row| row.chipset.as_str())
        .collect();
    others.sort_unstable();
    others.dedup();

    let mut shares: BTreeMap<(PlacementMethod, bool), Vec<f64>> = BTreeMap::new();
    for other in others {
        for placement in commonest(census, version, other) {
            if let Some((share, unit)) = placement.npu_share() {
                let kind = (placement.method.clone(), unit == WorkUnit::Macs);
                shares.entry(kind).or_default().push(share);
            }
        }
    }
    shares
        .into_iter()
        .filter(|(_, shares)| shares.len() >= MIN_OTHER_CHIPSETS)
        .filter_map(|((method, is_macs), shares)| {
            Some(PlacementReference::MedianShare {
                method,
                npu_share: epwatch_stats::order_stat::median(&shares)?,
                unit: if is_macs {
                    WorkUnit::Macs
                } else {
                    WorkUnit::Nodes
                },
                chipsets: shares.len(),
            })
        })
        .collect()
}

/// A version of a model, and when the store first saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSeen {
    pub version: String,
    /// Time of the first report, in milliseconds since 1970.
    pub first_seen_ms: i64,
    /// Devices that voted for it in the look-back. A device with several placements may count once for each.
    pub devices: u64,
}

/// A version with less than this share of the largest earlier version's devices is only on stray devices.
const STRAY: f64 = 0.1;

/// Returns the version before `version`. It is the version that most devices report as their previous one. Otherwise it
/// is the latest one that was first seen earlier and that more than some stray devices ran. A version that starts
/// nowhere has no session, and is not in `seen`. The latest other version is then before it. Version names have no
/// order.
#[must_use]
pub(crate) fn previous_version(
    version: &str,
    named_by_devices: &BTreeMap<Arc<str>, u64>,
    seen: &[VersionSeen],
) -> Option<String> {
    let named = named_by_devices
        .iter()
        .filter(|(name, _)| &***name != version)
        .max_by_key(|(_, devices)| **devices);
    if let Some((name, _)) = named {
        return Some(name.to_string());
    }
    let own = seen.iter().find(|other| other.version == version);
    let own_ms = own.map_or(i64::MAX, |own| own.first_seen_ms);
    let earlier = || seen.iter().filter(|other| other.first_seen_ms < own_ms);
    let most = earlier().map(|other| other.devices).max()?;
    earlier()
        .filter(|other| other.devices as f64 >= STRAY * most as f64)
        .max_by_key(|other| other.first_seen_ms)
        .map(|other| other.version.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::placement::tests::placed;

    fn count(version: &str, chipset: &str, placement: Placement, devices: u64) -> PlacementCount {
        PlacementCount {
            model_version: version.into(),
            chipset: chipset.into(),
            placement,
            devices,
            devices_before: devices,
        }
    }

    #[test]
    fn the_previous_versions_commonest_placement_comes_first() {
        let census = [
            count("1", "SM8635", placed(1, 42, 0, None), 90),
            count("1", "SM8635", placed(2, 10, 32, None), 10),
            count("1", "SM8650", placed(3, 1, 41, None), 900),
            count("2", "SM8550", placed(4, 30, 0, None), 5),
            count("2", "SM8650", placed(5, 30, 0, None), 5),
        ];
        let references = placement_references(&census, "2", "SM8635", Some("1"), &[]);
        let [
            first,
            PlacementReference::MedianShare {
                npu_share,
                chipsets,
                ..
            },
        ] = &references[..]
        else {
            panic!("{references:?}");
        };
        let expected = PlacementReference::Placement {
            origin: Origin::PreviousVersion,
            placement: placed(1, 42, 0, None),
        };
        assert_eq!(first, &expected);
        assert_eq!((*npu_share, *chipsets), (1.0, 2));
    }

    #[test]
    fn one_other_chipset_is_no_reference() {
        let census = [
            count("1", "SM8635", placed(1, 0, 42, None), 90),
            count("1", "SM8650", placed(1, 42, 0, None), 90),
        ];
        let own = PlacementReference::Placement {
            origin: Origin::SameVersion,
            placement: placed(1, 0, 42, None),
        };
        let found = placement_references(&census, "1", "SM8635", None, &[]);
        assert_eq!(found, [own]);
    }

    #[test]
    fn the_version_before_is_what_devices_ran_before_else_what_was_seen_before() {
        let seen = |version: &str, first_seen_ms| VersionSeen {
            devices: if version == "stray" { 1 } else { 30 },
            version: version.into(),
            first_seen_ms,
        };
        let known = [seen("b", 3), seen("a", 1), seen("c", 3), seen("d", 9)];
        let none = BTreeMap::new();
        assert!(matches!(
            previous_version("d", &none, &known).as_deref(),
            Some("b" | "c")
        ));
        assert_eq!(previous_version("b", &none, &known), Some("a".into()));
        assert_eq!(previous_version("a", &none, &known), None);
        assert_eq!(previous_version("z", &none, &known), Some("d".into()));
        assert_eq!(previous_version("z", &none, &[]), None);
        let with_stray = [&known[..], &[seen("stray", 8)]].concat();
        let before = previous_version("d", &none, &with_stray);
        assert_ne!(before.as_deref(), Some("stray"));
        let strays_alone = [seen("stray", 1), seen("d", 9)];
        let before = previous_version("d", &none, &strays_alone);
        assert_eq!(before.as_deref(), Some("stray"));
        let named = BTreeMap::from([("a".into(), 3), ("c".into(), 40), ("d".into(), 50)]);
        assert_eq!(previous_version("d", &named, &known), Some("c".into()));
    }
}
