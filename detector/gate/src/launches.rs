//! Judges launches that were measured elsewhere, in one kind of file, against a baseline's launches and against limits.

use std::collections::BTreeSet;

use crate::{
    Launch,
    answers::SAME_EP,
    change::judge_numbers,
    comparison::adjusted_chances,
    files::{check_files, check_models, of_one_model},
    group::{self, JudgedGroup, target},
    groups::{Group, groups},
    measured::{min_effect, regression},
    placement::InspectedChipset,
    policy::LatencyLimits,
    quantisation,
    read::recorded,
    run::Run,
    verdict::{Against, Check, CheckResult, GatedModel, NotChecked, PlacementNumbers, Target},
};

pub use crate::files::{JudgedBy, LaunchesError, MeasuredFile};

/// Result of a group of launches.
#[derive(Debug, Default)]
pub struct JudgedLaunches {
    /// The targets in the order of the files' rows.
    pub targets: Vec<Target>,
    /// Checks that could not be made, because the files lack the data.
    pub not_checked: Vec<NotChecked>,
    /// The candidate's launches, if the files have single runs.
    pub launches: Vec<Launch>,
}

impl JudgedLaunches {
    /// Adds launches of another device. A check that neither could make is listed once.
    pub fn add(&mut self, other: Self) {
        self.targets.extend(other.targets);
        self.launches.extend(other.launches);
        for part in other.not_checked {
            if !self.not_checked.contains(&part) {
                self.not_checked.push(part);
            }
        }
    }
}

