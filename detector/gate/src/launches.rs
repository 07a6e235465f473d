//! Judges what was measured elsewhere: launches of one kind of file, against those of a baseline and against limits.

use crate::{
    Launch,
    comparison::adjusted_chances,
    files::{check_files, groups, of_one_model},
    group::{self, JudgedGroup, target},
    measured::{min_effect, regression},
    placement::{Inspected, InspectedChipset, judge_change},
    policy::LatencyLimits,
    read::recorded,
    run::Run,
    sessions,
    verdict::{Against, Check, GatedFile, NotChecked, PlacementNumbers, Target},
};

pub use crate::files::{JudgedBy, LaunchesError, MeasuredFile};

/// What a group of launches came to.
#[derive(Debug)]
pub struct JudgedLaunches {
    /// In the order of the files' rows.
    pub targets: Vec<Target>,
    /// Parts that the files do not have.
    pub not_checked: Vec<NotChecked>,
    /// The candidate's launches, where single runs were read.
    pub launches: Vec<Launch>,
}

/// Judges all launches.
///
/// # Errors
/// The files do not belong together, or there is nothing to judge by.
pub fn judged(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    by: JudgedBy<'_>,
) -> Result<JudgedLaunches, LaunchesError> {
    let (mut candidate, mut baseline) = of_one_model(candidate, baseline, by.model)?;
    check_files(&candidate, &baseline, by.chipset)?;
    check_model(&candidate, by.model)?;
    let source = candidate.first().map_or("", |one| one.run.source);
    let (is_table, is_recorded) = (source == "perf_yaml", source == recorded::SOURCE);
    let has_baseline = !baseline.is_empty();
    if let Some(chipset) = by.chipset.filter(|_| is_recorded) {
        for arm in [&mut candidate, &mut baseline] {
            arm.retain(|one| one.run.target.chipset.as_deref() == Some(chipset));
        }
    }
    let not_checked = not_checked(&candidate, by);
    let limits = &by.policy.latency;
    let needs_latency = has_baseline || limits.has_limits();
    let (mut targets, mut found) = (Vec::new(), Vec::new());
    for group in groups(candidate, baseline, by.chipset, needs_latency)? {
        if is_table && group.baseline.is_empty() && !limits.has_limits() {
            continue;
        }
        let inspected = group
            .candidate
            .iter()
            .find_map(|one| one.run.inspected.clone());
        if let Some(inspected) = inspected {
            let before = group
                .baseline
                .iter()
                .find_map(|one| one.run.inspected.as_ref());
            let each = of_inspect(&inspected, before, by).map(|judged| Target {
                placement: judged.placement,
                checks: judged.checks,
                ..target(judged.chipset, &group.candidate, &group.baseline, by)
            });
            targets.extend(each);
            continue;
        }
        let is_alone = is_recorded && has_baseline && group.baseline.is_empty();
        let mut judged = group::judge(group, by)?;
        if is_alone {
            judged.target.checks.push(sessions::without_runs());
        }
        found.push(judged);
    }
    adjust(&mut found, limits);
    let mut launches = Vec::new();
    for judged in found {
        targets.push(judged.target);
        launches.extend(judged.launches);
    }
    let nothing = || match (is_table, by.chipset) {
        (true, _) => LaunchesError::NoRow,
        (_, Some(chipset)) => LaunchesError::NoChipset(chipset.to_owned()),
        _ => LaunchesError::NothingToJudge,
    };
    match targets.is_empty() {
        true => Err(nothing()),
        false => Ok(JudgedLaunches {
            targets,
            not_checked,
            launches,
        }),
    }
}

fn check_model(candidate: &[MeasuredFile], model: Option<&GatedFile>) -> Result<(), LaunchesError> {
    let Some(model) = model else { return Ok(()) };
    for one in candidate {
        let sha256 = one.run.target.model_sha256.as_ref();
        if let Some(other) = sha256.filter(|sha256| **sha256 != model.sha256) {
            let (path, model) = (one.file.path.clone(), model.path.clone());
            return Err(LaunchesError::OtherModel(path, other.clone(), model));
        }
    }
    Ok(())
}

/// Placement and checks of one chipset of a document.
struct JudgedPlacement {
    chipset: String,
    placement: Option<PlacementNumbers>,
    checks: Vec<Check>,
}

/// Judges the document of `inspect`, chipset by chipset, also by the one of the model before.
fn of_inspect<'a>(
    inspected: &'a Inspected,
    before: Option<&'a Inspected>,
    by: JudgedBy<'a>,
) -> impl Iterator<Item = JudgedPlacement> + 'a {
    let wanted = move |chipset: &str| by.chipset.is_none_or(|wanted| wanted == chipset);
    let chipsets = inspected.chipsets.iter();
    let chipsets = chipsets.filter(move |on| wanted(&on.shown()));
    chipsets.map(move |on| {
        let limits = by.policy.placement_on(&on.chipset);
        let mut checks = on.judge(&limits, inspected.macs_error.as_deref());
        let placement = on.numbers();
        let mut before = before.into_iter().flat_map(|before| &before.chipsets);
        let before = before.find(|before| before.shown() == on.shown());
        let before = before.and_then(InspectedChipset::numbers);
        let both = placement.as_ref().zip(before.as_ref());
        checks.extend(both.map(|(now, before)| judge_change(now, before)));
        JudgedPlacement {
            chipset: on.shown(),
            placement,
            checks,
        }
    })
}

/// Adjusts the chances of several devices for their number: of many, one is slower by chance.
fn adjust(groups: &mut [JudgedGroup], limits: &LatencyLimits) {
    let compared = groups.iter().filter_map(|group| group.comparison.as_ref());
    let chances: Vec<f64> = compared.map(|found| found.chance).collect();
    let mut adjusted = adjusted_chances(&chances).into_iter();
    for JudgedGroup {
        target, comparison, ..
    } in groups
    {
        let Some(found) = comparison.take() else {
            continue;
        };
        let Some(chance) = adjusted.next() else {
            continue;
        };
        let found = found.with_chance(chance, min_effect(limits));
        target.against = Some(Against::from(&found));
        for check in &mut target.checks {
            if check.id == "regression" {
                *check = regression(&found, limits);
            }
        }
    }
}

fn not_checked(candidate: &[MeasuredFile], by: JudgedBy<'_>) -> Vec<NotChecked> {
    let all = |is_it: &dyn Fn(&Run) -> bool| candidate.iter().all(|one| is_it(&one.run));
    let mut parts = Vec::new();
    let mut not = |id, why| parts.push(NotChecked { id, why });
    let has_placement = |run: &Run| {
        let has_nodes = run.source == "ort_profile" || run.source == "run";
        (by.macs.is_some() && has_nodes && !run.nodes.is_empty())
            || run.layers.is_some()
            || run.placed.is_some()
            || run.inspected.is_some()
    };
    if !all(&has_placement) {
        not(
            "placement",
            "the files have none, or MODEL is not given for a profile's",
        );
    }
    if all(&|run| run.runs_us.is_empty() && run.time_us.is_none()) {
        not("latency", "the files have no run times");
    }
    if !all(&|run| run.target.device.is_some()) {
        not(
            "device",
            "the files name none; baseline and candidate must come from one, in turn",
        );
    }
    match by.policy.outputs.min_cosine {
        None if all(&|run| run.outputs.is_some()) => {
            not("outputs", "the policy has no outputs.min_cosine");
        }
        None => not("outputs", "the files have none"),
        Some(_) => {}
    }
    parts
}
