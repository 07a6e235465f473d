//! References that stand still while an incident is open.
//!
//! A fallback that lasts becomes the commonest placement of its version, and what was right before it
//! leaves the look-back: compared with that, it would look healthy, and so would the version after it.
//! The same holds for what devices of a version's own earlier windows are used to: it is taken from before
//! the incident, and once that is gone nothing is said.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::baseline::{Origin, PlacementReference};
use crate::cohort::{CohortKey, ModelKey};
use crate::incident::{Cause, Incident};
use crate::verdict::VerdictClass;

/// What stands still for cohorts with an open incident, by version and chipset.
#[derive(Debug, Clone, Default)]
pub struct PinnedReferences {
    /// What their placements were compared with when they were seen to move.
    references: HashMap<CohortKey, Vec<PlacementReference>>,
    /// When the first window began in which they were slower.
    began: HashMap<CohortKey, Timestamp>,
}

impl PinnedReferences {
    /// Returns the references of the incidents that are open.
    #[must_use]
    pub fn of<'a>(incidents: impl IntoIterator<Item = &'a Incident>) -> Self {
        let mut frozen = Self::default();
        let open = incidents.into_iter().filter(|incident| {
            let may_move = matches!(incident.key.cause, Cause::Slower | Cause::NpuStartFailure);
            may_move && incident.state.is_open()
        });
        for cohort in open.flat_map(|incident| &incident.cohorts) {
            let verdict = &cohort.verdict;
            // Firmwares of a chipset share what stands still.
            let key = CohortKey {
                firmware: None,
                ..verdict.key.clone()
            };
            let first = frozen.began.entry(key.clone()).or_insert(cohort.began);
            *first = cohort.began.min(*first);
            let moved = verdict.class != VerdictClass::SlowWithoutPlacement;
            if moved && !verdict.references.is_empty() {
                frozen.references.insert(key, verdict.references.clone());
            }
        }
        frozen
    }

    /// Returns when the incident of a cohort began, if one is open.
    #[must_use]
    pub fn began(&self, cohort: &CohortKey) -> Option<Timestamp> {
        self.began.get(cohort).copied()
    }

    /// Puts what stands still in the place of what was read for a cohort, best origin first.
    #[must_use]
    pub fn applied(
        &self,
        read: Vec<PlacementReference>,
        (model, version, chipset): (&ModelKey, &str, &str),
        previous: Option<&str>,
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
            // What a lab certifies meanwhile holds at once.
            let certified = read
                .into_iter()
                .filter(|one| one.origin() == Origin::Certified && !references.contains(one));
            let certified: Vec<PlacementReference> = certified.collect();
            references.extend(certified);
        } else if let Some(before) = previous.and_then(of) {
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

/// What a version fell from is what it should have been.
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
    use crate::placement::tests::placed;
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
        let applied = open().applied(read.to_vec(), cohort, Some("2.0.0"));
        let found = applied.iter().filter_map(|reference| match reference {
            PlacementReference::Placement { placement, .. } => Some(placement.fingerprint),
            PlacementReference::MedianShare { .. } => None,
        });
        assert_eq!(found.collect::<Vec<_>>(), fingerprints, "{applied:?}");
    }

    #[test]
    fn a_cohort_at_fault_keeps_what_it_was_compared_with() {
        let fallen = [found(Origin::SameVersion, 21)];
        check("2.0.0", "SM8635", &fallen, &[10]);
        let certified = [found(Origin::Certified, 30), found(Origin::SameVersion, 21)];
        check("2.0.0", "SM8635", &certified, &[10, 30]);
    }

    #[test]
    fn the_version_after_it_is_compared_with_what_it_fell_from() {
        let read = [
            found(Origin::PreviousVersion, 21),
            found(Origin::SameVersion, 22),
        ];
        check("2.1.0", "SM8635", &read, &[10, 22]);
    }

    #[test]
    fn other_cohorts_and_incidents_that_are_over_freeze_nothing() {
        let read = [found(Origin::PreviousVersion, 21)];
        check("2.0.0", "SM8650", &read, &[21]);
        assert!(PinnedReferences::of([]).references.is_empty());
    }
}