/// Judges all launches.
///
/// # Errors
/// The files do not belong together, or there is nothing to judge them by.
pub fn judged(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    by: JudgedBy<'_>,
) -> Result<JudgedLaunches, LaunchesError> {
    let (mut candidate, mut baseline) = of_one_model(candidate, baseline, by.model)?;
    check_files(&candidate, &baseline, by.chipset)?;
    check_model(&candidate, by.model)?;
    check_model(&baseline, by.before)?;
    check_models(&candidate, &baseline)?;
    let source = candidate.first().map_or("", |one| one.run.source);
    let (is_table, is_recorded) = (source == "perf_yaml", source == recorded::SOURCE);
    let has_baseline = !baseline.is_empty();
    if let Some(chipset) = by.chipset.filter(|_| is_recorded) {
        for arm in [&mut candidate, &mut baseline] {
            arm.retain(|one| one.run.target.chipset.as_deref() == Some(chipset));
        }
    }
    let limits = &by.policy.latency;
    let needs_latency = has_baseline || limits.has_limits();
    let mut not_checked = not_checked(&candidate, &baseline, by);
    let (mut targets, mut found, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for group in groups(candidate, baseline, by.chipset, needs_latency)? {
        if group.candidate.is_empty() {
            let why =
                "the baseline has this row, and --runs has not: its job failed, or was not made";
            let check = Check::new("regression", CheckResult::Undecided, why);
            gone.push(Target {
                checks: vec![check],
                ..target(group.label, &[], &group.baseline, by)
            });
            continue;
        }
        if is_table && group.baseline.is_empty() && !limits.has_limits() {
            not_checked.push(NotChecked {
                id: group.label.into(),
                why: "a row that the baseline has not, and the policy has no limit of latency",
            });
            continue;
        }
        if group
            .candidate
            .iter()
            .any(|one| one.run.inspected.is_some())
        {
            targets.extend(of_inspect(&group, by, &mut not_checked));
            continue;
        }
        let is_alone = is_recorded && has_baseline && group.baseline.is_empty();
        let mut judged = group::judge(group, by)?;
        if is_alone {
            judged.target.checks.push(group::without_runs());
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
        (true, _) if !has_baseline => LaunchesError::OneTable,
        (true, _) => LaunchesError::NoRow,
        (_, Some(chipset)) => LaunchesError::NoChipset(chipset.to_owned()),
        _ => LaunchesError::NothingToJudge,
    };
    if targets.is_empty() {
        return Err(nothing());
    }
    quantisation::tell_apart(&mut targets);
    targets.extend(gone);
    Ok(JudgedLaunches {
        targets,
        not_checked,
        launches,
    })
}

fn check_model(launches: &[MeasuredFile], model: Option<&GatedModel>) -> Result<(), LaunchesError> {
    let Some(model) = model else { return Ok(()) };
    for one in launches {
        let sha256 = one.run.target.model_sha256.as_ref();
        if let Some(other) = sha256.filter(|sha256| **sha256 != model.sha256) {
            let (path, model) = (one.file.path.clone(), model.path.clone());
            return Err(LaunchesError::OtherModel(path, other.clone(), model));
        }
        for (file, was) in &one.run.target.model_data {
            let is = model.sha256_of_data(file);
            if is != Some(was.as_str()) {
                return Err(LaunchesError::OtherData {
                    launch: one.file.path.clone(),
                    file: file.clone(),
                    was: was.clone(),
                    is: is.unwrap_or("the file is missing").to_owned(),
                    model: model.path.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Judges each chipset of each document of `inspect`, also against the placements of the earlier model.
fn of_inspect(group: &Group, by: JudgedBy<'_>, not_checked: &mut Vec<NotChecked>) -> Vec<Target> {
    let wanted = |on: &&InspectedChipset| by.chipset.is_none_or(|wanted| wanted == on.shown());
    let chipsets = |of: &MeasuredFile| -> Vec<InspectedChipset> {
        let inspected = of.run.inspected.iter();
        let each = inspected.flat_map(|inspected| &inspected.chipsets);
        each.filter(wanted).cloned().collect()
    };
    let before: Vec<InspectedChipset> = group.baseline.iter().flat_map(&chipsets).collect();
    let mut targets = Vec::new();
    for one in &group.candidate {
        let inspected = one.run.inspected.as_ref();
        let macs_error = inspected.and_then(|inspected| inspected.macs_error.as_deref());
        for mut on in chipsets(one) {
            on.counted = inspected.map(|of| of.counted.clone()).unwrap_or_default();
            let mut checks = on.judge(&by.policy.placement_on(&on.chipset), macs_error);
            let placement = on.numbers();
            if !group.baseline.is_empty() {
                let same = before.iter().filter(|before| before.shown() == on.shown());
                let change = change(placement.as_ref(), &same.collect::<Vec<_>>());
                checks.extend(change);
            }
            let files = std::slice::from_ref(one);
            let mut target = Target {
                placement,
                checks,
                ..target(on.shown(), files, &group.baseline, by)
            };
            group::add_asked(&mut target, by, &on.chipset);
            targets.push(target);
        }
    }
    let judged: BTreeSet<&str> = targets.iter().map(|target| &*target.chipset).collect();
    let left: BTreeSet<String> = before.iter().map(InspectedChipset::shown).collect();
    for chipset in left.iter().filter(|left| !judged.contains(left.as_str())) {
        not_checked.push(NotChecked {
            id: chipset.clone().into(),
            why: "only the baseline has this chipset",
        });
    }
    targets
}

/// Judges a placement against the best placement of the earlier model; `None` without a session now.
fn change(now: Option<&PlacementNumbers>, before: &[&InspectedChipset]) -> Option<Check> {
    let now = now?;
    let id = "placement_change";
    let share = |of: &PlacementNumbers| of.npu_macs.unwrap_or(-1.0);
    let numbers = before.iter().filter_map(|before| before.numbers());
    let best = numbers.max_by(|a, b| share(a).total_cmp(&share(b)));
    Some(match best {
        Some(best) => judge_numbers(now, &best),
        None if before.is_empty() => {
            let why = "the baseline has no placement on this chipset";
            Check::new(id, CheckResult::Undecided, why)
        }
        None => Check::new(id, CheckResult::Skip, "the baseline has no session there"),
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

fn not_checked(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Vec<NotChecked> {
    let all = |is_it: &dyn Fn(&Run) -> bool| candidate.iter().all(|one| is_it(&one.run));
    let both =
        |is_it: &dyn Fn(&Run) -> bool| all(is_it) && baseline.iter().all(|one| is_it(&one.run));
    let mut parts = Vec::new();
    let mut not = |id: &'static str, why| {
        let id = id.into();
        parts.push(NotChecked { id, why });
    };
    let has_placement = |run: &Run| {
        let has_nodes = run.source == "ort_profile" || run.source == "run";
        let lists_macs = run.nodes.iter().any(|node| node.macs_by_shapes.is_some());
        (by.macs.is_some() && has_nodes && !run.nodes.is_empty())
            || (lists_macs && run.source == "run")
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
    } else if baseline.is_empty() && !by.policy.latency.has_limits() {
        not(
            "latency",
            "there is no baseline, and the policy has no limit",
        );
    }
    let is_timed = !baseline.is_empty() || by.policy.limits_launches();
    if is_timed && candidate.iter().any(|one| one.run.source == "ort_profile") {
        not(
            "emulator",
            "a profile of ONNX Runtime does not say if a phone or QNN's emulator ran it; times of an emulator mean nothing",
        );
    }
    if by.policy.load.cold_ms.is_none() {
        not("load", "the policy has no load.cold_ms");
    }
    if by.model.is_some() && !all(&|run| run.target.model_sha256.is_some()) {
        not("model", "a file does not say that it is of MODEL");
    }
    let has_data = by.model.is_some_and(|model| !model.data.is_empty());
    let names_data =
        |run: &Run| run.target.model_sha256.is_none() || !run.target.model_data.is_empty();
    if has_data && !all(&names_data) {
        not(
            "data",
            "a file does not say which data of MODEL it was measured with",
        );
    }
    let is_inspect = all(&|run| run.inspected.is_some());
    if !is_inspect && !both(&|run| run.target.device.is_some()) {
        not(
            "device",
            "a file names none; baseline and candidate must come from one, in turn",
        );
    }
    let is_farm = all(&|run| run.source == "perf_yaml" || run.source.starts_with("aihub"));
    let is_compared = !baseline.is_empty() && !is_farm && !is_inspect;
    if is_compared && !both(&|run| run.target.firmware.is_some()) {
        not(
            "firmware",
            "a file names none, so that another one is not seen",
        );
    }
    if is_compared && !both(&|run| run.target.runtime.is_some()) {
        not(
            "runtime",
            "a file names none, so that another one is not seen",
        );
    }
    match by.policy.outputs.min_cosine {
        _ if by.is_on_cpu => not("outputs", SAME_EP),
        None if all(&|run| run.outputs.is_some()) => {
            not("outputs", "the policy has no outputs.min_cosine");
        }
        None => not("outputs", "the files have none"),
        Some(_) => {}
    }
    parts
}
