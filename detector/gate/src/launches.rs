//! Judges what was measured elsewhere: launches of one kind of file, against those of a baseline and against limits.

use std::collections::BTreeSet;

use epwatch_stats::order_stat::median;

use crate::{
    Judged, Launch,
    files::{check_files, check_targets, groups, is_paired, of_one_model},
    macs::ModelMacs,
    measured::{self, judge_eps},
    mistakes::Mistake,
    placement::InspectedChipset,
    policy::Policy,
    read::recorded,
    run::{Run, RunTarget},
    sessions,
    unpaired::{judge_jobs, judge_layers},
    verdict::{Check, GatedFile, LatencyNumbers, NotChecked, Outcome, Target},
};

pub use crate::files::{LaunchesError, MeasuredFile};

/// Runs that are dropped where the policy has no other number.
const DEFAULT_WARMUP: usize = 3;
/// Runs that show a warm-up, and how much longer they take.
const FIRST_RUNS: usize = 3;
const WARM_UP: f64 = 1.25;

/// What the launches are judged by.
#[derive(Debug, Clone, Copy)]
pub struct JudgedBy<'a> {
    /// The limits to judge by.
    pub policy: &'a Policy,
    /// The measured model, if its file is at hand.
    pub model: Option<&'a GatedFile>,
    /// MACs per node of that model.
    pub macs: Option<&'a ModelMacs>,
    /// The chipset, if the command line names it.
    pub chipset: Option<&'a str>,
    /// Whether an EP of this name puts nodes on the NPU.
    pub is_npu_ep: fn(&str) -> bool,
}

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
    let (candidate, baseline) = of_one_model(candidate, baseline, by.model)?;
    check_files(&candidate, &baseline)?;
    if let Some(model) = by.model {
        let other = |one: &&MeasuredFile| {
            one.run
                .target
                .model_sha256
                .as_ref()
                .is_some_and(|sha256| *sha256 != model.sha256)
        };
        if let Some(one) = candidate.iter().find(other) {
            let sha256 = one.run.target.model_sha256.clone().unwrap_or_default();
            return Err(LaunchesError::OtherModel(
                one.file.path.clone(),
                sha256,
                model.path.clone(),
            ));
        }
    }
    let mut found = JudgedLaunches {
        targets: Vec::new(),
        not_checked: not_checked(&candidate, by),
        launches: Vec::new(),
    };
    let has_baseline = !baseline.is_empty();
    let source = candidate.first().map_or("", |one| one.run.source);
    let (is_table, is_recorded) = (source == "perf_yaml", source == recorded::SOURCE);
    for (label, mut candidate, baseline) in groups(candidate, baseline, source) {
        if is_recorded && by.chipset.is_some_and(|chipset| chipset != label) {
            continue;
        }
        if is_table && baseline.is_empty() && !by.policy.latency.has_limits() {
            continue;
        }
        let label = by.chipset.map_or(label, str::to_owned);
        let inspected = candidate.iter().find_map(|one| one.run.inspected.clone());
        match inspected {
            Some(inspected) => found.targets.extend(inspected.chipsets.iter().map(|on| {
                let limits = by.policy.placement_on(&on.chipset);
                let checks = on.judge(&limits, inspected.macs_error.as_deref());
                Target {
                    placement: on.numbers(),
                    checks,
                    ..target(on.shown(), "inspect", &candidate, &[], by)
                }
            })),
            None => {
                let (mut target, launches) = group(label, &mut candidate, &baseline, by)?;
                if is_recorded && has_baseline && baseline.is_empty() {
                    target.checks.push(sessions::without_runs());
                }
                found.targets.push(target);
                found.launches.extend(launches);
            }
        }
    }
    match found.targets.is_empty() {
        true if is_table => Err(LaunchesError::NoRow),
        true if is_recorded => Err(LaunchesError::NoChipset(
            by.chipset.unwrap_or_default().to_owned(),
        )),
        true => Err(LaunchesError::NothingToJudge),
        false => Ok(found),
    }
}

