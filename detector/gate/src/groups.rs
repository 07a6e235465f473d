//! Launches that are judged together: of one device, of one chipset, or of one row of a table.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    files::{LaunchesError, MeasuredFile, check_targets},
    read::recorded,
    run::{Run, RunTarget},
};

/// The target of launches that name no chipset.
pub const UNNAMED: &str = "measured";

/// Whether launches of this kind are measured in turn on one device, so that they pair up.
pub(crate) fn is_paired(run: &Run) -> bool {
    !run.source.starts_with("aihub") && !run.runs_us.is_empty()
}

/// Launches that are judged together. If only the baseline has a row, its group has no launches of the candidate.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Name of the target.
    pub(crate) label: String,
    pub(crate) candidate: Vec<MeasuredFile>,
    pub(crate) baseline: Vec<MeasuredFile>,
}

/// Groups launches by row of a table, and recorded sessions by chipset. Then each group is split by device, if there
/// are several.
pub(crate) fn groups(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    chipset: Option<&str>,
    needs_latency: bool,
) -> Result<Vec<Group>, LaunchesError> {
    let source = candidate.first().map_or("", |one| one.run.source);
    let (is_table, is_recorded) = (source == "perf_yaml", source == recorded::SOURCE);
    let label = |one: &MeasuredFile| {
        let target = &one.run.target;
        match (is_table, is_recorded) {
            (true, _) => {
                let device = target.device.as_deref().unwrap_or_default();
                format!("{device}: {}", target.row)
            }
            (_, true) => target.chipset.clone().unwrap_or_default(),
            _ => String::new(),
        }
    };
    let mut groups = Vec::new();
    let (found, left) = grouped(candidate, baseline, label);
    for gone in left.into_iter().filter(|_| is_table) {
        groups.push(Group {
            label: label(&gone),
            candidate: Vec::new(),
            baseline: vec![gone],
        });
    }
    for group in found {
        // A placement belongs to its chipset, whichever device reported it.
        if is_table || (is_recorded && !needs_latency) {
            groups.push(group);
            continue;
        }
        groups.extend(by_device(group, chipset, is_recorded)?);
    }
    for group in &groups {
        let (n, n_baseline) = (group.candidate.len(), group.baseline.len());
        let is_paired =
            !is_recorded && !is_table && group.candidate.iter().all(|one| is_paired(&one.run));
        if is_paired && n_baseline > 0 && n_baseline != n {
            return Err(LaunchesError::NoPairs {
                candidates: n,
                baselines: n_baseline,
            });
        }
        if !is_table && !is_recorded {
            check_targets(group.candidate.iter().chain(&group.baseline))?;
        }
    }
    Ok(groups)
}

/// Returns the groups that have a candidate, and the baseline's launches that fit none of them.
fn grouped(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    label: impl Fn(&MeasuredFile) -> String,
) -> (Vec<Group>, Vec<MeasuredFile>) {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for one in candidate {
        let label = label(&one);
        let group = groups.entry(label.clone()).or_default();
        group.label = label;
        group.candidate.push(one);
    }
    let mut left = Vec::new();
    for one in baseline {
        match groups.get_mut(&label(&one)) {
            Some(group) => group.baseline.push(one),
            None => left.push(one),
        }
    }
    (groups.into_values().collect(), left)
}

/// A group for each device and firmware, if the candidate's launches are of several.
fn by_device(
    mut group: Group,
    chipset: Option<&str>,
    is_recorded: bool,
) -> Result<Vec<Group>, LaunchesError> {
    let device = |one: &MeasuredFile| {
        let RunTarget {
            chipset,
            device,
            phone,
            ..
        } = &one.run.target;
        let parts = [chipset, device, phone].into_iter().flatten();
        parts.map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    let mut firmwares: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in group.candidate.iter().filter(|_| !is_recorded) {
        let known = firmwares.entry(device(one)).or_default();
        known.extend(one.run.target.firmware.clone());
    }
    let name = |one: &MeasuredFile| {
        let device = device(one);
        let has_several = firmwares.get(&device).is_some_and(|known| known.len() > 1);
        match one.run.target.firmware.as_ref().filter(|_| has_several) {
            Some(firmware) if !device.is_empty() => format!("{device}, firmware {firmware}"),
            _ => device,
        }
    };
    let names: BTreeSet<String> = group.candidate.iter().map(name).collect();
    if names.iter().filter(|name| !name.is_empty()).count() < 2 {
        let mut named = group.candidate.iter();
        let named = named.find_map(|one| one.run.target.chipset.as_deref());
        chipset
            .or(named)
            .unwrap_or(UNNAMED)
            .clone_into(&mut group.label);
        return Ok(vec![group]);
    }
    let has_baseline = !group.baseline.is_empty();
    let unnamed = group
        .candidate
        .iter()
        .chain(&group.baseline)
        .find(|one| name(one).is_empty());
    if let Some(unnamed) = unnamed {
        return Err(LaunchesError::NoDevice(unnamed.file.path.clone()));
    }
    let (groups, left) = grouped(group.candidate, group.baseline, name);
    // A collector has reports of any phone, so recorded sessions of the baseline may be of other devices.
    if let Some(other) = left.first().filter(|_| !is_recorded) {
        return Err(LaunchesError::OtherDevice(
            other.file.path.clone(),
            name(other),
        ));
    }
    let alone = groups.iter().find(|group| group.baseline.is_empty());
    match alone.filter(|_| has_baseline && !is_recorded) {
        Some(alone) => Err(LaunchesError::NoPairs {
            candidates: alone.candidate.len(),
            baselines: 0,
        }),
        None => Ok(groups),
    }
}
