//! References that are pinned while an incident is open.
//!
//! A fallback that lasts becomes the commonest placement of its version, and the placement before it leaves the
//! look-back. Compared with the fallback, the version would look healthy, and so would the next one. The same holds for
//! device baselines from a version's own earlier windows. They are taken from before the incident, and once those
//! windows are gone there is no baseline.

use std::collections::{HashMap, HashSet};

use epwatch_model::{
    Cause, CohortKey, Incident, ModelKey, Origin, PlacementReference, Reason, VerdictClass,
};
use jiff::Timestamp;

use crate::incident::pins_references;

/// The pinned references of cohorts with an open incident, by version and chipset.
#[derive(Debug, Clone, Default)]
pub struct PinnedReferences {
    /// References that the placements of cohorts had when they got worse.
    references: HashMap<CohortKey, Vec<PlacementReference>>,
    /// Start of the first window in which each cohort was at fault.
    began: HashMap<CohortKey, Timestamp>,
    /// Cohorts that are slower than in their own earlier windows, not than the version before.
    lost: HashSet<CohortKey>,
    /// Cohorts that show only load.
    loaded: HashSet<CohortKey>,
}

impl PinnedReferences {
    /// Collects the references of the incidents that are open, or that a person ended while their fault lasts.
    #[must_use]
    pub fn of<'a>(incidents: impl IntoIterator<Item = &'a Incident>) -> Self {
        let mut pinned = Self::default();
        let open = incidents.into_iter().filter(|incident| {
            let may_move = matches!(incident.key.cause, Cause::Slower | Cause::NpuStartFailure);
            may_move && pins_references(incident)
        });
        for cohort in open.flat_map(|incident| &incident.cohorts) {
            let verdict = &cohort.verdict;
            // Firmwares of a chipset share their references.
            let key = CohortKey {
                firmware: None,
                ..verdict.key.clone()
            };
            // Load comes from the devices, so the version stays a reference and a control.
            if verdict.is_load() {
                pinned.loaded.insert(key);
                continue;
            }
            let first = pinned.began.entry(key.clone()).or_insert(cohort.began);
            *first = cohort.began.min(*first);
            let is_lost = |reason: &Reason| matches!(reason, Reason::SameVersion { .. });
            if verdict.reasons.iter().any(is_lost) {
                pinned.lost.insert(key.clone());
            }
            let moved = verdict.class != VerdictClass::SlowWithoutPlacement;
            if moved && !verdict.references.is_empty() {
                pinned.references.insert(key, verdict.references.clone());
            }
        }
        pinned
    }

    /// Whether a cohort lost what it had gained over the version before, so that its own earlier windows count.
    pub(crate) fn has_lost(&self, cohort: &CohortKey) -> bool {
        self.lost.contains(cohort)
    }

    /// Returns the versions of a cohort's model that have an open incident on its chipset, including load.
    pub(crate) fn versions_at_fault(&self, cohort: &CohortKey) -> Vec<String> {
        let on_chipset = self
            .began
            .keys()
            .chain(&self.loaded)
            .filter(|key| key.model == cohort.model && key.chipset == cohort.chipset);
        let mut versions: Vec<String> = on_chipset.map(|key| key.model_version.clone()).collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }

    /// Returns when the incident of another version of a cohort's model on its chipset began, if one is open.
    #[must_use]
    pub fn version_began(&self, cohort: &CohortKey, version: &str) -> Option<Timestamp> {
        if self.began.is_empty() {
            return None;
        }
        self.began(&CohortKey {
            model_version: version.to_owned(),
            firmware: None,
            ..cohort.clone()
        })
    }

    /// Returns when the incident of a cohort began, if one is open.
    #[must_use]
    pub fn began(&self, cohort: &CohortKey) -> Option<Timestamp> {
        self.began.get(cohort).copied()
    }

    /// Replaces the references that were read for a cohort by pinned ones, best origin first. The pinned ones are its
    /// own, else those which the first earlier version with any has.
    #[must_use]
    pub fn applied<'a>(
        &self,
        read: Vec<PlacementReference>,
        (model, version, chipset): (&ModelKey, &str, &str),
        mut before: impl Iterator<Item = &'a str>,
    ) -> Vec<PlacementReference> {
        if self.references.is_empty() {
            return read;
        }
        let of = |version: &str| {
            self.references.get(&CohortKey {
                model: model.clone(),
                model_version: version.to_owned(),
                chipset: chipset.to_owned(),
                firmware: None,
            })
        };
        let mut references;
        if let Some(own) = of(version) {
            references = own.clone();
            // A placement that was certified since the references were pinned counts at once.
            let certified = read
                .into_iter()
                .filter(|one| one.origin() == Origin::Certified && !references.contains(one));
            let certified: Vec<PlacementReference> = certified.collect();
            references.extend(certified);
        } else if let Some(before) = before.find_map(of) {
            references = before.iter().filter_map(as_previous).collect();
            let rest = read.into_iter();
            references.extend(rest.filter(|one| one.origin() != Origin::PreviousVersion));
        } else {
            return read;
        }
        references.sort_by_key(PlacementReference::origin);
        references
    }
}

/// Returns a version's pinned placement as a reference for the next version.
fn as_previous(reference: &PlacementReference) -> Option<PlacementReference> {
    match reference {
        PlacementReference::Placement { placement, .. } => Some(PlacementReference::Placement {
            origin: Origin::PreviousVersion,
            placement: placement.clone(),
        }),
        PlacementReference::MedianShare { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::incident::advance;
    use crate::judge::placement::tests::placed;
    use crate::testing::{Fleet, judged, model, reference};

    fn found(origin: Origin, fingerprint: u64) -> PlacementReference {
        PlacementReference::Placement {
            origin,
            placement: placed(fingerprint, 42, 0, Some(1.0)),
        }
    }

    fn open() -> PinnedReferences {
        let verdict = judged(&Fleet::with_fallback(1.0).window(), None, &reference());
        let (mut open, now) = (BTreeMap::new(), verdict.window_end);
        advance(&mut open, &[verdict], Duration::from_secs(3_600), now);
        PinnedReferences::of(open.values())
    }

    #[track_caller]
    fn check(version: &str, chipset: &str, read: &[PlacementReference], fingerprints: &[u64]) {
        let model = model();
        let cohort = (&model, version, chipset);
        let applied = open().applied(read.to_vec(), cohort, ["2.0.0"].into_iter());
        let found = applied.iter().filter_map(|reference| match reference {
            PlacementReference::Placement { placement, .. } => Some(placement.fingerprint),
            PlacementReference::MedianShare { .. } => None,
        });
        assert_eq!(found.collect::<Vec<_>>(), fingerprints, "{applied:?}");
    }

    #[test]
    fn a_cohort_at_fault_keeps_its_references() {
        let fallen = [found(Origin::SameVersion, 21)];
        check("2.0.0", "SM8635", &fallen, &[10]);
        let certified = [found(Origin::Certified, 30), found(Origin::SameVersion, 21)];
        check("2.0.0", "SM8635", &certified, &[10, 30]);
    }

    #[test]
    fn the_next_version_is_compared_with_the_placement_before_the_fault() {
        let read = [
            found(Origin::PreviousVersion, 21),
            found(Origin::SameVersion, 22),
        ];
        check("2.1.0", "SM8635", &read, &[10, 22]);
    }

    #[test]
    fn other_cohorts_and_incidents_that_are_over_pin_nothing() {
        let read = [found(Origin::PreviousVersion, 21)];
        check("2.0.0", "SM8650", &read, &[21]);
        assert!(PinnedReferences::of([]).references.is_empty());
    }
}