fn target(
    chipset: String,
    source: &'static str,
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Target {
    let mut files: Vec<GatedFile> = Vec::new();
    for one in candidate.iter().chain(baseline) {
        // Recorded reports have many launches in a file.
        if files.last() != Some(&one.file) {
            files.push(one.file.clone());
        }
    }
    // What all launches share.
    let same = |of: fn(&RunTarget) -> Option<&String>| {
        let first = of(&candidate.first()?.run.target)?;
        let all = candidate
            .iter()
            .all(|one| of(&one.run.target) == Some(first));
        all.then(|| first.clone())
    };
    Target {
        chipset,
        model: by.model.cloned(),
        runs: files,
        source,
        device: same(|target| target.device.as_ref()),
        firmware: same(|target| target.firmware.as_ref()),
        runtime: same(|target| target.runtime.as_ref()),
        against: None,
        placement: None,
        latency: None,
        checks: Vec::new(),
        mistakes: Vec::new(),
    }
}

fn group(
    label: String,
    candidate: &mut [MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Result<(Target, Vec<Launch>), LaunchesError> {
    let limits = &by.policy.latency;
    let source = candidate.first().map_or("", |one| one.run.source);
    let mut target = target(label, source, candidate, baseline, by);
    let eps: Vec<&BTreeSet<String>> = candidate
        .iter()
        .filter_map(|one| one.run.eps.as_ref())
        .collect();
    target.checks.extend(judge_eps(eps, by.is_npu_ep));

    let is_recorded = source == recorded::SOURCE;
    let placed = match is_recorded {
        true => sessions::worst_placement(candidate, by.policy, by.macs, &mut target.mistakes),
        false => placed(candidate, by)?,
    };
    if let Some(placed) = &placed {
        let limits = by.policy.placement_on(&placed.chipset);
        let checks = placed.judge(&limits, placed.error.as_deref());
        target
            .checks
            .extend(checks.into_iter().filter(|check| check.id != "session"));
        target.placement = placed.numbers();
    }

    let mut mistakes = std::mem::take(&mut target.mistakes);
    let measured = candidate.iter().chain(baseline);
    mistakes.extend(measured.flat_map(named));
    let n_all = candidate.len() + baseline.len();
    let (mut now, mut before) = without_throttled(candidate, baseline);
    let (now_us, before_us) = (times(&now), times(&before));
    let layers = |of: &[&MeasuredFile]| of.iter().find_map(|one| one.run.layers);
    let ratio = median(&now_us)
        .zip(median(&before_us))
        .map(|(now, before)| now / before);
    if let Some(now) = layers(&now) {
        target
            .checks
            .push(judge_layers(now, layers(&before), ratio));
    }

    let needs_latency = !baseline.is_empty() || limits.has_limits();
    let is_placed = placed.is_some() || layers(&now).is_some();
    if !needs_latency && !is_placed {
        return Err(LaunchesError::NothingToJudge);
    }
    if is_recorded {
        for arm in [&mut now, &mut before] {
            arm.retain(|one| !one.run.runs_us.is_empty());
        }
        let left_out = n_all - now.len() - before.len();
        if needs_latency {
            check_targets(now.iter().chain(&before).copied())?;
            mistakes.extend((left_out > 0).then(|| Mistake::few_runs(left_out)));
            let is_unequal = !baseline.is_empty() && now.len() != before.len();
            mistakes.extend(is_unequal.then(|| Mistake::unequal_arms(now.len(), before.len())));
            if now.is_empty() || (before.is_empty() && !baseline.is_empty()) {
                target.checks.push(sessions::without_runs());
                target.mistakes = distinct(mistakes);
                return Ok((target, Vec::new()));
            }
        }
    }
    let single_runs = !now.is_empty() && now.iter().all(|one| !one.run.runs_us.is_empty());
    let mut launches = Vec::new();
    if single_runs {
        let warmup = limits.warmup.unwrap_or(DEFAULT_WARMUP);
        let read = |of: &[&MeasuredFile]| -> Result<Vec<Launch>, LaunchesError> {
            of.iter().map(|one| launch(one, warmup)).collect()
        };
        match (read(&now), read(&before)) {
            (Ok(found), Ok(before)) => {
                let warm = now
                    .iter()
                    .any(|one| !one.run.is_warm && has_warm_up(&one.run.runs_us, warmup));
                mistakes.extend(warm.then(Mistake::warm_up_in_runs));
                let pairs = match now.first().is_some_and(|one| is_paired(&one.run)) {
                    true => before,
                    false => Vec::new(),
                };
                let (mut checks, against) = measured::judge(&pairs, &found, limits);
                if !baseline.is_empty() && pairs.is_empty() {
                    checks[0] = unpaired(&before_us, &now_us);
                }
                if needs_latency {
                    target.against = against;
                    target.checks.extend(checks);
                    mistakes.extend((found.len() == 1).then(Mistake::one_launch));
                }
                target.latency = Some(measured::numbers(&found));
                launches = found;
            }
            // The placement is judged without run times.
            (Err(error), _) | (_, Err(error)) if needs_latency => return Err(error),
            _ => {}
        }
    } else if !now_us.is_empty() && needs_latency {
        target.checks.push(match baseline.is_empty() {
            true => skipped(),
            false => unpaired(&before_us, &now_us),
        });
        let values: Vec<f64> = now_us.iter().map(|us| us / 1_000.0).collect();
        target.checks.extend(measured::median_of(&values, limits));
        target.latency = Some(LatencyNumbers {
            launches: now_us.len(),
            median_ms: median(&values),
            ..LatencyNumbers::default()
        });
    }
    if now.is_empty() {
        let mut check = Check::new("throttled");
        check.result = Outcome::Undecided;
        "every launch was measured on a throttled device; measure again".clone_into(&mut check.why);
        target.checks.push(check);
    }
    target.mistakes = distinct(mistakes);
    Ok((target, launches))
}

fn distinct(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    let mut seen = BTreeSet::new();
    mistakes.retain(|mistake| seen.insert((mistake.id, mistake.why.clone())));
    mistakes
}

/// The placement of the profile with the least on the NPU, if the model is at hand.
fn placed(
    candidate: &mut [MeasuredFile],
    by: JudgedBy<'_>,
) -> Result<Option<InspectedChipset>, LaunchesError> {
    let chipset = by.chipset.unwrap_or("unknown");
    let mut worst: Option<InspectedChipset> = None;
    for one in candidate
        .iter_mut()
        .filter(|one| one.run.source == "ort_profile")
    {
        let Some(macs) = by.macs else {
            one.run
                .mistakes
                .extend([Mistake::no_flops(), Mistake::partition_as_node()]);
            continue;
        };
        let placed = macs.placement(&mut one.run, chipset).map_err(|error| {
            let file = one.file.path.clone();
            LaunchesError::WrongModel { file, error }
        })?;
        let share = |of: &InspectedChipset| of.numbers().and_then(|numbers| numbers.npu_macs);
        if worst
            .as_ref()
            .is_none_or(|worst| share(&placed) < share(worst))
        {
            worst = Some(placed);
        }
    }
    Ok(worst)
}

/// The file's mistakes, with its name in those that leave it out.
fn named(one: &MeasuredFile) -> Vec<Mistake> {
    let each = one.run.mistakes.iter().cloned();
    each.map(|mistake| match mistake.id {
        "throttled" => Mistake {
            why: mistake.why.replace("this launch", &one.file.path),
            ..mistake
        },
        _ => mistake,
    })
    .collect()
}

/// Launches of a throttled device are left out, each with its pair.
fn without_throttled<'a>(
    candidate: &'a [MeasuredFile],
    baseline: &'a [MeasuredFile],
) -> (Vec<&'a MeasuredFile>, Vec<&'a MeasuredFile>) {
    let is_hot = |one: &MeasuredFile| {
        one.run
            .mistakes
            .iter()
            .any(|mistake| mistake.id == "throttled")
    };
    let pairs_up = candidate.len() == baseline.len();
    let kept = |arm: &'a [MeasuredFile], other: &'a [MeasuredFile]| -> Vec<&'a MeasuredFile> {
        let each = arm.iter().enumerate().filter(|(at, one)| {
            let pair_is_hot = pairs_up && other.get(*at).is_some_and(is_hot);
            !is_hot(one) && !pair_is_hot
        });
        each.map(|(_, one)| one).collect()
    };
    (kept(candidate, baseline), kept(baseline, candidate))
}

/// One number a launch: the median of its runs, or the only one it has.
fn times(launches: &[&MeasuredFile]) -> Vec<f64> {
    let of = |one: &&MeasuredFile| {
        let runs: Vec<f64> = one.run.runs_us.iter().map(|us| *us as f64).collect();
        median(&runs).or(one.run.time_us)
    };
    launches.iter().filter_map(of).collect()
}

fn launch(one: &MeasuredFile, warmup: usize) -> Result<Launch, LaunchesError> {
    let warmup = if one.run.is_warm { 0 } else { warmup };
    Launch::new(&one.run.runs_us, warmup).map_err(|error| {
        let file = one.file.path.clone();
        LaunchesError::Launch { file, error }
    })
}

/// Whether the first runs that are judged take longer than the others.
fn has_warm_up(runs_us: &[u64], warmup: usize) -> bool {
    let runs: Vec<f64> = runs_us.iter().skip(warmup).map(|us| *us as f64).collect();
    let (first, rest) = runs.split_at(FIRST_RUNS.min(runs.len()));
    let ratio = median(first)
        .zip(median(rest))
        .map(|(first, rest)| first / rest);
    // Each of them: one that is slow is a spike.
    let least = first.iter().copied().fold(f64::INFINITY, f64::min);
    let all = median(rest).is_some_and(|rest| least > WARM_UP * rest);
    all && ratio.is_some_and(|ratio| ratio > WARM_UP)
}

fn skipped() -> Check {
    let mut check = Check::new("regression");
    check.result = Outcome::Skip;
    "there is no baseline".clone_into(&mut check.why);
    check
}

/// Jobs of a farm, on some phone of the kind.
fn unpaired(before_us: &[f64], now_us: &[f64]) -> Check {
    let mut check = Check::new("regression");
    let judged = judge_jobs(before_us, now_us);
    check.value = median(now_us)
        .zip(median(before_us))
        .map(|(now, before)| now / before);
    check.limit = Some(crate::unpaired::RED);
    check.why = format!(
        "{:.2} times the baseline over {} jobs a side, each on some phone of the kind",
        check.value.unwrap_or(1.0),
        before_us.len().min(now_us.len())
    );
    check.result = match judged {
        Judged::Pass => Outcome::Pass,
        Judged::Fail => Outcome::Fail,
        Judged::Undecided(n) => {
            check
                .why
                .push_str(&n.map_or(String::new(), |n| format!("; {n} jobs a side would decide")));
            Outcome::Undecided
        }
    };
    check
}

fn not_checked(candidate: &[MeasuredFile], by: JudgedBy<'_>) -> Vec<NotChecked> {
    let all = |is_it: &dyn Fn(&Run) -> bool| candidate.iter().all(|one| is_it(&one.run));
    let mut parts = Vec::new();
    let mut not = |id, why| parts.push(NotChecked { id, why });
    let has_placement = |run: &Run| {
        (by.macs.is_some() && run.source == "ort_profile")
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
    not("outputs", "the files have none");
    parts
}
