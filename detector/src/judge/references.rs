//! Finds the references of a cohort: the version before it, the same version on other chipsets, its baseline.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::Placement;
use epwatch_proto::accelerator::{is_same_accelerator, split_cohort};
use epwatch_proto::chipset::names_one_chipset;

use crate::judge::base_rates::BaseRates;
use crate::judge::baseline::{Baseline, Certificate, placement_references, runtimes_of};
use crate::judge::past_version::PastVersion;
use crate::judge::window::CohortWindow;
use crate::read::{ModelWindows, Span};

/// The version before a cohort's on its chipset, in the same window.
pub(super) fn previous_of<'a>(
    window: &CohortWindow,
    read: &'a ModelWindows,
    version: Option<&str>,
) -> Option<&'a CohortWindow> {
    let version = version?;
    read.cohorts.iter().find(|other| {
        other.key.chipset == window.key.chipset && other.key.model_version == *version
    })
}

/// A cohort's version on other chipsets. A chipset text that may be another name of the same chipset is left out. If
/// the cohort itself has such a name, another chipset may be its own, so a single other chipset is not used.
pub(super) fn others_of<'a>(
    window: &CohortWindow,
    read: &'a ModelWindows,
) -> Vec<&'a CohortWindow> {
    let others = read.cohorts.iter().filter(|other| {
        other.key.model_version == window.key.model_version
            && other.key.chipset != window.key.chipset
            && is_same_accelerator(&other.key.chipset, &window.key.chipset)
            && names_one_chipset(split_cohort(&other.key.chipset).0)
    });
    let others: Vec<&CohortWindow> = others.collect();
    match names_one_chipset(split_cohort(&window.key.chipset).0) || others.len() > 1 {
        true => others,
        false => Vec::new(),
    }
}

pub(super) fn baseline_of(
    window: &CohortWindow,
    read: &ModelWindows,
    past: &PastVersion,
    span: &Span,
) -> Baseline {
    let (version, chipset) = (&window.key.model_version, &window.key.chipset);
    let certified = read.certified.iter();
    let certificates: Vec<Certificate> = certified
        .filter(|one| one.model_version == *version && one.chipset == *chipset)
        .map(|one| one.certificate.clone())
        .collect();
    let certified: Vec<&Placement> = certificates.iter().map(|one| &one.placement).collect();
    let previous_name = past.version.as_deref();
    Baseline {
        placements: placement_references(&read.census, version, chipset, previous_name, &certified),
        certificates,
        cv_within: read
            .earlier
            .cv_of(version, previous_name, chipset)
            .map(|usual| usual.within),
        latency: BTreeMap::new(),
        history: read.history(version, chipset, span),
        previous_version: past.version.clone(),
        passed_over: past.at_fault.clone(),
        came_back_from: past
            .at_fault
            .first()
            .filter(|_| past.own_until.is_some())
            .cloned(),
        runtimes: previous_name.map_or_else(BTreeSet::new, |previous| {
            runtimes_of(&read.census, previous, chipset)
        }),
        no_controls: Vec::new(),
        rates: BaseRates::default(),
        expects_npu: false,
    }
}
